//! `cargo xtask ci`, `verify`, `fix` and `budgets`: every check of the project, in the order in which failures are cheapest.
//!
//! `verify` needs Rust alone and changes no file. `ci` does the same with longer tests, and runs the clients and what else takes
//! minutes; it must end within half an hour on two cores. `fix` repairs what tools can repair. `budgets` measures what building
//! and testing cost. All steps run even after one has failed, so that one run shows all failures; the summary gives the time of
//! each step.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::budget::{self, Budget, Cost};
use crate::object_store::ObjectStore;
use crate::process::{Outcome, WORKSPACE, cargo, read, root, run, target_folder};
use crate::{conformance, deny, fuzz, soak, tidy};

/// All tests, from an empty target folder.
const BUILD: Budget = Budget {
    name: "clean build of all tests",
    limit: Duration::from_secs(4 * 60),
};
/// From an edit in the largest crate to the end of one module's tests.
const EDIT_TO_TEST: Budget = Budget {
    name: "edit to test",
    limit: Duration::from_secs(15),
};
/// What `ci` divides the size of the long tests by: all of it would take a third of the time that `ci` has.
const CI_DIVISOR: &str = "10";
/// The fast tests of all crates.
const SUITE: Budget = Budget {
    name: "suite",
    limit: Duration::from_secs(75),
};

