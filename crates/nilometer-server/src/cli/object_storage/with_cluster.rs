//! Databases on object storage: opening one to serve it, and as either end of a copy.

use std::fmt;
use std::sync::Arc;

use nilometer::Database;
use nilometer::database::offline::{self, CopyProgress, CopySource, CopyTarget};
use nilometer::services::Environment;
use nilometer_cluster::{Claim, ClaimIntervals, SlateOptions, StorageUrl};
use tracing::{info, warn};

use crate::cli::Failure;
use crate::cli::storage::ObjectStorageOptions;

/// The turn of this process to serve a database; it has a claim with `--standby`.
pub(in crate::cli) struct Turn(Option<Claim>);

impl Turn {
    /// Hands over to a server that stands by. The database is closed.
    pub(in crate::cli) fn end(self) {
        if let Some(claim) = self.0
            && let Err(problem) = claim.release()
        {
            warn!(c = "STORAGE", id = 22_435, error = %problem, "Others wait for the silence of this server");
        }
    }
}

/// A database on object storage.
#[derive(Debug)]
pub struct ObjectStorage {
    url: StorageUrl,
    given: ObjectStorageOptions,
}

impl fmt::Display for ObjectStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(formatter)
    }
}

impl ObjectStorage {
    /// Parses a URL. Reads nothing from the store.
    pub(in crate::cli) fn new(
        url: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
        given: ObjectStorageOptions,
    ) -> Result<Self, Failure> {
        let url = StorageUrl::parse(url, endpoint, region);
        let url = url.map_err(|error| Failure::Options(error.to_string()))?;
        Ok(Self { url, given })
    }

    /// With `--standby`, waits until no other process serves the database. `None` if `is_ended` says so meanwhile.
    pub(in crate::cli) fn stand_by(
        &self,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Option<Turn>, Failure> {
        if !self.given.standby {
            return Ok(Some(Turn(None)));
        }
        let claimant = self.url.claimant(ClaimIntervals::default());
        let claimant = claimant.map_err(|error| self.failure(error))?;
        info!(
            c = "STORAGE",
            id = 22_433,
            "Standing by until no other server has the database"
        );
        let claim = claimant.wait(is_ended);
        if let Some(claim) = &claim {
            info!(
                c = "STORAGE",
                id = 22_434,
                term = claim.term(),
                "Taking over the database"
            );
        }
        Ok(claim.map(|claim| Turn(Some(claim))))
    }

    /// Opens the database to serve it. Queries spill into the cache's directory, else into that of the system for temporary
    /// files.
    pub(in crate::cli) fn open(&self, environment: Environment) -> Result<Database, Failure> {
        let options = self.options(environment.memory_limit());
        let engine = self
            .url
            .open(options)
            .map_err(|error| self.failure(error))?;
        let spill = match &self.given.cache_path {
            Some(cache) => cache.join("spill"),
            None => std::env::temp_dir(),
        };
        let database = Database::with_engine_and_spill(Arc::new(engine), environment, spill);
        database.map_err(|error| self.failure(error.message))
    }

    /// Opens the database as the source of a copy.
    pub(in crate::cli) fn source(&self) -> Result<CopySource, Failure> {
        let view = self.url.open_source();
        let view = view.map_err(|error| self.failure(error))?;
        Ok(CopySource::view(Box::new(view)))
    }

    /// Copies a database into a new one here.
    pub(in crate::cli) fn copy_here(
        &self,
        from: &CopySource,
        report: &mut dyn FnMut(&CopyProgress),
    ) -> Result<CopyProgress, Failure> {
        let engine = self.url.create_for_copy(self.options(None));
        let engine = Arc::new(engine.map_err(|error| self.failure(error))?);
        let copied = offline::copy(from, CopyTarget::Engine(engine.clone()), report)?;
        engine.finish_copy().map_err(|error| self.failure(error))?;
        Ok(copied)
    }

    fn options(&self, memory_bytes: Option<u64>) -> SlateOptions {
        let mut options = SlateOptions::within(memory_bytes);
        options.cache_path = self
            .given
            .cache_path
            .as_ref()
            .map(|path| path.join("objects"));
        if let Some(bytes) = self.given.cache_bytes {
            options.cache_path_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(interval) = self.given.flush_interval {
            options.flush_interval = interval;
        }
        options
    }

    fn failure(&self, error: impl fmt::Display) -> Failure {
        Failure::Other(format!("cannot open {}: {error}", self.url))
    }
}
