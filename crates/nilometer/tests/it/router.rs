//! A router over databases in memory answers as one database does.

use std::sync::Arc;

use nilometer::Database;
use nilometer::database::{HostedPartition, LocalPartition};
use nilometer::router::Partition;
use nilometer::services::Environment;
use nilometer_bson::{DocRef, Document, Value, ValueRef, array, doc};
use nilometer_storage::{Engine, MemoryEngine};

use crate::random::Random;
use crate::same_answers::{Fold, answer, documents, question};
use crate::support::{Fixture, show};

/// A router, its engine, and its partitions.
pub(crate) struct Cluster {
    pub(crate) router: Fixture,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) partitions: Vec<Arc<HostedPartition>>,
}

impl Cluster {
    pub(crate) fn new(count: usize) -> Self {
        let hosted = |_| {
            let database = Arc::new(Database::in_memory().unwrap());
            Arc::new(HostedPartition::new(database).unwrap())
        };
        let partitions: Vec<Arc<HostedPartition>> = (0..count).map(hosted).collect();
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        Self {
            router: Self::open(&engine, &partitions),
            engine,
            partitions,
        }
    }

    pub(crate) fn open(engine: &Arc<dyn Engine>, partitions: &[Arc<HostedPartition>]) -> Fixture {
        let named = partitions.iter().enumerate().map(|(at, hosted)| {
            let name = format!("p{at:04}");
            Arc::new(LocalPartition::new(&name, Arc::clone(hosted))) as Arc<dyn Partition>
        });
        let database =
            Database::router(Arc::clone(engine), Environment::default(), named.collect());
        Fixture::of(database.unwrap())
    }

    /// Returns a cluster with measurements of several hosts, by which they are sharded.
    pub(crate) fn hashed(partitions: usize, measurements: i64, hosts: i64) -> Self {
        let mut cluster = Self::new(partitions);
        cluster.router.run(create());
        let key = doc! {"m.host": "hashed"};
        cluster.admin(doc! {"shardCollection": "test.ts", "key": key});
        let list = (0..measurements).map(|at| measurement(at, (at % hosts) as i32));
        let list: Vec<Value> = list.collect();
        cluster.router.run(doc! {"insert": "ts", "documents": list});
        cluster
    }

    pub(crate) fn admin(&mut self, command: Document) -> Document {
        let reply = self.router.reply_on("admin", command);
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
        reply
    }

    pub(crate) fn admin_code(&mut self, command: Document) -> i64 {
        let reply = self.router.reply_on("admin", command);
        reply.get("code").as_exact_i64().unwrap_or(0)
    }

    /// Returns the number of documents of a collection in each partition.
    pub(crate) fn counts(&self, collection: &str) -> Vec<i64> {
        let counts = self.partitions.iter().map(|partition| {
            let count = bson::doc! {"count": collection};
            partition
                .database()
                .command("test", &count)
                .unwrap()
                .get_i32("n")
                .unwrap()
        });
        counts.map(i64::from).collect()
    }
}

pub(crate) fn measurement(at: i64, host: i32) -> Value {
    doc! {"t": Value::DateTime(at * 1000), "m": doc! {"host": host}, "x": at}.into()
}

pub(crate) fn create() -> Document {
    doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}}
}

#[test]
fn a_router_is_a_mongos() {
    let mut cluster = Cluster::new(3);
    let hello = cluster.router.run(doc! {"hello": 1});
    assert_eq!(hello.get("msg").as_str(), Some("isdbgrid"));
    assert!(hello.get("setName").is_missing());
    let shards = cluster.admin(doc! {"listShards": 1});
    let shards = shards.get("shards").as_array().unwrap();
    let names: Vec<_> = shards
        .iter()
        .map(|shard| show(&shard.as_document().unwrap().to_document()))
        .collect();
    assert_eq!(names.len(), 3);
    for (at, shard) in names.iter().enumerate() {
        assert!(shard.contains(&format!("p000{at}")), "{shard}");
    }
    cluster.admin(doc! {"enableSharding": "test"});
    // What a router does not have is refused, and what only it has is unknown elsewhere.
    assert_eq!(cluster.router.code(doc! {"validate": "ts"}), 26);
    let near = doc! {"$geoNear": doc! {"near": array![0, 0], "distanceField": "d"}};
    let near = doc! {"aggregate": "ts", "pipeline": array![near], "cursor": doc! {}};
    assert_eq!(cluster.router.code(near), 0);
    let mut single = Fixture::new();
    assert_eq!(single.code(doc! {"shardCollection": "test.ts"}), 59);
    assert_eq!(single.code(doc! {"isdbgrid": 1}), 59);
    assert!(single.run(doc! {"hello": 1}).get("msg").is_missing());
}

