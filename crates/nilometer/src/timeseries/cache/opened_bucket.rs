//! A bucket as a reader sees it: its header is parsed, its columns are decoded on request.
//!
//! It is a stored document ([`document_content`](super::document_content)), or a document and a tail ([`tail_content`](super::tail_content)).
//!
//! The bucket cache keeps opened buckets with their decoded columns ([`bucket_cache`](super::bucket_cache));
//! [`scan`](crate::timeseries::scan) finds and opens them.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::order::compare;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, Value, ValueRef};
use nilometer_storage::Bytes;

use super::bucket_cache::BucketMemory;
use super::document_content::{BoundPlaces, DocumentContent, HeaderPlaces};
use super::interner::{ColumnNames, ColumnOrder, Interner};
use super::tail_content::{TailContent, TailToOpen};
use crate::error::Result;
use crate::eval::accumulator::ColumnTotal;
use crate::eval::memory_bytes;
use crate::timeseries::format::bucket_document::{BucketDocument, Layout, Version, damaged};
use crate::timeseries::format::sealed;
use crate::timeseries::format::sealed::{ColumnPlace, Stored, StoredColumn};

/// A bucket as a reader sees it; columns are decoded on request.
pub struct StoredBucket {
    id: [u8; 12],
    count: usize,
    content: Content,
    /// The names of the columns by place.
    names: Arc<ColumnNames>,
    /// The order of the columns in `data`.
    order: Arc<ColumnOrder>,
    columns: Box<[Column]>,
    /// Paths into columns of objects that were requested.
    paths: Mutex<Vec<KnownPath>>,
    /// Totals of columns, from the first request on.
    totals: OnceLock<Box<[Total]>>,
    /// Hands out the ids; `None` if the bucket has none.
    interner: Option<Arc<Interner>>,
    /// The id of the metadata, from the first request on.
    meta_id: OnceLock<Option<NonZeroU64>>,
    /// The id of the constant fields, from the first request on.
    constants_id: OnceLock<Option<NonZeroU64>>,
    /// A reader has used the bucket since the last pass of the eviction.
    was_read: AtomicBool,
    memory: BucketMemory,
}

/// What a bucket was opened from.
enum Content {
    Document(DocumentContent),
    Tail(Box<TailContent>),
}

/// The stored form of a bucket that has none.
static NOT_STORED: LazyLock<Bytes> = LazyLock::new(Bytes::default);

/// A column: its place if it is stored by itself, and its values once they are decoded.
#[derive(Default)]
struct Column {
    place: Option<ColumnPlace>,
    decoded: OnceLock<Arc<ColumnBlock>>,
    /// A reader has requested it of a bucket with a tail.
    was_requested: AtomicBool,
}

/// Paths of which a bucket keeps the values, at most.
const PATHS_MAX: usize = 16;

/// The values at a path into a column of objects; `None` if they must be found in these.
struct KnownPath {
    /// The place of the column.
    at: usize,
    below: Box<str>,
    values: Option<Arc<ColumnBlock>>,
}

/// Memory of a column that is not decoded, with its bounds and its total.
const COLUMN_BYTES: usize = size_of::<Column>() + size_of::<BoundPlaces>() + size_of::<Total>();

/// Returns the memory of a decoded column.
fn decoded_bytes(block: &ColumnBlock) -> usize {
    let values = match block.data() {
        BlockData::Dictionary { values, .. } => match values.as_values() {
            Some(values) => values,
            None => return block.size_bytes() + values.text_bytes(),
        },
        BlockData::Mixed(values) => values,
        BlockData::Constant(value) => std::slice::from_ref(value),
        _ => &[],
    };
    let each = match block.data() {
        BlockData::Dictionary { .. } => size_of::<Value>(),
        _ => 0,
    };
    let values = values.iter().map(|value| each + memory_bytes(value));
    block.size_bytes() + values.sum::<usize>()
}

/// The total of a column, from the first request on; `None` for a column without one.
type Total = OnceLock<Option<ColumnTotal>>;

