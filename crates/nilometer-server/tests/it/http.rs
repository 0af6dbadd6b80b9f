//! The HTTP port, with requests of a monitoring system.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use crate::client::is_ok;
use crate::server::Server;

/// The first port that tests choose. It lies below those that the system chooses, which other tests use at the same time.
const FIRST_PORT: u16 = 10_000;

/// Ports for the tests of one process, so that two processes choose different ones.
const PORTS_OF_PROCESS: u16 = 100;

/// Returns a free port that no other test gets.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = (std::process::id() % 200) as u16;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < PORTS_OF_PROCESS, "no port is free");
        let port = FIRST_PORT + process * PORTS_OF_PROCESS + number;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn start() -> (Server, u16) {
    let port = free_port();
    let server = Server::start_with(&["--httpPort", &port.to_string()]);
    (server, port)
}

/// Sends bytes and reads until the server closes the connection.
pub(crate) fn exchange(port: u16, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).expect("an option");
    stream.write_all(bytes).expect("bytes are taken");
    let mut answer = Vec::new();
    // The answer to an early refusal may be cut off.
    drop(stream.read_to_end(&mut answer));
    String::from_utf8(answer).expect("text")
}

/// Returns the response of a path.
pub(crate) fn get(port: u16, path: &str) -> String {
    exchange(
        port,
        format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes(),
    )
}

#[test]
fn health_and_figures_are_told() {
    let (server, port) = start();
    assert!(get(port, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get(port, "/readyz").ends_with("\r\n\r\nok\n"));
    let mut client = server.connect();
    let documents: Vec<_> = (0..7).map(|i| doc! {"_id": i}.into()).collect();
    let insert = doc! {"insert": "c", "documents": documents};
    assert!(is_ok(&client.run_on("db", &insert)));
    let text = get(port, "/metrics?x=1");
    assert!(
        text.contains("Content-Type: application/openmetrics-text"),
        "{text}"
    );
    for line in [
        "nilometer_operations_total{kind=\"insert\"} 7\n",
        "nilometer_documents_total{action=\"inserted\"} 7\n",
        "nilometer_connections{state=\"current\"} 1\n",
        "nilometer_commands_total{command=\"insert\"} 1\n",
        "nilometer_writable 1\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.ends_with("# EOF\n"));
    let head = exchange(port, b"HEAD /healthz HTTP/1.0\r\n\r\n");
    assert!(
        head.contains("Content-Length: 3") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
}

#[test]
fn what_is_no_request_is_refused() {
    let (_server, port) = start();
    for (sent, status) in [
        (&b"GET /nothing HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"\r\n\r\n", "400"),
    ] {
        let answer = exchange(port, sent);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    assert!(exchange(port, b"\xFF\xFE HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(64 * 1024));
    assert!(exchange(port, long.as_bytes()).starts_with("HTTP/1.1 431 "));
    // Silent connections do not block others for long.
    let silent: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection"))
        .collect();
    let end = Instant::now() + Duration::from_secs(20);
    while !get(port, "/healthz").starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < end, "the port does not answer any more");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(silent);
}

#[test]
fn the_port_is_off_unless_asked_for_and_ends_with_the_server() {
    let (mut server, port) = start();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn figures_are_not_told_where_users_log_in() {
    let port = free_port();
    let _server = Server::start_with(&["--auth", "--httpPort", &port.to_string()]);
    let status = |path: &str| {
        get(port, path)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert!(status("/healthz").contains("200"));
    assert!(status("/readyz").contains("200"));
    assert!(status("/metrics").contains("403"));
}
