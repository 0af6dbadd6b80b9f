//! Entries of the change log as events.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Timestamp, Value, ValueRef, doc};

use super::token::{ResumeToken, TokenKind};
use crate::change_entry::{BucketHeader, Entry, LoggedCollection};
use crate::change_log::StreamScope;
use crate::error::Result;
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
    pub(super) at: EventTime,
    /// The number of the next event.
    pub(super) number: u32,
    /// The first event to return.
    pub(super) first: u32,
    /// The events.
    pub(super) events: Vec<(Document, Document)>,
    /// The stream ends with the last event.
    pub(super) is_invalid: bool,
}

/// Finds what events need beside their entries.
pub(super) trait EventSources {
    /// Returns the header of a bucket that names at least so many columns.
    fn header(&self, uuid: [u8; 16], bucket: [u8; 12], columns: usize)
    -> Result<Arc<BucketHeader>>;
    /// True if events of updates have the document.
    fn looks_up(&self) -> bool;
    /// Returns a document as it is now; `None` if it is gone.
    fn look_up(&self, name: &str, key: DocRef<'_>) -> Result<Option<Document>>;
}

impl EventBuilder<'_> {
    fn token(&self, kind: TokenKind) -> Document {
        let token = ResumeToken {
            time: self.at.time,
            event: self.number,
            kind,
        };
        token.to_document()
    }

    /// Adds an event; `fill` adds its own fields. One before `first` is counted only.
    fn push(
        &mut self,
        operation: &str,
        fill: impl FnOnce(&mut DocumentBuilder) -> Result<()>,
    ) -> Result<()> {
        if self.number >= self.first {
            let token = self.token(TokenKind::Event);
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
        event.append("wallTime", Value::DateTime(self.at.wall_ms));
        fill(&mut event)?;
        self.events.push((token, event.finish()));
        Ok(())
    }

    /// Adds the event after which the stream ends. It has the number of the event before it.
    fn invalidate(&mut self) -> Result<()> {
        let number = self.number.saturating_sub(1);
        if number < self.first {
            return Ok(());
        }
        let token = ResumeToken {
            time: self.at.time,
            event: number,
            kind: TokenKind::Invalidate,
        };
        self.is_invalid = true;
        self.add("invalidate", token.to_document(), |_| Ok(()))
    }

    /// Counts events that are not shown.
    fn pass(&mut self, count: usize) {
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
        let name = collection.name;
        let shows = self.scope.shows(name);
        match *entry {
            Entry::Namespace(_) | Entry::Header { .. } => Ok(()),
            // Events of these are expanded events.
            Entry::Create => Ok(()),
            Entry::Measurements { bucket, tail } => {
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
                    self.deleted(name, key.as_ref())?;
                }
                Ok(())
            }
            Entry::Rename { to, drops_target } => self.renamed(name, to, drops_target),
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
            } => self.push("update", |event| {
                match after {
                    _ if !sources.looks_up() => {}
                    Some(after) => {
                        event.append_ref("fullDocument", ValueRef::Document(after));
                    }
                    None => {
                        let found = sources.look_up(name, key)?;
                        event.append("fullDocument", found.map_or(Value::Null, Value::from));
                    }
                }
                append_names(event, name, Some(key));
                event.append_ref("updateDescription", ValueRef::Document(description));
                Ok(())
            }),
            Entry::Replace { key, after } => self.push("replace", |event| {
                event.append_ref("fullDocument", ValueRef::Document(after));
                append_names(event, name, Some(key));
                Ok(())
            }),
            Entry::Delete(key) => self.deleted(name, key),
            Entry::Drop => {
                self.push("drop", |event| {
                    append_names(event, name, None);
                    Ok(())
                })?;
                match self.scope {
                    StreamScope::Collection(_) => self.invalidate(),
                    _ => Ok(()),
                }
            }
        }
    }

    /// True if `count` events are all before the first to return.
    fn is_before(&self, count: usize) -> bool {
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

    fn inserted_document(
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

    fn deleted(&mut self, name: &str, key: DocRef<'_>) -> Result<()> {
        self.push("delete", |event| {
            append_names(event, name, Some(key));
            Ok(())
        })
    }

    fn renamed(&mut self, from: &str, to: &str, drops_target: bool) -> Result<()> {
        if !self.scope.shows(from) && !self.scope.shows(to) {
            self.pass(1);
            return Ok(());
        }
        self.push("rename", |event| {
            append_names(event, from, None);
            event.append("to", namespace(to));
            Ok(())
        })?;
        match self.scope {
            StreamScope::Collection(watched) if watched == from || drops_target => {
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

fn shown<'a>(collection: &LoggedCollection<'a>) -> Shown<'a> {
    Shown {
        time_field: collection.time_field,
        meta_field: Some(collection.meta_field).filter(|name| !name.is_empty()),
        copied: &[],
    }
}

fn id_of(document: DocRef<'_>) -> Document {
    let mut key = DocumentBuilder::with_capacity(32);
    key.append_ref("_id", document.get("_id"));
    key.finish()
}

fn namespace(name: &str) -> Document {
    let (database, collection) = name.split_once('.').unwrap_or((name, ""));
    doc! {"db": database, "coll": collection}
}

fn append_names(event: &mut DocumentBuilder, name: &str, key: Option<DocRef<'_>>) {
    event.append("ns", namespace(name));
    if let Some(key) = key {
        event.append_ref("documentKey", ValueRef::Document(key));
    }
}
