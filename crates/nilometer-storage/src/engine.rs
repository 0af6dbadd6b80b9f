//! The storage contract: ordered keyspaces, atomic batches, snapshots.
//!
//! An [`Engine`] keeps named keyspaces of ordered bytes. A [`WriteBatch`] spans keyspaces and is
//! applied whole or not at all, also across a crash. A [`Snapshot`] sees exactly the batches that
//! were committed before it was taken, each of them whole. Engines know nothing of documents.
//!
//! Durability: when [`Engine::commit`] returns with [`Durability::Sync`], the batch and every batch
//! before it survive `kill -9` and power loss. With [`Durability::Buffered`] it survives the end of
//! the process once the operating system has the bytes, and power loss once a later sync (at most
//! 100 ms after) has run.

use std::path::Path;
use std::time::Duration;

use crate::bytes::Bytes;
use crate::error::{Error, Result};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 65_535;

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most bytes of keys and values in one batch.
pub const BATCH_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Names a keyspace within one engine; never reused after a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyspaceId(pub u64);

/// What a keyspace holds, fixed when it is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Values are large and written once: keep them apart from the keys (key-value separation),
    /// uncompressed. Otherwise keys and values share compressed blocks.
    pub separate_values: bool,
    /// Entries are deleted soon, so that they had better not be written into tables, and those whose keys begin with
    /// the same twelve bytes are read together. Whoever writes promises that **a key is put only where there is none**:
    /// not over one that is there, nor in the batch that deletes it. With a broken promise what was put over may come back.
    /// Not for separated values, where it does nothing.
    pub short_lived: bool,
}

/// When a commit may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the log is synced to the device.
    Sync,
    /// After the log has been handed to the operating system.
    Buffered,
}

/// Which way a scan walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// One change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Store `value` under the key.
    Put(Vec<u8>),
    /// Remove the key, if it is there.
    Delete,
}

/// Changes to several keyspaces that become visible and durable together.
///
/// The last operation on a key wins.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    pub(crate) operations: Vec<(KeyspaceId, Vec<u8>, Operation)>,
    pub(crate) annotation: Vec<u8>,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }
    /// Stores `value` under `key` (1 to 65,535 bytes).
    pub fn put(&mut self, keyspace: KeyspaceId, key: Vec<u8>, value: Vec<u8>) {
        self.operations.push((keyspace, key, Operation::Put(value)));
    }
    /// Removes `key`.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: Vec<u8>) {
        self.operations.push((keyspace, key, Operation::Delete));
    }
    /// Opaque bytes kept beside the batch in the log (for change streams and replicas).
    pub fn annotate(&mut self, annotation: Vec<u8>) {
        self.annotation = annotation;
    }
    /// True when nothing would change.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }
    /// Refuses keys, values and batches no engine can store.
    pub(crate) fn check(&self) -> Result<()> {
        let mut total = self.annotation.len() as u64;
        for (_, key, operation) in &self.operations {
            if key.is_empty() || key.len() > KEY_BYTES_MAX {
                return Err(Error::InvalidKey { length: key.len() });
            }
            let length = match operation {
                Operation::Put(value) => value.len(),
                Operation::Delete => 0,
            };
            if length > VALUE_BYTES_MAX {
                return Err(Error::TooLarge {
                    what: "value",
                    length: length as u64,
                    maximum: VALUE_BYTES_MAX as u64,
                });
            }
            total += (key.len() + length) as u64;
        }
        if total > BATCH_BYTES_MAX {
            return Err(Error::TooLarge {
                what: "batch",
                length: total,
                maximum: BATCH_BYTES_MAX,
            });
        }
        Ok(())
    }
}

/// A keyspace as [`Engine::keyspaces`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    /// Its id.
    pub id: KeyspaceId,
    /// The name it was created under.
    pub name: String,
    /// The options it was created with.
    pub options: KeyspaceOptions,
}

/// Sizes of one keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceStatistics {
    /// Bytes of its files on disk; 0 for an engine without files.
    pub disk_bytes: u64,
    /// Bytes still in memory, not yet in files of its own.
    pub memory_bytes: u64,
    /// Keys, counted or estimated.
    pub keys_estimate: u64,
}

