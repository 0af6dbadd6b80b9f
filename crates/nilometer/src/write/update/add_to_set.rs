//! `$addToSet`: adds elements that an array does not contain.

use nilometer_bson::{Element, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use crate::error::{Error, Result};
use crate::eval::{Collation, ParseContext, memory_bytes};

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
        let order = |a: &&Value, b: &&Value| self.collation.compare(a.as_ref(), b.as_ref());
        let known = leaf
            .eval
            .sort(items.iter().collect(), |item| memory_bytes(item), order)?;
        let mut new = Vec::new();
        for value in &self.values {
            leaf.eval.charge_value(value.as_ref())?;
            if known.binary_search_by(|item| order(item, &value)).is_err() {
                new.push(value.clone());
            }
        }
        if new.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        items.append(&mut new);
        Ok(Outcome::Set(items.into()))
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Create
    }
}

/// Returns the values without those equal to an earlier one.
fn without_duplicates(values: Vec<Value>, collation: &Collation) -> Vec<Value> {
    let compare = |a: usize, b: usize| collation.compare(values[a].as_ref(), values[b].as_ref());
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| compare(*a, *b));
    let mut is_new = vec![true; values.len()];
    for pair in order.windows(2) {
        // The sort is stable: of equal values the first is first.
        if let [first, second] = *pair
            && compare(first, second).is_eq()
        {
            is_new[second] = false;
        }
    }
    let mut is_new = is_new.into_iter();
    let mut values = values;
    values.retain(|_| is_new.next().unwrap_or(true));
    values
}

/// Parses `$addToSet`: a value, or `{$each: […]}`.
pub(super) fn parse(argument: Element<'_>, ctx: &ParseContext) -> Result<Box<dyn Modifier>> {
    let collation = Collation::of(ctx);
    let values = match each(argument.value())? {
        Some(given) => without_duplicates(given, &collation),
        None => vec![argument.value().to_value()],
    };
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
