//! Views of a database that another engine writes: each shows one moment, refuses writes, and costs little.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer::Database;
use nilometer::services::{Environment, MemberRole, ReplicaSet};
use nilometer_cluster::{SlateEngine, SlateOptions, SlateReader, SlateView};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Durability, Engine, Error, KeyspaceId, KeyspaceOptions, WriteBatch,
};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::support::{Scratch, SetAtDrop};

const PATH: &str = "garden";

fn reader(store: &Arc<dyn ObjectStore>) -> SlateReader {
    SlateReader::new(store.clone(), PATH, &SlateOptions::tiny()).expect("threads")
}

fn engine(store: &Arc<dyn ObjectStore>) -> SlateEngine {
    SlateEngine::open(store.clone(), PATH, &SlateOptions::tiny()).expect("an engine")
}

fn entries(
    view: &SlateView,
    keyspace: KeyspaceId,
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let snapshot = view.snapshot().expect("a snapshot");
    let scan = snapshot.scan(keyspace, &[], None, direction);
    let entries = scan.expect("a scan").map(|entry| entry.expect("an entry"));
    entries
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

#[test]
fn a_view_is_opened_only_if_something_is_new() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut reader = reader(&store);
    assert!(reader.refresh().is_err(), "there is no database");
    let engine = engine(&store);
    let keyspace = engine.create_keyspace("k", KeyspaceOptions::default());
    let keyspace = keyspace.expect("a keyspace");
    let mut expected = BTreeMap::new();
    for n in 0..300u32 {
        let mut batch = WriteBatch::new();
        batch.put(keyspace, n.to_be_bytes().to_vec(), vec![7; 1000]);
        expected.insert(n.to_be_bytes().to_vec(), vec![7; 1000]);
        engine.commit(batch, Durability::Sync).expect("a commit");
    }
    let view = reader.refresh().expect("the store works").expect("a view");
    let forward: Vec<_> = expected.clone().into_iter().collect();
    assert_eq!(entries(&view, keyspace, Direction::Forward), forward);
    let backward: Vec<_> = expected.into_iter().rev().collect();
    assert_eq!(entries(&view, keyspace, Direction::Backward), backward);
    let snapshot = view.snapshot().expect("a snapshot");
    assert!(
        snapshot
            .get(keyspace, &7u32.to_be_bytes())
            .is_ok_and(|value| value.is_some())
    );
    assert!(snapshot.version(keyspace).is_some());
    assert!(reader.refresh().expect("the store works").is_none());
    let before = reader.requests();
    assert!(reader.refresh().expect("the store works").is_none());
    let after = reader.requests();
    let requests = after.gets + after.lists - before.gets - before.lists;
    assert!(requests <= 12 && after.puts == 0, "{before:?} {after:?}");
    // Nothing is written through it.
    assert!(view.is_read_only());
    let mut batch = WriteBatch::new();
    batch.put(keyspace, vec![1], vec![1]);
    let refused = [
        view.commit(batch, Durability::Sync).err(),
        view.create_keyspace("other", KeyspaceOptions::default())
            .err(),
        view.drop_keyspace(keyspace).err(),
    ];
    for refusal in refused {
        assert!(matches!(refusal, Some(Error::ReadOnly)), "{refusal:?}");
    }
    // A snapshot outlives its view; a view that is closed gives none.
    view.close().expect("closed");
    assert!(matches!(view.snapshot().err(), Some(Error::Closed)));
    drop((view, reader));
    assert!(
        snapshot
            .get(keyspace, &8u32.to_be_bytes())
            .is_ok_and(|value| value.is_some())
    );
}

