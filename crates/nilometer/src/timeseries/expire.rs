//! Removing expired buckets.
//!
//! A bucket goes as a whole, when even the latest time it could hold has expired: its start plus the
//! span of the collection plus `expireAfterSeconds` is past. Where all times lie between 1970 and
//! 2038 the ids of buckets order as their starts do, and the scan ends at the first that stays;
//! otherwise every bucket's start is looked at.

use std::sync::Arc;

use nilometer_bson::ValueRef;
use nilometer_storage::Durability;

use super::Timeseries;
use super::bucket_document::BucketDocument;
use super::change::Claim;
use super::read::BucketRange;
use crate::catalog::{Catalog, Collection};
use crate::error::Result;

/// Buckets removed in one engine batch, so that inserts never wait long.
const EXPIRE_BATCH_BUCKETS_MAX: usize = 256;

impl Timeseries {
    /// Removes the buckets of `collection` that hold only times before `cutoff_ms` less its span.
    /// Returns how many.
    pub fn expire(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        cutoff_ms: i64,
    ) -> Result<usize> {
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
            if is_expired(bucket.min(&options.time_field), latest_start) {
                doomed.push(bucket.id().0);
            }
            if doomed.len() >= EXPIRE_BATCH_BUCKETS_MAX {
                removed += self.remove_expired(catalog, collection, &doomed, latest_start)?;
                doomed.clear();
            }
        }
        Ok(removed + self.remove_expired(catalog, collection, &doomed, latest_start)?)
    }

    /// Removes those of the buckets that still start no later than `latest_start`. Those that are
    /// being written to just now stay until the next time.
    fn remove_expired(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        doomed: &[[u8; 12]],
        latest_start: i64,
    ) -> Result<usize> {
        let Some(options) = &collection.timeseries else {
            return Ok(0);
        };
        if doomed.is_empty() {
            return Ok(0);
        }
        let mut changes = self.change_buckets(collection)?;
        let mut removed = 0;
        for id in doomed {
            let Claim::Taken(document) = changes.try_claim(*id)? else {
                continue;
            };
            let bucket = BucketDocument::parse(document.as_ref(), &options.time_field)?;
            if is_expired(bucket.min.get(&options.time_field), latest_start) {
                changes.remove(*id)?;
                removed += 1;
            }
        }
        changes.commit(catalog, Durability::Buffered)?;
        Ok(removed)
    }
}

fn is_expired(start: ValueRef<'_>, latest_start: i64) -> bool {
    matches!(start, ValueRef::DateTime(start) if start <= latest_start)
}
