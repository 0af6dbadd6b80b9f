//! Line protocol as documents.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("lines", bytes));
