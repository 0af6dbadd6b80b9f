//! What an operator does to a whole database: copy it, check it, look into it, save what can be saved.
//!
//! | | of | changes |
//! |---|---|---|
//! | [`Database::checkpoint`] | a database that is open | nothing |
//! | [`restore`] | a copy that is not open | nothing; makes a new directory |
//! | [`verify`] | a directory that is not open | what any opening changes: the log begins a new file |
//! | [`inspect()`] | the same | the same |
//! | [`salvage()`] | a directory that need not even open | nothing; makes a new directory |
//!
//! What is lost or wrong is given back as text for a person; nothing here prints.

mod inspect;
mod salvage;

use std::path::Path;

use nilometer_storage::{Direction, Engine, KeyspaceId, LsmEngine, LsmOptions};

pub use inspect::{ColumnFigures, Figures, Inspection, Kind, inspect};
pub use salvage::{Salvaged, SalvagedCollection, salvage};

use super::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::services::Environment;
use crate::validation::Validation;

/// What [`verify`] looked at and found.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Damage below the collections: of the log, of tables, of their checksums.
    pub damage: Vec<String>,
    /// Each collection with what is wrong in it; a time series by the name of its buckets.
    pub collections: Vec<(String, Validation)>,
}

impl Verification {
    /// True if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.collections.iter().all(|(_, found)| found.invalid == 0)
    }
}

/// Checks the database in `path`, which must be there and not be open: it opens it as a start does, reads
/// every stored byte against its checksum, every document and bucket against what it claims, every index
/// both ways.
///
/// An error means that it cannot be looked at; damage is in the answer.
pub fn verify(path: &Path) -> Result<Verification> {
    let mut verification = Verification::default();
    let database = match open(path) {
        Ok(database) => database,
        Err(error) if error.code == crate::ErrorCode::DataCorruptionDetected => {
            verification.damage.push(error.message);
            return Ok(verification);
        }
        Err(error) => return Err(error),
    };
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
    // What could not be written back was told of above.
    let _ = database.close();
    Ok(verification)
}

/// Copies the database in `source`, which is not open, into the empty or absent directory `target`. The
/// two share no file. `each` is told of every file and its bytes.
pub fn restore(source: &Path, target: &Path, each: &mut dyn FnMut(&Path, u64)) -> Result<()> {
    check_is_there(source)?;
    Ok(nilometer_storage::copy_database(source, target, each)?)
}

/// Says in lines what a file of a database directory is.
pub fn describe_file(path: &Path) -> Result<Vec<String>> {
    Ok(nilometer_storage::describe_file(path)?)
}

/// Refuses a directory that is not there: opening would make an empty database of it.
fn check_is_there(path: &Path) -> Result<()> {
    match path.join("FORMAT").is_file() {
        true => Ok(()),
        false => Err(Error::bad_value(format!(
            "there is no database in {}",
            path.display()
        ))),
    }
}

/// A database at rest, opened without anything that would change it by itself.
fn open(path: &Path) -> Result<Database> {
    check_is_there(path)?;
    let engine = LsmEngine::open(path, LsmOptions::default())?;
    Database::with_engine(std::sync::Arc::new(engine), at_rest()?)
}

/// How many entries a keyspace has.
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

/// Surroundings in which nothing expires.
fn at_rest() -> Result<Environment> {
    let environment = Environment::default();
    environment
        .parameters
        .set_at_startup("ttlMonitorEnabled", "false")?;
    Ok(environment)
}

impl Database {
    /// Whether writes are taken now; the error says why not. Never waits for the disk.
    pub fn check_writable(&self) -> Result<()> {
        self.engine.check_writable()?;
        match self.disk.status().oldest {
            None => Ok(()),
            Some(wait) => Err(Error::new(
                ErrorCode::ExceededTimeLimit,
                format!(
                    "the disk does not answer: to {} takes {} s so far; writes wait for it",
                    wait.what,
                    wait.age.as_secs()
                ),
            )),
        }
    }

    /// Checks one collection: its documents or buckets, and its indexes both ways.
    pub(crate) fn validate(
        &self,
        collection: &std::sync::Arc<crate::catalog::Collection>,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<Validation> {
        match collection.timeseries {
            Some(_) => self.timeseries.validate(collection, check_interrupt),
            None => self.records.validate(collection, check_interrupt),
        }
    }
}
