//! The interface between queries and stored data.
//!
//! ```text
//! Collections::resolve("db", "ts") ─┬─ Absent
//!                                   ├─ Ordinary(RecordSource)    records in key order
//!                                   ├─ TimeSeries(BucketSource)  buckets in `_id` order
//!                                   ├─ Partitioned(PartitionSource)  either, in several partitions
//!                                   ├─ View { on, pipeline }     resolved again by the planner
//!                                   └─ Rollup                    bins, and the time series they are computed from
//! ```
//!
//! The query module does not know engines, keyspaces or the bucket catalog. Implementations guarantee the
//! following: a scan sees every write acknowledged before the batch it reads started and never part of a write. It neither
//! skips nor repeats a record that existed throughout, even while its buckets fold, seal or expire.
//!
//! Indexes are read through a [`RecordView`], a snapshot in which entries and documents agree.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};
use nilometer_storage::Engine;

use crate::catalog::StoredRollup;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::eval::accumulator::ColumnTotal;
use crate::index::Index;
use crate::index::buckets::{BucketIndex, IndexKeyFilter, KeyCount, KeyLimit, ScannedBuckets};
use crate::index::entry::StoredEntry;
pub use crate::query::outputs::{
    Change, DistantMerge, DistantMergeStage, MergeTarget, Outputs, Replacement,
};
use crate::query::partitions::PartitionSource;
use crate::rollup::RollupDefinition;
use crate::session::UserName;
use crate::timeseries::rewrite::TimeRange;
pub use crate::timeseries::rewrite::{BucketHeader, BucketPredicate, ConstantAnswer, SeriesMetas};
use crate::write::Arrivals;

/// The key of a record within its collection. The bytes order as the records do.
pub type RecordKey = Vec<u8>;

/// A scan of an ordinary collection.
pub type RecordIter = Box<dyn Iterator<Item = Result<(RecordKey, Document)>> + Send>;

/// A scan of a time-series collection.
pub type BucketIter = Box<dyn Buckets>;

/// Buckets in the order of a scan.
pub trait Buckets: Send {
    /// Returns the next bucket.
    fn next(&mut self) -> Option<Result<Arc<dyn Bucket>>>;

    /// Returns the buckets that follow, if they are known by summaries that are side by side. `accept` returns how many of
    /// them the caller takes. `None` if it takes none, or if [`Buckets::next`] returns what follows.
    fn next_run(
        &mut self,
        accept: &mut dyn FnMut(&dyn BucketRun) -> Result<usize>,
    ) -> Result<Option<Box<dyn BucketRun>>> {
        let _ = accept;
        Ok(None)
    }
}

/// Buckets of an iterator.
pub struct SingleBuckets<I>(pub I);

impl<I: Iterator<Item = Result<Arc<dyn Bucket>>> + Send> Buckets for SingleBuckets<I> {
    fn next(&mut self) -> Option<Result<Arc<dyn Bucket>>> {
        self.0.next()
    }
}

/// Buckets that follow one another in a scan, have the same columns, and are known by their summaries.
pub trait BucketRun: Send + Sync {
    /// Returns the number of buckets, at least 1.
    fn bucket_count(&self) -> usize;

    /// Returns a bucket.
    fn bucket(&self, at: usize) -> Arc<dyn Bucket>;

    /// Returns the column names by index.
    fn columns(&self) -> &[Arc<str>];

    /// Returns the number of measurements of a bucket.
    fn count(&self, at: usize) -> u32;

    /// Returns [`BucketHeader::meta_id`] of a bucket.
    fn meta_id(&self, at: usize) -> Option<NonZeroU64>;

    /// Returns the bounds of a column in milliseconds, if those of all buckets are dates.
    fn dates(&self, column: usize) -> Option<&[[i64; 2]]>;

    /// Returns the totals of a column, up to the first bucket that has none.
    fn totals(&self, column: usize) -> Vec<ColumnTotal>;
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// In key order.
    #[default]
    Forward,
    /// In reverse key order.
    Backward,
}

impl From<Direction> for nilometer_storage::Direction {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Forward,
            Direction::Backward => Self::Backward,
        }
    }
}

impl Direction {
    /// Returns explain's word for the direction.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// Resolves namespaces to stored data.
pub trait Collections: Send + Sync {
    /// Returns the contents of `db.coll`. `system.buckets.x` is an ordinary source of bucket documents.
    fn resolve(&self, db: &str, coll: &str) -> Result<Resolved>;

