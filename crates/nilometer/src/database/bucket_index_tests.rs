//! Indexes over buckets against answers without any, through commands but for the making of indexes.
//!
//! Random measurements before and after random indexes, buckets that roll over and are taken out and
//! put back, questions with and without hints; then every entry is compared with one computed from
//! scratch.

use std::sync::Arc;

use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::{LsmEngine, LsmOptions, MemoryEngine};

use crate::catalog::{Collection, IndexSpec, Namespace};
use crate::database::Database;
use crate::error::Result;
use crate::operation::{OperationContext, Request};
use crate::services::Environment;
use crate::session::ClientSession;
use crate::timeseries::index_conversion::{CollationOrigin, to_buckets, to_user};

const SEEDS: u64 = 40;

/// A SplitMix64 generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    fn int(&mut self, end: u64) -> i32 {
        self.below(end) as i32
    }

    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

fn show(document: &Document) -> String {
    nilometer_bson::extjson::to_relaxed(document.as_ref())
}

fn run(database: &Database, command: Document) -> Document {
    let mut body = DocumentBuilder::new();
    for element in command.iter() {
        body.append_element(element);
    }
    body.append("$db", "test");
    let mut session = ClientSession::embedded();
    database.run_command(&mut session, &Request::new(body.finish()))
}

fn must(database: &Database, command: Document) -> Document {
    let reply = run(database, command.clone());
    let ok = reply.get("ok").as_exact_i64() == Some(1);
    assert!(ok, "{} for {}", show(&reply), show(&command));
    reply
}

fn all(database: &Database, command: Document) -> Vec<Document> {
    let reply = must(database, command);
    let cursor = reply.get("cursor").as_document().unwrap();
    let batch = cursor.get("firstBatch").as_array().unwrap();
    let documents = batch.iter().map(|d| d.as_document().unwrap().to_document());
    let documents = documents.collect();
    assert_eq!(
        cursor.get("id").as_exact_i64(),
        Some(0),
        "a first batch holds all"
    );
    documents
}

fn collection(database: &Database) -> Arc<Collection> {
    let name = Namespace::new("test", "ts").unwrap();
    database.catalog().timeseries(&name).unwrap()
}

/// Makes an index as `createIndexes` does.
pub(crate) fn create_index(database: &Database, user: IndexSpec) -> Result<()> {
    let collection = collection(database);
    let options = collection.timeseries.as_ref().unwrap();
    let spec = to_buckets(options, &user, CollationOrigin::default())?;
    let operation = OperationContext::internal(database.services().clock.clone(), "test");
    database.create_indexes(&collection, &operation, |_| Ok(vec![spec]))?;
    Ok(())
}

fn time(random: &mut Random) -> Value {
    let day = *random.pick(&[
        1_700_000_000_000,
        1_700_003_600_000,
        1_700_090_000_000,
        -7_200_000,
        4_102_444_800_000,
    ]);
    Value::DateTime(day + random.below(7_200_000) as i64)
}

fn ordinary_time(random: &mut Random) -> Value {
    Value::DateTime(1_700_000_000_000 + random.below(40_000_000) as i64)
}

fn meta(random: &mut Random) -> Value {
    match random.below(14) {
        0 => Value::Missing,
        1 => Value::Null,
        2 => Value::from("a"),
        3 => Value::Int32(1),
        4 => Value::Double(1.0),
        5 => array![1, doc! {"x": 2}],
        6 => doc! {"x": array![1, 2]}.into(),
        7 => doc! {"x": Value::Null, "y": "b"}.into(),
        _ => doc! {"x": random.int(4), "y": *random.pick(&["a", "b"])}.into(),
    }
}

fn measured(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Missing,
        1 => Value::Null,
        2 => Value::from(*random.pick(&["a", "b", "c"])),
        3 => Value::Double(f64::from(random.int(40)) / 4.0),
        4 => Value::Double(f64::NAN),
        5 => doc! {"y": random.int(4)}.into(),
        6 => array![random.int(4), random.int(4)],
        _ => Value::Int32(random.int(12)),
    }
}

