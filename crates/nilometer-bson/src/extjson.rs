//! MongoDB Extended JSON, version 2: text to values and back.
//!
//! [`parse_document`] and [`parse_value`] read canonical and relaxed form alike: plain numbers
//! without point or exponent are int, or long where they must be, others are double. Field order is
//! kept. [`to_relaxed`] prints what people read, [`to_canonical`] what keeps every type; both on one
//! line.
//!
//! An object is a wrapper only if its names are exactly those of one (`{"$oid": "…"}`); anything else
//! with a `$` is an ordinary document, as commands and operators need it. For scripts, tools and
//! the demo, not for the hot path.

mod date;
mod read;
mod write;

pub use date::{format_date, parse_date};
pub use read::{ExtJsonError, parse_document, parse_value};
pub use write::{to_canonical, to_relaxed, value_to_canonical, value_to_relaxed};

#[cfg(test)]
mod tests;
