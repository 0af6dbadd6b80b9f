//! The records of ordinary collections, and reading them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::key_string::{KeyBuilder, KeyOrder};
use nilometer_bson::{Document, ValueRef};
use nilometer_storage::{Bytes, Direction, Engine, KeyspaceId, OverlayEngine, Snapshot};

use super::capped::{Arrivals, CachedCappedState, CappedLimits, CollectionSize};
use super::claims::{RecordClaims, RecordsBelow};
use crate::catalog::{Catalog, Collection, Storage};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;

/// Most records read under one snapshot.
pub(super) const CHUNK_RECORDS_MAX: usize = 1024;

/// Records read under the first snapshot of a scan, which may need no more.
const FIRST_CHUNK_RECORDS: usize = 16;

/// Factor by which the chunks of a scan grow.
const CHUNK_GROWTH: usize = 4;

/// Most bytes read under one snapshot.
pub(super) const CHUNK_BYTES_MAX: usize = 4 << 20;

/// The records of all ordinary collections of a database.
pub struct Records {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) catalog: Arc<Catalog>,
    collections: Mutex<HashMap<[u8; 16], Arc<CollectionState>>>,
    /// The last timestamp generated.
    pub(super) timestamp: AtomicU64,
    /// What open transactions have changed.
    pub(super) claims: RecordClaims,
    /// `None` for the records that all see.
    pub(super) below: Option<RecordsBelow>,
}

/// The in-memory state of one collection.
#[derive(Debug, Default)]
pub(super) struct CollectionState {
    /// The collation of the `_id` index.
    pub(super) collation: Collation,
    /// The write lock: held from the check for duplicates to the end of the commit.
    writing: Mutex<()>,
    /// The number of threads that wait for the lock.
    waiting: AtomicUsize,
    /// The last record id used; 0 before it was read.
    pub(super) last_id: AtomicU64,
    pub(super) size: CachedSize,
    /// Of a capped collection.
    pub(super) capped: CachedCappedState,
    pub(super) arrivals: Arc<Arrivals>,
}

impl CollectionState {
    /// Acquires the write lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        writing
    }

    /// True if a thread waits for the lock.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// Most stored bytes of a collection that are read to know the bytes of its documents.
const READ_FOR_SIZE_BYTES_MAX: u64 = 64 << 20;

/// The number of records and the bytes of their documents, once known.
#[derive(Debug, Default)]
pub(super) struct CachedSize(Mutex<KnownSize>);

#[derive(Clone, Copy, Debug, Default)]
struct KnownSize {
    count: Option<i64>,
    bytes: Option<i64>,
}

