//! Explain output for reads by a text index.
//!
//! ```text
//! FETCH {filter} ► TEXT_MATCH ► TEXT_OR ► IXSCAN for each term      the score is read
//!                  TEXT_MATCH ► FETCH ► OR ► IXSCAN                 it is not
//! ```

use nilometer_bson::{Document, DocumentBuilder, Value};

use super::by_index::{joined, read, scan_step};
use crate::eval::matcher::MatchExpression;
use crate::eval::projection::MetaField;
use crate::query::exec::scan::index_fetch::AccessStats;
use crate::query::exec::scan::index_scan::KeyStats;
use crate::query::pipeline::Stage;
use crate::query::planner::access::{IndexAccess, IndexScanPlan};
use crate::query::planner::physical::{PhysicalPlan, PhysicalStage, RecordInput};

/// The version of text indexes.
const TEXT_INDEX_VERSION: i32 = 3;

/// True for the stages that carry the score to those that read it.
pub(super) fn is_hidden(stage: &PhysicalStage) -> bool {
    match stage {
        PhysicalStage::Plain(Stage::TextScore(_)) => true,
        PhysicalStage::Project(project) => {
            let source = project.source.as_ref();
            let carrier = MetaField::TextScore.carrier();
            source
                .as_document()
                .is_some_and(|source| source.contains(carrier))
        }
        _ => false,
    }
}

/// Returns the stage tree of a read for a `$text`; `None` if other scans are joined with it.
pub(super) fn tree(
    plan: &PhysicalPlan,
    input: &RecordInput,
    access: &IndexAccess,
    stats: Option<&AccessStats>,
) -> Option<Document> {
    let scans = access.keys.scans();
    let first = scans.first()?;
    if scans.iter().any(|scan| scan.index.text().is_none()) {
        return None;
    }
    let filter = input.filter.as_ref()?;
    let query = filter.text()?.query()?;
    let mut matched = DocumentBuilder::new();
    matched.append("stage", "TEXT_MATCH");
    add_returned(stats, &mut matched);
    matched.append("indexPrefix", prefix(first));
    matched.append("indexName", first.index.stored.spec.name.as_str());
    matched.append("parsedTextQuery", query.to_document());
    matched.append("textIndexVersion", TEXT_INDEX_VERSION);
    matched.append("inputStage", records(plan, access, stats));
    let matched = matched.finish();
    let others = others(access.residual.as_ref());
    if others.is_empty() {
        return Some(matched);
    }
    let mut out = DocumentBuilder::new();
    out.append("stage", "FETCH");
    out.append("filter", MatchExpression::and(others).to_document());
    add_returned(stats, &mut out);
    out.append("inputStage", matched);
    Some(out.finish())
}

/// Returns the conjuncts that are not the `$text`.
fn others(residual: Option<&MatchExpression>) -> Vec<MatchExpression> {
    let mut conjuncts = residual.cloned().unwrap_or_default().into_conjuncts();
    conjuncts.retain(|conjunct| !matches!(conjunct, MatchExpression::Text(_)));
    conjuncts
}

/// Returns the stages that find the records with one of the terms.
fn records(plan: &PhysicalPlan, access: &IndexAccess, stats: Option<&AccessStats>) -> Document {
    let scans = access.keys.scans();
    let step = |at: usize, scan: &IndexScanPlan| {
        let own = stats.and_then(|stats| stats.scans.get(at));
        scan_step(scan, "IXSCAN", own.map(|own| &**own))
    };
    let adds_scores = matches!(
        plan.stages.first(),
        Some(PhysicalStage::Plain(Stage::TextScore(_)))
    );
    let mut out = DocumentBuilder::new();
    if adds_scores {
        out.append("stage", "TEXT_OR");
        add_fetched(stats, &mut out);
        let steps = scans.iter().enumerate().map(|(at, scan)| step(at, scan));
        let mut steps: Vec<Value> = steps.map(Value::from).collect();
        match steps.len() {
            1 => out.append("inputStage", steps.remove(0)),
            _ => out.append("inputStages", steps),
        };
        return out.finish();
    }
    let keys = match scans {
        [only] => step(0, only),
        several => joined("OR", None, several, stats),
    };
    if access.covering.is_some() {
        return keys;
    }
    out.append("stage", "FETCH");
    add_fetched(stats, &mut out);
    out.append("inputStage", keys);
    out.finish()
}

fn add_returned(stats: Option<&AccessStats>, out: &mut DocumentBuilder) {
    if let Some(stats) = stats {
        out.append("nReturned", read(&stats.returned));
    }
}

fn add_fetched(stats: Option<&AccessStats>, out: &mut DocumentBuilder) {
    if let Some(stats) = stats {
        out.append("nReturned", read(&stats.fetched));
        out.append("docsExamined", read(&stats.fetched));
    }
}

/// Returns the values of the fields in front of the terms.
fn prefix(scan: &IndexScanPlan) -> Document {
    let mut out = DocumentBuilder::new();
    for (part, bounds) in scan.shape.parts.iter().zip(&scan.bounds.parts) {
        match &*bounds.intervals {
            [only] if !part.path.starts_with('$') && bounds.is_point(&scan.shape.collation) => {
                out.append(&part.path, only.low.clone());
            }
            _ => break,
        }
    }
    out.finish()
}

/// Adds the properties and figures of a scan for one term, which MongoDB shows without its bounds.
pub(super) fn add_scan(scan: &IndexScanPlan, stats: Option<&KeyStats>, out: &mut DocumentBuilder) {
    let spec = &scan.index.stored.spec;
    out.append("isMultiKey", scan.index.stored.multikey() != 0);
    out.append("isUnique", spec.unique);
    out.append("isSparse", spec.sparse);
    out.append("isPartial", spec.partial_filter.is_some());
    out.append("indexVersion", 2);
    out.append(
        "direction",
        if scan.backward { "backward" } else { "forward" },
    );
    out.append("indexBounds", Document::new());
    if let Some(stats) = stats {
        out.append("keysExamined", read(&stats.keys));
        out.append("seeks", read(&stats.seeks) + 1);
    }
}
