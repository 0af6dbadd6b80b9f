//! The stored form of long keys, in a companion keyspace.
//!
//! A key is cut into pieces of equal length and a rest. Each piece is stored as a *link*, the rest as a *leaf* with the
//! value. The *chain* of a level is the hash of all pieces above it, so the entries of a level are those of all keys with
//! the same pieces above:
//!
//! ```text
//! key     p1 p2 … pn rest                              all pieces have PIECE_BYTES bytes, the rest 1 to PIECE_BYTES
//!
//! link    chain i (32) │ piece i+1 │ id (32)            value: empty
//! leaf    chain n (32) │ rest                           value: that of the key
//!
//! chain 0 = 32 zeros     chain i+1 = SHA-256(chain i, piece i+1)     id = SHA-256(chain n, rest)
//! ```
//!
//! Within a level, pieces and rests are in the order of the keys; links and leaves differ in length. The entries of a key
//! follow from the key alone, so no write reads, and keys with the same pieces have links of their own, so that removing
//! one key leaves the others. Two keys cannot be mistaken for each other unless SHA-256 has a collision.

use sha2::{Digest, Sha256};

/// Bytes of a hash.
pub(super) const HASH_BYTES: usize = 32;

/// The hash of the pieces above a level.
pub(super) type Chain = [u8; HASH_BYTES];

/// The chain of the first level.
pub(super) const ROOT: Chain = [0; HASH_BYTES];

/// The keys of the entries of one long key.
pub(super) struct StoredKeys {
    /// The keys of the links, from the first level.
    pub(super) links: Vec<Vec<u8>>,
    /// The key of the leaf.
    pub(super) leaf: Vec<u8>,
}

/// An entry of a level.
pub(super) enum StoredEntry<'e> {
    /// Some key continues below this piece.
    Link {
        /// The piece.
        piece: &'e [u8],
    },
    /// A key ends here.
    Leaf {
        /// Its last bytes.
        rest: &'e [u8],
    },
}

fn hash(chain: &Chain, bytes: &[u8]) -> Chain {
    let mut hasher = Sha256::new();
    hasher.update(chain);
    hasher.update(bytes);
    hasher.finalize().into()
}

/// Returns the chain of the level below a piece.
pub(super) fn chain_below(chain: &Chain, piece: &[u8]) -> Chain {
    hash(chain, piece)
}

/// Returns the key of the leaf of a key.
pub(super) fn leaf(key: &[u8], piece_bytes: usize) -> Vec<u8> {
    let (mut chain, mut rest) = (ROOT, key);
    while rest.len() > piece_bytes {
        let (piece, below) = rest.split_at(piece_bytes);
        chain = chain_below(&chain, piece);
        rest = below;
    }
    [&chain, rest].concat()
}

/// Returns the keys of all entries of a key.
pub(super) fn stored_keys(key: &[u8], piece_bytes: usize) -> StoredKeys {
    let (mut chain, mut rest) = (ROOT, key);
    let mut links = Vec::with_capacity(key.len() / piece_bytes);
    while rest.len() > piece_bytes {
        let (piece, below) = rest.split_at(piece_bytes);
        let mut link = Vec::with_capacity(piece_bytes + 2 * HASH_BYTES);
        link.extend_from_slice(&chain);
        link.extend_from_slice(piece);
        links.push(link);
        chain = chain_below(&chain, piece);
        rest = below;
    }
    let id = hash(&chain, rest);
    for link in &mut links {
        link.extend_from_slice(&id);
    }
    StoredKeys {
        links,
        leaf: [&chain, rest].concat(),
    }
}

/// Parses the key of an entry; `None` if it has no such form.
pub(super) fn parse(stored: &[u8], piece_bytes: usize) -> Option<StoredEntry<'_>> {
    let rest = stored.get(HASH_BYTES..)?;
    if rest.len() <= piece_bytes {
        return Some(StoredEntry::Leaf { rest });
    }
    let (piece, id) = rest.split_at(piece_bytes);
    (id.len() == HASH_BYTES).then_some(StoredEntry::Link { piece })
}

/// Returns the least bytes above everything that starts with `prefix`; `None` if there are none.
pub(crate) fn end_of_prefix(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return Some(prefix);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_form_is_that_of_the_head() {
        let stored = stored_keys(b"abcdefgh", 3);
        let zeros = "00".repeat(32);
        let id = "262fd79ca486c33add80aa63224d9f26";
        assert_eq!(stored.links.len(), 2);
        let first = hex(&stored.links[0]);
        assert!(first.starts_with(&format!("{zeros}616263")), "{first}");
        let below = hash(&ROOT, b"abc");
        let second = &stored.links[1];
        assert_eq!(second[..32], below);
        assert_eq!(&second[32..35], b"def");
        let last = hash(&below, b"def");
        assert_eq!(stored.leaf, [&last[..], b"gh"].concat());
        for link in &stored.links {
            assert_eq!(link[35..], hash(&last, b"gh"));
        }
        // On disk: may never change within a format version.
        assert_eq!(hex(&stored.links[1][35..])[..32], *id);
    }

    #[test]
    fn a_key_of_whole_pieces_ends_with_a_leaf() {
        let stored = stored_keys(b"abcdef", 3);
        assert_eq!(stored.links.len(), 1);
        assert_eq!(stored.leaf[32..], *b"def");
        assert_eq!(leaf(b"abcdef", 3), stored.leaf);
        assert!(matches!(
            parse(&stored.links[0], 3),
            Some(StoredEntry::Link { piece: b"abc" })
        ));
        assert!(matches!(
            parse(&stored.leaf, 3),
            Some(StoredEntry::Leaf { rest: b"def" })
        ));
        assert!(parse(&[0; 40], 3).is_none());
        assert!(parse(&[0; 31], 3).is_none());
    }

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(end_of_prefix(vec![1, 255, 255]), Some(vec![2]));
        assert_eq!(end_of_prefix(vec![255]), None);
    }
}
