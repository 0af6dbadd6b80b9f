//! Backups of the local engine in an object store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nilometer_cluster::{BackupClock, BackupInfo, BackupStore, RestorePoint, Retention};
use nilometer_storage::testing::contract::{APART, TOGETHER, entries, put};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Direction, Engine, Error, KeyspaceId, LsmEngine, LsmOptions};
use object_store::ObjectStore;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;

use crate::faulty::{Faults, FaultyStore};
use crate::support::{Scratch, effort, files};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

type Contents = BTreeMap<(KeyspaceId, Vec<u8>), Vec<u8>>;

pub(crate) fn contents(engine: &dyn Engine) -> Contents {
    let view = engine.snapshot().expect("snapshot");
    let mut found = Contents::new();
    for keyspace in engine.keyspaces() {
        for (key, value) in entries(&*view, keyspace.id, &[], None, Direction::Forward) {
            found.insert((keyspace.id, key), value);
        }
    }
    found
}

pub(crate) fn store() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

pub(crate) fn backups(store: &Arc<dyn ObjectStore>) -> BackupStore {
    BackupStore::new(store.clone(), "garden").expect("threads")
}

/// Returns a clock that a test sets.
fn clock() -> (Arc<AtomicI64>, BackupClock) {
    let time = Arc::new(AtomicI64::new(0));
    let read = Arc::clone(&time);
    (time, Arc::new(move || read.load(Ordering::SeqCst)))
}

/// A database with a keyspace of small and one of large values.
struct Garden {
    engine: LsmEngine,
    ids: [KeyspaceId; 2],
    random: Random,
}

impl Garden {
    fn new(path: &Path, seed: u64) -> Self {
        let engine = LsmEngine::open(path, LsmOptions::tiny()).expect("open");
        let ids = [
            engine
                .create_keyspace("together", TOGETHER)
                .expect("create"),
            engine.create_keyspace("apart", APART).expect("create"),
        ];
        Self {
            engine,
            ids,
            random: Random::new(seed),
        }
    }

    fn write(&mut self, batches: usize) {
        for _ in 0..batches {
            let (id, key) = (self.ids[self.random.index(2)], self.random.bytes(3));
            let length = self.random.index(2000);
            put(&self.engine, id, &key, &self.random.bytes(length));
        }
    }

    fn back_up(&self, backups: &BackupStore) -> Result<BackupInfo, Error> {
        let source = self.engine.backup_source().expect("a directory");
        backups.back_up(&source, &mut |_| true)
    }
}

/// Restores and returns the contents.
pub(crate) fn restored(backups: &BackupStore, target: &Path, point: RestorePoint) -> Contents {
    let restored = backups.restore(target, point, &mut |_| true);
    restored.expect("restored");
    let engine = LsmEngine::open(target, LsmOptions::tiny()).expect("it opens");
    engine.verify().expect("nothing is damaged");
    contents(&engine)
}

pub(crate) fn check_sound(backups: &BackupStore) {
    let found = backups.verify(&mut |_| true).expect("the store works");
    assert_eq!(found.problems, [""; 0]);
}

pub(crate) fn object_names(store: &Arc<dyn ObjectStore>) -> Vec<String> {
    use futures::TryStreamExt;
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let listed = store
        .list(None)
        .map_ok(|object| object.location.to_string());
    let mut names: Vec<String> = runtime.block_on(listed.try_collect()).expect("listed");
    names.sort();
    names
}

pub(crate) fn change_object(store: &Arc<dyn ObjectStore>, name: &str, contents: Option<Vec<u8>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let path = ObjectPath::from(name);
    let changed = async {
        match contents {
            None => store.delete(&path).await,
            Some(contents) => store.put(&path, contents.into()).await.map(drop),
        }
    };
    runtime
        .expect("a runtime")
        .block_on(changed)
        .expect("changed");
}

