//! Reading ranges of an index of an ordinary collection.
//!
//! Entries are read in chunks that grow, each under one snapshot, and the scan goes on behind the last
//! entry read: an entry that is there throughout is met once. Documents, if they are asked for, come
//! from the snapshot of their entries.

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_storage::{Direction, Engine, KeyspaceId, Snapshot};

use super::records::{CHUNK_BYTES_MAX, CHUNK_RECORDS_MAX, Records, document, keyspaces};
use crate::catalog::{Collection, IndexList};
use crate::error::{Error, ErrorCode, Result};
use crate::index::{Index, KeyRange, entry};

/// Entries in the first chunk: a look-up wants no more.
const FIRST_CHUNK: usize = 16;

/// How much larger each chunk is than the one before.
const GROWTH: usize = 4;

/// An entry of an index.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    /// The key string.
    pub key: Vec<u8>,
    /// What the key string does not say.
    pub type_bits: Vec<u8>,
    /// The key of the record.
    pub record: Vec<u8>,
    /// The record, if it was asked for.
    pub document: Option<Document>,
}

/// A scan of some ranges of an index.
pub struct IndexRangeScan {
    engine: Arc<dyn Engine>,
    indexes: Arc<IndexList>,
    index: Arc<Index>,
    records: KeyspaceId,
    ranges: Arc<[KeyRange]>,
    backward: bool,
    documents: bool,
    /// The entry last read.
    after: Option<Vec<u8>>,
    /// Ranges that are done with.
    passed: usize,
    chunk: usize,
    ready: VecDeque<FoundEntry>,
    done: bool,
}

impl Records {
    /// Reads the entries in `ranges`, which ascend and are disjoint, behind the entry `after` (before
    /// it, if backward).
    pub fn index_scan(
        &self,
        collection: &Collection,
        index: Arc<Index>,
        ranges: Arc<[KeyRange]>,
        backward: bool,
        after: Option<Vec<u8>>,
        documents: bool,
    ) -> Result<IndexRangeScan> {
        let (records, _) = keyspaces(collection)?;
        Ok(IndexRangeScan {
            engine: self.engine.clone(),
            indexes: collection.indexes.clone(),
            index,
            records,
            ranges,
            backward,
            documents,
            after,
            passed: 0,
            chunk: FIRST_CHUNK,
            ready: VecDeque::new(),
            done: false,
        })
    }

    /// The record under this key, as it is now.
    pub fn fetch(&self, collection: &Collection, key: &[u8]) -> Result<Option<Document>> {
        let (records, _) = keyspaces(collection)?;
        let found = self.engine.snapshot()?.get(records, key)?;
        found.map(|bytes| document(&bytes)).transpose()
    }
}

impl IndexRangeScan {
    fn refill(&mut self) -> Result<()> {
        let outcome = self.read_chunk();
        let keyspace = self.index.stored.keyspace;
        if outcome.is_err() && !self.indexes.all().iter().any(|i| i.keyspace == keyspace) {
            return Err(Error::new(
                ErrorCode::QueryPlanKilled,
                format!("index '{}' dropped", self.index.stored.spec.name),
            ));
        }
        outcome
    }

    fn read_chunk(&mut self) -> Result<()> {
        let snapshot = self.engine.snapshot()?;
        let mut bytes = 0;
        while self.ready.len() < self.chunk && bytes < CHUNK_BYTES_MAX {
            let Some((start, end)) = self.current_range() else {
                self.done = true;
                break;
            };
            let direction = match self.backward {
                true => Direction::Backward,
                false => Direction::Forward,
            };
            let keyspace = self.index.stored.keyspace;
            let mut scan = snapshot.scan(keyspace, &start, Some(&end), direction)?;
            loop {
                let Some(item) = scan.next() else {
                    self.passed += 1;
                    break;
                };
                let (key, type_bits) = item?;
                let found = self.entry(&*snapshot, &key, &type_bits)?;
                bytes += key.len() + found.document.as_ref().map_or(0, |d| d.as_bytes().len());
                self.ready.push_back(found);
                self.after = Some(key.to_vec());
                if self.ready.len() >= self.chunk || bytes >= CHUNK_BYTES_MAX {
                    break;
                }
            }
        }
        self.chunk = (self.chunk * GROWTH).min(CHUNK_RECORDS_MAX);
        Ok(())
    }

    /// What is left of the first range that is not passed.
    fn current_range(&mut self) -> Option<KeyRange> {
        loop {
            let at = match self.backward {
                true => self.ranges.len().checked_sub(self.passed + 1)?,
                false => self.passed,
            };
            let (start, end) = self.ranges.get(at)?;
            let (start, end) = match (&self.after, self.backward) {
                (Some(after), false) if after >= start => ([after, &[0][..]].concat(), end.clone()),
                (Some(after), true) if after < end => (start.clone(), after.clone()),
                _ => (start.clone(), end.clone()),
            };
            if start < end {
                return Some((start, end));
            }
            self.passed += 1;
        }
    }

    fn entry(&self, snapshot: &dyn Snapshot, key: &[u8], type_bits: &[u8]) -> Result<FoundEntry> {
        let (key, record) = entry::split(key, self.index.order(), self.index.components())?;
        let document = match self.documents {
            false => None,
            true => match snapshot.get(self.records, record)? {
                Some(found) => Some(document(&found)?),
                None => return Err(self.dangling()),
            },
        };
        Ok(FoundEntry {
            key: key.to_vec(),
            type_bits: type_bits.to_vec(),
            record: record.to_vec(),
            document,
        })
    }

    fn dangling(&self) -> Error {
        let name = &self.index.stored.spec.name;
        Error::new(
            ErrorCode::DataCorruptionDetected,
            format!("the index {name} names a record that is not there"),
        )
    }
}

impl Iterator for IndexRangeScan {
    type Item = Result<FoundEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty()
            && !self.done
            && let Err(error) = self.refill()
        {
            self.done = true;
            return Some(Err(error));
        }
        self.ready.pop_front().map(Ok)
    }
}
