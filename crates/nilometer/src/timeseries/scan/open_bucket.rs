//! Opens a bucket that was read: from the cache, from its stored form, or by folding its tail in.
//!
//! ```text
//! stored document, no tail ─► cache: same bytes? ─► StoredBucket::open
//! tail                     ─► cache: same state? ─┐
//!                             └ an earlier state ─┴─► append the entries since ─► StoredBucket::from_folded
//!                             └ none: fold all of them
//! ```
//!
//! Beside a writer the buckets of all its series have a new entry at each read. A reader that folded whole buckets would need the time of
//! all their measurements for each query.

use std::sync::Arc;

use nilometer_bson::{Document, ObjectId, ValueRef};
use nilometer_storage::Bytes;

use super::storage_iterator::{RawBucket, StoredForm};
use super::{BucketReader, bucket_parts};
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::Collation;
use crate::timeseries::cache::ReadCache;
use crate::timeseries::cache::bucket_cache;
use crate::timeseries::cache::opened_bucket::{FoldedState, StoredBucket};
use crate::timeseries::cache::sealed_bucket_list::KeyspaceVersions;
use crate::timeseries::format::bucket_document::{BucketImage, Layout, damaged};
use crate::timeseries::format::{sealed, tail};

impl BucketReader {
    /// Returns a bucket from the cache, or opens it.
    pub(super) fn assemble(
        &self,
        collection: &Collection,
        bucket: RawBucket,
        versions: Option<KeyspaceVersions>,
    ) -> Result<Arc<StoredBucket>> {
        let ReadCache {
            buckets: cache,
            interner,
            ..
        } = &*self.cache;
        let RawBucket {
            id, document, tail, ..
        } = bucket;
        let stored = match document {
            Some(StoredForm::Opened(opened)) if tail.is_empty() => return Ok(opened),
            Some(document) => Some(document.stored().clone()),
            None => None,
        };
        if let Some(stored) = stored.as_deref().filter(|_| tail.is_empty())
            && let Some(cached) = cache.get_opened_from(id, stored, versions)
        {
            return Ok(cached);
        }
        let other = cache.other_state(id).filter(|_| !tail.is_empty());
        let other_at = other.as_ref().and_then(|bucket| bucket.folded_at());
        let (mut fingerprint, mut begun_at) = (0, None);
        for state in bucket_cache::fingerprints(stored.as_deref(), &tail).enumerate() {
            begun_at = begun_at.or(other_at.filter(|at| *at == state));
            fingerprint = state.1;
        }
        if let Some(cached) = cache.get(id, fingerprint, versions) {
            return Ok(cached);
        }
        let options = collection.timeseries.as_ref();
        let time_field = options.map_or("", |options| &*options.time_field);
        let bucket = match stored {
            Some(stored) if tail.is_empty() => StoredBucket::open(stored, time_field, interner)?,
            stored => {
                let layout = Layout {
                    time_field,
                    collation: Collation::of_stored(collection.options.as_ref())?,
                };
                let image = match begun_at.and_then(|at| other?.take_folded(at)) {
                    Some(begun) => with_rest(*begun, &tail)?,
                    None => fold(id, stored, &tail, &layout)?,
                };
                let state = FoldedState {
                    image,
                    entries: tail.len(),
                    fingerprint,
                };
                StoredBucket::from_folded(state, cache.state_bytes_max(), time_field, interner)?
            }
        };
        let bucket = Arc::new(bucket);
        cache.insert(id, fingerprint, bucket.clone(), versions);
        Ok(bucket)
    }
}

/// Appends the entries that are not in an earlier state of the bucket.
fn with_rest(begun: FoldedState, tail: &[(Bytes, Bytes)]) -> Result<BucketImage> {
    #[cfg(test)]
    cov_mark::hit!(bucket_folded_from_earlier_state);
    let mut image = begun.image;
    for (_, value) in tail.iter().skip(begun.entries) {
        image.append_entry(&tail::decode(value)?)?;
    }
    Ok(image)
}

/// Folds the document and the whole tail of a bucket.
fn fold(
    id: [u8; 12],
    stored: Option<Bytes>,
    tail: &[(Bytes, Bytes)],
    layout: &Layout<'_>,
) -> Result<BucketImage> {
    let document = stored.map(|bytes| sealed::load(&bytes)).transpose()?;
    let document = document.as_ref().map(Document::as_ref);
    let mut entries = Vec::with_capacity(tail.len());
    for (key, value) in tail {
        entries.push((key.to_vec(), tail::decode(value)?));
    }
    let image = bucket_parts::image(document, &entries, id, layout)?;
    image.ok_or_else(|| damaged(ValueRef::ObjectId(ObjectId(id)), "there is nothing of it"))
}
