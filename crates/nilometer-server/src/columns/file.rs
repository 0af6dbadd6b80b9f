//! Record batches as an Arrow IPC stream or as a Parquet file, written from beginning to end.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

/// Rows of a row group of Parquet.
const GROUP_ROWS_MAX: usize = 256 * 1024;

/// Bytes of a row group before the next begins: they are kept until it is complete.
const GROUP_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The metadata of a schema that was made here, by which an import recognizes it.
pub(crate) const MADE_BY: &str = "nilometer";

/// The version of the mapping of types.
const MAPPING_VERSION: &str = "1";

/// A form of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnForm {
    /// An Arrow IPC stream.
    Arrow,
    /// A Parquet file, compressed with zstd.
    Parquet,
}

/// Columns that are being written.
pub(crate) enum ColumnFile<W: Write + Send> {
    Arrow(Box<StreamWriter<W>>),
    Parquet(Box<ArrowWriter<W>>),
}

impl<W: Write + Send> ColumnFile<W> {
    /// Writes the beginning.
    pub(crate) fn create(form: ColumnForm, out: W, schema: &SchemaRef) -> Result<Self, String> {
        let made_by = HashMap::from([(MADE_BY.to_owned(), MAPPING_VERSION.to_owned())]);
        let schema = Schema::new_with_metadata(schema.fields().clone(), made_by);
        Ok(match form {
            ColumnForm::Arrow => {
                let writer = StreamWriter::try_new(out, &schema);
                Self::Arrow(Box::new(writer.map_err(|e| e.to_string())?))
            }
            ColumnForm::Parquet => {
                let properties = properties(&schema);
                let writer = ArrowWriter::try_new(out, Arc::new(schema), Some(properties));
                Self::Parquet(Box::new(writer.map_err(|e| e.to_string())?))
            }
        })
    }

    /// Writes rows.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), String> {
        match self {
            Self::Arrow(writer) => writer.write(batch).map_err(|e| e.to_string()),
            Self::Parquet(writer) => {
                writer.write(batch).map_err(|e| e.to_string())?;
                if writer.in_progress_size() >= GROUP_BYTES_MAX {
                    writer.flush().map_err(|e| e.to_string())?;
                }
                Ok(())
            }
        }
    }

    /// Writes the end.
    pub(crate) fn finish(self) -> Result<W, String> {
        match self {
            Self::Arrow(writer) => writer.into_inner().map_err(|e| e.to_string()),
            Self::Parquet(writer) => writer.into_inner().map_err(|e| e.to_string()),
        }
    }
}

/// Returns how the columns are written: texts that repeat by dictionaries, which for other columns cost more than they save.
fn properties(schema: &Schema) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(GROUP_ROWS_MAX));
    for field in schema.fields() {
        if matches!(field.data_type(), DataType::Dictionary(..) | DataType::Utf8) {
            let path = ColumnPath::new(vec![field.name().clone()]);
            properties = properties.set_column_dictionary_enabled(path, true);
        }
    }
    properties.build()
}
