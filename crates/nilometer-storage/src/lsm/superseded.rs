//! Dropping the superseded versions of a memtable.
//!
//! A memtable keeps every version of a key, and a scan steps over all of them. A key that is written ten thousand times
//! would make each scan ten thousand steps long until the next flush. So an active memtable with many superseded
//! versions is replaced by one that holds only what readers need:
//!
//! ```text
//! "a"@9  "a"@8  "a"@5  "a"@2  "b"@4        readers at 4 and 9
//!   └───────────────────────────────▶ "a"@9  "a"@8  "a"@2  "b"@4
//! ```
//!
//! A version is needed if it is the newest of its key, or if a reader sees it: its number is below the reader's, and the
//! next newer one is not. The caller holds the apply lock, so nothing is inserted meanwhile, and readers that come
//! later read at the visible sequence number or above the newest version. Scans that are open keep the old memtable.
//!
//! Versions cannot be removed from a memtable in use: the list of `crossbeam-skiplist` 0.1.3 never frees an entry that
//! is removed after a range passed it.
//!
//! A deletion is dropped with the versions it shadows if the tree has nothing else that it could shadow.

use std::sync::Arc;

use lsm_tree::{InternalValue, Memtable, Slice};

use super::batch::memtable_entry;

/// Superseded versions below which a memtable is left alone.
const SUPERSEDED_MIN: usize = 64;

/// A memtable is replaced once one entry in so many is superseded.
const SHARE: usize = 8;

/// Versions of one key that are many, so that a memtable is replaced earlier.
const CHAIN_LONG: usize = 64;

/// A memtable with a long chain is replaced once one entry in so many is superseded.
const CHAIN_SHARE: usize = 64;

/// Entries of a memtable above which it is not replaced: that would stop commits for too long.
const REPLACED_ENTRIES_MAX: usize = 32 * 1024;

/// Versions of one key for which a larger memtable is flushed.
const FLUSHED_CHAIN: usize = 4096;

/// Superseded versions of a larger memtable from one look at a chain to the next.
const FLUSHED_CHAIN_EVERY: usize = 256;

/// What to do about the superseded versions of a memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    Nothing,
    /// Replace the memtable.
    Replace,
    /// Flush it.
    Flush,
}

/// Returns the number of versions of `key` before `sequence`, at most `most`.
pub(crate) fn older_versions(
    memtable: &Memtable,
    key: &Slice,
    sequence: u64,
    most: usize,
) -> usize {
    let Some(before) = sequence.checked_sub(1) else {
        return 0;
    };
    let start = memtable_entry(key.clone(), None, before).key;
    let versions = memtable.items.range(start..);
    versions
        .take(most)
        .take_while(|entry| entry.key().user_key == *key)
        .count()
}

/// Returns what to do after a version of `key` was inserted over an older one, as the `superseded`th of its memtable.
pub(crate) fn remedy(memtable: &Memtable, key: &Slice, sequence: u64, superseded: usize) -> Remedy {
    let entries = memtable.len();
    if entries > REPLACED_ENTRIES_MAX {
        let is_long = superseded.is_multiple_of(FLUSHED_CHAIN_EVERY)
            && older_versions(memtable, key, sequence, FLUSHED_CHAIN) == FLUSHED_CHAIN;
        return if is_long {
            Remedy::Flush
        } else {
            Remedy::Nothing
        };
    }
    let is_due = superseded >= SUPERSEDED_MIN
        && (superseded >= entries / SHARE
            || superseded >= entries / CHAIN_SHARE
                && older_versions(memtable, key, sequence, CHAIN_LONG) == CHAIN_LONG);
    if is_due {
        Remedy::Replace
    } else {
        Remedy::Nothing
    }
}

/// Returns a memtable with the entries that readers need. `readers` are the numbers of the open ones and of a new one,
/// ascending. `is_lowest` is true if nothing else of the tree has entries.
pub(crate) fn without_superseded(
    memtable: &Memtable,
    readers: &[u64],
    is_lowest: bool,
) -> Arc<Memtable> {
    let replacement = Memtable::new(memtable.id());
    let mut versions: Vec<InternalValue> = Vec::new();
    let finish = |versions: &mut Vec<InternalValue>| {
        if is_lowest {
            // Below the oldest version is nothing, so a reader that does not see it sees a deletion.
            while versions.last().is_some_and(InternalValue::is_tombstone) {
                versions.pop();
            }
        }
        for version in versions.drain(..) {
            let _ = replacement.insert(version);
        }
    };
    let mut newer: Option<(Slice, u64)> = None;
    for entry in memtable.items.iter() {
        let (key, sequence) = (&entry.key().user_key, entry.key().seqno);
        let is_needed = match &newer {
            Some((of, newer)) if of == key => is_seen(readers, sequence, *newer),
            _ => {
                finish(&mut versions);
                true
            }
        };
        newer = Some((key.clone(), sequence));
        if is_needed {
            versions.push(InternalValue {
                key: entry.key().clone(),
                value: entry.value().clone(),
            });
        }
    }
    finish(&mut versions);
    Arc::new(replacement)
}