/// A step's name, its outcome and its time.
type Step = (&'static str, Outcome, Duration);

/// Every check; fails if one of them fails.
pub(crate) fn all() -> Outcome {
    let mut steps: Vec<Step> = Vec::new();
    verify_steps(&mut steps, longer_tests);
    step(&mut steps, "soak", soak::short);
    step(&mut steps, "fuzz", || fuzz::run(&[]));
    step(&mut steps, "conformance", || conformance::run(&[]));
    step(&mut steps, "guide", conformance::guide);
    step(&mut steps, "features", features);
    step(&mut steps, "cluster", || cluster(true));
    step(&mut steps, "deny", deny::all);
    report(&steps)
}

/// Every check that needs Rust alone; changes no file.
pub(crate) fn verify() -> Outcome {
    let mut steps: Vec<Step> = Vec::new();
    verify_steps(&mut steps, test);
    report(&steps)
}

/// Repairs what tools can repair: clippy's suggestions, generated tables, line ends, format.
pub(crate) fn fix() -> Outcome {
    let clippy = ["--all-targets", "--quiet", "--fix", "--allow-dirty"];
    let clippy = cargo(["clippy"].iter().chain(&WORKSPACE).chain(&clippy));
    run({ clippy }.arg("--allow-staged"))?;
    rewrite_compatibility()?;
    tidy::fix()?;
    run(&mut cargo(["fmt", "--all"]))
}

fn verify_steps(steps: &mut Vec<Step>, tests: impl FnOnce() -> Outcome) {
    step(steps, "fmt", format);
    step(steps, "tidy", tidy::run);
    step(steps, "lint", lint);
    step(steps, "test", tests);
    step(steps, "docs", docs);
}

/// Builds all tests in a folder of its own, runs the fast ones, and edits the largest crate; fails if a budget is exceeded.
pub(crate) fn budgets() -> Outcome {
    let folder = target_folder().join("budgets");
    if folder.exists() {
        let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::remove_dir_all(&folder).map_err(failed)?;
    }
    let within = |mut test: Command| run(test.env("CARGO_TARGET_DIR", &folder));
    let build = budget::measure(|| {
        let mut test = all_tests();
        test.arg("--no-run");
        within(test)
    })?;
    let suite = budget::measure(|| within(fast_tests()))?;
    let edit = edit_to_test(within)?;
    budget::report(&[(BUILD, build), (EDIT_TO_TEST, edit), (SUITE, suite)])
}

fn step(steps: &mut Vec<Step>, name: &'static str, action: impl FnOnce() -> Outcome) {
    println!("\n== {name}");
    let start = Instant::now();
    let outcome = action();
    if let Err(message) = &outcome {
        eprintln!("{name}: {message}");
    }
    steps.push((name, outcome, start.elapsed()));
}

fn report(steps: &[Step]) -> Outcome {
    println!("\n== summary");
    for (name, outcome, took) in steps {
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{name:<14}{:>8.1} s  {word}", took.as_secs_f64());
    }
    let total: Duration = steps.iter().map(|(_, _, took)| *took).sum();
    println!("{:<14}{:>8.1} s", "total", total.as_secs_f64());
    let failed: Vec<&str> = steps
        .iter()
        .filter(|(_, outcome, _)| outcome.is_err())
        .map(|(name, _, _)| *name)
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

/// The source is formatted.
pub(crate) fn format() -> Outcome {
    run(&mut cargo(["fmt", "--all", "--check"]))
}

/// Clippy finds nothing.
pub(crate) fn lint() -> Outcome {
    run(cargo(["clippy"]).args(WORKSPACE).args(LINT))
}

const LINT: [&str; 6] = [
    "--all-targets",
    "--locked",
    "--quiet",
    "--",
    "--deny",
    "warnings",
];

/// Builds all tests and runs the fast version of those that have one.
pub(crate) fn test() -> Outcome {
    run(&mut fast_tests())
}

fn all_tests() -> Command {
    let mut test = cargo(["test", "--locked", "--quiet"]);
    test.args(WORKSPACE);
    test
}

/// The fast tests. Many wait: for the disk, for servers, for each other. So there are three times as many threads as cores,
/// and files are in memory where there is room; `histories` uses the disk. Golden files are compared, never rewritten.
fn fast_tests() -> Command {
    let mut test = all_tests();
    test.arg("--no-fail-fast").env_remove("UPDATE_EXPECT");
    with_threads_and_memory(&mut test);
    test
}

/// Makes tests that wait faster.
pub(crate) fn with_threads_and_memory(test: &mut Command) -> &mut Command {
    with_threads(test);
    if std::env::var_os("TMPDIR").is_none() && has_room_in_memory() {
        test.env("TMPDIR", FILES_IN_MEMORY);
    }
    test
}

/// Has three test threads a core.
fn with_threads(test: &mut Command) {
    if std::env::var_os("RUST_TEST_THREADS").is_none()
        && let Ok(cores) = std::thread::available_parallelism()
    {
        test.env("RUST_TEST_THREADS", (3 * cores.get()).to_string());
    }
}

/// A file system in memory, on Linux.
const FILES_IN_MEMORY: &str = "/dev/shm";
/// Free space that the fast tests may need there.
const FILES_KILOBYTES: u64 = 8 << 20;

fn has_room_in_memory() -> bool {
    let report = read(Command::new("df").args(["-Pk", FILES_IN_MEMORY]));
    let free = report.ok().and_then(|text| {
        let mut fields = text.lines().last()?.split_whitespace();
        fields.nth(3)?.parse::<u64>().ok()
    });
    free.is_some_and(|free| free >= FILES_KILOBYTES)
}

/// Runs all tests, with the long version of those that the fast suite shortens, and files on the disk.
pub(crate) fn histories() -> Outcome {
    let mut test = all_tests();
    test.arg("--no-fail-fast").env_remove("UPDATE_EXPECT");
    with_threads(&mut test);
    run(test.env("NILOMETER_LONG", "1"))
}

/// Runs all tests, with a part of the long version of those that the fast suite shortens.
fn longer_tests() -> Outcome {
    run(fast_tests().env("NILOMETER_LONG", CI_DIVISOR))
}

/// Tests code behind Cargo features, apart from the other steps, which see the default build.
pub(crate) fn features() -> Outcome {
    let fixed = ["--quiet", "--package", "nilometer-server"];
    let all = ["--features", "arrow", "--lib", "--test", "it"];
    run(cargo(["test"])
        .args(fixed)
        .args(all)
        .args(["--", "parquet", "columns", "arrow"]))
}

/// Packages that come with object storage alone.
const CLUSTER_PACKAGES: [&str; 5] = [
    "nilometer-cluster",
    "slatedb",
    "object_store",
    "tokio",
    "reqwest",
];

/// Lints and tests the crate of object storage, which the other steps leave out. Its tests depend on the server with the
/// feature of that crate, so both are linted and tested with one build of the dependencies.
/// In `ci`, whose time is limited, it is tested alone: the lint, and the store for the tests over S3's protocol if it is not
/// built yet, take minutes.
pub(crate) fn cluster(is_in_ci: bool) -> Outcome {
    check_default_build()?;
    let package = ["--package", "nilometer-cluster"];
    let server = ["--package", "nilometer-server", "--features", "cluster"];
    if !is_in_ci {
        let benchmark = ["--package", "nilometer-bench-cluster"];
        run(cargo(["clippy"]).args(package).args(benchmark).args(LINT))?;
        run(cargo(["clippy"]).args(server).args(LINT))?;
    }
    let mut test = cargo(["test", "--locked", "--quiet"]);
    test.args(package);
    let store = ObjectStore::start(!is_in_ci)?;
    if let Some(store) = &store {
        test.envs(store.environment());
    }
    run(with_threads_and_memory(&mut test))?;
    // The parts of the server that other builds leave out.
    let mut parts = cargo(["test", "--locked", "--quiet", "--lib"]);
    run(with_threads_and_memory(parts.args(server)))
}

/// Fails if the server without features has a package of object storage.
fn check_default_build() -> Outcome {
    let tree = ["tree", "--locked", "--package", "nilometer-server"];
    let kinds = ["--edges", "normal,build", "--prefix", "none"];
    let tree = read(cargo(tree).args(kinds))?;
    let is_cluster = |line: &&str| {
        let name = line.split(' ').next().unwrap_or_default();
        CLUSTER_PACKAGES.contains(&name)
    };
    match tree.lines().find(is_cluster) {
        Some(found) => Err(format!("the default build of the server has {found}")),
        None => Ok(()),
    }
}

/// Documentation builds without a warning, private items included.
pub(crate) fn docs() -> Outcome {
    let flags = "--deny warnings --allow rustdoc::private_intra_doc_links";
    let build = ["--no-deps", "--locked", "--quiet"];
    run(cargo(["doc"])
        .args(WORKSPACE)
        .args(build)
        .arg("--document-private-items")
        .env("RUSTDOCFLAGS", flags))
}

/// Rewrites the tables of COMPATIBILITY.md from the code's tables.
pub(crate) fn rewrite_compatibility() -> Outcome {
    let of_influx = [
        "test",
        "--quiet",
        "--package",
        "nilometer-influx",
        "--test",
        "it",
    ];
    let of_database = ["test", "--quiet", "--package", "nilometer", "--lib"];
    for test in [&of_database[..], &of_influx[..]] {
        run(cargo(test)
            .arg("compatibility_page")
            .env("UPDATE_EXPECT", "1"))?;
    }
    Ok(())
}

/// Measures connections, TLS and authorization, optimised, one after the other.
pub(crate) fn figures() -> Outcome {
    let test = [
        "test",
        "--release",
        "--quiet",
        "--package",
        "nilometer-server",
        "--test",
        "it",
    ];
    let which = [
        "--",
        "figures::",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    run(cargo(test).args(which))
}

/// Touches the largest crate and runs the tests of one of its modules: what a person waits for after an edit.
fn edit_to_test(run: impl Fn(Command) -> Outcome) -> Outcome<Cost> {
    let test = || {
        let fixed = ["test", "--package", "nilometer", "--lib", "--quiet"];
        let mut test = cargo(fixed);
        test.args(["--", "eval::matcher::"])
            .env("CARGO_INCREMENTAL", "1");
        run(test)
    };
    test()?;
    let path = root().join("crates/nilometer/src/lib.rs");
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let file = std::fs::File::options()
        .append(true)
        .open(&path)
        .map_err(failed)?;
    file.set_modified(std::time::SystemTime::now())
        .map_err(failed)?;
    budget::measure(test)
}
