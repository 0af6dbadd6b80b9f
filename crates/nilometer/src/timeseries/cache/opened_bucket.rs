//! A bucket as read: its header at hand, its columns decoded when they are asked for.
//!
//! What was opened is kept for the next reader with the columns that were decoded
//! ([`bucket_cache`](super::bucket_cache)); [`scan`](crate::timeseries::scan) finds buckets and opens them.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::column::{self, ColumnError};
use nilometer_bson::order::compare;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, Value, ValueRef};
use nilometer_storage::Bytes;

use super::bucket_cache::Held;
use super::column_names::{ColumnNames, ColumnOrder, NameList};
use super::meta_ids::MetaNumbers;
use crate::error::Result;
use crate::eval::accumulator::ColumnTotal;
use crate::eval::memory_bytes;
use crate::timeseries::format::bucket_document::{
    BucketDocument, COLUMN_SUBTYPE, Version, damaged, plain_values,
};
use crate::timeseries::format::sealed;
use crate::timeseries::format::sealed::{ColumnPlace, Stored};

/// A bucket as read: its header at hand, its columns decoded when asked for.
pub struct StoredBucket {
    id: [u8; 12],
    version: Version,
    count: usize,
    /// The document, with lengths in place of columns if `stored` holds those.
    document: Document,
    stored: Bytes,
    /// Names of columns by place, and in which order they are shown.
    names: NameList,
    order: Arc<ColumnOrder>,
    header: HeaderPlaces,
    columns: Box<[Column]>,
    /// Where the bounds of columns lie, once one was asked for.
    bounds: OnceLock<Box<[BoundPlaces]>>,
    /// Totals of columns, once one was asked for.
    totals: OnceLock<Box<[Total]>>,
    /// Who gives numbers to metadata, and the number of this one's once it was asked for.
    metas: Option<Arc<MetaNumbers>>,
    meta_number: OnceLock<Option<NonZeroU64>>,
    /// The number of the fields that are one value, once it was asked for.
    constants_number: OnceLock<Option<NonZeroU64>>,
    /// Somebody has read it again since the cache last asked.
    is_wanted: AtomicBool,
    held: Held,
}

/// A column: where it is stored, if by itself, and its values once they were asked for.
#[derive(Default)]
struct Column {
    place: Option<ColumnPlace>,
    decoded: OnceLock<Arc<ColumnBlock>>,
}

/// A column that is not decoded: where it lies, its bounds and its total.
const COLUMN_BYTES: usize = size_of::<Column>() + size_of::<BoundPlaces>() + size_of::<Total>();

/// What a decoded column takes.
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

/// The total of a column, once it was asked for; none of a column that has none.
type Total = OnceLock<Option<ColumnTotal>>;

/// Where in `control.min` and `control.max` a column's elements lie; 0, where none can, if there is none.
#[derive(Clone, Copy)]
struct BoundPlaces {
    min: u32,
    max: u32,
}

