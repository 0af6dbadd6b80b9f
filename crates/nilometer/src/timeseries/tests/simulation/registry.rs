//! The registry of series, compared with the metadata of all buckets.

use std::collections::BTreeSet;

use nilometer_storage::{Direction, Durability, KeyspaceId, WriteBatch};

use super::Simulation;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::registry;

impl Simulation {
    fn registry(&self) -> KeyspaceId {
        let keyspaces = BucketKeyspaces::of(&self.collection).unwrap();
        keyspaces.registry.unwrap()
    }

    fn registered(&self) -> (bool, BTreeSet<Vec<u8>>) {
        let snapshot = self.timeseries.engine.snapshot().unwrap();
        let complete = registry::is_complete(&*snapshot, self.registry()).unwrap();
        let (start, end) = registry::ALL;
        let entries = snapshot.scan(self.registry(), &start, Some(&end), Direction::Forward);
        let keys = entries.unwrap().map(|entry| entry.unwrap().0.to_vec());
        (complete, keys.collect())
    }

    /// A complete registry has every series that has a bucket.
    pub(super) fn check_registry(&self) {
        let (is_complete, registered) = self.registered();
        if !is_complete {
            return;
        }
        for bucket in self.buckets() {
            let meta = bucket.meta();
            let is_registered = registered.contains(&registry::key(meta));
            assert!(is_registered, "the series {meta:?} is not registered");
        }
    }

    /// A registry that is not complete is completed by maintenance.
    pub(super) fn check_complete_registry(&self) {
        assert!(self.registered().0, "the registry is not complete");
        self.check_registry();
    }

    /// Leaves the collection as one that is older than registries.
    pub(super) fn empty_registry(&self) {
        let mut batch = WriteBatch::new();
        let keys = self.registered().1.into_iter();
        for key in keys.chain([registry::COMPLETE.to_vec()]) {
            batch.delete(self.registry(), key);
        }
        let committed = self.timeseries.engine.commit(batch, Durability::Buffered);
        committed.unwrap();
    }
}
