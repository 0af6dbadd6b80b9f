//! `$push`, with `$each`, `$position`, `$sort`, `$slice`.
//!
//! The clauses apply in a fixed order: the elements are inserted at the position, then all are sorted, then
//! the array is cut.

use nilometer_bson::{DocRef, Element, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use super::set::is_same;
use crate::error::{Error, Result};
use crate::eval::sort_key::SortPattern;
use crate::eval::{Collation, ParseContext, memory_bytes};

#[derive(Debug)]
struct Push {
    values: Vec<Value>,
    position: Option<i64>,
    sort: Option<PushSort>,
    slice: Option<i64>,
}

#[derive(Debug)]
enum PushSort {
    Whole {
        descending: bool,
        collation: Collation,
    },
    /// By fields of elements that are objects; others sort as if they had none.
    Fields(SortPattern),
}

impl Modifier for Push {
    fn apply(&self, current: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let mut items: Vec<Value> = match current {
            ValueRef::Missing => Vec::new(),
            ValueRef::Array(array) => array.iter().map(ValueRef::to_value).collect(),
            other => {
                return Err(Error::bad_value(format!(
                    "The field '{}' must be an array but is of type {} in document {}",
                    leaf.path,
                    other.type_name(),
                    leaf.id_text()
                )));
            }
        };
        let at = self
            .position
            .map_or(items.len(), |position| index_of(position, items.len()));
        items.splice(at..at, self.values.iter().cloned());
        if let Some(sort) = &self.sort {
            items = sort.apply(items, leaf)?;
        }
        if let Some(slice) = self.slice {
            let keep = usize::try_from(slice.unsigned_abs()).unwrap_or(usize::MAX);
            if slice < 0 {
                items.drain(..items.len().saturating_sub(keep));
            } else {
                items.truncate(keep);
            }
        }
        let after = Value::from(items);
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

/// Returns the index of a position in an array; a negative one counts from the end.
fn index_of(position: i64, length: usize) -> usize {
    let distance = usize::try_from(position.unsigned_abs()).unwrap_or(usize::MAX);
    if position < 0 {
        length.saturating_sub(distance)
    } else {
        distance.min(length)
    }
}

impl PushSort {
    fn apply(&self, items: Vec<Value>, leaf: &ModifierContext<'_>) -> Result<Vec<Value>> {
        match self {
            Self::Whole {
                descending,
                collation,
            } => leaf.eval.sort(items, memory_bytes, |a, b| {
                let order = collation.compare(a.as_ref(), b.as_ref());
                if *descending { order.reverse() } else { order }
            }),
            Self::Fields(pattern) => {
                let mut keyed = Vec::with_capacity(items.len());
                for item in items {
                    leaf.eval.charge_value(item.as_ref())?;
                    let doc = item.as_ref().as_document().unwrap_or(DocRef::EMPTY);
                    keyed.push((pattern.extract(doc, leaf.eval)?, item));
                }
                let keyed = leaf.eval.sort(
                    keyed,
                    |(_, item)| memory_bytes(item),
                    |(a, _), (b, _)| pattern.compare(a, b),
                )?;
                Ok(keyed.into_iter().map(|(_, item)| item).collect())
            }
        }
    }

    fn parse(value: ValueRef<'_>, ctx: &ParseContext) -> Result<Self> {
        if let ValueRef::Document(pattern) = value {
            if pattern.is_empty() {
                return Err(Error::bad_value(
                    "The $sort pattern is empty when it should be a set of fields.",
                ));
            }
            let bad = |e: Error| Error::bad_value(e.message);
            return SortPattern::parse(pattern, ctx)
                .map(Self::Fields)
                .map_err(bad);
        }
        let descending = match value.as_exact_i64() {
            Some(1) => false,
            Some(-1) => true,
            _ => {
                return Err(Error::bad_value(
                    "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to \
                     sort embedded fields",
                ));
            }
        };
        Ok(Self::Whole {
            descending,
            collation: Collation::of(ctx),
        })
    }
}

/// Parses `$push`.
pub(super) fn parse(argument: Element<'_>, ctx: &ParseContext) -> Result<Box<dyn Modifier>> {
    let mut push = Push {
        values: Vec::new(),
        position: None,
        sort: None,
        slice: None,
    };
    let clauses = match argument.value() {
        ValueRef::Document(clauses) if clauses.contains("$each") => clauses,
        value => {
            push.values.push(value.to_value());
            return Ok(Box::new(push));
        }
    };
    for clause in clauses {
        let value = clause.value();
        match clause.name() {
            "$each" => {
                let ValueRef::Array(values) = value else {
                    return Err(Error::bad_value(format!(
                        "The argument to $each in $push must be an array but it was of type: {}",
                        value.type_name()
                    )));
                };
                push.values = values.iter().map(ValueRef::to_value).collect();
            }
            "$position" => push.position = Some(integer("$position", value)?),
            "$slice" => push.slice = Some(integer("$slice", value)?),
            "$sort" => push.sort = Some(PushSort::parse(value, ctx)?),
            other => {
                return Err(Error::bad_value(format!(
                    "Unrecognized clause in $push: {other}"
                )));
            }
        }
    }
    Ok(Box::new(push))
}

fn integer(clause: &str, value: ValueRef<'_>) -> Result<i64> {
    value.as_exact_i64().ok_or_else(|| {
        Error::bad_value(format!(
            "The value for {clause} must be an integer value but was given type: {}",
            value.type_name()
        ))
    })
}
