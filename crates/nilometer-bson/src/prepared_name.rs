//! Prepared field names, for repeated comparison with the bytes of documents.
//!
//! Field names are short: three 8-byte words cover most of them including the terminator. Comparing
//! three masked words takes no loop and no branch that depends on the name.

/// The longest name that three words cover.
const SHORT_MAX: usize = 23;

/// Bytes in a word.
const WORD: usize = 8;

/// Eight bytes of the name from offset `at` on; only the bits of `mask` are compared.
#[derive(Clone, Copy, Debug)]
struct Word {
    at: usize,
    mask: u64,
    bytes: u64,
}

/// A field name prepared for comparison with the bytes of documents. See the module.
#[derive(Clone, Debug)]
pub struct PreparedName {
    name: Box<[u8]>,
    words: [Word; 3],
}

impl PreparedName {
    /// Prepares a name, which must not contain a zero byte.
    pub fn new(name: &[u8]) -> Self {
        let last = (name.len() + 1).saturating_sub(WORD);
        let middle = if last > WORD { WORD } else { 0 };
        let word = |at: usize| {
            let (mut mask, mut bytes) = ([0; WORD], [0; WORD]);
            let here = name.iter().copied().chain([0]).skip(at);
            for ((mask, byte), here) in mask.iter_mut().zip(&mut bytes).zip(here) {
                (*mask, *byte) = (u8::MAX, here);
            }
            Word {
                at,
                mask: u64::from_le_bytes(mask),
                bytes: u64::from_le_bytes(bytes),
            }
        };
        Self {
            name: name.into(),
            words: [word(0), word(middle), word(last)],
        }
    }

    /// Returns the length without the terminator.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.name.len()
    }

    /// True if `bytes` begin with the name and its terminator.
    #[inline]
    pub fn begins(&self, bytes: &[u8]) -> bool {
        if self.name.len() > SHORT_MAX || bytes.len() <= self.name.len().max(WORD) {
            return bytes
                .strip_prefix(&*self.name)
                .is_some_and(|rest| rest.first() == Some(&0));
        }
        let differences = self.words.iter().map(|word| {
            let here = bytes.get(word.at..).and_then(<[u8]>::first_chunk::<WORD>);
            here.map_or(u64::MAX, |here| {
                (u64::from_le_bytes(*here) ^ word.bytes) & word.mask
            })
        });
        differences.fold(0, |all, some| all | some) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_names_match_only_themselves() {
        let letters: Vec<u8> = (0..40).map(|n| b'a' + n % 26).collect();
        for length in 0..=letters.len() {
            let name = &letters[..length];
            let known = PreparedName::new(name);
            for behind in [0, 1, 7, 8, 30] {
                let bytes = [name, &[0], &vec![b'x'; behind][..]].concat();
                assert!(known.begins(&bytes), "{length} {behind}");
                for at in 0..=length {
                    let mut other = bytes.clone();
                    other[at] ^= 0x20;
                    assert!(!known.begins(&other), "{length} {behind} {at}");
                    assert!(!known.begins(&bytes[..at]), "{length} {behind} {at}");
                }
            }
        }
    }
}
