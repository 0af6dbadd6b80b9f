//! Reads of a list of buckets, as an index finds them, by their summaries.
//!
//! ```text
//! ids ─► opened buckets in the cache
//!        ├─ within the range of times, in a block that pays, no mark, no open document, no tail ─► SummarizedBucket
//!        └─ all others ─► read together, as from any list
//! ```
//!
//! A block has all buckets of some time, and is decoded for the few of a list. So a block that is not in the cache is read when
//! several of its buckets were asked for, by this list or by those before it. A bucket that the range of times cuts has to be read
//! anyway: it is read together with the others, not when a column of it is requested.

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_storage::{KeyspaceId, Snapshot};

use super::summarized::ScannedBucket;
use super::summarized_bucket::{ChunkReader, SummarizedBucket};
use super::summary_reader::SummaryReader;
use super::{BucketRange, BucketReader, StoredBuckets};
use crate::catalog::Collection;
use crate::error::Result;
use crate::timeseries::cache::sealed_bucket_list::KeyspaceVersions;
use crate::timeseries::cache::summary_blocks::{OpenedSummaries, SummaryDirectory};
use crate::timeseries::format::key_range::KeyRange;

/// Buckets read in the first snapshot, and at most.
const FIRST_CHUNK: usize = 256;
const CHUNK_MAX: usize = 2048;

/// A scan of listed buckets by summaries.
pub struct SummarizedList {
    /// Reads what is not summarized.
    scan: StoredBuckets,
    /// The next one is the last.
    ids: Vec<[u8; 12]>,
    /// Buckets with these ids are not cut by the range of times.
    whole: BucketRange,
    chunk: usize,
    ready: VecDeque<Result<ScannedBucket>>,
}

impl BucketReader {
    /// Reads the buckets with these ids, which ascend, sealed ones by their summaries where these pay. Ids without a bucket are
    /// skipped. Buckets outside of `whole` are likely to be read anyway. The scan is to be consumed within one command.
    pub fn scan_listed_summarized(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        mut ids: Vec<[u8; 12]>,
        (range, whole): (BucketRange, BucketRange),
    ) -> Result<SummarizedList> {
        if !range.backward {
            ids.reverse();
        }
        Ok(SummarizedList {
            scan: self.scan(collection, range)?,
            ids,
            whole,
            chunk: FIRST_CHUNK,
            ready: VecDeque::new(),
        })
    }

    /// Returns the blocks and marks of a range. `None` if not every bucket has a summary or a mark, or if there are more than
    /// `blocks_max` blocks.
    pub(super) fn summary_directory(
        &self,
        summaries: SummaryReader<'_>,
        range: &KeyRange,
        blocks_max: usize,
    ) -> Result<Option<Arc<SummaryDirectory>>> {
        let version = summaries.snapshot.version(summaries.keyspace);
        let blocks = &self.cache.summary_blocks;
        if let Some(known) = blocks.directory(summaries.keyspace, version, range) {
            return Ok(Some(known));
        }
        let read = summaries.directory(range, blocks_max)?.map(Arc::new);
        if let Some(read) = &read {
            blocks.record_directory(summaries.keyspace, version, read);
        }
        Ok(read)
    }

    /// Returns blocks of summaries from the cache, or reads them. `None` for those that cannot be read.
    pub(super) fn summary_blocks(
        &self,
        summaries: SummaryReader<'_>,
        numbers: &[u64],
    ) -> Result<Vec<Option<Arc<OpenedSummaries>>>> {
        let blocks = &self.cache.summary_blocks;
        let known = numbers.iter();
        let known = known.map(|number| blocks.get(summaries.keyspace, *number));
        let mut found: Vec<_> = known.collect();
        let missing = numbers.iter().zip(&found);
        let missing = missing.filter(|(_, found)| found.is_none());
        let missing: Vec<u64> = missing.map(|(number, _)| *number).collect();
        if missing.is_empty() {
            return Ok(found);
        }
        let mut read = summaries.bytes_of_blocks(&missing)?.into_iter();
        for (number, found) in numbers.iter().zip(&mut found) {
            if found.is_some() {
                continue;
            }
            let bytes = read.next().flatten();
            *found = bytes.and_then(|b| self.open_summaries(summaries.keyspace, *number, b));
        }
        Ok(found)
    }
}

/// The snapshot of a chunk.
struct ChunkView {
    snapshot: Arc<dyn Snapshot>,
    versions: Option<KeyspaceVersions>,
}

