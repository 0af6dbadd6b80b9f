//! Scans of buckets by their summaries: the bucket itself is read when a column of it is requested.
//!
//! ```text
//! list of blocks ─► block ─► rows in the range ─┬─ no mark, no open document, no tail ─► SummarizedBucket
//! marks, open documents, tails ─► ids           └─ else ─► the bucket, as in any scan
//! beyond the last block ─► as in any scan; a backward scan begins there
//! ```
//!
//! A scan of more than the cache holds does not open buckets for it: that would only replace what others use.
//!
//! A [`SummarizedBucket`] keeps the snapshot of its chunk, from which it reads its columns. So only queries that consume
//! the whole scan within one command may ask for summaries. If most buckets of a scan are read anyway, they cost little beside
//! the buckets, which are read ahead ([`super::read_ahead`]).

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_storage::{Bytes, KeyspaceId, Snapshot};

use super::summarized_bucket::{ChunkReader, SummarizedBucket};
use super::summary_reader::{DIRECTORY_BLOCKS_MAX, SummaryLookup, SummaryReader};
use super::summary_run::SummaryRun;
use super::{BucketRange, BucketReader, StoredBuckets, point_reads};
use crate::catalog::Collection;
use crate::error::Result;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::cache::sealed_bucket_list::KeyspaceVersions;
use crate::timeseries::cache::summary_blocks::OpenedSummaries;
use crate::timeseries::format::key_range::{KeyRange, end_of};
use crate::timeseries::format::summary::keys::ListedBlock;

/// A bucket of such a scan.
pub enum ScannedBucket {
    /// A bucket that was read.
    Stored(Arc<StoredBucket>),
    /// A bucket of which the summary was read.
    Summarized(Arc<SummarizedBucket>),
}

/// Buckets to be returned.
enum ReadyBuckets {
    Stored(Arc<StoredBucket>),
    Summarized(SummaryRun),
}

/// A scan of a bucket collection by summaries.
pub struct SummarizedBuckets {
    scan: StoredBuckets,
    /// The buckets behind the last block, which a backward scan reads first.
    newest: Option<StoredBuckets>,
    /// `None` if there is no further block.
    summaries: Option<KeyspaceId>,
    ready: VecDeque<Result<ReadyBuckets>>,
}

impl BucketReader {
    /// Reads the buckets of a collection in the order of their ids, sealed ones by their summaries where they have any.
    pub fn scan_summarized(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        range: BucketRange,
    ) -> Result<SummarizedBuckets> {
        let mut scan = self.scan(collection, range)?;
        let mut newest = None;
        let mut summaries = scan.keyspaces.summaries;
        if let Some(keyspace) = summaries {
            let snapshot = &*self.engine.snapshot()?;
            let reader = SummaryReader { snapshot, keyspace };
            let keys = scan.remaining();
            let directory = self.summary_directory(reader, &keys, DIRECTORY_BLOCKS_MAX)?;
            let lookup = match &directory {
                Some(directory) => SummaryLookup::Directory(directory),
                None => SummaryLookup::Stored(reader),
            };
            if directory.is_none() && !reader.is_complete()? {
                summaries = None;
            } else if range.backward
                && let Some(last) = lookup.block_below(keys.end.as_deref())?
                && range.max.is_none_or(|max| max > last.last)
            {
                let behind = BucketRange {
                    min: range.min.max(Some(id_after(last.last))),
                    ..range
                };
                newest = Some(self.scan(collection, behind)?);
                scan.range.max = Some(last.last);
            }
        }
        Ok(SummarizedBuckets {
            scan,
            newest,
            summaries,
            ready: VecDeque::new(),
        })
    }

    /// Returns a block of summaries from the cache, or reads it. `None` if it cannot be read: buckets are read instead.
    fn summaries(&self, summaries: SummaryReader<'_>, number: u64) -> Option<Arc<OpenedSummaries>> {
        let blocks = &self.cache.summary_blocks;
        if let Some(known) = blocks.get(summaries.keyspace, number) {
            return Some(known);
        }
        let bytes = summaries.block_bytes(number).ok()??;
        self.open_summaries(summaries.keyspace, number, bytes)
    }

