//! What a router asks of a partition beside a command.

use nilometer_bson::Document;

use super::DocumentSequence;

/// What a router asks of a partition beside a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutedRequest {
    /// What a part of a query returns.
    pub part: Option<PartRequest>,
    /// The placement by which the router has chosen the partition; `None` if any would do.
    pub placement: Option<PlacementVersion>,
    /// The numbers of the statements of a retryable write, in their order; empty if they are their positions.
    pub statements: Vec<u32>,
    /// Statements of a retryable write do nothing unless they ran before.
    pub repeats_only: bool,
    /// The definitions by which bins of a rollup are merged; the rollup must have the same.
    pub definitions: Option<Document>,
    /// The document that an upsert inserts if nothing matches: its shard key belongs to the partition.
    pub upserted: Option<Document>,
    /// `$$NOW` of the `$merge` that writes [`Self::given`].
    pub merge_now_ms: Option<i64>,
    /// Documents in front of the pipeline of an `aggregate` that writes them. They travel as a sequence of the message.
    pub given: Option<DocumentSequence>,
}

/// What a router asks of a partition beside an `aggregate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRequest {
    /// The groups of the last stage are returned with the states of their accumulators.
    pub returns_states: bool,
    /// `$$NOW` of the whole query.
    pub now_ms: i64,
}

/// A collection, and the number of the change that made its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementVersion {
    /// The collection as `db.coll`.
    pub namespace: String,
    /// Placements of later changes have greater numbers.
    pub number: i64,
}
