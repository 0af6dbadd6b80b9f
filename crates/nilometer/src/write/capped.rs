//! Capped collections: they keep the newest documents and remove the oldest.
//!
//! ```text
//! insert ──▶ new record ──▶ over the limit of documents or bytes? ──▶ remove the oldest, in the same batch
//! ```
//!
//! Records are ordered by insertion, so the oldest come first. A commit holds new records together with the
//! removal of the records they displace: the limits hold at any moment and after any crash, unless an
//! update has made documents larger or the limits were lowered; the next insert restores them. Bytes are
//! those of the documents themselves.
//!
//! The number of documents and bytes is stored in the catalog, in the same batch as every change.
//!
//! Tailable cursors wait for new documents on [`Arrivals`].

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nilometer_bson::{Document, ObjectId, ValueRef};
use nilometer_storage::{Direction, Durability, KeyspaceId, Snapshot};

use super::records::{CollectionState, Records, document, keyspaces};
use super::validator::DocumentChecks;
use crate::catalog::Collection;
use crate::error::{Error, Result};
use crate::insertion::InsertOptions;
use crate::operation::Bypass;

/// The limits of a capped collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CappedLimits {
    /// Bytes of all documents.
    pub bytes_max: i64,
    /// Number of documents; `None` if unlimited.
    pub count_max: Option<i64>,
}

impl CappedLimits {
    /// Returns the limits of `collection`; `None` if it is not capped.
    pub fn of(collection: &Collection) -> Option<Self> {
        let options = &collection.options;
        let number = |name: &str| options.get(name).as_exact_i64();
        match options.get("capped") {
            ValueRef::Bool(true) => Some(Self {
                bytes_max: number("size")?,
                count_max: number("max").filter(|max| *max > 0),
            }),
            _ => None,
        }
    }

    fn are_exceeded_by(&self, size: CollectionSize) -> bool {
        size.bytes > self.bytes_max || self.count_max.is_some_and(|max| size.count > max)
    }
}

/// The number and bytes of documents, or a change of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CollectionSize {
    pub(super) count: i64,
    pub(super) bytes: i64,
}

impl CollectionSize {
    pub(super) fn add(&mut self, document: &Document) {
        self.count += 1;
        self.bytes += bytes_of(document);
    }

    pub(super) fn remove(&mut self, document: &Document) {
        self.count -= 1;
        self.bytes -= bytes_of(document);
    }
}

pub(super) fn bytes_of(document: &Document) -> i64 {
    i64::try_from(document.as_bytes().len()).unwrap_or(i64::MAX)
}

/// The size of a capped collection, once loaded. Set by the holder of the write lock.
#[derive(Debug, Default)]
pub(super) struct CachedCappedState(Mutex<Option<CappedState>>);

/// The state of a capped collection; stored with every change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CappedState {
    pub(super) size: CollectionSize,
    /// All records up to this key were removed. Engines keep tombstones for a while: the search for the
    /// oldest record starts after them.
    pub(super) removed_up_to: Option<Vec<u8>>,
}

impl CappedState {
    /// Returns the state after a change of the size.
    pub(super) fn after(&self, change: CollectionSize) -> Self {
        Self {
            size: CollectionSize {
                count: self.size.count + change.count,
                bytes: self.size.bytes + change.bytes,
            },
            removed_up_to: self.removed_up_to.clone(),
        }
    }

    /// Encodes as `count │ bytes │ key`, integers big-endian, the key empty if there is none.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (count, bytes) = (self.size.count.to_be_bytes(), self.size.bytes.to_be_bytes());
        let key = self.removed_up_to.as_deref().unwrap_or_default();
        [&count[..], &bytes, key].concat()
    }

    fn decode(stored: &[u8]) -> Option<Self> {
        let (count, rest) = stored.split_first_chunk()?;
        let (bytes, key) = rest.split_first_chunk()?;
        Some(Self {
            size: CollectionSize {
                count: i64::from_be_bytes(*count),
                bytes: i64::from_be_bytes(*bytes),
            },
            removed_up_to: (!key.is_empty()).then(|| key.to_vec()),
        })
    }
}

