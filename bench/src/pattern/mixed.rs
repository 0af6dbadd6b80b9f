//! Clients that ask TSBS's queries at random beside one connection that loads.
//!
//! ```text
//! load the set ─► rounds of: loading alone │ asking alone │ both     ─► medians over the rounds
//!                 the same seconds each, on the same server
//! ```
//!
//! Each client has a connection and asks without a pause: query and parameters are drawn from the seed. The loading
//! connection continues the set in the order of time, in full batches. A client compares one in
//! [`CHECKED_EVERY`] answers with the reference (not the last points, which change), because a comparison costs more
//! than most queries. Another connection asks the server for its memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use super::Sender;
use super::figures::Figures;
use crate::data::{DataSet, Encoder, Random, stream};
use crate::load;
use crate::options::Options;
use crate::queries::{self, DrawnQuery};
use crate::report::{millis, quantile};
use crate::target::{Connection, Outcome, Target, drain, run as call};

/// Default number of clients that ask.
const CLIENTS: usize = 16;

/// Default seconds of each part of a round.
const SECONDS: u64 = 10;

const ROUNDS: usize = 3;

/// A client compares one in so many answers.
const CHECKED_EVERY: usize = 50;

/// Time between two questions for memory.
const MEMORY_EVERY: Duration = Duration::from_millis(100);

/// The connection that loads.
struct Ingest<'a> {
    connection: Box<dyn Connection>,
    data: &'a DataSet,
    encoder: Encoder,
    options: &'a Options,
    /// The next tick.
    tick: usize,
}

/// Measurements loaded, time waiting for the server, and time in all.
#[derive(Clone, Copy, Default)]
struct Loaded {
    rows: usize,
    waiting: Duration,
    wall: Duration,
}

impl Loaded {
    fn rate(&self) -> f64 {
        self.rows as f64 / self.waiting.as_secs_f64().max(f64::EPSILON)
    }

    fn rate_by_wall(&self) -> f64 {
        self.rows as f64 / self.wall.as_secs_f64().max(f64::EPSILON)
    }
}

impl Ingest<'_> {
    /// Loads until `end`.
    fn run(&mut self, end: Instant) -> Outcome<Loaded> {
        let start = Instant::now();
        let command = doc! {
            "insert": &self.options.collection, "ordered": true, "$db": &self.options.database,
        };
        let mut sender = Sender::new(&mut *self.connection, command, self.options.batch);
        while Instant::now() < end {
            for host in 0..self.data.hosts.len() {
                let values = self.data.row(self.tick % self.data.ticks, host);
                let time_ms = self.data.time_ms(self.tick);
                let out = &mut sender.documents;
                self.encoder.write(out, (self.tick, host), time_ms, values);
                sender.added()?;
            }
            self.tick += 1;
        }
        sender.flush()?;
        Ok(Loaded {
            rows: sender.rows,
            waiting: sender.waiting,
            wall: start.elapsed(),
        })
    }
}

/// A client that asks.
struct Client<'a> {
    connection: Box<dyn Connection>,
    random: Random,
    data: &'a DataSet,
    options: &'a Options,
    /// The queries with their parameters.
    drawn: &'a [Vec<DrawnQuery>],
    asked: usize,
}

impl Client<'_> {
    /// Asks until `end`. Returns latencies by query.
    fn run(&mut self, end: Instant) -> Outcome<Vec<Vec<Duration>>> {
        let mut latencies = vec![Vec::new(); self.drawn.len()];
        while Instant::now() < end {
            let at = self.random.below(self.drawn.len() as u64) as usize;
            let drawn = self.random.pick(&self.drawn[at]);
            let start = Instant::now();
            let batches = drain(&mut *self.connection, &drawn.command, self.options)?;
            latencies[at].push(start.elapsed());
            self.asked += 1;
            if self.asked.is_multiple_of(CHECKED_EVERY) && !drawn.is_of_last_points() {
                drawn.check(self.data, &batches)?;
            }
        }
        Ok(latencies)
    }
}

/// The memory of the server while it was measured.
#[derive(Default)]
struct Memory {
    resident_mb: i64,
    limit_mb: i64,
    /// Name, largest size and limit of each counted part.
    parts: Vec<(String, i64, i64)>,
}

