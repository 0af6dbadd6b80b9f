//! `$expr`: an aggregation expression as a test of the whole document.
//!
//! A parsed expression does not contain variable names, so the source document is kept for explain.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::path::MatchPath;
use crate::error::Result;
use crate::eval::expression::Variable;
use crate::eval::{Expression, ParseContext};

/// An expression that must be true, with its source.
#[derive(Clone, Debug)]
pub struct ExprTest {
    /// The expression.
    pub expression: Expression,
    source: Value,
}

impl ExprTest {
    /// Parses the operand of `$expr`.
    pub fn parse(source: ValueRef<'_>, ctx: &ParseContext) -> Result<Self> {
        Ok(Self {
            expression: Expression::parse(source, ctx)?,
            source: source.to_value(),
        })
    }

    /// Returns the operand as written by the user.
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// Returns the operands of an `$and` as separate tests; any other expression alone.
    pub(super) fn arms(self: Arc<Self>) -> Vec<Arc<Self>> {
        let (Expression::And(operands), Value::Document(source)) = (&self.expression, &self.source)
        else {
            return vec![self];
        };
        let sources = match source.get("$and") {
            ValueRef::Array(sources) if sources.len() == operands.len() => sources,
            // Constant folding removed an operand, so source and expression do not correspond.
            _ => return vec![self],
        };
        operands
            .iter()
            .zip(sources.iter())
            .flat_map(|(operand, source)| {
                Arc::new(Self {
                    expression: operand.clone(),
                    source: source.to_value(),
                })
                .arms()
            })
            .collect()
    }

    /// Returns the test with field paths at or below `from` moved to `to`; `None` if it reads other
    /// paths.
    pub(super) fn renamed(&self, from: &str, to: &str) -> Option<Self> {
        let mut expression = self.expression.clone();
        rename_paths(&mut expression, from, to).then(|| Self {
            expression,
            source: renamed_source(self.source.as_ref(), from, to),
        })
    }
}

/// Returns false if an input cannot be renamed.
fn rename_paths(expression: &mut Expression, from: &str, to: &str) -> bool {
    match expression {
        Expression::FieldPath(path) => match MatchPath::new(path.as_str()).renamed(from, to) {
            Some(moved) => {
                *path = FieldPath::parse_lenient(moved.as_str());
                true
            }
            None => false,
        },
        Expression::Variable(variable) => variable.variable != Variable::Root,
        other => {
            let mut all = true;
            other.for_each_child_mut(&mut |child| all &= rename_paths(child, from, to));
            all
        }
    }
}

/// Returns the source with the same renaming; literals are unchanged.
fn renamed_source(source: ValueRef<'_>, from: &str, to: &str) -> Value {
    match source {
        ValueRef::String(text) => {
            for prefix in ["$$ROOT.", "$$CURRENT.", "$"] {
                let Some(path) = text.strip_prefix(prefix) else {
                    continue;
                };
                return match MatchPath::new(path).renamed(from, to) {
                    Some(moved) => Value::from(format!("{prefix}{}", moved.as_str())),
                    None => source.to_value(),
                };
            }
            source.to_value()
        }
        ValueRef::Array(array) => Value::Array(
            array
                .iter()
                .map(|element| renamed_source(element, from, to))
                .collect(),
        ),
        ValueRef::Document(doc) => {
            let mut out = DocumentBuilder::new();
            for element in doc {
                if matches!(element.name(), "$literal" | "$const") {
                    out.append_element(element);
                } else {
                    out.append(element.name(), renamed_source(element.value(), from, to));
                }
            }
            Value::Document(out.finish())
        }
        other => other.to_value(),
    }
}
