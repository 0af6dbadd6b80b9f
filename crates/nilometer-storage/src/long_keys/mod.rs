//! Keys of any length over an engine whose keys are short.
//!
//! ```text
//! keyspace "k"             keys of at most PLAIN_KEY_BYTES_MAX bytes, as they are
//!   └─ companion of "k"    longer keys, as links and leaves: see form.rs
//! ```
//!
//! A [`LongKeyEngine`] has the contract of the engine below it, with a longer limit. A companion is a keyspace of that
//! engine, made when the first long key is written; it is not listed, and is dropped with its keyspace. Scans of a keyspace
//! with a companion merge the two; all others are those of the engine below. So a keyspace without long keys has no cost
//! but the comparison of a length.
//!
//! What it does not do: it stores the pieces of a key again for each key that has them.

mod form;
mod walk;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering as MemoryOrder};
use std::sync::{Arc, Mutex, RwLock};

use self::walk::LongKeyWalk;
use crate::bytes::Bytes;
use crate::engine::{
    Direction, Durability, Engine, KEY_BYTES_MAX, Keyspace, KeyspaceId, KeyspaceOptions,
    KeyspaceStatistics, LONG_KEY_BYTES_MAX, Operation, Scan, ScanEntries, Snapshot, WriteBatch,
};
use crate::error::{Error, Result};
use crate::forward_engine;
use crate::lock::{lock, read, write};

pub(crate) use self::form::end_of_prefix;

/// Longest key that is stored as it is, in bytes. Fixed by the format.
const PLAIN_KEY_BYTES_MAX: usize = KEY_BYTES_MAX;

/// Bytes of a piece of a long key. Fixed by the format.
const PIECE_BYTES: usize = 32 * 1024;

/// The companion of each keyspace that has one.
type Companions = BTreeMap<KeyspaceId, KeyspaceId>;

/// An [`Engine`] whose keys have up to [`LONG_KEY_BYTES_MAX`] bytes. See the module head.
pub struct LongKeyEngine {
    inner: Arc<dyn Engine>,
    lengths: KeyLengths,
    companions: RwLock<Arc<Companions>>,
    /// True once there was a companion.
    has_companions: AtomicBool,
    /// Held while a keyspace is dropped or gets its companion.
    change: Mutex<()>,
}

/// The lengths at which keys are cut.
#[derive(Clone, Copy)]
struct KeyLengths {
    plain_max: usize,
    piece: usize,
}

impl LongKeyEngine {
    /// Returns `engine` with long keys, or itself if it has them.
    pub fn over(engine: Arc<dyn Engine>) -> Result<Arc<dyn Engine>> {
        if engine.key_bytes_max() >= LONG_KEY_BYTES_MAX {
            return Ok(engine);
        }
        Ok(Arc::new(Self::with_lengths(
            engine,
            PLAIN_KEY_BYTES_MAX,
            PIECE_BYTES,
        )?))
    }

    /// Returns `engine` with keys cut at other lengths than those of the format. For tests.
    #[doc(hidden)]
    pub fn with_lengths(inner: Arc<dyn Engine>, plain_max: usize, piece: usize) -> Result<Self> {
        assert!(plain_max > 0 && piece > 0, "a length of keys is above zero");
        let listed = inner.keyspaces();
        let mut companions = Companions::new();
        for companion in &listed {
            let Some(of) = companion.options.long_keys_of else {
                continue;
            };
            if listed.iter().any(|keyspace| keyspace.id == of) {
                companions.insert(of, companion.id);
            } else if !inner.is_read_only() {
                // A crash came between the two drops.
                inner.drop_keyspace(companion.id)?;
            }
        }
        Ok(Self {
            inner,
            lengths: KeyLengths { plain_max, piece },
            has_companions: AtomicBool::new(!companions.is_empty()),
            companions: RwLock::new(Arc::new(companions)),
            change: Mutex::new(()),
        })
    }

    fn companions(&self) -> Arc<Companions> {
        Arc::clone(&read(&self.companions))
    }

    fn change_companions(&self, change: impl FnOnce(&mut Companions)) {
        let mut changed = Companions::clone(&self.companions());
        change(&mut changed);
        *write(&self.companions) = Arc::new(changed);
    }

