//! Random histories, compared with an ordered map after each step.
//!
//! The seed determines the history: batches over several keyspaces, reads of all kinds, snapshots read again much
//! later, keyspaces created and dropped, settling, reopening, checkpoints opened and compared. After each step that
//! could matter, everything is compared. After each step that could matter, everything is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::contract::{APART, Factory, LARGE_BLOCKS, SHORT_LIVED, TOGETHER, entries};
use super::random::Random;
use crate::engine::{Direction, Durability, Engine, KeyspaceId, Snapshot, WriteBatch, seek};

/// Maximum number of keyspaces at one time.
const KEYSPACES_MAX: usize = 5;

/// Maximum number of snapshots kept at one time.
const KEPT_MAX: usize = 3;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;
type Contents = BTreeMap<KeyspaceId, Entries>;

/// Counts of what a history did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Batches committed.
    pub batches: u64,
    /// Snapshots compared.
    pub snapshots: u64,
    /// Times the engine was reopened.
    pub reopenings: u64,
    /// Checkpoints opened and compared.
    pub checkpoints: u64,
}

struct History<'a> {
    factory: &'a dyn Factory,
    slot: String,
    engine: Arc<dyn Engine>,
    contents: Contents,
    short_lived: BTreeSet<KeyspaceId>,
    kept: Vec<(Box<dyn Snapshot>, Contents)>,
    random: Random,
    names: u64,
    coverage: Coverage,
}

/// Runs the history of `seed` with `steps` steps; panics when the engine differs from the model.
pub fn history(factory: &dyn Factory, seed: u64, steps: u64) -> Coverage {
    let slot = format!("history-{seed}");
    let mut history = History {
        factory,
        engine: factory.create(&slot),
        slot,
        contents: Contents::new(),
        short_lived: BTreeSet::new(),
        kept: Vec::new(),
        random: Random::new(seed),
        names: 0,
        coverage: Coverage::default(),
    };
    history.create_keyspace();
    for _ in 0..steps {
        history.step();
    }
    history.compare_all();
    history.engine.verify().expect("nothing is damaged");
    history.engine.close().expect("close");
    history.coverage
}

