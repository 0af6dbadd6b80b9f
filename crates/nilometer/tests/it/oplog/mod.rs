//! `local.oplog.rs`: the entries of changes, and how they are read.

mod damaged;
mod histories;

use nilometer::Database;
use nilometer_bson::{Document, Timestamp, Value, ValueRef, array, doc};

use self::histories::{START_MS, contents, create_series, replay};
use crate::support::{Fixture, cursor, primary_environment, show};

fn replica_set() -> Fixture {
    Fixture::of(Database::in_memory_with(primary_environment()).unwrap())
}

/// Returns a document with the fields of both.
fn with(document: Document, others: Document) -> Document {
    let mut out = nilometer_bson::DocumentBuilder::extending(document);
    out.append_all(others.as_ref());
    out.finish()
}

fn find_oplog(filter: Document) -> Document {
    doc! {"find": "oplog.rs", "filter": filter}
}

/// Returns all documents that a cursor returns.
fn read_all(fixture: &mut Fixture, db: &str, command: Document) -> Vec<Document> {
    let reply = fixture.reply_on(db, command);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    let (mut id, namespace, mut found) = cursor(&reply, "firstBatch");
    let collection = namespace.split_once('.').unwrap().1;
    while id != 0 {
        let reply = fixture.reply_on(db, doc! {"getMore": id, "collection": collection});
        let (next, _, more) = cursor(&reply, "nextBatch");
        id = next;
        found.extend(more);
    }
    found
}

/// Returns the entries that change something.
fn entries(fixture: &mut Fixture) -> Vec<Document> {
    let filter = doc! {"op": doc! {"$ne": "n"}};
    read_all(fixture, "local", find_oplog(filter))
}

fn time(entry: &Document) -> u64 {
    match entry.get("ts") {
        ValueRef::Timestamp(time) => time.to_u64(),
        other => panic!("{other:?}"),
    }
}

/// Returns an entry without its times and UUIDs.
fn shown(entry: &Document) -> String {
    let mut out = nilometer_bson::DocumentBuilder::new();
    for element in entry.iter() {
        if !matches!(element.name(), "ts" | "t" | "v" | "wall" | "ui") {
            out.append_element(element);
        }
    }
    nilometer_bson::extjson::to_relaxed(out.finish().as_ref())
}

