//! Errors of SlateDB as errors of storage.

use std::path::PathBuf;

use nilometer_storage::Error;
use slatedb::{CloseReason, ErrorKind};

/// Converts an error of the database at `path`.
pub(crate) fn convert(path: &str, error: &slatedb::Error) -> Error {
    let reason = error.to_string();
    match error.kind() {
        ErrorKind::Closed(CloseReason::Clean) => Error::Closed,
        ErrorKind::Closed(CloseReason::Fenced) => Error::Fenced { reason },
        ErrorKind::Closed(_) | ErrorKind::Internal => Error::Failed { reason },
        ErrorKind::Data => Error::Corruption {
            what: "object",
            file: PathBuf::from(path),
            offset: 0,
            expected: "the bytes that were written".to_owned(),
            found: reason,
        },
        _ => Error::Store { reason },
    }
}

/// Returns the error of an engine that SlateDB has closed.
pub(crate) fn closed(reason: CloseReason) -> Error {
    match reason {
        CloseReason::Clean => Error::Closed,
        CloseReason::Fenced => Error::Fenced {
            reason: "a newer writer has opened it".to_owned(),
        },
        _ => Error::Failed {
            reason: "a background task of SlateDB failed".to_owned(),
        },
    }
}
