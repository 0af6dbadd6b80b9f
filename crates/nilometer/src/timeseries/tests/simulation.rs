//! Seeded histories of the write path, checked against a list of the measurements written.
//!
//! ```text
//! virtual writers    stage ── commit ── finish       each step on its own, in any order between them
//! maintenance        folds and seals, one at a time, in any order
//! other statements   raw writes, expiry, clearing, dropping, memory that runs short
//! the engine         refuses a commit, or makes it and says it failed
//! the machine        ends: everything in memory is gone, and with power cut what was not synced
//! ```
//!
//! In every second history keys are cut after a few bytes, so that nearly all are stored as long ones.
//!
//! One thread does it all, so a seed is one history. The engine keeps a log of its operations, and each write has its place in
//! that log; so the contents expected after a crash are known exactly. A failing seed is printed with the command that replays it.
//!
//! A plain run has few histories, one with `NILOMETER_LONG=1` 40 times as many, one with
//! `NILOMETER_SOAK` ten times more. `NILOMETER_FUZZ_RUNS` sets another number.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nilometer_bson::{Document, DocumentBuilder, ObjectId, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;
use nilometer_storage::{
    Durability, Engine, Error, KeyspaceId, KeyspaceOptions, LongKeyEngine, MemoryEngine,
    NewKeyspace, WriteBatch, forward_engine,
};

use super::{Draw, measurements, sorted_fields, stage};
use crate::catalog::{Catalog, Collection, Namespace, TimeseriesOptions};
use crate::timeseries::Timeseries;
use crate::timeseries::bucket_catalog::{BucketCatalog, BucketLimits};
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::fold::queue::MaintenanceQueue;
use crate::timeseries::format::bucket_document::BucketDocument;
use crate::timeseries::format::sealed::Dictionaries;
use crate::timeseries::insert::StagedInsert;
use crate::timeseries::modify::bucket_changes::ClaimResult;
use crate::timeseries::scan::BucketRange;

mod registry;
mod summarized_scans;

/// Histories of a run.
const HISTORIES: Effort = Effort {
    fast: 60,
    long: 2_500,
    soak: 100_000,
};

/// Concurrent writers.
const WRITERS: usize = 4;

/// Bytes after which keys are cut.
const CUT_KEY_BYTES: usize = 8;

/// Start time of all histories, about, in ms.
const BASE_MS: i64 = 1_700_000_000_000;

const HOUR_MS: i64 = 3_600_000;

#[derive(Debug)]
enum Operation {
    Create(Vec<(String, KeyspaceOptions)>),
    Drop(KeyspaceId),
    Commit(WriteBatch),
}

#[derive(Default)]
struct Log {
    operations: Vec<Operation>,
    /// How many of them outlive a power cut.
    synced: usize,
}

/// The memory engine with a log of what it did, and faults on demand.
#[derive(Default)]
struct LoggedEngine {
    inner: MemoryEngine,
    log: Mutex<Log>,
    /// Odds of a failing commit; 0 for none.
    faults: AtomicU64,
}

impl LoggedEngine {
    fn position(&self) -> usize {
        self.log.lock().unwrap().operations.len()
    }

    /// Returns the positions after each commit since a position. Beside commits there are new companions of cut keys.
    fn commits_since(&self, position: usize) -> Vec<usize> {
        let log = self.log.lock().unwrap();
        let later = log.operations.iter().enumerate().skip(position);
        let commits = later.filter(|(_, operation)| matches!(operation, Operation::Commit(_)));
        commits.map(|(at, _)| at + 1).collect()
    }

    /// An engine that performed the first `count` operations of this one.
    fn replay(&self, count: usize) -> Self {
        let again = Self::default();
        for operation in self.log.lock().unwrap().operations.drain(..).take(count) {
            match operation {
                Operation::Create(new) => {
                    let new = new.iter().map(|(name, options)| (name.as_str(), *options));
                    again.create_keyspaces(&new.collect::<Vec<_>>()).unwrap();
                }
                Operation::Drop(id) => again.drop_keyspace(id).unwrap(),
                Operation::Commit(batch) => {
                    again.commit(batch, Durability::Sync).unwrap();
                }
            }
        }
        again
    }
}