impl SummarizedList {
    /// Reads the next chunk.
    fn refill(&mut self) -> Result<()> {
        let reader = Arc::clone(&self.scan.reader);
        let mut ids = self
            .ids
            .split_off(self.ids.len().saturating_sub(self.chunk));
        ids.reverse();
        self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        let snapshot: Arc<dyn Snapshot> = reader.engine.snapshot()?.into();
        let versions = KeyspaceVersions::of(&*snapshot, self.scan.keyspaces);
        let view = ChunkView { snapshot, versions };
        let cached = reader.cache.buckets.get_at(versions, &ids);
        let cached = cached
            .into_iter()
            .map(|known| known.map(ScannedBucket::Stored));
        let mut found: Vec<Option<ScannedBucket>> = cached.collect();
        self.summarize(&view, &ids, &mut found)?;
        let missing = ids.iter().zip(&found);
        let missing = missing.filter(|(_, found)| found.is_none());
        let missing: Vec<_> = missing.map(|(id, _)| *id).collect();
        let read = self.scan.fetch(&*view.snapshot, versions, &missing)?;
        let mut read = read.into_iter().peekable();
        for (id, found) in ids.iter().zip(found) {
            let bucket = match found {
                Some(bucket) => Ok(bucket),
                None => match read.next_if(|raw| raw.id == *id) {
                    Some(raw) => {
                        let bucket = reader.assemble(&self.scan.collection, raw, versions);
                        bucket.map(ScannedBucket::Stored)
                    }
                    None => continue,
                },
            };
            self.ready.push_back(bucket);
        }
        Ok(())
    }

    /// Adds the summaries of those buckets that are read by them.
    fn summarize(
        &mut self,
        view: &ChunkView,
        ids: &[[u8; 12]],
        found: &mut [Option<ScannedBucket>],
    ) -> Result<()> {
        let Some(keyspace) = self.scan.keyspaces.summaries else {
            return Ok(());
        };
        let wanted = ids.iter().zip(&*found);
        let wanted = wanted.filter(|(id, found)| found.is_none() && self.whole.contains(**id));
        let mut wanted: Vec<[u8; 12]> = wanted.map(|(id, _)| *id).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        wanted.sort_unstable();
        let summarized = self.summaries_of(view, keyspace, &wanted)?;
        for (id, found) in ids.iter().zip(found) {
            let at = summarized.binary_search_by_key(id, |(id, _)| *id);
            if let Ok(at) = at
                && found.is_none()
                && let Some((_, bucket)) = summarized.get(at)
            {
                *found = Some(ScannedBucket::Summarized(Arc::clone(bucket)));
            }
        }
        Ok(())
    }

    /// Returns the summaries of ascending buckets that are in blocks that pay.
    fn summaries_of(
        &self,
        ChunkView { snapshot, versions }: &ChunkView,
        keyspace: KeyspaceId,
        ids: &[[u8; 12]],
    ) -> Result<Vec<([u8; 12], Arc<SummarizedBucket>)>> {
        let (reader, keyspaces) = (&self.scan.reader, self.scan.keyspaces);
        let range = KeyRange::of_buckets(ids);
        let summaries = SummaryReader {
            snapshot: &**snapshot,
            keyspace,
        };
        // To read the place of a block costs less than to look up a bucket.
        let Some(directory) = reader.summary_directory(summaries, &range, ids.len())? else {
            return Ok(Vec::new());
        };
        let blocks = directory.blocks.iter().filter_map(|block| {
            let from = ids.partition_point(|id| *id < block.first);
            let to = ids.partition_point(|id| *id <= block.last);
            let wanted = ids.get(from..to).filter(|wanted| !wanted.is_empty())?;
            let known = &reader.cache.summary_blocks;
            let pays = known.ask(keyspace, block.number, wanted.len());
            pays.then_some((block.number, wanted))
        });
        let (numbers, wanted): (Vec<u64>, Vec<&[[u8; 12]]>) = blocks.unzip();
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let unsealed = (&range, ids.len());
        let unsealed = reader.unsealed_within(&**snapshot, keyspaces, *versions, unsealed)?;
        let Some(unsealed) = unsealed else {
            return Ok(Vec::new());
        };
        let blocks = reader.summary_blocks(summaries, &numbers)?;
        let mut found = Vec::with_capacity(ids.len());
        for (block, wanted) in blocks.iter().zip(wanted) {
            let Some(block) = block else { continue };
            let chunk = Arc::new(ChunkReader::new(&self.scan, snapshot, *versions));
            let is_valid = |id: &[u8; 12]| {
                directory.marked.binary_search(id).is_err() && unsealed.binary_search(id).is_err()
            };
            for id in wanted.iter().filter(|id| is_valid(id)) {
                let rows = block.rows();
                let Ok(at) = rows.binary_search_by_key(id, |row| row.id) else {
                    continue;
                };
                if rows.get(at).is_some_and(|row| !row.is_opaque()) {
                    let bucket = SummarizedBucket::new(block.clone(), at, chunk.clone());
                    found.push((*id, Arc::new(bucket)));
                }
            }
        }
        Ok(found)
    }
}

impl Iterator for SummarizedList {
    type Item = Result<ScannedBucket>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.ids.is_empty() {
            if let Err(error) = self.refill() {
                self.ids.clear();
                return Some(Err(error));
            }
        }
        self.ready.pop_front()
    }
}
