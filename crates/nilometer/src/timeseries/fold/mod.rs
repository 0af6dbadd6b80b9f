//! Putting a bucket together from its document and its tail, and writing it back.
//!
//! Folding replaces tail entries by a bucket document that holds their measurements, in one engine
//! batch; sealing does the same and moves the document among those that no longer grow. Neither
//! changes what a reader sees, so neither waits for a sync: after a crash the tail is there again.

pub(crate) mod queue;

use nilometer_bson::{DocRef, Document, Value, ValueRef};
use nilometer_storage::{Bytes, Direction, Durability, Engine, KeyspaceId, Snapshot, WriteBatch};

use super::bucket_catalog::BucketCatalog;
use super::format::bucket_document::{BucketDocument, BucketImage, Layout, damaged};
use super::format::sealed;
use super::format::sealed::{Columns, Dictionaries};
use super::format::series_key::SeriesMeta;
use super::format::tail;
use super::format::tail::Entry;
use super::index::maintenance::Maintained;
use crate::error::{Error, Result};

/// The three keyspaces of a bucket collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketKeyspaces {
    pub(crate) open: KeyspaceId,
    pub(crate) sealed: KeyspaceId,
    pub(crate) tail: KeyspaceId,
    pub(crate) series: KeyspaceId,
}

/// A bucket as stored: document and tail.
pub(crate) struct Parts {
    /// The stored form of the document, if one was written.
    pub(crate) stored: Option<Bytes>,
    /// True if it is among the open ones.
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
) -> Result<Parts> {
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
    Ok(Parts {
        stored,
        in_open,
        tail: entries,
    })
}

impl Parts {
    /// True if there is nothing of the bucket.
    pub(crate) fn is_empty(&self) -> bool {
        self.stored.is_none() && self.tail.is_empty()
    }

    /// The sequence number behind the tail.
    pub(crate) fn next_sequence(&self) -> Result<u32> {
        match self.tail.last() {
            Some((key, _)) => Ok(tail::split_key(key)?.1.saturating_add(1)),
            None => Ok(0),
        }
    }

    /// The series of the bucket and its start, by document or tail; `None` if there is nothing of it.
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

    /// The document as it was written, whatever the tail holds.
    pub(crate) fn stored_document(&self) -> Result<Option<Document>> {
        self.stored.as_deref().map(sealed::load).transpose()
    }

    /// Metadata and start as they are stored; `None` if there is nothing of the bucket, or it does not
    /// tell.
    pub(crate) fn opened_as(&self, time_field: &str) -> Result<Option<(Value, i64)>> {
        let document = self.stored_document()?;
        let document = document.as_ref().map(Document::as_ref);
        Ok(opened_as(document, &self.tail, time_field))
    }

    /// The bucket with its tail folded in; `None` if there is nothing of it.
    pub(crate) fn image(&self, id: [u8; 12], layout: &Layout<'_>) -> Result<Option<BucketImage>> {
        let document = self.stored.as_deref().map(sealed::load).transpose()?;
        image(
            document.as_ref().map(Document::as_ref),
            &self.tail,
            id,
            layout,
        )
    }

    /// The bucket document: as it was written if there is no tail, else with the tail folded in.
    pub(crate) fn document(&self, id: [u8; 12], layout: &Layout<'_>) -> Result<Option<Document>> {
        self.document_as(id, layout, BucketImage::into_document)
    }

    /// The same for whoever adds entries behind the tail: its columns are at the places by which entries speak of them.
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

/// Metadata and start of a bucket, by document or tail, as they are stored.
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

/// Puts a document and tail entries together.
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
pub(crate) enum Target {
    /// It may still grow.
    Open,
    /// It is done.
    Sealed,
}

/// What came of folding a bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Folded {
    /// Its measurements and the bytes of its document, or of its stored form if that is done; `None` if there was nothing
    /// to write.
    pub(crate) written: Option<(usize, usize)>,
    /// Entries that were removed from the keyspaces of tails and open buckets.
    pub(crate) removed: usize,
}

