//! Enumeration of the index access paths that answer a query.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::Document;

use super::covering::Covering;
use super::order::{Provided, provided};
use super::safety::{holds_all, is_inside_filter};
use super::shape::shape_of;
use super::{Candidate, IndexAccess, IndexScanPlan, KeyLimits, KeyPlan, MergeOrder};
use super::{text, wildcard};
use crate::eval::Collation;
use crate::eval::matcher::MatchExpression;
use crate::eval::sort_key::SortPattern;
use crate::index::Index;
use crate::query::planner::bounds::{Assigned, IndexBounds, IndexShape, PartForm};

/// The maximum number of candidates.
const CANDIDATES_MAX: usize = 64;
/// The maximum number of ordered scans to split one scan over several values into.
const MERGED_SCANS_MAX: usize = 200;

/// A request for documents of a collection.
pub struct Request<'a> {
    /// The filter.
    pub conjuncts: &'a [MatchExpression],
    /// Weaker conditions that the conjuncts imply and that may bound an index.
    pub implied: &'a [MatchExpression],
    /// The required order.
    pub order: Option<&'a SortPattern>,
    /// All paths read of the documents that pass; `None` if more than paths are read.
    pub paths: Option<&'a BTreeSet<Arc<str>>>,
    /// Only one document is needed for each value of this path.
    pub distinct: Option<&'a str>,
    /// The collation of the query.
    pub collation: &'a Collation,
    /// True to use the one hinted index, even if it leaves documents out.
    pub forced: bool,
}

/// A scan, and the conjuncts it covers.
struct Walk {
    scan: IndexScanPlan,
    covered: Vec<bool>,
    /// Its bounds exclude some keys.
    bounded: bool,
}

