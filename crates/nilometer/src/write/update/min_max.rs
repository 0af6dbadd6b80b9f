//! `$min` and `$max`: the lesser or greater of two values, in the order over all types.

use std::cmp::Ordering;

use nilometer_bson::{Element, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use crate::error::Result;
use crate::eval::{Collation, ParseContext};

#[derive(Debug)]
struct MinMax {
    value: Value,
    /// The order of operand to value in which the operand replaces the value.
    replaces: Ordering,
    collation: Collation,
}

impl Modifier for MinMax {
    fn apply(&self, current: ValueRef<'_>, _: &ModifierContext<'_>) -> Result<Outcome> {
        let replaces = current.is_missing()
            || self.collation.compare(self.value.as_ref(), current) == self.replaces;
        Ok(if replaces {
            Outcome::Set(self.value.clone())
        } else {
            Outcome::Unchanged
        })
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Create
    }
}

/// Parses `$min`.
pub(super) fn parse_min(argument: Element<'_>, ctx: &ParseContext) -> Result<Box<dyn Modifier>> {
    Ok(Box::new(MinMax {
        value: argument.value().to_value(),
        replaces: Ordering::Less,
        collation: Collation::of(ctx),
    }))
}

/// Parses `$max`.
pub(super) fn parse_max(argument: Element<'_>, ctx: &ParseContext) -> Result<Box<dyn Modifier>> {
    Ok(Box::new(MinMax {
        value: argument.value().to_value(),
        replaces: Ordering::Greater,
        collation: Collation::of(ctx),
    }))
}
