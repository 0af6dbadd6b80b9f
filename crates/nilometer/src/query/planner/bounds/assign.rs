//! Chooses which conjuncts bound which part of an index.

use std::sync::Arc;

use super::interval::normalised;
use super::leaf::Leaf;
use super::{IndexBounds, IndexShape, PartBounds, PartForm, PartShape};
use crate::eval::expression::hashed_index_key;
use crate::eval::matcher::MatchExpression;
use nilometer_bson::Value;

/// The bounds of an index, and how each conjunct relates to them.
#[derive(Clone, Debug)]
pub struct Assigned {
    /// One list of intervals for each part.
    pub bounds: IndexBounds,
    /// For each conjunct: true if every document with a key inside the bounds matches it.
    pub covered: Vec<bool>,
    /// For each conjunct: true if it contributed to the bounds.
    pub used: Vec<bool>,
}

/// A bounded multikey part, with the conjunct and path of the `$elemMatch` that bounds it, if any.
struct Bounded {
    part: usize,
    element_of: Option<(usize, Arc<str>)>,
}

/// Bounds of one part that follow from one conjunct.
struct Offer {
    conjunct: usize,
    /// The path of the `$elemMatch` that contains the test.
    element_of: Option<Arc<str>>,
    bounds: PartBounds,
}

impl IndexBounds {
    /// Returns the bounds of an index for a filter; `None` if its first part is not bounded.
    pub fn of(filter: &MatchExpression, shape: &IndexShape) -> Option<Self> {
        let conjuncts = filter.clone().into_conjuncts();
        let assigned = Assigned::of(&conjuncts, shape);
        let bounded = assigned.bounds.parts.first().is_some_and(|p| !p.is_all());
        bounded.then_some(assigned.bounds)
    }
}

impl Assigned {
    /// Returns the bounds of an index for a conjunction.
    pub fn of(conjuncts: &[MatchExpression], shape: &IndexShape) -> Self {
        let mut out = Self {
            bounds: IndexBounds::all(shape.parts.len()),
            covered: vec![false; conjuncts.len()],
            used: vec![false; conjuncts.len()],
        };
        let mut bounded: Vec<Bounded> = Vec::new();
        for (at, part) in shape.parts.iter().enumerate() {
            let mut offers = offers(conjuncts, shape, part);
            if part.multikey {
                offers.retain(|offer| fits(shape, part, offer, &bounded));
                // Two elements may satisfy two conditions, so only one condition gives bounds.
                let best = offers
                    .iter()
                    .enumerate()
                    .min_by_key(|(_, o)| width(&o.bounds));
                if let Some((best, _)) = best {
                    offers.swap(0, best);
                    offers.truncate(1);
                }
            }
            let leaf = Leaf::of(shape, part);
            let mut all: Option<PartBounds> = None;
            for offer in &offers {
                if let Some(used) = out.used.get_mut(offer.conjunct) {
                    *used = true;
                }
                let exact = offer.bounds.exact && part.form == PartForm::Ordered;
                if let Some(covered) = out.covered.get_mut(offer.conjunct) {
                    *covered |= exact && offer.element_of.is_none();
                }
                all = Some(match all {
                    None => offer.bounds.clone(),
                    Some(known) => leaf.both(&known, &offer.bounds),
                });
            }
            if part.multikey
                && let Some(only) = offers.first()
            {
                let element_of = only.element_of.clone();
                bounded.push(Bounded {
                    part: at,
                    element_of: element_of.map(|path| (only.conjunct, path)),
                });
            }
            if let (Some(all), Some(slot)) = (all, out.bounds.parts.get_mut(at)) {
                *slot = all;
            }
        }
        out
    }
}

/// Returns the bounds of a part that follow from each conjunct.
fn offers(conjuncts: &[MatchExpression], shape: &IndexShape, part: &PartShape) -> Vec<Offer> {
    match part.form {
        PartForm::Opaque => return Vec::new(),
        PartForm::Sphere | PartForm::Plane(_) => return geographic(conjuncts, part),
        PartForm::Ordered | PartForm::Hashed => {}
    }
    let mut out = Vec::new();
    for (conjunct, test) in conjuncts.iter().enumerate() {
        offer(test, conjunct, None, &part.path, shape, part, &mut out);
    }
    if part.form == PartForm::Hashed {
        for offer in &mut out {
            offer.bounds = hashed(&offer.bounds, shape);
        }
    }
    out.retain(|offer| !offer.bounds.is_all() || offer.bounds.exact);
    out
}

