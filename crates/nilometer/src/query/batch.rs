//! The data passed between operators: rows, or a block of measurements.
//!
//! ```text
//! MeasurementBlock = bucket (columns decoded on demand)
//!                  + selection: which of its measurements, in stored order
//!                  + shape: the fields they show
//! ```
//!
//! A block represents exactly the documents returned by [`MeasurementBlock::to_rows`]: the time field, the metadata if
//! present, then the other fields in the bucket's column order. An operator that reads columns must return the same
//! result as for those documents.

mod row_writer;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::plain_value_below;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use self::row_writer::RowWriter;
use crate::error::Result;
use crate::eval::accumulator::ColumnTotal;
use crate::query::source::{Bucket, BucketRun, ColumnName, place_of, shown_columns};

/// A batch of documents or measurements.
#[derive(Clone)]
pub enum Batch {
    /// Documents.
    Rows(Vec<Document>),
    /// Measurements of one bucket.
    Block(MeasurementBlock),
}

impl Batch {
    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.len(),
            Self::Block(block) => block.selection.len(),
        }
    }

    /// True if the batch contains no document.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first `count` documents.
    pub fn truncate(&mut self, count: usize) {
        match self {
            Self::Rows(rows) => rows.truncate(count),
            Self::Block(block) => block.selection.truncate(count),
        }
    }

    /// Drops the first `count` documents.
    pub fn skip(&mut self, count: usize) {
        match self {
            Self::Rows(rows) => drop(rows.drain(..count.min(rows.len()))),
            Self::Block(block) => block.selection.skip(count),
        }
    }

    /// Converts the batch to documents.
    pub fn into_rows(self) -> Result<Vec<Document>> {
        match self {
            Self::Rows(rows) => Ok(rows),
            Self::Block(block) => block.to_rows(),
        }
    }
}

/// A batch that is consumed document by document. Measurements are written as BSON when they are read.
#[derive(Default)]
pub enum Pending {
    /// No documents.
    #[default]
    Nothing,
    /// Documents.
    Rows(std::vec::IntoIter<Document>),
    /// The measurements of a block from a position in its selection.
    Block {
        /// Writes the measurements as BSON.
        writer: Box<RowWriter>,
        /// The selected measurements.
        selection: Selection,
        /// Number of measurements consumed.
        gone: usize,
    },
}

impl Pending {
    /// Creates the iterator over all documents of a batch.
    pub fn of(batch: Batch) -> Result<Self> {
        Ok(match batch {
            Batch::Rows(rows) => Self::Rows(rows.into_iter()),
            Batch::Block(block) => Self::Block {
                writer: Box::new(RowWriter::new(&block)?),
                selection: block.selection,
                gone: 0,
            },
        })
    }

    /// Returns the next document without consuming it.
    pub fn front(&mut self) -> Option<DocRef<'_>> {
        match self {
            Self::Nothing => None,
            Self::Rows(rows) => rows.as_slice().first().map(Document::as_ref),
            Self::Block {
                writer,
                selection,
                gone,
            } => selection.get(*gone).map(|row| writer.row(row as usize)),
        }
    }

    /// Consumes the next document.
    pub fn advance(&mut self) {
        match self {
            Self::Nothing => {}
            Self::Rows(rows) => drop(rows.next()),
            Self::Block { gone, .. } => *gone += 1,
        }
    }

    /// True if no document is left.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Rows(rows) => rows.len() == 0,
            Self::Block {
                selection, gone, ..
            } => *gone >= selection.len(),
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rows(rows) => f.debug_tuple("Rows").field(&rows.len()).finish(),
            Self::Block(block) => f.debug_tuple("Block").field(&block.selection).finish(),
        }
    }
}

/// Rows of a block, in ascending order. Within a `$group` they may be in the order of their groups: such a selection is only read,
/// and not made smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Contiguous rows: columns can be read as slices.
    Range(Range<u32>),
    /// Row numbers.
    Rows(Vec<u32>),
}

impl Selection {
    /// Selects all of `count` rows.
    pub fn all(count: u32) -> Self {
        Self::Range(0..count)
    }

