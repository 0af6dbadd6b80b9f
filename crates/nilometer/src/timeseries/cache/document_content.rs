//! The content of a bucket that is a stored document: where its parts are, and its columns, which are decoded on request.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::column::{self, ColumnError};
use nilometer_bson::{DocRef, Document, ObjectId, ValueRef};
use nilometer_storage::Bytes;

use super::interner::ColumnOrder;
use crate::error::Result;
use crate::timeseries::format::bucket_document::{
    BucketDocument, COLUMN_SUBTYPE, Version, damaged, plain_values,
};
use crate::timeseries::format::sealed::ColumnPlace;

/// A document.
pub(super) struct DocumentContent {
    pub(super) version: Version,
    /// If `stored` holds the columns, it has their lengths in their places.
    pub(super) document: Document,
    pub(super) stored: Bytes,
    pub(super) header: HeaderPlaces,
    /// Offsets of the bounds of columns, from the first request on.
    pub(super) bounds: OnceLock<Box<[BoundPlaces]>>,
}

/// Offsets of a column's elements in `control.min` and `control.max`; 0 if there is none, as no element starts there.
#[derive(Clone, Copy)]
pub(super) struct BoundPlaces {
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
pub(super) struct HeaderPlaces {
    min: Range<usize>,
    max: Range<usize>,
    /// The metadata, if it is a document.
    pub(super) meta: Option<Range<usize>>,
    /// The place of the time column, and the bounds of the time in milliseconds.
    times: Option<(usize, i64, i64)>,
}

impl HeaderPlaces {
    pub(super) fn of(bucket: &BucketDocument<'_>, document: &Document) -> Self {
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

    /// Returns the bounds of the time, if that is the field.
    pub(super) fn times_of(
        &self,
        field: &str,
        names: &[Arc<str>],
    ) -> Option<(ValueRef<'_>, ValueRef<'_>)> {
        let (at, min, max) = self.times?;
        let is_it = **names.get(at)? == *field;
        is_it.then_some((ValueRef::DateTime(min), ValueRef::DateTime(max)))
    }

    /// Adds the bounds of the time.
    pub(super) fn with_times(
        self,
        bucket: &BucketDocument<'_>,
        names: &[Arc<str>],
        time_field: &str,
    ) -> Self {
        let at = names.iter().position(|name| **name == *time_field);
        let times = match (at, bucket.min.get(time_field), bucket.max.get(time_field)) {
            (Some(at), ValueRef::DateTime(min), ValueRef::DateTime(max)) => Some((at, min, max)),
            _ => None,
        };
        Self { times, ..self }
    }
}

impl DocumentContent {
    pub(super) fn part(&self, place: &Range<usize>) -> DocRef<'_> {
        let bytes = self.document.as_bytes().get(place.clone());
        bytes.and_then(DocRef::new).unwrap_or(DocRef::EMPTY)
    }

    /// Returns the bounds of a field that may be no column.
    pub(super) fn bounds_of(&self, field: &str) -> (ValueRef<'_>, ValueRef<'_>) {
        let of = |part| self.part(part).get(field);
        (of(&self.header.min), of(&self.header.max))
    }

    pub(super) fn bounds_at(&self, at: usize, order: &ColumnOrder) -> (ValueRef<'_>, ValueRef<'_>) {
        let places = self.bound_places(order).get(at);
        let (Some(name), Some(places)) = (order.names.get(at), places) else {
            return (ValueRef::Missing, ValueRef::Missing);
        };
        let min = self.bound(&self.header.min, name, places.min);
        (min, self.bound(&self.header.max, name, places.max))
    }

    fn bound_places(&self, order: &ColumnOrder) -> &[BoundPlaces] {
        self.bounds.get_or_init(|| {
            let shown = || order.places().map(|(_, name)| name);
            let min = places_in(self.part(&self.header.min), shown());
            let both = min.zip(places_in(self.part(&self.header.max), shown()));
            let mut places = vec![BoundPlaces { min: 0, max: 0 }; order.names.len()];
            for ((at, _), (min, max)) in order.places().zip(both) {
                if let Some(slot) = places.get_mut(at) {
                    *slot = BoundPlaces { min, max };
                }
            }
            places.into()
        })
    }

    /// Returns the value of a column's element at an offset.
    fn bound(&self, part: &Range<usize>, name: &str, place: u32) -> ValueRef<'_> {
        if place == 0 {
            return ValueRef::Missing;
        }
        let mut from_there = self.part(part).iter_from(place as usize);
        let found = from_there.next_named(name.as_bytes());
        found.map_or(ValueRef::Missing, |element| element.value())
    }

    /// Decodes the values at a path below those of a column.
    pub(super) fn decode_path(
        &self,
        (id, count): ([u8; 12], usize),
        place: Option<&ColumnPlace>,
        (name, below): (&str, &str),
    ) -> Result<Option<Arc<ColumnBlock>>> {
        if let Some(place) = place {
            return path_of_bucket(id, count, place.decode_path(&self.stored, count, below));
        }
        let data = self.document.get("data").as_document();
        match data.map(|data| data.get(name)) {
            Some(ValueRef::Binary {
                subtype: COLUMN_SUBTYPE,
                bytes,
            }) => path_of_bucket(id, count, column::decode_path(bytes, count, below)),
            _ => Ok(None),
        }
    }

    /// Decodes a column of a bucket with this id and count.
    pub(super) fn decode(
        &self,
        (id, count): ([u8; 12], usize),
        place: Option<&ColumnPlace>,
        name: &str,
    ) -> Result<ColumnBlock> {
        let bad = |what: &str| damaged(ValueRef::ObjectId(ObjectId(id)), what);
        if let Some(place) = place {
            return whole_column(id, count, place.decode(&self.stored, count));
        }
        let data = self
            .document
            .get("data")
            .as_document()
            .unwrap_or(DocRef::EMPTY);
        match (self.version, data.get(name)) {
            (Version::Plain, ValueRef::Document(entries)) => {
                let values = plain_values(entries, count)
                    .ok_or_else(|| bad("a plain column has entries beyond its measurements"))?;
                Ok(ColumnBlock::from_values(&values))
            }
            (
                _,
                ValueRef::Binary {
                    subtype: COLUMN_SUBTYPE,
                    bytes,
                },
            ) => whole_column(id, count, column::decode_block(bytes, count)),
            _ => Err(bad("a column has the wrong type for its version")),
        }
    }
}

/// Extends the decoded values of a path, if there are any, to the length of their bucket.
pub(crate) fn path_of_bucket(
    id: [u8; 12],
    count: usize,
    decoded: Result<Option<ColumnBlock>, ColumnError>,
) -> Result<Option<Arc<ColumnBlock>>> {
    let Some(decoded) = decoded.transpose() else {
        return Ok(None);
    };
    let column = whole_column(id, count, decoded)?;
    Ok(Some(Arc::new(column)))
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
