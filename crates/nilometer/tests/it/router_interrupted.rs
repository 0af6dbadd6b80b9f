//! Changes of the catalog of a router end between any two of their steps: the next command repairs what is left.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nilometer::database::{HostedPartition, LocalPartition};
use nilometer::router::{Partition, PendingReply};
use nilometer::services::Environment;
use nilometer::session::ClientSession;
use nilometer::{Database, Request};
use nilometer_bson::{Document, Value, array, doc};
use nilometer_storage::{
    Durability, Engine, Error, KeyspaceId, NewKeyspace, Result, WriteBatch, forward_engine,
};

use crate::router::{Cluster, create, measurement, partition_cursors};
use crate::router_moves::{FAULTS, Fault, Wire, reopen};
use crate::support::{Fixture, show};

/// An engine that changes nothing any more after some changes, as that of a process that ends.
struct Cut {
    inner: Arc<dyn Engine>,
    left: AtomicI64,
}

impl Cut {
    fn step(&self) -> Result<()> {
        match self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            true => Ok(()),
            false => Err(Error::Closed),
        }
    }
}

impl Engine for Cut {
    forward_engine!(inner: keyspaces, snapshot, sync, settle, checkpoint, verify,
        keyspace_statistics, statistics);

    fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        self.step()?;
        self.inner.create_keyspaces(new)
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.step()?;
        self.inner.drop_keyspace(id)
    }

    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        self.step()?;
        self.inner.commit(batch, durability)
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Runs a command on a router whose process ends after so many changes of the catalog. Then opens the router again. True if the command
/// was done before.
fn until_cut(cluster: &mut Cluster, steps: i64, db: &str, command: Document) -> bool {
    let cut = Arc::new(Cut {
        inner: Arc::clone(&cluster.engine),
        left: AtomicI64::new(i64::MAX),
    });
    let engine: Arc<dyn Engine> = Arc::clone(&cut) as Arc<dyn Engine>;
    let mut router = Cluster::open(&engine, &cluster.partitions);
    cut.left.store(steps, Ordering::SeqCst);
    let reply = router.reply_on(db, command);
    drop(router);
    cluster.router = Cluster::open(&cluster.engine, &cluster.partitions);
    reply.get("ok").as_exact_i64() == Some(1)
}

/// Returns the kind of a collection in each partition that has it.
fn kinds(cluster: &Cluster, name: &str) -> Vec<String> {
    let kind = |partition: &Arc<HostedPartition>| {
        let list = bson::doc! {"listCollections": 1, "filter": {"name": name}};
        let reply = partition.database().command("test", &list).unwrap();
        let cursor = reply.get_document("cursor").unwrap();
        let first = cursor.get_array("firstBatch").unwrap().first().cloned();
        first.map(|first| {
            let first = first.as_document().unwrap();
            first.get_str("type").unwrap().to_owned()
        })
    };
    cluster.partitions.iter().filter_map(kind).collect()
}

/// Returns the names of the indexes of a collection in each partition.
fn indexes(cluster: &Cluster, name: &str) -> Vec<Vec<String>> {
    let names = |partition: &Arc<HostedPartition>| {
        let list = bson::doc! {"listIndexes": name};
        let Ok(reply) = partition.database().command("test", &list) else {
            return Vec::new();
        };
        let batch = reply.get_document("cursor").unwrap();
        let batch = batch.get_array("firstBatch").unwrap().iter();
        let name = |index: &bson::Bson| {
            let index = index.as_document().unwrap();
            index.get_str("name").unwrap().to_owned()
        };
        let mut names: Vec<String> = batch.map(name).collect();
        names.sort();
        names
    };
    cluster.partitions.iter().map(names).collect()
}

fn rename(from: &str, to: &str) -> Document {
    let (from, to) = (format!("test.{from}"), format!("test.{to}"));
    doc! {"renameCollection": from, "to": to, "dropTarget": true}
}

/// Two collections of one partition, and one of another.
fn with_collections(cluster: &mut Cluster) {
    for (name, count) in [("a", 5), ("x", 1), ("b", 3)] {
        let list: Vec<Value> = (0..count)
            .map(|at| doc! {"_id": at, "of": name}.into())
            .collect();
        cluster.router.run(doc! {"insert": name, "documents": list});
    }
}

fn check_renamed(cluster: &mut Cluster, text: &str) {
    let reply = cluster.router.reply_on("admin", rename("a", "b"));
    let code = reply.get("code").as_exact_i64();
    assert!(matches!(code, None | Some(26)), "{text}: {}", show(&reply));
    let of_a = doc! {"count": "b", "query": doc! {"of": "a"}};
    let found = cluster.router.run(of_a).get("n").as_exact_i64();
    assert_eq!(found, Some(5), "{text}");
    assert_eq!(cluster.router.counted("b"), 5, "{text}");
    assert_eq!(cluster.router.counted("a"), 0, "{text}");
}

