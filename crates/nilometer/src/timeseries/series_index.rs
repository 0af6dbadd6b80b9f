//! The buckets of each series, in the order of their starts.
//!
//! A bucket is entered when it is opened and leaves when it is removed. The key says where to look;
//! whoever finds a bucket by it compares the meta value, as two series may share a hash.
//!
//! ```text
//! key    xxh3-128 of the normalised meta value | start in ms, sign flipped, big-endian | bucket id
//! value  empty
//! ```

use nilometer_storage::{Direction, KeyspaceId, Snapshot};

use super::meta::SeriesMeta;
use crate::error::Result;

/// Buckets of one series looked at when one of them is to take a measurement: only damaged or
/// copied data has more than a few that overlap.
const CANDIDATES_MAX: usize = 16;

fn prefix(meta: &SeriesMeta) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(meta.as_bytes()).to_be_bytes()
}

fn time_bytes(time_ms: i64) -> [u8; 8] {
    (time_ms ^ i64::MIN).to_be_bytes()
}

/// The entry of a bucket.
pub(crate) fn key(meta: &SeriesMeta, start_ms: i64, id: [u8; 12]) -> Vec<u8> {
    [&prefix(meta)[..], &time_bytes(start_ms), &id].concat()
}

/// The buckets of a series that start in `(after_ms, until_ms]`, latest first.
pub(crate) fn starting_within(
    snapshot: &dyn Snapshot,
    series: KeyspaceId,
    meta: &SeriesMeta,
    after_ms: i64,
    until_ms: i64,
) -> Result<Vec<[u8; 12]>> {
    let (Some(from), until) = (after_ms.checked_add(1), until_ms.checked_add(1)) else {
        return Ok(Vec::new());
    };
    let prefix = prefix(meta);
    let start = [&prefix[..], &time_bytes(from)].concat();
    let end = match until {
        Some(until) => [&prefix[..], &time_bytes(until)].concat(),
        None => [&prefix[..], &[0xFF; 21]].concat(),
    };
    let mut found = Vec::new();
    for item in snapshot.scan(series, &start, Some(&end), Direction::Backward)? {
        let (key, _) = item?;
        if let Some(id) = key.last_chunk() {
            found.push(*id);
        }
        if found.len() >= CANDIDATES_MAX {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::ValueRef;
    use nilometer_storage::{Durability, Engine, KeyspaceOptions, MemoryEngine, WriteBatch};

    #[test]
    fn buckets_are_found_by_series_and_start() {
        let engine = MemoryEngine::new();
        let options = KeyspaceOptions {
            separate_values: false,
        };
        let series = engine.create_keyspace("series", options).unwrap();
        let (a, b) = (
            SeriesMeta::of(ValueRef::Int32(1)),
            SeriesMeta::of(ValueRef::Int32(2)),
        );
        let mut batch = WriteBatch::new();
        for (meta, start, id) in [(&a, -60, 1), (&a, 0, 2), (&a, 60, 3), (&b, 0, 4)] {
            batch.put(series, key(meta, start, [id; 12]), Vec::new());
        }
        engine.commit(batch, Durability::Sync).unwrap();
        let snapshot = engine.snapshot().unwrap();
        let find = |meta, after, until| {
            let found = starting_within(&*snapshot, series, meta, after, until).unwrap();
            found.iter().map(|id| id[0]).collect::<Vec<_>>()
        };
        assert_eq!(find(&a, i64::MIN, i64::MAX), [3, 2, 1]);
        assert_eq!(find(&a, -60, 59), [2]);
        assert_eq!(find(&a, -61, 60), [3, 2, 1]);
        assert_eq!(find(&b, -100, 100), [4]);
        assert!(find(&b, 0, 100).is_empty());
    }
}
