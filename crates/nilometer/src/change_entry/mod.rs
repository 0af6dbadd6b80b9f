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
//!  3 update        key document | description | document after, if it is a measurement
//!  4 replace       key document | document after
//!  5 delete        key document
//!  6 create        options
//!  7 drop          –
//!  8 rename        1 if a collection of the new name was dropped, else 0 | new name
//!  9 dropDatabase  name of the database
//! 10 measurements  bucket id (12) | tail entry (timeseries/format/tail.rs)
//! 11 header        bucket id (12) | columns, two bytes big-endian | document {start, meta?, columns: [name, …]}
//! 12 bucket added     bucket document: each of its measurements is new
//! 13 bucket removed   bucket document, which may lack other columns than those of the time and of `_id`
//!
//! name, field  varint length | UTF-8
//! ```
//!
//! The key document of a record is its `_id`; that of a measurement, too, or its time and metadata if it has none. A header
//! is what a tail entry leaves out because an earlier one has it; it is stored under a key of its own ([`crate::change_log`]).

mod diff;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, varint};
use nilometer_storage::WriteBatch;

use crate::error::{Error, ErrorCode, Result};

pub(crate) use diff::description;

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
        /// `updatedFields`, `removedFields`, `truncatedArrays`.
        description: DocRef<'a>,
        /// The measurement after the update; `None` for a document.
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
    /// The collection was created.
    Create,
    /// The collection was dropped.
    Drop,
    /// The collection was renamed.
    Rename {
        /// Its new name.
        to: &'a str,
        /// A collection of that name was dropped.
        drops_target: bool,
    },
    /// The database was dropped.
    DropDatabase(&'a str),
    /// Measurements were added to a bucket.
    Measurements {
        /// The bucket.
        bucket: [u8; 12],
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
        CREATE => {
            document(body)?;
            Entry::Create
        }
        DROP => Entry::Drop,
        RENAME => {
            let (drops, rest) = body.split_first()?;
            *body = rest;
            Entry::Rename {
                to: text(body)?,
                drops_target: *drops != 0,
            }
        }
        DROP_DATABASE => Entry::DropDatabase(text(body)?),
        MEASUREMENTS => {
            let (bucket, tail) = std::mem::take(body).split_first_chunk()?;
            Entry::Measurements {
                bucket: *bucket,
                tail,
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
        _ => return None,
    };
    body.is_empty().then_some(entry)
}

/// The changes of one batch, noted while it is filled. Without an engine that stores them nothing is noted.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeNotes {
    /// The part of the log that the batch goes to; 0 if changes are not noted.
    part: u64,
    uuid: [u8; 16],
    name: String,
    time_field: String,
    meta_field: String,
    bytes: Vec<u8>,
}

impl ChangeNotes {
    /// Notes nothing.
    pub(crate) fn off() -> Self {
        Self::default()
    }

    /// Notes changes of a collection; `part` is that of the log ([`Engine::annotation_part`]).
    ///
    /// [`Engine::annotation_part`]: nilometer_storage::Engine::annotation_part
    pub(crate) fn new(part: u64, collection: LoggedCollection<'_>) -> Self {
        Self {
            part,
            uuid: collection.uuid,
            name: collection.name.to_owned(),
            time_field: collection.time_field.to_owned(),
            meta_field: collection.meta_field.to_owned(),
            bytes: Vec::new(),
        }
    }

    /// True if changes are noted.
    pub(crate) fn are_kept(&self) -> bool {
        self.part != 0
    }

    /// Returns the part of the log that the batch goes to, or one before it.
    pub(crate) fn part(&self) -> u64 {
        self.part
    }

    fn collection(&self) -> LoggedCollection<'_> {
        LoggedCollection {
            uuid: self.uuid,
            name: &self.name,
            time_field: &self.time_field,
            meta_field: &self.meta_field,
        }
    }

    fn push(&mut self, kind: u8, body: &[&[u8]]) {
        if self.part == 0 {
            return;
        }
        if self.bytes.is_empty() {
            let mut names = Vec::new();
            for text in [&self.name, &self.time_field, &self.meta_field] {
                varint::put(&mut names, text.len() as u64);
                names.extend_from_slice(text.as_bytes());
            }
            let uuid = self.uuid;
            put(&mut self.bytes, NAMESPACE, &[&uuid, &names]);
        }
        put(&mut self.bytes, kind, body);
    }

    /// Notes a new document.
    pub(crate) fn inserted(&mut self, document: DocRef<'_>) {
        self.push(INSERT, &[document.as_bytes()]);
    }

    /// Notes a removed document.
    pub(crate) fn deleted(&mut self, document: DocRef<'_>) {
        if self.are_kept() {
            self.push(DELETE, &[id_of(document).as_bytes()]);
        }
    }

    /// Notes a document that was replaced as a whole.
    pub(crate) fn replaced(&mut self, after: DocRef<'_>) {
        if self.are_kept() {
            self.push(REPLACE, &[id_of(after).as_bytes(), after.as_bytes()]);
        }
    }

    /// Notes a document whose fields were changed.
    pub(crate) fn updated(&mut self, before: DocRef<'_>, after: DocRef<'_>) {
        if !self.are_kept() {
            return;
        }
        match description(before, after) {
            Some(description) => {
                let key = id_of(before);
                self.push(UPDATE, &[key.as_bytes(), description.as_bytes()]);
            }
            None => self.replaced(after),
        }
    }

    /// Notes that the collection was created.
    pub(crate) fn created(&mut self, options: DocRef<'_>) {
        self.push(CREATE, &[options.as_bytes()]);
    }

    /// Notes that the collection was dropped.
    pub(crate) fn dropped(&mut self) {
        self.push(DROP, &[]);
    }

    /// Notes that the collection was renamed.
    pub(crate) fn renamed(&mut self, to: &str, drops_target: bool) {
        let mut name = Vec::new();
        varint::put(&mut name, to.len() as u64);
        self.push(RENAME, &[&[u8::from(drops_target)], &name, to.as_bytes()]);
    }

    /// Notes that a database was dropped.
    pub(crate) fn dropped_database(&mut self, name: &str) {
        let mut length = Vec::new();
        varint::put(&mut length, name.len() as u64);
        self.push(DROP_DATABASE, &[&length, name.as_bytes()]);
    }

    /// Notes new measurements of a bucket.
    pub(crate) fn measurements(&mut self, bucket: [u8; 12], tail: &[u8]) {
        self.push(MEASUREMENTS, &[&bucket, tail]);
    }

    /// Notes what tail entries of a bucket refer to.
    pub(crate) fn header<'n>(
        &mut self,
        bucket: [u8; 12],
        (start_ms, meta): (i64, ValueRef<'_>),
        columns: impl ExactSizeIterator<Item = &'n str>,
    ) {
        let count = u16::try_from(columns.len()).unwrap_or(u16::MAX);
        let mut document = DocumentBuilder::with_capacity(256);
        document.append("start", Value::DateTime(start_ms));
        document.append_ref("meta", meta);
        document.begin_array("columns");
        for (at, name) in columns.enumerate() {
            document.append_indexed(at, ValueRef::String(name));
        }
        let document = document.finish();
        self.push(
            HEADER,
            &[&bucket, &count.to_be_bytes(), document.as_bytes()],
        );
    }

    /// Notes a bucket of new measurements.
    pub(crate) fn bucket_added(&mut self, bucket: DocRef<'_>) {
        self.push(BUCKET_ADDED, &[bucket.as_bytes()]);
    }

    /// Notes a bucket that was removed with its measurements.
    pub(crate) fn bucket_removed(&mut self, bucket: DocRef<'_>) {
        if self.are_kept() {
            let reduced = with_columns(bucket, &["_id", &self.time_field]);
            self.push(BUCKET_REMOVED, &[reduced.as_bytes()]);
        }
    }

    /// Notes a removed measurement.
    pub(crate) fn measurement_deleted(&mut self, measurement: DocRef<'_>) {
        if self.are_kept() {
            let key = self.collection().measurement_key(measurement);
            self.push(DELETE, &[key.as_bytes()]);
        }
    }

    /// Notes a measurement whose fields were changed: of one that gets another key, that one was removed and another inserted.
    pub(crate) fn measurement_updated(&mut self, before: DocRef<'_>, after: DocRef<'_>) {
        if !self.are_kept() {
            return;
        }
        let keys = [before, after].map(|one| self.collection().measurement_key(one));
        let [key, now] = &keys;
        if key != now {
            self.push(DELETE, &[key.as_bytes()]);
            self.push(INSERT, &[after.as_bytes()]);
            return;
        }
        match description(before, after) {
            Some(description) => self.push(
                UPDATE,
                &[key.as_bytes(), description.as_bytes(), after.as_bytes()],
            ),
            None => self.push(REPLACE, &[key.as_bytes(), after.as_bytes()]),
        }
    }

    /// Moves what was noted to a batch.
    pub(crate) fn add_to(&mut self, batch: &mut WriteBatch) {
        batch.annotate(&self.bytes);
        self.bytes.clear();
    }
}

fn put(out: &mut Vec<u8>, kind: u8, body: &[&[u8]]) {
    out.push(kind);
    let length: usize = body.iter().map(|part| part.len()).sum();
    varint::put(out, length as u64);
    for part in body {
        out.extend_from_slice(part);
    }
}

fn id_of(document: DocRef<'_>) -> Document {
    let mut key = DocumentBuilder::with_capacity(32);
    key.append_ref("_id", document.get("_id"));
    key.finish()
}

/// Returns a bucket document with these columns alone.
fn with_columns(bucket: DocRef<'_>, columns: &[&str]) -> Document {
    let mut out = DocumentBuilder::with_capacity(1024);
    for element in bucket {
        match (element.name(), element.value()) {
            ("data", ValueRef::Document(data)) => {
                out.begin_document("data");
                for column in data.iter().filter(|one| columns.contains(&one.name())) {
                    out.append_element(column);
                }
                out.end();
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    out.finish()
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
    let mut uuid = [0; 16];
    let mut entries = Entries::new(annotation);
    // Bytes that were not copied yet.
    let mut rest = annotation;
    loop {
        let before = entries.rest();
        let Some(entry) = entries.next().transpose()? else {
            others.extend_from_slice(rest);
            return Ok(out);
        };
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
