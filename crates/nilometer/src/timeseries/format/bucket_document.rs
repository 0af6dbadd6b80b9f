//! The bucket document: parses one, and builds one from columns of values.
//!
//! ```text
//! { _id: ObjectId,                      first 4 bytes: seconds of control.min.<time>
//!   control: { version: 1|2|3,          1 plain; 2 compressed, ascending; 3 compressed, not ascending
//!              min: {<field>: …},       the time rounded down, other fields exact
//!              max: {<field>: …},
//!              count: int },            versions 2 and 3
//!   meta: any,                          normalised; absent for a series without one
//!   data: { <field>: BinData(7) } }     a column for each field, the time field first
//! ```
//!
//! Version 1 holds `data.<field>` as `{"0": value, "1": value, …}` with gaps. This module writes versions 2 and 3 and reads
//! all three.

use std::sync::Arc;

use nilometer_bson::column::{self, ColumnBuilder};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, Value, ValueRef, type_code};

use super::min_max::{Extreme, Side};
use super::sealed::{Split, SplitColumns};
use super::tail;
use super::tail::{EntrySink, Header};
use crate::catalog::{Collection, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;

/// BSON binary subtype of a compressed column.
pub(crate) const COLUMN_SUBTYPE: u8 = 7;

/// Measurements that a stored bucket document may hold; more is damage.
pub(crate) const MEASUREMENTS_MAX: usize = 1 << 20;

/// The version of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Plain values.
    Plain = 1,
    /// Compressed, ascending in time.
    Sorted = 2,
    /// Compressed, in order of arrival.
    Unsorted = 3,
}

/// Returns the error for a bucket that cannot be read.
pub(crate) fn damaged(id: ValueRef<'_>, what: &str) -> Error {
    let id = match id {
        ValueRef::ObjectId(id) => id.to_hex(),
        _ => "without an ObjectId".to_owned(),
    };
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("bucket {id} cannot be read: {what}"),
    )
}

/// A bucket document, parsed; its columns are not decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketDocument<'a> {
    /// Its `_id`.
    pub(crate) id: [u8; 12],
    /// Its format.
    pub(crate) version: Version,
    /// `control.min`.
    pub(crate) min: DocRef<'a>,
    /// `control.max`.
    pub(crate) max: DocRef<'a>,
    /// `control.closed` is true: the bucket takes no more measurements.
    pub(crate) closed: bool,
    /// `control.count`, or for version 1 the entries of the time column.
    pub(crate) count: usize,
    /// The metadata, missing if there is none.
    pub(crate) meta: ValueRef<'a>,
    /// `data`.
    pub(crate) data: DocRef<'a>,
}

impl<'a> BucketDocument<'a> {
    /// Parses a bucket document; fails on anything else.
    pub(crate) fn parse(document: DocRef<'a>, time_field: &str) -> Result<Self> {
        let bad = |what: &str| damaged(document.get("_id"), what);
        let (mut id, mut control, mut data) = (None, None, None);
        let mut meta = ValueRef::Missing;
        for element in document {
            match (element.name(), element.value()) {
                ("_id", ValueRef::ObjectId(found)) => id = Some(found.0),
                ("control", ValueRef::Document(found)) => control = Some(found),
                ("meta", found) => meta = found,
                ("data", ValueRef::Document(found)) => data = Some(found),
                (other, _) => return Err(bad(&format!("unexpected field '{other}'"))),
            }
        }
        let id = id.ok_or_else(|| bad("no _id"))?;
        let control = control.ok_or_else(|| bad("no control"))?;
        let data = data.ok_or_else(|| bad("no data"))?;
        let (mut version, mut count, mut closed) = (None, None, false);
        let (mut min, mut max) = (None, None);
        for element in control {
            match (element.name(), element.value()) {
                ("version", number) => version = number.as_exact_i64(),
                ("min", ValueRef::Document(found)) => min = Some(found),
                ("max", ValueRef::Document(found)) => max = Some(found),
                ("count", number) => count = number.as_exact_i64(),
                ("closed", ValueRef::Bool(found)) => closed = found,
                (other, _) => return Err(bad(&format!("unexpected field 'control.{other}'"))),
            }
        }
        let version = match version {
            Some(1) => Version::Plain,
            Some(2) => Version::Sorted,
            Some(3) => Version::Unsorted,
            _ => return Err(bad("unknown version")),
        };
        let count = match (version, count) {
            (Version::Plain, _) => data
                .get(time_field)
                .as_document()
                .map_or(0, |times| times.iter().count()),
            (_, Some(count)) => usize::try_from(count).unwrap_or(0),
            (_, None) => count_column(data.get(time_field)).ok_or_else(|| bad("no count"))?,
        };
        if count > MEASUREMENTS_MAX {
            return Err(bad("too many measurements"));
        }
        Ok(Self {
            id,
            version,
            min: min.ok_or_else(|| bad("no control.min"))?,
            max: max.ok_or_else(|| bad("no control.max"))?,
            closed,
            count,
            meta,
            data,
        })
    }

