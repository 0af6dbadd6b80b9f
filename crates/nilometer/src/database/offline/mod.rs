//! Maintenance of a database that is not open: copy, verification, inspection, salvage.
//!
//! | function | applies to | changes |
//! |---|---|---|
//! | [`Database::checkpoint`] | a database that is open | nothing |
//! | [`copy()`] | a database in a directory or in an object store | nothing; creates a new database |
//! | [`restore`] | a copy that is not open | nothing; makes a new directory |
//! | [`verify`] | a directory that is not open | what any opening changes: the log starts a new file |
//! | [`inspect()`] | the same | the same |
//! | [`verify_view`], [`inspect_view()`] | what another process writes, at one moment | nothing |
//! | [`salvage()`] | a damaged directory, even one that does not open | nothing; creates a new directory |
//!
//! Losses and errors are returned as text for the operator; nothing here prints.

mod copy;
mod inspect;
mod salvage;

use std::path::Path;
use std::sync::Arc;

use nilometer_storage::{Direction, Engine, KeyspaceId, LogCut, LsmEngine, LsmOptions, Recovery};

pub use copy::{CopyProgress, CopySource, CopyTarget, copy};
pub use inspect::{
    CollectionKind, CollectionReport, ColumnReport, DirectoryReport, inspect, inspect_view,
};
pub use salvage::{SalvageReport, SalvagedCollection, salvage};

use super::Database;
use crate::error::{Error, Result};
use crate::services::Environment;
use crate::validation::Validation;

/// The result of [`verify`].
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Damage below the collections: of the log, of tables, of their checksums.
    pub damage: Vec<String>,
    /// Where the log was cut, at this opening or an earlier one.
    pub cuts: Vec<LogCut>,
    /// Each collection with its problems; time series by the name of the bucket collection.
    pub collections: Vec<(String, Validation)>,
}

impl Verification {
    /// True if there is no problem. A write that was torn before its end is none: it was not acknowledged, unless
    /// two places are damaged.
    pub fn is_sound(&self) -> bool {
        self.is_readable() && !self.cuts.iter().any(|cut| cut.write_is_complete)
    }

    /// True if everything stored can be read.
    pub fn is_readable(&self) -> bool {
        self.damage.is_empty() && self.collections.iter().all(|(_, found)| found.invalid == 0)
    }
}

/// Verifies the database in `path`, which must exist and not be open: opens it like a start, and checks
/// every stored byte against its checksum, every document and bucket against its invariants, every index in
/// both directions.
///
/// An error means that verification was impossible; damage is part of the result.
pub fn verify(path: &Path) -> Result<Verification> {
    let mut verification = Verification::default();
    let database = match open(path) {
        Ok((database, recovery)) => {
            verification.cuts = recovery.earlier_cuts;
            verification.cuts.extend(recovery.cut);
            database
        }
        Err(error) if error.code == crate::ErrorCode::DataCorruptionDetected => {
            verification.damage.push(error.message);
            return Ok(verification);
        }
        Err(error) => return Err(error),
    };
    check_all(&database, &mut verification);
    // Failures to write back were reported above.
    let _ = database.close();
    Ok(verification)
}

/// Does so for an engine that refuses writes, and shows one moment of a database.
pub fn verify_view(engine: Arc<dyn Engine>) -> Result<Verification> {
    let mut verification = Verification::default();
    match open_view(engine) {
        Ok(database) => check_all(&database, &mut verification),
        Err(error) if error.code == crate::ErrorCode::DataCorruptionDetected => {
            verification.damage.push(error.message);
        }
        Err(error) => return Err(error),
    }
    Ok(verification)
}

/// Checks the bytes of an open database, and each of its collections.
fn check_all(database: &Database, verification: &mut Verification) {
    if let Err(error) = database.engine.verify() {
        verification.damage.push(error.to_string());
    }
    for collection in database.catalog.collections() {
        let name = collection.namespace.to_string();
        let found = database.validate(&collection, &|| Ok(()));
        match found {
            Ok(found) => verification.collections.push((name, found)),
            Err(error) => verification
                .damage
                .push(format!("{name} cannot be read: {error}")),
        }
    }
}

/// Copies the database in `source`, which is not open, into the empty or missing directory `target`. The
/// two share no file. `each` is called with every file and its bytes.
pub fn restore(source: &Path, target: &Path, each: &mut dyn FnMut(&Path, u64)) -> Result<()> {
    check_exists(source)?;
    Ok(nilometer_storage::copy_database(source, target, each)?)
}

/// Describes a file of a database directory, in lines.
pub fn describe_file(path: &Path) -> Result<Vec<String>> {
    Ok(nilometer_storage::describe_file(path)?)
}

/// Fails if there is no database: opening would create an empty one.
fn check_exists(path: &Path) -> Result<()> {
    match path.join("FORMAT").is_file() {
        true => Ok(()),
        false => Err(Error::bad_value(format!(
            "there is no database in {}",
            path.display()
        ))),
    }
}

/// Opens a database without background changes. Also returns what opening found in the log.
fn open(path: &Path) -> Result<(Database, Recovery)> {
    check_exists(path)?;
    let engine = LsmEngine::open(path, LsmOptions::default())?;
    let recovery = engine.recovery().clone();
    let database = Database::with_engine(Arc::new(engine), quiet_environment()?)?;
    Ok((database, recovery))
}

/// Opens a database over an engine that refuses writes.
fn open_view(engine: Arc<dyn Engine>) -> Result<Database> {
    match engine.is_read_only() {
        true => Database::with_engine(engine, quiet_environment()?),
        false => Err(Error::bad_value("the engine is no view")),
    }
}

/// Returns the number of entries of a keyspace.
fn count_entries(engine: &dyn Engine, keyspace: KeyspaceId) -> Result<u64> {
    let mut entries = 0;
    for item in engine
        .snapshot()?
        .scan(keyspace, &[], None, Direction::Forward)?
    {
        item?;
        entries += 1;
    }
    Ok(entries)
}

/// Returns an environment in which nothing expires.
fn quiet_environment() -> Result<Environment> {
    let environment = Environment::default();
    environment
        .parameters
        .set_at_startup("ttlMonitorEnabled", "false")?;
    Ok(environment)
}
