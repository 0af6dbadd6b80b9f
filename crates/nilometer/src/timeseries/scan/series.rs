//! Lists the series of a collection.
//!
//! A predicate on metadata is then evaluated once for each series, not once for each bucket. The registry of series
//! ([`registry`]) has an entry for each. As long as it is not complete, an index that begins
//! with the whole metadata is read:
//!
//! ```text
//! {meta: 1, control.min.t: 1, control.max.t: 1}    {h: "a"} 09:00  {h: "a"} 10:00 │ {h: "b"} 09:00 │ …
//!                                                  └ one series, a seek skips the rest
//! ```
//!
//! The list is cached for one version of what it was read from ([`series_list`](crate::timeseries::cache::series_list)).

use std::sync::Arc;

use nilometer_bson::{Value, ValueRef};
use nilometer_storage::{Direction, KeyspaceId, Snapshot};

use super::BucketReader;
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::buckets::BucketIndex;
use crate::timeseries::cache::series_list::SERIES_MAX;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::registry;
use crate::timeseries::rewrite::SeriesMetas;

/// Series read from an index at a time.
const SERIES_PER_PAGE: usize = 4096;

/// A list that is being read, and the bytes of its values.
#[derive(Default)]
struct ReadList {
    metas: Vec<Value>,
    bytes: usize,
}

impl ReadList {
    fn push(&mut self, meta: ValueRef<'_>, bytes: usize) {
        self.bytes += bytes;
        self.metas.push(match meta {
            ValueRef::Missing | ValueRef::Undefined => Value::Null,
            meta => meta.to_value(),
        });
    }
}

impl BucketReader {
    /// Returns the metadata of each series of a static index that begins with the whole metadata and holds no elements of
    /// arrays, and perhaps of series that have no bucket any more; `None` if there are more than `at_most`, or too many to
    /// keep.
    pub(crate) fn series(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        at_most: usize,
    ) -> Result<Option<Arc<SeriesMetas>>> {
        let snapshot = self.engine.snapshot()?;
        let registry = BucketKeyspaces::of(collection).and_then(|keyspaces| keyspaces.registry);
        if let Some(registry) = registry {
            let version = snapshot.version(registry);
            if let Some(known) = self.known_series(registry, version) {
                return Ok(known.filter(|metas| metas.len() <= at_most));
            }
            if registry::is_complete(&*snapshot, registry)? {
                return self.list(registry, version, at_most, || {
                    registered(&*snapshot, registry, at_most)
                });
            }
        }
        let keyspace = index.stored.keyspace;
        let Some(version) = snapshot.version(keyspace) else {
            return Ok(None);
        };
        if let Some(known) = self.known_series(keyspace, Some(version)) {
            return Ok(known.filter(|metas| metas.len() <= at_most));
        }
        self.list(keyspace, Some(version), at_most, || {
            self.indexed(collection, index, at_most)
        })
    }

    fn known_series(
        &self,
        keyspace: KeyspaceId,
        version: Option<u64>,
    ) -> Option<Option<Arc<SeriesMetas>>> {
        self.cache.series_lists.get(keyspace, version?)
    }

    /// Returns what `read` returns, one series more than `at_most` or [`SERIES_MAX`] at least if there are so many, and keeps it if it
    /// is the whole list of a known version.
    fn list(
        &self,
        keyspace: KeyspaceId,
        version: Option<u64>,
        at_most: usize,
        read: impl FnOnce() -> Result<ReadList>,
    ) -> Result<Option<Arc<SeriesMetas>>> {
        let ReadList { metas, bytes } = read()?;
        let lists = &self.cache.series_lists;
        if metas.len() > SERIES_MAX {
            if let Some(version) = version {
                lists.insert(keyspace, version, None, 0);
            }
            return Ok(None);
        }
        if metas.len() > at_most {
            return Ok(None);
        }
        let metas = Arc::new(SeriesMetas::from(metas));
        if let Some(version) = version {
            lists.insert(keyspace, version, Some(metas.clone()), bytes);
        }
        Ok(Some(metas))
    }

    fn indexed(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        at_most: usize,
    ) -> Result<ReadList> {
        let mut list = ReadList::default();
        let mut from = Vec::new();
        while list.metas.len() <= at_most.min(SERIES_MAX) {
            let page = self.distinct_metas(collection, index, 1, (&from, None), SERIES_PER_PAGE)?;
            for document in &page.metas {
                let value = document.iter().next();
                let value = value.map_or(ValueRef::Missing, |element| element.value());
                list.push(value, document.as_bytes().len());
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(list)
    }
}

/// Reads the registry.
fn registered(snapshot: &dyn Snapshot, registry: KeyspaceId, at_most: usize) -> Result<ReadList> {
    let mut list = ReadList::default();
    let (start, end) = registry::ALL;
    let entries = snapshot.scan(registry, &start, Some(&end), Direction::Forward)?;
    for entry in entries.take(at_most.min(SERIES_MAX).saturating_add(1)) {
        let (key, _) = entry?;
        list.push(registry::meta_of(&key)?, key.len());
    }
    Ok(list)
}
