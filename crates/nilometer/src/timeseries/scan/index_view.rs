//! A snapshot whose entries of one index come from memory, if they are kept there
//! ([`index_entries`](crate::timeseries::cache::index_entries)).

use std::sync::Arc;

use nilometer_storage::{
    Bytes, Direction, Keyspace, KeyspaceId, Result as StorageResult, Scan, ScanEntries, Snapshot,
};

use super::BucketReader;
use crate::error::Result;
use crate::timeseries::cache::index_entries::{INDEX_ENTRIES_MAX, IndexEntries};

/// A snapshot with the entries of one index.
pub(crate) struct IndexView<'s> {
    below: &'s dyn Snapshot,
    index: KeyspaceId,
    /// All entries of the index; `None` if they are read from the snapshot.
    entries: Option<Arc<IndexEntries>>,
}

impl BucketReader {
    /// Returns the snapshot with the entries of an index from memory. They are read into memory if look-ups made it worth it.
    pub(crate) fn index_view<'s>(
        &self,
        snapshot: &'s dyn Snapshot,
        index: KeyspaceId,
    ) -> Result<IndexView<'s>> {
        let view = |entries| IndexView {
            below: snapshot,
            index,
            entries,
        };
        let Some(version) = snapshot.version(index) else {
            return Ok(view(None));
        };
        let cache = &self.cache.index_entries;
        if let Some(entries) = cache.get(index, version) {
            return Ok(view(Some(entries)));
        }
        if !cache.ask(index, version, self.engine.keys_estimate(index)?) {
            return Ok(view(None));
        }
        Ok(view(self.keep_entries(snapshot, (index, version))?))
    }

    /// Reads all entries of an index and keeps them; `None` if they are too many.
    pub(super) fn keep_entries(
        &self,
        snapshot: &dyn Snapshot,
        (index, version): (KeyspaceId, u64),
    ) -> Result<Option<Arc<IndexEntries>>> {
        let mut entries = Vec::new();
        for entry in snapshot.scan(index, &[], None, Direction::Forward)? {
            if entries.len() as u64 >= INDEX_ENTRIES_MAX {
                return Ok(None);
            }
            entries.push(entry?);
        }
        #[cfg(test)]
        cov_mark::hit!(index_entries_kept);
        let entries = Arc::new(entries);
        self.cache.index_entries.insert(index, version, &entries);
        Ok(Some(entries))
    }
}

impl Snapshot for IndexView<'_> {
    fn keyspaces(&self) -> Vec<Keyspace> {
        self.below.keyspaces()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StorageResult<Option<Bytes>> {
        self.below.get(keyspace, key)
    }

    fn get_all(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> StorageResult<Vec<Option<Bytes>>> {
        self.below.get_all(keyspace, keys)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> StorageResult<Scan> {
        let entries = self.entries.as_ref().filter(|_| keyspace == self.index);
        let Some(entries) = entries else {
            return self.below.scan(keyspace, start, end, direction);
        };
        let from = entries.partition_point(|(key, _)| **key < *start);
        let to = end.map_or(entries.len(), |end| {
            entries.partition_point(|(key, _)| **key < *end)
        });
        Ok(Box::new(KeptScan {
            entries: Arc::clone(entries),
            from,
            to: to.max(from),
            direction,
        }))
    }

    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        self.below.version(keyspace)
    }

    fn entries_max(&self, keyspace: KeyspaceId) -> Option<u64> {
        self.below.entries_max(keyspace)
    }
}

/// A scan of entries in memory.
struct KeptScan {
    entries: Arc<IndexEntries>,
    /// The entries that are left.
    from: usize,
    to: usize,
    direction: Direction,
}

impl Iterator for KeptScan {
    type Item = StorageResult<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.from >= self.to {
            return None;
        }
        let at = match self.direction {
            Direction::Forward => {
                self.from += 1;
                self.from - 1
            }
            Direction::Backward => {
                self.to -= 1;
                self.to
            }
        };
        self.entries.get(at).cloned().map(Ok)
    }
}

impl ScanEntries for KeptScan {
    fn seek_forward(&mut self, key: &[u8]) -> StorageResult<bool> {
        let rest = self.entries.get(self.from..self.to).unwrap_or(&[]);
        self.from += rest.partition_point(|(entry, _)| **entry < *key);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use nilometer_storage::seek;

    use super::*;
    use crate::timeseries::format::keyspaces::BucketKeyspaces;
    use crate::timeseries::tests::{Draw, Fixture, at};

    type Entries = Vec<(Bytes, Bytes)>;

    /// Returns what a scan shows that is moved to `target` after its first entry.
    fn scanned(
        snapshot: &dyn Snapshot,
        index: KeyspaceId,
        (start, end): (&[u8], Option<&[u8]>),
        (direction, target): (Direction, &[u8]),
    ) -> Entries {
        let mut scan = snapshot.scan(index, start, end, direction).unwrap();
        let mut found = Entries::new();
        found.extend(scan.next().map(Result::unwrap));
        let is_ahead = found.last().is_some_and(|(key, _)| **key < *target);
        if direction == Direction::Forward && is_ahead {
            seek(&mut scan, snapshot, index, target, end).unwrap();
        }
        found.extend(scan.map(Result::unwrap));
        found
    }

    #[test]
    fn a_view_shows_what_its_snapshot_shows() {
        cov_mark::check!(index_entries_kept);
        let f = Fixture::new();
        let index = BucketKeyspaces::of(&f.collection).unwrap().series;
        let mut random = Draw::new(7);
        for round in 0..20 {
            let sensor = format!("s{}", random.below(5));
            f.insert(&[at(round * 3600, &sensor, 1)], true);
            let snapshot = f.engine.snapshot().unwrap();
            let view = f.timeseries.reader.index_view(&*snapshot, index).unwrap();
            assert!(view.entries.is_some(), "few entries are read at once");
            let all = scanned(&*snapshot, index, (&[], None), (Direction::Backward, &[]));
            let mut key = || {
                let at = random.below(all.len() as u64 + 1) as usize;
                let mut key = all.get(at).map_or(vec![0xFF], |(key, _)| key.to_vec());
                if random.below(3) == 0 {
                    key.pop();
                }
                key
            };
            for _ in 0..50 {
                let (start, end, target) = (key(), key(), key());
                let end = (end != all[0].0.to_vec()).then_some(&end[..]);
                for direction in [Direction::Forward, Direction::Backward] {
                    let range = (&start[..], end);
                    let how = (direction, &target[..]);
                    let shown = scanned(&view, index, range, how);
                    assert_eq!(shown, scanned(&*snapshot, index, range, how));
                }
            }
        }
    }

    #[test]
    fn a_new_version_of_an_index_is_read_again() {
        let f = Fixture::new();
        let index = BucketKeyspaces::of(&f.collection).unwrap().series;
        let count = || {
            let snapshot = f.engine.snapshot().unwrap();
            let view = f.timeseries.reader.index_view(&*snapshot, index).unwrap();
            view.entries.map_or(0, |entries| entries.len())
        };
        assert_eq!(count(), 0);
        f.insert(&[at(0, "a", 1), at(0, "b", 1)], true);
        assert_eq!(count(), 2);
        f.timeseries.cache.index_entries.set_bytes_max(0);
        f.insert(&[at(3600, "a", 1)], true);
        assert_eq!(count(), 3, "read, but not kept");
        assert_eq!(count(), 0, "not read again");
    }
}
