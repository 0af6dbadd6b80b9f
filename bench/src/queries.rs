//! The queries: sixteen of TSBS, the last point in three forms, with random parameters.
//!
//! A window starts uniformly at random, so that neither end is aligned; hosts are a random subset; the first M metrics
//! are queried.

use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use crate::data::{DataSet, METRICS, Random, START_MS, stream};
use crate::options::{Options, Shape};
use crate::reference;
use crate::target::{Batch, Connection, Outcome, drain};

const HOUR_MS: i64 = 3_600_000;

/// The kind of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryKind {
    /// Largest value of each metric in each unit of time, over the chosen hosts together.
    MaxBy { unit: &'static str, unit_ms: i64 },
    /// Mean of each metric by hour and host.
    MeanByHourAndHost,
    /// Whole measurements with high cpu usage.
    HighCpu,
    /// The newest measurement of each host; `$sort` and `$first`.
    LastPointFirst,
    /// The same with `$top`.
    LastPointTop,
    /// The same with `$last` of whole documents.
    LastPointLast,
    /// Largest value by minute, the five newest minutes before a time.
    NewestMinutes,
}

/// A query of the set.
pub(crate) struct Query {
    pub(crate) name: &'static str,
    pub(crate) kind: QueryKind,
    /// Number of hosts; 0 for all.
    hosts: usize,
    metrics: usize,
    window_ms: i64,
}

const MINUTE: QueryKind = QueryKind::MaxBy {
    unit: "minute",
    unit_ms: 60_000,
};
const HOUR: QueryKind = QueryKind::MaxBy {
    unit: "hour",
    unit_ms: HOUR_MS,
};

const fn query(
    name: &'static str,
    kind: QueryKind,
    hosts: usize,
    metrics: usize,
    hours: i64,
) -> Query {
    Query {
        name,
        kind,
        hosts,
        metrics,
        window_ms: hours * HOUR_MS,
    }
}

/// The set.
pub(crate) static QUERIES: [Query; 18] = [
    query("single-groupby-1-1-1", MINUTE, 1, 1, 1),
    query("single-groupby-1-1-12", MINUTE, 1, 1, 12),
    query("single-groupby-1-8-1", MINUTE, 8, 1, 1),
    query("single-groupby-5-1-1", MINUTE, 1, 5, 1),
    query("single-groupby-5-1-12", MINUTE, 1, 5, 12),
    query("single-groupby-5-8-1", MINUTE, 8, 5, 1),
    query("cpu-max-all-1", HOUR, 1, 10, 8),
    query("cpu-max-all-8", HOUR, 8, 10, 8),
    query("cpu-max-all-32-24", HOUR, 32, 10, 24),
    query("double-groupby-1", QueryKind::MeanByHourAndHost, 0, 1, 12),
    query("double-groupby-5", QueryKind::MeanByHourAndHost, 0, 5, 12),
    query(
        "double-groupby-all",
        QueryKind::MeanByHourAndHost,
        0,
        10,
        12,
    ),
    query("high-cpu-1", QueryKind::HighCpu, 1, 10, 12),
    query("high-cpu-all", QueryKind::HighCpu, 0, 10, 12),
    query("lastpoint", QueryKind::LastPointFirst, 0, 10, 0),
    query("lastpoint-top", QueryKind::LastPointTop, 0, 10, 0),
    query("lastpoint-last", QueryKind::LastPointLast, 0, 10, 0),
    query("groupby-orderby-limit", QueryKind::NewestMinutes, 0, 1, 1),
];

/// Drawn parameters of a query.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) start_ms: i64,
    pub(crate) end_ms: i64,
    /// Hosts in the order of the list; empty for all.
    pub(crate) hosts: Vec<usize>,
    pub(crate) metrics: usize,
}

/// The results of a query.
#[derive(Clone, Debug)]
pub(crate) struct QueryResult {
    pub(crate) name: &'static str,
    pub(crate) latencies: Vec<Duration>,
    /// Rows of the last draw.
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
    /// The first wrong answer or error.
    pub(crate) wrong: Option<String>,
}

