//! The sizes of capped collections, so that opening the database does not have to count them.
//!
//! A change of such a collection puts the new size into the same engine batch. The payload is opaque to
//! this module. Sizes of dropped collections are removed when the catalog is opened.

use nilometer_storage::WriteBatch;

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
}

fn capped_size_key(uuid: [u8; 16]) -> Vec<u8> {
    [CAPPED_SIZE_PREFIX, &uuid].concat()
}
