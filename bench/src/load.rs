//! Loading: ordered inserts of full batches, sequential on each connection.
//!
//! At the time limit all connections stop after the same tick, so that the loaded data is a shorter data set.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, array, doc};

use crate::course::{Course, LoadPoint};
use crate::data::DataSet;
use crate::options::Options;
use crate::target::{Connection, Outcome, run as call};

/// The result of loading.
#[derive(Clone, Debug)]
pub(crate) struct LoadResult {
    pub(crate) rows: usize,
    pub(crate) bson_bytes: u64,
    /// Time from the first batch to the last acknowledgement, generating documents included.
    pub(crate) wall: Duration,
    /// Time waiting for acknowledgements, of the connection that waited longest.
    pub(crate) waiting: Duration,
    /// Latencies of batches.
    pub(crate) latencies: Vec<Duration>,
    /// The course, if the options ask for its points.
    pub(crate) course: Vec<LoadPoint>,
}

impl LoadResult {
    /// Returns measurements per second of waiting for the server.
    pub(crate) fn rate(&self) -> f64 {
        self.rows as f64 / self.waiting.as_secs_f64()
    }
}

/// Creates an empty time-series collection.
pub(crate) fn prepare(connection: &mut dyn Connection, options: &Options) -> Outcome {
    let (database, collection) = (&options.database, &options.collection);
    call(
        connection,
        &doc! { "dropDatabase": 1, "$db": database },
        None,
    )?;
    let mut timeseries = DocumentBuilder::new();
    timeseries.append("timeField", "time");
    timeseries.append("metaField", "tags");
    timeseries.append("granularity", options.granularity.as_str());
    if let Some(rule) = &options.duplicates {
        timeseries.append("nilometer", doc! { "duplicates": rule.as_str() });
    }
    let timeseries = timeseries.finish();
    let create = doc! { "create": collection, "timeseries": timeseries, "$db": database };
    call(connection, &create, None)?;
    if options.sharded {
        let shard = doc! {
            "shardCollection": format!("{database}.{collection}"),
            "key": doc! { "tags.hostname": "hashed" }, "$db": "admin",
        };
        call(connection, &shard, None)?;
    }
    if options.index {
        let index = doc! {
            "key": doc! { "tags.hostname": 1, "time": -1 },
            "name": "tags.hostname_1_time_-1",
        };
        let create =
            doc! { "createIndexes": collection, "indexes": array![index], "$db": database };
        call(connection, &create, None)?;
    }
    Ok(())
}

/// The progress of loading, and where it ends.
struct LoadProgress {
    /// Time after which no further tick begins.
    deadline: Option<Instant>,
    /// The first tick not begun, and the end tick.
    state: Mutex<(usize, usize)>,
}

impl LoadProgress {
    fn new(options: &Options, ticks: usize) -> Self {
        let longest = options.seconds.map(Duration::from_secs);
        Self {
            deadline: longest.and_then(|longest| Instant::now().checked_add(longest)),
            state: Mutex::new((0, ticks)),
        }
    }

    /// True if a connection may load this tick.
    fn begin(&self, tick: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.deadline.is_some_and(|end| Instant::now() >= end) {
            // Connections ahead have begun ticks that the others must load, too. The first tick is always loaded.
            state.1 = state.1.min(state.0.max(1));
        }
        if tick >= state.1 {
            return false;
        }
        state.0 = state.0.max(tick + 1);
        true
    }

