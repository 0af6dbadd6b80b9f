//! Options of a replica set, and a set of this server alone.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use nilometer::change_log::ChangeLogOptions;
use nilometer::services::{MemberRole, ReplicaSet, StepDown};
use nilometer::{Database, Error, ErrorCode};
use nilometer_bson::Value;
use tracing::info;

use super::Failure;
use crate::shutdown::{ServerEvent, ShutdownSignal};

/// The name of the set of servers that stand by for each other, if none is given.
pub(super) const DEFAULT_NAME: &str = "nilometer";

/// The longest name of a set, in bytes.
const NAME_BYTES_MAX: usize = 120;

/// The options as given.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ReplicaSetArgs {
    /// Name of the replica set that clients see, which makes their writes retryable [default with --standby and --readOnly: nilometer]
    #[arg(long = "replSet", value_name = "NAME", help_heading = "Replication")]
    pub(crate) name: Option<String>,

    /// Address by which clients and the other servers reach this one [default: --bind_ip, or the host name, and the port]
    #[arg(
        long = "advertise",
        value_name = "HOST:PORT",
        help_heading = "Replication"
    )]
    pub(crate) address: Option<String>,

    /// Size in MB above which the change log of a replica set loses its oldest entries [default: 990]
    #[arg(long = "oplogSizeMB", value_name = "MB", help_heading = "Replication")]
    pub(crate) log_size_mb: Option<u32>,

    /// Hours for which entries of the change log stay even if it is larger [default: 0]
    #[arg(
        long = "oplogMinRetentionHours",
        value_name = "HOURS",
        help_heading = "Replication"
    )]
    pub(crate) log_retention_hours: Option<f64>,
}

impl ReplicaSetArgs {
    /// Returns these options, completed with those of `file`.
    pub(super) fn or(self, file: Self) -> Self {
        Self {
            name: self.name.or(file.name),
            address: self.address.or(file.address),
            log_size_mb: self.log_size_mb.or(file.log_size_mb),
            log_retention_hours: self.log_retention_hours.or(file.log_retention_hours),
        }
    }

