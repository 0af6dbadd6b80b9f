//! The words of sharding: what a router does for the commands that clients send to a mongos, and what it refuses.

use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::router::{Cluster, create, measurement};
use crate::support::{Fixture, show};

#[test]
fn what_a_mongos_has_and_a_router_has_not_is_refused_with_a_reason() {
    let mut cluster = Cluster::hashed(3, 10, 5);
    for (command, code) in [
        (doc! {"addShardToZone": "p0001", "zone": "x"}, 115),
        (doc! {"addShardToZone": "none", "zone": "x"}, 70),
        (doc! {"removeShardFromZone": "p0001", "zone": "x"}, 115),
        (
            doc! {"updateZoneKeyRange": "test.ts", "min": doc! {}, "max": doc! {}, "zone": "x"},
            115,
        ),
        (doc! {"movePrimary": "test", "to": "p0001"}, 115),
        (doc! {"split": "test.ts", "find": doc! {"m.host": 1}}, 115),
        (doc! {"removeShard": "p0001"}, 115),
        (
            doc! {"enableSharding": "test", "primaryShard": "p0001"},
            115,
        ),
        (doc! {"checkMetadataConsistency": 1}, 115),
        (
            doc! {"setAllowMigrations": "test.ts", "allowMigrations": false},
            115,
        ),
        (
            doc! {"clearJumboFlag": "test.ts", "find": doc! {"m.host": 1}},
            115,
        ),
        (doc! {"cleanupOrphaned": "test.ts"}, 115),
        (
            doc! {"analyzeShardKey": "test.ts", "key": doc! {"m": 1}},
            115,
        ),
        (
            doc! {"configureQueryAnalyzer": "test.ts", "mode": "off"},
            115,
        ),
        (
            doc! {"configureCollectionBalancing": "test.ts", "chunkSize": 64},
            115,
        ),
        (
            doc! {"unshardCollection": "test.ts", "toShard": "p0001"},
            115,
        ),
        (doc! {"moveCollection": "test.ts", "toShard": "p0001"}, 115),
        (doc! {"shardingState": 1}, 115),
        (doc! {"transitionToDedicatedConfigServer": 1}, 115),
    ] {
        let reply = cluster.router.reply_on("admin", command.clone());
        let found = reply.get("code").as_exact_i64().unwrap_or(0);
        assert_eq!(found, code, "{}: {}", show(&command), show(&reply));
        let text = reply.get("errmsg").as_str().unwrap_or("supported: why");
        assert!(code == 70 || text.contains("supported"), "{text}");
    }
}

#[test]
fn chunks_are_moved_by_a_key_or_by_their_bounds() {
    let mut cluster = Cluster::new(3);
    cluster.router.run(create());
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1}});
    cluster.admin(doc! {"split": "test.ts", "middle": doc! {"meta.host": 5}});
    cluster.admin(doc! {"moveChunk": "test.ts", "find": doc! {"m.host": 7}, "to": "p0001"});
    let bounds = array![doc! {"meta.host": Value::MinKey}, doc! {"meta.host": 5}];
    cluster.admin(doc! {"moveChunk": "test.ts", "bounds": bounds, "to": "p0002"});
    let list: Vec<Value> = (0..10).map(|n| measurement(n, n as i32)).collect();
    cluster.router.run(doc! {"insert": "ts", "documents": list});
    assert_eq!(cluster.counts("ts"), [0, 5, 5]);
    // `config.collections` and the shell name a time series as its buckets.
    let buckets = "test.system.buckets.ts";
    cluster.admin(doc! {"split": buckets, "middle": doc! {"meta.host": 8}});
    cluster.admin(doc! {"moveRange": buckets, "min": doc! {"meta.host": 8}, "toShard": "p0002"});
    cluster.admin(doc! {"balancerCollectionStatus": buckets});
    let list: Vec<Value> = (8..10).map(|n| measurement(n, n as i32)).collect();
    cluster.router.run(doc! {"insert": "ts", "documents": list});
    assert_eq!(cluster.counts("ts"), [0, 5, 7]);
    let whole = doc! {"shardCollection": buckets, "key": doc! {"meta.host": 1}};
    let reply = cluster.router.reply_on("admin", whole);
    let text = reply.get("errmsg").as_str().unwrap();
    assert!(text.contains("time series test.ts"), "{text}");
    let bounds = array![doc! {"meta.host": 1}, doc! {"meta.host": 5}];
    let wrong = doc! {"moveChunk": "test.ts", "bounds": bounds, "to": "p0002"};
    assert_eq!(cluster.admin_code(wrong), 2);
    // What is damaged would be reported by the partition that has it.
    let checked = cluster.router.run(doc! {"validate": "ts"});
    assert!(matches!(checked.get("valid"), ValueRef::Bool(true)));
    assert_eq!(checked.get("nrecords").as_exact_i64(), Some(12));
    let raw = checked.get("raw").as_document().unwrap();
    assert_eq!(raw.iter().count(), 3, "{}", show(&checked));
}