/// A query with drawn parameters.
pub(crate) struct DrawnQuery {
    query: &'static Query,
    draw: Draw,
    pub(crate) command: Document,
}

impl DrawnQuery {
    pub(crate) fn name(&self) -> &'static str {
        self.query.name
    }

    /// True if the answer changes while newer measurements are loaded.
    pub(crate) fn is_of_last_points(&self) -> bool {
        matches!(
            self.query.kind,
            QueryKind::LastPointFirst | QueryKind::LastPointTop | QueryKind::LastPointLast
        )
    }

    /// Compares an answer with the reference.
    pub(crate) fn check(&self, data: &DataSet, batches: &[Batch]) -> Outcome {
        let documents = batches.iter().flat_map(|b| b.documents());
        let checked = reference::check(self.query.kind, &self.draw, data, documents);
        checked
            .map(drop)
            .map_err(|e| format!("{}: {e}", self.name()))
    }
}

/// Returns the requested queries, each with the commands of all its draws.
pub(crate) fn drawn_commands(data: &DataSet, options: &Options) -> Vec<Vec<DrawnQuery>> {
    let commands = |(query, draws): (&'static Query, Vec<Draw>)| {
        let drawn = |draw| DrawnQuery {
            query,
            command: command(query, &draw, data, options),
            draw,
        };
        draws.into_iter().map(drawn).collect()
    };
    drawn(data, options).into_iter().map(commands).collect()
}

/// Returns the commands of one query.
pub(crate) fn commands(name: &str, data: &DataSet, options: &Options) -> Vec<Document> {
    let only = Options {
        only: name.to_string(),
        ..options.clone()
    };
    let drawn = drawn_commands(data, &only).into_iter().flatten();
    drawn.map(|drawn| drawn.command).collect()
}

/// Returns the requested queries with their drawn parameters.
pub(crate) fn drawn(data: &DataSet, options: &Options) -> Vec<(&'static Query, Vec<Draw>)> {
    let chosen = chosen(options).into_iter();
    chosen
        .map(|(number, query)| (query, draws(query, number, data, options)))
        .collect()
}

/// Returns the requested queries with their numbers: those of each name in the list, or all.
fn chosen(options: &Options) -> Vec<(usize, &'static Query)> {
    let is_chosen = |query: &Query, name: &str| {
        // A name that equals one query and is a prefix of others selects the one.
        match QUERIES.iter().any(|query| query.name == name) {
            true => query.name == name,
            false => query.name.starts_with(name),
        }
    };
    let queries = QUERIES.iter().enumerate();
    queries
        .filter(|(_, query)| options.only.split(',').any(|name| is_chosen(query, name)))
        .collect()
}

/// Runs every requested query.
pub(crate) fn run(
    connection: &mut dyn Connection,
    data: &DataSet,
    options: &Options,
) -> Outcome<Vec<QueryResult>> {
    let mut all = Vec::new();
    let chosen = chosen(options);
    let longest = options.seconds.map(Duration::from_secs);
    // Unused time of one query is available to the others.
    let end = longest.and_then(|longest| Instant::now().checked_add(longest));
    for (at, (number, query)) in chosen.iter().enumerate() {
        let share = |end: Instant| {
            let left = end.saturating_duration_since(Instant::now());
            Instant::now() + left / u32::try_from(chosen.len() - at).unwrap_or(u32::MAX)
        };
        let draws = draws(query, *number, data, options);
        let end = end.map(share);
        all.push(measure(connection, query, &draws, data, (options, end)));
    }
    Ok(all)
}