    /// `control.min` of the time field, in ms.
    pub(crate) fn start_ms(&self, time_field: &str) -> Result<i64> {
        match self.min.get(time_field) {
            ValueRef::DateTime(start_ms) => Ok(start_ms),
            _ => Err(damaged(
                ValueRef::ObjectId(nilometer_bson::ObjectId(self.id)),
                "control.min has no time",
            )),
        }
    }

    /// Returns the values of one column of `data`, with missing ones appended up to `count`.
    pub(crate) fn values(&self, element: Element<'_>) -> Result<Vec<Value>> {
        let bad = |what: &str| damaged(ValueRef::ObjectId(nilometer_bson::ObjectId(self.id)), what);
        let mut values = match (self.version, element.value()) {
            (Version::Plain, ValueRef::Document(entries)) => plain_values(entries, self.count)
                .ok_or_else(|| bad("a plain column has entries beyond its measurements"))?,
            (Version::Sorted | Version::Unsorted, ValueRef::Binary { subtype, bytes })
                if subtype == COLUMN_SUBTYPE =>
            {
                column::decode_values(bytes, self.count).map_err(|e| bad(&e.to_string()))?
            }
            _ => return Err(bad("a column has the wrong type for its version")),
        };
        values.resize(self.count, Value::Missing);
        Ok(values)
    }
}

/// Counts the values in a compressed column.
fn count_column(value: ValueRef<'_>) -> Option<usize> {
    match value {
        ValueRef::Binary {
            subtype: COLUMN_SUBTYPE,
            bytes,
        } => column::decode_values(bytes, MEASUREMENTS_MAX)
            .ok()
            .map(|values| values.len()),
        _ => None,
    }
}

/// Converts `{"0": a, "2": b}` into rows; `None` if an index is out of range.
pub(crate) fn plain_values(entries: DocRef<'_>, count: usize) -> Option<Vec<Value>> {
    let mut values = vec![Value::Missing; count];
    for entry in entries {
        let row: usize = entry.name().parse().ok()?;
        *values.get_mut(row)? = entry.value().to_value();
    }
    Some(values)
}

/// The options of a collection that folding depends on.
#[derive(Clone, Debug)]
pub(crate) struct Layout<'c> {
    /// Name of the time field.
    pub(crate) time_field: &'c str,
    /// How bounds compare strings.
    pub(crate) collation: Collation,
}

impl<'c> Layout<'c> {
    /// Returns the layout of a collection, given its stored options.
    pub(crate) fn of(collection: &Collection, options: &'c TimeseriesOptions) -> Result<Self> {
        Ok(Self {
            time_field: &options.time_field,
            collation: Collation::of_stored(collection.options.as_ref())?,
        })
    }
}

