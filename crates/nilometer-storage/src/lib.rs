//! Ordered bytes, durable: the storage engines of Nilometer.
//!
//! [`engine`] states the contract; [`MemoryEngine`] keeps it without files and is the oracle for the
//! others. This crate knows no document, collection or command.

#![expect(
    dead_code,
    reason = "the embedded engine, which uses the rest, follows"
)]

pub mod bytes;
mod checksum;
pub mod engine;
pub mod error;
pub mod memory;

pub use bytes::Bytes;
pub use engine::{
    Direction, Durability, Engine, EngineStatistics, Keyspace, KeyspaceId, KeyspaceOptions,
    KeyspaceStatistics, Operation, Scan, Snapshot, WriteBatch,
};
pub use error::{Error, Result};
pub use memory::MemoryEngine;