/// A writer moves amounts between accounts; each view shows the same sum, however often it is read.
#[test]
fn a_view_shows_one_moment_while_others_write() {
    const ACCOUNTS: u32 = 20;
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let engine = engine(&store);
    let keyspace = engine.create_keyspace("bank", KeyspaceOptions::default());
    let keyspace = keyspace.expect("a keyspace");
    let put = |batch: &mut WriteBatch, account: u32, amount: u64| {
        let key = account.to_be_bytes().to_vec();
        batch.put(keyspace, key, amount.to_be_bytes().to_vec());
    };
    let mut batch = WriteBatch::new();
    (0..ACCOUNTS).for_each(|account| put(&mut batch, account, 100));
    engine.commit(batch, Durability::Sync).expect("a commit");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writing = SetAtDrop(&is_over);
        scope.spawn(|| {
            let mut amounts = [100u64; ACCOUNTS as usize];
            let mut random = 1u64;
            while !is_over.load(Ordering::Relaxed) {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let from = (random >> 33) as u32 % ACCOUNTS;
                let to = (random >> 45) as u32 % ACCOUNTS;
                if from == to || amounts[from as usize] == 0 {
                    continue;
                }
                amounts[from as usize] -= 1;
                amounts[to as usize] += 1;
                let mut batch = WriteBatch::new();
                for account in [from, to] {
                    put(&mut batch, account, amounts[account as usize]);
                }
                engine.commit(batch, Durability::Sync).expect("a commit");
            }
        });
        let mut reader = reader(&store);
        let (least, end) = (Duration::from_secs(2), Duration::from_secs(60));
        let (began, mut views, mut last) = (Instant::now(), 0, 0);
        while began.elapsed() < least || (views <= 3 && began.elapsed() < end) {
            let Some(view) = reader.refresh().expect("the store works") else {
                continue;
            };
            views += 1;
            assert!(view.sequence() > last);
            last = view.sequence();
            let first = entries(&view, keyspace, Direction::Forward);
            let amount = |value: &[u8]| u64::from_be_bytes(value.try_into().expect("8 bytes"));
            let sum: u64 = first.iter().map(|(_, value)| amount(value)).sum();
            assert_eq!(sum, 100 * u64::from(ACCOUNTS));
            std::thread::sleep(Duration::from_millis(20));
            let snapshot = view.snapshot().expect("a snapshot");
            for (key, value) in &first {
                let again = snapshot.get(keyspace, key).expect("the store works");
                assert_eq!(again.as_deref(), Some(&value[..]));
            }
        }
        drop(writing);
        assert!(views > 3, "{views} views");
    });
}

/// The cost of a new view: what `docs/decisions/0023` says of it.
#[test]
fn a_database_over_a_view_is_opened_quickly() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let writer = Database::with_engine(Arc::new(engine(&store)), Environment::default());
    let writer = writer.expect("a database");
    for n in 0..50 {
        let name = format!("soil{n}");
        let soil = writer.collection::<bson::Document>("garden", &name);
        soil.create_timeseries("time", Some("bed"))
            .expect("a collection");
        let measurements = (0..200i64).map(|at| {
            bson::doc! { "time": bson::DateTime::from_millis(at * 60_000), "bed": at % 8, "n": at }
        });
        soil.insert_many(measurements).expect("measurements");
    }
    let mut reader = reader(&store);
    let view = reader.refresh().expect("the store works").expect("a view");
    let first = Database::with_engine(Arc::new(view), Environment::default());
    let first = first.expect("a database");
    let beds = writer.collection::<bson::Document>("garden", "beds");
    let mut took = Vec::new();
    let mut current = first;
    for n in 0..10 {
        beds.insert_one(bson::doc! { "_id": n })
            .expect("a document");
        let began = Instant::now();
        let view = reader.refresh().expect("the store works").expect("a view");
        let successor = current.successor(Arc::new(view)).expect("a database");
        took.push(began.elapsed());
        let soil = successor.collection::<bson::Document>("garden", "soil7");
        assert_eq!(soil.count(bson::doc! {}).expect("a count"), 200);
        let beds = successor.collection::<bson::Document>("garden", "beds");
        assert_eq!(beds.count(bson::doc! {}).expect("a count"), n as u64 + 1);
        current = successor;
    }
    took.sort_unstable();
    assert!(took[0] < Duration::from_secs(2), "{took:?}");
}

