//! The storage contract: ordered keyspaces, atomic batches, snapshots.
//!
//! An [`Engine`] stores named keyspaces of ordered bytes. A [`WriteBatch`] spans keyspaces and is atomic, also across a
//! crash. A [`Snapshot`] shows exactly the batches committed before it was taken, each of them whole. Engines do not
//! know documents.
//!
//! Durability: when [`Engine::commit`] returns with [`Durability::Sync`], the batch and every batch before it survive
//! `kill -9` and power loss. With [`Durability::Buffered`] the batch survives `kill -9`, because the operating system
//! has the bytes, and power loss after a later sync, which runs within 100 ms.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::lsm::BackupSource;

/// Longest key of an engine without long keys, in bytes.
pub const KEY_BYTES_MAX: usize = 65_535;

/// Longest key of a [`LongKeyEngine`](crate::LongKeyEngine), in bytes.
pub const LONG_KEY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most bytes of keys and values in one batch.
pub const BATCH_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Names a keyspace within one engine; never reused after a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyspaceId(pub u64);

/// Options of a keyspace, fixed when it is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Values are large and written once: store them apart from the keys (key-value separation), uncompressed.
    /// Otherwise keys and values share compressed blocks.
    pub separate_values: bool,
    /// Entries are deleted soon, so the engine tries not to write them into tables, and entries whose keys share the
    /// first twelve bytes are read together. The writer guarantees that **a key is put only where there is none**: not
    /// over an existing entry, and not in the batch that deletes it. If it breaks the guarantee, overwritten entries
    /// may reappear. No effect together with `separate_values`.
    pub short_lived: bool,
    /// Entries have some hundred bytes and are read in key order more often than one by one: they share larger blocks.
    /// Engines with blocks of one size ignore the option and do not store it.
    pub large_blocks: bool,
    /// The keyspace whose long keys are stored in this one. Engines without long keys store the option and ignore it.
    pub long_keys_of: Option<KeyspaceId>,
}

/// The name and the options of a keyspace to create.
pub type NewKeyspace<'a> = (&'a str, KeyspaceOptions);

/// When a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the log is synced to the device.
    Sync,
    /// After the log has been handed to the operating system.
    Buffered,
}

/// The direction of a scan.
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
    /// Stores the value under the key.
    Put(Vec<u8>),
    /// Removes the key, if it exists.
    Delete,
}

/// Changes to keys of keyspaces, in order.
pub type Operations = Vec<(KeyspaceId, Vec<u8>, Operation)>;

/// Changes to several keyspaces that become visible and durable together.
///
/// The last operation on a key wins.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    pub(crate) operations: Operations,
    pub(crate) annotation: Vec<u8>,
    /// Bytes of the keys and values of the operations.
    bytes: u64,
    /// Length of the longest key.
    longest_key: usize,
}