/// A bucket as columns of values, to be folded into a document.
#[derive(Debug)]
pub(crate) struct BucketImage {
    id: [u8; 12],
    start_ms: i64,
    meta: Value,
    rows: usize,
    sorted: bool,
    closed: bool,
    columns: Vec<ImageColumn>,
    collation: Collation,
}

#[derive(Debug)]
struct ImageColumn {
    name: Arc<str>,
    builder: ColumnBuilder,
    rows: usize,
    min: Extreme,
    max: Extreme,
    /// The last time, for the time column.
    last: i64,
    /// Times ascend so far.
    ascending: bool,
    pending: PendingValues,
}

/// Buffered values of one plain type, which are cheaper to append in batches. Doubles are held as their bits.
#[derive(Debug, Default)]
struct PendingValues {
    type_code: u8,
    numbers: Vec<i64>,
}

/// Initial capacity of the buffer, in values.
const PENDING_MIN: usize = 128;

/// Largest capacity of the buffer, in values.
const PENDING_MAX: usize = 1024;

impl ImageColumn {
    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            builder: ColumnBuilder::new(),
            rows: 0,
            min: Extreme::none(),
            max: Extreme::none(),
            last: i64::MIN,
            ascending: true,
            pending: PendingValues::default(),
        }
    }

    /// Appends missing values up to `row`.
    fn pad(&mut self, row: usize, collation: &Collation) {
        if self.rows >= row {
            return;
        }
        self.settle(collation);
        for _ in self.rows..row {
            self.builder.skip();
        }
        self.rows = row;
    }

    /// Appends a value.
    #[inline]
    fn append(&mut self, value: ValueRef<'_>, collation: &Collation) -> Result<()> {
        self.rows += 1;
        match value {
            ValueRef::Int32(v) => self.hold(type_code::INT32, i64::from(v), collation),
            ValueRef::Int64(v) => self.hold(type_code::INT64, v, collation),
            ValueRef::DateTime(v) => self.hold(type_code::DATE_TIME, v, collation),
            ValueRef::Double(v) => {
                self.hold(type_code::DOUBLE, v.to_bits().cast_signed(), collation);
            }
            value => {
                self.settle(collation);
                tail::append_value(&mut self.builder, value)?;
                self.learn(value, collation);
            }
        }
        Ok(())
    }

    #[inline]
    fn hold(&mut self, type_code: u8, number: i64, collation: &Collation) {
        self.make_ready(type_code, 1, collation);
        self.pending.numbers.push(number);
    }

    /// Appends numbers of a plain type.
    #[inline]
    fn append_numbers(&mut self, type_code: u8, numbers: &[i64], collation: &Collation) {
        self.rows += numbers.len();
        self.make_ready(type_code, numbers.len(), collation);
        self.pending.numbers.extend_from_slice(numbers);
    }

    /// Reserves room for numbers of a type.
    #[inline]
    fn make_ready(&mut self, type_code: u8, count: usize, collation: &Collation) {
        if self.pending.type_code != type_code || self.pending.numbers.len() + count > PENDING_MAX {
            self.settle(collation);
            self.pending.type_code = type_code;
            self.pending.numbers.reserve(PENDING_MIN);
        }
    }

    fn learn(&mut self, value: ValueRef<'_>, collation: &Collation) {
        self.min.update(value, Side::Min, collation);
        self.max.update(value, Side::Max, collation);
    }

    /// Moves the buffered values into the column.
    fn settle(&mut self, collation: &Collation) {
        let PendingValues { type_code, numbers } = std::mem::take(&mut self.pending);
        if numbers.is_empty() {
            return;
        }
        self.learn_numbers(type_code, &numbers, collation);
        let builder = &mut self.builder;
        match type_code {
            type_code::INT32 => numbers.iter().for_each(|n| builder.append_i32(narrow(*n))),
            type_code::INT64 => numbers.iter().for_each(|n| builder.append_i64(*n)),
            type_code::DATE_TIME => numbers.iter().for_each(|n| builder.append_datetime(*n)),
            _ => {
                let doubles = numbers.iter().map(|n| f64::from_bits(n.cast_unsigned()));
                doubles.for_each(|v| builder.append_f64(v));
            }
        }
        self.pending.numbers = numbers;
        self.pending.numbers.clear();
    }

    /// Updates the extremes of numbers, and the order of times.
    fn learn_numbers(&mut self, type_code: u8, numbers: &[i64], collation: &Collation) {
        let least = numbers.iter().copied().fold(i64::MAX, i64::min);
        let greatest = numbers.iter().copied().fold(i64::MIN, i64::max);
        // Equal integers are identical, so it does not matter which of them is first.
        let [least, greatest] = match type_code {
            type_code::INT32 => [least, greatest].map(|n| ValueRef::Int32(narrow(n))),
            type_code::INT64 => [least, greatest].map(ValueRef::Int64),
            type_code::DATE_TIME => {
                let first = numbers.first().is_none_or(|first| *first >= self.last);
                self.ascending &= first && numbers.is_sorted();
                self.last = numbers.last().copied().unwrap_or(self.last);
                [least, greatest].map(ValueRef::DateTime)
            }
            _ => {
                let doubles = numbers.iter().map(|n| f64::from_bits(n.cast_unsigned()));
                match first_extremes(doubles.clone()) {
                    Some(extremes) => extremes.map(ValueRef::Double),
                    None => {
                        doubles.for_each(|v| self.learn(ValueRef::Double(v), collation));
                        [ValueRef::Missing; 2]
                    }
                }
            }
        };
        self.min.update(least, Side::Min, collation);
        self.max.update(greatest, Side::Max, collation);
    }

    /// False if all values are missing.
    fn has_values(&self) -> bool {
        !self.pending.numbers.is_empty() || !matches!(self.min, Extreme::Scalar(Value::Missing))
    }

    fn finish(&mut self, collation: &Collation) -> WrittenColumn {
        self.settle(collation);
        self.with_bytes(self.builder.to_bytes())
    }

    /// Finishes the column in packed form if that is smaller. Returns whether it is packed.
    fn finish_packed(&mut self, collation: &Collation) -> (WrittenColumn, bool) {
        if self.builder.count() == 0 {
            // All values are numbers of one type.
            let PendingValues { type_code, numbers } = &self.pending;
            if let Some(packed) = column::pack_numbers(*type_code, numbers) {
                let PendingValues { type_code, numbers } = std::mem::take(&mut self.pending);
                self.learn_numbers(type_code, &numbers, collation);
                return (self.with_bytes(packed), true);
            }
        }
        let mut written = self.finish(collation);
        let packed = column::pack_built(&written.bytes);
        let is_packed = packed.is_some();
        written.bytes = packed.unwrap_or(written.bytes);
        (written, is_packed)
    }

    fn with_bytes(&self, bytes: Vec<u8>) -> WrittenColumn {
        WrittenColumn {
            name: self.name.clone(),
            min: self.min.to_value(),
            max: self.max.to_value(),
            bytes,
        }
    }
}

