//! A collection into lines of text.

use std::fs::File;
use std::io::{BufWriter, Write};

use nilometer_bson::extjson::{
    format_date, parse_document, to_canonical, to_relaxed, value_to_relaxed,
};
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};

use super::{Format, no_file};
use crate::cli::Failure;
use crate::cli::args::Export;

/// Exports to a file, or to the standard output.
pub(crate) fn run(given: &Export) -> Result<(), Failure> {
    let format = given.from.format(given.file.as_deref());
    if format == Format::Csv && given.fields.is_empty() {
        return Err(Failure::Options(
            "csv needs --fields: which, and in which order".into(),
        ));
    }
    if format == Format::Parquet {
        return Err(Failure::Options("parquet can be imported only".into()));
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
    let mut reply = from.run(&command)?;
    loop {
        let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
        let batch = ["firstBatch", "nextBatch"].map(|name| cursor.get(name).as_array());
        for document in batch.into_iter().flatten().flat_map(|batch| batch.iter()) {
            if let Some(document) = document.as_document() {
                lines.write(document)?;
            }
        }
        let id = cursor.get("id").as_exact_i64().unwrap_or(0);
        if id == 0 {
            break;
        }
        let more = doc! {"getMore": id, "collection": from.name.as_str()};
        reply = from.run(&more)?;
    }
    lines.out.flush()?;
    if let Some(path) = &given.file {
        writeln!(
            std::io::stdout(),
            "{} documents in {}",
            lines.count,
            path.display()
        )?;
    }
    Ok(())
}

fn find(given: &Export) -> Result<Document, Failure> {
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
        if !given.fields.iter().any(|field| field == "_id") {
            command.append("_id", 0);
        }
        for field in &given.fields {
            command.append(field, 1);
        }
        command.end();
    }
    Ok(command.finish())
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
                writeln!(self.out, "{}", to_canonical(document))?;
                Ok(())
            }
            Format::Json => {
                writeln!(self.out, "{}", to_relaxed(document))?;
                Ok(())
            }
            Format::Csv | Format::Parquet => {
                let fields = self.given.fields.iter();
                let values: Vec<String> = fields.map(|field| csv_text(document, field)).collect();
                self.csv_line(values.iter().map(String::as_str))
            }
        }
    }

    fn csv_line<'a>(&mut self, values: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
        let mut writer = csv::Writer::from_writer(&mut self.out);
        let written = writer.write_record(values);
        written.map_err(|e| Failure::Other(e.to_string()))?;
        writer.flush()?;
        Ok(())
    }
}

/// The value at a path as `import` reads it back.
fn csv_text(document: DocRef<'_>, path: &str) -> String {
    let mut at = ValueRef::Document(document);
    for name in path.split('.') {
        at = match at {
            ValueRef::Document(document) => document.get(name),
            _ => ValueRef::Missing,
        };
    }
    match at {
        ValueRef::Missing | ValueRef::Null => String::new(),
        ValueRef::String(text) => text.to_owned(),
        ValueRef::Int32(number) => number.to_string(),
        ValueRef::Int64(number) => number.to_string(),
        ValueRef::Double(number) => number.to_string(),
        ValueRef::Bool(value) => value.to_string(),
        ValueRef::ObjectId(id) => id.to_hex(),
        ValueRef::DateTime(ms) => format_date(ms).unwrap_or_else(|| ms.to_string()),
        other => value_to_relaxed(other),
    }
}
