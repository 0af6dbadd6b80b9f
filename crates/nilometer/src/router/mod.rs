//! Routing: which partition has which documents of a cluster, and what each is asked.
//!
//! ```text
//! partition   the trait of a partition, requests and replies
//! message     the form of requests to partitions in other processes
//! report      what a router knows of the processes of the cluster
//! versions    changes of placements when there are several routers
//! shard_key   which fields decide where documents go
//! targets     the keys that a filter admits
//! key_changes what an update writes into the key of a document
//! key_guard   updates that change a key, in the partition
//! key_moves   updates that put a document into another partition
//! placement   chunks, history, primaries; `partition_cache` has the partitions of the keys of one batch
//! stored      the placements in the router's engine
//! moves       documents of ordinary collections that move between partitions
//! open_ranges what a statement for many documents has still to change while ranges move
//! balancing   which ranges go elsewhere so that all partitions are written at one rate
//! source      collections of the cluster as queries see them
//! config      the virtual collections of the database `config`
//! ```
//!
//! A router is a [`Database`](crate::Database) with a [`Router`] inside: its catalog is that of the cluster, and its
//! collections are in partitions ([decision 0027](../../../../docs/decisions/0027-partitions-behind-a-router.md)). This
//! module knows no command and no network: a partition is anything that answers requests.

mod balancing;
mod config;
mod key_changes;
mod key_guard;
mod key_moves;
mod message;
mod moves;
mod open_ranges;
mod partition;
mod partition_cache;
mod placement;
mod report;
mod shard_key;
mod source;
mod stored;
mod targets;
mod versions;

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use nilometer_bson::Document;
use nilometer_storage::Engine;

pub use self::message::{PARTITION_FIELD, addressed, message_to};
pub use self::partition::{Partition, PendingReply};
pub use self::report::{PartitionMove, RouterReport, Tenure};
pub use self::versions::Coordinator;

pub(crate) use self::balancing::{ActiveWindow, BalancerMemory, KeyWeights, Loads, plan};
pub(crate) use self::config::{default_settings, version as version_of};
pub(crate) use self::key_changes::{KeyChange, KeyRule, narrowed};
pub(crate) use self::key_guard::{KeyGuard, key_change_in, key_change_of};
pub(crate) use self::key_moves::KeyUpdate;
pub(crate) use self::message::{GIVEN_SEQUENCE, read_placement};
pub(crate) use self::open_ranges::{OpenPart, OpenRanges};
pub(crate) use self::partition::{END_COMMAND, checked, command, error_of, wait, write_request};
pub(crate) use self::partition_cache::PartitionCache;
pub(crate) use self::placement::{Placement, Sharding};
pub(crate) use self::shard_key::{KeyBound, ShardKey};
pub(crate) use self::source::{RoutedCollection, batch_of, constants};
pub(crate) use self::stored::Placements;
pub(crate) use self::versions::{
    ACCEPTED_FIELD, CURSORS_FIELD, MOVE_COMMAND, NOTE_COMMAND, OPENING_FIELD, PLACE_COMMAND,
    RAISE_COMMAND, READS_FIELD, SETTLE_COMMAND, SYNC_COMMAND, stale, version_asked,
};

