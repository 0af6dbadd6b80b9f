//! The engine without files: the test oracle for the other engine, and the store of an in-memory database.
//!
//! A keyspace is an ordered map from key to the versions of its value:
//!
//! ```text
//! "a" -> [(3, "x"), (7, removed)]      a snapshot at 5 reads "x", one at 7 or later nothing
//! "b" -> [(4, "y")]
//! ```
//!
//! Commits run one at a time, write at the next version number and publish it last, so a snapshot (a version number and
//! a pin on it) shows whole batches only. Versions that no pin can see are removed when their key is written again, or
//! from a queue of shadowed versions. Scans read the map in chunks and hold no lock between them.
//!
//! Nothing survives a restart, so `Durability` has no effect.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use crate::bytes::Bytes;
use crate::engine::{
    Direction, Durability, Engine, EngineStatistics, Keyspace, KeyspaceId, KeyspaceStatistics,
    NewKeyspace, Operation, Scan, ScanEntries, Snapshot, WriteBatch,
};
use crate::error::{Error, Result};
use crate::lock::{lock, read, write};

/// Entries that a scan copies at a time.
const SCAN_CHUNK_ENTRIES: usize = 256;

/// Shadowed versions that a commit removes in addition to as many as it writes.
const CLEAR_EXTRA: usize = 64;

/// An [`Engine`] that lives in memory.
pub struct MemoryEngine {
    state: Mutex<MemoryState>,
    versions: Arc<PublishedVersions>,
    closed: AtomicBool,
}

/// The state that commits change, one at a time.
struct MemoryState {
    keyspaces: Arc<BTreeMap<KeyspaceId, Arc<MemoryKeyspace>>>,
    next_id: u64,
    /// Keys with more than one live version, and the version that shadowed an older one.
    shadowed: VecDeque<(u64, KeyspaceId, Bytes)>,
}

impl MemoryState {
    /// Adds keyspaces with ids that were never in use.
    fn add(&mut self, keyspaces: Vec<Keyspace>) -> Result<Vec<KeyspaceId>> {
        let known = self.keyspaces.values().map(|space| &space.keyspace);
        Keyspace::check_all_new(&keyspaces, self.next_id, known)?;
        let mut ids = Vec::new();
        for keyspace in keyspaces {
            let id = keyspace.id;
            self.next_id = id.0 + 1;
            let space = MemoryKeyspace {
                keyspace,
                entries: RwLock::default(),
                bytes: AtomicU64::new(0),
                changed: AtomicU64::new(0),
            };
            Arc::make_mut(&mut self.keyspaces).insert(id, Arc::new(space));
            ids.push(id);
        }
        Ok(ids)
    }
}

/// The published version and the pins on older ones.
#[derive(Default)]
struct PublishedVersions {
    visible: AtomicU64,
    pins: Mutex<BTreeMap<u64, u64>>,
}

struct MemoryKeyspace {
    keyspace: Keyspace,
    entries: RwLock<BTreeMap<Bytes, Versions>>,
    bytes: AtomicU64,
    /// The version of the last write, set before that version is published.
    changed: AtomicU64,
}

/// Values of one key by ascending version; `None` is a removal.
type Versions = Vec<(u64, Option<Bytes>)>;

impl Default for MemoryEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryEngine {
    /// Returns an empty engine.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(MemoryState {
                keyspaces: Arc::default(),
                next_id: 1,
                shadowed: VecDeque::new(),
            }),
            versions: Arc::default(),
            closed: AtomicBool::new(false),
        }
    }

    fn state(&self) -> Result<MutexGuard<'_, MemoryState>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(lock(&self.state))
    }

    fn space(&self, id: KeyspaceId) -> Result<Arc<MemoryKeyspace>> {
        find(&self.state()?.keyspaces, id)
    }
}

fn find(
    spaces: &BTreeMap<KeyspaceId, Arc<MemoryKeyspace>>,
    id: KeyspaceId,
) -> Result<Arc<MemoryKeyspace>> {
    spaces
        .get(&id)
        .cloned()
        .ok_or(Error::UnknownKeyspace { id: id.0 })
}

impl PublishedVersions {
    /// Pins the newest published version.
    fn pin(self: &Arc<Self>) -> Pin {
        let mut pins = lock(&self.pins);
        let version = self.visible.load(Ordering::Acquire);
        *pins.entry(version).or_insert(0) += 1;
        Pin {
            version,
            book: Arc::clone(self),
        }
    }

    /// Returns the oldest version that a reader may need.
    fn oldest(&self) -> u64 {
        let pins = lock(&self.pins);
        let visible = self.visible.load(Ordering::Acquire);
        pins.keys().next().copied().unwrap_or(visible)
    }
}

/// Keeps one version readable while it lives.
struct Pin {
    version: u64,
    book: Arc<PublishedVersions>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = lock(&self.book.pins);
        let count = pins.get_mut(&self.version).expect("a pin is registered");
        *count -= 1;
        if *count == 0 {
            pins.remove(&self.version);
        }
    }
}

