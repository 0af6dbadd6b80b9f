//! The clients: the programs each needs, how it is installed, how it runs.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::checks::{
    BULK_CHANGES, COLUMNS, CONNECTOR, DRIVER, DRIVER_ACKNOWLEDGED, ENTITIES, INFLUXDB, LOGINS,
    MODELS, PYMONGO_SUITE, SHELL, SHELL_CHANGES, TELEGRAF, TOOLS, TOUR, UNIFIED_SPECS, WEB,
};
use super::server::{Server, scratch_folder};
use crate::process::{Outcome, cargo, read, root, target_folder};

/// A client that takes longer has failed.
const RUN_MAX: Duration = Duration::from_secs(400);
/// Attempts to install; registries are slow at times.
const INSTALL_TRIES: usize = 2;

/// The client of a server that is built with columns of Apache Arrow.
pub(crate) const COLUMNS_CLIENT: &str = "columns";

/// The driver whose own tests `pymongo_suite` runs; `requirements.txt` installs the same version.
const PYMONGO: &str = "pymongo==4.20.0";

/// One client.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    /// Its name, and that of its folder in `conformance/`.
    pub(crate) name: &'static str,
    /// Programs it needs, each with the argument that prints its version.
    runtime: &'static [(&'static str, &'static str)],
    /// Programs that a Debian package provides, and its name. Root installs missing ones; other users are not asked
    /// for a password.
    packages: &'static [(&'static str, &'static str)],
    /// Files that pin the installation; it is repeated when they change. None where installing is an incremental
    /// build.
    pins: &'static [&'static str],
    /// Commands that install it.
    install: fn() -> Vec<Command>,
    /// The command that runs it.
    start: fn() -> Command,
    /// Lists of the checks it must report.
    pub(crate) checks: &'static [&'static [&'static str]],
    /// Its server is the primary of a replica set.
    pub(crate) on_set: bool,
    /// It may be missing where CI runs.
    pub(crate) is_optional: bool,
}

