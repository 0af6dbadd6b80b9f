//! A load over HTTP: clients that send bodies made before, each waiting for the answer. Each keeps its connection, if the server does.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A client with one connection at a time.
pub struct HttpClient<'a> {
    address: &'a str,
    stream: Option<BufReader<TcpStream>>,
}

impl<'a> HttpClient<'a> {
    /// Returns a client of a server.
    pub fn new(address: &'a str) -> Self {
        Self {
            address,
            stream: None,
        }
    }

    /// Sends a request with a target and header lines, each ended by `\r\n`. Panics unless the answer is 204.
    pub fn post(&mut self, target: &str, headers: &str, body: &[u8]) {
        let address = self.address;
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        let mut stream = self.stream.take().unwrap_or_else(|| {
            let stream = TcpStream::connect(address).expect("a server");
            stream.set_nodelay(true).expect("an option");
            BufReader::new(stream)
        });
        let to = stream.get_mut();
        to.write_all(head.as_bytes()).expect("the head is taken");
        to.write_all(body).expect("the body is taken");
        let mut answer = String::new();
        // A 204 has no body.
        while !answer.ends_with("\r\n\r\n") {
            let read = stream.read_line(&mut answer).expect("an answer");
            assert!(read > 0, "{answer}");
        }
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
        if !answer.contains("Connection: close") {
            self.stream = Some(stream);
        }
    }
}

/// Sends the bodies of each client by a thread of its own, and returns the time until the last answer.
pub fn send_all<B: AsRef<[u8]> + Sync>(
    address: &str,
    clients: &[Vec<B>],
    send: impl Fn(&mut HttpClient<'_>, &[u8]) + Sync,
) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for bodies in clients {
            let send = &send;
            scope.spawn(move || {
                let mut client = HttpClient::new(address);
                for body in bodies {
                    send(&mut client, body.as_ref());
                }
            });
        }
    });
    began.elapsed()
}
