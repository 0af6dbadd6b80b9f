//! What commands share besides data: parameters, counters, running operations, sessions, the log.
//!
//! Everything here is in memory, bounded by a named limit, and may be lost at any moment without
//! harm to data. Nothing here is global: a process may hold several databases.

mod connections;
mod counters;
pub(crate) mod describe;
mod host;
mod log_ring;
mod logical_sessions;
mod operations;
mod profiler;
mod top;

pub use connections::Connections;
pub use counters::{Counter, Counters, LatencyCounter, OpCounters};
pub use host::{Environment, HostFacts, MemoryUse};
pub use log_ring::{LogLines, LogRing};
pub use logical_sessions::{LogicalSessions, SessionUse, TIMEOUT_MINUTES};
pub use operations::{OperationEntry, OperationGuard, Operations};
pub use profiler::{Profiler, Profiling};
pub use top::{Latency, LatencyClass, Top, TopEntry, TopKind, TopUse};

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nilometer_bson::Document;

pub use crate::ids::IdSource;
use crate::operation::Clock;
use crate::parameters::Parameters;

/// Takes what is to be written into the audit log.
pub type AuditSink = Box<dyn Fn(&Document) + Send + Sync>;

/// Reads the certificates of the transport anew; fails with a reason.
pub type RotateCertificates = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Asks whoever runs the database to end.
pub type ShutdownRequest = Box<dyn Fn() + Send + Sync>;

/// The shared services of one database.
pub struct Services {
    /// The clock the database was opened with.
    pub clock: Arc<dyn Clock>,
    /// Server parameters.
    pub parameters: Parameters,
    /// What happened so far.
    pub counters: Counters,
    /// What is running.
    pub operations: Operations,
    /// The connections a transport has open.
    pub connections: Connections,
    /// The logical sessions clients opened.
    pub sessions: LogicalSessions,
    /// Time spent per collection.
    pub top: Top,
    /// Which operations are told of.
    pub profiler: Profiler,
    /// The last lines of the log, for `getLog`.
    pub log: Arc<LogRing>,
    /// The machine and the process.
    pub host: HostFacts,
    /// Where identities and random numbers come from.
    pub ids: Arc<IdSource>,
    /// How the `shutdown` command ends the process, if there is one to end.
    pub shutdown: OnceLock<ShutdownRequest>,
    /// Where the audit log is written, if it is.
    pub audit: OnceLock<AuditSink>,
    /// How the transport reads its certificates anew, if it has any.
    pub rotate_certificates: OnceLock<RotateCertificates>,
    /// True while the process has nearly all the memory it may have.
    pub(crate) memory_is_short: AtomicBool,
    /// True if clients may do only what their user is allowed.
    pub access_control: bool,
    started_ms: i64,
    started: Duration,
}

impl Services {
    /// Services for a database opened now.
    pub fn new(environment: Environment) -> Self {
        let Environment {
            clock,
            parameters,
            log,
            host,
            ids,
            access_control,
        } = environment;
        Self {
            started_ms: clock.now_ms(),
            started: clock.monotonic(),
            counters: Counters::default(),
            operations: Operations::default(),
            connections: Connections::default(),
            sessions: LogicalSessions::default(),
            top: Top::default(),
            profiler: Profiler::default(),
            clock,
            parameters,
            log,
            host,
            ids: Arc::new(ids),
            shutdown: OnceLock::new(),
            audit: OnceLock::new(),
            rotate_certificates: OnceLock::new(),
            memory_is_short: AtomicBool::new(false),
            access_control,
        }
    }

    /// Bytes of memory the process may have, if that is known.
    pub fn memory_limit(&self) -> Option<u64> {
        host::memory_limit(&self.parameters, &self.host)
    }

    /// When the database was opened, in milliseconds since 1970.
    pub fn started_ms(&self) -> i64 {
        self.started_ms
    }

    /// How long it has been open.
    pub fn uptime(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }
}
