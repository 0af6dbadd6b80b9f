//! Entries of the change log as events of buckets, for streams on `system.buckets.<name>` and with `rawData`.
//!
//! The tail entry that opens a bucket is its insert; a further one is an update that sets numbered rows of `data`. A bucket whose
//! measurements are updated or deleted is replaced.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, ObjectId, Value, array, doc};

use super::events::{EventBuilder, EventSources, Images, append_names, id_of, namespace, shown};
use crate::catalog::Namespace;
use crate::change_entry::{Entry, LoggedCollection};
use crate::change_log::StreamScope;
use crate::error::Result;
use crate::query::pipeline::change_stream::FullDocument;
use crate::timeseries::unpack;

/// Returns the name of the buckets of `db.coll`.
fn buckets_of(name: &str) -> String {
    let (database, collection) = name.split_once('.').unwrap_or((name, ""));
    let namespace = Namespace {
        database: database.to_owned(),
        collection: collection.to_owned(),
    };
    namespace.buckets().to_string()
}

impl EventBuilder<'_> {
    // long function: one arm for each kind of entry
    /// Adds the event of an entry.
    pub(super) fn bucket_entry(
        &mut self,
        collection: &LoggedCollection<'_>,
        entry: &Entry<'_>,
        sources: &dyn EventSources,
    ) -> Result<()> {
        if collection.time_field.is_empty() || !self.scope.shows(collection.name) {
            self.pass(entry.operations(!collection.time_field.is_empty()));
            return Ok(());
        }
        let ns = buckets_of(collection.name);
        match *entry {
            Entry::Measurements { .. } if self.is_before(1) => {
                self.pass(1);
                Ok(())
            }
            Entry::Measurements {
                bucket,
                rows_before,
                tail,
            } => {
                let key = doc! {"_id": ObjectId(bucket)};
                match unpack::new_bucket(tail, bucket, collection.time_field)? {
                    Some(new) => self.inserted_document(&ns, new.as_ref(), key.as_ref()),
                    None => {
                        let header = |columns| sources.header(collection.uuid, bucket, columns);
                        let rows = unpack::tail_measurements(tail, &shown(collection), header)?;
                        let description = description(&rows, rows_before, collection.meta_field);
                        self.extended(&ns, key.as_ref(), description.as_ref(), sources)
                    }
                }
            }
            Entry::BucketAdded(bucket) => {
                let key = id_of(bucket);
                self.inserted_document(&ns, bucket, key.as_ref())
            }
            Entry::BucketImage(bucket) => {
                let key = id_of(bucket);
                let images = Images::of(self.options, None);
                self.push("replace", |event| {
                    event.append("fullDocument", bucket.to_document());
                    append_names(event, &ns, Some(key.as_ref()));
                    images.append_before(event)
                })
            }
            Entry::BucketRemoved(bucket) => self.bucket_deleted(&ns, &id_of(bucket)),
            Entry::BucketGone(bucket) => self.bucket_deleted(&ns, &doc! {"_id": ObjectId(bucket)}),
            Entry::Create(options) => self.push_defined("create", &ns, options),
            Entry::CreateIndexes(indexes) => self.push_defined("createIndexes", &ns, indexes),
            Entry::DropIndexes(indexes) => self.push_defined("dropIndexes", &ns, indexes),
            Entry::Modify { change, .. } => self.push_defined("modify", &ns, change),
            Entry::Drop => {
                self.push("drop", |event| {
                    append_names(event, &ns, None);
                    Ok(())
                })?;
                self.invalidate()
            }
            Entry::Rename { to, dropped } => {
                let to = buckets_of(to);
                self.push("rename", |event| {
                    append_names(event, &ns, None);
                    event.append("to", namespace(&to));
                    Ok(())
                })?;
                let StreamScope::Collection(watched) = self.scope else {
                    return Ok(());
                };
                match watched == collection.name || dropped.is_some() {
                    true => self.invalidate(),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Adds an event that only streams with expanded events show.
    fn push_defined(&mut self, operation: &str, ns: &str, description: DocRef<'_>) -> Result<()> {
        if !self.options.is_expanded {
            self.pass(1);
            return Ok(());
        }
        self.push(operation, |event| {
            append_names(event, ns, None);
            event.append("operationDescription", description.to_document());
            Ok(())
        })
    }

    fn bucket_deleted(&mut self, ns: &str, key: &Document) -> Result<()> {
        let images = Images::of(self.options, None);
        self.push("delete", |event| {
            append_names(event, ns, Some(key.as_ref()));
            images.append_before(event)
        })
    }

    /// Adds the update of a bucket that got measurements.
    fn extended(
        &mut self,
        ns: &str,
        key: DocRef<'_>,
        description: DocRef<'_>,
        sources: &dyn EventSources,
    ) -> Result<()> {
        let images = Images::of(self.options, None);
        self.push("update", |event| {
            match images.options.full_document {
                FullDocument::Default => {}
                FullDocument::UpdateLookup => {
                    let found = sources.look_up(ns, key)?;
                    event.append("fullDocument", found.map_or(Value::Null, Value::from));
                }
                _ => images.append_after(event, None)?,
            }
            append_names(event, ns, Some(key));
            images.append_description(event, description);
            images.append_before(event)
        })
    }
}

/// Returns the description of an update that adds measurements to a bucket which has `rows_before` others.
fn description(measurements: &[Document], rows_before: u64, meta_field: &str) -> Document {
    let (mut updated, mut unclear) = (DocumentBuilder::new(), DocumentBuilder::new());
    let count = rows_before + measurements.len() as u64;
    updated.append("control.count", i32::try_from(count).unwrap_or(i32::MAX));
    for (row, measurement) in (rows_before..).zip(measurements) {
        for field in measurement
            .iter()
            .filter(|field| field.name() != meta_field)
        {
            let (name, row) = (field.name(), row.to_string());
            let path = format!("data.{name}.{row}");
            let parts = ["data", name, &row].map(Value::from);
            unclear.append(&path, parts.into_iter().collect::<Array>());
            updated.append_renamed(&path, field);
        }
    }
    doc! {
        "updatedFields": updated.finish(),
        "removedFields": array![],
        "truncatedArrays": array![],
        "disambiguatedPaths": unclear.finish(),
    }
}
