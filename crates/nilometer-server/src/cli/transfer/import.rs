//! Imports lines of text into a collection.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use indicatif::{ProgressBar, ProgressStyle};
use nilometer_bson::extjson::parse_document;
use nilometer_bson::{Document, Value, doc};

use super::csv::{Columns, QuoteReader};
use super::{Collection, Format, no_file};
use crate::cli::Failure;
use crate::cli::args::Import;

/// Documents per insert.
const BATCH_DOCUMENTS: usize = 1000;

/// Bytes of text per insert.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Maximum wrong lines that are reported; more are only counted.
const PROBLEMS_TOLD_MAX: u64 = 100;

/// The progress of an import.
struct ImportProgress {
    bar: ProgressBar,
    /// The unit of numbers: line or row.
    unit: &'static str,
    /// Number of the last line whose document was acknowledged or refused.
    done: u64,
    inserted: u64,
    wrong: u64,
}

impl ImportProgress {
    fn complain(&mut self, line: u64, what: &str) {
        self.wrong += 1;
        if self.wrong <= PROBLEMS_TOLD_MAX {
            let told = writeln!(std::io::stderr(), "{} {line}: {what}", self.unit);
            // Ignore a closed output; the total is reported at the end.
            drop(told);
        }
    }
}

/// Imports a file, or the standard input.
pub(crate) fn run(given: &Import) -> Result<(), Failure> {
    let format = given.into.format(given.file.as_deref());
    let (mut input, length): (Box<dyn BufRead>, u64) = match &given.file {
        None => (Box::new(BufReader::new(std::io::stdin())), 0),
        Some(path) => {
            let file = File::open(path).map_err(|e| no_file(path, &e))?;
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            (Box::new(BufReader::new(file)), length)
        }
    };
    let style =
        ProgressStyle::with_template("{bar:30} {percent}% {bytes_per_sec} {msg} {eta} left");
    let style = style.map_err(|e| Failure::Other(e.to_string()))?;
    let mut progress = ImportProgress {
        bar: ProgressBar::new(length).with_style(style),
        unit: match format {
            Format::Parquet | Format::Arrow => "row",
            Format::Csv | Format::Json => "line",
        },
        done: given.skip,
        inserted: 0,
        wrong: 0,
    };
    let mut into = given.into.open()?;
    let outcome = read_all(given, format, &mut *input, &mut into, &mut progress);
    progress.bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} documents inserted, {} {3}s wrong, {} {3}s done",
        progress.inserted, progress.wrong, progress.done, progress.unit
    )?;
    match outcome {
        Err(refused @ Failure::Options(_)) => Err(refused),
        Err(error) => Err(Failure::Other(format!(
            "{error}\nThe {1}s up to {0} are done: continue with  --skip {0}",
            progress.done, progress.unit
        ))),
        Ok(()) if progress.wrong > 0 => Err(Failure::Other(format!(
            "{} {}s were skipped",
            progress.wrong, progress.unit
        ))),
        Ok(()) => Ok(()),
    }
}

fn read_all(
    given: &Import,
    format: Format,
    input: &mut dyn BufRead,
    into: &mut Collection,
    progress: &mut ImportProgress,
) -> Result<(), Failure> {
    let mut batch = ImportBatch::default();
    match format {
        Format::Parquet => read_rows(given, &mut batch, into, progress)?,
        Format::Arrow => read_columns(given, &mut batch, into, progress)?,
        Format::Json => {
            let mut line = Vec::new();
            for number in 1u64.. {
                line.clear();
                let read = input.read_until(b'\n', &mut line);
                let read = read.map_err(|e| unreadable(given, &e.to_string()))?;
                if read == 0 {
                    check_skip(given, number - 1)?;
                    break;
                }
                progress.bar.inc(read as u64);
                let text = std::str::from_utf8(&line).map(str::trim);
                if number <= given.skip || text == Ok("") {
                    continue;
                }
                let document = text
                    .map_err(|_| "it is not UTF-8".to_owned())
                    .and_then(|text| parse_document(text).map_err(|e| e.to_string()));
                batch.add(number, read, document, progress);
                batch.send_if_full(into, progress)?;
            }
        }
        Format::Csv => read_values(given, input, &mut batch, into, progress)?,
    }
    batch.send(into, progress)
}

