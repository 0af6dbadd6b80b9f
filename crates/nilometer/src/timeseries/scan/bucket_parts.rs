//! Reads one bucket by its id: its document and its tail, and what they are when folded.
//!
//! Readers, writers, index builds and the folding itself use the same functions, so all of them see the same bucket.

use nilometer_bson::{DocRef, Document, Value, ValueRef};
use nilometer_storage::{Bytes, Direction, Engine, Snapshot};

use crate::catalog::Collection;
use crate::error::{Error, Result};
use crate::timeseries::format::bucket_document::{BucketDocument, BucketImage, Layout, damaged};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::sealed;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::format::tail;
use crate::timeseries::format::tail::TailEntry;

/// A stored bucket: its document and its tail.
pub(crate) struct BucketParts {
    /// The stored form of the document; `None` before the first fold.
    pub(crate) stored: Option<Bytes>,
    /// True if the document is among the open ones.
    pub(crate) in_open: bool,
    /// Keys and entries of the tail, in the order of their sequence numbers.
    pub(crate) tail: Vec<(Vec<u8>, TailEntry)>,
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
pub(crate) fn opened_as(
    document: Option<DocRef<'_>>,
    tail: &[(Vec<u8>, TailEntry)],
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
    tail: &[(Vec<u8>, TailEntry)],
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
