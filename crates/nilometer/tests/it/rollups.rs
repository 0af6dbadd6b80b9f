//! Rollups: at every step of a random history each answers as its pipeline over the source does. Frozen bins, whose source
//! has expired, have tests of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nilometer::Database;
use nilometer::operation::Clock;
use nilometer::services::Environment;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::effort;
use nilometer_storage::{Engine, MemoryEngine};

use crate::random::Random;
use crate::rollup_indexes::{index_change, indexed_filter, is_true};
use crate::support::{Fixture, show};

pub(crate) const START_MS: i64 = 1_700_006_400_000;
pub(crate) const HOUR_MS: i64 = 3_600_000;
pub(crate) const DAY_MS: i64 = 24 * HOUR_MS;

/// A clock that the test moves.
#[derive(Default)]
pub(crate) struct TestClock(pub(crate) AtomicI64);

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        START_MS + 100 * DAY_MS + self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed).unsigned_abs())
    }
}

/// Returns the database that an engine stores.
pub(crate) fn opened(engine: &Arc<dyn Engine>, clock: &Arc<TestClock>) -> Fixture {
    let environment = Environment {
        clock: clock.clone(),
        ..Environment::default()
    };
    Fixture::of(Database::with_engine(Arc::clone(engine), environment).unwrap())
}

pub(crate) fn trunc(unit: &str, size: i32, field: &str) -> Document {
    doc! {"$dateTrunc": doc! {"date": field, "unit": unit, "binSize": size}}
}

/// The accumulators over measurements.
pub(crate) fn accumulators() -> Document {
    let ranked = doc! {"sortBy": doc! {"t": 1, "n": 1}, "output": "$v"};
    let two = doc! {"sortBy": doc! {"t": 1, "n": -1}, "output": "$n", "n": 2};
    let ranks = doc! {"input": "$v", "p": array![0.1, 0.75], "method": "approximate"};
    doc! {
        "sum": doc! {"$sum": "$v"}, "mean": doc! {"$avg": "$v"}, "n": doc! {"$count": doc! {}},
        "ones": doc! {"$sum": 1}, "min": doc! {"$min": "$v"}, "max": doc! {"$max": "$v"},
        "first": doc! {"$top": ranked.clone()}, "last": doc! {"$bottom": ranked},
        "tops": doc! {"$topN": two}, "dev": doc! {"$stdDevPop": "$v"},
        "least": doc! {"$minN": doc! {"input": "$n", "n": 2}},
        "ranks": doc! {"$percentile": ranks},
        "twice": doc! {"$sum": doc! {"$multiply": array![2, "$n"]}},
    }
}

pub(crate) fn group(key: Document, fields: &Document) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", key);
    out.append_all(fields.as_ref());
    doc! {"$group": out.finish()}
}

/// A rollup, and its pipeline over the source.
struct Rolled {
    name: &'static str,
    create: Document,
    pipeline: Vec<Document>,
    parts: &'static [&'static str],
}