/// Sizes and counts of a whole engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStatistics {
    /// Bytes of all files on disk.
    pub disk_bytes: u64,
    /// Bytes of the write-ahead log in use; files kept to be used again are only in `disk_bytes`.
    pub log_bytes: u64,
    /// Bytes held in memtables.
    pub memory_bytes: u64,
    /// Batches committed since opening.
    pub commits: u64,
    /// Device syncs of the log since opening.
    pub syncs: u64,
    /// Snapshots open now.
    pub snapshots: u64,
    /// Age of the oldest of them, in milliseconds.
    pub oldest_snapshot_ms: u64,
    /// Bytes of memtables that are in tables already and live only for older readers.
    pub pinned_bytes: u64,
    /// Bytes of blocks of tables that are kept for reading.
    pub cache_bytes: u64,
}

/// A call to the file system that has not come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskWait {
    /// Tells it from others of the same engine.
    pub id: u64,
    /// What was asked, and of which file.
    pub what: String,
    /// How long ago it was asked.
    pub age: Duration,
}

/// What an engine waits for the disk for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskWaits {
    /// Calls under way, in the order they were made.
    pub in_flight: Vec<DiskWait>,
    /// The longest a call has taken since opening, one that is under way included.
    pub longest: Duration,
}

/// An ordered, durable store of bytes. See the module head for the promise.
pub trait Engine: Send + Sync {
    /// Creates a keyspace; its name must be new. Durable when it returns.
    fn create_keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<KeyspaceId>;
    /// All keyspaces, by id.
    fn keyspaces(&self) -> Vec<Keyspace>;
    /// Drops a keyspace. Open scans of it go on undisturbed; its files go with the last of them.
    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()>;
    /// Applies `batch` whole and returns its log position (grows by one with every batch).
    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64>;
    /// A view of everything committed so far. Keep it short: about one second, one batch of a scan.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>>;
    /// Makes every buffered commit durable.
    fn sync(&self) -> Result<()>;
    /// Writes memtables out and merges each keyspace as far as it goes. For tests, benches, `compact`.
    fn settle(&self) -> Result<()>;
    /// The same for one keyspace, most of whose entries were removed: whoever scans it passes over those until they
    /// are gone. An engine that keeps nothing of them has nothing to do.
    fn settle_keyspace(&self, id: KeyspaceId) -> Result<()> {
        let _ = id;
        Ok(())
    }
    /// Copies the database, as of now and without stopping writers, into the empty or absent
    /// directory `target`, which then opens as a database.
    fn checkpoint(&self, target: &Path) -> Result<()>;
    /// Reads every stored byte and reports the first damage found.
    fn verify(&self) -> Result<()>;
    /// Sizes of one keyspace.
    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics>;
    /// About how many keys a keyspace has, deleted ones that are not gone yet among them. Asks no file.
    fn keys_estimate(&self, id: KeyspaceId) -> Result<u64> {
        Ok(self.keyspace_statistics(id)?.keys_estimate)
    }
    /// Sizes and counts of the whole.
    fn statistics(&self) -> EngineStatistics;
    /// Whether writes are taken now, and if not, why.
    fn check_writable(&self) -> Result<()> {
        Ok(())
    }
    /// What writes are waiting for. Never waits itself.
    fn disk_waits(&self) -> DiskWaits {
        DiskWaits::default()
    }
    /// Syncs, stops background work and releases the directory. Later calls fail with `Closed`.
    /// Snapshots and scans that are still open go on; the directory is released with the last one.
    fn close(&self) -> Result<()>;
}

/// Entries of a scan, in key order.
pub type Scan = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + Send>;

/// A frozen view of an engine.
pub trait Snapshot: Send {
    /// The value of `key`.
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>>;
    /// Entries with `start <= key < end` (`end` `None`: to the last key). The scan stays valid after
    /// the snapshot is dropped.
    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan>;
    /// A number that tells what a snapshot shows of the keyspace from what others of this process do: two that
    /// have the same number show the same. None if it cannot be told, as while a batch is on its way in.
    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        let _ = keyspace;
        None
    }
}