    /// Returns the rollups that stand on the time series `db.coll`.
    fn rollups(&self, db: &str, coll: &str) -> Result<Vec<Arc<RollupSource>>> {
        let _ = (db, coll);
        Ok(Vec::new())
    }

    /// Returns the document of `db.coll` with this `_id`; `None` if there is none, or no such collection of documents.
    fn find_by_id(&self, db: &str, coll: &str, id: ValueRef<'_>) -> Result<Option<Document>> {
        let _ = (db, coll, id);
        Ok(None)
    }

    /// Returns the interface for `$out` and `$merge`; `None` if writing is not supported.
    fn outputs(&self) -> Option<&dyn Outputs> {
        None
    }

    /// Runs a stage that reads the server instead of documents (`$collStats`, `$currentOp` …). The parameters are its
    /// name, its argument, the collection of the aggregate, if any, and the user, where that matters.
    fn introspect(
        &self,
        db: &str,
        coll: Option<&str>,
        stage: &str,
        argument: DocRef<'_>,
        user: Option<&UserName>,
    ) -> Result<Vec<Document>> {
        let _ = (db, coll, argument, user);
        Err(Error::new(
            ErrorCode::CommandNotSupported,
            format!("{stage} is not supported by this version"),
        ))
    }
}

/// Returns the outputs of `collections`, or an error if it does not support writing.
pub fn outputs_of(collections: &dyn Collections) -> Result<&dyn Outputs> {
    collections.outputs().ok_or_else(|| {
        Error::new(
            ErrorCode::CommandNotSupported,
            "nothing can be written here",
        )
    })
}

/// The contents of a namespace.
#[derive(Clone)]
pub enum Resolved {
    /// The namespace does not exist.
    Absent,
    /// An ordinary collection, or the buckets of a time-series collection read as documents.
    Ordinary(Arc<dyn RecordSource>),
    /// A time-series collection with its buckets.
    TimeSeries(Arc<dyn BucketSource>),
    /// A collection of either kind whose documents are in several partitions.
    Partitioned(Arc<dyn PartitionSource>),
    /// A rollup of a time series in several partitions, each of which has the bins of its measurements.
    PartitionedRollup(Arc<RollupSource>, Arc<dyn PartitionSource>),
    /// A user-defined view.
    View(ViewDefinition),
    /// A rollup of a time-series collection.
    Rollup(Arc<RollupSource>),
}

/// A rollup, and what its bins are computed from.
pub struct RollupSource {
    /// `db.coll`.
    pub namespace: String,
    /// What it computes.
    pub definition: Arc<RollupDefinition>,
    /// Its bins.
    pub stored: Arc<StoredRollup>,
    /// The engine that holds them.
    pub engine: Arc<dyn Engine>,
    /// The rollup below; `None` if it stands on a time series.
    pub parent: Option<Arc<RollupSource>>,
    /// The time series at the bottom.
    pub series: Arc<dyn BucketSource>,
    /// `db.system.buckets.coll` of that, for explain.
    pub series_namespace: String,
}

impl RollupSource {
    /// Returns what decides how bins merge: the definition, and those of the rollups below.
    pub fn definitions(&self) -> Document {
        let mut out = DocumentBuilder::new();
        let mut next = Some(self);
        while let Some(rollup) = next {
            let stages = rollup.stored.pipeline.iter().cloned().map(Value::from);
            out.append(&rollup.stored.source, stages.collect::<Vec<_>>());
            next = rollup.parent.as_deref();
        }
        out.finish()
    }
}

impl std::fmt::Debug for RollupSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RollupSource")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// A view: another namespace of the same database and the pipeline applied to it.
#[derive(Clone, Debug)]
pub struct ViewDefinition {
    /// The collection or view to read.
    pub on: String,
    /// The stages applied to it.
    pub pipeline: Vec<Document>,
    /// The view's collation.
    pub collation: Collation,
}

/// The parameters of a scan of an ordinary collection.
#[derive(Clone, Debug, Default)]
pub struct RecordScanOptions {
    /// The direction.
    pub direction: Direction,
    /// Lowest key to return, inclusive.
    pub min: Option<RecordKey>,
    /// Highest key to return, inclusive.
    pub max: Option<RecordKey>,
    /// Start after this record, in the direction of the scan.
    pub start_after: Option<RecordKey>,
    /// The caller reads up to `max` or the end.
    pub reads_all: bool,
}

/// An entry of an index.
#[derive(Clone, Debug)]
pub struct IndexEntry {
    /// The key string.
    pub key: Vec<u8>,
    /// The value types, which the key string does not contain.
    pub type_bits: Vec<u8>,
    /// The key of the record.
    pub record: RecordKey,
}

impl From<StoredEntry> for IndexEntry {
    fn from((key, type_bits, record): StoredEntry) -> Self {
        Self {
            key,
            type_bits,
            record,
        }
    }
}

impl IndexEntry {
    /// Returns the bytes of the whole entry: its position in the index.
    pub fn position(&self) -> Vec<u8> {
        [&self.key[..], &self.record].concat()
    }
}

/// An iterator over the entries of an index.
pub type EntryIter = Box<dyn Iterator<Item = Result<IndexEntry>> + Send>;

/// A snapshot of an ordinary collection and its indexes: entries and records agree. It retains overwritten data, so
/// release it soon.
pub trait RecordView: Send {
    /// Iterates over the entries of `index`, without documents, whose bytes (key string and record key) are at least
    /// `start` and less than `end`. Entries are read lazily.
    fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<EntryIter>;

