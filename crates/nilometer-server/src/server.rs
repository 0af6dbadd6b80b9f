//! A running server: listeners, connections, and the threads that watch them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nilometer::ErrorCode;
use nilometer::operation::Access;
use nilometer::services::Services;
use tracing::{info, warn};

use crate::database_slot::DatabaseSlot;
use crate::idle_connections;
use crate::idle_connections::IdleConnections;
use crate::message_memory::MessageMemory;
use crate::registry::Registry;
use crate::tls::Tls;
use crate::wire::Compressor;
use crate::{limits, listener};

/// Options of a server.
#[derive(Clone)]
pub struct Options {
    /// Maximum open connections.
    pub connections_max: u32,
    /// Compressors offered to clients, best first.
    pub compressors: Vec<Compressor>,
    /// TLS options, if TLS is enabled.
    pub tls: Option<Arc<Tls>>,
    /// Timeouts of clients.
    pub timeouts: Timeouts,
    /// Bytes of all large messages together.
    pub message_memory_bytes: usize,
}

/// Timeouts of clients.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the first message.
    pub first_message: Duration,
    /// For the next message, before the connection releases its thread.
    pub idle: Duration,
    /// For silence within a message, or with a full send buffer.
    pub stall: Duration,
    /// For a whole message, in or out.
    pub message: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            first_message: limits::FIRST_MESSAGE_TIMEOUT,
            idle: limits::IDLE_AFTER,
            stall: limits::STALL_TIMEOUT,
            message: limits::MESSAGE_TIMEOUT,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: limits::CONNECTIONS_MAX,
            compressors: Compressor::OFFERED.to_vec(),
            tls: None,
            timeouts: Timeouts::default(),
            message_memory_bytes: limits::MESSAGE_MEMORY_BYTES,
        }
    }
}

/// The state shared by all threads of a server.
pub(crate) struct ServerState {
    pub(crate) database: DatabaseSlot,
    pub(crate) registry: Registry,
    pub(crate) connections_max: u32,
    pub(crate) compressors: Vec<Compressor>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) timeouts: Timeouts,
    pub(crate) message_memory: MessageMemory,
    pub(crate) idle_connections: IdleConnections,
    pub(crate) last_connection_id: AtomicI64,
    shutting_down: AtomicBool,
}

impl ServerState {
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    /// True if connections are not to be logged.
    pub(crate) fn is_quiet(&self) -> bool {
        self.database.services().parameters.quiet() != 0
    }
}

/// A server that accepts connections until it is shut down.
pub struct Server {
    shared: Arc<ServerState>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves `database` on bound sockets.
    pub fn start(
        database: impl Into<DatabaseSlot>,
        listeners: Vec<TcpListener>,
        options: Options,
    ) -> io::Result<Self> {
        let database = database.into();
        let max = u64::from(options.connections_max);
        database.services().counters.connections.max.add(max);
        if let Some(tls) = options.tls.clone() {
            // Set once. Another server of the same database uses its own certificates.
            let rotate = Box::new(move || tls.rotate());
            drop(database.services().rotate_certificates.set(rotate));
        }
        let shared = Arc::new(ServerState {
            database,
            registry: Registry::default(),
            connections_max: options.connections_max,
            compressors: options.compressors,
            tls: options.tls,
            timeouts: options.timeouts,
            message_memory: MessageMemory::new(options.message_memory_bytes),
            idle_connections: IdleConnections::new(options.timeouts.idle)?,
            last_connection_id: AtomicI64::new(0),
            shutting_down: AtomicBool::new(false),
        });
        answer_topology_changes(&shared);
        let addresses = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<Vec<_>>>()?;
        let mut threads = Vec::new();
        for socket in listeners {
            let shared = shared.clone();
            let accept = move || listener::accept(&shared, &socket);
            threads.push(
                thread::Builder::new()
                    .name("listener".into())
                    .spawn(accept)?,
            );
        }
        let waking = shared.clone();
        let wake = move || idle_connections::watch(&waking);
        threads.push(
            thread::Builder::new()
                .name("idle-watcher".into())
                .spawn(wake)?,
        );
        let answering = shared.clone();
        let answer = move || idle_connections::answer_due(&answering);
        threads.push(
            thread::Builder::new()
                .name("hello-timer".into())
                .spawn(answer)?,
        );
        let registered = shared.clone();
        let watch = move || watch_clients(&registered);
        threads.push(thread::Builder::new().name("watcher".into()).spawn(watch)?);
        Ok(Self {
            shared,
            addresses,
            threads,
        })
    }

