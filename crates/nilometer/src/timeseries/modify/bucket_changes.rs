//! Changes of stored buckets, by anything but an insert: raw writes, expiry, updates and deletes.
//!
//! ```text
//! begin ──► claim a bucket ──► read it whole ──► replace │ remove │ keep ──► one engine batch ──► release
//!           │                  │                 add another
//!           │                  document with its tail folded in, entries in flight included
//!           evicted from the bucket catalog; inserts under way are waited for
//! ```
//!
//! Promises:
//!
//! - **Nothing is lost.** A measurement acknowledged before the claim is in the document that is read; a later one goes to
//!   another bucket, or to this one after the release.
//! - **All or nothing.** All changes of one [`BucketChanges`] are one engine batch: documents, tail entries, index entries.
//! - **The catalog forgets** a claimed bucket. The next measurement of its series reopens it if it still takes measurements, or
//!   opens another.
//!
//! While a [`BucketChanges`] lives, no other thread folds, seals, expires or changes a bucket: keep it short, a few hundred buckets
//! at most. The caller checks the contents of documents.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use nilometer_bson::{DocRef, Document, ObjectId, Value, ValueRef, doc};
use nilometer_storage::{Durability, WriteBatch};

use super::unregister::unregister;
use crate::catalog::{Catalog, Collection, TimeseriesOptions};
use crate::change_entry::ChangeNotes;
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::BatchRecord;
use crate::timeseries::Timeseries;
use crate::timeseries::bucket_catalog::EvictedBucket;
use crate::timeseries::format::bucket_document::{BucketDocument, Layout};
use crate::timeseries::format::key_range::in_ordinary_range;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::registry::{self, SeriesRegistrar};
use crate::timeseries::format::sealed::Columns;
use crate::timeseries::format::series_index;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::format::summary;
use crate::timeseries::index::maintenance::IndexMaintainer;
use crate::timeseries::measurement_counts::CountedChange;
use crate::timeseries::scan::bucket_parts;
use crate::timeseries::scan::bucket_parts::BucketParts;

/// The result of a claim.
#[derive(Debug)]
pub(crate) enum ClaimResult {
    /// The bucket is claimed; this is its document with the tail folded in.
    Taken(Document),
    /// There is no such bucket.
    Absent,
    /// Entries of it are in flight.
    Busy,
}

/// A claimed bucket as stored.
struct ClaimedBucket {
    meta: SeriesMeta,
    start_ms: i64,
    last_ms: i64,
    measurements: i64,
    parts: BucketParts,
}

/// Changes to buckets of one collection that become visible together.
#[must_use = "changes are made when they are committed"]
pub(crate) struct BucketChanges<'t> {
    timeseries: &'t Timeseries,
    collection: &'t Collection,
    options: &'t TimeseriesOptions,
    keyspaces: BucketKeyspaces,
    /// `None` if the caller holds the lock.
    _rewriting: Option<MutexGuard<'t, ()>>,
    /// Locked until the batch is committed.
    indexes: IndexMaintainer<'t>,
    registrar: SeriesRegistrar<'t>,
    batch: WriteBatch,
    /// What the change log says about the batch.
    pub(crate) notes: ChangeNotes,
    bytes: usize,
    claimed: HashMap<[u8; 12], ClaimedBucket>,
    evicted: Vec<EvictedBucket>,
    added: HashSet<[u8; 12]>,
    /// Series that gain or lose measurements.
    changed_series: Vec<u128>,
    /// Metadata of buckets that are removed, or get other metadata.
    left_metas: Vec<Value>,
    /// The change of the number of measurements.
    measurements: i64,
    replaced: i64,
    removed: i64,
    extended: bool,
}

impl<'t> BucketChanges<'t> {
    /// Begins to change buckets of a collection. Waits for other changes.
    pub(super) fn begin(
        timeseries: &'t Timeseries,
        collection: &'t Arc<Collection>,
    ) -> Result<Self> {
        // The order of locks: see index maintenance.
        let rewriting = timeseries.maintenance.lock_rewriting();
        Self::begin_locked(timeseries, collection, Some(rewriting))
    }

