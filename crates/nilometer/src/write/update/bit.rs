//! `$bit`: and, or, xor of integers. A missing field counts as 0.

use nilometer_bson::{Element, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use super::set::is_same;
use crate::error::{Error, Result};
use crate::eval::ParseContext;

#[derive(Clone, Copy, Debug)]
enum BitOperation {
    And,
    Or,
    Xor,
}

impl BitOperation {
    fn compute(self, a: i64, b: i64) -> i64 {
        match self {
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
        }
    }
}

/// An integer with its width.
#[derive(Clone, Copy, Debug)]
enum Integer {
    Int(i32),
    Long(i64),
}

impl Integer {
    fn of(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Int32(v) => Some(Self::Int(v)),
            ValueRef::Int64(v) => Some(Self::Long(v)),
            _ => None,
        }
    }

    fn wide(self) -> i64 {
        match self {
            Self::Int(v) => v.into(),
            Self::Long(v) => v,
        }
    }

    /// Ints are sign-extended to longs, so two ints always give an int.
    fn combine(self, operation: BitOperation, other: Self) -> Self {
        let wide = operation.compute(self.wide(), other.wide());
        match (self, other, i32::try_from(wide)) {
            (Self::Int(_), Self::Int(_), Ok(narrow)) => Self::Int(narrow),
            _ => Self::Long(wide),
        }
    }
}

#[derive(Debug)]
struct Bit {
    operations: Vec<(BitOperation, Integer)>,
}

impl Modifier for Bit {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let start = match (current, Integer::of(current)) {
            (_, Some(integer)) => integer,
            (ValueRef::Missing, None) => Integer::Int(0),
            (other, None) => {
                return Err(Error::bad_value(format!(
                    "Cannot apply $bit to a value of non-integral type.{} has the field {} of \
                     non-integer type {}",
                    leaf.id_text(),
                    leaf.field(),
                    other.type_name()
                )));
            }
        };
        let after = self
            .operations
            .iter()
            .fold(start, |at, (operation, operand)| {
                at.combine(*operation, *operand)
            });
        let after = match after {
            Integer::Int(v) => Value::Int32(v),
            Integer::Long(v) => Value::Int64(v),
        };
        Ok(if is_same(current, after.as_ref()) {
            Outcome::Unchanged
        } else {
            Outcome::Set(after)
        })
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Create
    }
}

/// Parses `$bit`: `{and: n, or: n, xor: n}`, applied in the given order.
pub(super) fn parse(argument: Element<'_>, _: &ParseContext) -> Result<Box<dyn Modifier>> {
    const FORMAT: &str = "{$bit: {field: {and/or/xor: #}}}";
    let ValueRef::Document(given) = argument.value() else {
        return Err(Error::bad_value(format!(
            "The $bit modifier is not compatible with a {}. You must pass in an embedded document: \
             {FORMAT}",
            argument.value().type_name()
        )));
    };
    let mut operations = Vec::new();
    for element in given {
        let operation = match element.name() {
            "and" => BitOperation::And,
            "or" => BitOperation::Or,
            "xor" => BitOperation::Xor,
            other => {
                return Err(Error::bad_value(format!(
                    "The $bit modifier only supports 'and', 'or', and 'xor', not '{other}' which is \
                     an unknown operator: {}",
                    nilometer_bson::extjson::to_relaxed(given)
                )));
            }
        };
        let operand = Integer::of(element.value()).ok_or_else(|| {
            Error::bad_value(format!(
                "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported \
                 here: {}",
                element.value().type_name(),
                nilometer_bson::extjson::to_relaxed(given)
            ))
        })?;
        operations.push((operation, operand));
    }
    if operations.is_empty() {
        return Err(Error::bad_value(format!(
            "You must pass in at least one bitwise operation. The format is: {FORMAT}"
        )));
    }
    Ok(Box::new(Bit { operations }))
}