#[test]
fn changes_are_entries_in_the_form_of_an_oplog() {
    let mut fixture = replica_set();
    fixture.run(doc! {"insert": "c", "documents": array![
        doc! {"_id": 1, "a": doc! {"x": 1, "y": 2}, "l": array![1, 2, 3]}, doc! {"_id": 2}
    ]});
    let update = |u: Document| {
        let statement = doc! {"q": doc! {"_id": 1}, "u": u};
        doc! {"update": "c", "updates": array![statement]}
    };
    fixture.run(update(doc! {"$set": doc! {"a.x": 5, "n": 1, "l.1": 9}}));
    fixture.run(update(
        doc! {"$unset": doc! {"n": 1}, "$pop": doc! {"l": 1}},
    ));
    fixture.run(update(doc! {"whole": 1}));
    let delete = doc! {"q": doc! {"_id": 2}, "limit": 1};
    fixture.run(doc! {"delete": "c", "deletes": array![delete]});
    let index = doc! {"key": doc! {"whole": 1}, "name": "w"};
    fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
    fixture.run(doc! {"dropIndexes": "c", "index": "w"});
    fixture.run(doc! {"collMod": "c", "validationLevel": "off"});
    fixture.run(doc! {"create": "v", "viewOn": "c", "pipeline": array![]});
    fixture.run(doc! {"collMod": "v", "viewOn": "d", "pipeline": array![]});
    fixture.run(doc! {"drop": "v"});
    fixture.reply_on("admin", doc! {"renameCollection": "test.c", "to": "test.d"});
    fixture.run(doc! {"drop": "d"});
    fixture.run(doc! {"dropDatabase": 1});
    let found = entries(&mut fixture);
    let all: Vec<String> = found.iter().map(shown).collect();
    let wanted = [
        r#"{"op":"c","ns":"test.$cmd","o":{"create":"c"}}"#,
        r#"{"op":"i","ns":"test.c","o":{"_id":1,"a":{"x":1,"y":2},"l":[1,2,3]},"o2":{"_id":1}}"#,
        r#"{"op":"i","ns":"test.c","o":{"_id":2},"o2":{"_id":2}}"#,
        r#"{"op":"u","ns":"test.c","o":{"$v":2,"diff":{"u":{"n":1},"sa":{"u":{"x":5}},"sl":{"a":true,"u1":9}}},"o2":{"_id":1}}"#,
        r#"{"op":"u","ns":"test.c","o":{"$v":2,"diff":{"d":{"n":false},"sl":{"a":true,"l":2}}},"o2":{"_id":1}}"#,
        r#"{"op":"u","ns":"test.c","o":{"_id":1,"whole":1},"o2":{"_id":1}}"#,
        r#"{"op":"d","ns":"test.c","o":{"_id":2}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"createIndexes":"c","v":2,"key":{"whole":1},"name":"w"}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"dropIndexes":"c","index":"w"},"o2":{"v":2,"key":{"whole":1},"name":"w"}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"collMod":"c","validationLevel":"off","validationAction":"error"},"o2":{"collectionOptions":{}}}"#,
        r#"{"op":"i","ns":"test.system.views","o":{"_id":"test.v","viewOn":"c","pipeline":[]},"o2":{"_id":"test.v"}}"#,
        r#"{"op":"u","ns":"test.system.views","o":{"_id":"test.v","viewOn":"d","pipeline":[]},"o2":{"_id":"test.v"}}"#,
        r#"{"op":"d","ns":"test.system.views","o":{"_id":"test.v"}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"renameCollection":"test.c","to":"test.d","stayTemp":false}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"drop":"d"}}"#,
    ];
    for (at, wanted) in wanted.iter().enumerate() {
        assert_eq!(all[at], *wanted);
    }
    for entry in &found {
        assert_eq!(entry.get("t").as_exact_i64(), Some(1));
        assert_eq!(entry.get("v").as_exact_i64(), Some(2));
        assert!(matches!(entry.get("wall"), ValueRef::DateTime(_)));
    }
    assert!(found.iter().map(time).is_sorted_by(|a, b| a < b));
    assert!(!found[1].get("ui").is_missing());
}

