//! Kernels over columns: the results of the row path, without building rows.
//!
//! ```text
//! block_selection   the measurements of a bucket that pass the filter of its scan
//! block_steps       what several operators leave to be done with each block
//! filter            a selection and a filter ─► a smaller selection
//! compare           a typed column against a constant
//! arithmetic        expressions over whole columns
//! vectors           their values: of one type, or of several with gaps
//! rows_before       rows that may sort before a key
//! functions         parts of dates, rounding and other functions over whole columns
//! time_rank         the best row of a run by time; what a sort with a limit may skip
//! distinct_rows     rows with the same values in some columns
//! computed_columns  $addFields and $project: results become columns of the block
//! ```
//!
//! Tests compare every kernel with the row path on random blocks. Where no kernel applies, rows are
//! built with only the fields needed.

pub(crate) mod arithmetic;
pub(crate) mod block_selection;
pub(crate) mod block_steps;
pub mod compare;
pub(crate) mod computed_columns;
mod distinct_rows;
pub mod filter;
mod functions;
pub(crate) mod rows_before;
pub(crate) mod time_rank;
pub(crate) mod vectors;
