//! `cargo xtask conformance`: real clients against the built server.
//!
//! Each client gets its own server, on a free port and an empty directory, and prints one line
//! for each check. A check that fails must be listed in `conformance/expected_failures.toml` with
//! its reason; one that is listed and passes is a failure as well. A client whose runtime is not on
//! this machine is skipped, and the summary says why; where `CI` is set, a skip is a failure, unless no
//! package registry has the client's programs.
//!
//! Clients are installed from their own registries, by name and pinned version, into folders that
//! git ignores.

mod checks;
mod clients;
mod expected;
mod server;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::process::{Outcome, WORKSPACE, cargo, in_ci, root, run as run_command};
use clients::{CLIENTS, COLUMNS_CLIENT, Client};
use expected::Failure;
use server::Server;

/// Drivers print whole replies into their errors.
const REASON_CHARS_MAX: usize = 240;

/// Clients that run at once. Most wait for their server, and their server for them.
const CLIENTS_AT_ONCE: usize = 3;

/// Clients that take longest. They begin first, so that none of them is left alone at the end.
const SLOW_CLIENTS: [&str; 3] = ["pymongo_suite", "node_specs", "rust"];

/// The result of one client.
enum Verdict {
    /// As expected; the number of passed checks.
    Passed(usize),
    /// Not run; the reason.
    Skipped(String),
    /// The deviations.
    Failed(Vec<String>),
}

/// A check's name, and its error if it failed.
type Report = (String, Option<String>);

/// Runs the named clients, or all.
pub(crate) fn run(names: &[&str]) -> Outcome {
    let known: Vec<&str> = CLIENTS.iter().map(|c| c.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!(
            "no client `{unknown}`; there are {}",
            known.join(", ")
        ));
    }
    let failures = expected::load()?;
    let requested = |client: &&Client| names.is_empty() || names.contains(&client.name);
    let mut clients: Vec<&Client> = CLIENTS.iter().filter(requested).collect();
    clients.sort_by_key(|client| !SLOW_CLIENTS.contains(&client.name));
    // First, because both builds have the same name.
    let reads_columns = clients.iter().any(|client| client.name == COLUMNS_CLIENT);
    let with_arrow = match reads_columns {
        true => Some(server::build_with_arrow()?),
        false => None,
    };
    let binary = server::build()?;
    let binary_of = |client: &Client| match &with_arrow {
        Some(with_arrow) if client.name == COLUMNS_CLIENT => with_arrow,
        _ => &binary,
    };
    let next = AtomicUsize::new(0);
    let run_some = || {
        let mut results = Vec::new();
        while let Some(client) = clients.get(next.fetch_add(1, Ordering::Relaxed)) {
            println!("-- {}", client.name);
            let start = Instant::now();
            let verdict = run_client(client, binary_of(client), &failures);
            results.push((client.name, start.elapsed(), verdict, client.is_optional));
        }
        results
    };
    let mut results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS_AT_ONCE)
            .map(|_| scope.spawn(run_some))
            .collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        let joined: Result<Vec<_>, _> = joined.collect();
        joined.map(|of_threads| of_threads.into_iter().flatten().collect::<Vec<_>>())
    })
    .map_err(|_| "a client's thread panicked".to_string())?;
    results.sort_by_key(|(name, ..)| known.iter().position(|of| of == name));
    println!("\nconformance");
    let mut bad = false;
    for (name, took, verdict, is_optional) in results {
        let (word, details) = match verdict {
            Verdict::Passed(count) => (format!("ok, {count} checks"), Vec::new()),
            Verdict::Skipped(reason) => {
                bad |= in_ci() && !is_optional;
                (format!("skipped: {reason}"), Vec::new())
            }
            Verdict::Failed(details) => {
                bad = true;
                ("FAILED".to_string(), details)
            }
        };
        println!("{name:<10}{:>7.1} s  {word}", took.as_secs_f64());
        for detail in details {
            println!("             {detail}");
        }
    }
    if bad {
        Err("not every client is content".to_string())
    } else {
        Ok(())
    }
}

