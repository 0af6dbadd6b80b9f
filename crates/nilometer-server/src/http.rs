//! The HTTP port: figures for a monitoring system, and whether the server is well.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 as long as the process answers |
//! | `/readyz` | 200 if the database takes reads and writes, else 503 and why it does not |
//! | `/metrics` | the figures of `serverStatus`, as OpenMetrics |
//!
//! It is off unless a port is given, reads only, and knows nothing of HTTP beyond one GET or HEAD for each
//! connection: no bodies, no keep-alive, no encryption. A request that is too long or too slow is dropped, and
//! so are connections beyond [`CONNECTIONS_MAX`]. Where users are to log in, `/metrics` is not served: it
//! has no way to ask who is there.

mod metrics;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nilometer::Database;
use tracing::{info, warn};

use crate::limits;

/// Requests answered at a time.
const CONNECTIONS_MAX: usize = 16;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Time for a request to arrive and its answer to leave.
const PATIENCE: Duration = Duration::from_secs(5);

/// The type of `/metrics`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const TEXT: &str = "text/plain; charset=utf-8";

/// What all threads share.
struct Shared {
    database: Arc<Database>,
    gives_metrics: bool,
    running: AtomicUsize,
    ending: AtomicBool,
}

/// A running HTTP port.
pub struct Http {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

impl Http {
    /// Answers on sockets that are bound already.
    pub fn start(
        database: Arc<Database>,
        listeners: Vec<TcpListener>,
        gives_metrics: bool,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            database,
            gives_metrics,
            running: AtomicUsize::new(0),
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
        for address in &addresses {
            let address = address.to_string();
            info!(c = "NETWORK", id = 23_017, address, "Answering HTTP on");
        }
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

    /// Takes no more requests.
    pub fn shut_down(self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        for address in &self.addresses {
            crate::server::wake_listener(*address);
        }
        for thread in self.threads {
            // A panic of it was logged where it happened.
            drop(thread.join());
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
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

/// Gives a connection its thread, unless there are too many.
fn begin(shared: &Arc<Shared>, stream: TcpStream) {
    if shared.running.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        shared.running.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let of_thread = Arc::clone(shared);
    let answer = move || {
        // Whoever asked has gone, or was too slow: there is nobody to tell.
        drop(serve(&of_thread, stream));
        of_thread.running.fetch_sub(1, Ordering::Relaxed);
    };
    let started = thread::Builder::new()
        .name("http-request".into())
        .spawn(answer);
    if started.is_err() {
        shared.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    let answer = answer(shared, &head);
    let mut message = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\r\n",
        answer.status,
        answer.kind,
        answer.body.len()
    );
    if !head.starts_with("HEAD ") {
        message.push_str(&answer.body);
    }
    stream.write_all(message.as_bytes())
}

/// Reads up to the empty line that ends the head.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(part.get(..read).unwrap_or_default());
    }
    String::from_utf8(head).map_err(io::Error::other)
}

struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

fn text(status: &'static str, body: impl Into<String>) -> Answer {
    Answer {
        status,
        kind: TEXT,
        body: body.into(),
    }
}

fn answer(shared: &Shared, head: &str) -> Answer {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next());
    let is_http = words
        .next()
        .is_some_and(|version| version.starts_with("HTTP/1."));
    let (Some(method), Some(target), true) = (method, target, is_http) else {
        return text("400 Bad Request", "not an HTTP request\n");
    };
    if !matches!(method, "GET" | "HEAD") {
        return text("405 Method Not Allowed", "only GET and HEAD\n");
    }
    match target.split('?').next().unwrap_or_default() {
        "/healthz" => text("200 OK", "ok\n"),
        "/readyz" => match shared.database.check_writable() {
            Ok(()) => text("200 OK", "ok\n"),
            Err(error) => text("503 Service Unavailable", format!("{}\n", error.message)),
        },
        "/metrics" if shared.gives_metrics => Answer {
            status: "200 OK",
            kind: OPEN_METRICS,
            body: metrics::of(&shared.database),
        },
        "/metrics" => text(
            "403 Forbidden",
            "users have to log in to this server, which this port cannot ask for: use serverStatus\n",
        ),
        _ => text(
            "404 Not Found",
            "there are /healthz, /readyz and /metrics\n",
        ),
    }
}
