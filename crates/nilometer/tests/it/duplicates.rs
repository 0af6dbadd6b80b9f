//! Collections with a duplicates rule, against a map from series and time to a document.
//!
//! Random inserts, in order and not, of existing and new measurements; deletes and updates through the
//! view; other bucket widths, other rules, folding, reopening. Replies and documents are compared with
//! those of the map after every command.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::{Effort, effort};

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, cursor, show};

const START_MS: i64 = 1_700_000_000_000;

/// Generated databases of a run, and commands on each.
const DATABASES: Effort = Effort {
    fast: 2,
    long: 12,
    soak: 500,
};
const COMMANDS: u64 = 60;

/// Metadata as text, and time.
type Key = (String, i64);

fn text(value: ValueRef<'_>) -> String {
    format!("{value:?}")
}

fn by_name(document: &Document) -> String {
    let mut fields: Vec<String> = document
        .iter()
        .map(|e| format!("{}: {}", e.name(), text(e.value())))
        .collect();
    fields.sort();
    fields.join(", ")
}

fn key(document: &Document) -> Option<Key> {
    match document.get("t") {
        ValueRef::DateTime(at) => Some((text(document.get("m")), at)),
        _ => None,
    }
}

fn number(document: &Document, name: &str) -> i64 {
    let found = document.get(name).as_exact_i64();
    found.unwrap_or_else(|| panic!("{name} of {}", show(document)))
}

struct Case {
    random: Random,
    fixture: Fixture,
    rule: &'static str,
    model: BTreeMap<Key, Document>,
    fresh: i32,
    /// A time that grows from measurement to measurement.
    clock_ms: i64,
    seed: u64,
}

impl Case {
    fn time(&mut self) -> i64 {
        match self.random.below(8) {
            0..=3 => {
                self.clock_ms += self.random.below(20_000) as i64;
                self.clock_ms
            }
            4 => START_MS + self.random.below(50) as i64 * 1000,
            5 => START_MS + self.random.below(9) as i64 * 3_600_000,
            6 => self.clock_ms,
            _ => self.clock_ms - self.random.below(90_000) as i64,
        }
    }

    fn measurement(&mut self) -> Document {
        self.fresh += 1;
        let mut at = self.time();
        if self.random.below(300) == 0 {
            at = -at;
        }
        let mut out = DocumentBuilder::new();
        out.append("_id", self.fresh);
        if self.random.below(40) > 0 {
            out.append("t", Value::DateTime(at));
        }
        match self.random.below(8) {
            0 => {}
            1 => {
                out.append("m", 1_i64);
            }
            2..=4 => {
                out.append("m", 1);
            }
            _ => {
                out.append("m", doc! {"h": self.random.int(2)});
            }
        }
        out.append("v", self.random.int(9));
        if self.random.below(60) == 0 {
            out.append("x", "a text, so that the bucket changes its schema");
        }
        out.finish()
    }

    fn insert(&mut self) {
        let most = *self.random.pick(&[1, 1, 3, 30]);
        let count = 1 + self.random.below(most);
        let mut documents: Vec<Document> = (0..count).map(|_| self.measurement()).collect();
        if self.random.below(4) == 0 && !self.model.is_empty() {
            // A retry by a client that does not know whether its insert succeeded.
            let at = self.random.below(self.model.len() as u64) as usize;
            let known: Vec<Document> = self.model.values().skip(at).take(20).cloned().collect();
            documents.extend(known);
        }
        let ordered = self.random.below(2) == 0;
        let (mut inserted, mut errors) = (0, Vec::new());
        for (index, document) in documents.iter().enumerate() {
            let code = match key(document) {
                None => 2,
                Some(key) if self.rule == "replace" => {
                    self.model.insert(key, document.clone());
                    0
                }
                Some(key) if self.rule == "merge" => {
                    let merged = match self.model.get(&key) {
                        Some(stored) => with_fields(stored, document),
                        None => document.clone(),
                    };
                    self.model.insert(key, merged);
                    0
                }
                Some(key) => match self.model.contains_key(&key) {
                    true if self.rule == "error" => 11000,
                    true => 0,
                    false => {
                        self.model.insert(key, document.clone());
                        0
                    }
                },
            };
            if code == 0 {
                inserted += 1;
                continue;
            }
            errors.push((index as i64, code));
            if ordered {
                break;
            }
        }
        let documents: Vec<Value> = documents.into_iter().map(Value::from).collect();
        let command = doc! {"insert": "ts", "documents": documents, "ordered": ordered};
        let reply = self.fixture.run(command.clone());
        let mut reported = Vec::new();
        if let Some(list) = reply.get("writeErrors").as_array() {
            for error in list.iter() {
                let error = error.as_document().unwrap().to_document();
                reported.push((number(&error, "index"), number(&error, "code")));
            }
        }
        let context = || format!("seed {}, {}: {}", self.seed, self.rule, show(&command));
        assert_eq!(reported, errors, "{}", context());
        assert_eq!(number(&reply, "n"), inserted, "{}", context());
    }

