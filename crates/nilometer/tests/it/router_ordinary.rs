//! Ordinary collections that are sharded answer and change as those of one server.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::router::{Cluster, create};
use crate::router_writes::{normal, numbered};
use crate::support::{Fixture, primary_environment, show};
use nilometer::Database;

const KEYS: i32 = 12;

/// A cluster with a sharded collection `c` beside one server with a collection that is not.
struct Sharded {
    cluster: Cluster,
    single: Fixture,
}

impl Sharded {
    fn new(key: Document) -> Self {
        let cluster = Cluster::new(3);
        let single = Database::in_memory_with(primary_environment()).unwrap();
        let mut new = Self {
            cluster,
            single: Fixture::of(single),
        };
        new.single.run(doc! {"create": "c"});
        // The collection is created.
        new.cluster
            .admin(doc! {"shardCollection": "test.c", "key": key});
        new
    }

    /// Runs a command on both, unless the router refuses it: then nothing has changed.
    fn both(&mut self, command: &Document) -> Document {
        let db = match command.get("bulkWrite") {
            ValueRef::Missing => "test",
            _ => "admin",
        };
        let found = self.cluster.router.reply_on(db, command.clone());
        if is_refused(&found) {
            return found;
        }
        let expected = self.single.reply_on(db, command.clone());
        let mut clean = DocumentBuilder::new();
        let of_set = ["$clusterTime", "operationTime"];
        for element in expected.iter().filter(|e| !of_set.contains(&e.name())) {
            clean.append_element(element);
        }
        let expected = normal(&clean.finish());
        assert_eq!(normal(&found), expected, "{}", show(command));
        found
    }

    /// True if a command would insert a document whose `_id` one with another `k` has.
    ///
    /// A server refuses it with 11000. A cluster lets it in, as `MongoDB`'s does: an `_id` is unique within a partition, and
    /// documents whose `k` has changed are where their new key leads.
    fn repeats_elsewhere(&mut self, command: &Document) -> bool {
        inserted(command).iter().any(|(id, k)| {
            let filter = doc! {"_id": *id, "k": doc! {"$ne": *k}};
            let count = doc! {"count": "c", "query": filter};
            self.single.run(count).get("n").as_exact_i64() != Some(0)
        })
    }

    fn compare(&mut self, text: &str) {
        let all = doc! {"find": "c", "sort": doc! {"_id": 1}};
        let expected = self.single.all(all.clone());
        let found = self.cluster.router.all(all);
        assert_eq!(shown(&found), shown(&expected), "after {text}");
        // Documents are where their keys lead.
        let step = text.len() as i32;
        for k in [step % KEYS, (step / 3 + 5) % KEYS] {
            for filter in [
                doc! {"k": k},
                doc! {"k": k, "x": 1},
                doc! {"_id": k * 100 + 1},
            ] {
                let count = doc! {"count": "c", "query": filter};
                let of = |fixture: &mut Fixture| {
                    fixture.run(count.clone()).get("n").as_exact_i64().unwrap()
                };
                let expected = of(&mut self.single);
                assert_eq!(
                    of(&mut self.cluster.router),
                    expected,
                    "{} after {text}",
                    show(&count)
                );
            }
        }
    }
}

/// True if a router refuses to change a shard key.
fn is_refused(reply: &Document) -> bool {
    let text = show(reply);
    text.contains("Must run update to shard key field")
        || text.contains("without specifying the full shard key")
        || text.contains("when updating the shard key field")
}

