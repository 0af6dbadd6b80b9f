//! Updates and deletes of measurements answer like those of ordinary documents.
//!
//! The same random commands run on a time-series collection and on an ordinary one with the same documents;
//! replies and documents must be equal after each, and after reopening. Known differences are left out: in
//! a time series `_id` may change and the time must stay a date. Statements about one document select it by
//! `_id`, as otherwise the choice is unspecified.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::extjson::parse_document;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc, order};
use nilometer_storage::testing::{Effort, effort};

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, cursor, show};

const START_MS: i64 = 1_700_000_000_000;

/// Generated databases of a run, and commands on each.
const DATABASES: Effort = Effort {
    fast: 1,
    long: 8,
    soak: 300,
};

fn time(random: &mut Random) -> Value {
    let spread = *random.pick(&[60_000, 3_600_000, 40 * 3_600_000]);
    let at = START_MS + random.below(spread) as i64;
    Value::DateTime(match random.below(40) {
        0 => -at,
        1 => at * 3,
        _ => at,
    })
}

fn any(random: &mut Random) -> Value {
    match random.below(8) {
        0 => Value::Null,
        1 => "text".into(),
        2 => Value::Double(random.int(40) as f64 / 4.0),
        3 => doc! {"p": random.int(4)}.into(),
        4 => array![random.int(4), random.int(4)],
        5 => Value::Int64(i64::from(random.int(9))),
        _ => random.int(9).into(),
    }
}

pub(crate) fn measurement(random: &mut Random, id: i32) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", id).append("t", time(random));
    if random.below(10) > 0 {
        out.append("m", doc! {"x": random.int(4)});
    }
    if random.below(5) > 0 {
        out.append("k", random.int(10));
    }
    if random.below(3) > 0 {
        out.append("v", any(random));
    }
    if random.below(3) > 0 {
        let values: Vec<Value> = (0..random.below(4)).map(|_| random.int(6).into()).collect();
        out.append("a", values);
    }
    if random.below(4) == 0 {
        out.append("s", *random.pick(&["a", "b", "B"]));
    }
    out.finish()
}

/// Returns a filter; `ids` is the number of existing ids.
fn filter(random: &mut Random, ids: i32) -> Document {
    let number = random.int(6);
    match random.below(14) {
        0 => doc! {},
        1 | 2 => doc! {"m.x": number},
        3 => doc! {"m": doc! {"x": number}},
        4 => doc! {"m": doc! {"$exists": false}},
        5 => doc! {"k": doc! {"$gt": number}},
        6 => doc! {"t": doc! {"$gte": time(random), "$lt": time(random)}},
        7 => doc! {"t": doc! {"$lt": time(random)}, "m.x": number},
        8 => doc! {"v": any(random)},
        9 => doc! {"$or": array![doc! {"a": number}, doc! {"s": "b"}]},
        10 => doc! {"$expr": doc! {"$gt": array!["$k", number]}},
        11 => doc! {"_id": doc! {"$gt": random.int(ids)}, "k": doc! {"$lte": number}},
        12 => doc! {"$nor": array![doc! {"k": doc! {"$lt": number}}, doc! {"m.x": 1}]},
        _ => doc! {"_id": doc! {"$in": array![random.int(ids), random.int(ids)]}},
    }
}