    /// Decodes a block of summaries and caches it; `None` if it is damaged.
    pub(super) fn open_summaries(
        &self,
        keyspace: KeyspaceId,
        number: u64,
        bytes: Bytes,
    ) -> Option<Arc<OpenedSummaries>> {
        let opened = Arc::new(OpenedSummaries::open(bytes, &self.cache.interner).ok()?);
        let blocks = &self.cache.summary_blocks;
        blocks.insert(keyspace, number, &opened);
        Some(opened)
    }
}

/// The next block of a scan.
struct NextBlock {
    block: ListedBlock,
    /// The keys whose buckets are taken with it.
    covered: KeyRange,
    ends_scan: bool,
}

impl NextBlock {
    /// Returns the first block in the range; the buckets before it are taken with it.
    fn forward(summaries: &SummaryLookup<'_>, range: KeyRange) -> Result<Option<Self>> {
        let block = summaries.block_after(&range.start)?;
        let block = block.filter(|block| range.ends_after(&block.first));
        Ok(block.map(|block| {
            let end = end_of(block.last);
            let ends_scan = !range.ends_after(&end);
            let end = match ends_scan {
                true => range.end,
                false => Some(end),
            };
            let start = range.start;
            let covered = KeyRange { start, end };
            Self {
                block,
                covered,
                ends_scan,
            }
        }))
    }

    /// Returns the last block in the range; the buckets between it and the next block are taken with it.
    fn backward(summaries: &SummaryLookup<'_>, range: KeyRange) -> Result<Option<Self>> {
        let block = summaries.block_below(range.end.as_deref())?;
        let block = block.filter(|block| end_of(block.last) > range.start);
        Ok(block.map(|block| {
            let ends_scan = block.first[..] <= range.start[..];
            let start = match ends_scan {
                true => range.start,
                false => block.first.to_vec(),
            };
            let end = range.end;
            let covered = KeyRange { start, end };
            Self {
                block,
                covered,
                ends_scan,
            }
        }))
    }
}

/// Returns the id that follows; the last one follows itself.
fn id_after(mut id: [u8; 12]) -> [u8; 12] {
    for byte in id.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return id;
        }
    }
    [0xFF; 12]
}

impl SummarizedBuckets {
    fn refill(&mut self) -> Result<()> {
        if let Some(newest) = &mut self.newest {
            match newest.next() {
                Some(bucket) => self.ready.push_back(bucket.map(ReadyBuckets::Stored)),
                None => self.newest = None,
            }
            return Ok(());
        }
        let range = self.scan.remaining();
        if !range.ends_after(&range.start) {
            self.scan.done = true;
            return Ok(());
        }
        let Some(keyspace) = self.summaries else {
            return self.refill_plain();
        };
        let reader = self.scan.reader.clone();
        let snapshot: Arc<dyn Snapshot> = reader.engine.snapshot()?.into();
        let summaries = SummaryReader {
            snapshot: &*snapshot,
            keyspace,
        };
        // While others write, the version is another one for each block: then a directory would be read for each.
        let version = snapshot.version(keyspace);
        let directory = reader
            .cache
            .summary_blocks
            .directory(keyspace, version, &range);
        let lookup = match &directory {
            Some(directory) => SummaryLookup::Directory(directory),
            None => SummaryLookup::Stored(summaries),
        };
        let next = match self.scan.range.backward {
            true => NextBlock::backward(&lookup, range)?,
            false => NextBlock::forward(&lookup, range)?,
        };
        let opened =
            next.and_then(|next| Some((reader.summaries(summaries, next.block.number)?, next)));
        let Some((opened, next)) = opened else {
            self.summaries = None;
            return self.refill_plain();
        };
        let marked = lookup.marked(&next.covered)?;
        self.take(snapshot, &opened, &next.covered, marked)?;
        self.scan.after = Some(match self.scan.range.backward {
            true => next.block.first,
            false => next.block.last,
        });
        self.scan.done = next.ends_scan;
        Ok(())
    }

    /// Takes the next chunk of buckets that are read.
    fn refill_plain(&mut self) -> Result<()> {
        self.scan.refill()?;
        let read = self.scan.ready.drain(..);
        let read = read.map(|bucket| bucket.map(ReadyBuckets::Stored));
        self.ready.extend(read);
        Ok(())
    }

