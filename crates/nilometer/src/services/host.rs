//! Facts about the machine and the process.
//!
//! The core reads neither the environment nor the operating system; the program that opens the database
//! provides these facts. Unknown values are omitted from replies.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::Document;

use super::{IdSource, LogRing, ReplicaSet};
use crate::change_log::ChangeLogOptions;
use crate::operation::{Clock, SystemClock};
use crate::parameters::Parameters;

/// The memory of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// Resident bytes.
    pub resident_bytes: u64,
    /// Bytes of address space.
    pub virtual_bytes: u64,
    /// Major page faults.
    pub page_faults: u64,
}

/// The machine and the process.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// Host name.
    pub hostname: String,
    /// The listening port; 0 if none.
    pub port: u16,
    /// Process id.
    pub pid: u32,
    /// Program name.
    pub process: String,
    /// The command line.
    pub argv: Vec<String>,
    /// The parsed command line and configuration file, as in `getCmdLineOpts`.
    pub parsed_options: Document,
    /// Processor cores.
    pub cores: usize,
    /// Memory of the machine in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Memory limit of the process in bytes; 0 if unknown.
    pub memory_limit_bytes: u64,
    /// Family of the operating system, such as `Linux`.
    pub os_type: String,
    /// Name of the operating system with distribution.
    pub os_name: String,
    /// Version of the operating system.
    pub os_version: String,
    /// Version line of the kernel.
    pub kernel: String,
    /// Clock rate of the processor in MHz; empty if unknown.
    pub cpu_mhz: String,
    /// Reads the memory of the process.
    pub memory_use: fn() -> Option<MemoryUse>,
    /// Reads the processor time of the calling thread.
    pub thread_time: fn() -> Option<Duration>,
}

impl Default for HostFacts {
    /// The facts available from the standard library.
    fn default() -> Self {
        Self {
            hostname: "localhost".to_owned(),
            port: 0,
            pid: std::process::id(),
            process: "nilometer".to_owned(),
            argv: Vec::new(),
            parsed_options: Document::new(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: 0,
            memory_limit_bytes: 0,
            os_type: capitalised(std::env::consts::OS),
            os_name: String::new(),
            os_version: String::new(),
            kernel: String::new(),
            cpu_mhz: String::new(),
            memory_use: || None,
            thread_time: || None,
        }
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The dependencies a database is opened with, apart from its directory.
pub struct Environment {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Server parameters, with the values of the command line.
    pub parameters: Parameters,
    /// The log lines for `getLog`.
    pub log: Arc<LogRing>,
    /// The machine and the process.
    pub host: HostFacts,
    /// The source of identities.
    pub ids: IdSource,
    /// True if clients need privileges.
    pub access_control: bool,
    /// The replica set that clients see, if this server is a member of one.
    pub replica_set: Option<Arc<ReplicaSet>>,
    /// The size of the change log, which a member of a replica set keeps.
    pub change_log: ChangeLogOptions,
}

impl Environment {
    /// Returns the memory limit of the process in bytes, if known.
    pub fn memory_limit(&self) -> Option<u64> {
        memory_limit(&self.parameters, &self.host)
    }
}

/// Returns the limit set by the parameter, else the limit of the process, else the memory of the machine.
pub(super) fn memory_limit(parameters: &Parameters, host: &HostFacts) -> Option<u64> {
    let set = u64::try_from(parameters.nilometer_memory_bytes()).unwrap_or(0);
    let known = [set, host.memory_limit_bytes, host.memory_bytes];
    known.into_iter().find(|bytes| *bytes > 0)
}

impl Default for Environment {
    /// The system clock, default parameters, an empty log.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            parameters: Parameters::default(),
            log: Arc::default(),
            host: HostFacts::default(),
            ids: IdSource::default(),
            access_control: false,
            replica_set: None,
            change_log: ChangeLogOptions::default(),
        }
    }
}
