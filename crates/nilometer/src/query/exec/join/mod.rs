//! Operators that read a second collection, or read their input more than once.
//!
//! ```text
//! lookup          each document with the matching documents of another collection
//! graph_lookup    the same along a graph, level by level
//! foreign_table   the other collection in memory, hashed by a field; shared by both
//! rows_ahead      reads it for several rows of a lookup by one index scan
//! joined_rows     a row for each joined document, where an `$unwind` follows
//! narrowed        documents without the fields that no later stage reads
//! union_with      one input after another
//! facet           several pipelines over one gathered input
//! ```
//!
//! Inner pipelines are planned and built like the outer one, when the outer operator first needs them.

pub mod facet;
pub(crate) mod foreign_table;
pub mod graph_lookup;
mod joined_rows;
pub mod lookup;
mod narrowed;
#[cfg(test)]
mod random_tests;
pub(super) mod rows_ahead;
pub mod union_with;
