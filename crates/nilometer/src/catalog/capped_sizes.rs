//! The sizes of capped collections, so that opening the database does not have to count them.
//!
//! A change of such a collection puts the new size into the same engine batch. The payload is opaque to
//! this module. Sizes of dropped collections are removed when the catalog is opened.

use std::collections::BTreeSet;

use nilometer_storage::{Direction, Durability, WriteBatch};

use super::{Catalog, Collection};
use crate::error::Result;

/// Prefix of the keys of sizes; the UUID follows. No namespace starts with the byte FF.
pub(super) const CAPPED_SIZE_PREFIX: &[u8] = b"\xFFload\0";

impl Catalog {
    /// Adds the size of a collection to `batch`.
    pub fn put_capped_size(&self, batch: &mut WriteBatch, collection: &Collection, load: Vec<u8>) {
        batch.put(self.keyspace, capped_size_key(collection.uuid), load);
    }

    /// Returns the size stored last for a collection.
    pub fn capped_size(&self, collection: &Collection) -> Result<Option<Vec<u8>>> {
        let snapshot = self.engine.snapshot()?;
        let found = snapshot.get(self.keyspace, &capped_size_key(collection.uuid))?;
        Ok(found.map(|load| load.to_vec()))
    }

    /// Removes the sizes of collections that no longer exist.
    pub(super) fn remove_orphaned_capped_sizes(&self) -> Result<()> {
        let there: BTreeSet<Vec<u8>> = self
            .collections()
            .iter()
            .map(|collection| capped_size_key(collection.uuid))
            .collect();
        let mut batch = WriteBatch::new();
        let snapshot = self.engine.snapshot()?;
        for item in snapshot.scan(self.keyspace, CAPPED_SIZE_PREFIX, None, Direction::Forward)? {
            let (key, _) = item?;
            if key.starts_with(CAPPED_SIZE_PREFIX) && !there.contains(&key[..]) {
                batch.delete(self.keyspace, key.to_vec());
            }
        }
        if !batch.is_empty() {
            self.engine.commit(batch, Durability::Buffered)?;
        }
        Ok(())
    }
}

fn capped_size_key(uuid: [u8; 16]) -> Vec<u8> {
    [CAPPED_SIZE_PREFIX, &uuid].concat()
}
