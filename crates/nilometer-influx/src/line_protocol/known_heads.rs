//! The heads of the lines of a body: measurement and tags.
//!
//! ```text
//! cpu,host=a,region=eu usage=64.2      up to the first space ─► known? ─► measurement and tags, and the number of the head
//! └─────── head ─────┘
//! ```
//!
//! A body often has several points of a series, and the head of each but the first need not be parsed: what a head means depends
//! on its bytes alone, because a space follows. A head with an escaped space is longer than what precedes the first space, and
//! is not kept.

use std::collections::HashMap;

use super::Text;

/// Heads that are kept.
const HEADS_MAX: usize = 4096;

/// Bytes of a head that is kept, at most.
const HEAD_BYTES_MAX: usize = 1024;

/// Bytes that are compared at once in search of a space.
const CHUNK_BYTES: usize = 32;

type Tags<'a> = Vec<(Text<'a>, Text<'a>)>;

/// The heads that were parsed, by their bytes.
#[derive(Debug, Default)]
pub(super) struct KnownHeads<'a> {
    numbers: HashMap<&'a [u8], usize, foldhash::fast::RandomState>,
    heads: Vec<(Text<'a>, Tags<'a>)>,
    /// Searches that found a head.
    hits: usize,
}

impl<'a> KnownHeads<'a> {
    /// Returns what precedes the first space of a line, and its number if it is known. `None` if there is no space near, or if most
    /// lines have heads of their own.
    pub(super) fn find(&mut self, line: &'a [u8]) -> Option<(&'a [u8], Option<usize>)> {
        if self.heads.len() == HEADS_MAX && self.hits < HEADS_MAX {
            return None;
        }
        let near = line.get(..HEAD_BYTES_MAX).unwrap_or(line);
        let bytes = near.get(..space_at(near)?)?;
        let number = self.numbers.get(bytes).copied();
        self.hits += usize::from(number.is_some());
        Some((bytes, number))
    }

    /// Returns measurement and tags of a head.
    pub(super) fn get(&self, number: usize) -> Option<&(Text<'a>, Tags<'a>)> {
        self.heads.get(number)
    }

    /// Adds a head that was parsed. Returns its number, if it is kept.
    pub(super) fn add(
        &mut self,
        bytes: &'a [u8],
        measurement: Text<'a>,
        tags: &[(Text<'a>, Text<'a>)],
    ) -> Option<usize> {
        let number = self.heads.len();
        if number == HEADS_MAX {
            return None;
        }
        self.heads.push((measurement, tags.to_vec()));
        self.numbers.insert(bytes, number);
        Some(number)
    }
}

/// Returns the position of the first space.
fn space_at(bytes: &[u8]) -> Option<usize> {
    let is_space = |byte: &u8| *byte == b' ';
    let (chunks, rest) = bytes.as_chunks::<CHUNK_BYTES>();
    for (number, chunk) in chunks.iter().enumerate() {
        // Without an early end, which makes it one comparison of vectors.
        if chunk
            .iter()
            .fold(false, |found, byte| found | is_space(byte))
        {
            let within = chunk.iter().position(is_space)?;
            return Some(number * CHUNK_BYTES + within);
        }
    }
    let within = rest.iter().position(is_space)?;
    Some(bytes.len() - rest.len() + within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_space_is_found_anywhere() {
        for length in 0..150 {
            for at in 0..=length {
                let mut bytes = vec![b'x'; length];
                bytes[at..].fill(b' ');
                assert_eq!(space_at(&bytes), (at < length).then_some(at));
            }
        }
    }

    #[test]
    fn heads_are_known_once_added_and_only_so_many() {
        let lines: Vec<String> = (0..2 * HEADS_MAX).map(|n| format!("m,a={n} x=1")).collect();
        let mut heads = KnownHeads::default();
        let measurement = Text::plain("m");
        for (number, line) in lines.iter().enumerate() {
            let Some((bytes, known)) = heads.find(line.as_bytes()) else {
                assert!(number >= HEADS_MAX);
                continue;
            };
            assert_eq!((known, bytes.len() + 4), (None, line.len()));
            let tags = [(Text::plain("a"), Text::plain(&line[4..bytes.len()]))];
            assert_eq!(heads.add(bytes, measurement, &tags), Some(number));
            if number + 1 < HEADS_MAX {
                assert_eq!(heads.find(line.as_bytes()), Some((bytes, Some(number))));
            }
            assert_eq!(heads.get(number), Some(&(measurement, tags.to_vec())));
        }
        assert_eq!(heads.heads.len(), HEADS_MAX);
        let long = "x".repeat(HEAD_BYTES_MAX);
        assert_eq!(heads.find(format!("{long} x=1").as_bytes()), None);
    }
}
