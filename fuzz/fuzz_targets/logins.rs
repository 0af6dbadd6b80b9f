//! Two lines as the payloads of a login.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nilometer_campaign::fuzz("logins", bytes));
