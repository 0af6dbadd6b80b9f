//! A settled collection of TSBS measurements in a new directory, and timing of commands on it: for the benches that
//! read everything in process.

use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bench::TemporaryDirectory;
use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::names::{METRICS, TAGS};
use super::processor;

const START_MS: i64 = 1_451_606_400_000;
const STEP_MS: i64 = 10_000;
/// Measurements per insert.
const BATCH: usize = 10_000;

/// A database and its directory.
pub(crate) struct Client {
    database: Database,
    session: ClientSession,
    _directory: TemporaryDirectory,
}

impl Client {
    /// Creates a database in a temporary directory.
    pub(crate) fn new() -> Self {
        let directory = TemporaryDirectory::new("scan");
        Self {
            database: Database::open(directory.path()).expect("a database"),
            session: ClientSession::embedded(),
            _directory: directory,
        }
    }

    fn run(&mut self, db: &str, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        body.append_all(command.as_ref()).append("$db", db);
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        assert!(
            reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
        reply
    }

    /// Sets a server parameter.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        let mut command = DocumentBuilder::new();
        command.append("setParameter", 1).append(name, value);
        self.run("admin", command.finish());
    }

    /// Loads the collection `cpu`.
    pub(crate) fn load(&mut self, hosts: usize, per_host: i64) {
        let options = doc! {"timeField": "time", "metaField": "tags"};
        self.run("test", doc! {"create": "cpu", "timeseries": options});
        let mut seed = 0x9E37_79B9_7F4A_7C15u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut levels = vec![[50.0f64; METRICS.len()]; hosts];
        let mut documents: Vec<Value> = Vec::new();
        for at in 0..per_host {
            for (host, levels) in levels.iter_mut().enumerate() {
                let mut out = DocumentBuilder::with_capacity(512);
                out.append("time", Value::DateTime(START_MS + at * STEP_MS));
                out.begin_document("tags");
                out.append("hostname", format!("host_{host}"));
                for (tag, name) in TAGS.iter().skip(1).enumerate() {
                    out.append(name, format!("{name}-{}", (host * 7 + tag) % 9));
                }
                out.end();
                for (name, level) in METRICS.iter().zip(levels) {
                    // The sum of four uniform numbers is nearly normal, with a deviation of one.
                    let sum: f64 = (0..4)
                        .map(|_| (random() >> 11) as f64 / (1u64 << 53) as f64)
                        .sum();
                    *level = (*level + (sum - 2.0) * 1.732).clamp(0.0, 100.0);
                    out.append(name, *level as i64);
                }
                documents.push(out.finish().into());
                if documents.len() == BATCH {
                    let all = std::mem::take(&mut documents);
                    self.run("test", doc! {"insert": "cpu", "documents": all});
                }
            }
        }
        if !documents.is_empty() {
            self.run("test", doc! {"insert": "cpu", "documents": documents});
        }
        self.database.settle().expect("settled");
    }

    /// Returns the bytes of an answer and the time of its first batch.
    fn answer(&mut self, command: &Document) -> (usize, Duration) {
        let from = Instant::now();
        let mut reply = self.run("test", command.clone());
        let first = from.elapsed();
        let mut bytes = reply.as_bytes().len();
        loop {
            let cursor = reply.get("cursor").as_document().expect("a cursor");
            match cursor.get("id").as_exact_i64() {
                Some(0) | None => return (bytes, first),
                Some(id) => {
                    reply = self.run("test", doc! {"getMore": id, "collection": "cpu"});
                    bytes += reply.as_bytes().len();
                }
            }
        }
    }

    /// Runs a command `rounds` times, after as many warm-up runs. Returns bytes of one answer, processor and wall
    /// seconds of one run, and the median time of the first batch.
    pub(crate) fn measure(
        &mut self,
        command: &Document,
        rounds: usize,
    ) -> (usize, f64, f64, Duration) {
        for _ in 0..rounds {
            self.answer(command);
        }
        let (from, used) = (Instant::now(), processor::time());
        let mut first = Vec::new();
        let mut bytes = 0;
        for _ in 0..rounds {
            let (size, time) = self.answer(command);
            bytes = size;
            first.push(time);
        }
        let each = |all: f64| all / rounds as f64;
        let (used, elapsed) = (processor::time() - used, from.elapsed().as_secs_f64());
        first.sort();
        let median = first.get(rounds / 2).copied().unwrap_or_default();
        (bytes, each(used), each(elapsed), median)
    }
}
