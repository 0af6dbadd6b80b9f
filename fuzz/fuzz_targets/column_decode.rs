//! Bytes as a BSONColumn.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_bson::fuzz::column_decode(bytes));
