//! Errors about a field of a command or a stage, with its full path: `create.timeseries.timeField`,
//! `$merge.into`.
//!
//! The messages are MongoDB's, and programs match on them, so each is written here, once. The parser of a
//! field decides what it accepts.

use std::fmt::Display;

use nilometer_bson::ValueRef;

use super::{Error, ErrorCode, location};

impl Error {
    /// Code 40415: the field is unknown.
    pub fn unknown_field(path: impl Display) -> Self {
        Self::new(
            ErrorCode::IDLUnknownField,
            format!("BSON field '{path}' is an unknown field."),
        )
    }

    /// Code 40414: a required field is missing.
    pub fn missing_field(path: impl Display) -> Self {
        Self::new(
            ErrorCode::IDLFailedToParse,
            format!("BSON field '{path}' is missing but a required field"),
        )
    }

    /// Code 40413: the field is named twice.
    pub fn duplicate_field(path: impl Display) -> Self {
        Self::location(
            location::FIELD_TWICE,
            format!("BSON field '{path}' is a duplicate field"),
        )
    }

    /// Code 14: the field has the type of `found` instead of `expected`.
    pub fn wrong_field_type(path: impl Display, found: ValueRef<'_>, expected: &str) -> Self {
        Self::type_mismatch(format!(
            "BSON field '{path}' is the wrong type '{}', expected type '{expected}'",
            found.type_name()
        ))
    }

    /// The same where several types are accepted.
    pub fn wrong_field_types(path: impl Display, found: ValueRef<'_>, expected: &str) -> Self {
        Self::type_mismatch(format!(
            "BSON field '{path}' is the wrong type '{}', expected types '[{expected}']",
            found.type_name()
        ))
    }
}