#[test]
fn shard_keys_of_time_series() {
    let mut cluster = Cluster::new(2);
    cluster.router.run(create());
    cluster.router.run(doc! {"create": "plain"});
    let shard = |key: Document| doc! {"shardCollection": "test.ts", "key": key};
    for (key, code) in [
        (doc! {"x": 1}, 72),
        (doc! {"t": 1, "m": 1}, 72),
        (doc! {"t": "hashed"}, 72),
        (doc! {"m.host": -1}, 2),
        (doc! {"m.host": 1, "m.rack": "no"}, 2),
        (doc! {"m.a": "hashed", "m.b": "hashed"}, 2),
        (doc! {}, 2),
    ] {
        let text = show(&key);
        assert_eq!(cluster.admin_code(shard(key)), code, "{text}");
    }
    assert_eq!(
        cluster
            .admin_code(doc! {"shardCollection": "test.ts", "key": doc! {"m": 1}, "unique": true}),
        72
    );
    cluster.admin(shard(doc! {"m.host": 1, "t": 1}));
    // Again with the same key, and with another.
    cluster.admin(shard(doc! {"m.host": 1, "t": 1}));
    assert_eq!(cluster.admin_code(shard(doc! {"m.host": 1})), 23);
    let found = cluster
        .router
        .reply_on("config", doc! {"find": "collections"});
    let found = cluster.router.rest(found);
    assert_eq!(found[0].get("_id").as_str(), Some("test.system.buckets.ts"));
    let key = found[0].get("key").as_document().unwrap().to_document();
    assert_eq!(key, doc! {"meta.host": 1, "control.min.t": 1});
    // An index of the key, on the router and in the partitions.
    let indexes = cluster.router.all(doc! {"listIndexes": "ts"});
    let names = indexes
        .iter()
        .filter_map(|index| index.get("name").as_str());
    assert!(
        names.clone().any(|name| name == "m.host_1_t_1"),
        "{indexes:?}"
    );
    for partition in &cluster.partitions {
        let listed = partition
            .database()
            .command("test", &bson::doc! {"listIndexes": "ts"})
            .unwrap();
        assert!(listed.to_string().contains("m.host_1_t_1"), "{listed}");
    }
}

