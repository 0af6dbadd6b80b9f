//! Commands of administrators and tools: sizes and digests, index filters, log levels, versions.

use md5::{Digest, Md5};
use nilometer_bson::{Binary, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::support::{Fixture, show};

fn number(reply: &Document, name: &str) -> i64 {
    reply.get(name).as_exact_i64().unwrap_or(-1)
}

fn with_documents() -> Fixture {
    let mut fixture = Fixture::new();
    let documents: Vec<Value> = (0..50)
        .map(|n| doc! {"_id": n, "a": n % 10, "b": n}.into())
        .collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    for key in [doc! {"a": 1}, doc! {"b": 1}] {
        let name = key.iter().next().map(|e| e.name().to_owned());
        fixture
            .run(doc! {"createIndexes": "c", "indexes": array![doc! {"key": key, "name": name}]});
    }
    fixture
}

#[test]
fn data_size_counts_the_bytes_of_a_collection_or_of_a_range() {
    let mut fixture = with_documents();
    let bytes = doc! {"_id": 1, "a": 1, "b": 1}.as_bytes().len() as i64;
    let all = fixture.run(doc! {"dataSize": "test.c"});
    assert_eq!(
        (number(&all, "numObjects"), number(&all, "size")),
        (50, 50 * bytes)
    );
    let range = doc! {
        "dataSize": "test.c", "keyPattern": doc! {"b": 1},
        "min": doc! {"b": 10}, "max": doc! {"b": 20},
    };
    assert_eq!(number(&fixture.run(range), "numObjects"), 10);
    let few = fixture.run(doc! {"dataSize": "test.c", "maxObjects": 5});
    assert_eq!(few.get("maxReached").as_exact_i64(), None);
    assert!(matches!(few.get("maxReached"), ValueRef::Bool(true)));
    assert_eq!(
        fixture.code(doc! {"dataSize": "test.c", "min": doc! {"b": 1}}),
        2
    );
    assert_eq!(
        number(&fixture.run(doc! {"dataSize": "test.none"}), "size"),
        0
    );
    let options = doc! {"timeField": "t"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let measurement = doc! {"t": Value::DateTime(0)};
    fixture.run(doc! {"insert": "ts", "documents": array![measurement]});
    let buckets = fixture.run(doc! {"dataSize": "test.ts"});
    assert_eq!(number(&buckets, "numObjects"), 1);
}

#[test]
fn db_hash_depends_on_the_documents_not_on_their_history() {
    let mut fixture = with_documents();
    let hash = |fixture: &mut Fixture| {
        let reply = fixture.run(doc! {"dbHash": 1});
        let collections = reply.get("collections").as_document().expect("collections");
        let one = collections.get("c").as_str().expect("a digest").to_owned();
        (one, reply.get("md5").as_str().expect("a digest").to_owned())
    };
    let before = hash(&mut fixture);
    fixture.run(doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"_id": 3}, "limit": 1}]});
    let between = hash(&mut fixture);
    assert!(before.0 != between.0 && before.1 != between.1);
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 3, "a": 3, "b": 3}]});
    assert_eq!(hash(&mut fixture), before);
    let other = fixture.run(doc! {"dbHash": 1, "collections": array!["none"]});
    assert!(
        other
            .get("collections")
            .as_document()
            .expect("collections")
            .is_empty()
    );
}

#[test]
fn filemd5_digests_the_chunks_of_a_file_in_order() {
    let mut fixture = Fixture::new();
    let chunk = |file: i32, n: i32, bytes: &[u8]| {
        let data = Value::from(Binary {
            subtype: 0,
            bytes: bytes.into(),
        });
        Value::from(doc! {"files_id": file, "n": n, "data": data})
    };
    let chunks = vec![
        chunk(1, 1, b"world"),
        chunk(1, 0, b"hello "),
        chunk(2, 1, b"x"),
    ];
    fixture.run(doc! {"insert": "fs.chunks", "documents": chunks});
    let reply = fixture.run(doc! {"filemd5": 1, "root": "fs"});
    let digest: String = Md5::digest(b"hello world")
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(reply.get("md5").as_str(), Some(digest.as_str()));
    assert_eq!(number(&reply, "numChunks"), 2);
    assert_eq!(fixture.code(doc! {"filemd5": 2}), 10_040);
    assert_eq!(number(&fixture.run(doc! {"filemd5": 3}), "numChunks"), 0);
}

