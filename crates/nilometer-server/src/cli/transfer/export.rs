//! Exports a collection as lines of text or as columns.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use nilometer_bson::extjson::{parse_document, to_canonical, to_relaxed};
use nilometer_bson::{DocRef, Document, DocumentBuilder, doc};

use super::csv::{split_type, value_at};
use super::{Collection, Format, no_file};
use crate::cli::Failure;
use crate::cli::args::Export;
use crate::columns::text::{csv_line, csv_text};

/// Exports to a file, or to the standard output.
pub(crate) fn run(given: &Export) -> Result<(), Failure> {
    let format = given.from.format(given.file.as_deref());
    match format {
        Format::Arrow | Format::Parquet => return columns(given, format),
        Format::Csv if given.fields.is_empty() => {
            let problem = "csv needs --fields: the fields in order";
            return Err(Failure::Options(problem.to_owned()));
        }
        Format::Csv | Format::Json => {}
    }
    let command = find(given)?;
    let mut from = given.from.open()?;
    let out: Box<dyn Write> = match &given.file {
        None => Box::new(std::io::stdout().lock()),
        Some(path) => Box::new(File::create(path).map_err(|e| no_file(path, &e))?),
    };
    let mut lines = Lines {
        out: BufWriter::new(out),
        given,
        format,
        count: 0,
    };
    lines.begin()?;
    read_all(&mut from, &command, &mut |document| lines.write(document))?;
    lines.out.flush().map_err(|e| unwritable(given, &e))?;
    if let Some(path) = &given.file {
        tell(lines.count, path)?;
    }
    Ok(())
}

/// Exports all columns, or the named ones.
#[cfg(feature = "arrow")]
fn columns(given: &Export, format: Format) -> Result<(), Failure> {
    super::column_export::run(given, format)
}

/// Fails, because the program was built without Arrow.
#[cfg(not(feature = "arrow"))]
fn columns(_: &Export, _: Format) -> Result<(), Failure> {
    Err(super::no_arrow())
}

/// Calls `each` for every document that a command returns.
pub(super) fn read_all(
    from: &mut Collection,
    command: &Document,
    each: &mut dyn FnMut(DocRef<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut reply = from.run(command)?;
    loop {
        let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
        let batch = ["firstBatch", "nextBatch"].map(|name| cursor.get(name).as_array());
        for document in batch.into_iter().flatten().flat_map(|batch| batch.iter()) {
            if let Some(document) = document.as_document() {
                each(document)?;
            }
        }
        let id = cursor.get("id").as_exact_i64().unwrap_or(0);
        if id == 0 {
            return Ok(());
        }
        let more = doc! {"getMore": id, "collection": from.name.as_str()};
        reply = from.run(&more)?;
    }
}

pub(super) fn tell(count: u64, path: &Path) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{count} documents in {}", path.display())?;
    Ok(())
}

pub(super) fn find(given: &Export) -> Result<Document, Failure> {
    let mut command = DocumentBuilder::new();
    command.append("find", given.from.collection.as_str());
    for (name, option, text) in [
        ("filter", "--query", &given.query),
        ("sort", "--sort", &given.sort),
    ] {
        if let Some(text) = text {
            let parsed = parse_document(text);
            let parsed = parsed.map_err(|e| Failure::Options(format!("{option}: {e}")))?;
            command.append(name, parsed);
        }
    }
    if !given.fields.is_empty() {
        command.begin_document("projection");
        if !given
            .fields
            .iter()
            .any(|field| field == "_id" || field.starts_with("_id."))
        {
            command.append("_id", 0);
        }
        for field in &given.fields {
            // A type may follow the name; columns have types of their own.
            let path = match given.from.format(given.file.as_deref()) {
                Format::Arrow | Format::Parquet => without_type(field),
                _ => split_type(field).map_err(Failure::Options)?.0,
            };
            command.append(path, 1);
        }
        command.end();
    }
    Ok(command.finish())
}

/// Returns a name without the type behind it.
fn without_type(field: &str) -> &str {
    let typed = field
        .strip_suffix("()")
        .and_then(|typed| typed.rsplit_once('.'));
    typed.map_or(field, |(path, _)| path)
}

pub(super) fn unwritable(given: &Export, error: &std::io::Error) -> Failure {
    let file = given.file.as_ref().map(|path| path.display().to_string());
    let file = file.unwrap_or_else(|| "the standard output".to_owned());
    Failure::Other(format!("cannot write {file}: {error}"))
}

struct Lines<'g> {
    out: BufWriter<Box<dyn Write>>,
    given: &'g Export,
    format: Format,
    count: u64,
}

impl Lines<'_> {
    fn begin(&mut self) -> Result<(), Failure> {
        if self.format == Format::Csv {
            let names = self.given.fields.iter().map(String::as_str);
            self.csv_line(names)?;
        }
        Ok(())
    }

    fn write(&mut self, document: DocRef<'_>) -> Result<(), Failure> {
        self.count += 1;
        match self.format {
            Format::Json if self.given.canonical => {
                self.put(format!("{}\n", to_canonical(document)).as_bytes())
            }
            Format::Json => self.put(format!("{}\n", to_relaxed(document)).as_bytes()),
            Format::Csv | Format::Parquet | Format::Arrow => {
                let fields = self.given.fields.iter();
                let paths =
                    fields.map(|field| split_type(field).map_or(field.as_str(), |(path, _)| path));
                let values: Vec<String> = paths
                    .map(|path| csv_text(value_at(document, path)))
                    .collect();
                self.csv_line(values.iter().map(String::as_str))
            }
        }
    }

    fn csv_line<'a>(&mut self, values: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
        // Not directly to the file, which would be flushed for each line.
        self.put(&csv_line(values).map_err(Failure::Other)?)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.out.write_all(bytes);
        written.map_err(|e| unwritable(self.given, &e))
    }
}
