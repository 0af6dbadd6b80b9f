//! Entries of the change log as events.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Timestamp, Value, ValueRef, doc};

use super::token::{ResumeToken, TokenKind};
use crate::catalog::uuid_value;
use crate::change_entry::{BucketHeader, DISAMBIGUATED, Entry, LoggedCollection};
use crate::change_log::StreamScope;
use crate::error::{Error, ErrorCode, Result};
use crate::query::pipeline::change_stream::{BeforeChange, ChangeStreamOptions, FullDocument};
use crate::timeseries::unpack;
use crate::timeseries::unpack::Shown;

/// The time of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTime {
    pub(super) time: u64,
    pub(super) wall_ms: i64,
}

/// Makes the events of one batch.
pub(super) struct EventBuilder<'s> {
    pub(super) scope: &'s StreamScope,
    pub(super) options: &'s ChangeStreamOptions,
    pub(super) at: EventTime,
    /// The number of the next event.
    pub(super) number: u32,
    /// The first event to return.
    pub(super) first: u32,
    /// An invalidate event with the number before that was returned already.
    pub(super) passes_invalidate: bool,
    /// The document before the change in the next entry.
    pub(super) before: Option<Document>,
    /// The events.
    pub(super) events: Vec<(Document, Document)>,
    /// The stream ends with the last event.
    pub(super) is_invalid: bool,
    /// `{lsid, txnNumber}`, if the changes are those of a transaction.
    pub(super) transaction: Option<Document>,
    /// Documents before and after changes are not expired.
    pub(super) has_images: bool,
    /// The collection of the entry.
    uuid: [u8; 16],
}

/// Finds what events need beside their entries.
pub(super) trait EventSources {
    /// Returns the header of a bucket that names at least so many columns.
    fn header(&self, uuid: [u8; 16], bucket: [u8; 12], columns: usize)
    -> Result<Arc<BucketHeader>>;
    /// Returns a document as it is now; `None` if it is gone.
    fn look_up(&self, name: &str, key: DocRef<'_>) -> Result<Option<Document>>;
}

impl<'s> EventBuilder<'s> {
    /// Makes the events of `at` from the number `number` on.
    pub(super) fn new(
        scope: &'s StreamScope,
        options: &'s ChangeStreamOptions,
        at: EventTime,
        number: u32,
    ) -> Self {
        Self {
            scope,
            options,
            at,
            number,
            first: 0,
            passes_invalidate: false,
            before: None,
            events: Vec::new(),
            is_invalid: false,
            transaction: None,
            has_images: true,
            uuid: [0; 16],
        }
    }

    fn token(&self, number: u32, kind: TokenKind) -> Document {
        let token = ResumeToken {
            time: self.at.time,
            event: number,
            kind,
            fragment: 0,
        };
        token.to_document()
    }

    /// Adds an event; `fill` adds its own fields. One before `first` is counted only.
    pub(super) fn push(
        &mut self,
        operation: &str,
        fill: impl FnOnce(&mut DocumentBuilder) -> Result<()>,
    ) -> Result<()> {
        if self.number >= self.first {
            let token = self.token(self.number, TokenKind::Event);
            self.add(operation, token, fill)?;
        }
        self.number = self.number.saturating_add(1);
        Ok(())
    }

    fn add(
        &mut self,
        operation: &str,
        token: Document,
        fill: impl FnOnce(&mut DocumentBuilder) -> Result<()>,
    ) -> Result<()> {
        let mut event = DocumentBuilder::with_capacity(512);
        event.append("_id", token.clone());
        event.append("operationType", operation);
        event.append(
            "clusterTime",
            Value::Timestamp(Timestamp::from_u64(self.at.time)),
        );
        if let Some(transaction) = &self.transaction {
            event.append_all(transaction.as_ref());
        }
        if self.options.is_expanded && self.uuid != [0; 16] {
            event.append("collectionUUID", uuid_value(self.uuid));
        }
        event.append("wallTime", Value::DateTime(self.at.wall_ms));
        fill(&mut event)?;
        self.events.push((token, event.finish()));
        Ok(())
    }