/// Returns a filter, a modification, and further fields of the statement.
fn modification(random: &mut Random) -> (Document, Value, Document) {
    let number = random.int(6);
    let none = || doc! {};
    let operators = |update: Document| (doc! {}, Value::from(update), doc! {});
    match random.below(21) {
        0 => operators(doc! {"$set": doc! {"v": any(random)}}),
        1 => operators(doc! {"$inc": doc! {"k": 1}}),
        2 => operators(doc! {"$inc": doc! {"k": 1, "extra": number}}),
        3 => operators(doc! {"$set": doc! {"m": doc! {"x": number}}}),
        4 => operators(doc! {"$set": doc! {"m.x": number}}),
        5 => operators(doc! {"$unset": doc! {"v": ""}}),
        6 => operators(doc! {"$unset": doc! {"m": ""}}),
        7 => operators(doc! {"$set": doc! {"t": time(random)}}),
        8 => operators(doc! {"$max": doc! {"t": time(random)}, "$min": doc! {"k": number}}),
        9 => operators(doc! {"$push": doc! {"a": number}}),
        10 => operators(doc! {"$pull": doc! {"a": number}}),
        11 => operators(doc! {"$rename": doc! {"v": "w"}}),
        12 => operators(doc! {"$mul": doc! {"k": -1}, "$set": doc! {"m.x": number}}),
        13 => operators(doc! {"$addToSet": doc! {"a": doc! {"$each": array![1, number]}}}),
        14 => {
            let update = doc! {"$set": doc! {"a.$": number + 10}};
            (doc! {"a": number}, update.into(), none())
        }
        15 => {
            let update = doc! {"$inc": doc! {"a.$[e]": 1}};
            let filters = doc! {"arrayFilters": array![doc! {"e": doc! {"$gt": number}}]};
            (doc! {"a": doc! {"$exists": true}}, update.into(), filters)
        }
        16 => (
            none(),
            array![doc! {"$set": doc! {"m": doc! {"x": "$k"}}}],
            none(),
        ),
        17 => {
            let shift = doc! {"$add": array!["$t", i64::from(number) * 3_600_000]};
            (none(), array![doc! {"$set": doc! {"t": shift}}], none())
        }
        18 => {
            let stages = array![doc! {"$unset": "v"}, doc! {"$set": doc! {"y": "$$c"}}];
            (none(), stages, doc! {"c": doc! {"c": number}})
        }
        19 => operators(doc! {"$set": doc! {"m": doc! {"x": number}, "t": time(random)}}),
        _ => operators(doc! {"$set": doc! {"big": "x".repeat(400 * number as usize)}}),
    }
}

pub(crate) fn merged(parts: &[&Document]) -> Document {
    let mut out = DocumentBuilder::new();
    for part in parts {
        part.iter().for_each(|element| {
            out.append_element(element);
        });
    }
    out.finish()
}

fn both(a: Document, b: Document) -> Document {
    if a.is_empty() {
        return b;
    }
    doc! {"$and": array![a, b]}
}

fn update(random: &mut Random, ids: i32) -> Document {
    let (needed, change, more) = modification(random);
    let multi = random.below(3) > 0;
    let wanted = match multi {
        true => filter(random, ids),
        false => doc! {"_id": random.int(ids + 3)},
    };
    let head = doc! {"q": both(needed, wanted), "u": change, "multi": multi};
    merged(&[&head, &more])
}

fn replacement(random: &mut Random, ids: i32) -> Document {
    let new = measurement(random, 0);
    let mut out = DocumentBuilder::new();
    for element in new.iter().filter(|e| e.name() != "_id") {
        out.append_element(element);
    }
    out.append("new", random.bits() as i64);
    let upsert = random.below(3) == 0;
    doc! {"q": doc! {"_id": random.int(ids)}, "u": out.finish(), "upsert": upsert}
}

