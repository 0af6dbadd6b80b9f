//! Removing expired buckets.
//!
//! A bucket goes as a whole, when even the latest time it could hold has expired: its start plus the
//! span of the collection plus `expireAfterSeconds` is past. Where all times lie between 1970 and
//! 2038 the ids of buckets order as their starts do, and the scan ends at the first that stays;
//! otherwise every bucket's start is looked at.

use std::sync::Arc;

use nilometer_bson::{Document, ValueRef};
use nilometer_storage::{Durability, WriteBatch};

use super::Timeseries;
use super::fold::{self, BucketKeyspaces};
use super::index_maintenance::Maintained;
use super::meta::SeriesMeta;
use super::read::{BucketRange, StoredBucket};
use super::series_index;
use super::tail;
use crate::catalog::Collection;
use crate::error::Result;

/// Buckets removed in one engine batch, so that inserts never wait long.
const EXPIRE_BATCH_BUCKETS_MAX: usize = 256;

impl Timeseries {
    /// Removes the buckets of `collection` that hold only times before `cutoff_ms` less its span.
    /// Returns how many.
    pub fn expire(self: &Arc<Self>, collection: &Arc<Collection>, cutoff_ms: i64) -> Result<usize> {
        let Some(options) = &collection.timeseries else {
            return Ok(0);
        };
        let latest_start = cutoff_ms.saturating_sub(options.span_ms());
        let extended = collection.has_extended_range();
        let mut range = BucketRange::default();
        if !extended {
            let Ok(seconds) = u32::try_from(latest_start.div_euclid(1000)) else {
                return Ok(0);
            };
            let mut highest = [0xFF; 12];
            highest[..4].copy_from_slice(&seconds.to_be_bytes());
            range.max = Some(highest);
        }
        let mut removed = 0;
        let mut doomed = Vec::new();
        for bucket in self.scan(collection, range)? {
            let bucket = bucket?;
            let expired = match bucket.min(&options.time_field) {
                ValueRef::DateTime(start) => start <= latest_start,
                _ => false,
            };
            if expired {
                doomed.push(bucket);
            }
            if doomed.len() >= EXPIRE_BATCH_BUCKETS_MAX {
                removed += self.remove_buckets(collection, &doomed)?;
                doomed.clear();
            }
        }
        Ok(removed + self.remove_buckets(collection, &doomed)?)
    }

    /// Removes buckets with their tails. Those that are being written to just now stay.
    pub(super) fn remove_buckets(
        &self,
        collection: &Collection,
        buckets: &[Arc<StoredBucket>],
    ) -> Result<usize> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(0);
        };
        // No fold may put back what is removed here.
        let _alone = self.chores.exclusive();
        let indexes = Maintained::hold(collection)?;
        let mut batch = WriteBatch::new();
        let snapshot = self.engine.snapshot()?;
        let mut removed = Vec::new();
        for bucket in buckets {
            let id = bucket.id().0;
            let meta = SeriesMeta::of(bucket.meta());
            let Some(evicted) = self.bucket_catalog.evict(collection.uuid, meta.clone(), id) else {
                continue;
            };
            removed.push(evicted);
            if let ValueRef::DateTime(start_ms) = bucket.min(&options.time_field) {
                batch.delete(keyspaces.series, series_index::key(&meta, start_ms, id));
                let stored = match indexes.needs_documents() {
                    true => fold::read_parts(&*snapshot, keyspaces, id, None)?.document,
                    false => None,
                };
                let stored = stored.as_ref().map(Document::as_ref);
                indexes.bucket_removed(&mut batch, id, stored, bucket.meta(), start_ms)?;
            }
            batch.delete(keyspaces.open, id.to_vec());
            batch.delete(keyspaces.sealed, id.to_vec());
            let (start, end) = (
                tail::key(id, 0),
                [&tail::key(id, u32::MAX)[..], &[0]].concat(),
            );
            let direction = nilometer_storage::Direction::Forward;
            for item in snapshot.scan(keyspaces.tail, &start, Some(&end), direction)? {
                batch.delete(keyspaces.tail, item?.0.to_vec());
            }
        }
        let count = removed.len();
        let committed = match batch.is_empty() {
            true => Ok(0),
            false => self.engine.commit(batch, Durability::Buffered),
        };
        self.bucket_catalog.release(removed);
        committed?;
        Ok(count)
    }
}