fn measurement(random: &mut Random, at: i32, wide: bool) -> Document {
    let mut out = DocumentBuilder::new();
    let time = if wide {
        time(random)
    } else {
        ordinary_time(random)
    };
    out.append("_id", at)
        .append("t", time)
        .append("m", meta(random));
    for name in ["a", "b"] {
        out.append(name, measured(random));
    }
    out.append("c", at / 7);
    out.finish()
}

fn index(random: &mut Random, number: usize) -> IndexSpec {
    let mut key = DocumentBuilder::new();
    let mut names: Vec<&str> = Vec::new();
    for _ in 0..=random.below(3) {
        let name = *random.pick(&[
            "m", "m", "m.x", "m.y", "t", "t", "a", "b", "c", "a.y", "m.$**",
        ]);
        let wildcard_beside_others = name.ends_with('*') && !names.is_empty();
        if names.contains(&name) || wildcard_beside_others || names.first() == Some(&"m.$**") {
            continue;
        }
        names.push(name);
        match random.below(10) {
            0 if name.starts_with('m') && names.len() == 1 && name != "m.$**" => {
                key.append(name, "hashed");
            }
            1..=3 => {
                key.append(name, -1);
            }
            _ => {
                key.append(name, 1);
            }
        }
    }
    let on_measurements = names.iter().any(|n| ["a", "b", "c", "a.y"].contains(n));
    let filter = match random.below(14) {
        0 => Some(doc! {"m.x": doc! {"$gte": 1}}),
        1 => Some(doc! {"a": doc! {"$gt": 4}}),
        2 => Some(doc! {"c": doc! {"$lte": 5}, "m.y": "a"}),
        3 => Some(doc! {"t": doc! {"$gte": Value::DateTime(1_700_010_000_000)}}),
        4 => Some(doc! {"$or": array![doc! {"b": doc! {"$lt": 5}}, doc! {"m.x": 2}]}),
        _ => None,
    };
    // The planner of ordinary collections does not ask what a partial wildcard leaves out.
    let filter = filter.filter(|_| names.first() != Some(&"m.$**"));
    IndexSpec {
        key: key.finish(),
        name: format!("i{number}"),
        sparse: !on_measurements && filter.is_none() && random.below(6) == 0,
        partial_filter: filter,
        ..IndexSpec::default()
    }
}

fn condition(random: &mut Random, path: &str) -> Value {
    let operand = |random: &mut Random| match path {
        "t" => ordinary_time(random),
        "m" => match meta(random) {
            Value::Missing => Value::Null,
            found => found,
        },
        "m.y" => Value::from(*random.pick(&["a", "b", "c"])),
        _ => match measured(random) {
            Value::Missing => Value::Int32(3),
            found => found,
        },
    };
    let one = operand(random);
    match random.below(10) {
        0..=2 => one,
        3 => doc! {"$gte": one}.into(),
        4 => doc! {"$lt": one}.into(),
        5 => doc! {"$gt": one, "$lte": operand(random)}.into(),
        6 => doc! {"$in": array![one, operand(random)]}.into(),
        7 => doc! {"$exists": random.below(2) == 0}.into(),
        8 => doc! {"$ne": one}.into(),
        _ => doc! {"$gte": one}.into(),
    }
}

fn filter(random: &mut Random) -> Document {
    let one = |random: &mut Random| {
        let path = *random.pick(&["m", "m.x", "m.x", "m.y", "t", "t", "a", "b", "c", "a.y"]);
        let mut out = DocumentBuilder::new();
        out.append(path, condition(random, path));
        out.finish()
    };
    match random.below(8) {
        0 => doc! {},
        1 => doc! {"$or": array![one(random), one(random)]},
        2 => doc! {"$expr": doc! {"$gte": array!["$a", 5]}},
        3 | 4 => one(random),
        5 => doc! {"$and": array![one(random), one(random), one(random)]},
        _ => doc! {"$and": array![one(random), one(random)]},
    }
}