#[test]
fn chunks_say_where_new_buckets_go_and_history_where_old_ones_are() {
    let mut cluster = Cluster::new(3);
    cluster.router.run(create());
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1}});
    let insert = |from: i64| {
        let list: Vec<Value> = (0..12).map(|n| measurement(from + n, n as i32)).collect();
        doc! {"insert": "ts", "documents": list}
    };
    cluster.router.run(insert(0));
    let before = cluster.counts("ts");
    assert_eq!(before.iter().sum::<i64>(), 12);
    assert_eq!(before.iter().filter(|count| **count > 0).count(), 1);
    for (at, shard) in [(4, "p0001"), (8, "p0002")] {
        let range = doc! {
            "moveRange": "test.ts", "min": doc! {"meta.host": at}, "max": doc! {"meta.host": at + 4},
            "toShard": shard,
        };
        cluster.admin(range);
    }
    cluster.router.run(insert(100));
    let after = cluster.counts("ts");
    assert_eq!(after.iter().sum::<i64>(), 24);
    // A series with buckets in two partitions is read from both.
    let of_host = doc! {"find": "ts", "filter": doc! {"m.host": 5}, "sort": doc! {"t": 1}};
    let rows = cluster.router.all(of_host);
    let times: Vec<_> = rows
        .iter()
        .map(|row| row.get("x").as_exact_i64().unwrap())
        .collect();
    assert_eq!(times, [5, 105]);
    assert_eq!(cluster.router.counted("ts"), 24);
    // The placement survives the router.
    cluster.router = Cluster::open(&cluster.engine, &cluster.partitions);
    assert_eq!(cluster.router.counted("ts"), 24);
    let chunks = cluster.router.reply_on("config", doc! {"find": "chunks"});
    let chunks = cluster.router.rest(chunks);
    assert_eq!(chunks.len(), 4);
    let first = |document: &Document, name: &str| document.get(name).as_str().map(str::to_owned);
    let shards: Vec<_> = chunks.iter().map(|chunk| first(chunk, "shard")).collect();
    // The latest first.
    let history = |chunk: &Document| {
        let history = chunk.get("history").as_array().unwrap();
        let turns = history.iter().filter_map(ValueRef::as_document);
        let shards = turns.map(|turn| turn.get("shard").as_str().map(str::to_owned));
        shards.collect::<Vec<_>>()
    };
    assert_eq!(history(&chunks[0]), [shards[0].clone()]);
    assert_eq!(
        history(&chunks[1]),
        [Some("p0001".to_owned()), shards[0].clone()]
    );
    assert_eq!(
        history(&chunks[2]),
        [Some("p0002".to_owned()), shards[0].clone()]
    );
    let log = cluster
        .router
        .reply_on("config", doc! {"find": "changelog"});
    let log = cluster.router.rest(log);
    let of_kind = |what: &str| {
        let is_it = |entry: &&Document| entry.get("what").as_str() == Some(what);
        log.iter().filter(is_it).collect::<Vec<_>>()
    };
    let [committed, left] = ["moveChunk.commit", "moveChunk.from"].map(of_kind);
    assert_eq!(committed.len() + left.len(), log.len());
    assert_eq!(committed.len(), left.len());
    let moves: Vec<_> = committed
        .iter()
        .map(|entry| {
            let details = entry.get("details").as_document().unwrap();
            (
                details.get("from").as_str().map(str::to_owned),
                details.get("to").as_str(),
            )
        })
        .collect();
    let from = || shards[0].clone();
    assert_eq!(moves, [(from(), Some("p0001")), (from(), Some("p0002"))]);
    cluster.router.run(insert(200));
    assert_eq!(cluster.router.counted("ts"), 36);
    cluster.router.run(doc! {"drop": "ts"});
    assert_eq!(cluster.router.counted("ts"), 0);
    assert_eq!(cluster.counts("ts"), [0, 0, 0]);
}

#[test]
fn errors_keep_the_positions_of_the_command() {
    let mut cluster = Cluster::new(3);
    cluster.router.run(create());
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": "hashed"}});
    let list = || -> Vec<Value> {
        let mut list: Vec<Value> = (0..9).map(|n| measurement(n, n as i32)).collect();
        list[4] = doc! {"m": doc! {"host": 4}, "x": "no time"}.into();
        list[7] = doc! {"t": Value::DateTime(0), "m": doc! {"host": array![1]}}.into();
        list
    };
    let unordered = doc! {"insert": "ts", "documents": list(), "ordered": false};
    let reply = cluster.router.run(unordered);
    assert_eq!(reply.get("n").as_exact_i64(), Some(7), "{}", show(&reply));
    let errors = reply.get("writeErrors").as_array().unwrap();
    let places: Vec<_> = errors
        .iter()
        .map(|error| {
            error
                .as_document()
                .unwrap()
                .get("index")
                .as_exact_i64()
                .unwrap()
        })
        .collect();
    assert_eq!(places, [4, 7]);
    let ordered = doc! {"insert": "ts", "documents": list()};
    let reply = cluster.router.run(ordered);
    assert_eq!(reply.get("n").as_exact_i64(), Some(4), "{}", show(&reply));
    assert!(cluster.counts("ts").iter().all(|count| *count > 0));
}