    /// Returns the number of loaded ticks.
    fn loaded(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Loads everything, or as much as the time limit allows. The second value is the number of ticks.
pub(crate) fn run(
    connections: &mut [Box<dyn Connection>],
    data: &DataSet,
    options: &Options,
) -> Outcome<(LoadResult, usize)> {
    let count = connections.len();
    let front = &LoadProgress::new(options, data.ticks);
    let start = Instant::now();
    let parts: Vec<Outcome<LoadedPart>> = std::thread::scope(|scope| {
        let workers: Vec<_> = connections
            .iter_mut()
            .enumerate()
            .map(|(number, connection)| {
                let who = (number, count);
                scope.spawn(move || load_part(&mut **connection, data, options, who, front))
            })
            .collect();
        workers
            .into_iter()
            .map(|w| {
                w.join()
                    .unwrap_or_else(|_| Err("a worker died".to_string()))
            })
            .collect()
    });
    let mut loaded = LoadResult {
        rows: 0,
        bson_bytes: 0,
        wall: start.elapsed(),
        waiting: Duration::ZERO,
        latencies: Vec::new(),
        course: Vec::new(),
    };
    for part in parts {
        let part = part?;
        loaded.rows += part.rows;
        loaded.bson_bytes += part.bytes;
        loaded.waiting = loaded.waiting.max(part.waiting);
        loaded.latencies.extend(part.latencies);
        loaded.course.extend(part.course);
    }
    Ok((loaded, front.loaded()))
}

/// The part loaded by one connection.
#[derive(Default)]
struct LoadedPart {
    rows: usize,
    bytes: u64,
    waiting: Duration,
    latencies: Vec<Duration>,
    course: Vec<LoadPoint>,
}

/// Loads the hosts that belong to one connection, in (time, host) order.
fn load_part(
    connection: &mut dyn Connection,
    data: &DataSet,
    options: &Options,
    (number, count): (usize, usize),
    front: &LoadProgress,
) -> Outcome<LoadedPart> {
    let encoder = data.encoder(options);
    let command = doc! {
        "insert": &options.collection,
        "ordered": true,
        "$db": &options.database,
    };
    let mut part = LoadedPart::default();
    let mut batch = Vec::new();
    let mut in_batch = 0;
    let mut course = Course::new(data, options);
    for tick in (0..data.ticks).take_while(|tick| front.begin(*tick)) {
        if number == 0 {
            let at = (tick, part.rows, part.waiting);
            course.pass(connection, data, options, at)?;
        }
        for host in (number..data.hosts.len()).step_by(count) {
            encoder.write(
                &mut batch,
                (tick, host),
                data.time_ms(tick),
                data.row(tick, host),
            );
            in_batch += 1;
            if in_batch == options.batch {
                send(connection, &command, &mut batch, &mut in_batch, &mut part)?;
            }
        }
    }
    if in_batch > 0 {
        send(connection, &command, &mut batch, &mut in_batch, &mut part)?;
    }
    if number == 0 {
        let at = (data.ticks, part.rows, part.waiting);
        course.pass(connection, data, options, at)?;
    }
    part.course = course.points;
    Ok(part)
}

fn send(
    connection: &mut dyn Connection,
    command: &Document,
    batch: &mut Vec<u8>,
    in_batch: &mut usize,
    part: &mut LoadedPart,
) -> Outcome {
    let capacity = batch.capacity();
    let documents = Arc::new(std::mem::replace(batch, Vec::with_capacity(capacity)));
    let bytes = documents.len() as u64;
    let start = Instant::now();
    let reply = call(connection, command, Some(documents))?;
    let waiting = start.elapsed();
    part.waiting += waiting;
    part.latencies.push(waiting);
    if reply.get("n").as_exact_i64() != Some(*in_batch as i64) {
        return Err(format!(
            "{in_batch} documents sent, the reply says {:?}",
            reply.get("n")
        ));
    }
    part.rows += *in_batch;
    part.bytes += bytes;
    *in_batch = 0;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_time_is_up_everybody_goes_as_far_as_the_first() {
        let options = Options {
            seconds: Some(3600),
            ..Options::default()
        };
        let mut front = LoadProgress::new(&options, 10);
        assert!((0..4).all(|tick| front.begin(tick)));
        front.deadline = Some(Instant::now());
        assert!((0..4).all(|tick| front.begin(tick)) && !front.begin(4));
        assert_eq!(front.loaded(), 4);
        let options = Options {
            seconds: Some(0),
            ..Options::default()
        };
        let front = LoadProgress::new(&options, 10);
        assert!(front.begin(0) && !front.begin(1));
        let front = LoadProgress::new(&Options::default(), 2);
        assert!(front.begin(0) && front.begin(1) && !front.begin(2));
    }
}