impl StoredBucket {
    /// Opens the stored form of a bucket.
    pub(crate) fn open(stored: Bytes, time_field: &str, interner: &Arc<Interner>) -> Result<Self> {
        let (document, places) = match sealed::open(&stored)? {
            Stored::Whole(document) => (document, Vec::new()),
            Stored::Split { skeleton, columns } => (skeleton, columns),
        };
        let bucket = Self::new(document, stored, places, time_field, interner)?;
        Ok(bucket.with_ids(interner))
    }

    /// Returns a bucket made of a document that is not stored in this form, without ids.
    pub(crate) fn from_document(document: Document, time_field: &str) -> Result<Self> {
        let interner = Interner::default();
        Self::new(
            document,
            Bytes::default(),
            Vec::new(),
            time_field,
            &interner,
        )
    }

    /// Returns a bucket of a stored document, if there is one, and a tail.
    pub(crate) fn with_tail(
        id: [u8; 12],
        base: Option<Arc<Self>>,
        tail: &TailToOpen<'_>,
        layout: &Layout<'_>,
        interner: &Arc<Interner>,
    ) -> Result<Self> {
        let (content, order) = TailContent::open(id, base, tail, layout, interner)?;
        Ok(Self::of_tail(id, content, order).with_ids(interner))
    }

    /// Returns the state of the bucket with this tail, which begins with the entries of this one; `None` if this bucket has no tail. The
    /// columns that were requested of this state are continued, as the next query probably requests them again.
    pub(crate) fn with_more(
        &self,
        tail: &TailToOpen<'_>,
        interner: &Arc<Interner>,
    ) -> Result<Option<Self>> {
        let Content::Tail(earlier) = &self.content else {
            return Ok(None);
        };
        let (known, _) = earlier.state();
        let (content, order) = earlier.with_more(self.id, tail, &self.order, interner)?;
        let bucket = Self::of_tail(self.id, content, order);
        if let Content::Tail(content) = &bucket.content
            && Arc::ptr_eq(&bucket.names, &self.names)
        {
            for (at, column) in self.columns.iter().enumerate() {
                let was_requested = column.was_requested.load(Ordering::Relaxed);
                let Some(block) = column.decoded.get().filter(|_| was_requested) else {
                    continue;
                };
                let block = content.with_more_values(at, block, known)?;
                bucket.memory.grow(decoded_bytes(&block));
                bucket.columns[at].decoded.get_or_init(|| Arc::new(block));
            }
        }
        Ok(Some(bucket.with_ids(interner)))
    }

    fn of_tail(id: [u8; 12], content: TailContent, order: Arc<ColumnOrder>) -> Self {
        let bytes = size_of::<Self>() + content.memory_bytes() + content.more_bytes_of_base();
        let (count, content) = (content.count(), Content::Tail(Box::new(content)));
        Self::of_parts(id, count, content, order, bytes)
    }

    /// Returns the number of entries of the tail, and the fingerprint of the document with them; `None` if it has no tail.
    pub(crate) fn tail_state(&self) -> Option<(usize, u64)> {
        match &self.content {
            Content::Document(_) => None,
            Content::Tail(content) => Some(content.state()),
        }
    }

    /// Returns the stored document, if this is a bucket of one with a tail.
    pub(crate) fn base(&self) -> Option<&Arc<Self>> {
        match &self.content {
            Content::Document(_) => None,
            Content::Tail(content) => content.base(),
        }
    }

    fn new(
        document: Document,
        stored: Bytes,
        places: Vec<ColumnPlace>,
        time_field: &str,
        interner: &Interner,
    ) -> Result<Self> {
        let parsed = BucketDocument::parse(document.as_ref(), time_field)?;
        let (id, version, count) = (parsed.id, parsed.version, parsed.count);
        let header = HeaderPlaces::of(&parsed, &document);
        let order = interner.column_order(parsed.data.iter().map(|e| e.name()));
        let header = header.with_times(&parsed, &order.names, time_field);
        let bytes = size_of::<Self>() + document.as_bytes().len() + stored.len();
        let content = Content::Document(DocumentContent {
            version,
            document,
            stored,
            header,
            bounds: OnceLock::new(),
        });
        let mut bucket = Self::of_parts(id, count, content, order, bytes);
        let order = Arc::clone(&bucket.order);
        for (at, place) in order.shown.iter().zip(places) {
            bucket.columns[*at as usize].place = Some(place);
        }
        Ok(bucket)
    }

