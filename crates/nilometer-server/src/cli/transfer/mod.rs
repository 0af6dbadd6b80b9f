//! `nilometer import` and `nilometer export`: documents as lines of text, in and out of a running server.
//!
//! | format | a line is |
//! |---|---|
//! | `json` | a document in extended JSON |
//! | `csv` | values; the first line names the fields, and may name their types ([`csv`]) |
//! | `parquet` | a row of a binary file; imports are behind a feature of that name (`parquet.rs`), exports behind `arrow` |
//! | `arrow` | a row of an Arrow IPC stream or file, behind a feature of that name (`arrow.rs`) |
//!
//! Both are exported by `column_export.rs`.
//!
//! An import goes through the server like any client. An unreadable line and a refused document are reported with their
//! number and skipped; the import continues. Acknowledged documents stay, so an interrupted import can be continued
//! with `--skip`.

#[cfg(feature = "arrow")]
mod arrow;
#[cfg(feature = "arrow")]
mod column_export;
mod csv;
mod export;
mod import;
#[cfg(feature = "parquet")]
mod parquet;

pub(super) use export::run as export;
pub(crate) use import::fuzz_csv;
pub(super) use import::run as import;

use std::path::Path;

use clap::Args;
use nilometer_bson::Document;

use super::Failure;
use super::connect::{Connection, ServerArgs};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A document a line, in extended JSON.
    Json,
    /// Values separated by commas, under a line of names.
    Csv,
    /// Columns in a binary file; imports only in a program built with the feature `parquet`, exports with `arrow`.
    Parquet,
    /// Columns as an Arrow IPC stream; an import reads files, too. Only in a program built with the feature `arrow`.
    Arrow,
}

/// A collection of a server, and the format of the file.
#[derive(Args, Clone, Debug)]
pub(crate) struct CollectionArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Database; default: the one in the URI
    #[arg(long)]
    db: Option<String>,
    /// Collection; an import creates an ordinary one if it does not exist
    #[arg(long)]
    collection: String,
    /// Format of the file; default: by its name
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl CollectionArgs {
    fn format(&self, file: Option<&Path>) -> Format {
        Format::of(self.format, file)
    }

    /// Connects to the server.
    fn open(&self) -> Result<Collection, Failure> {
        let missing = || Failure::Options("no database: use --db, or name it in --uri".into());
        let database = match &self.db {
            Some(name) => name.clone(),
            None => self.server.database()?.ok_or_else(missing)?,
        };
        Ok(Collection {
            server: self.server.open()?,
            database,
            name: self.collection.clone(),
        })
    }
}

/// An open collection.
struct Collection {
    server: Connection,
    database: String,
    name: String,
}

impl Collection {
    fn run(&mut self, command: &Document) -> Result<Document, Failure> {
        self.server.run(&self.database, command)
    }
}

impl Format {
    /// Returns the given format, or that of the file's name, or JSON.
    fn of(given: Option<Self>, file: Option<&Path>) -> Self {
        let extension = file.and_then(Path::extension);
        given.unwrap_or(match extension.and_then(|e| e.to_str()) {
            Some("csv") => Self::Csv,
            Some("parquet") => Self::Parquet,
            Some("arrow" | "arrows" | "feather") => Self::Arrow,
            _ => Self::Json,
        })
    }
}

/// Returns the error of a program built without Parquet.
#[cfg(not(feature = "parquet"))]
fn no_parquet() -> Failure {
    Failure::Options(
        "this program was built without Parquet: build it with  cargo build --release --features parquet".into(),
    )
}

/// Returns the error of a program built without Arrow.
#[cfg(not(feature = "arrow"))]
fn no_arrow() -> Failure {
    Failure::Options(
        "this program was built without Arrow: build it with  cargo build --release --features arrow".into(),
    )
}

/// Returns the error for a file that cannot be opened.
fn no_file(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Options(format!("cannot open {}: {error}", path.display()))
}
