//! A time-series collection with indexes answers like an ordinary collection without any.
//!
//! Random measurements, inserted before and after the indexes are created; random indexes of every kind;
//! random queries, with and without hints, of measurements and of raw buckets; meanwhile buckets roll over,
//! are folded, sealed, reopened, removed and restored. Afterwards `validate` compares every index entry
//! with a recomputed one.
//!
//! An index on measurements refuses arrays, so documents the time series refuses are not inserted into the
//! ordinary collection either.

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::random::Random;
use crate::router::Cluster;
use crate::same_answers::{Compare, Fold, Question, answer, documents, question, scalar, time};
use crate::support::{Fixture, TemporaryDirectory, show};

/// Generated databases of a run.
const DATABASES: Effort = Effort {
    fast: 2,
    long: 16,
    soak: 400,
};

const QUESTIONS: u32 = 40;

/// Queries of raw buckets.
const RAW_QUESTIONS: u32 = 5;

/// Returns one part of a random key.
fn part(random: &mut Random) -> (&'static str, Value) {
    let path = *random.pick(&[
        "m", "m", "m.x", "m.y", "t", "t", "a", "b", "c", "d", "a.x", "c.y.z", "_id",
    ]);
    let direction = *random.pick(&[1, 1, -1]);
    let is_meta = path.starts_with('m');
    match random.below(12) {
        0 if is_meta => (path, "hashed".into()),
        _ => (path, direction.into()),
    }
}

fn index(random: &mut Random, number: usize) -> Document {
    let mut key = DocumentBuilder::new();
    let mut names = Vec::new();
    let mut has_measurement = false;
    let parts = 1 + random.below(3);
    let wildcard = random.below(14) == 0;
    if wildcard {
        let path: &str = random.pick::<&str>(&["m.$**", "m.x.$**"]);
        key.append(path, 1);
    }
    for _ in 0..if wildcard { 0 } else { parts } {
        let (name, kind) = part(random);
        if names.contains(&name) || (kind.as_ref().as_str().is_some() && !names.is_empty()) {
            continue;
        }
        has_measurement |= !name.starts_with('m') && name != "t";
        names.push(name);
        key.append(name, kind);
    }
    let mut index = DocumentBuilder::new();
    index.append("key", key.finish());
    index.append("name", format!("i{number}"));
    if !has_measurement && random.below(6) == 0 {
        index.append("sparse", true);
    } else if random.below(4) == 0 {
        let filter = match random.below(5) {
            0 => doc! {"m.x": doc! {"$gte": 1}},
            1 => doc! {"a": doc! {"$gt": random.int(4)}},
            2 => doc! {"m": doc! {"$exists": true}},
            3 => doc! {"t": doc! {"$gte": Value::DateTime(1_700_000_000_000)}},
            _ => doc! {"$or": array![doc! {"b": doc! {"$lt": 2}}, doc! {"m.x": 2}]},
        };
        index.append("partialFilterExpression", filter);
    }
    index.finish()
}

struct Case {
    random: Random,
    fixture: Fixture,
    /// Names and keys of indexes that contain every bucket: a hint at another may return fewer.
    whole: Vec<(String, Document)>,
    created: usize,
    /// True if the time series is divided among partitions: its buckets are not read or written as documents.
    is_divided: bool,
}

impl Case {
    fn create_index(&mut self) {
        let index = index(&mut self.random, self.created);
        self.created += 1;
        let command = doc! {"createIndexes": "ts", "indexes": array![index.clone()]};
        let reply = self.fixture.reply(command);
        if reply.get("ok").as_exact_i64() != Some(1) {
            // Refused because of existing arrays, or of incompatible key types.
            let code = reply.get("code").as_exact_i64().unwrap_or(0);
            let expected = [67, 72, 85, 86, 171, 5_930_501, 16_766, 7_246_201];
            assert!(
                expected.contains(&code),
                "{} for {}",
                show(&reply),
                show(&index)
            );
            return;
        }
        let leaves_out =
            index.get("sparse").is_missing() && index.get("partialFilterExpression").is_missing();
        let key = index.get("key").as_document().unwrap().to_document();
        let is_plain = key
            .iter()
            .all(|part| part.value().is_number() && !part.name().ends_with('*'));
        if leaves_out && is_plain {
            self.whole
                .push((index.get("name").as_str().unwrap().to_owned(), key));
        }
    }