impl CachedCappedState {
    pub(super) fn get(&self) -> Option<CappedState> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    pub(super) fn set(&self, now: CappedState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}

impl Records {
    /// Returns the state of a capped collection; `None` for others. The caller holds the write lock.
    pub(super) fn capped_state(
        &self,
        collection: &Collection,
        state: &CollectionState,
        snapshot: &dyn Snapshot,
    ) -> Result<Option<CappedState>> {
        if CappedLimits::of(collection).is_none() {
            return Ok(None);
        }
        if let Some(known) = state.capped.get() {
            return Ok(Some(known));
        }
        let stored = self.catalog.capped_size(collection)?;
        let known = match stored.as_deref().and_then(CappedState::decode) {
            Some(known) => known,
            // Nothing was written yet, or by a version that did not store the size.
            None => counted(snapshot, keyspaces(collection)?.0)?,
        };
        state.capped.set(known.clone());
        Ok(Some(known))
    }
}

fn counted(snapshot: &dyn Snapshot, records: KeyspaceId) -> Result<CappedState> {
    let mut size = CollectionSize::default();
    for record in snapshot.scan(records, &[], None, Direction::Forward)? {
        size.count += 1;
        size.bytes += i64::try_from(record?.1.len()).unwrap_or(i64::MAX);
    }
    Ok(CappedState {
        size,
        removed_up_to: None,
    })
}

/// Growth and maximum of the number of oldest records read at a time.
const OLDEST_READ_GROWTH: usize = 4;
const OLDEST_READ_MAX: usize = 256;

/// Removes the oldest records during one insert under the write lock.
pub(super) struct CappedTrimmer {
    limits: CappedLimits,
    records: KeyspaceId,
    /// The size after the batch.
    pub(super) size: CollectionSize,
    /// The oldest records of the snapshot that are not removed yet.
    oldest: VecDeque<(Vec<u8>, Document)>,
    /// The last record read into `oldest`.
    read_up_to: Option<Vec<u8>>,
    /// The number of records to read next.
    read_count: usize,
    /// The last record to remove.
    pub(super) removed_up_to: Option<Vec<u8>>,
}

impl CappedTrimmer {
    /// Returns `None` if the collection is not capped.
    pub(super) fn of(
        all: &Records,
        collection: &Collection,
        state: &CollectionState,
        snapshot: &dyn Snapshot,
        records: KeyspaceId,
    ) -> Result<Option<Self>> {
        let known = all.capped_state(collection, state, snapshot)?;
        let (Some(limits), Some(known)) = (CappedLimits::of(collection), known) else {
            return Ok(None);
        };
        Ok(Some(Self {
            limits,
            records,
            size: known.size,
            oldest: VecDeque::new(),
            read_up_to: known.removed_up_to.clone(),
            read_count: 1,
            removed_up_to: known.removed_up_to,
        }))
    }

    /// Refuses a document larger than the limit.
    pub(super) fn check(&self, document: &Document) -> Result<()> {
        if bytes_of(document) > self.limits.bytes_max {
            return Err(Error::bad_value("object to insert exceeds cappedMaxSize"));
        }
        Ok(())
    }

    /// Returns the state once the batch is committed.
    pub(super) fn state(&self) -> CappedState {
        CappedState {
            size: self.size,
            removed_up_to: self.removed_up_to.clone(),
        }
    }

    /// Adds a document to the size.
    pub(super) fn add(&mut self, document: &Document) {
        self.size.add(document);
    }

