//! InfluxDB's languages as commands of Nilometer: line protocol as documents, InfluxQL as pipelines. Prometheus remote write
//! becomes documents of the same form.
//!
//! This crate is pure: bytes in, documents out. It has no socket and no clock, and it does not know the database.

pub mod influxql;
pub mod line_protocol;
pub mod mapping;
pub mod query;
pub mod remote_write;
pub mod schema;