    fn delete(&mut self) {
        let value = self.random.int(9);
        let q = doc! {"v": value, "_id": doc! {"$mod": array![3, self.random.int(3)]}};
        let rest = number_of(&q, "_id");
        let gone =
            |d: &Document| number(d, "v") == i64::from(value) && number(d, "_id") % 3 == rest;
        let before = self.model.len();
        self.model.retain(|_, document| !gone(document));
        let delete = doc! {"delete": "ts", "deletes": array![doc! {"q": q, "limit": 0}]};
        let reply = self.fixture.run(delete);
        assert_eq!(number(&reply, "n"), (before - self.model.len()) as i64);
    }

    /// Moves measurements to free times.
    fn move_some(&mut self) {
        let by_ms = 40 * 24 * 3_600_000 + self.random.below(5_000_000_000) as i64;
        let value = self.random.int(9);
        let moved: Vec<Key> = self
            .model
            .iter()
            .filter(|(_, document)| number(document, "v") == i64::from(value))
            .map(|(key, _)| key.clone())
            .collect();
        if moved
            .iter()
            .any(|(meta, at)| self.model.contains_key(&(meta.clone(), at + by_ms)))
        {
            return;
        }
        for (meta, at) in moved {
            let document = self.model.remove(&(meta.clone(), at)).unwrap();
            let mut out = DocumentBuilder::new();
            for element in document.iter() {
                match element.name() {
                    "t" => {
                        out.append("t", Value::DateTime(at + by_ms));
                    }
                    _ => {
                        out.append_element(element);
                    }
                }
            }
            self.model.insert((meta, at + by_ms), out.finish());
        }
        let set = doc! {"$set": doc! {"t": doc! {"$add": array!["$t", by_ms]}}};
        let statement = doc! {"q": doc! {"v": value}, "u": array![set], "multi": true};
        self.fixture
            .run(doc! {"update": "ts", "updates": array![statement]});
    }

    fn change_options(&mut self) {
        let change = match self.random.below(3) {
            0 => doc! {"granularity": "hours"},
            _ => {
                self.rule = self
                    .random
                    .pick::<&str>(&["ignore", "replace", "merge", "error"]);
                doc! {"nilometer": doc! {"duplicates": self.rule}}
            }
        };
        // Buckets may not become narrower; then nothing changes.
        self.fixture
            .reply(doc! {"collMod": "ts", "timeseries": change});
    }

    fn check(&mut self) {
        let mut found: Vec<String> = self
            .fixture
            .all(doc! {"find": "ts"})
            .iter()
            .map(by_name)
            .collect();
        let mut wanted: Vec<String> = self.model.values().map(by_name).collect();
        found.sort();
        wanted.sort();
        let first = found.iter().zip(&wanted).find(|(a, b)| a != b);
        assert_eq!(found.len(), wanted.len(), "seed {}: {first:?}", self.seed);
        assert!(first.is_none(), "seed {}: {first:?}", self.seed);
    }
}

