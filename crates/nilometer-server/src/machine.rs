//! Facts about the machine and this process, for `hostInfo` and `serverStatus`.
//!
//! Read from the system where it tells them; what it does not tell stays unknown.

use std::fs;

use nilometer::services::{HostFacts, MemoryUse};
use nilometer_bson::Document;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes of a unit `/proc` counts in.
const KIB: u64 = 1024;

/// Gathers what is known.
pub fn facts(argv: Vec<String>, parsed_options: Document, port: u16) -> HostFacts {
    let system = rustix::system::uname();
    let text = |c: &std::ffi::CStr| c.to_string_lossy().into_owned();
    let memory_bytes = proc_field("/proc/meminfo", "MemTotal:").unwrap_or(0);
    HostFacts {
        hostname: text(system.nodename()),
        port,
        argv,
        parsed_options,
        memory_bytes,
        memory_limit_bytes: cgroup_limit().map_or(memory_bytes, |limit| limit.min(memory_bytes)),
        os_name: os_name(),
        os_version: text(system.release()),
        kernel: text(system.version()),
        cpu_mhz: cpu_mhz(),
        memory_use,
        ..HostFacts::default()
    }
}

/// Raises the limit of open files to the most the process may have. The limit that holds then;
/// `None` if there is none.
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// The number behind `name` in a file of lines such as `MemTotal: 123 kB`, in bytes.
fn proc_field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(KIB)
}

/// What a container may use, if it is limited.
fn cgroup_limit() -> Option<u64> {
    let text = fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?;
    text.trim().parse().ok()
}

fn memory_use() -> Option<MemoryUse> {
    Some(MemoryUse {
        resident_bytes: proc_field("/proc/self/status", "VmRSS:")?,
        virtual_bytes: proc_field("/proc/self/status", "VmSize:")?,
    })
}

fn os_name() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    name.map(|n| n.trim_matches('"').to_owned())
        .unwrap_or_default()
}

fn cpu_mhz() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("cpu MHz"));
    line.and_then(|l| l.split_once(':'))
        .map(|(_, mhz)| mhz.trim().to_owned())
        .unwrap_or_default()
}
