//! Access paths by index: which there are for a filter and an order, and which is taken.
//!
//! ```text
//! conjuncts, order, needed paths, indexes, hint
//!        │ candidates     per index: safety ► bounds ► order ► covering;  $or: a union of them
//!        ▼
//!   [Candidate]
//!        │ choose         one: that;  several: the plan cache, or a trial of all (works until 101 rows)
//!        ▼
//!   RecordInput.access = AccessPath::Index     and `$sort` goes where the index has the order
//! ```
//!
//! The promise is that of the rules: the answer is that of the collection scan, except where a user
//! asks for less with a hint: a sparse or partial index that is named is used though it may hold
//! only some of the documents, as in MongoDB.
//!
//! Small types, each with its counter-conditions beside its code: [`safety`] (documents an index leaves
//! out), [`order`] (what an index is sorted by), [`covering`] (answers from keys alone).

pub mod cache;
pub mod candidates;
pub mod choose;
pub mod cluster;
pub mod covering;
pub mod hint;
mod implied;
pub mod order;
pub mod safety;
mod shape;
pub mod wildcard;

use std::sync::Arc;

use super::bounds::{IndexBounds, IndexShape};
use crate::eval::matcher::MatchExpression;
use crate::index::Index;
use covering::Covering;

pub use shape::shape_of;

/// Name of the index of `_id`.
pub const ID_INDEX: &str = "_id_";

/// One walk through an index.
#[derive(Clone, Debug)]
pub struct IndexScanPlan {
    /// The index.
    pub index: Arc<Index>,
    /// Its parts, as bounds see them.
    pub shape: Arc<IndexShape>,
    /// The keys of interest.
    pub bounds: IndexBounds,
    /// From the last key to the first.
    pub backward: bool,
    /// Whole keys between which the walk stays, for `min` and `max` of `find`.
    pub limits: KeyLimits,
}

impl IndexScanPlan {
    /// True if arrays have come since the plan was made: to parts it takes for ones without. A document
    /// then has several keys, and one of them is not all there is to know of it.
    pub fn has_new_arrays(&self) -> bool {
        let now = self.index.stored.multikey();
        let known = |at: usize| self.shape.parts.get(at).is_some_and(|part| part.multikey);
        if self.index.is_wildcard() {
            return now != 0 && !self.shape.parts.iter().any(|part| part.multikey);
        }
        (0..self.shape.parts.len()).any(|at| shape::is_set(now, at) && !known(at))
    }
}

/// Keys from one on and below another.
#[derive(Clone, Debug, Default)]
pub struct KeyLimits {
    /// The least key, as bytes.
    pub min: Option<Vec<u8>>,
    /// The least key beyond.
    pub max: Option<Vec<u8>>,
}

/// Where keys of records come from.
#[derive(Clone, Debug)]
pub enum KeyPlan {
    /// One index.
    Scan(Box<IndexScanPlan>),
    /// Several, one after the other; a record comes once.
    Union(Vec<IndexScanPlan>),
    /// Several that are each in the same order, merged; a record comes once.
    Merge(Vec<IndexScanPlan>, MergeOrder),
}

/// What merged scans are sorted by.
#[derive(Clone, Debug)]
pub struct MergeOrder {
    /// For each scan, which components its keys are compared by.
    pub components: Vec<Vec<usize>>,
    /// For each of them, whether the order is descending.
    pub descending: Vec<bool>,
    /// The order, for explain.
    pub pattern: nilometer_bson::Document,
}

impl KeyPlan {
    /// The walks, in order.
    pub fn scans(&self) -> &[IndexScanPlan] {
        match self {
            Self::Scan(scan) => std::slice::from_ref(scan),
            Self::Union(scans) | Self::Merge(scans, _) => scans,
        }
    }

    /// The only walk.
    pub fn only(&self) -> Option<&IndexScanPlan> {
        match self {
            Self::Scan(scan) => Some(scan),
            _ => None,
        }
    }
}

/// Reading an ordinary collection by index.
#[derive(Clone, Debug)]
pub struct IndexAccess {
    /// Which records.
    pub keys: KeyPlan,
    /// What is still asked of each document: conjuncts the bounds do not say.
    pub residual: Option<MatchExpression>,
    /// How rows are made of keys, without their documents.
    pub covering: Option<Covering>,
    /// Only the first key of those whose first so many components are equal is looked at.
    pub distinct: Option<usize>,
    /// Rows are the keys themselves (`returnKey` of `find`).
    pub gives_keys: bool,
}

/// A way to read, and what it spares.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// How.
    pub access: IndexAccess,
    /// Records come in the order the plan's first stage asks for.
    pub sorted: bool,
}

/// How the access path of a plan came to be; explain tells.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Candidates that were not taken.
    pub rejected: Vec<Candidate>,
    /// The order the chosen and rejected plans were to provide.
    pub order: Option<nilometer_bson::Document>,
    /// Hash of the query's shape.
    pub query_hash: Option<u32>,
    /// Hash of the shape and the indexes it could use.
    pub plan_cache_key: Option<u32>,
    /// The plan cache knew what to take.
    pub is_cached: bool,
    /// What each candidate did in the trial: the one taken first, then the rejected.
    pub trials: Vec<choose::TrialResult>,
}