/// Returns a document with the values of another where that has some, except for `_id`.
fn with_fields(stored: &Document, new: &Document) -> Document {
    let mut fields: BTreeMap<String, Value> = BTreeMap::new();
    for document in [stored, new] {
        for element in document.iter() {
            if element.name() != "_id" || !fields.contains_key("_id") {
                fields.insert(element.name().to_owned(), element.value().to_value());
            }
        }
    }
    let mut out = DocumentBuilder::new();
    for (name, value) in fields {
        out.append(&name, value);
    }
    out.finish()
}

/// Returns the remainder in a filter `{$mod: [3, r]}`.
fn number_of(filter: &Document, field: &str) -> i64 {
    let inner = filter.get(field).as_document().unwrap().get("$mod");
    let parts = inner.as_array().unwrap();
    parts.iter().nth(1).unwrap().as_exact_i64().unwrap()
}

fn check_database(seed: u64) {
    let mut random = Random::new(seed);
    let directory = TemporaryDirectory::new();
    let rule = *random.pick(&["ignore", "replace", "merge", "error"]);
    let mut options = DocumentBuilder::new();
    options.append("timeField", "t").append("metaField", "m");
    match random.below(3) {
        0 => {
            options.append("bucketMaxSpanSeconds", 60);
            options.append("bucketRoundingSeconds", 60);
        }
        _ => {
            options.append("granularity", *random.pick(&["seconds", "minutes"]));
        }
    }
    options.append("nilometer", doc! {"duplicates": rule});
    let mut case = Case {
        random,
        fixture: Fixture::open(&directory.0),
        rule,
        model: BTreeMap::new(),
        fresh: 0,
        clock_ms: START_MS,
        seed,
    };
    case.fixture
        .run(doc! {"create": "ts", "timeseries": options.finish()});
    for _ in 0..COMMANDS {
        match case.random.below(24) {
            0 => case.delete(),
            1 => case.move_some(),
            2 => case.change_options(),
            3 => {
                drop(std::mem::replace(&mut case.fixture, Fixture::new()));
                case.fixture = Fixture::open(&directory.0);
            }
            4 => case.fixture.database.settle().unwrap(),
            _ => case.insert(),
        }
        if case.random.below(4) == 0 {
            case.check();
        }
    }
    case.check();
    let valid = case.fixture.run(doc! {"validate": "ts", "full": true});
    let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
    assert!(is_valid, "seed {seed}: {}", show(&valid));
}

#[test]
fn no_two_measurements_have_the_same_series_and_time() {
    let databases = DATABASES.requested();
    let first = std::env::var("NILOMETER_SEED").map_or(0, |text| text.parse().expect("a number"));
    for seed in first..first + databases {
        check_database(seed);
    }
}

fn fixture(rule: &str) -> Fixture {
    let mut fixture = Fixture::new();
    let extension = doc! {"duplicates": rule};
    let options = doc! {"timeField": "t", "metaField": "m", "nilometer": extension};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    fixture
}

fn insert(fixture: &mut Fixture, documents: Vec<Document>) -> Document {
    let documents: Vec<Value> = documents.into_iter().map(Value::from).collect();
    fixture.run(doc! {"insert": "ts", "documents": documents})
}

fn at(minute: i64, id: i32) -> Document {
    let time = Value::DateTime(START_MS + minute * 60_000);
    doc! {"_id": id, "t": time, "m": doc! {"h": 1}}
}

fn ids(fixture: &mut Fixture) -> Vec<i64> {
    let mut ids: Vec<i64> = fixture
        .all(doc! {"find": "ts"})
        .iter()
        .map(|d| number(d, "_id"))
        .collect();
    ids.sort_unstable();
    ids
}

