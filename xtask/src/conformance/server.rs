//! A server for one client: built, started on a free port over an empty directory, stopped.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::process::{Outcome, WORKSPACE, cargo, run, target_folder};

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

impl Server {
    /// Starts the binary, as a replica set of one if `on_set`, and waits until it accepts connections.
    pub(crate) fn start(binary: &Path, on_set: bool) -> Outcome<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nilometer-conformance-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let (port, http_port) = (free_port()?, free_port()?);
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
                "--quiet",
            ])
            .args(on_set.then_some(["--replSet", SET]).iter().flatten())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", binary.display()))?;
        let mut server = Self {
            process,
            binary: binary.to_owned(),
            port,
            http_port,
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

/// A port that is free at this moment.
fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| e.to_string())?;
    Ok(listener.local_addr().map_err(|e| e.to_string())?.port())
}
