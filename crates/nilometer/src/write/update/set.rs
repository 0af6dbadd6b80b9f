//! `$set`, `$setOnInsert`, `$unset`.

use nilometer_bson::{Element, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use crate::error::Result;
use crate::eval::ParseContext;

#[derive(Debug)]
struct Set {
    value: Value,
    only_on_insert: bool,
}

impl Modifier for Set {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let applies = leaf.inserting || !self.only_on_insert;
        if !applies || is_same(current, self.value.as_ref()) {
            return Ok(Outcome::Unchanged);
        }
        Ok(Outcome::Set(self.value.clone()))
    }

    fn missing_path(&self, inserting: bool) -> MissingPathRule {
        if inserting || !self.only_on_insert {
            MissingPathRule::Create
        } else {
            MissingPathRule::Ignore
        }
    }
}

#[derive(Debug)]
struct Unset;

impl Modifier for Unset {
    fn apply(&self, current: ValueRef<'_>, _: &ModifierContext<'_>) -> Result<Outcome> {
        Ok(if current.is_missing() {
            Outcome::Unchanged
        } else {
            Outcome::Remove
        })
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Ignore
    }
}

/// True if two values have the same bytes: 1 and 1.0 do not.
pub(super) fn is_same(a: ValueRef<'_>, b: ValueRef<'_>) -> bool {
    if a.type_code() != b.type_code() {
        return false;
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    nilometer_bson::document::write_value(&mut left, a);
    nilometer_bson::document::write_value(&mut right, b);
    left == right
}

/// Parses `$set`.
pub(super) fn parse(argument: Element<'_>, _: &ParseContext) -> Result<Box<dyn Modifier>> {
    Ok(Box::new(Set {
        value: argument.value().to_value(),
        only_on_insert: false,
    }))
}

/// Parses `$setOnInsert`.
pub(super) fn parse_on_insert(
    argument: Element<'_>,
    _: &ParseContext,
) -> Result<Box<dyn Modifier>> {
    Ok(Box::new(Set {
        value: argument.value().to_value(),
        only_on_insert: true,
    }))
}

/// Parses `$unset`; its operand is ignored.
pub(super) fn parse_unset(_: Element<'_>, _: &ParseContext) -> Result<Box<dyn Modifier>> {
    Ok(Box::new(Unset))
}