/// Returns a command; `$name` in it stands for the collection.
pub(crate) fn command(random: &mut Random, ids: i32, fresh: &mut i32) -> (&'static str, Document) {
    match random.below(16) {
        0 | 1 => {
            let mut documents = Vec::new();
            for _ in 0..1 + random.below(20) {
                *fresh += 1;
                documents.push(Value::from(measurement(random, *fresh)));
            }
            ("insert", doc! {"documents": documents})
        }
        2 => {
            let limit = random.int(2);
            let wanted = match limit {
                0 => filter(random, ids),
                _ => doc! {"_id": random.int(ids)},
            };
            let narrow = both(
                doc! {"_id": doc! {"$mod": array![3, random.int(3)]}},
                wanted.clone(),
            );
            let wanted = if random.below(2) == 0 { wanted } else { narrow };
            (
                "delete",
                doc! {"deletes": array![doc! {"q": wanted, "limit": limit}]},
            )
        }
        3 => {
            let collation = doc! {"locale": "en", "strength": 2};
            let q = doc! {"s": "b", "k": random.int(8)};
            let statement = doc! {"q": q, "limit": 0, "collation": collation};
            ("delete", doc! {"deletes": array![statement]})
        }
        4 | 5 => ("update", doc! {"updates": array![replacement(random, ids)]}),
        6 => {
            let (needed, change, more) = modification(random);
            let more = match change {
                // Only statements of `update` have constants.
                Value::Array(_) => doc! {"let": doc! {"c": 5}},
                _ => more,
            };
            let query = both(needed, doc! {"_id": random.int(ids)});
            let head = doc! {"query": query, "update": change, "new": random.below(2) == 0};
            ("findAndModify", merged(&[&head, &more]))
        }
        7 => {
            let query = doc! {"_id": random.int(ids)};
            (
                "findAndModify",
                doc! {"query": query, "remove": true, "fields": doc! {"t": 1}},
            )
        }
        8 => {
            let set = doc! {"t": time(random), "k": 3};
            *fresh += 1;
            let statement = doc! {
                "q": doc! {"_id": *fresh, "m": doc! {"x": random.int(4)}},
                "u": doc! {"$setOnInsert": set, "$set": doc! {"s": "a"}},
                "upsert": true,
                "multi": random.below(2) == 0,
            };
            ("update", doc! {"updates": array![statement]})
        }
        _ => {
            let count = 1 + random.below(2);
            let statements: Vec<Value> = (0..count).map(|_| update(random, ids).into()).collect();
            (
                "update",
                doc! {"updates": statements, "ordered": random.below(2) == 0},
            )
        }
    }
}

fn sorted(document: Document) -> Document {
    let mut elements: Vec<_> = document.iter().collect();
    elements.sort_by_key(|element| element.name());
    let mut out = DocumentBuilder::new();
    for element in elements {
        match (element.name(), element.value()) {
            ("value", ValueRef::Document(inner)) => {
                out.append("value", sorted(inner.to_document()));
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    out.finish()
}

pub(crate) fn contents(fixture: &mut Fixture, collection: &str) -> Vec<String> {
    let found = fixture.all(doc! {"find": collection, "sort": doc! {"_id": 1}});
    assert_eq!(
        fixture.counted(collection),
        found.len() as i64,
        "{collection}"
    );
    found.into_iter().map(|d| show(&sorted(d))).collect()
}

#[test]
fn random_changes_answer_as_on_ordinary_documents() {
    let databases = DATABASES.requested();
    for seed in 0..databases {
        let mut random = Random::new(seed);
        let directory = TemporaryDirectory::new();
        let mut fixture = Fixture::open(&directory.0);
        let granularity = *random.pick(&["seconds", "minutes", "hours"]);
        let options = doc! {"timeField": "t", "metaField": "m", "granularity": granularity};
        fixture.run(doc! {"create": "ts", "timeseries": options});
        // Its entries follow every change.
        let index = doc! {"key": doc! {"m.x": 1, "k": 1}, "name": "xk"};
        fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
        let mut fresh = 0;
        let mut first = Vec::new();
        let most = if random.below(4) == 0 { 1500 } else { 150 };
        for _ in 0..random.below(most) {
            fresh += 1;
            first.push(Value::from(measurement(&mut random, fresh)));
        }
        for collection in ["ts", "plain"] {
            if !first.is_empty() {
                fixture.run(doc! {"insert": collection, "documents": first.clone()});
            }
        }
        for step in 0..effort(20, 40, 40) {
            if random.below(12) == 0 {
                drop(fixture);
                fixture = Fixture::open(&directory.0);
            }
            let ids = fresh + 1;
            let (name, rest) = command(&mut random, ids, &mut fresh);
            let run = |fixture: &mut Fixture, collection: &str| {
                let mut head = DocumentBuilder::new();
                head.append(name, collection);
                let reply = fixture.reply(merged(&[&head.finish(), &rest]));
                show(&sorted(reply))
            };
            let (found, wanted) = (run(&mut fixture, "ts"), run(&mut fixture, "plain"));
            let context = format!("seed {seed} step {step}: {name} {}", show(&rest));
            assert_eq!(found, wanted, "{context}");
            let (found, wanted) = (
                contents(&mut fixture, "ts"),
                contents(&mut fixture, "plain"),
            );
            assert_eq!(found.len(), wanted.len(), "{context}");
            let query = doc! {"m.x": random.int(4), "k": doc! {"$gte": random.int(8)}};
            let counted = doc! {"count": "ts", "query": query.clone(), "hint": "xk"};
            let counted = number(&fixture.run(counted), "n");
            let plain = fixture.run(doc! {"count": "plain", "query": query});
            assert_eq!(counted, number(&plain, "n"), "by index after {context}");
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_eq!(found, wanted, "{context}");
            }
        }
        let valid = fixture.run(doc! {"validate": "ts", "full": true});
        assert!(
            matches!(valid.get("valid"), ValueRef::Bool(true)),
            "seed {seed}: {}",
            show(&valid)
        );
    }
}

/// One of several connections to a database.
struct Client<'d> {
    database: &'d Database,
    session: ClientSession,
}

impl Client<'_> {
    fn run(&mut self, command: Document) -> Document {
        let command = merged(&[&command, &doc! {"$db": "test"}]);
        let request = Request::new(command);
        let reply = self.database.run_command(&mut self.session, &request);
        assert_eq!(number(&reply, "ok"), 1, "{}", show(&reply));
        reply
    }
}