#[test]
fn a_renaming_that_is_repeated_loses_nothing_wherever_it_ended() {
    // Both collections are in one partition, then in two.
    for partitions in [1, 2, 3] {
        for steps in 0..100 {
            let mut cluster = Cluster::new(partitions);
            with_collections(&mut cluster);
            let is_done = until_cut(&mut cluster, steps, "admin", rename("a", "b"));
            check_renamed(
                &mut cluster,
                &format!("{partitions} partitions, {steps} steps"),
            );
            if is_done {
                assert!(steps > 2, "{steps}");
                break;
            }
        }
        for (fault, at) in FAULTS
            .into_iter()
            .flat_map(|f| (0..10).map(move |at| (f, at)))
        {
            let mut cluster = Cluster::new(partitions);
            let wire = Arc::new(Wire::default());
            reopen(&mut cluster, &wire);
            with_collections(&mut cluster);
            wire.arm(at, fault);
            let _ = cluster.router.reply_on("admin", rename("a", "b"));
            if !wire.heal() {
                break;
            }
            reopen(&mut cluster, &wire);
            check_renamed(
                &mut cluster,
                &format!("{partitions} partitions, {fault:?} {at}"),
            );
        }
    }
}

#[test]
fn a_name_of_a_database_is_refused_before_anything_is_renamed() {
    let mut cluster = Cluster::new(2);
    with_collections(&mut cluster);
    let other = doc! {"insert": "c", "documents": array![doc! {"_id": 1}]};
    let reply = cluster.router.reply_on("Other", other);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    for from in ["a", "b", "x"] {
        let rename = doc! {"renameCollection": format!("test.{from}"), "to": "OTHER.d"};
        assert_eq!(cluster.admin_code(rename), 13297);
    }
    assert_eq!(cluster.router.counted("a"), 5);
    assert_eq!(cluster.router.counted("b"), 3);
}

#[test]
fn a_time_series_whose_creation_ended_is_never_an_ordinary_collection() {
    let check = |cluster: &mut Cluster, text: &str| {
        // A measurement without a time is refused, whether somebody repeats the command or not.
        for repeats in [false, true] {
            if repeats {
                cluster.router.run(create());
            }
            let no_time = doc! {"insert": "ts", "documents": array![doc! {"m": 1}]};
            let reply = cluster.router.reply(no_time);
            let is_refused = !reply.get("writeErrors").is_missing();
            let is_known = cluster.router.code(create()) == 0;
            assert!(is_refused || !is_known, "{text}: {}", show(&reply));
            let list = array![measurement(1, 1)];
            cluster.router.run(doc! {"insert": "ts", "documents": list});
        }
        assert_eq!(cluster.router.counted("ts"), 2, "{text}");
        assert_eq!(kinds(cluster, "ts"), ["timeseries"], "{text}");
    };
    for steps in 1..100 {
        let mut cluster = Cluster::new(3);
        if until_cut(&mut cluster, steps, "test", create()) {
            break;
        }
        let listed = cluster.router.all(doc! {"listCollections": 1});
        if !listed.is_empty() {
            check(&mut cluster, &format!("{steps} steps"));
        }
    }
    for fault in FAULTS {
        let mut cluster = Cluster::new(3);
        let wire = Arc::new(Wire::default());
        reopen(&mut cluster, &wire);
        wire.arm(0, fault);
        assert_ne!(cluster.router.code(create()), 0);
        assert!(wire.heal());
        if matches!(fault, Fault::RouterEnds | Fault::RouterEndsBehind) {
            reopen(&mut cluster, &wire);
        }
        check(&mut cluster, &format!("{fault:?}"));
    }
}