/// Returns `_id` and `k` of the documents that a command inserts, or may insert.
fn inserted(command: &Document) -> Vec<(i32, i32)> {
    let lists = ["documents", "updates", "ops"].map(|name| command.get(name));
    let elements = lists.iter().filter_map(|list| match list {
        ValueRef::Array(list) => Some(list.iter()),
        _ => None,
    });
    let entries = elements.flatten().filter_map(|entry| entry.as_document());
    let documents =
        entries.filter_map(|entry| match (entry.get("upsert"), entry.get("document")) {
            (ValueRef::Bool(true), _) => entry.get("q").as_document(),
            (_, ValueRef::Document(inserted)) => Some(inserted),
            _ => Some(entry),
        });
    let ids = documents.filter_map(|of| match (of.get("_id"), of.get("k")) {
        (ValueRef::Int32(id), ValueRef::Int32(k)) => Some((id, k)),
        _ => None,
    });
    ids.collect()
}

fn shown(list: &[Document]) -> Vec<String> {
    list.iter().map(show).collect()
}

/// Returns an id of a document with this `k`.
fn id(random: &mut Random, k: i32) -> i32 {
    k * 100 + random.int(4)
}

fn document(random: &mut Random) -> Document {
    let k = random.int(KEYS);
    doc! {"_id": id(random, k), "k": k, "x": random.int(3), "s": format!("n{k}")}
}

/// Returns a filter that one document passes at most.
fn exact(random: &mut Random) -> (Document, i32, i32) {
    let k = random.int(KEYS);
    let id = id(random, k);
    let filter = match random.below(5) {
        0 => doc! {"_id": id, "k": k},
        4 => doc! {"_id": id, "k": k, "x": random.int(3)},
        1 => doc! {"_id": doc! {"$in": array![id]}, "k": doc! {"$in": array![k, -1]}},
        _ => doc! {"_id": id},
    };
    (filter, id, k)
}

/// Returns a filter of several documents.
fn wide(random: &mut Random) -> Document {
    let k = random.int(KEYS);
    match random.below(6) {
        0 => doc! {},
        1 => doc! {"k": k},
        2 => doc! {"k": doc! {"$gte": k}},
        3 => doc! {"x": random.int(3)},
        4 => doc! {"k": doc! {"$in": array![k, 1, 2]}, "x": 1},
        _ => doc! {"$or": array![doc! {"k": k}, doc! {"x": 2}]},
    }
}

fn changes(random: &mut Random, (id, k): (i32, i32)) -> Value {
    match random.below(9) {
        0 | 1 => doc! {"$inc": doc! {"n": 1}}.into(),
        2 => doc! {"$set": doc! {"k": k, "y": 1}}.into(),
        3 => doc! {"$set": doc! {"k": k + 1}}.into(),
        4 => doc! {"_id": id, "k": k, "x": 1, "r": random.int(9)}.into(),
        5 => doc! {"k": random.int(KEYS), "x": 2}.into(),
        6 => array![doc! {"$set": doc! {"n": doc! {"$add": array!["$x", 1]}}}],
        7 => doc! {"$setOnInsert": doc! {"k": k, "x": 0}, "$set": doc! {"z": 1}}.into(),
        _ => doc! {"$unset": doc! {"k": 1}}.into(),
    }
}