#[test]
fn fields_of_equal_measurements_come_together() {
    let mut fixture = fixture("merge");
    let of = |minute: i64, fields: Document| {
        let mut out = DocumentBuilder::new();
        out.append("t", Value::DateTime(START_MS + minute * 60_000));
        out.append("m", "a");
        out.append_all(fields.as_ref());
        out.finish()
    };
    let documents = vec![
        of(1, doc! {"_id": 1, "x": 1}),
        of(1, doc! {"_id": 2, "y": 2}),
        of(2, doc! {"_id": 3, "x": 3}),
        of(1, doc! {"x": 4, "z": Value::Null}),
    ];
    let reply = insert(&mut fixture, documents);
    assert_eq!(number(&reply, "n"), 4);
    insert(
        &mut fixture,
        vec![of(2, doc! {"y": 5}), of(1, doc! {"y": 6})],
    );
    let found = fixture
        .all(doc! {"find": "ts", "sort": doc! {"t": 1}, "projection": doc! {"t": 0, "m": 0}});
    assert_eq!(
        found,
        [
            doc! {"_id": 1, "x": 4, "y": 6, "z": Value::Null},
            doc! {"_id": 3, "x": 3, "y": 5},
        ]
    );
}

#[test]
fn a_duplicate_is_reported_as_by_a_unique_index() {
    let mut fixture = fixture("error");
    let reply = insert(&mut fixture, vec![at(1, 1), at(2, 2), at(1, 3), at(3, 4)]);
    assert_eq!(number(&reply, "n"), 2);
    let errors = reply.get("writeErrors").as_array().unwrap();
    let error = errors.iter().next().unwrap().as_document().unwrap();
    assert_eq!(error.get("index").as_exact_i64(), Some(2));
    assert_eq!(error.get("code").as_exact_i64(), Some(11000));
    let pattern = error.get("keyPattern").as_document().unwrap();
    assert_eq!(show(&pattern.to_document()), show(&doc! {"m": 1, "t": 1}));
    let key = error.get("keyValue").as_document().unwrap();
    let wanted = doc! {"m": doc! {"h": 1}, "t": Value::DateTime(START_MS + 60_000)};
    assert_eq!(show(&key.to_document()), show(&wanted));
    let text = error.get("errmsg").as_str().unwrap();
    let begin = "E11000 duplicate key error collection: test.ts index: m_1_t_1 dup key: { m: ";
    assert!(text.starts_with(begin), "{text}");
    assert_eq!(ids(&mut fixture), [1, 2]);
}

#[test]
fn the_option_is_listed_if_set_and_changed_for_later_writes() {
    let mut fixture = fixture("ignore");
    let shown = |fixture: &mut Fixture| {
        let listed = fixture.all(doc! {"listCollections": 1, "filter": doc! {"name": "ts"}});
        let options = listed[0].get("options").as_document().unwrap();
        let timeseries = options.get("timeseries").as_document().unwrap();
        timeseries
            .get("nilometer")
            .as_document()
            .map(|d| show(&d.to_document()))
    };
    assert_eq!(
        shown(&mut fixture),
        Some(show(&doc! {"duplicates": "ignore"}))
    );
    let plain = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": plain.clone()});
    let other =
        doc! {"timeField": "t", "metaField": "m", "nilometer": doc! {"duplicates": "error"}};
    assert_eq!(fixture.code(doc! {"create": "ts", "timeseries": other}), 48);
    insert(&mut fixture, vec![at(1, 1), at(1, 2)]);
    assert_eq!(ids(&mut fixture), [1]);
    let change = |fixture: &mut Fixture, rule: &str| {
        let timeseries = doc! {"nilometer": doc! {"duplicates": rule}};
        fixture.code(doc! {"collMod": "ts", "timeseries": timeseries})
    };
    assert_eq!(change(&mut fixture, "keep"), 0);
    insert(&mut fixture, vec![at(1, 3), at(2, 4), at(2, 5)]);
    assert_eq!(ids(&mut fixture), [1, 3, 4, 5]);
    // One of the earlier duplicates remains.
    assert_eq!(change(&mut fixture, "replace"), 0);
    insert(&mut fixture, vec![at(1, 6)]);
    assert_eq!(ids(&mut fixture), [4, 5, 6]);
    assert_eq!(change(&mut fixture, "never"), 2);
    assert_eq!(
        shown(&mut fixture),
        Some(show(&doc! {"duplicates": "replace"}))
    );
    fixture.run(doc! {"create": "without", "timeseries": plain});
    let listed = fixture.all(doc! {"listCollections": 1, "filter": doc! {"name": "without"}});
    assert!(!show(&listed[0]).contains("nilometer"));
}