    fn drop_index(&mut self) {
        if self.whole.is_empty() {
            return;
        }
        let at = self.random.below(self.whole.len() as u64) as usize;
        let (name, _) = self.whole.swap_remove(at);
        self.fixture.run(doc! {"dropIndexes": "ts", "index": name});
    }

    /// Inserts into the time series, and the accepted documents into the ordinary collection.
    fn insert(&mut self, documents: &[Document]) {
        let batch: Array = documents.iter().cloned().map(Value::from).collect();
        let insert = doc! {"insert": "ts", "documents": Value::Array(batch), "ordered": false};
        let reply = self.fixture.run(insert);
        let mut refused = Vec::new();
        if let Some(errors) = reply.get("writeErrors").as_array() {
            for error in errors.iter().filter_map(ValueRef::as_document) {
                let code = error.get("code").as_exact_i64().unwrap_or(0);
                assert!(
                    [171, 5_930_501, 16_766].contains(&code),
                    "{}",
                    show(&error.to_document())
                );
                refused.push(error.get("index").as_exact_i64().unwrap() as usize);
            }
        }
        let taken = documents
            .iter()
            .enumerate()
            .filter(|(at, _)| !refused.contains(at));
        let taken: Vec<Value> = taken.map(|(_, d)| d.clone().into()).collect();
        if !taken.is_empty() {
            self.fixture
                .run(doc! {"insert": "plain", "documents": taken});
        }
    }

    fn create(&mut self) {
        let options = match self.random.below(4) {
            0 => doc! {"timeField": "t", "metaField": "m", "granularity": "hours"},
            _ => doc! {"timeField": "t", "metaField": "m"},
        };
        self.fixture
            .run(doc! {"create": "ts", "timeseries": options});
        self.fixture.run(doc! {"create": "plain"});
    }

    /// Inserts documents part by part, while indexes come and go.
    fn fill(&mut self, documents: &[Document], (failures, seed): (&mut Vec<String>, u64)) {
        let mut rest = documents;
        while !rest.is_empty() {
            match self.random.below(4) {
                0 | 1 => self.create_index(),
                2 if self.random.below(3) == 0 => self.drop_index(),
                _ => {}
            }
            let most = 1 + documents.len() as u64 / 3;
            let size = rest.len().min(1 + self.random.below(most) as usize);
            let (batch, left) = rest.split_at(size);
            self.insert(batch);
            rest = left;
            if self.random.below(3) == 0 {
                self.put_bucket_back();
            }
            if self.random.below(5) == 0 {
                self.seal();
            }
            if self.random.below(3) == 0 {
                self.ask(failures, seed);
                self.ask_raw(seed);
            }
        }
        self.create_index();
    }

    fn ask_at_the_end(&mut self, failures: &mut Vec<String>, seed: u64) {
        for _ in 0..QUESTIONS {
            self.ask(failures, seed);
        }
        for _ in 0..RAW_QUESTIONS {
            self.ask_raw(seed);
        }
        self.validate(seed);
    }

    /// Removes a bucket and restores it unchanged.
    fn put_bucket_back(&mut self) {
        if self.is_divided {
            return;
        }
        let find = doc! {"find": "system.buckets.ts", "limit": 1, "skip": self.random.int(4)};
        let Some(bucket) = self.fixture.all(find).pop() else {
            return;
        };
        let id = bucket.get("_id").to_value();
        let delete = doc! {"q": doc! {"_id": id}, "limit": 1};
        let removed = self
            .fixture
            .reply(doc! {"delete": "system.buckets.ts", "deletes": array![delete]});
        if removed.get("n").as_exact_i64() != Some(1) {
            return;
        }
        let insert = doc! {"insert": "system.buckets.ts", "documents": array![bucket]};
        let reply = self.fixture.run(insert);
        assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
    }

