//! The refusal of a program that was built without object storage.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use nilometer::Database;
use nilometer::database::offline::{CopyProgress, CopySource, DirectoryReport, Verification};
use nilometer::services::{Environment, ReplicaSet, StepDown};

use crate::cli::Failure;
use crate::cli::copy::CopiedCluster;
use crate::cli::serve::NodeIdentity;
use crate::cli::storage::ObjectStorageOptions;
use crate::database_slot::DatabaseSlot;

/// A database on object storage. There is none in this program.
#[derive(Debug)]
pub enum ObjectStorage {}

/// A database that is read. There is none in this program.
pub(in crate::cli) enum StoredDatabase {}

impl StoredDatabase {
    pub(in crate::cli) fn name(&self) -> Option<&str> {
        match *self {}
    }

    pub(in crate::cli) fn verify(&self) -> nilometer::Result<Verification> {
        match *self {}
    }

    pub(in crate::cli) fn inspect(&self) -> nilometer::Result<DirectoryReport> {
        match *self {}
    }
}

/// A server among those of one. There is none in this program.
pub(in crate::cli) enum Member {}

/// A node of a cluster. There is none in this program.
pub(in crate::cli) enum Node {}

impl Node {
    pub(in crate::cli) fn end(self) {
        match self {}
    }
}

impl Member {
    pub(in crate::cli) fn due(&self) -> Instant {
        match *self {}
    }

    pub(in crate::cli) fn tick(&mut self) {
        match *self {}
    }

    pub(in crate::cli) fn stand_by_again(&mut self) -> bool {
        match *self {}
    }

    pub(in crate::cli) fn step_down(&mut self, _: StepDown) -> nilometer::Result<()> {
        match *self {}
    }

    pub(in crate::cli) fn end(self) {
        match self {}
    }
}

/// Returns the refusal of a URL.
pub(super) fn refusal(url: &str) -> Failure {
    Failure::Options(format!(
        "cannot use {url}: this program was built without object storage, the feature `cluster`. Build it with  \
         cargo build --release -p nilometer-server --features cluster"
    ))
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
        Err(refusal(url))
    }

    pub(in crate::cli) fn is_shared(&self) -> bool {
        match *self {}
    }

    pub(in crate::cli) fn join(
        &self,
        _: Environment,
        _: Arc<ReplicaSet>,
        _: &dyn Fn() -> bool,
    ) -> Result<Option<(DatabaseSlot, Member)>, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn is_cluster(&self) -> bool {
        match *self {}
    }

    pub(in crate::cli) fn join_cluster(
        &self,
        _: Environment,
        _: NodeIdentity,
        _: &dyn Fn() -> bool,
    ) -> Result<Option<(DatabaseSlot, Node)>, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn open(&self, _: Environment) -> Result<(Database, u64), Failure> {
        match *self {}
    }

    pub(in crate::cli) fn source(&self, _: Option<&str>) -> Result<CopySource, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn copy_cluster(
        &self,
        _: &Self,
        _: &mut dyn FnMut(&str, &CopyProgress),
    ) -> Result<Option<CopiedCluster>, Failure> {
        match *self {}
    }

    pub(in crate::cli) fn databases(
        &self,
        _: Option<&str>,
    ) -> Result<Vec<StoredDatabase>, Failure> {
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
