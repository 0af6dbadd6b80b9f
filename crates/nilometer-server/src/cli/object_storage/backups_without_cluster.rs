//! The refusal of a program that was built without object storage.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use nilometer::Database;

use super::without_cluster::refusal;
use crate::cli::Failure;
use crate::cli::args::KeepArgs;
use crate::cli::backups::{
    CheckedBackups, ContinuousSettings, MadeBackup, Point, RemovedBackups, RestoredDatabase,
};

/// The backups at a URL. There are none for this program.
#[derive(Debug)]
pub enum ObjectBackups {}

/// The continuous backup of a server.
pub(in crate::cli) enum RunningBackup {}

impl RunningBackup {
    pub(in crate::cli) fn stop(self) {
        match self {}
    }
}

impl fmt::Display for ObjectBackups {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl ObjectBackups {
    /// Refuses a URL.
    pub(in crate::cli) fn new(
        url: &str,
        _endpoint: Option<&str>,
        _region: Option<&str>,
    ) -> Result<Self, Failure> {
        Err(refusal(url))
    }

    pub(in crate::cli) fn back_up(&self, _: &Database) -> Result<MadeBackup, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn remove_old(&self, _: &KeepArgs) -> Result<RemovedBackups, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn list(&self) -> Result<Vec<MadeBackup>, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn restore(&self, _: &Path, _: Point) -> Result<RestoredDatabase, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn verify(&self) -> Result<CheckedBackups, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn start(
        &self,
        _: &ContinuousSettings,
        _: &Arc<Database>,
    ) -> Result<RunningBackup, Failure> {
        match *self {}
    }

    /// Leaves the command `nilometerBackup` without URLs.
    pub(in crate::cli) fn answer_commands(_: &Database) {}
}
