//! Access paths by index: the candidates for a filter and an order, and the choice between them.
//!
//! ```text
//! conjuncts, order, needed paths, indexes, hint
//!        │ candidates     per index: safety ► bounds ► order ► covering;  $or: a union of them
//!        ▼
//!   [Candidate]
//!        │ choose         one: use it;  several: the plan cache, or a trial of all (until 101 rows)
//!        ▼
//!   RecordInput.access = AccessPath::Index     and the `$sort` is removed if the index has the order
//! ```
//!
//! Promise: the answer is that of the collection scan. The one exception is a hint, as in MongoDB: a hinted sparse or
//! partial index is used even if it holds only some of the documents.
//!
//! [`safety`] checks which documents an index leaves out, [`order`] the order of its keys, [`covering`] whether its keys
//! are enough for the answer. [`bins`] chooses for the stored bins of a rollup.

pub mod bins;
pub mod cache;
pub mod candidates;
pub mod choose;
pub mod cluster;
pub mod covering;
pub mod filters;
pub mod hint;
mod implied;
pub mod order;
pub mod safety;
mod shape;
pub mod text;
pub mod wildcard;

use std::sync::Arc;

use super::bounds::{IndexBounds, IndexShape};
use crate::eval::matcher::MatchExpression;
use crate::index::Index;
use covering::Covering;

pub use shape::shape_of;

/// Name of the index of `_id`.
pub const ID_INDEX: &str = "_id_";

/// One scan of an index.
#[derive(Clone, Debug)]
pub struct IndexScanPlan {
    /// The index.
    pub index: Arc<Index>,
    /// The parts of its key, for bounds.
    pub shape: Arc<IndexShape>,
    /// The bounds of its keys.
    pub bounds: IndexBounds,
    /// Reads from the last key to the first.
    pub backward: bool,
    /// Limits on whole keys, for `min` and `max` of `find`.
    pub limits: KeyLimits,
}

impl IndexScanPlan {
    /// True if a part that was planned without arrays has arrays now. A document may then have several keys, and one key does
    /// not describe the whole document.
    pub fn has_new_arrays(&self) -> bool {
        // The parts beside the terms have no arrays.
        if self.index.text().is_some() {
            return false;
        }
        let now = self.index.stored.multikey();
        let known = |at: usize| self.shape.parts.get(at).is_some_and(|part| part.multikey);
        if self.index.is_wildcard() {
            return now != 0 && !self.shape.parts.iter().any(|part| part.multikey);
        }
        (0..self.shape.parts.len()).any(|at| shape::is_set(now, at) && !known(at))
    }
}

/// A range of whole keys.
#[derive(Clone, Debug, Default)]
pub struct KeyLimits {
    /// The lowest key, as bytes.
    pub min: Option<Vec<u8>>,
    /// The lowest key above the range.
    pub max: Option<Vec<u8>>,
}

/// The source of record keys.
#[derive(Clone, Debug)]
pub enum KeyPlan {
    /// One index.
    Scan(Box<IndexScanPlan>),
    /// Several scans, one after the other; a record is returned once.
    Union(Vec<IndexScanPlan>),
    /// Several scans in the same order, merged; a record is returned once.
    Merge(Vec<IndexScanPlan>, MergeOrder),
}

/// The order of merged scans.
#[derive(Clone, Debug)]
pub struct MergeOrder {
    /// For each scan, the components its keys are compared by.
    pub components: Vec<Vec<usize>>,
    /// For each component, true if the order is descending.
    pub descending: Vec<bool>,
    /// The order, for explain.
    pub pattern: nilometer_bson::Document,
}

impl KeyPlan {
    /// Returns the scans, in order.
    pub fn scans(&self) -> &[IndexScanPlan] {
        match self {
            Self::Scan(scan) => std::slice::from_ref(scan),
            Self::Union(scans) | Self::Merge(scans, _) => scans,
        }
    }

    /// Returns the scan, if there is only one.
    pub fn only(&self) -> Option<&IndexScanPlan> {
        match self {
            Self::Scan(scan) => Some(scan),
            _ => None,
        }
    }
}

/// The input from an ordinary collection by index.
#[derive(Clone, Debug)]
pub struct IndexAccess {
    /// The keys of the records.
    pub keys: KeyPlan,
    /// The filter for each document: conjuncts that the bounds do not express.
    pub residual: Option<MatchExpression>,
    /// How rows are built from keys, without their documents.
    pub covering: Option<Covering>,
    /// The number of leading components of which only the first key per combination of values is read.
    pub distinct: Option<usize>,
    /// Rows carry the keys by which they were found, for `$meta` and for `returnKey` of `find`.
    pub adds_keys: bool,
}

/// An access path that may be chosen.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The access path.
    pub access: IndexAccess,
    /// It returns records in the order of the plan's leading sort.
    pub sorted: bool,
}

/// How an access path was chosen, for explain.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Candidates that were rejected.
    pub rejected: Vec<Candidate>,
    /// The order that all candidates had to provide.
    pub order: Option<nilometer_bson::Document>,
    /// Hash of the query's shape.
    pub query_hash: Option<u32>,
    /// Hash of the shape and the indexes it could use.
    pub plan_cache_key: Option<u32>,
    /// Hash of the shape without limits, by which index filters are found.
    pub filter_shape: Option<u32>,
    /// True if an index filter applies.
    pub is_filtered: bool,
    /// True if the plan cache decided.
    pub is_cached: bool,
    /// Results of the trial: the chosen candidate first, then the rejected ones.
    pub trials: Vec<choose::TrialResult>,
}