impl CachedSize {
    /// Creates the size of an empty collection.
    fn empty() -> Self {
        Self(Mutex::new(KnownSize {
            count: Some(0),
            bytes: Some(0),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, KnownSize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the change of a commit. The caller holds the write lock.
    pub(super) fn add(&self, by: CollectionSize) {
        let mut known = self.lock();
        known.count = known.count.map(|count| count + by.count);
        known.bytes = known.bytes.map(|bytes| bytes + by.bytes);
    }
}

impl Records {
    /// Opens the records stored by `engine`, of the collections in `catalog`.
    pub fn new(engine: Arc<dyn Engine>, catalog: Arc<Catalog>) -> Self {
        Self {
            engine,
            catalog,
            collections: Mutex::default(),
            timestamp: AtomicU64::new(0),
            claims: RecordClaims::default(),
            below: None,
        }
    }

    /// Opens the records that a transaction sees in `overlay`, over what `below` stores.
    pub(crate) fn of_transaction(
        overlay: Arc<OverlayEngine>,
        catalog: Arc<Catalog>,
        below: &Arc<Self>,
    ) -> Self {
        Self {
            below: Some(RecordsBelow::new(below.clone(), overlay.clone())),
            ..Self::new(overlay, catalog)
        }
    }

    /// Removes the state below a transaction of a collection that it created and that no one else will have.
    pub(crate) fn forget_below(&self, uuid: [u8; 16]) {
        if let Some(below) = &self.below {
            below.records().forget(uuid);
        }
    }

    /// Returns the last record id of a collection that was used; 0 if records have other keys. Ids are not used twice: all up to
    /// `removed` are gone. The caller holds the write lock.
    pub(super) fn last_id(
        &self,
        collection: &Collection,
        state: &CollectionState,
        snapshot: &dyn Snapshot,
        removed: Option<&[u8]>,
    ) -> Result<u64> {
        let last = state.last_id.load(Ordering::Acquire);
        if last != 0 || collection.is_clustered() {
            return Ok(last);
        }
        if let Some(below) = &self.below {
            return below.records().reserve_ids(collection);
        }
        let (records, _) = keyspaces(collection)?;
        let id_of = |key: &[u8]| key.first_chunk().copied().map_or(0, u64::from_be_bytes);
        let newest = snapshot
            .scan(records, &[], None, Direction::Backward)?
            .next();
        let newest = newest.transpose()?.map_or(0, |(key, _)| id_of(&key));
        Ok(newest.max(removed.map_or(0, id_of)))
    }

    pub(super) fn state(&self, collection: &Collection) -> Result<Arc<CollectionState>> {
        let mut known = self
            .collections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = known.get(&collection.uuid) {
            return Ok(state.clone());
        }
        let (records, _) = keyspaces(collection)?;
        let is_empty = || -> Result<bool> {
            let snapshot = self.engine.snapshot()?;
            let mut entries = snapshot.scan(records, &[], None, Direction::Forward)?;
            Ok(entries.next().is_none())
        };
        let state = Arc::new(CollectionState {
            collation: Collation::of_stored(collection.options.as_ref())?,
            // The size of a collection that starts empty is known from then on. A transaction needs none.
            size: match self.below.is_none() && is_empty()? {
                true => CachedSize::empty(),
                false => CachedSize::default(),
            },
            ..CollectionState::default()
        });
        known.insert(collection.uuid, state.clone());
        Ok(state)
    }

    /// Removes the state of a dropped collection.
    pub fn forget(&self, uuid: [u8; 16]) {
        let mut known = self
            .collections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.remove(&uuid);
    }

    /// Reads records in key order, after `after` (before it, if backward).
    pub fn scan(
        &self,
        collection: &Collection,
        backward: bool,
        after: Option<Vec<u8>>,
    ) -> Result<RecordScan> {
        self.scan_within(collection, backward, after, KeyBounds::default())
    }

    /// Like [`Records::scan`], of the records with keys within `bounds`.
    pub fn scan_within(
        &self,
        collection: &Collection,
        backward: bool,
        after: Option<Vec<u8>>,
        mut bounds: KeyBounds,
    ) -> Result<RecordScan> {
        let (records, _) = keyspaces(collection)?;
        if bounds.min.is_none() && CappedLimits::of(collection).is_some() {
            bounds.min = self
                .state(collection)?
                .capped
                .get()
                .and_then(|known| known.removed_up_to);
        }
        Ok(RecordScan {
            bounds,
            engine: self.engine.clone(),
            records,
            backward,
            after,
            chunk: FIRST_CHUNK_RECORDS,
            ready: VecDeque::new(),
            done: false,
        })
    }

    /// Returns the record with this key.
    pub fn fetch(&self, collection: &Collection, key: &[u8]) -> Result<Option<Document>> {
        let (records, _) = keyspaces(collection)?;
        let found = self.engine.snapshot()?.get(records, key)?;
        found.map(|bytes| document(&bytes)).transpose()
    }

    /// Returns the record whose `_id` is `id`, with its key.
    pub fn find_by_id(
        &self,
        collection: &Collection,
        id: ValueRef<'_>,
    ) -> Result<Option<(Vec<u8>, Document)>> {
        let (records, id_index) = keyspaces(collection)?;
        let state = self.state(collection)?;
        let snapshot = self.engine.snapshot()?;
        let key = id_key(id, &state.collation);
        let Some(id_index) = id_index else {
            let found = snapshot.get(records, &key)?;
            return found.map(|bytes| Ok((key, document(&bytes)?))).transpose();
        };
        let Some(key) = snapshot.get(id_index, &key)? else {
            return Ok(None);
        };
        let found = snapshot.get(records, &key)?.ok_or_else(|| {
            Error::new(
                ErrorCode::DataCorruptionDetected,
                format!(
                    "the _id index of {} refers to a missing record",
                    collection.namespace
                ),
            )
        })?;
        Ok(Some((key.to_vec(), document(&found)?)))
    }

    /// Returns the number of records. The first call counts the entries of the `_id` index, or the records
    /// themselves.
    pub fn count(&self, collection: &Collection) -> Result<u64> {
        let (records, id_index) = keyspaces(collection)?;
        let state = self.state(collection)?;
        let _writing = state.lock();
        let mut known = state.size.lock();
        let count = match known.count {
            Some(count) => count,
            None => {
                let mut count = 0;
                let snapshot = self.engine.snapshot()?;
                for item in
                    snapshot.scan(id_index.unwrap_or(records), &[], None, Direction::Forward)?
                {
                    item?;
                    count += 1;
                }
                *known.count.insert(count)
            }
        };
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Returns the number of records if that needs no reading.
    pub fn known_count(&self, collection: &Collection) -> Result<Option<u64>> {
        let known = self.state(collection)?.size.lock().count;
        Ok(known.and_then(|count| u64::try_from(count).ok()))
    }

    /// Returns the bytes of all documents. Where they are not known, the first call reads the documents; above
    /// [`READ_FOR_SIZE_BYTES_MAX`] it returns `stored`, the bytes of their storage, instead.
    pub fn document_bytes(&self, collection: &Collection, stored: u64) -> Result<u64> {
        let (records, _) = keyspaces(collection)?;
        let state = self.state(collection)?;
        let _writing = state.lock();
        let mut known = state.size.lock();
        let bytes = match known.bytes {
            Some(bytes) => bytes,
            None if stored > READ_FOR_SIZE_BYTES_MAX => return Ok(stored),
            None => {
                let mut size = CollectionSize::default();
                let snapshot = self.engine.snapshot()?;
                for item in snapshot.scan(records, &[], None, Direction::Forward)? {
                    let (_, value) = item?;
                    size.count += 1;
                    size.bytes += i64::try_from(value.len()).unwrap_or(i64::MAX);
                }
                known.count = Some(size.count);
                *known.bytes.insert(size.bytes)
            }
        };
        Ok(u64::try_from(bytes).unwrap_or(0))
    }
}

/// Returns the key of an `_id` in the index.
pub(super) fn id_key(id: ValueRef<'_>, collation: &Collation) -> Vec<u8> {
    let mut key = KeyBuilder::with_collator(KeyOrder::ASCENDING, collation.collator());
    key.push(id);
    key.finish().0
}

/// Returns the key of the record with this `_id` in a clustered collection of this collation.
pub fn clustered_key(id: ValueRef<'_>, collation: &Collation) -> Vec<u8> {
    id_key(id, collation)
}

/// Bounds of record keys, both inclusive.
#[derive(Clone, Debug, Default)]
pub struct KeyBounds {
    /// The lowest key.
    pub min: Option<Vec<u8>>,
    /// The highest key.
    pub max: Option<Vec<u8>>,
}

impl KeyBounds {
    /// True if a bound is set.
    pub fn is_bounded(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }
}

/// Returns the record and index keyspaces of an ordinary collection.
pub(super) fn keyspaces(collection: &Collection) -> Result<(KeyspaceId, Option<KeyspaceId>)> {
    match collection.storage {
        Storage::Records { records, id_index } => Ok((records, id_index)),
        Storage::Buckets { .. } => Err(Error::bad_value("a bucket collection has no records")),
    }
}

pub(super) fn document(bytes: &[u8]) -> Result<Document> {
    Document::from_bytes(bytes.to_vec()).ok_or_else(|| {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            "a record is not a document",
        )
    })
}

/// Processes one chunk of keys and values, and the snapshot they come from.
type VisitChunk<'v> = dyn FnMut(&dyn Snapshot, &[(Bytes, Bytes)]) -> Result<()> + 'v;

impl Records {
    /// Visits the entries of a keyspace in key order, chunk by chunk, each under a snapshot of its own.
    pub(super) fn for_each_chunk(
        &self,
        keyspace: KeyspaceId,
        check_interrupt: &dyn Fn() -> Result<()>,
        visit: &mut VisitChunk<'_>,
    ) -> Result<()> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            check_interrupt()?;
            let snapshot = self.engine.snapshot()?;
            let chunk = read_chunk(&*snapshot, keyspace, after.as_deref(), false)?;
            let Some((last, _)) = chunk.last() else {
                return Ok(());
            };
            after = Some(last.to_vec());
            visit(&*snapshot, &chunk)?;
        }
    }
}

/// Returns one chunk of the keys and values of a keyspace after `after` (before it, if backward).
pub(super) fn read_chunk(
    snapshot: &dyn Snapshot,
    keyspace: KeyspaceId,
    after: Option<&[u8]>,
    backward: bool,
) -> Result<Vec<(Bytes, Bytes)>> {
    let bounds = KeyBounds::default();
    read_chunk_within(
        snapshot,
        keyspace,
        (after, backward),
        &bounds,
        CHUNK_RECORDS_MAX,
    )
}

/// Like [`read_chunk`], of the keys within `bounds`, at most `most`.
fn read_chunk_within(
    snapshot: &dyn Snapshot,
    keyspace: KeyspaceId,
    (after, backward): (Option<&[u8]>, bool),
    bounds: &KeyBounds,
    most: usize,
) -> Result<Vec<(Bytes, Bytes)>> {
    let behind = |key: &[u8]| [key, &[0][..]].concat();
    let mut start = bounds.min.clone().unwrap_or_default();
    let mut end = bounds.max.as_deref().map(behind);
    let direction = match (after, backward) {
        (None, false) => Direction::Forward,
        (None, true) => Direction::Backward,
        (Some(after), false) => {
            start = start.max(behind(after));
            Direction::Forward
        }
        (Some(after), true) => {
            let after = after.to_vec();
            end = Some(end.map_or(after.clone(), |end| end.min(after)));
            Direction::Backward
        }
    };
    let mut chunk = Vec::new();
    let mut bytes = 0;
    if end.as_ref().is_some_and(|end| *end <= start) {
        return Ok(chunk);
    }
    for item in snapshot.scan(keyspace, &start, end.as_deref(), direction)? {
        let (key, value) = item?;
        bytes += key.len() + value.len();
        chunk.push((key, value));
        if chunk.len() >= most || bytes >= CHUNK_BYTES_MAX {
            break;
        }
    }
    Ok(chunk)
}

/// A scan of an ordinary collection. It holds a snapshot for one chunk only.
pub struct RecordScan {
    engine: Arc<dyn Engine>,
    records: KeyspaceId,
    bounds: KeyBounds,
    backward: bool,
    after: Option<Vec<u8>>,
    /// Records to read under the next snapshot.
    chunk: usize,
    ready: VecDeque<(Bytes, Bytes)>,
    done: bool,
}

impl RecordScan {
    /// Reads large chunks from the start, for a scan that goes to the end.
    #[must_use]
    pub(crate) fn in_large_chunks(mut self) -> Self {
        self.chunk = CHUNK_RECORDS_MAX;
        self
    }

    /// Returns the records of the next chunk; empty at the end.
    pub(super) fn next_chunk(&mut self) -> Result<Vec<(Vec<u8>, Document)>> {
        if self.ready.is_empty() && !self.done {
            self.refill()?;
        }
        let ready = self.ready.drain(..);
        ready
            .map(|(key, value)| Ok((key.to_vec(), document(&value)?)))
            .collect()
    }

    fn refill(&mut self) -> Result<()> {
        let snapshot = self.engine.snapshot()?;
        let after = self.after.as_deref();
        let place = (after, self.backward);
        let chunk = read_chunk_within(&*snapshot, self.records, place, &self.bounds, self.chunk)?;
        self.ready = chunk.into();
        self.chunk = (self.chunk * CHUNK_GROWTH).min(CHUNK_RECORDS_MAX);
        match self.ready.back() {
            Some((key, _)) => self.after = Some(key.to_vec()),
            None => self.done = true,
        }
        Ok(())
    }
}

impl Iterator for RecordScan {
    type Item = Result<(Vec<u8>, Document)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty()
            && !self.done
            && let Err(error) = self.refill()
        {
            self.done = true;
            return Some(Err(error));
        }
        let (key, value) = self.ready.pop_front()?;
        Some(document(&value).map(|document| (key.to_vec(), document)))
    }
}
