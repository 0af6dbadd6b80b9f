//! The catalog of a cluster at a node: as its writer, or as a view of what the node that has it has stored.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use nilometer::auth::MemberKey;
use nilometer::commands::error_reply;
use nilometer::operation::{Clock, SystemClock};
use nilometer::router::{
    Coordinator, Partition, PartitionMove, PendingReply, RouterReport, Tenure,
};
use nilometer::services::Environment;
use nilometer::{Database, Error, ErrorCode, Request};
use nilometer_bson::{Document, ObjectId};
use nilometer_cluster::{
    Claim, ClaimBoard, ClusterDescription, SlateEngine, SlateOptions, SlateReader, StorageUrl,
};
use tracing::{info, warn};

use super::{NodeState, failed, failure, lock};
use crate::cli::Failure;
use crate::cluster::{
    CATALOG, Directory, NodePartition, Nodes, Place, Unit, not_here, run_here, send,
};
use crate::database_slot::{DatabaseSlot, NodeRequests};

/// Interval at which a node looks for a newer catalog by itself: so long, users and views that were changed elsewhere may be old.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of checks whether this node still has the catalog.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The catalog at this node.
pub(super) struct Catalog {
    url: StorageUrl,
    slate: SlateOptions,
    nodes: Arc<Nodes>,
    /// False if this node never writes it.
    may_claim: bool,
    cluster_id: ObjectId,
    slot: OnceLock<DatabaseSlot>,
    reader: Mutex<CatalogReader>,
}

/// Reads the catalog. Locked while the database in the slot is replaced.
struct CatalogReader {
    reader: SlateReader,
    /// When the last look that succeeded began.
    looked: Option<Instant>,
}

/// The turn of this node to write the catalog.
pub(super) type OwnCatalog = (Claim, Arc<SlateEngine>);

/// What other nodes ask of the one with the catalog.
struct CatalogUnit(DatabaseSlot);

impl Unit for CatalogUnit {
    fn run(&self, request: &Request) -> Document {
        let router = self.0.current();
        // The catalog was lost after the request was let in. Nothing has run, so it is looked for elsewhere.
        match router.is_view() {
            true => error_reply(&not_here(CATALOG)),
            false => router.run_for_router(request),
        }
    }
}

/// The way from a router to the catalog.
struct ToCatalog(Arc<Catalog>);

impl Coordinator for ToCatalog {
    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        send(&self.0.nodes, CATALOG, request)
    }

    fn catch_up(&self) -> nilometer::Result<()> {
        self.0.catch_up()
    }

    fn cluster_id(&self) -> ObjectId {
        self.0.cluster_id
    }

    fn routers(&self) -> Vec<RouterReport> {
        self.0.nodes.directory.nodes()
    }

    fn moves(&self) -> Vec<PartitionMove> {
        self.0.nodes.directory.moves()
    }
}

impl NodeRequests for ToCatalog {
    fn run(&self, unit: &str, request: &Request) -> Result<Document, Error> {
        run_here(&self.0.nodes, unit, request)
    }

    fn catch_up(&self) -> Result<(), Error> {
        self.0.catch_up()
    }
}

impl Catalog {
    /// Prepares to read the catalog of the cluster at `url`.
    pub(super) fn new(
        url: &StorageUrl,
        slate: &SlateOptions,
        nodes: &Arc<Nodes>,
        (may_claim, cluster): (bool, &ClusterDescription),
    ) -> Result<Arc<Self>, Failure> {
        let url = url.part(CATALOG);
        let reader = url.reader(slate).map_err(failed(&url))?;
        let slate = SlateOptions {
            disk_cache: reader.disk_cache(),
            ..slate.clone()
        };
        Ok(Arc::new(Self {
            url,
            slate,
            nodes: Arc::clone(nodes),
            may_claim,
            cluster_id: ObjectId(cluster.id),
            slot: OnceLock::new(),
            reader: Mutex::new(CatalogReader {
                reader,
                looked: None,
            }),
        }))
    }

    /// Returns the turn of this node, if no node writes the catalog and this one may.
    fn claim(&self, board: &mut ClaimBoard) -> Option<Claim> {
        // A store that fails is asked again.
        let looked = board.look().ok().filter(|_| self.may_claim)?;
        let mut units = looked.units.into_iter();
        let catalog = units.find(|look| look.unit == CATALOG)?;
        catalog.free?.claim().ok().flatten()
    }

