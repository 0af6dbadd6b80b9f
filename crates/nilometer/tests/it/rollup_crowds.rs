//! Rollups in many short histories: at every step each answers as its pipeline over the source does.
//!
//! ```text
//! step   each history: one insert, late insert, duplicate, update, move or delete of its own measurements
//!        then one of: refresh, lateness, expiry, reopening, a crash anywhere in this step
//! check  every bin of every rollup, and a `$group` of the source that the planner may answer from them
//! ```
//!
//! The histories of a crowd are series of one collection, so that one query checks them all; they share the clock, refreshes and
//! crashes. Frozen bins keep what the pipeline returned when they froze. Values are awkward: decimals, infinities, NaN, numbers at
//! the limits of their types, and types that change from one measurement to the next.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic;

use nilometer_bson::{Decimal128, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::Engine;
use nilometer_storage::testing::effort;

use crate::changes_and_crashes::RecordingEngine;
use crate::random::Random;
use crate::rollups::{DAY_MS, HOUR_MS, START_MS, TestClock, opened, trunc};
use crate::support::{Fixture, show};

/// Histories that advance together.
const CROWD: u64 = 50;

const MINUTE_MS: i64 = 60_000;

const BEDS: [&str; 3] = ["a", "b", "c"];

/// A rollup, and its pipeline over the source.
struct Rolled {
    name: &'static str,
    source: &'static str,
    stages: Vec<Document>,
    over_source: Vec<Document>,
    /// The width of a bin.
    bin_ms: i64,
    /// Bins that start before this keep the values of `frozen`.
    frozen_ms: i64,
    frozen: Vec<Document>,
    /// Bins that start before this are gone.
    expired_ms: i64,
}

fn grouped(unit: &str, size: i32, part: &str, fields: &Document) -> Document {
    let key =
        doc! {"h": format!("{part}h"), "bed": format!("{part}bed"), "t": trunc(unit, size, "$t")};
    let mut group = DocumentBuilder::new();
    group.append("_id", key);
    group.append_all(fields.as_ref());
    doc! {"$group": group.finish()}
}

/// Returns the accumulators of a kind of crowd, over measurements and over a finer rollup.
fn accumulators(kind: u64) -> (Document, Document) {
    let at_end = doc! {"sortBy": doc! {"t": 1, "n": 1}, "output": array!["$n", "$v"]};
    let ranks = doc! {"input": "$v", "p": array![0.0, 0.5], "method": "approximate"};
    match kind {
        0 => (
            doc! {
                "sum": doc! {"$sum": "$v"}, "mean": doc! {"$avg": "$v"}, "n": doc! {"$count": doc! {}},
                "min": doc! {"$min": "$v"}, "max": doc! {"$max": "$v"}, "last": doc! {"$bottom": at_end},
            },
            doc! {
                "sum": doc! {"$sum": "$sum"}, "mean": doc! {"$avg": "$mean"}, "n": doc! {"$sum": "$n"},
                "min": doc! {"$min": "$min"}, "max": doc! {"$max": "$max"}, "last": doc! {"$last": "$last"},
            },
        ),
        _ => (
            doc! {
                "mean": doc! {"$avg": "$v"}, "n": doc! {"$sum": 1}, "dev": doc! {"$stdDevSamp": "$small"},
                "most": doc! {"$maxN": doc! {"input": "$n", "n": 2}}, "ranks": doc! {"$percentile": ranks},
                "middle": doc! {"$median": doc! {"input": "$small", "method": "approximate"}},
            },
            doc! {
                "mean": doc! {"$avg": "$mean"}, "n": doc! {"$sum": "$n"}, "dev": doc! {"$stdDevSamp": "$dev"},
                "most": doc! {"$maxN": "$most"}, "ranks": doc! {"$percentile": "$ranks"},
                "middle": doc! {"$median": "$middle"},
            },
        ),
    }
}

impl Rolled {
    fn new(name: &'static str, source: &'static str, stages: Vec<Document>, bin_ms: i64) -> Self {
        Self {
            name,
            source,
            over_source: stages.clone(),
            stages,
            bin_ms,
            frozen_ms: i64::MIN,
            frozen: Vec::new(),
            expired_ms: i64::MIN,
        }
    }

    /// Returns the rollups of a kind of crowd, the finer first.
    fn all(kind: u64) -> Vec<Self> {
        let (fields, merged) = accumulators(kind);
        let hourly = vec![grouped("hour", 1, "$m.", &fields)];
        let mut all = vec![Self::new("hourly", "ts", hourly, HOUR_MS)];
        match kind {
            0 => {
                let daily = vec![grouped("day", 1, "$", &merged)];
                let mut daily = Self::new("daily", "hourly", daily, DAY_MS);
                daily.over_source = vec![grouped("day", 1, "$m.", &fields)];
                all.push(daily);
            }
            _ => {
                let odd = doc! {"$match": doc! {"n": doc! {"$mod": array![2, 1]}, "m.bed": doc! {"$ne": "c"}}};
                let few = vec![odd, grouped("minute", 20, "$m.", &fields)];
                all.push(Self::new("few", "ts", few, 20 * MINUTE_MS));
            }
        }
        all
    }

    fn create(&self) -> Document {
        let stages: Vec<Value> = self.stages.iter().cloned().map(Value::from).collect();
        let rollup =
            doc! {"source": self.source, "pipeline": stages, "lateness": 1200, "refresh": 0};
        doc! {"create": self.name, "rollup": rollup}
    }
}

/// The measurements of a history that were inserted: time, number and metadata.
type Known = Vec<(i64, i32, &'static str)>;

/// Histories on one collection.
struct Crowd {
    seed: u64,
    random: Random,
    engine: Arc<RecordingEngine>,
    clock: Arc<TestClock>,
    fixture: Fixture,
    histories: Vec<Known>,
    /// The time of the crowd, and the next number of a measurement.
    at: i64,
    next: i32,
    rollups: Vec<Rolled>,
    log: Vec<String>,
}

impl Crowd {
    fn new(kind: u64, seed: u64) -> Self {
        let engine = Arc::new(RecordingEngine::default());
        let clock = Arc::<TestClock>::default();
        let mut random = Random::new(2 * seed + kind);
        let shared: Arc<dyn Engine> = engine.clone();
        let mut fixture = opened(&shared, &clock);
        let mut options = DocumentBuilder::new();
        options.append("timeField", "t").append("metaField", "m");
        if random.below(3) == 0 {
            options.append("nilometer", doc! {"duplicates": "replace"});
        }
        fixture.run(doc! {"create": "ts", "timeseries": options.finish()});
        let rollups = Rolled::all(kind);
        for rolled in &rollups {
            fixture.run(rolled.create());
        }
        Self {
            seed,
            random,
            engine,
            clock,
            fixture,
            histories: vec![Known::new(); CROWD as usize],
            at: START_MS,
            next: 0,
            rollups,
            log: Vec::new(),
        }
    }

    fn run(&mut self, command: Document) {
        self.log.push(show(&command));
        self.fixture.run(command);
    }

    /// A value whose sums do not depend on the order.
    fn value(&mut self) -> Value {
        let n = self.random.int(40);
        match self.random.below(16) {
            0 => Value::Double(f64::NAN),
            1 => Value::Double(f64::INFINITY),
            2 => Value::Double(-0.0),
            3 => Value::Missing,
            4 => "text".into(),
            5 => array![n, 1],
            6 => Value::Int64(i64::MAX - i64::from(n)),
            7 => Value::Int32(i32::MIN + n),
            8 => Value::Decimal128("1.25".parse::<Decimal128>().unwrap()),
            9 => Value::Decimal128(Decimal128::from(n)),
            10 => Value::Double(f64::from(n) + 0.5),
            11 => Value::DateTime(i64::from(n)),
            _ => Value::Int32(n),
        }
    }

    fn measurement(&mut self, history: usize, at: i64, bed: &'static str) -> Value {
        let mut out = DocumentBuilder::new();
        out.append("t", Value::DateTime(at));
        out.append("m", doc! {"h": history as i32, "bed": bed});
        out.append("v", self.value());
        out.append("small", self.random.int(100));
        out.append("n", self.next);
        self.histories[history].push((at, self.next, bed));
        self.next += 1;
        out.finish().into()
    }

    /// Each history makes one change. What several change in the same way is one statement.
    fn change(&mut self) {
        self.at += self.random.below(150) as i64 * MINUTE_MS;
        let set = |field: &str, value: Value| {
            let mut out = DocumentBuilder::new();
            match value {
                Value::Missing => out.append("$unset", doc! {"v": ""}),
                value => {
                    let mut one = DocumentBuilder::new();
                    one.append(field, value);
                    out.append("$set", one.finish())
                }
            };
            (out.finish(), Vec::<Value>::new())
        };
        let mut updates: Vec<_> = BEDS.map(|bed| set("m.bed", bed.into())).into();
        for _ in 0..3 {
            let moved = self.at - self.random.below(1_800) as i64 * MINUTE_MS;
            updates.push(set("t", Value::DateTime(moved)));
            updates.push(set("v", self.value()));
        }
        let (mut documents, mut deletes, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
        for history in 0..self.histories.len() {
            let bed = *self.random.pick(&BEDS);
            let known = self.histories[history].last().copied();
            match (self.random.below(12), known) {
                (0..=4, _) | (_, None) => {
                    let at = self.at - self.random.below(90) as i64 * MINUTE_MS;
                    documents.push(self.measurement(history, at, bed));
                }
                (5..=6, _) => {
                    let at = self.at - self.random.below(30) as i64 * HOUR_MS;
                    documents.push(self.measurement(history, at, bed));
                }
                (7, Some((at, _, bed))) => documents.push(self.measurement(history, at, bed)),
                (8..=10, Some((_, n, _))) => {
                    let at = self.random.below(updates.len() as u64) as usize;
                    updates[at].1.push(n.into());
                }
                (_, Some((_, n, _))) if self.random.below(4) > 0 => deleted.push(n.into()),
                _ => {
                    let q = doc! {"m.h": history as i32, "m.bed": bed};
                    deletes.push(Value::from(doc! {"q": q, "limit": 0}));
                }
            }
        }
        let within = |numbers: Vec<Value>| doc! {"n": doc! {"$in": numbers}};
        updates.retain(|(_, numbers)| !numbers.is_empty());
        let updates = updates.into_iter().map(|(u, numbers)| -> Value {
            doc! {"q": within(numbers), "u": u, "multi": true}.into()
        });
        deletes.push(doc! {"q": within(deleted), "limit": 0}.into());
        for (name, list, statements) in [
            ("insert", "documents", documents),
            ("update", "updates", updates.collect()),
            ("delete", "deletes", deletes),
        ] {
            if statements.is_empty() {
                continue;
            }
            let mut command = DocumentBuilder::new();
            command.append(name, "ts").append(list, statements);
            self.run(command.finish());
        }
    }

    /// What happens to all histories at once.
    fn event(&mut self, begun_at: usize) {
        let name = self.random.pick(&self.rollups).name;
        match self.random.below(12) {
            0..=5 => self.run(doc! {"refreshRollup": name}),
            6 => {
                let lateness = self.random.int(5) * 1200;
                self.run(doc! {"collMod": name, "rollup": doc! {"lateness": lateness}});
            }
            7 => {
                self.log.push("reopen".into());
                let engine: Arc<dyn Engine> = self.engine.clone();
                self.reopen(engine);
            }
            8..=9 => {
                // The refresh may be cut, and so may the changes before it.
                self.run(doc! {"refreshRollup": name});
                let end = self.engine.position();
                let cut = begun_at + self.random.below((end - begun_at) as u64 + 1) as usize;
                self.log
                    .push(format!("crash at {cut} of {begun_at} to {end}"));
                self.engine = Arc::new(self.engine.cut(cut));
                let engine: Arc<dyn Engine> = self.engine.clone();
                self.reopen(engine);
            }
            10 => self.expire(),
            _ => {}
        }
    }

    fn reopen(&mut self, engine: Arc<dyn Engine>) {
        // The old one ends before the new one begins.
        self.fixture = Fixture::new();
        self.fixture = opened(&engine, &self.clock);
    }

    /// Removes hours, so that the days that stand on them freeze.
    fn expire(&mut self) {
        let cutoff_ms = self.at - self.random.below(40) as i64 * HOUR_MS;
        let now_ms = START_MS + 100 * DAY_MS + self.clock.0.load(atomic::Ordering::Relaxed);
        let seconds = (now_ms - cutoff_ms) / 1000;
        // Hours expire by their start, and a day that has all its hours does not freeze.
        let cutoff_ms = cutoff_ms.div_euclid(HOUR_MS) * HOUR_MS;
        let frozen_ms = (cutoff_ms + DAY_MS - 1).div_euclid(DAY_MS) * DAY_MS;
        if let [hourly, daily] = self.rollups.as_slice()
            && daily.source == "hourly"
            && frozen_ms > daily.frozen_ms
            && cutoff_ms > hourly.expired_ms
        {
            let mut all = self.pipeline_over_source(1);
            all.retain(|bin| time_of(bin) < frozen_ms);
            self.rollups[1].frozen.extend(all);
            self.rollups[1].frozen_ms = frozen_ms;
        }
        let hourly = &mut self.rollups[0];
        hourly.expired_ms = hourly.expired_ms.max(cutoff_ms);
        self.run(doc! {"collMod": "hourly", "expireAfterSeconds": seconds});
        self.run(doc! {"refreshRollup": "hourly"});
        self.run(doc! {"collMod": "hourly", "expireAfterSeconds": 4_000_000_000_i64});
    }

    fn aggregate(
        &mut self,
        name: &str,
        stages: Vec<Document>,
        hint: Option<Document>,
    ) -> Vec<Document> {
        let mut command = DocumentBuilder::new();
        command.append("aggregate", name);
        let stages: Vec<Value> = stages.into_iter().map(Value::from).collect();
        command.append("pipeline", stages);
        command.append("cursor", doc! {"batchSize": 100_000});
        if let Some(hint) = hint {
            command.append("hint", hint);
        }
        let mut found = self.fixture.all(command.finish());
        found.sort_by(|a, b| nilometer_bson::order::compare(a.get("_id"), b.get("_id")));
        found
    }

    /// Returns what a rollup is to answer, frozen and expired bins apart.
    fn pipeline_over_source(&mut self, at: usize) -> Vec<Document> {
        let stages = self.rollups[at].over_source.clone();
        let from = self.rollups[at].frozen_ms.max(self.rollups[at].expired_ms);
        let mut found = self.aggregate("ts", stages, Some(doc! {"$natural": 1}));
        found.retain(|bin| time_of(bin) >= from);
        found
    }

    fn check(&mut self) {
        for at in 0..self.rollups.len() {
            let mut expected = self.rollups[at].frozen.clone();
            expected.extend(self.pipeline_over_source(at));
            expected.sort_by(|a, b| nilometer_bson::order::compare(a.get("_id"), b.get("_id")));
            let name = self.rollups[at].name;
            let stages = match self.random.below(3) {
                0 => {
                    let bin_ms = self.rollups[at].bin_ms;
                    let from = self.at - self.random.below(30) as i64 * bin_ms / 2;
                    expected.retain(|bin| time_of(bin) >= from);
                    vec![doc! {"$match": doc! {"t": doc! {"$gte": Value::DateTime(from)}}}]
                }
                1 => {
                    expected.retain(|bin| id(bin, "bed").as_str() == Some("b"));
                    vec![doc! {"$match": doc! {"bed": "b"}}]
                }
                _ => Vec::new(),
            };
            let found = self.aggregate(name, stages.clone(), None);
            self.compare(&format!("{name} {stages:?}"), &found, &expected);
        }
        let key = doc! {"h": "$m.h", "d": trunc("day", 1, "$t")};
        let mean = doc! {"$group": doc! {"_id": key, "mean": doc! {"$avg": "$v"}}};
        let from = self.at - self.random.below(90) as i64 * HOUR_MS / 2;
        let stages = match self.random.below(2) {
            0 => vec![mean],
            _ => vec![
                doc! {"$match": doc! {"t": doc! {"$gte": Value::DateTime(from)}}},
                mean,
            ],
        };
        let found = self.aggregate("ts", stages.clone(), None);
        let expected = self.aggregate("ts", stages.clone(), Some(doc! {"$natural": 1}));
        self.compare(&format!("ts {stages:?}"), &found, &expected);
    }

    fn compare(&self, what: &str, found: &[Document], expected: &[Document]) {
        let same = found.len() == expected.len()
            && found.iter().zip(expected).all(|(a, b)| is_same_bin(a, b));
        if same {
            return;
        }
        let first = |bins: &mut dyn Iterator<Item = &Document>| -> String {
            bins.take(5).map(show).collect::<Vec<_>>().join("\n")
        };
        let wrong = &mut found
            .iter()
            .filter(|bin| !expected.iter().any(|known| is_same_bin(bin, known)));
        let missed = &mut expected
            .iter()
            .filter(|bin| !found.iter().any(|known| is_same_bin(known, bin)));
        panic!(
            "seed {}: {what}\nfound\n{}\nexpected\n{}\nafter\n{}",
            self.seed,
            first(wrong),
            first(missed),
            self.log.join("\n")
        );
    }
}

fn id<'d>(bin: &'d Document, part: &str) -> ValueRef<'d> {
    let key = bin.get("_id").as_document().expect("a key of parts");
    key.get(part)
}

fn time_of(bin: &Document) -> i64 {
    match id(bin, "t") {
        ValueRef::DateTime(at) => at,
        other => panic!("{other:?}"),
    }
}

/// True if both have the same key and accumulators. Of equal numbers of several types `$min` and `$max` return any. A deviation
/// depends on the order in which numbers are added.
fn is_same_bin(found: &Document, expected: &Document) -> bool {
    expected.iter().all(|field| {
        let (wanted, shown) = (field.value(), found.get(field.name()));
        match (field.name(), wanted, shown) {
            ("dev", ValueRef::Double(a), ValueRef::Double(b)) => (a - b).abs() <= 1e-9 * a.abs(),
            (name, a, b) => {
                let any_type = matches!(name, "min" | "max" | "ranks" | "last");
                nilometer_bson::order::compare(a, b) == Ordering::Equal
                    && (any_type || a.type_name() == b.type_name())
            }
        }
    })
}

/// Runs the crowds of a kind.
fn crowds(kind: u64) {
    let first = std::env::var("NILOMETER_SEED").map_or(0, |seed| seed.parse().unwrap());
    let histories = effort(100, 10_000, 500_000);
    for seed in first..first + histories / CROWD {
        let mut crowd = Crowd::new(kind, seed);
        // Most are short: a step costs more the more steps there were.
        let steps = 2 + crowd.random.below(7).min(crowd.random.below(7));
        for _ in 0..steps {
            let begun_at = crowd.engine.position();
            crowd.change();
            crowd.event(begun_at);
            crowd.check();
        }
    }
}

#[test]
fn rollups_on_rollups_answer_as_their_source_in_crowds_of_histories() {
    crowds(0);
}

#[test]
fn rollups_with_filters_answer_as_their_source_in_crowds_of_histories() {
    crowds(1);
}
