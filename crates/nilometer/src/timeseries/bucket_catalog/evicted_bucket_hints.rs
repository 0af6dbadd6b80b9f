//! The last buckets of evicted series.
//!
//! A series that was evicted often comes back: a million hosts that send once a minute. Its bucket could be searched in storage,
//! which costs more than the rest of its insert. So its id is kept, in 16 bytes where the series took hundreds, until another id
//! needs the slot. The id is a hint: its user checks that the bucket still exists, is of that series and has space, and searches
//! otherwise.
//!
//! ```text
//! lower half of the series' hash ─► set of 4 ─► upper half ─► id      newest first; the last is overwritten
//! ```

use std::sync::atomic::Ordering;

use super::STRIPES;
use super::bucket::Usage;

/// One part in this many of the catalog's memory may hold hints.
const MEMORY_SHARE: usize = 16;

/// Hints of a set.
const SET_IDS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Hint {
    /// The upper half of the series' hash; 0 in an empty slot.
    tag: u32,
    id: [u8; 12],
}

type Set = [Hint; SET_IDS];

/// The hints of one stripe.
#[derive(Debug, Default)]
pub(super) struct EvictedBucketHints {
    sets: Vec<Set>,
}

fn tag(series: u64) -> u32 {
    (series >> 32) as u32 | 1
}

impl EvictedBucketHints {
    fn set(&mut self, series: u64) -> Option<&mut Set> {
        let at = ((series & u64::from(u32::MAX)) * self.sets.len() as u64) >> 32;
        self.sets.get_mut(at as usize)
    }

    /// Removes all hints, and releases their memory.
    pub(super) fn clear(&mut self, usage: &Usage) {
        self.resize(0, usage);
    }

    /// Resizes to the stripe's share of the catalog's memory; a change of size removes all hints.
    fn resize(&mut self, memory_max: usize, usage: &Usage) {
        let bytes = (memory_max / MEMORY_SHARE / STRIPES).next_multiple_of(size_of::<Set>());
        let before = self.sets.len() * size_of::<Set>();
        if bytes != before {
            usage.bytes.fetch_sub(before, Ordering::Relaxed);
            usage.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.sets = vec![Set::default(); bytes / size_of::<Set>()];
        }
    }

    /// Adds the last bucket of a series that is evicted.
    pub(super) fn keep(&mut self, series: u64, id: [u8; 12], memory_max: usize, usage: &Usage) {
        self.resize(memory_max, usage);
        let tag = tag(series);
        if let Some(set) = self.set(series) {
            let mut places = set.iter();
            let free = places.position(|hint| [0, tag].contains(&hint.tag));
            set.copy_within(..free.unwrap_or(SET_IDS - 1), 1);
            set[0] = Hint { tag, id };
        }
    }

    /// Takes the hint of a series that comes back.
    pub(super) fn take(&mut self, series: u64) -> Option<[u8; 12]> {
        let tag = tag(series);
        let hint = self.set(series)?.iter_mut().find(|d| d.tag == tag)?;
        Some(std::mem::take(hint).id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_once_and_the_oldest_is_overwritten() {
        let usage = Usage::default();
        let mut hint = EvictedBucketHints::default();
        assert_eq!(hint.take(1 << 40), None);
        // Room for one set.
        let memory_max = MEMORY_SHARE * STRIPES;
        let series = |n: u64| n << 40 | n;
        for n in 1..=6 {
            hint.keep(series(n), [n as u8; 12], memory_max, &usage);
        }
        assert_eq!(usage.bytes.load(Ordering::Relaxed), size_of::<Set>());
        assert_eq!(hint.take(series(2)), None);
        assert_eq!(hint.take(series(4)), Some([4; 12]));
        assert_eq!(hint.take(series(4)), None);
        // A taken hint leaves a free slot; a series has one hint.
        hint.keep(series(7), [7; 12], memory_max, &usage);
        hint.keep(series(3), [8; 12], memory_max, &usage);
        for (n, id) in [(3, 8), (5, 5), (6, 6), (7, 7)] {
            assert_eq!(hint.take(series(n)), Some([id; 12]), "{n}");
            assert_eq!(hint.take(series(n)), None);
        }
        // A change of size removes all hints.
        hint.keep(series(1), [1; 12], memory_max * 128, &usage);
        assert_eq!(usage.bytes.load(Ordering::Relaxed), 2 * size_of::<Set>());
        hint.clear(&usage);
        assert_eq!(usage.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(hint.take(series(1)), None);
        hint.keep(series(1), [1; 12], 0, &usage);
        assert_eq!(hint.take(series(1)), None);
    }
}
