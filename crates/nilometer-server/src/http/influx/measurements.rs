//! Measurements: their collections, and the types of their fields.
//!
//! A measurement is the time-series collection of its name. One that does not exist is created by the first write to it, in
//! the name of the user who writes: times in `time`, tags in `tags`, `duplicates: "replace"`, and the retention of the
//! database as `expireAfterSeconds`, if it has one ([`RETENTION_COLLECTION`]).
//!
//! The type of a field is that of its values. It is read from the bounds of all buckets when the server writes to a measurement for
//! the first time, and kept, with the types of new fields, for as long as the collection exists.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, array, doc};
use nilometer_influx::line_protocol::{FieldType, Names, Schema};

use super::Refusal;
use crate::command;

/// The collection of a database whose document `retention` has the retention of new measurements, in `seconds`.
pub(super) const RETENTION_COLLECTION: &str = "nilometer.influx";

/// Measurements whose types are kept. Beyond that all are forgotten, and read again.
const MEASUREMENTS_KEPT_MAX: usize = 10_000;

/// Fields of a measurement.
const FIELDS_MAX: usize = 100_000;

const CODE_NAMESPACE_EXISTS: i64 = 48;

/// Database and measurement.
type Key = (String, String);

/// A collection as it was when its types were read.
struct Known {
    /// The UUID of its buckets.
    uuid: Vec<u8>,
    schema: Arc<Schema>,
}

/// What is known of all measurements.
#[derive(Default)]
pub(super) struct Measurements {
    known: Mutex<HashMap<Key, Known>>,
}

/// The collection of a measurement.
enum Found {
    /// There is none.
    Missing,
    /// A time series: its UUID and names.
    TimeSeries(Vec<u8>, Names),
    /// Another kind of collection.
    Other,
}

impl Measurements {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is known of a measurement, or why it cannot be written. One that does not exist has no fields.
    pub(super) fn schema(
        &self,
        database: &Database,
        db: &str,
        measurement: &str,
    ) -> Result<Arc<Schema>, String> {
        match find(database, db, measurement)? {
            Found::Missing => Ok(Arc::default()),
            Found::Other => Err(format!(
                "the collection \"{measurement}\" is no time series"
            )),
            Found::TimeSeries(uuid, names) => {
                let key = (db.to_owned(), measurement.to_owned());
                if let Some(known) = self.lock().get(&key)
                    && known.uuid == uuid
                {
                    return Ok(Arc::clone(&known.schema));
                }
                let types = types(database, db, measurement, &names)?;
                let schema = Arc::new(Schema { names, types });
                let mut known = self.lock();
                if known.len() >= MEASUREMENTS_KEPT_MAX {
                    known.clear();
                }
                let entry = known.entry(key).or_insert_with(|| Known {
                    uuid: uuid.clone(),
                    schema: Arc::clone(&schema),
                });
                if entry.uuid != uuid {
                    *entry = Known { uuid, schema };
                }
                Ok(Arc::clone(&entry.schema))
            }
        }
    }

    /// Creates the collection of a measurement in the name of a user, unless it exists.
    pub(super) fn create(
        &self,
        database: &Database,
        session: &mut ClientSession,
        db: &str,
        measurement: &str,
    ) -> Result<(), Refusal> {
        let exists = find(database, db, measurement).map_err(Refusal::bad)?;
        if !matches!(exists, Found::Missing) {
            return Ok(());
        }
        let names = Names::default();
        let mut create = DocumentBuilder::new();
        create.append("create", measurement);
        create.append(
            "timeseries",
            doc! {
                "timeField": names.time,
                "metaField": names.tags,
                "nilometer": doc! {"duplicates": "replace"},
            },
        );
        let retention = retention_seconds(database, db)?;
        if retention > 0 {
            create.append("expireAfterSeconds", retention);
        }
        create.append("$db", db);
        let request = Request::new(create.finish());
        let (reply, _) = command::run(database, session, &request);
        let code = reply.get("code").as_exact_i64();
        match is_ok(&reply) || code == Some(CODE_NAMESPACE_EXISTS) {
            true => Ok(()),
            false => Err(Refusal::of_reply(&reply)),
        }
    }

    /// Adds fields to what is known of a measurement that exists. False if another write gave one of them another type
    /// meanwhile, or if there would be too many.
    pub(super) fn claim(
        &self,
        database: &Database,
        db: &str,
        measurement: &str,
        fields: &[(String, FieldType)],
    ) -> Result<(), ClaimError> {
        // Reads the types if nothing is known yet.
        let schema = self
            .schema(database, db, measurement)
            .map_err(ClaimError::Refused)?;
        let mut known = self.lock();
        let key = (db.to_owned(), measurement.to_owned());
        let Some(entry) = known.get_mut(&key) else {
            // It was dropped, or all were forgotten.
            let stale = fields
                .iter()
                .any(|(name, kind)| schema.types.get(name).is_some_and(|known| known != kind));
            return if stale {
                Err(ClaimError::Conflict)
            } else {
                Ok(())
            };
        };
        let differs = |(name, kind): &(String, FieldType)| {
            entry
                .schema
                .types
                .get(name)
                .is_some_and(|known| known != kind)
        };
        if fields.iter().any(differs) {
            return Err(ClaimError::Conflict);
        }
        if entry.schema.types.len() + fields.len() > FIELDS_MAX {
            return Err(ClaimError::Refused(format!(
                "the measurement \"{measurement}\" would have more than {FIELDS_MAX} fields"
            )));
        }
        let schema = Arc::make_mut(&mut entry.schema);
        schema.types.extend(fields.iter().cloned());
        Ok(())
    }

