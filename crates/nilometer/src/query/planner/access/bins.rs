//! The index by which the stored bins of a rollup are read.
//!
//! Bins lie in the order of their time, so a condition on the time alone needs no index. Another condition uses the index with the
//! most parts that it gives one value, and of those the one with the most parts that it bounds. Nothing is tried out: indexes of
//! a rollup differ by their fields, and bins that no refresh has stored are computed whichever index is read.

use std::sync::Arc;

use super::candidates::Request;
use super::hint::Hint;
use super::{Candidate, IndexAccess, IndexScanPlan, KeyPlan, implied};
use crate::catalog::StoredRollup;
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::matcher::MatchExpression;
use crate::index::Index;

/// What a query says about the indexes of a rollup.
#[derive(Clone, Debug, Default)]
pub enum BinHint {
    /// Nothing.
    #[default]
    None,
    /// `$natural`: no index.
    Natural,
    /// This index.
    Index(Arc<Index>),
}

impl BinHint {
    /// Returns the hint for the index that a client names. Fails if there is none.
    pub fn named(rollup: &StoredRollup, hint: &Hint) -> Result<Self> {
        Ok(Self::Index(hint.find(&indexes_of(rollup)?)?))
    }
}

fn indexes_of(rollup: &StoredRollup) -> Result<Vec<Arc<Index>>> {
    rollup.indexes.all().iter().map(Index::of).collect()
}

/// Returns how the bins that may pass `conjuncts`, conditions on documents of the rollup, are read by an index; `None` if no index
/// is better than their order. `time_name` is the time field of the rollup.
pub fn choose(
    rollup: &StoredRollup,
    time_name: &str,
    conjuncts: &[MatchExpression],
    hint: &BinHint,
    collation: &Collation,
) -> Option<IndexAccess> {
    let (indexes, forced) = match hint {
        BinHint::Natural => return None,
        BinHint::Index(index) => (vec![Arc::clone(index)], true),
        BinHint::None => {
            let mut all = indexes_of(rollup).ok()?;
            all.retain(|index| index.stored.is_usable());
            (all, false)
        }
    };
    let request = Request {
        conjuncts,
        implied: &implied::comparisons(conjuncts),
        order: None,
        paths: None,
        distinct: None,
        collation,
        forced,
    };
    let mut candidates = request.candidates(&indexes).into_iter();
    if forced {
        return candidates.next().map(|candidate| candidate.access);
    }
    let mut best: Option<(Rank, IndexAccess)> = None;
    for candidate in candidates {
        let Some(rank) = rank(&candidate, time_name) else {
            continue;
        };
        if best.as_ref().is_none_or(|(known, _)| rank > *known) {
            best = Some((rank, candidate.access));
        }
    }
    best.map(|(_, access)| access)
}

/// The number of parts with one value, and of those that are bounded.
type Rank = (usize, usize);

/// Returns how well a candidate narrows the bins down; `None` if it does so by the time alone, or not at all.
fn rank(candidate: &Candidate, time_name: &str) -> Option<Rank> {
    let scans = match &candidate.access.keys {
        KeyPlan::Scan(scan) => std::slice::from_ref(&**scan),
        KeyPlan::Union(scans) => scans,
        KeyPlan::Merge(..) => return None,
    };
    let ranks = scans.iter().map(|scan| rank_of_scan(scan, time_name));
    ranks.collect::<Option<Vec<_>>>()?.into_iter().min()
}

fn rank_of_scan(scan: &IndexScanPlan, time_name: &str) -> Option<Rank> {
    let in_id = format!("_id.{time_name}");
    let parts = scan.bounds.parts.iter().zip(&scan.shape.parts);
    let bounded = parts.take_while(|(bounds, _)| !bounds.is_all());
    let bounded: Vec<_> = bounded.collect();
    let narrows = bounded
        .iter()
        .any(|(_, part)| *part.path != *time_name && *part.path != *in_id);
    let collation = &scan.shape.collation;
    let points = bounded
        .iter()
        .take_while(|(bounds, _)| bounds.is_point(collation));
    narrows.then_some((points.count(), bounded.len()))
}
