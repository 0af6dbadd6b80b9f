//! Completing the registry of series of a collection that is older than it: the buckets are read once.
//!
//! Writers register the series of each bucket that they write, so only buckets that were there when the registry was added may
//! lack an entry. A series that loses its last bucket meanwhile may get its entry again, which does no harm.

use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, Snapshot, WriteBatch};

use crate::error::{Error, ErrorCode, Result};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::registry;
use crate::timeseries::scan::bucket_parts::read_parts;

/// Buckets read in one snapshot.
const CHUNK_BUCKETS: usize = 1000;

/// Marks the registry of a collection without buckets as complete.
pub(crate) fn complete_if_empty(engine: &dyn Engine, keyspaces: BucketKeyspaces) -> Result<()> {
    let Some(registry) = keyspaces.registry else {
        return Ok(());
    };
    let snapshot = engine.snapshot()?;
    if registry::is_complete(&*snapshot, registry)? {
        return Ok(());
    }
    let mut buckets = snapshot.scan(keyspaces.series, &[], None, Direction::Forward)?;
    if buckets.next().transpose()?.is_none() {
        let mut batch = WriteBatch::new();
        batch.put(registry, registry::COMPLETE.to_vec(), Vec::new());
        engine.commit(batch, Durability::Buffered)?;
    }
    Ok(())
}

/// Registers the series of all buckets, unless that is done. A damaged bucket ends it: the registry would lack its series.
pub(crate) fn complete(
    engine: &dyn Engine,
    keyspaces: BucketKeyspaces,
    time_field: &str,
) -> Result<()> {
    let Some(registry) = keyspaces.registry else {
        return Ok(());
    };
    if registry::is_complete(&*engine.snapshot()?, registry)? {
        return Ok(());
    }
    let mut from = Vec::new();
    loop {
        let snapshot = engine.snapshot()?;
        let mut batch = WriteBatch::new();
        let mut buckets = 0;
        let scan = snapshot.scan(keyspaces.series, &from, None, Direction::Forward)?;
        for entry in scan.take(CHUNK_BUCKETS) {
            let (key, _) = entry?;
            buckets += 1;
            let id = key.last_chunk::<12>();
            if let Some(id) = id {
                add(
                    &mut batch,
                    &*snapshot,
                    (keyspaces, registry),
                    (*id, time_field),
                )?;
            }
            from = [&key[..], &[0]].concat();
        }
        let is_last = buckets < CHUNK_BUCKETS;
        if is_last {
            batch.put(registry, registry::COMPLETE.to_vec(), Vec::new());
        }
        engine.commit(batch, Durability::Buffered)?;
        if is_last {
            return Ok(());
        }
    }
}

/// Adds the entry of the series of a bucket.
fn add(
    batch: &mut WriteBatch,
    snapshot: &dyn Snapshot,
    (keyspaces, registry): (BucketKeyspaces, KeyspaceId),
    (id, time_field): ([u8; 12], &str),
) -> Result<()> {
    let parts = read_parts(snapshot, keyspaces, id, None)?;
    if parts.is_empty() {
        return Ok(());
    }
    let Some((meta, _)) = parts.opened_as(time_field)? else {
        let what = "a bucket without metadata and start cannot be registered";
        return Err(Error::new(ErrorCode::DataCorruptionDetected, what));
    };
    let key = registry::key(meta.as_ref());
    // Most buckets are of a series that the chunk has already, or an earlier one.
    if snapshot.get(registry, &key)?.is_none() {
        batch.put(registry, key, Vec::new());
    }
    Ok(())
}