    /// Begins to change buckets of a collection. Without `rewriting` the caller holds the lock against rewriting.
    pub(crate) fn begin_locked(
        timeseries: &'t Timeseries,
        collection: &'t Arc<Collection>,
        rewriting: Option<MutexGuard<'t, ()>>,
    ) -> Result<Self> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Err(Error::bad_value("not a bucket collection"));
        };
        let notes = match timeseries.keeps_changes() {
            true => timeseries.dictionaries.catalog().change_notes(collection),
            false => ChangeNotes::off(),
        };
        Ok(Self {
            timeseries,
            collection,
            options,
            keyspaces,
            _rewriting: rewriting,
            indexes: IndexMaintainer::lock(collection)?,
            registrar: SeriesRegistrar::new(&*timeseries.engine, keyspaces.registry),
            batch: WriteBatch::new(),
            notes,
            bytes: 0,
            claimed: HashMap::new(),
            evicted: Vec::new(),
            added: HashSet::new(),
            changed_series: Vec::new(),
            left_metas: Vec::new(),
            measurements: 0,
            replaced: 0,
            removed: 0,
            extended: false,
        })
    }
}

impl BucketChanges<'_> {
    /// Claims a bucket and reads it. Waits until no entry of it is in flight. `None` if there is no such bucket.
    pub(crate) fn claim(&mut self, id: [u8; 12]) -> Result<Option<Document>> {
        match self.claim_with(id, true)? {
            ClaimResult::Taken(document) => Ok(Some(document)),
            ClaimResult::Absent | ClaimResult::Busy => Ok(None),
        }
    }

    /// Claims a bucket and reads it, unless an entry of it is in flight.
    pub(crate) fn try_claim(&mut self, id: [u8; 12]) -> Result<ClaimResult> {
        self.claim_with(id, false)
    }

    fn layout(&self) -> Result<Layout<'_>> {
        Layout::of(self.collection, self.options)
    }

    fn read(&self, id: [u8; 12]) -> Result<BucketParts> {
        bucket_parts::read_parts(
            &*self.timeseries.engine.snapshot()?,
            self.keyspaces,
            id,
            None,
        )
    }

    /// Meta and start cannot change meanwhile, so they may be read before the bucket is evicted.
    fn claim_with(&mut self, id: [u8; 12], wait: bool) -> Result<ClaimResult> {
        if let Some(known) = self.claimed.get(&id) {
            let document = known.parts.document(id, &self.layout()?)?;
            return Ok(document.map_or(ClaimResult::Absent, ClaimResult::Taken));
        }
        let parts = self.read(id)?;
        let Some((meta, start_ms)) = parts.series(id, &self.options.time_field)? else {
            return Ok(ClaimResult::Absent);
        };
        let bucket_catalog = &self.timeseries.bucket_catalog;
        let uuid = self.collection.uuid;
        let evicted = match wait {
            true => bucket_catalog.evict_waiting(uuid, meta.clone(), id),
            false => match bucket_catalog.evict(uuid, meta.clone(), id) {
                Some(evicted) => evicted,
                None => return Ok(ClaimResult::Busy),
            },
        };
        #[cfg(test)]
        cov_mark::hit!(changed_bucket_evicted);
        self.evicted.push(evicted);
        // Read again: entries in flight have arrived since.
        let parts = self.read(id)?;
        let Some(document) = parts.document(id, &self.layout()?)? else {
            return Ok(ClaimResult::Absent);
        };
        let bucket = BucketDocument::parse(document.as_ref(), &self.options.time_field)?;
        let claimed = ClaimedBucket {
            meta,
            start_ms,
            last_ms: last_ms(&bucket, &self.options.time_field),
            measurements: measurements_of(&bucket),
            parts,
        };
        self.claimed.insert(id, claimed);
        Ok(ClaimResult::Taken(document))
    }

    fn start_of(&self, bucket: &BucketDocument<'_>) -> Result<i64> {
        bucket.start_ms(&self.options.time_field)
    }

    /// Replaces the document of a claimed bucket; its `_id` stays the same. The caller notes the changes of its measurements.
    pub(crate) fn replace(&mut self, id: [u8; 12], after: DocRef<'_>) -> Result<()> {
        self.replace_raw(id, after)?;
        self.notes.bucket_image(after);
        Ok(())
    }

    /// Like [`Self::replace`]; the caller notes the bucket as a whole.
    pub(super) fn replace_raw(&mut self, id: [u8; 12], after: DocRef<'_>) -> Result<()> {
        let bucket = BucketDocument::parse(after, &self.options.time_field)?;
        assert_eq!(bucket.id, id, "a bucket keeps its id");
        // First: a rejected document must leave nothing in the batch.
        self.indexes.check_document(after)?;
        if let Some(before) = self.delete_claimed(id)? {
            self.replaced += 1;
            if registry::key(before.as_ref()) != registry::key(bucket.meta) {
                self.left_metas.push(before);
            }
            self.put(&bucket, after)?;
        }
        Ok(())
    }

    /// Removes a claimed bucket.
    pub(crate) fn remove(&mut self, id: [u8; 12]) -> Result<()> {
        if let Some(before) = self.delete_claimed(id)? {
            self.removed += 1;
            self.left_metas.push(before);
        }
        Ok(())
    }

    /// Adds a bucket; code 11000 if its `_id` is taken.
    pub(crate) fn add(&mut self, document: DocRef<'_>) -> Result<()> {
        let bucket = BucketDocument::parse(document, &self.options.time_field)?;
        let taken = self.added.contains(&bucket.id) || !self.read(bucket.id)?.is_empty();
        if taken {
            return Err(duplicate(self.collection, bucket.id));
        }
        self.indexes.check_document(document)?;
        self.added.insert(bucket.id);
        self.put(&bucket, document)
    }

    /// Adds to the batch, if it changes something, what a statement stores beside its change.
    pub(super) fn record(&mut self, record: Option<&dyn BatchRecord>) {
        if let Some(record) = record
            && !self.batch.is_empty()
        {
            record.add_to(&mut self.batch);
        }
    }

    /// Returns the bytes of the documents written so far, for callers that limit their batches.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Deletes a claimed bucket: document, tail and index entries. Returns its metadata; `None` if it was not claimed.
    fn delete_claimed(&mut self, id: [u8; 12]) -> Result<Option<Value>> {
        let Some(claimed) = self.claimed.remove(&id) else {
            return Ok(None);
        };
        let ClaimedBucket {
            meta,
            start_ms,
            last_ms,
            measurements,
            parts,
        } = claimed;
        self.mark_rollups(meta.value(), (start_ms, last_ms))?;
        self.measurements -= measurements;
        self.changed_series.push(series_index::hash(&meta));
        let key = series_index::key(&meta, start_ms, id);
        self.batch.delete(self.keyspaces.series, key);
        if parts.stored.is_some() {
            let from = match parts.in_open {
                true => self.keyspaces.open,
                false => self.keyspaces.sealed,
            };
            self.batch.delete(from, id.to_vec());
            summary::keys::mark(&mut self.batch, self.keyspaces, id);
        }
        let mut left = meta.value().to_value();
        if let Some((meta, start_ms)) = parts.opened_as(&self.options.time_field)? {
            let stored = parts.stored_document()?;
            let stored = stored.as_ref().map(Document::as_ref);
            let batch = &mut self.batch;
            self.indexes
                .bucket_removed(batch, id, stored, meta.as_ref(), start_ms)?;
            left = meta;
        }
        for (key, _) in parts.tail {
            self.batch.delete(self.keyspaces.tail, key);
        }
        Ok(Some(left))
    }

    /// Stores a document. It may follow a deletion of the same key in the batch: the last operation counts.
    fn put(&mut self, bucket: &BucketDocument<'_>, document: DocRef<'_>) -> Result<()> {
        let start_ms = self.start_of(bucket)?;
        self.extended |= !self.is_regular(bucket, start_ms);
        self.measurements += measurements_of(bucket);
        let meta = SeriesMeta::of(bucket.meta);
        let last_ms = last_ms(bucket, &self.options.time_field);
        self.mark_rollups(meta.value(), (start_ms, last_ms))?;
        self.changed_series.push(series_index::hash(&meta));
        let key = series_index::key(&meta, start_ms, bucket.id);
        self.batch.put(self.keyspaces.series, key, Vec::new());
        self.indexes
            .document_added(&mut self.batch, bucket.id, document)?;
        self.registrar.register(&mut self.batch, bucket.meta)?;
        let dictionaries = &self.timeseries.dictionaries;
        let stored = dictionaries.store(self.collection.uuid, document, Columns::Packed)?;
        self.bytes += stored.len();
        self.batch
            .put(self.keyspaces.sealed, bucket.id.to_vec(), stored);
        summary::keys::mark(&mut self.batch, self.keyspaces, bucket.id);
        Ok(())
    }

    /// Marks the bins of rollups in which a bucket has measurements.
    fn mark_rollups(&mut self, meta: ValueRef<'_>, times: (i64, i64)) -> Result<()> {
        match self.indexes.rollups() {
            Some(rollups) => rollups.mark_span(&mut self.batch, meta, times),
            None => Ok(()),
        }
    }

    /// True if the bucket's id bounds its times.
    fn is_regular(&self, bucket: &BucketDocument<'_>, start_ms: i64) -> bool {
        let ValueRef::DateTime(last_ms) = bucket.max.get(&self.options.time_field) else {
            return false;
        };
        let seconds = bucket.id.first_chunk().copied().map(u32::from_be_bytes);
        in_ordinary_range(start_ms)
            && in_ordinary_range(last_ms)
            && seconds == u32::try_from(start_ms.div_euclid(1000)).ok()
            && self.options.spans(start_ms, last_ms)
    }

    /// Commits the changes.
    pub(crate) fn commit(mut self, catalog: &Catalog, durability: Durability) -> Result<()> {
        let (batch, count) = self.take_batch(catalog)?;
        if batch.is_empty() {
            return Ok(());
        }
        let timeseries = self.timeseries;
        // Before, because others see a commit at once; after, because they may have read in between.
        self.forget_series();
        let committed = timeseries.engine.commit(batch, Durability::Buffered);
        self.forget_series();
        committed?;
        if let Some(count) = count {
            count.committed();
        }
        // The sync does not keep others out.
        self.finish();
        if durability == Durability::Sync {
            timeseries.engine.sync()?;
        }
        Ok(())
    }

    /// Returns the batch to commit, and the counter that it changes.
    pub(crate) fn take_batch(
        &mut self,
        catalog: &Catalog,
    ) -> Result<(WriteBatch, Option<CountedChange>)> {
        if self.extended {
            catalog.mark_extended_range(self.collection)?;
        }
        let mut batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok((batch, None));
        }
        self.indexes.mark_multikey(catalog)?;
        let counts = &self.timeseries.counts;
        let count = counts.add(&mut batch, self.collection.uuid, self.measurements)?;
        self.notes.add_to(&mut batch);
        Ok((batch, count))
    }

    /// Forgets what is known of the series that change.
    pub(crate) fn forget_series(&self) {
        let locks = &self.timeseries.series_locks;
        locks.forget_series(self.collection.uuid, &self.changed_series);
    }

    /// Releases the buckets after the commit, and counts the changes.
    pub(crate) fn finish(mut self) {
        let timeseries = self.timeseries;
        timeseries.maintenance.note_marks(
            self.collection.uuid,
            self.added.len() + self.changed_series.len(),
        );
        let (replaced, removed) = (self.replaced, self.removed);
        let (collection, left) = (self.collection, std::mem::take(&mut self.left_metas));
        drop(self);
        // After a failure the registry has series without buckets, which it may.
        let _ = unregister(timeseries, collection, left);
        let metrics = &timeseries.metrics;
        metrics
            .direct_updated
            .fetch_add(replaced, Ordering::Relaxed);
        metrics.direct_deleted.fetch_add(removed, Ordering::Relaxed);
    }

    /// Returns the indexes, locked until this is dropped.
    pub(crate) fn indexes(&self) -> &IndexMaintainer<'_> {
        &self.indexes
    }
}

impl Drop for BucketChanges<'_> {
    fn drop(&mut self) {
        let evicted = std::mem::take(&mut self.evicted);
        self.timeseries.bucket_catalog.release(evicted);
    }
}

/// Returns the time of the last measurement of a bucket; the latest date if the bucket does not say.
fn last_ms(bucket: &BucketDocument<'_>, time_field: &str) -> i64 {
    match bucket.max.get(time_field) {
        ValueRef::DateTime(last) => last,
        _ => i64::MAX,
    }
}

fn measurements_of(bucket: &BucketDocument<'_>) -> i64 {
    i64::try_from(bucket.count).unwrap_or(i64::MAX)
}

fn duplicate(collection: &Collection, id: [u8; 12]) -> Error {
    let id: Document = doc! { "_id": ObjectId(id) };
    Error::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {} dup key: {}",
            collection.namespace,
            nilometer_bson::extjson::to_relaxed(id.as_ref())
        ),
    )
    .with_details(doc! { "keyPattern": doc! { "_id": 1 }, "keyValue": id })
}