use self::stored::PlacementMap;
use crate::catalog::{Namespace, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::IdSource;
use crate::operation::{OperationContext, Request};
use crate::session::SessionId;

/// The partitions of a cluster, and where documents are.
pub(crate) struct Router {
    partitions: Vec<Arc<dyn Partition>>,
    names: Vec<String>,
    /// Replaced when a router that follows another reads newer ones.
    placements: RwLock<Arc<Placements>>,
    /// Reaches the router that changes the catalog; `None` if there is no other router.
    coordinator: Option<Arc<dyn Coordinator>>,
    ids: Arc<IdSource>,
    /// Held by commands that change the catalog or the placement.
    changes: Mutex<()>,
    /// Held by writes while they follow a placement.
    writes: RwLock<()>,
    /// Held by a round of the balancer.
    balancer: Mutex<BalancerMemory>,
    balancer_rounds: AtomicI64,
}

impl Router {
    /// Opens the router over `partitions`. `engine` has the placements; `options_of` returns the options of a time series.
    pub(crate) fn open(
        partitions: Vec<Arc<dyn Partition>>,
        coordinator: Option<Arc<dyn Coordinator>>,
        engine: Arc<dyn Engine>,
        ids: Arc<IdSource>,
        options_of: impl Fn(&Namespace) -> Option<TimeseriesOptions>,
    ) -> Result<Self> {
        let names: Vec<String> = partitions.iter().map(|p| p.name().to_owned()).collect();
        let mut known = HashSet::new();
        for name in &names {
            if !known.insert(name) {
                return Err(Error::bad_value(format!(
                    "two partitions are called '{name}'"
                )));
            }
        }
        if names.is_empty() {
            return Err(Error::bad_value("a router needs a partition"));
        }
        let placements = Placements::open(engine, &names, options_of)?;
        Ok(Self {
            partitions,
            names,
            placements: RwLock::new(Arc::new(placements)),
            coordinator,
            ids,
            changes: Mutex::new(()),
            writes: RwLock::new(()),
            balancer: Mutex::default(),
            balancer_rounds: AtomicI64::new(0),
        })
    }

    /// Reads the placements in the engine of another database of this router.
    pub(crate) fn read_again(
        &self,
        engine: Arc<dyn Engine>,
        options_of: impl Fn(&Namespace) -> Option<TimeseriesOptions>,
    ) -> Result<Arc<Placements>> {
        Placements::open(engine, &self.names, options_of).map(Arc::new)
    }

    /// Follows other placements from now on.
    pub(crate) fn show(&self, read: Arc<Placements>) {
        let placements = self.placements.write();
        *placements.unwrap_or_else(PoisonError::into_inner) = read;
    }

    /// Returns the placements that it follows.
    pub(crate) fn shown(&self) -> Arc<Placements> {
        self.stored()
    }

    fn stored(&self) -> Arc<Placements> {
        let placements = self.placements.read();
        Arc::clone(&placements.unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of partitions.
    pub(crate) fn count(&self) -> usize {
        self.partitions.len()
    }

    /// Returns the name of a partition.
    pub(crate) fn name(&self, partition: usize) -> &str {
        self.names.get(partition).map_or("", String::as_str)
    }

    /// Returns the host of a partition.
    pub(crate) fn host(&self, partition: usize) -> String {
        self.partitions
            .get(partition)
            .map_or_else(String::new, |p| p.host())
    }

    /// Returns the number of the partition with this name.
    pub(crate) fn number_of(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().position(|known| known == name);
        found.ok_or_else(|| {
            Error::new(
                ErrorCode::ShardNotFound,
                format!("Could not find shard with identifier '{name}'"),
            )
        })
    }

    /// Returns where the documents of a collection are; `None` if it is not placed.
    pub(crate) fn placement(&self, namespace: &Namespace) -> Option<Arc<Placement>> {
        self.stored().now().get(namespace).cloned()
    }

    /// Returns how a collection is divided; `None` if it is not sharded.
    pub(crate) fn sharding(&self, namespace: &Namespace) -> Option<Arc<Sharding>> {
        self.placement(namespace)?.sharding.clone()
    }

    /// Returns all placements.
    pub(crate) fn placements(&self) -> Arc<PlacementMap> {
        self.stored().now()
    }

    /// Stores the placement of a collection; `None` removes it. The caller holds [`Self::lock_changes`].
    pub(crate) fn set_placement(
        &self,
        namespace: &Namespace,
        placement: Option<Placement>,
    ) -> Result<()> {
        self.stored().set(namespace, placement, 0, &self.names)
    }

    /// Lets one command at a time change catalog and placement.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is held by a write from before it reads a placement until the partitions have answered.
    pub(crate) fn begin_write(&self) -> RwLockReadGuard<'_, ()> {
        self.writes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the writes that run, and keeps others back.
    pub(crate) fn stop_writes(&self) -> RwLockWriteGuard<'_, ()> {
        self.writes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the round of the balancer that runs, and keeps others back. Comes before all other locks.
    pub(crate) fn balancing(&self) -> MutexGuard<'_, BalancerMemory> {
        let balancer = self.balancer.lock();
        balancer.unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the balancer runs.
    pub(crate) fn is_balancing(&self) -> bool {
        matches!(self.balancer.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Returns the number of rounds of the balancer.
    pub(crate) fn balancer_rounds(&self) -> i64 {
        self.balancer_rounds.load(Ordering::Relaxed)
    }

    /// Counts a round of the balancer.
    pub(crate) fn count_round(&self) {
        self.balancer_rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the partition of a new collection: that with the fewest.
    pub(crate) fn new_primary(&self) -> usize {
        let map = self.placements();
        let count = |partition: usize| map.values().filter(|p| p.primary == partition).count();
        (0..self.count())
            .min_by_key(|partition| count(*partition))
            .unwrap_or(0)
    }

    /// Returns the id of a new collection in `config`.
    pub(crate) fn new_uuid(&self) -> [u8; 16] {
        self.ids.uuid()
    }

    /// Returns a session for one request and what follows it.
    pub(crate) fn new_session(&self) -> SessionId {
        SessionId(self.ids.uuid())
    }

    /// Sends a request to a partition, without waiting.
    pub(crate) fn send(&self, partition: usize, request: Request) -> Result<Box<dyn PendingReply>> {
        match self.partitions.get(partition) {
            Some(partition) => Ok(partition.send(request)),
            None => Err(Error::new(
                ErrorCode::ShardNotFound,
                format!("there is no partition number {partition}"),
            )),
        }
    }

    /// Asks several partitions at the same time. Waits for all, then fails with the first error.
    pub(crate) fn ask_all(
        &self,
        partitions: &[usize],
        database: &str,
        body: &Document,
        operation: &OperationContext,
    ) -> Result<Vec<Document>> {
        let replies = self.ask_each(partitions, database, body, operation);
        replies.into_iter().collect()
    }

    /// Asks several partitions at the same time, and waits for all.
    pub(crate) fn ask_each(
        &self,
        partitions: &[usize],
        database: &str,
        body: &Document,
        operation: &OperationContext,
    ) -> Vec<Result<Document>> {
        let pending = partitions.iter().map(|partition| {
            let request = command(database, body.clone(), operation, None);
            self.send(*partition, Request::new(request))
        });
        let pending: Vec<_> = pending.collect();
        let replies = pending.into_iter();
        let replies = replies.map(|reply| wait(&mut *reply?, operation));
        replies.collect()
    }
}
