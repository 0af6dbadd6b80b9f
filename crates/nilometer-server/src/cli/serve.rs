//! `nilometer serve`: opens the database, listens, and serves until a shutdown.
//!
//! The order matters: the port is bound before the directory is opened, so that a second server started by mistake
//! fails on the port with a clear message and touches no data. Clients are served when everything is ready.

use std::io::{IsTerminal, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nilometer::Database;
use nilometer::database::PREFETCH_MAX;
use nilometer::operation::SystemClock;
use nilometer::services::{Environment, IdSource, LogRing, ReplicaSet, StepDown, StorageEnd};
use nilometer_bson::Document;
use tracing::{error, info, warn};

use super::args::ServeArgs;
use super::greeting::Greeting;
use super::object_storage::{Member, Node};
use super::replica_set;
use super::replica_set::{SingleMember, own_address};
use super::{Failure, Security, Settings, Storage, backups, config};
use crate::audit::AuditLog;
use crate::database_slot::DatabaseSlot;
use crate::http::{Http, HttpOptions, InfluxOptions};
use crate::log::Sink;
use crate::server::{Options, Server};
use crate::shutdown::{ServerEvent, ShutdownReason, ShutdownSignal};
use crate::tls::{ClientTls, Tls, TlsOptions};
use crate::{limits, listener, log, machine};

/// Serves until a signal comes.
pub(crate) fn run(given: ServeArgs, argv: Vec<String>) -> Result<(), Failure> {
    let given = match &given.config {
        None => given,
        Some(path) => {
            let file = config::read(path)?;
            given.or(file)
        }
    };
    let settings = Settings::resolve(&given)?;
    let ring = Arc::new(LogRing::default());
    log::start(&settings.sink, settings.verbosity, ring.clone()).map_err(|e| {
        let file = match &settings.sink {
            Sink::File { path, .. } => format!(" {}", path.display()),
            Sink::StandardOutput | Sink::None => String::new(),
        };
        Failure::Options(format!("cannot start the log{file}: {e}"))
    })?;
    let outcome = serve(settings, argv, ring);
    if let Err(failure) = &outcome {
        error!(c = "CONTROL", id = 20_557, error = %failure, "Exiting");
    }
    outcome
}

/// How other nodes of a cluster reach this process, and it reaches them.
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "only a cluster reads them")
)]
pub(super) struct NodeIdentity {
    /// Its address.
    pub(super) me: String,
    /// TLS between nodes, if the server has it.
    pub(super) tls: Option<ClientTls>,
}