/// Follows the operator's guide, with the shell installed by conformance.
pub(crate) fn guide() -> Outcome {
    let shell = CLIENTS.iter().find(|client| client.name == "mongosh");
    let shell = shell.ok_or("no client `mongosh`")?;
    let ready = match shell.missing_runtime() {
        Some(missing) => Err(format!("`{missing}` is not installed")),
        None => shell.install(),
    };
    let mut test = cargo(["test", "--quiet"]);
    test.args(WORKSPACE).args(["--test", "it", "--", "guide::"]);
    match ready {
        Ok(()) => {
            let mongosh = "conformance/mongosh/node_modules/mongosh/bin/mongosh.js";
            test.env("NILOMETER_MONGOSH", root().join(mongosh));
        }
        Err(reason) if in_ci() => return Err(reason),
        Err(reason) => println!("what is typed into mongosh is passed over: {reason}"),
    }
    run_command(&mut test)
}

/// Makes the pictures of the README with the browser of the client `web`.
pub(crate) fn pictures() -> Outcome {
    let browser = CLIENTS.iter().find(|client| client.name == "web");
    let browser = browser.ok_or("no client `web`")?;
    browser.install_packages()?;
    if let Some(missing) = browser.missing_runtime() {
        return Err(format!("`{missing}` is not installed"));
    }
    browser.install()?;
    let binary = server::build()?;
    let mut script = std::process::Command::new("node");
    script
        .arg("pictures.mjs")
        .current_dir(root().join("conformance/web"))
        .env("NILOMETER_BINARY", binary);
    run_command(&mut script)
}

fn run_client(client: &Client, binary: &std::path::Path, failures: &[Failure]) -> Verdict {
    if let Err(reason) = client.install_packages() {
        return Verdict::Skipped(format!("cannot install its packages: {reason}"));
    }
    if let Some(missing) = client.missing_runtime() {
        return Verdict::Skipped(format!("`{missing}` is not installed"));
    }
    if let Err(reason) = client.install() {
        return Verdict::Skipped(format!("cannot install it: {reason}"));
    }
    let server = match Server::start(binary, client.on_set) {
        Ok(server) => server,
        Err(reason) => return Verdict::Failed(vec![reason]),
    };
    let output = client.run(&server);
    let stopped = server.stop();
    let mut wrong = Vec::new();
    let reports = match output {
        Ok(output) => read_reports(&output),
        Err(reason) => {
            wrong.push(reason);
            Vec::new()
        }
    };
    wrong.extend(judge(client.name, client.checks, &reports, failures));
    if let Err(reason) = stopped {
        wrong.push(reason);
    }
    if wrong.is_empty() {
        Verdict::Passed(reports.len())
    } else {
        Verdict::Failed(wrong)
    }
}

/// Deviations of the reports from the expected checks.
fn judge(
    client: &str,
    checks: &[&[&str]],
    reports: &[Report],
    failures: &[Failure],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let listed = |check: &str| {
        failures
            .iter()
            .find(|f| f.client == client && f.check == check)
    };
    for (check, outcome) in reports {
        match (outcome, listed(check)) {
            (Some(reason), None) => wrong.push(format!("{check}: {reason}")),
            (None, Some(_)) => wrong.push(format!(
                "{check} passes; take it from expected_failures.toml"
            )),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
    for check in checks.iter().copied().flatten() {
        if !reports.iter().any(|(name, _)| name == check) {
            wrong.push(format!("{check}: not reported"));
        }
    }
    wrong
}

/// Lines `ok NAME` and `not ok NAME: reason`; other lines are ignored.
fn read_reports(output: &str) -> Vec<Report> {
    let mut reports = Vec::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("ok ") {
            reports.push((name.trim().to_string(), None));
        } else if let Some(rest) = line.strip_prefix("not ok ") {
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
            let reason = reason.chars().take(REASON_CHARS_MAX).collect();
            reports.push((name.trim().to_string(), Some(reason)));
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(output: &str, failing: &[&str]) -> Vec<String> {
        let failures: Vec<Failure> = failing
            .iter()
            .map(|check| Failure {
                client: "x".to_string(),
                check: (*check).to_string(),
            })
            .collect();
        judge("x", &[&["a"], &["b"]], &read_reports(output), &failures)
    }

    #[test]
    fn a_failure_must_be_expected_and_an_expected_failure_must_fail() {
        assert_eq!(judged("ok a\nnoise\nok b\n", &[]), [""; 0]);
        assert_eq!(judged("ok a\nnot ok b: because: so\n", &["b"]), [""; 0]);
        assert_eq!(
            judged("ok a\nnot ok b: because: so\n", &[]),
            ["b: because: so"]
        );
        assert_eq!(judged("ok a\nok b\n", &["b"]).len(), 1);
    }

    #[test]
    fn a_check_that_was_not_run_is_a_failure() {
        assert_eq!(judged("ok a\n", &[]), ["b: not reported"]);
    }
}