    fn open_in_turn(&self, claim: &Claim) -> Result<Option<Arc<SlateEngine>>, Failure> {
        let engine = self.url.open_in_turn(&self.slate, claim);
        Ok(engine.map_err(failed(&self.url))?.map(Arc::new))
    }

    /// Opens the router over the catalog: to write it if it is the turn of this node, else to read it. `None` if `is_ended`
    /// says so while there is neither.
    pub(super) fn open(
        self: &Arc<Self>,
        environment: Environment,
        spill: &Path,
        (cluster, board): (&ClusterDescription, &mut ClaimBoard),
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Option<(DatabaseSlot, Option<OwnCatalog>)>, Failure> {
        let partitions = cluster.names().into_iter().map(|name| {
            let partition: Arc<dyn Partition> = Arc::new(NodePartition::new(&name, &self.nodes));
            partition
        });
        let coordinator = Arc::new(ToCatalog(Arc::clone(self)));
        let (database, own) = loop {
            if is_ended() {
                return Ok(None);
            }
            if let Some(claim) = self.claim(board) {
                let Some(engine) = self.open_in_turn(&claim)? else {
                    continue;
                };
                let opened = engine.clone();
                let partitions = partitions.collect();
                let opened =
                    Database::router_among(opened, environment, spill, partitions, coordinator);
                break (opened, Some((claim, engine)));
            }
            // Without a database, or with a part of one, another node is about to create it.
            let mut reader = lock(&self.reader);
            let view = reader.reader.refresh().ok().flatten();
            let view = view.filter(|view| Database::has_router_catalog(view));
            if view.is_none() {
                reader.reader.forget();
            }
            drop(reader);
            if let Some(view) = view {
                let (view, partitions) = (Arc::new(view), partitions.collect());
                let opened =
                    Database::router_among(view, environment, spill, partitions, coordinator);
                break (opened, None);
            }
            std::thread::sleep(board.look_interval());
        };
        let database = database.map_err(|error| failure(&self.url, &error.message))?;
        let key = MemberKey::new(&cluster.key);
        let key = key.map_err(|error| failure(&self.url, &error.message))?;
        // The database is new, so it is not set yet.
        drop(database.services().member_key.set(key));
        if let Some((claim, _)) = &own {
            claim.note_open();
        }
        let slot = DatabaseSlot::from(Arc::new(database));
        slot.set_node(ToCatalog(Arc::clone(self)));
        drop(self.slot.set(slot.clone()));
        Ok(Some((slot, own)))
    }

    /// Returns the place of the router.
    fn slot(&self) -> nilometer::Result<&DatabaseSlot> {
        self.slot
            .get()
            .ok_or_else(|| Error::new(ErrorCode::InternalError, "the router is not opened yet"))
    }

    /// Waits until the router shows the catalog as it was stored when the call began.
    fn catch_up(&self) -> nilometer::Result<()> {
        let asked = Instant::now();
        let slot = self.slot()?;
        let mut reader = lock(&self.reader);
        if !slot.current().is_view() || reader.looked.is_some_and(|looked| looked >= asked) {
            return Ok(());
        }
        self.look(&mut reader, slot)
    }

    /// Looks for a newer catalog once.
    fn look(&self, reader: &mut CatalogReader, slot: &DatabaseSlot) -> nilometer::Result<()> {
        let began = Instant::now();
        let view = reader.reader.refresh().map_err(|error| {
            Error::new(
                ErrorCode::HostUnreachable,
                format!("the catalog of the cluster cannot be read: {error}"),
            )
        })?;
        if let Some(view) = view {
            let successor = slot.current().router_successor(Arc::new(view));
            // The next look finds it again.
            let successor = successor.inspect_err(|_| reader.reader.forget())?;
            slot.replace(successor);
        }
        reader.looked = Some(began);
        Ok(())
    }
}

/// The thread of a node that writes the catalog, or waits for its turn.
pub(super) struct CatalogKeeper {
    catalog: Arc<Catalog>,
    state: Arc<NodeState>,
}

impl CatalogKeeper {
    pub(super) fn new(catalog: Arc<Catalog>, state: Arc<NodeState>) -> Self {
        Self { catalog, state }
    }

