//! What the database is told about the machine and the process it runs in.
//!
//! The core asks neither the environment nor the operating system; whoever opens the database
//! fills this in as far as it knows. What is unknown is left out of replies, not invented.

use std::sync::Arc;

use nilometer_bson::Document;

use super::{IdSource, LogRing};
use crate::operation::{Clock, SystemClock};
use crate::parameters::Parameters;

/// Memory of the process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// Bytes of address space.
    pub virtual_bytes: u64,
    /// Times the process waited for a page from the disk.
    pub page_faults: u64,
}

/// The machine and the process.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// Name of the machine.
    pub hostname: String,
    /// Port that is listened on; 0 if none is.
    pub port: u16,
    /// Number of the process.
    pub pid: u32,
    /// Name of the program.
    pub process: String,
    /// The command line.
    pub argv: Vec<String>,
    /// The command line and configuration file as `getCmdLineOpts` shows them parsed.
    pub parsed_options: Document,
    /// Processor cores.
    pub cores: usize,
    /// Memory of the machine in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Memory the process may use in bytes; 0 if unknown.
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
}

impl Default for HostFacts {
    /// What can be known without asking anyone.
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
        }
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// Everything a database takes from outside besides its directory.
pub struct Environment {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Server parameters, with what the command line set.
    pub parameters: Parameters,
    /// Where the log is kept for `getLog`.
    pub log: Arc<LogRing>,
    /// The machine and the process.
    pub host: HostFacts,
    /// Where identities come from.
    pub ids: IdSource,
    /// True if clients may do only what their user is allowed.
    pub access_control: bool,
}

impl Environment {
    /// Bytes of memory the process may have, if that is known.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        memory_limit(&self.parameters, &self.host)
    }
}

/// As much as the parameter says, else as the process may have of the machine.
pub(super) fn memory_limit(parameters: &Parameters, host: &HostFacts) -> Option<u64> {
    let set = u64::try_from(parameters.nilometer_memory_bytes()).unwrap_or(0);
    let known = [set, host.memory_limit_bytes, host.memory_bytes];
    known.into_iter().find(|bytes| *bytes > 0)
}

impl Default for Environment {
    /// The machine's clock, all parameters at their defaults, an empty log.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            parameters: Parameters::default(),
            log: Arc::default(),
            host: HostFacts::default(),
            ids: IdSource::default(),
            access_control: false,
        }
    }
}