    /// Seals every bucket.
    fn seal(&mut self) {
        if self.is_divided {
            return;
        }
        self.fixture.run(doc! {"compact": "ts"});
    }

    /// Reads buckets as documents: an index and a scan must agree.
    fn ask_raw(&mut self, seed: u64) {
        if self.is_divided {
            return;
        }
        let random = &mut self.random;
        const PATHS: [&str; 6] = [
            "meta.x",
            "meta",
            "control.min.t",
            "control.min.a",
            "control.max.a",
            "control.max.c",
        ];
        let path = random.pick::<&str>(&PATHS);
        let operand: Value = match *path {
            "control.min.t" => time(random),
            "meta" => doc! {"x": random.int(3)}.into(),
            _ => scalar(random),
        };
        let mut comparison = DocumentBuilder::new();
        comparison.append(random.pick::<&str>(&["$eq", "$gte", "$lte"]), operand);
        let mut filter = DocumentBuilder::new();
        filter.append(path, comparison.finish());
        let sort = doc! {"control.min.t": 1, "_id": 1};
        let sort = (random.below(2) == 0).then_some(sort);
        let is_sorted = sort.is_some();
        let find = doc! {
            "find": "system.buckets.ts", "filter": filter.finish(), "sort": sort, "batchSize": 10_000,
        };
        let natural = with_hint(&find, doc! {"$natural": 1}.into());
        let mut answers = [&find, &natural].map(|command| self.fixture.all(command.clone()));
        if !is_sorted {
            for answer in &mut answers {
                answer.sort_by_key(show);
            }
        }
        let [by_index, scanned] = answers;
        assert!(by_index == scanned, "seed {seed}: {}", show(&find));
    }

    /// Returns a query: a general one, or one suited to indexes of metadata and time.
    fn question(&mut self) -> Question {
        let random = &mut self.random;
        if random.below(4) > 0 {
            return question(random);
        }
        let path = random.pick::<&str>(&["m", "m.x", "m.y"]);
        let key = format!("${path}");
        let group = match random.below(3) {
            // Where times may be equal: the time alone.
            0 => {
                let order = *random.pick(&[1, -1]);
                let end = doc! {"$top": doc! {"sortBy": doc! {"t": order}, "output": "$t"}};
                doc! {"_id": key, "end": end}
            }
            1 => doc! {"_id": key, "least": doc! {"$min": "$m.x"}, "most": doc! {"$max": "$m.y"}},
            _ => {
                return Question {
                    compare: Compare::Values,
                    command: doc! {"distinct": "c", "key": *path},
                };
            }
        };
        let group: Value = doc! {"$group": group}.into();
        let matched: Value = doc! {"$match": doc! {"m.x": random.int(3)}}.into();
        let pipeline: Vec<Value> = match random.below(2) {
            0 => vec![group],
            _ => vec![matched, group],
        };
        Question {
            compare: Compare::Values,
            command: doc! {"aggregate": "c", "pipeline": pipeline, "cursor": doc! {}},
        }
    }

