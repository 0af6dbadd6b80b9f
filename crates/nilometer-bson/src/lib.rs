//! BSON for Nilometer: values and documents as bytes, their order and arithmetic, index key
//! strings, the BSONColumn codec with the typed blocks it decodes into, and civil dates.
//!
//! Pure computation: no files, threads, clock or randomness.

pub mod block;
pub mod civil_date;
pub mod column;
pub mod decimal128;
pub mod document;
pub mod extjson;
pub mod fuzz;
pub mod key_string;
pub mod number;
pub mod order;
pub mod path;
#[doc(hidden)]
pub mod testing;
pub mod validate;
pub mod value;
#[doc(hidden)]
pub mod varint;

pub use document::{ArrayRef, DocRef, Document, DocumentBuilder, Element};
pub use value::{
    Array, Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Value,
    ValueRef, type_code,
};
