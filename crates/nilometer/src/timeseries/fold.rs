//! Putting a bucket together from its document and its tail, and writing it back.
//!
//! Folding replaces tail entries by a bucket document that holds their measurements, in one engine
//! batch; sealing does the same and moves the document among those that no longer grow. Neither
//! changes what a reader sees, so neither waits for a sync: after a crash the tail is there again.

use nilometer_bson::{DocRef, Document};
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, Snapshot, WriteBatch};

use super::bucket_document::{BucketImage, damaged};
use super::index_maintenance::Maintained;
use super::sealed;
use super::tail::{self, Entry};
use crate::error::Result;

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
    /// The document, if one was written.
    pub(crate) document: Option<Document>,
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
    let stored = match snapshot.get(keyspaces.open, &id)? {
        Some(found) => Some(found),
        None => snapshot.get(keyspaces.sealed, &id)?,
    };
    let document = stored.map(|bytes| sealed::load(&bytes)).transpose()?;
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
        document,
        tail: entries,
    })
}

impl Parts {
    /// The bucket with its tail folded in; `None` if there is nothing of it.
    pub(crate) fn image(&self, id: [u8; 12], time_field: &str) -> Result<Option<BucketImage>> {
        image(
            self.document.as_ref().map(Document::as_ref),
            &self.tail,
            id,
            time_field,
        )
    }
}

/// Puts a document and tail entries together.
pub(crate) fn image(
    document: Option<DocRef<'_>>,
    tail: &[(Vec<u8>, Entry)],
    id: [u8; 12],
    time_field: &str,
) -> Result<Option<BucketImage>> {
    let mut image = match document {
        Some(document) => BucketImage::from_document(document, time_field)?,
        None => {
            if tail.is_empty() {
                return Ok(None);
            }
            let header = tail.iter().find_map(|(_, entry)| entry.header.as_ref());
            let Some(header) = header else {
                let id = nilometer_bson::ValueRef::ObjectId(nilometer_bson::ObjectId(id));
                return Err(damaged(id, "its tail does not tell how it was opened"));
            };
            BucketImage::new(id, header, time_field)
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

/// Writes a bucket's document with its tail below `upto` folded in. Returns its measurements and
/// bytes; `None` if there was nothing to write.
pub(crate) fn fold(
    engine: &dyn Engine,
    keyspaces: BucketKeyspaces,
    indexes: &Maintained<'_>,
    id: [u8; 12],
    upto: Option<u32>,
    time_field: &str,
    target: Target,
) -> Result<Option<(usize, usize)>> {
    let parts = read_parts(&*engine.snapshot()?, keyspaces, id, upto)?;
    if parts.tail.is_empty() && target == Target::Open {
        return Ok(None);
    }
    let Some(image) = parts.image(id, time_field)? else {
        return Ok(None);
    };
    let rows = image.rows();
    let document = image.into_document();
    let stored = sealed::store(document.as_ref())?;
    let (to, from) = match target {
        Target::Open => (keyspaces.open, keyspaces.sealed),
        Target::Sealed => (keyspaces.sealed, keyspaces.open),
    };
    let mut batch = WriteBatch::new();
    let before = parts.document.as_ref().map(Document::as_ref);
    indexes.document_folded(&mut batch, id, before, document.as_ref())?;
    batch.put(to, id.to_vec(), stored);
    if parts.document.is_some() {
        batch.delete(from, id.to_vec());
    }
    for (key, _) in parts.tail {
        batch.delete(keyspaces.tail, key);
    }
    engine.commit(batch, Durability::Buffered)?;
    Ok(Some((rows, document.as_bytes().len())))
}
