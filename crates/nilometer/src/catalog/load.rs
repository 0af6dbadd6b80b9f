//! How much capped collections hold, so that nobody has to count after the database was opened.
//!
//! Whoever changes such a collection puts its load into the same engine batch as the change; what the bytes
//! say is the writer's affair. Loads of collections that are gone are removed when the catalog is opened.

use std::collections::BTreeSet;

use nilometer_storage::{Direction, Durability, WriteBatch};

use super::{Catalog, Collection};
use crate::error::Result;

/// In front of the UUID under which a load is kept. No name starts with FF.
pub(super) const LOAD_PREFIX: &[u8] = b"\xFFload\0";

impl Catalog {
    /// Adds to `batch` what a collection will hold.
    pub fn put_load(&self, batch: &mut WriteBatch, collection: &Collection, load: Vec<u8>) {
        batch.put(self.keyspace, load_key(collection.uuid), load);
    }

    /// What was put last for a collection.
    pub fn load_of(&self, collection: &Collection) -> Result<Option<Vec<u8>>> {
        let snapshot = self.engine.snapshot()?;
        let found = snapshot.get(self.keyspace, &load_key(collection.uuid))?;
        Ok(found.map(|load| load.to_vec()))
    }

    /// Removes the loads of collections there are none of.
    pub(super) fn forget_old_loads(&self) -> Result<()> {
        let there: BTreeSet<Vec<u8>> = self
            .collections()
            .iter()
            .map(|collection| load_key(collection.uuid))
            .collect();
        let mut batch = WriteBatch::new();
        let snapshot = self.engine.snapshot()?;
        for item in snapshot.scan(self.keyspace, LOAD_PREFIX, None, Direction::Forward)? {
            let (key, _) = item?;
            if key.starts_with(LOAD_PREFIX) && !there.contains(&key[..]) {
                batch.delete(self.keyspace, key.to_vec());
            }
        }
        if !batch.is_empty() {
            self.engine.commit(batch, Durability::Buffered)?;
        }
        Ok(())
    }
}

fn load_key(uuid: [u8; 16]) -> Vec<u8> {
    [LOAD_PREFIX, &uuid].concat()
}