#[test]
fn changes_reach_the_partitions_that_have_the_measurements() {
    let mut cluster = Cluster::hashed(3, 60, 10);
    let n = |reply: &Document| reply.get("n").as_exact_i64();
    let delete = |filter: Document, limit: i32| {
        doc! {"delete": "ts", "deletes": array![doc! {"q": filter, "limit": limit}]}
    };
    let one = cluster.router.run(delete(doc! {"x": doc! {"$gte": 30}}, 1));
    assert_eq!(n(&one), Some(1));
    let many = cluster.router.run(delete(doc! {"m.host": 3}, 0));
    assert!(matches!(n(&many), Some(5 | 6)), "{}", show(&many));
    let left = cluster.router.counted("ts");
    assert_eq!(left, 60 - 1 - n(&many).unwrap());
    // Metadata may change, whatever its place: the history then says that it may be anywhere.
    let update = doc! {"update": "ts", "updates": array![doc! {
        "q": doc! {"m.host": 4}, "u": doc! {"$set": doc! {"m.host": 77}}, "multi": true,
    }]};
    let changed = cluster.router.run(update);
    assert!(n(&changed) > Some(0), "{}", show(&changed));
    let found = cluster
        .router
        .all(doc! {"find": "ts", "filter": doc! {"m.host": 77}});
    assert_eq!(Some(found.len() as i64), n(&changed));
    assert_eq!(cluster.router.counted("ts"), left);
}

#[test]
fn collections_that_are_not_sharded_live_in_one_partition() {
    let mut cluster = Cluster::new(2);
    let list: Vec<Value> = (0..300)
        .map(|n| doc! {"_id": n, "a": n % 7}.into())
        .collect();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    assert_eq!(
        cluster
            .counts("c")
            .iter()
            .filter(|count| **count > 0)
            .count(),
        1
    );
    let update = doc! {"update": "c", "updates": array![
        doc! {"q": doc! {"_id": 5}, "u": doc! {"$set": doc! {"a": 100}}},
        doc! {"q": doc! {"_id": 999}, "u": doc! {"$set": doc! {"a": 100}}, "upsert": true},
    ]};
    cluster.router.run(update);
    let found = cluster
        .router
        .all(doc! {"find": "c", "filter": doc! {"a": 100}, "batchSize": 1});
    assert_eq!(found.len(), 2);
    let taken = doc! {"findAndModify": "c", "query": doc! {"a": 100}, "sort": doc! {"_id": -1}, "remove": true};
    let taken = cluster.router.run(taken);
    let value = taken.get("value").as_document().unwrap();
    assert_eq!(value.get("_id").as_exact_i64(), Some(999));
    let distinct = cluster.router.run(doc! {"distinct": "c", "key": "a"});
    assert_eq!(distinct.get("values").as_array().unwrap().iter().count(), 8);
    // Joins and views run on the router.
    cluster.router.run(
        doc! {"create": "v", "viewOn": "c", "pipeline": array![doc! {"$match": doc! {"a": 1}}]},
    );
    let lookup =
        doc! {"$lookup": doc! {"from": "v", "localField": "a", "foreignField": "a", "as": "v"}};
    let joined = cluster.router.all(doc! {
        "aggregate": "c", "pipeline": array![doc! {"$match": doc! {"_id": 8}}, lookup], "cursor": doc! {},
    });
    let list = joined[0].get("v").as_array().unwrap();
    assert_eq!(list.iter().count(), 43);
    // An index of the partitions, and a hint that they follow.
    cluster.router.run(
        doc! {"createIndexes": "c", "indexes": array![doc! {"key": doc! {"a": 1}, "name": "a_1"}]},
    );
    let hinted = cluster
        .router
        .all(doc! {"find": "c", "filter": doc! {"a": 1}, "hint": "a_1"});
    assert_eq!(hinted.len(), 43);
    let wrong = doc! {"find": "c", "filter": doc! {"a": 1}, "hint": "b_1"};
    assert_eq!(cluster.router.code(wrong), 2);
}

/// Returns the number of cursors that are open in a partition.
pub(crate) fn partition_cursors(hosted: &HostedPartition) -> i64 {
    let status = bson::doc! {"serverStatus": 1};
    let status = hosted.database().command("admin", &status).unwrap();
    let cursor = status.get_document("metrics").unwrap();
    let cursor = cursor.get_document("cursor").unwrap();
    let open = cursor.get_document("open").unwrap();
    open.get_i64("total").unwrap()
}

