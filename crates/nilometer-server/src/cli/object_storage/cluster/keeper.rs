//! A partition at a node: a thread that claims it, opens it, serves it, and hands it over.
//!
//! A partition moves without copying: its node answers nothing more, waits for the commands that run, closes it and releases
//! the claim; the node that is to have it opens it at its next look. Routers wait meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer::database::HostedPartition;
use nilometer::operation::{Clock, SystemClock};
use nilometer::router::Tenure;
use nilometer::{Database, ErrorCode};
use nilometer_cluster::{Claim, FreeUnit, SlateEngine, SlateOptions, StorageUrl};
use tracing::{info, warn};

use super::{NodeState, SETTLED_AFTER, failed, failure};
use crate::cli::Failure;
use crate::cli::object_storage::with_cluster::prefetch;
use crate::cluster::Place;

/// Interval of checks whether this node still has a partition, and is to have it.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Pause after a partition could not be opened.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait for the commands that run when a partition moves; then they are interrupted.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Longest wait for commands that are interrupted.
const INTERRUPT_MAX: Duration = Duration::from_secs(5);

/// The thread of a node for one partition.
pub(super) struct Keeper {
    name: String,
    url: StorageUrl,
    state: Arc<NodeState>,
}

/// A partition that this node has.
struct OwnPartition {
    claim: Claim,
    engine: Arc<SlateEngine>,
    hosted: Arc<HostedPartition>,
    /// Its storage has ended.
    has_ended: Arc<AtomicBool>,
}

impl Keeper {
    pub(super) fn new(name: &str, state: &Arc<NodeState>) -> Self {
        Self {
            name: name.to_owned(),
            url: state.url.part(name),
            state: Arc::clone(state),
        }
    }

    /// Claims a partition that no node has, and serves it until the claim is lost, the partition moves, or the node ends.
    pub(super) fn run(self, free: FreeUnit) {
        // A store that fails is asked again after the next look.
        let Ok(Some(claim)) = free.claim() else {
            return;
        };
        match self.open(claim) {
            Ok(Some(own)) => self.serve(own),
            Ok(None) => {}
            Err(problem) => {
                let partition = self.name.as_str();
                warn!(c = "SHARDING", id = 22_610, partition, error = %problem, "Opening a partition failed");
                self.state.sleep(RETRY_INTERVAL);
            }
        }
    }

    /// Notes that this node does not have the partition.
    fn forget(&self) {
        self.state.nodes.directory.forget(&self.name);
    }

    /// Opens the partition; `None` if it is the turn of another node by now.
    fn open(&self, claim: Claim) -> Result<Option<OwnPartition>, Failure> {
        let cache_path = self.state.slate.cache_path.as_ref();
        let slate = SlateOptions {
            cache_path: cache_path.map(|path| path.join(&self.name)),
            ..self.state.slate.clone()
        };
        let engine = self.url.open_in_turn(&slate, &claim);
        let Some(engine) = engine.map_err(failed(&self.url))? else {
            return Ok(None);
        };
        let engine = Arc::new(engine);
        let environment = self.state.parts.environment();
        let opened =
            Database::with_engine_and_spill(engine.clone(), environment, &self.state.spill);
        let opened = opened.map_err(|error| failure(&self.url, &error.message))?;
        prefetch(&opened, slate.cache_path.as_deref());
        let has_ended = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&has_ended);
        let note = move |_| ended.store(true, Ordering::Release);
        // The database is new, so it is not set yet.
        drop(opened.services().storage_ended.set(Box::new(note)));
        let hosted = HostedPartition::new(Arc::new(opened));
        let hosted = hosted.map_err(|error| failure(&self.url, &error.message))?;
        claim.note_open();
        Ok(Some(OwnPartition {
            claim,
            engine,
            hosted: Arc::new(hosted),
            has_ended,
        }))
    }

    /// Has the partition until it is lost or moves, or the node ends.
    fn serve(&self, own: OwnPartition) {
        let (partition, term) = (self.name.as_str(), own.claim.term());
        info!(
            c = "SHARDING",
            id = 22_611,
            partition,
            term,
            "This node has a partition"
        );
        let tenure = Tenure {
            term,
            since_ms: SystemClock::default().now_ms(),
        };
        let place = Place::Here(own.hosted.clone());
        let directory = &self.state.nodes.directory;
        directory.set(&self.name, place, tenure);
        loop {
            let is_ending = self.state.sleep(CHECK_INTERVAL);
            if own.engine.is_fenced() || own.claim.is_lost() {
                self.forget();
                own.hosted.database().end_cursors();
                info!(
                    c = "SHARDING",
                    id = 22_612,
                    partition,
                    "Another node has a partition"
                );
                return;
            }
            if own.has_ended.load(Ordering::Acquire) {
                self.forget();
                warn!(
                    c = "SHARDING",
                    id = 22_613,
                    partition,
                    "The storage of a partition has ended; it is opened again"
                );
                return self.hand_over(own);
            }
            let (is_mine, since) = self.state.is_assigned(&self.name);
            if is_ending || (!is_mine && since >= SETTLED_AFTER) {
                self.forget();
                info!(
                    c = "SHARDING",
                    id = 22_614,
                    partition,
                    "A partition moves to another node"
                );
                return self.hand_over(own);
            }
        }
    }

    /// Closes the partition when its commands have ended, and lets another node open it.
    fn hand_over(&self, own: OwnPartition) {
        let OwnPartition {
            claim,
            engine,
            hosted,
            ..
        } = own;
        let partition = self.name.as_str();
        if !has_drained(&hosted, DRAIN_MAX) {
            let operations = &hosted.database().services().operations;
            operations.kill_where(ErrorCode::InterruptedAtShutdown, |_| true);
            has_drained(&hosted, INTERRUPT_MAX);
        }
        let database = Arc::clone(hosted.database());
        database.end_cursors();
        claim.fall_silent();
        if let Err(problem) = database.hand_over() {
            warn!(c = "SHARDING", id = 22_615, partition, error = %problem, "Closing a partition failed");
        }
        drop((engine, hosted, database));
        if let Err(problem) = claim.release() {
            warn!(c = "SHARDING", id = 22_616, partition, error = %problem, "Others wait for the silence of this node");
        }
    }
}

/// Waits until no command runs in a partition that is not in the directory any more. True if there is none.
fn has_drained(hosted: &Arc<HostedPartition>, at_most: Duration) -> bool {
    const LOOK_AGAIN: Duration = Duration::from_millis(5);
    let until = Instant::now() + at_most;
    while Arc::strong_count(hosted) > 1 {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    true
}
