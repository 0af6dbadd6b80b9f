//! `$top`, `$bottom` and their lists by values: only the rows of a run whose sort key may matter become documents.
//!
//! ```text
//! {$topN: {n: 2, sortBy: {v: -1}, …}}    of a run the two rows with the greatest values, if these are above what is kept
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Table;
use super::vectorized::GroupRun;
use crate::error::Result;
use crate::eval::Expression;
use crate::eval::accumulator::AccumulatorSpec;
use crate::query::batch::MeasurementBlock;
use crate::query::exec::ExecContext;
use crate::query::exec::vector::filter::narrowed;
use crate::query::exec::vector::rows_before::SortEnd;

/// Adds those rows of each run whose sort key may matter.
pub(super) fn accumulate(
    (at, spec): (usize, &AccumulatorSpec),
    fields: &BTreeSet<Arc<str>>,
    block: &MeasurementBlock,
    runs: &[GroupRun],
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<()> {
    // The fields include those of the sort.
    let MeasurementBlock { bucket, shape, .. } = narrowed(block, fields.clone());
    for run in runs {
        let mut part = MeasurementBlock {
            bucket: Arc::clone(&bucket),
            shape: Arc::clone(&shape),
            selection: block.selection.part(run.rows.clone()),
        };
        if let Some(state) = table.state(run.group, at)
            && let Some(ranks) = spec.ranks(state)
        {
            let end = SortEnd::new(ranks.sort, ranks.last);
            // A row that is kept for a while has its output evaluated, which may fail.
            let count = match never_fails(spec.argument()) {
                true => ranks.count,
                false => usize::MAX,
            };
            part.selection = end.rows(&part, ranks.edge, count)?;
        }
        if part.selection.is_empty() {
            continue;
        }
        let rows = part.to_rows()?;
        table.change(run.group, at, spec, |state| {
            let mut rows = rows.iter();
            rows.try_for_each(|row| spec.add(state, row.as_ref(), &cx.eval))
        })?;
    }
    Ok(())
}

/// True if the expression has a value for every document.
fn never_fails(expression: &Expression) -> bool {
    match expression {
        Expression::FieldPath(_) | Expression::Constant(_) => true,
        Expression::Array(parts) => parts.iter().all(never_fails),
        Expression::Object(members) => members.iter().all(|(_, part)| never_fails(part)),
        _ => false,
    }
}
