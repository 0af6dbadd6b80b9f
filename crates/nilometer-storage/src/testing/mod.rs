//! The tests every engine has to pass, for this crate and for engines built elsewhere.
//!
//! [`contract`] states the properties, one function each. Nothing here is used in production.

pub mod contract;
pub mod random;
