//! Comparison of new indexes with existing ones: the same exists, it is new, or it conflicts.
//!
//! Two indexes are *the same* if key, collation, filter, uniqueness, sparseness and wildcard fields are
//! equal, whatever the order of the filter's conditions. No two indexes are the same, and no two have the same name. `hidden` is not compared.

use std::sync::Arc;

use nilometer_bson::extjson::{to_canonical, to_relaxed};
use nilometer_bson::{Document, ValueRef, order};

use super::key::refused;
use crate::catalog::{IndexSpec, Namespace, StoredIndex};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::ParseContext;
use crate::eval::matcher::MatchExpression;
use crate::index::TEXT_TERMS;

/// The largest number of indexes of a collection, with that of `_id`.
const INDEXES_MAX: usize = 64;

/// The result of the comparison.
pub(super) struct Decision {
    /// Indexes to create.
    pub(super) new: Vec<IndexSpec>,
    /// Indexes that exist.
    pub(super) known: Vec<Arc<StoredIndex>>,
}

/// Compares `wanted` with the existing indexes `there`.
pub(super) fn decide(
    namespace: &Namespace,
    there: &[Arc<StoredIndex>],
    wanted: &[IndexSpec],
    others: usize,
) -> Result<Decision> {
    let mut decision = Decision {
        new: Vec::new(),
        known: Vec::new(),
    };
    for spec in wanted {
        let mut known = None;
        for index in there {
            if is_there(spec, &index.spec)? {
                known = Some(index);
            }
        }
        if let Some(known) = known {
            decision.known.push(known.clone());
            continue;
        }
        for other in &decision.new {
            if is_there(spec, other)? {
                return Err(Error::new(
                    ErrorCode::IndexAlreadyExists,
                    format!("Identical index specified more than once: {}", spec.name),
                ));
            }
        }
        let before = there.iter().map(|index| &index.spec).chain(&decision.new);
        refuse_second_text(spec, before)?;
        if others + there.len() + decision.new.len() >= INDEXES_MAX {
            return Err(refused(format!(
                "add index fails, too many indexes for {namespace} key:{}",
                to_relaxed(spec.key.as_ref())
            )));
        }
        decision.new.push(spec.clone());
    }
    Ok(decision)
}

/// A collection has one text index.
fn refuse_second_text<'s>(
    wanted: &IndexSpec,
    mut before: impl Iterator<Item = &'s IndexSpec>,
) -> Result<()> {
    let is_text = |spec: &IndexSpec| !spec.key.get(TEXT_TERMS).is_missing();
    match before.find(|spec| is_text(spec)) {
        Some(other) if is_text(wanted) => Err(refused(format!(
            "only one text index per collection allowed, found existing text index \"{}\"",
            other.name
        ))),
        _ => Ok(()),
    }
}

/// True if `there` is the same index; an error if both cannot exist.
fn is_there(wanted: &IndexSpec, there: &IndexSpec) -> Result<bool> {
    let shown = |spec: &IndexSpec| to_relaxed(spec.to_document().as_ref());
    if wanted.name == there.name {
        if !is_same(wanted, there) {
            return Err(Error::new(
                ErrorCode::IndexKeySpecsConflict,
                format!(
                    "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Requested index: {}, existing index: {}",
                    shown(wanted),
                    shown(there)
                ),
            ));
        }
        if !has_same_options(wanted, there) {
            return Err(Error::new(
                ErrorCode::IndexOptionsConflict,
                format!(
                    "An equivalent index already exists with the same name but different options. Requested index: {}, existing index: {}",
                    shown(wanted),
                    shown(there)
                ),
            ));
        }
        return Ok(true);
    }
    if !is_same(wanted, there) {
        return Ok(false);
    }
    let message = if has_same_options(wanted, there) {
        format!("Index already exists with a different name: {}", there.name)
    } else {
        format!(
            "An equivalent index already exists with a different name and options. Requested index: {}, existing index: {}",
            shown(wanted),
            shown(there)
        )
    };
    Err(Error::new(ErrorCode::IndexOptionsConflict, message))
}

fn is_same(a: &IndexSpec, b: &IndexSpec) -> bool {
    let projection = |spec: &IndexSpec| spec.others.get("wildcardProjection").to_value();
    equal_documents(Some(&a.key), Some(&b.key))
        && equal_documents(a.collation.as_ref(), b.collation.as_ref())
        && has_same_filter(a, b)
        && (a.unique, a.sparse) == (b.unique, b.sparse)
        && order::compare(projection(a).as_ref(), projection(b).as_ref()).is_eq()
}

/// True if the partial filters have the same conditions, in any order.
fn has_same_filter(a: &IndexSpec, b: &IndexSpec) -> bool {
    match (&a.partial_filter, &b.partial_filter) {
        (Some(a), Some(b)) => {
            equal_documents(Some(a), Some(b))
                || conditions(a).is_some_and(|own| conditions(b) == Some(own))
        }
        (None, None) => true,
        _ => false,
    }
}

/// Returns a text that is the same for filters with the same conditions; `None` if the filter cannot be parsed.
fn conditions(filter: &Document) -> Option<String> {
    let parsed = MatchExpression::parse(filter.as_ref(), &ParseContext::new()).ok()?;
    Some(sorted_conditions(parsed.simplify()))
}

fn sorted_conditions(filter: MatchExpression) -> String {
    let sorted = |arms: Vec<MatchExpression>, name: &str| {
        let mut arms: Vec<String> = arms.into_iter().map(sorted_conditions).collect();
        arms.sort_unstable();
        format!("{name}[{}]", arms.join(","))
    };
    match filter {
        all @ MatchExpression::And(_) => sorted(all.into_conjuncts(), "$and"),
        MatchExpression::Or(arms) => sorted(arms, "$or"),
        test => to_canonical(test.to_document().as_ref()),
    }
}

fn has_same_options(a: &IndexSpec, b: &IndexSpec) -> bool {
    const COMPARED: &[&str] = &[
        "bits",
        "min",
        "max",
        "2dsphereIndexVersion",
        "finestIndexedLevel",
        "coarsestIndexedLevel",
        "weights",
        "default_language",
        "language_override",
        "textIndexVersion",
    ];
    a.expire_after_seconds == b.expire_after_seconds
        && COMPARED
            .iter()
            .all(|name| order::compare(a.others.get(name), b.others.get(name)).is_eq())
}

/// True for equal values in equal order, numbers by value.
pub(in crate::commands) fn equal_documents(a: Option<&Document>, b: Option<&Document>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            let (a, b) = (
                ValueRef::Document(a.as_ref()),
                ValueRef::Document(b.as_ref()),
            );
            order::compare(a, b).is_eq()
        }
        (None, None) => true,
        _ => false,
    }
}
