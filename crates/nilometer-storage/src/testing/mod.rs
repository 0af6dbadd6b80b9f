//! The tests every engine has to pass, for this crate and for engines built elsewhere.
//!
//! [`contract`] states the properties, one function each; [`model`] compares random histories with an
//! ordered map; [`fault`] makes the file system fail on demand. Nothing here is used in production.

pub mod contract;
pub mod fault;
pub mod model;
pub mod random;
