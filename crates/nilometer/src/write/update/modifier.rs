//! The modifier at the end of a path, and the table of operators.
//!
//! A modifier maps the value at its path to an outcome. [`super::apply`] walks the path.

use nilometer_bson::{DocRef, Element, Value, ValueRef};

use super::{add_to_set, arithmetic, bit, current_date, min_max, pop, pull, push, set};
use crate::error::{Error, Result};
use crate::eval::{EvalContext, ParseContext};

/// The effect of a modifier on the value at its path.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The value does not change.
    Unchanged,
    /// The value is replaced or created.
    Set(Value),
    /// The value is removed; an array element becomes null.
    Remove,
}

/// The effect of a modifier whose path leads to no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingPathRule {
    /// The value and all missing objects on the path are created. A path through a scalar is an error.
    Create,
    /// Nothing. A path through a scalar is an error.
    Keep,
    /// Nothing, even for a path through a scalar.
    Ignore,
}

/// The context of the value.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModifierContext<'c> {
    /// The document before the update.
    pub(super) document: DocRef<'c>,
    /// The path, with the array indexes in place of `$` and `$[]`.
    pub(super) path: &'c str,
    /// True if an upsert creates a document.
    pub(super) inserting: bool,
    /// The evaluation context, for the time.
    pub(super) eval: &'c EvalContext<'c>,
}

impl ModifierContext<'_> {
    /// Returns the last component of the path.
    pub(super) fn field(&self) -> &str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, last)| last)
    }

    /// Returns `{_id: …}` of the document, for messages.
    pub(super) fn id_text(&self) -> String {
        match self.document.get("_id") {
            ValueRef::Missing => "{no id}".to_owned(),
            id => element_text("_id", id),
        }
    }
}

/// Returns `{name: value}`, for messages.
pub(super) fn element_text(name: &str, value: ValueRef<'_>) -> String {
    format!(
        "{{{name}: {}}}",
        nilometer_bson::extjson::value_to_relaxed(value)
    )
}

/// The function of one operator at one path.
pub(super) trait Modifier: std::fmt::Debug + Send + Sync {
    /// Returns the effect on `current`, which is missing if the path leads to no value.
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome>;

    /// Returns the effect if the path leads to no value.
    fn missing_path(&self, inserting: bool) -> MissingPathRule;
}

/// Parses a modifier from the element `path: argument`.
pub(super) type ParseModifier = fn(Element<'_>, &ParseContext) -> Result<Box<dyn Modifier>>;

/// The operator that moves values: two modifiers, not in the table.
pub(super) const RENAME: &str = "$rename";

/// The operators with one path each.
const MODIFIERS: [(&str, ParseModifier); 14] = [
    ("$addToSet", add_to_set::parse),
    ("$bit", bit::parse),
    ("$currentDate", current_date::parse),
    ("$inc", arithmetic::parse_inc),
    ("$max", min_max::parse_max),
    ("$min", min_max::parse_min),
    ("$mul", arithmetic::parse_mul),
    ("$pop", pop::parse),
    ("$pull", pull::parse),
    ("$pullAll", pull::parse_all),
    ("$push", push::parse),
    ("$set", set::parse),
    ("$setOnInsert", set::parse_on_insert),
    ("$unset", set::parse_unset),
];

/// All update operators, by name.
pub const MODIFIER_NAMES: [&str; 15] = [
    "$addToSet",
    "$bit",
    "$currentDate",
    "$inc",
    "$max",
    "$min",
    "$mul",
    "$pop",
    "$pull",
    "$pullAll",
    "$push",
    "$rename",
    "$set",
    "$setOnInsert",
    "$unset",
];

/// Returns the parser of an operator; `None` for `$rename`.
pub(super) fn find(name: &str) -> Result<Option<ParseModifier>> {
    if name == RENAME {
        return Ok(None);
    }
    match MODIFIERS.iter().find(|(known, _)| *known == name) {
        Some((_, parse)) => Ok(Some(*parse)),
        None => Err(Error::failed_to_parse(format!(
            "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update \
             specified as an array"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_in_a_table() {
        for name in MODIFIER_NAMES {
            assert_eq!(find(name).unwrap().is_none(), name == RENAME);
        }
        assert_eq!(MODIFIER_NAMES.len(), MODIFIERS.len() + 1);
        assert_eq!(find("$foo").unwrap_err().code.0, 9);
    }
}