    /// Takes the buckets in a range of keys that has those of one block of summaries at most.
    fn take(
        &mut self,
        snapshot: Arc<dyn Snapshot>,
        block: &Arc<OpenedSummaries>,
        covered: &KeyRange,
        marked: Vec<[u8; 12]>,
    ) -> Result<()> {
        let keyspaces = self.scan.keyspaces;
        let reader = self.scan.reader.clone();
        let rows = block.rows();
        let from = rows.partition_point(|row| row.id[..] < covered.start[..]);
        let to = rows.partition_point(|row| covered.ends_after(&row.id));
        let rows = rows.get(from..to).unwrap_or(&[]);
        let versions = KeyspaceVersions::of(&*snapshot, keyspaces);
        let opaque = rows.iter().filter(|row| row.is_opaque()).map(|row| row.id);
        let mut changed: Vec<_> = marked.into_iter().chain(opaque).collect();
        let mut add = |unsealed: &[[u8; 12]]| {
            changed.extend_from_slice(unsealed);
            changed.sort_unstable();
            changed.dedup();
        };
        let read = match reader.known_unsealed(versions, covered) {
            Some(known) => {
                add(&known);
                point_reads::neighbours(&*snapshot, keyspaces, &changed)?
            }
            // Beside writers they change all the time: they are found and read at once.
            None => {
                let parts = point_reads::unsealed_parts_within(&*snapshot, keyspaces, covered)?;
                let unsealed: Vec<_> = parts.keys().copied().collect();
                add(&unsealed);
                reader.record_unsealed(versions, covered, unsealed);
                point_reads::with_unsealed_parts(&*snapshot, keyspaces, &changed, parts)?
            }
        };
        let mut read = read.into_iter().peekable();
        let chunk = Arc::new(ChunkReader::new(&self.scan, &snapshot, versions));
        let collection = self.scan.collection.clone();
        let assembled = |raw| {
            let bucket = reader.assemble(&collection, raw, versions);
            bucket.map(ReadyBuckets::Stored)
        };
        let mut taken = Vec::new();
        for (at, row) in (from..).zip(rows) {
            while let Some(raw) = read.next_if(|raw| raw.id < row.id) {
                taken.push(assembled(raw));
            }
            if changed.binary_search(&row.id).is_ok() {
                if let Some(raw) = read.next_if(|raw| raw.id == row.id) {
                    taken.push(assembled(raw));
                }
                continue;
            }
            if let Some(Ok(ReadyBuckets::Summarized(run))) = taken.last_mut()
                && run.extend(at)
            {
                continue;
            }
            let run = SummaryRun::new(block.clone(), at, chunk.clone());
            taken.push(Ok(ReadyBuckets::Summarized(run)));
        }
        taken.extend(read.map(assembled));
        if self.scan.range.backward {
            taken.reverse();
        }
        self.ready.extend(taken);
        Ok(())
    }
}

