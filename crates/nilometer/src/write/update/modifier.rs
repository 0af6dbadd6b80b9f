//! What stands at the end of an update's path, and the table of operators.
//!
//! A modifier sees the value at its path and says what becomes of it. It knows nothing of the way
//! there: that is [`super::apply`]'s business.

use nilometer_bson::{DocRef, Element, Value, ValueRef};

use super::{add_to_set, arithmetic, bit, current_date, min_max, pop, pull, push, set};
use crate::error::{Error, Result};
use crate::eval::{EvalContext, ParseContext};

/// What becomes of the value at a path.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// It stays.
    Unchanged,
    /// It is replaced, or made.
    Set(Value),
    /// It goes; as an element of an array it becomes null.
    Remove,
}

/// What a modifier does where its path does not lead to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// The value is made, with everything missing on the way. A way through a scalar is an error.
    Create,
    /// Nothing. A way through a scalar is an error.
    Nothing,
    /// Nothing, whatever is on the way.
    Whatever,
}

/// What a modifier may look at beside the value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf<'c> {
    /// The document before the update.
    pub(super) document: DocRef<'c>,
    /// The path, with the indexes that `$` and `$[]` stand for.
    pub(super) path: &'c str,
    /// True when an upsert makes a new document.
    pub(super) inserting: bool,
    /// Time.
    pub(super) eval: &'c EvalContext<'c>,
}

impl Leaf<'_> {
    /// The last component of the path.
    pub(super) fn field(&self) -> &str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, last)| last)
    }

    /// `{_id: …}` of the document, for messages.
    pub(super) fn id_text(&self) -> String {
        match self.document.get("_id") {
            ValueRef::Missing => "{no id}".to_owned(),
            id => shown("_id", id),
        }
    }
}

/// `{name: value}`, for messages.
pub(super) fn shown(name: &str, value: ValueRef<'_>) -> String {
    format!(
        "{{{name}: {}}}",
        nilometer_bson::extjson::value_to_relaxed(value)
    )
}

/// The rule of one operator at one path.
pub(super) trait Modifier: std::fmt::Debug + Send + Sync {
    /// What becomes of `current`, which is missing where the path leads nowhere.
    fn apply(&self, current: ValueRef<'_>, leaf: &Leaf<'_>) -> Result<Outcome>;

    /// What it does where its path leads nowhere.
    fn absent(&self, inserting: bool) -> Absent;
}

/// Makes a modifier from the element `path: argument`.
pub(super) type Parse = fn(Element<'_>, &ParseContext) -> Result<Box<dyn Modifier>>;

/// The operator that moves values, which is two modifiers and no row of the table.
pub(super) const RENAME: &str = "$rename";

/// The operators with one path each.
const MODIFIERS: [(&str, Parse); 14] = [
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

/// The parser of an operator; `None` for `$rename`.
pub(super) fn find(name: &str) -> Result<Option<Parse>> {
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
