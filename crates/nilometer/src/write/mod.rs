//! Ordinary collections: documents under record ids, unique by `_id`.
//!
//! A record id is eight bytes, big-endian, counting up: natural order is the order of insertion. The
//! `_id` index maps the key string of `_id` to the record id. Both change in one engine batch.
//!
//! Does not know time series, queries or commands.

mod insert;
mod records;

pub use insert::{RecordInsertOptions, RecordOutcome, RecordWriteError};
pub use records::{RecordScan, Records};