#[test]
fn a_collection_whose_drop_or_creation_ended_is_dropped_and_created_otherwise() {
    let series = doc! {"create": "c", "timeseries": doc! {"timeField": "t", "metaField": "m"}};
    let use_it = |cluster: &mut Cluster, text: &str| {
        cluster.router.run(doc! {"drop": "c"});
        cluster.router.run(series.clone());
        let list = array![measurement(1, 1)];
        cluster.router.run(doc! {"insert": "c", "documents": list});
        // It is found again, and so is its shard key.
        cluster.router = Cluster::open(&cluster.engine, &cluster.partitions);
        assert_eq!(cluster.router.counted("c"), 1, "{text}");
        let key = doc! {"m.host": "hashed"};
        cluster.admin(doc! {"shardCollection": "test.c", "key": key});
        let list = (0..20)
            .map(|at| measurement(at, at as i32))
            .collect::<Vec<_>>();
        cluster.router.run(doc! {"insert": "c", "documents": list});
        assert_eq!(cluster.router.counted("c"), 21, "{text}");
        assert_eq!(kinds(cluster, "c"), ["timeseries"; 3], "{text}");
    };
    for dropped in [doc! {"drop": "c"}, doc! {"dropDatabase": 1}] {
        for steps in 0..100 {
            let mut cluster = Cluster::new(3);
            cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"x": 1}});
            let one = doc! {"insert": "c", "documents": array![doc! {"x": 1}]};
            cluster.router.run(one);
            let is_done = until_cut(&mut cluster, steps, "test", dropped.clone());
            use_it(&mut cluster, &format!("{} {steps}", show(&dropped)));
            if is_done {
                break;
            }
        }
    }
    let capped = doc! {"create": "c", "capped": true, "size": 4096};
    for steps in 0..100 {
        let mut cluster = Cluster::new(3);
        let is_done = until_cut(&mut cluster, steps, "test", capped.clone());
        use_it(&mut cluster, &format!("create {steps}"));
        if is_done {
            break;
        }
    }
}

#[test]
fn a_drop_with_the_uuid_of_another_collection_drops_nothing() {
    let mut cluster = Cluster::new(2);
    with_collections(&mut cluster);
    let uuid = nilometer_bson::Binary {
        subtype: 4,
        bytes: vec![1; 16].into(),
    };
    let drop = doc! {"drop": "a", "collectionUUID": Value::from(uuid)};
    assert_eq!(cluster.router.code(drop), 361);
    assert_eq!(cluster.router.counted("a"), 5);
}

#[test]
fn indexes_whose_drop_ended_are_dropped_by_its_repetition() {
    let key = |field: &str| {
        let mut key = nilometer_bson::DocumentBuilder::new();
        key.append(field, 1);
        Value::from(doc! {"key": key.finish(), "name": field})
    };
    for which in [Value::from("y"), Value::from("*"), array!["y", "z"]] {
        for at in 0..3 {
            let mut cluster = Cluster::new(3);
            let wire = Arc::new(Wire::default());
            reopen(&mut cluster, &wire);
            cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"x": "hashed"}});
            let make = doc! {"createIndexes": "c", "indexes": array![key("y"), key("z"), key("w")]};
            cluster.router.run(make);
            wire.arm(at, Fault::Lost);
            let drop_them = doc! {"dropIndexes": "c", "index": which.clone()};
            assert_ne!(cluster.router.code(drop_them.clone()), 0);
            assert!(wire.heal());
            // Nothing is dropped with a name that is none.
            let wrong = doc! {"dropIndexes": "c", "index": array!["w", "none"]};
            assert_eq!(cluster.router.code(wrong), 27);
            cluster.router.run(drop_them);
            let left = indexes(&cluster, "c");
            let listed = cluster.router.all(doc! {"listIndexes": "c"});
            let mut listed: Vec<String> = listed
                .iter()
                .map(|index| index.get("name").as_str().unwrap().to_owned())
                .collect();
            listed.sort();
            for of_partition in left {
                assert_eq!(of_partition, listed, "{at}");
            }
            assert!(!listed.contains(&"y".to_owned()), "{listed:?}");
        }
    }
}

/// Keeps inserts back.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while !state.0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Waits until an insert is kept back.
    fn await_one(&self) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |state| state.1 == 0)
                .unwrap(),
        );
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }
}

struct Gated(LocalPartition, Arc<Gate>);

struct GatedReply(Box<dyn PendingReply>, Option<Arc<Gate>>);

impl PendingReply for GatedReply {
    fn wait(&mut self, at_most: Duration) -> nilometer::Result<Option<Document>> {
        if let Some(gate) = self.1.take() {
            gate.pass();
        }
        self.0.wait(at_most)
    }
}

impl Partition for Gated {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn host(&self) -> String {
        self.0.host()
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        let gate = (request.command_name() == "insert").then(|| Arc::clone(&self.1));
        Box::new(GatedReply(self.0.send(request), gate))
    }
}

