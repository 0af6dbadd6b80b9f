//! Evaluation: what an expression, a filter or an accumulator makes of one document.
//!
//! Pure. Everything here is a function of its arguments and of the context passed in: no clock, no
//! randomness of its own, no storage, no catalog, no threads. `$$NOW` and `$rand` are answered from
//! [`EvalContext`], which the executor fills once per operation.
//!
//! ```text
//! date        calendar, time zones, units: arithmetic on milliseconds, no BSON
//! variables   names known while parsing, values given while evaluating
//! expression  the aggregation expression language: parse once, evaluate per document
//! matcher     the filter language of find and $match
//! accumulator what $group and windows make of many values
//! projection  which fields of a document go on, and which are computed
//! sort_key    sort patterns, the keys they take from documents
//! window      $setWindowFields: functions over the neighbours of a document
//! ```

pub mod accumulator;
pub mod date;
pub mod expression;
pub mod matcher;
pub mod projection;
pub mod sort_key;
pub mod variables;
pub mod window;

pub mod collation;
mod memory;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use collation::Collation;
pub use expression::Expression;
pub use memory::memory_bytes;
pub use variables::{EvalContext, ParseContext, Random};

/// What an expression reads besides constants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Dotted paths read from the document.
    pub paths: BTreeSet<Arc<str>>,
    /// True when the whole document is needed (`$$ROOT`, or something that cannot say).
    pub whole: bool,
    /// Slots of user variables read ([`EvalContext::variables`]): none means uncorrelated.
    pub variables: BTreeSet<usize>,
    /// True when two evaluations of the same document may differ (`$rand`).
    pub random: bool,
}

impl Dependencies {
    /// The first components of all paths: the fields to fetch, unless [`Dependencies::whole`].
    pub fn top_level_fields(&self) -> BTreeSet<&str> {
        self.paths
            .iter()
            .map(|path| path.split('.').next().unwrap_or(path))
            .collect()
    }

    /// True when nothing of the document is read.
    pub fn reads_nothing(&self) -> bool {
        !self.whole && self.paths.is_empty()
    }
}
