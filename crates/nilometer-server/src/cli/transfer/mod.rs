//! `nilometer import` and `nilometer export`: documents as lines of text, in and out of a running server.
//!
//! | format | a line is |
//! |---|---|
//! | `json` | a document in extended JSON |
//! | `csv` | values; the first line names the fields, and may name their types ([`csv`]) |
//!
//! An import goes through the server as any client does. A line that cannot be read, or a document that is
//! refused, is told with its number and left out; the others go on. What was acknowledged stays, so an
//! import that ended early goes on with `--skip`.

mod csv;
mod export;
mod import;

pub(super) use export::run as export;
pub(super) use import::run as import;

use std::path::Path;

use super::Failure;

/// How documents are written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A document a line, in extended JSON.
    Json,
    /// Values separated by commas, under a line of names.
    Csv,
}

impl Format {
    /// What was asked for, or what the name of the file says; JSON otherwise.
    fn of(given: Option<Self>, file: Option<&Path>) -> Self {
        let extension = file.and_then(Path::extension);
        given.unwrap_or(match extension.and_then(|e| e.to_str()) {
            Some("csv") => Self::Csv,
            _ => Self::Json,
        })
    }
}

/// Why a file cannot be opened.
fn no_file(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Options(format!("cannot open {}: {error}", path.display()))
}
