//! A document as a bucket that is restored.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("buckets", bytes));
