//! The contract of every [`Engine`], one function for each property.
//!
//! A [`Factory`] makes engines; [`all`] checks every property on new ones. A property that does not hold panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::random::Random;
use crate::engine::{
    Direction, Durability, Engine, KEY_BYTES_MAX, Keyspace, KeyspaceId, KeyspaceOptions, Snapshot,
    WriteBatch,
};
use crate::error::Error;

/// Makes the engines under test.
pub trait Factory {
    /// Returns a new, empty engine, or the next state of the one in `slot`: see [`Factory::reopen`].
    fn create(&self, slot: &str) -> Arc<dyn Engine>;
    /// Closes `engine`, which belongs to `slot`, and opens it again. Returns `None` if nothing survives a close.
    fn reopen(&self, slot: &str, engine: Arc<dyn Engine>) -> Option<Arc<dyn Engine>>;
    /// Returns the length of the longest key.
    fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX
    }
    /// Takes a checkpoint of `engine` and opens it as `slot`. Returns `None` if the engine does not support it.
    fn checkpoint(&self, engine: &dyn Engine, slot: &str) -> Option<Arc<dyn Engine>>;
}

/// Options of an ordinary keyspace.
pub const TOGETHER: KeyspaceOptions = KeyspaceOptions {
    separate_values: false,
    short_lived: false,
    large_blocks: false,
    long_keys_of: None,
};

/// Options of a keyspace with large blocks.
pub const LARGE_BLOCKS: KeyspaceOptions = KeyspaceOptions {
    large_blocks: true,
    ..TOGETHER
};

/// Options of a keyspace with separated values.
pub const APART: KeyspaceOptions = KeyspaceOptions {
    separate_values: true,
    short_lived: false,
    large_blocks: false,
    long_keys_of: None,
};

/// Options of a keyspace with short-lived entries, which are never overwritten.
pub const SHORT_LIVED: KeyspaceOptions = KeyspaceOptions {
    separate_values: false,
    short_lived: true,
    large_blocks: false,
    long_keys_of: None,
};

