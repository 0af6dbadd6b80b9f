//! Entries of the change log: what one engine batch changes, as bytes in the annotation of the batch.
//!
//! Writers note their changes in [`ChangeNotes`] and add them to the batch that makes them. Readers parse them with
//! [`Entries`]. An engine that stores no annotations gets none.
//!
//! ```text
//! annotation   entry …
//! entry        kind | varint length | body
//!
//!  1 namespace     uuid (16) | name | time field | meta field     of the entries behind it; both fields
//!                                                                 empty: an ordinary collection
//!  2 insert        document
//!  3 update        key document | description | document after, if it is a measurement or images are kept
//!  4 replace       key document | document after
//!  5 delete        key document
//!  6 create        options
//!  7 drop          –
//!  8 rename        0 | new name, or 1 | uuid (16) of the collection of that name, which was dropped | new name
//!  9 dropDatabase  name of the database
//! 10 measurements  bucket id (12) | varint rows of the bucket before them | tail entry (timeseries/format/tail.rs)
//! 11 header        bucket id (12) | columns, two bytes big-endian | document {start, meta?, columns: [name, …]}
//! 12 bucket added     bucket document: each of its measurements is new
//! 13 bucket removed   bucket document, which may lack other columns than those of the time and of `_id`
//! 14 createIndexes    {indexes: [spec, …]}
//! 15 dropIndexes      {indexes: [spec, …]}
//! 16 modify           what was changed | {collectionOptions} or {indexOptions} before it
//! 17 before           document before the change in the next entry
//! 18 after            document after the update in the next entry, if that changes the order of its fields
//! 19 bucket image     bucket document after a change of its measurements
//! 20 bucket gone      bucket id (12)
//! 21 transaction      {lsid, txnNumber}: all entries of the annotation are its changes
//! 22 view changed     definition after it
//! 23 view dropped     –
//!
//! name, field  varint length | UTF-8
//! ```
//!
//! The key document of a record is its `_id`; that of a measurement, too, or its time and metadata if it has none. A header
//! is what a tail entry leaves out because an earlier one has it; it is stored under a key of its own ([`crate::change_log`]).
//!
//! Streams show measurements, so 10, 12, 13 and the changes of single measurements are for them. `local.oplog.rs` shows buckets: by 10,
//! 12, 13, 19 and 20, of which 19 and 20 are noted beside the changes of single measurements.

mod diff;
mod notes;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, varint};

use crate::error::{Error, ErrorCode, Result};

pub(crate) use diff::{DISAMBIGUATED, description};
pub(crate) use notes::{ChangeNotes, note_transaction};

const NAMESPACE: u8 = 1;
const INSERT: u8 = 2;
const UPDATE: u8 = 3;
const REPLACE: u8 = 4;
const DELETE: u8 = 5;
const CREATE: u8 = 6;
const DROP: u8 = 7;
const RENAME: u8 = 8;
const DROP_DATABASE: u8 = 9;
const MEASUREMENTS: u8 = 10;
const HEADER: u8 = 11;
const BUCKET_ADDED: u8 = 12;
const BUCKET_REMOVED: u8 = 13;
const CREATE_INDEXES: u8 = 14;
const DROP_INDEXES: u8 = 15;
const MODIFY: u8 = 16;
const BEFORE: u8 = 17;
const AFTER: u8 = 18;
const BUCKET_IMAGE: u8 = 19;
const BUCKET_GONE: u8 = 20;
const TRANSACTION: u8 = 21;
const VIEW_CHANGED: u8 = 22;
const VIEW_DROPPED: u8 = 23;

/// The collection whose changes entries describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedCollection<'a> {
    /// Its identity.
    pub(crate) uuid: [u8; 16],
    /// `db.coll`, as clients know it.
    pub(crate) name: &'a str,
    /// The time field; empty for an ordinary collection.
    pub(crate) time_field: &'a str,
    /// The metadata field; empty if there is none.
    pub(crate) meta_field: &'a str,
}

impl LoggedCollection<'_> {
    /// Returns the key document of a measurement.
    pub(crate) fn measurement_key(&self, measurement: DocRef<'_>) -> Document {
        let mut key = DocumentBuilder::with_capacity(64);
        match measurement.get("_id") {
            ValueRef::Missing => {
                key.append_ref(self.time_field, measurement.get(self.time_field));
                if !self.meta_field.is_empty() {
                    key.append_ref(self.meta_field, measurement.get(self.meta_field));
                }
            }
            id => {
                key.append_ref("_id", id);
            }
        }
        key.finish()
    }
}

