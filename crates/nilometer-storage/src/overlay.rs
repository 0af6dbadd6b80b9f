//! An engine over a snapshot of another one: it shows the snapshot and what was written since, which stays in memory.
//!
//! ```text
//! snapshot of the engine below   a ─ b ─ c ─ d
//! writes                             b'   (c removed)   e
//! shown                          a ─ b' ───── d ─ e
//! ```
//!
//! A transaction writes to such an engine. [`OverlayEngine::writes`] returns what it wrote, and the caller decides what becomes of
//! it: the engine below never changes. Keyspaces are those of the engine below; one that was created after the snapshot is
//! empty.
//!
//! A snapshot shares the maps of the writes. The next write to a map copies it if a snapshot is alive, so many small batches
//! beside open scans cost more than one large batch.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::bytes::Bytes;
use crate::engine::{
    Direction, Durability, Engine, Keyspace, KeyspaceId, NewKeyspace, Operation, Scan, ScanEntries,
    Snapshot, WriteBatch,
};
use crate::error::{Error, Result};
use crate::forward_engine;
use crate::lock::lock;

/// The writes to one keyspace by key; `None` is a removal.
pub type OverlayKeyspace = BTreeMap<Vec<u8>, Option<Bytes>>;

/// The writes to all keyspaces.
pub type OverlayWrites = BTreeMap<KeyspaceId, Arc<OverlayKeyspace>>;

/// Bytes of an entry beside its key and value, about.
const ENTRY_BYTES: u64 = 64;

/// See the module head.
pub struct OverlayEngine {
    below: Arc<dyn Engine>,
    snapshot: Arc<dyn Snapshot>,
    bytes_max: u64,
    state: Mutex<OverlayState>,
}

#[derive(Default)]
struct OverlayState {
    writes: OverlayWrites,
    /// The annotations of all batches, in order.
    annotation: Vec<u8>,
    /// Bytes of the keys and values of all batches, about. Annotations have a limit of their own.
    bytes: u64,
    commits: u64,
}

impl OverlayEngine {
    /// Returns an engine that shows what `below` shows now. It keeps at most `bytes_max` bytes of writes, and at most as many
    /// bytes of annotations: an annotation repeats the documents that its batch writes, and a caller counts them once.
    pub fn over(below: Arc<dyn Engine>, bytes_max: u64) -> Result<Self> {
        Ok(Self {
            snapshot: below.snapshot()?.into(),
            below,
            bytes_max,
            state: Mutex::default(),
        })
    }

    /// Returns what this engine showed before its writes. Keyspaces that were created later are empty.
    pub fn base(&self) -> Box<dyn Snapshot> {
        Box::new(self.with_writes(OverlayWrites::new()))
    }

    /// Returns what was written.
    pub fn writes(&self) -> OverlayWrites {
        self.state().writes.clone()
    }

    /// Returns the annotations of all batches, in order.
    pub fn annotation(&self) -> Vec<u8> {
        self.state().annotation.clone()
    }

    fn with_writes(&self, writes: OverlayWrites) -> OverlaySnapshot {
        OverlaySnapshot {
            below: self.snapshot.clone(),
            engine: self.below.clone(),
            writes,
        }
    }

    fn state(&self) -> MutexGuard<'_, OverlayState> {
        lock(&self.state)
    }

    fn unsupported<T>(operation: &'static str) -> Result<T> {
        Err(Error::Unsupported { operation })
    }
}

impl Engine for OverlayEngine {
    forward_engine!(below: keyspaces, confirm, keyspace_statistics, key_bytes_max, statistics,
        check_writable);

    fn create_keyspaces(&self, _: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        Self::unsupported("creating a keyspace over a snapshot")
    }

    fn drop_keyspace(&self, _: KeyspaceId) -> Result<()> {
        Self::unsupported("dropping a keyspace over a snapshot")
    }

    fn commit(&self, batch: WriteBatch, _: Durability) -> Result<u64> {
        batch.check(self.below.key_bytes_max())?;
        let bytes = batch.bytes() + batch.len() as u64 * ENTRY_BYTES;
        let mut state = self.state();
        let total = state.bytes.saturating_add(bytes);
        let annotation =
            (state.annotation.len() as u64).saturating_add(batch.annotation.len() as u64);
        if total.max(annotation) > self.bytes_max {
            return Err(Error::OverlayFull {
                bytes_max: self.bytes_max,
            });
        }
        state.bytes = total;
        state.commits += 1;
        let (operations, mut annotation) = batch.into_parts();
        state.annotation.append(&mut annotation);
        for (keyspace, key, operation) in operations {
            let writes = state.writes.entry(keyspace).or_default();
            let value = match operation {
                Operation::Put(value) => Some(Bytes::from(value)),
                Operation::Delete => None,
            };
            Arc::make_mut(writes).insert(key, value);
        }
        Ok(state.commits)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        Ok(Box::new(self.with_writes(self.writes())))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&self, _: &Path) -> Result<()> {
        Self::unsupported("a checkpoint over a snapshot")
    }

