//! The HTTP port: metrics, health checks, and the web page.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 as long as the process answers |
//! | `/readyz` | 200 if writes are accepted and the disk answers, else 503 and the reason |
//! | `/metrics` | the values of `serverStatus`, as OpenMetrics |
//! | `/` and others | the web page and its requests, if enabled: see [`web`] |
//! | `/api/query` | documents or columns of a query, with the web page: see [`query`] |
//!
//! A port of its own has InfluxDB's requests instead of the last three rows, see [`influx`].
//!
//! It is off unless a port is given. Each connection carries one request. On InfluxDB's port further requests may follow: at most
//! [`REQUESTS_MAX`], each within [`IDLE_MAX`] after the answer before it, while few connections are open. The port uses TLS
//! like the database's port, with the same certificates; if TLS is required, only `/healthz` and `/readyz` are answered
//! without it. A request that is too long or too slow is refused, and connections beyond [`CONNECTIONS_MAX`] are
//! dropped. If logins are required, `/metrics` is not served, because a monitoring system cannot log in here.

mod credentials;
mod influx;
mod login;
mod message;
mod metrics;
mod parameters;
mod query;
mod slots;
mod web;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nilometer::{Database, ErrorCode};
use tracing::{info, warn};

use crate::database_slot::DatabaseSlot;
use crate::limits;
use crate::registry::{ConnectionEntry, Registry};
use crate::tls::{Tls, TlsMode};
use influx::Influx;
use message::{Connection, HttpResponse, ReadError, RequestHead};
use web::Web;

/// Concurrent requests.
const CONNECTIONS_MAX: usize = 32;

/// Concurrent requests of a port for InfluxDB's clients, which write and query from many threads.
const INFLUX_CONNECTIONS_MAX: usize = 256;

/// Open connections of that port above which each ends after its answer, so that others are served.
const KEPT_CONNECTIONS_MAX: usize = 128;

/// Requests of a connection.
const REQUESTS_MAX: usize = 10_000;

/// Time between an answer and the next request of the connection. Clients written in Go close theirs after 90 seconds.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// Time for a request to arrive, and for each part of its answer to be sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// The type of `/metrics`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Options of the HTTP port.
#[derive(Default)]
pub struct HttpOptions {
    /// `/metrics` is served.
    pub gives_metrics: bool,
    /// TLS, if it is enabled.
    pub tls: Option<Arc<Tls>>,
    /// The web page is served, under these names besides addresses and `localhost`.
    pub web_hosts: Option<Vec<String>>,
    /// The port is one for InfluxDB's clients.
    pub influx: Option<InfluxOptions>,
}

/// Options of a port for InfluxDB's clients.
#[derive(Clone, Copy, Debug)]
pub struct InfluxOptions {
    /// Passwords are accepted without TLS from other machines, too.
    pub takes_plaintext: bool,
    /// Bytes of all bodies that arrive or are processed.
    pub memory_bytes: usize,
}

/// The state shared by all threads.
struct HttpState {
    database: DatabaseSlot,
    gives_metrics: bool,
    tls: Option<Arc<Tls>>,
    web: Option<Web>,
    influx: Option<Influx>,
    connections_max: usize,
    registry: Registry,
    last_id: AtomicI64,
    ending: AtomicBool,
}

impl HttpState {
    /// True if connections may stay open after an answer.
    fn may_keep_connections(&self) -> bool {
        self.influx.is_some()
            && self.registry.len() <= KEPT_CONNECTIONS_MAX
            && !self.ending.load(Ordering::Relaxed)
    }
}