fn number(document: &Document, name: &str) -> i64 {
    document
        .get(name)
        .as_exact_i64()
        .unwrap_or_else(|| panic!("{name} of {}", show(document)))
}

#[test]
fn concurrent_changes_are_applied_once() {
    let database = Database::in_memory().unwrap();
    let share = || Client {
        database: &database,
        session: ClientSession::embedded(),
    };
    share().run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
    let (increments, taken) = (AtomicI64::new(0), AtomicI64::new(0));
    let inserted = Mutex::new(Vec::new());
    let removed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..2i64 {
            let (mut fixture, inserted) = (share(), &inserted);
            scope.spawn(move || {
                for round in 0..effort(20, 60, 60).cast_signed() {
                    let of = |at: i64| -> Value {
                        let id = thread * 1_000_000 + round * 100 + at;
                        let time = Value::DateTime(START_MS + round * 20_000 + at);
                        doc! {"_id": id, "t": time, "m": at % 2, "n": 0}.into()
                    };
                    let documents: Vec<Value> = (0..10).map(of).collect();
                    fixture.run(doc! {"insert": "ts", "documents": documents});
                    let ids = (0..10).map(|at| thread * 1_000_000 + round * 100 + at);
                    inserted.lock().unwrap().extend(ids);
                }
            });
        }
        for thread in 0..2i64 {
            let (mut fixture, increments) = (share(), &increments);
            scope.spawn(move || {
                let mut random = Random::new(thread as u64);
                for _ in 0..40 {
                    // To a later time, so that it moves ahead of the scan; sometimes to another series.
                    let later = doc! {"$add": array!["$t", i64::from(random.int(3)) * 3_600_000]};
                    let set = doc! {"t": later, "n": doc! {"$add": array!["$n", 1]}};
                    let q = doc! {"_id": doc! {"$mod": array![3, random.int(3)]}};
                    let statement = doc! {"q": q, "u": array![doc! {"$set": set}], "multi": true};
                    let reply = fixture.run(doc! {"update": "ts", "updates": array![statement]});
                    assert!(reply.get("writeErrors").is_missing(), "{}", show(&reply));
                    increments.fetch_add(number(&reply, "nModified"), Ordering::Relaxed);
                    let statement = doc! {
                        "q": doc! {"m": random.int(2)},
                        "u": doc! {"$set": doc! {"m": random.int(2)}},
                        "multi": true,
                    };
                    fixture.run(doc! {"update": "ts", "updates": array![statement]});
                }
            });
        }
        let (mut fixture, inserted, removed, taken) = (share(), &inserted, &removed, &taken);
        scope.spawn(move || {
            let mut random = Random::new(9);
            for _ in 0..150 {
                let id = {
                    let known: std::sync::MutexGuard<'_, Vec<i64>> = inserted.lock().unwrap();
                    match known.len() {
                        0 => continue,
                        count => known[random.below(count as u64) as usize],
                    }
                };
                let query = doc! {"_id": id};
                let reply =
                    fixture.run(doc! {"findAndModify": "ts", "query": query, "remove": true});
                if let Some(gone) = reply.get("value").as_document() {
                    taken.fetch_add(number(&gone.to_document(), "n"), Ordering::Relaxed);
                    removed.lock().unwrap().push(id);
                }
            }
        });
    });
    let all = doc! {"find": "ts", "sort": doc! {"_id": 1}, "batchSize": 100_000};
    let (id, _, left) = cursor(&share().run(all), "firstBatch");
    assert_eq!(id, 0);
    let ids: Vec<i64> = left.iter().map(|d| number(d, "_id")).collect();
    let mut wanted = inserted.into_inner().unwrap();
    let removed = removed.into_inner().unwrap();
    wanted.retain(|id| !removed.contains(id));
    wanted.sort_unstable();
    assert_eq!(ids, wanted);
    let sum: i64 = left.iter().map(|d| number(d, "n")).sum();
    let taken = taken.load(Ordering::Relaxed);
    assert_eq!(sum + taken, increments.load(Ordering::Relaxed));
    let valid = share().run(doc! {"validate": "ts"});
    assert!(
        matches!(valid.get("valid"), ValueRef::Bool(true)),
        "{}",
        show(&valid)
    );
}

