//! Wildcard indexes, each read as an index of two parts: `$_path` and one path.
//!
//! Their keys are the values of leaves, so they answer only tests that a scalar passes: not null or `$exists: false`
//! (a missing field has no key), not objects or arrays (which have the keys of their leaves), no negations. A path
//! with a number may mean an array position, which the keys do not record.

use nilometer_bson::path::FieldPath;
use nilometer_bson::{Value, ValueRef};

use super::shape::{is_set, same_collation};
use crate::eval::Collation;
use crate::eval::matcher::MatchExpression;
use crate::index::{Index, IndexPartKind};
use crate::query::planner::bounds::{
    Assigned, IndexShape, Interval, PartBounds, PartForm, PartShape,
};

/// The name of the first component of a wildcard index.
const PATH_PART: &str = "$_path";

/// Returns the shape and bounds for each path of the conjuncts that the index covers.
pub fn readings(
    index: &Index,
    conjuncts: &[MatchExpression],
    collation: &Collation,
) -> Vec<(IndexShape, Assigned)> {
    let [part] = index.parts() else {
        return Vec::new();
    };
    let IndexPartKind::Wildcard { descending } = part.kind else {
        return Vec::new();
    };
    let mut paths: Vec<&str> = Vec::new();
    for test in conjuncts.iter().filter(|test| is_answered(test)) {
        if let Some(path) = test.leaf_path()
            && !paths.contains(&path.as_str())
            && covers(index, path.as_str())
        {
            paths.push(path.as_str());
        }
    }
    let plain = |path: &str, descending, multikey| PartShape {
        path: path.into(),
        descending,
        form: PartForm::Ordered,
        multikey,
    };
    let multikey = is_set(index.stored.multikey(), 0);
    let readings = paths.into_iter().map(|path| {
        let shape = IndexShape {
            parts: vec![
                plain(PATH_PART, false, false),
                plain(path, descending, multikey),
            ],
            collation: index.collation().clone(),
            same_collation: same_collation(index.collation(), collation),
        };
        // Other tests of the path are applied to the document.
        let usable: Vec<MatchExpression> = conjuncts
            .iter()
            .map(|test| {
                if is_answered(test) {
                    test.clone()
                } else {
                    MatchExpression::AlwaysTrue
                }
            })
            .collect();
        let mut assigned = Assigned::of(&usable, &shape);
        if let Some(first) = assigned.bounds.parts.first_mut() {
            *first = PartBounds {
                intervals: vec![Interval::point(Value::from(path))],
                exact: true,
            };
        }
        (shape, assigned)
    });
    readings
        .filter(|(_, assigned)| assigned.bounds.parts.last().is_some_and(|p| !p.is_all()))
        .collect()
}

fn covers(index: &Index, path: &str) -> bool {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    if path.split('.').any(is_number) {
        return false;
    }
    let path = FieldPath::parse_lenient(path);
    let root = index.parts().first().and_then(|part| part.path.as_ref());
    root.is_none_or(|root| path.starts_with(root)) && index.wildcard_fields().covers(&path)
}

/// True for tests only a scalar passes.
fn is_answered(test: &MatchExpression) -> bool {
    let scalar = |value: ValueRef<'_>| {
        !matches!(
            value,
            ValueRef::Null
                | ValueRef::Missing
                | ValueRef::Undefined
                | ValueRef::Document(_)
                | ValueRef::Array(_)
                | ValueRef::MinKey
                | ValueRef::MaxKey
        )
    };
    match test {
        MatchExpression::Compare(comparison) => scalar(comparison.value.as_ref()),
        MatchExpression::In(list) => list.values().iter().all(|value| scalar(value.as_ref())),
        MatchExpression::Regex { .. } => true,
        _ => false,
    }
}