/// A running HTTP port.
pub struct Http {
    shared: Arc<HttpState>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

impl Http {
    /// Serves requests on bound sockets.
    pub fn start(
        database: impl Into<DatabaseSlot>,
        listeners: Vec<TcpListener>,
        options: HttpOptions,
    ) -> io::Result<Self> {
        let shared = Arc::new(HttpState {
            database: database.into(),
            gives_metrics: options.gives_metrics,
            tls: options.tls,
            web: options.web_hosts.map(Web::new),
            connections_max: match options.influx {
                Some(_) => INFLUX_CONNECTIONS_MAX,
                None => CONNECTIONS_MAX,
            },
            influx: options.influx.map(Influx::new),
            registry: Registry::default(),
            last_id: AtomicI64::new(0),
            ending: AtomicBool::new(false),
        });
        let addresses = listeners.iter().map(TcpListener::local_addr);
        let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
        let mut threads = Vec::new();
        for listener in listeners {
            let shared = Arc::clone(&shared);
            let accept = move || accept(&shared, &listener);
            threads.push(thread::Builder::new().name("http".into()).spawn(accept)?);
        }
        if shared.web.is_some() || shared.influx.is_some() {
            let shared = Arc::clone(&shared);
            let watch = move || watch(&shared);
            let builder = thread::Builder::new().name("http-watcher".into());
            threads.push(builder.spawn(watch)?);
        }
        for address in &addresses {
            let text = address.to_string();
            info!(
                c = "NETWORK",
                id = 23_017,
                address = text,
                "Answering HTTP on"
            );
            if shared.web.is_some() {
                let url = url_of(*address, shared.tls.is_some());
                info!(c = "NETWORK", id = 23_018, url, "Web page at");
            }
        }
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

    /// Refuses new requests and interrupts the commands of running ones.
    pub fn shut_down(self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        for address in &self.addresses {
            crate::server::wake_listener(*address);
        }
        let operations = &self.shared.database.services().operations;
        operations.kill_where(ErrorCode::InterruptedAtShutdown, |operation| {
            is_ours(operation.connection_id)
        });
        // The rest ends by its own timeouts.
        let registry = &self.shared.registry;
        registry.close_idle();
        registry.wait_until_empty(limits::SHUTDOWN_GRACE);
        for thread in self.threads {
            thread.thread().unpark();
            // A panic was logged where it happened.
            drop(thread.join());
        }
    }
}

/// Returns the URL for a browser on this machine.
fn url_of(address: SocketAddr, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    if address.ip().is_unspecified() {
        return format!("{scheme}://localhost:{}/", address.port());
    }
    format!("{scheme}://{address}/")
}

/// True for a request of this port: they have negative ids, connections of drivers positive ones.
fn is_ours(connection_id: i64) -> bool {
    connection_id < 0
}

/// Interrupts commands of disconnected browsers, until the port closes.
fn watch(shared: &HttpState) {
    while !shared.ending.load(Ordering::Relaxed) {
        thread::park_timeout(limits::DISCONNECT_CHECK_INTERVAL);
        crate::server::interrupt_abandoned(shared.database.services(), &shared.registry);
    }
}

fn accept(shared: &Arc<HttpState>, listener: &TcpListener) {
    while !shared.ending.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok(_) if shared.ending.load(Ordering::Relaxed) => break,
            Ok((stream, _)) => begin(shared, stream),
            Err(problem) => {
                warn!(c = "NETWORK", id = 22_999, error = %problem, "Accepting an HTTP connection failed");
                thread::sleep(limits::ACCEPT_PAUSE);
            }
        }
    }
}

/// Starts the thread of a connection, unless there are too many.
fn begin(shared: &Arc<HttpState>, stream: TcpStream) {
    let id = shared.last_id.fetch_sub(1, Ordering::Relaxed) - 1;
    let Ok(entry) = shared.registry.add(id, stream, shared.connections_max) else {
        return;
    };
    let of_thread = Arc::clone(shared);
    let answer = move || {
        let _leave = ConnectionGuard(&of_thread, id);
        // The client has disconnected or was too slow, so the error goes nowhere.
        drop(serve(&of_thread, entry));
    };
    let started = thread::Builder::new()
        .name("http-request".into())
        .stack_size(limits::CONNECTION_STACK_BYTES)
        .spawn(answer);
    if started.is_err() {
        shared.registry.remove(id);
    }
}

