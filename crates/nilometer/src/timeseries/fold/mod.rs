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

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, Value, ValueRef};
use nilometer_storage::{Bytes, Direction, Durability, Engine, KeyspaceId, Snapshot, WriteBatch};

use super::Timeseries;
use super::bucket_catalog::BucketCatalog;
use super::format::bucket_document::{BucketDocument, BucketImage, Layout, damaged};
use super::format::sealed;
use super::format::sealed::{Columns, Dictionaries};
use super::format::series_key::SeriesMeta;
use super::format::tail;
use super::format::tail::Entry;
use super::index::maintenance::IndexMaintainer;
use crate::catalog::{Collection, Storage};
use crate::error::{Error, Result};

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

/// The keyspaces of a bucket collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketKeyspaces {
    pub(crate) open: KeyspaceId,
    pub(crate) sealed: KeyspaceId,
    pub(crate) tail: KeyspaceId,
    pub(crate) series: KeyspaceId,
}

impl BucketKeyspaces {
    /// The keyspaces of a bucket collection; `None` for an ordinary one.
    pub(crate) fn of(collection: &Collection) -> Option<Self> {
        match collection.storage {
            Storage::Buckets {
                open,
                sealed,
                tail,
                series,
            } => Some(Self {
                open,
                sealed,
                tail,
                series,
            }),
            Storage::Records { .. } => None,
        }
    }
}

/// A stored bucket: its document and its tail.
pub(crate) struct BucketParts {
    /// The stored form of the document; `None` before the first fold.
    pub(crate) stored: Option<Bytes>,
    /// True if the document is among the open ones.
    pub(crate) in_open: bool,
    /// Keys and entries of the tail, in the order of their sequence numbers.
    pub(crate) tail: Vec<(Vec<u8>, Entry)>,
}

/// Reads a bucket's document and the entries of its tail below `upto`.
pub(crate) fn read_parts(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    id: [u8; 12],
    upto: Option<u32>,
) -> Result<BucketParts> {
    let open = snapshot.get(keyspaces.open, &id)?;
    let in_open = open.is_some();
    let stored = match open {
        Some(found) => Some(found),
        None => snapshot.get(keyspaces.sealed, &id)?,
    };
    let end = match upto {
        Some(sequence) => tail::key(id, sequence),
        None => [&tail::key(id, u32::MAX)[..], &[0]].concat(),
    };
    let scan = snapshot.scan(
        keyspaces.tail,
        &tail::key(id, 0),
        Some(&end),
        Direction::Forward,
    )?;
    let mut entries = Vec::new();
    for item in scan {
        let (key, value) = item?;
        entries.push((key.to_vec(), tail::decode(&value)?));
    }
    Ok(BucketParts {
        stored,
        in_open,
        tail: entries,
    })
}

/// Returns the size of a bucket's document with its tail folded in, in bytes; 0 if there is no bucket.
pub(crate) fn document_bytes(
    engine: &dyn Engine,
    collection: &Collection,
    id: [u8; 12],
) -> Result<usize> {
    let (Some(keyspaces), Some(options)) =
        (BucketKeyspaces::of(collection), &collection.timeseries)
    else {
        return Ok(0);
    };
    let parts = read_parts(&*engine.snapshot()?, keyspaces, id, None)?;
    let document = parts.document(id, &Layout::of(collection, options)?)?;
    Ok(document.map_or(0, |document| document.as_bytes().len()))
}

/// Returns a bucket's document with its tail folded in, its columns at the places by which tail entries refer to them, and
/// the next sequence number of the tail.
pub(crate) fn load(
    engine: &dyn Engine,
    collection: &Collection,
    id: [u8; 12],
) -> Result<Option<(Document, u32)>> {
    let (Some(keyspaces), Some(options)) =
        (BucketKeyspaces::of(collection), &collection.timeseries)
    else {
        return Ok(None);
    };
    let parts = read_parts(&*engine.snapshot()?, keyspaces, id, None)?;
    let next_sequence = parts.next_sequence()?;
    let document = parts.document_by_place(id, &Layout::of(collection, options)?)?;
    Ok(document.map(|document| (document, next_sequence)))
}

impl BucketParts {
    /// True if there is no such bucket.
    pub(crate) fn is_empty(&self) -> bool {
        self.stored.is_none() && self.tail.is_empty()
    }

    /// The sequence number of the next tail entry.
    pub(crate) fn next_sequence(&self) -> Result<u32> {
        match self.tail.last() {
            Some((key, _)) => Ok(tail::split_key(key)?.1.saturating_add(1)),
            None => Ok(0),
        }
    }

    /// The series of the bucket and its start, from its document or its tail; `None` if there is no such bucket.
    pub(crate) fn series(
        &self,
        id: [u8; 12],
        time_field: &str,
    ) -> Result<Option<(SeriesMeta, i64)>> {
        if let Some(stored) = &self.stored {
            let document = sealed::load(stored)?;
            let bucket = BucketDocument::parse(document.as_ref(), time_field)?;
            let start_ms = bucket.start_ms(time_field)?;
            return Ok(Some((SeriesMeta::of(bucket.meta), start_ms)));
        }
        let header = self.tail.iter().find_map(|(_, e)| e.header.as_ref());
        match header {
            Some(header) => {
                let meta = SeriesMeta::of(header.meta.as_ref());
                Ok(Some((meta, header.start_ms)))
            }
            None if self.is_empty() => Ok(None),
            None => Err(without_header(id)),
        }
    }

