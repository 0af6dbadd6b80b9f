//! `$rename`: moves the value of one path to another.
//!
//! It consists of two modifiers: one removes the source, one sets the target to the value the source had
//! before the update. Both take part in the detection of conflicts. Neither path may lead through an array.

use nilometer_bson::{Element, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome, element_text};
use super::path::{self, PathComponent};
use super::set::is_same;
use crate::error::{Error, ErrorCode, Result};

#[derive(Debug)]
struct RenameSource;

impl Modifier for RenameSource {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        find(leaf, leaf.path, SOURCE)?;
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

#[derive(Debug)]
struct RenameTarget {
    source: String,
}

impl Modifier for RenameTarget {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let value = find(leaf, &self.source, SOURCE)?;
        if value.is_missing() {
            return Ok(Outcome::Unchanged);
        }
        find(leaf, leaf.path, "destination")?;
        Ok(if is_same(current, value) {
            Outcome::Unchanged
        } else {
            Outcome::Set(value.to_value())
        })
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Create
    }
}

const SOURCE: &str = "source";

/// Returns the value at `path` of the old document; an error if the path leads through an array, or that of the source
/// through a scalar.
fn find<'d>(leaf: &ModifierContext<'d>, path: &str, role: &str) -> Result<ValueRef<'d>> {
    let mut value = ValueRef::Document(leaf.document);
    let mut field = "";
    for name in path.split('.') {
        value = match value {
            ValueRef::Document(document) => document.get(name),
            ValueRef::Array(_) => {
                return Err(Error::bad_value(format!(
                    "The {role} field cannot be an array element, '{path}' in doc with {} has an \
                     array field called '{field}'",
                    leaf.id_text()
                )));
            }
            ValueRef::Missing => return Ok(ValueRef::Missing),
            // As in MongoDB, the source may be absent but not below a value that has no fields.
            scalar if role == SOURCE => {
                return Err(Error::new(
                    ErrorCode::PathNotViable,
                    format!(
                        "cannot use the part ({field} of {path}) to traverse the element ({})",
                        element_text(field, scalar)
                    ),
                ));
            }
            _ => return Ok(ValueRef::Missing),
        };
        field = name;
    }
    Ok(value)
}

/// Parses `from: "to"` into its two modifiers.
pub(super) fn parse(argument: Element<'_>) -> Result<[(String, Box<dyn Modifier>); 2]> {
    let from = argument.name();
    let ValueRef::String(to) = argument.value() else {
        return Err(Error::bad_value(format!(
            "The 'to' field for $rename must be a string: {from}: {}",
            nilometer_bson::extjson::value_to_relaxed(argument.value())
        )));
    };
    if from == to {
        return Err(Error::bad_value(format!(
            "The source and target field for $rename must differ: {from}: \"{to}\""
        )));
    }
    for (role, path) in [(SOURCE, from), ("destination", to)] {
        let dynamic = path::parse(path)?
            .iter()
            .any(|c| !matches!(c, PathComponent::Field(_)));
        if dynamic {
            return Err(Error::bad_value(format!(
                "The {role} field for $rename may not be dynamic: {path}"
            )));
        }
    }
    let within = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    if within(from, to) || within(to, from) {
        return Err(Error::bad_value(format!(
            "The source and target field for $rename must not be on the same path: {from}: \"{to}\""
        )));
    }
    let source = from.to_owned();
    Ok([
        (from.to_owned(), Box::new(RenameSource)),
        (to.to_owned(), Box::new(RenameTarget { source })),
    ])
}