    fn ask(&mut self, failures: &mut Vec<String>, seed: u64) {
        let question = self.question();
        let expected = answer(&mut self.fixture, "plain", &question, Fold::Nothing);
        let mut asked = vec![("", question.command.clone())];
        if !self.whole.is_empty() {
            let at = self.random.below(self.whole.len() as u64) as usize;
            let (name, key) = self.whole[at].clone();
            asked.push(("hint by name", with_hint(&question.command, name.into())));
            // A key that several indexes have identifies none of them.
            let same = self.fixture.all(doc! {"listIndexes": "ts"});
            let same = same.iter().filter(|index| {
                index.get("key").as_document().map(|k| k.to_document()) == Some(key.clone())
            });
            if same.count() == 1 {
                asked.push(("hint by key", with_hint(&question.command, key.into())));
            }
        }
        for (what, command) in asked {
            let asked = Question {
                compare: question.compare,
                command,
            };
            let got = answer(&mut self.fixture, "ts", &asked, Fold::Nothing);
            if got != expected {
                let few = |a: &[String], b: &[String]| {
                    a.iter()
                        .filter(|d| !b.contains(d))
                        .take(3)
                        .cloned()
                        .collect::<Vec<_>>()
                };
                failures.push(format!(
                    "seed {seed}, {what}: {}\n  {} for {}, extra {:?}, lost {:?}\n  indexes {}",
                    show(&asked.command),
                    got.len(),
                    expected.len(),
                    few(&got, &expected),
                    few(&expected, &got),
                    self.listed(),
                ));
            }
        }
    }

    fn listed(&mut self) -> String {
        let all = self.fixture.all(doc! {"listIndexes": "ts"});
        all.iter().map(show).collect::<Vec<_>>().join("; ")
    }

    fn validate(&mut self, seed: u64) {
        let name = match self.is_divided {
            true => "ts",
            false => "system.buckets.ts",
        };
        let reply = self.fixture.run(doc! {"validate": name});
        let valid = matches!(reply.get("valid"), ValueRef::Bool(true));
        assert!(valid, "seed {seed}: {}\n{}", show(&reply), self.listed());
    }
}

fn with_hint(command: &Document, hint: Value) -> Document {
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("hint", hint);
    out.finish()
}

fn check_database(seed: u64, failures: &mut Vec<String>) {
    let mut random = Random::new(seed);
    let documents = documents(&mut random);
    let directory = TemporaryDirectory::new();
    let fixture = match seed % 3 {
        0 => Fixture::open(&directory.0),
        _ => Fixture::new(),
    };
    let mut case = Case {
        random,
        fixture,
        whole: Vec::new(),
        created: 0,
        is_divided: false,
    };
    case.create();
    case.fill(&documents, (failures, seed));
    if seed.is_multiple_of(6) {
        // Reopens, so that in-memory state is lost.
        let reopened = Fixture::open(&{
            drop(std::mem::replace(&mut case.fixture, Fixture::new()));
            directory.0.clone()
        });
        case.fixture = reopened;
    }
    case.ask_at_the_end(failures, seed);
}

/// The same with a time series in three partitions, by its times.
fn check_cluster(seed: u64, failures: &mut Vec<String>) {
    let mut random = Random::new(seed);
    let documents = documents(&mut random);
    let Cluster { router, .. } = Cluster::new(3);
    let mut case = Case {
        random,
        fixture: router,
        whole: Vec::new(),
        created: 0,
        is_divided: true,
    };
    case.create();
    let shard = doc! {"shardCollection": "test.ts", "key": doc! {"t": 1}};
    let reply = case.fixture.reply_on("admin", shard);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    for (from, shard) in [
        (0, "p0001"),
        (1_700_000_000_000, "p0002"),
        (2_147_483_640_000, "p0000"),
    ] {
        let range = doc! {"moveRange": "test.ts", "min": doc! {"t": Value::DateTime(from)}, "toShard": shard};
        let reply = case.fixture.reply_on("admin", range);
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    }
    case.fill(&documents, (failures, seed));
    case.ask_at_the_end(failures, seed);
}

/// Returns the stage that reads buckets, for a filter and a hint.
fn way(fixture: &mut Fixture, filter: Document, hint: Option<&str>) -> String {
    let mut find = DocumentBuilder::new();
    find.append("find", "ts").append("filter", filter);
    if let Some(hint) = hint {
        find.append("hint", hint);
    }
    let explain = doc! {"explain": find.finish(), "verbosity": "queryPlanner"};
    let text = show(&fixture.run(explain));
    let names = ["COLLSCAN", "IXSCAN"].into_iter();
    let named = names.filter(|name| text.contains(name));
    named.collect::<Vec<_>>().join(" ")
}