#[test]
fn an_index_filter_decides_which_index_a_query_uses() {
    let mut fixture = with_documents();
    let query = |a: i32| doc! {"a": a, "b": doc! {"$gte": 0}};
    let used = |fixture: &mut Fixture, hint: Value, limit: i32| {
        let find = doc! {"find": "c", "filter": query(3), "hint": hint, "limit": limit};
        let reply = fixture.run(doc! {"explain": find, "verbosity": "queryPlanner"});
        let planner = reply.get("queryPlanner").as_document().expect("a planner");
        let filtered = matches!(planner.get("indexFilterSet"), ValueRef::Bool(true));
        let plan = planner.get("winningPlan").as_document().expect("a plan");
        let plan = show(&plan.to_document());
        let names = ["a", "b"].into_iter();
        let index = { names }.find(|n| plan.contains(&format!("indexName: String(\"{n}\")")));
        (index, filtered, plan)
    };
    assert!(!used(&mut fixture, Value::Missing, 0).1);
    for name in ["b", "a"] {
        let set = doc! {"planCacheSetFilter": "c", "query": query(1), "indexes": array![name]};
        fixture.run(set);
        let (index, filtered, plan) = used(&mut fixture, Value::Missing, 0);
        assert!(filtered);
        assert_eq!(index, Some(name), "{plan}");
        // A limit does not change the shape, and a filter comes before a hint.
        assert!(used(&mut fixture, Value::from(doc! {"_id": 1}), 5).1);
    }
    let listed = fixture.run(doc! {"planCacheListFilters": "c"});
    assert_eq!(listed.get("filters").as_array().expect("filters").len(), 1);
    // With no index left, the collection is scanned.
    fixture.run(doc! {"planCacheSetFilter": "c", "query": query(1), "indexes": array!["none"]});
    assert!(used(&mut fixture, Value::Missing, 0).2.contains("COLLSCAN"));
    let find = doc! {"find": "c", "filter": query(3)};
    assert_eq!(fixture.all(find.clone()).len(), 5);
    fixture.run(doc! {"planCacheClearFilters": "c", "query": query(9)});
    assert!(!used(&mut fixture, Value::Missing, 0).1);
    fixture.run(doc! {"planCacheSetFilter": "c", "query": query(1), "indexes": array!["a"]});
    fixture.run(doc! {"drop": "c"});
    let listed = fixture.run(doc! {"planCacheListFilters": "c"});
    assert!(
        listed
            .get("filters")
            .as_array()
            .expect("filters")
            .is_empty()
    );
    let set =
        |indexes: Value| doc! {"planCacheSetFilter": "c", "query": doc! {}, "indexes": indexes};
    assert_eq!(fixture.code(set(array!["a"])), 2);
    assert_eq!(fixture.code(set(Vec::<Value>::new().into())), 2);
}

#[test]
fn log_levels_are_parameters() {
    let mut fixture = Fixture::new();
    let mut admin = |command: Document| fixture.reply_on("admin", command);
    let set =
        doc! {"setParameter": 1, "logComponentVerbosity": doc! {"network": doc! {"verbosity": 2}}};
    let was = admin(set);
    assert!(was.get("was").as_document().is_some());
    admin(doc! {"setParameter": 1, "logLevel": 1});
    let reply = admin(doc! {"getParameter": 1, "logComponentVerbosity": 1, "logLevel": 1});
    assert_eq!(number(&reply, "logLevel"), 1);
    let components = reply
        .get("logComponentVerbosity")
        .as_document()
        .expect("components");
    let network = components
        .get("network")
        .as_document()
        .expect("a component");
    assert_eq!(network.get("verbosity").as_exact_i64(), Some(2));
    for bad in [
        doc! {"setParameter": 1, "logLevel": 9},
        doc! {"setParameter": 1, "logComponentVerbosity": doc! {"nonsense": 1}},
    ] {
        assert_eq!(number(&admin(bad), "code"), 2);
    }
}