// long function: the steps of a start, in the order that the module head explains
fn serve(settings: Settings, argv: Vec<String>, ring: Arc<LogRing>) -> Result<(), Failure> {
    // First, so that a signal during the start is not lost.
    let signal = ShutdownSignal::listen()
        .map_err(|e| Failure::Other(format!("cannot handle signals: {e}")))?;
    let listeners = bind(&settings, settings.port)?;
    let port = match listeners.first().map(TcpListener::local_addr) {
        Some(Ok(address)) => address.port(),
        _ => settings.port,
    };
    let tls = tls(&settings)?;
    let http = settings.http_port.map(|port| bind(&settings, port));
    let http = http.transpose()?;
    let influx = settings.influx_port.map(|port| bind(&settings, port));
    let influx = influx.transpose()?;
    announce(&settings, port)?;
    warn_about_access(&settings);
    warn_about_files(settings.connections_max);
    let host = machine::facts(argv, settings.parsed, port);
    let change_log = settings.replica_set.as_ref().map(|set| set.change_log);
    let set = settings.replica_set.as_ref();
    let set = set.map(|options| options.set(&settings.hosts, port, &host.hostname));
    let environment = Environment {
        clock: Arc::new(SystemClock::default()),
        parameters: settings.parameters,
        log: ring,
        host,
        ids: IdSource::default(),
        access_control: settings.security.access_control,
        replica_set: set.clone(),
        change_log: change_log.unwrap_or_default(),
    };
    // Log and process id file are open already: other programs may read those.
    machine::make_new_files_private();
    let me = match &settings.node_address {
        // Drivers compare addresses in small letters.
        Some(address) => address.to_lowercase(),
        None => own_address(&settings.hosts, port, &environment.host.hostname),
    };
    let tls_options = settings.security.tls.as_ref();
    let identity = NodeIdentity {
        me,
        tls: tls_options.map(TlsOptions::of_node),
    };
    let place = (&settings.storage, set, identity);
    let Some((slot, mut membership)) = open(place, environment, &signal)? else {
        return Ok(());
    };
    let database = slot.current();
    end_by_request(&database, &signal);
    let message_memory_bytes = warn_about_memory(&database);
    let backup = backups::start(settings.backup.as_ref(), &database)?;
    set_audit(&database, settings.security.audit.as_deref())?;
    let ssl = if tls.is_some() { "on" } else { "off" };
    if let Some(ms) = settings.slow_ms {
        database.services().profiler.set_slow_ms(ms.into());
    }
    let no_threads = |e| Failure::Other(format!("cannot start the threads of the server: {e}"));
    let has_page = settings.web_hosts.is_some();
    let answering = http_options(&settings.security, settings.web_hosts, tls.clone());
    let http = http.map(|listeners| Http::start(slot.clone(), listeners, answering));
    let http = http.transpose().map_err(no_threads)?;
    let for_influx = influx_options(settings.influx_plaintext, tls.clone(), message_memory_bytes);
    let influx = influx.map(|listeners| Http::start(slot.clone(), listeners, for_influx));
    let influx = influx.transpose().map_err(no_threads)?;
    let options = Options {
        connections_max: settings.connections_max,
        compressors: settings.compressors,
        tls,
        message_memory_bytes,
        ..Options::default()
    };
    // It may be replaced.
    drop(database);
    let server = Server::start(slot.clone(), listeners, options).map_err(no_threads)?;
    for address in server.addresses() {
        let address = address.to_string();
        info!(c = "NETWORK", id = 23_015, address, "Listening on");
    }
    info!(
        c = "NETWORK",
        id = 23_016,
        port,
        ssl,
        "Waiting for connections"
    );
    greet(&Greeting {
        data: &settings.storage,
        address: server.addresses().first().copied(),
        http: http
            .as_ref()
            .and_then(|http| http.addresses().first().copied()),
        has_page,
        is_tls: ssl == "on",
        asks_for_logins: settings.security.access_control,
    });
    let reason = await_end(signal, &mut membership);
    // First, so that another server can take over at once.
    membership.end(&reason);
    for http in [influx, http].into_iter().flatten() {
        http.shut_down();
    }
    server.shut_down();
    // After the last write of a client.
    if let Some(backup) = backup {
        backup.stop();
    }
    let closed = slot.current().close();
    let storage = &settings.storage;
    match reason {
        ShutdownReason::Storage(StorageEnd::TakenOver) => {
            return Err(Failure::TakenOver(format!(
                "another process has taken over the database in {storage}"
            )));
        }
        ShutdownReason::Storage(StorageEnd::Failed) => {
            return Err(Failure::Other(format!(
                "the storage of the database in {storage} has ended; start again"
            )));
        }
        ShutdownReason::Signal(_) | ShutdownReason::Request => {}
    }
    if let Err(problem) = closed {
        warn!(c = "STORAGE", id = 22_430, error = %problem, "Closing the database failed");
    }
    info!(c = "CONTROL", id = 23_138, exitCode = 0, "Shut down");
    if let Some(path) = &settings.pid_file
        && let Err(problem) = std::fs::remove_file(path)
    {
        warn!(c = "CONTROL", id = 23_330, error = %problem, "Process id file not removed");
    }
    Ok(())
}

fn http_options(
    security: &Security,
    web_hosts: Option<Vec<String>>,
    tls: Option<Arc<Tls>>,
) -> HttpOptions {
    HttpOptions {
        // Metrics need no login, so they are not served if logins are required.
        gives_metrics: !security.access_control,
        tls,
        web_hosts,
        influx: None,
    }
}

/// Returns the options of the port for clients of InfluxDB.
fn influx_options(
    takes_plaintext: bool,
    tls: Option<Arc<Tls>>,
    message_memory_bytes: usize,
) -> HttpOptions {
    HttpOptions {
        tls,
        influx: Some(InfluxOptions {
            takes_plaintext,
            memory_bytes: message_memory_bytes,
        }),
        ..HttpOptions::default()
    }
}

fn bind(settings: &Settings, port: u16) -> Result<Vec<TcpListener>, Failure> {
    listener::bind(&settings.hosts, port).map_err(|e| Failure::Network(e.to_string()))
}

/// Loads the certificates, if TLS is enabled.
fn tls(settings: &Settings) -> Result<Option<Arc<Tls>>, Failure> {
    let Some(options) = settings.security.tls.clone() else {
        return Ok(None);
    };
    let tls = Tls::new(options).map_err(|e| Failure::Options(format!("TLS: {e}")))?;
    Ok(Some(Arc::new(tls)))
}