    /// Returns the addresses it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Shuts down the server: refuses new connections, closes idle ones, and interrupts running commands after
    /// [`limits::SHUTDOWN_GRACE`]. True if all connections ended in time.
    pub fn shut_down(self) -> bool {
        self.shared.shutting_down.store(true, Ordering::Relaxed);
        // A listener blocks in `accept`; a connection from this process wakes it.
        for address in &self.addresses {
            wake_listener(*address);
        }
        let registry = &self.shared.registry;
        registry.close_all();
        if !registry.wait_until_empty(limits::SHUTDOWN_GRACE) {
            let operations = &self.shared.database.services().operations;
            operations.kill_where(ErrorCode::InterruptedAtShutdown, |_| true);
        }
        let ended = registry.wait_until_empty(limits::SHUTDOWN_TIMEOUT);
        if !ended {
            let connections = registry.len();
            warn!(
                c = "NETWORK",
                id = 22_996,
                connections,
                "Connections did not end in time"
            );
        }
        self.shared.idle_connections.close();
        for thread in self.threads {
            thread.thread().unpark();
            if thread.join().is_err() {
                warn!(
                    c = "NETWORK",
                    id = 22_997,
                    "A thread of the server had panicked"
                );
            }
        }
        ended
    }
}

/// Answers the clients that wait for a change of the replica set, when there is one.
fn answer_topology_changes(shared: &Arc<ServerState>) {
    if let Some(set) = &shared.database.services().replica_set {
        let waiting = Arc::downgrade(shared);
        let notify = move || {
            if let Some(shared) = waiting.upgrade() {
                shared.idle_connections.topology_changed();
            }
        };
        // Set once, as the certificates.
        drop(set.on_change.set(Box::new(notify)));
    }
}

/// Connects to a listener of this process, so that its `accept` returns.
pub(crate) fn wake_listener(mut address: SocketAddr) {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    drop(TcpStream::connect_timeout(&address, limits::ACCEPT_PAUSE));
}

/// Checks for disconnected clients until the server ends.
fn watch_clients(shared: &ServerState) {
    while !shared.is_shutting_down() {
        thread::park_timeout(limits::DISCONNECT_CHECK_INTERVAL);
        interrupt_abandoned(shared.database.services(), &shared.registry);
    }
}