#[test]
fn facts_of_a_server_without_peers() {
    let mut fixture = Fixture::new();
    let mut code = |command: Document| number(&fixture.reply_on("admin", command), "code");
    assert_eq!(code(doc! {"connPoolStats": 1}), -1);
    assert_eq!(code(doc! {"lockInfo": 1}), -1);
    assert_eq!(code(doc! {"replSetInitiate": doc! {}}), 76);
    let version = |version: &str| doc! {"setFeatureCompatibilityVersion": version, "confirm": true};
    assert_eq!(code(version("8.0")), -1);
    assert_eq!(code(version("7.0")), 4_926_900);
    assert_eq!(
        code(doc! {"setFeatureCompatibilityVersion": "8.0"}),
        7_369_100
    );
}

#[test]
fn the_strict_stable_api_refuses_what_is_outside_version_1() {
    let mut fixture = with_documents();
    let mut strict = |command: Document| {
        let mut out = nilometer_bson::DocumentBuilder::new();
        for element in command.iter() {
            out.append_element(element);
        }
        out.append("apiVersion", "1");
        out.append("apiStrict", true);
        number(&fixture.reply(out.finish()), "code")
    };
    let pipeline = |stage: Document| {
        doc! {"aggregate": "c", "pipeline": array![stage], "cursor": doc! {}}
    };
    let collation =
        doc! {"from": "c", "as": "x", "pipeline": array![doc! {"$indexStats": doc! {}}]};
    for refused in [
        doc! {"distinct": "c", "key": "a"},
        doc! {"isMaster": 1},
        doc! {"ismaster": 1},
        doc! {"findandmodify": "c", "query": doc! {}, "remove": true},
        pipeline(doc! {"$listLocalSessions": doc! {}}),
        pipeline(doc! {"$indexStats": doc! {}}),
        pipeline(doc! {"$lookup": collation}),
        pipeline(doc! {"$facet": doc! {"x": array![doc! {"$indexStats": doc! {}}]}}),
        pipeline(doc! {"$collStats": doc! {"latencyStats": doc! {}}}),
        doc! {"create": "d", "capped": true, "size": 4096},
        doc! {"find": "c", "showRecordId": true},
        doc! {"explain": doc! {"distinct": "c", "key": "a"}},
        doc! {"createIndexes": "c", "indexes": array![
            doc! {"key": doc! {"a": 1}, "name": "x", "sparse": true}
        ]},
    ] {
        assert_eq!(strict(refused.clone()), 323, "{refused:?}");
    }
    for fine in [
        doc! {"find": "c", "filter": doc! {}, "tailable": false},
        doc! {"findAndModify": "c", "query": doc! {"_id": 1}, "remove": true},
        pipeline(doc! {"$collStats": doc! {"count": doc! {}}}),
        pipeline(doc! {"$match": doc! {"a": 1}}),
        doc! {"hello": 1},
        doc! {"explain": doc! {"find": "c"}},
    ] {
        assert_eq!(strict(fine.clone()), -1, "{fine:?}");
    }
}

#[test]
fn a_cursor_is_read_with_the_stable_api_it_was_opened_with() {
    let mut fixture = with_documents();
    let open = doc! {"find": "c", "batchSize": 1, "apiVersion": "1"};
    let reply = fixture.run(open);
    let id = reply
        .get("cursor")
        .as_document()
        .expect("a cursor")
        .get("id")
        .to_value();
    assert_eq!(
        fixture.code(doc! {"getMore": id.clone(), "collection": "c"}),
        347
    );
    fixture.run(doc! {"getMore": id, "collection": "c", "apiVersion": "1"});
}

