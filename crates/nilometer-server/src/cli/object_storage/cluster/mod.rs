//! A node of a cluster: it routes, and is the writer of some partitions.
//!
//! ```text
//! node ─┬─ a thread for each partition   waits for its turn, opens it, serves it, hands it over   (`keeper`)
//!       ├─ a thread for the catalog      the same; while another node has it, reads it            (`catalog`)
//!       └─ presence                      which nodes there are, and so which partitions are whose (`assignment`)
//! ```
//!
//! The node that holds the claim of a unit is its writer ([`nilometer_cluster::ClaimBoard`]). The assignment only says which
//! node tries to get the claim. Nodes with different lists of members can delay a takeover, but two never write the same unit.

mod assignment;
mod catalog;
mod keeper;
mod turns;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nilometer::operation::{Clock, SystemClock};
use nilometer::parameters::Parameters;
use nilometer::router::RouterReport;
use nilometer::services::{Environment, HostFacts, IdSource, LogRing};
use nilometer_cluster::{
    ClaimIntervals, MemberReport, NODES_MAX, SeenMember, SlateOptions, StorageUrl,
};

use self::catalog::{Catalog, CatalogKeeper};
use self::turns::{CatalogTurn, TurnKeeper};
use tracing::warn;

use crate::cli::Failure;
use crate::cli::storage::ClusterOptions;
use crate::cluster::{CATALOG, Directory, NodeSecurity, Nodes, Pool};
use crate::database_slot::DatabaseSlot;
use crate::tls::ClientTls;

/// Time for which the nodes must be the same before a partition moves because of them. A partition without a process waits
/// for no longer than its claim.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Interval of the rounds of the balancer.
const BALANCE_INTERVAL: Duration = Duration::from_secs(10);

/// Divisor of the memory for all partitions.
const PARTITIONS_SHARE: u64 = 2;

/// How a node takes part in a cluster.
pub(super) struct NodeOptions {
    pub(super) url: StorageUrl,
    pub(super) slate: SlateOptions,
    /// The directory for queries that spill.
    pub(super) spill: PathBuf,
    pub(super) cluster: ClusterOptions,
    /// The address at which clients and other nodes reach it.
    pub(super) me: String,
    /// How it reaches other nodes, if they use TLS.
    pub(super) tls: Option<ClientTls>,
}

/// A node of a cluster.
pub(in crate::cli) struct Node {
    state: Arc<NodeState>,
    turns: JoinHandle<()>,
    catalog: JoinHandle<()>,
    balancer: JoinHandle<()>,
}

/// What the threads of a node share.
struct NodeState {
    nodes: Arc<Nodes>,
    url: StorageUrl,
    /// For one partition.
    slate: SlateOptions,
    spill: PathBuf,
    parts: PartitionEnvironment,
    names: Vec<String>,
    /// False for a node that only routes.
    owns: bool,
    /// When the node began, in ms since 1970.
    since_ms: i64,
    seen: Mutex<SeenNodes>,
    /// Whose turn it is to write the catalog.
    catalog: CatalogTurn,
    is_ending: Mutex<bool>,
    ended: Condvar,
}

/// The nodes that own partitions, as they were seen last.
struct SeenNodes {
    hosts: BTreeSet<String>,
    /// The partitions that this node is to have.
    mine: BTreeSet<String>,
    since: Instant,
}

/// What the databases of partitions are opened with.
struct PartitionEnvironment {
    parameters: Parameters,
    log: Arc<LogRing>,
    host: HostFacts,
}

impl PartitionEnvironment {
    fn environment(&self) -> Environment {
        Environment {
            clock: Arc::new(SystemClock::default()),
            parameters: self.parameters.clone(),
            log: Arc::clone(&self.log),
            host: self.host.clone(),
            ids: IdSource::default(),
            // Routers have checked the privileges.
            access_control: false,
            ..Environment::default()
        }
    }
}