    fn of_parts(
        id: [u8; 12],
        count: usize,
        content: Content,
        order: Arc<ColumnOrder>,
        bytes: usize,
    ) -> Self {
        let names = Arc::clone(&order.names);
        let columns: Box<[Column]> = names.iter().map(|_| Column::default()).collect();
        let memory = BucketMemory::new(bytes + columns.len() * COLUMN_BYTES);
        Self {
            id,
            count,
            content,
            names,
            order,
            columns,
            paths: Mutex::default(),
            totals: OnceLock::new(),
            interner: None,
            meta_id: OnceLock::new(),
            constants_id: OnceLock::new(),
            was_read: AtomicBool::new(false),
            memory,
        }
    }

    fn with_ids(self, interner: &Arc<Interner>) -> Self {
        Self {
            interner: Some(Arc::clone(interner)),
            ..self
        }
    }

    /// Returns the id of the metadata, if that is a document. Equal ids mean equal metadata.
    pub fn meta_id(&self) -> Option<NonZeroU64> {
        *self
            .meta_id
            .get_or_init(|| match (&self.interner, self.meta()) {
                (Some(interner), ValueRef::Document(meta)) => interner.id_of(meta.as_bytes()),
                _ => None,
            })
    }

    /// Returns the id of [`StoredBucket::constants`], which it computes if necessary. Equal ids mean equal fields and values.
    pub fn constants_id(&self) -> Result<Option<NonZeroU64>> {
        if let Some(known) = self.constants_id.get() {
            return Ok(*known);
        }
        let constants = self.constants()?;
        let id = match &self.interner {
            Some(interner) if !constants.is_empty() => interner.id_of(constants.as_bytes()),
            _ => None,
        };
        Ok(*self.constants_id.get_or_init(|| id))
    }

    /// Returns the id of the constant fields if it was computed before.
    pub fn known_constants_id(&self) -> Option<NonZeroU64> {
        self.constants_id.get().copied().flatten()
    }

