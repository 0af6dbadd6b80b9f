//! `$pop`: removes the first or last element of an array.

use nilometer_bson::{Element, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome, element_text};
use crate::error::{Error, Result};
use crate::eval::ParseContext;

#[derive(Debug)]
struct Pop {
    first: bool,
}

impl Modifier for Pop {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let array = match current {
            ValueRef::Missing => return Ok(Outcome::Unchanged),
            ValueRef::Array(array) => array,
            other => {
                return Err(Error::type_mismatch(format!(
                    "Path '{}' contains an element of non-array type '{}'",
                    leaf.path,
                    other.type_name()
                )));
            }
        };
        let mut items: Vec<Value> = array.iter().map(ValueRef::to_value).collect();
        if items.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        if self.first {
            items.remove(0);
        } else {
            items.pop();
        }
        Ok(Outcome::Set(items.into()))
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Keep
    }
}

/// Parses `$pop`: 1 for the last element, -1 for the first.
pub(super) fn parse(argument: Element<'_>, _: &ParseContext) -> Result<Box<dyn Modifier>> {
    let value = argument.value();
    if !value.is_number() {
        return Err(Error::failed_to_parse(format!(
            "Expected a number in: {}",
            element_text(argument.name(), value)
        )));
    }
    match crate::eval::matcher::value_tests::exact_i64(value) {
        Some(1) => Ok(Box::new(Pop { first: false })),
        Some(-1) => Ok(Box::new(Pop { first: true })),
        _ => Err(Error::failed_to_parse(format!(
            "$pop expects 1 or -1, found: {}",
            nilometer_bson::extjson::value_to_relaxed(value)
        ))),
    }
}
