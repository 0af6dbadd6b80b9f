//! The refusal of a program that was built without object storage.

use std::fmt;

use nilometer::Database;
use nilometer::database::offline::{CopyProgress, CopySource};
use nilometer::services::Environment;

use crate::cli::Failure;
use crate::cli::storage::ObjectStorageOptions;

/// A database on object storage. There is none in this program.
#[derive(Debug)]
pub enum ObjectStorage {}

/// The turn to serve one.
pub(in crate::cli) enum Turn {}

impl Turn {
    pub(in crate::cli) fn end(self) {
        match self {}
    }
}

impl fmt::Display for ObjectStorage {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl ObjectStorage {
    /// Refuses a URL.
    pub(in crate::cli) fn new(
        url: &str,
        _endpoint: Option<&str>,
        _region: Option<&str>,
        _sizes: ObjectStorageOptions,
    ) -> Result<Self, Failure> {
        Err(Failure::Options(format!(
            "cannot use {url}: this program was built without object storage, the feature `cluster`. Build it with  \
             cargo build --release -p nilometer-server --features cluster"
        )))
    }

    pub(in crate::cli) fn stand_by(&self, _: &dyn Fn() -> bool) -> Result<Option<Turn>, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn open(&self, _: Environment) -> Result<Database, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn source(&self) -> Result<CopySource, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn copy_here(
        &self,
        _: &CopySource,
        _: &mut dyn FnMut(&CopyProgress),
    ) -> Result<CopyProgress, Failure> {
        match *self {}
    }
}
