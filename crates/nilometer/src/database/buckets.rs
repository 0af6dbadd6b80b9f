//! Bucket collections as a source of queries: buckets to unpack, or bucket documents.
//!
//! Joins the module `timeseries`, which knows how buckets and their indexes are stored, with the traits of
//! [`crate::query::source`].

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::{Document, DocumentBuilder, ObjectId, ValueRef};

use super::Database;
use crate::catalog::{Collection, StoredIndex};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::eval::accumulator::ColumnTotal;
use crate::index::Index;
use crate::index::buckets::{BucketIndex, IndexKeyFilter, KeyCount, KeyLimit};
use crate::query::source::{
    Bucket, BucketEntries, BucketHeader, BucketIndexScan, BucketIter, BucketOptions, BucketRun,
    BucketScanOptions, BucketSource, Buckets, Direction, EntryIter, IndexEntry, RecordIter,
    RecordKey, RecordScanOptions, RecordSource, RecordView, ScanCounters, SeriesMetas,
    SingleBuckets, highest_id, lowest_id,
};
use crate::timeseries::index::spec;
use crate::timeseries::rewrite::TimeRange;
use crate::timeseries::{
    BucketRange, BucketView, IndexStream, ScannedBucket, StoredBucket, StoredBuckets,
    SummarizedBucket, SummarizedBuckets, SummaryRun, Timeseries,
};

/// Longest time for which the opening of a server reads the newest measurements.
pub const PREFETCH_MAX: Duration = Duration::from_millis(250);

/// Distinct metadata read from an index at a time.
const METAS_PER_PAGE: usize = 1024;

/// The buckets of a time-series collection, to unpack or as documents.
pub(crate) struct StoredBucketSource {
    timeseries: Arc<Timeseries>,
    collection: Arc<Collection>,
    options: BucketOptions,
}

impl StoredBucketSource {
    pub(super) fn new(timeseries: Arc<Timeseries>, collection: Arc<Collection>) -> Result<Self> {
        let known = collection.timeseries.as_ref();
        let options = BucketOptions {
            time_field: known.map_or("", |t| &*t.time_field).into(),
            meta_field: known.and_then(|t| t.meta_field.as_deref()).map(Arc::from),
            bucket_max_span_seconds: known.map_or(0, |t| i64::from(t.span_seconds)),
            bucket_rounding_seconds: known.map_or(0, |t| i64::from(t.rounding_seconds)),
            extended_range: collection.has_extended_range(),
            mixed_schema: collection.may_have_mixed_schema(),
            fixed_buckets: collection.has_fixed_buckets(),
            collation: Collation::of_stored(collection.options.as_ref())?,
        };
        Ok(Self {
            timeseries,
            collection,
            options,
        })
    }

    fn index(&self, stored: &Arc<StoredIndex>) -> Result<Arc<BucketIndex>> {
        BucketIndex::of(stored, &self.options.time_field)
    }

    /// Returns the buckets an index selects; all in the range if they are too many.
    pub(crate) fn by_index(
        &self,
        scan: &BucketIndexScan,
        range: BucketRange,
        counters: &Arc<ScanCounters>,
    ) -> Result<StoredBuckets> {
        scan.index.stored.count_use();
        let (timeseries, collection) = (&self.timeseries, &self.collection);
        match &scan.entries {
            BucketEntries::InIdOrder(wanted) => {
                let stream =
                    IndexStream::contiguous(&scan.index, &**wanted, range, count_into(counters));
                timeseries.reader.scan_streamed(collection, stream, range)
            }
            BucketEntries::InIndexOrder { keys, backward } => {
                let count = count_into(counters);
                let stream = IndexStream::new(&scan.index, keys, (range, *backward), count);
                timeseries.reader.scan_streamed(collection, stream, range)
            }
            BucketEntries::Within(_) => match self.candidates(scan, range, counters)? {
                Some(ids) => timeseries.reader.scan_listed(collection, ids, range),
                None => timeseries.reader.scan(collection, range),
            },
            BucketEntries::Newest(_) | BucketEntries::Oldest(_) => {
                match self.candidates(scan, range, counters)? {
                    Some(ids) => timeseries.reader.scan_latest(collection, ids, range),
                    None => timeseries.reader.scan(collection, range),
                }
            }
        }
    }