fn measure(
    connection: &mut dyn Connection,
    query: &Query,
    draws: &[Draw],
    data: &DataSet,
    (options, end): (&Options, Option<Instant>),
) -> QueryResult {
    let mut measured = QueryResult {
        name: query.name,
        latencies: Vec::new(),
        rows: 0,
        bytes: 0,
        wrong: None,
    };
    let rounds = draws.iter().take(options.warm_up).map(|d| (d, false));
    for (draw, counts) in rounds.chain(draws.iter().map(|d| (d, true))) {
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        if is_over && (!counts || !measured.latencies.is_empty()) {
            continue;
        }
        let command = command(query, draw, data, options);
        let start = Instant::now();
        let batches = match drain(connection, &command, options) {
            Ok(batches) => batches,
            Err(message) => {
                measured.wrong = Some(message);
                return measured;
            }
        };
        let took = start.elapsed();
        if counts {
            measured.latencies.push(took);
            measured.bytes = batches.iter().map(|b| b.bytes()).sum();
            let documents = batches.iter().flat_map(|b| b.documents());
            match reference::check(query.kind, draw, data, documents) {
                Ok(rows) => measured.rows = rows,
                Err(message) => measured.wrong = measured.wrong.or(Some(message)),
            }
        }
    }
    measured
}

fn draws(query: &Query, number: usize, data: &DataSet, options: &Options) -> Vec<Draw> {
    let mut random = Random::new(options.seed, stream::PARAMETERS + number as u64);
    (0..options.draws)
        .map(|_| {
            let free = data.end_ms() - START_MS - query.window_ms;
            let offset = u64::try_from(free).map_or(0, |free| random.below(free.max(1)) as i64);
            let mut hosts: Vec<usize> = (0..data.hosts.len()).collect();
            random.shuffle(&mut hosts);
            hosts.truncate(query.hosts);
            Draw {
                start_ms: START_MS + offset,
                end_ms: START_MS + offset + query.window_ms,
                hosts,
                metrics: query.metrics,
            }
        })
        .collect()
}

fn command(query: &Query, draw: &Draw, data: &DataSet, options: &Options) -> Document {
    doc! {
        "aggregate": &options.collection,
        "pipeline": Value::from(pipeline(query.kind, draw, data, options)),
        "cursor": doc! {},
        "$db": &options.database,
    }
}

/// Returns the stages of a query.
pub(crate) fn pipeline(
    kind: QueryKind,
    draw: &Draw,
    data: &DataSet,
    options: &Options,
) -> Vec<Value> {
    let metrics = &METRICS[..draw.metrics];
    let stages = match kind {
        QueryKind::MaxBy { unit, .. } => vec![
            doc! { "$match": filter(draw, data, options).finish() },
            doc! { "$group": accumulate(trunc(unit), "max_", "$max", metrics) },
            doc! { "$sort": doc! { "_id": 1 } },
        ],
        QueryKind::MeanByHourAndHost => {
            let id = doc! { "hour": trunc("hour"), "hostname": "$tags.hostname" };
            vec![
                doc! { "$match": filter(draw, data, options).finish() },
                doc! { "$group": accumulate(id, "mean_", "$avg", metrics) },
                doc! { "$sort": doc! { "_id.hour": 1, "_id.hostname": 1 } },
            ]
        }
        QueryKind::HighCpu => {
            let mut filter = filter(draw, data, options);
            filter.append("usage_user", doc! { "$gt": 90.0 });
            vec![doc! { "$match": filter.finish() }]
        }
        QueryKind::LastPointFirst => {
            let fields: Vec<&str> = ["time"].iter().chain(metrics).copied().collect();
            vec![
                doc! { "$sort": doc! { "tags.hostname": 1, "time": -1 } },
                doc! { "$group": accumulate("$tags.hostname", "", "$first", &fields) },
            ]
        }
        QueryKind::LastPointTop => {
            let fields = ["time"]
                .iter()
                .chain(metrics)
                .map(|f| Value::from(format!("${f}")));
            let output: Vec<Value> = fields.collect();
            let top = doc! { "sortBy": doc! { "time": -1 }, "output": Value::from(output) };
            vec![doc! { "$group": doc! { "_id": "$tags.hostname", "last": doc! { "$top": top } } }]
        }
        QueryKind::LastPointLast => vec![
            doc! { "$sort": doc! { "time": 1 } },
            doc! { "$group": doc! { "_id": "$tags.hostname", "doc": doc! { "$last": "$$ROOT" } } },
        ],
        QueryKind::NewestMinutes => {
            let before = doc! { "time": doc! { "$lt": Value::DateTime(draw.end_ms) } };
            vec![
                doc! { "$match": before },
                doc! { "$group": accumulate(trunc("minute"), "max_", "$max", metrics) },
                doc! { "$sort": doc! { "_id": -1 } },
                doc! { "$limit": 5 },
            ]
        }
    };
    stages.into_iter().map(Value::from).collect()
}

