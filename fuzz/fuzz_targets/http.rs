//! Bytes as a request of the HTTP port.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("http", bytes));