    /// Returns the ids of the buckets an index finds, ascending; `None` if they are too many, or if the index was dropped.
    fn candidates(
        &self,
        scan: &BucketIndexScan,
        range: BucketRange,
        counters: &Arc<ScanCounters>,
    ) -> Result<Option<Vec<[u8; 12]>>> {
        let (timeseries, collection) = (&self.timeseries, &self.collection);
        let found = match &scan.entries {
            BucketEntries::InIdOrder(wanted)
            | BucketEntries::InIndexOrder { keys: wanted, .. }
            | BucketEntries::Within(wanted) => {
                let walked = scan.scanned.as_deref();
                timeseries
                    .reader
                    .candidates(collection, &scan.index, (&**wanted, walked), range)
            }
            BucketEntries::Newest(components) | BucketEntries::Oldest(components) => {
                let direction = match &scan.entries {
                    BucketEntries::Newest(_) => nilometer_storage::Direction::Backward,
                    _ => nilometer_storage::Direction::Forward,
                };
                timeseries.reader.latest_candidates(
                    collection,
                    &scan.index,
                    (*components, direction),
                    &|| true,
                )
            }
        };
        let dropped = || {
            let all = collection.indexes.all();
            !all.iter()
                .any(|index| index.keyspace == scan.index.stored.keyspace)
        };
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            // The index was dropped after planning.
            Err(_) if dropped() => return Ok(None),
            Err(error) => return Err(error),
        };
        counters
            .keys
            .fetch_add(found.keys_examined, Ordering::Relaxed);
        Ok(Some(found.ids))
    }

    /// Returns the buckets in a range, or those of them that an index finds, by their summaries as far as these suffice.
    fn by_summaries(&self, scan: &BucketScanOptions, range: BucketRange) -> Result<BucketIter> {
        let (reader, collection) = (&self.timeseries.reader, &self.collection);
        let examined = scan.examined.clone();
        let listed = match &scan.index {
            Some(index) => {
                index.index.stored.count_use();
                self.candidates(index, range, &scan.examined)?
            }
            None => None,
        };
        let Some(ids) = listed else {
            let buckets = reader.scan_summarized(collection, range)?;
            return Ok(Box::new(SummarizedScan { buckets, examined }));
        };
        let ranges = (range, self.whole_within(scan.times));
        let buckets = reader.scan_listed_summarized(collection, ids, ranges)?;
        Ok(Box::new(SingleBuckets(buckets.map(move |bucket| {
            examined.documents.fetch_add(1, Ordering::Relaxed);
            bucket.map(of_scanned)
        }))))
    }

    /// Returns the range of the ids of buckets that a range of times does not cut, unless they are wider than they should be.
    fn whole_within(&self, times: TimeRange) -> BucketRange {
        let second = |ms: i64| u32::try_from(ms.div_euclid(1000).max(0)).ok();
        let span_ms = self.options.bucket_max_span_seconds.saturating_mul(1000);
        let first = (times.min != i64::MIN).then(|| second(times.min.saturating_add(999)));
        let last = (times.max != i64::MAX)
            .then(|| second(times.max.saturating_add(1).saturating_sub(span_ms)));
        BucketRange {
            min: first.map(|first| lowest_id(first.unwrap_or(u32::MAX))),
            max: last.map(|last| highest_id(last.unwrap_or(u32::MAX))),
            backward: false,
        }
    }
}

/// Returns a function that adds to the examined keys.
fn count_into(counters: &Arc<ScanCounters>) -> Box<dyn Fn(u64) + Send> {
    let counters = Arc::clone(counters);
    Box::new(move |keys| {
        counters.keys.fetch_add(keys, Ordering::Relaxed);
    })
}

