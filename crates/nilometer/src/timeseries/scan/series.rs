//! Lists the series of a collection by an index that begins with the whole metadata.
//!
//! ```text
//! {meta: 1, control.min.t: 1, control.max.t: 1}    {h: "a"} 09:00  {h: "a"} 10:00 │ {h: "b"} 09:00 │ …
//!                                                  └ one series, a seek skips the rest
//! ```
//!
//! A predicate on metadata is then evaluated once for each series, not once for each bucket. The list is cached for one
//! version of the index ([`series_list`](crate::timeseries::cache::series_list)).

use nilometer_bson::{Value, ValueRef};

use super::BucketReader;
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::buckets::BucketIndex;
use crate::timeseries::cache::series_list::{SERIES_MAX, SeriesMetas};

/// Series read from an index at a time.
const SERIES_PER_PAGE: usize = 4096;

impl BucketReader {
    /// Returns the metadata of each series of a static index that begins with the whole metadata and holds no elements of
    /// arrays; `None` if there are more than `at_most`, or too many to keep.
    pub(crate) fn series(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        at_most: usize,
    ) -> Result<Option<SeriesMetas>> {
        let keyspace = index.stored.keyspace;
        let Some(version) = self.engine.snapshot()?.version(keyspace) else {
            return Ok(None);
        };
        if let Some(known) = self.cache.series_lists.get(keyspace, version) {
            return Ok(known.filter(|metas| metas.len() <= at_most));
        }
        let mut metas = Vec::new();
        let mut bytes = 0;
        let mut from = Vec::new();
        loop {
            let page = self.distinct_metas(collection, index, 1, (&from, None), SERIES_PER_PAGE)?;
            for document in &page.metas {
                let value = document.iter().next();
                bytes += document.as_bytes().len();
                metas.push(value.map_or(Value::Null, |element| match element.value() {
                    ValueRef::Missing | ValueRef::Undefined => Value::Null,
                    value => value.to_value(),
                }));
            }
            if metas.len() > SERIES_MAX {
                self.cache.series_lists.insert(keyspace, version, None, 0);
                return Ok(None);
            }
            if metas.len() > at_most {
                return Ok(None);
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        let metas: SeriesMetas = metas.into();
        let cached = Some(SeriesMetas::clone(&metas));
        let lists = &self.cache.series_lists;
        lists.insert(keyspace, version, cached, bytes);
        Ok(Some(metas))
    }
}
