//! Measurements: their collections, and the types of their fields.
//!
//! A measurement is the time-series collection of its name. One that does not exist is created by the first write to it, in
//! the name of the user who writes: times in `time`, tags in `tags`, `duplicates: "merge"`, and the retention of the
//! database as `expireAfterSeconds`, if it has one ([`RETENTION_COLLECTION`]).
//!
//! The type of a field is that of its values. Fields are read from the bounds of all buckets when a measurement is first written or
//! queried, and kept, with new ones, for as long as the collection exists. Because other clients write, too, queries read them
//! again after a while, which is longer where reading takes longer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{DocRef, Document, DocumentBuilder, doc};
use nilometer_influx::line_protocol::{FieldType, Names, Schema};
use nilometer_influx::mapping::{self, MAPPINGS_COLLECTION, Mapping};
use nilometer_influx::query::RETENTION_COLLECTION;
use nilometer_influx::schema::{self, Found, MeasurementSchema};

use super::Refusal;
use super::collection_cache::CollectionCache;
use crate::command;

/// Measurements whose fields are kept. Beyond that all are forgotten, and read again.
const MEASUREMENTS_KEPT_MAX: usize = 10_000;

/// Fields of a measurement.
const FIELDS_MAX: usize = 100_000;

/// Age up to which fields and tags serve queries that need not be exact.
const AGE_MAX: Duration = Duration::from_secs(5);

/// Fields and tags serve every query for this many times the time that reading them took.
const AGE_PER_COST: u32 = 20;

const CODE_NAMESPACE_EXISTS: i64 = 48;

/// Database and measurement.
type Key = (String, String);

/// A collection as it was when its fields were read.
struct Known {
    /// The UUID of its buckets.
    uuid: Vec<u8>,
    schema: Arc<Schema>,
    /// Fields and tags as queries see them, when they were read, and how long that took.
    read: Option<(Arc<MeasurementSchema>, Instant, Duration)>,
}

/// What is known of a measurement that exists, or why it cannot be written.
pub(super) type WrittenSchema = Result<Option<Arc<Schema>>, String>;

/// What is known of all measurements.
#[derive(Default)]
pub(super) struct Measurements {
    known: Mutex<HashMap<Key, Known>>,
    collections: CollectionCache,
}

impl Measurements {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is known of a measurement, or why it cannot be written. `None` if it does not exist.
    pub(super) fn schema(&self, database: &Database, db: &str, measurement: &str) -> WrittenSchema {
        let mut schemas = self.schemas(database, db, &[measurement])?;
        schemas.pop().unwrap_or(Ok(None))
    }

    /// Returns what is known of measurements, in their order. Their collections are looked up together.
    pub(super) fn schemas(
        &self,
        database: &Database,
        db: &str,
        measurements: &[&str],
    ) -> Result<Vec<WrittenSchema>, String> {
        let run = &mut |body| run_trusted(database, body);
        let asked: Vec<&str> = [MAPPINGS_COLLECTION]
            .iter()
            .chain(measurements)
            .copied()
            .collect();
        let mut found = self.find_all(database, db, &asked)?;
        let rest = found.split_off(1);
        let mappings = match found.first() {
            None | Some(Found::Missing) => BTreeMap::new(),
            Some(_) => mapping::all(run, db)?,
        };
        let schemas = measurements.iter().zip(rest);
        let schemas = schemas.map(|(measurement, found)| match found {
            _ if shown_elsewhere(&mappings, measurement) => Err(format!(
                "the measurement \"{measurement}\" shows another collection and cannot be written ({MAPPINGS_COLLECTION})"
            )),
            Found::Missing => Ok(None),
            Found::Other => Err(format!(
                "the collection \"{measurement}\" is no time series"
            )),
            Found::TimeSeries(uuid, names) => {
                let key = (db.to_owned(), (*measurement).to_owned());
                if let Some(known) = self.lock().get(&key)
                    && known.uuid == uuid
                {
                    return Ok(Some(Arc::clone(&known.schema)));
                }
                let types = schema::field_types(run, db, measurement, &names)?;
                let schema = Arc::new(Schema { names, types });
                Ok(Some(self.put(key, uuid, schema)))
            }
        });
        Ok(schemas.collect())
    }

