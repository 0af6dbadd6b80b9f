//! Writes measurements as BSON directly from the columns of a block, without intermediate values.
//!
//! ```text
//! row    length | 09 time 00 ········ | 03 tags 00 {…} | 12 usage 00 ········ | … | 00
//!                            ▲ patched                                ▲ patched
//! ```
//!
//! Usually the measurements of one bucket differ only in their numbers. The writer lays out one document once and
//! copies the numbers of each row into it ([`Form::Patched`]). If a column has gaps, or values of different lengths, it
//! writes each row completely behind prepared headers ([`Form::Written`]).
//!
//! A writer owns references to the columns it reads, so a cursor may keep it between commands.

use std::sync::Arc;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::document::write_value;
use nilometer_bson::{DocRef, Document, ValueRef, type_code};

use super::{MeasurementBlock, ShownField};
use crate::error::Result;

/// Bytes of a document around its elements: length prefix, terminating zero.
const FRAME: (usize, usize) = (4, 1);

/// Writes the measurements of one block.
pub struct RowWriter {
    columns: Vec<Column>,
    /// The row written last. With [`Form::Patched`] it is always a complete document.
    row: Vec<u8>,
    form: Form,
}

/// How rows are written.
enum Form {
    /// Copies each column's value to its offset in the row.
    Patched,
    /// Writes the row from start to end.
    Written,
}

/// A field of the rows, in order.
enum Column {
    /// The same bytes in every row: header and value.
    Constant(Vec<u8>),
    /// A different value in every row.
    Values {
        name: Arc<str>,
        block: Arc<ColumnBlock>,
        /// Offset of the value in a patched row.
        place: usize,
    },
}

impl RowWriter {
    /// Creates a writer for the measurements of `block`, with the fields they show.
    pub fn new(block: &MeasurementBlock) -> Result<Self> {
        let fields = block.shown_fields()?.into_iter();
        let columns = fields.map(|(name, field)| match field {
            ShownField::Column(column) => Column::of(&name, column),
            ShownField::Meta => {
                let mut bytes = Vec::new();
                write_element(&mut bytes, &name, block.meta());
                Column::Constant(bytes)
            }
        });
        let columns = columns.collect();
        let mut writer = Self {
            columns,
            row: Vec::new(),
            form: Form::Written,
        };
        writer.prepare();
        Ok(writer)
    }

    /// Lays out the row to be patched, if all columns allow it.
    fn prepare(&mut self) {
        let mut row = vec![0; FRAME.0];
        let mut is_fixed = true;
        for column in &mut self.columns {
            match column {
                Column::Constant(bytes) => row.extend_from_slice(bytes),
                Column::Values { name, block, place } => {
                    let Some((code, length)) = fixed(block) else {
                        is_fixed = false;
                        continue;
                    };
                    write_header(&mut row, code, name);
                    *place = row.len();
                    row.resize(row.len() + length, 0);
                }
            }
        }
        close(&mut row);
        if is_fixed {
            self.form = Form::Patched;
        }
        self.row = row;
    }

    /// Writes measurement `at` of the bucket and returns the bytes.
    pub fn row(&mut self, at: usize) -> DocRef<'_> {
        match self.form {
            Form::Patched => self.patch(at),
            Form::Written => self.write(at),
        }
        DocRef::new(&self.row).unwrap_or(DocRef::EMPTY)
    }

    /// Like [`Self::row`], but returns an owned document.
    pub fn document(&mut self, at: usize) -> Document {
        self.row(at).to_document()
    }

    fn patch(&mut self, at: usize) {
        for column in &self.columns {
            let Column::Values { block, place, .. } = column else {
                continue;
            };
            let Some(slot) = self.row.get_mut(*place..) else {
                continue;
            };
            match block.data() {
                BlockData::Int32(values) => put(slot, values.get(at).map(|v| v.to_le_bytes())),
                BlockData::Int64(values) | BlockData::DateTime(values) => {
                    put(slot, values.get(at).map(|v| v.to_le_bytes()));
                }
                BlockData::ShortInt64(values) => {
                    put(slot, values.get(at).map(|v| i64::from(*v).to_le_bytes()));
                }
                BlockData::Double(values) => put(slot, values.get(at).map(|v| v.to_le_bytes())),
                BlockData::Bool(values) => put(slot, values.get(at).map(|v| [u8::from(*v)])),
                BlockData::ObjectId(values) => put(slot, values.get(at).map(|v| v.0)),
                BlockData::Timestamp(values) => {
                    put(slot, values.get(at).map(|v| v.to_u64().to_le_bytes()));
                }
                // `fixed` excludes these forms.
                BlockData::Missing
                | BlockData::Constant(_)
                | BlockData::Dictionary { .. }
                | BlockData::Mixed(_) => {}
            }
        }
    }

    fn write(&mut self, at: usize) {
        let row = &mut self.row;
        row.clear();
        row.extend_from_slice(&[0; FRAME.0]);
        for column in &self.columns {
            match column {
                Column::Constant(bytes) => row.extend_from_slice(bytes),
                Column::Values { name, block, .. } => write_element(row, name, block.value(at)),
            }
        }
        close(row);
    }
}

