//! A server for one client: built, started on a free port over an empty directory, stopped.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::process::{Outcome, WORKSPACE, cargo, free_port, run, target_folder};

/// From start to the first accepted connection.
const START_MAX: Duration = Duration::from_secs(20);
/// The name of the replica set of a server.
const SET: &str = "rs";
/// From the signal to the end of the process.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A running server; killed when dropped.
pub(crate) struct Server {
    process: Child,
    binary: PathBuf,
    port: u16,
    http_port: u16,
    influx_port: u16,
    folder: PathBuf,
    /// It is the primary of a set.
    on_set: bool,
}

/// Builds the server; returns its path.
pub(crate) fn build() -> Outcome<PathBuf> {
    // With the features of the whole workspace, so that the build of the tests is reused.
    run(cargo(["build", "--quiet", "--bin", "nilometer"]).args(WORKSPACE))?;
    Ok(target_folder().join("debug/nilometer"))
}

/// Builds the server with columns of Apache Arrow; returns the path of a copy, which [`build`] does not overwrite.
pub(crate) fn build_with_arrow() -> Outcome<PathBuf> {
    let package = ["--package", "nilometer-server", "--features", "arrow"];
    run(cargo(["build", "--quiet", "--bin", "nilometer"]).args(package))?;
    let built = target_folder().join("debug/nilometer");
    let copy = target_folder().join("debug/nilometer-with-arrow");
    std::fs::copy(&built, &copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    Ok(copy)
}

/// The bytes that a file system in memory must have room for.
const MEMORY_BYTES_MIN: u64 = 1 << 30;

/// Returns the folder for databases and files of the clients: in memory where that is to be had, because each of some thousand tests
/// creates and drops collections, which waits for the disk several times.
pub(crate) fn scratch_folder() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    match has_memory_folder(&mounts) {
        true => PathBuf::from("/dev/shm"),
        false => std::env::temp_dir(),
    }
}

/// True if these mounts have a file system in memory, which is large enough, at its usual place.
fn has_memory_folder(mounts: &str) -> bool {
    let mount = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (folder, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        if folder != "/dev/shm" || kind != "tmpfs" {
            return None;
        }
        let mut options = options.split(',');
        let size = options.find_map(|option| option.strip_prefix("size="));
        // Without a size it has half of the memory.
        let Some(size) = size else { return Some(true) };
        let kib: u64 = size.strip_suffix('k')?.parse().ok()?;
        Some(kib >= MEMORY_BYTES_MIN >> 10)
    };
    mounts.lines().find_map(mount).unwrap_or(false)
}

/// Arguments of the primary of a replica set. Tests of drivers need its fail points.
const ON_SET: [&str; 4] = ["--replSet", SET, "--setParameter", "enableTestCommands=1"];

impl Server {
    /// Starts the binary, as a replica set of one if `on_set`, and waits until it accepts connections.
    pub(crate) fn start(binary: &Path, on_set: bool) -> Outcome<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nilometer-conformance-{}-{number}", std::process::id());
        let folder = scratch_folder().join(name);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let (port, http_port, influx_port) = (free_port()?, free_port()?, free_port()?);
        let process = Command::new(binary)
            .arg("serve")
            .arg("--dbpath")
            .arg(&folder)
            .args([
                "--port",
                &port.to_string(),
                "--bind_ip",
                "127.0.0.1",
                "--httpPort",
                &http_port.to_string(),
                "--webPage",
                "--influxPort",
                &influx_port.to_string(),
                "--quiet",
            ])
            .args(on_set.then_some(ON_SET).iter().flatten())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", binary.display()))?;
        let mut server = Self {
            process,
            binary: binary.to_owned(),
            port,
            http_port,
            influx_port,
            folder,
            on_set,
        };
        server.wait_until_serving()?;
        Ok(server)
    }

    fn wait_until_serving(&mut self) -> Outcome {
        let start = Instant::now();
        while start.elapsed() < START_MAX {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("the server ended at its start ({status})"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!(
            "the server did not accept a connection in {START_MAX:?}"
        ))
    }

    /// The address for clients.
    pub(crate) fn uri(&self) -> String {
        let options = match self.on_set {
            true => format!("?replicaSet={SET}"),
            false => String::new(),
        };
        format!("mongodb://127.0.0.1:{}/{options}", self.port)
    }

    /// The address of its web page.
    pub(crate) fn web(&self) -> String {
        format!("http://127.0.0.1:{}", self.http_port)
    }

    /// The address for clients of InfluxDB.
    pub(crate) fn influx(&self) -> String {
        format!("http://127.0.0.1:{}", self.influx_port)
    }

    /// The path of the program, to start another.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Stops it by a signal; an error if it died before, hangs, or reports a failure.
    pub(crate) fn stop(mut self) -> Outcome {
        if let Ok(Some(status)) = self.process.try_wait() {
            return Err(format!("the server died while the client ran ({status})"));
        }
        // `kill` is built into the shell; the program may be missing.
        let line = format!("kill -TERM {}", self.process.id());
        run_quietly(Command::new("sh").args(["-c", &line]))?;
        let start = Instant::now();
        while start.elapsed() < STOP_MAX {
            match self.process.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the server ended badly ({status})")),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err(format!(
            "the server did not end within {STOP_MAX:?} of SIGTERM"
        ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run_quietly(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|e| e.to_string())?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| format!("{status}"))
}

#[cfg(test)]
mod tests {
    use super::has_memory_folder;

    #[test]
    fn a_small_file_system_in_memory_is_not_used() {
        let rest = "/dev/vda / ext4 rw,relatime 0 0\n";
        let with =
            |options: &str| has_memory_folder(&format!("{rest}shm /dev/shm tmpfs {options} 0 0\n"));
        assert!(with("rw,nosuid,nodev"));
        assert!(with("rw,nosuid,size=4194304k"));
        assert!(!with("rw,nosuid,size=65536k"));
        assert!(!has_memory_folder(rest));
    }
}