/// Returns the lower bounds of the chunks, and their partitions.
fn chunks(cluster: &mut Cluster) -> Vec<(String, String)> {
    let reply = cluster.router.reply_on("config", doc! {"find": "chunks"});
    let rows = cluster.router.rest(reply);
    let shown = rows.iter().map(|chunk| {
        let min = chunk.get("min").as_document().expect("a bound");
        (
            show(&min.to_document()),
            chunk.get("shard").as_str().expect("a shard").to_owned(),
        )
    });
    shown.collect()
}

fn config(cluster: &mut Cluster, find: Document) -> Vec<Document> {
    let reply = cluster.router.reply_on("config", find);
    cluster.router.rest(reply)
}

#[test]
fn chunks_are_divided_at_their_median_and_merged() {
    let mut cluster = Cluster::new(3);
    cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"k": 1}});
    let list: Vec<Value> = (0..100)
        .map(|n| doc! {"_id": n, "k": n / 2}.into())
        .collect();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    cluster.admin(doc! {"split": "test.c", "find": doc! {"k": 7}});
    let bounds = array![doc! {"k": 25}, doc! {"k": Value::MaxKey}];
    cluster.admin(doc! {"split": "test.c", "bounds": bounds});
    let at: Vec<_> = chunks(&mut cluster).into_iter().map(|(at, _)| at).collect();
    assert_eq!(at.len(), 3);
    assert!(at[1].contains("25") && at[2].contains("37"), "{at:?}");
    // One key has no median.
    cluster.admin(doc! {"split": "test.c", "middle": doc! {"k": 26}});
    let one = doc! {"split": "test.c", "find": doc! {"k": 25}};
    assert_eq!(cluster.admin_code(one), 20);
    let both = doc! {"split": "test.c", "find": doc! {"k": 25}, "middle": doc! {"k": 3}};
    assert_eq!(cluster.admin_code(both), 2);
    let merge = |low: Value, high: Value| {
        doc! {"mergeChunks": "test.c", "bounds": array![doc! {"k": low}, doc! {"k": high}]}
    };
    cluster.admin(merge(25.into(), 37.into()));
    assert_eq!(chunks(&mut cluster).len(), 3);
    for (low, high, code) in [
        (25.into(), 37.into(), 20),
        (25.into(), 38.into(), 2),
        (37.into(), 25.into(), 20),
    ] {
        assert_eq!(cluster.admin_code(merge(low, high)), code);
    }
    cluster.admin(doc! {"moveRange": "test.c", "min": doc! {"k": 37}, "toShard": "p0002"});
    assert_eq!(cluster.admin_code(merge(25.into(), Value::MaxKey)), 20);
    let merge_all = |shard: &str| doc! {"mergeAllChunksOnShard": "test.c", "shard": shard};
    let (_, first) = chunks(&mut cluster)[0].clone();
    cluster.admin(merge_all(&first));
    assert_eq!(chunks(&mut cluster).len(), 2);
    assert_eq!(cluster.admin_code(merge_all("none")), 70);
    assert_eq!(
        cluster.admin_code(doc! {"mergeAllChunksOnShard": "test.none", "shard": "p0001"}),
        118
    );
    assert_eq!(cluster.router.counted("c"), 100);
    // Some of many.
    for at in [5, 10, 15, 20] {
        cluster.admin(doc! {"split": "test.c", "middle": doc! {"k": at}});
    }
    let mut some = nilometer_bson::DocumentBuilder::extending(merge_all(&first));
    some.append("maxNumberOfChunksToMerge", 3);
    cluster.admin(some.finish());
    assert_eq!(chunks(&mut cluster).len(), 4);
    assert_eq!(cluster.router.counted("c"), 100);
}

