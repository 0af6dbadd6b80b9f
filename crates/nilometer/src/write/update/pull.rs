//! `$pull` and `$pullAll`: remove elements of an array.
//!
//! | operand of `$pull`      | an element is removed if …                                 |
//! |-------------------------|------------------------------------------------------------|
//! | `{$gt: 3}`, a pattern   | it passes, as the value of a field would                   |
//! | any other object        | it is an object that the operand, read as a filter, matches |
//! | anything else           | it is equal                                                |

use nilometer_bson::{Element, Value, ValueRef, doc};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use crate::error::{Error, Result};
use crate::eval::matcher::{MatchExpression, PATH_OPERATOR_NAMES};
use crate::eval::{Collation, EvalContext, ParseContext};

/// The field name under which an element is tested.
const ELEMENT: &str = "element";

#[derive(Debug)]
struct Pull {
    name: &'static str,
    condition: PullCondition,
}

#[derive(Debug)]
enum PullCondition {
    Passes(MatchExpression),
    Matches(MatchExpression),
    OneOf(Vec<Value>, Collation),
}

impl PullCondition {
    fn test(&self, element: ValueRef<'_>, eval: &EvalContext<'_>) -> Result<bool> {
        match self {
            Self::Passes(filter) => {
                let wrapped = doc! {"element": element};
                filter.matches(wrapped.as_ref(), eval)
            }
            Self::Matches(filter) => match element {
                ValueRef::Document(document) => filter.matches(document, eval),
                _ => Ok(false),
            },
            Self::OneOf(values, collation) => {
                eval.charge_value(element)?;
                let at =
                    values.binary_search_by(|value| collation.compare(value.as_ref(), element));
                Ok(at.is_ok())
            }
        }
    }
}

impl Modifier for Pull {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let array = match current {
            ValueRef::Missing => return Ok(Outcome::Unchanged),
            ValueRef::Array(array) => array,
            _ => {
                return Err(Error::bad_value(format!(
                    "Cannot apply {} to a non-array value",
                    self.name
                )));
            }
        };
        let mut kept = Vec::new();
        let mut gone = false;
        for element in array.iter() {
            if self.condition.test(element, leaf.eval)? {
                gone = true;
            } else {
                kept.push(element.to_value());
            }
        }
        Ok(if gone {
            Outcome::Set(kept.into())
        } else {
            Outcome::Unchanged
        })
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Keep
    }
}

/// Parses `$pull`.
pub(super) fn parse(argument: Element<'_>, ctx: &ParseContext) -> Result<Box<dyn Modifier>> {
    let value = argument.value();
    let condition = match value {
        ValueRef::Document(document) => {
            let first = document.iter().next().map_or("", |e| e.name());
            if PATH_OPERATOR_NAMES.contains(&first) {
                PullCondition::Passes(of_element(value, ctx)?)
            } else {
                PullCondition::Matches(MatchExpression::parse(document, ctx)?)
            }
        }
        ValueRef::Regex { .. } => PullCondition::Passes(of_element(value, ctx)?),
        other => PullCondition::OneOf(vec![other.to_value()], Collation::of(ctx)),
    };
    Ok(Box::new(Pull {
        name: "$pull",
        condition,
    }))
}

/// Parses a filter on one element, as the value of a field.
fn of_element(condition: ValueRef<'_>, ctx: &ParseContext) -> Result<MatchExpression> {
    let mut filter = nilometer_bson::DocumentBuilder::new();
    filter.append_ref(ELEMENT, condition);
    MatchExpression::parse(filter.finish().as_ref(), ctx)
}

/// Parses `$pullAll`.
pub(super) fn parse_all(argument: Element<'_>, ctx: &ParseContext) -> Result<Box<dyn Modifier>> {
    let ValueRef::Array(values) = argument.value() else {
        return Err(Error::bad_value(format!(
            "$pullAll requires an array argument but was given a {}",
            argument.value().type_name()
        )));
    };
    let collation = Collation::of(ctx);
    let mut values: Vec<Value> = values.iter().map(ValueRef::to_value).collect();
    values.sort_by(|a, b| collation.compare(a.as_ref(), b.as_ref()));
    Ok(Box::new(Pull {
        name: "$pullAll",
        condition: PullCondition::OneOf(values, collation),
    }))
}
