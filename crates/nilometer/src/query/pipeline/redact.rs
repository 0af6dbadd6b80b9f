//! `$redact`: leaves out parts of documents that an expression does not let through.
//!
//! The expression is evaluated for the document, and for each object in it that it descends to, as
//! `$$CURRENT`; `$$ROOT` stays the whole document. Its answer is one of three variables:
//!
//! | answer | the object |
//! |---|---|
//! | `$$KEEP` | stays, with everything in it |
//! | `$$PRUNE` | goes, with everything in it |
//! | `$$DESCEND` | stays; the objects in its fields, and in their arrays, are asked about in turn |

use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::Result;
use crate::eval::Expression;

/// What `$$DESCEND`, `$$PRUNE` and `$$KEEP` stand for, in the order of their slots. `$$CURRENT` has the
/// slot behind them.
pub const REDACT_ANSWERS: [(&str, &str); 3] =
    [("DESCEND", "descend"), ("PRUNE", "prune"), ("KEEP", "keep")];

/// `$redact`, parsed.
#[derive(Clone, Debug)]
pub struct RedactStage {
    /// Decides.
    pub expression: Expression,
    /// How many variables are around the stage; its own follow.
    pub outer: usize,
    source: Value,
}

impl PipelineStage for RedactStage {
    fn name(&self) -> &'static str {
        "$redact"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        Needs::All
    }
}

/// Parses `$redact`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let mut expressions = cx.expressions.clone();
    for (name, _) in REDACT_ANSWERS {
        expressions.define(name);
    }
    expressions.define("CURRENT");
    out.push(Stage::Redact(Arc::new(RedactStage {
        expression: Expression::parse(value, &expressions)?,
        outer: cx.expressions.variable_count(),
        source: value.to_value(),
    })));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{array, doc};

    #[test]
    fn its_variables_are_known_here_alone() {
        assert_eq!(code(array![doc! {"$redact": "$$PRUNE"}]), 0);
        assert_eq!(code(array![doc! {"$redact": "$$GONE"}]), 17_276);
        let set = doc! {"a": "$$PRUNE"};
        assert_eq!(code(array![doc! {"$set": set}]), 17_276);
    }
}
