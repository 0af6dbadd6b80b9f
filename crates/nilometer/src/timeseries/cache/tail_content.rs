//! A bucket with a tail: its stored document, if there is one, and the entries since, both decoded column by column.
//!
//! ```text
//! names, count                          when it is opened
//! a column    column of the document | values of the entries           on request
//! bounds      bounds of the document, then the values of the entries   on request
//! document    all of it folded          for readers of buckets as documents
//! ```
//!
//! A query reads few columns, and while a writer inserts, each bucket has a new entry at each read. The document keeps its decoded
//! columns, and the next state of the bucket uses the same document.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use nilometer_bson::block::{ColumnBlock, ColumnBlockBuilder};
use nilometer_bson::column::scalar_at_path;
use nilometer_bson::{Document, ObjectId, Value, ValueRef};
use nilometer_storage::Bytes;

use super::interner::{ColumnOrder, Interner};
use super::opened_bucket::StoredBucket;
use super::tail_columns::{BlockSink, ColumnTable, TailColumns};
use crate::error::Result;
use crate::eval::{Collation, memory_bytes};
use crate::timeseries::format::bucket_document::{
    BucketImage, Layout, MEASUREMENTS_MAX, Version, damaged,
};
use crate::timeseries::format::min_max::{Extreme, Side};
use crate::timeseries::format::tail::{EntrySink, Header};

/// The content of a bucket with a tail.
pub(super) struct TailContent {
    /// The stored document.
    base: Option<Arc<StoredBucket>>,
    tail: TailColumns,
    /// The fingerprint of the document and all entries.
    fingerprint: u64,
    /// The columns as entries refer to them.
    table: ColumnTable,
    /// How the bucket was opened.
    header: Header,
    time_field: Arc<str>,
    collation: Collation,
    /// By place.
    columns: Box<[TailColumn]>,
    is_sorted: OnceLock<bool>,
    /// Memory of the stored document that was counted for this bucket.
    counted_bytes: AtomicUsize,
}

/// An estimate of the heap of two bounds.
const BOUNDS_HEAP_BYTES: usize = 32;

/// A column of such a bucket.
struct TailColumn {
    /// The position by which entries refer to it.
    id: usize,
    /// The place in the stored document.
    base_at: Option<usize>,
    bounds: OnceLock<(Value, Value)>,
}

/// A tail to be opened.
pub(crate) struct TailToOpen<'t> {
    /// Keys and values of the entries.
    pub(crate) entries: &'t [(Bytes, Bytes)],
    /// The fingerprint of the document and all entries.
    pub(crate) fingerprint: u64,
}

impl TailContent {
    /// Opens a bucket of a stored document and a tail.
    pub(super) fn open(
        id: [u8; 12],
        base: Option<Arc<StoredBucket>>,
        tail: &TailToOpen<'_>,
        layout: &Layout<'_>,
        interner: &Interner,
    ) -> Result<(Self, Arc<ColumnOrder>)> {
        let mut table = ColumnTable::new(layout.time_field);
        for (at, name) in base.iter().flat_map(|base| base.shown()) {
            let has_values = match &base {
                Some(base) => base.has_values_at(at)?,
                None => false,
            };
            table.add(name, has_values);
        }
        let none = TailColumns::default();
        let (columns, of_tail) = none.with_entries(tail.entries, &mut table)?;
        let header = match &base {
            Some(base) => Header {
                start_ms: base.start_ms(layout.time_field)?,
                meta: base.meta().to_value(),
            },
            None => of_tail.ok_or_else(|| {
                let id = ValueRef::ObjectId(ObjectId(id));
                damaged(id, "its tail does not tell how it was opened")
            })?,
        };
        let order = interner.column_order(table.with_values().map(|(_, name)| &**name));
        let content = Self {
            columns: columns_of(&table, &order, base.as_deref()),
            base,
            tail: columns,
            fingerprint: tail.fingerprint,
            table,
            header,
            time_field: layout.time_field.into(),
            collation: layout.collation.clone(),
            is_sorted: OnceLock::new(),
            counted_bytes: AtomicUsize::new(0),
        };
        content.check_count(id)?;
        Ok((content, order))
    }

    fn check_count(&self, id: [u8; 12]) -> Result<()> {
        match self.count() {
            0..=MEASUREMENTS_MAX => Ok(()),
            _ => {
                let id = ValueRef::ObjectId(ObjectId(id));
                Err(damaged(id, "too many measurements"))
            }
        }
    }

