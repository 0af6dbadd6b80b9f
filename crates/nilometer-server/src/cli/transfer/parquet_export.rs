//! Documents as rows of a Parquet file; behind the feature `parquet`.
//!
//! One column for each of `--fields`, under its name, dots included. Its type is given as in CSV (`time.date()`), or
//! inferred from the first [`ROWS`] documents:
//!
//! | values seen | the column |
//! |---|---|
//! | `int`; with `long`; with `double` | INT32; INT64; DOUBLE |
//! | booleans, dates | BOOLEAN, INT64 of milliseconds (TIMESTAMP_MILLIS) |
//! | binary of the general subtype | BYTE_ARRAY |
//! | strings, nothing at all, anything else, several of these | BYTE_ARRAY (UTF8): text as it is, other values in extended JSON |
//!
//! Absent and `null` are both an empty value, which an import makes no field. A later value that the column cannot hold
//! is an error that names it; values are not converted. The file is written as a whole: an interrupted export starts
//! again.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{DocRef, Document, ValueRef};
use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type as Schema;

use super::csv::{ColumnType as Named, split_type, value_at};
use crate::cli::Failure;

/// Documents of a row group, and documents from which types are inferred.
const ROWS: usize = 20_000;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Int32,
    Int64,
    Double,
    Boolean,
    Date,
    Bytes,
    Text,
}

impl ColumnKind {
    /// Returns the kind for a given type; `None` if it is inferred.
    fn named(kind: Named) -> Option<Self> {
        match kind {
            Named::Auto => None,
            Named::Int32 => Some(Self::Int32),
            Named::Int64 => Some(Self::Int64),
            Named::Double => Some(Self::Double),
            Named::Boolean => Some(Self::Boolean),
            Named::Date => Some(Self::Date),
            // Parquet's decimals have one scale for the whole column.
            Named::Decimal | Named::Text => Some(Self::Text),
        }
    }

    /// Returns the kind for a value; `None` for an empty one.
    fn of(value: ValueRef<'_>) -> Option<Self> {
        Some(match value {
            ValueRef::Missing | ValueRef::Null => return None,
            ValueRef::Int32(_) => Self::Int32,
            ValueRef::Int64(_) => Self::Int64,
            ValueRef::Double(_) => Self::Double,
            ValueRef::Bool(_) => Self::Boolean,
            ValueRef::DateTime(_) => Self::Date,
            ValueRef::Binary { subtype: 0, .. } => Self::Bytes,
            _ => Self::Text,
        })
    }

    /// Returns a kind that holds the values of both.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Int32, Self::Int64) | (Self::Int64, Self::Int32) => Self::Int64,
            // Not every long is a double.
            (Self::Int32, Self::Double) | (Self::Double, Self::Int32) => Self::Double,
            _ => Self::Text,
        }
    }

    fn schema(self) -> (Physical, ConvertedType) {
        match self {
            Self::Int32 => (Physical::INT32, ConvertedType::NONE),
            Self::Int64 => (Physical::INT64, ConvertedType::NONE),
            Self::Double => (Physical::DOUBLE, ConvertedType::NONE),
            Self::Boolean => (Physical::BOOLEAN, ConvertedType::NONE),
            Self::Date => (Physical::INT64, ConvertedType::TIMESTAMP_MILLIS),
            Self::Bytes => (Physical::BYTE_ARRAY, ConvertedType::NONE),
            Self::Text => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
        }
    }
}

/// A Parquet file that is being written.
pub(super) struct ParquetRows {
    path: std::path::PathBuf,
    file: Option<File>,
    columns: Vec<(String, Option<ColumnKind>)>,
    writer: Option<SerializedFileWriter<File>>,
    waiting: Vec<Document>,
    /// Documents written.
    pub(super) count: u64,
}

impl ParquetRows {
    /// Creates a file with these columns, each optionally with its type.
    pub(super) fn create(path: &Path, fields: &[String]) -> Result<Self, Failure> {
        let columns = fields.iter().map(|field| {
            let (name, kind) = split_type(field).map_err(Failure::Options)?;
            Ok((name.to_owned(), ColumnKind::named(kind)))
        });
        let columns = columns.collect::<Result<Vec<_>, Failure>>()?;
        let file = File::create(path).map_err(|e| super::no_file(path, &e))?;
        Ok(Self {
            path: path.to_owned(),
            file: Some(file),
            columns,
            writer: None,
            waiting: Vec::new(),
            count: 0,
        })
    }

    /// Adds a row.
    pub(super) fn write(&mut self, document: DocRef<'_>) -> Result<(), Failure> {
        self.waiting.push(document.to_document());
        self.count += 1;
        if self.waiting.len() >= ROWS {
            self.write_group()?;
        }
        Ok(())
    }