#[test]
fn images_of_changes_are_an_option_that_is_stored() {
    let mut fixture = Fixture::new();
    let images = |enabled: bool| doc! {"enabled": enabled};
    let stored = |fixture: &mut Fixture| {
        let listed = fixture.all(doc! {"listCollections": 1, "filter": doc! {"name": "c"}});
        let options = listed
            .first()
            .expect("c")
            .get("options")
            .as_document()
            .expect("options");
        options.contains("changeStreamPreAndPostImages")
    };
    let create = doc! {"create": "c", "changeStreamPreAndPostImages": images(true)};
    fixture.run(create.clone());
    fixture.run(create);
    assert!(stored(&mut fixture));
    fixture.run(doc! {"collMod": "c", "changeStreamPreAndPostImages": images(false)});
    assert!(!stored(&mut fixture));
    fixture.run(doc! {"collMod": "c", "changeStreamPreAndPostImages": images(true)});
    assert!(stored(&mut fixture));
    let series = doc! {
        "create": "ts", "timeseries": doc! {"timeField": "t"},
        "changeStreamPreAndPostImages": images(true),
    };
    assert_eq!(fixture.code(series), 72);
    let missing = doc! {"create": "d", "changeStreamPreAndPostImages": doc! {}};
    assert_eq!(fixture.code(missing), 40_414);
}

#[test]
fn the_width_of_buckets_and_their_expiry_change_in_one_command() {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m", "granularity": "seconds"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    fixture.run(doc! {
        "collMod": "ts",
        "timeseries": doc! {"granularity": "hours"},
        "expireAfterSeconds": 3600,
    });
    let listed = fixture.all(doc! {"listCollections": 1, "filter": doc! {"name": "ts"}});
    let options = listed
        .first()
        .expect("ts")
        .get("options")
        .as_document()
        .expect("options");
    assert_eq!(options.get("expireAfterSeconds").as_exact_i64(), Some(3600));
    let series = options.get("timeseries").as_document().expect("options");
    assert_eq!(series.get("granularity").as_str(), Some("hours"));
}

#[test]
fn a_listing_by_name_has_what_the_whole_listing_has() {
    let mut fixture = Fixture::new();
    let series = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": series});
    fixture.run(doc! {"create": "plain"});
    fixture.run(doc! {"create": "v", "viewOn": "plain", "pipeline": array![]});
    let all = fixture.all(doc! {"listCollections": 1});
    let mut listed = |filter: Document| {
        let found = fixture.all(doc! {"listCollections": 1, "filter": filter});
        let names = found.iter().map(|entry| {
            assert!(all.contains(entry), "{entry:?}");
            entry.get("name").as_str().expect("a name").to_owned()
        });
        names.collect::<Vec<_>>()
    };
    assert_eq!(listed(doc! {"name": "ts"}), ["ts"]);
    assert_eq!(listed(doc! {"name": "system.views"}), ["system.views"]);
    let names = array!["v", "no such", "", "system.buckets.ts", "ts", "v", "a$b"];
    let in_order = ["system.buckets.ts", "ts", "v"];
    assert_eq!(listed(doc! {"name": doc! {"$in": names}}), in_order);
    let both = doc! {"name": doc! {"$in": array!["ts", "plain"]}, "type": "collection"};
    assert_eq!(listed(both), ["plain"]);
    let excluded = doc! {"name": doc! {"$in": array!["ts", "plain"], "$ne": "ts"}};
    assert_eq!(listed(excluded), ["plain"]);
    assert_eq!(listed(doc! {"name": doc! {"$regex": "^t"}}), ["ts"]);
    let mixed = array!["plain", Value::Int32(7)];
    assert_eq!(listed(doc! {"name": doc! {"$in": mixed}}), ["plain"]);
}