/// Adds the bounds of the part that follow from `test`. `path` is the part's path relative to the test.
fn offer(
    test: &MatchExpression,
    conjunct: usize,
    element_of: Option<&Arc<str>>,
    path: &str,
    shape: &IndexShape,
    part: &PartShape,
    out: &mut Vec<Offer>,
) {
    if reads_only(test, path) {
        if let Some(bounds) = Leaf::of(shape, part).bounds(test) {
            out.push(Offer {
                conjunct,
                element_of: element_of.cloned(),
                bounds,
            });
        }
        return;
    }
    match test {
        MatchExpression::ElemMatchObject { path: at, filter } => {
            let below = path.strip_prefix(at.as_str());
            let Some(rest) = below.and_then(|rest| rest.strip_prefix('.')) else {
                return;
            };
            // An array among the elements is read as a document with the indexes as names. Of these the index has only
            // the keys of one.
            if rest.starts_with(|first: char| first.is_ascii_digit()) {
                return;
            }
            // If an array holds the elements, the part is multikey. If the part is not multikey, there is no such
            // array.
            let outer: Arc<str> = part
                .path
                .get(..part.path.len() - rest.len() - 1)
                .unwrap_or_default()
                .into();
            let arms = filter.as_ref().clone().into_conjuncts();
            for arm in &arms {
                offer(arm, conjunct, Some(&outer), rest, shape, part, out);
            }
        }
        MatchExpression::And(arms) => {
            for arm in arms {
                offer(arm, conjunct, element_of, path, shape, part, out);
            }
        }
        _ => {}
    }
}

/// True if the test reads only `path` and the rules of leaves apply to it.
fn reads_only(test: &MatchExpression, path: &str) -> bool {
    match test {
        MatchExpression::Not(inner) => inner
            .leaf_path()
            .is_some_and(|own| own.as_str() == path && !own.is_itself()),
        MatchExpression::ExprCompare(comparison) => comparison.path.as_str() == path,
        MatchExpression::Or(arms) => !arms.is_empty() && arms.iter().all(|a| reads_only(a, path)),
        leaf => leaf
            .leaf_path()
            .is_some_and(|own| own.as_str() == path && !own.is_itself()),
    }
}

/// True if the offer may bound a multikey part in addition to the parts already bounded.
fn fits(shape: &IndexShape, part: &PartShape, offer: &Offer, bounded: &[Bounded]) -> bool {
    bounded.iter().all(|known| {
        let Some(other) = shape.parts.get(known.part) else {
            return false;
        };
        let shared = shared_prefix(&part.path, &other.path);
        if shared.is_empty() {
            return true;
        }
        // Both tests apply to the same element, and the paths share no array below it.
        match (&known.element_of, &offer.element_of) {
            (Some((conjunct, path)), Some(own)) => {
                *conjunct == offer.conjunct && path == own && &**own == shared
            }
            _ => false,
        }
    })
}

/// Returns the leading components that both paths share.
fn shared_prefix<'a>(a: &'a str, b: &str) -> &'a str {
    let mut end = 0;
    let mut at = 0;
    for (x, y) in a.split('.').zip(b.split('.')) {
        if x != y {
            break;
        }
        end = at + x.len();
        at = end + 1;
    }
    a.get(..end).unwrap_or_default()
}

/// Returns a measure of how many keys the bounds leave, to choose the narrowest: points, then ranges, then all keys.
fn width(bounds: &PartBounds) -> (usize, usize) {
    let open = |value: &Value| {
        matches!(value, Value::MinKey | Value::MaxKey)
            || matches!(value, Value::Double(v) if v.is_infinite())
            || matches!(value, Value::DateTime(i64::MIN | i64::MAX))
    };
    let ends: usize = bounds
        .intervals
        .iter()
        .map(|interval| {
            if interval.is_point(None) {
                0
            } else {
                1 + usize::from(open(&interval.low)) + usize::from(open(&interval.high))
            }
        })
        .max()
        .unwrap_or(0);
    (ends, bounds.intervals.len())
}

/// Returns the cells that contain the keys of values matching a geographic test.
fn geographic(conjuncts: &[MatchExpression], part: &PartShape) -> Vec<Offer> {
    let mut out = Vec::new();
    for (conjunct, test) in conjuncts.iter().enumerate() {
        let MatchExpression::Geo { path, test } = test else {
            continue;
        };
        if path.as_str() != &*part.path {
            continue;
        }
        let ranges: Option<Vec<(i64, i64)>> = match part.form {
            PartForm::Sphere => test.cell_ranges().map(|ranges| {
                let keys = ranges.iter().map(|range| (range.min.0, range.max.0));
                keys.collect()
            }),
            PartForm::Plane(grid) => grid
                .test_ranges(test)
                .map(|ranges| ranges.into_iter().map(|range| range.keys()).collect()),
            _ => None,
        };
        let Some(mut ranges) = ranges else {
            continue;
        };
        ranges.sort_unstable();
        let intervals = ranges
            .into_iter()
            .map(|(low, high)| super::Interval::closed(Value::Int64(low), Value::Int64(high)));
        out.push(Offer {
            conjunct,
            element_of: None,
            bounds: PartBounds {
                intervals: normalised(intervals.collect(), None),
                exact: false,
            },
        });
    }
    out
}

/// Converts points to points of hashes, and other bounds to all keys.
fn hashed(bounds: &PartBounds, shape: &IndexShape) -> PartBounds {
    if !bounds.is_points(&shape.collation) {
        return PartBounds::all();
    }
    let mut hashes: Vec<i64> = bounds
        .intervals
        .iter()
        .map(|interval| hashed_index_key::hash(interval.low.as_ref()))
        .collect();
    hashes.sort_unstable();
    hashes.dedup();
    let points = hashes
        .into_iter()
        .map(|h| super::Interval::point(Value::Int64(h)));
    PartBounds {
        intervals: points.collect(),
        exact: false,
    }
}