impl RecordSource for StoredBucketSource {
    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter> {
        let bound = |key: &Option<RecordKey>| key.as_deref().and_then(|k| k.try_into().ok());
        let mut range = BucketRange {
            min: bound(&scan.min),
            max: bound(&scan.max),
            backward: scan.direction == Direction::Backward,
        };
        let after: Option<[u8; 12]> = bound(&scan.start_after);
        match (after, range.backward) {
            (Some(after), false) => range.min = range.min.max(Some(after)),
            (Some(after), true) => {
                range.max = Some(range.max.map_or(after, |max| max.min(after)));
            }
            (None, _) => {}
        }
        let buckets = self.timeseries.reader.scan(&self.collection, range)?;
        // Where there is an oplog, its entries continue what is read here.
        let settles = self.timeseries.keeps_changes();
        let (timeseries, collection) = (self.timeseries.clone(), self.collection.clone());
        let documents = buckets.filter_map(move |bucket| {
            let document = bucket.and_then(|bucket| {
                let document = match settles && bucket.stored().is_empty() {
                    true => timeseries.settled_document(&collection, &bucket)?,
                    false => Some(bucket.to_document()?),
                };
                Ok(document.map(|document| (bucket.id().0.to_vec(), document)))
            });
            document.transpose()
        });
        Ok(Box::new(documents.skip_while(move |item| {
            match (item, after) {
                (Ok((key, _)), Some(after)) => key[..] == after,
                _ => false,
            }
        })))
    }

    /// Counts the buckets: the estimate of the engine includes keys that were rewritten and not yet merged.
    fn count_estimate(&self) -> Result<u64> {
        let range = BucketRange::default();
        let mut count = 0;
        for bucket in self.timeseries.reader.scan(&self.collection, range)? {
            bucket?;
            count += 1;
        }
        Ok(count)
    }

    fn view(&self) -> Result<Option<Box<dyn RecordView>>> {
        let view = self.timeseries.view(&self.collection)?;
        Ok(Some(Box::new(RawBucketView(view))))
    }

    fn indexes(&self) -> Result<Vec<Arc<Index>>> {
        let all = RecordSource::all_indexes(self)?;
        Ok(all.into_iter().filter(|i| i.stored.is_usable()).collect())
    }

    fn all_indexes(&self) -> Result<Vec<Arc<Index>>> {
        let all = self.collection.indexes.all();
        let complete = all.iter().filter(|index| index.is_ready());
        complete
            .map(|index| Ok(Arc::new(self.index(index)?.index())))
            .collect()
    }

    fn clustered_key(&self, id: ValueRef<'_>) -> Option<RecordKey> {
        match id {
            ValueRef::ObjectId(id) => Some(id.0.to_vec()),
            _ => None,
        }
    }

    fn is_clustered(&self) -> bool {
        true
    }
}

/// A consistent view of bucket documents and their indexes.
struct RawBucketView(BucketView);

impl RecordView for RawBucketView {
    fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<EntryIter> {
        let direction = match direction {
            Direction::Forward => nilometer_storage::Direction::Forward,
            Direction::Backward => nilometer_storage::Direction::Backward,
        };
        let entries = self.0.entries(&index.stored, start, end, direction)?;
        Ok(Box::new(entries.map(|entry| {
            let (key, type_bits, id) = entry?;
            Ok(IndexEntry {
                key,
                type_bits,
                record: id.to_vec(),
            })
        })))
    }

    fn record(&self, key: &[u8]) -> Result<Option<Document>> {
        match key.try_into() {
            Ok(id) => self.0.document(id),
            Err(_) => Ok(None),
        }
    }
}

