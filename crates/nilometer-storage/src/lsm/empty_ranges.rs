//! Ranges of keys in which a tree has no entries, so that scans need not step over deleted ones.
//!
//! A deletion is an entry, too, until tables are merged down to the last level. Where the first entries of a keyspace
//! are deleted one after the other, each scan from the start would step over all deletions so far. So a scan whose
//! first entry takes long leaves a note, and later scans begin behind it:
//!
//! ```text
//! keys      a─ b─ c─ d─ e+ f+ … x+          ─ deleted, + live
//! scan      [start ······) e                 range [start, e) at the reader's number
//! later     start ───────▶ e                 a backward scan that ends inside goes to the start of the range
//! put "c"   [start ··)                       every put cuts the ranges it falls into
//! ```
//!
//! The law: a range that was found at number `s` has no entry for any reader at or above `s`. It holds because
//!
//! 1. a reader at or above `s` that sees another entry sees a put that the finder did not see;
//! 2. a put cuts the ranges before it is published ([`EmptyRanges::note_batch`], under the apply lock);
//! 3. a finder is refused if a put it did not see falls into its range: the last puts are remembered, and a finder older
//!    than those is refused.
//!
//! Nothing of this is stored; flushes, merges and replaced memtables change no entry that a reader sees.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lsm_tree::Slice;

use crate::engine::Direction;
use crate::lock::lock;

/// Ranges that a tree remembers.
const RANGES_MAX: usize = 8;

/// Longest bound of a range.
const BOUND_BYTES_MAX: usize = 256;

/// Batches of puts that a tree remembers.
const RECENT_MAX: usize = 16;

/// First bytes of a key that are remembered of a batch.
const PREFIX_BYTES: usize = 24;

/// The ranges of one tree. See the module head.
#[derive(Debug, Default)]
pub(super) struct EmptyRanges {
    state: Mutex<EmptyRangesState>,
    /// The number of ranges, to pass by the lock if there are none.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct EmptyRangesState {
    ranges: Vec<EmptyRange>,
    /// Batches of puts, oldest first. Empty until a range is noted for the first time.
    recent: VecDeque<RecentPuts>,
    /// True once a range was noted: batches are remembered from then on.
    is_recording: bool,
    /// Highest number of a batch of puts that is not in `recent`.
    unrecorded_through: u64,
    /// Counts uses.
    clock: u64,
}

/// A range without entries.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EmptyRange {
    from: Vec<u8>,
    /// The first key after the range; `None` at the end of all keys.
    to: Option<Vec<u8>>,
    /// Lowest number of the readers that may use it.
    since: u64,
    used: u64,
}

/// The puts of a batch: their lowest and highest key, or the first bytes of them.
#[derive(Debug)]
struct RecentPuts {
    sequence: u64,
    lowest: KeyPrefix,
    highest: KeyPrefix,
}

/// The first bytes of a key.
#[derive(Clone, Copy, Debug)]
struct KeyPrefix {
    length: usize,
    bytes: [u8; PREFIX_BYTES],
}

/// The bounds of a scan that begins, or ends, behind ranges without entries; `None` if nothing is left.
pub(super) type Narrowed = Option<(Vec<u8>, Option<Vec<u8>>)>;

