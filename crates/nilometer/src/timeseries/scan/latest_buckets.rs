//! Finds the newest, or the oldest, buckets of each series by an index of metadata and time.
//!
//! ```text
//! {meta.host: 1, control.min.t: 1}    a 09:00  a 10:00  a 11:00 │ b 09:00  b 10:00 │ …
//!                                                       └ newest          └ newest      a seek skips the rest
//! ```
//!
//! The result is cached for one version of the index
//! ([`latest_bucket_list`](crate::timeseries::cache::latest_bucket_list)).

use nilometer_bson::key_string::{self, KeyBuilder, KeyOrder};
use nilometer_bson::{Value, ValueRef};
use nilometer_storage::{Direction, Snapshot};

use super::BucketReader;
use super::index_scan::{BucketCandidates, CANDIDATES_MAX, STEPS_MAX, prefix, split};
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::buckets::BucketIndex;
use crate::timeseries::cache::latest_bucket_list::LatestListKey;

impl BucketReader {
    /// Returns the buckets that may hold the newest (`Backward`) or oldest (`Forward`) measurement of each combination of
    /// the first `components` values of a static index whose next component is the start, ascending. `None` if there are
    /// more than [`CANDIDATES_MAX`], or if they were not found while it `goes_on`.
    ///
    /// The bucket with the last start holds a measurement at or after that start; another bucket holds one as late only
    /// if it starts less than a span earlier. The bucket with the first start holds a measurement less than a span after
    /// that start; another bucket holds an earlier one only if it starts before that.
    pub fn latest_candidates(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        (components, direction): (usize, Direction),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<BucketCandidates>> {
        let Some(options) = &collection.timeseries else {
            return Ok(Some(BucketCandidates::default()));
        };
        let snapshot = self.engine.snapshot()?;
        let backward = direction == Direction::Backward;
        let key = LatestListKey {
            index: index.stored.keyspace,
            components,
            newest: backward,
            span_ms: options.span_ms(),
        };
        let version = snapshot.version(index.stored.keyspace);
        if let Some(version) = version
            && let Some(ids) = self.cache.latest_lists.get(key, version)
        {
            return Ok(Some(BucketCandidates {
                keys_examined: ids.len() as u64,
                ids: ids.to_vec(),
            }));
        }
        let span_ms = options.span_ms();
        let view = self.index_view(&*snapshot, index.stored.keyspace)?;
        let found = find(&view, index, components, (direction, span_ms), goes_on)?;
        let Some(mut found) = found else {
            return Ok(None);
        };
        found.ids.sort_unstable();
        found.ids.dedup();
        if let Some(version) = version {
            self.cache.latest_lists.insert(key, version, &found.ids);
        }
        Ok(Some(found))
    }
}

/// Reads an index from one series to the next.
fn find(
    snapshot: &dyn Snapshot,
    index: &BucketIndex,
    components: usize,
    (direction, span_ms): (Direction, i64),
    goes_on: &dyn Fn() -> bool,
) -> Result<Option<BucketCandidates>> {
    let backward = direction == Direction::Backward;
    let (keyspace, order) = (index.stored.keyspace, index.index().order());
    let mut found = BucketCandidates::default();
    let mut scan = snapshot.scan(keyspace, &[], None, direction)?;
    // The values of the current series, and the key that bounds its relevant entries.
    let mut current: Option<(Vec<u8>, Vec<u8>)> = None;
    let mut steps = 0;
    while let Some(item) = scan.next() {
        let (entry, _) = item?;
        found.keys_examined += 1;
        let (key, id) = split(&entry)?;
        if let Some((prefix, bound)) = &current
            && key.starts_with(prefix)
        {
            if (key >= bound.as_slice()) == backward {
                found.ids.push(id);
                continue;
            }
            steps += 1;
            if steps > STEPS_MAX {
                scan = if backward {
                    snapshot.scan(keyspace, &[], Some(prefix), direction)?
                } else {
                    let Some(next) = end_of_prefix(prefix) else {
                        break;
                    };
                    snapshot.scan(keyspace, &next, None, direction)?
                };
                steps = 0;
            }
            continue;
        }
        if !goes_on() {
            return Ok(None);
        }
        let prefix = prefix(key, order, components)?;
        let Some(start_ms) = start_of(key, prefix.len()) else {
            return Ok(None);
        };
        let bound_ms = if backward {
            // A bucket that starts a span earlier ends where this one starts.
            start_ms.saturating_sub(span_ms - 1)
        } else {
            start_ms.saturating_add(span_ms)
        };
        let mut bound = KeyBuilder::new(KeyOrder::ASCENDING);
        bound.push(ValueRef::DateTime(bound_ms));
        current = Some((prefix.to_vec(), [prefix, &bound.finish().0].concat()));
        steps = 0;
        found.ids.push(id);
        if found.ids.len() > CANDIDATES_MAX {
            return Ok(None);
        }
    }
    Ok(Some(found))
}

/// Returns the least key above all that begin with `prefix`, if there is one.
fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut next = prefix.get(..=kept)?.to_vec();
    if let Some(last) = next.last_mut() {
        *last += 1;
    }
    Some(next)
}

/// Returns the start of a bucket in milliseconds, which its key has at this offset.
fn start_of(key: &[u8], at: usize) -> Option<i64> {
    // A date needs no type bits.
    let (values, _) = key_string::decode(key.get(at..)?, KeyOrder::ASCENDING, 1, &[]).ok()?;
    match values.first() {
        Some(Value::DateTime(start_ms)) => Some(*start_ms),
        _ => None,
    }
}
