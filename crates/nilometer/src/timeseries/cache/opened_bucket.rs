//! A bucket as a reader sees it: its header is parsed, its columns are decoded on request.
//!
//! The bucket cache keeps opened buckets with their decoded columns ([`bucket_cache`](super::bucket_cache));
//! [`scan`](crate::timeseries::scan) finds and opens them.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::column::{self, ColumnError};
use nilometer_bson::order::compare;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, Value, ValueRef};
use nilometer_storage::Bytes;

use super::bucket_cache::BucketMemory;
use super::interner::{ColumnNames, ColumnOrder, Interner};
use crate::error::Result;
use crate::eval::accumulator::ColumnTotal;
use crate::eval::memory_bytes;
use crate::timeseries::format::bucket_document::{
    BucketDocument, BucketImage, COLUMN_SUBTYPE, Version, damaged, plain_values,
};
use crate::timeseries::format::sealed;
use crate::timeseries::format::sealed::{ColumnPlace, Stored, StoredColumn};

/// A bucket as a reader sees it; columns are decoded on request.
pub struct StoredBucket {
    id: [u8; 12],
    version: Version,
    count: usize,
    /// The document. If `stored` holds the columns, it has their lengths in their places.
    document: Document,
    stored: Bytes,
    /// The names of the columns by place.
    names: Arc<ColumnNames>,
    /// The order of the columns in `data`.
    order: Arc<ColumnOrder>,
    header: HeaderPlaces,
    columns: Box<[Column]>,
    /// Offsets of the bounds of columns, from the first request on.
    bounds: OnceLock<Box<[BoundPlaces]>>,
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
    /// What a bucket with a tail was folded to, until a later state is folded from there.
    folded: Mutex<Option<Box<FoldedState>>>,
    memory: BucketMemory,
}

/// A bucket with a part of its tail folded in. Entries that follow are added to it: to fold all of them again for each
/// reader would cost as much as the bucket has measurements.
pub(crate) struct FoldedState {
    /// The columns so far.
    pub(crate) image: BucketImage,
    /// The number of entries of the tail in it.
    pub(crate) entries: usize,
    /// The fingerprint of the stored bytes and these entries.
    pub(crate) fingerprint: u64,
}

impl FoldedState {
    /// Its entries and its fingerprint.
    fn at(&self) -> (usize, u64) {
        (self.entries, self.fingerprint)
    }
}

/// A column: its place if it is stored by itself, and its values once they are decoded.
#[derive(Default)]
struct Column {
    place: Option<ColumnPlace>,
    decoded: OnceLock<Arc<ColumnBlock>>,
}

/// Memory of a column that is not decoded, with its bounds and its total.
const COLUMN_BYTES: usize = size_of::<Column>() + size_of::<BoundPlaces>() + size_of::<Total>();

