//! The object store of the tests: versitygw, which speaks S3's protocol over a folder, on a free port.
//!
//! It is built by Go, once, into the target folder. Its conditional writes are atomic since 1.8; it does not sync.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Outcome, exists, run, target_folder};

const MODULE: &str = "github.com/versity/versitygw/cmd/versitygw";
const VERSION: &str = "v1.8.0";

/// From its start to the first accepted connection.
const START_MAX: Duration = Duration::from_secs(20);

const KEY: &str = "nilometer";
const SECRET: &str = "nilometer-of-tests";
const BUCKET: &str = "tests";

/// A running store; killed, and its folder removed, when dropped.
pub(crate) struct ObjectStore {
    process: Child,
    folder: PathBuf,
    port: u16,
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
        let folder = format!("nilometer-object-store-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let (objects, metadata) = (folder.join("objects"), folder.join("metadata"));
        for folder in [&objects.join(BUCKET), &metadata] {
            std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| e.to_string())?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        drop(listener);
        let process = Command::new(&program)
            .args(["--access", KEY, "--secret", SECRET, "--quiet"])
            .args(["--port", &format!("127.0.0.1:{port}"), "posix"])
            // Not all file systems have room for it beside the files.
            .arg("--sidecar")
            .arg(&metadata)
            .arg(&objects)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", program.display()))?;
        let mut store = Self {
            process,
            folder,
            port,
        };
        store.wait_until_serving()?;
        Ok(Some(store))
    }

    /// The variables by which tests find it.
    pub(crate) fn environment(&self) -> [(&'static str, String); 5] {
        [
            (
                "AWS_ENDPOINT_URL",
                format!("http://127.0.0.1:{}", self.port),
            ),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("NILOMETER_S3_BUCKET", BUCKET.to_owned()),
        ]
    }

    fn wait_until_serving(&mut self) -> Outcome {
        let start = Instant::now();
        while start.elapsed() < START_MAX {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("versitygw ended at its start ({status})"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!(
            "versitygw did not accept a connection in {START_MAX:?}"
        ))
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The program, built now if it is not there.
fn program(may_build: bool) -> Outcome<PathBuf> {
    let folder = target_folder()
        .join("tools")
        .join(format!("versitygw-{VERSION}"));
    let program = folder.join("versitygw");
    if program.is_file() {
        return Ok(program);
    }
    if !may_build {
        return Err(
            "versitygw is not built; `cargo xtask cluster` builds it, in minutes".to_owned(),
        );
    }
    if !exists("go", "version") {
        return Err("Go, which builds versitygw, is missing".to_owned());
    }
    let mut install = Command::new("go");
    install.args(["install", &format!("{MODULE}@{VERSION}")]);
    run(install.env("GOBIN", &folder).env("CGO_ENABLED", "0"))?;
    Ok(program)
}
