//! MongoDB Extended JSON version 2: parsing and formatting.
//!
//! [`parse_document`] and [`parse_value`] accept canonical and relaxed form. Plain numbers without
//! point or exponent become int, or long if required; others become double. Field order is kept.
//! [`to_relaxed`] writes the readable form, [`to_canonical`] the one that keeps every type; both on
//! one line.
//!
//! An object is a type wrapper only if its names are exactly those of one (`{"$oid": "…"}`). Any
//! other object with a `$` is an ordinary document, as commands and operators need it. Intended for
//! scripts, tools and the demo, not for hot paths.

mod date;
mod read;
mod write;

pub use date::{format_date, parse_date};
pub use read::{ExtJsonError, parse_document, parse_value};
pub use write::{to_canonical, to_relaxed, value_to_canonical, value_to_relaxed};

#[cfg(test)]
mod tests;