    /// Returns the oldest record of the snapshot if a limit is exceeded: it must be removed.
    pub(super) fn next_removal(&mut self, snapshot: &dyn Snapshot) -> Result<NextRemoval> {
        if !self.limits.are_exceeded_by(self.size) {
            return Ok(NextRemoval::Nothing);
        }
        if self.oldest.is_empty() {
            let start = match &self.read_up_to {
                Some(key) => [&key[..], &[0]].concat(),
                None => Vec::new(),
            };
            let scan = snapshot.scan(self.records, &start, None, Direction::Forward)?;
            for record in scan.take(self.read_count) {
                let (key, value) = record?;
                self.oldest.push_back((key.to_vec(), document(&value)?));
            }
            self.read_count = (self.read_count * OLDEST_READ_GROWTH).min(OLDEST_READ_MAX);
            if let Some((last, _)) = self.oldest.back() {
                self.read_up_to = Some(last.clone());
            }
        }
        Ok(match self.oldest.pop_front() {
            Some((key, document)) => {
                self.size.remove(&document);
                self.removed_up_to = Some(key.clone());
                NextRemoval::Record(key, document)
            }
            None => NextRemoval::NotInSnapshot,
        })
    }
}

/// The next record to remove.
pub(super) enum NextRemoval {
    /// No limit is exceeded.
    Nothing,
    /// This record.
    Record(Vec<u8>, Document),
    /// A record of the current batch: all records of the snapshot were removed.
    NotInSnapshot,
}

/// Wakes waiting readers when documents were inserted.
#[derive(Debug, Default)]
pub struct Arrivals {
    count: Mutex<u64>,
    more: Condvar,
}

impl Arrivals {
    /// Returns the number of inserts so far.
    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the number of inserts differs from `known`, or `time` has passed.
    pub fn wait(&self, known: u64, time: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .more
            .wait_timeout_while(count, time, |count| *count == known);
        drop(waited);
    }

    pub(crate) fn notify(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.more.notify_all();
    }
}

/// Bytes of documents copied per batch.
const COPIED_BYTES_MAX: usize = 4 << 20;

impl Records {
    /// Runs `work` while no document of the collection changes.
    pub fn exclusively<T>(
        &self,
        collection: &Collection,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let state = self.state(collection)?;
        let _writing = state.lock();
        work()
    }

    /// Copies the documents of a collection into another one, in order and unchecked. Documents too large
    /// for the target are left out.
    pub fn copy(
        &self,
        source: &Collection,
        target: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let checking = DocumentChecks {
            bypass: Bypass::ALL,
            ..DocumentChecks::default()
        };
        let options = InsertOptions {
            ordered: false,
            durability: Durability::Buffered,
            // Stored documents have an `_id`.
            new_id: &|| ObjectId([0; 12]),
            record: None,
        };
        let mut documents = Vec::new();
        let mut bytes = 0;
        let mut all = self.scan(source, false, None)?.peekable();
        while let Some(record) = all.next() {
            let (_, document) = record?;
            bytes += document.as_bytes().len();
            documents.push(document);
            if bytes >= COPIED_BYTES_MAX || all.peek().is_none() {
                check_interrupt()?;
                let batch = documents.iter().map(Document::as_ref);
                self.insert(target, batch, options, checking)?;
                documents.clear();
                bytes = 0;
            }
        }
        Ok(())
    }

    /// Returns the arrivals of `collection`, if it is capped.
    pub fn arrivals(&self, collection: &Collection) -> Result<Option<std::sync::Arc<Arrivals>>> {
        match CappedLimits::of(collection) {
            Some(_) => Ok(Some(self.state(collection)?.arrivals.clone())),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_round_trips() {
        for removed_up_to in [None, Some(vec![0, 0, 7])] {
            let size = CollectionSize {
                count: 3,
                bytes: 1 << 40,
            };
            let known = CappedState {
                size,
                removed_up_to,
            };
            let stored = known.encode();
            assert_eq!(CappedState::decode(&stored), Some(known));
            assert_eq!(CappedState::decode(&stored[..15]), None);
        }
    }
}