#[test]
fn upserts_and_merges_search_and_updates_do_not() {
    let mut fixture = fixture("replace");
    insert(&mut fixture, vec![at(1, 1), at(2, 2)]);
    let time = Value::DateTime(START_MS + 60_000);
    let q = doc! {"_id": 9, "m": doc! {"h": 1}};
    let statement = doc! {"q": q, "u": doc! {"$set": doc! {"t": time.clone()}}, "upsert": true};
    fixture.run(doc! {"update": "ts", "updates": array![statement]});
    assert_eq!(ids(&mut fixture), [2, 9]);
    let statement = doc! {"q": doc! {"_id": 2}, "u": doc! {"$set": doc! {"t": time}}};
    fixture.run(doc! {"update": "ts", "updates": array![statement]});
    assert_eq!(ids(&mut fixture), [2, 9]);
    insert(&mut fixture, vec![at(1, 10)]);
    assert_eq!(ids(&mut fixture), [10]);
    fixture.run(doc! {"insert": "from", "documents": array![at(1, 11), at(7, 12)]});
    let into = doc! {"into": "ts", "on": "_id", "whenMatched": "fail"};
    let merge = array![doc! {"$merge": into}];
    fixture.run(doc! {"aggregate": "from", "pipeline": merge, "cursor": doc! {}});
    assert_eq!(ids(&mut fixture), [11, 12]);
}

#[test]
fn buckets_closed_by_raw_writes_are_searched() {
    for (rule, left) in [("ignore", [1, 2]), ("replace", [2, 3])] {
        let mut fixture = fixture(rule);
        insert(&mut fixture, vec![at(1, 1), at(2, 2)]);
        let close = doc! {"q": doc! {}, "u": doc! {"$set": doc! {"control.closed": true}}};
        fixture.run(doc! {"update": "system.buckets.ts", "updates": array![close]});
        insert(&mut fixture, vec![at(1, 3)]);
        assert_eq!(ids(&mut fixture), left, "{rule}");
    }
}

#[test]
fn removed_or_moved_measurements_may_be_inserted_again() {
    let mut fixture = fixture("error");
    // One of them late, so that its series has a window.
    insert(&mut fixture, vec![at(5, 1)]);
    insert(&mut fixture, vec![at(2, 2)]);
    insert(&mut fixture, vec![at(6, 3), at(7, 4)]);
    let delete = doc! {"q": doc! {"_id": doc! {"$in": array![2, 3]}}, "limit": 0};
    fixture.run(doc! {"delete": "ts", "deletes": array![delete]});
    let later = Value::DateTime(START_MS + 60 * 60_000);
    let moved = doc! {"q": doc! {"_id": 4}, "u": doc! {"$set": doc! {"t": later}}};
    fixture.run(doc! {"update": "ts", "updates": array![moved]});
    let again = vec![at(2, 12), at(6, 13), at(7, 14), at(60, 15)];
    let reply = insert(&mut fixture, again);
    assert_eq!(number(&reply, "n"), 3);
    assert_eq!(ids(&mut fixture), [1, 4, 12, 13, 14]);
}

