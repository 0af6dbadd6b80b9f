//! A load over HTTP: clients that send bodies made before, each waiting for the answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Sends a request with a target and header lines, each ended by `\r\n`. Panics unless the answer is 204.
pub fn post(address: &str, target: &str, headers: &str, body: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("a server");
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
        body.len()
    );
    stream
        .write_all(head.as_bytes())
        .expect("the head is taken");
    stream.write_all(body).expect("the body is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
}

/// Sends the bodies of each client by a thread of its own, and returns the time until the last answer.
pub fn send_all<B: AsRef<[u8]> + Sync>(
    clients: &[Vec<B>],
    send: impl Fn(&[u8]) + Sync,
) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for bodies in clients {
            let send = &send;
            scope.spawn(move || bodies.iter().for_each(|body| send(body.as_ref())));
        }
    });
    began.elapsed()
}
