//! Ordered bytes, durable.
