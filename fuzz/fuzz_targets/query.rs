//! Bytes as the parameters, one line, and the body of a query over HTTP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("query", bytes));
