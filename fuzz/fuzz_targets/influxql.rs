//! Statements of InfluxQL on a database in memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("influxql", bytes));