#[test]
fn versions_and_statuses_are_told() {
    let mut cluster = Cluster::hashed(3, 10, 5);
    cluster.router.run(doc! {"create": "whole"});
    let version = cluster.admin(doc! {"getShardVersion": "test.ts"});
    assert!(matches!(version.get("version"), ValueRef::Timestamp(_)));
    assert!(matches!(version.get("versionEpoch"), ValueRef::ObjectId(_)));
    let status = cluster.admin(doc! {"balancerCollectionStatus": "test.ts"});
    assert!(matches!(
        status.get("balancerCompliant"),
        ValueRef::Bool(true)
    ));
    assert_eq!(status.get("chunkSize").as_exact_i64(), Some(128));
    for name in ["getShardVersion", "balancerCollectionStatus"] {
        for (of, code) in [("test.whole", 118), ("test.none", 118), ("nothing", 73)] {
            let mut command = nilometer_bson::DocumentBuilder::new();
            command.append(name, of);
            assert_eq!(cluster.admin_code(command.finish()), code, "{name} of {of}");
        }
    }
    let flushed = cluster.admin(doc! {"flushRouterConfig": 1});
    assert!(matches!(flushed.get("flushed"), ValueRef::Bool(true)));
    let mut single = Fixture::new();
    assert_eq!(single.code(doc! {"flushRouterConfig": 1}), 59);
}

/// mongosh counts the moves of the last day so.
#[test]
fn moves_are_counted_as_the_shell_does() {
    let mut cluster = Cluster::new(3);
    cluster.router.run(create());
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1}});
    for (at, shard) in [(4, "p0001"), (8, "p0002")] {
        cluster
            .admin(doc! {"moveRange": "test.ts", "min": doc! {"meta.host": at}, "toShard": shard});
    }
    let matching = doc! {
        "what": "moveChunk.from", "details.errmsg": doc! {"$exists": false}, "details.note": "success",
    };
    let group = doc! {"_id": doc! {"msg": "$details.errmsg"}, "count": doc! {"$sum": 1}};
    let pipeline = array![doc! {"$match": matching}, doc! {"$group": group}];
    let counted = config(
        &mut cluster,
        doc! {"aggregate": "changelog", "pipeline": pipeline, "cursor": doc! {}},
    );
    assert_eq!(counted.len(), 1, "{counted:?}");
    assert_eq!(counted[0].get("count").as_exact_i64(), Some(2));
}

/// What is not in `config.settings` counts as switched on for clients.
#[test]
fn settings_that_clients_look_for_are_there() {
    let mut cluster = Cluster::new(2);
    let enabled = |cluster: &mut Cluster| {
        let found = config(cluster, doc! {"find": "settings", "sort": doc! {"_id": 1}});
        let shown: Vec<String> = found.iter().map(show).collect();
        shown.join(" ")
    };
    let before = enabled(&mut cluster);
    assert!(
        before.contains("automerge") && before.contains("autosplit"),
        "{before}"
    );
    let update = |id: &str, set: Document| {
        let one = doc! {"q": doc! {"_id": id}, "u": doc! {"$set": set}, "upsert": true};
        doc! {"update": "settings", "updates": array![one]}
    };
    let reply = cluster
        .router
        .reply_on("config", update("chunksize", doc! {"value": 64}));
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    let balancer = config(
        &mut cluster,
        doc! {"find": "settings", "filter": doc! {"_id": "balancer"}},
    );
    assert!(matches!(balancer[0].get("stopped"), ValueRef::Bool(true)));
    assert_eq!(config(&mut cluster, doc! {"find": "settings"}).len(), 4);
    // Switched on, it merges chunks of one partition in each round.
    cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"k": 1}});
    for at in [1, 2, 3] {
        cluster.admin(doc! {"split": "test.c", "middle": doc! {"k": at}});
    }
    cluster.admin(doc! {"balancerStart": 1});
    cluster.router.database.balance().unwrap();
    assert_eq!(chunks(&mut cluster).len(), 4);
    for (set, ok) in [(doc! {"enabled": 1}, 0), (doc! {"enabled": true}, 1)] {
        let reply = cluster.router.reply_on("config", update("automerge", set));
        assert_eq!(reply.get("ok").as_exact_i64(), Some(ok), "{}", show(&reply));
    }
    cluster.router.database.balance().unwrap();
    assert_eq!(chunks(&mut cluster).len(), 1);
}