/// What folding the buckets of a collection takes.
pub(crate) struct Folding<'f> {
    pub(crate) engine: &'f dyn Engine,
    pub(crate) bucket_catalog: &'f BucketCatalog,
    pub(crate) dictionaries: &'f Dictionaries,
    /// The UUID of the collection.
    pub(crate) collection: [u8; 16],
    pub(crate) keyspaces: BucketKeyspaces,
    pub(crate) indexes: &'f Maintained<'f>,
    pub(crate) layout: &'f Layout<'f>,
}

impl Folding<'_> {
    /// Writes a bucket's document with its tail below `upto` folded in.
    pub(crate) fn fold(&self, id: [u8; 12], upto: Option<u32>, target: Target) -> Result<Folded> {
        let Self {
            engine, keyspaces, ..
        } = *self;
        let parts = read_parts(&*engine.snapshot()?, keyspaces, id, upto)?;
        if parts.tail.is_empty() {
            if let (Some(stored), true, Target::Sealed) = (&parts.stored, parts.in_open, target) {
                let mut batch = WriteBatch::new();
                let packed = self.store(sealed::load(stored)?.as_ref(), Columns::Packed)?;
                batch.put(keyspaces.sealed, id.to_vec(), packed);
                batch.delete(keyspaces.open, id.to_vec());
                engine.commit(batch, Durability::Buffered)?;
                return Ok(Folded {
                    written: None,
                    removed: 1,
                });
            }
            return Ok(Folded::default());
        }
        match parts.image(id, self.layout)? {
            None => Ok(Folded::default()),
            Some(image) if image.has_columns_without_values() => self.fold_alone(id, &parts),
            Some(image) => self.write(id, parts, image, target),
        }
    }

    /// Folds a bucket in which a column has no value, and leaves that column out. Writers who know the bucket count on
    /// the column's place, so it is taken from them first; what one of them is just writing to is left as it is.
    fn fold_alone(&self, id: [u8; 12], parts: &Parts) -> Result<Folded> {
        let Some((meta, _)) = parts.series(id, self.layout.time_field)? else {
            return Ok(Folded::default());
        };
        let Some(evicted) = self.bucket_catalog.evict(self.collection, meta, id) else {
            return Ok(Folded::default());
        };
        let folded = self.fold_evicted(id);
        self.bucket_catalog.release(vec![evicted]);
        folded
    }

    fn fold_evicted(&self, id: [u8; 12]) -> Result<Folded> {
        // Read again: what was on its way has arrived.
        let parts = read_parts(&*self.engine.snapshot()?, self.keyspaces, id, None)?;
        match parts.image(id, self.layout)? {
            Some(image) => self.write(id, parts, image, Target::Sealed),
            None => Ok(Folded::default()),
        }
    }

    /// Puts the document in the place of what it was made of.
    fn write(
        &self,
        id: [u8; 12],
        parts: Parts,
        image: BucketImage,
        target: Target,
    ) -> Result<Folded> {
        let keyspaces = self.keyspaces;
        let rows = image.rows();
        let (to, from) = match target {
            Target::Open => (keyspaces.open, keyspaces.sealed),
            Target::Sealed => (keyspaces.sealed, keyspaces.open),
        };
        let mut batch = WriteBatch::new();
        let (stored, bytes) = if target == Target::Sealed && !self.indexes.needs_documents() {
            // Nobody looks at the document: its columns need not be built to be packed.
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
                Target::Open => Columns::AsTheyAre,
                Target::Sealed => Columns::PackedAsBuilt,
            };
            let stored = self.store(document.as_ref(), columns)?;
            (stored, document.as_bytes().len())
        };
        batch.put(to, id.to_vec(), stored);
        if parts.stored.is_some() && parts.in_open == (target == Target::Sealed) {
            batch.delete(from, id.to_vec());
        }
        let removed = parts.tail.len();
        for (key, _) in parts.tail {
            batch.delete(keyspaces.tail, key);
        }
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(Folded {
            written: Some((rows, bytes)),
            removed,
        })
    }

    fn store(&self, document: DocRef<'_>, columns: Columns) -> Result<Vec<u8>> {
        self.dictionaries.store(self.collection, document, columns)
    }
}
