//! The keys that documents which pass a filter may have.

use nilometer_bson::{Value, ValueRef};

use super::shard_key::{KeyBound, KeyPart, ShardKey};
use crate::eval::collation::has_text;
use crate::eval::matcher::{CompareOp, MatchExpression};

/// Most ranges that a filter is turned into; a filter with more values bounds fewer parts of the key.
const RANGES_MAX: usize = 1000;

/// A range of keys, both ends included.
#[derive(Clone, Debug)]
pub(super) struct KeyRange {
    pub(super) low: KeyBound,
    pub(super) high: KeyBound,
}

/// Returns ranges that contain the keys of all documents which pass `filter`; `None` if that may be any key.
pub(super) fn ranges_of(key: &ShardKey, filter: &MatchExpression) -> Option<Vec<KeyRange>> {
    let conjuncts = conjuncts_of(filter);
    // The values of the leading parts, one list for each combination.
    let mut prefixes: Vec<Vec<Value>> = vec![Vec::new()];
    let mut last = None;
    for part in key.parts() {
        match points(part, &conjuncts) {
            Some(values) if values.len() * prefixes.len() <= RANGES_MAX => {
                let extended = prefixes.iter().flat_map(|prefix| {
                    values.iter().map(move |value| {
                        let mut longer = prefix.clone();
                        longer.push(value.clone());
                        longer
                    })
                });
                prefixes = extended.collect();
            }
            _ => {
                last = bounds(part, &conjuncts);
                break;
            }
        }
    }
    let is_bounded = last.is_some() || prefixes.first().is_some_and(|prefix| !prefix.is_empty());
    if !is_bounded {
        return None;
    }
    let parts = key.parts().len();
    let end = |prefix: &[Value], next: Option<&Value>, rest: &Value| {
        let mut values = prefix.to_vec();
        values.extend(next.cloned());
        values.resize(parts, rest.clone());
        KeyBound(values)
    };
    let range = |prefix: &Vec<Value>| KeyRange {
        low: end(
            prefix,
            last.as_ref().and_then(|(low, _)| low.as_ref()),
            &Value::MinKey,
        ),
        high: end(
            prefix,
            last.as_ref().and_then(|(_, high)| high.as_ref()),
            &Value::MaxKey,
        ),
    };
    Some(prefixes.iter().map(range).collect())
}

/// True if all documents that pass `filter` have one key, whose parts it names.
pub(super) fn is_fixed(key: &ShardKey, filter: &MatchExpression) -> bool {
    let conjuncts = conjuncts_of(filter);
    let mut parts = key.parts().iter();
    parts.all(|part| points(part, &conjuncts).is_some_and(|values| values.len() == 1))
}

fn conjuncts_of(filter: &MatchExpression) -> Vec<&MatchExpression> {
    match filter {
        MatchExpression::And(arms) => arms.iter().flat_map(conjuncts_of).collect(),
        other => vec![other],
    }
}

/// Returns the values that the part has in documents which pass; `None` if there may be others.
fn points(part: &KeyPart, conjuncts: &[&MatchExpression]) -> Option<Vec<Value>> {
    conjuncts.iter().find_map(|conjunct| match conjunct {
        MatchExpression::Compare(comparison)
            if comparison.op == CompareOp::Eq
                && comparison.path.as_str() == part.path.as_str()
                && (comparison.collation.is_simple() || !has_text(&comparison.value)) =>
        {
            place(part, comparison.value.as_ref()).map(|value| vec![value])
        }
        MatchExpression::In(list)
            if list.path.as_str() == part.path.as_str() && list.patterns().is_empty() =>
        {
            let is_simple = list.collation().is_simple();
            let values = list.values().iter().map(|value| {
                let is_exact = is_simple || !has_text(value);
                is_exact.then(|| place(part, value.as_ref())).flatten()
            });
            values.collect()
        }
        _ => None,
    })
}

/// Returns where a value is that documents are compared with; `None` if documents with equal values may be elsewhere. Equal
/// numbers have one place: they compare equal, and the hash truncates them.
fn place(part: &KeyPart, value: ValueRef<'_>) -> Option<Value> {
    let is_one_place = match value {
        // The fields of stored metadata are in another order; an array stands for its elements.
        ValueRef::Document(_) | ValueRef::Array(_) | ValueRef::Regex { .. } => false,
        ValueRef::Missing | ValueRef::Undefined => false,
        _ => true,
    };
    is_one_place.then(|| part.place(value))
}

/// Least and greatest value of a range; `None` where it is open.
type Ends = (Option<Value>, Option<Value>);

/// Returns the range of dates that the filter allows the part; `None` if it allows any value.
fn bounds(part: &KeyPart, conjuncts: &[&MatchExpression]) -> Option<Ends> {
    if part.is_hashed {
        return None;
    }
    let (mut low, mut high): (Option<i64>, Option<i64>) = (None, None);
    for conjunct in conjuncts {
        let MatchExpression::Compare(comparison) = conjunct else {
            continue;
        };
        let Value::DateTime(at) = comparison.value else {
            continue;
        };
        if comparison.path.as_str() != part.path.as_str() {
            continue;
        }
        match comparison.op {
            CompareOp::Gt | CompareOp::Gte => low = Some(low.map_or(at, |known| known.max(at))),
            CompareOp::Lt | CompareOp::Lte => high = Some(high.map_or(at, |known| known.min(at))),
            CompareOp::Eq => {}
        }
    }
    // A comparison with a date matches dates only.
    let ends = (low.map(Value::DateTime), high.map(Value::DateTime));
    (ends.0.is_some() || ends.1.is_some()).then_some(ends)
}