/// Interrupts reads of disconnected clients. Writes continue: they end soon, and the effect of an interrupted one would
/// be unknown.
pub(crate) fn interrupt_abandoned(services: &Services, registry: &Registry) {
    for id in registry.abandoned(limits::DISCONNECT_CHECK_INTERVAL) {
        info!(
            c = "NETWORK",
            id = 22_998,
            connectionId = id,
            "Interrupting the command of a disconnected client"
        );
        let operations = &services.operations;
        operations.kill_where(ErrorCode::ClientDisconnect, |operation| {
            operation.connection_id == id && operation.access != Access::Write
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Instant;

    use nilometer::Database;
    use nilometer::services::Environment;
    use nilometer_bson::{Document, doc};

    use super::*;

    const PATIENCE: Timeouts = Timeouts {
        first_message: Duration::from_millis(300),
        idle: Duration::from_millis(100),
        stall: Duration::from_millis(600),
        message: Duration::from_millis(1500),
    };

    fn start(environment: Environment, message_memory_bytes: usize) -> Server {
        start_with(environment, message_memory_bytes, PATIENCE)
    }

    fn start_with(
        environment: Environment,
        message_memory_bytes: usize,
        timeouts: Timeouts,
    ) -> Server {
        let database = Database::in_memory_with(environment).expect("a database");
        let listeners = listener::bind(&["127.0.0.1".to_owned()], 0).expect("a port");
        let options = Options {
            timeouts,
            message_memory_bytes,
            ..Options::default()
        };
        Server::start(Arc::new(database), listeners, options).expect("a server")
    }

    fn connect(server: &Server) -> TcpStream {
        let stream = TcpStream::connect(server.addresses()[0]).expect("a connection");
        let timeouts = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeouts).expect("an option");
        stream
    }

    fn message(command: &Document) -> Vec<u8> {
        let length = command.as_bytes().len() + 21;
        let mut bytes = Vec::new();
        for field in [length as i32, 1, 0, 2013, 0] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.push(0);
        bytes.extend(command.as_bytes());
        bytes
    }

    /// Bytes of the next reply; none if the server hangs up.
    fn reply(stream: &mut TcpStream) -> Option<usize> {
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut idle = vec![0; u32::from_le_bytes(length) as usize - 4];
        stream.read_exact(&mut idle).ok()?;
        Some(idle.len())
    }

    fn ping() -> Vec<u8> {
        message(&doc! {"ping": 1, "$db": "admin"})
    }

    #[test]
    fn who_says_nothing_is_hung_up_on_and_who_rests_is_not() {
        let server = start(Environment::default(), limits::MESSAGE_MEMORY_BYTES);
        let (mut silent, mut resting) = (connect(&server), connect(&server));
        resting.write_all(&ping()).expect("bytes are taken");
        assert!(reply(&mut resting).is_some());
        let began = Instant::now();
        assert_eq!(reply(&mut silent), None);
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(PATIENCE.stall * 2);
        assert_eq!(server.shared.idle_connections.len(), 1, "it has no thread");
        resting.write_all(&ping()).expect("bytes are taken");
        assert!(
            reply(&mut resting).is_some(),
            "it may idle between messages"
        );
        std::thread::sleep(PATIENCE.stall);
        assert_eq!(server.shared.idle_connections.len(), 1, "it rests again");
        drop(resting);
        let until = Instant::now() + Duration::from_secs(10);
        while server.shared.registry.len() > 0 {
            assert!(Instant::now() < until, "its end is noticed");
            std::thread::sleep(PATIENCE.idle);
        }
        // The shutdown also ends an idle connection.
        let mut resting = connect(&server);
        resting.write_all(&ping()).expect("bytes are taken");
        assert!(reply(&mut resting).is_some());
        std::thread::sleep(PATIENCE.idle * 4);
        assert!(server.shut_down());
    }

    #[test]
    fn many_active_connections_share_threads() {
        let idle = Duration::from_millis(300);
        let timeouts = Timeouts { idle, ..PATIENCE };
        let memory = limits::MESSAGE_MEMORY_BYTES;
        let server = start_with(Environment::default(), memory, timeouts);
        let count = limits::DEDICATED_THREADS_MAX * 4;
        let greeted = |_| {
            let mut stream = connect(&server);
            stream.write_all(&ping()).expect("bytes are taken");
            assert!(reply(&mut stream).is_some());
            stream
        };
        let mut streams: Vec<TcpStream> = (0..count).map(greeted).collect();
        let threads = server.shared.idle_connections.threads();
        assert!(
            threads < count * 3 / 4,
            "new connections are given threads that wait: {threads}"
        );
        let began = Instant::now();
        // On a busy machine it takes longer until all have been active for long enough.
        let periods = |few_threads: bool| if few_threads { 3 } else { 100 };
        let few_threads = || server.shared.idle_connections.threads() < count / 2;
        while began.elapsed() < idle * periods(few_threads()) {
            for stream in &mut streams {
                stream.write_all(&ping()).expect("bytes are taken");
            }
            for stream in &mut streams {
                assert!(reply(stream).is_some());
            }
        }
        assert_eq!(server.shared.registry.len(), count);
        let threads = server.shared.idle_connections.threads();
        assert!(threads < count / 2, "{threads} threads");
        // Two messages at once: the second is read with the first.
        for stream in &mut streams {
            stream
                .write_all(&[ping(), ping()].concat())
                .expect("bytes are taken");
        }
        for stream in &mut streams {
            assert!(reply(stream).is_some() && reply(stream).is_some());
        }
        // Later they count as idle, and a few active ones have their own threads.
        std::thread::sleep(idle * 3);
        assert!(!server.shared.idle_connections.shares_threads());
        for stream in &mut streams[..10] {
            stream.write_all(&ping()).expect("bytes are taken");
            assert!(reply(stream).is_some());
        }
        drop(streams);
        let until = Instant::now() + Duration::from_secs(10);
        while server.shared.registry.len() > 0 {
            assert!(Instant::now() < until, "their ends are noticed");
            std::thread::sleep(PATIENCE.idle);
        }
        assert!(server.shut_down());
    }

    #[test]
    fn a_byte_now_and_then_does_not_keep_a_message_going() {
        let server = start(Environment::default(), limits::MESSAGE_MEMORY_BYTES);
        let mut slow = connect(&server);
        let began = Instant::now();
        // Never silent for the stall timeout.
        let bytes = message(&doc! {"ping": 1, "comment": "x".repeat(1000), "$db": "admin"});
        let sent = bytes.iter().take_while(|byte| {
            std::thread::sleep(PATIENCE.stall / 6);
            slow.write_all(&[**byte]).is_ok()
        });
        let sent = sent.count();
        assert!(sent < bytes.len(), "it was hung up on");
        assert!(began.elapsed() > PATIENCE.message / 2);
        assert!(server.shut_down());
    }

    #[test]
    fn a_client_that_does_not_read_holds_an_answer_for_a_limited_time() {
        let server = start(Environment::default(), limits::MESSAGE_BYTES_MAX);
        let large = doc! {"_id": 1, "x": "y".repeat(15_000_000)};
        let documents: Vec<nilometer_bson::Value> = vec![large.into()];
        let insert = message(&doc! {"insert": "c", "documents": documents, "$db": "test"});
        // A client has to send its first message soon.
        let mut writer = connect(&server);
        writer.write_all(&insert).expect("bytes are taken");
        assert!(reply(&mut writer).is_some());
        let find = message(&doc! {"find": "c", "$db": "test"});
        let mut deaf: Vec<TcpStream> = (0..6).map(|_| connect(&server)).collect();
        for stream in &mut deaf {
            stream.write_all(&find).expect("bytes are taken");
        }
        for connections in [1 + deaf.len(), 1] {
            let until = Instant::now() + Duration::from_secs(20);
            while server.shared.registry.len() != connections {
                assert!(Instant::now() < until, "they arrive, and are hung up on");
                std::thread::sleep(PATIENCE.idle / 20);
            }
        }
        // A later request finds memory although no client has read.
        writer.write_all(&find).expect("bytes are taken");
        assert!(reply(&mut writer).is_some_and(|bytes| bytes > 15_000_000));
        assert!(server.shut_down());
    }

    #[test]
    fn messages_before_a_login_are_small() {
        let environment = Environment {
            access_control: true,
            ..Environment::default()
        };
        let server = start(environment, limits::MESSAGE_MEMORY_BYTES);
        let mut client = connect(&server);
        client.write_all(&ping()).expect("bytes are taken");
        assert!(reply(&mut client).is_some());
        let comment = "x".repeat(limits::UNAUTHENTICATED_MESSAGE_BYTES_MAX);
        let large = message(&doc! {"ping": 1, "comment": comment, "$db": "admin"});
        // The server may close the connection before it has read everything.
        drop(client.write_all(&large));
        assert_eq!(reply(&mut client), None);
        assert!(server.shut_down());
    }
}
