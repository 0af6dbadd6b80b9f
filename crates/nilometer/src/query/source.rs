//! The seam between queries and stored data: what a query may ask of a collection.
//!
//! ```text
//! Collections::resolve("db", "ts") ─┬─ Absent
//!                                   ├─ Ordinary(RecordSource)    records in key order
//!                                   ├─ TimeSeries(BucketSource)  buckets in `_id` order
//!                                   └─ View { on, pipeline }     resolved again by the planner
//! ```
//!
//! The query room knows nothing of engines, keyspaces or the bucket catalog; whoever implements
//! these traits promises design section 5.7: a scan sees every write acknowledged before the batch
//! it reads was started, never part of one write, and neither skips nor repeats a record that
//! existed throughout, even while buckets fold, seal or expire under it.
//!
//! Indexes are read through a [`RecordView`], one snapshot, so that entry and document agree.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, ObjectId, Value, ValueRef};

use crate::catalog::{Namespace, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::accumulator::ColumnTotal;
use crate::eval::matcher::MatchExpression;
use crate::eval::variables::SharedCollator;
use crate::eval::{Collation, EvalContext};
use crate::index::Index;
use crate::index::buckets::{BucketIndex, IndexKeyFilter, KeyCount, ScannedBuckets};
use crate::operation::OperationContext;
use crate::session::UserName;
pub use crate::timeseries::rewrite::{BucketHeader, BucketPredicate, ConstantAnswer};
use crate::write::Arrivals;
use crate::write::update::Update;

/// The key of a record within its collection: bytes that order as the records do.
pub type RecordKey = Vec<u8>;

/// A scan of an ordinary collection.
pub type RecordIter = Box<dyn Iterator<Item = Result<(RecordKey, Document)>> + Send>;

/// A scan of a time-series collection.
pub type BucketIter = Box<dyn Iterator<Item = Result<Arc<dyn Bucket>>> + Send>;

/// Which way a scan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// In key order.
    #[default]
    Forward,
    /// Against key order.
    Backward,
}

impl Direction {
    /// The word explain uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// Finds what a namespace holds.
pub trait Collections: Send + Sync {
    /// What `db.coll` is. `system.buckets.x` is an ordinary source of bucket documents.
    fn resolve(&self, db: &str, coll: &str) -> Result<Resolved>;

    /// Where `$out` and `$merge` write, if they may.
    fn outputs(&self) -> Option<&dyn Outputs> {
        None
    }

