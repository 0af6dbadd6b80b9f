//! What planning reads of a query's settings.

use std::sync::Arc;

use nilometer_bson::Value;

use super::rules::RuleSet;
use crate::eval::variables::SharedCollator;

/// Values that are fixed when a command is parsed, and that plans depend on.
#[derive(Clone, Default)]
pub struct PlanSettings {
    /// `$$NOW` of the command that opened the query.
    pub now_ms: i64,
    /// Values of the variables in `let`.
    pub variables: Arc<[Value]>,
    /// The collation, if not the simple one.
    pub collator: Option<SharedCollator>,
    /// Switches for tests and diagnosis.
    pub options: PlanOptions,
}

/// Switches that change how, never what, a query answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Turn every block into rows where it is read: the oracle.
    pub force_rows: bool,
    /// Apply no rule: every stage runs as it was written.
    pub no_rules: bool,
    /// Apply all rules but these.
    pub disabled: RuleSet,
}