fn narrow(number: i64) -> i32 {
    i32::try_from(number).unwrap_or_default()
}

/// Returns the least and the greatest value, of equal ones the first; `None` if one is not a number.
fn first_extremes(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let (mut extremes, mut numbers) = (None, true);
    for value in values {
        numbers &= !value.is_nan();
        let [least, greatest] = extremes.get_or_insert([value; 2]);
        if value < *least {
            *least = value;
        }
        if value > *greatest {
            *greatest = value;
        }
    }
    extremes.filter(|_| numbers)
}

impl BucketImage {
    /// Returns an empty bucket. Its first column is the time field.
    pub(crate) fn new(id: [u8; 12], header: &Header, layout: &Layout<'_>) -> Self {
        Self {
            id,
            start_ms: header.start_ms,
            meta: header.meta.clone(),
            rows: 0,
            sorted: true,
            closed: false,
            columns: vec![ImageColumn::new(layout.time_field.into())],
            collation: layout.collation.clone(),
        }
    }

    /// Returns the measurements of a bucket document.
    pub(crate) fn from_document(document: DocRef<'_>, layout: &Layout<'_>) -> Result<Self> {
        let bucket = BucketDocument::parse(document, layout.time_field)?;
        let header = Header {
            start_ms: bucket.start_ms(layout.time_field)?,
            meta: bucket.meta.to_value(),
        };
        let mut image = Self::new(bucket.id, &header, layout);
        for element in bucket.data {
            let at = image.column(element.name());
            for value in bucket.values(element)? {
                image.append(at, value.as_ref())?;
            }
        }
        image.rows = bucket.count;
        image.closed = bucket.closed;
        image.sorted &= bucket.version != Version::Unsorted;
        Ok(image)
    }