/// All clients.
pub(crate) const CLIENTS: &[Client] = &[
    Client {
        name: "pymongo",
        runtime: &[("python3", "--version")],
        packages: &[],
        pins: &["requirements.txt"],
        install: || {
            let pip = folder("pymongo").join("target/venv/bin/pip");
            vec![
                in_folder("pymongo", "python3", &["-m", "venv", "target/venv"]),
                in_folder(
                    "pymongo",
                    &pip.to_string_lossy(),
                    &["install", "--quiet", "--requirement", "requirements.txt"],
                ),
            ]
        },
        start: || {
            let python = folder("pymongo").join("target/venv/bin/python");
            in_folder("pymongo", &python.to_string_lossy(), &["check.py"])
        },
        checks: &[DRIVER, TOUR, BULK_CHANGES, LOGINS],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "pymongo_suite",
        runtime: &[("python3", "--version")],
        packages: &[],
        pins: &["requirements.txt"],
        install: || {
            let pip = folder("pymongo_suite").join("target/venv/bin/pip");
            let requirements = ["install", "--quiet", "--requirement", "requirements.txt"];
            let mut install = source_of_pymongo("pymongo_suite");
            let requirements = in_folder("pymongo_suite", &pip.to_string_lossy(), &requirements);
            install.push(requirements);
            install
        },
        start: || {
            let python = folder("pymongo_suite").join("target/venv/bin/python");
            in_folder("pymongo_suite", &python.to_string_lossy(), &["check.py"])
        },
        checks: &[PYMONGO_SUITE],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "influxdb",
        runtime: &[("python3", "--version")],
        packages: &[],
        pins: &["requirements.txt"],
        install: || {
            let pip = folder("influxdb").join("target/venv/bin/pip");
            vec![
                in_folder("influxdb", "python3", &["-m", "venv", "target/venv"]),
                in_folder(
                    "influxdb",
                    &pip.to_string_lossy(),
                    &["install", "--quiet", "--requirement", "requirements.txt"],
                ),
            ]
        },
        start: || {
            let python = folder("influxdb").join("target/venv/bin/python");
            in_folder("influxdb", &python.to_string_lossy(), &["check.py"])
        },
        checks: &[INFLUXDB],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: COLUMNS_CLIENT,
        runtime: &[("python3", "--version")],
        packages: &[],
        pins: &["requirements.txt"],
        install: || {
            let pip = folder(COLUMNS_CLIENT).join("target/venv/bin/pip");
            vec![
                in_folder(COLUMNS_CLIENT, "python3", &["-m", "venv", "target/venv"]),
                in_folder(
                    COLUMNS_CLIENT,
                    &pip.to_string_lossy(),
                    &["install", "--quiet", "--requirement", "requirements.txt"],
                ),
            ]
        },
        start: || {
            let python = folder(COLUMNS_CLIENT).join("target/venv/bin/python");
            in_folder(COLUMNS_CLIENT, &python.to_string_lossy(), &["check.py"])
        },
        checks: &[COLUMNS],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "node",
        runtime: &[("node", "--version"), ("npm", "--version")],
        packages: &[],
        pins: &["package-lock.json"],
        install: || vec![in_folder("node", "npm", NPM_INSTALL)],
        start: || in_folder("node", "node", &["check.mjs"]),
        checks: &[DRIVER, TOUR, LOGINS],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "node_specs",
        runtime: &[
            ("node", "--version"),
            ("npm", "--version"),
            ("python3", "--version"),
        ],
        packages: &[],
        pins: &["package-lock.json"],
        install: || {
            let mut install = vec![in_folder("node_specs", "npm", NPM_INSTALL)];
            install.extend(source_of_pymongo("node_specs"));
            install
        },
        start: || in_folder("node_specs", "node", &["check.mjs"]),
        checks: &[UNIFIED_SPECS],
        on_set: true,
        is_optional: false,
    },
    Client {
        name: "mongosh",
        runtime: &[("node", "--version"), ("npm", "--version")],
        packages: &[],
        pins: &["package-lock.json"],
        install: || vec![in_folder("mongosh", "npm", NPM_INSTALL)],
        start: || in_folder("mongosh", "node", &["check.mjs"]),
        checks: &[SHELL, TOUR, SHELL_CHANGES, LOGINS],
        on_set: true,
        is_optional: false,
    },
    Client {
        name: "mongoose",
        runtime: &[("node", "--version"), ("npm", "--version")],
        packages: &[],
        pins: &["package-lock.json"],
        install: || vec![in_folder("mongoose", "npm", NPM_INSTALL)],
        start: || in_folder("mongoose", "node", &["check.mjs"]),
        checks: &[MODELS],
        on_set: true,
        is_optional: false,
    },
    Client {
        name: "web",
        runtime: &[
            ("node", "--version"),
            ("npm", "--version"),
            ("chromium", "--version"),
        ],
        packages: &[("chromium", "chromium")],
        pins: &["package-lock.json"],
        install: || vec![in_folder("web", "npm", NPM_INSTALL)],
        start: || in_folder("web", "node", &["check.mjs"]),
        checks: &[WEB],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "go",
        runtime: &[("go", "version")],
        packages: &[],
        pins: &[],
        install: || vec![in_folder("go", "go", &["build", "-o", "target/check", "."])],
        start: || {
            in_folder(
                "go",
                &folder("go").join("target/check").to_string_lossy(),
                &[],
            )
        },
        checks: &[DRIVER, LOGINS],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "telegraf",
        runtime: &[("go", "version")],
        packages: &[],
        pins: &[],
        install: || {
            let build = ["build", "-o", "target/check", "."];
            vec![in_folder("telegraf", "go", &build)]
        },
        start: || {
            let binary = folder("telegraf").join("target/check");
            in_folder("telegraf", &binary.to_string_lossy(), &[])
        },
        checks: &[TELEGRAF],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "java",
        runtime: &[("java", "-version"), ("mvn", "--version")],
        packages: &[],
        pins: &["pom.xml"],
        install: || vec![in_folder("java", "mvn", MAVEN_INSTALL)],
        start: || in_folder("java", "java", &["-cp", "target/lib/*", "Check.java"]),
        checks: &[DRIVER, LOGINS],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "java_specs",
        runtime: &[
            ("java", "-version"),
            ("mvn", "--version"),
            ("python3", "--version"),
        ],
        packages: &[],
        pins: &["pom.xml"],
        install: || {
            let mut install = vec![in_folder("java_specs", "mvn", MAVEN_INSTALL)];
            install.extend(source_of_pymongo("java_specs"));
            install
        },
        start: || in_folder("java_specs", "java", &["-cp", "target/lib/*", "Check.java"]),
        checks: &[UNIFIED_SPECS],
        on_set: true,
        is_optional: false,
    },
    Client {
        name: "spring",
        runtime: &[("java", "-version"), ("mvn", "--version")],
        packages: &[],
        pins: &["pom.xml"],
        install: || vec![in_folder("spring", "mvn", MAVEN_INSTALL)],
        start: || in_folder("spring", "java", &["-cp", "target/lib/*", "Check.java"]),
        checks: &[ENTITIES],
        on_set: true,
        is_optional: false,
    },
    Client {
        name: "debezium",
        runtime: &[("java", "-version"), ("mvn", "--version")],
        packages: &[],
        pins: &["pom.xml"],
        install: || vec![in_folder("debezium", "mvn", MAVEN_INSTALL)],
        start: || in_folder("debezium", "java", &["-cp", "target/lib/*", "Check.java"]),
        checks: &[CONNECTOR],
        on_set: true,
        is_optional: false,
    },
    Client {
        name: "rust",
        runtime: &[],
        packages: &[],
        pins: &[],
        install: || {
            let mut build = cargo(["build", "--quiet", "--locked", "--target-dir"]);
            build.arg(rust_target()).current_dir(folder("rust"));
            vec![build]
        },
        start: || {
            let binary = rust_target().join("debug/nilometer-conformance-rust");
            in_folder("rust", &binary.to_string_lossy(), &[])
        },
        checks: &[DRIVER_ACKNOWLEDGED],
        on_set: false,
        is_optional: false,
    },
    Client {
        name: "tools",
        runtime: &[
            ("python3", "--version"),
            ("mongodump", "--version"),
            ("mongorestore", "--version"),
            ("mongoexport", "--version"),
            ("mongoimport", "--version"),
        ],
        packages: &[],
        pins: &["requirements.txt"],
        install: || {
            let pip = folder("tools").join("target/venv/bin/pip");
            vec![
                in_folder("tools", "python3", &["-m", "venv", "target/venv"]),
                in_folder(
                    "tools",
                    &pip.to_string_lossy(),
                    &["install", "--quiet", "--requirement", "requirements.txt"],
                ),
            ]
        },
        start: || {
            let python = folder("tools").join("target/venv/bin/python");
            let mut command = in_folder("tools", &python.to_string_lossy(), &["check.py"]);
            let known = std::env::var_os("PATH").unwrap_or_default();
            let paths = std::iter::once(tools_folder()).chain(std::env::split_paths(&known));
            if let Ok(paths) = std::env::join_paths(paths) {
                command.env("PATH", paths);
            }
            command
        },
        checks: &[TOOLS],
        // No package registry has MongoDB's tools.
        on_set: false,
        is_optional: true,
    },
];

