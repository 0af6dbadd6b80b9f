//! Where the last buckets are of series that left memory.
//!
//! A series that is closed for want of memory often comes back: a million hosts that send once a minute. What was open
//! then could be looked for among the buckets of the series in storage, which costs more than all else its measurement
//! does. So its id is kept, in 16 bytes where the series took hundreds, as long as no other needs the place. It is a
//! guess: whoever takes it up looks whether the bucket is still there, of that series and has room, and else searches.
//!
//! ```text
//! lower half of the series' hash ─► set of 4 ─► upper half ─► id      the newest in front, the last one gives way
//! ```

use std::sync::atomic::Ordering;

use super::STRIPES;
use super::bucket::Usage;

/// Which part of the catalog's memory may hold ids of what left it: 1 of so many.
const MEMORY_SHARE: usize = 16;

/// Ids whose series begin alike.
const SET_IDS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Hint {
    /// The upper half of the series' hash; 0 of an empty place.
    tag: u32,
    id: [u8; 12],
}

type Set = [Hint; SET_IDS];

/// The ids of one stripe.
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

    /// Forgets all ids, and gives their memory back.
    pub(super) fn clear(&mut self, usage: &Usage) {
        self.fit(0, usage);
    }

    /// Takes as much of the catalog's memory as is due to a stripe; where that has changed, what was there is forgotten.
    fn fit(&mut self, memory_max: usize, usage: &Usage) {
        let bytes = (memory_max / MEMORY_SHARE / STRIPES).next_multiple_of(size_of::<Set>());
        let before = self.sets.len() * size_of::<Set>();
        if bytes != before {
            usage.bytes.fetch_sub(before, Ordering::Relaxed);
            usage.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.sets = vec![Set::default(); bytes / size_of::<Set>()];
        }
    }

    /// Keeps the id of a bucket whose series leaves memory.
    pub(super) fn keep(&mut self, series: u64, id: [u8; 12], memory_max: usize, usage: &Usage) {
        self.fit(memory_max, usage);
        let tag = tag(series);
        if let Some(set) = self.set(series) {
            let mut places = set.iter();
            let free = places.position(|hint| [0, tag].contains(&hint.tag));
            set.copy_within(..free.unwrap_or(SET_IDS - 1), 1);
            set[0] = Hint { tag, id };
        }
    }

    /// Takes the id kept of a series that comes back.
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
    fn ids_are_taken_once_and_the_oldest_gives_way() {
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
        // What was taken left room; what is kept again is kept once.
        hint.keep(series(7), [7; 12], memory_max, &usage);
        hint.keep(series(3), [8; 12], memory_max, &usage);
        for (n, id) in [(3, 8), (5, 5), (6, 6), (7, 7)] {
            assert_eq!(hint.take(series(n)), Some([id; 12]), "{n}");
            assert_eq!(hint.take(series(n)), None);
        }
        // Another size begins anew.
        hint.keep(series(1), [1; 12], memory_max * 128, &usage);
        assert_eq!(usage.bytes.load(Ordering::Relaxed), 2 * size_of::<Set>());
        hint.clear(&usage);
        assert_eq!(usage.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(hint.take(series(1)), None);
        hint.keep(series(1), [1; 12], 0, &usage);
        assert_eq!(hint.take(series(1)), None);
    }
}