/// One entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry<'a> {
    /// The entries behind it are about this collection.
    Namespace(LoggedCollection<'a>),
    /// A document was inserted.
    Insert(DocRef<'a>),
    /// A document was updated.
    Update {
        /// Its key.
        key: DocRef<'a>,
        /// `updatedFields`, `removedFields`, `truncatedArrays`, and `disambiguatedPaths` if there are any.
        description: DocRef<'a>,
        /// The document after the update, if it is stored.
        after: Option<DocRef<'a>>,
    },
    /// A document was replaced.
    Replace {
        /// Its key.
        key: DocRef<'a>,
        /// The document after it.
        after: DocRef<'a>,
    },
    /// The document with this key was removed.
    Delete(DocRef<'a>),
    /// The collection was created, with these options.
    Create(DocRef<'a>),
    /// The collection was dropped.
    Drop,
    /// The collection was renamed.
    Rename {
        /// Its new name.
        to: &'a str,
        /// The collection of that name, which was dropped.
        dropped: Option<[u8; 16]>,
    },
    /// The database was dropped.
    DropDatabase(&'a str),
    /// Measurements were added to a bucket.
    Measurements {
        /// The bucket.
        bucket: [u8; 12],
        /// The number of measurements staged for the bucket before them.
        rows_before: u64,
        /// The bytes of the tail entry.
        tail: &'a [u8],
    },
    /// What tail entries of a bucket refer to.
    Header {
        /// The bucket.
        bucket: [u8; 12],
        /// The number of columns it names.
        columns: u16,
        /// `{start, meta?, columns}`.
        document: DocRef<'a>,
    },
    /// A bucket with new measurements was stored.
    BucketAdded(DocRef<'a>),
    /// A bucket was removed with its measurements.
    BucketRemoved(DocRef<'a>),
    /// Indexes were created: `{indexes}`.
    CreateIndexes(DocRef<'a>),
    /// Indexes were dropped: `{indexes}`.
    DropIndexes(DocRef<'a>),
    /// The collection, or an index, was changed.
    Modify {
        /// What was changed.
        change: DocRef<'a>,
        /// `collectionOptions` or `indexOptions` before it.
        before: DocRef<'a>,
    },
    /// The document before the change in the next entry.
    Before(DocRef<'a>),
    /// The document after the update in the next entry, which changes the order of its fields.
    After(DocRef<'a>),
    /// A bucket after a change of its measurements.
    BucketImage(DocRef<'a>),
    /// A bucket was removed because none of its measurements is left.
    BucketGone([u8; 12]),
    /// The entries are the changes of a transaction: `{lsid, txnNumber}`.
    Transaction(DocRef<'a>),
    /// A view was changed; this is its definition.
    ViewChanged(DocRef<'a>),
    /// A view was dropped.
    ViewDropped,
}

impl Entry<'_> {
    /// Returns the number of entries of `local.oplog.rs` that show it. The collection has measurements if `of_series`.
    pub(crate) fn operations(&self, of_series: bool) -> usize {
        match self {
            Self::Namespace(_)
            | Self::Header { .. }
            | Self::Before(_)
            | Self::After(_)
            | Self::Transaction(_) => 0,
            Self::Insert(_) | Self::Update { .. } | Self::Replace { .. } | Self::Delete(_) => {
                usize::from(!of_series)
            }
            Self::CreateIndexes(listed) | Self::DropIndexes(listed) => {
                let indexes = listed.get("indexes").as_array();
                indexes.map_or(0, |indexes| indexes.iter().count())
            }
            _ => 1,
        }
    }
}

fn damaged(what: &str) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("an entry of the change log cannot be read: {what}"),
    )
}

/// The entries of an annotation.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Reads the entries in `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the bytes that were not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn read(&mut self) -> Option<Entry<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        self.rest = rest;
        let body = counted(&mut self.rest)?;
        entry(kind, body)
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read().ok_or_else(|| damaged("it is malformed"));
        if read.is_err() {
            self.rest = &[];
        }
        Some(read)
    }
}

fn counted<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint::take(bytes)?).ok()?;
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(counted(bytes)?).ok()
}

/// Splits the document at the front off `bytes`.
fn document<'a>(bytes: &mut &'a [u8]) -> Option<DocRef<'a>> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?);
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    DocRef::new(taken)
}

fn rename<'a>(body: &mut &'a [u8]) -> Option<Entry<'a>> {
    let (drops, rest) = body.split_first()?;
    *body = rest;
    let dropped = match drops {
        0 => None,
        _ => {
            let (uuid, rest) = body.split_first_chunk()?;
            *body = rest;
            Some(*uuid)
        }
    };
    Some(Entry::Rename {
        to: text(body)?,
        dropped,
    })
}

fn entry(kind: u8, mut body: &[u8]) -> Option<Entry<'_>> {
    let body = &mut body;
    let entry = match kind {
        NAMESPACE => {
            let (uuid, rest) = body.split_first_chunk()?;
            *body = rest;
            Entry::Namespace(LoggedCollection {
                uuid: *uuid,
                name: text(body)?,
                time_field: text(body)?,
                meta_field: text(body)?,
            })
        }
        INSERT => Entry::Insert(document(body)?),
        UPDATE => Entry::Update {
            key: document(body)?,
            description: document(body)?,
            after: match body.is_empty() {
                true => None,
                false => Some(document(body)?),
            },
        },
        REPLACE => Entry::Replace {
            key: document(body)?,
            after: document(body)?,
        },
        DELETE => Entry::Delete(document(body)?),
        CREATE => Entry::Create(document(body)?),
        DROP => Entry::Drop,
        RENAME => rename(body)?,
        DROP_DATABASE => Entry::DropDatabase(text(body)?),
        MEASUREMENTS => {
            let (bucket, rest) = body.split_first_chunk()?;
            *body = rest;
            Entry::Measurements {
                bucket: *bucket,
                rows_before: varint::take(body)?,
                tail: std::mem::take(body),
            }
        }
        HEADER => {
            let (bucket, rest) = body.split_first_chunk()?;
            let (columns, rest) = rest.split_first_chunk()?;
            *body = rest;
            Entry::Header {
                bucket: *bucket,
                columns: u16::from_be_bytes(*columns),
                document: document(body)?,
            }
        }
        BUCKET_ADDED => Entry::BucketAdded(document(body)?),
        BUCKET_REMOVED => Entry::BucketRemoved(document(body)?),
        CREATE_INDEXES => Entry::CreateIndexes(document(body)?),
        DROP_INDEXES => Entry::DropIndexes(document(body)?),
        MODIFY => Entry::Modify {
            change: document(body)?,
            before: document(body)?,
        },
        BEFORE => Entry::Before(document(body)?),
        AFTER => Entry::After(document(body)?),
        BUCKET_IMAGE => Entry::BucketImage(document(body)?),
        BUCKET_GONE => Entry::BucketGone(std::mem::take(body).try_into().ok()?),
        TRANSACTION => Entry::Transaction(document(body)?),
        VIEW_CHANGED => Entry::ViewChanged(document(body)?),
        VIEW_DROPPED => Entry::ViewDropped,
        _ => return None,
    };
    body.is_empty().then_some(entry)
}

/// What tail entries of a bucket leave out.
#[derive(Debug)]
pub(crate) struct BucketHeader {
    /// The metadata.
    pub(crate) meta: Value,
    /// The names of the columns, by number.
    pub(crate) names: Vec<Box<str>>,
}

impl BucketHeader {
    /// Parses the document of a stored header.
    pub(crate) fn of(stored: DocRef<'_>) -> Option<Self> {
        let names = stored.get("columns").as_array()?;
        let names = names.iter().map(|name| name.as_str().map(Box::from));
        Some(Self {
            meta: stored.get("meta").to_value(),
            names: names.collect::<Option<_>>()?,
        })
    }
}

/// What the change log takes out of an annotation.
#[derive(Debug, Default)]
pub(crate) struct SplitAnnotation<'a> {
    /// The headers.
    pub(crate) headers: Vec<StoredHeader<'a>>,
    /// The names of collections and databases that the entries change, each once.
    pub(crate) names: Vec<&'a str>,
    /// The number of entries of `local.oplog.rs` that show them.
    pub(crate) operations: usize,
}

