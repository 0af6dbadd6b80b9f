//! Work the database does by itself, on threads it owns and joins.

mod ttl;

pub(crate) use ttl::TtlMonitor;