    /// Returns the record with this key.
    fn record(&self, key: &[u8]) -> Result<Option<Document>>;
}

/// True if a hint names the index on `_id`, whose name is `name`.
pub fn names_id_index(hint: ValueRef<'_>, name: &str) -> bool {
    match hint {
        ValueRef::String(asked) => asked == name,
        ValueRef::Document(key) => {
            let mut fields = key.iter();
            fields.next().is_some_and(|f| f.name() == "_id") && fields.next().is_none()
        }
        _ => false,
    }
}

/// An ordinary collection.
pub trait RecordSource: Send + Sync {
    /// Takes a snapshot; `None` if the source does not support reading by index.
    fn view(&self) -> Result<Option<Box<dyn RecordView>>> {
        Ok(None)
    }

    /// Returns all complete indexes, including hidden ones and that on `_id`, to resolve hints.
    fn all_indexes(&self) -> Result<Vec<Arc<Index>>> {
        self.indexes()
    }

    /// Reads records in key order.
    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter>;

    /// Returns the maintained record count. It is exact when no write is in flight.
    fn count_estimate(&self) -> Result<u64>;

    /// Returns the record count if it is known without reading.
    fn known_count(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the counter that signals new documents to tailing cursors: only for capped collections.
    fn arrivals(&self) -> Result<Option<Arc<Arrivals>>> {
        Ok(None)
    }

    /// Returns the key of the record with this `_id`, for a clustered collection. Keys order as ids do.
    fn clustered_key(&self, id: ValueRef<'_>) -> Option<RecordKey> {
        let _ = id;
        None
    }

    /// True if [`RecordSource::clustered_key`] returns keys.
    fn is_clustered(&self) -> bool {
        false
    }

    /// Returns the field whose values have clustered keys.
    fn cluster_field(&self) -> &str {
        "_id"
    }

    /// Returns the key behind `key` by `count`, where keys are numbers that are given to records one after the other; else `None`.
    fn key_behind(&self, key: &RecordKey, count: u64) -> Option<RecordKey> {
        let _ = (key, count);
        None
    }

    /// Returns the place behind all records of a scan that begins now, for a tailable scan that finds none; `None` if it ends then.
    fn end_position(&self) -> Option<RecordKey> {
        None
    }

    /// True if a tailable scan that was behind this record has missed none.
    fn is_position_kept(&self, key: &RecordKey) -> Result<bool> {
        let only = RecordScanOptions {
            min: Some(key.clone()),
            max: Some(key.clone()),
            ..RecordScanOptions::default()
        };
        for record in self.scan(&only)? {
            if record?.0 == *key {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if [`RecordSource::find_by_id`] uses an index.
    fn has_id_index(&self) -> bool {
        false
    }

    /// Returns the record with this `_id` from the `_id` index; `None` if there is no such index.
    fn find_by_id(&self, id: ValueRef<'_>) -> Option<Result<Option<(RecordKey, Document)>>> {
        let _ = id;
        None
    }

    /// Returns the collation of the `_id` index, which is the collection's.
    fn collation(&self) -> Collation {
        Collation::SIMPLE
    }

    /// Returns the indexes a query may use: complete and not hidden, without that on `_id`.
    fn indexes(&self) -> Result<Vec<Arc<Index>>> {
        Ok(Vec::new())
    }

    /// True if a hint (a name or a key pattern) names an index of the collection. A hint for `_id` always does: the
    /// access path serves it.
    fn knows_index(&self, hint: ValueRef<'_>) -> bool {
        names_id_index(hint, "_id_")
    }

    /// Returns a record's key as `$recordId` shows it.
    fn record_id(&self, key: &[u8]) -> Value {
        match key.first_chunk::<8>() {
            Some(eight) if key.len() == 8 => Value::Int64(i64::from_be_bytes(*eight)),
            _ => ValueRef::Binary {
                subtype: 0,
                bytes: key,
            }
            .to_value(),
        }
    }
}

/// The options of a time-series collection that affect queries.
#[derive(Clone, Debug)]
pub struct BucketOptions {
    /// Name of the time field.
    pub time_field: Arc<str>,
    /// Name of the metadata field.
    pub meta_field: Option<Arc<str>>,
    /// Greatest span of a bucket.
    pub bucket_max_span_seconds: i64,
    /// `control.min.<time>` is rounded down to a multiple of this.
    pub bucket_rounding_seconds: i64,
    /// Some measurement is or was outside the range of the 32-bit seconds in `_id`.
    pub extended_range: bool,
    /// The minimum and maximum of a field may differ in type; such bounds are not usable.
    pub mixed_schema: bool,
    /// Span and rounding are and always were equal: every bucket lies within one period.
    pub fixed_buckets: bool,
    /// Default collation of the collection, by which bounds compare strings.
    pub collation: Collation,
}

/// The parameters of a scan of a time-series collection.
#[derive(Clone, Debug, Default)]
pub struct BucketScanOptions {
    /// The direction, by `_id`.
    pub direction: Direction,
    /// Lowest bucket `_id` to return, inclusive.
    pub id_min: Option<[u8; 12]>,
    /// Highest bucket `_id` to return, inclusive.
    pub id_max: Option<[u8; 12]>,
    /// An index, read by the source. Buckets without an entry may be omitted; the rest stay in `_id` order.
    pub index: Option<BucketIndexScan>,
    /// Buckets may be returned by their summaries: few of their columns will be read, and the whole scan is consumed at once.
    pub summaries: bool,
    /// The range of times that holds every match.
    pub times: TimeRange,
    /// The columns to be read; `None` means all. A hint: the source need not read others.
    pub columns: Option<Arc<[Arc<str>]>>,
    /// Counts the keys and buckets read.
    pub examined: Arc<ScanCounters>,
}

/// The index entries to read for a bucket scan.
#[derive(Clone, Debug)]
pub struct BucketIndexScan {
    /// The index.
    pub index: Arc<BucketIndex>,
    /// The entries to read.
    pub entries: BucketEntries,
    /// The buckets of these entries, if an earlier scan collected them.
    pub scanned: Option<Arc<ScannedBuckets>>,
}

/// The entries to read from an index over buckets.
#[derive(Clone, Debug)]
pub enum BucketEntries {
    /// Entries with these keys.
    Within(Arc<dyn IndexKeyFilter>),
    /// Entries with these keys. They are contiguous and ordered by bucket id.
    InIdOrder(Arc<dyn IndexKeyFilter>),
    /// Entries with these keys; buckets are returned in the order of the entries, not of their ids.
    InIndexOrder {
        /// The keys.
        keys: Arc<dyn IndexKeyFilter>,
        /// Reads from the last entry to the first.
        backward: bool,
    },
    /// For each combination of values of this number of leading parts: the buckets that may contain its newest
    /// measurement.
    Newest(usize),
    /// The same for the oldest measurement.
    Oldest(usize),
}

/// What a scan read, for explain.
#[derive(Debug, Default)]
pub struct ScanCounters {
    /// Records or buckets read, whether returned or not.
    pub documents: std::sync::atomic::AtomicU64,
    /// Index keys read.
    pub keys: std::sync::atomic::AtomicU64,
    /// Records or buckets the scan returned. Counted by the reader of the scan.
    pub returned: std::sync::atomic::AtomicU64,
}

impl ScanCounters {
    /// Returns the numbers of keys, and of records or buckets, read so far.
    pub fn now(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        (self.keys.load(Relaxed), self.documents.load(Relaxed))
    }
}

/// A time-series collection.
pub trait BucketSource: Send + Sync {
    /// Returns the options that affect queries.
    fn options(&self) -> &BucketOptions;

    /// Returns the number of measurements without reading buckets; `None` if it is not known. It is exact: that of the
    /// state in which a scan that begins now would begin.
    fn measurement_count(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Reads buckets in `_id` order. Open buckets include measurements not yet folded into them.
    fn scan(&self, scan: &BucketScanOptions) -> Result<BucketIter>;

    /// Returns the indexes a query may use: complete and not hidden, in bucket form.
    fn indexes(&self) -> Result<Vec<Arc<BucketIndex>>> {
        Ok(Vec::new())
    }

    /// Returns the usable index that a hint (a name or a key pattern in the user's fields) names.
    fn hinted(&self, hint: ValueRef<'_>) -> Result<Option<Arc<BucketIndex>>> {
        let _ = hint;
        Ok(None)
    }

    /// Counts the entries of an index that `wanted` accepts, up to `limit`.
    fn count_keys(
        &self,
        index: &BucketIndex,
        wanted: &dyn IndexKeyFilter,
        limit: &mut KeyLimit<'_>,
    ) -> Result<KeyCount> {
        let _ = (index, wanted);
        Ok(KeyCount {
            keys: limit.keys(),
            scanned: None,
        })
    }

    /// Estimates the number of buckets with ids between these seconds.
    fn buckets_between_estimate(&self, id_min: Option<u32>, id_max: Option<u32>) -> Result<u64> {
        let _ = (id_min, id_max);
        self.bucket_count_estimate()
    }

    /// Returns documents that contain only metadata: one for each combination of values of the first `components` parts
    /// of a static index, between two keys. Each call returns a limited number, and the position from which the next
    /// call continues as `from`.
    fn distinct_metas(
        &self,
        index: &BucketIndex,
        components: usize,
        between: (&[u8], Option<&[u8]>),
        from: Option<&[u8]>,
        counters: &ScanCounters,
    ) -> Result<(Vec<Document>, Option<Vec<u8>>)> {
        let _ = (components, between, from, counters);
        let name = &index.stored.spec.name;
        Err(Error::new(
            ErrorCode::IndexNotFound,
            format!("the index '{name}' is not one of this collection"),
        ))
    }

    /// Returns the metadata of each series, from a static index that begins with the whole metadata; null stands for
    /// missing metadata. `None` if there are more than `at_most` series.
    fn series(&self, index: &BucketIndex, at_most: usize) -> Result<Option<Arc<SeriesMetas>>> {
        let _ = (index, at_most);
        Ok(None)
    }

    /// Returns the ids of all buckets if there are at most `at_most` and they are known without reading buckets.
    fn bucket_ids(&self, at_most: usize) -> Result<Option<Vec<[u8; 12]>>> {
        let _ = at_most;
        Ok(None)
    }

    /// Estimates the number of buckets.
    fn bucket_count_estimate(&self) -> Result<u64>;
}

/// One bucket as queries see it: a header in memory and columns decoded on demand.
///
/// Row `i` of every column belongs to measurement `i`; [`BucketHeader::count`] is the number of rows. The time column
/// has a value in every row.
pub trait Bucket: BucketHeader + Send + Sync {
    /// Returns the format version: 1 plain, 2 compressed and sorted by time, 3 compressed and unsorted.
    fn version(&self) -> i32;

    /// Returns the stored size in bytes; 0 if it is not stored by itself.
    fn stored_bytes(&self) -> usize {
        0
    }

    /// True if measurements are known to ascend in time.
    fn is_sorted(&self) -> bool;

    /// Returns the column names by index.
    fn columns(&self) -> &[Arc<str>];

    /// Returns the index of the column that is the `nth` field of measurements, from 0. The time field may have any
    /// index.
    fn place_shown(&self, nth: usize) -> Option<usize> {
        Some(nth).filter(|nth| *nth < self.columns().len())
    }

    /// Returns the column at this index, decoding it if necessary; `None` if there is no such index.
    fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>>;

    /// Returns the values at a dotted path below those of that column, without building objects; values without such a field are
    /// missing. `None` if they must be found in whole values: there is an array on the way, or the path leads to objects or arrays.
    fn path_at(&self, at: usize, below: &str) -> Result<Option<Arc<ColumnBlock>>> {
        let _ = (at, below);
        Ok(None)
    }

    /// Returns the bounds of that column, as [`BucketHeader::min`] and [`BucketHeader::max`] do.
    fn bounds_at(&self, at: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        match self.columns().get(at) {
            Some(name) => (self.min(name), self.max(name)),
            None => (ValueRef::Missing, ValueRef::Missing),
        }
    }

    /// True if that column is decoded or does not exist.
    fn has_column_at(&self, at: usize) -> bool {
        let _ = at;
        false
    }

    /// Returns the total of that column, decoding it if necessary; `None` if no total is defined or stored.
    fn total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        let _ = at;
        Ok(None)
    }

    /// True if that total is known without decoding the column.
    fn has_total_at(&self, at: usize) -> bool {
        let _ = at;
        false
    }

    /// Returns the total of the first values of that column, if that costs less than to decode the column.
    fn total_of_first(&self, at: usize, count: usize) -> Result<Option<ColumnTotal>> {
        let _ = (at, count);
        Ok(None)
    }

    /// Returns the column with this name; `None` if the bucket has no such field.
    fn column(&self, name: &str) -> Result<Option<&Arc<ColumnBlock>>> {
        match place_of(self.columns(), name) {
            Some(at) => self.column_at(at),
            None => Ok(None),
        }
    }

    /// Returns [`BucketHeader::known_constants_id`], computing it if necessary, which may decode columns.
    fn constants_id(&self) -> Result<Option<NonZeroU64>> {
        Ok(None)
    }

    /// Returns an owned copy of the metadata.
    fn meta_value(&self) -> Value {
        self.meta().to_value()
    }
}

/// Iterates over indexes and names of a bucket's columns in the order in which measurements show them.
pub fn shown_columns(bucket: &dyn Bucket) -> impl Iterator<Item = (usize, &Arc<str>)> {
    let places = (0..).map_while(|nth| bucket.place_shown(nth));
    places.filter_map(|at| Some((at, bucket.columns().get(at)?)))
}

/// Returns the index of `name` in `names`.
pub fn place_of(names: &[Arc<str>], name: &str) -> Option<usize> {
    names.iter().position(|known| **known == *name)
}

/// The name of a column that is looked up in many buckets. It caches the column's index in a few lists of names:
/// adjacent buckets share few different lists.
#[derive(Debug)]
pub(crate) struct ColumnName {
    name: Arc<str>,
    /// Cached indexes by the address of the list. Two lists may share a slot, so an index is verified before use.
    places: [AtomicU16; 1 << PLACES_BITS],
}

/// Slots of the cache, as a power of two.
const PLACES_BITS: u32 = 5;

/// Returns the slot of a list.
fn list_number(names: &[Arc<str>]) -> usize {
    /// Spreads differences in few bits (2^64 divided by the golden ratio).
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    let place = names.as_ptr() as u64;
    (place.wrapping_mul(SPREAD) >> (u64::BITS - PLACES_BITS)) as usize
}

impl ColumnName {
    /// Creates a name with an empty cache.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            places: std::array::from_fn(|_| AtomicU16::new(0)),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns the bucket's column with this name.
    pub(crate) fn column_of<'b>(
        &self,
        bucket: &'b dyn Bucket,
    ) -> Result<Option<&'b Arc<ColumnBlock>>> {
        match self.place_in(bucket) {
            Some(at) => bucket.column_at(at),
            None => Ok(None),
        }
    }

    /// Returns the bounds of the field from the header.
    pub(crate) fn bounds_of<'b>(&self, bucket: &'b dyn Bucket) -> (ValueRef<'b>, ValueRef<'b>) {
        match self.place_in(bucket) {
            Some(at) => bucket.bounds_at(at),
            None => (bucket.min(&self.name), bucket.max(&self.name)),
        }
    }

    /// Returns the index of the column in the bucket.
    pub(crate) fn place_in(&self, bucket: &dyn Bucket) -> Option<usize> {
        let names = bucket.columns();
        let known = self.places.get(list_number(names))?;
        let guess = usize::from(known.load(Ordering::Relaxed));
        if names.get(guess).is_some_and(|name| *name == self.name) {
            return Some(guess);
        }
        let place = place_of(names, &self.name)?;
        if let Ok(place) = u16::try_from(place) {
            known.store(place, Ordering::Relaxed);
        }
        Some(place)
    }
}

/// Returns the lowest bucket id whose time is `seconds`.
pub fn lowest_id(seconds: u32) -> [u8; 12] {
    let mut id = [0; 12];
    id[..4].copy_from_slice(&seconds.to_be_bytes());
    id
}

/// Returns the highest bucket id whose time is `seconds`.
pub fn highest_id(seconds: u32) -> [u8; 12] {
    let mut id = [0xFF; 12];
    id[..4].copy_from_slice(&seconds.to_be_bytes());
    id
}
