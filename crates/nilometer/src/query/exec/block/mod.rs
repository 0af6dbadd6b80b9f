//! Work on columns: the same answers as on rows, without making the rows.
//!
//! Everything here is held against the row path in tests on random blocks. Whatever a kernel does
//! not know falls back to rows that hold only the fields needed.

pub(crate) mod arithmetic;
pub mod compare;
pub mod filter;
pub mod group;
pub mod rank;
