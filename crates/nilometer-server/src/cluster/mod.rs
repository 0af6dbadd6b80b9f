//! The nodes of a cluster: how a router reaches partitions that other processes have, and they reach its own.
//!
//! ```text
//! router ─► NodePartition ─► Directory: who has it ─┬─ this process ─► a thread runs the command
//!                                                  └─ HOST:PORT ─► Pool ─► NodeConnection ─► the same there
//! ```
//!
//! A *unit* is a database of which one process is the writer: a partition, or the catalog of the cluster. Which process has a
//! unit changes; who asks looks again as long as the command has not run ([`reply`]). How a process comes by its units is
//! in `cli::object_storage::cluster`.

mod connection;
mod directory;
mod pool;
mod reply;
mod threads;

use std::sync::Arc;

use nilometer::router::{Partition, PendingReply, Tenure};
use nilometer::{Error, ErrorCode, Request};
use nilometer_bson::Document;

pub(crate) use directory::{Directory, Place, Unit};
pub(crate) use pool::{NodeSecurity, Pool};
pub(crate) use reply::send;
use threads::UnitThreads;

/// The unit with the catalog, the users and the placements of a cluster.
pub(crate) const CATALOG: &str = "config";

/// What a node knows of the others, and how it reaches them.
pub(crate) struct Nodes {
    pub(crate) directory: Directory,
    pub(crate) pool: Pool,
    threads: UnitThreads,
}

impl Nodes {
    pub(crate) fn new(directory: Directory, pool: Pool) -> Self {
        Self {
            directory,
            pool,
            threads: UnitThreads::default(),
        }
    }
}

/// Returns the error of a node that does not have a unit. Nothing has run.
pub(crate) fn not_here(unit: &str) -> Error {
    let text = format!("this process does not have {unit}");
    Error::new(ErrorCode::NotWritablePrimary, text).with_details(reply::not_here_details())
}

/// Runs a command of another node in a unit of this one.
pub(crate) fn run_here(nodes: &Nodes, unit: &str, request: &Request) -> Result<Document, Error> {
    match nodes.directory.place(unit) {
        Place::Here(unit) => Ok(unit.run(request)),
        Place::At(_) | Place::Unknown => Err(not_here(unit)),
    }
}

/// A partition of the cluster, wherever it is.
pub(crate) struct NodePartition {
    name: String,
    nodes: Arc<Nodes>,
}

impl NodePartition {
    pub(crate) fn new(name: &str, nodes: &Arc<Nodes>) -> Self {
        Self {
            name: name.to_owned(),
            nodes: Arc::clone(nodes),
        }
    }
}

impl Partition for NodePartition {
    fn name(&self) -> &str {
        &self.name
    }

    fn host(&self) -> String {
        self.nodes.directory.host(&self.name)
    }

    fn tenure(&self) -> Option<Tenure> {
        self.nodes.directory.tenure(&self.name)
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        send(&self.nodes, &self.name, request)
    }
}