    /// Returns the collections of measurements, in their order.
    fn find_all(
        &self,
        database: &Database,
        db: &str,
        measurements: &[&str],
    ) -> Result<Vec<Found>, String> {
        let version = database.catalog_version();
        let run = &mut |body| run_trusted(database, body);
        self.collections.find_all(version, db, measurements, run)
    }

    /// Keeps a schema, unless one of the same collection is kept. Returns the kept one.
    fn put(&self, key: Key, uuid: Vec<u8>, schema: Arc<Schema>) -> Arc<Schema> {
        let mut known = self.lock();
        if known.len() >= MEASUREMENTS_KEPT_MAX {
            known.clear();
        }
        let fresh = Known {
            uuid,
            schema,
            read: None,
        };
        match known.get(&key) {
            Some(kept) if kept.uuid == fresh.uuid => Arc::clone(&kept.schema),
            _ => {
                let schema = Arc::clone(&fresh.schema);
                known.insert(key, fresh);
                schema
            }
        }
    }

    /// Returns the mappings of a database, by the names of their measurements.
    pub(super) fn mappings(
        &self,
        database: &Database,
        db: &str,
    ) -> Result<BTreeMap<String, Mapping>, String> {
        mapping::all(&mut |body| run_trusted(database, body), db)
    }

    /// Returns fields and tags of a measurement, if it exists. If `exact` is false they may be some seconds old.
    pub(super) fn read(
        &self,
        database: &Database,
        db: &str,
        measurement: &str,
        exact: bool,
    ) -> Result<Option<Arc<MeasurementSchema>>, String> {
        let run = &mut |body| run_trusted(database, body);
        let mut found = self.find_all(database, db, &[MAPPINGS_COLLECTION, measurement])?;
        let own = found.pop().unwrap_or(Found::Missing);
        let mapping = match found.pop() {
            None | Some(Found::Missing) => None,
            Some(_) => mapping::of(run, db, measurement)?,
        };
        let Some(mapping) = mapping else {
            return self.read_collection(database, db, (measurement, own), exact);
        };
        let collection = mapping.collection.as_str();
        let found = self.find_all(database, db, &[collection])?.pop();
        let found = found.unwrap_or(Found::Missing);
        let read = self.read_collection(database, db, (collection, found), exact)?;
        Ok(read.map(|schema| Arc::new(mapping.apply(&schema))))
    }

    /// Returns fields and tags of a collection that was found, if it is a time series.
    fn read_collection(
        &self,
        database: &Database,
        db: &str,
        (collection, found): (&str, Found),
        exact: bool,
    ) -> Result<Option<Arc<MeasurementSchema>>, String> {
        let run = &mut |body| run_trusted(database, body);
        let Found::TimeSeries(uuid, names) = found else {
            return Ok(None);
        };
        let key = (db.to_owned(), collection.to_owned());
        if let Some(known) = self.lock().get(&key)
            && known.uuid == uuid
            && let Some((read, at, cost)) = &known.read
        {
            let age_max = *cost * AGE_PER_COST;
            let age_max = if exact { age_max } else { age_max.max(AGE_MAX) };
            if at.elapsed() < age_max {
                return Ok(Some(Arc::clone(read)));
            }
        }
        let began = Instant::now();
        let read = Arc::new(schema::read(run, db, collection, &names)?);
        let types = read.fields.clone().into_iter().collect();
        let schema = Arc::new(Schema { names, types });
        self.put(key.clone(), uuid.clone(), schema);
        if let Some(known) = self.lock().get_mut(&key)
            && known.uuid == uuid
        {
            // Fields of other clients. Those that a write has added but not yet written stay.
            let types = &mut Arc::make_mut(&mut known.schema).types;
            for (name, kind) in &read.fields {
                types.entry(name.clone()).or_insert(*kind);
            }
            known.read = Some((Arc::clone(&read), began, began.elapsed()));
        }
        Ok(Some(read))
    }

