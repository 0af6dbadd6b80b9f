//! The one error a client sees: a code from the table, a message, and labels.
//!
//! Errors of the layers below are converted here, once, into MongoDB's codes.

mod code;
mod field;

pub use code::{ErrorCode, NAMED};

use nilometer_bson::Document;

/// What a command answers when it cannot be done.
#[derive(Clone, Debug)]
pub struct Error {
    /// MongoDB's code.
    pub code: ErrorCode,
    /// Text for a person.
    pub message: String,
    /// Driver labels such as `RetryableWriteError`.
    pub labels: Vec<&'static str>,
    /// Fields that go into the reply beside code and message (`errInfo`, `keyPattern`, …).
    pub details: Option<Document>,
}

/// The result of anything a command does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a named code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            labels: Vec::new(),
            details: None,
        }
    }

    /// An error whose code has no name of its own.
    pub fn location(code: i32, message: impl Into<String>) -> Self {
        Self::new(ErrorCode(code), message)
    }

    /// Code 2.
    pub fn bad_value(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadValue, message)
    }

    /// Code 9.
    pub fn failed_to_parse(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::FailedToParse, message)
    }

    /// Code 14.
    pub fn type_mismatch(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TypeMismatch, message)
    }

    /// Code 72.
    pub fn invalid_options(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidOptions, message)
    }

    /// Adds fields to the reply.
    #[must_use]
    pub fn with_details(mut self, details: Document) -> Self {
        self.details = Some(details);
        self
    }

    /// Puts `context` in front of the message.
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
    /// The one place where trouble with storage becomes an answer.
    fn from(error: nilometer_storage::Error) -> Self {
        use nilometer_storage::Error as Storage;
        let code = match &error {
            Storage::Corruption { .. } => ErrorCode::DataCorruptionDetected,
            Storage::InvalidKey { .. } => ErrorCode::KeyTooLong,
            Storage::Full { .. } => ErrorCode::OutOfDiskSpace,
            Storage::Closed => ErrorCode::InterruptedAtShutdown,
            Storage::NotEmpty { .. }
            | Storage::Within { .. }
            | Storage::ForeignDirectory { .. } => ErrorCode::BadValue,
            // Whoever still held the collection that was kept there.
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
