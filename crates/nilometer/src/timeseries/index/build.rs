//! Builds an index over the buckets that exist.
//!
//! The build reads buckets in the order of their ids, in chunks. While it processes a chunk it holds the maintenance lock, so
//! no bucket document changes; one engine batch has the entries of the chunk and the position of the build. Inserts continue:
//! they append to tails and open buckets, and an insert that opens a bucket writes its entries ([`super::maintenance`]).
//!
//! The build reads the header of a bucket, metadata and bounds, which all indexes but those over points need. It reads
//! tails as well, although dynamic indexes have no entries for them yet: a value that the index cannot hold would otherwise
//! be detected when the tail is folded, too late to refuse the index.

use std::sync::Arc;

use nilometer_bson::{Document, ValueRef};
use nilometer_storage::{Direction, Durability, Snapshot, WriteBatch};

use super::maintenance::IndexMaintainer;
use crate::catalog::{Catalog, Collection, StoredIndex};
use crate::error::{Error, Result};
use crate::eval::EvaluationLimits;
use crate::index::{self, BuildSource, IndexBuild};
use crate::timeseries::Timeseries;
use crate::timeseries::format::bucket_document::{Layout, damaged};
use crate::timeseries::format::key_range::end_of;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::sealed;
use crate::timeseries::format::sealed::Stored;
use crate::timeseries::format::tail;
use crate::timeseries::scan::bucket_parts;
use crate::timeseries::scan::storage_iterator::{ChunkBounds, RawBucket, next_buckets};

/// Buckets in a chunk: a few milliseconds without folding.
const CHUNK_BUCKETS_MAX: usize = 512;

/// Bytes of documents after which a chunk ends.
const CHUNK_BYTES_MAX: usize = 8 << 20;

/// The buckets of a collection, as a build reads them.
pub struct BucketWalk<'w> {
    timeseries: &'w Timeseries,
    collection: &'w Collection,
}

impl BuildSource for BucketWalk<'_> {
    /// Each chunk takes its own lock.
    fn exclusively(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        work()
    }

    fn documents_after(&self, _: &dyn Snapshot, _: Option<&[u8]>) -> Result<index::DocumentChunk> {
        Ok(Vec::new())
    }

    fn document_count(&self) -> Result<u64> {
        self.timeseries.reader.bucket_count(self.collection)
    }

    /// Folding changes documents; inserts do not.
    fn has_waiting_writers(&self) -> bool {
        true
    }

    fn fill(
        &self,
        build: &IndexBuild<'_>,
        after: Option<&[u8]>,
    ) -> Option<Result<(u64, Option<Vec<u8>>)>> {
        let from = after.and_then(|key| key.try_into().ok());
        let limits = Some(build.operation.evaluation_limits());
        let filled = self.build_chunk(build.catalog, build.indexes, from, limits);
        Some(filled.map(|chunk| match chunk.last {
            Some(last) => (chunk.buckets, Some(last.to_vec())),
            None => (0, None),
        }))
    }
}

impl<'w> BucketWalk<'w> {
    pub(super) fn new(timeseries: &'w Timeseries, collection: &'w Collection) -> Self {
        Self {
            timeseries,
            collection,
        }
    }

    // long function: it merges three keyspaces that share their state.
    pub(crate) fn build_chunk(
        &self,
        catalog: &Catalog,
        indexes: &[Arc<StoredIndex>],
        after: Option<[u8; 12]>,
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<Chunk> {
        let (timeseries, collection) = (self.timeseries, self.collection);
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Err(Error::bad_value("not a bucket collection"));
        };
        let layout = &Layout::of(collection, options)?;
        let _rewriting = timeseries.maintenance.lock_rewriting();
        let made = IndexMaintainer::only(collection, indexes)?;
        let made = made.within(limits);
        let snapshot = timeseries.engine.snapshot()?;
        let start = after.map(end_of).unwrap_or_default();
        let bounds = ChunkBounds {
            start: &start,
            end: None,
            direction: Direction::Forward,
            buckets_max: CHUNK_BUCKETS_MAX,
            bytes_max: CHUNK_BYTES_MAX,
        };
        let mut batch = WriteBatch::new();
        let mut chunk = Chunk::default();
        for bucket in next_buckets(&*snapshot, keyspaces, bounds, None)?.buckets {
            let RawBucket { id, ref tail, .. } = bucket;
            let stored = bucket.stored();
            let entries = tail
                .iter()
                .map(|(key, value)| Ok((key.to_vec(), tail::decode(value)?)));
            let entries = entries.collect::<Result<Vec<_>>>()?;
            let document = match stored {
                Some(stored) => Some(header_or_all(stored, made.needs_columns())?),
                None => None,
            };
            if made.needs_documents() && !entries.is_empty() {
                let whole = stored.map(|stored| sealed::load(stored)).transpose()?;
                let whole = whole.as_ref().map(Document::as_ref);
                if let Some(image) = bucket_parts::image(whole, &entries, id, layout)? {
                    made.check_document(image.into_document().as_ref())?;
                }
            }
            let document = document.as_ref().map(Document::as_ref);
            if let (Some(document), true) = (document, made.may_take_buckets_later()) {
                made.check_document(document)?;
            }
            match bucket_parts::opened_as(document, &entries, &options.time_field) {
                Some((meta, start_ms)) => {
                    made.bucket_found(&mut batch, id, document, meta.as_ref(), start_ms)?;
                }
                None => {
                    let id = ValueRef::ObjectId(nilometer_bson::ObjectId(id));
                    return Err(damaged(id, "it does not tell when it starts"));
                }
            }
            chunk.buckets += 1;
            chunk.last = Some(id);
        }
        if let Some(last) = chunk.last {
            for index in indexes {
                catalog.put_build_progress(&mut batch, index, &last);
            }
        }
        made.mark_multikey(catalog)?;
        if !batch.is_empty() {
            timeseries.engine.commit(batch, Durability::Buffered)?;
        }
        Ok(chunk)
    }
}

#[derive(Default)]
pub(crate) struct Chunk {
    buckets: u64,
    /// The last bucket; `None` at the end.
    pub(crate) last: Option<[u8; 12]>,
}

/// Returns a stored document, with lengths instead of its columns unless those are needed.
fn header_or_all(stored: &[u8], with_columns: bool) -> Result<Document> {
    Ok(match sealed::open(stored)? {
        Stored::Split { skeleton, .. } if !with_columns => skeleton,
        other => other.to_document(stored)?,
    })
}