fn command(random: &mut Random) -> Document {
    match random.below(12) {
        0 | 1 => {
            let documents: Vec<Value> = (0..4).map(|_| document(random).into()).collect();
            doc! {"insert": "c", "documents": documents, "ordered": random.below(2) == 0}
        }
        2 | 3 => {
            let (q, id, k) = exact(random);
            let u = changes(random, (id, k));
            doc! {"update": "c", "updates": array![doc! {"q": q, "u": u}]}
        }
        4 => {
            let k = random.int(KEYS);
            let id = id(random, k);
            let q = doc! {"_id": id, "k": k};
            let u = match random.below(2) {
                0 => doc! {"$set": doc! {"x": 1}},
                _ => doc! {"_id": id, "k": k, "x": 1},
            };
            doc! {"update": "c", "updates": array![doc! {"q": q, "u": u, "upsert": true}]}
        }
        5 => {
            let u = match random.below(3) {
                0 => doc! {"$set": doc! {"k": 1}},
                _ => doc! {"$inc": doc! {"n": 1}},
            };
            doc! {"update": "c", "updates": array![doc! {"q": wide(random), "u": u, "multi": true}]}
        }
        6 => {
            let (q, id, k) = exact(random);
            let u = changes(random, (id, k));
            let _ = q;
            let one = doc! {"q": wide(random), "u": u, "sort": doc! {"_id": -1}};
            doc! {"update": "c", "updates": array![one]}
        }
        7 => {
            let (q, ..) = exact(random);
            doc! {"delete": "c", "deletes": array![doc! {"q": q, "limit": 1}]}
        }
        8 if random.below(4) == 0 => {
            doc! {"delete": "c", "deletes": array![doc! {"q": wide(random), "limit": 0}]}
        }
        8 | 9 => {
            let query = wide(random);
            let sort = doc! {"x": *random.pick(&[1, -1]), "_id": 1};
            match random.below(3) {
                0 => doc! {"findAndModify": "c", "query": query, "sort": sort, "remove": true},
                _ => {
                    let update = changes(random, (1, 1));
                    doc! {"findAndModify": "c", "query": query, "sort": sort, "update": update, "new": true}
                }
            }
        }
        10 => {
            let (filter, ..) = exact(random);
            let mods = doc! {"$inc": doc! {"n": 1}};
            let ops = array![
                doc! {"insert": 0, "document": document(random)},
                doc! {"update": 0, "filter": filter, "updateMods": mods},
            ];
            doc! {"bulkWrite": 1, "ops": ops, "nsInfo": array![doc! {"ns": "test.c"}], "ordered": false}
        }
        _ => question(random),
    }
}

fn question(random: &mut Random) -> Document {
    let filter = wide(random);
    match random.below(5) {
        0 => doc! {"find": "c", "filter": filter, "sort": doc! {"_id": -1}, "skip": 1, "limit": 5},
        1 => doc! {"distinct": "c", "key": "k", "query": filter},
        2 => doc! {"count": "c", "query": filter},
        3 => {
            let group = doc! {"$group": doc! {"_id": "$x", "n": doc! {"$sum": 1}, "most": doc! {"$max": "$k"}}};
            let sort = doc! {"$sort": doc! {"_id": 1}};
            let pipeline = array![doc! {"$match": filter}, group, sort];
            doc! {"aggregate": "c", "pipeline": pipeline, "cursor": doc! {}}
        }
        _ => {
            let join = doc! {"$lookup": doc! {"from": "c", "localField": "x", "foreignField": "k", "as": "l"}};
            let count = doc! {"$project": doc! {"l": doc! {"$size": "$l"}}};
            let pipeline = array![
                doc! {"$match": filter},
                doc! {"$sort": doc! {"_id": 1}},
                join,
                count
            ];
            doc! {"aggregate": "c", "pipeline": pipeline, "cursor": doc! {}}
        }
    }
}

