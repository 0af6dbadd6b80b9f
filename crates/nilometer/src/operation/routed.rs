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
    /// The shard key that an update must not change.
    pub guarded_key: Option<GuardedKey>,
    /// What the update has made of a document of another partition: it is inserted here.
    pub accepted: Option<AcceptedDocument>,
    /// `$$NOW` of the `$merge` that writes [`Self::given`].
    pub merge_now_ms: Option<i64>,
    /// Documents in front of the pipeline of an `aggregate` that writes them. They travel as a sequence of the message.
    pub given: Option<DocumentSequence>,
}

/// A shard key that an update must not change.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardedKey {
    /// The key as it is written: `{a: 1, b: "hashed"}`.
    pub key: Document,
    /// What it may become: the values of its parts, or their hashes, in their order. It has its place in the partition.
    pub allowed: Option<Document>,
}

/// A document of another partition, before and after an update of its shard key.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedDocument {
    /// The document before.
    pub before: Document,
    /// The document after.
    pub after: Document,
    /// The array element that the filter matched.
    pub position: Option<usize>,
}

/// What a router asks of a partition beside an `aggregate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRequest {
    /// The groups of the last stage are returned with the states of their accumulators.
    pub returns_states: bool,
    /// `$$NOW` of the whole query.
    pub now_ms: i64,
    /// The metadata that the documents bring.
    pub metadata: PartMetadata,
}

/// Metadata that the documents of a part bring in the fields that carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartMetadata {
    /// The distance that `$geoNear` computed.
    pub distance: bool,
    /// The location it was measured to.
    pub point: bool,
    /// The score of the `$text`.
    pub score: bool,
    /// The `$geoNear` is the `$near` of a `find`: it writes no other field.
    pub is_near: bool,
}

impl PartMetadata {
    /// True if documents bring any.
    pub fn is_any(self) -> bool {
        self.distance || self.point || self.score
    }

    /// Returns the names by which a message tells what is asked for.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.distance, "distance"),
            (self.point, "point"),
            (self.score, "score"),
            (self.is_near, "near"),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name)
    }

    /// Adds what a name tells; `None` if it tells nothing.
    pub(crate) fn add(&mut self, name: &str) -> Option<()> {
        let flag = match name {
            "distance" => &mut self.distance,
            "point" => &mut self.point,
            "score" => &mut self.score,
            "near" => &mut self.is_near,
            _ => return None,
        };
        *flag = true;
        Some(())
    }
}

/// A collection, and the number of the change that made its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementVersion {
    /// The collection as `db.coll`.
    pub namespace: String,
    /// Placements of later changes have greater numbers.
    pub number: i64,
}