#[test]
fn a_filter_on_ts_bounds_the_scan_and_tails_wait() {
    let mut fixture = replica_set();
    let empty = read_all(&mut fixture, "local", find_oplog(doc! {}));
    assert_eq!(empty.len(), 1, "an oplog is never empty");
    assert_eq!(empty[0].get("op").as_str(), Some("n"));
    let documents: Vec<Value> = (0..300).map(|i| doc! {"_id": i}.into()).collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    for i in 300..320 {
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": i}]});
    }
    let all = read_all(&mut fixture, "local", find_oplog(doc! {}));
    assert_eq!(all.len(), 322);
    assert!(all.iter().map(time).is_sorted_by(|a, b| a < b));
    let mut backward = find_oplog(doc! {});
    backward = with(backward, doc! {"sort": doc! {"$natural": -1}});
    let mut reversed = read_all(&mut fixture, "local", backward);
    reversed.reverse();
    assert_eq!(reversed, all);
    for at in [0, 1, 2, 150, 301, 302, 321] {
        let bound = all[at].get("ts").to_value();
        for (operator, from, to) in [
            ("$gte", at, 322),
            ("$gt", at + 1, 322),
            ("$lt", 0, at),
            ("$lte", 0, at + 1),
            ("$eq", at, at + 1),
        ] {
            let mut condition = nilometer_bson::DocumentBuilder::new();
            condition.append(operator, bound.clone());
            let filter = doc! {"ts": condition.finish()};
            for direction in [1, -1] {
                let mut command = find_oplog(filter.clone());
                command = with(command, doc! {"sort": doc! {"ts": direction}});
                let mut found = read_all(&mut fixture, "local", command.clone());
                if direction < 0 {
                    found.reverse();
                }
                assert_eq!(found, all[from..to], "{operator} {at} {direction}");
                let explained = fixture.reply_on(
                    "local",
                    doc! {"explain": command, "verbosity": "executionStats"},
                );
                let text = show(&explained);
                assert!(
                    text.contains("minRecord") && text.contains("COLLSCAN"),
                    "{text}"
                );
                assert!(!text.contains("SORT"), "{text}");
            }
        }
    }
    // A tail from the end on waits, and shows what comes.
    let last = all.last().map(|entry| entry.get("ts").to_value()).unwrap();
    let tail = doc! {
        "find": "oplog.rs", "filter": doc! {"ts": doc! {"$gt": last}}, "tailable": true,
        "awaitData": true, "oplogReplay": true, "batchSize": 10
    };
    let (id, _, first) = cursor(&fixture.reply_on("local", tail), "firstBatch");
    assert!(id != 0 && first.is_empty());
    let more = doc! {"getMore": id, "collection": "oplog.rs", "maxTimeMS": 1};
    let (_, _, none) = cursor(&fixture.reply_on("local", more.clone()), "nextBatch");
    assert!(none.is_empty());
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": "x"}, doc! {"_id": "y"}]});
    let (id, _, found) = cursor(&fixture.reply_on("local", more.clone()), "nextBatch");
    let ids: Vec<_> = found
        .iter()
        .map(|e| show(&e.get("o").as_document().unwrap().to_document()))
        .collect();
    assert_eq!(ids, [r#"{_id: String("x")}"#, r#"{_id: String("y")}"#]);
    let (id, _, none) = cursor(
        &fixture.reply_on(
            "local",
            doc! {"getMore": id, "collection": "oplog.rs", "maxTimeMS": 1},
        ),
        "nextBatch",
    );
    assert!(id != 0 && none.is_empty());
    // Counted and aggregated.
    let counted = fixture.reply_on("local", doc! {"count": "oplog.rs"});
    assert_eq!(counted.get("n").as_exact_i64(), Some(324));
    let group = doc! {"$group": doc! {"_id": "$op", "n": doc! {"$sum": 1}}};
    let sort = doc! {"$sort": doc! {"_id": 1}};
    let grouped =
        doc! {"aggregate": "oplog.rs", "pipeline": array![group, sort], "cursor": doc! {}};
    let grouped = read_all(&mut fixture, "local", grouped);
    let wanted = [
        doc! {"_id": "c", "n": 1},
        doc! {"_id": "i", "n": 322},
        doc! {"_id": "n", "n": 1},
    ];
    assert_eq!(grouped, wanted);
}

#[test]
fn the_oplog_is_listed_and_cannot_be_written() {
    let mut fixture = replica_set();
    let listed = read_all(&mut fixture, "local", doc! {"listCollections": 1});
    assert_eq!(listed.len(), 1);
    let options = listed[0].get("options").as_document().unwrap();
    assert_eq!(listed[0].get("name").as_str(), Some("oplog.rs"));
    assert!(matches!(options.get("capped"), ValueRef::Bool(true)));
    assert_eq!(options.get("size").as_exact_i64(), Some(990 << 20));
    let databases = fixture.reply_on("admin", doc! {"listDatabases": 1, "nameOnly": true});
    assert!(show(&databases).contains("local"));
    let stats = fixture.reply_on("local", doc! {"collStats": "oplog.rs"});
    assert!(matches!(stats.get("capped"), ValueRef::Bool(true)));
    assert_eq!(stats.get("maxSize").as_exact_i64(), Some(990 << 20));
    assert!(read_all(&mut fixture, "local", doc! {"listIndexes": "oplog.rs"}).is_empty());
    let statement = doc! {"q": doc! {}, "u": doc! {"$set": doc! {"a": 1}}};
    let index = doc! {"key": doc! {"a": 1}, "name": "a"};
    let delete = doc! {"q": doc! {}, "limit": 0};
    let out = doc! {"$out": doc! {"db": "local", "coll": "oplog.rs"}};
    for (command, code) in [
        (
            doc! {"insert": "oplog.rs", "documents": array![doc! {}]},
            73,
        ),
        (
            doc! {"update": "oplog.rs", "updates": array![statement]},
            73,
        ),
        (doc! {"delete": "oplog.rs", "deletes": array![delete]}, 73),
        (doc! {"findAndModify": "oplog.rs", "remove": true}, 73),
        (
            doc! {"createIndexes": "oplog.rs", "indexes": array![index]},
            73,
        ),
        (
            doc! {"create": "oplog.rs", "capped": true, "size": 1000},
            48,
        ),
        (doc! {"drop": "oplog.rs"}, 20),
        (doc! {"collMod": "oplog.rs", "cappedSize": 1000}, 20),
        (doc! {"convertToCapped": "oplog.rs", "size": 1000}, 20),
        (doc! {"dropDatabase": 1}, 20),
    ] {
        let reply = fixture.reply_on("local", command);
        assert_eq!(
            reply.get("code").as_exact_i64(),
            Some(code),
            "{}",
            show(&reply)
        );
    }
    let rename = doc! {"renameCollection": "local.oplog.rs", "to": "local.b"};
    let reply = fixture.reply_on("admin", rename);
    assert_eq!(reply.get("code").as_exact_i64(), Some(20));
    fixture.run(doc! {"insert": "c", "documents": array![doc! {}]});
    let reply = fixture.reply(doc! {"aggregate": "c", "pipeline": array![out], "cursor": doc! {}});
    assert!(!reply.get("code").is_missing(), "{}", show(&reply));
    // Without a replica set the name is free.
    let mut alone = Fixture::new();
    let insert = doc! {"insert": "oplog.rs", "documents": array![doc! {"_id": 1}]};
    assert_eq!(
        alone.reply_on("local", insert).get("n").as_exact_i64(),
        Some(1)
    );
}

fn in_session(last: u8, number: i64, command: Document) -> Document {
    let uuid = nilometer_bson::Binary {
        subtype: 4,
        bytes: vec![last; 16].into(),
    };
    let session = doc! {
        "lsid": doc! {"id": Value::from(uuid)}, "txnNumber": number, "autocommit": false
    };
    with(command, session)
}

#[test]
fn a_transaction_is_one_entry() {
    let mut fixture = replica_set();
    create_series(&mut fixture);
    fixture.run(doc! {"create": "c"});
    let before = entries(&mut fixture).len();
    let mut first = in_session(
        1,
        1,
        doc! {"insert": "c", "documents": array![doc! {"_id": 1}, doc! {"_id": 2}]},
    );
    first = with(first, doc! {"startTransaction": true});
    fixture.run(first);
    let measurement = doc! {"t": Value::DateTime(START_MS), "m": 1, "_id": 7};
    fixture.run(in_session(
        1,
        1,
        doc! {"insert": "ts", "documents": array![measurement]},
    ));
    let commit = in_session(1, 1, doc! {"commitTransaction": 1});
    assert_eq!(
        fixture.reply_on("admin", commit).get("ok").as_exact_i64(),
        Some(1)
    );
    let all = entries(&mut fixture);
    assert_eq!(all.len(), before + 1);
    let entry = all.last().unwrap();
    assert_eq!(entry.get("ns").as_str(), Some("admin.$cmd"));
    assert_eq!(entry.get("txnNumber").as_exact_i64(), Some(1));
    let lsid = entry.get("lsid").as_document().unwrap();
    assert!(!lsid.get("uid").is_missing());
    let inner = entry
        .get("o")
        .as_document()
        .unwrap()
        .get("applyOps")
        .as_array()
        .unwrap();
    let kinds: Vec<_> = inner
        .iter()
        .map(|one| one.as_document().unwrap().get("ns").as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["test.c", "test.c", "test.system.buckets.ts"]);
    let counted = fixture.reply_on("local", doc! {"count": "oplog.rs"});
    assert_eq!(
        counted.get("n").as_exact_i64(),
        Some(i64::try_from(all.len()).unwrap() + 1)
    );
    let mut target = replica_set();
    replay(&mut target, &all);
    assert_eq!(contents(&mut target), contents(&mut fixture));
    // Events of a transaction say which it was.
    let stream = doc! {"$changeStream": doc! {"startAtOperationTime": entry.get("ts").to_value()}};
    let watch = doc! {"aggregate": 1, "pipeline": array![stream], "cursor": doc! {}};
    let (_, _, events) = cursor(&fixture.run(watch), "firstBatch");
    assert_eq!(events.len(), 3);
    for event in &events {
        assert_eq!(event.get("txnNumber").as_exact_i64(), Some(1));
        let shown = event.get("lsid").as_document().unwrap();
        assert_eq!(shown.as_bytes(), lsid.as_bytes());
    }
}

#[test]
fn a_large_transaction_is_several_entries() {
    let mut fixture = replica_set();
    fixture.run(doc! {"create": "c"});
    let text = "x".repeat(3 << 20);
    for i in 0..7 {
        let document = doc! {"_id": i, "text": &*text};
        let mut insert = in_session(1, 1, doc! {"insert": "c", "documents": array![document]});
        if i == 0 {
            insert = with(insert, doc! {"startTransaction": true});
        }
        fixture.run(insert);
    }
    let commit = in_session(1, 1, doc! {"commitTransaction": 1});
    fixture.reply_on("admin", commit);
    let all = entries(&mut fixture);
    let parts: Vec<_> = all[1..]
        .iter()
        .map(|e| e.get("o").as_document().unwrap())
        .collect();
    assert_eq!(parts.len(), 4);
    assert!(matches!(parts[0].get("partialTxn"), ValueRef::Bool(true)));
    assert_eq!(parts[3].get("count").as_exact_i64(), Some(7));
    for (before, entry) in all[1..].iter().zip(&all[2..]) {
        let linked = entry.get("prevOpTime").as_document().unwrap().get("ts");
        assert_eq!(format!("{linked:?}"), format!("{:?}", before.get("ts")));
        assert!(time(before) < time(entry));
    }
    let mut backward = find_oplog(doc! {"op": "c"});
    backward = with(backward, doc! {"sort": doc! {"$natural": -1}});
    let mut reversed = read_all(&mut fixture, "local", backward);
    reversed.reverse();
    assert_eq!(reversed, all);
}

#[test]
fn old_entries_are_removed_and_a_tail_behind_them_says_so() {
    use nilometer::change_log::ChangeLogOptions;
    let mut environment = primary_environment();
    environment.change_log = ChangeLogOptions {
        bytes_max: 1 << 20,
        retention_min_ms: 0,
    };
    let mut fixture = Fixture::of(Database::in_memory_with(environment).unwrap());
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 0}]});
    let tail = doc! {"find": "oplog.rs", "tailable": true, "awaitData": true, "batchSize": 1};
    let (id, _, _) = cursor(&fixture.reply_on("local", tail), "firstBatch");
    let first = read_all(&mut fixture, "local", find_oplog(doc! {}));
    assert!(show(&first[0]).contains("initiating set"));
    let text = "x".repeat(100_000);
    let started = std::time::Instant::now();
    let mut i = 0;
    loop {
        i += 1;
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": i, "text": &*text}]});
        let mut oldest = find_oplog(doc! {});
        oldest = with(oldest, doc! {"limit": 2});
        let reply = fixture.reply_on("local", oldest);
        if reply.get("code").as_exact_i64() == Some(136) {
            // What it was about to read was removed.
            continue;
        }
        let (_, _, now) = cursor(&reply, "firstBatch");
        if time(&now[0]) > time(&first[1]) {
            assert!(show(&now[0]).contains("older entries were removed"));
            assert!(time(&now[0]) < time(&now[1]));
            break;
        }
        assert!(started.elapsed().as_secs() < 60, "the log is never trimmed");
        if i > 40 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    let more = doc! {"getMore": id, "collection": "oplog.rs", "maxTimeMS": 1};
    let reply = fixture.reply_on("local", more);
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(136),
        "{}",
        show(&reply)
    );
}

#[test]
fn a_timestamp_is_the_key_of_an_entry() {
    let mut fixture = replica_set();
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 0}]});
    let mut command =
        find_oplog(doc! {"ts": doc! {"$gt": Value::Timestamp(Timestamp::from_u64(0))}});
    command = with(command, doc! {"showRecordId": true});
    for entry in read_all(&mut fixture, "local", command) {
        assert_eq!(
            entry.get("$recordId").as_exact_i64(),
            Some(time(&entry).cast_signed())
        );
    }
}