#[test]
fn a_time_series_is_created_with_its_shard_key() {
    let mut cluster = Cluster::new(2);
    let shard = |key: Document, options: Document| {
        doc! {"shardCollection": "test.ts", "key": key, "timeseries": options}
    };
    let options = doc! {"timeField": "t", "metaField": "m", "granularity": "hours"};
    // A wrong key leaves no collection.
    assert_eq!(
        cluster.admin_code(shard(doc! {"x": 1}, options.clone())),
        72
    );
    let listed = cluster.router.all(doc! {"listCollections": 1});
    assert_eq!(listed.len(), 0, "{listed:?}");
    cluster.admin(shard(doc! {"m": 1}, options.clone()));
    let listed = cluster
        .router
        .all(doc! {"listCollections": 1, "filter": doc! {"name": "ts"}});
    assert!(show(&listed[0]).contains("hours"), "{}", show(&listed[0]));
    // Again with the same options, and with others.
    cluster.admin(shard(doc! {"m": 1}, options));
    let others = doc! {"timeField": "t", "metaField": "m"};
    assert_eq!(cluster.admin_code(shard(doc! {"m": 1}, others.clone())), 72);
    cluster.router.run(doc! {"create": "plain"});
    let plain = doc! {"shardCollection": "test.plain", "key": doc! {"m": 1}, "timeseries": others};
    assert_eq!(cluster.admin_code(plain), 72);
}

#[test]
fn bounds_of_hashed_keys_are_hashes() {
    let mut cluster = Cluster::hashed(3, 20, 10);
    let range = |value: Value| {
        doc! {"moveRange": "test.ts", "min": doc! {"meta.host": value}, "toShard": "p0001"}
    };
    for value in [Value::Int32(5), Value::from("a"), Value::Double(1.0)] {
        assert_eq!(cluster.admin_code(range(value)), 2);
    }
    cluster.admin(range(Value::Int64(5)));
    cluster.admin(range(Value::MinKey));
    // A chunk is named by a key of measurements, or by one of buckets.
    for find in [doc! {"m": doc! {"host": 5}}, doc! {"meta.host": 5}] {
        cluster.admin(doc! {"moveChunk": "test.ts", "find": find, "to": "p0002"});
    }
    assert_eq!(cluster.router.counted("ts"), 20);
}

/// An index that one partition cannot have is in none.
#[test]
fn a_refused_index_creates_no_collection() {
    let mut cluster = Cluster::hashed(2, 10, 5);
    let key = doc! {"a": 1};
    for (index, code) in [
        (doc! {"key": key, "name": "a", "bad": 1}, 197),
        (doc! {"key": doc! {"a": "x"}, "name": "a"}, 67),
    ] {
        let create = doc! {"createIndexes": "missing", "indexes": array![index.clone()]};
        assert_eq!(cluster.router.code(create), code, "{}", show(&index));
    }
    let index = doc! {"key": doc! {"a": 1}, "name": "a"};
    let create = doc! {"createIndexes": "missing", "indexes": array![index], "commitQuorum": 1};
    assert_eq!(cluster.router.code(create), 2);
    let listed = cluster
        .router
        .run(doc! {"listCollections": 1, "filter": doc! {"name": "missing"}});
    assert!(cluster.router.rest(listed).is_empty());
    // What no time series has is said before what the shard key needs.
    let unique = doc! {"key": doc! {"m.host": 1}, "name": "u", "unique": true};
    let create = doc! {"createIndexes": "ts", "indexes": array![unique]};
    let reply = cluster.router.reply_on("test", create);
    let text = reply.get("errmsg").as_str().unwrap();
    assert!(!text.contains("shard key"), "{text}");
}

#[test]
fn change_streams_are_refused_as_not_supported() {
    let mut cluster = Cluster::hashed(2, 10, 5);
    let stream = array![doc! {"$changeStream": doc! {}}];
    let watch = doc! {"aggregate": "ts", "pipeline": stream, "cursor": doc! {}};
    assert_eq!(cluster.router.code(watch), 115);
}