    fn verify(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// The snapshot below, and writes.
struct OverlaySnapshot {
    below: Arc<dyn Snapshot>,
    engine: Arc<dyn Engine>,
    writes: OverlayWrites,
}

impl OverlaySnapshot {
    /// Turns the error for a keyspace that was created after the snapshot into `empty`.
    fn or_new<T>(&self, keyspace: KeyspaceId, found: Result<T>, empty: T) -> Result<T> {
        match found {
            Err(Error::UnknownKeyspace { .. })
                if self
                    .engine
                    .keyspaces()
                    .iter()
                    .any(|known| known.id == keyspace) =>
            {
                Ok(empty)
            }
            found => found,
        }
    }
}

impl Snapshot for OverlaySnapshot {
    fn keyspaces(&self) -> Vec<Keyspace> {
        self.engine.keyspaces()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        if let Some(written) = self
            .writes
            .get(&keyspace)
            .and_then(|writes| writes.get(key))
        {
            return Ok(written.clone());
        }
        self.or_new(keyspace, self.below.get(keyspace, key), None)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        let below = self.below.scan(keyspace, start, end, direction);
        let below = self.or_new(keyspace, below, Box::new(std::iter::empty()) as Scan)?;
        let Some(writes) = self.writes.get(&keyspace) else {
            return Ok(below);
        };
        if end.is_some_and(|end| end <= start) {
            return Ok(below);
        }
        let upper = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec()));
        Ok(Box::new(OverlayScan {
            below: below.fuse(),
            next_below: None,
            writes: writes.clone(),
            next_write: None,
            lower: Bound::Included(start.to_vec()),
            upper,
            direction,
        }))
    }

    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        match self.writes.contains_key(&keyspace) {
            true => None,
            false => self.below.version(keyspace),
        }
    }
}