#[test]
fn each_backup_stores_what_is_new_and_restores_whole() {
    let scratch = Scratch::new("incremental");
    let path = |name: &str| scratch.path().join(name);
    let store = files(scratch.path().to_path_buf());
    let mut garden = Garden::new(&path("db"), 1);
    let backups = BackupStore::new(store, "store").expect("threads");
    assert_eq!(backups.list().expect("listed"), []);
    let mut expected = Vec::new();
    garden.write(800);
    garden.engine.settle().expect("settle");
    for _ in 0..4 {
        let made = garden.back_up(&backups).expect("a backup");
        expected.push((made, contents(&garden.engine)));
        garden.write(20);
    }
    let first = &expected[0].0;
    assert_eq!(first.bytes, first.new_bytes);
    assert!(first.bytes > 500_000, "{first:?}");
    for (made, _) in &expected[1..] {
        assert!(made.new_bytes < first.bytes / 4, "{made:?} after {first:?}");
    }
    let listed = backups.list().expect("listed");
    assert!(listed.iter().eq(expected.iter().map(|(made, _)| made)));
    check_sound(&backups);
    for (made, contents) in &expected {
        let target = path(&format!("restored-{}", made.number));
        let point = RestorePoint::Number(made.number);
        assert!(restored(&backups, &target, point) == *contents);
    }
    // A restored database has other files with the same contents.
    let again = LsmEngine::open(path("restored-4"), LsmOptions::tiny()).expect("open");
    let source = again.backup_source().expect("a directory");
    let made = backups.back_up(&source, &mut |_| true).expect("a backup");
    assert!(made.new_bytes < first.bytes / 4, "{made:?}");
    let occupied = backups.restore(&path("restored-1"), RestorePoint::Latest, &mut |_| true);
    assert!(
        matches!(occupied, Err(Error::NotEmpty { .. })),
        "{occupied:?}"
    );
    let unknown = backups.restore(&path("new"), RestorePoint::Number(77), &mut |_| true);
    assert!(
        unknown
            .expect_err("there is none")
            .to_string()
            .contains("no backup 77")
    );
}

/// All faults that pass.
pub(crate) const PASSING: Faults = Faults {
    errors: 40,
    lost_replies: 40,
    stretches: 5,
    stretch_length: 3,
    latency_us: 300,
    ignores_conditions: false,
    refuses_conditions: false,
    drops_metadata: false,
    refuses_puts: false,
    permits_nothing: false,
};

#[test]
fn faults_that_pass_damage_no_backup() {
    let mut injected = 0;
    for seed in 0..effort(3, 60, 1000) {
        let scratch = Scratch::new("backup-faults");
        let (faulty, plan) = FaultyStore::over(store(), seed, PASSING);
        let mut garden = Garden::new(&scratch.path().join("db"), seed);
        let backups = backups(&faulty);
        for round in 0..3 {
            garden.write(60);
            // A whole stretch may be longer than the patience for one request.
            let made = loop {
                match garden.back_up(&backups) {
                    Ok(made) => break made,
                    Err(error) => assert!(matches!(error, Error::Store { .. }), "{error}"),
                }
            };
            let target = scratch.path().join(format!("restored-{round}"));
            plan.set(Faults::default());
            let point = RestorePoint::Number(made.number);
            assert!(restored(&backups, &target, point) == contents(&garden.engine));
            check_sound(&backups);
            plan.set(PASSING);
        }
        injected += plan.injected();
    }
    assert!(injected > 0);
}

/// A process that is killed sends no further request: whichever was the last, earlier backups stay and a later one can be
/// made and removed.
#[test]
fn a_backup_that_is_killed_anywhere_harms_no_other() {
    let scratch = Scratch::new("backup-kill");
    let inner = store();
    let (faulty, plan) = FaultyStore::over(inner.clone(), 1, Faults::default());
    let mut garden = Garden::new(&scratch.path().join("db"), 2);
    garden.write(100);
    garden.back_up(&backups(&inner)).expect("a backup");
    let (time, clock) = clock();
    let (mut killed, mut is_complete) = (0, false);
    for requests in (70..).step_by(if effort(1, 2, 2) == 1 { 7 } else { 1 }) {
        garden.write(30);
        plan.stop_after(requests);
        match garden.back_up(&backups(&faulty)) {
            Ok(_) => is_complete = true,
            Err(_) => killed += 1,
        }
        plan.stop_after(u64::MAX);
        let after = backups(&inner).with_clock(clock.clone(), Duration::ZERO);
        check_sound(&after);
        time.fetch_add(1, Ordering::SeqCst);
        let made = garden.back_up(&after).expect("a backup");
        let keep = Retention {
            keep: Some(2),
            keep_days: None,
        };
        let removed = after.remove_old(&keep).expect("removed");
        assert!(!removed.is_deferred);
        check_sound(&after);
        let target = scratch.path().join(format!("restored-{requests}"));
        let point = RestorePoint::Number(made.number);
        assert!(restored(&after, &target, point) == contents(&garden.engine));
        if is_complete {
            break;
        }
    }
    assert!(killed > 2, "{killed}");
    let files = object_names(&inner);
    let files = files.iter().filter(|name| name.contains("/files/"));
    assert!(files.count() < 60, "what was killed is deleted");
}