fn rollups() -> Vec<Rolled> {
    let fields = accumulators();
    // A field of a coarser rollup merges the states of the finer one.
    let mut merged = DocumentBuilder::new();
    for field in fields.iter() {
        let operator = field.value().as_document().unwrap();
        let operator = operator.iter().next().unwrap().name().to_owned();
        let operator = if operator == "$count" {
            "$sum".into()
        } else {
            operator
        };
        let mut spec = DocumentBuilder::new();
        spec.append(&operator, format!("${}", field.name()));
        merged.append(field.name(), spec.finish());
    }
    let merged = merged.finish();
    let of = |name: &str, source: &str, pipeline: Vec<Document>| {
        let pipeline: Vec<Value> = pipeline.into_iter().map(Value::from).collect();
        let rollup = doc! {"source": source, "pipeline": pipeline, "lateness": 1800, "refresh": 0};
        doc! {"create": name, "rollup": rollup}
    };
    let key = |unit: &str, size| doc! {"bed": "$m.bed", "t": trunc(unit, size, "$t")};
    let hourly = vec![group(key("hour", 1), &fields)];
    let coarse = group(doc! {"bed": "$bed", "t": trunc("day", 1, "$t")}, &merged);
    let total = group(doc! {"t": trunc("week", 1, "$t")}, &merged);
    let few = vec![
        doc! {"$match": doc! {"n": doc! {"$mod": array![2, 0]}, "m.kind": "a"}},
        group(
            doc! {"t": trunc("minute", 45, "$t"), "kind": "$m.kind"},
            &fields,
        ),
    ];
    vec![
        Rolled {
            name: "hourly",
            create: of("hourly", "ts", hourly.clone()),
            pipeline: hourly,
            parts: &["bed", "t"],
        },
        Rolled {
            name: "daily",
            create: of("daily", "hourly", vec![coarse]),
            pipeline: vec![group(key("day", 1), &fields)],
            parts: &["bed", "t"],
        },
        Rolled {
            name: "weekly",
            create: of("weekly", "daily", vec![total]),
            pipeline: vec![group(doc! {"t": trunc("week", 1, "$t")}, &fields)],
            parts: &["t"],
        },
        Rolled {
            name: "few",
            create: of("few", "ts", few.clone()),
            pipeline: few,
            parts: &["t", "kind"],
        },
    ]
}

/// A history of writes, and the rollups that follow it.
struct History {
    engine: Arc<dyn Engine>,
    clock: Arc<TestClock>,
    fixture: Fixture,
    random: Random,
    seed: u64,
    next: i32,
    /// The newest time.
    at: i64,
    rollups: Vec<Rolled>,
    created: usize,
    log: Vec<String>,
}

impl History {
    fn new(seed: u64) -> Self {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let clock = Arc::<TestClock>::default();
        let mut random = Random::new(seed);
        let mut fixture = opened(&engine, &clock);
        let mut options = doc! {"timeField": "t", "metaField": "m"};
        if random.below(3) == 0 {
            options = doc! {"timeField": "t", "metaField": "m", "nilometer": doc! {"duplicates": "replace"}};
        }
        fixture.run(doc! {"create": "ts", "timeseries": options});
        Self {
            engine,
            clock,
            fixture,
            random,
            seed,
            next: 0,
            at: START_MS,
            rollups: rollups(),
            created: 0,
            log: Vec::new(),
        }
    }

    /// Values whose sums are exact, and which are equal only if they are the same.
    fn value(&mut self) -> Value {
        let n = self.random.int(40);
        match self.random.below(14) {
            0 => Value::Double(f64::NAN),
            1 => Value::Null,
            2 => Value::Missing,
            3 => format!("text {n}").into(),
            4 => array![n, "x"],
            5 => doc! {"a": n}.into(),
            6 => Value::Int64(i64::from(n) * 4 + 2),
            7 => Value::Bool(n > 20),
            8 => Value::DateTime(i64::from(n)),
            9..=10 => Value::Double(f64::from(n) + 0.5),
            _ => Value::Int32(n * 4 + 1),
        }
    }

    fn meta(&mut self) -> Value {
        match self.random.below(9) {
            0 => Value::Missing,
            1 => Value::Null,
            2 => doc! {"kind": "a"}.into(),
            3 => doc! {"bed": array!["p", 2], "kind": "b"}.into(),
            4 => doc! {"bed": Value::Null}.into(),
            bed => {
                let kind = *self.random.pick(&["a", "b"]);
                doc! {"bed": format!("bed {}", bed % 3), "kind": kind}.into()
            }
        }
    }

    fn measurements(&mut self) -> Vec<Value> {
        let is_late = self.random.below(3) == 0;
        let count = self.random.below(12) + 1;
        let mut all = Vec::new();
        for _ in 0..count {
            let time = match is_late {
                true => {
                    let back = self.random.below(60) as i64 * HOUR_MS / 2;
                    self.at - back - self.random.below(4) as i64 * 60_000
                }
                false => {
                    self.at += self.random.below(90) as i64 * 60_000;
                    self.at
                }
            };
            let mut out = DocumentBuilder::new();
            out.append("t", Value::DateTime(time));
            out.append("m", self.meta());
            out.append("v", self.value());
            out.append("n", self.next);
            self.next += 1;
            all.push(out.finish().into());
        }
        all
    }

