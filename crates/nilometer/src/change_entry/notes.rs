//! Notes of changes, made while a batch is filled.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef, doc, varint};
use nilometer_storage::WriteBatch;

use super::diff::ordered_description;
use super::{
    AFTER, BEFORE, BUCKET_ADDED, BUCKET_GONE, BUCKET_IMAGE, BUCKET_REMOVED, CREATE, CREATE_INDEXES,
    DELETE, DROP, DROP_DATABASE, DROP_INDEXES, HEADER, INSERT, LoggedCollection, MEASUREMENTS,
    MODIFY, NAMESPACE, RENAME, REPLACE, TRANSACTION, UPDATE, VIEW_CHANGED, VIEW_DROPPED,
    description,
};

/// The changes of one batch, noted while it is filled. Without an engine that stores them nothing is noted.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeNotes {
    /// The part of the log that the batch goes to; 0 if changes are not noted.
    part: u64,
    uuid: [u8; 16],
    name: String,
    time_field: String,
    meta_field: String,
    /// Documents are noted as they were before a change, and after it.
    keeps_images: bool,
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
            keeps_images: false,
            bytes: Vec::new(),
        }
    }

    /// Notes documents before and after a change, too.
    pub(crate) fn with_images(mut self, keeps_images: bool) -> Self {
        self.keeps_images = keeps_images;
        self
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

    /// Notes the document before the change that is noted next, if images are kept.
    fn before(&mut self, document: DocRef<'_>) {
        if self.keeps_images {
            self.push(BEFORE, &[document.as_bytes()]);
        }
    }

    /// Notes a removed document.
    pub(crate) fn deleted(&mut self, document: DocRef<'_>) {
        if self.are_kept() {
            self.before(document);
            self.push(DELETE, &[id_of(document).as_bytes()]);
        }
    }

    /// Notes a document that was replaced as a whole.
    pub(crate) fn replaced(&mut self, before: DocRef<'_>, after: DocRef<'_>) {
        if self.are_kept() {
            self.before(before);
            self.push(REPLACE, &[id_of(after).as_bytes(), after.as_bytes()]);
        }
    }

    /// Notes a document whose fields were changed.
    pub(crate) fn updated(&mut self, before: DocRef<'_>, after: DocRef<'_>) {
        if !self.are_kept() {
            return;
        }
        let Some((description, keeps_order)) = ordered_description(before, after) else {
            self.replaced(before, after);
            return;
        };
        self.before(before);
        if !keeps_order {
            self.push(AFTER, &[after.as_bytes()]);
        }
        let key = id_of(before);
        let after: &[u8] = match self.keeps_images {
            true => after.as_bytes(),
            false => &[],
        };
        self.push(UPDATE, &[key.as_bytes(), description.as_bytes(), after]);
    }

    /// Notes that indexes were created.
    pub(crate) fn created_indexes(&mut self, indexes: impl Iterator<Item = Document>) {
        let indexes = doc! {"indexes": indexes.map(Value::from).collect::<Array>()};
        self.push(CREATE_INDEXES, &[indexes.as_bytes()]);
    }

    /// Notes that indexes were dropped.
    pub(crate) fn dropped_indexes(&mut self, indexes: impl Iterator<Item = Document>) {
        let indexes = doc! {"indexes": indexes.map(Value::from).collect::<Array>()};
        self.push(DROP_INDEXES, &[indexes.as_bytes()]);
    }

    /// Notes a change of the collection or of an index, and what was before it.
    pub(crate) fn modified(&mut self, change: DocRef<'_>, before: DocRef<'_>) {
        self.push(MODIFY, &[change.as_bytes(), before.as_bytes()]);
    }

    /// Notes that the collection was created.
    pub(crate) fn created(&mut self, options: DocRef<'_>) {
        self.push(CREATE, &[options.as_bytes()]);
    }

    /// Notes that the collection was dropped.
    pub(crate) fn dropped(&mut self) {
        self.push(DROP, &[]);
    }

    /// Notes that the collection was renamed; `dropped` is the one that had the name.
    pub(crate) fn renamed(&mut self, to: &str, dropped: Option<[u8; 16]>) {
        let mut name = Vec::new();
        varint::put(&mut name, to.len() as u64);
        let dropped = match &dropped {
            Some(uuid) => [&[1][..], uuid].concat(),
            None => vec![0],
        };
        self.push(RENAME, &[&dropped, &name, to.as_bytes()]);
    }

    /// Notes that a database was dropped.
    pub(crate) fn dropped_database(&mut self, name: &str) {
        let mut length = Vec::new();
        varint::put(&mut length, name.len() as u64);
        self.push(DROP_DATABASE, &[&length, name.as_bytes()]);
    }

    /// Notes new measurements of a bucket, for which `rows_before` others were staged.
    pub(crate) fn measurements(&mut self, bucket: [u8; 12], rows_before: usize, tail: &[u8]) {
        let mut before = Vec::with_capacity(2);
        varint::put(&mut before, rows_before as u64);
        self.push(MEASUREMENTS, &[&bucket, &before, tail]);
    }

    /// Notes a bucket after changes of its measurements, which are noted one by one, too.
    pub(crate) fn bucket_image(&mut self, bucket: DocRef<'_>) {
        self.push(BUCKET_IMAGE, &[bucket.as_bytes()]);
    }

    /// Notes that a bucket is gone because its measurements were removed, which are noted one by one, too.
    pub(crate) fn bucket_gone(&mut self, bucket: [u8; 12]) {
        self.push(BUCKET_GONE, &[&bucket]);
    }

    /// Notes that a view was changed.
    pub(crate) fn view_changed(&mut self, definition: DocRef<'_>) {
        self.push(VIEW_CHANGED, &[definition.as_bytes()]);
    }

    /// Notes that a view was dropped.
    pub(crate) fn view_dropped(&mut self) {
        self.push(VIEW_DROPPED, &[]);
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
        batch.annotate(std::mem::take(&mut self.bytes));
    }
}

/// Notes that all changes of a batch are those of a transaction. A batch that changes nothing is left as it is.
pub(crate) fn note_transaction(batch: &mut WriteBatch, transaction: DocRef<'_>) {
    let changes = batch.take_annotation();
    if changes.is_empty() {
        return;
    }
    let mut noted = Vec::with_capacity(changes.len() + 64);
    put(&mut noted, TRANSACTION, &[transaction.as_bytes()]);
    noted.extend_from_slice(&changes);
    batch.annotate(noted);
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
