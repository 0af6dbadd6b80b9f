//! Commands that read and change documents: queries, writes, cursors, and `explain` of both.
//!
//! [`query`] holds the options that all reading commands take, and the first batch of a cursor;
//! [`change`] the parts that `update`, `delete`, `findAndModify` and `bulkWrite` share. Each command
//! checks its own options and then calls `query`, `write` or `timeseries`.

mod accept_document;
pub(crate) mod aggregate;
pub(crate) mod apply_ops;
pub(crate) mod bulk_write;
pub(crate) mod change;
mod change_stream;
pub(crate) mod count;
pub(crate) mod delete;
pub(crate) mod distinct;
pub(crate) mod end_transaction;
pub(crate) mod explain;
pub(crate) mod explain_change;
pub(crate) mod explain_partitions;
pub(crate) mod explain_write;
pub(crate) mod find;
pub(crate) mod find_and_modify;
pub(crate) mod get_more;
pub(crate) mod insert;
pub(crate) mod kill_cursors;
pub(crate) mod map_reduce;
pub(crate) mod query;
mod resume;
pub(crate) mod retryable;
pub(crate) mod update;