    fn filter(&mut self) -> Document {
        let n = self.random.int(self.next.max(1));
        let time = self.at - self.random.below(50) as i64 * HOUR_MS;
        match self.random.below(4) {
            0 => doc! {"n": n},
            1 => doc! {"n": doc! {"$gte": n, "$lt": n + 4}},
            2 => {
                doc! {"m.bed": "bed 1", "t": doc! {"$gte": Value::DateTime(time), "$lt": Value::DateTime(time + HOUR_MS * 3)}}
            }
            _ => doc! {"m.kind": "b", "n": doc! {"$lt": n}},
        }
    }

    fn step(&mut self) {
        let choice = self.random.below(18);
        if choice >= 16 && self.created > 0 {
            let name = self.rollups[self.random.below(self.created as u64) as usize].name;
            let command = index_change(&mut self.random, name);
            self.log.push(show(&command));
            // An index may be there, or not, and arrays in two of its fields refuse it.
            self.fixture.reply(command);
            return;
        }
        let command = match choice {
            0..=6 => {
                let documents = self.measurements();
                doc! {"insert": "ts", "documents": documents, "ordered": self.random.below(2) == 0}
            }
            7 => {
                let (filter, value) = (self.filter(), self.random.int(100));
                let change = doc! {"$set": doc! {"v": value * 4 + 1}};
                let update = doc! {"q": filter, "u": change, "multi": true};
                doc! {"update": "ts", "updates": array![update]}
            }
            8 => {
                let move_by = self.random.below(5) as i64 * HOUR_MS;
                let change = match self.random.below(2) {
                    0 => doc! {"$set": doc! {"t": Value::DateTime(self.at - move_by)}},
                    _ => match self.meta() {
                        Value::Missing => doc! {"$unset": doc! {"m": ""}},
                        meta => doc! {"$set": doc! {"m": meta}},
                    },
                };
                let n = self.random.int(self.next.max(1));
                let update = doc! {"q": doc! {"n": n}, "u": change, "multi": true};
                doc! {"update": "ts", "updates": array![update]}
            }
            9 => {
                let filter = match self.random.below(6) {
                    0 => doc! {"m.bed": "bed 0"},
                    _ => self.filter(),
                };
                doc! {"delete": "ts", "deletes": array![doc! {"q": filter, "limit": 0}]}
            }
            10..=12 if self.created > 0 => {
                let name = self.rollups[self.random.below(self.created as u64) as usize].name;
                doc! {"refreshRollup": name}
            }
            13 => {
                self.log.push("reopen".into());
                // The old one ends before the new one begins.
                self.fixture = Fixture::new();
                self.fixture = opened(&self.engine, &self.clock);
                return;
            }
            14 if self.created > 0 => {
                let name = self.rollups[self.random.below(self.created as u64) as usize].name;
                let lateness = self.random.int(5) * 1800;
                doc! {"collMod": name, "rollup": doc! {"lateness": lateness}}
            }
            _ if self.created < self.rollups.len() => {
                self.created += 1;
                self.rollups[self.created - 1].create.clone()
            }
            _ => doc! {"refreshRollup": "hourly"},
        };
        self.log.push(show(&command));
        self.fixture.run(command);
    }

