//! Numbers for metadata, so that whoever meets the same metadata again need not look at it.
//!
//! A number is given to the bytes of a metadata document when it is first asked for, and never to others. What is
//! known is forgotten when it has become too much: the same metadata then gets another number.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::budget::Budgeted;

/// Memory that metadata known at a time may take, if nothing else is said.
pub(crate) const META_NUMBER_BYTES_MAX: usize = 32 << 20;

/// What one takes beside its bytes, with its share of what is free in the table.
const KNOWN_BYTES: usize = 2 * size_of::<(Box<[u8]>, NonZeroU64)>();

/// One process, one row of numbers: those of two databases may meet in one query.
static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Default)]
struct Known {
    numbers: HashMap<Box<[u8]>, NonZeroU64, foldhash::fast::RandomState>,
    bytes: usize,
}

/// The metadata met so far.
pub(crate) struct MetaNumbers(Budgeted<Known>);

impl Default for MetaNumbers {
    fn default() -> Self {
        Self(Budgeted::new(META_NUMBER_BYTES_MAX))
    }
}

impl MetaNumbers {
    /// Changes the memory they may take; it shows when the next is met.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Memory they take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// The number of the metadata with these bytes.
    pub(crate) fn of(&self, meta: &[u8]) -> Option<NonZeroU64> {
        let mut known = self.0.lock();
        if let Some(number) = known.numbers.get(meta) {
            return Some(*number);
        }
        let bytes = meta.len() + KNOWN_BYTES;
        if known.bytes + bytes > self.0.bytes_max() {
            *known = Known::default();
        }
        let number = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed))?;
        known.bytes += bytes;
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
        let large = vec![7; META_NUMBER_BYTES_MAX - KNOWN_BYTES];
        numbers.of(&large);
        assert_eq!(numbers.memory_bytes(), META_NUMBER_BYTES_MAX);
        // Forgotten, and never given to others.
        assert_ne!(numbers.of(b"one"), one);
    }
}
