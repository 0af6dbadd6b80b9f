//! Rust source as xtask reads it: scanned, not parsed, with the standard library alone.
//!
//! [`source`] blanks comments, strings and tests; [`paths`] lists the paths that the rest names; [`tree`] resolves
//! them to the modules of a crate; [`graph`] finds order and cycles among modules. `tidy` and `imports` use them.

pub(crate) mod graph;
pub(crate) mod paths;
pub(crate) mod source;
pub(crate) mod tree;
