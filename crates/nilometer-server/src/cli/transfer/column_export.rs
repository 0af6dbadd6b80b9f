//! Documents as columns of an Arrow IPC stream or a Parquet file; behind the feature `arrow`. See [`crate::columns`].

use std::fs::File;
use std::io::{BufWriter, Write};

use nilometer::query::batch::Batch;
use nilometer_bson::{DocRef, Document, doc};

use super::export::{find, read_all, tell, unwritable};
use super::{Collection, Format, no_file};
use crate::cli::Failure;
use crate::cli::args::Export;
use crate::columns::file::ColumnForm;
use crate::columns::layout::{LayoutBuilder, NamedColumns};
use crate::columns::stream::ColumnStream;

/// Documents that are added together.
const BATCH_DOCUMENTS: usize = 1_024;

/// Exports to a file, or to the standard output.
pub(super) fn run(given: &Export, format: Format) -> Result<(), Failure> {
    let form = match format {
        Format::Parquet => ColumnForm::Parquet,
        _ => ColumnForm::Arrow,
    };
    let names = given.fields.iter().map(String::as_str);
    let named = NamedColumns::parse(names).map_err(Failure::Options)?;
    let command = find(given)?;
    let mut from = given.from.open()?;
    let out: Box<dyn Write + Send> = match &given.file {
        None => Box::new(std::io::stdout()),
        Some(path) => Box::new(File::create(path).map_err(|e| no_file(path, &e))?),
    };
    let mut layout = LayoutBuilder::default();
    if let Some(meta) = meta_field(&mut from) {
        layout.set_meta(&meta);
    }
    let mut stream = ColumnStream::new(form, named, layout, BufWriter::new(out));
    let mut waiting: Vec<Document> = Vec::new();
    read_all(&mut from, &command, &mut |document: DocRef<'_>| {
        waiting.push(document.to_document());
        if waiting.len() >= BATCH_DOCUMENTS {
            let batch = Batch::Rows(std::mem::take(&mut waiting));
            stream.push(batch).map_err(Failure::Other)?;
        }
        Ok(())
    })?;
    stream.push(Batch::Rows(waiting)).map_err(Failure::Other)?;
    let (mut out, count) = stream.finish().map_err(Failure::Other)?;
    out.flush().map_err(|e| unwritable(given, &e))?;
    if let Some(path) = &given.file {
        tell(count, path)?;
    }
    Ok(())
}

/// Returns the metadata field of a time series, whose texts become dictionaries. A user who may not list collections gets the
/// same columns without them.
fn meta_field(from: &mut Collection) -> Option<String> {
    let command = doc! {
        "listCollections": 1,
        "filter": doc! {"name": from.name.as_str()},
        "cursor": doc! {},
    };
    let reply = from.run(&command).ok()?;
    let listed = reply
        .get("cursor")
        .as_document()?
        .get("firstBatch")
        .as_array()?;
    let options = listed.get(0).as_document()?.get("options").as_document()?;
    let meta = options
        .get("timeseries")
        .as_document()?
        .get("metaField")
        .as_str();
    meta.map(str::to_owned)
}
