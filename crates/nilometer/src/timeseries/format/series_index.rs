//! The buckets of each series, in the order of their starts.
//!
//! The entry of a bucket is written when the bucket is opened and deleted when it is removed. Two series may share a hash, so
//! a reader compares the meta value of the bucket it finds.
//!
//! ```text
//! key    xxh3-128 of the normalised meta value | start in ms, sign flipped, big-endian | bucket id
//! value  empty
//! ```

use nilometer_storage::{Direction, KeyspaceId, Snapshot};

use super::series_key::SeriesMeta;
use crate::error::{Error, ErrorCode, Result};

/// Buckets of one series to examine for one that can take a measurement. Only damaged or copied data has more than a few
/// that overlap.
const CANDIDATES_MAX: usize = 16;

/// Returns the hash that identifies a series in keys.
pub(crate) fn hash(meta: &SeriesMeta) -> u128 {
    xxhash_rust::xxh3::xxh3_128(meta.as_bytes())
}

fn prefix(meta: &SeriesMeta) -> [u8; 16] {
    hash(meta).to_be_bytes()
}

fn time_bytes(time_ms: i64) -> [u8; 8] {
    (time_ms ^ i64::MIN).to_be_bytes()
}

/// Returns the key of a bucket.
pub(crate) fn key(meta: &SeriesMeta, start_ms: i64, id: [u8; 12]) -> Vec<u8> {
    [&prefix(meta)[..], &time_bytes(start_ms), &id].concat()
}

/// Returns the buckets of a series that start in `(after_ms, until_ms]`, latest first.
pub(crate) fn starting_within(
    snapshot: &dyn Snapshot,
    series: KeyspaceId,
    meta: &SeriesMeta,
    (after_ms, until_ms): (i64, i64),
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

/// Returns start and id of every bucket of a series that starts between two times, both inclusive.
pub(crate) fn starts(
    snapshot: &dyn Snapshot,
    series: KeyspaceId,
    meta: &SeriesMeta,
    (from_ms, until_ms): (i64, i64),
    direction: Direction,
) -> Result<impl Iterator<Item = Result<(i64, [u8; 12])>> + use<>> {
    let prefix = prefix(meta);
    let start = [&prefix[..], &time_bytes(from_ms)].concat();
    let end = [&prefix[..], &time_bytes(until_ms), &[0xFF; 13]].concat();
    let scan = snapshot.scan(series, &start, Some(&end), direction)?;
    Ok(scan.map(|item| {
        let (key, _) = item?;
        let parts = key.get(16..).and_then(|rest| rest.split_first_chunk::<8>());
        let entry = parts.and_then(|(start, id)| {
            let start_ms = i64::from_be_bytes(*start) ^ i64::MIN;
            Some((start_ms, <[u8; 12]>::try_from(id).ok()?))
        });
        entry.ok_or_else(|| {
            Error::new(
                ErrorCode::DataCorruptionDetected,
                "an entry of the series index has another length",
            )
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::ValueRef;
    use nilometer_storage::{Durability, Engine, KeyspaceOptions, MemoryEngine, WriteBatch};

    #[test]
    fn buckets_are_found_by_series_and_start() {
        let engine = MemoryEngine::new();
        let options = KeyspaceOptions::default();
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
            let found = starting_within(&*snapshot, series, meta, (after, until)).unwrap();
            found.iter().map(|id| id[0]).collect::<Vec<_>>()
        };
        assert_eq!(find(&a, i64::MIN, i64::MAX), [3, 2, 1]);
        assert_eq!(find(&a, -60, 59), [2]);
        assert_eq!(find(&a, -61, 60), [3, 2, 1]);
        assert_eq!(find(&b, -100, 100), [4]);
        assert!(find(&b, 0, 100).is_empty());
        let all = |meta, within, direction| {
            let found = starts(&*snapshot, series, meta, within, direction).unwrap();
            let found = found.map(|entry| entry.map(|(start, id)| (start, id[0])));
            found.collect::<Result<Vec<_>>>().unwrap()
        };
        let everywhere = (i64::MIN, i64::MAX);
        let wanted = [(-60, 1), (0, 2), (60, 3)];
        assert_eq!(all(&a, everywhere, Direction::Forward), wanted);
        assert_eq!(all(&a, (-60, 0), Direction::Forward), wanted[..2]);
        assert_eq!(all(&b, everywhere, Direction::Backward), [(0, 4)]);
    }
}