    /// Adds an event that only streams with expanded events show.
    fn push_expanded(&mut self, operation: &str, name: &str, description: Document) -> Result<()> {
        if !self.options.is_expanded || !self.scope.shows(name) {
            self.pass(1);
            return Ok(());
        }
        self.push(operation, |event| {
            append_names(event, name, None);
            event.append("operationDescription", description);
            Ok(())
        })
    }

    /// Adds the event after which the stream ends. It has the number of the event before it.
    pub(super) fn invalidate(&mut self) -> Result<()> {
        let number = self.number.saturating_sub(1);
        let is_before = match self.passes_invalidate {
            true => number < self.first,
            false => number + 1 < self.first,
        };
        if is_before {
            return Ok(());
        }
        let token = self.token(number, TokenKind::Invalidate);
        self.is_invalid = true;
        self.uuid = [0; 16];
        self.add("invalidate", token, |_| Ok(()))
    }

    /// Counts events that are not shown.
    pub(super) fn pass(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.number = self.number.saturating_add(count);
    }

    // long function: one arm for each kind of entry
    /// Adds the events of an entry.
    pub(super) fn entry(
        &mut self,
        collection: &LoggedCollection<'_>,
        entry: &Entry<'_>,
        sources: &dyn EventSources,
    ) -> Result<()> {
        self.uuid = collection.uuid;
        if let Entry::Transaction(transaction) = entry {
            self.transaction = Some(transaction.to_document());
            return Ok(());
        }
        if self.options.of_buckets {
            return self.bucket_entry(collection, entry, sources);
        }
        let name = collection.name;
        let shows = self.scope.shows(name);
        let before = self.before.take();
        match *entry {
            Entry::Namespace(_)
            | Entry::Header { .. }
            | Entry::Transaction(_)
            | Entry::BucketImage(_)
            | Entry::BucketGone(_)
            | Entry::ViewChanged(_) => Ok(()),
            // Of views, only rollups have streams, and an identity.
            Entry::ViewDropped if collection.uuid == [0; 16] => Ok(()),
            // The document before the change stays for the entry behind it.
            Entry::After(_) => {
                self.before = before;
                Ok(())
            }
            Entry::Before(document) => {
                let is_wanted = self.options.before_change != BeforeChange::Off;
                let is_shown = shows && is_wanted && self.has_images;
                self.before = is_shown.then(|| document.to_document());
                Ok(())
            }
            Entry::Create(options) => self.push_expanded("create", name, options.to_document()),
            Entry::CreateIndexes(indexes) => {
                self.push_expanded("createIndexes", name, indexes.to_document())
            }
            Entry::DropIndexes(indexes) => {
                self.push_expanded("dropIndexes", name, indexes.to_document())
            }
            Entry::Modify { change, before } => {
                if !self.options.is_expanded || !shows {
                    self.pass(1);
                    return Ok(());
                }
                self.push("modify", |event| {
                    append_names(event, name, None);
                    event.append_ref("operationDescription", ValueRef::Document(change));
                    event.append_ref("stateBeforeChange", ValueRef::Document(before));
                    Ok(())
                })
            }
            Entry::Measurements { bucket, tail, .. } => {
                let rows = unpack::tail_rows(tail)?;
                if !shows || self.is_before(rows) {
                    self.pass(rows);
                    return Ok(());
                }
                let header = |columns| sources.header(collection.uuid, bucket, columns);
                let measurements = unpack::tail_measurements(tail, &shown(collection), header)?;
                self.inserted(collection, &measurements)
            }
            Entry::BucketAdded(bucket) => {
                let measurements = unpack::measurements(bucket, &shown(collection), |_| true)?;
                match shows {
                    true => self.inserted(collection, &measurements),
                    false => {
                        self.pass(measurements.len());
                        Ok(())
                    }
                }
            }
            Entry::BucketRemoved(bucket) => {
                let measurements = unpack::measurements(bucket, &shown(collection), |_| true)?;
                if !shows {
                    self.pass(measurements.len());
                    return Ok(());
                }
                for measurement in &measurements {
                    let key = collection.measurement_key(measurement.as_ref());
                    let images = Images::of(self.options, None);
                    self.push("delete", |event| {
                        append_names(event, name, Some(key.as_ref()));
                        images.append_before(event)
                    })?;
                }
                Ok(())
            }
            Entry::Rename { to, dropped } => self.renamed(name, to, dropped),
            Entry::DropDatabase(database) => self.dropped_database(database),
            _ if !shows => {
                self.pass(1);
                Ok(())
            }
            Entry::Insert(document) => {
                let key = match collection.time_field {
                    "" => id_of(document),
                    _ => collection.measurement_key(document),
                };
                self.inserted_document(name, document, key.as_ref())
            }
            Entry::Update {
                key,
                description,
                after,
            } => {
                let images = Images::of(self.options, before);
                let is_measurement = !collection.time_field.is_empty();
                let after = after.filter(|_| is_measurement || self.has_images);
                self.push("update", |event| {
                    match images.options.full_document {
                        FullDocument::Default => {}
                        FullDocument::UpdateLookup if !is_measurement => {
                            let found = sources.look_up(name, key)?;
                            event.append("fullDocument", found.map_or(Value::Null, Value::from));
                        }
                        _ => images.append_after(event, after)?,
                    }
                    append_names(event, name, Some(key));
                    images.append_description(event, description);
                    images.append_before(event)
                })
            }
            Entry::Replace { key, after } => {
                let images = Images::of(self.options, before);
                self.push("replace", |event| {
                    event.append_ref("fullDocument", ValueRef::Document(after));
                    append_names(event, name, Some(key));
                    images.append_before(event)
                })
            }
            Entry::Delete(key) => {
                let images = Images::of(self.options, before);
                self.push("delete", |event| {
                    append_names(event, name, Some(key));
                    images.append_before(event)
                })
            }
            Entry::Drop | Entry::ViewDropped => self.dropped(name),
        }
    }

