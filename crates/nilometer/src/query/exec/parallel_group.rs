//! `$group` by several threads: each gathers a table of a part of the input, and the parts are added to one table in
//! the order of the input.
//!
//! ```text
//! input    batches │ batches │ batches │ …                   measurements of a bucket each, columns undecoded
//! table    by the query's thread ◄─ absorb ─ absorb ─ …      columns decoded and added up by whoever has time
//! ```
//!
//! The answer is that of one thread. Groups come in the order in which they are first met; whole numbers and decimals add
//! up exactly; doubles are added in pairs of doubles (106 bits) however they come, which are rounded
//! once, in the end, so that how the input was cut shows in the last bit only where a sum lies within 2^-100 of
//! the middle between two doubles, or overflows on the way. Accumulators whose parts do not add up that well
//! (`$stdDevPop`, `$stdDevSamp`) or that hold all they see (`$push` and its like) are left to one thread, and so is
//! everything random.

use std::sync::Arc;

use super::group::Table;
use super::workers::{Helpers, Pieces};
use super::{BoxOperator, ExecContext, ExecSettings, next_filled};
use crate::error::Result;
use crate::eval::Dependencies;
use crate::eval::accumulator::AccumulatorKind;
use crate::query::batch::Batch;
use crate::query::pipeline::GroupStage;

/// A stage that several threads may work on.
pub(super) struct Shared {
    helpers: Helpers,
    stage: GroupStage,
}

impl Shared {
    /// The stage, if there are threads to help and they cannot be told from one.
    pub(super) fn of(stage: &GroupStage, cx: &ExecContext<'_>) -> Option<Self> {
        let helpers = cx.settings.helpers.clone()?;
        let adds_up = |kind| {
            use AccumulatorKind as K;
            matches!(
                kind,
                K::Sum
                    | K::Avg
                    | K::Count
                    | K::Min
                    | K::Max
                    | K::First
                    | K::Last
                    | K::Top
                    | K::Bottom
                    | K::FirstN
                    | K::LastN
                    | K::MinN
                    | K::MaxN
                    | K::TopN
                    | K::BottomN
            )
        };
        let mut reads = Dependencies::default();
        stage.key.dependencies(&mut reads);
        for (_, spec) in stage.fields.iter() {
            spec.dependencies(&mut reads);
        }
        let may = !reads.random && stage.fields.iter().all(|(_, spec)| adds_up(spec.kind()));
        may.then(|| Self {
            helpers,
            stage: stage.clone(),
        })
    }

    /// Batches the query takes alone at first.
    pub(super) fn alone_batches(&self) -> usize {
        self.helpers.alone_batches
    }

    /// Gathers the rest of `input` and gives the tables of its parts to `absorb`, in order.
    pub(super) fn gather(
        &self,
        input: &mut BoxOperator,
        cx: &ExecContext<'_>,
        mut absorb: impl FnMut(Table) -> Result<()>,
    ) -> Result<()> {
        let context = Arc::new((
            cx.operation.for_helper(),
            ExecSettings {
                // Who helps is not helped.
                helpers: None,
                ..cx.settings.clone()
            },
        ));
        let part = |batches: Vec<Batch>| -> Box<dyn FnOnce() -> Result<Table> + Send> {
            let (context, stage) = (Arc::clone(&context), self.stage.clone());
            Box::new(move || {
                let cx = ExecContext::new(&context.0, &context.1);
                Table::of_batches(&stage, batches, &cx)
            })
        };
        let mut pieces = Pieces::new(&self.helpers.workers, self.helpers.threads);
        let mut batches = Vec::new();
        // An error of the input comes behind those of what was read before.
        let end = loop {
            match next_filled(input, cx) {
                Ok(Some(batch)) => batches.push(batch),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            if batches.len() >= self.helpers.piece_batches
                && let Some(table) = pieces.push(part(std::mem::take(&mut batches)))?
            {
                absorb(table)?;
            }
        };
        if !batches.is_empty()
            && let Some(table) = pieces.push(part(batches))?
        {
            absorb(table)?;
        }
        while let Some(table) = pieces.pop()? {
            absorb(table)?;
        }
        end
    }
}
