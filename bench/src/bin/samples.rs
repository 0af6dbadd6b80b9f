//! Speed of Prometheus remote write: sends samples to a running server over HTTP, and prints samples a second.
//!
//! ```text
//! nilometer serve --dbpath DIR --influxPort 8086 &
//! cargo run --release -p nilometer-bench --bin samples -- 127.0.0.1:8086 [CLIENTS [SAMPLES [BATCH]]]
//! ```
//!
//! Ten thousand series of [`METRICS`] metrics with eight labels are scraped every fifteen seconds. As Prometheus does it, each client (a shard of
//! its queue) sends its own series, one sample of each, in requests of 2,000 samples, and waits for each answer. The bodies
//! are made and packed before the clock starts, so that the figure is that of the server. The first scrape, which creates the
//! collections, is timed by itself.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use nilometer_bench::http_load::{HttpClient, send_all};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The first time, in ms.
const START_MS: u64 = 1_451_606_400_000;

/// Metrics; each is a measurement.
const METRICS: u64 = 100;

/// Series of each metric.
const SERIES: u64 = 100;

/// Time between two samples of a series, in ms.
const SCRAPE_MS: u64 = 15_000;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field with bytes in it.
fn field(out: &mut Vec<u8>, number: u8, inside: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, inside.len() as u64);
    out.extend_from_slice(inside);
}

/// Returns the labels of a series, as Prometheus sorts them.
fn labels(series: u64) -> [(&'static str, String); 9] {
    let (metric, instance) = (series % METRICS, series / METRICS);
    [
        ("__name__", format!("node_metric_{metric}_seconds_total")),
        ("cluster", "production-eu-west".to_owned()),
        ("cpu", (instance % 8).to_string()),
        ("device", format!("nvme{}n1", instance % 4)),
        ("env", "production".to_owned()),
        ("instance", format!("node-{instance}.example.com:9100")),
        ("job", "node-exporter".to_owned()),
        ("mode", "system".to_owned()),
        ("namespace", "monitoring".to_owned()),
    ]
}

/// Returns the series of a client: some of each metric and of each instance.
fn series_of(client: u64, clients: u64) -> Vec<u64> {
    let all = 0..METRICS * SERIES;
    all.filter(|series| (series % METRICS + series / METRICS) % clients == client)
        .collect()
}

/// Returns a request with the samples `numbers` of a client: those of its series, scrape by scrape from the start on.
fn body(own: &[u64], numbers: std::ops::Range<u64>, start_ms: u64) -> Vec<u8> {
    let (mut request, mut series, mut part) = (Vec::new(), Vec::new(), Vec::new());
    for number in numbers {
        let scrape = number / own.len() as u64;
        let at = own[(number % own.len() as u64) as usize];
        series.clear();
        for (name, value) in labels(at) {
            part.clear();
            field(&mut part, 1, name.as_bytes());
            field(&mut part, 2, value.as_bytes());
            field(&mut series, 1, &part);
        }
        part.clear();
        let value = (number.wrapping_mul(6_364_136_223_846_793_005) >> 40) as f64 / 100.0;
        part.push(1 << 3 | 1);
        part.extend_from_slice(&value.to_le_bytes());
        part.push(2 << 3);
        varint(&mut part, start_ms + scrape * SCRAPE_MS);
        field(&mut series, 2, &part);
        field(&mut request, 1, &series);
    }
    let packed = snap::raw::Encoder::new().compress_vec(&request);
    packed.expect("a body that can be packed")
}

fn send(client: &mut HttpClient<'_>, body: &[u8]) {
    let headers = "Content-Encoding: snappy\r\nContent-Type: application/x-protobuf\r\n\
         X-Prometheus-Remote-Write-Version: 0.1.0\r\n";
    client.post("/api/v1/write?db=samples", headers, body);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        let given = arguments.get(at);
        given.map_or(default, |text| text.parse().expect("a number"))
    };
    let address = arguments.first().map_or("127.0.0.1:8086", String::as_str);
    let (clients, samples, batch) = (number(1, 4), number(2, 4_000_000), number(3, 2_000));
    let of_client = samples / clients;
    let bodies: Vec<Vec<Vec<u8>>> = (0..clients)
        .map(|client| {
            let own = series_of(client, clients);
            let starts = (0..of_client).step_by(usize::try_from(batch).expect("a batch"));
            let bodies = starts.map(|from| {
                let numbers = from..(from + batch).min(of_client);
                body(&own, numbers, START_MS)
            });
            bodies.collect()
        })
        .collect();
    // The scrape before the first time of the others creates the collections.
    let firsts: Vec<Vec<Vec<u8>>> = (0..clients)
        .map(|client| {
            let own = series_of(client, clients);
            vec![body(&own, 0..own.len() as u64, START_MS - SCRAPE_MS)]
        })
        .collect();
    let creating = send_all(address, &firsts, send).as_secs_f64();
    let created = METRICS * SERIES;
    println!("{created} samples that create {METRICS} collections in {creating:.2} s");
    let bytes: usize = bodies.iter().flatten().map(Vec::len).sum();
    let steady = send_all(address, &bodies, send).as_secs_f64();
    let samples = of_client * clients;
    println!(
        "{samples} samples of {clients} clients in {steady:.2} s: {:.0} samples/s, {:.0} MB/s; with the creation {:.0} samples/s",
        samples as f64 / steady,
        bytes as f64 / steady / 1e6,
        (samples + created) as f64 / (steady + creating)
    );
}
