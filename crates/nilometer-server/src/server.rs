//! A running server: listeners, connections, and the thread that looks after them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};

use nilometer::operation::Access;
use nilometer::{Database, ErrorCode};
use tracing::{info, warn};

use crate::registry::Registry;
use crate::tls::Tls;
use crate::wire::Compressor;
use crate::{limits, listener};

/// How a server serves.
#[derive(Clone)]
pub struct Options {
    /// Connections that may be open at a time.
    pub connections_max: u32,
    /// Compressors offered to clients, best first.
    pub compressors: Vec<Compressor>,
    /// How TLS is spoken, if it is.
    pub tls: Option<Arc<Tls>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: limits::CONNECTIONS_MAX,
            compressors: Compressor::OFFERED.to_vec(),
            tls: None,
        }
    }
}

/// What all threads of a server share.
pub(crate) struct Shared {
    pub(crate) database: Arc<Database>,
    pub(crate) registry: Registry,
    pub(crate) connections_max: u32,
    pub(crate) compressors: Vec<Compressor>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) last_connection_id: AtomicI64,
    shutting_down: AtomicBool,
}

impl Shared {
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
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves `database` on sockets that are bound already.
    pub fn start(
        database: Arc<Database>,
        listeners: Vec<TcpListener>,
        options: Options,
    ) -> io::Result<Self> {
        let max = u64::from(options.connections_max);
        database.services().counters.connections.max.add(max);
        if let Some(tls) = options.tls.clone() {
            // Set once; another server of the same database has its own certificates.
            let rotate = Box::new(move || tls.rotate());
            drop(database.services().rotate_certificates.set(rotate));
        }
        let shared = Arc::new(Shared {
            database,
            registry: Registry::default(),
            connections_max: options.connections_max,
            compressors: options.compressors,
            tls: options.tls,
            last_connection_id: AtomicI64::new(0),
            shutting_down: AtomicBool::new(false),
        });
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
        let watched = shared.clone();
        let watch = move || watch_clients(&watched);
        threads.push(thread::Builder::new().name("watcher".into()).spawn(watch)?);
        Ok(Self {
            shared,
            addresses,
            threads,
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends the server: no new connections, idle ones closed, running commands given
    /// [`limits::SHUTDOWN_GRACE`] and then interrupted. True if all connections ended in time.
    pub fn shut_down(self) -> bool {
        self.shared.shutting_down.store(true, Ordering::Relaxed);
        // A listener sits in `accept`; a connection from ourselves wakes it.
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

/// Looks after the clients until the server ends.
fn watch_clients(shared: &Shared) {
    while !shared.is_shutting_down() {
        thread::park_timeout(limits::DISCONNECT_CHECK_INTERVAL);
        interrupt_deserted(&shared.database, &shared.registry);
    }
}

/// Interrupts reads whose client has hung up. Writes go on: they are soon done, and nobody could
/// tell what a half-done one had done.
pub(crate) fn interrupt_deserted(database: &Database, registry: &Registry) {
    for id in registry.deserted(limits::DISCONNECT_CHECK_INTERVAL) {
        info!(
            c = "NETWORK",
            id = 22_998,
            connectionId = id,
            "Interrupting the command of a client that has gone"
        );
        let operations = &database.services().operations;
        operations.kill_where(ErrorCode::ClientDisconnect, |operation| {
            operation.connection_id == id && operation.access != Access::Write
        });
    }
}
