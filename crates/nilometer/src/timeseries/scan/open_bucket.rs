//! Opens a bucket that was read: from the cache, from its stored form, or from its stored form and its tail.
//!
//! ```text
//! stored document, no tail ─► cache: same bytes? ─► StoredBucket::open
//! tail                     ─► cache: same state? ─┐
//!                             └ an earlier state ─┴─► StoredBucket::with_more: the entries since
//!                             └ none ─► StoredBucket::with_tail
//! ```
//!
//! Beside a writer the buckets of all its series have a new entry at each read.

use std::sync::Arc;

use nilometer_storage::Bytes;

use super::BucketReader;
use super::storage_iterator::{RawBucket, StoredForm};
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::Collation;
use crate::timeseries::cache::ReadCache;
use crate::timeseries::cache::bucket_cache;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::cache::sealed_bucket_list::KeyspaceVersions;
use crate::timeseries::cache::tail_content::TailToOpen;
use crate::timeseries::format::bucket_document::Layout;

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
        let earlier = cache.other_state(id).filter(|_| !tail.is_empty());
        let earlier_state = earlier.as_ref().and_then(|bucket| bucket.tail_state());
        let (mut fingerprint, mut is_continued) = (0, false);
        for state in bucket_cache::fingerprints(stored.as_deref(), &tail).enumerate() {
            is_continued |= earlier_state == Some(state);
            fingerprint = state.1;
        }
        if let Some(cached) = cache.get(id, fingerprint, versions) {
            return Ok(cached);
        }
        let bucket = match stored {
            Some(stored) if tail.is_empty() => {
                StoredBucket::open(stored, time_field_of(collection), interner)?
            }
            stored => {
                let tail = TailToOpen {
                    entries: &tail,
                    fingerprint,
                };
                let continued = match earlier.as_ref().filter(|_| is_continued) {
                    Some(earlier) => earlier.with_more(&tail, interner)?,
                    None => None,
                };
                #[cfg(test)]
                if continued.is_some() {
                    cov_mark::hit!(bucket_continued);
                }
                match continued {
                    Some(continued) => continued,
                    None => self.with_tail(collection, (id, stored, &tail), earlier)?,
                }
            }
        };
        let bucket = Arc::new(bucket);
        cache.insert(id, fingerprint, bucket.clone(), versions);
        Ok(bucket)
    }

    /// Opens a bucket with its id, document and tail.
    fn with_tail(
        &self,
        collection: &Collection,
        (id, stored, tail): ([u8; 12], Option<Bytes>, &TailToOpen<'_>),
        earlier: Option<Arc<StoredBucket>>,
    ) -> Result<StoredBucket> {
        let layout = Layout {
            time_field: time_field_of(collection),
            collation: Collation::of_stored(collection.options.as_ref())?,
        };
        let base = match stored {
            Some(stored) => Some(self.base(earlier, stored, layout.time_field)?),
            None => None,
        };
        StoredBucket::with_tail(id, base, tail, &layout, &self.cache.interner)
    }

    /// Returns the document of a bucket that has a tail: that of an earlier state, with its decoded columns, or it is opened.
    fn base(
        &self,
        earlier: Option<Arc<StoredBucket>>,
        stored: Bytes,
        time_field: &str,
    ) -> Result<Arc<StoredBucket>> {
        if let Some(earlier) = earlier {
            let base = earlier.base().unwrap_or(&earlier);
            if base.tail_state().is_none() && *base.stored() == stored {
                #[cfg(test)]
                cov_mark::hit!(document_of_earlier_state);
                return Ok(Arc::clone(base));
            }
        }
        let opened = StoredBucket::open(stored, time_field, &self.cache.interner)?;
        Ok(Arc::new(opened))
    }
}

fn time_field_of(collection: &Collection) -> &str {
    let options = collection.timeseries.as_ref();
    options.map_or("", |options| &*options.time_field)
}
