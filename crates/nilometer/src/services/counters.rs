//! Counters and gauges of `serverStatus`.
//!
//! Each is one relaxed atomic: exact in sum, but several are not read at the same moment.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::top::LatencyClass;

/// A number that many threads increment.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Subtracts one; for gauges such as open connections.
    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the value as a BSON long.
    pub fn as_i64(&self) -> i64 {
        i64::try_from(self.get()).unwrap_or(i64::MAX)
    }
}

/// Executions and failures of a command.
#[derive(Debug, Default)]
pub struct CommandCounter {
    /// Executions, including failed ones.
    pub total: Counter,
    /// Executions that returned an error.
    pub failed: Counter,
}

/// Operations by type, as in `serverStatus.opcounters`. Inserts, updates and deletes count documents or
/// statements, the others commands.
#[derive(Debug, Default)]
pub struct OpCounters {
    /// Documents to insert.
    pub insert: Counter,
    /// `find` commands.
    pub query: Counter,
    /// Update statements.
    pub update: Counter,
    /// Delete statements.
    pub delete: Counter,
    /// `getMore` commands.
    pub getmore: Counter,
    /// All other commands.
    pub command: Counter,
}

/// Connections, as reported by the transport.
#[derive(Debug, Default)]
pub struct ConnectionCounters {
    /// Open now.
    pub current: Counter,
    /// Opened since the start.
    pub total_created: Counter,
    /// Refused because too many were open.
    pub rejected: Counter,
    /// With a running command.
    pub active: Counter,
    /// With a `hello` that waits for a change of the topology.
    pub awaiting_topology_changes: Counter,
    /// With a stream of answers to `hello`.
    pub exhaust_hello: Counter,
    /// With a stream of answers to `isMaster`.
    pub exhaust_is_master: Counter,
    /// The limit of open connections.
    pub max: Counter,
}

/// Bytes and messages of the network, as reported by the transport.
#[derive(Debug, Default)]
pub struct NetworkCounters {
    /// Bytes of received messages before compression.
    pub bytes_in: Counter,
    /// Bytes of sent messages before compression.
    pub bytes_out: Counter,
    /// Bytes received on the wire.
    pub physical_bytes_in: Counter,
    /// Bytes sent on the wire.
    pub physical_bytes_out: Counter,
    /// Received messages.
    pub requests: Counter,
}

/// Errors by cause.
#[derive(Debug, Default)]
pub struct AssertCounters {
    /// Internal errors.
    pub regular: Counter,
    /// Errors returned to clients.
    pub user: Counter,
}

/// Documents, as in `serverStatus.metrics.document`.
#[derive(Debug, Default)]
pub struct DocumentCounters {
    /// Removed.
    pub deleted: Counter,
    /// Inserted.
    pub inserted: Counter,
    /// Returned to clients by reads.
    pub returned: Counter,
    /// Changed.
    pub updated: Counter,
}

/// Commands of one class and their total time.
#[derive(Debug, Default)]
pub struct LatencyCounter {
    /// Microseconds.
    pub time_us: Counter,
    /// Commands.
    pub count: Counter,
}

impl LatencyCounter {
    /// Counts a command that took `time`.
    pub fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.time_us.add(micros);
        self.count.increment();
    }
}

/// Command times, as in `serverStatus.opLatencies`.
#[derive(Debug, Default)]
pub struct LatencyCounters {
    /// Commands that read documents.
    pub reads: LatencyCounter,
    /// Commands that write documents.
    pub writes: LatencyCounter,
    /// All others.
    pub commands: LatencyCounter,
}

impl LatencyCounters {
    /// Returns the counter of a class.
    pub fn of(&self, class: LatencyClass) -> &LatencyCounter {
        match class {
            LatencyClass::Read => &self.reads,
            LatencyClass::Write => &self.writes,
            LatencyClass::Command => &self.commands,
        }
    }
}

/// All counters of a database.
#[derive(Debug, Default)]
pub struct Counters {
    /// Operations by type.
    pub operations: OpCounters,
    /// Connections.
    pub connections: ConnectionCounters,
    /// Network.
    pub network: NetworkCounters,
    /// Errors.
    pub asserts: AssertCounters,
    /// Documents.
    pub documents: DocumentCounters,
    /// Command times.
    pub latencies: LatencyCounters,
    /// Operations that exceeded `maxTimeMS`.
    pub time_limit_exceeded: Counter,
    /// Unknown command names.
    pub unknown_commands: Counter,
    commands: OnceLock<Vec<CommandCounter>>,
}

impl Counters {
    /// Returns the counters by position in the command table, which has `count` entries. The table belongs
    /// to a module above, so the caller passes its length.
    pub fn commands(&self, count: usize) -> &[CommandCounter] {
        self.commands
            .get_or_init(|| (0..count).map(|_| CommandCounter::default()).collect())
    }
}
