//! Nilometer, the database: command document in, reply document out.
//!
//! Knows no socket, no async runtime, no wire format and no command line; its time comes from the
//! [`operation::Clock`] it is opened with.

pub mod args;
pub mod auth;
mod background;
mod budget;
pub mod catalog;
mod change_entry;
pub mod change_log;
pub mod client;
pub mod commands;
pub mod database;
pub mod error;
pub mod eval;
pub mod geo;
mod ids;
pub mod index;
pub mod insertion;
pub mod limits;
mod modify;
pub mod operation;
pub mod parameters;
pub mod query;
mod retryable_writes;
pub mod rollup;
pub mod router;
pub mod services;
pub mod session;
pub mod text;
pub mod timeseries;
mod turns;
pub mod validation;
pub mod write;

pub use database::Database;
pub use error::{Error, ErrorCode, Result};
pub use operation::{OperationContext, Request};
pub use session::ClientSession;

#[cfg(test)]
mod compatibility_tests;