#[test]
fn a_sharded_collection_is_that_of_one_server() {
    let rounds = nilometer_storage::testing::effort(50, 200, 2000);
    for (seed, key) in [
        (1, doc! {"_id": "hashed"}),
        (2, doc! {"k": 1}),
        (3, doc! {"k": "hashed"}),
        (4, doc! {"k": 1, "x": 1}),
        (5, doc! {"_id": 1}),
    ] {
        let mut random = Random::new(seed);
        let mut pair = Sharded::new(key.clone());
        let mut moves = 0;
        if !matches!(key.iter().next().unwrap().value(), ValueRef::String(_)) {
            for (at, shard) in [(4, "p0001"), (8, "p0002")] {
                let bound = bound(&key, at);
                let range = doc! {"moveRange": "test.c", "min": bound, "toShard": shard};
                pair.cluster.admin(range);
            }
        }
        let mut refused = 0;
        for number in 0..rounds {
            let command = command(&mut random);
            if pair.repeats_elsewhere(&command) {
                continue;
            }
            let text = format!("{seed}/{number}: {}", show(&command));
            let name = command.iter().next().unwrap().name().to_owned();
            let writes = ["insert", "update", "delete", "findAndModify", "bulkWrite"];
            let is_numbered = writes.contains(&name.as_str()) && random.below(3) == 0;
            let command = match is_numbered {
                true => numbered(command, number as i64 + 1),
                false => command,
            };
            let is_refused = is_refused(&pair.both(&command));
            refused += i32::from(is_refused);
            if is_numbered && !is_refused {
                // A driver repeats it.
                pair.both(&command);
            }
            pair.compare(&text);
            if random.below(8) == 0 && seed != 1 && seed != 3 {
                let from = random.int(KEYS);
                let range = doc! {
                    "moveRange": "test.c", "min": bound(&key, from), "max": bound(&key, from + 1),
                    "toShard": format!("p000{}", random.below(3)),
                };
                pair.cluster.admin(range);
                moves += 1;
                pair.compare("a move");
            }
        }
        assert!(seed == 1 || seed == 5 || refused > 0, "{seed}");
        assert!(seed == 1 || seed == 3 || moves > 0, "{seed}");
    }
}

/// Returns the bound in front of all documents with this `k`.
fn bound(key: &Document, k: i32) -> Document {
    let mut out = DocumentBuilder::new();
    for (at, part) in key.iter().enumerate() {
        let value = match (at, part.name()) {
            (0, "_id") => Value::Int32(k * 100),
            (0, _) => Value::Int32(k),
            _ => Value::MinKey,
        };
        out.append(part.name(), value);
    }
    out.finish()
}

