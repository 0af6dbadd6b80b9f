//! The keyspaces of a database: reading their records, creating, importing and dropping them.
//!
//! A record is a batch like any other: a keyspace exists from the moment at which the batch with its record is visible
//! to the moment at which the batch without it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_storage::{Error, Keyspace, KeyspaceId, Result};
use slatedb::{Db, DbReadOps, WriteBatch};

use crate::core::Core;
use crate::error::convert;
use crate::layout;
use crate::lock::lock;
use crate::log_flush::LOG_FLUSH;

/// The keyspaces of one moment.
pub(crate) type KeyspaceMap = BTreeMap<KeyspaceId, Arc<KnownKeyspace>>;

/// A keyspace, and the sequence number of its last change.
pub(crate) struct KnownKeyspace {
    pub(crate) keyspace: Keyspace,
    changed: AtomicU64,
}

impl KnownKeyspace {
    fn new(keyspace: Keyspace) -> Arc<Self> {
        Arc::new(Self {
            keyspace,
            changed: AtomicU64::new(0),
        })
    }

    /// Notes that the batch with this number changes the keyspace. Called before that batch is visible.
    pub(crate) fn set_changed(&self, sequence: u64) {
        self.changed.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Returns the number of the last batch that changed the keyspace since the engine was opened.
    pub(crate) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }
}

/// Returns a keyspace of the map.
pub(crate) fn find(map: &KeyspaceMap, id: KeyspaceId) -> Result<&Arc<KnownKeyspace>> {
    map.get(&id).ok_or(Error::UnknownKeyspace { id: id.0 })
}

/// The records of a database.
pub(crate) struct LoadedRecords {
    pub(crate) keyspaces: KeyspaceMap,
    pub(crate) next_id: u64,
    pub(crate) own_batches: u64,
}

/// What a database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reading and writing.
    Use,
    /// Being the target of a copy: it must be new.
    CopyTarget,
}

/// Reads the records of the database at `path`. Writes those of a new database.
pub(crate) async fn load(db: &Db, path: &str, purpose: Purpose) -> Result<LoadedRecords> {
    let failed = |error: slatedb::Error| convert(path, &error);
    let version = db.get(layout::format_key()).await.map_err(failed)?;
    match (version, purpose) {
        (None, _) => initialize(db, path, purpose).await?,
        (Some(_), Purpose::CopyTarget) => return Err(Error::NotEmpty { path: path.into() }),
        (Some(version), Purpose::Use) => {
            check_format(path, &version)?;
            check_is_whole(db, path).await?;
        }
    }
    let next_id = number(db, path, layout::next_key()).await?;
    let own_batches = number(db, path, layout::own_batches_key()).await?;
    let keyspaces = read_records(db, path).await?.into_iter();
    let keyspaces = keyspaces.map(|keyspace| (keyspace.id, KnownKeyspace::new(keyspace)));
    let keyspaces = keyspaces.collect::<KeyspaceMap>();
    if keyspaces.keys().any(|id| id.0 >= next_id) {
        return Err(damaged(path, "the record of a keyspace"));
    }
    Ok(LoadedRecords {
        keyspaces,
        next_id,
        own_batches,
    })
}

/// Reads the keyspaces of a database that others may write. Fails if there is no database.
pub(crate) async fn read_keyspaces(
    db: &(impl DbReadOps + Sync),
    path: &str,
) -> Result<Vec<Keyspace>> {
    let failed = |error: slatedb::Error| convert(path, &error);
    let version = db.get(layout::format_key()).await.map_err(failed)?;
    let version = version.ok_or_else(|| Error::ForeignDirectory { path: path.into() })?;
    check_format(path, &version)?;
    check_is_whole(db, path).await?;
    read_records(db, path).await
}

/// Reads the ids of the keyspaces, and the lowest that was never in use.
pub(crate) async fn read_retained(
    db: &(impl DbReadOps + Sync),
    path: &str,
) -> Result<(BTreeSet<KeyspaceId>, u64)> {
    // Before the records: a keyspace that is created between the two has a higher id.
    let next_id = number(db, path, layout::next_key()).await?;
    let records = read_records(db, path).await?;
    Ok((records.iter().map(|record| record.id).collect(), next_id))
}

async fn read_records(db: &(impl DbReadOps + Sync), path: &str) -> Result<Vec<Keyspace>> {
    let failed = |error: slatedb::Error| convert(path, &error);
    let mut keyspaces = Vec::new();
    let mut records = db.scan(layout::records()).await.map_err(failed)?;
    while let Some(record) = records.next().await.map_err(failed)? {
        let keyspace = layout::decode_record(&record.key, &record.value);
        keyspaces.push(keyspace.ok_or_else(|| damaged(path, "the record of a keyspace"))?);
    }
    Ok(keyspaces)
}