    /// Returns the fields that have one value in all measurements, in the order of their names. It decodes the columns
    /// whose two bounds are equal.
    pub fn constants(&self) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        for (at, name) in self.names.iter().enumerate() {
            let (min, max) = self.bounds_at(at);
            if min.is_missing() || compare(min, max).is_ne() {
                continue;
            }
            // Not marked as requested: in a bucket with one measurement these are all columns.
            if let Some(column) = self.decoded_at(at)?
                && let Some(value) = column.common_value()
            {
                out.append(name, value);
            }
        }
        Ok(out.finish())
    }

    /// Records that a reader uses the bucket.
    pub(crate) fn mark_read(&self) {
        // The mark is set already in most cases, and a write would slow down the readers on other cores.
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether a reader has used the bucket since the last call.
    pub(crate) fn take_read_mark(&self) -> bool {
        self.was_read.swap(false, Ordering::Relaxed)
    }

    /// Returns the stored form that the bucket was opened from; empty if it was made of a document.
    pub(crate) fn stored(&self) -> &Bytes {
        match &self.content {
            Content::Document(content) => &content.stored,
            Content::Tail(_) => &NOT_STORED,
        }
    }

    /// Its `_id`.
    pub fn id(&self) -> ObjectId {
        ObjectId(self.id)
    }

    /// Returns the memory of the bucket with the columns decoded so far.
    pub(crate) fn memory(&self) -> &BucketMemory {
        &self.memory
    }

    /// True if the bucket was opened from these bytes at this address, which it keeps alive.
    pub(crate) fn is_opened_from(&self, stored: &[u8]) -> bool {
        !stored.is_empty() && std::ptr::eq(&**self.stored(), stored)
    }

    /// Number of measurements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Format version: 1, 2 or 3.
    pub fn version(&self) -> i32 {
        let version = match &self.content {
            Content::Document(content) => content.version,
            Content::Tail(_) if self.is_sorted() => Version::Sorted,
            Content::Tail(_) => Version::Unsorted,
        };
        version as i32
    }

    /// Returns the stored size in bytes.
    pub fn stored_bytes(&self) -> usize {
        match &self.content {
            Content::Document(content) => content.document.as_bytes().len() + content.stored.len(),
            Content::Tail(content) => content.stored_bytes(),
        }
    }

    /// True when measurements are known to ascend in time.
    pub fn is_sorted(&self) -> bool {
        match &self.content {
            Content::Document(content) => content.version == Version::Sorted,
            Content::Tail(content) => {
                content.is_sorted(|times| Some(Arc::clone(self.decoded_at(times).ok()??)))
            }
        }
    }

    /// True when it takes no more measurements and is not changed through the collection.
    pub fn is_closed(&self) -> bool {
        match &self.content {
            Content::Document(content) => {
                let control = content.document.get("control").as_document();
                control.is_some_and(|control| matches!(control.get("closed"), ValueRef::Bool(true)))
            }
            Content::Tail(content) => content.is_closed(),
        }
    }

    /// The metadata, missing if there is none.
    pub fn meta(&self) -> ValueRef<'_> {
        match &self.content {
            Content::Document(content) => match &content.header.meta {
                Some(place) => ValueRef::Document(content.part(place)),
                None => content.document.get("meta"),
            },
            Content::Tail(content) => content.meta(),
        }
    }

    /// `control.min` of the time field, in ms.
    pub(crate) fn start_ms(&self, time_field: &str) -> Result<i64> {
        match self.min(time_field) {
            ValueRef::DateTime(start_ms) => Ok(start_ms),
            _ => Err(damaged(
                ValueRef::ObjectId(self.id()),
                "control.min has no time",
            )),
        }
    }

    /// True if a measurement has a value in the column at a place. It decodes the column if there are no bounds.
    pub(crate) fn has_values_at(&self, at: usize) -> Result<bool> {
        if !self.bounds_at(at).0.is_missing() {
            return Ok(true);
        }
        let column = self.decoded_at(at)?;
        Ok(column.is_some_and(|column| !column.is_all_missing()))
    }

    /// `control.min.<field>`.
    pub fn min(&self, field: &str) -> ValueRef<'_> {
        self.bounds(field).0
    }

    /// `control.max.<field>`.
    pub fn max(&self, field: &str) -> ValueRef<'_> {
        self.bounds(field).1
    }

    /// Both.
    pub fn bounds(&self, field: &str) -> (ValueRef<'_>, ValueRef<'_>) {
        if let Content::Document(content) = &self.content
            && let Some(times) = content.header.times_of(field, &self.names)
        {
            return times;
        }
        match (self.place_of(field), &self.content) {
            (Some(at), _) => self.bounds_at(at),
            (None, Content::Document(content)) => content.bounds_of(field),
            (None, Content::Tail(_)) => (ValueRef::Missing, ValueRef::Missing),
        }
    }

    /// Both, of the column at a place.
    pub fn bounds_at(&self, at: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        match &self.content {
            Content::Document(content) => content.bounds_at(at, &self.order),
            Content::Tail(content) => {
                let bounds = content.bounds_at(at);
                self.memory.grow(content.more_bytes_of_base());
                bounds
            }
        }
    }

    /// `control.min` or `control.max` of the stored document.
    pub(crate) fn control_bounds(&self, side: &str) -> Option<DocRef<'_>> {
        match &self.content {
            Content::Document(content) => {
                let control = content.document.get("control").as_document();
                control.and_then(|control| control.get(side).as_document())
            }
            Content::Tail(content) => content.base()?.control_bounds(side),
        }
    }

    /// Returns the names of the columns by place. A column has the same place in all buckets with the same names.
    pub fn columns(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Returns the places and names of the columns, in the order of `data`.
    pub fn shown(&self) -> impl Iterator<Item = (usize, &Arc<str>)> + Clone {
        self.order.places()
    }

    /// Returns the place of the `nth` column of `data`.
    pub fn place_shown(&self, nth: usize) -> Option<usize> {
        self.order.shown.get(nth).map(|at| *at as usize)
    }

    /// Returns the stored size of a column in bytes; `None` if it is not stored by itself.
    pub fn stored_column_bytes(&self, name: &str) -> Option<usize> {
        let column = self.columns.get(self.place_of(name)?)?;
        column.place.as_ref().map(ColumnPlace::stored_bytes)
    }

    /// Returns the stored size of the column at a place; `None` if it is not stored by itself.
    pub(crate) fn stored_column_at(&self, at: usize) -> Option<StoredColumn> {
        self.columns.get(at)?.place.as_ref()?.size()
    }

    /// Returns the bucket document.
    pub fn to_document(&self) -> Result<Document> {
        match &self.content {
            Content::Tail(content) => content.fold(self.id),
            Content::Document(content) => match self.columns.iter().all(|c| c.place.is_none()) {
                true => Ok(content.document.clone()),
                false => sealed::load(&content.stored),
            },
        }
    }

    /// Returns a column, which it decodes if necessary; `None` if there is no such field.
    pub fn column(&self, name: &str) -> Result<Option<&Arc<ColumnBlock>>> {
        match self.place_of(name) {
            Some(at) => self.column_at(at),
            None => Ok(None),
        }
    }

    /// Returns the column at a place among [`StoredBucket::columns`], which it decodes if necessary.
    pub fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        self.mark_requested(at);
        self.decoded_at(at)
    }

    /// Records that a reader requests the column at a place.
    fn mark_requested(&self, at: usize) {
        self.names.mark_requested(at);
        if let (Content::Tail(_), Some(column)) = (&self.content, self.columns.get(at)) {
            column.was_requested.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the values at a path below those of the column at a place; `None` if they must be found in these.
    pub fn path_at(&self, at: usize, below: &str) -> Result<Option<Arc<ColumnBlock>>> {
        let (Some(column), Some(name)) = (self.columns.get(at), self.names.get(at)) else {
            return Ok(None);
        };
        let is_it = |known: &&KnownPath| known.at == at && *known.below == *below;
        if let Some(known) = self.lock_paths().iter().find(is_it) {
            return Ok(known.values.clone());
        }
        let values = match &self.content {
            Content::Document(content) => {
                let of = (self.id, self.count);
                content.decode_path(of, column.place.as_ref(), (name, below))?
            }
            Content::Tail(content) => {
                let values = content.path_at(at, below)?;
                self.memory.grow(content.more_bytes_of_base());
                values
            }
        };
        let block_bytes = values.as_ref().map_or(0, |values| decoded_bytes(values));
        let known = KnownPath {
            at,
            below: below.into(),
            values: values.clone(),
        };
        let mut paths = self.lock_paths();
        let is_kept = paths.len() < PATHS_MAX;
        if is_kept {
            paths.push(known);
        }
        drop(paths);
        if is_kept {
            let bytes = size_of::<KnownPath>() + below.len() + block_bytes;
            self.memory.grow(bytes);
        }
        Ok(values)
    }

    fn lock_paths(&self) -> MutexGuard<'_, Vec<KnownPath>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the column at a place as [`Self::column_at`] does, and does not record the request.
    pub(super) fn decoded_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        let (Some(Column { place, decoded, .. }), Some(name)) =
            (self.columns.get(at), self.names.get(at))
        else {
            return Ok(None);
        };
        if let Some(block) = decoded.get() {
            return Ok(Some(block));
        }
        let (block, more_bytes) = match &self.content {
            Content::Document(content) => {
                let block = content.decode((self.id, self.count), place.as_ref(), name)?;
                (block.shortened(), 0)
            }
            Content::Tail(content) => (content.column(at)?, content.more_bytes_of_base()),
        };
        let block = Arc::new(block);
        let bytes = decoded_bytes(&block) + more_bytes;
        // Another thread may have been faster.
        if decoded.set(block).is_ok() {
            self.memory.grow(bytes);
        }
        Ok(decoded.get())
    }

    /// Decodes the columns that readers request of buckets with these names, and computes their totals, while there is room.
    pub(crate) fn decode_requested(&self, has_room: &dyn Fn() -> bool) -> Result<()> {
        for at in self.names.requested() {
            if !has_room() {
                break;
            }
            self.known_total_at(at)?;
        }
        Ok(())
    }

    /// Decodes all columns, while there is room.
    pub(crate) fn decode_all(&self, has_room: &dyn Fn() -> bool) -> Result<()> {
        for at in 0..self.columns.len() {
            if !has_room() {
                break;
            }
            self.decoded_at(at)?;
        }
        Ok(())
    }

    /// True if the column at a place is decoded, or if there is none.
    pub fn has_column_at(&self, at: usize) -> bool {
        let column = self.columns.get(at);
        column.is_none_or(|column| column.decoded.get().is_some())
    }

    /// Returns the total of the column at a place, which it computes once; `None` if the column has none ([`ColumnTotal::of`]).
    pub fn total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        self.mark_requested(at);
        self.known_total_at(at)
    }

    /// The columns of an opened bucket are decoded as a whole, and kept.
    pub(crate) fn total_of_first(&self, _: usize, _: usize) -> Result<Option<ColumnTotal>> {
        Ok(None)
    }

    pub(crate) fn known_total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        let totals = || self.names.iter().map(|_| Total::new()).collect();
        let totals = self.totals.get_or_init(totals);
        let Some(total) = totals.get(at) else {
            return Ok(None);
        };
        if let Some(known) = total.get() {
            return Ok(*known);
        }
        let column = self.decoded_at(at)?;
        let found = column.and_then(|column| ColumnTotal::of(column));
        Ok(*total.get_or_init(|| found))
    }

    /// True if that total was computed.
    pub fn has_total_at(&self, at: usize) -> bool {
        let totals = self.totals.get();
        let total = totals.and_then(|totals| totals.get(at));
        matches!(total.and_then(Total::get), Some(Some(_)))
    }

    /// Returns the place of a column.
    fn place_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| **n == *name)
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;

    use super::*;

    #[test]
    fn constants_are_the_fields_with_one_value_in_all_measurements() {
        let time = Value::DateTime;
        let constants = |count: i32, data: Document, min: Document, max: Document| {
            let bucket = doc! {
                "_id": ObjectId([7; 12]),
                "control": doc! {"version": 1, "min": min, "max": max, "count": count},
                "data": data,
            };
            let interner = Arc::default();
            let bucket = StoredBucket::from_document(bucket, "t").unwrap();
            let bucket = bucket.with_ids(&interner);
            assert_eq!(bucket.known_constants_id(), None);
            let number = bucket.constants_id().unwrap();
            assert!(
                bucket.names.requested().eq(0..bucket.names.len()),
                "none was requested"
            );
            assert_eq!(bucket.known_constants_id(), number);
            let found = bucket.constants().unwrap();
            assert_eq!(number.is_some(), !found.is_empty());
            assert_eq!(
                number,
                interner
                    .id_of(found.as_bytes())
                    .filter(|_| !found.is_empty())
            );
            found
        };
        let times = doc! {"0": time(60_000), "1": time(61_000)};
        let data = doc! {
            "t": times.clone(),
            "unit": doc! {"0": "C", "1": "C"},
            "differs": doc! {"0": 1, "1": 2},
            "gap": doc! {"1": 1},
            "types": doc! {"0": 1, "1": 1.0},
            "list": doc! {"0": vec![Value::from(1)], "1": vec![Value::from(1)]},
            "a": doc! {"0": 5, "1": 5},
        };
        let min = doc! {
            "t": time(60_000), "unit": "C", "differs": 1, "gap": 1, "types": 1, "list": vec![Value::from(1)], "a": 5,
        };
        let max = doc! {
            "t": time(61_000), "unit": "C", "differs": 2, "gap": 1, "types": 1, "list": vec![Value::from(1)], "a": 5,
        };
        let expected = doc! {"a": 5, "unit": "C"};
        assert_eq!(constants(2, data, min, max), expected);
        let bounds = |end: i64| doc! {"t": time(end), "v": 1};
        let data = doc! {"t": times, "v": doc! {"0": 1, "1": 2}};
        let max = doc! {"t": time(61_000), "v": 2};
        assert_eq!(constants(2, data, bounds(60_000), max), doc! {});
    }
}
