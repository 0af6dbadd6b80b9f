//! The body of a response, in chunks.

use std::io::{self, Write};

use nilometer::query::batch::{Batch, Pending};
use nilometer_bson::extjson::{to_canonical, to_relaxed};
use nilometer_bson::{DocRef, ValueRef};

use super::QueryRefusal;
use super::request::{Format, QueryRequest};
#[cfg(feature = "arrow")]
use crate::columns::file::ColumnForm;
use crate::columns::layout::{Fields, Layout, LayoutBuilder, NamedColumns, Place};
#[cfg(feature = "arrow")]
use crate::columns::stream::ColumnStream;
use crate::columns::text::{csv_line, csv_text};
use crate::columns::{OBSERVED_BYTES_MAX, OBSERVED_ROWS_MAX};
use crate::http::message::{Connection, HttpResponse};
use crate::http::web::protected;

/// Bytes of a chunk. Nothing is sent before there are as many, so that an early error has a status.
const CHUNK_BYTES: usize = 256 * 1024;

/// Where the parts of a body go.
pub(super) struct ChunkWriter<'c> {
    connection: &'c mut Connection,
    content_type: &'static str,
    waiting: Vec<u8>,
}

impl ChunkWriter<'_> {
    /// Sends what waits, and more bytes behind it.
    fn send(&mut self, more: &[u8]) -> io::Result<()> {
        if !self.connection.has_begun() {
            let head = HttpResponse::new("200 OK", self.content_type, "");
            self.connection.begin_chunks(&protected(head))?;
        }
        self.connection.send_chunk(&[&self.waiting, more])?;
        self.waiting.clear();
        Ok(())
    }
}

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.waiting.len() + bytes.len() >= CHUNK_BYTES {
            true => self.send(bytes)?,
            false => self.waiting.extend_from_slice(bytes),
        }
        Ok(bytes.len())
    }

    /// Does nothing: chunks are sent when they are full, and at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body that is being written.