/// The places of the first elements called so, each 0 if there is none.
fn places_in<'d>(
    document: DocRef<'d>,
    names: impl Iterator<Item = &'d Arc<str>>,
) -> impl Iterator<Item = u32> {
    // Most are in the order of the columns: those in front of it have other names.
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

/// Where in a bucket document lies what every query asks for.
struct HeaderPlaces {
    min: Range<usize>,
    max: Range<usize>,
    /// The metadata, if it is a document.
    meta: Option<Range<usize>>,
    /// Start and end, which every query by time asks for, and which column they are of.
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

    /// The same with the bounds of the time.
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
    pub(crate) fn open(stored: Bytes, time_field: &str, names: &ColumnNames) -> Result<Self> {
        let (document, places) = match sealed::open(&stored)? {
            Stored::Whole(document) => (document, Vec::new()),
            Stored::Split { skeleton, columns } => (skeleton, columns),
        };
        Self::new(document, stored, places, time_field, names)
    }

    /// A bucket document that lies nowhere in this form.
    pub(crate) fn from_document(document: Document, time_field: &str) -> Result<Self> {
        Self::put_together(document, time_field, &ColumnNames::default())
    }

    /// The same of one that is read again and again.
    pub(crate) fn put_together(
        document: Document,
        time_field: &str,
        names: &ColumnNames,
    ) -> Result<Self> {
        Self::new(document, Bytes::default(), Vec::new(), time_field, names)
    }

    fn new(
        document: Document,
        stored: Bytes,
        places: Vec<ColumnPlace>,
        time_field: &str,
        names: &ColumnNames,
    ) -> Result<Self> {
        let parsed = BucketDocument::parse(document.as_ref(), time_field)?;
        let (id, version, count) = (parsed.id, parsed.version, parsed.count);
        let header = HeaderPlaces::of(&parsed, &document);
        let order = names.order(parsed.data.iter().map(|e| e.name()));
        let names = Arc::clone(&order.names);
        let header = header.with_times(&parsed, &names, time_field);
        let mut columns: Box<[Column]> = names.iter().map(|_| Column::default()).collect();
        for (at, place) in order.shown.iter().zip(places) {
            if let Some(column) = columns.get_mut(*at as usize) {
                column.place = Some(place);
            }
        }
        let bytes = size_of::<Self>() + document.as_bytes().len() + stored.len();
        let held = Held::new(bytes + columns.len() * COLUMN_BYTES);
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
            metas: None,
            meta_number: OnceLock::new(),
            constants_number: OnceLock::new(),
            is_wanted: AtomicBool::new(false),
            held,
        })
    }

    /// The same with somebody who gives a number to its metadata.
    pub(crate) fn numbered(self, metas: &Arc<MetaNumbers>) -> Self {
        Self {
            metas: Some(Arc::clone(metas)),
            ..self
        }
    }

    /// Stands for the metadata, if it is a document: equal numbers are equal metadata.
    pub fn meta_number(&self) -> Option<NonZeroU64> {
        *self
            .meta_number
            .get_or_init(|| match (&self.metas, self.meta()) {
                (Some(metas), ValueRef::Document(meta)) => metas.of(meta.as_bytes()),
                _ => None,
            })
    }

    /// Stands for [`StoredBucket::constants`]: equal numbers are equal fields and values. Found out now if it was not before.
    pub fn constants_number(&self) -> Result<Option<NonZeroU64>> {
        if let Some(known) = self.constants_number.get() {
            return Ok(*known);
        }
        let constants = self.constants()?;
        let number = match &self.metas {
            Some(numbers) if !constants.is_empty() => numbers.of(constants.as_bytes()),
            _ => None,
        };
        Ok(*self.constants_number.get_or_init(|| number))
    }

    /// The same if it was found out before.
    pub fn known_constants(&self) -> Option<NonZeroU64> {
        self.constants_number.get().copied().flatten()
    }

    /// The fields that all measurements have with one value, in the order of their names. Columns with two bounds alike
    /// are decoded for it.
    pub fn constants(&self) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        for (at, name) in self.names.iter().enumerate() {
            let (min, max) = self.bounds_at(at);
            if min.is_missing() || compare(min, max).is_ne() {
                continue;
            }
            // No reader asked for it: of a bucket with one measurement these are all columns.
            if let Some(column) = self.decoded_at(at)?
                && let Some(value) = column.common_value()
            {
                out.append(name, value);
            }
        }
        Ok(out.finish())
    }

    /// Somebody reads it again.
    pub(crate) fn is_wanted_again(&self) {
        // Most are wanted already, and what is written to is slow to read for others.
        if !self.is_wanted.load(Ordering::Relaxed) {
            self.is_wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether somebody has read it again since this was last asked.
    pub(crate) fn was_wanted(&self) -> bool {
        self.is_wanted.swap(false, Ordering::Relaxed)
    }

    /// The stored form it was opened from; empty if it was put together.
    pub(crate) fn stored(&self) -> &Bytes {
        &self.stored
    }

    /// Its `_id`.
    pub fn id(&self) -> ObjectId {
        ObjectId(self.id)
    }

    /// What it takes in memory, with the columns decoded so far.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// True if these are the very bytes it was opened from, which it holds on to: nothing else can lie there.
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

    /// What the element of a column at such a place holds.
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

    /// The names of its columns by their places, which are the same in all buckets with these names.
    pub fn columns(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Places and names of its columns, in the order of `data`.
    pub fn shown(&self) -> impl Iterator<Item = (usize, &Arc<str>)> + Clone {
        let places = self.order.shown.iter().map(|at| *at as usize);
        places.filter_map(|at| Some((at, self.names.get(at)?)))
    }

    /// The place of the column that `data` has at another.
    pub fn place_shown(&self, nth: usize) -> Option<usize> {
        self.order.shown.get(nth).map(|at| *at as usize)
    }

    /// Bytes of a column as it is stored; `None` if it is not stored by itself.
    pub fn stored_column_bytes(&self, name: &str) -> Option<usize> {
        let column = self.columns.get(self.place_of(name)?)?;
        column.place.as_ref().map(ColumnPlace::stored_bytes)
    }

    /// The bucket document.
    pub fn to_document(&self) -> Result<Document> {
        if self.columns.iter().all(|column| column.place.is_none()) {
            return Ok(self.document.clone());
        }
        sealed::load(&self.stored)
    }

    /// One column, decoded now if it was not before; `None` if there is no such field.
    pub fn column(&self, name: &str) -> Result<Option<&Arc<ColumnBlock>>> {
        match self.place_of(name) {
            Some(at) => self.column_at(at),
            None => Ok(None),
        }
    }

    /// The same by its place among [`StoredBucket::columns`].
    pub fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        self.names.is_asked(at);
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
            self.held.grow(bytes);
        }
        Ok(decoded.get())
    }

    /// Decodes the columns that readers ask for of such buckets, and adds up their totals, as long as there is room for more.
    pub(crate) fn decode_asked(&self, mut has_room: impl FnMut() -> bool) -> Result<()> {
        for at in self.names.asked() {
            if !has_room() {
                break;
            }
            self.known_total_at(at)?;
        }
        Ok(())
    }

    /// Whether the column at a place is decoded, or there is none.
    pub fn has_column_at(&self, at: usize) -> bool {
        let column = self.columns.get(at);
        column.is_none_or(|column| column.decoded.get().is_some())
    }

    /// The total of the column at a place, kept once it was added up; `None` if it has none ([`ColumnTotal::of`]).
    pub fn total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        self.names.is_asked(at);
        self.known_total_at(at)
    }

    fn known_total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
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

    /// Whether that total is known.
    pub fn has_total_at(&self, at: usize) -> bool {
        let totals = self.totals.get();
        let total = totals.and_then(|totals| totals.get(at));
        matches!(total.and_then(Total::get), Some(Some(_)))
    }

    /// Where among its columns one is.
    fn place_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| **n == *name)
    }

    fn decode(&self, place: Option<&ColumnPlace>, name: &str) -> Result<ColumnBlock> {
        let bad = |what: &str| damaged(ValueRef::ObjectId(self.id()), what);
        if let Some(place) = place {
            return self.whole_column(place.decode(&self.stored, self.count));
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
            ) => self.whole_column(column::decode_block(bytes, self.count)),
            _ => Err(bad("a column has the wrong type for its version")),
        }
    }

    /// A decoded column as long as the bucket.
    fn whole_column(&self, decoded: Result<ColumnBlock, ColumnError>) -> Result<ColumnBlock> {
        let bad = |what: &str| damaged(ValueRef::ObjectId(self.id()), what);
        let block = decoded.map_err(|e| bad(&e.to_string()))?;
        if block.len() == self.count {
            return Ok(block);
        }
        // A shorter column is missing from there on.
        let mut values = block.to_values();
        values.resize(self.count, nilometer_bson::Value::Missing);
        Ok(ColumnBlock::from_values(&values))
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;

    use super::*;

    #[test]
    fn constants_are_what_all_measurements_have_with_one_value() {
        let time = Value::DateTime;
        let constants = |count: i32, data: Document, min: Document, max: Document| {
            let bucket = doc! {
                "_id": ObjectId([7; 12]),
                "control": doc! {"version": 1, "min": min, "max": max, "count": count},
                "data": data,
            };
            let metas = Arc::default();
            let bucket = StoredBucket::from_document(bucket, "t").unwrap();
            let bucket = bucket.numbered(&metas);
            assert_eq!(bucket.known_constants(), None);
            let number = bucket.constants_number().unwrap();
            assert!(
                bucket.names.asked().eq(0..bucket.names.len()),
                "none was asked for"
            );
            assert_eq!(bucket.known_constants(), number);
            let found = bucket.constants().unwrap();
            assert_eq!(number.is_some(), !found.is_empty());
            assert_eq!(
                number,
                metas.of(found.as_bytes()).filter(|_| !found.is_empty())
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
