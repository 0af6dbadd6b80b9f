//! Errors of decoding a column or adding a value to one.

use thiserror::Error;

/// Errors of the column codec.
///
/// Except for [`TooManyValues`](Self::TooManyValues), [`TooLarge`](Self::TooLarge) and
/// [`Unstorable`](Self::Unstorable), all mean that the bytes are not a valid column; offsets are
/// from the first byte of the column.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// The binary is empty, or the end byte is missing.
    #[error("column ends at offset {offset} without an end byte")]
    MissingEnd {
        /// Where the end byte was expected.
        offset: usize,
    },
    /// Bytes follow the end byte.
    #[error("column has bytes after its end byte at offset {offset}")]
    TrailingBytes {
        /// Offset of the end byte.
        offset: usize,
    },
    /// A literal, word or reference runs past the end of the column.
    #[error("column is truncated in the piece at offset {offset}")]
    Truncated {
        /// Offset of the piece.
        offset: usize,
    },
    /// A byte that starts no piece.
    #[error("invalid control byte {byte:#04x} at offset {offset}")]
    InvalidControl {
        /// Offset of the byte.
        offset: usize,
        /// The byte.
        byte: u8,
    },
    /// A literal or reference that is not well-formed BSON.
    #[error("malformed BSON at offset {offset}: {cause}")]
    InvalidBson {
        /// Offset of the literal or reference.
        offset: usize,
        /// What is wrong with it.
        cause: BsonCause,
    },
    /// A word with an invalid selector.
    #[error("invalid Simple-8b selector {selector:#04x} at offset {offset}")]
    InvalidSelector {
        /// Offset of the word.
        offset: usize,
        /// The low byte of the word: selector and extension.
        selector: u8,
    },
    /// A scaled block after a value that is not a double, or that the scale cannot hold.
    #[error("scale of the control byte at offset {offset} does not fit the value before it")]
    InvalidScale {
        /// Offset of the control byte.
        offset: usize,
    },
    /// A delta other than zero after a value that has no integer form.
    #[error("delta at offset {offset} on a value of type {tag:#04x}, which has no integer form")]
    InvalidDelta {
        /// Offset of the word, or of its block.
        offset: usize,
        /// BSON type of the value before it.
        tag: u8,
    },
    /// An interleaved section inside an interleaved section.
    #[error("interleaved section at offset {offset} inside another")]
    NestedSection {
        /// Offset of the inner start byte.
        offset: usize,
    },
    /// An interleaved section without a single value.
    #[error("interleaved section at offset {offset} is empty")]
    EmptySection {
        /// Offset of the start byte.
        offset: usize,
    },
    /// An interleaved section whose reference has no leaf.
    #[error("interleaved section at offset {offset} has a reference without values")]
    NoStreams {
        /// Offset of the start byte.
        offset: usize,
    },
    /// The streams of an interleaved section do not hold the same number of values.
    #[error("interleaved section at offset {offset} has streams of different lengths")]
    UnevenStreams {
        /// Offset of the start byte.
        offset: usize,
    },
    /// A string that is not UTF-8.
    #[error("string at offset {offset} is not UTF-8")]
    InvalidUtf8 {
        /// Offset of the literal or word that encodes it.
        offset: usize,
    },
    /// The column holds more values than the caller allows.
    #[error("column holds more than {limit} values")]
    TooManyValues {
        /// The caller's limit.
        limit: usize,
    },
    /// Decoding would exceed the memory limit.
    #[error("column needs more than {limit} bytes of memory")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// A value that cannot be stored: a column, or a value that contains one.
    #[error("a column cannot hold a compressed column")]
    Unstorable,
}

/// Why a BSON element inside a column is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BsonCause {
    /// It exceeds the enclosing bytes.
    #[error("truncated")]
    Truncated,
    /// An unknown type byte.
    #[error("unknown type")]
    UnknownType,
    /// A length that does not match its surroundings.
    #[error("invalid length")]
    BadLength,
    /// A string or document without its terminator.
    #[error("missing terminator")]
    MissingTerminator,
    /// A bool that is neither 0 nor 1.
    #[error("bool byte other than 0 and 1")]
    BadBool,
    /// A literal with a field name.
    #[error("literal has a name")]
    NamedLiteral,
    /// Documents nested deeper than BSON allows.
    #[error("nested too deep")]
    TooDeep,
    /// A compressed column inside a column.
    #[error("column inside a column")]
    NestedColumn,
}
