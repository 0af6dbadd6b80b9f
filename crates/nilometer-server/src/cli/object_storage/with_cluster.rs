//! Databases on object storage: opening one to serve it, and as either end of a copy.

use std::fmt;
use std::sync::Arc;

use nilometer::Database;
use nilometer::database::offline::{self, CopyProgress, CopySource, CopyTarget};
use nilometer::services::Environment;
use nilometer_cluster::{SlateOptions, StorageUrl};

use crate::cli::Failure;
use crate::cli::storage::ObjectStorageSizes;

/// A database on object storage.
#[derive(Debug)]
pub struct ObjectStorage {
    url: StorageUrl,
    sizes: ObjectStorageSizes,
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
        sizes: ObjectStorageSizes,
    ) -> Result<Self, Failure> {
        let url = StorageUrl::parse(url, endpoint, region);
        let url = url.map_err(|error| Failure::Options(error.to_string()))?;
        Ok(Self { url, sizes })
    }

    /// Opens the database to serve it. Queries spill into the cache's directory, else into that of the system for temporary
    /// files.
    pub(in crate::cli) fn open(&self, environment: Environment) -> Result<Database, Failure> {
        let options = self.options(environment.memory_limit());
        let engine = self
            .url
            .open(options)
            .map_err(|error| self.failure(error))?;
        let spill = match &self.sizes.cache_path {
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
            .sizes
            .cache_path
            .as_ref()
            .map(|path| path.join("objects"));
        if let Some(bytes) = self.sizes.cache_bytes {
            options.cache_path_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(interval) = self.sizes.flush_interval {
            options.flush_interval = interval;
        }
        options
    }

    fn failure(&self, error: impl fmt::Display) -> Failure {
        Failure::Other(format!("cannot open {}: {error}", self.url))
    }
}
