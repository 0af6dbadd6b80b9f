//! Reads of a list of buckets, as an index finds them, by their summaries.
//!
//! ```text
//! ids ─┬─ within the range of times, in a block that pays, no mark, no open document, no tail ─► SummarizedBucket
//!      ├─ opened in the cache ─► the bucket
//!      └─ all others ─► read together, as from any list
//! ```
//!
//! A block has all buckets of some time, and is decoded for the few of a list. So a block that is not in the cache is read when
//! several of its buckets were asked for that are not in the cache either, by this list or by those before it. A summary is read even
//! if the bucket is in the cache, as its bounds lie side by side with those of others. A bucket that the range of times cuts has to be
//! read anyway: it is read together with the others, not when a column of it is requested.

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_storage::{KeyspaceId, Snapshot};

use super::summarized::ScannedBucket;
use super::summarized_bucket::{ChunkReader, SummarizedBucket};
use super::summary_reader::{DIRECTORY_BLOCKS_MAX, SummaryReader};
use super::{BucketRange, BucketReader, StoredBuckets};
use crate::catalog::Collection;
use crate::error::Result;
use crate::timeseries::cache::sealed_bucket_list::KeyspaceVersions;
use crate::timeseries::cache::summary_blocks::{
    DirectoryAnswer, OpenedSummaries, SummaryDirectory,
};
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
    /// `blocks_max` blocks. The second range at one version reads all blocks, as others are likely to follow.
    pub(super) fn summary_directory(
        &self,
        summaries: SummaryReader<'_>,
        range: &KeyRange,
        blocks_max: usize,
    ) -> Result<Option<Arc<SummaryDirectory>>> {
        let version = summaries.snapshot.version(summaries.keyspace);
        let blocks = &self.cache.summary_blocks;
        let all = match blocks.ask_directory(summaries.keyspace, version, range) {
            DirectoryAnswer::Known(known) => return Ok(Some(known)),
            DirectoryAnswer::ReadRange => None,
            DirectoryAnswer::ReadAll => {
                summaries.directory(&KeyRange::all(), DIRECTORY_BLOCKS_MAX)?
            }
        };
        let read = match all {
            Some(all) => Some(all),
            None => summaries.directory(range, blocks_max)?,
        };
        let read = read.map(Arc::new);
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

/// A bucket that is to be read by its summary, if that pays.
struct WantedBucket {
    id: [u8; 12],
    is_cached: bool,
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

    /// Adds the summaries of those buckets that are read by them, also of buckets in the cache.
    fn summarize(
        &mut self,
        view: &ChunkView,
        ids: &[[u8; 12]],
        found: &mut [Option<ScannedBucket>],
    ) -> Result<()> {
        let Some(keyspace) = self.scan.keyspaces.summaries else {
            return Ok(());
        };
        let whole = ids.iter().zip(&*found);
        let whole = whole.filter(|(id, _)| self.whole.contains(**id));
        let wanted = whole.map(|(id, found)| WantedBucket {
            id: *id,
            is_cached: found.is_some(),
        });
        let mut wanted: Vec<WantedBucket> = wanted.collect();
        if wanted.is_empty() {
            return Ok(());
        }
        wanted.sort_unstable_by_key(|bucket| bucket.id);
        let summarized = self.summaries_of(view, keyspace, &wanted)?;
        for (id, found) in ids.iter().zip(found) {
            let at = summarized.binary_search_by_key(id, |(id, _)| *id);
            if let Ok(at) = at
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
        wanted: &[WantedBucket],
    ) -> Result<Vec<([u8; 12], Arc<SummarizedBucket>)>> {
        let (reader, keyspaces) = (&self.scan.reader, self.scan.keyspaces);
        let range = KeyRange::of_buckets(wanted.iter().map(|bucket| bucket.id));
        let summaries = SummaryReader {
            snapshot: &**snapshot,
            keyspace,
        };
        // To read the place of a block costs less than to look up a bucket.
        let Some(directory) = reader.summary_directory(summaries, &range, wanted.len())? else {
            return Ok(Vec::new());
        };
        let blocks = directory.blocks_within(&range).iter();
        let blocks = blocks.filter_map(|block| {
            let from = wanted.partition_point(|bucket| bucket.id < block.first);
            let to = wanted.partition_point(|bucket| bucket.id <= block.last);
            let wanted = wanted.get(from..to).filter(|wanted| !wanted.is_empty())?;
            let missing = wanted.iter().filter(|bucket| !bucket.is_cached).count();
            let known = &reader.cache.summary_blocks;
            let pays = known.ask(keyspace, block.number, missing);
            pays.then_some((block.number, wanted))
        });
        let (numbers, parts): (Vec<u64>, Vec<&[WantedBucket]>) = blocks.unzip();
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let unsealed = (&range, wanted.len());
        let unsealed = reader.unsealed_within(&**snapshot, keyspaces, *versions, unsealed)?;
        let Some(unsealed) = unsealed else {
            return Ok(Vec::new());
        };
        let blocks = reader.summary_blocks(summaries, &numbers)?;
        let mut found = Vec::with_capacity(wanted.len());
        for (block, wanted) in blocks.iter().zip(parts) {
            let Some(block) = block else { continue };
            let chunk = Arc::new(ChunkReader::new(&self.scan, snapshot, *versions));
            let is_valid = |id: &[u8; 12]| {
                directory.marked.binary_search(id).is_err() && unsealed.binary_search(id).is_err()
            };
            let ids = wanted.iter().map(|bucket| bucket.id);
            for id in ids.filter(|id| is_valid(id)) {
                let rows = block.rows();
                let Ok(at) = rows.binary_search_by_key(&id, |row| row.id) else {
                    continue;
                };
                if rows.get(at).is_some_and(|row| !row.is_opaque()) {
                    let bucket = SummarizedBucket::new(block.clone(), at, chunk.clone());
                    found.push((id, Arc::new(bucket)));
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
