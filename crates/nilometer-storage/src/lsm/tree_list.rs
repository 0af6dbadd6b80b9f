//! `TREES`: the list of keyspaces.
//!
//! ```text
//! "NILOTRE1", next id u64, number of keyspaces u64,
//! for each: id u64,
//!           flags u8 (1: separated values, 2: short-lived entries, 4: long keys, 8: unflushed, 16: large blocks),
//!           name length u32, name, with flag 4 the id of the keyspace whose long keys it holds u64
//! checksum u64 of everything before it                                       (little-endian)
//! ```
//!
//! The file is replaced as a whole. It names a keyspace before the log may, and stops naming it before its files are
//! removed; ids are never reused. So at startup a directory of `trees/` that is not named is orphaned, and an id in the
//! log that is neither named nor below `next_id` is damage. Of an unflushed keyspace all entries are in the log, and its
//! files need not exist; see [`super::first_flush`].

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::directory::{
    FORMAT_VERSION, LARGE_BLOCK_FORMAT_VERSION, LONG_KEY_FORMAT_VERSION, UNFLUSHED_FORMAT_VERSION,
    write_atomically,
};
use crate::checksum::checksum;
use crate::engine::{Keyspace, KeyspaceId, KeyspaceOptions};
use crate::error::{Error, Result};

const FILE: &str = "TREES";
const MAGIC: &[u8; 8] = b"NILOTRE1";
const SEPARATED: u8 = 1;
const SHORT_LIVED: u8 = 2;
const LONG_KEYS: u8 = 4;
const UNFLUSHED: u8 = 8;
const LARGE_BLOCKS: u8 = 16;

/// The keyspaces of a database, by ascending id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeList {
    pub(crate) next_id: u64,
    pub(crate) keyspaces: Vec<Keyspace>,
    /// Those of which no flush has begun.
    pub(crate) unflushed: BTreeSet<KeyspaceId>,
}

impl Default for TreeList {
    fn default() -> Self {
        Self {
            next_id: 1,
            keyspaces: Vec::new(),
            unflushed: BTreeSet::new(),
        }
    }
}

impl TreeList {
    /// Reads the list of the database at `path`. Returns `None` if the file is absent.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        let file = path.join(FILE);
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::io("read", &file, source)),
        };
        match Self::decode(&bytes) {
            Some(list) => Ok(Some(list)),
            None => Err(Error::corruption(
                "list of keyspaces",
                &file,
                0,
                "a list with a matching checksum",
                format!("{} bytes that are not a list", bytes.len()),
            )),
        }
    }

    /// Writes the list of the database at `path`.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, FILE, &self.encode())
    }

    /// Returns the version of the format that a directory with these keyspaces has at least.
    pub(crate) fn format_version(&self) -> u32 {
        let has = |test: fn(&KeyspaceOptions) -> bool| {
            let mut options = self.keyspaces.iter().map(|keyspace| &keyspace.options);
            options.any(test)
        };
        if has(|options| options.large_blocks) {
            return LARGE_BLOCK_FORMAT_VERSION;
        }
        if !self.unflushed.is_empty() {
            return UNFLUSHED_FORMAT_VERSION;
        }
        match has(|options| options.long_keys_of.is_some()) {
            true => LONG_KEY_FORMAT_VERSION,
            false => FORMAT_VERSION,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.next_id.to_le_bytes());
        bytes.extend((self.keyspaces.len() as u64).to_le_bytes());
        for keyspace in &self.keyspaces {
            bytes.extend(keyspace.id.0.to_le_bytes());
            let unflushed = match self.unflushed.contains(&keyspace.id) {
                true => UNFLUSHED,
                false => 0,
            };
            bytes.push(flags_of(keyspace.options) | unflushed);
            bytes.extend((keyspace.name.len() as u32).to_le_bytes());
            bytes.extend(keyspace.name.as_bytes());
            if let Some(of) = keyspace.options.long_keys_of {
                bytes.extend(of.0.to_le_bytes());
            }
        }
        bytes.extend(checksum(&bytes, 0).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*sum) != checksum(body, 0) {
            return None;
        }
        let (magic, rest) = body.split_first_chunk::<8>()?;
        let (next_id, rest) = rest.split_first_chunk::<8>()?;
        let (count, mut rest) = rest.split_first_chunk::<8>()?;
        if magic != MAGIC {
            return None;
        }
        let mut keyspaces = Vec::new();
        let mut unflushed = BTreeSet::new();
        for _ in 0..u64::from_le_bytes(*count) {
            let (id, after) = rest.split_first_chunk::<8>()?;
            let (flags, after) = after.split_first()?;
            let (length, after) = after.split_first_chunk::<4>()?;
            let (name, mut after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            let id = KeyspaceId(u64::from_le_bytes(*id));
            let mut options = options_of(*flags)?;
            if flags & UNFLUSHED != 0 {
                unflushed.insert(id);
            }
            if flags & LONG_KEYS != 0 {
                let (of, rest) = after.split_first_chunk::<8>()?;
                options.long_keys_of = Some(KeyspaceId(u64::from_le_bytes(*of)));
                after = rest;
            }
            keyspaces.push(Keyspace {
                id,
                name: String::from_utf8(name.to_vec()).ok()?,
                options,
            });
            rest = after;
        }
        rest.is_empty().then_some(Self {
            next_id: u64::from_le_bytes(*next_id),
            keyspaces,
            unflushed,
        })
    }
}

fn flags_of(options: KeyspaceOptions) -> u8 {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    flag(options.separate_values, SEPARATED)
        | flag(options.short_lived, SHORT_LIVED)
        | flag(options.large_blocks, LARGE_BLOCKS)
        | flag(options.long_keys_of.is_some(), LONG_KEYS)
}

fn options_of(flags: u8) -> Option<KeyspaceOptions> {
    let known = SEPARATED | SHORT_LIVED | LONG_KEYS | UNFLUSHED | LARGE_BLOCKS;
    (flags & !known == 0).then_some(KeyspaceOptions {
        separate_values: flags & SEPARATED != 0,
        short_lived: flags & SHORT_LIVED != 0,
        large_blocks: flags & LARGE_BLOCKS != 0,
        long_keys_of: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_the_round_trip_and_no_flipped_bit() {
        let keyspace = |id, name: &str, separate_values, short_lived| Keyspace {
            id: KeyspaceId(id),
            name: name.to_owned(),
            options: KeyspaceOptions {
                separate_values,
                short_lived,
                ..KeyspaceOptions::default()
            },
        };
        let mut long_keys = keyspace(11, "long keys of 8", true, false);
        long_keys.options.long_keys_of = Some(KeyspaceId(8));
        let mut records = keyspace(12, "records", false, false);
        records.options.large_blocks = true;
        let list = TreeList {
            next_id: 13,
            keyspaces: vec![
                keyspace(1, "catalog", false, false),
                keyspace(8, "séparé", true, false),
                keyspace(9, "tail", false, true),
                long_keys,
                records,
            ],
            unflushed: BTreeSet::from([KeyspaceId(8), KeyspaceId(11)]),
        };
        let bytes = list.encode();
        // The flags of the keyspaces called "catalog" and "séparé".
        assert_eq!(&bytes[24..45], b"\x01\0\0\0\0\0\0\0\0\x07\0\0\0catalog\x08");
        assert_eq!(bytes[52], SEPARATED | UNFLUSHED);
        assert_eq!(TreeList::decode(&bytes), Some(list));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(TreeList::decode(&flipped), None);
        }
        for cut in 0..bytes.len() {
            assert_eq!(TreeList::decode(&bytes[..cut]), None);
        }
    }
}
