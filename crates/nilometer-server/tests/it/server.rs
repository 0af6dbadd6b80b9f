//! Server processes for tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::http::free_port;

/// Time for a server to start or to end.
const PATIENCE: Duration = Duration::from_secs(30);

static DIRECTORIES: AtomicU32 = AtomicU32::new(0);

/// A new directory, removed when dropped.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let n = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("nilometer-server-it-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a fresh directory");
        Self(path)
    }

    /// Serves the data in it, quiet and on a free port.
    pub(crate) fn serve(&self) -> Server {
        let path = self.0.join("data");
        let path = path.to_str().expect("a path");
        let arguments = ["serve", "--port", "0", "--quiet", "--dbpath", path];
        Server::spawn(&mut nilometer(&arguments))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Returns a command that runs the program.
pub(crate) fn nilometer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nilometer"));
    command.args(arguments);
    command
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    lines: Receiver<String>,
    _directory: Option<Directory>,
}

impl Server {
    /// Starts a server in a new directory on a free port.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with the web page and more arguments. Returns it and the port of the page.
    pub(crate) fn start_with_page(more: &[&str]) -> (Self, u16) {
        let port = free_port();
        let text = port.to_string();
        let arguments = [&["--httpPort", &text, "--webPage"], more].concat();
        (Self::start_with(&arguments), port)
    }

    /// Starts a server with more arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let directory = Directory::new();
        let path = directory.0.join("data");
        let path = path.to_str().expect("a UTF-8 path");
        let mut all = vec!["serve", "--port", "0", "--dbpath", path];
        all.extend_from_slice(arguments);
        if arguments.contains(&"--auth") {
            // The lowest counts: without optimisation a login at the usual ones takes a tenth of a second.
            for count in ["scramIterationCount=5000", "scramSHA256IterationCount=5000"] {
                all.extend(["--setParameter", count]);
            }
        }
        let mut server = Self::spawn(&mut nilometer(&all));
        server._directory = Some(directory);
        server
    }

    /// Runs `command` and waits until it serves.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("a pipe");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test may ignore the rest of the log.
                drop(sender.send(line));
            }
        });
        let mut server = Self {
            child,
            port: 0,
            lines,
            _directory: None,
        };
        let line = server.wait_for_line("Waiting for connections");
        let port = line.split("\"port\":").nth(1).expect("a port");
        let digits: String = port.chars().take_while(char::is_ascii_digit).collect();
        server.port = digits.parse().expect("a port");
        server
    }

    /// Waits for the next line of the log that contains `text`.
    pub(crate) fn wait_for_line(&self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|e| panic!("no line with {text:?}: {e}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.port)
    }

    /// Returns the process id.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for the process to end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < end, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the flags of a server with logins and an audit log at `path`.
pub(crate) fn with_audit(path: &Path) -> [&str; 7] {
    [
        "--auth",
        "--auditDestination",
        "file",
        "--auditFormat",
        "JSON",
        "--auditPath",
        path.to_str().expect("a path"),
    ]
}
