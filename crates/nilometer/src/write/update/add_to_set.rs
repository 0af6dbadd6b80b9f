//! `$addToSet`: adds elements that an array does not contain.

use nilometer_bson::{Element, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use crate::error::{Error, Result};
use crate::eval::{Collation, ParseContext};

#[derive(Debug)]
struct AddToSet {
    /// Without duplicates.
    values: Vec<Value>,
    collation: Collation,
}

impl Modifier for AddToSet {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let mut items: Vec<Value> = match current {
            ValueRef::Missing => return Ok(Outcome::Set(self.values.clone().into())),
            ValueRef::Array(array) => array.iter().map(ValueRef::to_value).collect(),
            other => {
                return Err(Error::bad_value(format!(
                    "Cannot apply $addToSet to non-array field. Field named '{}' has non-array type \
                     {}",
                    leaf.field(),
                    other.type_name()
                )));
            }
        };
        let before = items.len();
        for value in &self.values {
            push_new(&mut items, value, &self.collation);
        }
        Ok(if items.len() == before {
            Outcome::Unchanged
        } else {
            Outcome::Set(items.into())
        })
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Create
    }
}

fn push_new(items: &mut Vec<Value>, value: &Value, collation: &Collation) {
    let equal = |item: &Value| collation.compare(item.as_ref(), value.as_ref()).is_eq();
    if !items.iter().any(equal) {
        items.push(value.clone());
    }
}

/// Parses `$addToSet`: a value, or `{$each: […]}`.
pub(super) fn parse(argument: Element<'_>, ctx: &ParseContext) -> Result<Box<dyn Modifier>> {
    let collation = Collation::of(ctx);
    let mut values = Vec::new();
    match each(argument.value())? {
        Some(given) => {
            for value in given {
                push_new(&mut values, &value, &collation);
            }
        }
        None => values.push(argument.value().to_value()),
    }
    Ok(Box::new(AddToSet { values, collation }))
}

fn each(argument: ValueRef<'_>) -> Result<Option<Vec<Value>>> {
    let Some(document) = argument.as_document() else {
        return Ok(None);
    };
    let mut clauses = document.iter();
    let Some(first) = clauses.next().filter(|first| first.name() == "$each") else {
        return Ok(None);
    };
    let ValueRef::Array(values) = first.value() else {
        return Err(Error::type_mismatch(format!(
            "The argument to $each in $addToSet must be an array but it was of type {}",
            first.value().type_name()
        )));
    };
    if clauses.next().is_some() {
        return Err(Error::bad_value(format!(
            "Found unexpected fields after $each in $addToSet: {}",
            nilometer_bson::extjson::to_relaxed(document)
        )));
    }
    Ok(Some(values.iter().map(ValueRef::to_value).collect()))
}
