//! Questions about what is being written: the first one after each tick of all hosts.
//!
//! ```text
//! load the set ─► tick: a measurement of each host ─► one question ─► tick ─► the next question ─► …
//! ```
//!
//! Each question meets buckets that have all changed since the one before, as a dashboard or an alarm beside the writers does. The loaded set
//! is continued for two hours, so that the open buckets are short, long, closed and begun again. The answers of questions whose result follows
//! from the values are compared with them.

use std::time::{Duration, Instant};

use nilometer_bson::{Document, Value, array, doc};

use super::Sender;
use super::figures::Figures;
use crate::data::{DataSet, Random, stream};
use crate::load;
use crate::options::Options;
use crate::report::{millis, quantile};
use crate::target::{Outcome, Target, drain};

/// Ticks after the loaded set.
const TICKS: usize = 720;

const MINUTE_MS: i64 = 60_000;

/// A value above which the alarm is raised.
const ALARM: u8 = 98;

/// The questions, in the order in which they are asked.
const QUESTIONS: [&str; 7] = [
    "one host, largest of each minute of the last hour",
    "one host, the last ten measurements",
    "hosts of one rack, averages of the last hour",
    "all hosts, averages of the last hour",
    "all hosts, largest of the last five minutes",
    "all hosts, values above 98 in the last minute",
    "all hosts, the last measurement of each",
];

/// Returns the pipeline of a question after the tick at `now_ms`.
fn pipeline(question: usize, data: &DataSet, random: &mut Random, now_ms: i64) -> Value {
    let [hostname, _, _, rack, ..] = random.pick(&data.hosts);
    let since = |minutes: i64| doc! { "$gte": Value::DateTime(now_ms - minutes * MINUTE_MS) };
    let averages = doc! { "$group": doc! {
        "_id": "$tags.hostname", "average": doc! { "$avg": "$usage_user" },
    } };
    let minute = doc! { "$dateTrunc": doc! { "date": "$time", "unit": "minute" } };
    let largest = doc! { "$max": "$usage_user" };
    match question {
        0 => array![
            doc! { "$match": doc! { "tags.hostname": hostname.as_str(), "time": since(60) } },
            doc! { "$group": doc! { "_id": minute, "largest": largest } },
            doc! { "$sort": doc! { "_id": 1 } },
        ],
        1 => array![
            doc! { "$match": doc! { "tags.hostname": hostname.as_str() } },
            doc! { "$sort": doc! { "time": -1 } },
            doc! { "$limit": 10 },
        ],
        2 => array![
            doc! { "$match": doc! { "tags.rack": rack.as_str(), "time": since(60) } },
            averages,
        ],
        3 => array![doc! { "$match": doc! { "time": since(60) } }, averages],
        4 => array![
            doc! { "$match": doc! { "time": since(5) } },
            doc! { "$group": doc! { "_id": Value::Null, "largest": largest } },
        ],
        5 => array![
            doc! { "$match": doc! { "time": since(1), "usage_user": doc! { "$gt": i64::from(ALARM) } } },
            doc! { "$project": doc! { "tags.hostname": 1, "usage_user": 1 } },
        ],
        _ => array![
            doc! { "$sort": doc! { "tags.hostname": 1, "time": -1 } },
            doc! { "$group": doc! { "_id": "$tags.hostname", "time": doc! { "$first": "$time" } } },
        ],
    }
}

/// Returns how many rows an answer must have, if the values tell, after the tick `now`.
fn rows_expected(question: usize, data: &DataSet, now: usize) -> Option<usize> {
    let hosts = data.hosts.len();
    match question {
        1 => Some(10),
        3 | 6 => Some(hosts),
        4 => Some(1),
        5 => {
            let begin_ms = data.time_ms(now) - MINUTE_MS;
            let ticks = (0..=now)
                .rev()
                .take_while(|tick| data.time_ms(*tick) >= begin_ms);
            let of_tick = |tick: usize| {
                let raised = (0..hosts).filter(move |host| {
                    let values = data.row(tick % data.ticks, *host);
                    values.first().is_some_and(|value| *value > ALARM)
                });
                raised.count()
            };
            Some(ticks.map(of_tick).sum())
        }
        _ => None,
    }
}

pub(crate) fn run(options: &Options) -> Outcome<Figures> {
    let data = DataSet::generate(options);
    let mut target = Target::open(options)?;
    load::prepare(target.first(), options)?;
    load::run(&mut target.connections, &data, options)?;
    target.settle()?;
    let encoder = data.encoder(options);
    let mut random = Random::new(options.seed, stream::CLIENTS);
    let insert = doc! { "insert": &options.collection, "ordered": true, "$db": &options.database };
    let mut latencies = vec![Vec::new(); QUESTIONS.len()];
    let mut figures = Figures::default();
    let mut ticks = Duration::ZERO;
    for tick in data.ticks..data.ticks + TICKS {
        let mut sender = Sender::new(target.first(), insert.clone(), options.batch);
        for host in 0..data.hosts.len() {
            let values = data.row(tick % data.ticks, host);
            let out = &mut sender.documents;
            encoder.write(out, (tick, host), data.time_ms(tick), values);
            sender.added()?;
        }
        sender.flush()?;
        ticks += sender.waiting;
        figures.rows += sender.rows;
        figures.bson_bytes += sender.bytes;
        let question = tick % QUESTIONS.len();
        let stages = pipeline(question, &data, &mut random, data.time_ms(tick));
        let command: Document = doc! {
            "aggregate": &options.collection, "pipeline": stages, "cursor": doc! {},
            "$db": &options.database,
        };
        let start = Instant::now();
        let batches = drain(target.first(), &command, options)?;
        if let Some(latencies) = latencies.get_mut(question) {
            latencies.push(start.elapsed());
        }
        let rows: usize = batches.iter().map(|batch| batch.documents().count()).sum();
        let expected = rows_expected(question, &data, tick);
        if expected.is_some_and(|expected| expected != rows) {
            return Err(format!(
                "question {question}: {rows} rows, expected {expected:?}"
            ));
        }
    }
    let each = millis(ticks / TICKS as u32);
    figures
        .notes
        .push(("a tick of all hosts, ms", format!("{each:.1}")));
    print_questions(&latencies);
    Ok(figures)
}

fn print_questions(latencies: &[Vec<Duration>]) {
    println!("| question | median, ms | 95 % | worst |\n|---|---:|---:|---:|");
    for (question, latencies) in QUESTIONS.iter().zip(latencies) {
        let at = |part| millis(quantile(latencies, part));
        println!(
            "| {question} | {:.1} | {:.1} | {:.1} |",
            at(0.5),
            at(0.95),
            at(1.0)
        );
    }
    println!();
}
