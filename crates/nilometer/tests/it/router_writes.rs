//! Writes through a router have the effects and the replies that they have on one server, also if they are repeated.

use nilometer_bson::order::compare;
use nilometer_bson::{Array, Binary, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::router::{Cluster, create};
use crate::support::{Fixture, primary_environment, show};
use nilometer::Database;

/// Returns a value with the fields of documents in the order of their names: those of a measurement are in the order of its bucket.
fn sorted(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Document(document) => {
            let mut fields: Vec<_> = document.iter().collect();
            fields.sort_by(|a, b| a.name().cmp(b.name()));
            let mut out = DocumentBuilder::new();
            for field in fields {
                out.append(field.name(), sorted(field.value()));
            }
            out.finish().into()
        }
        ValueRef::Array(array) => array.iter().map(sorted).collect::<Array>().into(),
        other => other.to_value(),
    }
}

/// Returns the text of a reply, with the fields of the documents in it in order, and the values of a `distinct`.
pub(crate) fn normal(document: &Document) -> String {
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        match element
            .value()
            .as_array()
            .filter(|_| element.name() == "values")
        {
            Some(values) => {
                let mut values: Vec<Value> = values.iter().map(|v| v.to_value()).collect();
                values.sort_by(|a, b| compare(a.as_ref(), b.as_ref()));
                out.append("values", values);
            }
            None => {
                out.append(element.name(), sorted(element.value()));
            }
        }
    }
    show(&out.finish())
}

fn row(document: &Document) -> String {
    match sorted(ValueRef::Document(document.as_ref())) {
        Value::Document(sorted) => show(&sorted),
        other => format!("{other:?}"),
    }
}

/// A cluster beside one server.
pub(crate) struct Pair {
    pub(crate) cluster: Cluster,
    pub(crate) single: Fixture,
}

const HOSTS: u64 = 6;
const IDS: u64 = 40;

impl Pair {
    /// Returns a time series `ts`, sharded by `key`, and ordinary collections `a` and `b`.
    pub(crate) fn new(key: Document) -> Self {
        let mut cluster = Cluster::new(3);
        // A server that stands alone refuses numbered writes.
        let single = Database::in_memory_with(primary_environment()).unwrap();
        let mut single = Fixture::of(single);
        cluster.router.run(create());
        single.run(create());
        cluster.admin(doc! {"shardCollection": "test.ts", "key": key});
        for name in ["a", "b"] {
            cluster.router.run(doc! {"create": name});
            single.run(doc! {"create": name});
        }
        Self { cluster, single }
    }

    /// Runs a command on both; the replies are the same. Returns the router's.
    pub(crate) fn both(&mut self, db: &str, command: &Document) -> Document {
        let expected = self.single.reply_on(db, command.clone());
        let found = self.cluster.router.reply_on(db, command.clone());
        let clean = |reply: &Document| {
            let mut out = DocumentBuilder::new();
            let of_set = ["$clusterTime", "operationTime", "electionId", "opTime"];
            for element in reply.iter().filter(|e| !of_set.contains(&e.name())) {
                out.append_element(element);
            }
            normal(&out.finish())
        };
        let (expected, got) = (clean(&expected), clean(&found));
        assert_eq!(got, expected, "{}", show(command));
        found
    }

    /// The contents are the same.
    fn compare(&mut self, last: &str) {
        for name in ["ts", "a", "b"] {
            let find = doc! {"find": name, "sort": doc! {"_id": 1, "x": 1, "t": 1}};
            let rows = |list: Vec<Document>| list.iter().map(row).collect::<Vec<_>>();
            let expected = rows(self.single.all(find.clone()));
            let found = rows(self.cluster.router.all(find));
            assert_eq!(found, expected, "{name} after {last}");
            // Documents are found by their shard keys.
            for host in 0..HOSTS {
                let query = doc! {"count": name, "query": doc! {"m.host": host as i32}};
                let expected = self.single.run(query.clone()).get("n").as_exact_i64();
                let found = self.cluster.router.run(query).get("n").as_exact_i64();
                assert_eq!(found, expected, "{name}, host {host} after {last}");
            }
        }
    }
}

fn id(random: &mut Random) -> i32 {
    random.below(IDS) as i32
}

fn host(random: &mut Random) -> i32 {
    random.below(HOSTS) as i32
}

fn time(id: i32) -> Value {
    Value::DateTime(i64::from(id) * 1000)
}

