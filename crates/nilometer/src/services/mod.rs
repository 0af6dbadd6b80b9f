//! Shared services of commands besides data: parameters, counters, running operations, sessions, the log.
//!
//! Everything here is in memory, bounded by a named limit, and may be lost without harm to data. Nothing is
//! global: a process may open several databases.

mod connections;
mod counters;
pub(crate) mod describe;
mod fail_point;
mod host;
mod log_levels;
mod log_ring;
mod logical_sessions;
mod operations;
mod profiler;
mod replica_set;
mod top;

pub use connections::{Connections, OpenConnection};
pub use counters::{Counter, Counters, LatencyCounter, OpCounters};
pub(crate) use fail_point::{
    CommandFailure, EnteringCommand, FAIL_WRITE, FailPoint, FailPointData, FailPointMode,
};
pub use host::{Environment, HostFacts, MemoryUse};
pub use log_levels::{LogLevels, VERBOSITY_MAX};
pub use log_ring::{LogLines, LogRing};
pub use logical_sessions::{LogicalSessions, SessionUse, TIMEOUT_MINUTES};
pub use operations::{OperationEntry, OperationGuard, Operations};
pub use profiler::{Profiler, ProfilerSettings};
pub use replica_set::{
    MemberRole, OtherMember, ReplicaSet, ReplicaSetState, StepDown, StepDownRequest,
};
pub use top::{Latency, LatencyClass, Top, TopEntry, TopKind, TopUse};

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nilometer_bson::{Document, ObjectId};
use nilometer_storage::BackupSource;

use crate::auth::MemberKey;
use crate::change_log::ChangeLogOptions;
pub use crate::ids::IdSource;
use crate::operation::Clock;
use crate::parameters::Parameters;
use crate::turns::Turns;

/// Receives the entries of the audit log.
pub type AuditSink = Box<dyn Fn(&Document) + Send + Sync>;

/// Reloads the certificates of the transport; fails with a reason.
pub type RotateCertificates = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A backup in an object store that a client asks for.
#[derive(Clone, Debug, Default)]
pub struct ObjectBackupRequest {
    /// The URL of the backups.
    pub url: String,
    /// The endpoint of the store, if it is not that of the environment.
    pub endpoint: Option<String>,
    /// The region of the store, if it is not that of the environment.
    pub region: Option<String>,
    /// How many backups stay.
    pub keep: Option<u64>,
    /// The days for which backups stay.
    pub keep_days: Option<u32>,
}

/// Makes a backup in an object store. The last argument is asked now and then whether to continue. Returns the fields of the
/// reply.
pub type ObjectBackup = Box<
    dyn Fn(
            BackupSource,
            &ObjectBackupRequest,
            &dyn Fn() -> crate::error::Result<()>,
        ) -> crate::error::Result<Document>
        + Send
        + Sync,
>;

/// Requests the shutdown of the process.
pub type ShutdownRequest = Box<dyn Fn() + Send + Sync>;

/// Why the storage of a database neither writes nor reads any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageEnd {
    /// Another process has taken over the database.
    TakenOver,
    /// A part of it failed; it may be opened again.
    Failed,
}

/// Requests the end of the process because its storage has ended. May be called again and again.
pub type StorageEndRequest = Box<dyn Fn(StorageEnd) + Send + Sync>;

/// The shared services of one database.
pub struct Services {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Server parameters.
    pub parameters: Parameters,
    /// Counters.
    pub counters: Counters,
    /// Running operations.
    pub operations: Operations,
    /// The turns of long queries.
    pub(crate) turns: Arc<Turns>,
    /// The fail point of tests.
    pub(crate) fail_point: FailPoint,
    /// That of a `getMore` that has its cursor.
    pub(crate) fail_get_more: FailPoint,
    /// That of statements of retryable writes.
    pub(crate) fail_write: FailPoint,
    /// Open connections of the transport.
    pub connections: Connections,
    /// Logical sessions of clients.
    pub sessions: LogicalSessions,
    /// Time per collection.
    pub top: Top,
    /// Profiler settings.
    pub profiler: Profiler,
    /// The last lines of the log, for `getLog`.
    pub log: Arc<LogRing>,
    /// The machine and the process.
    pub host: HostFacts,
    /// The source of identities and random numbers.
    pub ids: Arc<IdSource>,
    /// How the command `shutdown` ends the process, if it can.
    pub shutdown: OnceLock<ShutdownRequest>,
    /// How the process ends when its storage has ended, if it can.
    pub storage_ended: OnceLock<StorageEndRequest>,
    /// The audit log, if there is one.
    pub audit: OnceLock<AuditSink>,
    /// By what other processes of the cluster prove that they belong to it, if this one belongs to one.
    pub member_key: OnceLock<MemberKey>,
    /// How the transport reloads its certificates, if it has any.
    pub rotate_certificates: OnceLock<RotateCertificates>,
    /// How a backup in an object store is made, if the process can.
    pub object_backup: OnceLock<ObjectBackup>,
    /// True while the process is near its memory limit.
    pub(crate) memory_is_short: AtomicBool,
    /// True if clients need privileges.
    pub access_control: bool,
    /// The replica set that clients see, if this server is a member of one.
    pub replica_set: Option<Arc<ReplicaSet>>,
    /// The size of the change log.
    pub change_log: ChangeLogOptions,
    /// Identifies this process to clients that watch it.
    pub process_id: ObjectId,
    started_ms: i64,
    started: Duration,
}

impl Services {
    /// Starts the services of a database.
    pub fn new(environment: Environment) -> Self {
        let Environment {
            clock,
            parameters,
            log,
            host,
            ids,
            access_control,
            replica_set,
            change_log,
        } = environment;
        let started_ms = clock.now_ms();
        Self {
            process_id: ids.process_id(started_ms),
            started_ms,
            started: clock.monotonic(),
            counters: Counters::default(),
            operations: Operations::default(),
            turns: Arc::new(Turns::new(host.cores, host.thread_time)),
            fail_point: FailPoint::default(),
            fail_get_more: FailPoint::default(),
            fail_write: FailPoint::default(),
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
            storage_ended: OnceLock::new(),
            audit: OnceLock::new(),
            member_key: OnceLock::new(),
            rotate_certificates: OnceLock::new(),
            object_backup: OnceLock::new(),
            memory_is_short: AtomicBool::new(false),
            access_control,
            replica_set,
            change_log,
        }
    }

    /// Returns the memory limit of the process in bytes, if known.
    pub fn memory_limit(&self) -> Option<u64> {
        host::memory_limit(&self.parameters, &self.host)
    }

    /// Returns the time at which the database was opened, in ms since 1970.
    pub fn started_ms(&self) -> i64 {
        self.started_ms
    }

    /// Returns the time since the database was opened.
    pub fn uptime(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }
}