    /// Opens the state of the bucket with this tail, which begins with the entries of this one. `order` is that of this state.
    pub(super) fn with_more(
        &self,
        id: [u8; 12],
        tail: &TailToOpen<'_>,
        order: &Arc<ColumnOrder>,
        interner: &Interner,
    ) -> Result<(Self, Arc<ColumnOrder>)> {
        let mut table = self.table.clone();
        let known = self.tail.len();
        let more = tail.entries.get(known..).unwrap_or_default();
        let (columns, _) = self.tail.with_entries(more, &mut table)?;
        let names = |table: &ColumnTable| table.with_values().count();
        let order = match names(&table) == names(&self.table) {
            true => Arc::clone(order),
            false => interner.column_order(table.with_values().map(|(_, name)| &**name)),
        };
        let content = Self {
            columns: columns_of(&table, &order, self.base.as_deref()),
            base: self.base.clone(),
            tail: columns,
            fingerprint: tail.fingerprint,
            table,
            header: self.header.clone(),
            time_field: Arc::clone(&self.time_field),
            collation: self.collation.clone(),
            is_sorted: OnceLock::new(),
            counted_bytes: AtomicUsize::new(0),
        };
        content.check_count(id)?;
        for column in &content.columns {
            let mut earlier = self.columns.iter();
            let earlier = earlier.find(|earlier| earlier.id == column.id);
            if let Some((min, max)) = earlier.and_then(|earlier| earlier.bounds.get())
                && is_scalar(min.as_ref())
                && is_scalar(max.as_ref())
            {
                let mut bounds = BoundsSink::new(&content.collation);
                bounds.add(min.as_ref(), max.as_ref());
                let bounds = content.with_tail_bounds(column, known, bounds)?;
                column.bounds.get_or_init(|| bounds);
            }
        }
        Ok((content, order))
    }

    /// Returns the number of entries, and the fingerprint of the document with them.
    pub(super) fn state(&self) -> (usize, u64) {
        (self.tail.len(), self.fingerprint)
    }

    /// Appends the values of the entries from one of them on to a column of those before.
    pub(super) fn with_more_values(
        &self,
        at: usize,
        known: &ColumnBlock,
        first: usize,
    ) -> Result<ColumnBlock> {
        let mut values = ColumnBlockBuilder::new();
        values.append(known, 0..known.len());
        if let Some(column) = self.columns.get(at) {
            let mut sink = BlockSink(&mut values);
            self.tail.visit_column(column.id, first, &mut sink)?;
        }
        Ok(values.finish())
    }

    /// The stored document.
    pub(super) fn base(&self) -> Option<&Arc<StoredBucket>> {
        self.base.as_ref()
    }

    /// Number of measurements.
    pub(super) fn count(&self) -> usize {
        self.base_count() + self.tail.rows()
    }

    fn base_count(&self) -> usize {
        self.base.as_ref().map_or(0, |base| base.count())
    }

