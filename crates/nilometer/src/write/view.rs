//! A consistent view of an ordinary collection and its indexes, for reading by index.

use std::cell::RefCell;

use nilometer_bson::Document;
use nilometer_storage::{Direction, KeyspaceId, Snapshot};

use super::near_reads::NearReads;
use super::records::{Records, document, keyspaces};
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::Index;
use crate::index::entry::{self, StoredEntry};

/// A snapshot and the keyspaces of a collection.
pub struct CollectionSnapshot {
    snapshot: Box<dyn Snapshot>,
    records: KeyspaceId,
    id_index: Option<KeyspaceId>,
    near: RefCell<NearReads>,
}

impl Records {
    /// Returns a view of the current state.
    pub fn snapshot(&self, collection: &Collection) -> Result<CollectionSnapshot> {
        let (records, id_index) = keyspaces(collection)?;
        Ok(CollectionSnapshot {
            snapshot: self.engine.snapshot()?,
            records,
            id_index,
            near: RefCell::default(),
        })
    }
}

impl CollectionSnapshot {
    /// Returns the record with this key.
    pub fn record(&self, key: &[u8]) -> Result<Option<Document>> {
        let mut near = self.near.borrow_mut();
        match near.read(&*self.snapshot, self.records, key)? {
            Some(bytes) => document(&bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the entries of an index from `start` (inclusive) to `end` (exclusive). The index of `_id`
    /// stores the record key in the value of its entries, other indexes at the end of their keys.
    pub fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        backward: bool,
    ) -> Result<Box<dyn Iterator<Item = Result<StoredEntry>> + Send>> {
        let direction = if backward {
            Direction::Backward
        } else {
            Direction::Forward
        };
        let keyspace = index.stored.keyspace;
        if Some(keyspace) != self.id_index {
            let entries = entry::scan(&*self.snapshot, index, start, end, direction)?;
            return Ok(Box::new(entries));
        }
        let entries = self.snapshot.scan(keyspace, start, end, direction)?;
        Ok(Box::new(entries.map(|item| {
            let (key, value) = item?;
            Ok((key.to_vec(), Vec::new(), value.to_vec()))
        })))
    }
}