#[test]
fn a_collection_without_metadata_is_one_series() {
    let mut fixture = Fixture::new();
    fixture.run(doc! {"insert": "from", "documents": array![at(1, 1), at(2, 2), at(1, 3)]});
    let extension = doc! {"duplicates": "error"};
    let options = doc! {"timeField": "t", "nilometer": extension};
    let out = |name: &str, options: &Document| {
        let out = doc! {"db": "test", "coll": name, "timeseries": options.clone()};
        let pipeline = array![
            doc! {"$match": doc! {"_id": doc! {"$lt": 3}}},
            doc! {"$out": out}
        ];
        doc! {"aggregate": "from", "pipeline": pipeline, "cursor": doc! {}}
    };
    fixture.run(out("ts", &options));
    assert_eq!(ids(&mut fixture), [1, 2]);
    let reply = insert(&mut fixture, vec![at(2, 4)]);
    let errors = reply.get("writeErrors").as_array().unwrap();
    let error = errors.iter().next().unwrap().as_document().unwrap();
    let pattern = error.get("keyPattern").as_document().unwrap();
    assert_eq!(show(&pattern.to_document()), show(&doc! {"t": 1}));
    let text = error.get("errmsg").as_str().unwrap();
    assert!(text.contains("index: t_1 dup key: { t: "), "{text}");
}

/// One of several connections to a database.
struct Client<'d> {
    database: &'d Database,
    session: ClientSession,
}

impl Client<'_> {
    fn run(&mut self, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        command.iter().for_each(|element| {
            body.append_element(element);
        });
        body.append("$db", "test");
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        assert_eq!(number(&reply, "ok"), 1, "{}", show(&reply));
        reply
    }
}

const WRITERS: i64 = 4;
const KEYS: i64 = 400;

/// Every writer inserts the same keys, in batches of its own, while measurements are moved and buckets
/// folded.
fn race(rule: &'static str) {
    let database = Database::in_memory().unwrap();
    let share = || Client {
        database: &database,
        session: ClientSession::embedded(),
    };
    let extension = doc! {"duplicates": rule};
    let options = doc! {"timeField": "t", "metaField": "m", "nilometer": extension};
    share().run(doc! {"create": "ts", "timeseries": options});
    let accepted = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (mut client, accepted) = (share(), &accepted);
            scope.spawn(move || {
                let mut random = Random::new(writer as u64);
                let mut next = 0;
                while next < KEYS {
                    let count = 1 + random.below(9) as i64;
                    let mut documents = Vec::new();
                    for key in next..(next + count).min(KEYS) {
                        for series in 0..3 {
                            let time = Value::DateTime(START_MS + key * 20_000);
                            let id = (writer * KEYS + key) * 3 + series;
                            let m = doc! {"s": series};
                            documents.push(Value::from(
                                doc! {"_id": id, "t": time, "m": m, "w": writer},
                            ));
                        }
                    }
                    next += count;
                    let command = doc! {"insert": "ts", "documents": documents, "ordered": false};
                    let reply = client.run(command);
                    accepted.fetch_add(number(&reply, "n"), Ordering::Relaxed);
                }
            });
        }
        let mut client = share();
        scope.spawn(move || {
            for round in 0..effort(8, 40, 40).cast_signed() {
                let q = doc! {"m.s": round % 3, "_id": doc! {"$mod": array![10, round % 10]}};
                let statement = doc! {"q": q, "u": doc! {"$inc": doc! {"seen": 1}}, "multi": true};
                client.run(doc! {"update": "ts", "updates": array![statement]});
            }
        });
    });
    let find = doc! {"find": "ts", "batchSize": 1_000_000};
    let (_, _, found) = cursor(&share().run(find), "firstBatch");
    let mut keys: Vec<Key> = found.iter().map(|d| key(d).unwrap()).collect();
    keys.sort();
    let all = keys.len();
    keys.dedup();
    assert_eq!(all, keys.len(), "{rule}: a key is there twice");
    assert_eq!(all as i64, KEYS * 3, "{rule}");
    let accepted = accepted.load(Ordering::Relaxed);
    match rule {
        "error" => assert_eq!(accepted, KEYS * 3),
        _ => assert_eq!(accepted, WRITERS * KEYS * 3),
    }
    let valid = share().run(doc! {"validate": "ts", "full": true});
    let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
    assert!(is_valid, "{rule}: {}", show(&valid));
}

#[test]
fn concurrent_writers_store_one_of_equal_measurements() {
    for rule in ["ignore", "error", "replace"] {
        race(rule);
    }
}