fn document(id: i32, host: i32) -> Document {
    doc! {"_id": id, "t": time(id), "m": doc! {"host": host}, "x": id}
}

/// Returns a filter that one document has at most, and its `_id`.
fn filter(random: &mut Random) -> (Document, i32) {
    let id = id(random);
    let filter = match random.below(4) {
        0 => doc! {"_id": id, "t": time(id), "m.host": host(random)},
        1 => doc! {"_id": id, "m": doc! {"host": host(random)}},
        _ => doc! {"_id": id, "t": time(id)},
    };
    (filter, id)
}

fn update(random: &mut Random, id: i32) -> Value {
    match random.below(7) {
        0 => doc! {"$inc": doc! {"n": 1}}.into(),
        1 => doc! {"$set": doc! {"m.host": host(random)}}.into(),
        2 => doc! {"$setOnInsert": doc! {"m": doc! {"host": host(random)}, "x": id}, "$inc": doc! {"n": 1}}
            .into(),
        3 => doc! {"t": time(id), "m": doc! {"host": host(random)}, "x": id, "r": 1}.into(),
        4 => array![doc! {"$set": doc! {"n": doc! {"$add": array![1, doc! {"$ifNull": array!["$n", 0]}]}}}],
        // Refused: no time, and no such operator.
        5 => doc! {"$unset": doc! {"t": 1}}.into(),
        _ => doc! {"$nothing": doc! {"t": 1}}.into(),
    }
}

pub(crate) fn with(mut document: Document, name: &str, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::extending(std::mem::take(&mut document));
    out.append(name, value.into());
    out.finish()
}

/// Returns a statement of `update` with the names of its filter and update, and whether it is for many documents.
fn statement(random: &mut Random, (q, u): (&str, &str)) -> (Document, bool) {
    let (filter, id) = filter(random);
    let mut out = DocumentBuilder::new();
    out.append(q, filter);
    out.append(u, update(random, id));
    let is_multi = random.below(5) == 0;
    if is_multi {
        out.append("multi", true);
    }
    if random.below(2) == 0 {
        out.append("upsert", true);
    }
    if random.below(10) == 0 {
        out.append("sort", doc! {"x": 1});
    }
    (out.finish(), is_multi)
}

fn collection(random: &mut Random) -> &'static str {
    ["ts", "ts", "a", "b"][random.below(4) as usize]
}

fn op(random: &mut Random, new: &mut i32) -> (Document, bool) {
    let at = random.below(3) as i32;
    match random.below(4) {
        0 | 1 => {
            *new += 1;
            // Sometimes an _id that is known, which ordinary collections refuse, or no time.
            let document = match random.below(8) {
                0 if at > 0 => document(id(random), host(random)),
                1 => doc! {"_id": *new, "m": doc! {"host": 1}},
                _ => document(*new, host(random)),
            };
            (doc! {"insert": at, "document": document}, false)
        }
        2 => {
            let (statement, is_multi) = statement(random, ("filter", "updateMods"));
            let mut out = DocumentBuilder::new();
            out.append("update", at);
            out.append_all(statement.as_ref());
            (out.finish(), is_multi)
        }
        _ => {
            let is_multi = random.below(4) == 0;
            let out = doc! {"delete": at, "filter": filter(random).0, "multi": is_multi};
            (out, is_multi)
        }
    }
}

/// Returns a command, its database, and whether it may have a number.
fn command(random: &mut Random, new: &mut i32) -> (Document, &'static str, bool) {
    let is_ordered = random.below(2) == 0;
    match random.below(5) {
        0 => {
            let list: Vec<_> = (0..=random.below(3))
                .map(|_| statement(random, ("q", "u")))
                .collect();
            let is_multi = list.iter().any(|(_, is_multi)| *is_multi);
            let list: Array = list.into_iter().map(|(s, _)| Value::from(s)).collect();
            let update =
                doc! {"update": collection(random), "updates": list, "ordered": is_ordered};
            (update, "test", !is_multi)
        }
        1 => {
            let limit = i32::from(random.below(4) > 0);
            let list = array![
                doc! {"q": filter(random).0, "limit": limit},
                doc! {"q": filter(random).0, "limit": 1},
            ];
            let delete =
                doc! {"delete": collection(random), "deletes": list, "ordered": is_ordered};
            (delete, "test", limit == 1)
        }
        2 => {
            let (filter, id) = filter(random);
            let mut out = doc! {"findAndModify": collection(random), "query": filter};
            out = match random.below(4) {
                0 => with(out, "remove", true),
                _ => with(out, "update", update(random, id)),
            };
            let removes = !out.get("remove").is_missing();
            if !removes && random.below(2) == 0 {
                out = with(out, "upsert", true);
            }
            if !removes && random.below(2) == 0 {
                out = with(out, "new", true);
            }
            if random.below(10) == 0 {
                out = with(out, "sort", doc! {"x": -1});
            }
            (out, "test", true)
        }
        _ => {
            let ops: Vec<_> = (0..=random.below(12)).map(|_| op(random, new)).collect();
            let is_multi = ops.iter().any(|(_, is_multi)| *is_multi);
            let ops: Array = ops.into_iter().map(|(op, _)| Value::from(op)).collect();
            let infos = ["test.ts", "test.a", "test.b"].map(|ns| Value::from(doc! {"ns": ns}));
            let bulk = doc! {
                "bulkWrite": 1, "ops": ops, "nsInfo": infos.into_iter().collect::<Array>(),
                "ordered": is_ordered, "errorsOnly": random.below(3) == 0,
            };
            (bulk, "admin", !is_multi)
        }
    }
}

