//! Tests of `packaging/`: the systemd unit, its configuration, the container file.
//!
//! No container engine is used: the steps of the container file are checked as far as possible without one. Files it
//! copies must exist, it must build what this repository builds, and what it starts must start.

#![expect(clippy::print_stdout, reason = "a test that cannot be run says so")]

use std::path::{Path, PathBuf};
use std::process::Command;

use nilometer_bson::doc;

use crate::client::is_ok;
use crate::server::{Directory, Server, nilometer};

/// Path of the program in the unit and the container file.
const INSTALLED: &str = "/usr/local/bin/nilometer";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn packaged(name: &str) -> String {
    let path = root().join("packaging").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the values of a setting of the unit.
fn settings<'t>(unit: &'t str, name: &str) -> Vec<&'t str> {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value)
        .collect()
}

#[test]
fn the_unit_starts_the_program_as_it_can_be_started() {
    let unit = packaged("nilometer.service");
    let directory = Directory::new();
    let file = directory.0.join("nilometer.yaml");
    let data = directory.0.join("data");
    let given = packaged("nilometer.yaml");
    // A test directory and a test port.
    let state = settings(&unit, "StateDirectory");
    let path = format!("/var/lib/{}", state.first().expect("a state directory"));
    assert!(given.contains(&format!("dbPath: {path}")), "{given}");
    assert!(given.contains("port: 27017"), "{given}");
    let changed = given
        .replace(&path, data.to_str().expect("a path"))
        .replace("port: 27017", "port: 0");
    std::fs::write(&file, changed).expect("a file");
    let file = file.to_str().expect("a path");
    let started = |name: &str| {
        let lines = settings(&unit, name);
        let words: Vec<&str> = lines.first().expect("a line").split(' ').collect();
        assert_eq!(words[0], INSTALLED);
        let words = words[1..]
            .iter()
            .map(|word| word.replace("/etc/nilometer.yaml", file));
        words.collect::<Vec<String>>()
    };
    let check = started("ExecStartPre");
    let check: Vec<&str> = check.iter().map(String::as_str).collect();
    let checked = nilometer(&check).output().expect("the program");
    assert!(checked.status.success(), "{checked:?}");
    let serve = started("ExecStart");
    let serve: Vec<&str> = serve.iter().map(String::as_str).collect();
    let mut server = Server::spawn(&mut nilometer(&serve));
    assert!(is_ok(&server.connect().run(&doc! {"ping": 1})));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let unit = packaged("nilometer.service").replace(INSTALLED, env!("CARGO_BIN_EXE_nilometer"));
    let directory = Directory::new();
    let file = directory.0.join("nilometer.service");
    std::fs::write(&file, unit).expect("a file");
    let mut verify = Command::new("systemd-analyze");
    let verified = verify.args(["verify", "--man=no"]).arg(&file).output();
    let Ok(verified) = verified else {
        println!("left out: there is no systemd-analyze");
        return;
    };
    let told = String::from_utf8_lossy(&verified.stderr).into_owned();
    // Ignore messages about other units of the machine.
    let ours = told.lines().filter(|line| line.contains("nilometer"));
    assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(verified.status.success(), "{told}");
}

#[test]
fn the_container_file_builds_and_starts_what_there_is() {
    let text = packaged("Containerfile");
    let steps: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let of = |word: &str| -> Vec<&str> {
        let lines = steps.iter().filter_map(|line| line.strip_prefix(word));
        lines.map(str::trim).collect()
    };
    // Built by a recent compiler, from a whole checkout, with the lock file.
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let wanted = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "));
    let wanted = wanted.expect("a version").trim_matches('"');
    assert!(
        of("FROM")[0].contains(&format!("/rust:{wanted}")),
        "{:?}",
        of("FROM")
    );
    assert!(of("COPY").contains(&". ."));
    let build = of("RUN").into_iter().find(|line| line.contains("cargo"));
    assert!(
        build
            .expect("a build")
            .contains("--release --locked -p nilometer-server --features cluster")
    );
    assert!(root().join("Cargo.lock").exists());
    // Read by build.rs.
    assert!(
        of("ENV")
            .iter()
            .any(|line| line.starts_with("NILOMETER_COMMIT="))
    );
    let copied = format!("/source/target/release/nilometer {INSTALLED}");
    assert!(of("COPY").iter().any(|line| line.ends_with(&copied)));
    // The same command with a port of the test, and the same environment with a directory of the test.
    let entry = of("ENTRYPOINT")[0];
    let words = entry.trim_matches(['[', ']']).split(',');
    let words: Vec<&str> = words.map(|word| word.trim().trim_matches('"')).collect();
    assert_eq!(words[0], INSTALLED);
    let directory = Directory::new();
    let data = directory.0.join("data");
    let data = data.to_str().expect("a path");
    assert_eq!(of("VOLUME"), ["/data"]);
    assert!(of("ENV").contains(&"NILOMETER_DBPATH=/data"));
    let mut arguments: Vec<&str> = words[1..].to_vec();
    arguments.extend(["--port", "0"]);
    let mut server = Server::spawn(nilometer(&arguments).env("NILOMETER_DBPATH", data));
    assert!(is_ok(&server.connect().run(&doc! {"ping": 1})));
    // A container engine sends this signal.
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// The README's `cargo run` names no program.
#[test]
fn cargo_run_has_one_program_to_choose() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
    let (_, members) = manifest
        .split_once("default-members = [")
        .expect("a list of members");
    let (members, _) = members.split_once(']').expect("the end of the list");
    let programs = members.split('"').filter(|member| member.contains('/'));
    let programs = programs.flat_map(|member| {
        let sources = root.join(member).join("src");
        let main = Some(sources.join("main.rs")).filter(|main| main.exists());
        let others = std::fs::read_dir(sources.join("bin"));
        let others = others.into_iter().flatten();
        main.into_iter()
            .chain(others.map(|other| other.expect("an entry").path()))
            .collect::<Vec<_>>()
    });
    let programs: Vec<_> = programs.collect();
    assert_eq!(programs.len(), 1, "{programs:?}");
}