/// Returns the memory of a decoded column.
fn decoded_bytes(block: &ColumnBlock) -> usize {
    let values = match block.data() {
        BlockData::Dictionary { values, .. } | BlockData::Mixed(values) => values.as_slice(),
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

/// Offsets of a column's elements in `control.min` and `control.max`; 0 if there is none, as no element starts there.
#[derive(Clone, Copy)]
struct BoundPlaces {
    min: u32,
    max: u32,
}

/// Returns the offset of the first element with each name, 0 if there is none.
fn places_in<'d>(
    document: DocRef<'d>,
    names: impl Iterator<Item = &'d Arc<str>>,
) -> impl Iterator<Item = u32> {
    // Most documents have the elements in the order of the columns.
    let mut in_order = document.iter();
    names.map(move |name| {
        let place = document.position_of(&in_order);
        if in_order.next_named(name.as_bytes()).is_some() {
            return u32::try_from(place).unwrap_or(0);
        }
        let mut walk = document.iter();
        loop {
            let place = document.position_of(&walk);
            match walk.next() {
                Some(element) if element.name_bytes() == name.as_bytes() => {
                    return u32::try_from(place).unwrap_or(0);
                }
                Some(_) => {}
                None => return 0,
            }
        }
    })
}

/// Offsets of the parts of a bucket document that every query reads.
struct HeaderPlaces {
    min: Range<usize>,
    max: Range<usize>,
    /// The metadata, if it is a document.
    meta: Option<Range<usize>>,
    /// The place of the time column, and the bounds of the time in milliseconds.
    times: Option<(usize, i64, i64)>,
}

impl HeaderPlaces {
    fn of(bucket: &BucketDocument<'_>, document: &Document) -> Self {
        let whole = document.as_bytes().as_ptr() as usize;
        let place = |part: DocRef<'_>| {
            let start = (part.as_bytes().as_ptr() as usize).saturating_sub(whole);
            start..start + part.as_bytes().len()
        };
        Self {
            min: place(bucket.min),
            max: place(bucket.max),
            meta: bucket.meta.as_document().map(place),
            times: None,
        }
    }

    /// Adds the bounds of the time.
    fn with_times(self, bucket: &BucketDocument<'_>, names: &[Arc<str>], time_field: &str) -> Self {
        let at = names.iter().position(|name| **name == *time_field);
        let times = match (at, bucket.min.get(time_field), bucket.max.get(time_field)) {
            (Some(at), ValueRef::DateTime(min), ValueRef::DateTime(max)) => Some((at, min, max)),
            _ => None,
        };
        Self { times, ..self }
    }
}

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

    /// Returns a bucket that was folded with its tail. It keeps the state if that takes at most `state_bytes_max`.
    pub(crate) fn from_folded(
        mut state: FoldedState,
        state_bytes_max: usize,
        time_field: &str,
        interner: &Arc<Interner>,
    ) -> Result<Self> {
        let document = state.image.document_so_far();
        state.image.release_buffers();
        let bucket = Self::new(document, Bytes::default(), Vec::new(), time_field, interner)?;
        let bytes = state.image.memory_bytes();
        let bytes = bytes.filter(|bytes| *bytes <= state_bytes_max);
        bucket.memory.grow(bytes.unwrap_or(0));
        Ok(Self {
            folded: Mutex::new(bytes.map(|_| Box::new(state))),
            ..bucket.with_ids(interner)
        })
    }

    /// Returns the entries and the fingerprint of the state that the bucket keeps.
    pub(crate) fn folded_at(&self) -> Option<(usize, u64)> {
        self.lock_folded().as_deref().map(FoldedState::at)
    }

    /// Takes the state if it is the one after these entries.
    pub(crate) fn take_folded(&self, at: (usize, u64)) -> Option<Box<FoldedState>> {
        self.lock_folded().take_if(|state| state.at() == at)
    }

    fn lock_folded(&self) -> MutexGuard<'_, Option<Box<FoldedState>>> {
        self.folded.lock().unwrap_or_else(PoisonError::into_inner)
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
        let names = Arc::clone(&order.names);
        let header = header.with_times(&parsed, &names, time_field);
        let mut columns: Box<[Column]> = names.iter().map(|_| Column::default()).collect();
        for (at, place) in order.shown.iter().zip(places) {
            columns[*at as usize].place = Some(place);
        }
        let bytes = size_of::<Self>() + document.as_bytes().len() + stored.len();
        let memory = BucketMemory::new(bytes + columns.len() * COLUMN_BYTES);
        Ok(Self {
            id,
            version,
            count,
            document,
            stored,
            names,
            order,
            header,
            columns,
            bounds: OnceLock::new(),
            totals: OnceLock::new(),
            interner: None,
            meta_id: OnceLock::new(),
            constants_id: OnceLock::new(),
            was_read: AtomicBool::new(false),
            folded: Mutex::default(),
            memory,
        })
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
        &self.stored
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
        !stored.is_empty() && std::ptr::eq(&*self.stored, stored)
    }

    /// Number of measurements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Format version: 1, 2 or 3.
    pub fn version(&self) -> i32 {
        self.version as i32
    }

    /// Returns the stored size in bytes.
    pub fn stored_bytes(&self) -> usize {
        self.document.as_bytes().len() + self.stored.len()
    }

    /// True when measurements are known to ascend in time.
    pub fn is_sorted(&self) -> bool {
        self.version == Version::Sorted
    }

    /// True when it takes no more measurements and is not changed through the collection.
    pub fn is_closed(&self) -> bool {
        let control = self.document.get("control").as_document();
        control.is_some_and(|control| matches!(control.get("closed"), ValueRef::Bool(true)))
    }

    /// The metadata, missing if there is none.
    pub fn meta(&self) -> ValueRef<'_> {
        match &self.header.meta {
            Some(place) => ValueRef::Document(self.part(place)),
            None => self.document.get("meta"),
        }
    }

    /// Start and end, if the field is the time.
    fn times_of(&self, field: &str) -> Option<(i64, i64)> {
        let (at, min, max) = self.header.times?;
        let name = self.names.get(at)?;
        (**name == *field).then_some((min, max))
    }

    /// `control.min.<field>`.
    pub fn min(&self, field: &str) -> ValueRef<'_> {
        match (self.times_of(field), self.place_of(field)) {
            (Some((min, _)), _) => ValueRef::DateTime(min),
            (None, Some(at)) => self.min_at(at),
            (None, None) => self.part(&self.header.min).get(field),
        }
    }

    /// `control.max.<field>`.
    pub fn max(&self, field: &str) -> ValueRef<'_> {
        match (self.times_of(field), self.place_of(field)) {
            (Some((_, max)), _) => ValueRef::DateTime(max),
            (None, Some(at)) => self.max_at(at),
            (None, None) => self.part(&self.header.max).get(field),
        }
    }

    /// Both.
    pub fn bounds(&self, field: &str) -> (ValueRef<'_>, ValueRef<'_>) {
        match (self.times_of(field), self.place_of(field)) {
            (None, Some(at)) => self.bounds_at(at),
            _ => (self.min(field), self.max(field)),
        }
    }

    /// Both, of the column at a place.
    pub fn bounds_at(&self, at: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        (self.min_at(at), self.max_at(at))
    }

    fn min_at(&self, at: usize) -> ValueRef<'_> {
        let place = self.bound_places().get(at).map_or(0, |places| places.min);
        self.bound(&self.header.min, at, place)
    }

    fn max_at(&self, at: usize) -> ValueRef<'_> {
        let place = self.bound_places().get(at).map_or(0, |places| places.max);
        self.bound(&self.header.max, at, place)
    }

    fn bound_places(&self) -> &[BoundPlaces] {
        self.bounds.get_or_init(|| {
            let shown = || self.shown().map(|(_, name)| name);
            let min = places_in(self.part(&self.header.min), shown());
            let both = min.zip(places_in(self.part(&self.header.max), shown()));
            let mut places = vec![BoundPlaces { min: 0, max: 0 }; self.names.len()];
            for ((at, _), (min, max)) in self.shown().zip(both) {
                if let Some(slot) = places.get_mut(at) {
                    *slot = BoundPlaces { min, max };
                }
            }
            places.into()
        })
    }

    /// Returns the value of a column's element at an offset.
    fn bound(&self, part: &Range<usize>, at: usize, place: u32) -> ValueRef<'_> {
        let (Some(name), true) = (self.names.get(at), place > 0) else {
            return ValueRef::Missing;
        };
        let mut from_there = self.part(part).iter_from(place as usize);
        let found = from_there.next_named(name.as_bytes());
        found.map_or(ValueRef::Missing, |element| element.value())
    }

    /// `control.min` or `control.max`.
    pub(crate) fn control_bounds(&self, side: &str) -> Option<DocRef<'_>> {
        let control = self.document.get("control").as_document();
        control.and_then(|control| control.get(side).as_document())
    }

    fn part(&self, place: &Range<usize>) -> DocRef<'_> {
        let bytes = self.document.as_bytes().get(place.clone());
        bytes.and_then(DocRef::new).unwrap_or(DocRef::EMPTY)
    }

    /// Returns the names of the columns by place. A column has the same place in all buckets with the same names.
    pub fn columns(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Returns the places and names of the columns, in the order of `data`.
    pub fn shown(&self) -> impl Iterator<Item = (usize, &Arc<str>)> + Clone {
        let places = self.order.shown.iter().map(|at| *at as usize);
        places.filter_map(|at| Some((at, self.names.get(at)?)))
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
        if self.columns.iter().all(|column| column.place.is_none()) {
            return Ok(self.document.clone());
        }
        sealed::load(&self.stored)
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
        self.names.mark_requested(at);
        self.decoded_at(at)
    }

    fn decoded_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        let (Some(Column { place, decoded }), Some(name)) =
            (self.columns.get(at), self.names.get(at))
        else {
            return Ok(None);
        };
        if let Some(block) = decoded.get() {
            return Ok(Some(block));
        }
        let block = Arc::new(self.decode(place.as_ref(), name)?.shortened());
        let bytes = decoded_bytes(&block);
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
        self.names.mark_requested(at);
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

    fn decode(&self, place: Option<&ColumnPlace>, name: &str) -> Result<ColumnBlock> {
        let bad = |what: &str| damaged(ValueRef::ObjectId(self.id()), what);
        if let Some(place) = place {
            return whole_column(self.id, self.count, place.decode(&self.stored, self.count));
        }
        let data = self
            .document
            .get("data")
            .as_document()
            .unwrap_or(DocRef::EMPTY);
        match (self.version, data.get(name)) {
            (Version::Plain, ValueRef::Document(entries)) => {
                let values = plain_values(entries, self.count)
                    .ok_or_else(|| bad("a plain column has entries beyond its measurements"))?;
                Ok(ColumnBlock::from_values(&values))
            }
            (
                _,
                ValueRef::Binary {
                    subtype: COLUMN_SUBTYPE,
                    bytes,
                },
            ) => whole_column(self.id, self.count, column::decode_block(bytes, self.count)),
            _ => Err(bad("a column has the wrong type for its version")),
        }
    }
}

/// Extends a decoded column to the length of its bucket.
pub(crate) fn whole_column(
    id: [u8; 12],
    count: usize,
    decoded: Result<ColumnBlock, ColumnError>,
) -> Result<ColumnBlock> {
    let bad = |what: &str| damaged(ValueRef::ObjectId(ObjectId(id)), what);
    let block = decoded.map_err(|e| bad(&e.to_string()))?;
    if block.len() == count {
        return Ok(block);
    }
    // A shorter column has missing values at its end.
    let mut values = block.to_values();
    values.resize(count, nilometer_bson::Value::Missing);
    Ok(ColumnBlock::from_values(&values))
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