pub(crate) fn numbered(command: Document, number: i64) -> Document {
    let session = Binary {
        subtype: 4,
        bytes: vec![7; 16].into(),
    };
    let out = with(command, "lsid", doc! {"id": Value::from(session)});
    with(out, "txnNumber", number)
}

#[test]
fn writes_are_those_of_one_server_also_if_they_are_repeated() {
    let rounds = nilometer_storage::testing::effort(120, 400, 4000);
    for (seed, key) in [
        (1, doc! {"m.host": "hashed"}),
        (2, doc! {"m.host": 1}),
        (3, doc! {"m.host": 1, "t": 1}),
    ] {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(key.clone());
        let is_hashed = seed == 1;
        let mut new = IDS as i32;
        for number in 1..=rounds as i64 {
            if !is_hashed && random.below(5) == 0 {
                let bound = |host: i32| match key.iter().count() {
                    1 => doc! {"m.host": host},
                    _ => doc! {"m.host": host, "t": Value::MinKey},
                };
                let from = host(&mut random);
                let range = doc! {
                    "moveRange": "test.ts", "min": bound(from), "max": bound(from + 1),
                    "toShard": format!("p000{}", random.below(3)),
                };
                pair.cluster.admin(range);
            }
            let (command, db, may_repeat) = command(&mut random, &mut new);
            let text = format!("{number}: {}", show(&command));
            let is_numbered = random.below(3) > 0;
            let command = match is_numbered {
                true => numbered(command, number),
                false => command,
            };
            pair.both(db, &command);
            if is_numbered && may_repeat && random.below(2) == 0 {
                pair.both(db, &command);
            }
            pair.compare(&text);
        }
    }
}

#[test]
fn the_results_of_a_large_bulk_write_come_from_all_partitions() {
    let mut pair = Pair::new(doc! {"m.host": "hashed"});
    let count = 30_000;
    let ops: Array = (0..count)
        .map(|at| {
            let document = document(at, at % 7);
            Value::from(doc! {"insert": at % 3, "document": document})
        })
        .collect();
    let infos = ["test.ts", "test.a", "test.b"].map(|ns| Value::from(doc! {"ns": ns}));
    let infos: Array = infos.into_iter().collect();
    let bulk = doc! {"bulkWrite": 1, "ops": ops, "nsInfo": infos, "ordered": false};
    let reply = pair.both("admin", &bulk);
    assert_eq!(reply.get("nInserted").as_exact_i64(), Some(count.into()));
    // A collection that does not exist is created.
    let ops = array![
        doc! {"delete": 0, "filter": doc! {}},
        doc! {"insert": 0, "document": doc! {"_id": 1}}
    ];
    let infos = array![doc! {"ns": "test.new"}];
    pair.both("admin", &doc! {"bulkWrite": 1, "ops": ops, "nsInfo": infos});
    assert_eq!(pair.cluster.router.counted("new"), 1);
    // A view is not written.
    let view = doc! {"create": "v", "viewOn": "a", "pipeline": array![]};
    pair.both("test", &view);
    let ops = array![
        doc! {"insert": 0, "document": doc! {"_id": 1}},
        doc! {"delete": 0, "filter": doc! {}},
    ];
    let infos = array![doc! {"ns": "test.v"}];
    let bulk = doc! {"bulkWrite": 1, "ops": ops, "nsInfo": infos, "ordered": false};
    pair.both("admin", &bulk);
}