#[test]
fn stored_definitions_are_checked_against_the_stable_api() {
    let mut fixture = Fixture::with_measurements(3);
    let index = |name: &str, sparse: bool| {
        doc! {"key": doc! {"v": 1}, "name": name, "sparse": sparse}
    };
    fixture.run(doc! {"createIndexes": "plain", "indexes": array![index("thin", true)]});
    fixture.run(doc! {"createIndexes": "ts", "indexes": array![index("thick", false)]});
    let of_meta = doc! {"key": doc! {"m.host": 1}, "name": "thin too", "sparse": true};
    fixture.run(doc! {"createIndexes": "ts", "indexes": array![of_meta]});
    let stages = |stage: Document| {
        array![doc! {"$lookup": doc! {"from": "plain", "as": "x", "pipeline": array![stage]}}]
    };
    fixture.run(doc! {
        "create": "told", "viewOn": "plain", "pipeline": stages(doc! {"$indexStats": doc! {}}),
    });
    fixture.run(doc! {
        "create": "fine", "viewOn": "plain", "pipeline": stages(doc! {"$match": doc! {}}),
    });
    fixture.reply_on(
        "other",
        doc! {"insert": "plain", "documents": array![doc! {}]},
    );
    let parameters = |strict: bool| {
        doc! {"version": "1", "strict": strict, "deprecationErrors": true}
    };
    let mut errors = |fields: Document| -> Vec<(String, String)> {
        let mut command = DocumentBuilder::new();
        command.append("validateDBMetadata", 1);
        for field in fields.iter() {
            command.append_element(field);
        }
        let reply = fixture.run(command.finish());
        assert!(matches!(reply.get("hasMoreErrors"), ValueRef::Bool(false)));
        let errors = reply.get("apiVersionErrors").as_array().expect("errors");
        let errors = errors.iter().map(|error| {
            let error = error.as_document().expect("an error");
            assert_eq!(error.get("code").as_exact_i64(), Some(323));
            assert_eq!(error.get("codeName").as_str(), Some("APIStrictError"));
            let text = |name: &str| error.get(name).as_str().expect("a text").to_owned();
            (text("ns"), text("errmsg"))
        });
        errors.collect()
    };
    let all = errors(doc! {"apiParameters": parameters(true)});
    let names: Vec<&str> = all.iter().map(|(ns, _)| ns.as_str()).collect();
    assert_eq!(names, ["test.plain", "test.told", "test.ts"]);
    let text = "The index with name thin is not allowed in API version 1.";
    assert_eq!(all[0].1, text);
    assert!(all[1].1.contains("$indexStats"), "{all:?}");
    assert!(all[2].1.contains("thin too"), "{all:?}");
    let one = doc! {"apiParameters": parameters(true), "db": "test", "collection": "told"};
    assert_eq!(errors(one).len(), 1);
    let anywhere = doc! {"apiParameters": parameters(true), "collection": "plain"};
    assert_eq!(errors(anywhere).len(), 1);
    let elsewhere = doc! {"apiParameters": parameters(true), "db": "other"};
    assert!(errors(elsewhere).is_empty());
    assert!(errors(doc! {"apiParameters": parameters(false)}).is_empty());
    for (command, expected) in [
        (doc! {"validateDBMetadata": 1}, 40_414),
        (
            doc! {"validateDBMetadata": 1, "apiParameters": doc! {"version": "1", "strict": true}},
            40_414,
        ),
        (
            doc! {"validateDBMetadata": 1, "apiParameters": doc! {"version": "2"}},
            322,
        ),
        (
            doc! {"validateDBMetadata": 1, "apiParameters": parameters(true), "db": 1},
            14,
        ),
        (
            doc! {"validateDBMetadata": 1, "apiParameters": parameters(true), "db": "a.b"},
            73,
        ),
        (
            doc! {"validateDBMetadata": 1, "apiParameters": parameters(true), "db": "test", "collection": "absent"},
            26,
        ),
        (
            doc! {"validateDBMetadata": 1, "apiParameters": parameters(true), "more": 1},
            40_415,
        ),
    ] {
        assert_eq!(fixture.code(command.clone()), expected, "{command:?}");
    }
}
