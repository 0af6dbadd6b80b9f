//! The object store of the tests: versitygw, which speaks S3's protocol over a folder, on a free port.
//!
//! It is built by Go, once, into the target folder. Its conditional writes are atomic since 1.8; it does not sync.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Outcome, exists, free_port, run, target_folder};

const MODULE: &str = "github.com/versity/versitygw/cmd/versitygw";
const VERSION: &str = "v1.8.0";

/// From its start to the first accepted connection.
const START_MAX: Duration = Duration::from_secs(20);

const KEY: &str = "nilometer";
const SECRET: &str = "nilometer-of-tests";
const BUCKET: &str = "tests";

/// A running store; killed, and its folder removed, when dropped.
pub(crate) struct ObjectStore {
    store: StoreProcess,
}

impl ObjectStore {
    /// Starts the store with an empty bucket. `None` if it is not there and cannot be built, or may not.
    pub(crate) fn start(may_build: bool) -> Outcome<Option<Self>> {
        let program = match program(may_build) {
            Ok(program) => program,
            Err(why) => {
                println!("tests over S3's protocol: LEFT OUT: {why}");
                return Ok(None);
            }
        };
        let store = StoreProcess::start("versitygw", |folder, port| {
            let (objects, metadata) = (folder.join("objects"), folder.join("metadata"));
            for folder in [&objects.join(BUCKET), &metadata] {
                std::fs::create_dir_all(folder)
                    .map_err(|e| format!("{}: {e}", folder.display()))?;
            }
            let mut command = Command::new(&program);
            command
                .args(["--access", KEY, "--secret", SECRET, "--quiet"])
                .args(["--port", &format!("127.0.0.1:{port}"), "posix"])
                // Not all file systems have room for it beside the files.
                .arg("--sidecar")
                .arg(&metadata)
                .arg(&objects);
            Ok(command)
        })?;
        Ok(Some(Self { store }))
    }

    /// The variables by which tests find it.
    pub(crate) fn environment(&self) -> [(&'static str, String); 5] {
        [
            (
                "AWS_ENDPOINT_URL",
                format!("http://127.0.0.1:{}", self.store.port),
            ),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("NILOMETER_S3_BUCKET", BUCKET.to_owned()),
        ]
    }
}

/// A store in a process of its own; killed, and its folder removed, when dropped.
pub(crate) struct StoreProcess {
    name: &'static str,
    process: Child,
    folder: PathBuf,
    pub(crate) port: u16,
}

impl StoreProcess {
    /// Starts the command for an empty folder and a free port, and waits until it accepts connections.
    pub(crate) fn start(
        name: &'static str,
        command: impl FnOnce(&Path, u16) -> Outcome<Command>,
    ) -> Outcome<Self> {
        let folder = format!("nilometer-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let port = free_port()?;
        let process = command(&folder, port)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("cannot start {name}: {e}"))?;
        let mut store = Self {
            name,
            process,
            folder,
            port,
        };
        store.wait_until_serving()?;
        Ok(store)
    }

    fn wait_until_serving(&mut self) -> Outcome {
        let start = Instant::now();
        while start.elapsed() < START_MAX {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("{} ended at its start ({status})", self.name));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!(
            "{} did not accept a connection in {START_MAX:?}",
            self.name
        ))
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The program, built now if it is not there.
fn program(may_build: bool) -> Outcome<PathBuf> {
    let program = tool("versitygw", VERSION).join("versitygw");
    if program.is_file() {
        return Ok(program);
    }
    if !may_build {
        return Err(
            "versitygw is not built; `cargo xtask cluster` builds it, in minutes".to_owned(),
        );
    }
    go_install(MODULE, VERSION, &program)?;
    Ok(program)
}

/// The folder of a version of a program that tests need.
pub(crate) fn tool(name: &str, version: &str) -> PathBuf {
    target_folder()
        .join("tools")
        .join(format!("{name}-{version}"))
}

/// Builds a program of a Go module.
pub(crate) fn go_install(module: &str, version: &str, program: &Path) -> Outcome {
    if !exists("go", "version") {
        return Err(format!("Go, which builds {module}, is missing"));
    }
    let folder = program.parent().unwrap_or(program);
    let mut install = Command::new("go");
    install.args(["install", &format!("{module}@{version}")]);
    run(install.env("GOBIN", folder).env("CGO_ENABLED", "0"))
}