    /// Forgets what is known of a measurement.
    pub(super) fn forget(&self, db: &str, measurement: &str) {
        self.lock().remove(&(db.to_owned(), measurement.to_owned()));
    }
}

/// Why fields cannot be added.
pub(super) enum ClaimError {
    /// Another write gave a field another type meanwhile: the lines must be checked again.
    Conflict,
    /// The fields cannot be added.
    Refused(String),
}

/// True if a command succeeded.
pub(super) fn is_ok(reply: &Document) -> bool {
    reply.get("ok").as_exact_i64() == Some(1)
}

/// Runs a command of the server itself.
pub(super) fn run_trusted(database: &Database, body: Document) -> Result<Document, String> {
    let request = Request::new(body);
    let (reply, _) = command::run(database, &mut ClientSession::embedded(), &request);
    match is_ok(&reply) {
        true => Ok(reply),
        false => Err(reply
            .get("errmsg")
            .as_str()
            .unwrap_or("the command failed")
            .to_owned()),
    }
}

/// Returns the documents of the first batch of a cursor.
fn first_batch(reply: &Document) -> impl Iterator<Item = DocRef<'_>> {
    let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
    let batch = cursor.get("firstBatch").as_array();
    batch
        .into_iter()
        .flat_map(|batch| batch.iter().filter_map(ValueRef::as_document))
}

/// Looks for the collection of a measurement.
fn find(database: &Database, db: &str, measurement: &str) -> Result<Found, String> {
    let buckets = format!("system.buckets.{measurement}");
    let names = array![measurement, buckets.as_str()];
    let list = doc! {
        "listCollections": 1, "filter": doc! {"name": doc! {"$in": names}}, "$db": db,
    };
    let reply = run_trusted(database, list)?;
    let (mut uuid, mut found) = (Vec::new(), Found::Missing);
    for entry in first_batch(&reply) {
        let info = entry.get("info").as_document().unwrap_or(DocRef::EMPTY);
        if let ValueRef::Binary { bytes, .. } = info.get("uuid") {
            uuid = bytes.to_vec();
        }
        if entry.get("name").as_str() != Some(measurement) {
            continue;
        }
        let options = entry.get("options").as_document().unwrap_or(DocRef::EMPTY);
        let timeseries = options.get("timeseries").as_document();
        let field = |name: &str| {
            let field = timeseries.and_then(|options| options.get(name).as_str());
            field.map(str::to_owned)
        };
        found = match field("timeField") {
            Some(time) => Found::TimeSeries(
                Vec::new(),
                Names {
                    time,
                    tags: field("metaField"),
                },
            ),
            None => Found::Other,
        };
    }
    Ok(match found {
        Found::TimeSeries(_, names) => Found::TimeSeries(uuid, names),
        other => other,
    })
}

/// Returns the types of the fields of a measurement, from the bounds of its buckets.
fn types(
    database: &Database,
    db: &str,
    measurement: &str,
    names: &Names,
) -> Result<HashMap<String, FieldType>, String> {
    let bounds = doc! {"$objectToArray": "$control.min"};
    let aggregate = doc! {
        "aggregate": format!("system.buckets.{measurement}"),
        "pipeline": array![
            doc! {"$project": doc! {"bounds": bounds}},
            doc! {"$unwind": "$bounds"},
            doc! {"$group": doc! {"_id": doc! {"name": "$bounds.k", "type": doc! {"$type": "$bounds.v"}}}},
        ],
        "cursor": doc! {"batchSize": i64::try_from(FIELDS_MAX).unwrap_or(i64::MAX)},
        "allowDiskUse": true,
        "$db": db,
    };
    let reply = run_trusted(database, aggregate)?;
    let mut types = HashMap::new();
    for group in first_batch(&reply) {
        let id = group.get("_id").as_document().unwrap_or(DocRef::EMPTY);
        let (Some(name), Some(kind)) = (id.get("name").as_str(), id.get("type").as_str()) else {
            continue;
        };
        let is_field = name != names.time && name != "_id" && names.tags.as_deref() != Some(name);
        if let (true, Some(kind)) = (is_field, FieldType::of_bson(kind)) {
            // Of several types, which other clients may write, the first in their order counts, as it does in queries.
            let known = types.entry(name.to_owned()).or_insert(kind);
            *known = kind.min(*known);
        }
    }
    Ok(types)
}

/// Returns the retention of new measurements of a database, in seconds; 0 if there is none.
pub(super) fn retention_seconds(database: &Database, db: &str) -> Result<i64, Refusal> {
    let find = doc! {
        "find": RETENTION_COLLECTION, "filter": doc! {"_id": "retention"}, "limit": 1, "$db": db,
    };
    let internal = |text| Refusal::new("500 Internal Server Error", "internal error", text);
    let reply = run_trusted(database, find).map_err(internal)?;
    let found = first_batch(&reply).next();
    let seconds = found.map_or(ValueRef::Missing, |document| document.get("seconds"));
    Ok(seconds.as_exact_i64().unwrap_or(0).max(0))
}
