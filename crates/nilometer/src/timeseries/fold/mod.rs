//! Folding: a bucket's document and its tail are merged, and written back as one document.
//!
//! ```text
//! document (if written) + tail entries ─► BucketImage ─┬─ fold ─► open document    may still grow
//!                                                      └─ seal ─► sealed document  stored form (format::sealed)
//! ```
//!
//! Folding replaces tail entries by a bucket document with their measurements, in one engine batch; sealing also moves the
//! document to the sealed ones. Neither changes what readers see, so neither waits for a sync: after a crash the tail is
//! there again. [`queue`] says when buckets are folded.

pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod summarize;
mod task_queue;

use std::sync::Arc;

use nilometer_bson::{DocRef, Document};
use nilometer_storage::{Durability, Engine, Snapshot, WriteBatch};

use super::Timeseries;
use super::bucket_catalog::BucketCatalog;
use super::format::bucket_document::{BucketImage, Layout};
use super::format::keyspaces::BucketKeyspaces;
use super::format::sealed;
use super::format::sealed::{Columns, Dictionaries};
use super::format::summary;
use super::index::maintenance::IndexMaintainer;
use super::scan::bucket_parts::{BucketParts, read_parts};
use crate::catalog::Collection;
use crate::error::Result;

impl Timeseries {
    /// Queues the sealing of every bucket that has a tail: at start, when no bucket is open yet. Returns their number.
    pub fn seal_unsealed(&self, collection: &Arc<Collection>) -> Result<usize> {
        self.maintenance.seal_unsealed(collection)
    }

    /// Closes every open bucket of a collection and seals it: for `compact`, benches and tests.
    pub fn seal_all(&self, collection: &Arc<Collection>) -> Result<()> {
        self.maintenance.seal_all(collection)
    }

    /// Waits until no folding or sealing is queued; fails with the last failure of one.
    pub fn wait_for_maintenance(&self) -> Result<()> {
        self.maintenance.wait()
    }

    /// Removes the dictionaries of dropped collections that no reader can need any more.
    pub(crate) fn release_dropped(&self) {
        self.maintenance.release_dropped();
    }
}

/// Where a folded document goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldTarget {
    /// It may still grow.
    Open,
    /// It does not grow any more.
    Sealed,
}

/// The result of folding a bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoldResult {
    /// Its measurements, and the bytes of its document or, if sealed, of its stored form; `None` if there was nothing to
    /// write.
    pub(crate) written: Option<(usize, usize)>,
    /// Entries removed from the keyspaces of tails and open buckets.
    pub(crate) removed: usize,
}

/// Folds buckets of one collection.
pub(crate) struct BucketFolder<'f> {
    pub(crate) engine: &'f dyn Engine,
    pub(crate) bucket_catalog: &'f BucketCatalog,
    pub(crate) dictionaries: &'f Dictionaries,
    /// The UUID of the collection.
    pub(crate) collection: [u8; 16],
    pub(crate) keyspaces: BucketKeyspaces,
    pub(crate) indexes: &'f IndexMaintainer<'f>,
    pub(crate) layout: &'f Layout<'f>,
}