impl MemoryKeyspace {
    /// Writes one value. True if an older version is kept for a pin.
    fn write(&self, key: Bytes, value: Option<Bytes>, version: u64, oldest: u64) -> bool {
        self.changed.fetch_max(version, Ordering::AcqRel);
        let mut entries = write(&self.entries);
        let added = (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
        self.bytes.fetch_add(added, Ordering::Relaxed);
        let versions = entries.entry(key.clone()).or_default();
        if versions.last().is_some_and(|last| last.0 == version) {
            let replaced = versions.pop();
            self.forget(&key, replaced);
        }
        versions.push((version, value));
        self.prune(&mut entries, &key, oldest)
    }

    /// Removes versions that no pin at or after `oldest` can see. True if shadowed versions remain.
    fn prune(&self, entries: &mut BTreeMap<Bytes, Versions>, key: &Bytes, oldest: u64) -> bool {
        let Some(versions) = entries.get_mut(key) else {
            return false;
        };
        let needed = versions.iter().rposition(|(at, _)| *at <= oldest);
        for gone in versions.drain(..needed.unwrap_or(0)) {
            self.forget(key, Some(gone));
        }
        if let [(at, None)] = versions.as_slice() {
            if *at > oldest {
                return true;
            }
            let gone = versions.pop();
            self.forget(key, gone);
            entries.remove(key);
            return false;
        }
        versions.len() > 1
    }

    fn forget(&self, key: &Bytes, gone: Option<(u64, Option<Bytes>)>) {
        if let Some((_, value)) = gone {
            let bytes = key.len() + value.map_or(0, |value| value.len());
            self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    fn get(&self, key: &[u8], version: u64) -> Option<Bytes> {
        let entries = read(&self.entries);
        visible_at(entries.get(key)?, version)
    }
}

fn visible_at(versions: &Versions, version: u64) -> Option<Bytes> {
    let newer = versions.partition_point(|(at, _)| *at <= version);
    let (_, value) = versions.get(newer.checked_sub(1)?)?;
    value.clone()
}

impl Engine for MemoryEngine {
    fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        let mut state = self.state()?;
        let keyspaces = Keyspace::with_ids_from(state.next_id, new);
        state.add(keyspaces)
    }

    fn import_keyspace(&self, keyspace: &Keyspace) -> Result<()> {
        self.state()?.add(vec![keyspace.clone()]).map(drop)
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        let state = lock(&self.state);
        let spaces = state.keyspaces.values();
        spaces.map(|space| space.keyspace.clone()).collect()
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        let mut state = self.state()?;
        match Arc::make_mut(&mut state.keyspaces).remove(&id) {
            Some(_) => Ok(()),
            None => Err(Error::UnknownKeyspace { id: id.0 }),
        }
    }

    fn commit(&self, batch: WriteBatch, _durability: Durability) -> Result<u64> {
        batch.check(self.key_bytes_max())?;
        let mut state = self.state()?;
        for (id, _, _) in &batch.operations {
            find(&state.keyspaces, *id)?;
        }
        let oldest = self.versions.oldest();
        let version = self.versions.visible.load(Ordering::Acquire) + 1;
        let clear_max = batch.operations.len() + CLEAR_EXTRA;
        for (id, key, operation) in batch.operations {
            let value = match operation {
                Operation::Put(value) => Some(Bytes::from(value)),
                Operation::Delete => None,
            };
            let key = Bytes::from(key);
            if find(&state.keyspaces, id)?.write(key.clone(), value, version, oldest) {
                state.shadowed.push_back((version, id, key));
            }
        }
        self.versions.visible.store(version, Ordering::Release);
        clear_shadowed(&mut state, self.versions.oldest(), clear_max);
        Ok(version)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        // Under the state lock, so that keyspaces and version are consistent.
        let state = self.state()?;
        Ok(Box::new(MemorySnapshot {
            keyspaces: Arc::clone(&state.keyspaces),
            pin: Arc::new(self.versions.pin()),
        }))
    }

    fn sync(&self) -> Result<()> {
        self.state().map(drop)
    }

    fn settle(&self) -> Result<()> {
        let mut state = self.state()?;
        clear_shadowed(&mut state, self.versions.oldest(), usize::MAX);
        Ok(())
    }

    fn checkpoint(&self, _target: &Path) -> Result<()> {
        Err(Error::Unsupported {
            operation: "a checkpoint",
        })
    }

    fn verify(&self) -> Result<()> {
        self.state().map(drop)
    }

    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics> {
        let space = self.space(id)?;
        let entries = read(&space.entries);
        Ok(KeyspaceStatistics {
            disk_bytes: 0,
            memory_bytes: space.bytes.load(Ordering::Relaxed),
            keys_estimate: entries.len() as u64,
        })
    }

    fn statistics(&self) -> EngineStatistics {
        let state = lock(&self.state);
        let spaces = state.keyspaces.values();
        EngineStatistics {
            memory_bytes: spaces.map(|s| s.bytes.load(Ordering::Relaxed)).sum(),
            commits: self.versions.visible.load(Ordering::Acquire),
            snapshots: lock(&self.versions.pins).values().sum(),
            ..EngineStatistics::default()
        }
    }

    fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}

/// Removes shadowed versions that are no longer visible, oldest first, at most `count`.
fn clear_shadowed(state: &mut MemoryState, oldest: u64, count: usize) {
    for _ in 0..count {
        match state.shadowed.front() {
            Some((version, _, _)) if *version <= oldest => {}
            _ => return,
        }
        let Some((_, id, key)) = state.shadowed.pop_front() else {
            return;
        };
        if let Some(space) = state.keyspaces.get(&id) {
            let mut entries = write(&space.entries);
            space.prune(&mut entries, &key, oldest);
        }
    }
}

struct MemorySnapshot {
    keyspaces: Arc<BTreeMap<KeyspaceId, Arc<MemoryKeyspace>>>,
    pin: Arc<Pin>,
}

impl Snapshot for MemorySnapshot {
    fn keyspaces(&self) -> Vec<Keyspace> {
        let spaces = self.keyspaces.values();
        spaces.map(|space| space.keyspace.clone()).collect()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(find(&self.keyspaces, keyspace)?.get(key, self.pin.version))
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        Ok(Box::new(MemoryScan {
            space: find(&self.keyspaces, keyspace)?,
            pin: Arc::clone(&self.pin),
            start: Bound::Included(Bytes::copy_from(start)),
            end: end.map_or(Bound::Unbounded, |end| {
                Bound::Excluded(Bytes::copy_from(end))
            }),
            direction,
            chunk: VecDeque::new(),
            finished: end.is_some_and(|end| end <= start),
        }))
    }

    fn entries_max(&self, keyspace: KeyspaceId) -> Option<u64> {
        let space = self.keyspaces.get(&keyspace)?;
        Some(read(&space.entries).len() as u64)
    }

    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        let changed = self
            .keyspaces
            .get(&keyspace)?
            .changed
            .load(Ordering::Acquire);
        (changed <= self.pin.version).then_some(changed)
    }
}

/// A scan: the rest of the range, and the current chunk.
struct MemoryScan {
    space: Arc<MemoryKeyspace>,
    pin: Arc<Pin>,
    start: Bound<Bytes>,
    end: Bound<Bytes>,
    direction: Direction,
    chunk: VecDeque<(Bytes, Bytes)>,
    finished: bool,
}

impl MemoryScan {
    fn fill(&mut self) {
        let entries = read(&self.space.entries);
        let version = self.pin.version;
        let range = (borrow(&self.start), borrow(&self.end));
        let range = entries.range::<[u8], _>(range);
        let visible = |(key, versions): (&Bytes, &Versions)| {
            visible_at(versions, version).map(|value| (key.clone(), value))
        };
        self.chunk = match self.direction {
            Direction::Forward => range.filter_map(visible).take(SCAN_CHUNK_ENTRIES).collect(),
            Direction::Backward => range
                .rev()
                .filter_map(visible)
                .take(SCAN_CHUNK_ENTRIES)
                .collect(),
        };
        drop(entries);
        self.finished = self.chunk.len() < SCAN_CHUNK_ENTRIES;
        let Some((last, _)) = self.chunk.back().cloned() else {
            return;
        };
        match self.direction {
            Direction::Forward => self.start = Bound::Excluded(last),
            Direction::Backward => self.end = Bound::Excluded(last),
        }
        // The map panics on a range whose bounds meet or cross.
        if let (Bound::Included(a) | Bound::Excluded(a), Bound::Excluded(b)) =
            (&self.start, &self.end)
        {
            self.finished |= a >= b;
        }
    }
}

fn borrow(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(Bytes::as_slice)
}

impl ScanEntries for MemoryScan {}

impl Iterator for MemoryScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() && !self.finished {
            self.fill();
        }
        self.chunk.pop_front().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::KeyspaceOptions;

    fn put(engine: &MemoryEngine, id: KeyspaceId, key: &[u8], value: &[u8]) {
        let mut batch = WriteBatch::new();
        batch.put(id, key.to_vec(), value.to_vec());
        engine.commit(batch, Durability::Sync).expect("commit");
    }

    #[test]
    fn shadowed_versions_go_once_no_snapshot_needs_them() {
        let engine = MemoryEngine::new();
        let options = KeyspaceOptions::default();
        let id = engine.create_keyspace("k", options).expect("create");
        put(&engine, id, b"a", &[1; 1000]);
        let snapshot = engine.snapshot().expect("snapshot");
        let mut batch = WriteBatch::new();
        batch.delete(id, b"a".to_vec());
        engine.commit(batch, Durability::Sync).expect("commit");
        assert!(snapshot.get(id, b"a").expect("get").is_some());
        drop(snapshot);
        put(&engine, id, b"b", &[2; 10]);
        put(&engine, id, b"b", &[3; 10]);
        let statistics = engine.keyspace_statistics(id).expect("statistics");
        assert_eq!(statistics.keys_estimate, 1);
        assert_eq!(statistics.memory_bytes, 11);
    }
}