impl Engine for LoggedEngine {
    forward_engine!(inner: keyspaces, snapshot, settle, checkpoint, verify, keyspace_statistics,
        statistics, close);

    fn create_keyspaces(
        &self,
        new: &[NewKeyspace<'_>],
    ) -> nilometer_storage::Result<Vec<KeyspaceId>> {
        let ids = self.inner.create_keyspaces(new)?;
        let new = new
            .iter()
            .map(|(name, options)| ((*name).to_owned(), *options));
        let mut log = self.log.lock().unwrap();
        log.operations.push(Operation::Create(new.collect()));
        log.synced = log.operations.len();
        Ok(ids)
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> nilometer_storage::Result<()> {
        self.inner.drop_keyspace(id)?;
        let mut log = self.log.lock().unwrap();
        log.operations.push(Operation::Drop(id));
        log.synced = log.operations.len();
        Ok(())
    }

    fn commit(&self, batch: WriteBatch, durability: Durability) -> nilometer_storage::Result<u64> {
        let faults = self.faults.load(Ordering::Relaxed);
        let mut draw = Draw::new(faults);
        let fate = if faults == 0 { 9 } else { draw.below(8) };
        self.faults.store(
            if faults == 0 {
                0
            } else {
                draw.below(u64::from(u32::MAX)) + 1
            },
            Ordering::Relaxed,
        );
        let full = || Error::Full {
            path: "simulated".into(),
        };
        if fate == 0 {
            return Err(full());
        }
        let position = self.inner.commit(batch.clone(), durability)?;
        let mut log = self.log.lock().unwrap();
        log.operations.push(Operation::Commit(batch));
        if fate == 1 {
            return Err(full());
        }
        if durability == Durability::Sync {
            log.synced = log.operations.len();
        }
        Ok(position)
    }

    fn sync(&self) -> nilometer_storage::Result<()> {
        let mut log = self.log.lock().unwrap();
        log.synced = log.operations.len();
        Ok(())
    }
}

/// A change of the contents.
enum Event {
    Inserted(Vec<Document>),
    Removed(Vec<i64>),
    MetaSet(Vec<i64>, Value),
    Dropped,
}

/// A writer between the steps of an insert.
enum Writer {
    Idle,
    Staged(StagedInsert, Vec<Document>),
    Committed(StagedInsert, crate::error::Result<()>),
}

struct Simulation {
    draw: Draw,
    engine: Arc<LoggedEngine>,
    /// True if keys are cut, so that nearly all are stored as long ones.
    cuts_keys: bool,
    catalog: Arc<Catalog>,
    timeseries: Arc<Timeseries>,
    collection: Arc<Collection>,
    limits: BucketLimits,
    writers: Vec<Writer>,
    /// Each with the position of the engine after it.
    events: Vec<(usize, Event)>,
    next_id: i64,
    next_uuid: u8,
    starts: u64,
    /// Times wander forward with the history.
    now_ms: i64,
    /// The engine's operations up to the last crash, as text; none unless requested.
    trace: Option<Vec<String>>,
}

fn name() -> Namespace {
    Namespace::new("db", "ts").unwrap()
}

fn collection(catalog: &Catalog, uuid: u8) -> Arc<Collection> {
    let options = doc! { "timeField": "t", "metaField": "m" };
    let options = TimeseriesOptions::parse(options.as_ref()).unwrap();
    catalog.timeseries(&name()).unwrap_or_else(|| {
        catalog
            .create_timeseries(name(), [uuid; 16], doc! {}, options)
            .unwrap()
    })
}

/// Returns the engine that the database uses.
fn opened(engine: &Arc<LoggedEngine>, cuts_keys: bool) -> Arc<dyn Engine> {
    match cuts_keys {
        true => Arc::new(
            LongKeyEngine::with_lengths(engine.clone(), CUT_KEY_BYTES, CUT_KEY_BYTES).unwrap(),
        ),
        false => engine.clone(),
    }
}

fn start(
    engine: Arc<dyn Engine>,
    catalog: &Arc<Catalog>,
    limits: BucketLimits,
    starts: u64,
) -> Arc<Timeseries> {
    let bucket_catalog = Arc::new(BucketCatalog::new(limits, starts << 40));
    // Histories are short.
    let dictionaries = Dictionaries::open(catalog.clone(), 8).unwrap();
    let dictionaries = Arc::new(dictionaries);
    let tasks = MaintenanceQueue::without_thread(
        engine.clone(),
        bucket_catalog.clone(),
        dictionaries.clone(),
    );
    Arc::new(Timeseries::with_maintenance(
        engine,
        bucket_catalog,
        dictionaries,
        tasks,
    ))
}

fn ids_of(documents: &[Document]) -> Vec<i64> {
    let ids = documents.iter().map(|d| d.get("_id").as_exact_i64());
    ids.map(Option::unwrap).collect()
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let limits = BucketLimits {
            count_max: draw.below(40) as usize + 3,
            bytes_max: [128_000, 800, 2000][draw.below(3) as usize],
            count_min: draw.below(5) as usize + 1,
            bytes_min: 300,
            expiry_count_max: 2,
            cache_bytes: [0, 4000][draw.below(2) as usize],
        };
        let engine = Arc::new(LoggedEngine::default());
        let cuts_keys = seed % 2 == 1;
        let store = opened(&engine, cuts_keys);
        let catalog = Arc::new(Catalog::open(store.clone()).unwrap());
        let timeseries = start(store, &catalog, limits, 1);
        if draw.below(3) == 0 {
            timeseries
                .bucket_catalog
                .set_memory_max(draw.below(8000) as usize);
        }
        let collection = collection(&catalog, 1);
        Self {
            draw,
            engine,
            cuts_keys,
            catalog,
            timeseries,
            collection,
            limits,
            writers: (0..WRITERS).map(|_| Writer::Idle).collect(),
            events: Vec::new(),
            next_id: 1,
            next_uuid: 2,
            starts: 1,
            now_ms: BASE_MS,
            trace: None,
        }
    }

    fn run(&mut self) {
        for _ in 0..self.draw.below(48) + 8 {
            match self.draw.below(40) {
                0..=23 => self.write(),
                24..=28 => self.maintain(),
                29..=31 => self.raw_write(),
                32 => self.expire(),
                33 => self.timeseries.bucket_catalog.clear(self.collection.uuid),
                34 if self.draw.below(4) == 0 => self.drop_collection(),
                35 => self.fault(),
                36 if self.draw.below(2) == 0 => self.crash(),
                37 if self.draw.below(3) == 0 => self.check(),
                _ => {}
            }
        }
        self.engine.faults.store(0, Ordering::Relaxed);
        for at in 0..WRITERS {
            while !matches!(self.writers[at], Writer::Idle) {
                self.step(at);
            }
        }
        for _ in 0..1000 {
            self.maintain();
        }
        self.check();
        self.check_complete_registry();
        let found = self.timeseries.validate(&self.collection, &|| Ok(()));
        assert_eq!(found.unwrap().problems, Vec::<String>::new());
        self.crash();
        for _ in 0..1000 {
            self.maintain();
        }
        self.check();
        self.check_complete_registry();
    }

    fn write(&mut self) {
        let at = self.draw.below(WRITERS as u64) as usize;
        self.step(at);
    }

    /// One step of a writer.
    fn step(&mut self, at: usize) {
        let writer = std::mem::replace(&mut self.writers[at], Writer::Idle);
        self.writers[at] = match writer {
            Writer::Idle => {
                let count = self.draw.below(12) + 1;
                let documents: Vec<_> = (0..count).map(|_| self.measurement()).collect();
                match stage(
                    &self.timeseries,
                    &self.catalog,
                    &self.collection,
                    &documents,
                ) {
                    Ok(staged) => Writer::Staged(staged, documents),
                    Err(_) => Writer::Idle,
                }
            }
            Writer::Staged(mut staged, documents) => {
                let durability = match self.draw.below(2) {
                    0 => Durability::Sync,
                    _ => Durability::Buffered,
                };
                let before = self.engine.position();
                let committed = staged.commit(&*self.timeseries.engine, durability);
                if let Some(position) = self.engine.commits_since(before).pop() {
                    let written = documents.iter().map(|d| sorted_fields(d.as_ref()));
                    self.events
                        .push((position, Event::Inserted(written.collect())));
                }
                Writer::Committed(staged, committed)
            }
            Writer::Committed(staged, committed) => {
                let failed = committed.is_err();
                let outcome = staged.finish(&self.timeseries, committed);
                assert_eq!(outcome.is_err(), failed);
                Writer::Idle
            }
        };
    }

    fn measurement(&mut self) -> Document {
        let draw = &mut self.draw;
        self.now_ms += draw.below(200_000) as i64;
        let back = match draw.below(8) {
            0 => draw.below(2 * HOUR_MS as u64) as i64,
            1 | 2 => draw.below(100_000) as i64,
            _ => 0,
        };
        let mut out = DocumentBuilder::new();
        out.append("_id", self.next_id);
        self.next_id += 1;
        out.append("t", Value::DateTime(self.now_ms - back));
        out.append("m", meta(draw));
        let value: Value = match draw.below(24) {
            0 => "text".into(),
            1 => doc! { "a": draw.below(5) as i32 }.into(),
            2 => array![1, "x"],
            3 => Value::Null,
            4 => "x".repeat(draw.below(400) as usize).into(),
            5..=8 => Value::Missing,
            _ => (draw.below(50) as i32).into(),
        };
        out.append("v", value);
        if draw.below(3) == 0 {
            let field = ["x", "y", "z"][draw.below(3) as usize];
            out.append(field, draw.below(9) as f64);
        }
        out.finish()
    }

    fn maintain(&mut self) {
        if self.draw.below(3) == 0 {
            // It may meet a fault.
            let _ = self.timeseries.maintenance.summarize(&self.collection);
            return;
        }
        let draw = &mut self.draw;
        self.timeseries
            .maintenance
            .perform_queued(|count| draw.below(count as u64) as usize);
    }

    fn buckets(&self) -> Vec<Arc<StoredBucket>> {
        let scan = self
            .timeseries
            .reader
            .scan(&self.collection, BucketRange::default());
        scan.unwrap().map(Result::unwrap).collect()
    }

    /// Changes or removes a bucket without entries in flight.
    fn raw_write(&mut self) {
        let buckets = self.buckets();
        if buckets.is_empty() {
            return;
        }
        let at = self.draw.below(buckets.len() as u64) as usize;
        let id = buckets[at].id().0;
        let timeseries = self.timeseries.clone();
        let collection = self.collection.clone();
        let mut changes = timeseries.change_buckets(&collection).unwrap();
        let ClaimResult::Taken(document) = changes.try_claim(id).unwrap() else {
            return;
        };
        let bucket = StoredBucket::from_document(document.clone(), "t").unwrap();
        let rows = measurements(&bucket);
        let mut event = None;
        match self.draw.below(6) {
            0 => {
                changes.remove(id).unwrap();
                event = Some(Event::Removed(ids_of(&rows)));
            }
            1 => {
                let meta = meta(&mut self.draw);
                let after = with(&document, "meta", Some(meta.clone()));
                changes.replace(id, after.as_ref()).unwrap();
                event = Some(Event::MetaSet(ids_of(&rows), meta));
            }
            2 => {
                let control = document.get("control").as_document().unwrap();
                let control = with(&control.to_document(), "closed", Some(true.into()));
                let after = with(&document, "control", Some(control.into()));
                changes.replace(id, after.as_ref()).unwrap();
            }
            3 => changes.replace(id, plain(&document).as_ref()).unwrap(),
            4 => changes.replace(id, document.as_ref()).unwrap(),
            // Claimed, and released unchanged.
            _ => return,
        }
        let before = self.engine.position();
        let committed = changes.commit(&self.catalog, Durability::Buffered);
        let commits = self.engine.commits_since(before);
        // The second removes a series from the registry.
        assert!(committed.is_err() || matches!(commits.len(), 1 | 2));
        if let (Some(event), Some(position)) = (event, commits.first()) {
            self.events.push((*position, event));
        }
    }

    fn expire(&mut self) {
        let cutoff_ms = self.now_ms - self.draw.below(4 * HOUR_MS as u64) as i64;
        let before = self.contents();
        // A failed commit is tried again next time.
        let _ = self
            .timeseries
            .expire(&self.catalog, &self.collection, cutoff_ms);
        let after = self.contents();
        let gone = before.iter().filter(|(id, _)| !after.contains_key(id));
        let gone: Vec<_> = gone.collect();
        for (_, document) in &gone {
            let ValueRef::DateTime(time) = document.get("t") else {
                panic!("no time")
            };
            assert!(time < cutoff_ms, "expired too early");
        }
        let ids = gone.into_iter().map(|(id, _)| *id).collect();
        self.events
            .push((self.engine.position(), Event::Removed(ids)));
    }

    fn drop_collection(&mut self) {
        let before = self.engine.position();
        let dropped = self.catalog.remove(&[name(), name().buckets()]);
        if let Some(position) = self.engine.commits_since(before).first() {
            self.events.push((*position, Event::Dropped));
        }
        if dropped.is_err() {
            // As after a crash: memory and storage disagree.
            return self.crash();
        }
        self.timeseries.forget(&self.collection);
        self.engine.faults.store(0, Ordering::Relaxed);
        self.collection = collection(&self.catalog, self.next_uuid);
        self.next_uuid += 1;
    }

    fn fault(&mut self) {
        let faults = match self.draw.below(2) {
            0 => 0,
            _ => self.draw.below(1 << 30) + 1,
        };
        self.engine.faults.store(faults, Ordering::Relaxed);
    }

    /// Drops everything in memory; with power cut, also what was not synced.
    fn crash(&mut self) {
        let (synced, all) = {
            let log = self.engine.log.lock().unwrap();
            (log.synced, log.operations.len())
        };
        let cut = match self.draw.below(2) {
            0 => all,
            _ => synced + self.draw.below((all - synced + 1) as u64) as usize,
        };
        self.record();
        self.writers = (0..WRITERS).map(|_| Writer::Idle).collect();
        self.events.retain(|(position, _)| *position <= cut);
        self.engine = Arc::new(self.engine.replay(cut));
        self.starts += 1;
        let store = opened(&self.engine, self.cuts_keys);
        self.catalog = Arc::new(Catalog::open(store.clone()).unwrap());
        self.timeseries = start(store, &self.catalog, self.limits, self.starts);
        self.collection = collection(&self.catalog, self.next_uuid);
        self.next_uuid += 1;
        if self.draw.below(4) == 0 {
            self.empty_registry();
        }
        self.timeseries.seal_unsealed(&self.collection).unwrap();
    }

    /// Adds the operations since the last crash to the trace.
    fn record(&mut self) {
        if let Some(trace) = &mut self.trace {
            let log = self.engine.log.lock().unwrap();
            trace.extend(
                log.operations
                    .iter()
                    .map(|operation| format!("{operation:?}")),
            );
            trace.push(format!("{} of them synced", log.synced));
        }
    }

    fn contents(&self) -> BTreeMap<i64, Document> {
        let mut found = BTreeMap::new();
        for bucket in self.buckets() {
            let ValueRef::DateTime(start) = bucket.min("t") else {
                panic!("no start")
            };
            assert!(bucket.count() <= self.limits.count_max);
            for name in bucket.columns() {
                let mut bounds = [bucket.min(name), bucket.max(name)].into_iter();
                assert!(!bounds.any(|b| b.is_missing()), "no value of {name}");
            }
            for document in measurements(&bucket) {
                let ValueRef::DateTime(time) = document.get("t") else {
                    panic!("no time")
                };
                assert!((start..start + HOUR_MS).contains(&time));
                let id = document.get("_id").as_exact_i64().unwrap();
                assert!(found.insert(id, document).is_none(), "{id} is there twice");
            }
        }
        found
    }

    fn expected(&self) -> BTreeMap<i64, Document> {
        let mut expected = BTreeMap::new();
        for (_, event) in &self.events {
            match event {
                Event::Inserted(documents) => {
                    let ids = ids_of(documents);
                    expected.extend(ids.into_iter().zip(documents.iter().cloned()));
                }
                Event::Removed(ids) => expected.retain(|id, _| !ids.contains(id)),
                Event::MetaSet(ids, meta) => {
                    for id in ids {
                        let document = expected.get_mut(id).expect("a measurement");
                        let meta = (!meta.is_missing()).then(|| meta.clone());
                        *document = sorted_fields(with(document, "m", meta).as_ref());
                    }
                }
                Event::Dropped => expected.clear(),
            }
        }
        expected
    }

    fn check(&mut self) {
        let (found, expected) = (self.contents(), self.expected());
        for (id, document) in &expected {
            assert_eq!(found.get(id), Some(document), "of measurement {id}");
        }
        let counted = self.timeseries.counts.count(self.collection.uuid).unwrap();
        assert_eq!(counted, Some(found.len() as u64), "measurements counted");
        self.check_summaries();
        self.check_registry();
        let strange = found.keys().find(|id| !expected.contains_key(id));
        assert_eq!(strange, None, "a measurement that was never committed");
    }
}

fn meta(draw: &mut Draw) -> Value {
    match draw.below(8) {
        0 => Value::Missing,
        1 => doc! { "a": 1, "b": 2 }.into(),
        2..=4 => "b".into(),
        _ => "a".into(),
    }
}

/// The document with one field set, or without it.
fn with(document: &Document, name: &str, value: Option<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        if element.name() != name {
            out.append_element(element);
        }
    }
    out.append(name, value);
    out.finish()
}