fn one(name: &str, value: i32) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, value);
    out.finish()
}

/// As in MongoDB, the first part of the index must be bounded.
#[test]
fn an_index_on_a_measurement_serves_bounds_of_its_first_part() {
    let mut fixture = Fixture::with_measurements(300);
    for (name, direction) in [("up", 1), ("down", -1)] {
        let index = doc! {"key": doc! {"v": direction}, "name": name};
        fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
        let other = if direction == 1 { "$gt" } else { "$lt" };
        let own = if direction == 1 { "$lt" } else { "$gt" };
        for (filter, by_index) in [
            (doc! {"v": one(own, 5)}, true),
            (doc! {"v": one(other, 5)}, false),
            (doc! {"v": 5}, true),
            (doc! {"v": doc! {"$in": array![1, 5]}}, true),
            (doc! {"v": doc! {"$gt": 1, "$lt": 5}}, true),
        ] {
            let wanted = if by_index { "IXSCAN" } else { "COLLSCAN" };
            assert_eq!(
                way(&mut fixture, filter.clone(), None),
                wanted,
                "{name} {}",
                show(&filter)
            );
            assert_eq!(way(&mut fixture, filter, Some(name)), "IXSCAN");
        }
        fixture.run(doc! {"dropIndexes": "ts", "index": name});
    }
}

/// The index of a measurement begins with the least value of a bucket: buckets that end below the wanted value come first.
#[test]
fn an_index_is_left_for_a_scan_where_many_keys_are_unwanted() {
    let mut fixture = Fixture::with_oracle();
    // A later measurement closes the bucket of a series, so that it is sealed and in the index.
    for hours in [0, 2] {
        let time = Value::DateTime(1_700_000_000_000 + hours * 3_600_000);
        let measurements = (0..1_200).map(|at| doc! {"t": time.clone(), "m": at, "v": at}.into());
        fixture.insert_into_both(&measurements.collect::<Vec<Value>>());
    }
    let index = doc! {"key": doc! {"v": 1}, "name": "v"};
    fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
    fixture.run(doc! {"compact": "ts"});
    for (value, wanted) in [(5, "IXSCAN"), (100, "IXSCAN"), (1_000, "COLLSCAN")] {
        assert_eq!(
            way(&mut fixture, doc! {"v": value}, None),
            wanted,
            "{value}"
        );
        assert_eq!(way(&mut fixture, doc! {"v": value}, Some("v")), "IXSCAN");
        for hint in [None, Some("v")] {
            let mut find = DocumentBuilder::new();
            find.append("find", "ts")
                .append("filter", doc! {"v": value});
            if let Some(hint) = hint {
                find.append("hint", hint);
            }
            let reply = show(&fixture.run(find.finish()));
            assert_eq!(reply.matches("_id: ObjectId").count(), 2, "{reply}");
        }
    }
}

#[test]
fn indexes_change_no_answer() {
    run_databases(check_database);
}

#[test]
fn indexes_change_no_answer_of_a_cluster() {
    run_databases(check_cluster);
}

#[expect(
    clippy::print_stdout,
    reason = "failures are printed at once, for long runs"
)]
fn run_databases(check: impl Fn(u64, &mut Vec<String>)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>());
    let databases = DATABASES.requested();
    let first = match number("NILOMETER_SEED") {
        Some(seed) => seed.expect("a number"),
        None => 1,
    };
    let mut failures = Vec::new();
    for seed in first..first + databases {
        let before = failures.len();
        check(seed, &mut failures);
        failures[before..]
            .iter()
            .for_each(|failure| println!("{failure}"));
    }
    assert!(
        failures.is_empty(),
        "{} differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