#[test]
fn an_index_that_cannot_be_built_everywhere_is_built_nowhere() {
    let mut cluster = Cluster::new(2);
    cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"k": 1}});
    cluster.admin(doc! {"moveRange": "test.c", "min": doc! {"k": 5}, "toShard": "p0001"});
    cluster.admin(doc! {"moveRange": "test.c", "max": doc! {"k": 5}, "toShard": "p0000"});
    let list: Vec<Value> = [(1, 1), (7, 1), (7, 1)]
        .map(|(k, x)| doc! {"k": k, "x": x}.into())
        .into();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    let index = doc! {"key": doc! {"k": 1, "x": 1}, "name": "unique", "unique": true};
    let fine = doc! {"key": doc! {"x": 1}, "name": "fine"};
    let build = doc! {"createIndexes": "c", "indexes": array![fine.clone(), index]};
    assert_eq!(cluster.router.code(build), 11_000);
    let names = |database: &nilometer::Database| {
        let listed = database
            .command("test", &bson::doc! {"listIndexes": "c"})
            .unwrap();
        let cursor = listed.get_document("cursor").unwrap();
        let batch = cursor.get_array("firstBatch").unwrap().iter();
        let names = batch.map(|index| {
            index
                .as_document()
                .unwrap()
                .get_str("name")
                .unwrap()
                .to_owned()
        });
        names.collect::<Vec<_>>()
    };
    for partition in &cluster.partitions {
        assert_eq!(names(partition.database()), ["_id_", "k_1"]);
    }
    assert_eq!(names(&cluster.router.database), ["_id_", "k_1"]);
    // An index that was there stays when others fail.
    cluster
        .router
        .run(doc! {"createIndexes": "c", "indexes": array![fine.clone()]});
    let other = doc! {"key": doc! {"k": 1, "x": 1}, "name": "unique", "unique": true};
    let build = doc! {"createIndexes": "c", "indexes": array![fine, other]};
    assert_eq!(cluster.router.code(build), 11_000);
    for partition in &cluster.partitions {
        assert_eq!(names(partition.database()), ["_id_", "k_1", "fine"]);
    }
}

fn with_session(command: Document, number: i64) -> Document {
    let id = nilometer_bson::Binary {
        subtype: 4,
        bytes: vec![3; 16].into(),
    };
    let mut out = nilometer_bson::DocumentBuilder::extending(command);
    out.append("lsid", doc! {"id": Value::from(id)});
    out.append("txnNumber", number);
    out.finish()
}

#[test]
fn a_shard_key_is_refined() {
    let mut cluster = Cluster::new(3);
    cluster.router.run(create());
    for (name, key) in [("test.ts", doc! {"m.host": 1}), ("test.c", doc! {"k": 1})] {
        cluster.admin(doc! {"shardCollection": name, "key": key});
    }
    for (name, field) in [("test.ts", "meta.host"), ("test.c", "k")] {
        for (at, shard) in [(4, "p0001"), (8, "p0002")] {
            let mut min = nilometer_bson::DocumentBuilder::new();
            min.append(field, at);
            cluster.admin(doc! {"moveRange": name, "min": min.finish(), "toShard": shard});
        }
    }
    let series: Vec<Value> = (0..36).map(|n| measurement(n, (n % 12) as i32)).collect();
    cluster
        .router
        .run(doc! {"insert": "ts", "documents": series});
    let list: Vec<Value> = (0..36)
        .map(|n| doc! {"_id": n, "k": n % 12, "x": n}.into())
        .collect();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    let refine = |name: &str, key: Document| doc! {"refineCollectionShardKey": name, "key": key};
    let keys = [
        ("test.ts", doc! {"m.host": 1, "t": 1}),
        ("test.c", doc! {"k": 1, "x": 1}),
    ];
    for (name, key) in keys {
        // It needs an index.
        assert_eq!(cluster.admin_code(refine(name, key.clone())), 72, "{name}");
        let collection = name.split_once('.').unwrap().1;
        let index = doc! {"key": key.clone(), "name": "refined"};
        cluster
            .router
            .run(doc! {"createIndexes": collection, "indexes": array![index]});
        for wrong in [doc! {"x": 1}, doc! {"t": 1}, doc! {"m.other": 1, "t": 1}] {
            let code = cluster.admin_code(refine(name, wrong.clone()));
            assert_eq!(code, 72, "{name}: {}", show(&wrong));
        }
        cluster.admin(refine(name, key.clone()));
        cluster.admin(refine(name, key));
        assert_eq!(cluster.router.counted(collection), 36);
    }
    assert_eq!(cluster.admin_code(refine("test.none", doc! {"a": 1})), 118);
    // One key is divided.
    cluster.admin(doc! {"moveRange": "test.c", "min": doc! {"k": 5, "x": 10}, "max": doc! {"k": 6, "x": Value::MinKey}, "toShard": "p0002"});
    let at = |second: i64| Value::DateTime(second * 1000);
    cluster.admin(doc! {"moveRange": "test.ts", "min": doc! {"meta.host": 5, "control.min.t": at(100)}, "max": doc! {"meta.host": 6, "control.min.t": Value::MinKey}, "toShard": "p0002"});
    let series: Vec<Value> = (36..240).map(|n| measurement(n, (n % 12) as i32)).collect();
    cluster
        .router
        .run(doc! {"insert": "ts", "documents": series});
    let list: Vec<Value> = (36..240)
        .map(|n| doc! {"_id": n, "k": n % 12, "x": n}.into())
        .collect();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    for (name, filter) in [("ts", doc! {"m.host": 5}), ("c", doc! {"k": 5})] {
        assert_eq!(cluster.router.counted(name), 240);
        let found = cluster
            .router
            .all(doc! {"find": name, "filter": filter, "sort": doc! {"x": 1}});
        let xs = found.iter().map(|row| row.get("x").as_exact_i64().unwrap());
        let expected = (0..240).filter(|x| x % 12 == 5);
        assert_eq!(
            xs.collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{name}"
        );
    }
    // The placement survives the router.
    cluster.router = Cluster::open(&cluster.engine, &cluster.partitions);
    for name in ["ts", "c"] {
        assert_eq!(cluster.router.counted(name), 240);
    }
    // An array has no place in a key.
    cluster.router.run(doc! {"createIndexes": "c", "indexes": array![doc! {"key": doc! {"k": 1, "x": 1, "y": 1}, "name": "y"}]});
    cluster
        .router
        .run(doc! {"insert": "c", "documents": array![doc! {"k": 1, "x": 1, "y": array![1, 2]}]});
    assert_eq!(
        cluster.admin_code(refine("test.c", doc! {"k": 1, "x": 1, "y": 1})),
        72
    );
}

