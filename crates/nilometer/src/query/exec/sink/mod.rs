//! Operators that end a pipeline by writing its result: `$out` and `$merge`.
//!
//! Both pull their whole input on the first call and return no documents. Writing itself is done by
//! [`Outputs`](crate::query::source::Outputs), which the database implements.

pub mod merge;
pub mod merge_elsewhere;
pub mod out;
