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
        ErrorKind::Closed(_) => Error::Ended { reason },
        ErrorKind::Internal => Error::Failed { reason },
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

/// Most characters of the report of a store: some send whole pages.
const REPORT_CHARS_MAX: usize = 400;

/// Converts the error of a store that was asked to `act`.
pub(crate) fn store_error(act: &str, error: &object_store::Error) -> Error {
    use object_store::Error as Store;
    let hint = match error {
        Store::NotFound { .. } => "the bucket or container does not exist: ",
        Store::PermissionDenied { .. } => "the credentials do not permit it: ",
        Store::Unauthenticated { .. } => "the credentials are missing or wrong: ",
        _ => "",
    };
    let report = report(error);
    Error::Store {
        reason: format!("cannot {act}: {hint}{report}"),
    }
}

/// Returns the text of an error of a store in one line, shortened.
pub(crate) fn report(error: &object_store::Error) -> String {
    let text = error.to_string();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(REPORT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

/// Returns the error of an engine that SlateDB has closed.
pub(crate) fn closed(reason: CloseReason) -> Error {
    match reason {
        CloseReason::Clean => Error::Closed,
        CloseReason::Fenced => Error::Fenced {
            reason: "a newer writer has opened it".to_owned(),
        },
        _ => Error::Ended {
            reason: "a background task of SlateDB failed".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_one_line_of_bounded_length() {
        let error = object_store::Error::PermissionDenied {
            path: "a".to_owned(),
            source: "é\n".repeat(1000).into(),
        };
        let Error::Store { reason } = store_error("store an object", &error) else {
            panic!("another error");
        };
        assert!(reason.starts_with("cannot store an object: the credentials do not permit it: "));
        assert!(reason.chars().count() < REPORT_CHARS_MAX + 100 && !reason.contains('\n'));
        assert!(reason.ends_with('…'));
    }
}