#[test]
fn a_time_series_gets_another_shard_key() {
    let mut cluster = Cluster::hashed(3, 60, 10);
    let repeated = with_session(
        doc! {"insert": "ts", "documents": array![measurement(60, 3), measurement(61, 4)]},
        1,
    );
    cluster.router.run(repeated.clone());
    let reshard = |key: Document| doc! {"reshardCollection": "test.ts", "key": key};
    assert_eq!(cluster.admin_code(reshard(doc! {"x": 1})), 72);
    cluster.admin(reshard(doc! {"m.host": "hashed"}));
    cluster.admin(reshard(doc! {"m.host": 1, "t": 1}));
    assert_eq!(chunks(&mut cluster).len(), 1);
    // A write of before is not done again.
    cluster.router.run(repeated);
    assert_eq!(cluster.router.counted("ts"), 62);
    cluster.admin(doc! {"moveRange": "test.ts", "min": doc! {"m.host": 5, "t": Value::MinKey}, "toShard": "p0002"});
    let before = cluster.counts("ts");
    let series: Vec<Value> = (62..162).map(|n| measurement(n, (n % 10) as i32)).collect();
    cluster
        .router
        .run(doc! {"insert": "ts", "documents": series});
    let after = cluster.counts("ts");
    assert_eq!(after[2] - before[2], 50, "{before:?} {after:?}");
    let find = doc! {"find": "ts", "filter": doc! {"m.host": 7}, "sort": doc! {"t": 1}};
    let xs = |rows: Vec<Document>| -> Vec<i64> {
        rows.iter()
            .map(|row| row.get("x").as_exact_i64().unwrap())
            .collect()
    };
    let expected: Vec<i64> = (0..162).filter(|x| x % 10 == 7).collect();
    assert_eq!(xs(cluster.router.all(find.clone())), expected);
    cluster.router = Cluster::open(&cluster.engine, &cluster.partitions);
    assert_eq!(xs(cluster.router.all(find)), expected);
    let listed = cluster.router.all(doc! {"listIndexes": "ts"});
    assert!(
        listed
            .iter()
            .any(|index| show(index).contains("m.host_1_t_1")),
        "{listed:?}"
    );
    // By the same key new measurements are spread again.
    let mut again = nilometer_bson::DocumentBuilder::extending(reshard(doc! {"m.host": "hashed"}));
    again.append("forceRedistribution", true);
    cluster.admin(again.finish());
    assert_eq!(chunks(&mut cluster).len(), 3);
    assert_eq!(cluster.router.counted("ts"), 162);
    cluster.router.run(doc! {"create": "plain"});
    cluster.admin(doc! {"shardCollection": "test.plain", "key": doc! {"k": 1}});
    let ordinary = doc! {"reshardCollection": "test.plain", "key": doc! {"x": 1}};
    assert_eq!(cluster.admin_code(ordinary), 115);
}