impl Request<'_> {
    /// Returns the candidates, in the order of the indexes.
    pub fn candidates(&self, indexes: &[Arc<Index>]) -> Vec<Candidate> {
        let mut out = Vec::new();
        for index in indexes {
            for walk in self.walks(index, self.conjuncts) {
                self.add(walk, &mut out);
            }
        }
        for at in 0..self.conjuncts.len() {
            self.add_union(at, indexes, &mut out);
        }
        out.truncate(CANDIDATES_MAX);
        out
    }

    /// Returns the scans of an index that find all documents which pass `conjuncts`.
    fn walks(&self, index: &Arc<Index>, conjuncts: &[MatchExpression]) -> Vec<Walk> {
        let walk = |shape: IndexShape, assigned: Assigned, bounded: bool| Walk {
            scan: IndexScanPlan {
                index: Arc::clone(index),
                shape: Arc::new(shape),
                bounds: assigned.bounds,
                backward: false,
                limits: KeyLimits::default(),
            },
            covered: assigned.covered,
            bounded,
        };
        if index.is_wildcard() {
            let readings = wildcard::readings(index, conjuncts, self.collation);
            // Even with a hint: outside its filter such an index is not worth a full scan.
            return readings
                .into_iter()
                .filter(|(shape, _)| is_inside_filter(index, conjuncts, shape))
                .map(|(shape, assigned)| walk(shape, assigned, true))
                .collect();
        }
        if index.text().is_some() {
            let reading = text::reading(index, conjuncts, self.collation);
            return reading
                .into_iter()
                .filter(|(shape, _)| is_inside_filter(index, conjuncts, shape))
                .map(|(shape, assigned)| walk(shape, assigned, true))
                .collect();
        }
        let Some(shape) = shape_of(index, self.collation) else {
            return Vec::new();
        };
        if !self.forced && !holds_all(index, conjuncts, &shape) {
            return Vec::new();
        }
        let mut all = conjuncts.to_vec();
        all.extend_from_slice(self.implied);
        let assigned = Assigned::of(&all, &shape);
        let first = assigned.bounds.parts.first();
        // A full scan pays off for an index that holds few documents, including all matches.
        let bounded = first.is_some_and(|part| !part.is_all()) || index.leaves_documents_out();
        vec![walk(shape, assigned, bounded)]
    }

    fn add(&self, walk: Walk, out: &mut Vec<Candidate>) {
        let Walk {
            mut scan,
            covered,
            bounded,
        } = walk;
        let residual = self.residual(&covered);
        let is_point = |at: usize| {
            let part = scan.bounds.parts.get(at);
            part.is_some_and(|part| part.is_point(&scan.shape.collation))
        };
        let order = self
            .order
            .and_then(|order| provided(order, &scan.shape, &scan.bounds, &is_point));
        let merged = match (&order, self.order) {
            (None, Some(order)) => merged(order, &scan),
            _ => None,
        };
        let covering = match (&residual, self.paths) {
            (None, Some(paths)) => Covering::of(&scan.index, &scan.shape, paths),
            _ => None,
        };
        let distinct = self
            .distinct
            .filter(|_| covering.is_some() && self.order.is_none())
            .and_then(|path| distinct_parts(path, &scan));
        let sorted = order.is_some();
        if let Some(Provided { backward, .. }) = order {
            scan.backward = backward;
        }
        if let Some(keys) = merged {
            out.push(Candidate {
                access: IndexAccess {
                    keys,
                    residual: residual.clone(),
                    covering: covering.clone(),
                    distinct: None,
                    adds_keys: false,
                },
                sorted: true,
            });
        }
        if bounded || sorted || distinct.is_some() || self.forced {
            let keys = match text::by_term(&scan) {
                Some(terms) => KeyPlan::Union(terms),
                None => KeyPlan::Scan(Box::new(scan)),
            };
            out.push(Candidate {
                access: IndexAccess {
                    keys,
                    residual,
                    covering,
                    distinct,
                    adds_keys: false,
                },
                sorted,
            });
        }
    }

    /// Returns the conjuncts that the bounds do not express.
    fn residual(&self, covered: &[bool]) -> Option<MatchExpression> {
        let left = self.conjuncts.iter().zip(covered);
        let left: Vec<MatchExpression> = left
            .filter(|(_, covered)| !**covered)
            .map(|(conjunct, _)| conjunct.clone())
            .collect();
        if left.is_empty() {
            None
        } else {
            Some(MatchExpression::and(left))
        }
    }

    /// Returns a scan for each arm of the `$or` at `at`: merged in order if all scans give the order, and one after the other.
    /// The other conjuncts apply to every arm and bound it too.
    fn add_union(&self, at: usize, indexes: &[Arc<Index>], out: &mut Vec<Candidate>) {
        let Some(MatchExpression::Or(arms)) = self.conjuncts.get(at) else {
            return;
        };
        let others = || self.conjuncts.iter().enumerate().filter(|(n, _)| *n != at);
        let mut plain: Option<Vec<Walk>> = Some(Vec::new());
        let mut in_order: Option<Vec<(Walk, Provided)>> = self.order.map(|_| Vec::new());
        let mut own_parts = Vec::new();
        for arm in arms {
            let mut conjuncts = arm.clone().into_conjuncts();
            let own = conjuncts.len();
            conjuncts.extend(others().map(|(_, other)| other.clone()));
            own_parts.push(own);
            let all = || {
                indexes
                    .iter()
                    .flat_map(|index| self.walks(index, &conjuncts))
            };
            let mut bounded: Vec<Walk> = all().filter(|walk| walk.bounded).collect();
            if arm.text().is_some() {
                bounded.retain(|walk| walk.scan.index.text().is_some());
            }
            bounded.sort_by_key(|walk| std::cmp::Reverse(promise(&walk.scan)));
            if let (Some(list), Some(order)) = (&mut in_order, self.order) {
                let mut sorted = all().filter_map(|walk| {
                    let provided = in_order_of(order, &walk.scan)?;
                    Some((walk, provided))
                });
                match sorted.by_ref().max_by_key(|(walk, _)| promise(&walk.scan)) {
                    Some(found) => list.push(found),
                    None => in_order = None,
                }
            }
            match (&mut plain, bounded.into_iter().next()) {
                (Some(list), Some(walk)) => list.push(walk),
                _ => plain = None,
            }
        }
        if let (Some(list), Some(order)) = (in_order, self.order)
            && list.iter().any(|(walk, _)| walk.bounded)
        {
            let (walks, provided): (Vec<Walk>, Vec<Provided>) = list.into_iter().unzip();
            let residual = self.union_residual(at, &own_parts, &walks);
            let mut scans: Vec<IndexScanPlan> = walks.into_iter().map(|walk| walk.scan).collect();
            for (scan, provided) in scans.iter_mut().zip(&provided) {
                scan.backward = provided.backward;
            }
            if let Some(merge) = merge_order(order, &provided) {
                out.push(joined(KeyPlan::Merge(scans, merge), residual, true));
            }
        }
        if let Some(walks) = plain
            && !walks.is_empty()
        {
            let residual = self.union_residual(at, &own_parts, &walks);
            let scans = walks.into_iter().map(|walk| walk.scan).collect();
            out.push(joined(KeyPlan::Union(scans), residual, false));
        }
    }

    /// Returns the residual filter: the `$or` unless each scan covers its arm completely, and every other conjunct that some
    /// scan does not cover.
    fn union_residual(
        &self,
        at: usize,
        own_parts: &[usize],
        walks: &[Walk],
    ) -> Option<MatchExpression> {
        let mut covered = vec![true; self.conjuncts.len()];
        for (walk, own) in walks.iter().zip(own_parts) {
            let arm = walk.covered.iter().take(*own).all(|covered| *covered);
            if let Some(slot) = covered.get_mut(at) {
                *slot &= arm;
            }
            let others = (0..self.conjuncts.len()).filter(|n| *n != at);
            for (number, own) in others.zip(walk.covered.iter().skip(*own)) {
                if let Some(slot) = covered.get_mut(number) {
                    *slot &= own;
                }
            }
        }
        self.residual(&covered)
    }
}

