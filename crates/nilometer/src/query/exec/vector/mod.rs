//! Kernels over columns: the answers of the row path, without making rows.
//!
//! ```text
//! filter            a selection and a filter ─► a smaller selection
//! compare           a typed column against a constant
//! arithmetic        expressions over whole columns
//! top_n             $top and $bottom by time over a run of measurements
//! computed_columns  $addFields and $project: results become columns of the block
//! ```
//!
//! Tests hold every kernel against the row path on random blocks. Where a kernel does not apply, rows are
//! made with only the fields needed.

pub(crate) mod arithmetic;
pub mod compare;
pub(crate) mod computed_columns;
pub mod filter;
pub mod top_n;
