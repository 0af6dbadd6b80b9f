//! Patterns of use. Most are of ingest: the order of arrival determines the cost of storing measurements.
//!
//! ```text
//! cargo xtask bench pattern NAME --in-process DIR
//! cargo xtask bench pattern single --uri mongodb://127.0.0.1:27018 --connections 64
//! cargo xtask bench pattern wire --uri mongodb://127.0.0.1:27018 --days 0.25
//! cargo xtask bench pattern mixed --uri mongodb://127.0.0.1:27018 --no-id
//! cargo xtask bench pattern live --in-process DIR --no-id --scale 4000 --days 0.25
//! ```
//!
//! [`wire`] compares the costs of messages, [`mixed`] asks and loads at once, [`live`] asks for what was just written. Each other pattern loads an empty collection and reports measurements per second, and, in process, the bytes written to
//! files (as the kernel counts them for this process: log, tables, merges) per byte of BSON; beside it the bytes that
//! rewriting each bucket's document at each commit would have written, derived from the sizes of the resulting buckets.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a part of a command line program, which talks to its terminal"
)]

mod figures;
mod live;
mod mixed;
mod order;
mod single;
mod trucks;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use crate::data::DataSet;
use crate::load;
use crate::options::Options;
use crate::target::{Connection, Outcome, Target, run as call};

use figures::{Amplification, Figures};
use order::Arrival;

/// The text of `pattern --help`.
pub const HELP: &str = "\
nilometer-bench pattern NAME [options as without a pattern]

  hundred     100 hosts, batches of 10,000 in the order of time
  one         one host, batches of 1,000
  wide        100,000 hosts, one measurement each, 20 times
  disorder    10,000 hosts, 100 measurements each, up to 30 ticks late
  million     1,000,000 hosts, one measurement each, twice
  single      inserts of one measurement, from --connections [64]
  trucks      TSBS iot, readings and diagnostics, as they are
  trucks-dirt the same with TSBS's dirt: late, out of order, lost, fields and tags missing
  wire        a ping beside a bare echo, a narrow query over the wire beside the same in process
  mixed       clients (--connections [16]) that ask at random beside one connection that loads,
              --seconds [10] for each part
  live        questions about the last minutes, each the first one after a tick of all hosts, for two hours
";

/// Returns hosts, ticks, batch size and order of arrival of a pattern.
fn shape(name: &str) -> Option<(usize, usize, usize, Arrival)> {
    Some(match name {
        "hundred" => (100, 8_640, 10_000, Arrival::InOrder),
        "one" => (1, 500_000, 1_000, Arrival::InOrder),
        "wide" => (100_000, 20, 10_000, Arrival::InOrder),
        "disorder" => (10_000, 100, 10_000, Arrival::Late { ticks_max: 30 }),
        "million" => (1_000_000, 2, 10_000, Arrival::InOrder),
        _ => return None,
    })
}

/// Runs the pattern named first on the command line.
pub fn run(arguments: &[String]) -> Outcome {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(format!("which pattern?\n{HELP}"));
    };
    if let (wire::ECHO, [bytes]) = (&**name, rest) {
        return wire::echo(bytes);
    }
    let mut options = Options::parse(rest)?;
    let figures = match &**name {
        "single" => single::run(&mut options)?,
        "wire" => wire::run(&options)?,
        "mixed" => mixed::run(&mut options)?,
        "live" => live::run(&options)?,
        "trucks" => trucks::run(&options, false)?,
        "trucks-dirt" => trucks::run(&options, true)?,
        name => {
            let shape = shape(name).ok_or_else(|| format!("no pattern {name}\n{HELP}"))?;
            documents(&mut options, shape)?
        }
    };
    figures.print(name);
    Ok(())
}