impl WriteBatch {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }
    /// Stores `value` under `key` (1 byte to [`Engine::key_bytes_max`]).
    pub fn put(&mut self, keyspace: KeyspaceId, key: Vec<u8>, value: Vec<u8>) {
        self.bytes += (key.len() + value.len()) as u64;
        self.longest_key = self.longest_key.max(key.len());
        self.operations.push((keyspace, key, Operation::Put(value)));
    }
    /// Removes `key`.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: Vec<u8>) {
        self.bytes += key.len() as u64;
        self.longest_key = self.longest_key.max(key.len());
        self.operations.push((keyspace, key, Operation::Delete));
    }
    /// Appends opaque bytes that say what the batch changes, for readers of the log.
    pub fn annotate(&mut self, annotation: Vec<u8>) {
        match self.annotation.is_empty() {
            true => self.annotation = annotation,
            false => self.annotation.extend_from_slice(&annotation),
        }
    }
    /// Removes the annotation and returns it.
    pub fn take_annotation(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.annotation)
    }
    /// Adds the operations and the annotation of another batch behind those of this one.
    pub fn append(&mut self, mut other: Self) {
        self.bytes += other.bytes;
        self.longest_key = self.longest_key.max(other.longest_key);
        self.operations.append(&mut other.operations);
        self.annotate(other.annotation);
    }
    /// True if the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }
    /// Returns the keys of the operations, in order.
    pub fn keys(&self) -> impl Iterator<Item = (KeyspaceId, &[u8])> {
        let operations = self.operations.iter();
        operations.map(|(keyspace, key, _)| (*keyspace, key.as_slice()))
    }
    /// Returns the bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Returns the length of the longest key.
    pub(crate) fn longest_key(&self) -> usize {
        self.longest_key
    }
    /// Returns the operations, in order, and the annotation. For engines.
    pub fn into_parts(self) -> (Operations, Vec<u8>) {
        (self.operations, self.annotation)
    }
    /// Fails for keys, values and batches that exceed the limits.
    pub fn check(&self, key_bytes_max: usize) -> Result<()> {
        let mut total = self.annotation.len() as u64;
        for (_, key, operation) in &self.operations {
            if key.is_empty() || key.len() > key_bytes_max {
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

impl Keyspace {
    /// Returns the keyspaces to create, with ids from `next_id` on. For engines.
    pub fn with_ids_from(next_id: u64, new: &[NewKeyspace<'_>]) -> Vec<Self> {
        let numbered = (next_id..).zip(new);
        let keyspaces = numbered.map(|(id, (name, options))| Self {
            id: KeyspaceId(id),
            name: (*name).to_owned(),
            options: *options,
        });
        keyspaces.collect()
    }

    /// Fails if an id may have been in use, or if two of `keyspaces` and `others` have one name. For engines.
    pub fn check_all_new<'k>(
        keyspaces: &'k [Self],
        next_id: u64,
        others: impl Iterator<Item = &'k Self>,
    ) -> Result<()> {
        let mut names = others
            .map(|other| other.name.as_str())
            .collect::<HashSet<_>>();
        let mut next = next_id;
        for keyspace in keyspaces {
            if !names.insert(&keyspace.name) {
                return Err(Error::KeyspaceExists {
                    name: keyspace.name.clone(),
                });
            }
            if keyspace.id.0 < next {
                return Err(Error::UsedKeyspace {
                    id: keyspace.id.0,
                    next,
                });
            }
            next = keyspace.id.0 + 1;
        }
        Ok(())
    }
}

/// Returns the sizes of one keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceStatistics {
    /// Bytes of its files on disk; 0 for an engine without files.
    pub disk_bytes: u64,
    /// Bytes in memory that are not yet in tables.
    pub memory_bytes: u64,
    /// Keys, counted or estimated.
    pub keys_estimate: u64,
}

/// Sizes and counts of a whole engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStatistics {
    /// Bytes of all files on disk.
    pub disk_bytes: u64,
    /// Bytes of the write-ahead log in use. Spare files count only in `disk_bytes`.
    pub log_bytes: u64,
    /// Bytes held in memtables.
    pub memory_bytes: u64,
    /// Batches committed since opening.
    pub commits: u64,
    /// Device syncs of the log since opening.
    pub syncs: u64,
    /// Open snapshots.
    pub snapshots: u64,
    /// Age of the oldest open snapshot, in milliseconds.
    pub oldest_snapshot_ms: u64,
    /// Bytes of flushed memtables that are kept only for older readers.
    pub pinned_bytes: u64,
    /// Bytes in the block cache.
    pub cache_bytes: u64,
}

/// A call to the file system that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskWait {
    /// Identifies the call within the engine.
    pub id: u64,
    /// The action and the file.
    pub what: String,
    /// Time since the call started.
    pub age: Duration,
}

/// The file system calls that an engine waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskWaits {
    /// Calls in flight, in the order they started.
    pub in_flight: Vec<DiskWait>,
    /// The longest duration of a call since opening, calls in flight included.
    pub longest: Duration,
}

