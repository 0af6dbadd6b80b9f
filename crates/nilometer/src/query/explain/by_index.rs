//! Explain output for reads by index.
//!
//! ```text
//! FETCH {filter} ► IXSCAN        OR / SORT_MERGE ► several IXSCAN
//! COUNT_SCAN, DISTINCT_SCAN, or IXSCAN without FETCH where keys are enough
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::shell_text;
use crate::query::exec::scan::index_fetch::AccessStats;
use crate::query::exec::scan::index_scan::KeyStats;
use crate::query::pipeline::GeoDistanceStage;
use crate::query::planner::access::candidates::key_pattern;
use crate::query::planner::access::choose::TrialResult;
use crate::query::planner::access::{Candidate, Choice, IndexAccess, IndexScanPlan, KeyPlan};
use crate::query::planner::bounds::PartForm;

/// The version of all indexes.
const INDEX_VERSION: i32 = 2;

/// Returns the stage tree of a read by index, with figures if it was run. `counts` is true if the command needs a count
/// only.
pub(super) fn tree(access: &IndexAccess, counts: bool, stats: Option<&AccessStats>) -> Document {
    let fetches = access.covering.is_none();
    let keys = key_tree(access, counts, stats);
    if !fetches {
        return keys;
    }
    let mut out = DocumentBuilder::new();
    out.append("stage", "FETCH");
    if let Some(filter) = &access.residual {
        out.append("filter", filter.to_document());
    }
    if let Some(stats) = stats {
        let (returned, fetched) = (read(&stats.returned), read(&stats.fetched));
        out.append("nReturned", returned);
        out.append("docsExamined", fetched);
        out.append("alreadyHasObj", 0);
    }
    out.append("inputStage", keys);
    out.finish()
}

/// Returns a short description of the indexes that are read.
pub(super) fn summary(access: &IndexAccess) -> String {
    let scans = match &access.keys {
        KeyPlan::Scan(scan) => std::slice::from_ref(&**scan),
        KeyPlan::Union(scans) | KeyPlan::Merge(scans, _) => scans,
    };
    let parts = scans
        .iter()
        .map(|scan| format!("IXSCAN {}", shell_text(&key_pattern(scan))));
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns the tree of the index scans alone.
pub(super) fn keys(access: &IndexAccess) -> Document {
    key_tree(access, false, None)
}

fn key_tree(access: &IndexAccess, counts: bool, stats: Option<&AccessStats>) -> Document {
    let each = |at: usize| stats.and_then(|s| s.scans.get(at)).map(|s| &**s);
    match &access.keys {
        KeyPlan::Scan(scan) => {
            let is_count = counts
                && access.covering.as_ref().is_some_and(|c| c.is_empty())
                && limits_of_count(scan).is_some();
            let name = if access.distinct.is_some() {
                "DISTINCT_SCAN"
            } else if is_count {
                "COUNT_SCAN"
            } else {
                "IXSCAN"
            };
            scan_step(scan, name, each(0))
        }
        KeyPlan::Union(scans) => joined("OR", None, scans, stats),
        KeyPlan::Merge(scans, order) => joined("SORT_MERGE", Some(&order.pattern), scans, stats),
    }
}

pub(super) fn joined(
    name: &str,
    order: Option<&Document>,
    scans: &[IndexScanPlan],
    stats: Option<&AccessStats>,
) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("stage", name);
    if let Some(stats) = stats {
        out.append("nReturned", read(&stats.joined.returned));
        let repeated = read(&stats.joined.repeated);
        out.append("dupsTested", read(&stats.joined.returned) + repeated);
        out.append("dupsDropped", repeated);
    }
    if let Some(order) = order {
        out.append("sortPattern", order.clone());
    }
    let steps = scans.iter().enumerate().map(|(at, scan)| {
        let own = stats.and_then(|s| s.scans.get(at));
        Value::from(scan_step(scan, "IXSCAN", own.map(|s| &**s)))
    });
    out.append("inputStages", steps.collect::<Vec<_>>());
    out.finish()
}