#[test]
fn which_collections_and_keys_can_be_sharded() {
    let mut cluster = Cluster::new(3);
    let router = &mut cluster.router;
    router.run(doc! {"create": "capped", "capped": true, "size": 1000});
    router.run(doc! {"create": "view", "viewOn": "capped", "pipeline": array![]});
    let list: Vec<Value> = (0..20)
        .map(|at| doc! {"_id": at, "k": at % 5, "a": array![at]}.into())
        .collect();
    for name in ["full", "unique", "collated"] {
        if name == "collated" {
            let collation = doc! {"locale": "en", "strength": 1};
            router.run(doc! {"create": name, "collation": collation});
        }
        router.run(doc! {"insert": name, "documents": list.clone()});
    }
    let index = |key: Document, name: &str, unique: bool| {
        doc! {"key": key, "name": name, "unique": unique}
    };
    let indexes = |of: &str, list: Vec<Value>| doc! {"createIndexes": of, "indexes": list};
    router.run(indexes(
        "unique",
        vec![index(doc! {"a": 1, "k": 1}, "ak", true).into()],
    ));
    router.run(indexes(
        "full",
        vec![index(doc! {"a": 1}, "a", false).into()],
    ));
    let shard =
        |name: &str, key: Document| doc! {"shardCollection": format!("test.{name}"), "key": key};
    for (name, key, code) in [
        ("capped", doc! {"_id": 1}, 72),
        ("view", doc! {"_id": 1}, 166),
        // No index begins with the key, a unique one does not, a document has an array.
        ("full", doc! {"k": 1}, 72),
        ("full", doc! {"_id": "hashed"}, 72),
        ("full", doc! {"a": 1}, 72),
        ("unique", doc! {"k": 1}, 72),
        ("unique", doc! {"_id": 1}, 72),
        ("full", doc! {"k": -1}, 2),
        ("full", doc! {"k": "hashed", "x": "hashed"}, 2),
        ("collated", doc! {"_id": 1}, 2),
    ] {
        let command = shard(name, key);
        let text = show(&command);
        assert_eq!(cluster.admin_code(command), code, "{text}");
    }
    let with = |command: Document, name: &str, value: Value| {
        let mut out = DocumentBuilder::extending(command);
        out.append(name, value);
        out.finish()
    };
    let unique = with(shard("full", doc! {"_id": "hashed"}), "unique", true.into());
    assert_eq!(cluster.admin_code(unique), 72);
    // With an index a collection that has documents is sharded: they stay in its partition.
    cluster.router.run(indexes(
        "full",
        vec![index(doc! {"k": 1, "a": 1}, "ka", false).into()],
    ));
    cluster.admin(shard("full", doc! {"k": 1}));
    let counts = cluster.counts("full");
    assert_eq!(
        counts.iter().filter(|count| **count > 0).count(),
        1,
        "{counts:?}"
    );
    // Unique indexes begin with the key.
    let router = &mut cluster.router;
    assert_eq!(
        router.code(indexes(
            "full",
            vec![index(doc! {"u": 1}, "u", true).into()]
        )),
        67
    );
    router.run(indexes(
        "full",
        vec![index(doc! {"k": 1, "_id": 1}, "ku", true).into()],
    ));
    // A key moves, and its documents with it.
    let move_to = |k: i32, shard: &str| {
        let (min, max) = (doc! {"k": k}, doc! {"k": k + 1});
        doc! {"moveRange": "test.full", "min": min, "max": max, "toShard": shard}
    };
    assert_eq!(cluster.admin_code(move_to(100, "p0002")), 0);
    for shard in ["p0000", "p0001", "p0002"] {
        cluster.admin(move_to(1, shard));
        let at: usize = shard[4..].parse().unwrap();
        assert!(cluster.counts("full")[at] >= 4, "{shard}");
        let count = doc! {"count": "full", "query": doc! {"k": 1}};
        assert_eq!(cluster.router.run(count).get("n").as_exact_i64(), Some(4));
    }
    for shard in ["p0000", "p0001"] {
        cluster.admin(move_to(1, shard));
    }
    let router = &mut cluster.router;
    router.run(doc! {"insert": "full", "documents": array![doc! {"_id": 100, "k": 100}, doc! {"k": 100, "u": 2}]});
    assert_eq!(
        cluster
            .counts("full")
            .iter()
            .filter(|count| **count > 0)
            .count(),
        2
    );
    // An unsharded key: documents without ids get them where they are routed.
    cluster.admin(shard("ids", doc! {"_id": "hashed"}));
    let plain: Vec<Value> = (0..60).map(|at| doc! {"x": at}.into()).collect();
    cluster
        .router
        .run(doc! {"insert": "ids", "documents": plain});
    assert!(cluster.counts("ids").iter().all(|count| *count > 0));
    for found in cluster.router.all(doc! {"find": "ids"}) {
        let count = doc! {"count": "ids", "query": doc! {"_id": found.get("_id").to_value()}};
        assert_eq!(cluster.router.run(count).get("n").as_exact_i64(), Some(1));
    }
    // A declared unique key holds in the whole collection.
    let command = with(shard("declared", doc! {"k": 1}), "unique", true.into());
    cluster.admin(command);
    let both = array![doc! {"_id": 1, "k": 1}, doc! {"_id": 2, "k": 1}];
    let reply = cluster
        .router
        .run(doc! {"insert": "declared", "documents": both});
    assert!(show(&reply).contains("11000"), "{}", show(&reply));
    let found = cluster
        .router
        .reply_on("config", doc! {"find": "collections"});
    let found = cluster.router.rest(found);
    let of = |name: &str| {
        found
            .iter()
            .find(|entry| entry.get("_id").as_str() == Some(name))
            .unwrap()
    };
    assert!(matches!(
        of("test.declared").get("unique"),
        ValueRef::Bool(true)
    ));
    let arrays = doc! {"insert": "declared", "documents": array![doc! {"k": array![1]}]};
    assert!(show(&cluster.router.run(arrays)).contains("61"));
}

