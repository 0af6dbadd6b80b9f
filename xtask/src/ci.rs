//! `cargo xtask ci`: every check of the project, in the order in which failures are cheapest.
//!
//! All steps run even after one has failed, so that one run tells everything; the summary gives
//! each step's time and the three figures of the project's time budget (see `docs/testing.md`).

use std::time::{Duration, Instant};

use crate::process::{Outcome, cargo, root, run};
use crate::{conformance, deny, fuzz, soak, tidy};

/// Clean build of all tests, on two cores.
const TEST_BUILD_MAX: Duration = Duration::from_secs(4 * 60);
/// From an edit in the largest crate to its tests starting.
const EDIT_TO_TEST_MAX: Duration = Duration::from_secs(10);
/// The whole fast suite.
const SUITE_MAX: Duration = Duration::from_secs(60);

/// How long the tests took to build and to run.
pub(crate) struct TestTimes {
    build: Duration,
    suite: Duration,
}

/// A step's name, its outcome and its time.
type Step = (&'static str, Outcome, Duration);

/// Every check; fails if one of them fails.
pub(crate) fn all() -> Outcome {
    let mut steps: Vec<Step> = Vec::new();
    let mut times = None;
    step(&mut steps, "fmt", format);
    step(&mut steps, "tidy", tidy::run);
    step(&mut steps, "lint", lint);
    step(&mut steps, "test", || {
        times = Some(test()?);
        Ok(())
    });
    let edit = measure_edit_to_test();
    step(&mut steps, "histories", histories);
    step(&mut steps, "soak", soak::short);
    step(&mut steps, "docs", docs);
    step(&mut steps, "fuzz", || fuzz::run(&[]));
    step(&mut steps, "conformance", || conformance::run(&[]));
    step(&mut steps, "guide", conformance::guide);
    step(&mut steps, "features", features);
    step(&mut steps, "deny", deny::all);
    report(&steps, times.as_ref(), edit)
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

fn report(steps: &[Step], times: Option<&TestTimes>, edit: Option<Duration>) -> Outcome {
    println!("\n== summary");
    for (name, outcome, took) in steps {
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{name:<14}{:>8.1} s  {word}", took.as_secs_f64());
    }
    let total: Duration = steps.iter().map(|(_, _, took)| *took).sum();
    println!("{:<14}{:>8.1} s", "total", total.as_secs_f64());
    println!("\nbudget");
    budget("build of all tests", times.map(|t| t.build), TEST_BUILD_MAX);
    budget("edit to test start", edit, EDIT_TO_TEST_MAX);
    budget("suite", times.map(|t| t.suite), SUITE_MAX);
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

/// Prints one figure beside its limit. A machine's load is no reason to fail, so this only tells.
fn budget(name: &str, took: Option<Duration>, limit: Duration) {
    match took {
        Some(took) => println!(
            "{name:<20}{:>8.1} s of {:>4} s{}",
            took.as_secs_f64(),
            limit.as_secs(),
            if took > limit { "  OVER" } else { "" }
        ),
        None => println!("{name:<20}not measured"),
    }
}

/// The source is formatted.
pub(crate) fn format() -> Outcome {
    run(&mut cargo(["fmt", "--all", "--check"]))
}

/// Clippy finds nothing.
pub(crate) fn lint() -> Outcome {
    run(&mut cargo([
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "--deny",
        "warnings",
    ]))
}

/// Builds all tests, then runs them.
pub(crate) fn test() -> Outcome<TestTimes> {
    let start = Instant::now();
    run(&mut cargo(["test", "--workspace", "--quiet", "--no-run"]))?;
    let build = start.elapsed();
    let start = Instant::now();
    run(&mut cargo([
        "test",
        "--workspace",
        "--quiet",
        "--no-fail-fast",
    ]))?;
    let suite = start.elapsed();
    Ok(TestTimes { build, suite })
}

/// Tests of which the fast suite runs a part, at full length: simulated histories, kills of the server, and
/// the planner's rules left out one by one.
const LONG_TESTS: [&str; 5] = [
    "every_way_gives_the_same_answer",
    "fuzz_bucket_catalog",
    "outlive_kills",
    "after_kills",
    "after_a_kill",
];

/// The tests that are short in the fast suite, as long as a change must stand them.
pub(crate) fn histories() -> Outcome {
    let test = ["test", "--workspace", "--quiet", "--lib", "--tests", "--"];
    run(cargo(test).args(LONG_TESTS).env("NILOMETER_LONG", "1"))
}

/// What stands behind a Cargo feature: built and tested apart, so that the other steps see what a user gets.
pub(crate) fn features() -> Outcome {
    let fixed = ["--quiet", "--package", "nilometer-server"];
    let all = ["--features", "parquet", "--lib", "--test", "it"];
    run(cargo(["test"])
        .args(fixed)
        .args(all)
        .args(["--", "parquet"]))
}

/// Documentation builds without a warning. It is read by who works on the code, so it shows private
/// items too, and links to them are wanted.
pub(crate) fn docs() -> Outcome {
    let flags = "--deny warnings --allow rustdoc::private_intra_doc_links";
    let build = ["doc", "--workspace", "--no-deps", "--quiet"];
    run(cargo(build)
        .arg("--document-private-items")
        .env("RUSTDOCFLAGS", flags))
}

/// Lets the test that compares COMPATIBILITY.md with the code's tables write it instead.
pub(crate) fn rewrite_compatibility() -> Outcome {
    let test = ["test", "--quiet", "--package", "nilometer", "--lib"];
    run(cargo(test)
        .arg("compatibility_page")
        .env("UPDATE_EXPECT", "1"))
}

/// The load generator, optimised.
pub(crate) fn bench(arguments: &[&str]) -> Outcome {
    let fixed = [
        "run",
        "--release",
        "--quiet",
        "--package",
        "nilometer-bench",
        "--",
    ];
    run(&mut cargo(fixed.iter().chain(arguments)))
}

/// What connections, TLS and authorization cost, optimised, one after the other.
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

/// Touches the largest crate and builds its tests: what a person waits for after an edit.
fn measure_edit_to_test() -> Option<Duration> {
    let build = ["test", "--package", "nilometer", "--quiet", "--no-run"];
    run(&mut cargo(build)).ok()?;
    let file = root().join("crates/nilometer/src/lib.rs");
    let now = std::time::SystemTime::now();
    let handle = std::fs::File::options().append(true).open(file).ok()?;
    handle.set_modified(now).ok()?;
    let start = Instant::now();
    run(&mut cargo(build)).ok()?;
    Some(start.elapsed())
}
