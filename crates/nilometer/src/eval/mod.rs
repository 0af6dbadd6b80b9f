//! Evaluation of expressions, filters and accumulators.
//!
//! Pure: every function depends only on its arguments and the context passed in. No clock, no
//! randomness, no storage, no catalog, no threads. `$$NOW` and `$rand` read [`EvalContext`], which
//! the executor fills once per operation. Work inside one document asks the context for interrupts
//! and memory ([`limits`]).
//!
//! ```text
//! date        calendar, time zones, units: arithmetic on milliseconds, no BSON
//! limits      steps and bytes of an evaluation, interrupts
//! variables   names resolved while parsing, values read while evaluating
//! expression  the aggregation expression language: parse once, evaluate per document
//! matcher     the filter language of find and $match
//! accumulator accumulators of $group and $setWindowFields
//! projection  which fields of a document are kept, and which are computed
//! sort_key    sort patterns, and the keys they extract from documents
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
pub mod limits;
mod memory;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use collation::Collation;
pub use expression::Expression;
pub(crate) use limits::FoldBudget;
pub use limits::{EvaluationCounters, EvaluationLimits, Interrupt, InterruptCheck, WallClock};
pub use memory::{memory_bytes, value_bytes};
pub use variables::{EvalContext, ParseContext, Random};

/// The inputs of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Dotted paths read from the document.
    pub paths: BTreeSet<Arc<str>>,
    /// True if the whole document is needed (`$$ROOT`, or the paths are not known).
    pub whole: bool,
    /// Slots of the user variables read ([`EvalContext::variables`]); empty if uncorrelated.
    pub variables: BTreeSet<usize>,
    /// True if two evaluations of the same document may differ (`$rand`).
    pub random: bool,
}

impl Dependencies {
    /// Returns the first components of all paths: the fields to fetch, unless
    /// [`Dependencies::whole`].
    pub fn top_level_fields(&self) -> BTreeSet<&str> {
        self.paths
            .iter()
            .map(|path| path.split('.').next().unwrap_or(path))
            .collect()
    }

    /// True if nothing of the document is read.
    pub fn reads_nothing(&self) -> bool {
        !self.whole && self.paths.is_empty()
    }
}