/// By default documents are identified by the shard key and `_id`.
#[test]
fn merge_by_the_shard_key_and_the_id() {
    for key in [doc! {"k": 1}, doc! {"k": "hashed"}, doc! {"k": 1, "_id": 1}] {
        let mut pair = Sharded::new(key);
        let list = |from: i32| -> Vec<Value> {
            let one = |at: i32| doc! {"_id": at, "k": at % 10, "v": at}.into();
            (from..from + 40).map(one).collect()
        };
        pair.both(&doc! {"insert": "from", "documents": list(0)});
        pair.both(&doc! {"insert": "c", "documents": list(20)});
        let add = array![doc! {"$set": doc! {"v": doc! {"$add": array!["$v", "$$new.v"]}}}];
        for spec in [
            "c".into(),
            Value::from(doc! {"into": "c", "whenMatched": "replace", "whenNotMatched": "discard"}),
            doc! {"into": "c", "whenMatched": add}.into(),
            doc! {"into": "c", "whenMatched": "keepExisting"}.into(),
        ] {
            let pipeline = array![
                doc! {"$set": doc! {"v": doc! {"$multiply": array!["$v", 3]}}},
                doc! {"$merge": spec},
            ];
            let command = doc! {"aggregate": "from", "pipeline": pipeline, "cursor": doc! {}};
            pair.both(&command);
            let all = doc! {"find": "c", "sort": doc! {"_id": 1}};
            let (expected, found) = (pair.single.all(all.clone()), pair.cluster.router.all(all));
            assert_eq!(shown(&found), shown(&expected), "{}", show(&command));
        }
        // Of one `_id` and another key, a document is another one: in one partition the `_id` is taken.
        let router = &mut pair.cluster.router;
        let merge = |document: Document| {
            let pipeline = array![doc! {"$documents": array![document]}, doc! {"$merge": "c"}];
            doc! {"aggregate": 1, "pipeline": pipeline, "cursor": doc! {}}
        };
        let codes: Vec<i64> = (0..10)
            .map(|k| router.code(merge(doc! {"_id": 25, "k": k, "v": -1})))
            .collect();
        let count = doc! {"count": "c", "query": doc! {"_id": 25}};
        let count = router.run(count).get("n").as_exact_i64().unwrap();
        let taken = codes.iter().filter(|code| **code == 11_000).count();
        let written = codes.iter().filter(|code| **code == 0).count();
        assert_eq!(taken + written, 10, "{codes:?}");
        assert_eq!(count, i64::try_from(written).unwrap(), "{codes:?}");
        // A document without the key identifies none.
        assert_eq!(router.code(merge(doc! {"_id": 26, "v": 0})), 51_132);
        // One without `_id` is a new one.
        assert_eq!(router.code(merge(doc! {"k": 5, "v": 77})), 0);
        let found = router.all(doc! {"find": "c", "filter": doc! {"v": 77}});
        assert_eq!(found.len(), 1);
    }
}