/// Inserts of one client into a shared series: every third measurement stays unchanged, any client may
/// change and delete the others.
fn insert_shared(mut client: Client<'_>, number: i64, kept: &Mutex<Vec<i64>>) {
    for round in 0..50 {
        let of = |at: i64| -> Value {
            let id = number * 1_000_000 + round * 100 + at;
            let time = Value::DateTime(START_MS + round * 30_000 + at * 17);
            let keep = i32::from(at % 3 == 0);
            doc! {"_id": id, "t": time, "m": at % 2, "keep": keep, "n": 0, "same": 0}.into()
        };
        let documents: Vec<Value> = (0..12).map(of).collect();
        client.run(doc! {"insert": "ts", "documents": documents});
        let ids = (0..12).filter(|at| at % 3 == 0);
        let ids = ids.map(|at| number * 1_000_000 + round * 100 + at);
        kept.lock().unwrap().extend(ids);
    }
}

/// Reads two fields that every change changes alike, and one that none changes.
fn read_shared(mut client: Client<'_>, by_index: bool, kept: &Mutex<Vec<i64>>, done: &AtomicI64) {
    while done.load(Ordering::Acquire) < 5 {
        let mut known = kept.lock().unwrap().clone();
        let filter = doc! {"m": doc! {"$gte": 0}, "same": doc! {"$lt": 1_000_000}};
        let hint = match by_index {
            true => doc! {"m": 1, "t": 1},
            false => doc! {"$natural": 1},
        };
        let find = doc! {"find": "ts", "filter": filter, "hint": hint, "batchSize": 100_000};
        let (_, _, found) = cursor(&client.run(find), "firstBatch");
        for document in &found {
            let (n, same) = (number(document, "n"), number(document, "same"));
            assert_eq!(n, same, "{}", show(document));
        }
        let kept_ones = found.iter().filter(|d| number(d, "keep") == 1);
        let mut ids: Vec<i64> = kept_ones.map(|d| number(d, "_id")).collect();
        ids.sort_unstable();
        let before = ids.len();
        ids.dedup();
        assert_eq!(
            ids.len(),
            before,
            "an unmoved measurement is returned twice"
        );
        known.retain(|id| ids.binary_search(id).is_err());
        assert_eq!(known, [] as [i64; 0], "acknowledged and not there");
    }
}

