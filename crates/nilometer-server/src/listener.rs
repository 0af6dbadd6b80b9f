//! Listening: binds sockets, accepts connections and assigns threads to them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use socket2::{SockRef, TcpKeepalive};
use tracing::{info, warn};

use crate::connection::{ConnectionReader, IdleConnection, PauseReason};
use crate::idle_connections::ConnectionWork;
use crate::limits;
use crate::log;
use crate::server::ServerState;

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// The address.
    pub address: String,
    /// The system's error.
    pub source: io::Error,
}

/// Binds `hosts` (names or addresses; `*` is every IPv4 address) to `port`. With port 0 the system chooses one, the
/// same for all hosts.
pub fn bind(hosts: &[String], mut port: u16) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::new();
    let mut bound: Vec<SocketAddr> = Vec::new();
    for host in hosts {
        let failed = |source| BindError {
            address: format!("{host}:{port}"),
            source,
        };
        let name = if host == "*" {
            "0.0.0.0"
        } else {
            host.as_str()
        };
        let addresses = (name, port).to_socket_addrs().map_err(failed)?;
        for address in addresses {
            let address = SocketAddr::new(address.ip(), port);
            if bound.contains(&address) {
                continue;
            }
            let failed = |source| BindError {
                address: address.to_string(),
                source,
            };
            // `localhost` may name an IPv6 address on machines that have none.
            let listener = match TcpListener::bind(address) {
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable && !listeners.is_empty() => {
                    continue;
                }
                other => other.map_err(failed)?,
            };
            if port == 0 {
                port = listener.local_addr().map_err(failed)?.port();
            }
            bound.push(SocketAddr::new(address.ip(), port));
            listeners.push(listener);
        }
    }
    Ok(listeners)
}

/// Accepts connections until the server shuts down.
pub(crate) fn accept(shared: &Arc<ServerState>, listener: &TcpListener) {
    while !shared.is_shutting_down() {
        match listener.accept() {
            Ok(_) if shared.is_shutting_down() => break,
            Ok((stream, remote)) => {
                if let Err(problem) = open(shared, stream, remote) {
                    let remote = remote.to_string();
                    warn!(c = "NETWORK", id = 22_994, remote, error = %problem, "Connection could not be served");
                }
            }
            Err(problem) if problem.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(problem) => {
                warn!(c = "NETWORK", id = 22_995, error = %problem, "Accepting a connection failed");
                thread::sleep(limits::ACCEPT_PAUSE);
            }
        }
    }
}

fn open(shared: &Arc<ServerState>, stream: TcpStream, remote: SocketAddr) -> io::Result<()> {
    let counters = &shared.database.services().counters.connections;
    let id = shared.last_connection_id.fetch_add(1, Ordering::Relaxed) + 1;
    let max = usize::try_from(shared.connections_max).unwrap_or(usize::MAX);
    let keepalive = TcpKeepalive::new().with_time(limits::KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let entry = shared.registry.add(id, stream, max);
    // A refused connection is counted before it is closed, because the client may read the counter immediately.
    let Ok(entry) = entry.inspect_err(|_| counters.rejected.increment()) else {
        let remote = remote.to_string();
        warn!(
            c = "NETWORK",
            id = 22_942,
            remote,
            max,
            "Connection refused because there are too many open connections"
        );
        return Ok(());
    };
    counters.current.increment();
    counters.total_created.increment();
    let quiet = shared.is_quiet();
    if !quiet {
        let (remote, connections) = (remote.to_string(), shared.registry.len());
        info!(
            c = "NETWORK",
            id = 22_943,
            remote,
            connectionId = id,
            connectionCount = connections,
            "Connection accepted"
        );
    }
    let assigned = assign(shared, ConnectionWork::Open(entry));
    if assigned.is_err() {
        close(shared, id);
    }
    assigned
}

/// Resumes an idle connection that has input.
pub(crate) fn resume(shared: &Arc<ServerState>, connection: IdleConnection) {
    let id = connection.entry().id;
    if let Err(problem) = assign(shared, ConnectionWork::Serve(connection)) {
        close_unserved(shared, id, &problem);
    }
}

/// Assigns `work` to a waiting thread, else to a new one.
fn assign(shared: &Arc<ServerState>, work: ConnectionWork) -> io::Result<()> {
    let Some(work) = shared.idle_connections.give(work) else {
        return Ok(());
    };
    let shared = shared.clone();
    thread::Builder::new()
        .name(format!("conn{}", work.id()))
        .stack_size(limits::CONNECTION_STACK_BYTES)
        .spawn(move || serve(&shared, work))
        .map(drop)
}

fn close_unserved(shared: &ServerState, id: i64, problem: &io::Error) {
    warn!(c = "NETWORK", id = 22_994, error = %problem, "Connection could not be served");
    close(shared, id);
}

/// Serves a connection until it ends or is idle. If connections share threads, continues with the next one.
fn serve(shared: &ServerState, work: ConnectionWork) {
    let (mut next, mut reader) = (Some(work), ConnectionReader::new());
    while let Some(work) = next.take() {
        let id = work.id();
        log::enter_connection(id);
        let opened = match work {
            ConnectionWork::Open(entry) => IdleConnection::open(shared, entry),
            ConnectionWork::Serve(connection) => Ok(connection),
        };
        match opened {
            Ok(connection) => {
                next = match serve_turn(shared, connection, &mut reader) {
                    Some(PauseReason::Yield) => shared.idle_connections.next(),
                    Some(PauseReason::Await) => shared.idle_connections.next_given(),
                    Some(PauseReason::Idle) | None => None,
                };
            }
            Err(problem) => close_unserved(shared, id, &problem),
        }
    }
}

/// Serves one connection until it ends, is idle or yields its thread. Returns the reason unless it ended.
fn serve_turn(
    shared: &ServerState,
    connection: IdleConnection,
    reader: &mut ConnectionReader,
) -> Option<PauseReason> {
    let id = connection.entry().id;
    let serving = shared.idle_connections.serving();
    let paused = connection.serve(shared, reader);
    drop(serving);
    let Some((connection, pause)) = paused else {
        close(shared, id);
        return None;
    };
    if let Err(problem) = shared
        .idle_connections
        .enter(connection, pause == PauseReason::Yield)
    {
        close_unserved(shared, id, &problem);
    }
    Some(pause)
}

fn close(shared: &ServerState, id: i64) {
    let counters = &shared.database.services().counters.connections;
    counters.current.decrement();
    shared.database.services().connections.close(id);
    let remote = shared.registry.remove(id).and_then(|entry| entry.remote);
    if !shared.is_quiet() {
        let remote = remote.map(|remote| remote.to_string()).unwrap_or_default();
        let connections = shared.registry.len();
        info!(
            c = "NETWORK",
            id = 22_944,
            remote,
            connectionId = id,
            connectionCount = connections,
            "Connection ended"
        );
    }
}
