//! Fail points, with which tests of drivers let commands fail on purpose.
//!
//! A program sets it with `configureFailPoint` ([`crate::commands`]), which exists only if the parameter `enableTestCommands`
//! is true. Dispatch asks [`FailPoint::enter`] before each command.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nilometer_bson::{Document, Value};

use crate::ids::IdSource;

/// The name by which statements of retryable writes enter their fail point.
pub(crate) const FAIL_WRITE: &str = "write";

/// When the fail point acts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum FailPointMode {
    /// Never.
    #[default]
    Off,
    /// On every command that it names.
    AlwaysOn,
    /// On so many, then never.
    Times(i64),
    /// After so many.
    Skip(i64),
    /// With this probability.
    Probability(f64),
}

/// What happens to a command. The default changes nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandFailure {
    /// Waits so long first.
    pub(crate) block: Duration,
    /// The connection is closed without an answer.
    pub(crate) closes_connection: bool,
    /// Fails with this code; the command does not run.
    pub(crate) code: Option<i32>,
    /// The labels of the error in place of its own.
    pub(crate) labels: Option<Vec<Value>>,
    /// The command runs, and its answer has this write concern error.
    pub(crate) write_concern_error: Option<Document>,
}

impl CommandFailure {
    /// True if the command does not run.
    pub(crate) fn prevents(&self) -> bool {
        self.closes_connection || self.code.is_some()
    }
}

/// The commands that the fail point acts on, and what happens to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailPointData {
    /// Names of commands.
    pub(crate) commands: Vec<String>,
    /// Only commands on this namespace.
    pub(crate) namespace: Option<String>,
    /// Only commands of clients with this name.
    pub(crate) application: Option<String>,
    /// What happens.
    pub(crate) failure: CommandFailure,
}

/// The command that asks.
pub(crate) struct EnteringCommand<'a> {
    /// Its name and its other names.
    pub(crate) names: &'a [&'a str],
    /// Its namespace.
    pub(crate) namespace: &'a str,
    /// The name of the client's application.
    pub(crate) application: Option<&'a str>,
}

/// A fail point of one database.
#[derive(Debug, Default)]
pub(crate) struct FailPoint {
    /// True while the mode is not `Off`: the fast path of every command.
    is_on: AtomicBool,
    state: Mutex<FailPointState>,
}

#[derive(Debug, Default)]
struct FailPointState {
    mode: FailPointMode,
    data: FailPointData,
    /// How often it has acted since the process started.
    entered: i64,
}

impl FailPoint {
    fn lock(&self) -> MutexGuard<'_, FailPointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets it. Returns how often it has acted.
    pub(crate) fn configure(&self, mode: FailPointMode, data: FailPointData) -> i64 {
        let mut state = self.lock();
        state.mode = mode;
        state.data = data;
        self.is_on
            .store(mode != FailPointMode::Off, Ordering::Relaxed);
        state.entered
    }

    /// Returns what happens to a command; `None` if the fail point does not act on it.
    pub(crate) fn enter(
        &self,
        command: &EnteringCommand<'_>,
        ids: &IdSource,
    ) -> Option<CommandFailure> {
        let mut state = self.lock();
        let FailPointState {
            mode,
            data,
            entered,
        } = &mut *state;
        let is_named = data
            .commands
            .iter()
            .any(|name| command.names.contains(&name.as_str()));
        let is_elsewhere = data
            .namespace
            .as_ref()
            .is_some_and(|only| only != command.namespace);
        let is_others =
            data.application.is_some() && data.application.as_deref() != command.application;
        if !is_named || is_elsewhere || is_others {
            return None;
        }
        let acts = match mode {
            FailPointMode::Off => false,
            FailPointMode::AlwaysOn => true,
            FailPointMode::Times(left) => {
                *left -= 1;
                if *left <= 0 {
                    *mode = FailPointMode::Off;
                    self.is_on.store(false, Ordering::Relaxed);
                }
                true
            }
            FailPointMode::Skip(left) if *left > 0 => {
                *left -= 1;
                false
            }
            FailPointMode::Skip(_) => true,
            FailPointMode::Probability(share) => {
                (ids.random() >> 11) as f64 / ((1u64 << 53) as f64) < *share
            }
        };
        if !acts {
            return None;
        }
        *entered += 1;
        Some(data.failure.clone())
    }

    /// True if it may act on a command.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acts(point: &FailPoint, ids: &IdSource, name: &str) -> bool {
        let command = EnteringCommand {
            names: &[name],
            namespace: "db.c",
            application: Some("a"),
        };
        point.is_on() && point.enter(&command, ids).is_some()
    }

    fn on(names: &[&str]) -> FailPointData {
        FailPointData {
            commands: names.iter().map(|name| (*name).to_owned()).collect(),
            ..FailPointData::default()
        }
    }

    #[test]
    fn each_mode_acts_as_often_as_it_says() {
        let ids = IdSource::seeded(1);
        let point = FailPoint::default();
        let series = |mode, count: usize| -> Vec<bool> {
            point.configure(mode, on(&["find", "ping"]));
            (0..count).map(|_| acts(&point, &ids, "find")).collect()
        };
        assert_eq!(series(FailPointMode::Off, 2), [false, false]);
        assert_eq!(series(FailPointMode::AlwaysOn, 2), [true, true]);
        assert_eq!(series(FailPointMode::Times(2), 3), [true, true, false]);
        assert_eq!(
            series(FailPointMode::Skip(2), 4),
            [false, false, true, true]
        );
        let half = series(FailPointMode::Probability(0.5), 1000);
        let half = half.iter().filter(|acted| **acted).count();
        assert!((400..600).contains(&half), "{half}");
        assert!(!series(FailPointMode::Probability(0.0), 20).contains(&true));
        assert_eq!(
            point.configure(FailPointMode::Off, FailPointData::default()),
            6 + half as i64
        );
    }

    #[test]
    fn other_commands_namespaces_and_applications_pass() {
        let ids = IdSource::seeded(1);
        let point = FailPoint::default();
        point.configure(FailPointMode::Times(1), on(&["find"]));
        assert!(!acts(&point, &ids, "insert"), "it does not count");
        assert!(acts(&point, &ids, "find"));
        for (namespace, application, expected) in [
            (Some("db.c"), None, true),
            (Some("db.d"), None, false),
            (None, Some("a"), true),
            (None, Some("b"), false),
        ] {
            let data = FailPointData {
                namespace: namespace.map(str::to_owned),
                application: application.map(str::to_owned),
                ..on(&["find"])
            };
            point.configure(FailPointMode::AlwaysOn, data);
            assert_eq!(acts(&point, &ids, "find"), expected);
        }
    }
}
