//! What was read of one version of a keyspace, for the next reader of that version: the form of several small caches.
//!
//! A version is never used again, so no entry becomes invalid; a reader of another version does not see it. If there is no room for an
//! entry, all others are evicted: they are few, and each is read again at once.

use std::collections::HashMap;
use std::hash::Hash;

use crate::budget::Budgeted;

/// Entries by key, each for one version, with a limit in bytes.
pub(super) struct VersionCache<K, V>(Budgeted<HashMap<K, Entry<V>>>);

struct Entry<V> {
    version: u64,
    value: V,
    bytes: usize,
}

impl<K: Copy + Eq + Hash, V> VersionCache<K, V> {
    /// Memory of an entry beside what its value holds.
    const ENTRY_BYTES: usize = size_of::<(K, Entry<V>)>();

    /// Makes an empty cache of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Budgeted::new(bytes_max))
    }

    /// Returns the limit, in bytes.
    pub(super) fn bytes_max(&self) -> usize {
        self.0.bytes_max()
    }

    /// Changes the limit. It takes effect with the next insertion.
    pub(super) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        bytes_of(&self.0.lock())
    }

    /// Returns what is known of this version.
    pub(super) fn get(&self, key: K, version: u64) -> Option<V>
    where
        V: Clone,
    {
        let entries = self.0.lock();
        let entry = entries.get(&key)?;
        (entry.version == version).then(|| entry.value.clone())
    }

    /// Keeps what was read of a version, which holds `bytes` bytes, unless that is more than the limit. Another version of it is
    /// forgotten.
    pub(super) fn insert(&self, key: K, version: u64, value: V, bytes: usize) {
        let bytes = bytes + Self::ENTRY_BYTES;
        let bytes_max = self.0.bytes_max();
        if bytes > bytes_max {
            return;
        }
        let mut entries = self.0.lock();
        entries.remove(&key);
        if bytes_of(&entries) + bytes > bytes_max {
            entries.clear();
        }
        let entry = Entry {
            version,
            value,
            bytes,
        };
        entries.insert(key, entry);
    }

    /// Changes what is known of a version in place; nothing is known of a new one. The change must keep the bytes it holds.
    pub(super) fn change<R>(&self, key: K, version: u64, change: impl FnOnce(&mut V) -> R) -> R
    where
        V: Default,
    {
        let mut entries = self.0.lock();
        let is_known = entries
            .get(&key)
            .is_some_and(|entry| entry.version == version);
        if !is_known {
            entries.remove(&key);
            if bytes_of(&entries) + Self::ENTRY_BYTES > self.0.bytes_max() {
                entries.clear();
            }
        }
        let entry = entries.entry(key).or_insert_with(|| Entry {
            version,
            value: V::default(),
            bytes: Self::ENTRY_BYTES,
        });
        change(&mut entry.value)
    }

    /// Forgets a key.
    pub(super) fn forget(&self, key: K) {
        self.0.lock().remove(&key);
    }
}

fn bytes_of<K, V>(entries: &HashMap<K, Entry<V>>) -> usize {
    entries.values().map(|entry| entry.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_that_of_its_version() {
        let cache = VersionCache::<u8, &str>::new(1 << 10);
        cache.insert(1, 7, "seven", 5);
        cache.insert(2, 7, "other", 5);
        assert_eq!(cache.get(1, 7), Some("seven"));
        assert_eq!(cache.get(1, 8), None);
        cache.insert(1, 8, "eight", 5);
        assert_eq!((cache.get(1, 7), cache.get(1, 8)), (None, Some("eight")));
        cache.forget(1);
        assert_eq!((cache.get(1, 8), cache.get(2, 7)), (None, Some("other")));
    }

    #[test]
    fn the_limit_evicts_all_others_or_refuses_the_entry() {
        let cache = VersionCache::<u8, &str>::new(1 << 10);
        cache.insert(1, 7, "one", 500);
        cache.insert(2, 7, "two", 5);
        cache.insert(3, 7, "too large", 1 << 10);
        assert_eq!((cache.get(1, 7), cache.get(3, 7)), (Some("one"), None));
        cache.insert(3, 7, "three", 500);
        let found = [1, 2, 3].map(|key| cache.get(key, 7));
        assert_eq!(found, [None, None, Some("three")]);
        let used = cache.memory_bytes();
        assert!((500..600).contains(&used), "{used}");
        // In its own place an entry needs no other room.
        cache.insert(3, 8, "again", 500);
        assert_eq!(cache.get(3, 8), Some("again"));
    }

    #[test]
    fn a_change_begins_anew_with_each_version() {
        let cache = VersionCache::<u16, u32>::new(1 << 10);
        let count = |key, version| cache.change(key, version, |n| std::mem::replace(n, *n + 1));
        assert_eq!(
            [count(1, 7), count(1, 7), count(1, 8), count(1, 7)],
            [0, 1, 0, 0]
        );
        for key in 0..1000 {
            count(key, 1);
        }
        assert!(cache.memory_bytes() <= 1 << 10);
    }
}