/// Reads CSV lines.
fn read_values(
    given: &Import,
    input: &mut dyn BufRead,
    batch: &mut ImportBatch,
    into: &mut Collection,
    progress: &mut ImportProgress,
) -> Result<(), Failure> {
    let mut reader = csv_reader(input);
    let mut record = csv::StringRecord::new();
    let mut columns = None;
    let mut before = 0;
    loop {
        let read = reader.read_record(&mut record);
        let at = reader.position();
        let (number, length) = (record.position().map_or(0, |p| p.line()), at.byte());
        progress.bar.set_position(length);
        let bytes = usize::try_from(length - before).unwrap_or(usize::MAX);
        before = length;
        let document = match (read, &columns) {
            (Ok(false), _) => return check_skip(given, at.line()),
            (Ok(true), None) => {
                let names = Columns::parse(record.iter());
                columns = Some(names.map_err(Failure::Options)?);
                continue;
            }
            (Ok(true), Some(_)) if number <= given.skip => continue,
            (Ok(true), Some(_)) if reader.get_ref().is_left_open() => {
                Err("a quote is opened here or below and not closed".to_owned())
            }
            (Ok(true), Some(columns)) => columns.document(record.iter()),
            (Err(error), Some(_)) if !error.is_io_error() => Err(error.to_string()),
            (Err(error), _) => return Err(unreadable(given, &error.to_string())),
        };
        batch.add(number, bytes, document, progress);
        batch.send_if_full(into, progress)?;
    }
}

fn unreadable(given: &Import, what: &str) -> Failure {
    let file = given.file.as_ref().map(|path| path.display().to_string());
    let file = file.unwrap_or_else(|| "the standard input".to_owned());
    Failure::Other(format!("cannot read {file}: {what}"))
}

/// Fails if `--skip` exceeds the number of lines: the file or the number is wrong.
fn check_skip(given: &Import, lines: u64) -> Result<(), Failure> {
    match given.skip > lines {
        true => Err(Failure::Options(format!(
            "--skip {} exceeds the {lines} lines of the input",
            given.skip
        ))),
        false => Ok(()),
    }
}

fn csv_reader<R: std::io::Read>(input: R) -> csv::Reader<QuoteReader<R>> {
    let mut builder = csv::ReaderBuilder::new();
    builder.flexible(true).has_headers(false);
    builder.from_reader(QuoteReader::new(input))
}

/// Parses arbitrary text as CSV. True if every line is a document.
pub(crate) fn fuzz_csv(text: &str) -> bool {
    let mut records = csv_reader(text.as_bytes()).into_records();
    let Some(Ok(names)) = records.next() else {
        return false;
    };
    let Ok(columns) = Columns::parse(names.iter()) else {
        return false;
    };
    let documents = records.map(|record| match record {
        Ok(record) => columns.document(record.iter()).is_ok(),
        Err(_) => false,
    });
    // Read all of them.
    documents.filter(|is_sound| !is_sound).count() == 0
}

/// Reads a Parquet file, which cannot be read from a stream.
#[cfg(feature = "parquet")]
fn read_rows(
    given: &Import,
    batch: &mut ImportBatch,
    into: &mut Collection,
    progress: &mut ImportProgress,
) -> Result<(), Failure> {
    use super::parquet;
    let path = given.file.as_deref();
    let path = path.ok_or_else(|| Failure::Options("parquet needs the name of a file".into()))?;
    #[cfg(feature = "arrow")]
    if super::arrow::is_own_parquet(path)? {
        let add = |number, document| batch.add_row(number, document, into, progress);
        return super::arrow::parquet_rows(path, given.skip, add);
    }
    let length = progress.bar.length().unwrap_or(0);
    let row_bytes = length / parquet::count(path).unwrap_or(0).max(1);
    parquet::rows(path, given.skip, |number, document| {
        progress.bar.set_position(number * row_bytes);
        let bytes = document.as_ref().map_or(0, |d| d.as_bytes().len());
        batch.add(number, bytes, document, progress);
        batch.send_if_full(into, progress)
    })
}

