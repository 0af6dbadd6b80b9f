//! What a router knows of the processes of its cluster, for clients that look.

/// The turn of a process to write a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenure {
    /// The number of the turn: each has a greater one than those before.
    pub term: u64,
    /// When it began, in ms since 1970; 0 if unknown.
    pub since_ms: i64,
}

/// A router of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterReport {
    /// Its address.
    pub host: String,
    /// When it began, in ms since 1970.
    pub since_ms: i64,
    /// When it was seen last, in ms since 1970.
    pub seen_ms: i64,
    /// True if it never writes a partition.
    pub only_routes: bool,
}

/// A partition that another process took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMove {
    /// The partition; `config` for the catalog of the cluster.
    pub partition: String,
    /// The address of the process that had it before.
    pub from: String,
    /// The address of the process that took it.
    pub to: String,
    /// The turn that began.
    pub tenure: Tenure,
}