fn question(random: &mut Random) -> Document {
    let matched: Value = doc! {"$match": filter(random)}.into();
    let pipeline = |stages: Vec<Value>| {
        doc! {"aggregate": "c", "pipeline": stages, "cursor": doc! {"batchSize": 10_000}}
    };
    let path = *random.pick(&["m", "m.x", "m.y"]);
    let key = format!("${path}");
    match random.below(10) {
        0..=3 => doc! {"find": "c", "filter": filter(random), "batchSize": 10_000},
        4 => doc! {"count": "c", "query": filter(random)},
        5 => {
            let query = if random.below(2) == 0 {
                doc! {}
            } else {
                filter(random)
            };
            doc! {"distinct": "c", "key": path, "query": query}
        }
        6 => {
            // The newest of each group, where times may tie: the time alone.
            let newest = doc! {"$top": doc! {"sortBy": doc! {"t": -1}, "output": "$t"}};
            let group = doc! {"$group": doc! {"_id": key, "newest": newest}};
            let stages = match random.below(2) {
                0 => vec![group.into()],
                _ => vec![
                    doc! {"$match": doc! {"m.x": random.int(4)}}.into(),
                    group.into(),
                ],
            };
            pipeline(stages)
        }
        7 => {
            let group = doc! {"$group": doc! {
                "_id": key, "least": doc! {"$min": "$m.x"}, "most": doc! {"$max": "$m.y"},
            }};
            pipeline(vec![group.into()])
        }
        8 => {
            let newest = doc! {"$sort": doc! {"t": -1}};
            let shown = doc! {"$project": doc! {"_id": 0, "t": 1}};
            pipeline(vec![
                matched,
                newest.into(),
                doc! {"$limit": 3}.into(),
                shown.into(),
            ])
        }
        _ => {
            let group = doc! {"$group": doc! {"_id": key, "n": doc! {"$sum": 1}}};
            pipeline(vec![matched, group.into()])
        }
    }
}

/// Equal numbers as one text.
fn plain(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Int32(n) => format!("{}", f64::from(n)),
        ValueRef::Int64(n) => format!("{}", n as f64),
        ValueRef::Double(n) => format!("{}", n + 0.0),
        ValueRef::Document(d) => {
            let mut fields: Vec<_> = d
                .iter()
                .map(|e| format!("{}: {}", e.name(), plain(e.value())))
                .collect();
            fields.sort();
            format!("{{{}}}", fields.join(", "))
        }
        ValueRef::Array(a) => format!("[{}]", a.iter().map(plain).collect::<Vec<_>>().join(", ")),
        other => value_to_canonical(other),
    }
}

fn answer(database: &Database, collection: &str, question: &Document) -> Vec<String> {
    let mut command = DocumentBuilder::new();
    for (at, element) in question.iter().enumerate() {
        match at {
            0 => command.append(element.name(), collection),
            _ => command.append_element(element),
        };
    }
    let command = command.finish();
    let reply = run(database, command.clone());
    let ordered = show(question).contains("$limit");
    let mut found: Vec<String> = if let Some(values) = reply.get("values").as_array() {
        values.iter().map(plain).collect()
    } else if reply.get("n").is_missing() {
        let documents = all(database, command);
        documents
            .iter()
            .map(|d| plain(ValueRef::Document(d.as_ref())))
            .collect()
    } else {
        vec![plain(reply.get("n"))]
    };
    if !ordered {
        found.sort();
    }
    found
}

struct Case {
    random: Random,
    database: Database,
    whole: Vec<(String, Document)>,
    created: usize,
    seed: u64,
}

impl Case {
    fn create_index(&mut self) {
        let user = index(&mut self.random, self.created);
        self.created += 1;
        if let Err(error) = create_index(&self.database, user.clone()) {
            let expected = [171, 67, 5_930_501, 16_766];
            assert!(
                expected.contains(&error.code.0),
                "{error} for {:?}",
                user.key
            );
            return;
        }
        let made = collection(&self.database)
            .indexes
            .named(&user.name)
            .unwrap();
        let options = collection(&self.database).timeseries.clone().unwrap();
        assert_eq!(to_user(&options, &made.spec).unwrap().key, user.key);
        let is_plain = user
            .key
            .iter()
            .all(|part| part.value().is_number() && !part.name().ends_with('*'));
        if is_plain && !user.sparse && user.partial_filter.is_none() {
            self.whole.push((user.name, user.key));
        }
    }