    /// The document as written, without the tail.
    pub(crate) fn stored_document(&self) -> Result<Option<Document>> {
        self.stored.as_deref().map(sealed::load).transpose()
    }

    /// Metadata and start as stored; `None` if there is no such bucket, or neither document nor tail holds them.
    pub(crate) fn opened_as(&self, time_field: &str) -> Result<Option<(Value, i64)>> {
        let document = self.stored_document()?;
        let document = document.as_ref().map(Document::as_ref);
        Ok(opened_as(document, &self.tail, time_field))
    }

    /// The bucket with its tail folded in; `None` if there is no such bucket.
    pub(crate) fn image(&self, id: [u8; 12], layout: &Layout<'_>) -> Result<Option<BucketImage>> {
        let document = self.stored.as_deref().map(sealed::load).transpose()?;
        image(
            document.as_ref().map(Document::as_ref),
            &self.tail,
            id,
            layout,
        )
    }

    /// The bucket document with its tail folded in; without a tail, the document as written.
    pub(crate) fn document(&self, id: [u8; 12], layout: &Layout<'_>) -> Result<Option<Document>> {
        self.document_as(id, layout, BucketImage::into_document)
    }

    /// Like [`Self::document`], with the columns at the places by which tail entries refer to them: for a writer of entries.
    pub(crate) fn document_by_place(
        &self,
        id: [u8; 12],
        layout: &Layout<'_>,
    ) -> Result<Option<Document>> {
        self.document_as(id, layout, BucketImage::into_document_by_place)
    }

    fn document_as(
        &self,
        id: [u8; 12],
        layout: &Layout<'_>,
        finish: fn(BucketImage) -> Document,
    ) -> Result<Option<Document>> {
        match &self.stored {
            Some(stored) if self.tail.is_empty() => sealed::load(stored).map(Some),
            _ => Ok(self.image(id, layout)?.map(finish)),
        }
    }
}

fn without_header(id: [u8; 12]) -> Error {
    let id = nilometer_bson::ValueRef::ObjectId(nilometer_bson::ObjectId(id));
    damaged(id, "its tail does not tell how it was opened")
}

/// Metadata and start of a bucket as stored, from its document or its tail.
pub(super) fn opened_as(
    document: Option<DocRef<'_>>,
    tail: &[(Vec<u8>, Entry)],
    time_field: &str,
) -> Option<(Value, i64)> {
    if let Some(document) = document {
        let control = document.get("control").as_document()?;
        let ValueRef::DateTime(start_ms) = control.get("min").as_document()?.get(time_field) else {
            return None;
        };
        return Some((document.get("meta").to_value(), start_ms));
    }
    let header = tail.iter().find_map(|(_, entry)| entry.header.as_ref())?;
    Some((header.meta.clone(), header.start_ms))
}

/// Merges a document and tail entries; `None` if there is neither.
pub(crate) fn image(
    document: Option<DocRef<'_>>,
    tail: &[(Vec<u8>, Entry)],
    id: [u8; 12],
    layout: &Layout<'_>,
) -> Result<Option<BucketImage>> {
    let mut image = match document {
        Some(document) => BucketImage::from_document(document, layout)?,
        None => {
            if tail.is_empty() {
                return Ok(None);
            }
            let header = tail.iter().find_map(|(_, entry)| entry.header.as_ref());
            let header = header.ok_or_else(|| without_header(id))?;
            BucketImage::new(id, header, layout)
        }
    };
    for (_, entry) in tail {
        image.append_entry(entry)?;
    }
    Ok(Some(image))
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
    /// Writes a bucket's document with its tail below `upto` folded in.
    pub(crate) fn fold(
        &self,
        id: [u8; 12],
        upto: Option<u32>,
        target: FoldTarget,
    ) -> Result<FoldResult> {
        let Self {
            engine, keyspaces, ..
        } = *self;
        let parts = read_parts(&*engine.snapshot()?, keyspaces, id, upto)?;
        if parts.tail.is_empty() {
            if let (Some(stored), true, FoldTarget::Sealed) = (&parts.stored, parts.in_open, target)
            {
                let mut batch = WriteBatch::new();
                let packed = self.store(sealed::load(stored)?.as_ref(), Columns::Packed)?;
                batch.put(keyspaces.sealed, id.to_vec(), packed);
                batch.delete(keyspaces.open, id.to_vec());
                engine.commit(batch, Durability::Buffered)?;
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
            Some(image) => self.write(id, parts, image, target),
        }
    }

    /// Folds a bucket with a column that has no value, and leaves that column out. Writers of the open bucket rely on the
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
        match parts.image(id, self.layout)? {
            Some(image) => self.write(id, parts, image, FoldTarget::Sealed),
            None => Ok(FoldResult::default()),
        }
    }

    /// Writes the document, and deletes the document and the entries it was merged from.
    fn write(
        &self,
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
        if parts.stored.is_some() && parts.in_open == (target == FoldTarget::Sealed) {
            batch.delete(from, id.to_vec());
        }
        let removed = parts.tail.len();
        for (key, _) in parts.tail {
            batch.delete(keyspaces.tail, key);
        }
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(FoldResult {
            written: Some((rows, bytes)),
            removed,
        })
    }

    fn store(&self, document: DocRef<'_>, columns: Columns) -> Result<Vec<u8>> {
        self.dictionaries.store(self.collection, document, columns)
    }
}
