//! Speed of line protocol: sends points of ten fields and ten tags to a running server over HTTP, and prints rows a second.
//!
//! ```text
//! nilometer serve --dbpath DIR --influxPort 8086 &
//! cargo run --release -p nilometer-bench --bin lines -- 127.0.0.1:8086 [CLIENTS [ROWS [BATCH]]]
//! ```
//!
//! Each client sends its own hosts, ten seconds apart, in batches of 10,000 rows, and waits for each answer. The bodies are made
//! before the clock starts, so that the figure is that of the server. Any server with InfluxDB's `/write` can be named.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::fmt::Write as _;

use nilometer_bench::http_load::{HttpClient, send_all};

#[path = "../data/names.rs"]
#[allow(dead_code, reason = "the names of tags are for other programs")]
mod names;

use names::METRICS;

/// The first time, in ms.
const START_MS: u64 = 1_451_606_400_000;

/// Hosts of each client.
const HOSTS: u64 = 100;

fn body(client: u64, rows: std::ops::Range<u64>) -> String {
    let mut text = String::new();
    for row in rows {
        let (host, tick) = (client * HOSTS + row % HOSTS, row / HOSTS);
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "cpu,arch=x64,datacenter=eu-west-1c,hostname=host_{host},os=Ubuntu16.04LTS,rack=87,region=eu-west-1,\
             service=18,service_environment=production,service_version=1,team=NYC "
        );
        for (number, field) in (0_u64..).zip(METRICS) {
            let value =
                (row.wrapping_mul(6_364_136_223_846_793_005) >> 40).wrapping_add(number * 7) % 101;
            let comma = if number == 0 { "" } else { "," };
            let _ = write!(text, "{comma}{field}={value}i");
        }
        let _ = writeln!(text, " {}", START_MS + tick * 10_000);
    }
    text
}

fn send(client: &mut HttpClient<'_>, body: &[u8]) {
    client.post("/write?db=lines&precision=ms", "", body);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        let given = arguments.get(at);
        given.map_or(default, |text| text.parse().expect("a number"))
    };
    let address = arguments.first().map_or("127.0.0.1:8086", String::as_str);
    let (clients, rows, batch) = (number(1, 2), number(2, 1_000_000), number(3, 10_000));
    let of_client = rows / clients;
    let bodies: Vec<Vec<String>> = (0..clients)
        .map(|client| {
            let starts = (0..of_client).step_by(usize::try_from(batch).expect("a batch"));
            let bodies = starts.map(|from| body(client, from..(from + batch).min(of_client)));
            bodies.collect()
        })
        .collect();
    let bytes: usize = bodies.iter().flatten().map(String::len).sum();
    let took = send_all(address, &bodies, send);
    let seconds = took.as_secs_f64();
    let rows = of_client * clients;
    println!(
        "{rows} rows of {clients} clients in {seconds:.2} s: {:.0} rows/s, {:.0} MB/s",
        rows as f64 / seconds,
        bytes as f64 / seconds / 1e6
    );
}