    /// Selects no row.
    pub fn none() -> Self {
        Self::Range(0..0)
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::Rows(rows) => rows.len(),
        }
    }

    /// True if no row is selected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first `count` rows.
    pub fn truncate(&mut self, count: usize) {
        match self {
            Self::Range(range) => {
                let end = range
                    .start
                    .saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
                range.end = range.end.min(end);
            }
            Self::Rows(rows) => rows.truncate(count),
        }
    }

    /// Drops the first `count` rows.
    pub fn skip(&mut self, count: usize) {
        match self {
            Self::Range(range) => {
                let start = range
                    .start
                    .saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
                range.start = range.end.min(start);
            }
            Self::Rows(rows) => drop(rows.drain(..count.min(rows.len()))),
        }
    }

    /// Returns the row at position `at` of the selection.
    pub fn get(&self, at: usize) -> Option<u32> {
        match self {
            Self::Range(range) => {
                let row = range.start.checked_add(u32::try_from(at).ok()?)?;
                range.contains(&row).then_some(row)
            }
            Self::Rows(rows) => rows.get(at).copied(),
        }
    }

    /// Returns the rows at these positions of the selection, which must ascend there.
    #[must_use]
    pub fn part(&self, positions: Range<usize>) -> Self {
        match self {
            Self::Range(_) => {
                let mut part = self.clone();
                part.truncate(positions.end);
                part.skip(positions.start);
                part
            }
            Self::Rows(rows) => Self::from_rows(rows.get(positions).unwrap_or(&[]).to_vec()),
        }
    }

    /// Calls `visit` with each row.
    pub fn for_each(&self, mut visit: impl FnMut(u32)) {
        match self {
            Self::Range(range) => range.clone().for_each(visit),
            Self::Rows(rows) => rows.iter().for_each(|row| visit(*row)),
        }
    }

    /// Returns the rows for which `keep` is true, as a range if they are contiguous.
    #[must_use]
    pub fn filter(&self, mut keep: impl FnMut(u32) -> bool) -> Self {
        let mut rows = Vec::new();
        self.for_each(|row| {
            if keep(row) {
                rows.push(row);
            }
        });
        Self::from_rows(rows)
    }

    /// Selects these ascending row numbers, as a range if they are contiguous.
    pub fn from_rows(rows: Vec<u32>) -> Self {
        match (rows.first(), rows.last()) {
            (Some(&first), Some(&last)) if (last - first) as usize + 1 == rows.len() => {
                Self::Range(first..last + 1)
            }
            (None, _) => Self::none(),
            _ => Self::Rows(rows),
        }
    }

    /// Returns the selected rows within `range`.
    #[must_use]
    pub fn within(&self, range: Range<u32>) -> Self {
        match self {
            Self::Range(own) => {
                let start = own.start.max(range.start);
                let end = own.end.min(range.end);
                Self::Range(start..end.max(start))
            }
            Self::Rows(rows) => {
                let from = rows.partition_point(|row| *row < range.start);
                let to = rows.partition_point(|row| *row < range.end);
                let part = rows.get(from..to).unwrap_or(&[]);
                Self::from_rows(part.to_vec())
            }
        }
    }

    /// Returns the row numbers.
    pub fn to_vec(&self) -> Vec<u32> {
        match self {
            Self::Range(range) => range.clone().collect(),
            Self::Rows(rows) => rows.clone(),
        }
    }
}

/// The fields that measurements show.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum FieldSet {
    /// All fields.
    #[default]
    All,
    /// Only these fields.
    Only(BTreeSet<Arc<str>>),
    /// All fields but these.
    Except(BTreeSet<Arc<str>>),
}

impl FieldSet {
    /// True if measurements show the field.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
            Self::Except(names) => !names.contains(name),
        }
    }
}

/// The field names of a collection's measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurementShape {
    /// Name of the time field.
    pub time_field: Arc<str>,
    /// Name of the metadata field.
    pub meta_field: Option<Arc<str>>,
    /// The fields that measurements show.
    pub fields: FieldSet,
}

impl MeasurementShape {
    /// True if measurements may show a column with this name (the metadata field hides one).
    pub(crate) fn shows_column(&self, name: &str) -> bool {
        self.meta_field.as_deref() != Some(name) && self.fields.contains(name)
    }
}

/// Measurements of one bucket.
#[derive(Clone)]
pub struct MeasurementBlock {
    /// The bucket.
    pub bucket: Arc<dyn Bucket>,
    /// The selected measurements.
    pub selection: Selection,
    /// Field names, and the fields to show.
    pub shape: Arc<MeasurementShape>,
}

/// Whole buckets that follow one another in a scan, with all of their measurements.
pub struct BlockRun {
    /// The buckets.
    pub buckets: Box<dyn BucketRun>,
    /// Field names, and the fields to show.
    pub shape: Arc<MeasurementShape>,
}