    /// Compares a `$group` of the source that rollups may answer with the same without them.
    fn check_planner(&mut self) {
        let from = self.at - self.random.below(120) as i64 * HOUR_MS / 2
            + self.random.below(3) as i64 * 600_000;
        let to = from + self.random.below(80) as i64 * HOUR_MS + 1;
        let filter = match self.random.below(7) {
            0 => doc! {},
            1 => doc! {"t": doc! {"$gte": Value::DateTime(from)}},
            5 => {
                doc! {"m.kind": "a", "t": doc! {"$gte": Value::DateTime(from)}, "n": doc! {"$mod": array![2, 0]}}
            }
            6 => doc! {"n": doc! {"$mod": array![2, 0]}, "m.kind": "a"},
            2 => doc! {"t": doc! {"$gt": Value::DateTime(from), "$lte": Value::DateTime(to)}},
            3 => {
                doc! {"m.bed": "bed 1", "t": doc! {"$gte": Value::DateTime(from), "$lt": Value::DateTime(to)}}
            }
            _ => doc! {"m.bed": doc! {"$ne": "p"}},
        };
        let key = match self.random.below(6) {
            0 => Value::Null,
            4 => "$m.kind".into(),
            5 => doc! {"kind": "$m.kind", "t": trunc("minute", 45, "$t")}.into(),
            1 => "$m.bed".into(),
            2 => doc! {"hour": trunc("hour", 6, "$t")}.into(),
            _ => doc! {"b": "$m.bed", "d": trunc("day", 1, "$t")}.into(),
        };
        let stage = doc! {"$group": doc! {
            "_id": key, "sum": doc! {"$sum": "$v"}, "mean": doc! {"$avg": "$v"}, "n": doc! {"$count": doc! {}},
            "ones": doc! {"$sum": 1}, "min": doc! {"$min": "$v"}, "max": doc! {"$max": "$v"},
            "least": doc! {"$minN": doc! {"input": "$n", "n": 2}}, "twice": doc! {"$sum": doc! {"$multiply": array![2, "$n"]}},
            "ranks": doc! {"$percentile": doc! {"input": "$v", "p": array![0.1, 0.75], "method": "approximate"}},
        }};
        let pipeline = array![doc! {"$match": filter}, stage];
        let query = doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": doc! {}};
        let found = normal(&self.fixture.all(query.clone()));
        let set = |names: Value| doc! {"setParameter": 1, "internalNilometerDisabledRules": names};
        self.fixture.reply_on("admin", set(array!["UseRollup"]));
        let expected = normal(&self.fixture.all(query.clone()));
        self.fixture.reply_on("admin", set(array![]));
        assert_eq!(
            found,
            expected,
            "seed {}: {}\n{}",
            self.seed,
            show(&query),
            self.log.join("\n")
        );
    }