impl Memory {
    fn add(&mut self, connection: &mut dyn Connection) -> Outcome {
        let reply = call(
            connection,
            &doc! { "serverStatus": 1, "$db": "admin" },
            None,
        )?;
        let Some(memory) = reply.get("mem").as_document() else {
            return Ok(());
        };
        let figure = |name| memory.get(name).as_exact_i64().unwrap_or(0);
        self.resident_mb = self.resident_mb.max(figure("resident"));
        self.limit_mb = figure("limit");
        let parts = memory.get("parts").as_document();
        for part in parts.iter().flat_map(|parts| parts.iter()) {
            let value = part.value().as_document();
            let figure = |name| value.and_then(|v| v.get(name).as_exact_i64()).unwrap_or(0);
            let (bytes, most) = (figure("bytes"), figure("bytesMax"));
            match self.parts.iter_mut().find(|known| known.0 == part.name()) {
                Some(known) => known.1 = known.1.max(bytes),
                None => self.parts.push((part.name().to_string(), bytes, most)),
            }
        }
        Ok(())
    }

    fn watch(&mut self, connection: &mut dyn Connection, ended: &AtomicBool) -> Outcome {
        while !ended.load(Ordering::Relaxed) {
            self.add(connection)?;
            std::thread::sleep(MEMORY_EVERY);
        }
        Ok(())
    }
}

/// Latencies by query.
type Latencies = Vec<Vec<Duration>>;

/// Runs the clients and, beside them, the loading connection until `end`.
fn together(
    clients: &mut [Client<'_>],
    ingest: Option<&mut Ingest<'_>>,
    memory: (&mut Memory, &mut Box<dyn Connection>),
    end: Instant,
) -> Outcome<(Latencies, Loaded)> {
    let ended = AtomicBool::new(false);
    let (memory, watching) = memory;
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| memory.watch(&mut **watching, &ended));
        let loader = ingest.map(|ingest| scope.spawn(move || ingest.run(end)));
        let askers: Vec<_> = clients
            .iter_mut()
            .map(|client| scope.spawn(move || client.run(end)))
            .collect();
        let died = || Err("a worker died".to_string());
        let mut all = Latencies::new();
        let mut first_error = Ok(());
        for asker in askers {
            match asker.join().unwrap_or_else(|_| died()) {
                Ok(latencies) => {
                    all.resize(latencies.len(), Vec::new());
                    for (all, more) in all.iter_mut().zip(latencies) {
                        all.extend(more);
                    }
                }
                Err(problem) => first_error = first_error.and(Err(problem)),
            }
        }
        let loaded = match loader {
            Some(loader) => loader
                .join()
                .unwrap_or_else(|_| Err("a worker died".to_string())),
            None => Ok(Loaded::default()),
        };
        ended.store(true, Ordering::Relaxed);
        watcher
            .join()
            .unwrap_or_else(|_| Err("a worker died".to_string()))?;
        first_error?;
        Ok((all, loaded?))
    })
}

pub(crate) fn run(options: &mut Options) -> Outcome<Figures> {
    let clients = match std::mem::replace(&mut options.connections, 1) {
        1 => CLIENTS,
        count => count,
    };
    let time = Duration::from_secs(options.seconds.take().unwrap_or(SECONDS));
    let options = &*options;
    let data = DataSet::generate(options);
    let mut target = Target::open(options)?;
    load::prepare(target.first(), options)?;
    load::run(&mut target.connections, &data, options)?;
    target.settle()?;
    let drawn = queries::drawn_commands(&data, options);
    // Opened after the load: a server closes a connection that is silent for long. One more for loading, one for memory.
    let mut asking = target.more(options, clients + 2)?;
    let (Some(mut watching), Some(loading)) = (asking.pop(), asking.pop()) else {
        return Err("two more connections".to_string());
    };
    let mut ingest = Ingest {
        connection: loading,
        data: &data,
        encoder: data.encoder(options),
        options,
        tick: data.ticks,
    };
    let mut clients: Vec<_> = (0..)
        .zip(asking)
        .map(|(number, connection)| Client {
            connection,
            random: Random::new(options.seed, stream::CLIENTS + number),
            data: &data,
            options,
            drawn: &drawn,
            asked: 0,
        })
        .collect();
    let mut memory = Memory::default();
    let mut rounds = Vec::new();
    let (mut alone, mut mixed) = (vec![Vec::new(); drawn.len()], vec![Vec::new(); drawn.len()]);
    for round in 0..ROUNDS {
        let until = || Instant::now() + time;
        let loaded = ingest.run(until())?;
        let watch = (&mut memory, &mut watching);
        let (latencies, _) = together(&mut clients, None, watch, until())?;
        add(&mut alone, latencies);
        let watch = (&mut memory, &mut watching);
        let (latencies, beside) = together(&mut clients, Some(&mut ingest), watch, until())?;
        add(&mut mixed, latencies);
        eprintln!(
            "round {}: loading {:.0} a second alone, {:.0} beside queries",
            round + 1,
            loaded.rate(),
            beside.rate()
        );
        rounds.push((loaded, beside));
    }
    let asked = time * ROUNDS as u32;
    let figures = figures(&data, options, &rounds, &memory);
    print_queries(&drawn, &alone, &mixed, asked);
    Ok(figures)
}