/// The folder of MongoDB's tools built for Linux, beside the repository. Without it they are taken from the PATH.
fn tools_folder() -> PathBuf {
    root().join("../shared/tools/mongo-tools")
}

/// Installs exactly the lock file, without install scripts of packages.
const NPM_INSTALL: &[&str] = &["ci", "--ignore-scripts", "--no-audit", "--no-fund"];

/// Fetches the dependencies of the project file.
const MAVEN_INSTALL: &[&str] = &[
    "--batch-mode",
    "--quiet",
    "dependency:copy-dependencies",
    "-DoutputDirectory=target/lib",
];

impl Client {
    /// The first program it needs that is missing.
    pub(crate) fn missing_runtime(&self) -> Option<&'static str> {
        let there = |program: &str, argument| {
            let beside = tools_folder().join(program);
            crate::process::exists(program, argument)
                || crate::process::exists(&beside.to_string_lossy(), argument)
        };
        let mut needed = self.runtime.iter();
        needed
            .find(|(program, argument)| !there(program, argument))
            .map(|(program, _)| *program)
    }

    /// Installs missing programs if the user is root on a Debian. Programs that cannot be installed stay missing.
    pub(crate) fn install_packages(&self) -> Outcome {
        let missing = |(program, _): &&(&str, &str)| !crate::process::exists(program, "--version");
        let missing: Vec<&str> = self
            .packages
            .iter()
            .filter(missing)
            .map(|(_, p)| *p)
            .collect();
        if missing.is_empty()
            || !crate::process::is_root()
            || !crate::process::exists("apt-get", "--version")
        {
            return Ok(());
        }
        println!("installing {} by apt-get", missing.join(", "));
        let apt = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command
                .args(arguments)
                .env("DEBIAN_FRONTEND", "noninteractive");
            read(&mut command).map(drop)
        };
        apt(&["update", "--quiet"])?;
        apt(&[
            &["install", "--quiet", "--yes", "--no-install-recommends"],
            missing.as_slice(),
        ]
        .concat())
    }

    /// Installs its packages unless they are installed.
    pub(crate) fn install(&self) -> Outcome {
        let pinned = self.pinned()?;
        let stamp = folder(self.name).join("target/installed");
        if !pinned.is_empty() && std::fs::read_to_string(&stamp).is_ok_and(|old| old == pinned) {
            return Ok(());
        }
        if !pinned.is_empty() {
            // Files of two versions of one library must not mix.
            let _ = std::fs::remove_dir_all(folder(self.name).join("target"));
        }
        let mut outcome = Ok(());
        for _ in 0..INSTALL_TRIES {
            outcome = (self.install)()
                .iter_mut()
                .try_for_each(|command| read(command).map(drop));
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
        let written = std::fs::create_dir_all(folder(self.name).join("target"));
        written
            .and_then(|()| std::fs::write(&stamp, pinned))
            .map_err(|e| format!("{}: {e}", stamp.display()))
    }

    /// The text of the files that pin it.
    fn pinned(&self) -> Outcome<String> {
        let text = |name: &&str| {
            let path = folder(self.name).join(name);
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
        };
        self.pins.iter().map(text).collect()
    }

    /// Runs it against a server; returns its output.
    pub(crate) fn run(&self, server: &Server) -> Outcome<String> {
        let mut command = (self.start)();
        command
            .env("NILOMETER_URI", server.uri())
            .env("NILOMETER_WEB", server.web())
            .env("NILOMETER_INFLUX", server.influx())
            .env("NILOMETER_BINARY", server.binary())
            .env("TMPDIR", scratch_folder())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", self.name))?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(stdout));
        let start = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|e| e.to_string())? {
                Some(status) => break Some(status),
                None if start.elapsed() > RUN_MAX => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let output = reader
            .join()
            .map_err(|_| "reader died")?
            .map_err(|e| e.to_string())?;
        // Reports are summed up at the end; other output helps to find the cause of a failure.
        let is_report = |line: &&str| line.starts_with("ok ") || line.starts_with("not ok ");
        for line in output.lines().filter(|line| !is_report(line)) {
            println!("{line}");
        }
        match status {
            Some(status) if status.success() => Ok(output),
            Some(status) => Err(format!("{} ended with {status}", self.name)),
            None => Err(format!("{} was still running after {RUN_MAX:?}", self.name)),
        }
    }
}

/// Returns the commands that make a Python environment for a client and download pymongo's source distribution, which contains the
/// drivers' unified tests.
fn source_of_pymongo(name: &str) -> Vec<Command> {
    let pip = folder(name).join("target/venv/bin/pip");
    let source = ["download", "--quiet", "--no-deps", "--no-binary", "pymongo"];
    let source = [&source[..], &["--dest", "target", PYMONGO]].concat();
    vec![
        in_folder(name, "python3", &["-m", "venv", "target/venv"]),
        in_folder(name, &pip.to_string_lossy(), &source),
    ]
}

fn folder(name: &str) -> PathBuf {
    root().join("conformance").join(name)
}

/// The target folder of the Rust driver: inside the workspace's, so that one clean removes both.
fn rust_target() -> PathBuf {
    target_folder().join("conformance-rust")
}

fn in_folder(name: &str, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder(name));
    command
}