#[test]
fn merge_into_a_sharded_collection() {
    for key in [doc! {"_id": "hashed"}, doc! {"k": 1}] {
        let mut pair = Sharded::new(key.clone());
        let by_id = key.get("_id").as_str().is_some();
        let index = doc! {"key": doc! {"k": 1, "x": 1}, "name": "kx", "unique": true};
        if !by_id {
            let create = doc! {"createIndexes": "c", "indexes": array![index]};
            pair.single.run(create.clone());
            pair.cluster.router.run(create);
            for (at, shard) in [(4, "p0001"), (8, "p0002")] {
                let range = doc! {"moveRange": "test.c", "min": doc! {"k": at}, "toShard": shard};
                pair.cluster.admin(range);
            }
        }
        let list: Vec<Value> = (0..40)
            .map(|at| doc! {"_id": at, "k": at % 10, "x": at / 10, "v": at}.into())
            .collect();
        pair.both(&doc! {"insert": "from", "documents": list});
        let on: Value = if by_id {
            "_id".into()
        } else {
            array!["k", "x"]
        };
        let add = array![doc! {"$set": doc! {"v": doc! {"$add": array!["$v", "$$new.v"]}}}];
        for (matched, below) in [
            ("replace".into(), 20),
            ("merge".into(), 30),
            (add, 40),
            ("fail".into(), 40),
        ] {
            let merge =
                doc! {"$merge": doc! {"into": "c", "on": on.clone(), "whenMatched": matched}};
            let pipeline = array![
                doc! {"$match": doc! {"_id": doc! {"$lt": below}}},
                doc! {"$sort": doc! {"_id": 1}},
                doc! {"$project": doc! {"_id": i32::from(by_id), "k": 1, "x": 1, "v": 1}},
                merge,
            ];
            let command = doc! {"aggregate": "from", "pipeline": pipeline, "cursor": doc! {}};
            let codes =
                [&mut pair.single, &mut pair.cluster.router].map(|side| side.code(command.clone()));
            assert_eq!(codes[0], codes[1], "{}", show(&command));
            let all =
                doc! {"find": "c", "sort": doc! {"k": 1, "x": 1}, "projection": doc! {"_id": 0}};
            let (expected, found) = (pair.single.all(all.clone()), pair.cluster.router.all(all));
            assert_eq!(shown(&found), shown(&expected), "{}", show(&command));
        }
        let counts = pair.cluster.counts("c");
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        // The key is in `on`, and stays.
        let merge = |spec: Document| {
            doc! {"aggregate": "from", "pipeline": array![doc! {"$merge": spec}], "cursor": doc! {}}
        };
        if !by_id {
            let router = &mut pair.cluster.router;
            assert_eq!(router.code(merge(doc! {"into": "c", "on": "_id"})), 51_190);
            let other = array![doc! {"$set": doc! {"k": 5}}];
            let spec = doc! {"into": "c", "on": on, "whenMatched": other};
            assert_eq!(router.code(merge(spec)), 115);
        }
        assert_eq!(pair.cluster.router.code(doc! {"aggregate": "from", "pipeline": array![doc! {"$out": "c"}], "cursor": doc! {}}), 28_769);
    }
}

/// An index that is hidden serves nothing.
#[test]
fn the_only_index_of_a_shard_key_is_not_hidden() {
    let mut cluster = Cluster::new(2);
    cluster.router.run(create());
    let ranged = doc! {"m.host": 1, "t": 1};
    cluster.admin(doc! {"shardCollection": "test.ts", "key": ranged});
    cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"k": 1}});
    cluster.admin(doc! {"shardCollection": "test.h", "key": doc! {"k": "hashed"}});
    let make = |key: Document, name: &str| {
        let index = doc! {"key": key, "name": name};
        doc! {"createIndexes": "c", "indexes": array![index]}
    };
    let hide = |name: &str, index: Document, hidden: bool| {
        let mut index = DocumentBuilder::extending(index);
        index.append("hidden", hidden);
        doc! {"collMod": name, "index": index.finish()}
    };
    let by_name = |name: &str| doc! {"name": name};
    for (command, code) in [
        (hide("c", by_name("k_1"), true), 72),
        (hide("c", doc! {"keyPattern": doc! {"k": 1}}, true), 72),
        (hide("ts", by_name("m.host_1_t_1"), true), 72),
        (hide("h", by_name("k_hashed"), true), 0),
        (hide("c", by_name("absent"), true), 27),
        (make(doc! {"k": 1, "x": 1}, "kx"), 0),
        (hide("c", by_name("k_1"), true), 0),
        (hide("c", by_name("kx"), true), 72),
        (hide("c", by_name("k_1"), false), 0),
        (hide("c", by_name("kx"), true), 0),
    ] {
        let text = show(&command);
        let reply = cluster.router.reply(command);
        let found = reply.get("code").as_exact_i64().unwrap_or(0);
        assert_eq!(found, code, "{text}: {}", show(&reply));
    }
}
