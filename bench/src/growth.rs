//! Comparison of query times of two runs, for example with different numbers of days.

use std::fmt::Write;

use nilometer_bson::ValueRef;

use crate::report::{Report, median_ms};
use crate::target::Outcome;

/// Returns a table of the queries of a run, compared with the JSON results of another run.
pub fn growth(report: &Report, json: &str) -> Outcome<String> {
    let other = nilometer_bson::extjson::parse_document(json).map_err(|e| e.to_string())?;
    let mut known = Vec::new();
    let queries = other.get("queries").as_array();
    for query in queries.iter().flat_map(|list| list.iter()) {
        let query = query.as_document();
        let name = query.and_then(|query| query.get("name").as_str());
        let median = query.map(|query| query.get("median_ms"));
        let (Some(name), Some(ValueRef::Double(median))) = (name, median) else {
            return Err("a query without a name or a median".to_string());
        };
        known.push((name, median));
    }
    let mut out = String::from(
        "\n| query | the other run, ms | this run, ms | times |\n|---|---:|---:|---:|\n",
    );
    for query in &report.queries {
        let before = known.iter().find(|(name, _)| *name == query.name);
        if let Some((name, before)) = before.filter(|(_, before)| *before > 0.0) {
            let now = median_ms(query);
            let _ = writeln!(
                out,
                "| {name} | {before:.3} | {now:.3} | {:.2} |",
                now / before
            );
        }
    }
    Ok(out)
}