impl History<'_> {
    fn step(&mut self) {
        match self.random.below(100) {
            0..=69 => self.commit(),
            70..=79 => self.read_some(),
            80..=85 => self.keep_snapshot(),
            86..=89 => self.compare_kept(),
            90..=91 => self.create_keyspace(),
            92 => self.drop_keyspace(),
            93..=95 => self.compare_all(),
            96 => self.engine.settle().expect("settle"),
            97 => self.checkpoint(),
            98 => self.reopen(),
            _ => self.engine.sync().expect("sync"),
        }
    }

    fn create_keyspace(&mut self) {
        if self.contents.len() >= KEYSPACES_MAX {
            return;
        }
        let options = [APART, TOGETHER, SHORT_LIVED, LARGE_BLOCKS][self.random.index(4)];
        self.names += 1;
        let name = format!("k{}", self.names);
        let id = self.engine.create_keyspace(&name, options).expect("create");
        assert!(self.contents.insert(id, Entries::new()).is_none());
        if options.short_lived {
            self.short_lived.insert(id);
        }
    }

    fn any_keyspace(&mut self) -> Option<KeyspaceId> {
        let ids = self.contents.keys().copied().collect::<Vec<_>>();
        if ids.is_empty() {
            return None;
        }
        let position = self.random.index(ids.len());
        ids.get(position).copied()
    }

    fn drop_keyspace(&mut self) {
        if let Some(id) = self.any_keyspace() {
            self.engine.drop_keyspace(id).expect("drop");
            self.contents.remove(&id);
        }
    }

    /// Few distinct keys, so that most are overwritten often.
    fn any_key(&mut self) -> Vec<u8> {
        let number = self.random.below(120);
        let mut key = format!("key{number:03}").into_bytes();
        if number.is_multiple_of(7) {
            key.extend([0; 30]);
        }
        key
    }

    fn commit(&mut self) {
        let mut batch = WriteBatch::new();
        let mut touched = BTreeSet::new();
        for _ in 0..1 + self.random.below(12) {
            let Some(id) = self.any_keyspace() else {
                return;
            };
            let key = self.any_key();
            let contents = self.contents.entry(id).or_default();
            // A short-lived entry is not put over an entry that exists or existed before this batch.
            let short_lived = self.short_lived.contains(&id);
            if !touched.insert((id, key.clone())) && short_lived {
                continue;
            }
            let deletes = short_lived && contents.contains_key(&key);
            if deletes || self.random.one_in(4) {
                batch.delete(id, key.clone());
                contents.remove(&key);
            } else {
                let length = [0, 10, 100, 130, 500, 3000][self.random.index(6)];
                let value = self.random.bytes(length);
                batch.put(id, key.clone(), value.clone());
                contents.insert(key, value);
            }
        }
        let durability = if self.random.one_in(3) {
            Durability::Sync
        } else {
            Durability::Buffered
        };
        self.engine.commit(batch, durability).expect("commit");
        self.coverage.batches += 1;
    }

    fn read_some(&mut self) {
        let Some(id) = self.any_keyspace() else {
            return;
        };
        let (one, other) = (self.any_key(), self.any_key());
        let (start, end) = (one.clone().min(other.clone()), one.max(other));
        let view = self.engine.snapshot().expect("snapshot");
        let model = &self.contents[&id];
        let found = view.get(id, &start).expect("get");
        assert_eq!(found.as_deref(), model.get(&start).map(Vec::as_slice));
        let mut expected = model
            .range(start.clone()..end.clone())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<Vec<_>>();
        let direction = if self.random.one_in(2) {
            expected.reverse();
            Direction::Backward
        } else {
            Direction::Forward
        };
        let found = entries(&*view, id, &start, Some(&end), direction);
        assert_eq!(found, expected, "range of {id:?}");
        self.seek_some(id, &*view, (&start, &end));
    }

    /// Reads a range forward in parts: a few entries, then a seek to a key behind them.
    fn seek_some(&mut self, id: KeyspaceId, view: &dyn Snapshot, range: (&[u8], &[u8])) {
        let (mut from, end) = (range.0.to_vec(), range.1);
        let scan = view.scan(id, &from, Some(end), Direction::Forward);
        let mut scan = scan.expect("a scan opens");
        loop {
            for _ in 0..self.random.below(4) {
                let expected = self.contents[&id].range(from.clone()..end.to_vec()).next();
                let found = scan.next().transpose().expect("readable");
                let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
                let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
                assert_eq!(found, expected, "after a seek to {from:?} in {id:?}");
                let Some((key, _)) = found else { return };
                from = [&key[..], &[0]].concat();
            }
            let target = self.any_key();
            if target < from || &target[..] > end {
                return;
            }
            seek(&mut scan, view, id, &target, Some(end)).expect("a seek succeeds");
            from = target;
        }
    }

    fn keep_snapshot(&mut self) {
        if self.kept.len() >= KEPT_MAX {
            let position = self.random.index(self.kept.len());
            let (view, contents) = self.kept.swap_remove(position);
            compare(&*view, &contents);
        }
        let view = self.engine.snapshot().expect("snapshot");
        self.kept.push((view, self.contents.clone()));
        self.coverage.snapshots += 1;
    }

    fn compare_kept(&self) {
        for (view, contents) in &self.kept {
            compare(&**view, contents);
        }
    }

    fn compare_all(&self) {
        self.compare_kept();
        let view = self.engine.snapshot().expect("snapshot");
        compare(&*view, &self.contents);
    }

    fn checkpoint(&mut self) {
        self.coverage.checkpoints += 1;
        let slot = format!("{}-copy-{}", self.slot, self.coverage.checkpoints);
        if let Some(copy) = self.factory.checkpoint(&*self.engine, &slot) {
            compare(&*copy.snapshot().expect("snapshot"), &self.contents);
            // The copy is an independent database.
            let id = copy.create_keyspace("own", TOGETHER).expect("create");
            super::contract::put(&*copy, id, b"a", b"1");
            copy.settle().expect("settle");
            copy.verify().expect("nothing is damaged");
            copy.close().expect("close");
        }
    }

    fn reopen(&mut self) {
        self.compare_kept();
        self.kept.clear();
        let engine = Arc::clone(&self.engine);
        // The factory must hold the last reference.
        self.engine = Arc::new(crate::MemoryEngine::new());
        match self.factory.reopen(&self.slot, Arc::clone(&engine)) {
            Some(reopened) => {
                drop(engine);
                self.engine = reopened;
                self.coverage.reopenings += 1;
                self.compare_all();
            }
            None => self.engine = engine,
        }
    }
}

fn compare(view: &dyn Snapshot, contents: &Contents) {
    for (id, expected) in contents {
        let found = entries(view, *id, &[], None, Direction::Forward);
        let found = found.into_iter().collect::<Entries>();
        assert_eq!(&found, expected, "contents of {id:?}");
    }
}
