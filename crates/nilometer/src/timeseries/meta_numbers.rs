//! Numbers for metadata, so that whoever meets the same metadata again need not look at it.
//!
//! A number is given to the bytes of a metadata document when it is first asked for, and never to others. What is
//! known is forgotten when it has become too much: the same metadata then gets another number.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Different metadata known at a time.
const KNOWN_MAX: usize = 1 << 17;

/// Bytes of metadata known at a time.
const BYTES_MAX: usize = 32 << 20;

/// One process, one row of numbers: those of two databases may meet in one query.
static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Default)]
struct Known {
    numbers: HashMap<Box<[u8]>, NonZeroU64, foldhash::fast::RandomState>,
    bytes: usize,
}

/// The metadata met so far.
#[derive(Default)]
pub(super) struct MetaNumbers(Mutex<Known>);

impl MetaNumbers {
    /// The number of the metadata with these bytes.
    pub(super) fn of(&self, meta: &[u8]) -> Option<NonZeroU64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = known.numbers.get(meta) {
            return Some(*number);
        }
        if known.numbers.len() >= KNOWN_MAX || known.bytes + meta.len() > BYTES_MAX {
            *known = Known::default();
        }
        let number = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed))?;
        known.bytes += meta.len();
        known.numbers.insert(meta.into(), number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_the_same_bytes_always() {
        let numbers = MetaNumbers::default();
        let one = numbers.of(b"one");
        assert!(one.is_some() && one == numbers.of(b"one") && one != numbers.of(b"other"));
        assert_ne!(MetaNumbers::default().of(b"other"), one);
        let large = vec![7; BYTES_MAX - 4];
        numbers.of(&large);
        // Forgotten, and never given to others.
        assert_ne!(numbers.of(b"one"), one);
    }
}