/// The bucket as version 1.
fn plain(document: &Document) -> Document {
    let bucket = BucketDocument::parse(document.as_ref(), "t").unwrap();
    let mut out = DocumentBuilder::new();
    out.append("_id", ObjectId(bucket.id));
    out.begin_document("control");
    out.append("version", 1);
    out.append("min", bucket.min.to_document());
    out.append("max", bucket.max.to_document());
    if bucket.closed {
        out.append("closed", true);
    }
    out.end();
    out.append("meta", bucket.meta.to_value());
    out.begin_document("data");
    for element in bucket.data {
        out.begin_document(element.name());
        for (row, value) in bucket.values(element).unwrap().into_iter().enumerate() {
            out.append(&row.to_string(), value);
        }
        out.end();
    }
    out.end();
    out.finish()
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Prints the seed if its history panics.
struct Tell;

impl Drop for Tell {
    #[expect(clippy::print_stderr, reason = "how to see the failure again")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "history {0} fails; replay: cargo xtask fuzz fuzz_bucket_catalog --seed {0}",
                SEED.get()
            );
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn fuzz_bucket_catalog() {
    let first = setting("NILOMETER_FUZZ_SEED").unwrap_or(0);
    let runs = setting("NILOMETER_FUZZ_RUNS").unwrap_or_else(|| HISTORIES.requested());
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + runs {
                        return;
                    }
                    SEED.set(seed);
                    let _tell = Tell;
                    Simulation::new(seed).run();
                }
            });
        }
    });
}

/// Runs a history; returns the trace of its operations, and its contents.
fn traced(seed: u64) -> (Vec<String>, BTreeMap<i64, Document>) {
    let mut simulation = Simulation::new(seed);
    simulation.trace = Some(Vec::new());
    simulation.run();
    simulation.record();
    let contents = simulation.contents();
    (simulation.trace.unwrap(), contents)
}

#[test]
fn a_seed_gives_the_same_history_twice() {
    for seed in 0..nilometer_storage::testing::effort(3, 12, 12) {
        let (first, second) = (traced(seed), traced(seed));
        assert!(
            first.0.len() > 10,
            "seed {seed}: {} operations",
            first.0.len()
        );
        let pairs = first.0.iter().zip(&second.0).enumerate();
        let differing = pairs.into_iter().find(|(_, (a, b))| a != b);
        assert_eq!(differing, None, "seed {seed}");
        assert_eq!(first.0.len(), second.0.len(), "seed {seed}");
        assert_eq!(first.1, second.1, "seed {seed}");
    }
}