#[test]
fn inserts_updates_deletes_and_reads_share_a_series() {
    let database = Database::in_memory().unwrap();
    let share = || Client {
        database: &database,
        session: ClientSession::embedded(),
    };
    share().run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
    let (changed, gone, done) = (AtomicI64::new(0), AtomicI64::new(0), AtomicI64::new(0));
    let (gone_sum, kept) = (AtomicI64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..3i64 {
            let (client, kept, done) = (share(), &kept, &done);
            scope.spawn(move || {
                insert_shared(client, thread, kept);
                done.fetch_add(1, Ordering::Release);
            });
        }
        let (mut client, changed_by, updated) = (share(), &changed, &done);
        scope.spawn(move || {
            let mut random = Random::new(1);
            for _ in 0..effort(20, 60, 60) {
                let q = doc! {"m": random.int(2), "keep": 0, "_id": doc! {"$mod": array![5, random.int(5)]}};
                let later = doc! {"$add": array!["$t", i64::from(random.int(2)) * 7_200_000]};
                let more = |field: &str| doc! {"$add": array![field, 1]};
                let set = doc! {"n": more("$n"), "same": more("$same"), "t": later};
                let statement = doc! {"q": q, "u": array![doc! {"$set": set}], "multi": true};
                let reply = client.run(doc! {"update": "ts", "updates": array![statement]});
                changed_by.fetch_add(number(&reply, "nModified"), Ordering::Relaxed);
            }
            updated.fetch_add(1, Ordering::Release);
        });
        let (mut client, gone, gone_sum, deleted) = (share(), &gone, &gone_sum, &done);
        scope.spawn(move || {
            let mut random = Random::new(2);
            for round in 0..60 {
                let some = doc! {"$mod": array![7, random.int(7)]};
                let q = doc! {"m": random.int(2), "keep": 0, "_id": some};
                if round % 2 == 0 {
                    // Earlier values of changed fields are unknown: only the constant one is checked.
                    let q = merged(&[&q, &doc! {"n": 0}]);
                    let deletes = array![doc! {"q": q, "limit": 0}];
                    let reply = client.run(doc! {"delete": "ts", "deletes": deletes});
                    gone.fetch_add(number(&reply, "n"), Ordering::Relaxed);
                    continue;
                }
                let reply = client.run(doc! {"findAndModify": "ts", "query": q, "remove": true});
                if let Some(taken) = reply.get("value").as_document() {
                    gone.fetch_add(1, Ordering::Relaxed);
                    gone_sum.fetch_add(number(&taken.to_document(), "n"), Ordering::Relaxed);
                }
            }
            deleted.fetch_add(1, Ordering::Release);
        });
        for by_index in [false, true] {
            let (client, kept, done) = (share(), &kept, &done);
            scope.spawn(move || read_shared(client, by_index, kept, done));
        }
    });
    let all = doc! {"find": "ts", "sort": doc! {"_id": 1}, "batchSize": 100_000};
    let (_, _, left) = cursor(&share().run(all), "firstBatch");
    let sum: i64 = left.iter().map(|d| number(d, "n")).sum();
    let taken = gone_sum.load(Ordering::Relaxed);
    assert_eq!(sum + taken, changed.load(Ordering::Relaxed));
    let gone = gone.load(Ordering::Relaxed);
    assert_eq!(left.len() as i64 + gone, 3 * 50 * 12);
    let valid = share().run(doc! {"validate": "ts", "full": true});
    let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
    assert!(is_valid, "{}", show(&valid));
}

fn parsed(text: &str) -> Document {
    parse_document(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn a_changed_time_is_not_met_again() {
    let mut fixture = Fixture::with_measurements(3000);
    let hour = parsed(
        r#"{"update": "ts", "updates": [{"q": {}, "multi": true,
        "u": [{"$set": {"t": {"$add": ["$t", 3600000]}, "v": {"$add": ["$v", 100]}}}]}]}"#,
    );
    let reply = fixture.run(hour);
    assert_eq!(number(&reply, "nModified"), 3000);
    let all = fixture.all(doc! {"find": "ts", "sort": doc! {"_id": 1}});
    assert_eq!(all.len(), 3000);
    for (at, document) in (0i64..).zip(&all) {
        assert_eq!(number(document, "v"), at % 10 + 100);
        let time = Value::DateTime(1_700_000_000_000 + at * 10_000 + 3_600_000);
        assert!(order::equal(document.get("t"), time.as_ref()));
    }
}

