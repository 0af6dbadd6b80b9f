//! Bytes as a document.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("bson", bytes));
