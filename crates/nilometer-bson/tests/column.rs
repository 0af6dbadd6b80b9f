//! Integration tests of the column codec: vectors, golden columns, and properties of all columns.

#[path = "column/extended_json.rs"]
mod extended_json;
#[path = "column/golden.rs"]
mod golden;
#[path = "column/laws.rs"]
mod laws;
#[path = "column/plain_encoder.rs"]
mod plain_encoder;
#[path = "column/vectors.rs"]
mod vectors;
