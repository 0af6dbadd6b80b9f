//! The connections to other nodes: idle ones are used again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer::Error;

use super::connection::NodeConnection;
use crate::tls::ClientTls;

/// Idle connections that are kept for each node.
const IDLE_MAX: usize = 64;

/// Connections to one node, and so its requests in flight.
const IN_FLIGHT_MAX: usize = 1024;

/// How nodes prove to each other that they belong to the cluster.
pub(crate) struct NodeSecurity {
    /// The address of this process, for the logs of others.
    pub(crate) me: String,
    /// The key of the cluster.
    pub(crate) key: String,
    /// TLS, if the nodes use it.
    pub(crate) tls: Option<ClientTls>,
}

/// Connections to other nodes.
pub(crate) struct Pool {
    security: NodeSecurity,
    nodes: Mutex<BTreeMap<String, NodeConnections>>,
}

#[derive(Default)]
struct NodeConnections {
    idle: Vec<NodeConnection>,
    in_flight: usize,
}

/// A connection that is used for one request.
pub(super) struct PooledConnection {
    pool: Arc<super::Nodes>,
    address: String,
    connection: Option<NodeConnection>,
}

impl Pool {
    pub(crate) fn new(security: NodeSecurity) -> Self {
        Self {
            security,
            nodes: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, NodeConnections>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle connection to a node, or opens one. `None` if the node has as many requests as it may have.
    pub(super) fn take(
        nodes: &Arc<super::Nodes>,
        address: &str,
    ) -> Result<Option<PooledConnection>, Error> {
        let pool = &nodes.pool;
        let idle = {
            let mut all = pool.lock();
            let node = all.entry(address.to_owned()).or_default();
            if node.in_flight >= IN_FLIGHT_MAX {
                return Ok(None);
            }
            node.in_flight += 1;
            std::mem::take(&mut node.idle)
        };
        // Dropped, it is no longer in flight.
        let mut taken = PooledConnection {
            pool: Arc::clone(nodes),
            address: address.to_owned(),
            connection: None,
        };
        let mut idle = idle.into_iter();
        taken.connection = idle.by_ref().rev().find(NodeConnection::is_open);
        let rest: Vec<_> = idle.collect();
        if !rest.is_empty() {
            let mut all = pool.lock();
            if let Some(node) = all.get_mut(address) {
                node.idle.splice(0..0, rest);
            }
        }
        if taken.connection.is_none() {
            taken.connection = Some(NodeConnection::open(address, &pool.security)?);
        }
        Ok(Some(taken))
    }
}

impl PooledConnection {
    /// Returns the connection.
    pub(super) fn get(&mut self) -> Result<&mut NodeConnection, Error> {
        let address = &self.address;
        let connection = self.connection.as_mut();
        connection.ok_or_else(|| super::connection::unreachable(address, "it is closed"))
    }

    /// Returns the address of the node.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Closes the connection: its reply was not read.
    pub(super) fn close(mut self) {
        self.connection = None;
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let mut all = self.pool.pool.lock();
        let Some(node) = all.get_mut(&self.address) else {
            return;
        };
        node.in_flight = node.in_flight.saturating_sub(1);
        if let Some(connection) = self.connection.take()
            && node.idle.len() < IDLE_MAX
        {
            node.idle.push(connection);
        }
        if node.in_flight == 0 && node.idle.is_empty() {
            all.remove(&self.address);
        }
    }
}
