//! The newest, or the oldest, buckets of each series, by an index of metadata and time.
//!
//! ```text
//! {meta.host: 1, control.min.t: 1}    a 09:00  a 10:00  a 11:00 │ b 09:00  b 10:00 │ …
//!                                                       └ newest          └ newest      the rest is jumped over
//! ```
//!
//! An index of metadata and time changes when a bucket is opened or removed, and so much less often than
//! measurements come: what was found is remembered for as long as it does not.

use std::collections::HashMap;
use std::sync::Arc;

use nilometer_bson::key_string::{self, KeyBuilder, KeyOrder};
use nilometer_bson::{Value, ValueRef};
use nilometer_storage::{Direction, KeyspaceId, Snapshot};

use super::index_scan::{CANDIDATES_MAX, ENTRIES_WALKED_MAX, Found, prefix, split};
use crate::budget::Budgeted;
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::buckets::BucketIndex;
use crate::timeseries::Timeseries;

/// Lists of buckets that are remembered; most take a few kilobytes.
const LISTS_MAX: usize = 8;

/// A longer list is not remembered.
const REMEMBERED_IDS_MAX: usize = 1 << 17;

/// Memory of all lists together, at most.
pub(crate) const OUTERMOST_BYTES_MAX: usize =
    LISTS_MAX * REMEMBERED_IDS_MAX * size_of::<[u8; 12]>();

/// Which index, how many of its values make a series, whether the newest are meant, and the span of buckets.
type Which = (KeyspaceId, usize, bool, i64);

/// A list, and the version of the index it was made from.
type Known = (u64, Arc<[[u8; 12]]>);

/// What was found, by index, for one version of each.
pub(crate) struct Outermost(Budgeted<HashMap<Which, Known>>);

impl Default for Outermost {
    fn default() -> Self {
        Self(Budgeted::new(OUTERMOST_BYTES_MAX))
    }
}

fn bytes_of(lists: &HashMap<Which, Known>) -> usize {
    lists.values().map(|(_, ids)| size_of_val(&**ids)).sum()
}

impl Outermost {
    /// Changes the memory the lists may take; it shows when the next is made.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Memory the lists take.
    pub(crate) fn memory_bytes(&self) -> usize {
        bytes_of(&self.0.lock())
    }

    fn get(&self, which: Which, version: u64) -> Option<Arc<[[u8; 12]]>> {
        let known = self.0.lock();
        let (of, ids) = known.get(&which)?;
        (*of == version).then(|| Arc::clone(ids))
    }

    fn put(&self, which: Which, version: u64, ids: &[[u8; 12]]) {
        let most = self.0.bytes_max();
        if ids.len() > REMEMBERED_IDS_MAX || size_of_val(ids) > most {
            return;
        }
        let mut known = self.0.lock();
        if known.len() >= LISTS_MAX || bytes_of(&known) + size_of_val(ids) > most {
            known.clear();
        }
        known.insert(which, (version, ids.into()));
    }
}

impl Timeseries {
    /// The buckets that may hold the newest (`Backward`) or oldest (`Forward`) measurement of each combination of
    /// the first `components` values of a static index whose next component is the start, ascending.
    ///
    /// The bucket that starts last holds a measurement at or after its start; another holds one as late only
    /// if it starts less than a span before. The one that starts first holds a measurement less than a span
    /// behind its start; another holds an earlier one only if it starts before that. `None` if there are too
    /// many. What was found is remembered until the index changes.
    pub fn outermost_candidates(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        components: usize,
        direction: Direction,
    ) -> Result<Option<Found>> {
        let Some(options) = &collection.timeseries else {
            return Ok(Some(Found::default()));
        };
        let snapshot = self.engine.snapshot()?;
        let backward = direction == Direction::Backward;
        let which = (
            index.stored.keyspace,
            components,
            backward,
            options.span_ms(),
        );
        let version = snapshot.version(index.stored.keyspace);
        if let Some(version) = version
            && let Some(ids) = self.outermost.get(which, version)
        {
            return Ok(Some(Found {
                keys_examined: ids.len() as u64,
                ids: ids.to_vec(),
            }));
        }
        let span_ms = options.span_ms();
        let Some(mut found) = walk(&*snapshot, index, components, (direction, span_ms))? else {
            return Ok(None);
        };
        found.ids.sort_unstable();
        found.ids.dedup();
        if let Some(version) = version {
            self.outermost.put(which, version, &found.ids);
        }
        Ok(Some(found))
    }
}

/// Passes over an index from one series to the next.
fn walk(
    snapshot: &dyn Snapshot,
    index: &BucketIndex,
    components: usize,
    (direction, span_ms): (Direction, i64),
) -> Result<Option<Found>> {
    let backward = direction == Direction::Backward;
    let (keyspace, order) = (index.stored.keyspace, index.index().order());
    let mut found = Found::default();
    let mut scan = snapshot.scan(keyspace, &[], None, direction)?;
    // The values at hand, and the key that bounds what may still matter of them.
    let mut current: Option<(Vec<u8>, Vec<u8>)> = None;
    let mut passed = 0;
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
            passed += 1;
            if passed > ENTRIES_WALKED_MAX {
                scan = if backward {
                    snapshot.scan(keyspace, &[], Some(prefix), direction)?
                } else {
                    let Some(next) = behind_prefix(prefix) else {
                        break;
                    };
                    snapshot.scan(keyspace, &next, None, direction)?
                };
                passed = 0;
            }
            continue;
        }
        let prefix = prefix(key, order, components)?;
        let Some(start_ms) = start_of(key, prefix.len()) else {
            return Ok(None);
        };
        let bound_ms = if backward {
            // One that starts a span before ends where this one starts.
            start_ms.saturating_sub(span_ms - 1)
        } else {
            start_ms.saturating_add(span_ms)
        };
        let mut bound = KeyBuilder::new(KeyOrder::ASCENDING);
        bound.push(ValueRef::DateTime(bound_ms));
        current = Some((prefix.to_vec(), [prefix, &bound.finish().0].concat()));
        passed = 0;
        found.ids.push(id);
        if found.ids.len() > CANDIDATES_MAX {
            return Ok(None);
        }
    }
    Ok(Some(found))
}

/// The least key above all that begin with `prefix`; none if there is none.
fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut next = prefix.get(..=kept)?.to_vec();
    if let Some(last) = next.last_mut() {
        *last += 1;
    }
    Some(next)
}

/// The start of a bucket, which stands in its key behind so many bytes.
fn start_of(key: &[u8], at: usize) -> Option<i64> {
    // A date needs no type bits.
    let (values, _) = key_string::decode(key.get(at..)?, KeyOrder::ASCENDING, 1, &[]).ok()?;
    match values.first() {
        Some(Value::DateTime(start_ms)) => Some(*start_ms),
        _ => None,
    }
}