    /// Appends the measurements of a tail entry.
    pub(crate) fn append_entry(&mut self, entry: &tail::TailEntry) -> Result<()> {
        entry.visit(self)?;
        self.rows += entry.rows;
        Ok(())
    }

    fn append(&mut self, at: usize, value: ValueRef<'_>) -> Result<()> {
        if let Some(column) = self.columns.get_mut(at) {
            column.append(value, &self.collation)?;
        }
        Ok(())
    }

    /// Returns the position of the column `name`, which is added if it is new.
    fn column(&mut self, name: &str) -> usize {
        self.columns
            .iter()
            .position(|c| *c.name == *name)
            .unwrap_or_else(|| {
                self.columns.push(ImageColumn::new(name.into()));
                self.columns.len() - 1
            })
    }

    fn id_value(&self) -> ValueRef<'static> {
        ValueRef::ObjectId(nilometer_bson::ObjectId(self.id))
    }

    /// Number of measurements.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// True if a column has a name and no value: it was added by an insert that has not committed, or was lost. Concurrent inserts
    /// name the column too, because they refer to its position.
    pub(crate) fn has_columns_without_values(&self) -> bool {
        let mut others = self.columns.iter().skip(1);
        others.any(|column| !column.has_values())
    }

    /// Returns the bucket document without columns that have no value.
    pub(crate) fn into_document(mut self) -> Document {
        let columns = self.finish_with_values(ImageColumn::finish);
        self.written().to_document(&columns)
    }

    /// Finishes the columns; leaves those out that have no value, except the times.
    fn finish_with_values<W>(&mut self, finish: fn(&mut ImageColumn, &Collation) -> W) -> Vec<W> {
        let mut written = self.finish_columns(finish);
        let mut columns = self.columns.iter().enumerate();
        written.retain(|_| {
            let column = columns.next();
            column.is_none_or(|(at, column)| at == 0 || column.has_values())
        });
        written
    }

    /// Returns the bucket in sealed form: columns are packed where that is smaller.
    pub(crate) fn into_split(mut self) -> Split {
        let (columns, packed): (Vec<_>, Vec<_>) = self
            .finish_with_values(ImageColumn::finish_packed)
            .into_iter()
            .unzip();
        let mut split = SplitColumns::default();
        let mut packed = packed.into_iter();
        let skeleton = self.written().write(&columns, |out, column| {
            split.put(
                out,
                &column.name,
                &column.bytes,
                packed.next() == Some(true),
            );
        });
        split.under(skeleton)
    }

    /// Returns the bucket document with every column at its position, those without values included: tail entries refer to columns
    /// by position.
    pub(crate) fn into_document_by_place(mut self) -> Document {
        let columns = self.finish_columns(ImageColumn::finish);
        self.written().to_document(&columns)
    }

    fn finish_columns<W>(&mut self, finish: fn(&mut ImageColumn, &Collation) -> W) -> Vec<W> {
        let (rows, collation) = (self.rows, &self.collation);
        let columns = self.columns.iter_mut().map(|column| {
            column.pad(rows, collation);
            finish(column, collation)
        });
        let written = columns.collect();
        // Another field may hold dates in any order.
        self.sorted &= self.columns.first().is_none_or(|times| times.ascending);
        written
    }

    /// Returns the header of the bucket and its finished columns.
    fn written(&self) -> WrittenBucket<'_> {
        WrittenBucket {
            id: self.id,
            start_ms: self.start_ms,
            meta: self.meta.as_ref(),
            rows: self.rows,
            sorted: self.sorted,
            closed: self.closed,
        }
    }
}