#[test]
fn a_closed_cursor_ends_the_work_of_the_partitions() {
    let mut cluster = Cluster::hashed(2, 5000, 50);
    let opened = cluster.router.run(doc! {"find": "ts", "batchSize": 10});
    let id = opened
        .get("cursor")
        .as_document()
        .unwrap()
        .get("id")
        .to_value();
    cluster
        .router
        .run(doc! {"killCursors": "ts", "cursors": array![id]});
    // The request that ends them is on its way.
    for partition in &cluster.partitions {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while partition_cursors(partition) > 0 {
            assert!(std::time::Instant::now() < deadline, "cursors stay open");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Returns the number of generated databases of a run.
fn databases() -> u64 {
    nilometer_storage::testing::effort(2, 12, 200)
}

#[test]
fn a_cluster_answers_as_plain_documents_do() {
    let mut failures = Vec::new();
    for seed in 0..databases() {
        let mut random = Random::new(seed + 7_000);
        let documents = documents(&mut random);
        let mut cluster = Cluster::new(3);
        cluster.router.run(create());
        cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"t": 1}});
        for (day, shard) in [
            (0, "p0001"),
            (1_700_000_000_000, "p0002"),
            (2_147_483_640_000, "p0000"),
        ] {
            let range = doc! {
                "moveRange": "test.ts", "min": doc! {"t": Value::DateTime(day)}, "max": doc! {"t": Value::MaxKey},
                "toShard": shard,
            };
            cluster.admin(range);
        }
        let mut oracle = Fixture::new();
        oracle.run(doc! {"create": "plain"});
        for part in documents.chunks(50) {
            let list: Vec<Value> = part.iter().cloned().map(Value::from).collect();
            cluster
                .router
                .run(doc! {"insert": "ts", "documents": list.clone()});
            oracle.run(doc! {"insert": "plain", "documents": list});
        }
        for _ in 0..60 {
            let question = question(&mut random);
            let expected = answer(&mut oracle, "plain", &question, Fold::Nothing);
            let found = answer(&mut cluster.router, "ts", &question, Fold::Nothing);
            if found != expected {
                let first = |of: &[String], other: &[String]| {
                    let mut only = of.iter().filter(|row| !other.contains(row));
                    only.next().cloned()
                };
                failures.push(format!(
                    "seed {seed}: {}\n  {} for {}, extra {:?}, lost {:?}",
                    show(&question.command),
                    found.len(),
                    expected.len(),
                    first(&found, &expected),
                    first(&expected, &found),
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns the explanation of a command, as a mongos gives it.
fn explained(cluster: &mut Cluster, command: Document, verbosity: &str) -> Document {
    cluster
        .router
        .run(doc! {"explain": command, "verbosity": verbosity})
}

#[test]
fn explain_shows_what_the_partitions_do() {
    let mut cluster = Cluster::hashed(3, 60, 10);
    let group = doc! {"$group": doc! {"_id": "$m.host", "n": doc! {"$sum": 1}}};
    let sort = doc! {"$sort": doc! {"n": 1}};
    let pipeline = doc! {"aggregate": "ts", "pipeline": array![group, sort], "cursor": doc! {}};
    let shown = explained(&mut cluster, pipeline, "executionStats");
    assert_eq!(shown.get("mergeType").as_str(), Some("mongos"));
    let split = shown.get("splitPipeline").as_document().unwrap();
    let stages = |side: &str| split.get(side).as_array().unwrap().iter().count();
    assert_eq!((stages("shardsPart"), stages("mergerPart")), (1, 3));
    let shards = shown.get("shards").as_document().unwrap();
    let names: Vec<_> = shards.iter().map(|shard| shard.name().to_owned()).collect();
    assert_eq!(names, ["p0000", "p0001", "p0002"]);
    for shard in shards {
        let shard = shard.value().as_document().unwrap();
        assert!(!shard.get("host").is_missing());
        let stages = shard.get("stages").as_array().unwrap();
        assert!(stages.iter().count() > 1, "{}", show(&shown));
    }
    // A filter of the shard key asks one partition, which runs all of it.
    let one = doc! {"find": "ts", "filter": doc! {"m.host": 3}};
    let shown = explained(&mut cluster, one, "queryPlanner");
    let shards = shown.get("shards").as_document().unwrap();
    assert_eq!(shards.iter().count(), 1, "{}", show(&shown));
    let split = shown.get("splitPipeline");
    assert!(matches!(split, ValueRef::Null), "{}", show(&shown));
}

#[test]
fn explain_of_ordinary_collections_and_of_writes() {
    let mut cluster = Cluster::new(2);
    let list: Vec<Value> = (0..30)
        .map(|n| doc! {"_id": n, "a": n % 7}.into())
        .collect();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    let find = doc! {"find": "c", "filter": doc! {"a": 1}};
    let shown = explained(&mut cluster, find, "allPlansExecution");
    let planner = shown.get("queryPlanner").as_document().unwrap();
    let winning = planner.get("winningPlan").as_document().unwrap();
    assert_eq!(winning.get("stage").as_str(), Some("SINGLE_SHARD"));
    let shards = winning.get("shards").as_array().unwrap();
    let shard = shards.get(0).as_document().unwrap();
    assert!(!shard.get("winningPlan").is_missing(), "{}", show(&shown));
    assert!(!shard.get("serverInfo").is_missing());
    let stats = shown.get("executionStats").as_document().unwrap();
    let number = |name: &str| stats.get(name).as_exact_i64();
    assert_eq!(
        (number("nReturned"), number("totalDocsExamined")),
        (Some(5), Some(30))
    );
    let statement = doc! {"q": doc! {"a": 1}, "u": doc! {"$set": doc! {"b": 1}}, "multi": true};
    let update = doc! {"update": "c", "updates": array![statement]};
    let delete = doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"_id": 1}, "limit": 1}]};
    let one = doc! {"findAndModify": "c", "query": doc! {"a": 1}, "remove": true};
    for write in [update, delete, one] {
        let shown = explained(&mut cluster, write, "executionStats");
        let planner = shown.get("queryPlanner").as_document().unwrap();
        let winning = planner.get("winningPlan").as_document().unwrap();
        assert_eq!(winning.get("stage").as_str(), Some("SHARD_WRITE"));
        assert_eq!(winning.get("shards").as_array().unwrap().iter().count(), 1);
        assert!(
            !shown.get("executionStats").is_missing(),
            "{}",
            show(&shown)
        );
    }
    assert_eq!(cluster.router.counted("c"), 30);
    // Where there is nothing, the plan is that of one server.
    let missing = doc! {"delete": "none", "deletes": array![doc! {"q": doc! {}, "limit": 0}]};
    let shown = explained(&mut cluster, missing, "queryPlanner");
    assert!(show(&shown).contains("EOF"), "{}", show(&shown));
    let wrong = doc! {"explain": doc! {"find": "c"}, "verbosity": "all"};
    assert_eq!(cluster.router.code(wrong), 2);
    let unknown = doc! {"explain": doc! {"insert": "c"}};
    assert_eq!(cluster.router.code(unknown), 59);
}

#[test]
fn statistics_are_sums_of_the_partitions() {
    let mut cluster = Cluster::hashed(3, 60, 10);
    cluster
        .router
        .run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}]});
    let stats = cluster.router.run(doc! {"collStats": "ts"});
    assert!(matches!(stats.get("sharded"), ValueRef::Bool(true)));
    let shards = stats.get("shards").as_document().unwrap();
    assert_eq!(shards.iter().count(), 3);
    let of = |stats: DocRef<'_>| {
        let timeseries = stats.get("timeseries").as_document().unwrap();
        let count = timeseries.get("bucketCount").as_exact_i64().unwrap();
        (count, stats.get("size").as_exact_i64().unwrap())
    };
    let parts = shards
        .iter()
        .map(|shard| of(shard.value().as_document().unwrap()));
    let sums = parts.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    assert_eq!(of(stats.as_ref()), sums);
    assert_eq!(sums.0, 10);
    let average = |stats: DocRef<'_>| {
        let timeseries = stats.get("timeseries").as_document().unwrap();
        timeseries.get("avgBucketSize").as_exact_i64().unwrap()
    };
    let parts = shards
        .iter()
        .map(|shard| shard.value().as_document().unwrap());
    let weighed: i64 = parts.map(|part| average(part) * of(part).0).sum();
    assert_eq!(average(stats.as_ref()), weighed / sums.0);
    let whole = cluster.router.run(doc! {"collStats": "c"});
    assert!(matches!(whole.get("sharded"), ValueRef::Bool(false)));
    assert!(whole.get("primary").as_str().is_some(), "{}", show(&whole));
    assert_eq!(whole.get("count").as_exact_i64(), Some(1));
    let of_database = cluster.router.run(doc! {"dbStats": 1});
    let raw = of_database.get("raw").as_document().unwrap();
    assert_eq!(raw.iter().count(), 3);
    let objects = of_database.get("objects").as_exact_i64();
    assert_eq!(objects, Some(11), "{}", show(&of_database));
    let missing = cluster.router.run(doc! {"collStats": "none"});
    assert_eq!(missing.get("count").as_exact_i64(), Some(0));
}