    /// Runs until the node ends. `own` is the turn of this node, if it has it.
    pub(super) fn run(self, mut own: Option<OwnCatalog>) {
        let Some(slot) = self.catalog.slot.get() else {
            return;
        };
        loop {
            own = match own.take() {
                Some(turn) => {
                    if self.serve(slot, turn) {
                        return;
                    }
                    None
                }
                None => match self.wait(slot) {
                    None => return,
                    turn => turn,
                },
            };
        }
    }

    fn directory(&self) -> &Directory {
        &self.catalog.nodes.directory
    }

    /// Has the catalog until it is lost, or the node ends: then returns true.
    fn serve(&self, slot: &DatabaseSlot, (claim, engine): OwnCatalog) -> bool {
        let term = claim.term();
        info!(
            c = "SHARDING",
            id = 22_600,
            term,
            "This node has the catalog of the cluster"
        );
        let tenure = Tenure {
            term,
            since_ms: SystemClock::default().now_ms(),
        };
        let place = Place::Here(Arc::new(CatalogUnit(slot.clone())));
        self.directory().set(CATALOG, place, tenure);
        loop {
            if self.state.sleep(CHECK_INTERVAL) {
                self.directory().forget(CATALOG);
                claim.fall_silent();
                let closed = slot.current().hand_over();
                drop(engine);
                if let Err(problem) = closed {
                    warn!(c = "SHARDING", id = 22_601, error = %problem, "Closing the catalog failed");
                }
                if let Err(problem) = claim.release() {
                    warn!(c = "SHARDING", id = 22_602, error = %problem, "Others wait for the silence of this node");
                }
                return true;
            }
            if engine.is_fenced() || claim.is_lost() {
                self.directory().forget(CATALOG);
                drop(claim);
                info!(
                    c = "SHARDING",
                    id = 22_603,
                    "Another node has the catalog of the cluster"
                );
                self.state.catalog.give_up();
                self.read_again(slot);
                return false;
            }
        }
    }

    /// Shows what is stored, in place of what this node had in memory.
    fn read_again(&self, slot: &DatabaseSlot) {
        let mut reader = lock(&self.catalog.reader);
        reader.reader.forget();
        while let Err(problem) = self.catalog.look(&mut reader, slot) {
            warn!(c = "SHARDING", id = 22_604, error = %problem, "The catalog cannot be read");
            if self.state.sleep(READ_INTERVAL) {
                return;
            }
        }
    }

    /// Reads the catalog until it is the turn of this node; `None` if the node ends before.
    fn wait(&self, slot: &DatabaseSlot) -> Option<OwnCatalog> {
        let mut next_read = Instant::now() + READ_INTERVAL;
        loop {
            if self.state.sleep(CHECK_INTERVAL) {
                return None;
            }
            if Instant::now() >= next_read {
                next_read = Instant::now() + READ_INTERVAL;
                // A store that fails is asked again.
                let _ = self.catalog.catch_up();
            }
            let Some(free) = self.state.catalog.take() else {
                continue;
            };
            match free.claim().map(|claim| Some(self.take_over(slot, claim?))) {
                Ok(Some(Ok(Some(own)))) => return Some(own),
                Ok(Some(Err(problem))) => {
                    warn!(c = "SHARDING", id = 22_605, error = %problem, "Opening the catalog failed");
                }
                // It is the turn of another node, or the store has failed.
                Ok(Some(Ok(None)) | None) | Err(_) => {}
            }
            self.state.catalog.give_up();
        }
    }

    /// Opens the catalog to write it, in place of the view; `None` if it is the turn of another node by now.
    fn take_over(&self, slot: &DatabaseSlot, claim: Claim) -> Result<Option<OwnCatalog>, Failure> {
        let _reader = lock(&self.catalog.reader);
        let Some(engine) = self.catalog.open_in_turn(&claim)? else {
            return Ok(None);
        };
        let successor = slot.current().router_successor(engine.clone());
        let successor = successor.map_err(|error| failure(&self.catalog.url, &error.message))?;
        slot.replace(successor);
        claim.note_open();
        Ok(Some((claim, engine)))
    }
}