impl NodeState {
    /// Sleeps; true if the node ends.
    fn sleep(&self, time: Duration) -> bool {
        let is_ending = lock(&self.is_ending);
        let waited = self
            .ended
            .wait_timeout_while(is_ending, time, |ending| !*ending);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// True if this node is to have a partition, and for how long that has been so at least.
    fn is_assigned(&self, partition: &str) -> (bool, Duration) {
        let seen = lock(&self.seen);
        (seen.mine.contains(partition), seen.since.elapsed())
    }

    /// Notes which other nodes there are.
    fn note_members(&self, members: Vec<SeenMember>) {
        let me = self.nodes.directory.me();
        let mut routers = vec![RouterReport {
            host: me.to_owned(),
            since_ms: self.since_ms,
            seen_ms: SystemClock::default().now_ms(),
            only_routes: !self.owns,
        }];
        let mut hosts: BTreeSet<String> = self.owns.then(|| me.to_owned()).into_iter().collect();
        for seen in members {
            routers.push(RouterReport {
                host: seen.report.host.clone(),
                since_ms: seen.report.since_ms,
                seen_ms: seen.seen_ms,
                only_routes: seen.report.is_passive,
            });
            if !seen.report.is_passive {
                hosts.insert(seen.report.host);
            }
        }
        self.nodes.directory.set_nodes(routers);
        // All nodes leave out the same ones.
        while hosts.len() > NODES_MAX {
            hosts.pop_last();
        }
        if lock(&self.seen).hosts == hosts {
            return;
        }
        let assigned = assignment::assign(&self.names, &hosts);
        let mine = assigned.into_iter().filter(|(_, node)| *node == me);
        let mine = mine.map(|(partition, _)| partition.to_owned()).collect();
        *lock(&self.seen) = SeenNodes {
            hosts,
            mine,
            since: Instant::now(),
        };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failure(url: &StorageUrl, error: &dyn std::fmt::Display) -> Failure {
    Failure::Other(format!("cannot join the cluster in {url}: {error}"))
}

/// Returns what makes a failure of an error of the storage.
fn failed<E: std::fmt::Display>(url: &StorageUrl) -> impl Fn(E) -> Failure + '_ {
    move |error| failure(url, &error)
}

impl Node {
    /// Joins the cluster: opens its catalog, or reads it at the node that has it, and begins to look for partitions. `None` if
    /// `is_ended` says so while there is no catalog.
    // long function: the parts of a node, each from the ones before
    pub(super) fn join(
        options: NodeOptions,
        environment: Environment,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Option<(DatabaseSlot, Self)>, Failure> {
        let NodeOptions {
            url, cluster, me, ..
        } = &options;
        let description = url.cluster(cluster.partitions).map_err(failed(url))?;
        let slate = url.probed(options.slate.clone()).map_err(failed(url))?;
        let security = NodeSecurity {
            me: me.clone(),
            key: description.key.clone(),
            tls: options.tls.clone(),
        };
        let nodes = Arc::new(Nodes::new(Directory::new(me), Pool::new(security)));
        let names = description.names();
        let (slate, parts) = shares(slate, &environment, names.len());
        let catalog = Catalog::new(url, &slate, &nodes, (cluster.owns, &description))?;
        let mut units = names.clone();
        units.push(CATALOG.to_owned());
        let board = url.claim_board((units, me), ClaimIntervals::default());
        let mut board = board.map_err(failed(url))?;
        let described = (&description, &mut board);
        let opened = catalog.open(environment, &options.spill, described, is_ended)?;
        let Some((slot, own)) = opened else {
            return Ok(None);
        };
        let since_ms = SystemClock::default().now_ms();
        let report = MemberReport {
            host: me.clone(),
            is_passive: !cluster.owns,
            last_write_ms: 0,
            since_ms,
        };
        board.announce(&report);
        let state = Arc::new(NodeState {
            nodes,
            url: url.clone(),
            slate,
            spill: options.spill.clone(),
            parts,
            names,
            owns: cluster.owns,
            since_ms,
            seen: Mutex::new(SeenNodes {
                hosts: BTreeSet::new(),
                mine: BTreeSet::new(),
                since: Instant::now(),
            }),
            catalog: CatalogTurn::new(own.is_some()),
            is_ending: Mutex::new(false),
            ended: Condvar::new(),
        });
        let no_thread = |error: std::io::Error| failure(url, &error);
        let keeper = CatalogKeeper::new(catalog, Arc::clone(&state));
        let thread = std::thread::Builder::new().name("catalog".into());
        let catalog = thread.spawn(move || keeper.run(own)).map_err(no_thread)?;
        let (balanced, node) = (slot.clone(), Arc::clone(&state));
        let thread = std::thread::Builder::new().name("balancer".into());
        let balancer = thread.spawn(move || balance(&node, &balanced));
        let balancer = balancer.map_err(no_thread)?;
        let keeper = TurnKeeper::new(board, Arc::clone(&state));
        let thread = std::thread::Builder::new().name("turns".into());
        let turns = thread.spawn(move || keeper.run()).map_err(no_thread)?;
        Ok(Some((
            slot,
            Self {
                state,
                turns,
                catalog,
                balancer,
            },
        )))
    }

    /// Leaves: other nodes may have its partitions at once.
    pub(in crate::cli) fn end(self) {
        *lock(&self.state.is_ending) = true;
        self.state.ended.notify_all();
        // A panic was reported when it occurred.
        drop(self.turns.join());
        drop(self.catalog.join());
        drop(self.balancer.join());
    }
}

/// Runs the balancer until the node ends. It does something where the catalog is.
fn balance(state: &NodeState, slot: &DatabaseSlot) {
    while !state.sleep(BALANCE_INTERVAL) {
        if let Err(problem) = slot.current().balance() {
            warn!(c = "SHARDING", id = 22_610, error = %problem, "A round of the balancer failed");
        }
    }
}

/// Divides the memory: the router has what one server has for queries, and the partitions that the node may have share the rest
/// evenly.
fn shares(
    slate: SlateOptions,
    environment: &Environment,
    partitions: usize,
) -> (SlateOptions, PartitionEnvironment) {
    let mut host = environment.host.clone();
    // The router watches the memory of the process.
    host.memory_use = || None;
    let limit = environment.memory_limit();
    let partitions = partitions.min(assignment::HOSTED_MAX);
    let count = u64::try_from(partitions).unwrap_or(u64::MAX).max(1);
    let share = limit.map(|limit| limit / PARTITIONS_SHARE / count);
    let parameters = environment.parameters.clone();
    if let Some(share) = share {
        // It is within the bounds of the parameter.
        drop(parameters.set_at_startup("nilometerMemoryBytes", &share.to_string()));
    }
    let within = SlateOptions::within(share);
    let slate = SlateOptions {
        memory_bytes_max: within.memory_bytes_max,
        memtable_bytes: within.memtable_bytes,
        block_cache_bytes: within.block_cache_bytes,
        table_parts_bytes: within.table_parts_bytes,
        cache_path_bytes: slate.cache_path_bytes / (partitions + 1),
        ..slate
    };
    let parts = PartitionEnvironment {
        parameters,
        log: Arc::clone(&environment.log),
        host,
    };
    (slate, parts)
}