/// Merges a scan of the snapshot below with writes.
struct OverlayScan {
    below: std::iter::Fuse<Scan>,
    next_below: Option<(Bytes, Bytes)>,
    writes: Arc<OverlayKeyspace>,
    next_write: Option<(Vec<u8>, Option<Bytes>)>,
    /// Of the writes that are left.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    direction: Direction,
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl OverlayScan {
    fn take_write(&mut self) -> Option<(Vec<u8>, Option<Bytes>)> {
        let bounds = (as_slice(&self.lower), as_slice(&self.upper));
        let mut left = self.writes.range::<[u8], _>(bounds);
        let (key, value) = match self.direction {
            Direction::Forward => left.next(),
            Direction::Backward => left.next_back(),
        }?;
        let found = (key.clone(), value.clone());
        let bound = Bound::Excluded(key.clone());
        match self.direction {
            Direction::Forward => self.lower = bound,
            Direction::Backward => self.upper = bound,
        }
        Some(found)
    }
}

impl ScanEntries for OverlayScan {}

impl Iterator for OverlayScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.next_below.is_none() {
                self.next_below = match self.below.next() {
                    Some(Err(error)) => return Some(Err(error)),
                    Some(Ok(entry)) => Some(entry),
                    None => None,
                };
            }
            if self.next_write.is_none() {
                self.next_write = self.take_write();
            }
            let (key, value) = match (&self.next_below, self.next_write.take()) {
                (_, None) => return self.next_below.take().map(Ok),
                (None, Some(write)) => write,
                (Some((below, _)), Some(write)) => {
                    let order = match self.direction {
                        Direction::Forward => write.0.as_slice().cmp(below),
                        Direction::Backward => below[..].cmp(&write.0),
                    };
                    if order.is_gt() {
                        self.next_write = Some(write);
                        return self.next_below.take().map(Ok);
                    }
                    if order.is_eq() {
                        self.next_below = None;
                    }
                    write
                }
            };
            if let Some(value) = value {
                return Some(Ok((Bytes::from(key), value)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::KeyspaceOptions;
    use crate::memory::MemoryEngine;
    use crate::testing::random::Random;

    fn entries(scan: Scan) -> Vec<(Vec<u8>, Vec<u8>)> {
        scan.map(|entry| {
            let (key, value) = entry.expect("an entry");
            (key.to_vec(), value.to_vec())
        })
        .collect()
    }

    fn change(random: &mut Random, engine: &dyn Engine, keyspaces: &[KeyspaceId]) {
        let mut batch = WriteBatch::new();
        for _ in 0..1 + random.below(4) {
            let keyspace = keyspaces[random.index(keyspaces.len())];
            let key = vec![b'a' + random.below(12) as u8];
            match random.one_in(3) {
                true => batch.delete(keyspace, key),
                false => batch.put(keyspace, key, random.bytes(3)),
            }
        }
        engine
            .commit(batch, Durability::Buffered)
            .expect("a commit");
    }

    /// Over any snapshot, the same batches show what they show in an engine of their own.
    #[test]
    fn it_shows_what_an_engine_with_the_same_history_shows() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let engines = [MemoryEngine::new(), MemoryEngine::new()].map(Arc::new);
            let mut keyspaces = Vec::new();
            for name in ["one", "two"] {
                for engine in &engines {
                    let id = engine.create_keyspace(name, KeyspaceOptions::default());
                    keyspaces.push(id.expect("a keyspace"));
                }
            }
            keyspaces.dedup();
            let [below, model] = engines;
            for _ in 0..random.below(6) {
                let mut same = Random::new(random.bits());
                let mut again = same.clone();
                change(&mut same, &*below, &keyspaces);
                change(&mut again, &*model, &keyspaces);
            }
            let overlay = OverlayEngine::over(below.clone(), u64::MAX).expect("a snapshot");
            for _ in 0..6 {
                let mut same = Random::new(random.bits());
                let mut again = same.clone();
                change(&mut same, &overlay, &keyspaces);
                change(&mut again, &*model, &keyspaces);
                // What the engine below does meanwhile is not shown.
                change(&mut random, &*below, &keyspaces);
                let (found, expected) = (
                    overlay.snapshot().expect("a snapshot"),
                    model.snapshot().expect("a snapshot"),
                );
                let edge = |random: &mut Random| vec![b'a' + random.below(13) as u8];
                for keyspace in &keyspaces {
                    let start = edge(&mut random);
                    let end = Some(edge(&mut random)).filter(|_| !random.one_in(3));
                    for direction in [Direction::Forward, Direction::Backward] {
                        let scan = |of: &dyn Snapshot| {
                            let scan = of.scan(*keyspace, &start, end.as_deref(), direction);
                            entries(scan.expect("a scan"))
                        };
                        assert_eq!(scan(&*found), scan(&*expected), "seed {seed}");
                    }
                    let get = |of: &dyn Snapshot| of.get(*keyspace, &start).expect("a value");
                    assert_eq!(
                        get(&*found).as_deref(),
                        get(&*expected).as_deref(),
                        "seed {seed}"
                    );
                }
            }
        }
    }

    #[test]
    fn annotations_are_kept_in_order_and_limited() {
        let below = Arc::new(MemoryEngine::new());
        let overlay = OverlayEngine::over(below, 5).expect("a snapshot");
        let annotated = |note: &[u8]| {
            let mut batch = WriteBatch::new();
            batch.annotate(note.to_vec());
            overlay.commit(batch, Durability::Buffered)
        };
        annotated(b"on").expect("small enough");
        annotated(b"e").expect("small enough");
        assert!(matches!(annotated(b"two"), Err(Error::OverlayFull { .. })));
        assert_eq!(overlay.annotation(), b"one");
    }

    #[test]
    fn annotations_take_no_room_of_writes() {
        let below = Arc::new(MemoryEngine::new());
        let keyspace = below
            .create_keyspace("k", KeyspaceOptions::default())
            .expect("a keyspace");
        let overlay = OverlayEngine::over(below, 100).expect("a snapshot");
        let mut batch = WriteBatch::new();
        batch.put(keyspace, b"k".to_vec(), vec![0; 30]);
        batch.annotate(vec![0; 90]);
        overlay
            .commit(batch, Durability::Buffered)
            .expect("small enough");
        assert_eq!(overlay.annotation().len(), 90);
    }

    #[test]
    fn a_keyspace_created_later_is_empty_and_an_unknown_one_an_error() {
        let below = Arc::new(MemoryEngine::new());
        let overlay = OverlayEngine::over(below.clone(), 100).expect("a snapshot");
        let later = below
            .create_keyspace("later", KeyspaceOptions::default())
            .expect("a keyspace");
        let snapshot = overlay.snapshot().expect("a snapshot");
        assert!(snapshot.get(later, b"k").expect("empty").is_none());
        assert!(snapshot.get(KeyspaceId(99), b"k").is_err());
        let mut batch = WriteBatch::new();
        batch.put(later, b"k".to_vec(), b"v".to_vec());
        overlay
            .commit(batch.clone(), Durability::Sync)
            .expect("small enough");
        let snapshot = overlay.snapshot().expect("a snapshot");
        assert_eq!(snapshot.version(later), None);
        assert!(overlay.base().get(later, b"k").expect("empty").is_none());
        let scan = snapshot.scan(later, &[], None, Direction::Forward);
        assert_eq!(
            entries(scan.expect("a scan")),
            [(b"k".to_vec(), b"v".to_vec())]
        );
        assert!(matches!(
            overlay.commit(batch, Durability::Sync),
            Err(Error::OverlayFull { .. })
        ));
    }
}
