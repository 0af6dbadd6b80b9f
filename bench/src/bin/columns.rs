//! Columns out of a query over HTTP, against copying their bytes.
//!
//! ```text
//! nilometer serve --dbpath DIR --port 28017 --httpPort 28080 --webPage &       built with --features arrow
//! cargo run --release -p nilometer-bench --bin columns -- 127.0.0.1:28017 127.0.0.1:28080 [MEASUREMENTS]
//! ```
//!
//! Measurements of ten doubles, ten seconds apart in a hundred series, are written first, unless they are there. Each form is
//! asked for [`ROUNDS`] times; the least time counts. *Copying* sends the bytes of the same Arrow stream from the memory of this
//! program through a socket, read as the answers are.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_bench::{Options, Target};
use nilometer_bson::{Document, DocumentBuilder, Value, doc};

#[path = "../data/names.rs"]
#[allow(dead_code, reason = "the names of tags are for other programs")]
mod names;

use names::METRICS;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 5;

/// The first time, in ms.
const START_MS: i64 = 1_451_606_400_000;

const HOSTS: u64 = 100;

/// Measurements of an insert.
const BATCH: u64 = 10_000;

/// Bytes that are written and read at once.
const PART_BYTES: usize = 256 * 1024;

fn measurement(number: u64) -> Document {
    let time = START_MS + i64::try_from(number / HOSTS).expect("a time") * 10_000;
    let mut out = DocumentBuilder::new();
    out.append("time", Value::DateTime(time));
    out.append("tags", doc! {"host": format!("host_{}", number % HOSTS)});
    for (metric, name) in (1_u64..).zip(METRICS) {
        let drawn = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_mul(metric)
            >> 40;
        out.append(name, (drawn % 10_000) as f64 / 100.0);
    }
    out.finish()
}

fn call(target: &mut Target, command: Document, documents: Option<Vec<u8>>) -> Document {
    let mut body = DocumentBuilder::extending(command);
    body.append("$db", "columns");
    let reply = target.first().call(&body.finish(), documents.map(Arc::new));
    reply.expect("a reply")
}

/// Writes the measurements, unless they are there.
fn load(target: &mut Target, count: u64) {
    let known = call(target, doc! {"count": "cpu"}, None)
        .get("n")
        .as_exact_i64();
    if known == i64::try_from(count).ok() {
        return;
    }
    call(target, doc! {"drop": "cpu"}, None);
    let options = doc! {"timeField": "time", "metaField": "tags"};
    call(target, doc! {"create": "cpu", "timeseries": options}, None);
    for from in (0..count).step_by(BATCH as usize) {
        let mut documents = Vec::new();
        for number in from..(from + BATCH).min(count) {
            documents.extend_from_slice(measurement(number).as_bytes());
        }
        let reply = call(
            target,
            doc! {"insert": "cpu", "ordered": false},
            Some(documents),
        );
        assert!(reply.get("writeErrors").is_missing(), "{reply:?}");
    }
}

/// Reads to the end. Returns the bytes, of which the head is a part.
fn read(mut stream: TcpStream, bytes: &mut Vec<u8>) {
    bytes.clear();
    let mut part = vec![0; PART_BYTES];
    loop {
        let length = stream.read(&mut part).expect("bytes");
        if length == 0 {
            return;
        }
        bytes.extend_from_slice(&part[..length]);
    }
}

fn query(address: &str, format: &str, bytes: &mut Vec<u8>) {
    let mut stream = TcpStream::connect(address).expect("a server");
    let head = format!(
        "GET /api/query?database=columns&collection=cpu&projection=%7B%22_id%22:0%7D&format={format} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    );
    stream
        .write_all(head.as_bytes())
        .expect("the head is taken");
    read(stream, bytes);
    assert!(
        bytes.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(bytes)
    );
    assert!(bytes.ends_with(b"0\r\n\r\n"), "the answer is not complete");
}

/// Returns the least time of several runs.
fn least(mut run: impl FnMut()) -> Duration {
    let times = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        run();
        began.elapsed()
    });
    times.min().unwrap_or_default()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().map_or("127.0.0.1:28017", String::as_str);
    let http = arguments.get(1).map_or("127.0.0.1:28080", String::as_str);
    let count = arguments
        .get(2)
        .map_or(1_000_000, |text| text.parse().expect("a number"));
    let options = Options {
        address: address.to_owned(),
        ..Options::default()
    };
    load(&mut Target::open(&options).expect("a server"), count);
    let mut bytes = Vec::new();
    let show = |format: &str, time: Duration, of: usize, base: usize| {
        let seconds = time.as_secs_f64();
        println!(
            "{format:<8} {:>6.0} ms, {:>6.1} MB, {:>5.0} MB of Arrow a second, {:.2} M measurements a second",
            seconds * 1e3,
            of as f64 / 1e6,
            base as f64 / 1e6 / seconds,
            count as f64 / 1e6 / seconds,
        );
    };
    let arrow = least(|| query(http, "arrow", &mut bytes));
    let base = bytes.len();
    show("arrow", arrow, base, base);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let at = listener.local_addr().expect("an address");
    let (sent, mut copy) = (bytes.clone(), Vec::new());
    let copied = least(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                for part in sent.chunks(PART_BYTES) {
                    stream.write_all(part).expect("bytes are taken");
                }
            });
            read(TcpStream::connect(at).expect("a connection"), &mut copy);
        });
    });
    show("copying", copied, copy.len(), base);
    println!(
        "arrow takes {:.2} times as long as copying",
        arrow.as_secs_f64() / copied.as_secs_f64()
    );
    for format in ["parquet", "csv", "ndjson", "json"] {
        let time = least(|| query(http, format, &mut bytes));
        show(format, time, bytes.len(), base);
    }
}