pub(super) fn scan_step(scan: &IndexScanPlan, name: &str, stats: Option<&KeyStats>) -> Document {
    let spec = &scan.index.stored.spec;
    let mut out = DocumentBuilder::new();
    out.append("stage", name);
    if let Some(stats) = stats {
        out.append("nReturned", read(&stats.returned));
    }
    out.append("keyPattern", key_pattern(scan));
    out.append("indexName", spec.name.as_str());
    if let Some(collation) = &spec.collation {
        out.append("collation", collation.clone());
    }
    if scan.index.text().is_some() {
        super::text::add_scan(scan, stats, &mut out);
        return out.finish();
    }
    let multikey = scan.shape.parts.iter().any(|part| part.multikey);
    out.append("isMultiKey", multikey);
    out.begin_document("multiKeyPaths");
    for part in &scan.shape.parts {
        let paths: Vec<Value> = if part.multikey {
            vec![Value::from(&*part.path)]
        } else {
            Vec::new()
        };
        out.append(&part.path, paths);
    }
    out.end();
    out.append("isUnique", spec.unique || spec.name == super::ID_INDEX);
    out.append("isSparse", spec.sparse);
    out.append("isPartial", spec.partial_filter.is_some());
    out.append("indexVersion", INDEX_VERSION);
    match limits_of_count(scan).filter(|_| name == "COUNT_SCAN") {
        Some(bounds) => out.append("indexBounds", bounds),
        None => {
            out.append(
                "direction",
                if scan.backward { "backward" } else { "forward" },
            );
            out.append(
                "indexBounds",
                scan.bounds.explain(&scan.shape, scan.backward),
            )
        }
    };
    if let Some(stats) = stats {
        out.append("keysExamined", read(&stats.keys));
        out.append("seeks", read(&stats.seeks) + 1);
        if multikey {
            let repeated = read(&stats.repeated);
            out.append("dupsTested", read(&stats.returned) + repeated);
            out.append("dupsDropped", repeated);
        }
    }
    out.finish()
}

/// Returns the stage that measures the results of a scan of a geographic index on the same field.
pub(super) fn near(access: &IndexAccess, near: &GeoDistanceStage) -> Option<Document> {
    let scan = access.keys.only()?;
    let name = match scan.shape.part(near.path.as_str())?.form {
        PartForm::Sphere => "GEO_NEAR_2DSPHERE",
        PartForm::Plane(_) => "GEO_NEAR_2D",
        _ => return None,
    };
    Some(doc! {
        "stage": name,
        "keyPattern": key_pattern(scan),
        "indexName": scan.index.stored.spec.name.as_str(),
        "indexVersion": INDEX_VERSION,
    })
}

/// Returns start and end of a scan over one range of keys; `None` for several ranges.
fn limits_of_count(scan: &IndexScanPlan) -> Option<Document> {
    let mut start = DocumentBuilder::new();
    let mut end = DocumentBuilder::new();
    let (mut start_inside, mut end_inside) = (true, true);
    let mut wide = false;
    for (bounds, part) in scan.bounds.parts.iter().zip(&scan.shape.parts) {
        let [interval] = &*bounds.intervals else {
            return None;
        };
        // After a part that is a range, another range would give several.
        if wide && !bounds.is_all() {
            return None;
        }
        wide |= !bounds.is_point(&scan.shape.collation);
        let (low, high) = if part.descending {
            (
                (&interval.high, interval.high_inclusive),
                (&interval.low, interval.low_inclusive),
            )
        } else {
            (
                (&interval.low, interval.low_inclusive),
                (&interval.high, interval.high_inclusive),
            )
        };
        start.append(&part.path, low.0.clone());
        end.append(&part.path, high.0.clone());
        start_inside &= low.1;
        end_inside &= high.1;
    }
    Some(doc! {
        "startKey": start.finish(),
        "startKeyInclusive": start_inside,
        "endKey": end.finish(),
        "endKeyInclusive": end_inside,
    })
}

/// Returns the rejected candidates.
pub(super) fn rejected(choice: &Choice) -> Vec<Value> {
    let trees = choice.rejected.iter();
    trees
        .map(|candidate| Value::from(candidate_tree(candidate, choice)))
        .collect()
}

fn candidate_tree(candidate: &Candidate, choice: &Choice) -> Document {
    let below = tree(&candidate.access, false, None);
    match &choice.order {
        Some(order) if !candidate.sorted => doc! {
            "stage": "SORT",
            "sortPattern": order.clone(),
            "type": "simple",
            "inputStage": below,
        },
        _ => below,
    }
}

/// Returns the trial results of all candidates.
pub(super) fn all_plans(choice: &Choice, chosen: &Document) -> Vec<Value> {
    let rejected = choice.rejected.iter().map(|c| candidate_tree(c, choice));
    let trees = std::iter::once(chosen.clone()).chain(rejected);
    let plans = choice.trials.iter().zip(trees);
    plans
        .map(|(trial, tree)| Value::from(trial_document(trial, tree)))
        .collect()
}

fn trial_document(trial: &TrialResult, tree: Document) -> Document {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    doc! {
        "nReturned": number(trial.rows),
        "works": number(trial.works),
        "totalKeysExamined": number(trial.keys),
        "totalDocsExamined": number(trial.documents),
        "score": trial.score,
        "isEOF": trial.at_end,
        "executionStages": tree,
    }
}

pub(super) fn read(counter: &AtomicU64) -> i64 {
    i64::try_from(counter.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
}