#[test]
fn collections_are_renamed_in_their_partitions() {
    let mut cluster = Cluster::hashed(3, 60, 12);
    let plain = doc! {"insert": "plain", "documents": array![doc! {"_id": 1}]};
    cluster.router.run(plain);
    cluster
        .router
        .run(doc! {"insert": "other", "documents": array![doc! {"_id": 2}, doc! {"_id": 3}]});
    let rename = |from: &str, to: &str, drops: bool| {
        let (from, to) = (format!("test.{from}"), format!("test.{to}"));
        doc! {"renameCollection": from, "to": to, "dropTarget": drops}
    };
    cluster.admin(rename("ts", "moved", false));
    cluster.admin(rename("plain", "simple", false));
    assert_eq!(cluster.admin_code(rename("none", "some", false)), 26);
    assert_eq!(cluster.admin_code(rename("simple", "other", false)), 48);
    assert_eq!(cluster.admin_code(rename("simple", "simple", false)), 20);
    cluster.admin(rename("simple", "other", true));
    // Opened again, the placements are found under the new names.
    cluster.router = Cluster::open(&cluster.engine, &cluster.partitions);
    let mut count = |name: &str| {
        let reply = cluster.router.run(doc! {"count": name, "query": doc! {}});
        reply.get("n").as_exact_i64().unwrap()
    };
    assert_eq!((count("ts"), count("moved")), (0, 60));
    assert_eq!((count("plain"), count("simple"), count("other")), (0, 0, 1));
    assert_eq!(cluster.counts("moved").iter().sum::<i64>(), 60);
    let by_host = doc! {"count": "moved", "query": doc! {"m.host": 3}};
    assert_eq!(cluster.router.run(by_host).get("n").as_exact_i64(), Some(5));
}