    /// Creates the collection of a measurement that was missing, in the name of a user.
    pub(super) fn create(
        &self,
        database: &Database,
        session: &mut ClientSession,
        db: &str,
        measurement: &str,
    ) -> Result<(), Refusal> {
        let names = Names::default();
        let mut create = DocumentBuilder::new();
        create.append("create", measurement);
        create.append(
            "timeseries",
            doc! {
                "timeField": names.time,
                "metaField": names.tags,
                "nilometer": doc! {"duplicates": "merge"},
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

    /// Adds fields to what is known of a measurement that exists.
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
            .map_err(ClaimError::Refused)?
            .unwrap_or_default();
        let differs = |types: &HashMap<String, FieldType>| {
            let differs =
                |(name, kind): &(String, FieldType)| types.get(name).is_some_and(|one| one != kind);
            fields.iter().any(differs)
        };
        let mut known = self.lock();
        let key = (db.to_owned(), measurement.to_owned());
        let Some(entry) = known.get_mut(&key) else {
            // It was dropped, or all were forgotten.
            return match differs(&schema.types) {
                true => Err(ClaimError::Conflict),
                false => Ok(()),
            };
        };
        if differs(&entry.schema.types) {
            return Err(ClaimError::Conflict);
        }
        if entry.schema.types.len() + fields.len() > FIELDS_MAX {
            return Err(ClaimError::Refused(format!(
                "the measurement \"{measurement}\" would have more than {FIELDS_MAX} fields"
            )));
        }
        let schema = Arc::make_mut(&mut entry.schema);
        schema.types.extend(fields.iter().cloned());
        if let Some((read, ..)) = &mut entry.read {
            let read = Arc::make_mut(read);
            read.fields.extend(fields.iter().cloned());
        }
        Ok(())
    }

    /// Forgets what is known of a measurement, or of all in a database.
    pub(super) fn forget(&self, db: &str, measurement: Option<&str>) {
        self.lock().retain(|(of, name), _| {
            of != db || measurement.is_some_and(|measurement| name != measurement)
        });
    }
}

/// True if a measurement shows a collection of another name.
fn shown_elsewhere(mappings: &BTreeMap<String, Mapping>, measurement: &str) -> bool {
    let mapping = mappings.get(measurement);
    mapping.is_some_and(|mapping| mapping.collection != measurement)
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

/// Returns the text of a failed command.
pub(super) fn error_text(reply: &Document) -> String {
    let text = reply.get("errmsg").as_str();
    text.unwrap_or("the command failed").to_owned()
}

/// Runs a command of the server itself.
fn run_trusted(database: &Database, body: Document) -> Result<Document, String> {
    let request = Request::new(body);
    let (reply, _) = command::run(database, &mut ClientSession::embedded(), &request);
    match is_ok(&reply) {
        true => Ok(reply),
        false => Err(error_text(&reply)),
    }
}

/// Returns the retention of new measurements of a database, in seconds; 0 if there is none.
fn retention_seconds(database: &Database, db: &str) -> Result<i64, Refusal> {
    let find = doc! {
        "find": RETENTION_COLLECTION, "filter": doc! {"_id": "retention"}, "limit": 1, "$db": db,
    };
    let internal = |text| Refusal::new("500 Internal Server Error", "internal error", text);
    let mut seconds = 0;
    let run = &mut |body| run_trusted(database, body);
    schema::for_each(run, db, find, &mut |document: DocRef<'_>| {
        seconds = document.get("seconds").as_exact_i64().unwrap_or(0).max(0);
        Ok(false)
    })
    .map_err(internal)?;
    Ok(seconds)
}