impl KeyPrefix {
    fn of(key: &[u8]) -> Self {
        let length = key.len().min(PREFIX_BYTES);
        let mut bytes = [0; PREFIX_BYTES];
        for (slot, byte) in bytes.iter_mut().zip(key) {
            *slot = *byte;
        }
        Self { length, bytes }
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl RecentPuts {
    /// True unless no put of the batch can be in the range.
    fn may_touch(&self, range: &EmptyRange) -> bool {
        let highest = self.highest.as_slice();
        let is_before = highest < &range.from[..] && !range.from.starts_with(highest);
        !is_before && range.is_above(self.lowest.as_slice())
    }
}

impl EmptyRange {
    /// True if the range ends above the key.
    fn is_above(&self, key: &[u8]) -> bool {
        self.to.as_deref().is_none_or(|to| key < to)
    }

    fn touches(&self, other: &Self) -> bool {
        let reaches = |a: &Self, b: &Self| a.to.as_ref().is_none_or(|to| *to >= b.from);
        reaches(self, other) && reaches(other, self)
    }
}

impl EmptyRanges {
    /// Cuts the ranges at the puts of a batch. `entries` are in the order of keys. The caller holds the apply lock and
    /// publishes the batch later.
    pub(super) fn note_batch(&self, entries: &[(Slice, Option<Slice>)], sequence: u64) {
        let is_put = |entry: &&(Slice, Option<Slice>)| entry.1.is_some();
        let Some((lowest, _)) = entries.iter().find(is_put) else {
            return;
        };
        let mut state = lock(&self.state);
        if !state.is_recording {
            state.unrecorded_through = state.unrecorded_through.max(sequence);
            return;
        }
        let highest = entries.iter().rfind(is_put).map_or(lowest, |(key, _)| key);
        if state.recent.len() == RECENT_MAX
            && let Some(oldest) = state.recent.pop_front()
        {
            state.unrecorded_through = state.unrecorded_through.max(oldest.sequence);
        }
        state.recent.push_back(RecentPuts {
            sequence,
            lowest: KeyPrefix::of(lowest),
            highest: KeyPrefix::of(highest),
        });
        for range in &mut state.ranges {
            let first = entries.partition_point(|(key, _)| key[..] < range.from[..]);
            let inside = entries.get(first..).unwrap_or_default();
            if let Some((key, _)) = inside.iter().find(is_put)
                && range.is_above(key)
            {
                range.to = Some(key.to_vec());
            }
        }
        let is_left = |range: &EmptyRange| range.to.as_ref().is_none_or(|to| *to > range.from);
        state.ranges.retain(is_left);
        self.count.store(state.ranges.len(), Ordering::Release);
    }

    /// Notes that a reader at `at` found no entry in a range of keys.
    pub(super) fn note_empty(&self, from: &[u8], to: Option<&[u8]>, at: u64) {
        let is_short = |bound: &[u8]| bound.len() <= BOUND_BYTES_MAX;
        if to.is_some_and(|to| to <= from || !is_short(to)) || !is_short(from) {
            return;
        }
        let mut state = lock(&self.state);
        state.is_recording = true;
        state.clock += 1;
        let mut range = EmptyRange {
            from: from.to_vec(),
            to: to.map(<[u8]>::to_vec),
            since: at,
            used: state.clock,
        };
        let unseen = |puts: &&RecentPuts| puts.sequence >= at;
        if state.unrecorded_through >= at
            || state
                .recent
                .iter()
                .filter(unseen)
                .any(|puts| puts.may_touch(&range))
        {
            return;
        }
        let others = std::mem::take(&mut state.ranges);
        for other in others {
            if !range.touches(&other) {
                state.ranges.push(other);
                continue;
            }
            range.since = range.since.max(other.since);
            range.from = range.from.min(other.from);
            range.to = match (range.to, other.to) {
                (Some(a), Some(b)) => Some(a.max(b)),
                _ => None,
            };
        }
        if state.ranges.len() == RANGES_MAX {
            let oldest = state.ranges.iter().enumerate().min_by_key(|(_, r)| r.used);
            if let Some(at) = oldest.map(|(at, _)| at) {
                state.ranges.swap_remove(at);
            }
        }
        state.ranges.push(range);
        self.count.store(state.ranges.len(), Ordering::Release);
    }

    /// Returns bounds that give a reader at `at` the same entries, if it may pass by a range where its scan begins.
    pub(super) fn narrowed(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
        at: u64,
    ) -> Option<Narrowed> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        state.clock += 1;
        let clock = state.clock;
        // A scan may begin where the range ends, but not inside: that is no other place to begin.
        let begins_inside = |range: &&mut EmptyRange| {
            range.since <= at
                && match (direction, end) {
                    (Direction::Forward, _) => range.from[..] <= *start && range.is_above(start),
                    (Direction::Backward, Some(end)) => {
                        range.from[..] < *end && range.to.as_deref().is_none_or(|to| end <= to)
                    }
                    (Direction::Backward, None) => range.to.is_none(),
                }
        };
        let range = state.ranges.iter_mut().find(begins_inside)?;
        range.used = clock;
        let narrowed = match direction {
            Direction::Forward => range.to.clone().map(|to| (to, end.map(<[u8]>::to_vec))),
            Direction::Backward => Some((start.to_vec(), Some(range.from.clone()))),
        };
        Some(narrowed.filter(|(start, end)| end.as_ref().is_none_or(|end| end > start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARD: Direction = Direction::Forward;
    const BACKWARD: Direction = Direction::Backward;

    fn put(ranges: &EmptyRanges, keys: &[&str], sequence: u64) {
        let slice = |key: &&str| Slice::from(key.as_bytes());
        let entries: Vec<_> = keys
            .iter()
            .map(|key| (slice(key), Some(slice(key))))
            .collect();
        ranges.note_batch(&entries, sequence);
    }

    /// Returns the bounds of a scan as text, "nothing" if no key is left.
    fn narrowed(
        ranges: &EmptyRanges,
        start: &str,
        end: Option<&str>,
        direction: Direction,
        at: u64,
    ) -> Option<String> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let end = end.map(str::as_bytes);
        let found = ranges.narrowed(start.as_bytes(), end, direction, at)?;
        Some(match found {
            None => "nothing".to_owned(),
            Some((start, end)) => format!(
                "{}-{}",
                text(&start),
                end.map_or_else(String::new, |e| text(&e))
            ),
        })
    }

    #[test]
    fn scans_begin_behind_a_range() {
        let ranges = EmptyRanges::default();
        ranges.note_empty(b"b", Some(b"f"), 5);
        let at = |start, end, direction| narrowed(&ranges, start, end, direction, 5);
        assert_eq!(at("b", None, FORWARD).as_deref(), Some("f-"));
        assert_eq!(at("c", Some("g"), FORWARD).as_deref(), Some("f-g"));
        assert_eq!(at("c", Some("f"), FORWARD).as_deref(), Some("nothing"));
        assert_eq!(at("a", None, FORWARD), None);
        assert_eq!(at("f", None, FORWARD), None);
        assert_eq!(at("a", Some("f"), BACKWARD).as_deref(), Some("a-b"));
        assert_eq!(at("a", Some("c"), BACKWARD).as_deref(), Some("a-b"));
        assert_eq!(at("c", Some("e"), BACKWARD).as_deref(), Some("nothing"));
        assert_eq!(at("a", Some("b"), BACKWARD), None);
        assert_eq!(at("a", Some("g"), BACKWARD), None);
        assert_eq!(at("a", None, BACKWARD), None);
        // An older reader sees other entries.
        assert_eq!(narrowed(&ranges, "b", None, FORWARD, 4), None);
        ranges.note_empty(b"f", None, 6);
        assert_eq!(
            narrowed(&ranges, "c", None, FORWARD, 6).as_deref(),
            Some("nothing")
        );
        assert_eq!(
            narrowed(&ranges, "a", None, BACKWARD, 6).as_deref(),
            Some("a-b")
        );
    }

    #[test]
    fn puts_cut_ranges() {
        let ranges = EmptyRanges::default();
        ranges.note_empty(b"b", Some(b"f"), 5);
        put(&ranges, &["a", "f", "g"], 5);
        assert_eq!(
            narrowed(&ranges, "b", None, FORWARD, 6).as_deref(),
            Some("f-")
        );
        put(&ranges, &["a", "d", "e"], 6);
        assert_eq!(
            narrowed(&ranges, "b", None, FORWARD, 7).as_deref(),
            Some("d-")
        );
        // A deletion cuts nothing.
        ranges.note_batch(&[(Slice::from(&b"c"[..]), None)], 7);
        assert_eq!(
            narrowed(&ranges, "b", None, FORWARD, 8).as_deref(),
            Some("d-")
        );
        put(&ranges, &["b"], 8);
        assert_eq!(narrowed(&ranges, "b", None, FORWARD, 9), None);
    }

    #[test]
    fn a_range_with_puts_that_its_finder_did_not_see_is_refused() {
        let found = |ranges: &EmptyRanges| narrowed(ranges, "b", None, FORWARD, 100);
        let ranges = EmptyRanges::default();
        put(&ranges, &["x"], 5);
        // Whatever was put before anything was recorded may be in the range.
        ranges.note_empty(b"b", Some(b"f"), 5);
        assert_eq!(found(&ranges), None);
        ranges.note_empty(b"b", Some(b"f"), 6);
        assert_eq!(found(&ranges).as_deref(), Some("f-"));
        let ranges = EmptyRanges::default();
        ranges.note_empty(b"k", Some(b"l"), 1);
        put(&ranges, &["c", "x"], 5);
        ranges.note_empty(b"b", Some(b"f"), 5);
        assert_eq!(found(&ranges), None);
        ranges.note_empty(b"b", Some(b"f"), 6);
        assert!(found(&ranges).is_some());
        // Keys that differ behind the remembered bytes.
        let ranges = EmptyRanges::default();
        let long = "c".repeat(PREFIX_BYTES);
        ranges.note_empty(b"k", Some(b"l"), 1);
        put(&ranges, &[&format!("{long}5")], 5);
        ranges.note_empty(format!("{long}3").as_bytes(), Some(b"f"), 5);
        assert_eq!(
            narrowed(&ranges, &format!("{long}3"), None, FORWARD, 100),
            None
        );
        // More batches than are remembered.
        for sequence in 6..30 {
            put(&ranges, &["x"], sequence);
        }
        ranges.note_empty(b"b", Some(b"c"), 13);
        assert_eq!(found(&ranges), None);
        ranges.note_empty(b"b", Some(b"c"), 14);
        assert!(found(&ranges).is_some());
    }

    #[test]
    fn ranges_are_few_and_those_in_use_stay() {
        let ranges = EmptyRanges::default();
        ranges.note_empty(b"in use", Some(b"in usf"), 1);
        for at in 0..3 * RANGES_MAX {
            assert!(narrowed(&ranges, "in use", None, FORWARD, 1).is_some());
            let key = format!("k{at:03}");
            ranges.note_empty(key.as_bytes(), Some(format!("{key}5").as_bytes()), 1);
        }
        assert_eq!(lock(&ranges.state).ranges.len(), RANGES_MAX);
        assert!(narrowed(&ranges, "in use", None, FORWARD, 1).is_some());
        ranges.note_empty(&[b'z'; BOUND_BYTES_MAX + 1], None, 1);
        assert_eq!(lock(&ranges.state).ranges.len(), RANGES_MAX);
    }
}