impl BlockRun {
    /// Returns the number of buckets.
    pub fn len(&self) -> usize {
        self.buckets.bucket_count()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the measurements of a bucket.
    pub fn block(&self, at: usize) -> MeasurementBlock {
        MeasurementBlock::all(self.buckets.bucket(at), Arc::clone(&self.shape))
    }

    /// Returns the number of the metadata of a bucket if measurements show the metadata.
    pub(crate) fn meta_id(&self, at: usize) -> Option<NonZeroU64> {
        let shown = self.shape.meta_field.as_ref();
        let shown = shown.filter(|name| self.shape.fields.contains(name));
        shown.and_then(|_| self.buckets.meta_id(at))
    }
}

/// A field of the measurements of a block.
pub enum ShownField {
    /// The metadata, the same in all of them: [`MeasurementBlock::meta`].
    Meta,
    /// A column of the bucket, of which the block shows the selected rows.
    Column(Arc<ColumnBlock>),
}

impl MeasurementBlock {
    /// Returns a block of all measurements of a bucket.
    pub fn all(bucket: Arc<dyn Bucket>, shape: Arc<MeasurementShape>) -> Self {
        let count = bucket.count();
        Self {
            bucket,
            selection: Selection::all(count),
            shape,
        }
    }

    /// Returns the fields that measurements show, in their order. A metadata field that is missing is among them.
    pub fn shown_fields(&self) -> Result<Vec<(Arc<str>, ShownField)>> {
        let shape = &self.shape;
        let mut fields = Vec::new();
        if let Some(time) = self.column(&shape.time_field)? {
            let name = Arc::clone(&shape.time_field);
            fields.push((name, ShownField::Column(Arc::clone(time))));
        }
        if let Some(name) = &shape.meta_field {
            fields.push((Arc::clone(name), ShownField::Meta));
        }
        for (at, name) in shown_columns(&*self.bucket) {
            if *name == shape.time_field || !shape.shows_column(name) {
                continue;
            }
            if let Some(column) = self.bucket.column_at(at)? {
                fields.push((Arc::clone(name), ShownField::Column(Arc::clone(column))));
            }
        }
        Ok(fields)
    }

    /// Returns the part of a column that the selection covers, as one slice, and its first row.
    pub(crate) fn selected<'b>(&self, column: &'b ColumnBlock) -> (Cow<'b, ColumnBlock>, usize) {
        match &self.selection {
            Selection::Range(range) => (Cow::Borrowed(column), range.start as usize),
            Selection::Rows(rows) => (Cow::Owned(column.select(rows)), 0),
        }
    }