impl Database {
    /// Reads the newest measurements of all time series into memory, for at most `at_most`, so that the first queries find them.
    /// To be called after an opening, before the database is served. A server takes [`PREFETCH_MAX`] for it.
    pub fn prefetch_newest(&self, at_most: Duration) {
        let mut collections = Vec::new();
        for collection in self.catalog.collections() {
            if collection.timeseries.is_none() {
                continue;
            }
            // What cannot be read is left to readers.
            let source = StoredBucketSource::new(self.timeseries.clone(), collection.clone());
            if let Ok(indexes) = source.and_then(|source| BucketSource::indexes(&source)) {
                collections.push((collection, indexes));
            }
        }
        self.timeseries
            .reader
            .prefetch_newest(&collections, at_most);
    }
}

impl BucketSource for StoredBucketSource {
    fn options(&self) -> &BucketOptions {
        &self.options
    }

    fn measurement_count(&self) -> Result<Option<u64>> {
        self.timeseries.counts.count(self.collection.uuid)
    }

    fn scan(&self, scan: &BucketScanOptions) -> Result<BucketIter> {
        let range = BucketRange {
            min: scan.id_min,
            max: scan.id_max,
            backward: scan.direction == Direction::Backward,
        };
        if scan.summaries {
            return self.by_summaries(scan, range);
        }
        let examined = scan.examined.clone();
        let buckets = match &scan.index {
            Some(index) => self.by_index(index, range, &scan.examined)?,
            None => self.timeseries.reader.scan(&self.collection, range)?,
        };
        Ok(Box::new(SingleBuckets(buckets.map(move |bucket| {
            examined.documents.fetch_add(1, Ordering::Relaxed);
            bucket.map(|bucket| bucket as Arc<dyn Bucket>)
        }))))
    }

    fn indexes(&self) -> Result<Vec<Arc<BucketIndex>>> {
        let all = self.collection.indexes.all();
        let usable = all.iter().filter(|index| index.is_usable());
        usable.map(|index| self.index(index)).collect()
    }

    fn hinted(&self, hint: ValueRef<'_>) -> Result<Option<Arc<BucketIndex>>> {
        let Some(options) = &self.collection.timeseries else {
            return Ok(None);
        };
        let all = self.collection.indexes.all();
        let mut named = all.iter().filter(|index| {
            if !index.is_usable() {
                return false;
            }
            let Some(user) = spec::to_user(options, &index.spec) else {
                return false;
            };
            match hint {
                ValueRef::String(name) => user.name == name,
                ValueRef::Document(key) => is_same_key(key, user.key.as_ref()),
                _ => false,
            }
        });
        match (named.next(), named.next()) {
            (Some(_), Some(_)) => Err(Error::bad_value(
                "Hint matched multiple indexes, must hint by index name",
            )),
            (found, _) => found.map(|index| self.index(index)).transpose(),
        }
    }

    fn count_keys(
        &self,
        index: &BucketIndex,
        wanted: &dyn IndexKeyFilter,
        limit: &mut KeyLimit<'_>,
    ) -> Result<KeyCount> {
        self.timeseries.reader.count_keys(index, wanted, limit)
    }

    fn buckets_between_estimate(&self, id_min: Option<u32>, id_max: Option<u32>) -> Result<u64> {
        self.timeseries
            .reader
            .clustered_estimate(&self.collection, id_min, id_max)
    }

    fn distinct_metas(
        &self,
        index: &BucketIndex,
        components: usize,
        (start, end): (&[u8], Option<&[u8]>),
        from: Option<&[u8]>,
        counters: &ScanCounters,
    ) -> Result<(Vec<Document>, Option<Vec<u8>>)> {
        if from.is_none() {
            index.stored.count_use();
        }
        let page = self.timeseries.reader.distinct_metas(
            &self.collection,
            index,
            components,
            (from.unwrap_or(start), end),
            METAS_PER_PAGE,
        )?;
        // The mark is set before any such entry is written.
        if index.stored.multikey() != 0 {
            return Err(Error::new(
                ErrorCode::QueryPlanKilled,
                "the index was found to hold elements of arrays while it was read",
            ));
        }
        let count = |into: &std::sync::atomic::AtomicU64, n| into.fetch_add(n, Ordering::Relaxed);
        count(&counters.keys, page.keys_examined);
        count(&counters.documents, page.documents_examined);
        let meta_field = self.options.meta_field.as_deref().unwrap_or("meta");
        let shown = page.metas.iter().map(|meta| {
            let mut out = DocumentBuilder::new();
            for element in meta.iter() {
                out.append_renamed(meta_field, element);
            }
            out.finish()
        });
        Ok((shown.collect(), page.next))
    }

