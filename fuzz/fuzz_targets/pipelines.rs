//! Documents as the stages of a pipeline.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("pipelines", bytes));
