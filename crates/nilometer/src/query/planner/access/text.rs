//! Text indexes: scans for the terms of a `$text`.
//!
//! ```text
//! {a: 1, $text: {$search: "cats dogs"}}      index {a: 1, t: "text", z: 1}
//!     a: [1, 1]   $_fts: ["cat", "cat"], ["dog", "dog"]   $_ftsx: all   z: all
//! ```
//!
//! Every field before the terms needs an equality. Documents that pass have an entry for one of the terms; phrases, negated
//! terms and words whose case or diacritics matter are tested on the document.

use super::shape::same_collation;
use crate::error::{Error, ErrorCode};
use crate::eval::Collation;
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::index::{Index, IndexPartKind};
use crate::query::planner::bounds::{
    Assigned, IndexBounds, IndexShape, Interval, PartBounds, PartForm, PartShape,
};
use nilometer_bson::Value;

use super::{Candidate, IndexScanPlan};

/// The name of the terms in a shape: that of no field.
const TERMS_PART: &str = "$_fts";
/// The name of their scores.
const SCORE_PART: &str = "$_ftsx";

/// The largest number of terms with a scan of their own. The terms of a longer search are intervals of one scan.
const TERM_SCANS_MAX: usize = 200;

/// Returns the shape and bounds of a scan for the `$text` among the conjuncts.
pub fn reading(
    index: &Index,
    conjuncts: &[MatchExpression],
    collation: &Collation,
) -> Option<(IndexShape, Assigned)> {
    let (number, test) = conjuncts
        .iter()
        .enumerate()
        .find_map(|(number, test)| match test {
            MatchExpression::Text(test) => Some((number, test)),
            _ => None,
        })?;
    let query = test.query()?;
    let parts = index.parts().iter();
    let before = parts
        .take_while(|part| part.kind != IndexPartKind::Text)
        .count();
    let is_equal = |path: &str| conjuncts.iter().any(|test| is_equality(test, path));
    let mut prefix = index.parts().iter().take(before);
    if !prefix.all(|part| is_equal(part.name())) {
        return None;
    }
    let shape = shape(index, collation);
    let mut assigned = Assigned::of(conjuncts, &shape);
    let points = query
        .index_terms()
        .map(|term| Interval::point(Value::from(term.as_str())));
    let mut intervals: Vec<Interval> = points.collect();
    intervals.sort_by(|a, b| Collation::SIMPLE.compare(a.low.as_ref(), b.low.as_ref()));
    let is_whole = query.is_terms_alone();
    if let Some(part) = assigned.bounds.parts.get_mut(before) {
        *part = PartBounds {
            intervals,
            exact: is_whole,
        };
    }
    if let Some(covered) = assigned.covered.get_mut(number) {
        *covered = is_whole;
    }
    Some((shape, assigned))
}

fn is_equality(test: &MatchExpression, path: &str) -> bool {
    matches!(
        test,
        MatchExpression::Compare(comparison)
            if comparison.op == CompareOp::Eq
                && comparison.path.as_str() == path
                && !matches!(comparison.value, Value::Regex { .. })
    )
}

fn shape(index: &Index, collation: &Collation) -> IndexShape {
    let plain = |path: &str, descending, multikey| PartShape {
        path: path.into(),
        descending,
        form: PartForm::Ordered,
        multikey,
    };
    let mut parts = Vec::new();
    for part in index.parts() {
        if part.kind == IndexPartKind::Text {
            parts.push(plain(TERMS_PART, false, true));
            parts.push(plain(SCORE_PART, false, false));
        } else {
            let descending = part.kind == IndexPartKind::Descending;
            parts.push(plain(part.name(), descending, false));
        }
    }
    IndexShape {
        parts,
        collation: index.collation().clone(),
        same_collation: same_collation(index.collation(), collation),
    }
}

/// Splits a scan of a text index into one for each term; `None` for one term, and for very many.
pub fn by_term(scan: &IndexScanPlan) -> Option<Vec<IndexScanPlan>> {
    scan.index.text()?;
    let part = scan.shape.parts.iter();
    let at = part.take_while(|part| &*part.path != TERMS_PART).count();
    let terms = &scan.bounds.parts.get(at)?.intervals;
    if !(2..=TERM_SCANS_MAX).contains(&terms.len()) {
        return None;
    }
    let of_term = |term: &Interval| {
        let mut bounds = IndexBounds::clone(&scan.bounds);
        if let Some(part) = bounds.parts.get_mut(at) {
            part.intervals = vec![term.clone()];
        }
        IndexScanPlan {
            bounds,
            ..scan.clone()
        }
    };
    Some(terms.iter().map(of_term).collect())
}

/// Returns the name of a part of a shape in keys that users see.
pub fn shown_name(part: &str) -> &str {
    part.strip_prefix("$_")
        .map_or(part, |_| part.trim_start_matches('$'))
}

/// True if a candidate reads a text index.
pub fn is_text(candidate: &Candidate) -> bool {
    let mut scans = candidate.access.keys.scans().iter();
    scans.any(|scan| scan.index.text().is_some())
}

/// Returns the error for a `$text` under `apiStrict`.
pub fn not_in_api() -> Error {
    refused("need exactly one text index for $text query")
}

fn refused(reason: &str) -> Error {
    Error::new(
        ErrorCode::NoQueryExecutionPlans,
        format!("error processing query: planner returned error :: caused by :: {reason}"),
    )
}

/// Returns the error for a `$text` whose index cannot be read.
pub fn no_plan(filter: &MatchExpression) -> Error {
    let is_conjunct = match filter {
        MatchExpression::Text(_) => true,
        MatchExpression::And(arms) => arms
            .iter()
            .any(|arm| matches!(arm, MatchExpression::Text(_))),
        _ => false,
    };
    let reason = if is_conjunct {
        "failed to use text index to satisfy $text query (if text index is compound, are equality \
         predicates given for all prefix fields?)"
    } else {
        "Failed to produce a solution for TEXT under OR - other non-TEXT clauses under OR have to be \
         indexed as well."
    };
    refused(reason)
}
