//! Query settings that planning reads.

use std::sync::Arc;

use nilometer_bson::Value;

use super::rules::RuleSet;
use crate::eval::variables::SharedCollator;

/// Values that are fixed when a command is parsed and that plans depend on.
#[derive(Clone, Default)]
pub struct PlanSettings {
    /// The value of `$$NOW`.
    pub now_ms: i64,
    /// Values of the variables in `let`.
    pub variables: Arc<[Value]>,
    /// The collation, if it is not the simple one.
    pub collator: Option<SharedCollator>,
    /// `apiStrict`: text indexes are outside version 1 of the stable API.
    pub strict_api: bool,
    /// Switches for tests and diagnosis.
    pub options: PlanOptions,
}

/// Switches that change how a query is answered, never the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Turn every block into rows when it is read: the oracle of tests.
    pub force_rows: bool,
    /// Apply no rule: every stage runs as written.
    pub no_rules: bool,
    /// The rules to leave out.
    pub disabled: RuleSet,
}