#[test]
fn closed_buckets_are_not_changed() {
    let mut fixture = Fixture::with_measurements(30);
    fixture.run(parsed(
        r#"{"update": "system.buckets.ts", "updates": [
        {"q": {"meta.host": "h1"}, "u": {"$set": {"control.closed": true}}, "multi": true}]}"#,
    ));
    for statement in [
        r#"{"q": {}, "u": {"$set": {"m": 1}}, "multi": true}"#,
        r#"{"q": {"v": {"$gte": 0}}, "u": {"$inc": {"v": 1}}, "multi": true}"#,
    ] {
        let mut command = DocumentBuilder::new();
        command.append("update", "ts");
        command.append("updates", vec![Value::from(parsed(statement))]);
        assert_eq!(number(&fixture.run(command.finish()), "n"), 20);
    }
    let one = r#"{"delete": "ts", "deletes": [{"q": {"m.host": "h1"}, "limit": 1}]}"#;
    assert_eq!(number(&fixture.run(parsed(one)), "n"), 0);
    let all = r#"{"delete": "ts", "deletes": [{"q": {}, "limit": 0}]}"#;
    assert_eq!(number(&fixture.run(parsed(all)), "n"), 20);
    assert_eq!(fixture.all(doc! {"find": "ts"}).len(), 10);
}

/// Returns the stage of a change, with its statistics.
fn explained(fixture: &mut Fixture, command: &str) -> Document {
    let explain = doc! {"explain": parsed(command), "verbosity": "executionStats"};
    let reply = fixture.run(explain);
    let planner = reply.get("queryPlanner").as_document().unwrap();
    assert!(!planner.get("winningPlan").is_missing(), "{}", show(&reply));
    let stats = reply.get("executionStats").as_document().unwrap();
    let stages = stats.get("executionStages").as_document().unwrap();
    stages.to_document()
}

#[test]
fn explain_describes_a_change_without_making_it() {
    let mut fixture = Fixture::with_measurements(30);
    let index = doc! {"key": doc! {"m.host": 1}, "name": "host"};
    fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
    let before = contents(&mut fixture, "ts");
    let stage = explained(
        &mut fixture,
        r#"{"delete": "ts", "deletes": [{"q": {"m.host": "h1"}, "limit": 0}]}"#,
    );
    assert_eq!(stage.get("stage").as_str(), Some("BATCHED_DELETE"));
    assert_eq!(number(&stage, "nWouldDelete"), 10);
    let stage = explained(
        &mut fixture,
        r#"{"delete": "ts", "deletes": [{"q": {"m.host": "h1", "v": {"$gt": 6}}, "limit": 0}]}"#,
    );
    assert_eq!(stage.get("stage").as_str(), Some("TS_MODIFY"));
    assert_eq!(stage.get("opType").as_str(), Some("deleteMany"));
    let text = |document: &str| show(&parsed(document));
    let filter = |stage: &Document, name| {
        let document = stage.get(name).as_document().unwrap();
        show(&document.to_document())
    };
    assert_eq!(
        filter(&stage, "residualFilter"),
        text(r#"{"v": {"$gt": 6}}"#)
    );
    assert_eq!(
        filter(&stage, "bucketFilter"),
        text(
            r#"{"$and": [{"control.closed": {"$not": {"$eq": true}}}, {"meta.host": {"$eq": "h1"}},
               {"control.max.v": {"$_internalExprGt": 6}}]}"#
        )
    );
    assert_eq!(number(&stage, "nBucketsUnpacked"), 1);
    assert_eq!(number(&stage, "nMeasurementsDeleted"), 3);
    let fetch = stage.get("inputStage").as_document().unwrap();
    assert_eq!(fetch.get("stage").as_str(), Some("FETCH"));
    assert_eq!(
        filter(&fetch.to_document(), "filter"),
        filter(&stage, "bucketFilter")
    );
    let scan = fetch.get("inputStage").as_document().unwrap().to_document();
    assert_eq!(
        scan.get("stage").as_str(),
        Some("IXSCAN"),
        "{}",
        show(&scan)
    );
    assert_eq!(scan.get("indexName").as_str(), Some("host"));
    assert_eq!(
        filter(&scan, "indexBounds"),
        text(r#"{"meta.host": ["[\"h1\", \"h1\"]"]}"#)
    );
    let stage = explained(
        &mut fixture,
        r#"{"delete": "ts", "deletes": [
            {"q": {"m.host": "h1", "v": {"$gt": 6}}, "limit": 0, "hint": {"$natural": 1}}]}"#,
    );
    let scan = stage.get("inputStage").as_document().unwrap();
    assert_eq!(scan.get("stage").as_str(), Some("COLLSCAN"));
    let stage = explained(
        &mut fixture,
        r#"{"update": "ts", "updates": [{"q": {}, "u": {"$max": {"v": 5}}, "multi": true}]}"#,
    );
    assert_eq!(stage.get("opType").as_str(), Some("updateMany"));
    assert_eq!(number(&stage, "nMeasurementsMatched"), 30);
    assert_eq!(number(&stage, "nMeasurementsUpdated"), 15);
    assert_eq!(number(&stage, "nMeasurementsUpserted"), 0);
    let stage = explained(
        &mut fixture,
        r#"{"findAndModify": "ts", "query": {"_id": 99}, "update": {"$set": {"v": 1}},
            "upsert": true, "fields": {"v": 1}}"#,
    );
    assert_eq!(stage.get("stage").as_str(), Some("PROJECTION_DEFAULT"));
    let below = stage.get("inputStage").as_document().unwrap().to_document();
    assert_eq!(below.get("opType").as_str(), Some("updateOne"));
    assert_eq!(number(&below, "nMeasurementsUpserted"), 1);
    let batch = parsed(r#"{"explain": {"update": "ts", "updates": []}}"#);
    assert_eq!(fixture.code(batch), 16);
    let stage = explained(
        &mut fixture,
        r#"{"update": "plain", "updates": [{"q": {"v": 1}, "u": {"$set": {"v": 2}}}]}"#,
    );
    assert_eq!(stage.get("stage").as_str(), Some("UPDATE"));
    assert_eq!(contents(&mut fixture, "ts"), before);
}