#[test]
fn stages_that_describe_a_collection_have_a_document_of_each_partition() {
    let mut cluster = Cluster::hashed(3, 60, 12);
    let mut stage = |name: &str| {
        let mut stage = nilometer_bson::DocumentBuilder::new();
        match name {
            "$collStats" => stage.append(name, doc! {"storageStats": doc! {}}),
            _ => stage.append(name, doc! {}),
        };
        let pipeline = array![stage.finish()];
        let command = doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": doc! {}};
        cluster.router.all(command)
    };
    let found = stage("$collStats");
    let shards = found.iter().map(|document| document.get("shard").as_str());
    assert_eq!(
        shards.collect::<Vec<_>>(),
        [Some("p0000"), Some("p0001"), Some("p0002")]
    );
    let is_described = |document: &Document| !document.get("storageStats").is_missing();
    assert!(found.iter().all(is_described), "{found:?}");
    // What mongosh's getShardDistribution() adds up.
    for document in &found {
        let storage = document.get("storageStats").as_document().unwrap();
        for name in ["count", "size", "avgObjSize"] {
            assert!(
                storage.get(name).as_exact_i64() > Some(0),
                "{name}: {document:?}"
            );
        }
    }
    let indexes = stage("$indexStats");
    assert!(indexes.len() >= 3, "{indexes:?}");
    let pipeline = array![doc! {"$shardedDataDistribution": doc! {}}];
    let command = doc! {"aggregate": 1, "pipeline": pipeline, "cursor": doc! {}};
    let found = cluster.admin(command.clone());
    let text = show(&found);
    assert!(text.contains("test.system.buckets.ts"), "{text}");
    assert!(text.contains("numOwnedDocuments: Int64(4)"), "{text}");
    assert_eq!(
        Fixture::new()
            .reply_on("admin", command)
            .get("code")
            .as_exact_i64(),
        Some(6_789_100)
    );
    let status = cluster.admin(doc! {"serverStatus": 1});
    assert!(!status.get("opcounters").is_missing());
    let map = cluster.admin(doc! {"getShardMap": 1});
    assert!(show(&map).contains("p0002"), "{}", show(&map));
    let balancer = cluster.admin(doc! {"balancerStatus": 1});
    assert_eq!(balancer.get("mode").as_str(), Some("off"));
}

