//! Which process has which unit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer::Request;
use nilometer::database::HostedPartition;
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

/// The places of all units.
pub(crate) struct Directory {
    me: String,
    places: Mutex<BTreeMap<String, Place>>,
    /// The nodes of the cluster, and when each was seen last, in ms since 1970.
    nodes: Mutex<Vec<(String, i64)>>,
}

impl Directory {
    /// Makes a directory without entries, of the process at the address `me`.
    pub(crate) fn new(me: &str) -> Self {
        Self {
            me: me.to_owned(),
            places: Mutex::default(),
            nodes: Mutex::default(),
        }
    }

    /// Notes which nodes there are.
    pub(crate) fn set_nodes(&self, nodes: Vec<(String, i64)>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Returns the nodes of the cluster, and when each was seen last, in ms since 1970.
    pub(crate) fn nodes(&self) -> Vec<(String, i64)> {
        let nodes = self.nodes.lock();
        nodes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of this process.
    pub(crate) fn me(&self) -> &str {
        &self.me
    }

    /// Returns where a unit is.
    pub(crate) fn place(&self, unit: &str) -> Place {
        self.lock().get(unit).cloned().unwrap_or(Place::Unknown)
    }

    /// Notes where a unit is.
    pub(crate) fn set(&self, unit: &str, place: Place) {
        self.lock().insert(unit.to_owned(), place);
    }

    /// Returns the address of the process with a unit; empty if it is not known.
    pub(crate) fn host(&self, unit: &str) -> String {
        match self.place(unit) {
            Place::Here(_) => self.me.clone(),
            Place::At(host) => host,
            Place::Unknown => String::new(),
        }
    }
}