    /// Returns the companion of a keyspace; makes it if there is none.
    fn make_companion(&self, of: KeyspaceId) -> Result<KeyspaceId> {
        let _changing = lock(&self.change);
        if let Some(known) = self.companions().get(&of) {
            return Ok(*known);
        }
        let keyspace = self.keyspace(of)?;
        let options = KeyspaceOptions {
            short_lived: false,
            long_keys_of: Some(of),
            ..keyspace.options
        };
        let name = format!("long keys of {}", of.0);
        let made = self.inner.create_keyspace(&name, options)?;
        // Before any batch with a long key, so that a snapshot that shows one knows the companion.
        self.change_companions(|companions| {
            companions.insert(of, made);
        });
        self.has_companions.store(true, MemoryOrder::Release);
        Ok(made)
    }

    fn keyspace(&self, id: KeyspaceId) -> Result<Keyspace> {
        let listed = self.inner.keyspaces().into_iter();
        let mut listed = listed.filter(|keyspace| keyspace.id == id);
        listed.next().ok_or(Error::UnknownKeyspace { id: id.0 })
    }

    /// Returns the batch in which long keys are links and leaves.
    fn cut(&self, batch: WriteBatch) -> Result<WriteBatch> {
        batch.check(LONG_KEY_BYTES_MAX)?;
        let mut out = WriteBatch::new();
        out.annotate(batch.annotation);
        for (id, key, operation) in batch.operations {
            if key.len() <= self.lengths.plain_max {
                match operation {
                    Operation::Put(value) => out.put(id, key, value),
                    Operation::Delete => out.delete(id, key),
                }
                continue;
            }
            let known = self.companions().get(&id).copied();
            let companion = match (known, &operation) {
                (Some(known), _) => known,
                (None, Operation::Put(_)) => self.make_companion(id)?,
                (None, Operation::Delete) => {
                    self.keyspace(id)?;
                    continue;
                }
            };
            let stored = form::stored_keys(&key, self.lengths.piece);
            match operation {
                Operation::Put(value) => {
                    for link in stored.links {
                        out.put(companion, link, Vec::new());
                    }
                    out.put(companion, stored.leaf, value);
                }
                Operation::Delete => {
                    for link in stored.links {
                        out.delete(companion, link);
                    }
                    out.delete(companion, stored.leaf);
                }
            }
        }
        Ok(out)
    }
}

impl Engine for LongKeyEngine {
    forward_engine!(inner: create_keyspaces, import_keyspace, confirm, sync, settle, checkpoint,
        backup_source, verify, statistics, is_read_only, check_writable, disk_waits, close);

    fn keyspaces(&self) -> Vec<Keyspace> {
        without_companions(self.inner.keyspaces())
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        let _changing = lock(&self.change);
        self.inner.drop_keyspace(id)?;
        if let Some(companion) = self.companions().get(&id).copied() {
            self.change_companions(|companions| {
                companions.remove(&id);
            });
            // The next opening drops a companion that is left.
            let _ = self.inner.drop_keyspace(companion);
        }
        Ok(())
    }

    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        if batch.longest_key() <= self.lengths.plain_max {
            return self.inner.commit(batch, durability);
        }
        self.inner.commit(self.cut(batch)?, durability)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        if !self.has_companions.load(MemoryOrder::Acquire) {
            let inner = self.inner.snapshot()?;
            // Still none, so the snapshot shows no long key.
            if !self.has_companions.load(MemoryOrder::Acquire) {
                return Ok(inner);
            }
        }
        let mut known = self.companions();
        loop {
            let inner = self.inner.snapshot()?;
            // The snapshot must be of a moment at which these were the companions.
            let now = self.companions();
            if !Arc::ptr_eq(&known, &now) {
                known = now;
                continue;
            }
            if known.is_empty() {
                return Ok(inner);
            }
            return Ok(Box::new(LongKeySnapshot {
                inner: Arc::from(inner),
                lengths: self.lengths,
                companions: known,
            }));
        }
    }

    fn settle_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.inner.settle_keyspace(id)?;
        match self.companions().get(&id) {
            Some(companion) => self.inner.settle_keyspace(*companion),
            None => Ok(()),
        }
    }

    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics> {
        let plain = self.inner.keyspace_statistics(id)?;
        let Some(companion) = self.companions().get(&id).copied() else {
            return Ok(plain);
        };
        let long = self.inner.keyspace_statistics(companion)?;
        Ok(KeyspaceStatistics {
            disk_bytes: plain.disk_bytes + long.disk_bytes,
            memory_bytes: plain.memory_bytes + long.memory_bytes,
            keys_estimate: plain.keys_estimate + long.keys_estimate,
        })
    }

    fn keys_estimate(&self, id: KeyspaceId) -> Result<u64> {
        let plain = self.inner.keys_estimate(id)?;
        match self.companions().get(&id) {
            Some(companion) => Ok(plain + self.inner.keys_estimate(*companion)?),
            None => Ok(plain),
        }
    }

    fn key_bytes_max(&self) -> usize {
        LONG_KEY_BYTES_MAX
    }
}

