//! Databases on object storage: opening one to serve it, and as either end of a copy.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nilometer::Database;
use nilometer::database::PREFETCH_MAX;
use nilometer::database::offline::{
    self, CopyProgress, CopySource, CopyTarget, DirectoryReport, Verification,
};
use nilometer::services::{Environment, ReplicaSet};
use nilometer_cluster::{SlateOptions, SlateView, StorageUrl};

use super::cluster::{Node, NodeOptions};
use super::member::{Member, MemberOptions};
use crate::cli::Failure;
use crate::cli::copy::CopiedCluster;
use crate::cli::serve::NodeIdentity;
use crate::cli::storage::ObjectStorageOptions;
use crate::database_slot::DatabaseSlot;

/// A database on object storage that is read, beside a server that may write it.
pub(in crate::cli) struct StoredDatabase {
    name: Option<String>,
    url: StorageUrl,
}

impl StoredDatabase {
    /// Returns its name in the cluster.
    pub(in crate::cli) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Checks everything in it.
    pub(in crate::cli) fn verify(&self) -> nilometer::Result<Verification> {
        offline::verify_view(self.view()?)
    }

    /// Describes what is in it.
    pub(in crate::cli) fn inspect(&self) -> nilometer::Result<DirectoryReport> {
        offline::inspect_view(self.view()?)
    }

