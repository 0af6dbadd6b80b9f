//! `collMod` with `index`: hiding, and when what it is about expires.

use nilometer_bson::Document;

use super::super::args::Args;
use crate::catalog::Collection;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};

/// Whose names an index is asked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The fields of measurements.
    User,
    /// The fields of what is stored.
    Stored,
}

/// Changes the index the command names, if it names one, and tells what was and what is.
pub(super) fn modify(_: &Database, args: &Args<'_>, _: &Collection, _: Side) -> Result<Document> {
    match args.document("index")? {
        None => Ok(Document::new()),
        Some(_) => Err(Error::new(
            ErrorCode::CommandNotSupported,
            "the option 'collMod.index' is not supported yet",
        )),
    }
}