fn add(all: &mut Latencies, more: Latencies) {
    for (all, more) in all.iter_mut().zip(more) {
        all.extend(more);
    }
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn figures(
    data: &DataSet,
    options: &Options,
    rounds: &[(Loaded, Loaded)],
    memory: &Memory,
) -> Figures {
    let middle_of = |of: &dyn Fn(&(Loaded, Loaded)) -> f64| middle(rounds.iter().map(of).collect());
    let rate = |figure: f64| format!("{figure:.0}");
    let mut notes = vec![
        (
            "loading alone, a second while waiting",
            rate(middle_of(&|r| r.0.rate())),
        ),
        ("… beside queries", rate(middle_of(&|r| r.1.rate()))),
        (
            "… ratio",
            format!("{:.2}", middle_of(&|r| r.1.rate() / r.0.rate())),
        ),
        (
            "loading alone, a second by the clock",
            rate(middle_of(&|r| r.0.rate_by_wall())),
        ),
        ("… beside queries", rate(middle_of(&|r| r.1.rate_by_wall()))),
        (
            "… ratio",
            format!(
                "{:.2}",
                middle_of(&|r| r.1.rate_by_wall() / r.0.rate_by_wall())
            ),
        ),
        (
            "resident memory of the server, MB",
            memory.resident_mb.to_string(),
        ),
        ("… its limit", memory.limit_mb.to_string()),
    ];
    for (name, bytes, most) in &memory.parts {
        let megabytes = |bytes: i64| bytes as f64 / 1e6;
        let text = format!(
            "{name}: {:.1} of {:.1}",
            megabytes(*bytes),
            megabytes(*most)
        );
        notes.push(("… counted, MB", text));
    }
    let loaded: usize = rounds.iter().map(|(a, b)| a.rows + b.rows).sum();
    let rows = data.rows() + loaded;
    Figures {
        rows,
        bson_bytes: (rows * data.encoder(options).document_length()) as u64,
        notes,
        ..Figures::default()
    }
}

/// Prints a line for each query: latencies alone, and beside loading.
fn print_queries(
    drawn: &[Vec<DrawnQuery>],
    alone: &[Vec<Duration>],
    mixed: &[Vec<Duration>],
    time: Duration,
) {
    let rate =
        |all: &[Vec<Duration>]| all.iter().map(Vec::len).sum::<usize>() as f64 / time.as_secs_f64();
    println!(
        "{:.0} queries a second alone, {:.0} beside loading\n",
        rate(alone),
        rate(mixed)
    );
    println!(
        "| query | alone, median, ms | 99 % | times | beside loading, median, ms | 99 % | times | worst |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for ((drawn, alone), mixed) in drawn.iter().zip(alone).zip(mixed) {
        let name = drawn.first().map_or("", |drawn| drawn.name());
        let columns = |all: &[Duration]| {
            let (half, most) = (millis(quantile(all, 0.5)), millis(quantile(all, 0.99)));
            format!(
                "{half:.2} | {most:.2} | {:.1}",
                most / half.max(f64::EPSILON)
            )
        };
        let worst = millis(quantile(mixed, 1.0));
        println!(
            "| {name} | {} | {} | {worst:.1} |",
            columns(alone),
            columns(mixed)
        );
    }
    println!();
}