impl<'a> SplitAnnotation<'a> {
    fn add_name(&mut self, name: &'a str) {
        if !name.is_empty() && !self.names.contains(&name) {
            self.names.push(name);
        }
    }
}

/// Takes the headers out of an annotation. All other bytes are appended to `others`.
pub(crate) fn split<'a>(annotation: &'a [u8], others: &mut Vec<u8>) -> Result<SplitAnnotation<'a>> {
    let mut out = SplitAnnotation::default();
    let (mut uuid, mut of_series) = ([0; 16], false);
    let mut entries = Entries::new(annotation);
    // Bytes that were not copied yet.
    let mut rest = annotation;
    loop {
        let before = entries.rest();
        let Some(entry) = entries.next().transpose()? else {
            others.extend_from_slice(rest);
            return Ok(out);
        };
        out.operations += entry.operations(of_series);
        match entry {
            Entry::Header {
                bucket,
                columns,
                document,
            } => {
                let length = rest.len() - before.len();
                others.extend_from_slice(rest.get(..length).unwrap_or_default());
                rest = entries.rest();
                out.headers.push(StoredHeader {
                    uuid,
                    bucket,
                    columns,
                    document,
                });
            }
            Entry::Namespace(collection) => {
                uuid = collection.uuid;
                of_series = !collection.time_field.is_empty();
                out.add_name(collection.name);
            }
            Entry::Rename { to, .. } => out.add_name(to),
            Entry::DropDatabase(name) => out.add_name(name),
            _ => {}
        }
    }
}

/// A header that is stored apart from the entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredHeader<'a> {
    /// The collection.
    pub(crate) uuid: [u8; 16],
    /// The bucket.
    pub(crate) bucket: [u8; 12],
    /// The number of columns it names.
    pub(crate) columns: u16,
    /// `{start, meta?, columns}`.
    pub(crate) document: DocRef<'a>,
}

#[cfg(test)]
mod tests;