pub(super) enum Output<'c> {
    Documents(Documents<'c>),
    Csv(Box<CsvOutput<'c>>),
    #[cfg(feature = "arrow")]
    Columns(Box<ColumnStream<ChunkWriter<'c>>>),
}

impl<'c> Output<'c> {
    /// Creates the body of the response to a request.
    pub(super) fn new(
        request: &QueryRequest,
        connection: &'c mut Connection,
    ) -> Result<Self, QueryRefusal> {
        let writer = ChunkWriter {
            connection,
            content_type: request.format.content_type(),
            waiting: Vec::new(),
        };
        match request.format {
            Format::Json | Format::NdJson => Ok(Self::Documents(Documents {
                writer,
                is_array: request.format == Format::Json,
                canonical: request.canonical,
                count: 0,
            })),
            Format::Csv => Ok(Self::Csv(Box::new(CsvOutput {
                writer,
                named: request.fields.clone(),
                observer: LayoutBuilder::default(),
                observed: Vec::new(),
                observed_rows: 0,
                observed_bytes: 0,
                layout: None,
            }))),
            Format::Arrow | Format::Parquet => Self::columns(request, writer),
        }
    }

    #[cfg(feature = "arrow")]
    fn columns(request: &QueryRequest, writer: ChunkWriter<'c>) -> Result<Self, QueryRefusal> {
        let form = match request.format {
            Format::Parquet => ColumnForm::Parquet,
            _ => ColumnForm::Arrow,
        };
        let layout = LayoutBuilder::default();
        let stream = ColumnStream::new(form, request.fields.clone(), layout, writer);
        Ok(Self::Columns(Box::new(stream)))
    }

    #[cfg(not(feature = "arrow"))]
    fn columns(_: &QueryRequest, _: ChunkWriter<'c>) -> Result<Self, QueryRefusal> {
        Err(QueryRefusal::new(
            "501 Not Implemented",
            "this server was built without the feature 'arrow', which the formats arrow and parquet need: \
             cargo build --release -p nilometer-server --features arrow",
        ))
    }

    /// Adds documents.
    pub(super) fn push(&mut self, batch: Batch) -> Result<(), String> {
        match self {
            Self::Documents(documents) => documents.push(batch),
            Self::Csv(csv) => csv.push(batch),
            #[cfg(feature = "arrow")]
            Self::Columns(stream) => stream.push(batch),
        }
    }

    /// Writes the rest.
    pub(super) fn finish(self) -> Result<(), String> {
        let mut writer = match self {
            Self::Documents(documents) => documents.finish()?,
            Self::Csv(csv) => csv.finish()?,
            #[cfg(feature = "arrow")]
            Self::Columns(stream) => stream.finish()?.0,
        };
        writer.send(&[]).map_err(|e| e.to_string())
    }
}

/// Documents in extended JSON.
pub(super) struct Documents<'c> {
    writer: ChunkWriter<'c>,
    is_array: bool,
    canonical: bool,
    count: u64,
}

impl<'c> Documents<'c> {
    fn push(&mut self, batch: Batch) -> Result<(), String> {
        let mut pending = Pending::of(batch).map_err(|e| e.message)?;
        while let Some(document) = pending.front() {
            let text = match self.canonical {
                true => to_canonical(document),
                false => to_relaxed(document),
            };
            let before = match (self.is_array, self.count) {
                (true, 0) => "[",
                (true, _) => ",\n",
                (false, _) => "",
            };
            let after = if self.is_array { "" } else { "\n" };
            for part in [before, text.as_str(), after] {
                self.writer
                    .write_all(part.as_bytes())
                    .map_err(|e| e.to_string())?;
            }
            self.count += 1;
            pending.advance();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<ChunkWriter<'c>, String> {
        if self.is_array {
            let end = if self.count == 0 { "[]\n" } else { "]\n" };
            self.writer
                .write_all(end.as_bytes())
                .map_err(|e| e.to_string())?;
        }
        Ok(self.writer)
    }
}

/// Values separated by commas. The first documents are kept until the columns are known.
pub(super) struct CsvOutput<'c> {
    writer: ChunkWriter<'c>,
    named: NamedColumns,
    observer: LayoutBuilder,
    observed: Vec<Batch>,
    observed_rows: usize,
    observed_bytes: usize,
    layout: Option<Layout>,
}

impl<'c> CsvOutput<'c> {
    fn push(&mut self, batch: Batch) -> Result<(), String> {
        // Documents, whose bytes are known.
        let batch = Batch::Rows(batch.into_rows().map_err(|e| e.message)?);
        if let Some(layout) = &self.layout {
            return write_lines(&mut self.writer, layout, batch);
        }
        self.observer.observe(&batch).map_err(|e| e.message)?;
        self.observed_rows += batch.len();
        if let Batch::Rows(rows) = &batch {
            self.observed_bytes += rows.iter().map(|row| row.as_bytes().len()).sum::<usize>();
        }
        self.observed.push(batch);
        if self.observed_rows >= OBSERVED_ROWS_MAX || self.observed_bytes >= OBSERVED_BYTES_MAX {
            self.begin()?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), String> {
        let layout = self.observer.finish(&self.named)?;
        let names: Vec<String> = layout.columns.iter().map(|column| column.name()).collect();
        let line = csv_line(names.iter().map(String::as_str))?;
        self.writer.write_all(&line).map_err(|e| e.to_string())?;
        for batch in std::mem::take(&mut self.observed) {
            write_lines(&mut self.writer, &layout, batch)?;
        }
        self.layout = Some(layout);
        Ok(())
    }

    fn finish(mut self) -> Result<ChunkWriter<'c>, String> {
        if self.layout.is_none() {
            self.begin()?;
        }
        Ok(self.writer)
    }
}

fn write_lines(writer: &mut ChunkWriter<'_>, layout: &Layout, batch: Batch) -> Result<(), String> {
    let mut values = vec![String::new(); layout.columns.len()];
    for row in batch.into_rows().map_err(|e| e.message)? {
        values.iter_mut().for_each(String::clear);
        put(&mut values, &layout.fields, layout.is_given, row.as_ref())?;
        let line = csv_line(values.iter().map(String::as_str))?;
        writer.write_all(&line).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Puts the values of a document into their columns.
fn put(
    values: &mut [String],
    fields: &Fields,
    is_given: bool,
    document: DocRef<'_>,
) -> Result<(), String> {
    let mut expected = 0;
    for field in document {
        let value = field.value();
        match (fields.find(field.name(), &mut expected), value) {
            (Some(Place::Column(number)), value) => values[*number] = csv_text(value),
            (Some(Place::Inside(inside)), ValueRef::Document(document)) => {
                put(values, inside, is_given, document)?;
            }
            (_, value) if is_given || value.is_nullish() => {}
            _ => {
                return Err(format!(
                    "the field '{}' is new, or another type, after the first documents, from which the columns were taken: \
                     name the columns in 'fields'",
                    field.name()
                ));
            }
        }
    }
    Ok(())
}