    fn series(&self, index: &BucketIndex, at_most: usize) -> Result<Option<Arc<SeriesMetas>>> {
        let reader = &self.timeseries.reader;
        let found = reader.series(&self.collection, index, at_most)?;
        // The mark is set before any entry for an element of an array is written.
        Ok(found.filter(|_| index.stored.multikey() == 0))
    }

    fn bucket_ids(&self, at_most: usize) -> Result<Option<Vec<[u8; 12]>>> {
        self.timeseries.reader.bucket_ids(&self.collection, at_most)
    }

    fn bucket_count_estimate(&self) -> Result<u64> {
        self.timeseries.reader.bucket_count(&self.collection)
    }
}

/// Implements methods of a trait by inherent methods of the same names.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.$name($($argument),*)
        })*
    };
}

/// A scan by summaries.
struct SummarizedScan {
    buckets: SummarizedBuckets,
    examined: Arc<ScanCounters>,
}

impl Buckets for SummarizedScan {
    fn next(&mut self) -> Option<Result<Arc<dyn Bucket>>> {
        let bucket = self.buckets.next()?;
        self.examined.documents.fetch_add(1, Ordering::Relaxed);
        Some(bucket.map(of_scanned))
    }

    fn next_run(
        &mut self,
        accept: &mut dyn FnMut(&dyn BucketRun) -> Result<usize>,
    ) -> Result<Option<Box<dyn BucketRun>>> {
        let run = self.buckets.next_run(&mut |run| accept(run))?;
        let Some(run) = run else { return Ok(None) };
        let count = run.bucket_count() as u64;
        self.examined.documents.fetch_add(count, Ordering::Relaxed);
        Ok(Some(Box::new(run)))
    }
}

fn of_scanned(bucket: ScannedBucket) -> Arc<dyn Bucket> {
    match bucket {
        ScannedBucket::Stored(bucket) => bucket,
        ScannedBucket::Summarized(bucket) => bucket,
    }
}

impl BucketRun for SummaryRun {
    forward! {
        bucket_count() -> usize;
        columns() -> &[Arc<str>];
        count(at: usize) -> u32;
        meta_id(at: usize) -> Option<NonZeroU64>;
        dates(column: usize) -> Option<&[[i64; 2]]>;
        totals(column: usize) -> Vec<ColumnTotal>;
    }

    fn bucket(&self, at: usize) -> Arc<dyn Bucket> {
        Arc::new(self.bucket(at))
    }
}