    /// Answers a stage that reads the server instead of documents (`$collStats`, `$currentOp` …):
    /// its name, its argument, the collection the aggregate names, if any, and who asks, where that matters.
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

/// Where the results of `$out` and `$merge` go. Behind this trait lies `write`, and for time series one
/// day `timeseries`; this room only says what shall be written.
pub trait Outputs: Send + Sync {
    /// Tells whether [`Outputs::replace`] would be refused.
    fn check_replaceable(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<()>;

    /// Begins to replace the contents of a collection, which keeps its options and indexes. One that is
    /// not there is made when the replacement is finished. `timeseries` asks for a time series.
    fn replace(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Box<dyn Replacement>>;

    /// A collection to merge into. One that is not there is made by the first document inserted.
    fn merge_into(&self, target: &Namespace) -> Result<Box<dyn MergeTarget>>;
}

/// The coming contents of a collection. Dropped before it is finished, it leaves nothing behind.
pub trait Replacement: Send {
    /// Adds documents.
    fn insert(&mut self, documents: &[Document], operation: &OperationContext) -> Result<()>;

    /// Puts them in the place of what was there, at once.
    fn finish(self: Box<Self>, operation: &OperationContext) -> Result<()>;
}

/// A collection that is merged into.
pub trait MergeTarget: Send {
    /// Whether no two documents can have the same values in exactly these fields, in any order: a unique
    /// index that is not partial and compares as the query does.
    fn has_unique_index_on(&self, fields: &[FieldPath], collation: &Collation) -> Result<bool>;

    /// An `_id` for a document that has none.
    fn new_id(&self, operation: &OperationContext) -> ObjectId;

    /// The document as it would be stored: what `on` compares.
    fn prepared(&self, document: Document) -> Result<Document> {
        Ok(document)
    }

    /// Inserts what is not there; code 11000 if it is. Unless told otherwise a unique index sees to that.
    fn insert_new(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<()> {
        match change.otherwise {
            Some(document) => self.insert(document, operation),
            None => Ok(()),
        }
    }

    /// Inserts a document.
    fn insert(&mut self, document: DocRef<'_>, operation: &OperationContext) -> Result<()>;

    /// Changes the one document a filter is about, or inserts another; true if it was there.
    fn change(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<bool>;

    /// Makes what was written as durable as the operation wants it.
    fn finish(&mut self, operation: &OperationContext) -> Result<()>;
}

/// A change `$merge` makes.
pub struct Change<'a> {
    /// Finds the document.
    pub wanted: &'a MatchExpression,
    /// What becomes of it.
    pub update: &'a Update,
    /// What is inserted if it is not there.
    pub otherwise: Option<DocRef<'a>>,
    /// What filter and update read.
    pub eval: EvalContext<'a>,
    /// How strings of the filter compare, if not by bytes.
    pub collator: Option<&'a SharedCollator>,
}

/// The outputs of collections that have any.
pub fn outputs_of(collections: &dyn Collections) -> Result<&dyn Outputs> {
    collections.outputs().ok_or_else(|| {
        Error::new(
            ErrorCode::CommandNotSupported,
            "nothing can be written here",
        )
    })
}

/// What a namespace holds.
#[derive(Clone)]
pub enum Resolved {
    /// Nothing.
    Absent,
    /// An ordinary collection, or the buckets of a time-series collection read as documents.
    Ordinary(Arc<dyn RecordSource>),
    /// A time-series collection: buckets to unpack.
    TimeSeries(Arc<dyn BucketSource>),
    /// A view a user made.
    View(ViewDefinition),
}

/// A view: another namespace of the same database and what is done to it.
#[derive(Clone, Debug)]
pub struct ViewDefinition {
    /// The collection or view read.
    pub on: String,
    /// The stages applied to it.
    pub pipeline: Vec<Document>,
    /// The view's collation.
    pub collation: Collation,
}

/// What to read of an ordinary collection.
#[derive(Clone, Debug, Default)]
pub struct RecordScanOptions {
    /// Which way.
    pub direction: Direction,
    /// Lowest key of interest, inclusive (clustered collections only).
    pub min: Option<RecordKey>,
    /// Highest key of interest, inclusive (clustered collections only).
    pub max: Option<RecordKey>,
    /// Go on behind this record, in the direction of the scan.
    pub start_after: Option<RecordKey>,
}

/// An entry of an index.
#[derive(Clone, Debug)]
pub struct IndexEntry {
    /// The key string.
    pub key: Vec<u8>,
    /// What the key string does not say.
    pub type_bits: Vec<u8>,
    /// Which record.
    pub record: RecordKey,
}

impl IndexEntry {
    /// The whole entry: where it lies in the index.
    pub fn position(&self) -> Vec<u8> {
        [&self.key[..], &self.record].concat()
    }
}

/// Entries of an index as a view gives them.
pub type EntryIter = Box<dyn Iterator<Item = Result<IndexEntry>> + Send>;

/// An ordinary collection and its indexes at one moment: entries and records agree. Whoever takes one
/// lets go of it soon, as it keeps what is overwritten from being forgotten.
pub trait RecordView: Send {
    /// Entries of `index`, without documents, whose bytes (key string and record key) are from
    /// `start` on and below `end`; the entries are read as they are asked for.
    fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<EntryIter>;

    /// The record with this key.
    fn record(&self, key: &[u8]) -> Result<Option<Document>>;
}

/// Whether a hint names the index on `_id`, which is called `name`.
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
    /// What is stored now; `None` where nothing is read by index.
    fn view(&self) -> Result<Option<Box<dyn RecordView>>> {
        Ok(None)
    }

    /// All indexes that are complete, hidden ones and that of `_id` included, for hints.
    fn all_indexes(&self) -> Result<Vec<Arc<Index>>> {
        self.indexes()
    }

    /// Reads records in key order.
    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter>;

    /// How many records there are, kept at hand; exact when nothing is being written.
    fn count_estimate(&self) -> Result<u64>;

    /// Tells of new documents, where a cursor may wait for them: in a capped collection.
    fn arrivals(&self) -> Result<Option<Arc<Arrivals>>> {
        Ok(None)
    }

    /// For a clustered collection: the key of the record with this `_id`. Keys order as ids do.
    fn clustered_key(&self, id: ValueRef<'_>) -> Option<RecordKey> {
        let _ = id;
        None
    }

    /// Whether [`RecordSource::clustered_key`] knows keys.
    fn is_clustered(&self) -> bool {
        false
    }

    /// Whether [`RecordSource::find_by_id`] knows an index.
    fn has_id_index(&self) -> bool {
        false
    }

    /// The record with this `_id`, by the `_id` index; `None` where there is no such index.
    fn find_by_id(&self, id: ValueRef<'_>) -> Option<Result<Option<(RecordKey, Document)>>> {
        let _ = id;
        None
    }

    /// The collation of the `_id` index, which is the collection's.
    fn collation(&self) -> Collation {
        Collation::SIMPLE
    }

    /// The indexes a query may use: complete and not hidden. That of `_id` is not among them.
    fn indexes(&self) -> Result<Vec<Arc<Index>>> {
        Ok(Vec::new())
    }

    /// Whether a hint (a name or a key pattern) names an index of the collection. `_id` is served
    /// by the access path, so it always does.
    fn knows_index(&self, hint: ValueRef<'_>) -> bool {
        names_id_index(hint, "_id_")
    }

    /// A record's key as `$recordId` shows it.
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

/// The options of a time-series collection a query depends on.
#[derive(Clone, Debug)]
pub struct BucketOptions {
    /// Name of the time field.
    pub time_field: Arc<str>,
    /// Name of the metadata field.
    pub meta_field: Option<Arc<str>>,
    /// No bucket spans more than this.
    pub bucket_max_span_seconds: i64,
    /// `control.min.<time>` is rounded down to a multiple of this.
    pub bucket_rounding_seconds: i64,
    /// Some measurement lies (or lay) outside what 32-bit seconds in `_id` can say.
    pub extended_range: bool,
    /// Bounds of fields may be of different types, and then bound nothing.
    pub mixed_schema: bool,
    /// Span equals rounding and always did: every bucket lies within one period.
    pub fixed_buckets: bool,
    /// Default collation of the collection: bounds compare strings by it.
    pub collation: Collation,
}

/// What to read of a time-series collection.
#[derive(Clone, Debug, Default)]
pub struct BucketScanOptions {
    /// Which way, by `_id`.
    pub direction: Direction,
    /// Lowest bucket `_id` of interest, inclusive.
    pub id_min: Option<[u8; 12]>,
    /// Highest bucket `_id` of interest, inclusive.
    pub id_max: Option<[u8; 12]>,
    /// Buckets for which this is surely false need not be returned. It looks at the header alone,
    /// so that no column of a bucket ruled out is decoded. Evaluated by the source.
    pub filter: Option<Arc<BucketPredicate>>,
    /// Only buckets an index leads to need be returned, still in `_id` order. Evaluated by the source.
    pub index: Option<BucketIndexScan>,
    /// The columns that will be asked for, all if `None`. A hint: others need not be read.
    pub columns: Option<Arc<[Arc<str>]>>,
    /// Counts what the scan touched.
    pub examined: Arc<ScanCounters>,
}

/// What is wanted of an index over buckets.
#[derive(Clone, Debug)]
pub struct BucketIndexScan {
    /// Which index.
    pub index: Arc<BucketIndex>,
    /// Which entries.
    pub entries: BucketEntries,
    /// Where they lead, if that was found out before.
    pub scanned: Option<Arc<ScannedBuckets>>,
}

/// Which entries of an index over buckets are wanted.
#[derive(Clone, Debug)]
pub enum BucketEntries {
    /// Those with these keys.
    Within(Arc<dyn IndexKeyFilter>),
    /// Those with these keys, which are one run of entries whose order is that of bucket ids.
    InIdOrder(Arc<dyn IndexKeyFilter>),
    /// Those with these keys, and the buckets in the order of the entries: not in that of their ids.
    InIndexOrder {
        /// Which.
        keys: Arc<dyn IndexKeyFilter>,
        /// From the last to the first.
        backward: bool,
    },
    /// Of each combination of so many values at the front, those of buckets that may hold its newest
    /// measurement.
    Newest(usize),
    /// The same for its oldest measurement.
    Oldest(usize),
}

/// What a scan touched; explain shows it.
#[derive(Debug, Default)]
pub struct ScanCounters {
    /// Records or buckets looked at, whether returned or not.
    pub documents: std::sync::atomic::AtomicU64,
    /// Index keys looked at.
    pub keys: std::sync::atomic::AtomicU64,
    /// Records or buckets the scan gave on. Counted by whoever reads the scan.
    pub returned: std::sync::atomic::AtomicU64,
}

impl ScanCounters {
    /// Keys, and records or buckets, until now.
    pub fn now(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        (self.keys.load(Relaxed), self.documents.load(Relaxed))
    }
}

/// A time-series collection.
pub trait BucketSource: Send + Sync {
    /// The options that matter to queries.
    fn options(&self) -> &BucketOptions;

    /// Reads buckets in `_id` order, open ones with what has not been folded into them yet.
    fn scan(&self, scan: &BucketScanOptions) -> Result<BucketIter>;

    /// The indexes a query may use: complete and not hidden, in bucket form.
    fn indexes(&self) -> Result<Vec<Arc<BucketIndex>>> {
        Ok(Vec::new())
    }

    /// The usable index that a hint (a name or a key pattern in the user's fields) names.
    fn hinted(&self, hint: ValueRef<'_>) -> Result<Option<Arc<BucketIndex>>> {
        let _ = hint;
        Ok(None)
    }

    /// How many entries of an index are wanted, counted up to `limit`.
    fn count_keys(
        &self,
        index: &BucketIndex,
        wanted: &dyn IndexKeyFilter,
        limit: u64,
    ) -> Result<KeyCount> {
        let _ = (index, wanted);
        Ok(KeyCount {
            keys: limit,
            scanned: None,
        })
    }

    /// About how many buckets have ids between these seconds.
    fn buckets_between_estimate(&self, id_min: Option<u32>, id_max: Option<u32>) -> Result<u64> {
        let _ = (id_min, id_max);
        self.bucket_count_estimate()
    }

    /// Measurements that show nothing but metadata: one for each combination of the values that the
    /// first `components` parts of a static index have. Some of them: those between two keys, from the
    /// position `from` on where an earlier call ended.
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

    /// The ids of all buckets, if there are no more than so many and they can be told without reading buckets.
    fn bucket_ids(&self, at_most: usize) -> Result<Option<Vec<[u8; 12]>>> {
        let _ = at_most;
        Ok(None)
    }

    /// How many buckets there are.
    fn bucket_count_estimate(&self) -> Result<u64>;
}

/// One bucket as queries see it: a header at hand, columns decoded when asked for.
///
/// Row `i` of every column belongs to measurement `i`; [`BucketHeader::count`] says how many there
/// are. The time column is present in every row.
pub trait Bucket: BucketHeader + Send + Sync {
    /// Format version: 1 plain, 2 compressed and sorted by time, 3 compressed and unsorted.
    fn version(&self) -> i32;

    /// True when measurements are known to ascend in time.
    fn is_sorted(&self) -> bool;

    /// The names of its columns by their places.
    fn columns(&self) -> &[Arc<str>];

    /// The place of the column that measurements show as their `nth`, the first being 0; the time field may stand anywhere.
    fn place_shown(&self, nth: usize) -> Option<usize> {
        Some(nth).filter(|nth| *nth < self.columns().len())
    }

    /// The column at a place among them; `None` if there is no such place. It may have to be decoded for it.
    fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>>;

    /// Its bounds, as [`BucketHeader::min`] and [`BucketHeader::max`] tell them.
    fn bounds_at(&self, at: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        match self.columns().get(at) {
            Some(name) => (self.min(name), self.max(name)),
            None => (ValueRef::Missing, ValueRef::Missing),
        }
    }

    /// Whether that column is decoded, or none is there.
    fn has_column_at(&self, at: usize) -> bool {
        let _ = at;
        false
    }

    /// The total of that column; `None` if it has none, or none that is kept. The column may have to be decoded for it.
    fn total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        let _ = at;
        Ok(None)
    }

    /// Whether that total is known without decoding the column.
    fn has_total_at(&self, at: usize) -> bool {
        let _ = at;
        false
    }

    /// One column by its name; `None` if the bucket has no such field.
    fn column(&self, name: &str) -> Result<Option<&Arc<ColumnBlock>>> {
        match place_of(self.columns(), name) {
            Some(at) => self.column_at(at),
            None => Ok(None),
        }
    }

    /// [`BucketHeader::known_constants_id`], found out now; columns may have to be decoded for it.
    fn constants_id(&self) -> Result<Option<NonZeroU64>> {
        Ok(None)
    }

    /// The metadata, owned.
    fn meta_value(&self) -> Value {
        self.meta().to_value()
    }
}

/// Places and names of a bucket's columns in the order in which measurements show them.
pub fn shown_columns(bucket: &dyn Bucket) -> impl Iterator<Item = (usize, &Arc<str>)> {
    let places = (0..).map_while(|nth| bucket.place_shown(nth));
    places.filter_map(|at| Some((at, bucket.columns().get(at)?)))
}

/// Where among names of columns one is.
pub fn place_of(names: &[Arc<str>], name: &str) -> Option<usize> {
    names.iter().position(|known| **known == *name)
}

/// The name of a column that is asked for in bucket after bucket. It remembers where it was found last, in a few lists of
/// names: those of neighbours are few.
#[derive(Debug)]
pub(crate) struct ColumnName {
    name: Arc<str>,
    /// By where a list lies. It may be another one's, so what is remembered is looked at first.
    places: [AtomicU16; 1 << PLACES_BITS],
}

/// Lists of names a name remembers its place in, as a power of two.
const PLACES_BITS: u32 = 5;

/// Which of them a list is.
fn list_number(names: &[Arc<str>]) -> usize {
    /// Spreads what differs in a few bits (2^64 by the golden ratio).
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    let place = names.as_ptr() as u64;
    (place.wrapping_mul(SPREAD) >> (u64::BITS - PLACES_BITS)) as usize
}

impl ColumnName {
    /// Not found yet.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            places: std::array::from_fn(|_| AtomicU16::new(0)),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    /// The bucket's column of this name.
    pub(crate) fn column_of<'b>(
        &self,
        bucket: &'b dyn Bucket,
    ) -> Result<Option<&'b Arc<ColumnBlock>>> {
        match self.place_in(bucket) {
            Some(at) => bucket.column_at(at),
            None => Ok(None),
        }
    }

    /// The bounds of the field, as the header tells them.
    pub(crate) fn bounds_of<'b>(&self, bucket: &'b dyn Bucket) -> (ValueRef<'b>, ValueRef<'b>) {
        match self.place_in(bucket) {
            Some(at) => bucket.bounds_at(at),
            None => (bucket.min(&self.name), bucket.max(&self.name)),
        }
    }

    /// Where the bucket has it.
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

/// Lowest bucket id whose time is `seconds`.
pub fn lowest_id(seconds: u32) -> [u8; 12] {
    let mut id = [0; 12];
    id[..4].copy_from_slice(&seconds.to_be_bytes());
    id
}

/// Highest bucket id whose time is `seconds`.
pub fn highest_id(seconds: u32) -> [u8; 12] {
    let mut id = [0xFF; 12];
    id[..4].copy_from_slice(&seconds.to_be_bytes());
    id
}
