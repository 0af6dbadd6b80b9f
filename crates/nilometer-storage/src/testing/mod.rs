//! The tests that every engine must pass, for this crate and for engines of other crates.
//!
//! [`contract`] states the properties, one function each; [`model`] compares random histories with an ordered map;
//! [`kill`] kills processes that write; [`fault`] injects faults into the file system. Production code does not use this
//! module. [`effort()`] gives the sizes of tests.

pub mod contract;
mod effort;
pub mod fault;
pub mod kill;
pub mod model;
pub mod random;
pub mod support;

pub use effort::{Effort, effort, is_long};