    fn insert(&mut self, documents: &[Document]) {
        let batch: Array = documents.iter().cloned().map(Value::from).collect();
        let insert = doc! {"insert": "ts", "documents": Value::Array(batch), "ordered": false};
        let reply = must(&self.database, insert);
        let mut refused = Vec::new();
        if let Some(errors) = reply.get("writeErrors").as_array() {
            for error in errors.iter().filter_map(ValueRef::as_document) {
                let code = error.get("code").as_exact_i64().unwrap_or(0);
                let known = [171, 5_930_501, 16_766].contains(&code);
                assert!(known, "{}", show(&error.to_document()));
                refused.push(error.get("index").as_exact_i64().unwrap() as usize);
            }
        }
        let taken = documents
            .iter()
            .enumerate()
            .filter(|(at, _)| !refused.contains(at));
        let taken: Vec<Value> = taken.map(|(_, d)| d.clone().into()).collect();
        if !taken.is_empty() {
            must(&self.database, doc! {"insert": "plain", "documents": taken});
        }
    }

    /// Takes a bucket out and puts it back as it was.
    fn put_bucket_back(&mut self) {
        let skip = self.random.int(4);
        let find = doc! {"find": "system.buckets.ts", "limit": 1, "skip": skip};
        let Some(bucket) = all(&self.database, find).pop() else {
            return;
        };
        let id = bucket.get("_id").to_value();
        let delete = doc! {"q": doc! {"_id": id}, "limit": 1};
        let delete = doc! {"delete": "system.buckets.ts", "deletes": array![delete]};
        let removed = run(&self.database, delete);
        if removed.get("n").as_exact_i64() == Some(1) {
            let insert = doc! {"insert": "system.buckets.ts", "documents": array![bucket]};
            let reply = must(&self.database, insert);
            assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
        }
    }

    fn ask(&mut self) {
        let question = question(&mut self.random);
        let expected = answer(&self.database, "plain", &question);
        let mut asked = vec![question.clone()];
        if !self.whole.is_empty() {
            let (name, key) = self.random.pick(&self.whole).clone();
            // A key that several indexes have names none of them.
            let options = collection(&self.database).timeseries.clone().unwrap();
            let all = collection(&self.database).indexes.all();
            let same = all
                .iter()
                .filter(|i| to_user(&options, &i.spec).is_some_and(|user| user.key == key));
            let mut hints = vec![Value::from(name)];
            if same.count() == 1 {
                hints.push(key.into());
            }
            for hint in hints {
                let mut hinted = DocumentBuilder::new();
                question.iter().for_each(|element| {
                    hinted.append_element(element);
                });
                hinted.append("hint", hint);
                asked.push(hinted.finish());
            }
        }
        for question in asked {
            let got = answer(&self.database, "ts", &question);
            if got != expected {
                let few = |a: &[String], b: &[String]| {
                    let only = a.iter().filter(|d| !b.contains(d));
                    only.take(3).cloned().collect::<Vec<_>>()
                };
                panic!(
                    "seed {}: {}\n {} for {}, extra {:?}, lost {:?}\n indexes {:#?}",
                    self.seed,
                    show(&question),
                    got.len(),
                    expected.len(),
                    few(&got, &expected),
                    few(&expected, &got),
                    collection(&self.database).indexes.all(),
                );
            }
        }
    }