#[cfg(not(feature = "parquet"))]
fn read_rows(
    _: &Import,
    _: &mut ImportBatch,
    _: &mut Collection,
    _: &mut ImportProgress,
) -> Result<(), Failure> {
    Err(super::no_parquet())
}

/// Reads an Arrow IPC stream or file.
#[cfg(feature = "arrow")]
fn read_columns(
    given: &Import,
    batch: &mut ImportBatch,
    into: &mut Collection,
    progress: &mut ImportProgress,
) -> Result<(), Failure> {
    let add = |number, document| batch.add_row(number, document, into, progress);
    super::arrow::rows(given.file.as_deref(), given.skip, add)
}

#[cfg(not(feature = "arrow"))]
fn read_columns(
    _: &Import,
    _: &mut ImportBatch,
    _: &mut Collection,
    _: &mut ImportProgress,
) -> Result<(), Failure> {
    Err(super::no_arrow())
}

/// The documents of the next insert, each with the number of its line.
#[derive(Default)]
struct ImportBatch {
    documents: Vec<Value>,
    lines: Vec<u64>,
    bytes: usize,
    last: u64,
}

impl ImportBatch {
    /// Adds the document of a row, and sends the batch if it is full.
    #[cfg(feature = "arrow")]
    fn add_row(
        &mut self,
        number: u64,
        document: Result<Document, String>,
        into: &mut Collection,
        progress: &mut ImportProgress,
    ) -> Result<(), Failure> {
        let bytes = document.as_ref().map_or(0, |d| d.as_bytes().len());
        self.add(number, bytes, document, progress);
        self.send_if_full(into, progress)
    }

    fn add(
        &mut self,
        line: u64,
        bytes: usize,
        document: Result<Document, String>,
        progress: &mut ImportProgress,
    ) {
        self.last = line;
        match document {
            Ok(document) => {
                self.documents.push(document.into());
                self.lines.push(line);
                self.bytes += bytes;
            }
            Err(what) => progress.complain(line, &what),
        }
    }

    fn send_if_full(
        &mut self,
        into: &mut Collection,
        progress: &mut ImportProgress,
    ) -> Result<(), Failure> {
        if self.documents.len() < BATCH_DOCUMENTS && self.bytes < BATCH_BYTES {
            return Ok(());
        }
        self.send(into, progress)
    }

    fn send(
        &mut self,
        into: &mut Collection,
        progress: &mut ImportProgress,
    ) -> Result<(), Failure> {
        let documents = std::mem::take(&mut self.documents);
        let lines = std::mem::take(&mut self.lines);
        self.bytes = 0;
        if !documents.is_empty() {
            let command = doc! {
                "insert": into.name.as_str(),
                "ordered": false,
                "documents": documents,
            };
            let reply = into.run(&command)?;
            let n = reply.get("n").as_exact_i64().unwrap_or(0);
            progress.inserted += u64::try_from(n).unwrap_or(0);
            let errors = reply.get("writeErrors").as_array();
            for error in errors.into_iter().flat_map(|e| e.iter()) {
                let Some(error) = error.as_document() else {
                    continue;
                };
                let index = error.get("index").as_exact_i64();
                let index = index.and_then(|index| usize::try_from(index).ok());
                let line = index.and_then(|index| lines.get(index)).copied();
                let text = error.get("errmsg").as_str().unwrap_or("refused");
                progress.complain(line.unwrap_or(0), text);
            }
        }
        progress.done = progress.done.max(self.last);
        progress
            .bar
            .set_message(format!("{} documents", progress.inserted));
        Ok(())
    }
}