#[test]
fn indexes_are_made_with_their_collection_and_those_of_shard_keys_stay() {
    let mut cluster = Cluster::new(3);
    let make = |name: &str, keys: &[&str]| {
        let indexes = keys.iter().map(|key| {
            let mut of = nilometer_bson::DocumentBuilder::new();
            of.append(key, 1);
            Value::from(doc! {"key": of.finish(), "name": *key})
        });
        doc! {"createIndexes": name, "indexes": indexes.collect::<Vec<_>>()}
    };
    for (key, is_new) in [("a", true), ("b", false)] {
        let reply = cluster.router.run(make("fresh", &[key]));
        let created = reply.get("createdCollectionAutomatically");
        let is_right = matches!(created, ValueRef::Bool(created) if created == is_new);
        assert!(is_right, "{}", show(&reply));
    }
    cluster.router.run(create());
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1, "t": 1}});
    cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"k": 1}});
    cluster.admin(doc! {"shardCollection": "test.h", "key": doc! {"k": "hashed"}});
    let drop = |name: &str, index: Value| doc! {"dropIndexes": name, "index": index};
    let dropped = |cluster: &mut Cluster, command: Document| {
        let reply = cluster.router.reply(command);
        reply.get("code").as_exact_i64().unwrap_or(0)
    };
    for (name, index, code) in [
        ("c", "k_1".into(), 20),
        ("c", Value::from(doc! {"k": 1.0}), 20),
        ("c", array!["k_1"], 20),
        ("c", "absent".into(), 27),
        ("ts", "m.host_1_t_1".into(), 20),
        ("h", "k_hashed".into(), 0),
    ] {
        let text = format!("{name} {index:?}");
        assert_eq!(dropped(&mut cluster, drop(name, index)), code, "{text}");
    }
    cluster.router.run(make("c", &["x", "y"]));
    let longer = array![doc! {"key": doc! {"k": 1, "x": 1}, "name": "kx"}];
    cluster
        .router
        .run(doc! {"createIndexes": "c", "indexes": longer});
    // Both at once would leave none.
    let both = drop("c", array!["k_1", "kx"]);
    assert_eq!(dropped(&mut cluster, both), 20);
    let named = |cluster: &mut Cluster| {
        let reply = cluster.router.run(doc! {"listIndexes": "c"});
        let mut names: Vec<String> = cluster
            .router
            .rest(reply)
            .iter()
            .map(|index| index.get("name").as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    cluster.router.run(drop("c", "*".into()));
    assert_eq!(named(&mut cluster), ["_id_", "k_1"]);
    cluster.router.run(doc! {"createIndexes": "c", "indexes": array![doc! {"key": doc! {"k": 1, "x": 1}, "name": "kx"}]});
    assert_eq!(dropped(&mut cluster, drop("c", "k_1".into())), 0);
    assert_eq!(dropped(&mut cluster, drop("c", "kx".into())), 20);
    assert_eq!(named(&mut cluster), ["_id_", "kx"]);
}