    /// Returns the metadata as measurements show it.
    pub fn meta(&self) -> ValueRef<'_> {
        match &self.shape.meta_field {
            Some(name) if self.shape.fields.contains(name) => self.bucket.meta(),
            _ => ValueRef::Missing,
        }
    }

    /// Returns bounds of the times of the bucket's measurements, from its header. The stored minimum is rounded towards
    /// 1970, so before 1970 there is no lower bound.
    pub(crate) fn time_bounds(&self) -> (Option<i64>, Option<i64>) {
        let time_field = &self.shape.time_field;
        let at = |bound: ValueRef<'_>| match bound {
            ValueRef::DateTime(at) => Some(at),
            _ => None,
        };
        let min = at(self.bucket.min(time_field)).filter(|min| *min > 0);
        (min, at(self.bucket.max(time_field)))
    }

    /// Returns the value at a path below the metadata, or missing. Returns `None` where a simple lookup does not
    /// suffice: the path is not below the metadata, the metadata is no document, or the path crosses an array.
    pub(crate) fn plain_meta(&self, path: &FieldPath) -> Option<ValueRef<'_>> {
        let is_meta = self.shape.meta_field.as_deref() == Some(path.first());
        match self.meta() {
            ValueRef::Document(meta) if is_meta => plain_value_below(path, meta),
            _ => None,
        }
    }

    /// True if all measurements of the bucket are selected.
    pub(crate) fn is_whole(&self) -> bool {
        self.selection.len() == self.bucket.count() as usize
    }

    /// Returns the bucket's metadata number if measurements show the metadata.
    pub(crate) fn meta_id(&self) -> Option<NonZeroU64> {
        let shown = self.shape.meta_field.as_ref();
        let shown = shown.filter(|name| self.shape.fields.contains(name));
        shown.and_then(|_| self.bucket.meta_id())
    }

    /// Returns the value of field `name` in measurement `row` of the bucket.
    pub(crate) fn value(&self, name: &str, row: u32) -> Result<Value> {
        if self.shape.meta_field.as_deref() == Some(name) {
            return Ok(self.meta().to_value());
        }
        let column = self.column(name)?;
        let value = column
            .as_ref()
            .map(|column| column.value(row as usize).to_value());
        Ok(value.unwrap_or_default())
    }

    /// Returns the total of the selected values of a column, if it is known or costs less than the column.
    pub(crate) fn total(&self, name: &ColumnName) -> Result<Option<ColumnTotal>> {
        let Some(at) = name.place_in(&*self.bucket) else {
            return Ok(None);
        };
        if self.is_whole() {
            return self.bucket.total_at(at);
        }
        match self.selection {
            Selection::Range(Range { start: 0, end }) => {
                self.bucket.total_of_first(at, end as usize)
            }
            Selection::Range(Range { start, end })
                if end == self.bucket.count() && self.bucket.has_total_at(at) =>
            {
                let first = self.bucket.total_of_first(at, start as usize)?;
                let all = self.bucket.total_at(at)?;
                Ok(all.zip(first).and_then(|(all, first)| all.behind(&first)))
            }
            _ => Ok(None),
        }
    }

    /// True if that total is known without decoding the column.
    pub(crate) fn has_total(&self, name: &ColumnName) -> bool {
        let place = name.place_in(&*self.bucket);
        self.is_whole() && place.is_some_and(|at| self.bucket.has_total_at(at))
    }

    /// Returns a document with the metadata under its name: the part that all measurements share.
    pub fn constant_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        if let Some(name) = &self.shape.meta_field {
            out.append_ref(name, self.meta());
        }
        out.finish()
    }

    /// Returns the column that measurements show as `name`; `None` if there is none.
    pub fn column(&self, name: &str) -> Result<Option<&Arc<ColumnBlock>>> {
        match self.shape.shows_column(name) {
            true => self.bucket.column(name),
            false => Ok(None),
        }
    }

    /// Returns the values at a dotted path into objects, without building these. `None` if they must be found in documents, as for
    /// arrays on the way ([`Bucket::path_at`]).
    pub(crate) fn column_at_path(&self, path: &str) -> Result<Option<Arc<ColumnBlock>>> {
        let Some((name, below)) = path.split_once('.') else {
            return Ok(None);
        };
        if !self.shape.shows_column(name) {
            return Ok(None);
        }
        match place_of(self.bucket.columns(), name) {
            Some(at) => self.bucket.path_at(at, below),
            None => {
                let missing = ColumnBlock::missing(self.bucket.count() as usize);
                Ok(Some(Arc::new(missing)))
            }
        }
    }

    /// Returns about the bytes of all measurements of the bucket with the columns they show decoded, if these hold numbers or dates;
    /// at least those of the stored bucket.
    pub(crate) fn decoded_bytes(&self) -> usize {
        let bucket = &self.bucket;
        let columns = bucket.columns().iter();
        let shown = columns.filter(|name| self.shape.shows_column(name)).count();
        let decoded = bucket.count() as usize * shown * size_of::<f64>();
        decoded.max(bucket.stored_bytes())
    }

    /// Returns the measurements as documents.
    pub fn to_rows(&self) -> Result<Vec<Document>> {
        self.rows_of(&self.selection)
    }

    /// Returns the measurements of `selection` as documents.
    pub fn rows_of(&self, selection: &Selection) -> Result<Vec<Document>> {
        if selection.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = RowWriter::new(self)?;
        let mut rows = Vec::with_capacity(selection.len());
        selection.for_each(|row| rows.push(writer.document(row as usize)));
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_cut_alike() {
        for at in 0..8 {
            let mut range = Selection::Range(2..7);
            let mut rows = Selection::Rows(vec![2, 3, 4, 5, 6]);
            range.skip(at);
            rows.skip(at);
            assert_eq!(range.to_vec(), rows.to_vec(), "skip {at}");
            let mut range = Selection::Range(2..7);
            let mut rows = Selection::Rows(vec![2, 3, 4, 5, 6]);
            range.truncate(at);
            rows.truncate(at);
            assert_eq!(range.to_vec(), rows.to_vec(), "truncate {at}");
        }
    }

    #[test]
    fn what_is_a_run_becomes_one() {
        let all = Selection::all(10);
        assert_eq!(all.filter(|row| row > 3), Selection::Range(4..10));
        assert_eq!(all.filter(|row| row == 30), Selection::none());
        let even = all.filter(|row| row % 2 == 0);
        assert_eq!(even, Selection::Rows(vec![0, 2, 4, 6, 8]));
        assert_eq!(even.within(3..7).to_vec(), [4, 6]);
        assert_eq!(all.within(3..7), Selection::Range(3..7));
        assert!(all.within(20..30).is_empty());
    }
}