/// Fails if a copy into the database was interrupted.
async fn check_is_whole(db: &(impl DbReadOps + Sync), path: &str) -> Result<()> {
    let mark = db.get(layout::copy_key()).await;
    match mark.map_err(|error| convert(path, &error))? {
        Some(_) => Err(Error::UnfinishedCopy { path: path.into() }),
        None => Ok(()),
    }
}

async fn number(db: &(impl DbReadOps + Sync), path: &str, key: bytes::Bytes) -> Result<u64> {
    let stored = db.get(key).await.map_err(|error| convert(path, &error))?;
    let number = stored.as_deref().and_then(layout::decode_number);
    number.ok_or_else(|| damaged(path, "a number of the layout"))
}

fn damaged(path: &str, what: &'static str) -> Error {
    Error::Corruption {
        what,
        file: path.into(),
        offset: 0,
        expected: "a value of the known layout".to_owned(),
        found: "another".to_owned(),
    }
}

fn check_format(path: &str, version: &[u8]) -> Result<()> {
    let found = version.try_into().map(u32::from_be_bytes);
    let found = found.map_err(|_| damaged(path, "the format version"))?;
    if found != layout::FORMAT_VERSION {
        return Err(Error::UnsupportedFormat {
            found,
            supported: layout::FORMAT_VERSION,
        });
    }
    Ok(())
}

/// Writes the first records of a database, which must have no contents of somebody else.
async fn initialize(db: &Db, path: &str, purpose: Purpose) -> Result<()> {
    let failed = |error: slatedb::Error| convert(path, &error);
    let mut contents = db.scan::<std::ops::RangeFull>(..).await.map_err(failed)?;
    if contents.next().await.map_err(failed)?.is_some() {
        return Err(Error::ForeignDirectory { path: path.into() });
    }
    let mut batch = WriteBatch::new();
    batch.put(layout::format_key(), layout::FORMAT_VERSION.to_be_bytes());
    batch.put(layout::next_key(), 1u64.to_be_bytes());
    batch.put(layout::own_batches_key(), 1u64.to_be_bytes());
    if purpose == Purpose::CopyTarget {
        batch.put(layout::copy_key(), []);
    }
    db.write(batch).await.map_err(failed)?;
    db.flush_with_options(LOG_FLUSH).await.map_err(failed)
}

impl Core {
    /// Creates the keyspaces that `make` returns for the next id. They are durable when this returns.
    pub(crate) fn add_keyspaces(
        &self,
        make: impl FnOnce(u64) -> Vec<Keyspace>,
    ) -> Result<Vec<KeyspaceId>> {
        self.check_open()?;
        let mut order = lock(&self.order);
        let new = make(order.next_id);
        let known = order.keyspaces.values().map(|known| &known.keyspace);
        Keyspace::check_all_new(&new, order.next_id, known)?;
        let ids = new.iter().map(|keyspace| keyspace.id).collect::<Vec<_>>();
        let Some(last) = ids.last() else {
            return Ok(ids);
        };
        let next_id = last.0 + 1;
        let mut batch = WriteBatch::new();
        batch.put(layout::next_key(), next_id.to_be_bytes());
        let mut keyspaces = KeyspaceMap::clone(&order.keyspaces);
        for keyspace in new {
            let id = keyspace.id;
            batch.put(layout::record_key(id), layout::encode_record(&keyspace));
            keyspaces.insert(id, KnownKeyspace::new(keyspace));
            self.retained.add(id);
        }
        let turn = self.write_keyspaces(&mut order, batch, keyspaces)?;
        order.next_id = next_id;
        drop(order);
        self.finish(turn)?;
        Ok(ids)
    }

    /// Removes the mark of an unfinished copy. The removal is durable when this returns.
    pub(crate) fn finish_copy(&self) -> Result<()> {
        self.check_open()?;
        let mut order = lock(&self.order);
        let mut batch = WriteBatch::new();
        batch.delete(layout::copy_key());
        let keyspaces = KeyspaceMap::clone(&order.keyspaces);
        let turn = self.write_keyspaces(&mut order, batch, keyspaces)?;
        drop(order);
        self.finish(turn).map(drop)
    }

    /// Drops a keyspace. The drop is durable when this returns.
    pub(crate) fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.check_open()?;
        let mut order = lock(&self.order);
        let known = Arc::downgrade(find(&order.keyspaces, id)?);
        let mut batch = WriteBatch::new();
        batch.delete(layout::record_key(id));
        let mut keyspaces = KeyspaceMap::clone(&order.keyspaces);
        keyspaces.remove(&id);
        let turn = self.write_keyspaces(&mut order, batch, keyspaces)?;
        drop(order);
        self.finish(turn)?;
        // Only now: a drop that is not durable may not have happened after a crash.
        self.retained.drop_later(id, known);
        Ok(())
    }
}