impl BucketFolder<'_> {
    /// Adds to `batch` what writes a bucket's document with its tail below `upto` folded in. After an error nothing is added.
    pub(crate) fn fold(
        &self,
        snapshot: &dyn Snapshot,
        batch: &mut WriteBatch,
        (id, upto): ([u8; 12], Option<u32>),
        target: FoldTarget,
    ) -> Result<FoldResult> {
        let keyspaces = self.keyspaces;
        let parts = read_parts(snapshot, keyspaces, id, upto)?;
        if parts.tail.is_empty() {
            if let (Some(stored), true, FoldTarget::Sealed) = (&parts.stored, parts.in_open, target)
            {
                let packed = self.store(sealed::load(stored)?.as_ref(), Columns::Packed)?;
                batch.put(keyspaces.sealed, id.to_vec(), packed);
                batch.delete(keyspaces.open, id.to_vec());
                summary::keys::mark(batch, keyspaces, id);
                return Ok(FoldResult {
                    written: None,
                    removed: 1,
                });
            }
            return Ok(FoldResult::default());
        }
        match parts.image(id, self.layout)? {
            None => Ok(FoldResult::default()),
            Some(image) if image.has_columns_without_values() => self.fold_exclusively(id, &parts),
            Some(image) => self.write(batch, id, parts, image, target),
        }
    }

    /// Folds a bucket with a column that has no value, leaves that column out, and commits. Writers of the open bucket rely on the
    /// column's place, so the catalog evicts it first; a bucket with entries in flight is left as it is.
    fn fold_exclusively(&self, id: [u8; 12], parts: &BucketParts) -> Result<FoldResult> {
        let Some((meta, _)) = parts.series(id, self.layout.time_field)? else {
            return Ok(FoldResult::default());
        };
        let Some(evicted) = self.bucket_catalog.evict(self.collection, meta, id) else {
            return Ok(FoldResult::default());
        };
        let folded = self.fold_evicted(id);
        self.bucket_catalog.release(vec![evicted]);
        folded
    }

    fn fold_evicted(&self, id: [u8; 12]) -> Result<FoldResult> {
        // Read again: entries in flight have arrived since.
        let parts = read_parts(&*self.engine.snapshot()?, self.keyspaces, id, None)?;
        let Some(image) = parts.image(id, self.layout)? else {
            return Ok(FoldResult::default());
        };
        let mut batch = WriteBatch::new();
        let folded = self.write(&mut batch, id, parts, image, FoldTarget::Sealed)?;
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(folded)
    }

    /// Adds the document to `all`, and the deletion of the document and the entries it was merged from.
    fn write(
        &self,
        all: &mut WriteBatch,
        id: [u8; 12],
        parts: BucketParts,
        image: BucketImage,
        target: FoldTarget,
    ) -> Result<FoldResult> {
        let keyspaces = self.keyspaces;
        let rows = image.rows();
        let (to, from) = match target {
            FoldTarget::Open => (keyspaces.open, keyspaces.sealed),
            FoldTarget::Sealed => (keyspaces.sealed, keyspaces.open),
        };
        let mut batch = WriteBatch::new();
        let (stored, bytes) = if target == FoldTarget::Sealed && !self.indexes.needs_documents() {
            // No index needs the document: its columns are packed without being built.
            let stored =
                self.dictionaries
                    .store_split(self.collection, &image.into_split(), true)?;
            let bytes = stored.len();
            (stored, bytes)
        } else {
            let document = image.into_document();
            if self.indexes.needs_documents() {
                let before = parts.stored_document()?;
                let before = before.as_ref().map(Document::as_ref);
                self.indexes
                    .document_folded(&mut batch, id, before, document.as_ref())?;
            }
            let columns = match target {
                FoldTarget::Open => Columns::AsTheyAre,
                FoldTarget::Sealed => Columns::PackedAsBuilt,
            };
            let stored = self.store(document.as_ref(), columns)?;
            (stored, document.as_bytes().len())
        };
        batch.put(to, id.to_vec(), stored);
        if to == keyspaces.sealed || (parts.stored.is_some() && !parts.in_open) {
            summary::keys::mark(&mut batch, keyspaces, id);
        }
        if parts.stored.is_some() && parts.in_open == (target == FoldTarget::Sealed) {
            batch.delete(from, id.to_vec());
        }
        let removed = parts.tail.len();
        for (key, _) in parts.tail {
            batch.delete(keyspaces.tail, key);
        }
        all.append(batch);
        Ok(FoldResult {
            written: Some((rows, bytes)),
            removed,
        })
    }

    fn store(&self, document: DocRef<'_>, columns: Columns) -> Result<Vec<u8>> {
        self.dictionaries.store(self.collection, document, columns)
    }
}