impl SummarizedBuckets {
    /// Makes the next buckets ready, if there are any.
    fn fill(&mut self) -> Result<()> {
        while self.ready.is_empty() && !self.scan.done {
            if let Err(error) = self.refill() {
                self.scan.done = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the buckets that follow, if they are known by summaries in one block, in a forward scan. `accept` returns how
    /// many of them are taken.
    pub(crate) fn next_run(
        &mut self,
        accept: &mut dyn FnMut(&SummaryRun) -> Result<usize>,
    ) -> Result<Option<SummaryRun>> {
        self.fill()?;
        let Some(Ok(ReadyBuckets::Summarized(run))) = self.ready.front_mut() else {
            return Ok(None);
        };
        if self.scan.range.backward {
            return Ok(None);
        }
        let count = accept(run)?;
        let taken = run.split_first(count);
        if run.bucket_count() == 0 {
            self.ready.pop_front();
        }
        Ok(taken)
    }
}

impl Iterator for SummarizedBuckets {
    type Item = Result<ScannedBucket>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            return Some(Err(error));
        }
        let run = match self.ready.front_mut()? {
            Ok(ReadyBuckets::Summarized(run)) => run,
            _ => {
                let ready = self.ready.pop_front()?;
                return match ready {
                    Ok(ReadyBuckets::Stored(bucket)) => Some(Ok(ScannedBucket::Stored(bucket))),
                    Ok(ReadyBuckets::Summarized(_)) => None,
                    Err(error) => Some(Err(error)),
                };
            }
        };
        let bucket = run.split_bucket(self.scan.range.backward);
        if run.bucket_count() == 0 {
            self.ready.pop_front();
        }
        Some(Ok(ScannedBucket::Summarized(Arc::new(bucket?))))
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::block::ColumnBlock;
    use nilometer_bson::{Value, doc};
    use nilometer_storage::{Direction, Durability, WriteBatch};

    use super::*;
    use crate::eval::accumulator::ColumnTotal;
    use crate::timeseries::format::keyspaces::BucketKeyspaces;
    use crate::timeseries::format::summary::{ROWS_MAX, keys};
    use crate::timeseries::tests::{Fixture, at};

    /// Returns how many buckets a scan returns by their summaries, and how many it returns in all.
    fn counts(f: &Fixture) -> (usize, usize) {
        let reader = &f.timeseries.reader;
        let scan = reader.scan_summarized(&f.collection, BucketRange::default());
        let found: Vec<_> = scan.unwrap().map(Result::unwrap).collect();
        let is_summary = |bucket: &&ScannedBucket| matches!(bucket, ScannedBucket::Summarized(_));
        (found.iter().filter(is_summary).count(), found.len())
    }

    /// The same for a list of all buckets, of which the first and the last are cut.
    fn listed_counts(f: &Fixture) -> (usize, usize) {
        let mut ids: Vec<_> = f.buckets(false).iter().map(|b| b.id().0).collect();
        ids.sort_unstable();
        f.timeseries.cache.clear_opened();
        let whole = BucketRange {
            min: ids.get(1).copied(),
            max: ids.iter().rev().nth(1).copied(),
            backward: false,
        };
        let reader = &f.timeseries.reader;
        let ranges = (BucketRange::default(), whole);
        let scan = reader.scan_listed_summarized(&f.collection, ids.clone(), ranges);
        let found: Vec<_> = scan.unwrap().map(Result::unwrap).collect();
        let mut summarized = 0;
        for (bucket, id) in found.iter().zip(ids) {
            match bucket {
                ScannedBucket::Stored(bucket) => assert_eq!(bucket.id().0, id),
                ScannedBucket::Summarized(bucket) => {
                    assert_eq!(bucket.id().0, id);
                    assert_eq!(bucket.difference().unwrap(), None);
                    summarized += 1;
                }
            }
        }
        (summarized, found.len())
    }

    /// Seals all buckets, and returns them by their summaries without room in the cache.
    fn unopened(f: &Fixture) -> Vec<Arc<SummarizedBucket>> {
        f.timeseries.seal_all(&f.collection).unwrap();
        f.timeseries.cache.buckets.set_bytes_max(0);
        let reader = &f.timeseries.reader;
        let scan = reader.scan_summarized(&f.collection, BucketRange::default());
        let buckets = scan.unwrap();
        let summarized = |bucket: Result<ScannedBucket>| match bucket.unwrap() {
            ScannedBucket::Summarized(bucket) => bucket,
            ScannedBucket::Stored(_) => panic!("a bucket without a summary"),
        };
        buckets.map(summarized).collect()
    }

    fn problems(f: &Fixture) -> Vec<String> {
        let found = f.timeseries.validate(&f.collection, &|| Ok(()));
        found.unwrap().problems
    }

    #[test]
    fn a_damaged_block_is_named_and_made_again() {
        let f = Fixture::new();
        for hour in 0..30 {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
        }
        f.timeseries.seal_all(&f.collection).unwrap();
        assert_eq!(counts(&f), (30, 30));
        assert_eq!(problems(&f), Vec::<String>::new());
        let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
        let summaries = keyspaces.summaries.unwrap();
        let reader = SummaryReader {
            snapshot: &*f.engine.snapshot().unwrap(),
            keyspace: summaries,
        };
        let first = reader.block_after(&[]).unwrap().unwrap();
        let mut batch = WriteBatch::new();
        batch.put(summaries, keys::body_key(first.number), vec![1, 2, 3]);
        f.engine.commit(batch, Durability::Sync).unwrap();
        let f = f.reopened();
        let (summarized, all) = counts(&f);
        assert!(summarized < 30 && all == 30);
        let (listed, all) = listed_counts(&f);
        assert!(listed > 10 && listed < 28 && all == 30);
        assert!(!problems(&f).is_empty());
        // A change of one of its buckets.
        let mut batch = WriteBatch::new();
        keys::mark(&mut batch, keyspaces, first.first);
        f.engine.commit(batch, Durability::Sync).unwrap();
        assert_eq!(listed_counts(&f), (listed, 30));
        f.timeseries.seal_all(&f.collection).unwrap();
        assert_eq!(counts(&f), (30, 30));
        assert_eq!(listed_counts(&f), (28, 30));
        assert_eq!(problems(&f), Vec::<String>::new());
        // Summaries that are out of date.
        let mut batch = WriteBatch::new();
        let ids: Vec<_> = f.buckets(false).iter().map(|b| b.id().0).collect();
        for id in ids.iter().step_by(3) {
            keys::mark(&mut batch, keyspaces, *id);
        }
        f.engine.commit(batch, Durability::Sync).unwrap();
        assert_eq!(listed_counts(&f), (19, 30));
        f.insert(&[at(5 * 3600 + 2, "a", 3)], true);
        assert_eq!(listed_counts(&f).1, 30);
    }

    #[test]
    fn buckets_of_a_collection_without_summaries_are_marked_once() {
        let f = Fixture::new();
        for hour in 0..20 {
            f.insert(&[at(hour * 3600, "a", 1)], true);
        }
        f.timeseries.seal_all(&f.collection).unwrap();
        let summaries = BucketKeyspaces::of(&f.collection)
            .unwrap()
            .summaries
            .unwrap();
        let snapshot = f.engine.snapshot().unwrap();
        let mut batch = WriteBatch::new();
        for item in snapshot
            .scan(summaries, &[], None, Direction::Forward)
            .unwrap()
        {
            batch.delete(summaries, item.unwrap().0.to_vec());
        }
        f.engine.commit(batch, Durability::Sync).unwrap();
        let f = f.reopened();
        assert_eq!(counts(&f), (0, 20));
        assert_eq!(listed_counts(&f), (0, 20));
        f.timeseries.seal_all(&f.collection).unwrap();
        assert_eq!(counts(&f), (20, 20));
        assert_eq!(listed_counts(&f), (18, 20));
        // Blocks of another form.
        let mut batch = WriteBatch::new();
        batch.put(summaries, keys::COMPLETE.to_vec(), Vec::new());
        f.engine.commit(batch, Durability::Sync).unwrap();
        let f = f.reopened();
        assert_eq!(counts(&f), (0, 20));
        assert_eq!(listed_counts(&f), (0, 20));
        f.timeseries.seal_all(&f.collection).unwrap();
        assert_eq!(counts(&f), (20, 20));
        let snapshot = &*f.engine.snapshot().unwrap();
        let keyspace = summaries;
        let blocks = SummaryReader { snapshot, keyspace }.blocks().unwrap();
        assert_eq!(blocks.count(), 20usize.div_ceil(ROWS_MAX));
    }

    #[test]
    fn blocks_and_marks_are_the_same_in_memory_and_in_the_store() {
        let f = Fixture::new();
        for hour in 0..40 {
            f.insert(&[at(hour * 3600, "a", 1)], true);
        }
        f.timeseries.seal_all(&f.collection).unwrap();
        let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
        let ids: Vec<_> = f.buckets(false).iter().map(|b| b.id().0).collect();
        let mut batch = WriteBatch::new();
        for id in ids.iter().step_by(3) {
            keys::mark(&mut batch, keyspaces, *id);
        }
        f.engine.commit(batch, Durability::Sync).unwrap();
        let reader = SummaryReader {
            snapshot: &*f.engine.snapshot().unwrap(),
            keyspace: keyspaces.summaries.unwrap(),
        };
        let stored = SummaryLookup::Stored(reader);
        let mut bounds: Vec<Option<Vec<u8>>> =
            ids.iter().step_by(5).map(|id| Some(id.to_vec())).collect();
        bounds.extend(ids.iter().step_by(7).map(|id| Some(end_of(*id))));
        bounds.push(None);
        for (start, end) in bounds
            .iter()
            .flat_map(|a| bounds.iter().map(move |b| (a, b)))
        {
            let start = start.clone().unwrap_or_default();
            let range = KeyRange {
                start,
                end: end.clone(),
            };
            if !range.ends_after(&range.start) {
                continue;
            }
            let directory = reader.directory(&range, DIRECTORY_BLOCKS_MAX);
            let directory = directory.unwrap().unwrap();
            let known = SummaryLookup::Directory(&directory);
            for key in bounds.iter().map(|key| key.clone().unwrap_or_default()) {
                if key < range.start || !range.ends_after(&key) {
                    continue;
                }
                let within = |block: Result<Option<ListedBlock>>| {
                    let block = block.unwrap();
                    block.filter(|block| {
                        range.ends_after(&block.first) && block.last[..] >= range.start[..]
                    })
                };
                assert_eq!(
                    within(known.block_after(&key)),
                    within(stored.block_after(&key))
                );
                let below = Some(&key[..]);
                assert_eq!(
                    within(known.block_below(below)),
                    within(stored.block_below(below))
                );
                let part = KeyRange {
                    start: key,
                    end: end.clone(),
                };
                assert_eq!(known.marked(&part).unwrap(), stored.marked(&part).unwrap());
            }
            let end = range.end.as_deref();
            assert_eq!(
                known.block_below(end).unwrap(),
                stored.block_below(end).unwrap()
            );
        }
    }

    #[test]
    fn columns_of_a_bucket_that_is_not_opened_are_those_of_the_bucket() {
        cov_mark::check_count!(columns_of_an_unopened_bucket, 30);
        let f = Fixture::new();
        for hour in 0..30 {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
        }
        for bucket in unopened(&f) {
            let places = 0..bucket.columns().len();
            assert!(places.clone().all(|at| !bucket.has_column_at(at)));
            let columns = places
                .clone()
                .map(|at| bucket.column_at(at).unwrap().cloned());
            let columns: Vec<_> = columns.collect();
            assert!(places.clone().all(|at| bucket.has_column_at(at)));
            assert!(bucket.column_at(places.end).unwrap().is_none());
            assert!(!bucket.is_opened());
            let whole = bucket.whole().unwrap();
            for (at, column) in places.zip(columns) {
                let expected = whole.column_at(at).unwrap().unwrap();
                let [found, expected] = [&column.unwrap(), expected]
                    .map(|column| nilometer_bson::doc! { "": column.to_values() });
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn totals_of_the_first_values_are_those_of_the_column() {
        cov_mark::check!(total_of_first);
        let f = Fixture::new();
        let measurement = |second: i64| {
            let wave = second * 7 % 23 - second / 40;
            doc! {
                "_id": second, "t": Value::DateTime(second * 1000), "m": "a", "int": wave as i32, "long": wave << 40,
                "short": wave, "double": wave as f64 / 4.0, "one": 3, "text": "x", "some": if second % 9 > 0 { wave.into() } else { Value::Missing },
            }
        };
        let all: Vec<_> = (0..400).map(measurement).collect();
        f.insert(&all, true);
        for bucket in unopened(&f) {
            let all = bucket.whole().unwrap().clone();
            for at in 0..bucket.columns().len() {
                let values = all.column_at(at).unwrap().unwrap().to_values();
                let total = |values: &[Value]| ColumnTotal::of(&ColumnBlock::from_values(values));
                for count in 1..values.len() {
                    // Nothing of it is opened.
                    let unread = SummarizedBucket::new(
                        bucket.block.clone(),
                        bucket.row,
                        bucket.chunk.clone(),
                    );
                    let (first, behind) = values.split_at(count);
                    let found = unread.total_of_first(at, count).unwrap();
                    let Some(found) = found else { continue };
                    assert_eq!(Some(found), total(first), "{count}");
                    let all = unread.total_at(at).unwrap();
                    if let Some(found) = all.and_then(|all| all.behind(&found)) {
                        assert_eq!(Some(found), total(behind), "{count}");
                    }
                }
            }
        }
    }
}