    /// Adds the drop of a collection, which ends its streams.
    fn dropped(&mut self, name: &str) -> Result<()> {
        self.push("drop", |event| {
            append_names(event, name, None);
            Ok(())
        })?;
        match self.scope {
            StreamScope::Collection(_) => self.invalidate(),
            _ => Ok(()),
        }
    }

    /// True if `count` events are all before the first to return.
    pub(super) fn is_before(&self, count: usize) -> bool {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.number.saturating_add(count) <= self.first
    }

    fn inserted(
        &mut self,
        collection: &LoggedCollection<'_>,
        measurements: &[Document],
    ) -> Result<()> {
        for measurement in measurements {
            let measurement = measurement.as_ref();
            let key = collection.measurement_key(measurement);
            self.inserted_document(collection.name, measurement, key.as_ref())?;
        }
        Ok(())
    }

    pub(super) fn inserted_document(
        &mut self,
        name: &str,
        document: DocRef<'_>,
        key: DocRef<'_>,
    ) -> Result<()> {
        self.push("insert", |event| {
            event.append_ref("fullDocument", ValueRef::Document(document));
            append_names(event, name, Some(key));
            Ok(())
        })
    }

    fn renamed(&mut self, from: &str, to: &str, dropped: Option<[u8; 16]>) -> Result<()> {
        if !self.scope.shows(from) && !self.scope.shows(to) {
            self.pass(1);
            return Ok(());
        }
        let is_expanded = self.options.is_expanded;
        self.push("rename", |event| {
            append_names(event, from, None);
            event.append("to", namespace(to));
            if is_expanded {
                event.append(
                    "operationDescription",
                    doc! {"to": namespace(to), "dropTarget": dropped.map(uuid_value)},
                );
            }
            Ok(())
        })?;
        match self.scope {
            StreamScope::Collection(watched) if watched == from || dropped.is_some() => {
                self.invalidate()
            }
            _ => Ok(()),
        }
    }

