//! Facts about the machine and this process, for `hostInfo` and `serverStatus`.
//!
//! Read from the system. Facts that it does not provide stay unknown.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nilometer::services::{HostFacts, MemoryUse};
use nilometer_bson::Document;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes of the unit of `/proc`.
const KIB: u64 = 1024;

/// Collects the facts.
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
        memory_limit_bytes: memory_limit(memory_bytes),
        os_name: os_name(),
        os_version: text(system.release()),
        kernel: text(system.version()),
        cpu_mhz: cpu_mhz(),
        memory_use,
        thread_time,
        ..HostFacts::default()
    }
}

/// Raises the limit of open files to the maximum of the process. Returns the new limit; `None` if there is none.
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

/// Makes every file and directory that this process creates from now on readable for its owner alone, as mongod does.
pub fn make_new_files_private() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// Returns the number after `name` in a file with lines such as `MemTotal: 123 kB`, in bytes.
fn proc_field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(KIB)
}

/// Returns the memory that the process may use: that of the machine, or less if its control group, a parent group or
/// its address space is limited.
fn memory_limit(of_machine: u64) -> u64 {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let read = |path: &Path| fs::read_to_string(path).ok();
    let address_space = getrlimit(Resource::As).current;
    let limits = cgroup_limits(&own, read).into_iter().chain(address_space);
    match of_machine {
        0 => limits.min().unwrap_or(0),
        bytes => limits.fold(bytes, u64::min),
    }
}

/// Returns the limits of the group in `/proc/self/cgroup` and of its parents.
fn cgroup_limits(own: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<u64> {
    let place = own.lines().find_map(|line| line.strip_prefix("0::"));
    let inside = place.unwrap_or("/").trim_start_matches('/');
    let root = Path::new("/sys/fs/cgroup");
    let groups = root.join(inside);
    let groups = groups.ancestors().take_while(|path| path.starts_with(root));
    let texts = groups.filter_map(|group| read(&group.join("memory.max")));
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

fn memory_use() -> Option<MemoryUse> {
    Some(MemoryUse {
        resident_bytes: proc_field("/proc/self/status", "VmRSS:")?,
        virtual_bytes: proc_field("/proc/self/status", "VmSize:")?,
        page_faults: page_faults(&fs::read_to_string("/proc/self/stat").ok()?)?,
    })
}

fn thread_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).ok()
}

/// Returns the twelfth field of `/proc/self/stat`. The second, a name in parentheses, may hold anything.
fn page_faults(stat: &str) -> Option<u64> {
    const BEHIND_NAME: usize = 12 - 3;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(BEHIND_NAME)?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_are_the_twelfth_field() {
        let stat = "1 (a (b) c) S 2 3 4 5 6 7 8 9 10 11 12 13";
        assert_eq!(page_faults(stat), Some(10));
        assert_eq!(page_faults("1 (a"), None);
    }

    #[test]
    fn the_limits_of_all_groups_around_the_process_count() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/system.slice/nilometer.service/memory.max" => "max\n",
                "/sys/fs/cgroup/system.slice/memory.max" => "1073741824\n",
                "/sys/fs/cgroup/memory.max" => "2147483648\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let own = "1:name=systemd:/x\n0::/system.slice/nilometer.service\n";
        assert_eq!(cgroup_limits(own, read), [1 << 30, 2 << 30]);
        assert_eq!(cgroup_limits("", read), [2 << 30]);
    }
}
