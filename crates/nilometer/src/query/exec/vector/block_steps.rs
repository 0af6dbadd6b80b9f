//! What an operator leaves to its caller, to be done with each block on another thread.
//!
//! ```text
//! scan ─► $addFields ─► $match ─► $group
//!                                 └ asks for the steps: selection, $addFields, $match; gets the blocks of the scan
//! ```

use std::sync::Arc;

use super::block_selection::BlockSelection;
use crate::error::Result;
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::exec::ExecContext;

/// What one operator does with a batch, whatever came before it.
pub(crate) trait BlockStep: Send + Sync {
    /// Returns what the operator returns for a batch.
    fn apply(&self, batch: Batch, cx: &ExecContext<'_>) -> Result<Batch>;
}

/// The steps of a scan of buckets and of the operators above it.
#[derive(Clone)]
pub struct BlockSteps {
    selection: Arc<BlockSelection>,
    steps: Vec<Arc<dyn BlockStep>>,
}

impl BlockSteps {
    /// Returns the steps of a scan.
    pub(crate) fn of_scan(selection: Arc<BlockSelection>) -> Self {
        Self {
            selection,
            steps: Vec::new(),
        }
    }

    /// Adds the step of the next operator.
    #[must_use]
    pub(crate) fn and_then(mut self, step: impl BlockStep + 'static) -> Self {
        self.steps.push(Arc::new(step));
        self
    }

    /// True if nothing is left to be done with the block.
    pub(crate) fn is_applied(&self, block: &MeasurementBlock) -> bool {
        self.steps.is_empty() && self.selection.is_applied(block)
    }

    /// Selects the measurements of a block, and does the other steps.
    pub(crate) fn apply(&self, mut block: MeasurementBlock, cx: &ExecContext<'_>) -> Result<Batch> {
        self.selection.apply(&mut block, cx)?;
        let mut batch = Batch::Block(block);
        for step in &self.steps {
            if batch.is_empty() {
                break;
            }
            batch = step.apply(batch, cx)?;
        }
        Ok(batch)
    }
}
