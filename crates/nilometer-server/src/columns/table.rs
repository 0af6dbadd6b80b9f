//! Batches of documents and of measurements as record batches.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use nilometer::query::batch::{Batch, MeasurementBlock, Selection, ShownField};
use nilometer_bson::block::ColumnBlock;
use nilometer_bson::{DocRef, ValueRef};

use super::array::{ColumnBuffer, field_of};
use super::layout::{Fields, Layout, Place};
use super::{BATCH_BYTES_MAX, BATCH_ROWS};

/// Columns that are filled with documents.
pub(crate) struct TableBuilder {
    layout: Layout,
    schema: SchemaRef,
    buffers: Vec<ColumnBuffer>,
    rows: usize,
    /// Rows of earlier batches.
    before: u64,
}

impl TableBuilder {
    /// Creates empty columns.
    pub(crate) fn new(layout: Layout) -> Self {
        let fields: Vec<_> = layout.columns.iter().map(field_of).collect();
        let columns = layout.columns.iter();
        Self {
            buffers: columns
                .map(|column| ColumnBuffer::new(column, BATCH_ROWS))
                .collect(),
            schema: Arc::new(Schema::new(fields)),
            layout,
            rows: 0,
            before: 0,
        }
    }

    /// Returns the fields of its record batches.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the rows added since the beginning.
    pub(crate) fn count(&self) -> u64 {
        self.before + self.rows as u64
    }

    /// True if [`Self::finish`] should be called before more is added.
    pub(crate) fn is_full(&self) -> bool {
        let bytes = || self.buffers.iter().map(ColumnBuffer::bytes).sum::<usize>();
        self.rows >= BATCH_ROWS || bytes() >= BATCH_BYTES_MAX
    }

    /// Adds a batch. The error says which value has no place.
    pub(crate) fn push(&mut self, batch: &Batch) -> Result<(), String> {
        match batch {
            Batch::Rows(rows) => rows
                .iter()
                .try_for_each(|row| self.push_document(row.as_ref())),
            Batch::Block(block) => self.push_block(block),
        }
    }

    /// Adds a document.
    pub(crate) fn push_document(&mut self, document: DocRef<'_>) -> Result<(), String> {
        let row = self.before + self.rows as u64 + 1;
        let mut target = Target {
            buffers: &mut self.buffers,
            is_given: self.layout.is_given,
            length: self.rows,
            count: 1,
        };
        let placed = target.put(&self.layout.fields, document);
        placed.map_err(|problem| format!("document {row}: {problem}"))?;
        self.rows += 1;
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        for buffer in &mut self.buffers {
            buffer.pad_to(self.rows);
        }
    }

    fn push_block(&mut self, block: &MeasurementBlock) -> Result<(), String> {
        let count = block.selection.len();
        if count == 0 {
            return Ok(());
        }
        let first = self.before + self.rows as u64 + 1;
        let at = |problem: String| {
            format!("document {first} or one of the {count} from it on: {problem}")
        };
        let mut expected = 0;
        let mut target = Target {
            buffers: &mut self.buffers,
            is_given: self.layout.is_given,
            length: self.rows,
            count,
        };
        for (name, field) in block.shown_fields().map_err(|e| e.message)? {
            let place = self.layout.fields.find(&name, &mut expected);
            match field {
                ShownField::Meta => match place {
                    Some(place) => target.put_value(place, &name, block.meta()).map_err(at)?,
                    None if block.meta().is_missing() || self.layout.is_given => {}
                    None => return Err(at(unknown(&name))),
                },
                ShownField::Column(column) => {
                    let put = target.put_column(place, &name, &column, &block.selection);
                    put.map_err(at)?;
                }
            }
        }
        self.rows += count;
        self.pad();
        Ok(())
    }

    /// Returns the rows that were added since the last call.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let arrays: Vec<ArrayRef> = self.buffers.iter_mut().map(ColumnBuffer::finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        self.before += self.rows as u64;
        self.rows = 0;
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
    }

    /// True if there are rows for [`Self::finish`].
    pub(crate) fn has_rows(&self) -> bool {
        self.rows > 0
    }
}

/// Columns to which `count` rows are added, the same value in each, from row `length` on.
struct Target<'b> {
    buffers: &'b mut [ColumnBuffer],
    is_given: bool,
    length: usize,
    count: usize,
}

impl Target<'_> {
    /// Puts the selected values of a column, one into each row.
    fn put_column(
        &mut self,
        place: Option<&Place>,
        name: &str,
        column: &ColumnBlock,
        selection: &Selection,
    ) -> Result<(), String> {
        match place {
            Some(Place::Column(number)) => {
                let buffer = &mut self.buffers[*number];
                let put = buffer.push_block(column, selection);
                put.map_err(|wrong| misfit(name, wrong.of))
            }
            Some(Place::Inside(fields)) => {
                let mut numbers = Vec::new();
                fields.numbers(&mut numbers);
                for (nth, row) in (self.length..).zip(selection.to_vec()) {
                    let mut one = Target {
                        buffers: &mut *self.buffers,
                        is_given: self.is_given,
                        length: nth,
                        count: 1,
                    };
                    one.put_inside(fields, name, column.value(row as usize))?;
                    for number in &numbers {
                        self.buffers[*number].pad_to(nth + 1);
                    }
                }
                Ok(())
            }
            None if self.is_given || column.is_all_missing() => Ok(()),
            None => {
                let rows = selection.to_vec();
                let mut rows = rows.into_iter();
                match rows.any(|row| !column.value(row as usize).is_nullish()) {
                    true => Err(unknown(name)),
                    false => Ok(()),
                }
            }
        }
    }

    fn put(&mut self, fields: &Fields, document: DocRef<'_>) -> Result<(), String> {
        let mut expected = 0;
        for field in document {
            match fields.find(field.name(), &mut expected) {
                Some(place) => self.put_value(place, field.name(), field.value())?,
                None if self.is_given || field.value().is_nullish() => {}
                None => return Err(unknown(field.name())),
            }
        }
        Ok(())
    }

    fn put_value(&mut self, place: &Place, name: &str, value: ValueRef<'_>) -> Result<(), String> {
        match place {
            Place::Inside(fields) => self.put_inside(fields, name, value),
            Place::Column(number) => {
                let buffer = &mut self.buffers[*number];
                if buffer.len() > self.length {
                    return Err(format!("the field '{name}' is there twice"));
                }
                let placed = match self.count {
                    1 => buffer.push(value),
                    count => buffer.push_repeated(value, count),
                };
                placed.map_err(|wrong| misfit(name, wrong.of))
            }
        }
    }

    fn put_inside(
        &mut self,
        fields: &Fields,
        name: &str,
        value: ValueRef<'_>,
    ) -> Result<(), String> {
        match value {
            value if value.is_nullish() => Ok(()),
            ValueRef::Document(document) if !document.is_empty() || self.is_given => {
                self.put(fields, document)
            }
            // A column below the value was named.
            _ if self.is_given => Ok(()),
            other => Err(format!(
                "the field '{name}' is {} here, and had fields before: give it the type json",
                match other {
                    ValueRef::Document(_) => "an empty document".to_owned(),
                    other => format!("of the type '{}'", other.type_name()),
                }
            )),
        }
    }
}

fn unknown(name: &str) -> String {
    format!(
        "the field '{name}' is new after the first documents, from which the columns were taken: name the columns"
    )
}

fn misfit(name: &str, of: &str) -> String {
    format!(
        "the field '{name}' has the type '{of}', which its column cannot hold: give the column a type, such as json"
    )
}