    /// Buckets read as documents: by index as by a scan.
    fn ask_raw(&mut self) {
        let random = &mut self.random;
        let path = *random.pick(&[
            "meta.x",
            "meta",
            "control.min.t",
            "control.min.a",
            "control.max.a",
            "control.max.c",
        ]);
        let operand: Value = match path {
            "control.min.t" => ordinary_time(random),
            "meta" => doc! {"x": random.int(4), "y": "a"}.into(),
            _ => Value::Int32(random.int(12)),
        };
        let operator = *random.pick(&["$eq", "$gte", "$lte"]);
        let mut comparison = DocumentBuilder::new();
        comparison.append(operator, operand);
        let mut filter = DocumentBuilder::new();
        filter.append(path, comparison.finish());
        let mut find =
            doc! {"find": "system.buckets.ts", "filter": filter.finish(), "batchSize": 10_000};
        if random.below(2) == 0 {
            let mut sorted = DocumentBuilder::new();
            find.iter().for_each(|element| {
                sorted.append_element(element);
            });
            sorted.append("sort", doc! {"control.min.t": 1, "_id": 1});
            find = sorted.finish();
        }
        let mut natural = DocumentBuilder::new();
        find.iter().for_each(|element| {
            natural.append_element(element);
        });
        natural.append("hint", doc! {"$natural": 1});
        let mut answers =
            [find.clone(), natural.finish()].map(|command| all(&self.database, command));
        if find.get("sort").is_missing() {
            for answer in &mut answers {
                answer.sort_by_key(show);
            }
        }
        let [by_index, scanned] = answers;
        if by_index != scanned {
            let explain = doc! {"explain": find, "verbosity": "executionStats"};
            let lost: Vec<_> = scanned
                .iter()
                .filter(|d| !by_index.contains(d))
                .map(show)
                .collect();
            let extra: Vec<_> = by_index
                .iter()
                .filter(|d| !scanned.contains(d))
                .map(show)
                .collect();
            let explained = show(&run(&self.database, explain));
            panic!(
                "seed {}: {explained}\n lost {lost:#?} extra {extra:#?}",
                self.seed
            );
        }
    }

    fn validate(&self) {
        let reply = must(&self.database, doc! {"validate": "system.buckets.ts"});
        let valid = matches!(reply.get("valid"), ValueRef::Bool(true));
        let indexes = collection(&self.database).indexes.all();
        assert!(valid, "seed {}: {}\n{indexes:#?}", self.seed, show(&reply));
    }
}

fn check(seed: u64) {
    let mut random = Random(seed);
    let directory =
        std::env::temp_dir().join(format!("nilometer-bi-{}-{seed}", std::process::id()));
    let on_disk = seed.is_multiple_of(5);
    let open = |directory: &std::path::Path| {
        let engine: Arc<dyn nilometer_storage::Engine> = match on_disk {
            true => Arc::new(LsmEngine::open(directory, LsmOptions::tiny()).unwrap()),
            false => Arc::new(MemoryEngine::new()),
        };
        Database::with_engine(engine, Environment::default()).unwrap()
    };
    let database = open(&directory);
    must(
        &database,
        doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}},
    );
    must(&database, doc! {"create": "plain"});
    let wide = random.below(3) == 0;
    let count = 20 + random.int(300);
    let mut case = Case {
        random,
        database,
        whole: Vec::new(),
        created: 0,
        seed,
    };
    let mut at = 0;
    while at < count {
        if case.random.below(3) == 0 {
            case.create_index();
        }
        let size = 1 + case.random.int(40);
        let batch: Vec<_> = (at..at + size)
            .map(|number| measurement(&mut case.random, number, wide))
            .collect();
        at += size;
        case.insert(&batch);
        if case.random.below(4) == 0 {
            case.put_bucket_back();
        }
        if case.random.below(4) == 0 {
            case.database
                .timeseries()
                .seal_all(&collection(&case.database))
                .unwrap();
        }
        if case.random.below(2) == 0 {
            case.ask();
            case.ask_raw();
        }
    }
    case.create_index();
    if on_disk {
        // What was in memory is gone, as after a crash.
        let memory = Database::in_memory().unwrap();
        drop(std::mem::replace(&mut case.database, memory));
        case.database = open(&directory);
    }
    for _ in 0..25 {
        case.ask();
    }
    for _ in 0..5 {
        case.ask_raw();
    }
    case.validate();
    drop(case);
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn indexes_over_buckets_change_no_answer() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let first = number("NILOMETER_SEED").unwrap_or(1);
    let seeds = number("NILOMETER_SOAK").unwrap_or(SEEDS);
    (first..first + seeds).for_each(check);
}
