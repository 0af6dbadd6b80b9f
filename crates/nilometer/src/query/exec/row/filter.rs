//! `$match`: passes matching documents. A block stays a block with fewer rows selected.

use nilometer_bson::Document;

use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::query::batch::Batch;
use crate::query::exec::vector::filter::select;
use crate::query::exec::{BlockStep, BlockSteps, BoxOperator, ExecContext, Operator, next_filled};

/// Passes documents that match a filter.
pub struct Filter {
    input: BoxOperator,
    filter: MatchExpression,
    /// Blocks are left to the caller.
    is_deferred: bool,
}

impl Filter {
    /// Passes the documents of `input` that match `filter`.
    pub fn new(input: BoxOperator, filter: MatchExpression) -> Self {
        Self {
            input,
            filter,
            is_deferred: false,
        }
    }
}

/// The filter, applied to whole batches.
struct FilterStep(MatchExpression);

impl BlockStep for FilterStep {
    fn apply(&self, batch: Batch, cx: &ExecContext<'_>) -> Result<Batch> {
        filtered(batch, &self.0, cx)
    }
}

fn filtered(batch: Batch, filter: &MatchExpression, cx: &ExecContext<'_>) -> Result<Batch> {
    Ok(match batch {
        Batch::Rows(rows) => Batch::Rows(matching(rows, filter, cx)?),
        Batch::Block(mut block) => {
            block.selection = select(filter, &block, cx)?;
            Batch::Block(block)
        }
    })
}

impl Operator for Filter {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if matches!(self.filter, MatchExpression::AlwaysFalse) {
            return Ok(None);
        }
        loop {
            let batch = match next_filled(&mut self.input, cx)? {
                None => return Ok(None),
                Some(Batch::Block(block)) if self.is_deferred => Batch::Block(block),
                Some(batch) => filtered(batch, &self.filter, cx)?,
            };
            if !batch.is_empty() {
                return Ok(Some(batch));
            }
        }
    }

    fn defer_steps(&mut self) -> Option<BlockSteps> {
        let steps = self.input.defer_steps()?;
        self.is_deferred = true;
        Some(steps.and_then(FilterStep(self.filter.clone())))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_exhausted()
    }
}

/// Returns the documents that match a filter.
pub(crate) fn matching(
    mut rows: Vec<Document>,
    filter: &MatchExpression,
    cx: &ExecContext<'_>,
) -> Result<Vec<Document>> {
    let mut failed = None;
    let matches = |row: &Document| {
        cx.operation.check_interrupt()?;
        filter.matches(row.as_ref(), &cx.eval)
    };
    rows.retain(|row| {
        failed.is_none()
            && matches(row).unwrap_or_else(|error| {
                failed = Some(error);
                false
            })
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(rows),
    }
}