    fn view(&self) -> nilometer::Result<Arc<SlateView>> {
        let mut reader = self.url.reader(&SlateOptions::within(None))?;
        let view = reader.refresh()?;
        Ok(Arc::new(view.expect("the first refresh returns a view")))
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

    /// True if other servers may have the database open, too.
    pub(in crate::cli) fn is_shared(&self) -> bool {
        self.given.standby || self.given.read_only
    }

    /// Joins the other servers of the database. `None` if `is_ended` says so before there is something to serve.
    pub(in crate::cli) fn join(
        &self,
        environment: Environment,
        set: Arc<ReplicaSet>,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Option<(DatabaseSlot, Member)>, Failure> {
        self.check_no_cluster()?;
        let options = MemberOptions {
            slate: self.options(environment.memory_limit()),
            url: self.url.clone(),
            spill: self.spill(),
            is_passive: self.given.read_only,
            read_interval: self.given.read_interval,
        };
        Member::join(options, environment, set, is_ended)
    }

    /// True if the server is a node of a cluster.
    pub(in crate::cli) fn is_cluster(&self) -> bool {
        self.given.cluster.is_some()
    }

    /// Joins the cluster. `None` if `is_ended` says so before there is something to serve.
    pub(in crate::cli) fn join_cluster(
        &self,
        environment: Environment,
        identity: NodeIdentity,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Option<(DatabaseSlot, Node)>, Failure> {
        let Some(cluster) = self.given.cluster else {
            return Ok(None);
        };
        let options = NodeOptions {
            slate: self.options(environment.memory_limit()),
            url: self.url.clone(),
            spill: self.spill(),
            cluster,
            me: identity.me,
            tls: identity.tls,
        };
        Node::join(options, environment, is_ended)
    }

    /// Fails if there is a cluster: a single server would begin another database in its place.
    fn check_no_cluster(&self) -> Result<(), Failure> {
        match self.url.is_cluster() {
            Ok(false) => Ok(()),
            Ok(true) => Err(self.failure("there is a cluster; serve it with --cluster")),
            // The probe says more about a store that cannot be used.
            Err(error) => match self.url.probed(SlateOptions::default()) {
                Ok(_) => Err(self.failure(error)),
                Err(unfit) => Err(self.failure(unfit)),
            },
        }
    }

    /// Returns the directory into which queries spill: the cache's, else that of the system for temporary files.
    fn spill(&self) -> PathBuf {
        match &self.given.cache_path {
            Some(cache) => cache.join("spill"),
            None => std::env::temp_dir(),
        }
    }

    /// Opens the database to serve it. Returns also the number of writers that have opened it.
    pub(in crate::cli) fn open(
        &self,
        environment: Environment,
    ) -> Result<(Database, u64), Failure> {
        self.check_no_cluster()?;
        let options = self.options(environment.memory_limit());
        let engine = self
            .url
            .open(options)
            .map_err(|error| self.failure(error))?;
        let epoch = engine.epoch();
        let engine = Arc::new(engine);
        let database = Database::with_engine_and_spill(engine, environment, self.spill());
        let database = database.map_err(|error| self.failure(error.message))?;
        prefetch(&database, self.given.cache_path.as_deref());
        Ok((database, epoch))
    }

    /// Opens the database, or that of a cluster with this name, as the source of a copy.
    pub(in crate::cli) fn source(&self, partition: Option<&str>) -> Result<CopySource, Failure> {
        let database = self.url.database(partition);
        let database = database.map_err(|error| self.failure(error))?;
        let view = database.open_source();
        let view = view.map_err(|error| self.failure(error))?;
        Ok(CopySource::view(Box::new(view)))
    }

    /// Copies the cluster here into a new one at `target`, and calls `report` with the name of each database while it is copied.
    /// `None` if there is no cluster.
    pub(in crate::cli) fn copy_cluster(
        &self,
        target: &Self,
        report: &mut dyn FnMut(&str, &CopyProgress),
    ) -> Result<Option<CopiedCluster>, Failure> {
        let source = self.url.open_cluster_source();
        let Some(source) = source.map_err(|error| self.failure(error))? else {
            return Ok(None);
        };
        let mut out = CopiedCluster {
            partitions: source.partitions(),
            copied: CopyProgress::default(),
        };
        target.check_no_cluster()?;
        let failed = |error| target.failure(error);
        let options = target.options(None);
        let cluster = target.url.create_cluster_for_copy(options, out.partitions);
        let cluster = cluster.map_err(failed)?;
        for (name, view) in source.into_databases() {
            let engine = Arc::new(cluster.create_database(&name).map_err(failed)?);
            let view = CopySource::view(Box::new(view));
            let to = CopyTarget::Engine(engine.clone());
            let copied = offline::copy(&view, to, &mut |progress| report(&name, progress))?;
            engine.finish_copy().map_err(failed)?;
            out.copied.keyspaces += copied.keyspaces;
            out.copied.entries += copied.entries;
            out.copied.bytes += copied.bytes;
        }
        cluster.finish().map_err(failed)?;
        Ok(Some(out))
    }

    /// Returns the databases here: those of a cluster, the one with the name `partition`, or the one of a single server.
    pub(in crate::cli) fn databases(
        &self,
        partition: Option<&str>,
    ) -> Result<Vec<StoredDatabase>, Failure> {
        let found = match partition {
            Some(name) => {
                let url = self.url.database(Some(name));
                url.map(|url| vec![(Some(name.to_owned()), url)])
            }
            None => self.url.databases(),
        };
        let found = found.map_err(|error| self.failure(error))?;
        let stored = |(name, url)| StoredDatabase { name, url };
        Ok(found.into_iter().map(stored).collect())
    }

    /// Copies a database into a new one here.
    pub(in crate::cli) fn copy_here(
        &self,
        from: &CopySource,
        report: &mut dyn FnMut(&CopyProgress),
    ) -> Result<CopyProgress, Failure> {
        self.check_no_cluster()?;
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
        options.merges_itself = !self.given.no_compactor;
        if let Some(interval) = self.given.flush_interval {
            options.flush_interval = interval;
        }
        options
    }

    fn failure(&self, error: impl fmt::Display) -> Failure {
        Failure::Other(format!("cannot open {}: {error}", self.url))
    }
}

/// Reads the newest measurements of a database that was opened, if it has a cache on a disk: a store takes too long for each read.
pub(super) fn prefetch(database: &Database, cache_path: Option<&Path>) {
    if cache_path.is_some() {
        database.prefetch_newest(PREFETCH_MAX);
    }
}