/// An ordered, durable store of bytes. See the module head for the guarantees.
pub trait Engine: Send + Sync {
    /// Creates keyspaces with new names, all or none, also across a crash. They are durable when this returns.
    fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>>;
    /// Creates a keyspace with a new name. It is durable when this returns.
    fn create_keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<KeyspaceId> {
        let created = self.create_keyspaces(&[(name, options)])?;
        Ok(*created.first().expect("an id for each new keyspace"))
    }
    /// Creates a keyspace that has the id, name and options of one in another engine, from which its entries are copied.
    /// The id must be above those of all keyspaces that this engine ever had.
    fn import_keyspace(&self, keyspace: &Keyspace) -> Result<()> {
        let _ = keyspace;
        Err(Error::Unsupported {
            operation: "importing a keyspace",
        })
    }
    /// Returns all keyspaces, ordered by id.
    fn keyspaces(&self) -> Vec<Keyspace>;
    /// Drops a keyspace. Open scans of it continue; its files are removed with the last of them.
    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()>;
    /// Applies `batch` atomically and returns its log position, which grows by one with every batch.
    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64>;
    /// Fails if another process may have written since: what this engine shows may be old. Before a command is answered
    /// from what the process has in memory, too.
    fn confirm(&self) -> Result<()> {
        Ok(())
    }
    /// Returns a snapshot of everything committed so far. Keep it short: about one second, one batch of a scan.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>>;
    /// Makes every buffered commit durable.
    fn sync(&self) -> Result<()>;
    /// Flushes all memtables and merges each keyspace completely. For tests, benches, `compact`.
    fn settle(&self) -> Result<()>;
    /// Settles one keyspace. Use it after most entries were deleted: scans step over deleted entries until they are
    /// merged away. Engines that drop deleted entries at once do nothing.
    fn settle_keyspace(&self, id: KeyspaceId) -> Result<()> {
        let _ = id;
        Ok(())
    }
    /// Copies the current database into the empty or absent directory `target`, without stopping writers. The copy
    /// opens as a database.
    fn checkpoint(&self, target: &Path) -> Result<()>;
    /// Returns what a backup reads; `None` if the engine has no directory.
    fn backup_source(&self) -> Option<BackupSource> {
        None
    }
    /// Reads every stored byte and returns the first damage found.
    fn verify(&self) -> Result<()>;
    /// Returns the sizes of one keyspace.
    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics>;
    /// Estimates the number of keys of a keyspace, deleted ones that are not yet dropped included. Reads no file.
    fn keys_estimate(&self, id: KeyspaceId) -> Result<u64> {
        Ok(self.keyspace_statistics(id)?.keys_estimate)
    }
    /// Returns the length of the longest key, in bytes.
    fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX
    }
    /// Returns the sizes and counts of the whole engine.
    fn statistics(&self) -> EngineStatistics;
    /// Returns the number of the part of the stored annotations to which that of the next batch is added: parts are dropped
    /// as a whole, the oldest first, and their numbers grow from 1. `None` if annotations are not stored to be read later.
    fn annotation_part(&self) -> Option<u64> {
        None
    }
    /// True if the engine never accepts a write.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Fails if writes are currently refused.
    fn check_writable(&self) -> Result<()> {
        Ok(())
    }
    /// Returns the file system calls that writes wait for. Never blocks.
    fn disk_waits(&self) -> DiskWaits {
        DiskWaits::default()
    }
    /// Syncs, stops background work and releases the directory. Later calls fail with `Closed`. Open snapshots and
    /// scans stay valid; the directory is released with the last one.
    fn close(&self) -> Result<()>;
}

/// The entries of a scan, in key order.
pub trait ScanEntries: Iterator<Item = Result<(Bytes, Bytes)>> + Send {
    /// Moves a forward scan to its first entry at or after `key`, behind those already returned. False if a new scan costs
    /// no more: the scan is then to be given up. Callers use [`seek`].
    fn seek_forward(&mut self, key: &[u8]) -> Result<bool> {
        let _ = key;
        Ok(false)
    }
}

impl ScanEntries for std::iter::Empty<Result<(Bytes, Bytes)>> {}

/// A scan of a keyspace.
pub type Scan = Box<dyn ScanEntries>;

/// Moves a forward scan of `keyspace` in `snapshot`, which ends at `end`, to its first entry at or after `key`. The key is
/// behind all entries already returned.
pub fn seek(
    scan: &mut Scan,
    snapshot: &dyn Snapshot,
    keyspace: KeyspaceId,
    key: &[u8],
    end: Option<&[u8]>,
) -> Result<()> {
    if !scan.seek_forward(key)? {
        *scan = snapshot.scan(keyspace, key, end, Direction::Forward)?;
    }
    Ok(())
}

/// A consistent view of an engine at one point of the commit order.
pub trait Snapshot: Send + Sync {
    /// Returns the keyspaces of the view, ordered by id.
    fn keyspaces(&self) -> Vec<Keyspace>;
    /// Returns the value of `key`.
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>>;
    /// Returns the values of keys, in their order. An engine may read several at a time.
    fn get_all(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        keys.iter().map(|key| self.get(keyspace, key)).collect()
    }
    /// Scans the entries with `start <= key < end` (`end` `None`: to the last key). Bounds may be longer than keys. The scan
    /// stays valid after the snapshot is dropped.
    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan>;
    /// Returns a version number of the keyspace: two snapshots of this process with the same number show the same
    /// entries. `None` if it is unknown, as while a batch is in flight.
    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        let _ = keyspace;
        None
    }
    /// Returns how many entries a scan of the whole keyspace steps over at most, about: deleted ones and older versions count.
    /// `None` if that is not known. Reads nothing.
    fn entries_max(&self, keyspace: KeyspaceId) -> Option<u64> {
        let _ = keyspace;
        None
    }
}
