//! Ordered bytes, durable: the storage engines of Nilometer.
//!
//! [`engine`] states the contract. This crate knows no document, collection or command.

pub mod engine;