fn without_companions(mut listed: Vec<Keyspace>) -> Vec<Keyspace> {
    listed.retain(|keyspace| keyspace.options.long_keys_of.is_none());
    listed
}

/// A snapshot of keyspaces of which some have companions.
struct LongKeySnapshot {
    inner: Arc<dyn Snapshot>,
    lengths: KeyLengths,
    companions: Arc<Companions>,
}

impl Snapshot for LongKeySnapshot {
    fn keyspaces(&self) -> Vec<Keyspace> {
        without_companions(self.inner.keyspaces())
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        if key.len() <= self.lengths.plain_max {
            return self.inner.get(keyspace, key);
        }
        match self.companions.get(&keyspace) {
            Some(companion) => {
                let leaf = form::leaf(key, self.lengths.piece);
                self.inner.get(*companion, &leaf)
            }
            None => self.inner.get(keyspace, &[]),
        }
    }

    fn get_all(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        if keys.iter().all(|key| key.len() <= self.lengths.plain_max) {
            return self.inner.get_all(keyspace, keys);
        }
        keys.iter().map(|key| self.get(keyspace, key)).collect()
    }

    fn entries_max(&self, keyspace: KeyspaceId) -> Option<u64> {
        let plain = self.inner.entries_max(keyspace)?;
        match self.companions.get(&keyspace) {
            Some(companion) => Some(plain + self.inner.entries_max(*companion)?),
            None => Some(plain),
        }
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        let plain = self.inner.scan(keyspace, start, end, direction)?;
        let Some(companion) = self.companions.get(&keyspace).copied() else {
            return Ok(plain);
        };
        if end.is_some_and(|end| end <= start) {
            return Ok(plain);
        }
        let long = LongKeyWalk::new(
            Arc::clone(&self.inner),
            companion,
            self.lengths.piece,
            (start, end),
            direction,
        );
        Ok(Box::new(MergedScan {
            plain: ScanHead::new(plain),
            long: ScanHead::new(Box::new(long)),
            direction,
        }))
    }

    /// Returns the sum of both versions. Neither ever falls, so an equal sum means that both are equal.
    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        let plain = self.inner.version(keyspace)?;
        match self.companions.get(&keyspace) {
            Some(companion) => Some(plain + self.inner.version(*companion)?),
            None => Some(plain),
        }
    }
}

/// A scan and its next entry.
struct ScanHead {
    /// `None` after its end.
    scan: Option<Scan>,
    next: Option<(Bytes, Bytes)>,
}

impl ScanHead {
    fn new(scan: Scan) -> Self {
        Self {
            scan: Some(scan),
            next: None,
        }
    }

    /// Reads the next entry if there is none.
    fn fill(&mut self) -> Result<()> {
        if self.next.is_none()
            && let Some(scan) = &mut self.scan
        {
            match scan.next() {
                Some(Ok(entry)) => self.next = Some(entry),
                Some(Err(error)) => {
                    self.scan = None;
                    return Err(error);
                }
                None => self.scan = None,
            }
        }
        Ok(())
    }
}

/// The entries of a keyspace and of its companion, in order.
struct MergedScan {
    plain: ScanHead,
    long: ScanHead,
    direction: Direction,
}

impl ScanEntries for MergedScan {}

impl Iterator for MergedScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let filled = self.plain.fill().and_then(|()| self.long.fill());
        if let Err(error) = filled {
            (self.plain.scan, self.long.scan) = (None, None);
            (self.plain.next, self.long.next) = (None, None);
            return Some(Err(error));
        }
        let order = match (&self.plain.next, &self.long.next) {
            (None, _) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some((plain, _)), Some((long, _))) => match self.direction {
                Direction::Forward => plain[..].cmp(&long[..]),
                Direction::Backward => long[..].cmp(&plain[..]),
            },
        };
        let first = match order {
            Ordering::Less => &mut self.plain,
            _ => &mut self.long,
        };
        first.next.take().map(Ok)
    }
}
