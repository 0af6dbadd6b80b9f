//! The error type of all commands: a code from the table, a message, and labels.
//!
//! Errors of lower layers are converted here, once, into MongoDB's codes.

mod code;
mod field;

pub use code::{ErrorCode, NAMED, location};

use nilometer_bson::{Document, DocumentBuilder};

/// A failed command.
#[derive(Clone, Debug)]
pub struct Error {
    /// MongoDB's code.
    pub code: ErrorCode,
    /// The message.
    pub message: String,
    /// Driver labels such as `RetryableWriteError`.
    pub labels: Vec<&'static str>,
    /// Further fields of the reply (`errInfo`, `keyPattern`, …).
    pub details: Option<Document>,
}

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error with a named code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            labels: Vec::new(),
            details: None,
        }
    }

    /// Makes an error whose code has no name.
    pub fn location(code: i32, message: impl Into<String>) -> Self {
        Self::new(ErrorCode(code), message)
    }

    /// Makes an error with code 2.
    pub fn bad_value(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadValue, message)
    }

    /// Makes an error with code 9.
    pub fn failed_to_parse(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::FailedToParse, message)
    }

    /// Makes an error with code 14.
    pub fn type_mismatch(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TypeMismatch, message)
    }

    /// Makes an error with code 72.
    pub fn invalid_options(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidOptions, message)
    }

    /// Makes an error with code 112: another write has changed the same since the snapshot of a transaction. The text is MongoDB's.
    pub fn write_conflict() -> Self {
        Self::new(
            ErrorCode::WriteConflict,
            "Caused by :: Write conflict during plan execution and yielding is disabled. :: Please retry your operation or multi-document transaction.",
        )
    }

    /// Adds fields to the reply.
    #[must_use]
    pub fn with_details(mut self, details: Document) -> Self {
        self.details = Some(details);
        self
    }

    /// Adds a field to the reply, behind those it has.
    #[must_use]
    pub(crate) fn with_detail(mut self, name: &str, value: Document) -> Self {
        let mut details = DocumentBuilder::extending(self.details.unwrap_or_default());
        details.append(name, value);
        self.details = Some(details.finish());
        self
    }

    /// True if another process has taken over the database.
    pub(crate) fn is_takeover(&self) -> bool {
        self.code == ErrorCode::NotWritablePrimary
    }

    /// True for an error of the whole command, never of one of its documents: drivers look for it there. After a takeover, a
    /// step-down or a shutdown nothing succeeds any more, and drivers repeat the command elsewhere if its error has the label for
    /// that; a transaction that conflicts, or is too large, is aborted.
    pub(crate) fn is_of_command(&self) -> bool {
        self.code.is_of_state_change()
            || matches!(
                self.code,
                ErrorCode::WriteConflict | ErrorCode::TransactionTooLarge
            )
    }

    /// Prefixes the message with `context`.
    #[must_use]
    pub fn context(mut self, context: &str) -> Self {
        self.message = format!("{context} :: caused by :: {}", self.message);
        self
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}

impl From<nilometer_storage::Error> for Error {
    /// Converts an error of the storage engine.
    fn from(error: nilometer_storage::Error) -> Self {
        use nilometer_storage::Error as Storage;
        let code = match &error {
            Storage::Corruption { .. } => ErrorCode::DataCorruptionDetected,
            Storage::InvalidKey { .. } => ErrorCode::KeyTooLong,
            Storage::Full { .. } => ErrorCode::OutOfDiskSpace,
            Storage::OverlayFull { .. } => ErrorCode::TransactionTooLarge,
            // The process is about to end.
            Storage::Closed | Storage::Ended { .. } => ErrorCode::InterruptedAtShutdown,
            Storage::Fenced { .. } | Storage::ReadOnly => ErrorCode::NotWritablePrimary,
            Storage::NotEmpty { .. }
            | Storage::UnfinishedCopy { .. }
            | Storage::Within { .. }
            | Storage::ForeignDirectory { .. } => ErrorCode::BadValue,
            // The caller still held a collection that was dropped.
            Storage::UnknownKeyspace { .. } => {
                return Self::new(
                    ErrorCode::QueryPlanKilled,
                    "query plan killed :: caused by :: collection dropped",
                );
            }
            _ => ErrorCode::InternalError,
        };
        Self::new(code, error.to_string())
    }
}