/// Loads TSBS documents in the order of a pattern.
fn documents(
    options: &mut Options,
    (hosts, ticks, batch, arrival): (usize, usize, usize, Arrival),
) -> Outcome<Figures> {
    options.scale = hosts;
    options.days = ticks as f64 * options.interval_s as f64 / 86_400.0 + 1e-9;
    options.batch = batch;
    options.connections = 1;
    let data = DataSet::generate(options);
    let encoder = data.encoder(options);
    let mut target = Target::open(options)?;
    load::prepare(target.first(), options)?;
    let before = figures::written_bytes();
    let mut figures = Figures::default();
    let command = doc! { "insert": &options.collection, "ordered": true, "$db": &options.database };
    let mut rows = arrival.rows(&data, options.seed);
    for round in 0..2 {
        let half = data.rows().div_ceil(2);
        let taken = rows
            .by_ref()
            .take(if round == 0 { half } else { data.rows() });
        let mut sent = Sender::new(target.first(), command.clone(), options.batch);
        for (tick, host) in taken {
            encoder.write(
                &mut sent.documents,
                (tick, host),
                data.time_ms(tick),
                data.row(tick, host),
            );
            sent.added()?;
        }
        sent.flush()?;
        figures.add_round(&sent);
    }
    figures.catalog_memory = catalog_memory(target.first())?;
    figures.resident_bytes = figures::resident_bytes();
    finish(&mut target, options, before, &mut figures)?;
    Ok(figures)
}

/// Settles, if possible, and adds the written bytes.
fn finish(target: &mut Target, options: &Options, before: u64, figures: &mut Figures) -> Outcome {
    if options.in_process.is_none() {
        return Ok(());
    }
    target.settle()?;
    let written = figures::written_bytes() - before;
    let rewriting = figures::rewriting_bytes(target.first(), options)?;
    figures.amplification = Some(Amplification { written, rewriting });
    Ok(())
}

/// `serverStatus.bucketCatalog.memoryUsage`.
fn catalog_memory(connection: &mut dyn Connection) -> Outcome<Option<i64>> {
    let reply = call(
        connection,
        &doc! { "serverStatus": 1, "$db": "admin" },
        None,
    )?;
    let catalog = reply.get("bucketCatalog").as_document();
    Ok(catalog.and_then(|c| c.get("memoryUsage").as_exact_i64()))
}

/// Collects documents and sends them in batches.
pub(crate) struct Sender<'c> {
    connection: &'c mut dyn Connection,
    command: nilometer_bson::Document,
    batch: usize,
    in_batch: usize,
    /// The documents of the batch, concatenated.
    pub(crate) documents: Vec<u8>,
    rows: usize,
    bytes: u64,
    waiting: Duration,
}

impl<'c> Sender<'c> {
    pub(crate) fn new(
        connection: &'c mut dyn Connection,
        command: nilometer_bson::Document,
        batch: usize,
    ) -> Self {
        Self {
            connection,
            command,
            batch,
            in_batch: 0,
            documents: Vec::new(),
            rows: 0,
            bytes: 0,
            waiting: Duration::ZERO,
        }
    }

    /// Counts an appended document. Sends a full batch.
    pub(crate) fn added(&mut self) -> Outcome {
        self.in_batch += 1;
        if self.in_batch == self.batch {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends the collected documents.
    pub(crate) fn flush(&mut self) -> Outcome {
        if self.in_batch == 0 {
            return Ok(());
        }
        let capacity = self.documents.capacity();
        let documents = std::mem::replace(&mut self.documents, Vec::with_capacity(capacity));
        self.bytes += documents.len() as u64;
        let start = Instant::now();
        let reply = call(self.connection, &self.command, Some(Arc::new(documents)))?;
        self.waiting += start.elapsed();
        if reply.get("n").as_exact_i64() != i64::try_from(self.in_batch).ok() {
            return Err(format!(
                "{} documents sent, the reply says {:?}",
                self.in_batch,
                reply.get("n")
            ));
        }
        self.rows += self.in_batch;
        self.in_batch = 0;
        Ok(())
    }
}