/// Sets up the audit log of the database, if it is enabled.
fn set_audit(database: &Database, path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else {
        return Ok(());
    };
    let log = AuditLog::open(path).map_err(|e| {
        Failure::Other(format!("cannot open the audit log {}: {e}", path.display()))
    })?;
    // The database is new, so it is not set yet.
    let sink = Box::new(move |event: &Document| log.write(event));
    drop(database.services().audit.set(sink));
    Ok(())
}

/// What the server is among those of its database.
enum Membership {
    /// The only one, and no member of a set.
    None,
    /// The only member of a set.
    Single(SingleMember),
    /// One of several.
    Member(Box<Member>),
    /// A node of a cluster.
    Node(Box<Node>),
}

impl Membership {
    /// Returns when [`Self::tick`] has something to do, if ever.
    fn due(&self) -> Option<Instant> {
        match self {
            Self::None | Self::Node(_) => None,
            Self::Single(member) => member.due(),
            Self::Member(member) => Some(member.due()),
        }
    }

    fn tick(&mut self) {
        match self {
            Self::None | Self::Node(_) => {}
            Self::Single(member) => member.tick(),
            Self::Member(member) => member.tick(),
        }
    }

    fn step_down(&mut self, how: StepDown) -> nilometer::Result<()> {
        match self {
            Self::None | Self::Node(_) => Ok(()),
            Self::Single(member) => member.step_down(how),
            Self::Member(member) => member.step_down(how),
        }
    }

    /// True if this server stands by, and does so again now that another one has taken over the database.
    fn stand_by_again(&mut self) -> bool {
        match self {
            Self::None | Self::Single(_) => false,
            Self::Member(member) => member.stand_by_again(),
            // Its thread of the catalog has noticed.
            Self::Node(_) => true,
        }
    }

    /// Ends it. A database that was taken over, or whose storage has failed, is not handed over.
    fn end(self, reason: &ShutdownReason) {
        match (self, reason) {
            // What its other partitions have is handed over in any case.
            (Self::Node(node), _) => node.end(),
            (Self::Member(member), ShutdownReason::Signal(_) | ShutdownReason::Request) => {
                member.end();
            }
            _ => {}
        }
    }
}

/// Opens the database. `None` if the server was shut down while it waited for it.
fn open(
    (storage, set, identity): (&Storage, Option<Arc<ReplicaSet>>, NodeIdentity),
    environment: Environment,
    signal: &ShutdownSignal,
) -> Result<Option<(DatabaseSlot, Membership)>, Failure> {
    if let Some(set) = &set {
        replica_set::take_step_downs(set, signal);
    }
    let (database, term) = match (storage, &set) {
        (Storage::Directory(directory), _) => {
            let opened = Database::open_with(directory, environment).map_err(|e| {
                Failure::Other(format!(
                    "cannot open {}: {}",
                    directory.display(),
                    e.message
                ))
            })?;
            opened.prefetch_newest(PREFETCH_MAX);
            (opened, 1)
        }
        (Storage::Objects(storage), _) if storage.is_cluster() => {
            let joined = storage.join_cluster(environment, identity, &|| signal.is_requested())?;
            return Ok(joined.map(|(slot, node)| (slot, Membership::Node(Box::new(node)))));
        }
        (Storage::Objects(storage), Some(set)) if storage.is_shared() => {
            let is_ended = || signal.is_requested();
            let joined = storage.join(environment, set.clone(), &is_ended)?;
            return Ok(joined.map(|(slot, member)| (slot, Membership::Member(Box::new(member)))));
        }
        (Storage::Objects(storage), _) => storage.open(environment)?,
    };
    let database = Arc::new(database);
    let membership = match set {
        None => Membership::None,
        Some(set) => Membership::Single(SingleMember::new(set, database.clone(), term)),
    };
    Ok(Some((database.into(), membership)))
}

/// Lets the `shutdown` command, or the end of the storage, end this process.
fn end_by_request(database: &Database, signal: &ShutdownSignal) {
    let (requested, ended) = (signal.handle(), signal.handle());
    // The receivers are gone only if the server is ending already.
    let end = move || {
        let _ = requested.send(ServerEvent::End(ShutdownReason::Request));
    };
    let storage_end = move |why| {
        let _ = ended.send(ServerEvent::End(ShutdownReason::Storage(why)));
    };
    // The database is new, so they are not set yet.
    let services = database.services();
    drop(services.shutdown.set(Box::new(end)));
    drop(services.storage_ended.set(Box::new(storage_end)));
}

