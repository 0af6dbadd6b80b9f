//! Which process has which unit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer::Request;
use nilometer::database::HostedPartition;
use nilometer::router::{PartitionMove, RouterReport, Tenure};
use nilometer_bson::Document;

/// A database of which this process is the writer.
pub(crate) trait Unit: Send + Sync {
    /// Runs a command of a router of the cluster.
    fn run(&self, request: &Request) -> Document;
}

impl Unit for HostedPartition {
    fn run(&self, request: &Request) -> Document {
        Self::run(self, request)
    }
}

/// Where a unit is.
#[derive(Clone)]
pub(crate) enum Place {
    /// In this process.
    Here(Arc<dyn Unit>),
    /// In the process at this address.
    At(String),
    /// Not known: its process has ended, or it moves.
    Unknown,
}

/// Moves of units that are remembered.
const MOVES_MAX: usize = 200;

/// The places of all units.
pub(crate) struct Directory {
    me: String,
    places: Mutex<BTreeMap<String, Entry>>,
    /// The nodes of the cluster.
    nodes: Mutex<Vec<RouterReport>>,
    /// The last moves, the earliest first.
    moves: Mutex<VecDeque<PartitionMove>>,
}

/// A unit.
struct Entry {
    place: Place,
    /// The process that has it, or had it last; empty if none is known.
    last_host: String,
    /// The turn of that process.
    tenure: Tenure,
}

impl Directory {
    /// Makes a directory without entries, of the process at the address `me`.
    pub(crate) fn new(me: &str) -> Self {
        Self {
            me: me.to_owned(),
            places: Mutex::default(),
            nodes: Mutex::default(),
            moves: Mutex::default(),
        }
    }

    /// Notes which nodes there are.
    pub(crate) fn set_nodes(&self, nodes: Vec<RouterReport>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Returns the nodes of the cluster.
    pub(crate) fn nodes(&self) -> Vec<RouterReport> {
        let nodes = self.nodes.lock();
        nodes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of this process.
    pub(crate) fn me(&self) -> &str {
        &self.me
    }

    /// Returns where a unit is.
    pub(crate) fn place(&self, unit: &str) -> Place {
        let places = self.lock();
        let entry = places.get(unit);
        entry.map_or(Place::Unknown, |entry| entry.place.clone())
    }

    /// Notes that a process has a unit.
    pub(crate) fn set(&self, unit: &str, place: Place, tenure: Tenure) {
        let host = self.host_of(&place);
        let entry = Entry {
            place,
            last_host: host.clone(),
            tenure,
        };
        let before = self.lock().insert(unit.to_owned(), entry);
        let Some(before) = before.filter(|before| before.last_host != host) else {
            return;
        };
        let moves = self.moves.lock();
        let mut moves = moves.unwrap_or_else(PoisonError::into_inner);
        if moves.len() == MOVES_MAX {
            moves.pop_front();
        }
        moves.push_back(PartitionMove {
            partition: unit.to_owned(),
            from: before.last_host,
            to: host,
            tenure,
        });
    }

    /// Notes that it is not known which process has a unit.
    pub(crate) fn forget(&self, unit: &str) {
        if let Some(entry) = self.lock().get_mut(unit) {
            entry.place = Place::Unknown;
        }
    }

    /// Returns the turn of the process that has a unit; `None` if that is not known.
    pub(crate) fn tenure(&self, unit: &str) -> Option<Tenure> {
        let places = self.lock();
        let known = |entry: &&Entry| !matches!(entry.place, Place::Unknown);
        places.get(unit).filter(known).map(|entry| entry.tenure)
    }

    /// Returns the last moves of units that this process has seen, the earliest first.
    pub(crate) fn moves(&self) -> Vec<PartitionMove> {
        let moves = self.moves.lock();
        let moves = moves.unwrap_or_else(PoisonError::into_inner);
        moves.iter().cloned().collect()
    }

    /// Returns the address of the process with a unit; empty if it is not known.
    pub(crate) fn host(&self, unit: &str) -> String {
        self.host_of(&self.place(unit))
    }

    fn host_of(&self, place: &Place) -> String {
        match place {
            Place::Here(_) => self.me.clone(),
            Place::At(host) => host.clone(),
            Place::Unknown => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_remembered_and_no_others() {
        let directory = Directory::new("a:1");
        let at = |host: &str| Place::At(host.to_owned());
        let tenure = |term| Tenure {
            term,
            since_ms: 1000,
        };
        directory.forget("p0001");
        assert_eq!(directory.tenure("p0001"), None);
        for (host, term) in [("b:1", 1), ("b:1", 1), ("b:1", 2)] {
            directory.set("p0001", at(host), tenure(term));
        }
        assert_eq!(directory.moves(), []);
        directory.forget("p0001");
        assert_eq!(
            (directory.host("p0001"), directory.tenure("p0001")),
            (String::new(), None)
        );
        directory.set("p0001", at("c:1"), tenure(3));
        let moved = PartitionMove {
            partition: "p0001".into(),
            from: "b:1".into(),
            to: "c:1".into(),
            tenure: tenure(3),
        };
        assert_eq!(directory.moves(), [moved]);
        assert_eq!(directory.tenure("p0001"), Some(tenure(3)));
        for term in 4..500 {
            directory.set("p0001", at(&format!("d:{term}")), tenure(term));
        }
        assert_eq!(directory.moves().len(), MOVES_MAX);
    }
}