/// Returns the filter of hosts and window, and of the constant field if documents have it.
fn filter(draw: &Draw, data: &DataSet, options: &Options) -> DocumentBuilder {
    let mut filter = DocumentBuilder::new();
    if options.shape == Shape::Fork {
        filter.append("measurement", "cpu");
    }
    if !draw.hosts.is_empty() {
        let names = draw.hosts.iter().map(|h| Value::from(&data.hosts[*h][0]));
        let names: Vec<Value> = names.collect();
        filter.append("tags.hostname", doc! { "$in": Value::from(names) });
    }
    let window =
        doc! { "$gte": Value::DateTime(draw.start_ms), "$lt": Value::DateTime(draw.end_ms) };
    filter.append("time", window);
    filter
}

fn trunc(unit: &str) -> Document {
    doc! { "$dateTrunc": doc! { "date": "$time", "unit": unit } }
}

/// Returns the argument of `$group`: the key, and one accumulator for each field.
fn accumulate(id: impl Into<Value>, prefix: &str, operator: &str, fields: &[&str]) -> Document {
    let mut group = DocumentBuilder::new();
    group.append("_id", id);
    for field in fields {
        let mut accumulator = DocumentBuilder::new();
        accumulator.append(operator, format!("${field}"));
        group.append(&format!("{prefix}{field}"), accumulator.finish());
    }
    group.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::array;

    #[test]
    fn draws_stay_within_the_data_and_repeat() {
        let options = Options {
            scale: 50,
            ..Options::default()
        };
        let data = DataSet::generate(&Options {
            days: 2.0,
            interval_s: 600,
            ..options.clone()
        });
        for (number, query) in QUERIES.iter().enumerate() {
            let first = draws(query, number, &data, &options);
            assert_eq!(first.len(), options.draws);
            for draw in &first {
                assert!(draw.start_ms >= START_MS && draw.end_ms <= data.end_ms());
                assert_eq!(draw.hosts.len(), query.hosts);
            }
            let again = draws(query, number, &data, &options);
            assert!(
                first
                    .iter()
                    .zip(&again)
                    .all(|(a, b)| a.start_ms == b.start_ms)
            );
        }
    }

    #[test]
    fn a_pipeline_is_what_a_person_would_write() {
        let options = Options {
            scale: 3,
            days: 0.1,
            ..Options::default()
        };
        let data = DataSet::generate(&options);
        let draw = Draw {
            start_ms: 1,
            end_ms: 2,
            hosts: vec![2],
            metrics: 1,
        };
        let got = Value::from(pipeline(MINUTE, &draw, &data, &options));
        let window = doc! { "$gte": Value::DateTime(1), "$lt": Value::DateTime(2) };
        let expected = array![
            doc! { "$match": doc! { "tags.hostname": doc! { "$in": array!["host_2"] }, "time": window } },
            doc! { "$group": doc! {
            "_id": doc! { "$dateTrunc": doc! { "date": "$time", "unit": "minute" } },
            "max_usage_user": doc! { "$max": "$usage_user" } } },
            doc! { "$sort": doc! { "_id": 1 } },
        ];
        assert_eq!(doc! { "p": got }, doc! { "p": expected });
    }
}
