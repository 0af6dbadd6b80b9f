//! All integration tests of the storage crate, in one binary.

#![expect(clippy::print_stderr, reason = "long runs say what they covered")]

mod contract;
mod support;