/// Removes a connection from the registry, also after a panic.
struct ConnectionGuard<'a>(&'a HttpState, i64);

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.registry.remove(self.1);
    }
}

fn serve(shared: &HttpState, entry: Arc<ConnectionEntry>) -> io::Result<()> {
    let mut connection = Connection::open(entry, shared.tls.as_deref(), PATIENCE)?;
    for number in 1.. {
        let stays = match connection.read_head() {
            Ok(head) => {
                if number < REQUESTS_MAX && shared.may_keep_connections() {
                    connection.allow_next(&head);
                }
                let answer = answer(shared, &mut connection, &head);
                connection.send(&answer, head.method == "HEAD")?
            }
            Err(ReadError::Refused(answer)) => connection.send(&answer, false)?,
            Err(ReadError::Gone(problem)) => return Err(problem),
        };
        // After a shutdown has begun no idle connection is closed any more.
        let ends = !stays || shared.ending.load(Ordering::Relaxed);
        if ends || !connection.await_next(IDLE_MAX, PATIENCE) {
            break;
        }
    }
    Ok(())
}

fn answer(shared: &HttpState, connection: &mut Connection, head: &RequestHead) -> HttpResponse {
    let reads = matches!(head.method.as_str(), "GET" | "HEAD");
    match head.path.as_str() {
        "/healthz" if reads => return HttpResponse::text("200 OK", "ok\n"),
        "/readyz" if reads => return ready(&shared.database.current()),
        _ => {}
    }
    let required = |tls: &Arc<Tls>| tls.mode() == TlsMode::Required;
    if shared.tls.as_ref().is_some_and(required) && !connection.is_tls() {
        return HttpResponse::text(
            "403 Forbidden",
            "this server requires TLS: use https:// (only /healthz and /readyz are served without it)\n",
        );
    }
    if let Some(influx) = &shared.influx {
        return influx.answer(&shared.database.current(), connection, head);
    }
    match (head.path.as_str(), &shared.web) {
        ("/metrics", _) if reads => figures(shared),
        (_, Some(web)) => web.answer(&shared.database.current(), connection, head),
        _ if !reads => HttpResponse::text("405 Method Not Allowed", "only GET and HEAD\n")
            .with("Allow", "GET, HEAD"),
        _ => HttpResponse::text(
            "404 Not Found",
            "there are /healthz, /readyz and /metrics; the web page needs --webPage\n",
        ),
    }
}

fn ready(database: &Database) -> HttpResponse {
    match database.check_writable() {
        Ok(()) => HttpResponse::text("200 OK", "ok\n"),
        Err(error) => HttpResponse::text("503 Service Unavailable", format!("{}\n", error.message)),
    }
}

/// Returns the length of the request head at the start of `bytes`, if it is valid.
pub(crate) fn fuzz_head(bytes: &[u8]) -> Option<usize> {
    RequestHead::parse(bytes)
        .ok()
        .flatten()
        .map(|(_, length)| length)
}

/// Applies the bounds of the web page to a command.
pub(crate) fn fuzz_command(command: nilometer_bson::DocRef<'_>) {
    web::fuzz_command(command);
}

/// Parses a line as the parameters of `/api/query`, and the bytes behind it as the body. True if they are a query.
pub(crate) fn fuzz_query(bytes: &[u8]) -> bool {
    query::fuzz_request(bytes)
}

fn figures(shared: &HttpState) -> HttpResponse {
    if shared.gives_metrics {
        return HttpResponse::new(
            "200 OK",
            OPEN_METRICS,
            metrics::of(&shared.database.current()),
        );
    }
    HttpResponse::text(
        "403 Forbidden",
        "this server requires logins, which /metrics does not support: use serverStatus\n",
    )
}
