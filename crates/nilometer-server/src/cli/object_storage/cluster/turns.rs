//! Whose turn it is to write which unit: one thread of a node looks at the claims of all, and starts a thread for each partition
//! that this node is to have and no node writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nilometer::router::Tenure;
use nilometer_cluster::{ClaimBoard, FreeUnit, UnitLook, UnitWriter};
use tracing::warn;

use super::keeper::Keeper;
use super::{NodeState, lock};
use crate::cluster::{CATALOG, Directory, Place};

/// The turn to write the catalog, as two threads of a node see it: one looks at the claims, the other claims and serves.
pub(super) struct CatalogTurn(Mutex<CatalogState>);

struct CatalogState {
    /// This node has it, or is about to.
    is_own: bool,
    /// The way to claim it, if no node writes it.
    free: Option<FreeUnit>,
}

impl CatalogTurn {
    pub(super) fn new(is_own: bool) -> Self {
        Self(Mutex::new(CatalogState { is_own, free: None }))
    }

    /// Returns the way to claim the catalog, if no node writes it. What others say of it does not count from then on.
    pub(super) fn take(&self) -> Option<FreeUnit> {
        let mut state = lock(&self.0);
        let free = state.free.take();
        state.is_own |= free.is_some();
        free
    }

    /// Notes that this node does not have the catalog.
    pub(super) fn give_up(&self) {
        lock(&self.0).is_own = false;
    }

    /// Notes a look.
    fn note(&self, look: UnitLook, directory: &Directory, may_claim: bool) {
        let mut state = lock(&self.0);
        if !state.is_own {
            note_writer(directory, CATALOG, look.writer);
            state.free = look.free.filter(|_| may_claim);
        }
    }
}

/// The thread that looks at the claims.
pub(super) struct TurnKeeper {
    board: ClaimBoard,
    state: Arc<NodeState>,
    /// The threads of the partitions that this node has, or tries to have.
    partitions: BTreeMap<String, JoinHandle<()>>,
}

impl TurnKeeper {
    pub(super) fn new(board: ClaimBoard, state: Arc<NodeState>) -> Self {
        Self {
            board,
            state,
            partitions: BTreeMap::new(),
        }
    }

    /// Runs until the node ends and has handed its partitions over.
    pub(super) fn run(mut self) {
        loop {
            // A store that fails is asked again.
            if let Ok(looked) = self.board.look() {
                self.partitions.retain(|_, thread| !thread.is_finished());
                self.state.note_members(looked.members);
                for look in looked.units {
                    self.note(look);
                }
            }
            if self.state.sleep(self.board.look_interval()) {
                break;
            }
        }
        // Before the partitions are closed, so that others know by then whose turn it is.
        self.board.leave();
        for (_, thread) in self.partitions {
            // A panic was reported when it occurred.
            drop(thread.join());
        }
    }

    fn note(&mut self, look: UnitLook) {
        let directory = &self.state.nodes.directory;
        if look.unit == CATALOG {
            self.state.catalog.note(look, directory, self.state.owns);
            return;
        }
        if self.partitions.contains_key(&look.unit) {
            return;
        }
        note_writer(directory, &look.unit, look.writer);
        let (is_mine, _) = self.state.is_assigned(&look.unit);
        let Some(free) = look.free.filter(|_| is_mine) else {
            return;
        };
        let keeper = Keeper::new(&look.unit, &self.state);
        let thread = std::thread::Builder::new().name(format!("keeper-{}", look.unit));
        match thread.spawn(move || keeper.run(free)) {
            Ok(thread) => drop(self.partitions.insert(look.unit, thread)),
            Err(problem) => {
                let partition = look.unit.as_str();
                warn!(c = "SHARDING", id = 22_617, partition, error = %problem, "No thread for a partition");
            }
        }
    }
}

/// Notes which process writes a unit that this one does not write.
fn note_writer(directory: &Directory, unit: &str, writer: Option<UnitWriter>) {
    // A process that had the address of this one before is gone.
    match writer.filter(|writer| writer.host != directory.me()) {
        Some(writer) => {
            let tenure = Tenure {
                term: writer.term,
                since_ms: writer.since_ms,
            };
            directory.set(unit, Place::At(writer.host), tenure);
        }
        None => directory.forget(unit),
    }
}