    fn dropped_database(&mut self, database: &str) -> Result<()> {
        let (shows, ends) = match self.scope {
            StreamScope::Database(watched) => (watched == database, watched == database),
            StreamScope::Cluster => (!matches!(database, "admin" | "config" | "local"), false),
            StreamScope::Collection(_) => (false, false),
        };
        if !shows {
            self.pass(1);
            return Ok(());
        }
        self.push("dropDatabase", |event| {
            event.append("ns", doc! {"db": database});
            Ok(())
        })?;
        match ends {
            true => self.invalidate(),
            false => Ok(()),
        }
    }
}

/// Images of a document for an event of its change.
pub(super) struct Images<'s> {
    pub(super) options: &'s ChangeStreamOptions,
    before: Option<Document>,
}

impl<'s> Images<'s> {
    pub(super) fn of(options: &'s ChangeStreamOptions, before: Option<Document>) -> Self {
        Self { options, before }
    }

    /// Appends the document after the change, as the option `fullDocument` wants it.
    pub(super) fn append_after(
        &self,
        event: &mut DocumentBuilder,
        after: Option<DocRef<'_>>,
    ) -> Result<()> {
        match after {
            Some(after) => event.append_ref("fullDocument", ValueRef::Document(after)),
            None if self.options.full_document == FullDocument::Required => {
                return Err(without_image("post", event));
            }
            None => event.append("fullDocument", Value::Null),
        };
        Ok(())
    }

    /// Appends the document before the change, as the option `fullDocumentBeforeChange` wants it.
    pub(super) fn append_before(&self, event: &mut DocumentBuilder) -> Result<()> {
        let before = match (&self.before, self.options.before_change) {
            (_, BeforeChange::Off) => return Ok(()),
            (Some(before), _) => ValueRef::Document(before.as_ref()),
            (None, BeforeChange::Required) => return Err(without_image("pre", event)),
            (None, BeforeChange::WhenAvailable) => ValueRef::Null,
        };
        event.append_ref("fullDocumentBeforeChange", before);
        Ok(())
    }

    /// Appends the description of an update. Only expanded events say which paths could be read in two ways.
    pub(super) fn append_description(&self, event: &mut DocumentBuilder, description: DocRef<'_>) {
        event.begin_document("updateDescription");
        let fields = description.iter();
        for field in fields.filter(|field| field.name() != DISAMBIGUATED) {
            event.append_element(field);
        }
        if self.options.is_expanded {
            let none = Document::new();
            let unclear = description.get(DISAMBIGUATED).as_document();
            let unclear = unclear.unwrap_or_else(|| none.as_ref());
            event.append_ref(DISAMBIGUATED, ValueRef::Document(unclear));
        }
        event.end();
    }
}

fn without_image(which: &str, event: &DocumentBuilder) -> Error {
    let event = event.clone().finish();
    let json = nilometer_bson::extjson::to_relaxed(event.as_ref());
    Error::new(
        ErrorCode::NoMatchingDocument,
        format!(
            "Change stream was configured to require a {which}-image for all update, delete and replace events, but the {which}-image was not found for event: {json}"
        ),
    )
}

pub(super) fn shown<'a>(collection: &LoggedCollection<'a>) -> Shown<'a> {
    let meta_field = Some(collection.meta_field).filter(|name| !name.is_empty());
    Shown::new(collection.time_field, meta_field)
}

pub(super) fn id_of(document: DocRef<'_>) -> Document {
    let mut key = DocumentBuilder::with_capacity(32);
    key.append_ref("_id", document.get("_id"));
    key.finish()
}

pub(super) fn namespace(name: &str) -> Document {
    let (database, collection) = name.split_once('.').unwrap_or((name, ""));
    doc! {"db": database, "coll": collection}
}

pub(super) fn append_names(event: &mut DocumentBuilder, name: &str, key: Option<DocRef<'_>>) {
    event.append("ns", namespace(name));
    if let Some(key) = key {
        event.append_ref("documentKey", ValueRef::Document(key));
    }
}
