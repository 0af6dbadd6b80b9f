//! Rows of Arrow IPC streams and files, and of Parquet files that were written here, as documents; behind the feature
//! `arrow`. [`crate::columns::read`] says which type becomes which.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, SchemaRef};
use nilometer_bson::Document;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::no_file;
use crate::cli::Failure;
use crate::columns::read::{document, is_own, paths};

/// The first bytes of an Arrow IPC file, which a stream does not have.
const FILE_MAGIC: &[u8] = b"ARROW1";

/// Rows of Parquet that are read together.
const PARQUET_BATCH_ROWS: usize = 4_096;

/// Calls `each` for every row after the first `skip`, with its number, and its document or error. Without a path it reads a
/// stream from the standard input.
pub(super) fn rows(
    path: Option<&Path>,
    skip: u64,
    each: impl FnMut(u64, Result<Document, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let shown = path.map_or("the standard input".to_owned(), |path| {
        path.display().to_string()
    });
    let bad = |e: &dyn std::fmt::Display| unreadable(&shown, e);
    let Some(path) = path else {
        let reader = guarded(|| StreamReader::try_new(BufReader::new(std::io::stdin()), None));
        let reader = reader.map_err(|e| bad(&e))?;
        return batches(&shown, reader.schema(), reader, skip, each);
    };
    let mut file = BufReader::new(File::open(path).map_err(|e| no_file(path, &e))?);
    if file
        .fill_buf()
        .map_err(|e| bad(&e))?
        .starts_with(FILE_MAGIC)
    {
        let reader = guarded(|| FileReader::try_new(file, None)).map_err(|e| bad(&e))?;
        return batches(&shown, reader.schema(), reader, skip, each);
    }
    let reader = guarded(|| StreamReader::try_new(file, None)).map_err(|e| bad(&e))?;
    batches(&shown, reader.schema(), reader, skip, each)
}

/// True if a Parquet file was written here, and so has types that its own columns do not tell.
pub(super) fn is_own_parquet(path: &Path) -> Result<bool, Failure> {
    let file = File::open(path).map_err(|e| no_file(path, &e))?;
    // Whatever else is wrong with it is reported when it is read.
    let builder =
        guarded(|| ParquetRecordBatchReaderBuilder::try_new(file).map_err(ArrowError::from));
    Ok(builder.is_ok_and(|builder| is_own(builder.schema())))
}

/// Like [`rows`], for a Parquet file.
pub(super) fn parquet_rows(
    path: &Path,
    skip: u64,
    each: impl FnMut(u64, Result<Document, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let file = File::open(path).map_err(|e| no_file(path, &e))?;
    let shown = path.display().to_string();
    let open = || -> Result<(SchemaRef, ParquetRecordBatchReader), ArrowError> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
        let schema = builder.schema().clone();
        Ok((schema, builder.with_batch_size(PARQUET_BATCH_ROWS).build()?))
    };
    let (schema, reader) = guarded(open).map_err(|e| unreadable(&shown, &e))?;
    batches(&shown, schema, reader, skip, each)
}

fn batches(
    shown: &str,
    schema: SchemaRef,
    mut reader: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    skip: u64,
    mut each: impl FnMut(u64, Result<Document, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let paths = paths(&schema).map_err(|e| unreadable(shown, &e))?;
    let mut number = 0;
    while let Some(batch) =
        guarded(|| reader.next().transpose()).map_err(|e| unreadable(shown, &e))?
    {
        for at in 0..batch.num_rows() {
            number += 1;
            if number > skip {
                each(number, document(&batch, &paths, at))?;
            }
        }
    }
    Ok(())
}

fn unreadable(shown: &str, problem: &dyn std::fmt::Display) -> Failure {
    Failure::Other(format!("{shown} cannot be read: {problem}"))
}

/// Runs a reader of the Arrow crates, which may panic on bytes that are no sound file.
fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = catch_unwind(AssertUnwindSafe(read));
    std::panic::set_hook(hook);
    outcome.unwrap_or_else(|_| Err(ArrowError::ParseError("it is damaged".to_owned())))
}