/// One property.
pub type Property = (&'static str, fn(&dyn Factory));

/// Every property.
pub const PROPERTIES: &[Property] = &[
    (
        "scans_walk_both_ways_in_order",
        scans_walk_both_ways_in_order,
    ),
    ("ranges_have_their_bounds", ranges_have_their_bounds),
    (
        "the_last_operation_on_a_key_wins",
        the_last_operation_on_a_key_wins,
    ),
    (
        "a_refused_batch_leaves_no_trace",
        a_refused_batch_leaves_no_trace,
    ),
    ("snapshots_do_not_change", snapshots_do_not_change),
    ("positions_grow_by_one", positions_grow_by_one),
    (
        "keyspaces_are_named_and_dropped",
        keyspaces_are_named_and_dropped,
    ),
    (
        "keyspaces_are_created_all_or_none",
        keyspaces_are_created_all_or_none,
    ),
    ("scans_outlive_their_keyspace", scans_outlive_their_keyspace),
    ("a_closed_engine_says_so", a_closed_engine_says_so),
    (
        "what_was_committed_is_there_again",
        what_was_committed_is_there_again,
    ),
    (
        "money_is_neither_made_nor_lost",
        money_is_neither_made_nor_lost,
    ),
];

/// Runs every property.
pub fn all(factory: &dyn Factory) {
    for (_, property) in PROPERTIES {
        property(factory);
    }
}

/// Commits one put.
pub fn put(engine: &dyn Engine, id: KeyspaceId, key: &[u8], value: &[u8]) -> u64 {
    let mut batch = WriteBatch::new();
    batch.put(id, key.to_vec(), value.to_vec());
    commit(engine, batch)
}

/// Commits a batch, durably.
pub fn commit(engine: &dyn Engine, batch: WriteBatch) -> u64 {
    engine
        .commit(batch, Durability::Sync)
        .expect("a commit succeeds")
}

/// Reads a scan to its end.
pub fn entries(
    snapshot: &dyn Snapshot,
    id: KeyspaceId,
    start: &[u8],
    end: Option<&[u8]>,
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let scan = snapshot.scan(id, start, end, direction);
    let scan = scan.expect("a scan opens");
    let scan = scan.map(|entry| entry.expect("an entry is readable"));
    scan.map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

fn create(engine: &dyn Engine, name: &str, options: KeyspaceOptions) -> KeyspaceId {
    engine
        .create_keyspace(name, options)
        .expect("a keyspace is created")
}

fn snapshot(engine: &dyn Engine) -> Box<dyn Snapshot> {
    engine.snapshot().expect("a snapshot is taken")
}

/// Scans return keys in byte order, forward and backward, in whatever order they were written.
pub fn scans_walk_both_ways_in_order(factory: &dyn Factory) {
    let engine = factory.create("order");
    for (name, options) in [("together", TOGETHER), ("apart", APART)] {
        let id = create(&*engine, name, options);
        let mut random = Random::new(1);
        let mut expected = std::collections::BTreeMap::new();
        for _ in 0..600 {
            let length = 1 + random.index(6);
            let key = random.bytes(length);
            let length = random.index(400);
            let value = random.bytes(length);
            put(&*engine, id, &key, &value);
            expected.insert(key, value);
        }
        let expected = expected.into_iter().collect::<Vec<_>>();
        let view = snapshot(&*engine);
        let forward = entries(&*view, id, &[], None, Direction::Forward);
        assert_eq!(forward, expected);
        let mut backward = entries(&*view, id, &[], None, Direction::Backward);
        backward.reverse();
        assert_eq!(backward, expected);
    }
}

/// A range includes its start and excludes its end; an empty or reversed range has no entries.
pub fn ranges_have_their_bounds(factory: &dyn Factory) {
    let engine = factory.create("ranges");
    let id = create(&*engine, "k", TOGETHER);
    for key in ["a", "ab", "b", "c"] {
        put(&*engine, id, key.as_bytes(), key.as_bytes());
    }
    let view = snapshot(&*engine);
    let keys = |start: &str, end: Option<&str>, direction| {
        let found = entries(
            &*view,
            id,
            start.as_bytes(),
            end.map(str::as_bytes),
            direction,
        );
        let keys = found.into_iter().map(|(key, _)| key);
        keys.map(|key| String::from_utf8(key).expect("text"))
            .collect::<Vec<_>>()
    };
    use Direction::{Backward, Forward};
    assert_eq!(keys("", None, Forward), ["a", "ab", "b", "c"]);
    assert_eq!(keys("ab", Some("c"), Forward), ["ab", "b"]);
    assert_eq!(keys("ab", Some("c"), Backward), ["b", "ab"]);
    assert_eq!(keys("aa", None, Backward), ["c", "b", "ab"]);
    assert_eq!(keys("b", Some("b"), Forward), [""; 0]);
    assert_eq!(keys("c", Some("a"), Backward), [""; 0]);
    assert_eq!(keys("d", None, Forward), [""; 0]);
    assert_eq!(keys("", Some("a"), Forward), [""; 0]);
    assert_eq!(view.get(id, b"").expect("get"), None);
    assert_eq!(view.get(id, b"aa").expect("get"), None);
    assert_eq!(
        view.get(id, b"ab").expect("get"),
        Some(b"ab".to_vec().into())
    );
    let asked: [&[u8]; 6] = [b"c", b"", b"aa", b"ab", &[7; 70_000], b"ab"];
    let single = asked.map(|key| view.get(id, key).expect("get"));
    let together = view.get_all(id, &asked).expect("get all");
    assert_eq!(together, single);
    assert!(view.get_all(KeyspaceId(999), &asked).is_err());
    // So many that an engine may divide them among threads.
    let many: Vec<&[u8]> = asked.iter().copied().cycle().take(99).collect();
    let single: Vec<_> = single.iter().cloned().cycle().take(99).collect();
    assert_eq!(view.get_all(id, &many).expect("get all"), single);
    assert!(view.entries_max(id).is_none_or(|entries| entries >= 4));
}

/// Of several operations on one key in a batch the last one wins.
pub fn the_last_operation_on_a_key_wins(factory: &dyn Factory) {
    let engine = factory.create("last");
    for (name, options) in [("together", TOGETHER), ("apart", APART)] {
        let id = create(&*engine, name, options);
        let mut batch = WriteBatch::new();
        batch.put(id, b"b".to_vec(), vec![1; 300]);
        batch.put(id, b"a".to_vec(), vec![2; 300]);
        batch.delete(id, b"b".to_vec());
        batch.put(id, b"a".to_vec(), vec![3; 300]);
        batch.delete(id, b"c".to_vec());
        batch.put(id, b"c".to_vec(), vec![]);
        commit(&*engine, batch);
        let expected = [(b"a".to_vec(), vec![3; 300]), (b"c".to_vec(), vec![])];
        let view = snapshot(&*engine);
        assert_eq!(entries(&*view, id, &[], None, Direction::Forward), expected);
    }
}

/// A batch with an invalid operation changes nothing.
pub fn a_refused_batch_leaves_no_trace(factory: &dyn Factory) {
    let engine = factory.create("refused");
    let id = create(&*engine, "k", TOGETHER);
    let first = put(&*engine, id, b"a", b"1");
    let refused = |key: Vec<u8>, to: KeyspaceId| {
        let mut batch = WriteBatch::new();
        batch.put(id, b"a".to_vec(), b"2".to_vec());
        batch.put(to, key, b"3".to_vec());
        engine.commit(batch, Durability::Sync)
    };
    let empty = refused(Vec::new(), id);
    assert!(matches!(empty, Err(Error::InvalidKey { length: 0 })));
    let longest = factory.key_bytes_max();
    if longest == KEY_BYTES_MAX {
        let long = refused(vec![0; longest + 1], id);
        assert!(matches!(long, Err(Error::InvalidKey { length: 65_536 })));
    }
    let unknown = refused(b"b".to_vec(), KeyspaceId(999));
    assert!(matches!(unknown, Err(Error::UnknownKeyspace { id: 999 })));
    let view = snapshot(&*engine);
    assert_eq!(view.get(id, b"a").expect("get"), Some(b"1".to_vec().into()));
    let mut batch = WriteBatch::new();
    batch.put(id, vec![7; 65_535], b"4".to_vec());
    assert_eq!(commit(&*engine, batch), first + 1);
    let view = snapshot(&*engine);
    let longest = view.get(id, &[7; 65_535]).expect("get");
    assert_eq!(longest, Some(b"4".to_vec().into()));
}

/// A snapshot and its scans do not change while everything is overwritten and merged.
pub fn snapshots_do_not_change(factory: &dyn Factory) {
    let engine = factory.create("snapshots");
    for (name, options) in [("together", TOGETHER), ("apart", APART)] {
        let id = create(&*engine, name, options);
        let fill = |round: u8| {
            for key in 0..400u16 {
                put(&*engine, id, &key.to_be_bytes(), &[round; 200]);
            }
        };
        fill(1);
        let view = snapshot(&*engine);
        let mut scan = view
            .scan(id, &[], None, Direction::Backward)
            .expect("a scan opens");
        let newest = scan.next().expect("an entry").expect("readable");
        assert_eq!(newest.0, 399u16.to_be_bytes().to_vec());
        fill(2);
        engine.settle().expect("settle");
        let mut batch = WriteBatch::new();
        for key in 0..300u16 {
            batch.delete(id, key.to_be_bytes().to_vec());
        }
        commit(&*engine, batch);
        engine.settle_keyspace(id).expect("settle");
        let seen = entries(&*view, id, &[], None, Direction::Forward);
        assert_eq!(seen.len(), 400);
        assert!(seen.iter().all(|(_, value)| value == &[1; 200]));
        drop(view);
        engine.settle().expect("settle");
        let rest = scan.map(|entry| entry.expect("readable"));
        let rest = rest.collect::<Vec<_>>();
        assert_eq!(rest.len(), 399);
        assert!(rest.iter().all(|(_, value)| value[..] == [1; 200]));
        let now = snapshot(&*engine);
        let seen = entries(&*now, id, &[], None, Direction::Forward);
        assert_eq!(seen.len(), 100);
        assert!(seen.iter().all(|(_, value)| value == &[2; 200]));
    }
}

/// Each batch, also an empty one, gets the position after the one before.
pub fn positions_grow_by_one(factory: &dyn Factory) {
    let engine = factory.create("positions");
    let id = create(&*engine, "k", TOGETHER);
    let first = put(&*engine, id, b"a", b"1");
    assert_eq!(put(&*engine, id, b"a", b"2"), first + 1);
    let mut annotated = WriteBatch::new();
    annotated.annotate(b"note".to_vec());
    assert!(annotated.is_empty());
    assert_eq!(commit(&*engine, annotated), first + 2);
    engine.settle().expect("settle");
    assert_eq!(put(&*engine, id, b"a", b"3"), first + 3);
    if let Some(engine) = factory.reopen("positions", engine) {
        assert_eq!(put(&*engine, id, b"a", b"4"), first + 4);
    }
}

/// Names are unique, ids are never reused, a dropped keyspace is gone.
pub fn keyspaces_are_named_and_dropped(factory: &dyn Factory) {
    let engine = factory.create("keyspaces");
    let first = create(&*engine, "k", TOGETHER);
    let taken = engine.create_keyspace("k", TOGETHER);
    assert!(matches!(taken, Err(Error::KeyspaceExists { .. })));
    let before = snapshot(&*engine);
    let second = create(&*engine, "l", APART);
    assert!(before.get(second, b"a").is_err());
    put(&*engine, first, b"a", b"1");
    engine.drop_keyspace(first).expect("drop");
    let again = engine.drop_keyspace(first);
    assert!(matches!(again, Err(Error::UnknownKeyspace { .. })));
    let third = create(&*engine, "k", TOGETHER);
    assert!(third > second && second > first);
    let view = snapshot(&*engine);
    assert_eq!(view.get(third, b"a").expect("get"), None);
    assert!(view.get(first, b"a").is_err());
    assert!(view.scan(first, &[], None, Direction::Forward).is_err());
    let list = |engine: &dyn Engine| {
        let keyspaces = engine.keyspaces().into_iter();
        keyspaces
            .map(|k| (k.id, k.name, k.options.separate_values))
            .collect::<Vec<_>>()
    };
    let expected = [
        (second, "l".to_owned(), true),
        (third, "k".to_owned(), false),
    ];
    assert_eq!(list(&*engine), expected);
    drop((view, before));
    if let Some(engine) = factory.reopen("keyspaces", engine) {
        assert_eq!(list(&*engine), expected);
        assert!(create(&*engine, "m", TOGETHER) > third);
    }
}

/// Keyspaces that are created together have ascending ids; if one cannot be created, none is.
pub fn keyspaces_are_created_all_or_none(factory: &dyn Factory) {
    let engine = factory.create("together");
    assert_eq!(engine.create_keyspaces(&[]).expect("none"), []);
    let first = create(&*engine, "first", TOGETHER);
    let new = [("t", TOGETHER), ("a", APART), ("s", SHORT_LIVED)];
    for taken in ["first", "t"] {
        let with_taken = [&new[..], &[(taken, APART)]].concat();
        let refused = engine.create_keyspaces(&with_taken);
        assert!(matches!(refused, Err(Error::KeyspaceExists { .. })));
        assert_eq!(engine.keyspaces().len(), 1);
    }
    let before = snapshot(&*engine);
    let ids = engine.create_keyspaces(&new).expect("create");
    assert!(first < ids[0] && ids.is_sorted() && ids.len() == 3);
    assert_eq!(before.keyspaces().len(), 1);
    let mut batch = WriteBatch::new();
    for id in &ids {
        batch.put(*id, b"a".to_vec(), id.0.to_be_bytes().to_vec());
    }
    commit(&*engine, batch);
    let mut listed = engine.keyspaces().into_iter().skip(1).collect::<Vec<_>>();
    for ((id, (name, options)), keyspace) in ids.iter().zip(new).zip(listed.drain(..)) {
        let expected = Keyspace {
            id: *id,
            name: name.to_owned(),
            options,
        };
        assert_eq!(keyspace, expected);
    }
    drop(before);
    let mut engine = Some(engine);
    while let Some(current) = engine.take() {
        for id in &ids {
            let found = snapshot(&*current).get(*id, b"a").expect("get");
            assert_eq!(found, Some(id.0.to_be_bytes().to_vec().into()));
        }
        if current.keyspaces().len() > 5 {
            return;
        }
        create(
            &*current,
            &format!("later {}", current.keyspaces().len()),
            APART,
        );
        engine = factory.reopen("together", current);
    }
}

/// An imported keyspace has its id and options; ids continue above it, also after reopening. Used ids and names are refused.
pub fn imported_keyspaces_keep_their_ids(factory: &dyn Factory) {
    let engine = factory.create("imported");
    let keyspace = |id, name: &str| Keyspace {
        id: KeyspaceId(id),
        name: name.to_owned(),
        options: APART,
    };
    let first = create(&*engine, "k", TOGETHER);
    let far = keyspace(first.0 + 40, "far");
    engine.import_keyspace(&far).expect("import");
    let used = engine.import_keyspace(&keyspace(first.0 + 39, "between"));
    assert!(matches!(used, Err(Error::UsedKeyspace { .. })));
    let named = engine.import_keyspace(&keyspace(first.0 + 50, "far"));
    assert!(matches!(named, Err(Error::KeyspaceExists { .. })));
    put(&*engine, far.id, b"a", b"1");
    let listed = engine.keyspaces();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[1], far);
    assert_eq!(snapshot(&*engine).keyspaces(), listed);
    let mut next = far.id;
    let mut engine = Some(engine);
    while let Some(current) = engine.take() {
        let made = create(&*current, &format!("after {}", next.0), TOGETHER);
        assert_eq!(made.0, next.0 + 1);
        if made.0 > far.id.0 + 2 {
            return;
        }
        next = made;
        engine = factory.reopen("imported", current);
        if let Some(current) = &engine {
            let value = snapshot(&**current).get(far.id, b"a").expect("get");
            assert_eq!(value, Some(b"1".to_vec().into()));
        }
    }
}

/// A scan of a dropped keyspace continues to its end.
pub fn scans_outlive_their_keyspace(factory: &dyn Factory) {
    let engine = factory.create("outlive");
    let id = create(&*engine, "k", APART);
    for key in 0..500u16 {
        put(&*engine, id, &key.to_be_bytes(), &[9; 300]);
    }
    engine.settle().expect("settle");
    let view = snapshot(&*engine);
    let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
    engine.drop_keyspace(id).expect("drop");
    assert!(view.get(id, &7u16.to_be_bytes()).expect("get").is_some());
    drop(view);
    let other = create(&*engine, "k", APART);
    put(&*engine, other, b"a", b"1");
    engine.settle().expect("settle");
    assert_eq!(scan.filter(Result::is_ok).count(), 500);
}

/// After closing, calls fail with `Closed`, except closing again.
pub fn a_closed_engine_says_so(factory: &dyn Factory) {
    let engine = factory.create("closed");
    let id = create(&*engine, "k", TOGETHER);
    engine.close().expect("close");
    engine.close().expect("close again");
    let mut batch = WriteBatch::new();
    batch.put(id, b"a".to_vec(), b"1".to_vec());
    let refused = engine.commit(batch, Durability::Sync);
    assert!(matches!(refused, Err(Error::Closed)));
    assert!(matches!(engine.snapshot().err(), Some(Error::Closed)));
    assert!(matches!(engine.settle(), Err(Error::Closed)));
    let refused = engine.create_keyspace("l", TOGETHER);
    assert!(matches!(refused, Err(Error::Closed)));
}

/// Reopening finds every batch, flushed or not.
pub fn what_was_committed_is_there_again(factory: &dyn Factory) {
    let engine = factory.create("again");
    let ids = [
        create(&*engine, "t", TOGETHER),
        create(&*engine, "a", APART),
    ];
    let mut engine = Some(engine);
    for round in 0..4u8 {
        let Some(current) = engine.take() else { return };
        for key in 0..200u16 {
            let mut batch = WriteBatch::new();
            for id in ids {
                batch.put(id, key.to_be_bytes().to_vec(), vec![round; 150]);
                batch.put(id, vec![1, round, key as u8], vec![round]);
            }
            let durability = if key % 3 == 0 {
                Durability::Sync
            } else {
                Durability::Buffered
            };
            current.commit(batch, durability).expect("commit");
        }
        if round == 2 {
            current.settle().expect("settle");
        }
        engine = factory.reopen("again", current);
        let Some(current) = &engine else { return };
        let view = snapshot(&**current);
        for id in ids {
            let seen = entries(&*view, id, &[], None, Direction::Forward);
            let newest = seen.iter().filter(|(_, value)| value.len() == 150);
            let newest = newest.collect::<Vec<_>>();
            assert_eq!(newest.len(), 200);
            assert!(newest.iter().all(|(_, value)| value == &[round; 150]));
            assert_eq!(seen.len(), 200 + 200 * (usize::from(round) + 1));
        }
        current.verify().expect("nothing is damaged");
    }
}

const ACCOUNTS: u64 = 64;
const MONEY: i64 = 1000;

/// The bank: writers move money between accounts in three keyspaces, readers sum all accounts. Every snapshot has the
/// same sum, also when it is read again; writers read their own writes.
pub fn money_is_neither_made_nor_lost(factory: &dyn Factory) {
    bank(factory, 1200);
}

/// The bank with `rounds` transfers for each of four writers. Returns the number of sums taken.
pub fn bank(factory: &dyn Factory, rounds: u64) -> u64 {
    let engine = factory.create("bank");
    let banks = [
        create(&*engine, "one", TOGETHER),
        create(&*engine, "two", APART),
        create(&*engine, "three", TOGETHER),
    ];
    let mut opening = WriteBatch::new();
    for bank in banks {
        for account in 0..ACCOUNTS {
            opening.put(bank, account.to_be_bytes().to_vec(), money(MONEY));
        }
    }
    commit(&*engine, opening);
    let finished = AtomicBool::new(false);
    let sums = AtomicU64::new(0);
    let (finished, sums) = (&finished, &sums);
    thread::scope(|scope| {
        let writers = (0..4u64).map(|writer| {
            let engine = Arc::clone(&engine);
            scope.spawn(move || move_money(&*engine, banks, writer, rounds))
        });
        let writers = writers.collect::<Vec<_>>();
        for _ in 0..2 {
            let engine = Arc::clone(&engine);
            scope.spawn(move || {
                while !finished.load(Ordering::Acquire) {
                    let view = snapshot(&*engine);
                    let first = sum(&*view, banks);
                    thread::yield_now();
                    assert_eq!(sum(&*view, banks), first, "a snapshot changed");
                    let all = 3 * ACCOUNTS as i64 * MONEY;
                    assert_eq!(first, all, "a snapshot saw half a batch");
                    sums.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for writer in writers {
            let ended = writer.join();
            finished.fetch_or(ended.is_err(), Ordering::AcqRel);
            assert!(ended.is_ok(), "a writer panicked");
        }
        finished.store(true, Ordering::Release);
    });
    sums.load(Ordering::Relaxed)
}

/// A balance, padded so that flushes come often.
fn money(amount: i64) -> Vec<u8> {
    let mut value = amount.to_le_bytes().to_vec();
    value.resize(200, 7);
    value
}

fn balance(view: &dyn Snapshot, bank: KeyspaceId, account: u64) -> i64 {
    let value = view.get(bank, &account.to_be_bytes()).expect("get");
    let value = value.expect("an account is there");
    i64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

fn sum(view: &dyn Snapshot, banks: [KeyspaceId; 3]) -> i64 {
    let mut total = 0;
    for bank in banks {
        let accounts = entries(view, bank, &[], None, Direction::Forward);
        assert_eq!(accounts.len() as u64, ACCOUNTS);
        total += accounts
            .iter()
            .map(|(_, value)| i64::from_le_bytes(value[..8].try_into().expect("eight bytes")))
            .sum::<i64>();
    }
    total
}

/// One writer: moves money between accounts that only it changes, so it knows every balance.
fn move_money(engine: &dyn Engine, banks: [KeyspaceId; 3], writer: u64, rounds: u64) {
    let mut random = Random::new(writer);
    for round in 0..rounds {
        let own = |random: &mut Random| random.below(ACCOUNTS / 4) * 4 + writer;
        let from = (banks[random.index(3)], own(&mut random));
        let to = (banks[random.index(3)], own(&mut random));
        if from == to {
            continue;
        }
        let view = snapshot(engine);
        let amount = random.below(50) as i64;
        let left = balance(&*view, from.0, from.1) - amount;
        let right = balance(&*view, to.0, to.1) + amount;
        drop(view);
        let mut batch = WriteBatch::new();
        batch.put(from.0, from.1.to_be_bytes().to_vec(), money(left));
        batch.put(to.0, to.1.to_be_bytes().to_vec(), money(right));
        let durability = if round % 2 == 0 {
            Durability::Sync
        } else {
            Durability::Buffered
        };
        engine.commit(batch, durability).expect("commit");
        let view = snapshot(engine);
        assert_eq!(balance(&*view, from.0, from.1), left, "own write missed");
        assert_eq!(balance(&*view, to.0, to.1), right, "own write missed");
    }
}
