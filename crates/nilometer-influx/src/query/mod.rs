//! Statements of InfluxQL as commands, and their results as InfluxDB's JSON.
//!
//! ```text
//! Statement ─► schema of the measurement ─► pipeline: filter, groups by tags and windows ─► documents
//!                                                                                             │
//!         JSON ◄─ limits ◄─ arithmetic ◄─ functions of values in order of time ◄─ fill ◄──────┘
//! ```
//!
//! Filters, groups and sorts are pipelines, so every rewrite over buckets applies to them. What depends on the order of windows is
//! computed here: filling, differences, sums so far. Values as they are flow through; groups are collected, at most
//! [`POINTS_MAX`] of them, and filled series by series.

mod cell;
mod condition;
mod output;
mod select;
mod show;
mod times;
mod transform;

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_bson::{Document, doc};

pub use cell::write_json_text;
pub use output::{CHUNK_ROWS, Output, OutputOptions};

use crate::influxql::Statement;
use crate::line_protocol::{Batches, LineError, SchemasOf};
use crate::mapping::{MAPPINGS_COLLECTION, Mapping};
use crate::schema::MeasurementSchema;

/// Values of groups, windows of a series, and rows that a statement may collect in memory.
pub const POINTS_MAX: usize = 1_000_000;

/// The collection of a database whose document `retention` has the retention of new measurements, in `seconds`.
pub const RETENTION_COLLECTION: &str = "nilometer.influx";

/// The only retention policy of a database.
pub const RETENTION_POLICY: &str = "autogen";

/// What statements need of the database. A statement that writes its rows writes some while it reads others.
pub trait Store {
    /// Runs a command in the name of the user. An error is the text of the reply.
    fn run(&self, command: Document) -> Result<Document, String>;

    /// Returns what is known of a measurement, if it exists. `exact` asks for what is stored now; else it may be some seconds old.
    fn schema(
        &self,
        db: &str,
        measurement: &str,
        exact: bool,
    ) -> Result<Option<Arc<MeasurementSchema>>, String>;

    /// Returns the mappings of a database, by the names of their measurements.
    fn mappings(&self, db: &str) -> Result<BTreeMap<String, Mapping>, String>;

    /// Forgets a measurement, or all of a database.
    fn forget(&self, db: &str, measurement: Option<&str>);

    /// Writes the points that `read` returns as the user; it may be called several times, if other writes change the types of fields. Returns
    /// the points that were rejected. Measurements that do not exist are created.
    fn write(
        &self,
        db: &str,
        read: &mut dyn FnMut(&mut SchemasOf<'_>) -> Batches,
    ) -> Result<Vec<LineError>, String>;

    /// Returns the time, in ms since 1970.
    fn now_ms(&self) -> i64;
}

/// Executes statements one after the other until one fails. `db` is the database of measurements that name none. An error of a
/// statement is part of the answer; this function fails if the answer cannot be written.
pub fn execute(
    store: &dyn Store,
    db: Option<&str>,
    statements: &[Statement],
    output: &mut Output<'_>,
) -> Result<(), String> {
    let mut failed = false;
    for statement in statements {
        let zone = match statement {
            Statement::Select(select) => select::zone(select),
            _ => Ok(None),
        };
        output.begin_statement(zone.clone().unwrap_or(None))?;
        if failed {
            output.end_statement(Some("not executed"))?;
            continue;
        }
        let done = zone.and_then(|_| run_statement(store, db, statement, output));
        failed = done.is_err();
        output.end_statement(done.err().as_deref())?;
    }
    Ok(())
}

fn run_statement(
    store: &dyn Store,
    db: Option<&str>,
    statement: &Statement,
    output: &mut Output<'_>,
) -> Result<(), String> {
    match statement {
        Statement::Select(select) => select::run(store, db, select, output),
        Statement::CreateDatabase(name, duration_ns) => create_database(store, name, *duration_ns),
        Statement::DropDatabase(name) => {
            store.run(doc! {"dropDatabase": 1, "$db": name.as_str()})?;
            store.forget(name, None);
            Ok(())
        }
        Statement::DropMeasurement(name) => {
            let db = database(db, None)?;
            if let Some(mapping) = store.mappings(db)?.get(name) {
                return Err(format!(
                    "the measurement \"{name}\" shows the collection \"{}\": delete its document in {MAPPINGS_COLLECTION}",
                    mapping.collection
                ));
            }
            store.run(doc! {"drop": name.as_str(), "$db": db})?;
            store.forget(db, Some(name));
            Ok(())
        }
        other => show::run(store, db, other, output),
    }
}

/// Returns the database that is named, or that of the request.
fn database<'a>(db: Option<&'a str>, named: Option<&'a str>) -> Result<&'a str, String> {
    named
        .or(db)
        .ok_or_else(|| "database name required".to_owned())
}

/// Stores the retention of a database, which so exists. One that exists keeps its retention unless another one is given.
fn create_database(store: &dyn Store, name: &str, duration_ns: i64) -> Result<(), String> {
    let seconds = duration_ns / 1_000_000_000;
    let change = match seconds {
        0 => doc! {"$setOnInsert": doc! {"seconds": 0_i64}},
        seconds => doc! {"$set": doc! {"seconds": seconds}},
    };
    let update = doc! {"q": doc! {"_id": "retention"}, "u": change, "upsert": true};
    let reply = store.run(doc! {
        "update": RETENTION_COLLECTION, "updates": nilometer_bson::array![update], "$db": name,
    })?;
    let errors = reply.get("writeErrors").as_array();
    match errors.and_then(|errors| errors.get(0).as_document()) {
        None => Ok(()),
        Some(error) => Err(error.get("errmsg").as_str().unwrap_or_default().to_owned()),
    }
}
