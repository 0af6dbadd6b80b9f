//! What was read of one version of a keyspace, for the next reader of that version: the form of several small caches.
//!
//! A version is never used again, so no entry becomes invalid; a reader of another version does not see it. If there is no room for an
//! entry, all others are evicted: they are few, and each is read again at once. The bytes are those the values hold.

use std::collections::HashMap;
use std::hash::Hash;

use crate::budget::Budgeted;

/// Entries, at most: those of dropped keyspaces are among them.
const ENTRIES_MAX: usize = 1 << 10;

/// Entries by key, each for one version, with a limit in bytes.
pub(super) struct VersionCache<K, V>(Budgeted<Entries<K, V>>);

struct Entries<K, V> {
    by_key: HashMap<K, Entry<V>>,
    /// Of all entries.
    bytes: usize,
}

struct Entry<V> {
    version: u64,
    value: V,
    bytes: usize,
}

impl<K, V> Default for Entries<K, V> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            bytes: 0,
        }
    }
}

impl<K: Eq + Hash, V> Entries<K, V> {
    fn remove(&mut self, key: &K) {
        if let Some(removed) = self.by_key.remove(key) {
            self.bytes -= removed.bytes;
        }
    }

    /// Adds an entry in the place of that with its key. All others are removed if there would be more than `bytes_max` bytes, or too
    /// many entries.
    fn insert(&mut self, key: K, entry: Entry<V>, bytes_max: usize) {
        self.remove(&key);
        if self.bytes + entry.bytes > bytes_max || self.by_key.len() >= ENTRIES_MAX {
            self.by_key.clear();
            self.bytes = 0;
        }
        self.bytes += entry.bytes;
        self.by_key.insert(key, entry);
    }
}

impl<K: Copy + Eq + Hash, V> VersionCache<K, V> {
    /// Makes an empty cache of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Budgeted::new(bytes_max))
    }

    /// Changes the limit. It takes effect with the next insertion.
    pub(super) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// Returns what is known of this version.
    pub(super) fn get(&self, key: K, version: u64) -> Option<V>
    where
        V: Clone,
    {
        let entries = self.0.lock();
        let entry = entries.by_key.get(&key)?;
        (entry.version == version).then(|| entry.value.clone())
    }

    /// Keeps what was read of a version, which holds `bytes` bytes, in the place of another version. Returns false, and changes nothing,
    /// if that is more than the limit.
    pub(super) fn insert(&self, key: K, version: u64, value: V, bytes: usize) -> bool {
        let bytes_max = self.0.bytes_max();
        let is_kept = bytes <= bytes_max;
        if is_kept {
            let entry = Entry {
                version,
                value,
                bytes,
            };
            self.0.lock().insert(key, entry, bytes_max);
        }
        is_kept
    }

    /// Changes what is known of a version in place; nothing is known of a new one. The change must keep the bytes it holds, 0 for a
    /// new version.
    pub(super) fn change<R>(&self, key: K, version: u64, change: impl FnOnce(&mut V) -> R) -> R
    where
        V: Default,
    {
        let mut entries = self.0.lock();
        if let Some(known) = entries.by_key.get_mut(&key)
            && known.version == version
        {
            return change(&mut known.value);
        }
        let mut value = V::default();
        let changed = change(&mut value);
        let entry = Entry {
            version,
            value,
            bytes: 0,
        };
        entries.insert(key, entry, usize::MAX);
        changed
    }

    /// Forgets a key.
    pub(super) fn forget(&self, key: K) {
        self.0.lock().remove(&key);
    }
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
        assert!(cache.insert(1, 7, "one", 600) && cache.insert(2, 7, "two", 5));
        assert!(!cache.insert(3, 7, "too large", 1025));
        assert_eq!((cache.get(1, 7), cache.get(3, 7)), (Some("one"), None));
        cache.insert(3, 7, "three", 500);
        let found = [1, 2, 3].map(|key| cache.get(key, 7));
        assert_eq!(found, [None, None, Some("three")]);
        assert_eq!(cache.memory_bytes(), 500);
        // In its own place an entry needs no other room.
        cache.insert(3, 8, "again", 1000);
        assert_eq!(
            (cache.get(3, 8), cache.memory_bytes()),
            (Some("again"), 1000)
        );
    }

    #[test]
    fn a_change_begins_anew_with_each_version() {
        let cache = VersionCache::<u16, u32>::new(1 << 10);
        let count = |key, version| cache.change(key, version, |n| std::mem::replace(n, *n + 1));
        assert_eq!(
            [count(1, 7), count(1, 7), count(1, 8), count(1, 7)],
            [0, 1, 0, 0]
        );
        for key in 0..5000 {
            count(key, 1);
        }
        assert!(cache.0.lock().by_key.len() <= ENTRIES_MAX);
    }
}
