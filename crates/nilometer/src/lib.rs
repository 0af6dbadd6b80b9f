//! Nilometer, the database: command document in, reply document out.

pub mod catalog;
pub mod error;

pub use error::{Error, ErrorCode, Result};