impl EntrySink for BucketImage {
    fn column(&mut self, id: usize, name: Option<&str>) -> Result<()> {
        if id >= self.columns.len() {
            let name = name.filter(|_| id == self.columns.len()).ok_or_else(|| {
                damaged(
                    self.id_value(),
                    "its tail speaks of a column it does not name",
                )
            })?;
            self.columns.push(ImageColumn::new(name.into()));
        }
        if let Some(known) = self.columns.get_mut(id) {
            known.pad(self.rows, &self.collation);
        }
        Ok(())
    }

    fn value(&mut self, id: usize, value: ValueRef<'_>) -> Result<()> {
        self.append(id, value)
    }

    fn numbers(&mut self, id: usize, type_code: u8, numbers: &[i64]) -> Result<()> {
        if let Some(column) = self.columns.get_mut(id) {
            column.append_numbers(type_code, numbers, &self.collation);
        }
        Ok(())
    }
}

/// A finished column.
#[derive(Debug)]
pub(crate) struct WrittenColumn {
    /// Name of the field.
    pub(crate) name: Arc<str>,
    /// `control.min`.
    pub(crate) min: Value,
    /// `control.max`.
    pub(crate) max: Value,
    /// The compressed values.
    pub(crate) bytes: Vec<u8>,
}

/// The header of a finished bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenBucket<'a> {
    /// Its `_id`.
    pub(crate) id: [u8; 12],
    /// `control.min` of the time field, in ms.
    pub(crate) start_ms: i64,
    /// The metadata, missing if there is none.
    pub(crate) meta: ValueRef<'a>,
    /// Number of measurements.
    pub(crate) rows: usize,
    /// Times ascend.
    pub(crate) sorted: bool,
    /// The bucket takes no more measurements.
    pub(crate) closed: bool,
}

impl WrittenBucket<'_> {
    /// Returns the bucket document. The first column is the time field.
    pub(crate) fn to_document(self, columns: &[WrittenColumn]) -> Document {
        self.write(columns, |out, column| {
            let bytes = ValueRef::Binary {
                subtype: COLUMN_SUBTYPE,
                bytes: &column.bytes,
            };
            out.append_ref(&column.name, bytes);
        })
    }

    /// Returns the bucket document; `add` appends each column to `data`.
    fn write(
        self,
        columns: &[WrittenColumn],
        mut add: impl FnMut(&mut DocumentBuilder, &WrittenColumn),
    ) -> Document {
        let mut out = DocumentBuilder::with_capacity(1024);
        out.append_ref("_id", ValueRef::ObjectId(nilometer_bson::ObjectId(self.id)));
        out.begin_document("control");
        let version = if self.sorted {
            Version::Sorted
        } else {
            Version::Unsorted
        };
        out.append("version", version as i32);
        out.begin_document("min");
        for (at, column) in columns.iter().enumerate() {
            if at == 0 {
                out.append(&column.name, Value::DateTime(self.start_ms));
            } else {
                out.append_ref(&column.name, column.min.as_ref());
            }
        }
        out.end().begin_document("max");
        for column in columns {
            out.append_ref(&column.name, column.max.as_ref());
        }
        out.end();
        if self.closed {
            out.append("closed", true);
        }
        out.append("count", i32::try_from(self.rows).unwrap_or(i32::MAX));
        out.end();
        out.append_ref("meta", self.meta);
        out.begin_document("data");
        for column in columns {
            add(&mut out, column);
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests;
