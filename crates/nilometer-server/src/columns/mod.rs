//! Documents as columns: for CSV, and with the feature `arrow` for Apache Arrow and Parquet.
//!
//! ```text
//! first rows ─ observe ─► LayoutBuilder ─► Layout: names and types of the columns
//! batches of rows, blocks of measurements ─► TableBuilder ─► RecordBatch ─► ColumnFile: Arrow IPC stream or Parquet
//! Arrow IPC, Parquet ─► RecordBatch ─ documents ─► Document
//! ```
//!
//! A layout is inferred from the first [`OBSERVED_ROWS_MAX`] documents. Documents become columns whose names are joined
//! by dots. A later value that its column cannot hold is an error that names it; nothing is converted or left out.
//!
//! | BSON | Arrow | `nilometer.bson` |
//! |---|---|---|
//! | `int`; with `long`; with `double` | Int32; Int64; Float64 | |
//! | `long`, `double`, `bool` | Int64, Float64, Boolean | |
//! | `date` | Timestamp(ms, UTC) | |
//! | `string`; within the metadata | Utf8; Dictionary(Int32, Utf8) | |
//! | `objectId` | FixedSizeBinary(12) | `objectId` |
//! | `binData` | Binary | the subtype, unless 0 |
//! | `decimal` | Utf8: its digits | `decimal` |
//! | `timestamp` | UInt64: seconds and increment | `timestamp` |
//! | other types, several of these | Utf8: canonical extended JSON | `json` |
//!
//! The third column is metadata of the Arrow field, by which an import restores the type. A missing field and `null` are
//! both an empty value.

#[cfg(feature = "arrow")]
mod array;
#[cfg(feature = "arrow")]
pub(crate) mod file;
pub(crate) mod layout;
#[cfg(feature = "arrow")]
pub(crate) mod read;
#[cfg(feature = "arrow")]
pub(crate) mod stream;
#[cfg(feature = "arrow")]
mod table;
pub(crate) mod text;

#[cfg(all(test, feature = "arrow"))]
mod tests;

/// Documents from which a layout is inferred.
pub(crate) const OBSERVED_ROWS_MAX: usize = 65_536;

/// Bytes of documents from which a layout is inferred.
pub(crate) const OBSERVED_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Columns of a layout.
pub(crate) const COLUMNS_MAX: usize = 4_096;

/// Documents inside of documents that become columns; deeper ones are one column of JSON.
pub(crate) const FLATTENED_LEVELS_MAX: usize = 8;

/// Rows of a record batch: the columns of ten fields stay in the cache of a processor.
#[cfg(feature = "arrow")]
pub(crate) const BATCH_ROWS: usize = 16_384;

/// Bytes of texts of a record batch.
#[cfg(feature = "arrow")]
pub(crate) const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