#[test]
fn what_is_changed_while_a_collection_is_being_sharded_is_so_in_all_partitions() {
    let cluster = Cluster::new(3);
    let gate = Arc::<Gate>::default();
    let partitions = cluster.partitions.iter().enumerate().map(|(at, hosted)| {
        let inner = LocalPartition::new(&format!("p{at:04}"), Arc::clone(hosted));
        Arc::new(Gated(inner, Arc::clone(&gate))) as Arc<dyn Partition>
    });
    let engine = Arc::clone(&cluster.engine);
    let router = Database::router(engine, Environment::default(), partitions.collect()).unwrap();
    let run = |command: Document| {
        let reply = router.run_command(&mut ClientSession::embedded(), &Request::new(command));
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    };
    let index = |name: &str| {
        let mut key = nilometer_bson::DocumentBuilder::new();
        key.append(name, 1);
        Value::from(doc! {"key": key.finish(), "name": name})
    };
    let make =
        |name: &str| doc! {"createIndexes": "c", "indexes": array![index(name)], "$db": "test"};
    run(make("old"));
    run(make("k"));
    std::thread::scope(|scope| {
        // A write that runs keeps the end of the command back.
        let insert = doc! {"insert": "c", "documents": array![doc! {"k": 1}], "$db": "test"};
        scope.spawn(|| run(insert));
        gate.await_one();
        let shard = doc! {"shardCollection": "test.c", "key": doc! {"k": 1}, "$db": "admin"};
        let sharding = scope.spawn(|| run(shard));
        let is_spread = || indexes(&cluster, "c").iter().all(|names| names.len() == 3);
        while !is_spread() && !sharding.is_finished() {
            std::thread::yield_now();
        }
        run(make("new"));
        run(doc! {"dropIndexes": "c", "index": "old", "$db": "test"});
        let validator = doc! {"k": doc! {"$gt": 0}};
        run(doc! {"collMod": "c", "validator": validator, "$db": "test"});
        gate.open();
    });
    for names in indexes(&cluster, "c") {
        assert_eq!(names, ["_id_", "k", "new"]);
    }
    for partition in &cluster.partitions {
        let wrong = bson::doc! {"insert": "c", "documents": [{"k": -1}]};
        let refused = partition.database().command("test", &wrong);
        assert_eq!(refused.unwrap_err().code.0, 121);
    }
    drop(Fixture::of(router));
}

/// A partition at which the requests of one name arrive after the end of their part.
struct LatePartition {
    inner: LocalPartition,
    late: &'static str,
    held: Mutex<Vec<Request>>,
}

/// A reply that does not arrive.
struct NoReply;

impl PendingReply for NoReply {
    fn wait(&mut self, at_most: Duration) -> nilometer::Result<Option<Document>> {
        std::thread::sleep(at_most);
        Ok(None)
    }
}

impl Partition for LatePartition {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn host(&self) -> String {
        self.inner.host()
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        if request.command_name() == self.late {
            self.held.lock().unwrap().push(request);
            return Box::new(NoReply);
        }
        self.inner.send(request)
    }
}

impl LatePartition {
    /// Delivers what was held, and waits for its end.
    fn deliver(&self) -> usize {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        let count = held.len();
        for request in held {
            let mut reply = self.inner.send(request);
            while reply.wait(Duration::from_secs(1)).unwrap().is_none() {}
        }
        count
    }
}

#[test]
fn a_request_that_arrives_after_the_end_of_its_part_leaves_no_cursor() {
    for late in ["aggregate", "getMore"] {
        let cluster = Cluster::hashed(2, 5000, 50);
        let named = cluster.partitions.iter().enumerate().map(|(at, hosted)| {
            Arc::new(LatePartition {
                inner: LocalPartition::new(&format!("p{at:04}"), Arc::clone(hosted)),
                late,
                held: Mutex::default(),
            })
        });
        let named: Vec<_> = named.collect();
        let partitions = named.iter().map(|p| Arc::clone(p) as Arc<dyn Partition>);
        let engine = Arc::clone(&cluster.engine);
        let router =
            Database::router(engine, Environment::default(), partitions.collect()).unwrap();
        let run =
            |command| router.run_command(&mut ClientSession::embedded(), &Request::new(command));
        let find = doc! {"find": "ts", "batchSize": 10, "maxTimeMS": 2000, "$db": "test"};
        let reply = run(find);
        if late == "getMore" {
            // The next batches were asked for when the first ones arrived.
            let id = reply.get("cursor").as_document().unwrap().get("id");
            let cursors = array![id.to_value()];
            run(doc! {"killCursors": "ts", "cursors": cursors, "$db": "test"});
        } else {
            assert_eq!(reply.get("code").as_exact_i64(), Some(50));
        }
        // The ends are on their way.
        std::thread::sleep(Duration::from_millis(50));
        let delivered: usize = named.iter().map(|partition| partition.deliver()).sum();
        assert_ne!(delivered, 0, "{late} was sent");
        for hosted in &cluster.partitions {
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while partition_cursors(hosted) > 0 {
                assert!(std::time::Instant::now() < deadline, "{late}: a cursor");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop(Fixture::of(router));
    }
}
