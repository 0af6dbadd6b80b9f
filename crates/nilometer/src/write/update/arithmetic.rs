//! `$inc` and `$mul`.
//!
//! An int that overflows becomes a long; a long that overflows is an error, never a double.

use nilometer_bson::number::Number;
use nilometer_bson::{Element, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome, element_text};
use super::set::is_same;
use crate::error::{Error, Result};
use crate::eval::ParseContext;

#[derive(Debug)]
struct Arithmetic {
    name: &'static str,
    operand: Number,
    compute: fn(Number, Number) -> Number,
    /// The value of a missing field.
    start: Number,
}

impl Modifier for Arithmetic {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let before = match (current, Number::of(current)) {
            (_, Some(number)) => number,
            (ValueRef::Missing, None) => self.start,
            (other, None) => {
                return Err(Error::type_mismatch(format!(
                    "Cannot apply {} to a value of non-numeric type. {} has the field '{}' of \
                     non-numeric type {}",
                    self.name,
                    leaf.id_text(),
                    leaf.field(),
                    other.type_name()
                )));
            }
        };
        let after = (self.compute)(before, self.operand);
        let whole = |n| matches!(n, Number::Int(_) | Number::Long(_));
        if matches!(after, Number::Double(_)) && whole(before) && whole(self.operand) {
            return Err(Error::bad_value(format!(
                "Failed to apply {} operations to current value ({}) for document {}",
                self.name,
                nilometer_bson::extjson::value_to_relaxed(current),
                leaf.id_text()
            )));
        }
        let after = after.to_ref();
        Ok(if is_same(current, after) {
            Outcome::Unchanged
        } else {
            Outcome::Set(after.to_value())
        })
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Create
    }
}

fn operand(argument: Element<'_>, verb: &str) -> Result<Number> {
    Number::of(argument.value()).ok_or_else(|| {
        Error::type_mismatch(format!(
            "Cannot {verb} with non-numeric argument: {}",
            element_text(argument.name(), argument.value())
        ))
    })
}

/// Parses `$inc`.
pub(super) fn parse_inc(argument: Element<'_>, _: &ParseContext) -> Result<Box<dyn Modifier>> {
    Ok(Box::new(Arithmetic {
        name: "$inc",
        operand: operand(argument, "increment")?,
        compute: Number::add,
        start: Number::Int(0),
    }))
}

/// Parses `$mul`.
pub(super) fn parse_mul(argument: Element<'_>, _: &ParseContext) -> Result<Box<dyn Modifier>> {
    Ok(Box::new(Arithmetic {
        name: "$mul",
        operand: operand(argument, "multiply")?,
        compute: Number::multiply,
        start: Number::Int(0),
    }))
}
