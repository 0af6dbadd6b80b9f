//! A consistent view of an ordinary collection and its indexes, for reading by index.

use std::cell::RefCell;

use nilometer_bson::Document;
use nilometer_storage::{Direction, KeyspaceId, Scan, Snapshot};

use super::near_reads::NearReads;
use super::records::{Records, document, keyspaces};
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::{Index, entry};

/// A snapshot and the keyspaces of a collection.
pub struct CollectionSnapshot {
    snapshot: Box<dyn Snapshot>,
    records: KeyspaceId,
    id_index: Option<KeyspaceId>,
    near: RefCell<NearReads>,
}

/// An entry: key string, type bits, record key.
pub type SnapshotEntry = (Vec<u8>, Vec<u8>, Vec<u8>);

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
    ) -> Result<impl Iterator<Item = Result<SnapshotEntry>> + Send + use<>> {
        let direction = if backward {
            Direction::Backward
        } else {
            Direction::Forward
        };
        let keyspace = index.stored.keyspace;
        let scan: Scan = self.snapshot.scan(keyspace, start, end, direction)?;
        let is_id = Some(keyspace) == self.id_index;
        let (order, components) = (index.order(), index.components());
        Ok(scan.map(move |item| {
            let (key, value) = item?;
            if is_id {
                return Ok((key.to_vec(), Vec::new(), value.to_vec()));
            }
            let (own, record) = entry::split(&key, order, components)?;
            Ok((own.to_vec(), value.to_vec(), record.to_vec()))
        }))
    }
}