    fn check(&mut self) {
        self.check_planner();
        let stage = match self.random.below(10) {
            5 => doc! {"$match": indexed_filter(&mut self.random, self.at)},
            6..=9 => {
                let (one, other) = (
                    indexed_filter(&mut self.random, self.at),
                    indexed_filter(&mut self.random, self.at),
                );
                let of = if self.random.below(3) == 0 {
                    "$or"
                } else {
                    "$and"
                };
                let mut both = DocumentBuilder::new();
                both.append(of, array![one, other]);
                doc! {"$match": both.finish()}
            }
            0 => {
                let from = self.at - self.random.below(90) as i64 * HOUR_MS / 2;
                doc! {"$match": doc! {"t": doc! {"$gte": Value::DateTime(from), "$lt": Value::DateTime(from + DAY_MS)}}}
            }
            1 => doc! {"$match": doc! {"bed": "bed 1"}},
            2 => doc! {"$match": doc! {"bed": Value::Null, "n": doc! {"$gt": 1}}},
            3 => doc! {"$match": doc! {"_id.bed": doc! {"$ne": "p"}, "kind": doc! {"$ne": "b"}}},
            _ => doc! {"$match": doc! {}},
        };
        for rolled in self.rollups.iter().take(self.created) {
            let mut parts = DocumentBuilder::new();
            for part in rolled.parts {
                parts.append(part, format!("$_id.{part}"));
            }
            let mut pipeline: Vec<Value> =
                rolled.pipeline.iter().cloned().map(Value::from).collect();
            pipeline.push(doc! {"$addFields": parts.finish()}.into());
            pipeline.push(stage.clone().into());
            let expected = self
                .fixture
                .all(doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": doc! {}});
            let found = self.fixture.all(
                doc! {"aggregate": rolled.name, "pipeline": array![stage.clone()], "cursor": doc! {}},
            );
            let checked = self.fixture.run(doc! {"validate": rolled.name});
            assert!(
                is_true(checked.get("valid")),
                "seed {}: {}\n{}",
                self.seed,
                show(&checked),
                self.log.join("\n")
            );
            let (expected, found) = (normal(&expected), normal(&found));
            if expected != found {
                let differs = |of: &[String], other: &[String]| -> Vec<String> {
                    of.iter()
                        .filter(|row| !other.contains(row))
                        .cloned()
                        .collect()
                };
                panic!(
                    "seed {}: {} after\n{}\nexpected {:#?}\nfound {:#?}",
                    self.seed,
                    rolled.name,
                    self.log.join("\n"),
                    differs(&expected, &found),
                    differs(&found, &expected),
                );
            }
        }
    }
}

/// Returns documents as sorted texts, with their fields in order. A deviation is rounded: it depends on the order in which
/// numbers are added.
fn normal(documents: &[Document]) -> Vec<String> {
    let text = |document: &Document| {
        let mut fields: Vec<String> = document
            .iter()
            .map(|field| match (field.name(), field.value()) {
                ("dev", ValueRef::Double(dev)) => format!("dev: {dev:.6e}"),
                (name, value) => format!("{name}: {value:?}"),
            })
            .collect();
        fields.sort();
        fields.join(", ")
    };
    let mut all: Vec<String> = documents.iter().map(text).collect();
    all.sort();
    all
}

#[test]
fn the_mark_of_a_smaller_bucket_keeps_that_of_the_larger() {
    // An update moved the only measurement of the second bin of a bucket, which kept that of the first.
    let mut history = History::new(2007);
    for _ in 0..24 {
        history.step();
        history.check();
    }
}

#[test]
fn a_rollup_answers_as_its_source_would() {
    let first = std::env::var("NILOMETER_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + effort(2, 20, 20_000) {
        let mut history = History::new(seed);
        for _ in 0..24 {
            history.step();
            history.check();
        }
    }
}

pub(crate) fn insert(fixture: &mut Fixture, at: i64, bed: &str, value: i32) {
    let row = doc! {"t": Value::DateTime(at), "m": doc! {"bed": bed}, "v": value};
    fixture.run(doc! {"insert": "ts", "documents": array![row]});
}

/// Returns the sums of a rollup by bin.
pub(crate) fn sums(fixture: &mut Fixture, name: &str) -> Vec<(i64, i64)> {
    let found = fixture.all(doc! {"find": name, "sort": doc! {"t": 1}});
    let of = |row: &Document| {
        let ValueRef::DateTime(at) = row.get("t") else {
            panic!("{}", show(row));
        };
        (
            (at - START_MS) / HOUR_MS,
            row.get("sum").as_exact_i64().unwrap(),
        )
    };
    found.iter().map(of).collect()
}

pub(crate) fn simple(name: &str, source: &str, unit: &str, value: &str) -> Document {
    let key = doc! {"t": trunc(unit, 1, "$t")};
    let stage = doc! {"$group": doc! {"_id": key, "sum": doc! {"$sum": value}}};
    let rollup = doc! {"source": source, "pipeline": array![stage], "lateness": 0, "refresh": 0};
    doc! {"create": name, "rollup": rollup}
}

/// A time series, a rollup by the hour, and one of that by the day.
pub(crate) fn hours_and_days() -> (Arc<dyn Engine>, Arc<TestClock>, Fixture) {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let clock = Arc::<TestClock>::default();
    let mut fixture = opened(&engine, &clock);
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    fixture.run(simple("hourly", "ts", "hour", "$v"));
    fixture.run(simple("daily", "hourly", "day", "$sum"));
    (engine, clock, fixture)
}

#[test]
fn bins_freeze_before_what_they_are_computed_from_expires() {
    let (engine, clock, mut fixture) = hours_and_days();
    for hour in 0..50 {
        insert(&mut fixture, START_MS + hour * HOUR_MS, "a", 1);
    }
    let whole = sums(&mut fixture, "daily");
    let total = |all: &[(i64, i64)]| -> i64 { all.iter().map(|(_, sum)| sum).sum() };
    assert_eq!(total(&whole), 50);
    // The hours before the 30th expire; the days that hold them keep their sums.
    let age = 100 * 24 - 30;
    fixture.run(doc! {"collMod": "hourly", "expireAfterSeconds": age * 3600});
    fixture.run(doc! {"refreshRollup": "hourly"});
    let hours = sums(&mut fixture, "hourly");
    assert_eq!(hours.first().map(|(hour, _)| *hour), Some(30));
    assert_eq!(hours.len(), 20);
    assert_eq!(sums(&mut fixture, "daily"), whole);
    // A late measurement of a frozen day changes neither.
    insert(&mut fixture, START_MS + HOUR_MS, "a", 1000);
    for name in ["hourly", "daily"] {
        fixture.run(doc! {"refreshRollup": name});
    }
    assert_eq!(sums(&mut fixture, "hourly"), hours);
    assert_eq!(sums(&mut fixture, "daily"), whole);
    // A later one changes both; so after a restart.
    drop(std::mem::replace(&mut fixture, Fixture::new()));
    fixture = opened(&engine, &clock);
    insert(&mut fixture, START_MS + 49 * HOUR_MS, "a", 5);
    assert_eq!(total(&sums(&mut fixture, "hourly")), 25);
    assert_eq!(total(&sums(&mut fixture, "daily")), 55);

    // Measurements expire when the hours that they are in are frozen.
    fixture.run(doc! {"collMod": "ts", "expireAfterSeconds": (100 * 24 - 45) * 3600});
    let before = (sums(&mut fixture, "hourly"), sums(&mut fixture, "daily"));
    assert_eq!(fixture.counted("ts"), 52);
    // Hours 45 to 49 stay, and what was added to the last. All passes are within an hour, so nothing else expires.
    let kept = 6;
    'passes: for pass in 1..50 {
        clock.0.store(pass * 61_000, Ordering::Relaxed);
        for _ in 0..100 {
            if fixture.counted("ts") == kept {
                break 'passes;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
    }
    assert_eq!(fixture.counted("ts"), kept);
    let after = (sums(&mut fixture, "hourly"), sums(&mut fixture, "daily"));
    assert_eq!(before, after);
}

#[test]
fn bins_before_all_measurements_freeze_as_others() {
    let (engine, clock, mut fixture) = hours_and_days();
    insert(&mut fixture, START_MS + 2 * HOUR_MS, "a", 1);
    // Hours up to the fifth of the day before expire, so that day is frozen: it is empty.
    let age = 100 * 24 + 19;
    fixture.run(doc! {"collMod": "hourly", "expireAfterSeconds": age * 3600});
    fixture.run(doc! {"refreshRollup": "hourly"});
    insert(&mut fixture, START_MS - 6 * HOUR_MS, "a", 10);
    for _ in 0..2 {
        assert_eq!(sums(&mut fixture, "hourly"), [(-6, 10), (2, 1)]);
        assert_eq!(sums(&mut fixture, "daily"), [(0, 1)]);
        for name in ["hourly", "daily"] {
            fixture.run(doc! {"refreshRollup": name});
        }
        drop(std::mem::replace(&mut fixture, Fixture::new()));
        fixture = opened(&engine, &clock);
    }
}

#[test]
fn the_planner_uses_a_rollup_where_it_answers() {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    fixture.run(simple("hourly", "ts", "hour", "$v"));
    fixture.run(simple("daily", "hourly", "day", "$sum"));
    let ranks = |rank: f64| -> Value {
        doc! {"$percentile": doc! {"input": "$v", "p": array![rank], "method": "approximate"}}
            .into()
    };
    let few =
        doc! {"_id": doc! {"bed": "$m.bed", "t": trunc("hour", 1, "$t")}, "ranks": ranks(0.5)};
    let ones = doc! {"$match": doc! {"v": 1, "m.bed": doc! {"$in": array!["a", "b"]}}};
    let stages = array![ones, doc! {"$group": few}];
    let rollup = doc! {"source": "ts", "pipeline": stages, "lateness": 0, "refresh": 0};
    fixture.run(doc! {"create": "few", "rollup": rollup});
    for hour in 0..100 {
        insert(&mut fixture, START_MS + hour * HOUR_MS, "a", 1);
    }
    for name in ["hourly", "daily", "few"] {
        fixture.run(doc! {"refreshRollup": name});
    }
    let range = |from: i64, to: i64| {
        let at = |hour: i64| Value::DateTime(START_MS + hour * HOUR_MS);
        doc! {"$match": doc! {"t": doc! {"$gte": at(from), "$lt": at(to)}}}
    };
    let group = |key: Value, value: &str| {
        doc! {"$group": doc! {"_id": key, "sum": doc! {"$sum": value}}}
    };
    let day = || -> Value { trunc("day", 1, "$t").into() };
    let ranked = |filter: Document, rank: f64| {
        let group = doc! {"_id": day(), "ranks": ranks(rank)};
        array![doc! {"$match": filter}, doc! {"$group": group}]
    };
    let beds = || doc! {"$in": array!["a", "b"]};
    for (stages, used) in [
        (
            ranked(doc! {"m.bed": beds(), "v": 1}, 0.5),
            Some("test.few"),
        ),
        (
            ranked(
                doc! {"v": 1, "m.bed": beds(), "t": doc! {"$gte": Value::DateTime(START_MS + 1)}},
                0.5,
            ),
            Some("test.few"),
        ),
        (
            ranked(
                doc! {"$and": array![doc! {"m.bed": beds()}, doc! {"m.bed": doc! {"$ne": "b"}}, doc! {"v": 1}]},
                0.5,
            ),
            Some("test.few"),
        ),
        (ranked(doc! {"m.bed": beds(), "v": 1}, 0.25), None),
        (ranked(doc! {"m.bed": beds()}, 0.5), None),
        (ranked(doc! {"v": 1}, 0.5), None),
        (ranked(doc! {"m.bed": beds(), "v": 1.0}, 0.5), None),
        (ranked(doc! {"m.bed": beds(), "v": 1, "w": 1}, 0.5), None),
        (array![group(day(), "$v")], Some("test.daily")),
        (array![range(0, 72), group(day(), "$v")], Some("test.daily")),
        (
            array![range(5, 20), group(Value::Null, "$v")],
            Some("test.hourly"),
        ),
        (
            array![range(5, 60), group(trunc("hour", 2, "$t").into(), "$v")],
            Some("test.hourly"),
        ),
        // Groups that are bins.
        (
            array![
                doc! {"$match": doc! {"m.bed": beds(), "v": 1}},
                doc! {"$group": doc! {
                    "_id": doc! {"k": 7, "at": trunc("minute", 60, "$t"), "in": "$m.bed"}, "ranks": ranks(0.5),
                }},
            ],
            Some("test.few"),
        ),
        (
            array![range(5, 20), group(trunc("hour", 1, "$t").into(), "$v")],
            Some("test.hourly"),
        ),
        (
            array![
                group(doc! {"day": day()}.into(), "$v"),
                doc! {"$sort": doc! {"_id": -1}},
                doc! {"$limit": 3},
            ],
            Some("test.daily"),
        ),
        (
            array![group(
                doc! {"t": day(), "u": trunc("hour", 1, "$t")}.into(),
                "$v"
            )],
            Some("test.hourly"),
        ),
        (array![group(trunc("minute", 1, "$t").into(), "$v")], None),
        (array![group(day(), "$w")], None),
        (array![group("$m.bed".into(), "$v")], None),
        (
            array![doc! {"$match": doc! {"v": 1}}, group(day(), "$v")],
            None,
        ),
        (
            array![doc! {"$match": doc! {"m.bed": "a"}}, group(day(), "$v")],
            None,
        ),
    ] {
        let query = doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}};
        let explained = show(&fixture.run(doc! {"explain": query.clone()}));
        let found = ["test.daily", "test.hourly", "test.few"]
            .into_iter()
            .find(|name| explained.contains(&format!("rollup: String(\"{name}\")")));
        assert_eq!(found, used, "{explained}");
        let mut hinted = DocumentBuilder::new();
        hinted.append_all(query.as_ref());
        hinted.append("hint", doc! {"$natural": 1});
        let (found, expected) = (fixture.all(query), fixture.all(hinted.finish()));
        assert_eq!(normal(&found), normal(&expected));
    }
}