#[test]
fn a_lost_or_damaged_object_is_named() {
    let scratch = Scratch::new("backup-damage");
    let path = |name: &str| scratch.path().join(name);
    let store = store();
    let mut garden = Garden::new(&path("db"), 3);
    let backups = backups(&store);
    garden.write(300);
    let first = garden.back_up(&backups).expect("a backup");
    let whole = contents(&garden.engine);
    garden.write(300);
    garden.back_up(&backups).expect("a backup");
    let names = object_names(&store);
    let (mut lost, mut damaged) = (0, 0);
    for name in names
        .iter()
        .filter(|name| name.contains("/files/") || name.contains("/manifests/"))
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let bytes = runtime.block_on(async {
            let found = store
                .get(&ObjectPath::from(name.as_str()))
                .await
                .expect("readable");
            found.bytes().await.expect("readable").to_vec()
        });
        if name.contains("/files/") {
            change_object(&store, name, None);
            let found = backups.verify(&mut |_| true).expect("the store works");
            assert!(
                found.problems.iter().any(|problem| problem.contains(name)),
                "{name}: {found:?}"
            );
            lost += 1;
        }
        let mut flipped = bytes.clone();
        let at = flipped.len() / 2;
        flipped[at] ^= 4;
        for wrong in [flipped, bytes[..bytes.len() - 1].to_vec()] {
            change_object(&store, name, Some(wrong));
            let found = backups.verify(&mut |_| true).expect("the store works");
            assert!(
                found.problems.iter().any(|problem| problem.contains(name)),
                "{name}: {found:?}"
            );
            damaged += 1;
        }
        // What the first backup needs is there or named.
        let target = path(&format!("restored-{damaged}"));
        match backups.restore(&target, RestorePoint::Number(first.number), &mut |_| true) {
            Ok(_) => {
                let engine = LsmEngine::open(&target, LsmOptions::tiny()).expect("it opens");
                assert!(contents(&engine) == whole);
            }
            Err(error) => {
                assert!(!target.join("FORMAT").exists(), "it is no database");
                assert!(
                    error.to_string().contains(name) || matches!(error, Error::Store { .. }),
                    "{error}"
                );
            }
        }
        change_object(&store, name, Some(bytes));
    }
    check_sound(&backups);
    assert!(lost > 2 && damaged > 4, "{lost} {damaged}");
}

#[test]
fn what_no_backup_needs_is_deleted_and_no_more() {
    let scratch = Scratch::new("retention");
    let store = store();
    let mut garden = Garden::new(&scratch.path().join("db"), 4);
    let (time, clock) = clock();
    let backups = backups(&store).with_clock(clock, DAY);
    let mut expected = BTreeMap::new();
    for day in 0..6 {
        time.store(day * DAY_MS, Ordering::SeqCst);
        garden.write(150);
        garden.engine.settle().expect("settle");
        let made = garden.back_up(&backups).expect("a backup");
        expected.insert(made.number, contents(&garden.engine));
    }
    let before = object_names(&store).len();
    let keep = |keep, keep_days| {
        backups
            .remove_old(&Retention { keep, keep_days })
            .expect("removed")
    };
    assert_eq!(keep(None, None).backups, [0; 0]);
    let removed = keep(Some(2), Some(2));
    assert_eq!(removed.backups, [1, 2, 3]);
    assert!(removed.objects > 3, "{removed:?}");
    assert!(object_names(&store).len() < before);
    assert_eq!(keep(Some(1), None).backups, [4, 5]);
    check_sound(&backups);
    let listed = backups.list().expect("listed");
    assert_eq!(
        listed.iter().map(|made| made.number).collect::<Vec<_>>(),
        [6]
    );
    let target = scratch.path().join("restored");
    assert!(restored(&backups, &target, RestorePoint::Latest) == expected[&6]);
    let made = garden.back_up(&backups).expect("a backup");
    assert_eq!(made.number, 7, "no number is used again");
}

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Does what a report cannot: it is called from the requests of another backup.
fn on_another_thread(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
}

