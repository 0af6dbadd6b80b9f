//! Removing series from the registry after their last bucket.
//!
//! A writer that opens a bucket finds its series registered or registers it. It holds the list of indexes from then until the commit
//! ([`registry::SeriesRegistrar`]), so an entry is removed while no writer holds the list.

use nilometer_bson::Value;
use nilometer_storage::{Direction, Durability, KeyspaceId, Snapshot, WriteBatch};

use crate::catalog::Collection;
use crate::error::Result;
use crate::timeseries::Timeseries;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::format::{registry, series_index};

/// Removes the entries of those of the series that have no bucket any more. The caller does not hold the list of indexes.
pub(super) fn unregister(
    timeseries: &Timeseries,
    collection: &Collection,
    mut metas: Vec<Value>,
) -> Result<()> {
    let Some(keyspaces) = BucketKeyspaces::of(collection) else {
        return Ok(());
    };
    let Some(registry) = keyspaces.registry else {
        return Ok(());
    };
    metas.sort_by_cached_key(|meta| registry::key(meta.as_ref()));
    metas.dedup_by_key(|meta| registry::key(meta.as_ref()));
    // Most series have more buckets or are about to get one, and writers are not kept out to see that.
    metas.retain(|meta| {
        let series = SeriesMeta::of(meta.as_ref());
        !timeseries
            .bucket_catalog
            .has_series(collection.uuid, series)
    });
    retain_without_buckets(
        &*timeseries.engine.snapshot()?,
        keyspaces.series,
        &mut metas,
    )?;
    if metas.is_empty() {
        return Ok(());
    }
    let _no_writer = collection.indexes.lock_exclusive();
    retain_without_buckets(
        &*timeseries.engine.snapshot()?,
        keyspaces.series,
        &mut metas,
    )?;
    let mut batch = WriteBatch::new();
    for meta in &metas {
        batch.delete(registry, registry::key(meta.as_ref()));
    }
    if !batch.is_empty() {
        timeseries.engine.commit(batch, Durability::Buffered)?;
    }
    Ok(())
}

fn retain_without_buckets(
    snapshot: &dyn Snapshot,
    series: KeyspaceId,
    metas: &mut Vec<Value>,
) -> Result<()> {
    let mut without = Vec::with_capacity(metas.len());
    for meta in metas.drain(..) {
        let key = SeriesMeta::of(meta.as_ref());
        let always = (i64::MIN, i64::MAX);
        let buckets = series_index::starts(snapshot, series, &key, always, Direction::Forward);
        let is_empty = buckets?.next().transpose()?.is_none();
        if is_empty {
            without.push(meta);
        }
    }
    *metas = without;
    Ok(())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::ValueRef;

    use super::*;
    use crate::timeseries::tests::{Fixture, at};

    fn registered(f: &Fixture) -> Vec<String> {
        let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
        let (start, end) = registry::ALL;
        let snapshot = f.engine.snapshot().unwrap();
        let direction = Direction::Forward;
        let entries = snapshot.scan(keyspaces.registry.unwrap(), &start, Some(&end), direction);
        let names = entries.unwrap().map(|entry| {
            let key = entry.unwrap().0;
            let ValueRef::String(name) = registry::meta_of(&key).unwrap() else {
                panic!("no text")
            };
            name.to_owned()
        });
        names.collect()
    }

    #[test]
    fn a_series_is_registered_while_it_has_buckets() {
        let f = Fixture::new();
        let hour = 3600;
        let measurement = |start, meta| at(start * hour, meta, 1);
        f.insert(
            &[
                measurement(0, "a"),
                measurement(0, "b"),
                measurement(4, "b"),
            ],
            true,
        );
        assert_eq!(registered(&f), ["a", "b"]);
        let expire = |hours: i64| {
            let cutoff_ms = hours * hour * 1000;
            f.timeseries.expire(&f.catalog, &f.collection, cutoff_ms)
        };
        assert_eq!(expire(2).unwrap(), 2);
        assert_eq!(registered(&f), ["b"]);
        f.insert(&[measurement(5, "a")], true);
        assert_eq!(registered(&f), ["a", "b"]);
        assert_eq!(expire(20).unwrap(), 2);
        assert!(registered(&f).is_empty());
        let problems = f.timeseries.validate(&f.collection, &|| Ok(()));
        assert_eq!(problems.unwrap().problems, Vec::<String>::new());
    }
}