fn joined(keys: KeyPlan, residual: Option<MatchExpression>, sorted: bool) -> Candidate {
    Candidate {
        access: IndexAccess {
            keys,
            residual,
            covering: None,
            distinct: None,
            adds_keys: false,
        },
        sorted,
    }
}

/// Estimates the selectivity of a scan: the number of leading parts of one value, then of bounded parts.
fn promise(scan: &IndexScanPlan) -> (usize, usize) {
    let points = scan.bounds.leading_points(&scan.shape.collation);
    let bounded = scan.bounds.parts.iter().filter(|part| !part.is_all());
    (points, bounded.count())
}

fn in_order_of(order: &SortPattern, scan: &IndexScanPlan) -> Option<Provided> {
    let is_point = |at: usize| {
        let part = scan.bounds.parts.get(at);
        part.is_some_and(|part| part.is_point(&scan.shape.collation))
    };
    provided(order, &scan.shape, &scan.bounds, &is_point)
}

/// Returns how scans are merged; `None` if a part of the order is one value in some scans and not in others.
fn merge_order(order: &SortPattern, provided: &[Provided]) -> Option<MergeOrder> {
    let mut kept = Vec::new();
    for number in 0..order.parts().len() {
        let fixed = |p: &Provided| p.components.get(number).is_some_and(Option::is_none);
        if provided.iter().all(fixed) && provided.len() == 1 {
            continue;
        }
        // A part with one value in each scan may have another value in the next.
        if provided.iter().any(fixed) {
            return None;
        }
        kept.push(number);
    }
    let components = provided
        .iter()
        .map(|p| {
            let own = kept.iter().filter_map(|n| p.components.get(*n).copied());
            own.flatten().collect()
        })
        .collect();
    let descending = kept.iter().filter_map(|n| order.parts().get(*n));
    Some(MergeOrder {
        components,
        descending: descending.map(|part| part.descending).collect(),
        pattern: order.to_document(),
    })
}

/// Splits a scan over several values into one for each value, all in the required order.
fn merged(order: &SortPattern, scan: &IndexScanPlan) -> Option<KeyPlan> {
    let collation = &scan.shape.collation;
    let parts = scan.bounds.parts.iter();
    let leading = parts.take_while(|part| part.is_points(collation)).count();
    let mut walks: Vec<IndexBounds> = vec![scan.bounds.clone()];
    for at in 0..leading {
        let values = scan.bounds.parts.get(at)?;
        if walks.len().saturating_mul(values.intervals.len()) > MERGED_SCANS_MAX {
            return None;
        }
        walks = walks
            .into_iter()
            .flat_map(|bounds| {
                values.intervals.iter().map(move |interval| {
                    let mut bounds = bounds.clone();
                    if let Some(part) = bounds.parts.get_mut(at) {
                        part.intervals = vec![interval.clone()];
                    }
                    bounds
                })
            })
            .collect();
    }
    // The order must come after the values, which tell the scans apart.
    let behind = |at: usize| at < leading;
    let sorts_by_values = order.paths().iter().any(|path| {
        let mut own = scan.shape.parts.iter().take(leading);
        own.any(|part| &*part.path == path.as_str())
    });
    if walks.len() < 2 || sorts_by_values {
        return None;
    }
    let by = provided(order, &scan.shape, &scan.bounds, &behind)?;
    let backward = by.backward;
    let each: Vec<Provided> = walks
        .iter()
        .map(|_| Provided {
            backward,
            components: by.components.clone(),
        })
        .collect();
    let merge = merge_order(order, &each)?;
    let scans = walks.into_iter().map(|bounds| IndexScanPlan {
        bounds,
        backward,
        ..scan.clone()
    });
    Some(KeyPlan::Merge(scans.collect(), merge))
}

/// Returns the number of components that tell the values of `path` apart in a scan; `None` if keys with one value are not
/// adjacent.
fn distinct_parts(path: &str, scan: &IndexScanPlan) -> Option<usize> {
    let at = scan.shape.parts.iter().position(|p| &*p.path == path)?;
    let part = scan.shape.parts.get(at)?;
    let points = scan.bounds.leading_points(&scan.shape.collation);
    (part.form == PartForm::Ordered && !part.multikey && points >= at).then_some(at + 1)
}

/// Returns the key pattern for explain.
pub fn key_pattern(scan: &IndexScanPlan) -> Document {
    if !scan.index.is_wildcard() {
        return scan.index.stored.spec.key.clone();
    }
    let mut out = nilometer_bson::DocumentBuilder::new();
    for part in &scan.shape.parts {
        out.append(&part.path, if part.descending { -1 } else { 1 });
    }
    out.finish()
}
