//! Counters that only grow, and gauges, as `serverStatus` shows them.
//!
//! Each is one relaxed atomic: exact in sum, not a snapshot of one moment across counters.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::top::LatencyClass;

/// A number that many threads add to.
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

    /// Takes one away; for gauges such as open connections.
    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The value as BSON has it.
    pub fn as_i64(&self) -> i64 {
        i64::try_from(self.get()).unwrap_or(i64::MAX)
    }
}

/// How often a command ran and failed.
#[derive(Debug, Default)]
pub struct CommandCounter {
    /// Runs, failed ones included.
    pub total: Counter,
    /// Runs that answered an error.
    pub failed: Counter,
}

/// Operations by kind, as `serverStatus.opcounters` has them. Inserts, updates and deletes count
/// documents or statements, the others commands.
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

/// Connections, as the transport reports them.
#[derive(Debug, Default)]
pub struct ConnectionCounters {
    /// Open now.
    pub current: Counter,
    /// Opened since the start.
    pub total_created: Counter,
    /// Turned away because too many were open.
    pub rejected: Counter,
    /// With a command running now.
    pub active: Counter,
    /// How many may be open.
    pub max: Counter,
}

/// Bytes and messages over the network, as the transport reports them.
#[derive(Debug, Default)]
pub struct NetworkCounters {
    /// Bytes of messages as they count uncompressed.
    pub bytes_in: Counter,
    /// Bytes of messages as they count uncompressed.
    pub bytes_out: Counter,
    /// Bytes that came over the wire.
    pub physical_bytes_in: Counter,
    /// Bytes that went over the wire.
    pub physical_bytes_out: Counter,
    /// Messages that came in.
    pub requests: Counter,
}

/// Errors by origin.
#[derive(Debug, Default)]
pub struct AssertCounters {
    /// Errors that are our fault.
    pub regular: Counter,
    /// Errors answered to clients.
    pub user: Counter,
}

/// Documents touched, as `serverStatus.metrics.document` has them.
#[derive(Debug, Default)]
pub struct DocumentCounters {
    /// Removed.
    pub deleted: Counter,
    /// Inserted.
    pub inserted: Counter,
    /// Given to clients by reads.
    pub returned: Counter,
    /// Changed.
    pub updated: Counter,
}

/// Commands of one class and the time they took.
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

/// What commands took, as `serverStatus.opLatencies` has it.
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
    /// The counter of a class.
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
    /// Operations by kind.
    pub operations: OpCounters,
    /// Connections.
    pub connections: ConnectionCounters,
    /// Network.
    pub network: NetworkCounters,
    /// Errors.
    pub asserts: AssertCounters,
    /// Documents.
    pub documents: DocumentCounters,
    /// What commands took.
    pub latencies: LatencyCounters,
    /// Operations that ended by `maxTimeMS`.
    pub time_limit_exceeded: Counter,
    /// Names that no command has.
    pub unknown_commands: Counter,
    commands: OnceLock<Vec<CommandCounter>>,
}

impl Counters {
    /// The counters by position in the command table, which has `count` entries. The table is
    /// another room's, so its length comes from there.
    pub fn commands(&self, count: usize) -> &[CommandCounter] {
        self.commands
            .get_or_init(|| (0..count).map(|_| CommandCounter::default()).collect())
    }
}