    /// Writes the remaining rows and the end of the file.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.write_group()?;
        if let Some(writer) = self.writer.take() {
            writer.close().map_err(|e| bad(&self.path, &e))?;
        }
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), Failure> {
        let documents = std::mem::take(&mut self.waiting);
        if self.writer.is_none() {
            self.begin(&documents)?;
        }
        let first = self.count - documents.len() as u64 + 1;
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        if documents.is_empty() {
            return Ok(());
        }
        let path = &self.path;
        let mut group = writer.next_row_group().map_err(|e| bad(path, &e))?;
        for (name, kind) in &self.columns {
            let column = group.next_column().map_err(|e| bad(path, &e))?;
            let (Some(mut column), Some(kind)) = (column, kind) else {
                continue;
            };
            let values: Vec<ValueRef<'_>> = documents
                .iter()
                .map(|document| value_at(document.as_ref(), name))
                .collect();
            let misfit = |row: usize| {
                let number = first + row as u64;
                let found = values.get(row).map_or("", |value| value.type_name());
                Failure::Other(format!(
                    "document {number}: the column '{name}' is {kind:?} and cannot hold a value of type '{found}'; give its type, as in --fields '{name}.string()'"
                ))
            };
            write_column(column.untyped(), *kind, &values, misfit, |e| bad(path, e))?;
            column.close().map_err(|e| bad(path, &e))?;
        }
        group.close().map_err(|e| bad(path, &e))?;
        Ok(())
    }

    /// Determines the types and writes the beginning of the file.
    fn begin(&mut self, documents: &[Document]) -> Result<(), Failure> {
        let mut fields = Vec::new();
        for (name, kind) in &mut self.columns {
            let seen = documents.iter();
            let seen =
                seen.filter_map(|document| ColumnKind::of(value_at(document.as_ref(), name)));
            let settled = kind
                .or_else(|| seen.reduce(ColumnKind::with))
                .unwrap_or(ColumnKind::Text);
            *kind = Some(settled);
            let (physical, converted) = settled.schema();
            let field = Schema::primitive_type_builder(name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_converted_type(converted)
                .build();
            fields.push(Arc::new(field.map_err(|e| bad(&self.path, &e))?));
        }
        let schema = Schema::group_type_builder("document")
            .with_fields(fields)
            .build();
        let schema = Arc::new(schema.map_err(|e| bad(&self.path, &e))?);
        let properties =
            WriterProperties::builder().set_compression(Compression::ZSTD(Default::default()));
        let properties = Arc::new(properties.build());
        if let Some(file) = self.file.take() {
            let writer = SerializedFileWriter::new(file, schema, properties);
            self.writer = Some(writer.map_err(|e| bad(&self.path, &e))?);
        }
        Ok(())
    }
}

fn bad(path: &Path, problem: &ParquetError) -> Failure {
    Failure::Other(format!("{} cannot be written: {problem}", path.display()))
}

/// Writes the values of one column. `misfit` is set to the row of a value that does not fit.
fn write_column(
    column: &mut ColumnWriter<'_>,
    kind: ColumnKind,
    values: &[ValueRef<'_>],
    misfit: impl Fn(usize) -> Failure,
    bad: impl Fn(&ParquetError) -> Failure,
) -> Result<(), Failure> {
    macro_rules! written {
        ($writer:expr, $convert:expr) => {{
            let mut levels = Vec::with_capacity(values.len());
            let mut held = Vec::with_capacity(values.len());
            for (row, value) in values.iter().enumerate() {
                if matches!(value, ValueRef::Missing | ValueRef::Null) {
                    levels.push(0);
                    continue;
                }
                levels.push(1);
                held.push(($convert)(*value).ok_or_else(|| misfit(row))?);
            }
            $writer.write_batch(&held, Some(&levels), None)
        }};
    }
    let written = match (column, kind) {
        (ColumnWriter::BoolColumnWriter(writer), _) => written!(writer, |value| match value {
            ValueRef::Bool(value) => Some(value),
            _ => None,
        }),
        (ColumnWriter::Int32ColumnWriter(writer), _) => written!(writer, |value| match value {
            ValueRef::Int32(number) => Some(number),
            _ => None,
        }),
        (ColumnWriter::Int64ColumnWriter(writer), ColumnKind::Date) => {
            written!(writer, |value| match value {
                ValueRef::DateTime(ms) => Some(ms),
                _ => None,
            })
        }
        (ColumnWriter::Int64ColumnWriter(writer), _) => written!(writer, |value| match value {
            ValueRef::Int32(number) => Some(i64::from(number)),
            ValueRef::Int64(number) => Some(number),
            _ => None,
        }),
        (ColumnWriter::DoubleColumnWriter(writer), _) => written!(writer, |value| match value {
            ValueRef::Int32(number) => Some(f64::from(number)),
            ValueRef::Double(number) => Some(number),
            _ => None,
        }),
        (ColumnWriter::ByteArrayColumnWriter(writer), ColumnKind::Bytes) => {
            written!(writer, |value| match value {
                ValueRef::Binary { subtype: 0, bytes } => Some(ByteArray::from(bytes.to_vec())),
                _ => None,
            })
        }
        (ColumnWriter::ByteArrayColumnWriter(writer), _) => {
            written!(writer, |value| Some(ByteArray::from(
                text(value).into_bytes()
            )))
        }
        _ => return Err(misfit(0)),
    };
    written.map_err(|e| bad(&e))?;
    Ok(())
}

/// Formats a value as text: a string itself, the digits of an ObjectId, else extended JSON.
fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::String(text) => text.to_owned(),
        ValueRef::ObjectId(id) => id.to_hex(),
        other => value_to_relaxed(other),
    }
}
