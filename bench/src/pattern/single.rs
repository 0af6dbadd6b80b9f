//! Inserts of one measurement each, from many connections at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use super::figures::Figures;
use crate::data::DataSet;
use crate::load;
use crate::options::Options;
use crate::target::{Connection, Outcome, Target, run as call};

/// Default number of connections.
const CONNECTIONS: usize = 64;

/// Measurements per connection.
const EACH: usize = 4_000;

pub(crate) fn run(options: &mut Options) -> Outcome<Figures> {
    if options.connections == 1 {
        options.connections = CONNECTIONS;
    }
    options.scale = options.connections;
    options.days = EACH as f64 * options.interval_s as f64 / 86_400.0 + 1e-9;
    let data = DataSet::generate(options);
    let mut target = Target::open(options)?;
    load::prepare(target.first(), options)?;
    let before = log_counters(target.first())?;
    let (data, options) = (&data, &*options);
    let start = Instant::now();
    let waits: Vec<Outcome<Vec<Duration>>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (target.connections.iter_mut().enumerate())
            .map(|(host, connection)| {
                scope.spawn(move || insert_all(&mut **connection, data, options, host))
            })
            .collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended
            .map(|w| w.unwrap_or_else(|_| Err("a worker died".to_string())))
            .collect()
    });
    let wall = start.elapsed();
    let mut latencies = waits.into_iter().collect::<Outcome<Vec<_>>>()?.concat();
    latencies.sort_unstable();
    let after = log_counters(target.first())?;
    let quantile = |q: usize| {
        let at = latencies.len() * q / 100;
        format!(
            "{:.2}",
            latencies.get(at).map_or(0.0, |l| l.as_secs_f64() * 1e3)
        )
    };
    Ok(Figures {
        rows: data.rows(),
        bson_bytes: (data.rows() * data.encoder(options).document_length()) as u64,
        rounds: vec![(data.rows(), wall)],
        syncs: Some((after.0 - before.0, after.1 - before.1)),
        notes: vec![
            ("insert, median, ms", quantile(50)),
            ("insert, 99 %, ms", quantile(99)),
        ],
        ..Figures::default()
    })
}

fn insert_all(
    connection: &mut dyn Connection,
    data: &DataSet,
    options: &Options,
    host: usize,
) -> Outcome<Vec<Duration>> {
    let encoder = data.encoder(options);
    let command = doc! { "insert": &options.collection, "$db": &options.database };
    let mut latencies = Vec::with_capacity(data.ticks);
    for tick in 0..data.ticks {
        let mut document = Vec::new();
        encoder.write(
            &mut document,
            (tick, host),
            data.time_ms(tick),
            data.row(tick, host),
        );
        let start = Instant::now();
        call(connection, &command, Some(Arc::new(document)))?;
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

/// Returns batches committed and syncs of the log.
fn log_counters(connection: &mut dyn Connection) -> Outcome<(i64, i64)> {
    let reply = call(
        connection,
        &doc! { "serverStatus": 1, "$db": "admin" },
        None,
    )?;
    let log = reply
        .get("storageEngine")
        .as_document()
        .and_then(|e| e.get("log").as_document());
    let figure = |name| {
        log.and_then(|log| log.get(name).as_exact_i64())
            .unwrap_or(0)
    };
    Ok((figure("batches"), figure("syncs")))
}