/// Prints the greeting to a terminal.
fn greet(greeting: &Greeting<'_>) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        // A closed terminal is ignored.
        drop(terminal.write_all(greeting.text().as_bytes()));
    }
}

/// Does what a member of a replica set has to do, until a shutdown. Logs its reason and returns it. A step-down that is
/// requested later fails, because the receiver is gone.
fn await_end(signal: ShutdownSignal, membership: &mut Membership) -> ShutdownReason {
    let reason = loop {
        match signal.wait_until(membership.due()) {
            Some(ServerEvent::End(ShutdownReason::Storage(StorageEnd::TakenOver)))
                if membership.stand_by_again() => {}
            Some(ServerEvent::End(reason)) => break reason,
            Some(ServerEvent::StepDown(how, answer)) => {
                // The client may be gone.
                let _ = answer.send(membership.step_down(how));
            }
            None => membership.tick(),
        }
    };
    match reason {
        ShutdownReason::Signal(number) => {
            info!(
                c = "CONTROL",
                id = 23_377,
                signal = number,
                "Received signal; shutting down"
            );
        }
        ShutdownReason::Request => info!(c = "CONTROL", id = 23_378, "Shutting down by command"),
        ShutdownReason::Storage(_) => error!(
            c = "CONTROL",
            id = 23_379,
            "Shutting down because the storage of the database has ended"
        ),
    }
    reason
}

/// Logs the start and writes the process id file.
fn announce(settings: &Settings, port: u16) -> Result<(), Failure> {
    let pid = std::process::id();
    if let Some(path) = &settings.pid_file {
        std::fs::write(path, format!("{pid}\n"))
            .map_err(|e| Failure::Other(format!("cannot write {}: {e}", path.display())))?;
    }
    let storage = settings.storage.to_string();
    info!(
        c = "CONTROL",
        id = 4_615_611,
        pid,
        port,
        dbPath = storage,
        version = crate::VERSION,
        "Nilometer starting"
    );
    Ok(())
}

/// Warns if access control is disabled. Shells show this when they connect.
fn warn_about_access(settings: &Settings) {
    if settings.security.access_control {
        return;
    }
    warn!(
        c = "CONTROL",
        id = 22_120,
        startup = true,
        "Access control is not enabled for the database. Read and write access to data and configuration is unrestricted"
    );
    let loopback = |host: &String| {
        host == "localhost"
            || host
                .parse()
                .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    };
    if !settings.hosts.iter().all(loopback) {
        warn!(
            c = "CONTROL",
            id = 22_184,
            startup = true,
            "The server listens on addresses beyond this machine without access control"
        );
    }
}

/// Returns the memory for large messages on this machine. Warns if this and the limits of the database together exceed
/// the available memory, and if that is less than ordinary load needs.
fn warn_about_memory(database: &Database) -> usize {
    let most = limits::MESSAGE_MEMORY_BYTES;
    let Some(limit) = database.services().memory_limit() else {
        return most;
    };
    let share = usize::try_from(limit / limits::MESSAGE_MEMORY_SHARE).unwrap_or(usize::MAX);
    let messages = most.min(share).max(limits::MESSAGE_BYTES_MAX);
    if limit < limits::MEMORY_BYTES_RECOMMENDED {
        warn!(
            c = "CONTROL",
            id = 22_180,
            startup = true,
            limitBytes = limit,
            recommendedMinimum = limits::MEMORY_BYTES_RECOMMENDED,
            "The process may use too little memory: commands on documents may be refused under ordinary load"
        );
    }
    let planned = database.memory_planned_bytes() + messages as u64;
    if planned > limit {
        warn!(
            c = "CONTROL",
            id = 22_179,
            startup = true,
            plannedBytes = planned,
            limitBytes = limit,
            "The limits of caches, queries and messages exceed the memory of the process"
        );
    }
    messages
}

/// Files that the process needs besides its connections: those of the database, the log, a reserve.
const OTHER_FILES: u64 = 1000;

/// Raises the limit of open files. Warns if it is low.
fn warn_about_files(connections_max: u32) {
    let wanted = u64::from(connections_max) + OTHER_FILES;
    if let Some(limit) = machine::raise_file_limit()
        && limit < wanted
    {
        warn!(
            c = "CONTROL",
            id = 22_178,
            startup = true,
            currentValue = limit,
            recommendedMinimum = wanted,
            "Soft rlimits for open file descriptors too low"
        );
    }
}