/// A command may be received as a secondary's, and run after the server has become primary: a view is then too old.
#[test]
fn a_view_is_read_as_a_secondary_by_a_primary_too() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let writer = Database::with_engine(Arc::new(engine(&store)), Environment::default());
    let writer = writer.expect("a database");
    let beds = writer.collection::<bson::Document>("garden", "beds");
    beds.insert_one(bson::doc! { "_id": 1 })
        .expect("a document");
    let set = ReplicaSet::new("garden", "pot:1");
    set.update(|state| state.role = MemberRole::Primary);
    let environment = Environment {
        replica_set: Some(Arc::new(set)),
        ..Environment::default()
    };
    let view = reader(&store).refresh().expect("the store works");
    let view = Arc::new(view.expect("a view"));
    let view = Database::with_engine(view, environment).expect("a database");
    for (command, code) in [
        (bson::doc! { "count": "beds" }, 13_435),
        (
            bson::doc! { "insert": "beds", "documents": [{ "_id": 2 }] },
            10_107,
        ),
    ] {
        let refused = view.command("garden", &command).expect_err("refused");
        assert_eq!(refused.code.0, code, "{refused:?}");
    }
    let anywhere = bson::doc! { "mode": "secondaryPreferred" };
    let count = bson::doc! { "count": "beds", "$readPreference": anywhere };
    let counted = view.command("garden", &count).expect("a count");
    assert_eq!(counted.get_i32("n").ok(), Some(1), "{counted}");
}

/// The bytes of the files below a folder.
fn bytes_below(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        match path.is_dir() {
            true => Some(bytes_below(&path)),
            false => path.metadata().ok().map(|meta| meta.len()),
        }
    };
    entries.filter_map(of).sum()
}

/// The views of a process, of the one that comes after it, and the engine of that, have one cache of tables.
#[test]
fn a_cache_on_a_disk_is_used_by_views_and_bounded() {
    const CACHE_BYTES: u64 = 16 << 20;
    const ENTRIES: u64 = 5000;
    const PARTS: u64 = 4;
    let folder = Scratch::new("view-cache");
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let options = SlateOptions {
        cache_path: Some(folder.path().join("objects")),
        cache_path_bytes: CACHE_BYTES as usize,
        block_cache_bytes: 0,
        ..SlateOptions::tiny()
    };
    let written = SlateOptions {
        memtable_bytes: 4 << 20,
        memory_bytes_max: 16 << 20,
        ..SlateOptions::tiny()
    };
    let engine = SlateEngine::open(store.clone(), PATH, &written).expect("an engine");
    let keyspace = engine.create_keyspace("k", KeyspaceOptions::default());
    let keyspace = keyspace.expect("a keyspace");
    let mut random = Random::new(3);
    let mut write = |from: u64| {
        let mut batch = WriteBatch::new();
        for n in from..from + ENTRIES {
            batch.put(keyspace, n.to_be_bytes().to_vec(), random.bytes(2000));
        }
        engine.commit(batch, Durability::Sync).expect("a commit");
        engine.settle().expect("merged");
    };
    write(0);
    let gets_of = |reader: &mut SlateReader| {
        reader.forget();
        let view = reader.refresh().expect("the store works").expect("a view");
        let before = reader.requests().gets;
        let found = entries(&view, keyspace, Direction::Forward).len() as u64;
        (found, reader.requests().gets - before)
    };
    let open = || SlateReader::new(store.clone(), PATH, &options).expect("a reader");
    let mut first = open();
    let (found, gets) = gets_of(&mut first);
    assert!(
        found == ENTRIES && gets > 0,
        "{found} entries by {gets} requests"
    );
    assert_eq!(gets_of(&mut first), (ENTRIES, 0), "the next view");
    drop(first);
    let mut next = open();
    assert_eq!(gets_of(&mut next), (ENTRIES, 0), "the next process");
    for part in 1..PARTS {
        write(part * ENTRIES);
        let (found, _) = gets_of(&mut next);
        assert_eq!(found, (part + 1) * ENTRIES);
    }
    let cached = bytes_below(folder.path());
    assert!(cached <= CACHE_BYTES, "{cached}");
    assert!(bytes_below(folder.path()) > 0);
    // What it writes is read from the folder, too, and the requests are those of the reader.
    drop(engine);
    let shared = SlateOptions {
        disk_cache: next.disk_cache(),
        ..options
    };
    let engine = SlateEngine::open(store.clone(), PATH, &shared).expect("an engine");
    let mut batch = WriteBatch::new();
    batch.put(keyspace, b"last".to_vec(), b"1".to_vec());
    let before = next.requests().puts;
    engine.commit(batch, Durability::Sync).expect("a commit");
    assert!(next.requests().puts > before);
    drop(engine);
    assert_eq!(gets_of(&mut next).0, PARTS * ENTRIES + 1);
}