    /// The metadata, missing if there is none.
    pub(super) fn meta(&self) -> ValueRef<'_> {
        self.header.meta.as_ref()
    }

    /// Returns the memory in bytes, without that of the document.
    pub(super) fn memory_bytes(&self) -> usize {
        let columns = self.columns.len() * (size_of::<TailColumn>() + BOUNDS_HEAP_BYTES);
        let header = memory_bytes(&self.header.meta) + self.time_field.len();
        let own = size_of::<Self>() + header + columns;
        own + self.table.memory_bytes() + self.tail.memory_bytes()
    }

    /// Returns the memory that the document takes and that was not returned before.
    pub(super) fn more_bytes_of_base(&self) -> usize {
        let now = self.base.as_ref().map_or(0, |base| base.memory().bytes());
        let counted = self.counted_bytes.fetch_max(now, Ordering::Relaxed);
        now.saturating_sub(counted)
    }

    /// Returns the stored size in bytes.
    pub(super) fn stored_bytes(&self) -> usize {
        let base = self.base.as_ref().map_or(0, |base| base.stored_bytes());
        base + self.tail.columns_bytes()
    }

    /// True if the document says that it takes no more measurements.
    pub(super) fn is_closed(&self) -> bool {
        self.base.as_ref().is_some_and(|base| base.is_closed())
    }

    /// True if times ascend; `column` returns the column at a place.
    pub(super) fn is_sorted(&self, column: impl FnOnce(usize) -> Option<Arc<ColumnBlock>>) -> bool {
        *self.is_sorted.get_or_init(|| {
            let is_unsorted = |base: &Arc<StoredBucket>| base.version() == Version::Unsorted as i32;
            let base = !self.base.as_ref().is_some_and(is_unsorted);
            let times = self.columns.iter().position(|column| column.id == 0);
            base && times
                .and_then(column)
                .is_some_and(|times| match times.as_datetime() {
                    Some(all) if times.is_all_present() => all.is_sorted(),
                    _ => {
                        let dates = times.iter().filter_map(|time| match time {
                            ValueRef::DateTime(ms) => Some(ms),
                            _ => None,
                        });
                        dates.is_sorted()
                    }
                })
        })
    }

    /// Decodes the column at a place.
    pub(super) fn column(&self, at: usize) -> Result<ColumnBlock> {
        let mut values = ColumnBlockBuilder::new();
        let Some(column) = self.columns.get(at) else {
            return Ok(values.finish());
        };
        let count = self.base_count();
        match self.base_column(column)? {
            Some(block) => values.append(block, 0..count),
            None => (0..count).for_each(|_| values.push_missing()),
        }
        self.tail
            .visit_column(column.id, 0, &mut BlockSink(&mut values))?;
        Ok(values.finish())
    }

    /// Decodes the values at a path below those of the column at a place; `None` if they must be found in these.
    pub(super) fn path_at(&self, at: usize, below: &str) -> Result<Option<Arc<ColumnBlock>>> {
        let Some(column) = self.columns.get(at) else {
            return Ok(None);
        };
        let mut values = ColumnBlockBuilder::new();
        let count = self.base_count();
        match (&self.base, column.base_at) {
            (Some(base), Some(at)) => match base.path_at(at, below)? {
                Some(block) => values.append(&block, 0..count),
                None => return Ok(None),
            },
            _ => (0..count).for_each(|_| values.push_missing()),
        }
        let mut sink = PathSink {
            values,
            below,
            is_scalar: true,
        };
        self.tail.visit_column(column.id, 0, &mut sink)?;
        let found = sink.is_scalar.then(|| Arc::new(sink.values.finish()));
        Ok(found)
    }

    fn base_column(&self, column: &TailColumn) -> Result<Option<&Arc<ColumnBlock>>> {
        match (&self.base, column.base_at) {
            (Some(base), Some(at)) => base.decoded_at(at),
            _ => Ok(None),
        }
    }

    /// Returns the bounds of the column at a place; missing and null if it cannot be decoded.
    pub(super) fn bounds_at(&self, at: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        let Some(column) = self.columns.get(at) else {
            return MISSING;
        };
        // No predicate is decided by bounds of two types. The error is returned when the column is read.
        let unknown = (Value::Missing, Value::Null);
        let bounds = || self.find_bounds(column).unwrap_or(unknown);
        let (min, max) = column.bounds.get_or_init(bounds);
        (min.as_ref(), max.as_ref())
    }

    fn find_bounds(&self, column: &TailColumn) -> Result<(Value, Value)> {
        let mut bounds = BoundsSink::new(&self.collation);
        if let (Some(base), Some(at)) = (&self.base, column.base_at) {
            match base.bounds_at(at) {
                (min, max) if is_scalar(min) && is_scalar(max) => bounds.add(min, max),
                // The bounds of objects are no values: they do not tell which of them were there.
                _ => {
                    for value in base.decoded_at(at)?.iter().flat_map(|block| block.iter()) {
                        bounds.add(value, value);
                    }
                }
            }
        }
        self.with_tail_bounds(column, 0, bounds)
    }

    /// Adds the bounds of the entries from one of them on.
    fn with_tail_bounds(
        &self,
        column: &TailColumn,
        first: usize,
        mut bounds: BoundsSink<'_>,
    ) -> Result<(Value, Value)> {
        self.tail.visit_column(column.id, first, &mut bounds)?;
        let min = match column.id {
            0 => Value::DateTime(self.header.start_ms),
            _ => bounds.min.to_value(),
        };
        Ok((min, bounds.max.to_value()))
    }

    /// Returns the bucket document with the tail folded in.
    pub(super) fn fold(&self, id: [u8; 12]) -> Result<Document> {
        let layout = Layout {
            time_field: &self.time_field,
            collation: self.collation.clone(),
        };
        let mut image = match &self.base {
            Some(base) => BucketImage::from_document(base.to_document()?.as_ref(), &layout)?,
            None => BucketImage::new(id, &self.header, &layout),
        };
        for entry in self.tail.iter() {
            image.append_entry(&entry)?;
        }
        Ok(image.into_document())
    }
}

