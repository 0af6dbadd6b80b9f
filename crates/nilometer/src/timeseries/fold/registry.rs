//! Completing the registry of series of a collection that is older than it: the buckets are read once.
//!
//! Writers register the series of each bucket that they write, so only buckets that were there when the registry was added may
//! lack an entry. No lock is held here. A series that loses its last bucket meanwhile may get its entry again, which does no harm.

use nilometer_bson::Value;
use nilometer_storage::{Direction, Durability, Engine, WriteBatch};

use crate::error::{Error, ErrorCode, Result};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::registry::{self, SeriesRegistrar};
use crate::timeseries::scan::bucket_parts::{BucketParts, read_parts};

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
        let registrar = SeriesRegistrar::new(engine, Some(registry));
        let mut batch = WriteBatch::new();
        let mut buckets = 0;
        let scan = snapshot.scan(keyspaces.series, &from, None, Direction::Forward)?;
        for entry in scan.take(CHUNK_BUCKETS) {
            let (key, _) = entry?;
            buckets += 1;
            let id = key.last_chunk::<12>();
            if let Some(id) = id {
                let parts = read_parts(&*snapshot, keyspaces, *id, None)?;
                if let Some(meta) = meta_of(&parts, time_field)? {
                    registrar.register(&mut batch, meta.as_ref())?;
                }
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

/// Returns the metadata of a bucket; `None` if it was removed.
fn meta_of(parts: &BucketParts, time_field: &str) -> Result<Option<Value>> {
    if parts.is_empty() {
        return Ok(None);
    }
    match parts.opened_as(time_field)? {
        Some((meta, _)) => Ok(Some(meta)),
        None => Err(Error::new(
            ErrorCode::DataCorruptionDetected,
            "a bucket without metadata and start cannot be registered",
        )),
    }
}