impl Column {
    fn of(name: &Arc<str>, block: Arc<ColumnBlock>) -> Self {
        let constant = match block.data() {
            BlockData::Missing => Some(ValueRef::Missing),
            BlockData::Constant(value) if block.is_all_present() => Some(value.as_ref()),
            _ => None,
        };
        match constant {
            Some(value) => {
                let mut bytes = Vec::new();
                write_element(&mut bytes, name, value);
                Self::Constant(bytes)
            }
            None => Self::Values {
                name: Arc::clone(name),
                block,
                place: 0,
            },
        }
    }
}

/// Returns the type and length of a column's values if all rows have a value and all values agree in both.
fn fixed(block: &ColumnBlock) -> Option<(u8, usize)> {
    if !block.is_all_present() {
        return None;
    }
    Some(match block.data() {
        BlockData::Int32(_) => (type_code::INT32, 4),
        BlockData::Int64(_) | BlockData::ShortInt64(_) => (type_code::INT64, 8),
        BlockData::DateTime(_) => (type_code::DATE_TIME, 8),
        BlockData::Double(_) => (type_code::DOUBLE, 8),
        BlockData::Timestamp(_) => (type_code::TIMESTAMP, 8),
        BlockData::Bool(_) => (type_code::BOOL, 1),
        BlockData::ObjectId(_) => (type_code::OBJECT_ID, 12),
        _ => return None,
    })
}

fn put<const N: usize>(slot: &mut [u8], value: Option<[u8; N]>) {
    if let (Some(slot), Some(value)) = (slot.first_chunk_mut(), value) {
        *slot = value;
    }
}

fn write_header(out: &mut Vec<u8>, code: u8, name: &str) {
    out.push(code);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

/// Appends a field; does nothing for a missing value.
fn write_element(out: &mut Vec<u8>, name: &str, value: ValueRef<'_>) {
    if !value.is_missing() {
        write_header(out, value.type_code(), name);
        write_value(out, value);
    }
}

/// Writes the document's length and terminating zero.
fn close(row: &mut Vec<u8>) {
    row.push(0);
    let length = u32::try_from(row.len()).unwrap_or(u32::MAX);
    put(row, Some(length.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::batch::{FieldSet, MeasurementShape, Pending, Selection};
    use crate::query::exec::testing::MemoryBuckets;
    use crate::query::source::{BucketScanOptions, BucketSource};
    use nilometer_bson::testing::awkward_values;
    use nilometer_bson::{DocumentBuilder, ObjectId, Timestamp, Value, doc};

    fn block(measurements: &[Document]) -> MeasurementBlock {
        let buckets = MemoryBuckets::new(measurements, measurements.len());
        let mut found = buckets.scan(&BucketScanOptions::default()).unwrap();
        let bucket = found.next().unwrap().unwrap();
        assert!(found.next().is_none());
        let shape = MeasurementShape {
            time_field: "t".into(),
            meta_field: Some("m".into()),
            fields: FieldSet::All,
        };
        MeasurementBlock::all(bucket, Arc::new(shape))
    }

    /// Returns measurements with time and metadata, and the fields that `rest` adds.
    fn measurements(rest: impl Fn(i32, &mut DocumentBuilder)) -> Vec<Document> {
        let one = |at: i32| {
            let mut out = DocumentBuilder::new();
            out.append("t", Value::DateTime(i64::from(at) * 1000));
            out.append("m", doc! {"host": "a"});
            rest(at, &mut out);
            out.finish()
        };
        (0..50).map(one).collect()
    }

    fn check(given: &[Document], is_patched: bool) {
        let block = block(given);
        assert_eq!(block.to_rows().unwrap(), given);
        let mut writer = RowWriter::new(&block).unwrap();
        assert_eq!(matches!(writer.form, Form::Patched), is_patched);
        // In any order, including repeated rows.
        for at in [7, 7, 3, 49, 0, 3] {
            assert_eq!(writer.row(at).as_bytes(), given[at].as_bytes());
        }
        let mut some = block;
        some.selection = Selection::Rows(vec![1, 2, 40]);
        let mut pending = Pending::of(crate::query::batch::Batch::Block(some)).unwrap();
        for at in [1, 2, 40] {
            let front = pending.front().map(|d| d.as_bytes().to_vec());
            assert_eq!(front.as_deref(), Some(given[at].as_bytes()));
            pending.advance();
        }
        assert!(pending.is_empty() && pending.front().is_none());
    }

    #[test]
    fn rows_of_one_length_are_patched() {
        check(
            &measurements(|at, out| {
                out.append("int", at * 7 % 5);
                out.append("long", i64::from(at) << 40);
                out.append("short", i64::from(at % 7) - 3);
                out.append("double", f64::from(at) / 3.0);
                out.append("bool", at % 3 == 0);
                out.append("id", ObjectId([at as u8; 12]));
                out.append("stamp", Timestamp::from_u64(at as u64 * 77));
                out.append("same", "x");
            }),
            true,
        );
    }

    #[test]
    fn other_rows_are_written() {
        check(
            &measurements(|at, out| {
                out.append("int", (at != 9).then_some(at));
                out.append("text", "x".repeat(at as usize % 4));
            }),
            false,
        );
        let awkward = awkward_values();
        check(
            &measurements(|at, out| {
                let (_, any) = &awkward[at as usize % awkward.len()];
                out.append("any", any.clone());
                out.append("n", at);
            }),
            false,
        );
    }
}
