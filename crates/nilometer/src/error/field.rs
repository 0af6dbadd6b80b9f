//! Complaints about a field of a command or a stage, by its whole path: `create.timeseries.timeField`,
//! `$merge.into`.
//!
//! The sentences are MongoDB's, and programs match on them; so each is written here, once. What is
//! allowed in which field is told where the field is read.

use std::fmt::Display;

use nilometer_bson::ValueRef;

use super::{Error, ErrorCode};

/// Code of a field that is named twice.
const DUPLICATE_FIELD: i32 = 40_413;

impl Error {
    /// Code 40415: nobody knows the field.
    pub fn unknown_field(path: impl Display) -> Self {
        Self::new(
            ErrorCode::IDLUnknownField,
            format!("BSON field '{path}' is an unknown field."),
        )
    }

    /// Code 40414: the field must be there.
    pub fn missing_field(path: impl Display) -> Self {
        Self::new(
            ErrorCode::IDLFailedToParse,
            format!("BSON field '{path}' is missing but a required field"),
        )
    }

    /// Code 40413: the field is there twice.
    pub fn duplicate_field(path: impl Display) -> Self {
        Self::location(
            DUPLICATE_FIELD,
            format!("BSON field '{path}' is a duplicate field"),
        )
    }

    /// Code 14: the field is a `found` and should be of the type `expected`.
    pub fn wrong_field_type(path: impl Display, found: ValueRef<'_>, expected: &str) -> Self {
        Self::type_mismatch(format!(
            "BSON field '{path}' is the wrong type '{}', expected type '{expected}'",
            found.type_name()
        ))
    }

    /// The same where values of several types would do.
    pub fn wrong_field_types(path: impl Display, found: ValueRef<'_>, expected: &str) -> Self {
        Self::type_mismatch(format!(
            "BSON field '{path}' is the wrong type '{}', expected types '[{expected}']",
            found.type_name()
        ))
    }
}