/// Returns the columns of a bucket by place.
fn columns_of(
    table: &ColumnTable,
    order: &ColumnOrder,
    base: Option<&StoredBucket>,
) -> Box<[TailColumn]> {
    let names = base.map_or(&[][..], StoredBucket::columns);
    let mut by_place: Vec<_> = table.with_values().zip(&order.shown).collect();
    by_place.sort_unstable_by_key(|(_, place)| **place);
    let columns = by_place.into_iter().map(|((id, name), _)| TailColumn {
        id,
        base_at: names.iter().position(|known| known == name),
        bounds: OnceLock::new(),
    });
    columns.collect()
}

const MISSING: (ValueRef<'static>, ValueRef<'static>) = (ValueRef::Missing, ValueRef::Missing);

fn is_scalar(bound: ValueRef<'_>) -> bool {
    !matches!(
        bound,
        ValueRef::Missing | ValueRef::Document(_) | ValueRef::Array(_)
    )
}

/// Collects the values at a path below those of a column.
struct PathSink<'p> {
    values: ColumnBlockBuilder,
    below: &'p str,
    /// No value has an array on the way, or an object or array there.
    is_scalar: bool,
}

impl EntrySink for PathSink<'_> {
    fn column(&mut self, _: usize, _: Option<&str>) -> Result<()> {
        Ok(())
    }

    fn value(&mut self, _: usize, value: ValueRef<'_>) -> Result<()> {
        match scalar_at_path(value, self.below) {
            Some(found) => self.values.push(found),
            None => self.is_scalar = false,
        }
        Ok(())
    }
}

/// Collects the bounds of a column.
struct BoundsSink<'c> {
    min: Extreme,
    max: Extreme,
    collation: &'c Collation,
}

impl<'c> BoundsSink<'c> {
    fn new(collation: &'c Collation) -> Self {
        Self {
            min: Extreme::none(),
            max: Extreme::none(),
            collation,
        }
    }

    fn add(&mut self, min: ValueRef<'_>, max: ValueRef<'_>) {
        self.min.update(min, Side::Min, self.collation);
        self.max.update(max, Side::Max, self.collation);
    }
}

impl EntrySink for BoundsSink<'_> {
    fn column(&mut self, _: usize, _: Option<&str>) -> Result<()> {
        Ok(())
    }

    fn value(&mut self, _: usize, value: ValueRef<'_>) -> Result<()> {
        self.add(value, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use crate::timeseries::format::{sealed, tail};

    #[test]
    fn a_column_that_cannot_be_read_is_not_passed_over() {
        let header = Header {
            start_ms: 0,
            meta: Value::Missing,
        };
        let ids = [ValueRef::ObjectId(ObjectId([7; 12]))];
        let times = [ValueRef::DateTime(5)];
        let chunk = |id, name, values| tail::ColumnChunk { id, name, values };
        let columns = [chunk(0, None, &times[..]), chunk(1, Some("id"), &ids[..])];
        let mut entry = tail::encode(1, Some(&header), &columns).unwrap();
        // An id at a distance from the one before, which is not there.
        entry.truncate(entry.len() - 4 - 13);
        entry.extend_from_slice(&[0xE5, 2]);
        entry.extend_from_slice(&sealed::sum(&entry));
        let entries = [(Bytes::copy_from(&[0; 16]), Bytes::from(entry))];
        let layout = Layout {
            time_field: "t",
            collation: Collation::SIMPLE,
        };
        let tail = TailToOpen {
            entries: &entries,
            fingerprint: 1,
        };
        let bucket = StoredBucket::with_tail([1; 12], None, &tail, &layout, &Arc::default());
        let bucket = bucket.unwrap();
        assert_eq!(bucket.count(), 1);
        let at = bucket.columns().iter().position(|name| &**name == "id");
        let at = at.expect("the column");
        let (min, max) = bucket.bounds_at(at);
        assert!(min.is_missing() && matches!(max, ValueRef::Null));
        let error = bucket.column_at(at).unwrap_err();
        assert_eq!(error.code, ErrorCode::DataCorruptionDetected);
        assert!(bucket.to_document().is_err());
    }
}