/// True if a reader sees the version `sequence`, whose next newer version is `newer`.
fn is_seen(readers: &[u64], sequence: u64, newer: u64) -> bool {
    let first = readers.partition_point(|reader| *reader <= sequence);
    readers.get(first).is_some_and(|reader| *reader <= newer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memtable: &Memtable, key: &str, sequence: u64, value: Option<&str>) {
        let value = value.map(|value| Slice::from(value.as_bytes()));
        let key = Slice::from(key.as_bytes());
        let _ = memtable.insert(memtable_entry(key, value, sequence));
    }

    fn entries(memtable: &Memtable) -> Vec<(String, u64)> {
        let named = |entry: InternalValue| {
            let key = String::from_utf8(entry.key.user_key.to_vec()).unwrap();
            (key, entry.key.seqno)
        };
        memtable.iter().map(named).collect()
    }

    #[test]
    fn versions_that_readers_see_stay() {
        let memtable = Memtable::new(7);
        for sequence in [2, 5, 8, 9] {
            put(&memtable, "a", sequence, Some("x"));
        }
        put(&memtable, "b", 4, Some("x"));
        let left = without_superseded(&memtable, &[4, 9], false);
        let a = |sequence| ("a".to_owned(), sequence);
        assert_eq!(entries(&left), [a(9), a(8), a(2), ("b".to_owned(), 4)]);
        assert_eq!((left.id(), left.get_highest_seqno()), (7, Some(9)));
        for key in ["a", "b"] {
            for at in [4, 9, 10] {
                let seen = |memtable: &Memtable| {
                    let version = memtable.get(key.as_bytes(), at)?;
                    Some((version.key.seqno, version.value))
                };
                assert_eq!(seen(&left), seen(&memtable), "{key} at {at}");
            }
        }
        assert!(left.size() < memtable.size());
    }

    #[test]
    fn deletions_go_where_they_shadow_nothing() {
        let memtable = Memtable::new(1);
        put(&memtable, "a", 2, Some("x"));
        put(&memtable, "a", 3, None);
        put(&memtable, "b", 4, None);
        put(&memtable, "c", 5, Some("x"));
        put(&memtable, "c", 6, None);
        let of = |key: &str, sequence| (key.to_owned(), sequence);
        let readers = [6];
        let left = without_superseded(&memtable, &readers, false);
        let expected = [of("a", 3), of("b", 4), of("c", 6), of("c", 5)];
        assert_eq!(entries(&left), expected);
        let left = without_superseded(&memtable, &readers, true);
        assert_eq!(entries(&left), [of("c", 6), of("c", 5)]);
    }

    #[test]
    fn a_key_written_often_or_many_written_twice_are_due() {
        let key = Slice::from(&b"hot"[..]);
        let memtable = Memtable::new(1);
        let mut other = 0;
        let mut fill = |count: usize| {
            for _ in 0..count {
                other += 1;
                put(&memtable, &format!("k{other}"), 1, Some("x"));
            }
        };
        for sequence in 2..=66 {
            put(&memtable, "hot", sequence, Some("x"));
        }
        assert_eq!(older_versions(&memtable, &key, 66, 100), 64);
        assert_eq!(remedy(&memtable, &key, 66, 63), Remedy::Nothing);
        assert_eq!(remedy(&memtable, &key, 66, 64), Remedy::Replace);
        fill(4000);
        // A long chain, at one entry in 64; others, at one in eight.
        let cold = Slice::from(&b"k1"[..]);
        assert_eq!(remedy(&memtable, &key, 66, 64), Remedy::Replace);
        assert_eq!(remedy(&memtable, &cold, 2, 64), Remedy::Nothing);
        assert_eq!(remedy(&memtable, &cold, 2, 600), Remedy::Replace);
        fill(REPLACED_ENTRIES_MAX);
        assert_eq!(remedy(&memtable, &key, 66, 512), Remedy::Nothing);
        for sequence in 67..=67 + FLUSHED_CHAIN as u64 {
            put(&memtable, "hot", sequence, Some("x"));
        }
        let last = 67 + FLUSHED_CHAIN as u64;
        assert_eq!(remedy(&memtable, &key, last, 512), Remedy::Flush);
        assert_eq!(remedy(&memtable, &key, last, 513), Remedy::Nothing);
    }
}