#[test]
fn changes_are_counted_by_how_they_were_made() {
    let mut fixture = Fixture::with_measurements(30);
    for command in [
        r#"{"update": "ts", "updates": [{"q": {"v": 1}, "u": {"$set": {"v": 2}}}]}"#,
        r#"{"update": "ts", "updates": [{"q": {"m.host": "h1"}, "u": {"$set": {"m.x": 2}}, "multi": true}]}"#,
        r#"{"delete": "ts", "deletes": [{"q": {"v": 1}, "limit": 0}]}"#,
        r#"{"delete": "ts", "deletes": [{"q": {"m.host": "h2"}, "limit": 0}]}"#,
    ] {
        fixture.run(parsed(command));
    }
    let status = fixture.run(doc! {"serverStatus": 1});
    let metrics = status.get("metrics").as_document().unwrap();
    let counters = metrics
        .get("timeseries")
        .as_document()
        .unwrap()
        .to_document();
    for name in [
        "measurementUpdate",
        "metaUpdate",
        "measurementDelete",
        "metaDelete",
    ] {
        assert_eq!(number(&counters, name), 1, "{name}");
    }
    assert!(
        number(&counters, "directUpdated") >= 2,
        "{}",
        show(&counters)
    );
    assert_eq!(number(&counters, "directDeleted"), 1);
}

#[test]
fn explain_executes_a_change_unless_only_the_plan_is_requested() {
    let mut fixture = Fixture::with_measurements(30);
    for (command, stage) in [
        (
            r#"{"delete": "ts", "deletes": [{"q": {"m.host": "h1"}, "limit": 0}]}"#,
            "BATCHED_DELETE",
        ),
        (
            r#"{"delete": "ts", "deletes": [{"q": {"v": 1}, "limit": 0}]}"#,
            "TS_MODIFY",
        ),
        (
            r#"{"update": "ts", "updates": [{"q": {"v": 1}, "u": {"$set": {"v": 2}}}]}"#,
            "TS_MODIFY",
        ),
    ] {
        for (verbosity, tried) in [
            ("queryPlanner", false),
            ("executionStats", true),
            ("allPlansExecution", true),
        ] {
            let reply = fixture.run(doc! {"explain": parsed(command), "verbosity": verbosity});
            assert_eq!(
                !reply.get("executionStats").is_missing(),
                tried,
                "{verbosity}"
            );
            let planner = reply.get("queryPlanner").as_document().unwrap();
            let plan = planner.get("winningPlan").as_document().unwrap();
            assert_eq!(plan.get("stage").as_str(), Some(stage), "{verbosity}");
        }
    }
}