    /// Sets the option at `path` of the configuration file. False if it is not one of these options.
    pub(super) fn set(&mut self, path: &str, text: &str) -> Result<bool, Failure> {
        let wrong = || Failure::Options(format!("{path} must be a number, not {text}"));
        match path {
            "replication.replSetName" => self.name = Some(text.to_owned()),
            "replication.advertise" => self.address = Some(text.to_owned()),
            "replication.oplogSizeMB" => {
                self.log_size_mb = Some(text.parse().map_err(|_| wrong())?);
            }
            "storage.oplogMinRetentionHours" => {
                self.log_retention_hours = Some(text.parse().map_err(|_| wrong())?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the given options of the section `replication`.
    pub(super) fn parsed(&self) -> Vec<(&'static str, Option<Value>)> {
        vec![
            ("replSetName", self.name.as_deref().map(Value::from)),
            ("advertise", self.address.as_deref().map(Value::from)),
            (
                "oplogSizeMB",
                self.log_size_mb.map(|mb| Value::Int64(mb.into())),
            ),
        ]
    }

    /// Returns the given options of the section `storage`.
    pub(super) fn parsed_storage(&self) -> (&'static str, Option<Value>) {
        let hours = self.log_retention_hours.map(Value::Double);
        ("oplogMinRetentionHours", hours)
    }

    /// Checks the options of a node of a cluster. Returns its address, if it was given.
    pub(super) fn node_address(&self) -> Result<Option<String>, Failure> {
        let is_of_set = self.log_size_mb.is_some() || self.log_retention_hours.is_some();
        if self.name.is_some() || is_of_set {
            return Err(Failure::Options(
                "a node of a --cluster is no member of a replica set: it excludes --replSet and the options of its log"
                    .to_owned(),
            ));
        }
        self.check_address()?;
        Ok(self.address.clone())
    }

    fn check_address(&self) -> Result<(), Failure> {
        let Some(address) = &self.address else {
            return Ok(());
        };
        let parts = address.rsplit_once(':');
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        let is_host = |host: &str| !host.is_empty() && !host.contains(['/', ',', ' ']);
        match parts.is_some_and(|(host, port)| is_host(host) && is_port(port)) {
            true => Ok(()),
            false => Err(Failure::Options("--advertise must be HOST:PORT".to_owned())),
        }
    }

    /// Returns the size of the change log.
    fn change_log(&self) -> Result<ChangeLogOptions, Failure> {
        /// Longest retention: a hundred years.
        const HOURS_MAX: f64 = 24.0 * 36_525.0;
        let mut options = ChangeLogOptions::default();
        if let Some(mb) = self.log_size_mb {
            if mb == 0 {
                return Err(Failure::Options("--oplogSizeMB must be at least 1".into()));
            }
            options.bytes_max = u64::from(mb) << 20;
        }
        if let Some(hours) = self.log_retention_hours {
            if !(0.0..=HOURS_MAX).contains(&hours) {
                return Err(Failure::Options(
                    "--oplogMinRetentionHours must be a number from 0 on".into(),
                ));
            }
            options.retention_min_ms = (hours * 3_600_000.0) as i64;
        }
        Ok(options)
    }

    /// Checks the options. `stands_by` is true if other servers may serve the same database.
    pub(super) fn resolve(&self, stands_by: bool) -> Result<Option<ReplicaSetOptions>, Failure> {
        let refused = |text: &str| Err(Failure::Options(text.to_owned()));
        let default = stands_by.then_some(DEFAULT_NAME);
        let Some(name) = self.name.as_deref().or(default) else {
            if self.log_size_mb.is_some() || self.log_retention_hours.is_some() {
                return refused("--oplogSizeMB and --oplogMinRetentionHours need --replSet");
            }
            return match self.address {
                None => Ok(None),
                Some(_) => refused("--advertise needs --replSet, --standby or --cluster"),
            };
        };
        let change_log = self.change_log()?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['/', ',', '\0']) {
            return refused("--replSet must be a name without slash and comma");
        }
        self.check_address()?;
        Ok(Some(ReplicaSetOptions {
            name: name.to_owned(),
            address: self.address.clone(),
            change_log,
        }))
    }
}

/// The replica set of a server.
#[derive(Clone, Debug)]
pub struct ReplicaSetOptions {
    /// Its name.
    pub(super) name: String,
    /// The address of this server, if given.
    address: Option<String>,
    /// The size of the change log.
    pub(super) change_log: ChangeLogOptions,
}

impl ReplicaSetOptions {
    /// Returns the set of a server that listens on `hosts`.
    pub(super) fn set(&self, hosts: &[String], port: u16, machine: &str) -> Arc<ReplicaSet> {
        let me = match &self.address {
            // Drivers compare addresses in small letters.
            Some(address) => address.to_lowercase(),
            None => own_address(hosts, port, machine),
        };
        Arc::new(ReplicaSet::new(&self.name, &me))
    }
}

/// Returns the address that the first of `hosts` names; that of the machine if it means all.
pub(super) fn own_address(hosts: &[String], port: u16, machine: &str) -> String {
    let named = hosts.first().map_or("localhost", String::as_str);
    let host = match named.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => machine,
        Ok(IpAddr::V6(ip)) => return format!("[{ip}]:{port}"),
        _ => named,
    };
    format!("{}:{port}", host.to_lowercase())
}

/// Lets the command `replSetStepDown` reach the loop that `signal` wakes.
pub(super) fn take_step_downs(set: &ReplicaSet, signal: &ShutdownSignal) {
    let handle = signal.handle();
    let step_down = move |how| {
        let (answer, outcome) = std::sync::mpsc::channel();
        let ending = || Error::new(ErrorCode::InterruptedAtShutdown, "interrupted at shutdown");
        let sent = handle.send(ServerEvent::StepDown(how, answer));
        sent.map_err(|_| ending())?;
        outcome.recv().map_err(|_| ending())?
    };
    // The set is new, so it is not set yet.
    drop(set.step_down.set(Box::new(step_down)));
}

/// A set of this server alone, which is its primary.
pub(super) struct SingleMember {
    set: Arc<ReplicaSet>,
    database: Arc<Database>,
    /// When it is primary again after a step-down.
    primary_again: Option<Instant>,
}

impl SingleMember {
    /// Makes this server the primary of the set.
    pub(super) fn new(set: Arc<ReplicaSet>, database: Arc<Database>, term: u64) -> Self {
        let member = Self {
            set,
            database,
            primary_again: None,
        };
        member.become_primary(term);
        member
    }

    fn become_primary(&self, term: u64) {
        let now_ms = self.database.services().clock.now_ms();
        let me = self.set.me().to_owned();
        self.set.update(|state| {
            state.role = MemberRole::Primary;
            state.primary = Some(me);
            state.term = term;
            state.elected_ms = now_ms;
        });
    }

    /// Returns when [`Self::tick`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.primary_again
    }

    /// Becomes primary again, if it is time.
    pub(super) fn tick(&mut self) {
        if self
            .primary_again
            .is_some_and(|again| Instant::now() >= again)
        {
            self.primary_again = None;
            self.become_primary(self.set.state().term + 1);
            info!(c = "REPL", id = 21_331, "Primary again after a step-down");
        }
    }

    /// Steps down for the given time if `force` is set: the set has no other member.
    pub(super) fn step_down(&mut self, how: StepDown) -> nilometer::Result<()> {
        if !self.set.is_primary() {
            return Err(not_primary());
        }
        if !how.force {
            return Err(no_electable());
        }
        self.set.update(|state| {
            state.role = MemberRole::Secondary;
            state.primary = None;
        });
        interrupt_writes(&self.database);
        self.primary_again = Some(Instant::now() + how.time);
        info!(
            c = "REPL",
            id = 21_579,
            seconds = how.time.as_secs(),
            "Stepped down"
        );
        Ok(())
    }
}

/// Returns the error of a step-down of a server that does not write.
pub(super) fn not_primary() -> Error {
    Error::new(
        ErrorCode::NotWritablePrimary,
        "not primary so can't step down",
    )
}

/// Returns the error of a step-down that would leave the set without a primary.
pub(super) fn no_electable() -> Error {
    Error::new(
        ErrorCode::ExceededTimeLimit,
        "No electable secondaries caught up; use force: true to step down without one",
    )
}

/// Interrupts the writes that run: this server is no longer primary.
pub(super) fn interrupt_writes(database: &Database) {
    let reason = ErrorCode::InterruptedDueToReplStateChange;
    let operations = &database.services().operations;
    operations.kill_where(reason, |operation| {
        operation.access == nilometer::operation::Access::Write
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_first_host() {
        let address = |host: &str| own_address(&[host.to_owned()], 7, "Garden.local");
        assert_eq!(address("127.0.0.1"), "127.0.0.1:7");
        assert_eq!(address("0.0.0.0"), "garden.local:7");
        assert_eq!(address("::"), "garden.local:7");
        assert_eq!(address("::1"), "[::1]:7");
        assert_eq!(address("Roof.example"), "roof.example:7");
    }

    #[test]
    fn a_name_makes_a_set_and_an_address_needs_one() {
        let given = |name: Option<&str>, address: Option<&str>| ReplicaSetArgs {
            name: name.map(str::to_owned),
            address: address.map(str::to_owned),
            ..ReplicaSetArgs::default()
        };
        let name = |given: ReplicaSetArgs, stands_by| {
            given.resolve(stands_by).map(|set| set.map(|set| set.name))
        };
        assert!(matches!(name(given(None, None), false), Ok(None)));
        assert_eq!(
            name(given(None, None), true).expect("a set").as_deref(),
            Some(DEFAULT_NAME)
        );
        assert_eq!(
            name(given(Some("rs"), Some("h:1")), true)
                .expect("a set")
                .as_deref(),
            Some("rs")
        );
        assert!(name(given(None, Some("h:1")), false).is_err());
        for wrong in ["", "a/b", "a,b"] {
            assert!(name(given(Some(wrong), None), false).is_err(), "{wrong}");
        }
        for wrong in ["h", "h:", ":1", "h:0", "h:x", "a,b:1"] {
            assert!(
                name(given(Some("rs"), Some(wrong)), false).is_err(),
                "{wrong}"
            );
        }
    }
}
