//! `$redact`: removes those parts of documents that an expression does not admit.
//!
//! The expression is evaluated for the document and for each nested object that the stage descends into. The object is
//! `$$CURRENT`; `$$ROOT` stays the whole document. The result is one of three variables:
//!
//! | result | effect on the object |
//! |---|---|
//! | `$$KEEP` | it stays, with all its contents |
//! | `$$PRUNE` | it is removed, with all its contents |
//! | `$$DESCEND` | it stays; objects in its fields and in their arrays are evaluated in turn |

use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::Result;
use crate::eval::Expression;

/// The variables `$$DESCEND`, `$$PRUNE` and `$$KEEP` with their values, in the order of their slots. `$$CURRENT` has
/// the next slot.
pub const REDACT_ANSWERS: [(&str, &str); 3] =
    [("DESCEND", "descend"), ("PRUNE", "prune"), ("KEEP", "keep")];

/// A parsed `$redact`.
#[derive(Clone, Debug)]
pub struct RedactStage {
    /// Evaluates to one of the three variables.
    pub expression: Expression,
    /// Number of enclosing variables; the stage's own slots follow them.
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