/// A removal in the middle of a backup deletes nothing that the backup uses; one that takes it for dead makes it fail.
#[test]
fn a_removal_beside_a_backup_deletes_none_of_its_objects() {
    let scratch = Scratch::new("removal");
    let store = store();
    let mut garden = Garden::new(&scratch.path().join("db"), 5);
    let backups_of = |after| backups(&store).with_clock(clock().1, after);
    let backups = backups_of(DAY);
    garden.write(300);
    garden.back_up(&backups).expect("a backup");
    let source = garden.engine.backup_source().expect("a directory");
    let one = Retention {
        keep: Some(1),
        keep_days: None,
    };
    // The second backup makes the first one outdated while the third, which uses its objects, is running.
    let mut is_first = true;
    let made = backups.back_up(&source, &mut |_| {
        if std::mem::take(&mut is_first) {
            on_another_thread(|| {
                garden.back_up(&backups).expect("a backup");
                let removed = backups.remove_old(&one).expect("removed");
                assert!(removed.is_deferred && removed.objects == 0, "{removed:?}");
            });
        }
        true
    });
    made.expect("a backup");
    check_sound(&backups);
    backups.remove_old(&one).expect("removed");
    check_sound(&backups);
    assert_eq!(backups.list().expect("listed").len(), 1);
    // The same with one that takes it for dead.
    let mut is_first = true;
    let made = backups.back_up(&source, &mut |_| {
        if std::mem::take(&mut is_first) {
            on_another_thread(|| {
                let impatient = backups_of(Duration::ZERO);
                garden.back_up(&impatient).expect("a backup");
                let removed = impatient.remove_old(&one).expect("removed");
                assert!(!removed.is_deferred, "{removed:?}");
            });
        }
        true
    });
    let error = made.expect_err("it was taken for dead").to_string();
    assert!(error.contains("taken it for dead"), "{error}");
    check_sound(&backups);
    backups.remove_old(&one).expect("removed");
    let target = scratch.path().join("restored");
    assert!(restored(&backups, &target, RestorePoint::Latest) == contents(&garden.engine));
}

/// Backups and removals of several processes at once.
#[test]
fn backups_and_removals_race() {
    for seed in 0..effort(2, 30, 500) {
        let scratch = Scratch::new("race");
        let slow = Faults {
            latency_us: 2000,
            ..Faults::default()
        };
        let (store, plan) = FaultyStore::over(store(), seed, slow);
        let failures = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (store, failures, scratch) = (&store, &failures, &scratch);
                scope.spawn(move || {
                    let path = scratch.path().join(format!("db-{worker}"));
                    let mut garden = Garden::new(&path, seed);
                    let backups = backups(store).with_clock(clock().1, DAY);
                    for round in 0..5 {
                        // Of all databases the same, so that they use each other's objects.
                        garden.write(40);
                        garden.engine.settle().expect("settle");
                        let made = garden.back_up(&backups).expect("a backup");
                        let keep = Retention {
                            keep: Some(1 + round % 3),
                            keep_days: None,
                        };
                        backups.remove_old(&keep).expect("removed");
                        let still = backups.list().expect("listed");
                        if still.iter().any(|listed| listed.number == made.number) {
                            let found = backups.verify(&mut |_| true).expect("verified");
                            failures.lock().expect("no panic").extend(found.problems);
                        }
                    }
                });
            }
        });
        plan.set(Faults::default());
        let backups = backups(&store).with_clock(clock().1, DAY);
        check_sound(&backups);
        // A verification beside a removal may find objects of a backup that goes; afterwards all is there.
        drop(failures);
        let target = scratch.path().join("restored");
        backups
            .restore(&target, RestorePoint::Latest, &mut |_| true)
            .expect("restored");
        LsmEngine::open(&target, LsmOptions::tiny()).expect("it opens");
    }
}