/// True if two key patterns are the same: names in order, and directions by value.
fn is_same_key(a: nilometer_bson::DocRef<'_>, b: nilometer_bson::DocRef<'_>) -> bool {
    let (mut a, mut b) = (a.iter(), b.iter());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(x), Some(y)) => {
                let same = nilometer_bson::order::compare(x.value(), y.value()).is_eq();
                if x.name() != y.name() || !same {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

/// Implements the traits of queries for a bucket of the module `timeseries`.
macro_rules! impl_bucket {
    ($bucket:ty) => {
        impl BucketHeader for $bucket {
            forward! {
                id() -> ObjectId;
                meta() -> ValueRef<'_>;
                meta_id() -> Option<NonZeroU64>;
                known_constants_id() -> Option<NonZeroU64>;
                constants() -> Result<Document>;
                min(field: &str) -> ValueRef<'_>;
                max(field: &str) -> ValueRef<'_>;
                bounds(field: &str) -> (ValueRef<'_>, ValueRef<'_>);
            }

            fn count(&self) -> u32 {
                u32::try_from(self.count()).unwrap_or(u32::MAX)
            }
        }

        impl Bucket for $bucket {
            forward! {
                version() -> i32;
                stored_bytes() -> usize;
                is_sorted() -> bool;
                columns() -> &[Arc<str>];
                place_shown(nth: usize) -> Option<usize>;
                column_at(at: usize) -> Result<Option<&Arc<ColumnBlock>>>;
                path_at(at: usize, below: &str) -> Result<Option<Arc<ColumnBlock>>>;
                bounds_at(at: usize) -> (ValueRef<'_>, ValueRef<'_>);
                has_column_at(at: usize) -> bool;
                total_at(at: usize) -> Result<Option<ColumnTotal>>;
                has_total_at(at: usize) -> bool;
                total_of_first(at: usize, count: usize) -> Result<Option<ColumnTotal>>;
                constants_id() -> Result<Option<NonZeroU64>>;
            }
        }
    };
}

impl_bucket!(StoredBucket);
impl_bucket!(SummarizedBucket);

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};
    use nilometer_storage::MemoryEngine;

    use super::*;
    use crate::services::Environment;
    use crate::{ClientSession, Request};

    fn run(database: &Database, command: Document) -> Document {
        let mut session = ClientSession::embedded();
        let reply = database.run_command(&mut session, &Request::new(command));
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{reply:?}");
        reply
    }

    fn opened(engine: &Arc<MemoryEngine>) -> Database {
        let database = Database::with_engine(engine.clone(), Environment::default());
        database.expect("a database")
    }

    /// Stores a time series of two sensors and ten hours.
    fn stored() -> Arc<MemoryEngine> {
        let engine = Arc::new(MemoryEngine::new());
        let database = opened(&engine);
        let timeseries = doc! {"timeField": "t", "metaField": "m"};
        run(
            &database,
            doc! {"create": "ts", "timeseries": timeseries, "$db": "db"},
        );
        for hour in 0..10 {
            let at = |sensor: &str| {
                let time = Value::DateTime(1_700_000_000_000 + hour * 3_600_000);
                doc! {"t": time, "m": sensor, "v": hour}
            };
            let both = array![at("a"), at("b")];
            run(
                &database,
                doc! {"insert": "ts", "documents": both, "$db": "db"},
            );
        }
        database.settle().expect("sealed and summarized");
        engine
    }

    /// Returns the memory of opened buckets, and of lists and summaries.
    fn in_memory(database: &Database) -> (u64, u64) {
        let parts = database.memory_parts();
        let bytes = |name| {
            let part = parts.iter().find(|part| part.name == name);
            part.expect("a part").bytes
        };
        (bytes("openedBuckets"), bytes("bucketLists"))
    }

    fn last_points(database: &Database) -> String {
        let last = doc! {"$last": "$v"};
        let pipeline = array![
            doc! {"$sort": doc! {"m": 1, "t": 1}},
            doc! {"$group": doc! {"_id": "$m", "last": last}},
            doc! {"$sort": doc! {"_id": 1}}
        ];
        let cursor = Document::new();
        let command = doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": cursor, "$db": "db"};
        format!("{:?}", run(database, command).get("cursor"))
    }

    #[test]
    fn the_newest_measurements_are_in_memory_after_an_opening() {
        let engine = stored();
        let database = opened(&engine);
        let expected = last_points(&database);
        drop(database);
        let database = opened(&engine);
        database.prefetch_newest(Duration::ZERO);
        assert_eq!(in_memory(&database), (0, 0), "there was no time");
        database.prefetch_newest(Duration::from_secs(60));
        let known = in_memory(&database);
        assert!(known.0 > 0 && known.1 > 0, "{known:?}");
        assert_eq!(last_points(&database), expected);
        assert_eq!(in_memory(&database), known, "nothing more was read");
    }

    #[test]
    fn what_the_cache_has_no_room_for_is_not_read() {
        let database = opened(&stored());
        database.timeseries.cache.set_opened_bytes_max(0);
        database.prefetch_newest(Duration::from_secs(60));
        assert_eq!(in_memory(&database).0, 0);
    }
}
