//! `$group` on several threads: each builds a table of a part of the input, and the tables are merged in
//! input order.
//!
//! ```text
//! input    batches │ batches │ batches │ …                   measurements of one bucket each, columns undecoded
//! table    by the query's thread ◄─ absorb ─ absorb ─ …      columns decoded, filtered and aggregated by free threads
//! ```
//!
//! The result equals that of one thread. Groups keep the order of first occurrence; whole numbers and decimals add
//! up exactly. Doubles are added in pairs of doubles (106 bits) and rounded once at the end, so how the input was split
//! shows in the last bit only where a sum lies within 2^-100 of the midpoint between two doubles, or where it overflows on
//! the way. If the first few bins of time are enough, the query's thread skips blocks by their headers, and ends the reading; what the parts
//! have found tells it later, so a few more blocks are read than by one thread. The planner decides whether a stage may be split ([`PhysicalGroup::is_splittable`]): not if an accumulator does not
//! merge that exactly (`$stdDevPop`, `$stdDevSamp`), keeps all its input (`$push` and similar, but not numbers of percentiles), or is random. Blocks whose totals are known are not handed out.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::Table;
use super::bucket_runs::RunReader;
use super::first_bins::Frontier;
use super::vectorized::BlockGroup;
use crate::error::Result;
use crate::query::batch::{Batch, BlockRun};
use crate::query::exec::workers::{QueryThreads, TasksInFlight};
use crate::query::exec::{BlockSteps, BoxOperator, ExecContext, next_filled};
use crate::query::planner::physical::PhysicalGroup;

/// First bins that are copied for each part of the input, at most; one thread reads more.
const FIRST_BINS_MAX: usize = 256;

/// How many times more batches are processed alone if the first bins are enough.
const FIRST_BINS_ALONE: usize = 4;

/// How many times more batches a task has if keys differ between the rows of a bucket: what a task has met is evaluated once.
const ROW_KEY_TASK: usize = 4;

/// A stage that several threads may process.
pub(crate) struct ParallelGroup {
    threads: QueryThreads,
    plan: PhysicalGroup,
}

/// The groups of a part of the input, and the first bins known after it.
type Grouped = (Box<Table>, Option<Frontier>);

type Work = Box<dyn FnOnce() -> Result<Grouped> + Send>;

/// A part of the input.
pub(crate) enum InputPart {
    /// The groups of the part.
    Grouped(Box<Table>),
    /// Whole buckets by their summaries.
    Run(BlockRun),
    /// Blocks that need no decoding: adding them costs less than handing them to a thread.
    Ungrouped(Vec<Batch>),
}

fn needs_no_decoding(
    blocks: &mut BlockGroup,
    steps: Option<&BlockSteps>,
    batches: &[Batch],
) -> Result<bool> {
    for batch in batches {
        match batch {
            Batch::Block(block)
                if steps.is_none_or(|steps| steps.is_applied(block))
                    && blocks.needs_no_decoding(block)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns the groups of a part; its first bins are known from now on.
fn noted(frontier: &mut Option<Frontier>, (table, found): Grouped) -> InputPart {
    if let (Some(frontier), Some(found)) = (frontier, found) {
        frontier.note_all(&found);
    }
    InputPart::Grouped(table)
}

impl ParallelGroup {
    /// Returns the stage if the plan lets it be split, and threads are available.
    pub(crate) fn of(plan: &PhysicalGroup, cx: &ExecContext<'_>) -> Option<Self> {
        let threads = cx.settings.threads.clone()?;
        let first = plan.first_bins.as_ref();
        let may = plan.is_splittable && first.is_none_or(|first| first.wanted <= FIRST_BINS_MAX);
        may.then(|| Self {
            threads,
            plan: plan.clone(),
        })
    }

    /// Returns the number of batches the query thread processes first, alone.
    pub(crate) fn batches_before(&self) -> usize {
        match self.plan.first_bins {
            // One thread skips more: it knows at once what it has found.
            Some(_) => self.threads.batches_before.saturating_mul(FIRST_BINS_ALONE),
            None => self.threads.batches_before,
        }
    }

    /// Groups the rest of `input`, or what `frontier` wants of it, and passes its parts to `absorb`, in order.
    // long function: what is handed out, what comes back, and the loop between them share everything
    pub(super) fn gather(
        &self,
        input: &mut BoxOperator,
        runs: &RunReader,
        mut frontier: Option<Frontier>,
        cx: &ExecContext<'_>,
        mut absorb: impl FnMut(InputPart) -> Result<()>,
    ) -> Result<()> {
        let context = Arc::new(cx.for_worker());
        // Measurements are selected, and fields computed, where columns are decoded.
        let deferred = match &frontier {
            _ if cx.settings.plan.options.force_rows => None,
            // It asks the headers of the scan's blocks for what the group reads.
            Some(_) => input.defer_selection().map(BlockSteps::of_scan),
            None => input.defer_steps(),
        };
        let part = |batches: Vec<Batch>, frontier: &Option<Frontier>| -> Work {
            let (context, plan) = (Arc::clone(&context), self.plan.clone());
            let (deferred, mut frontier) = (deferred.clone(), frontier.clone());
            Box::new(move || {
                let cx = ExecContext::new(&context.0, &context.1);
                let wanted = (deferred.as_ref(), frontier.as_mut());
                let table = Table::of_batches(&plan, batches, wanted, &cx)?;
                Ok((Box::new(table), frontier))
            })
        };
        let mut tasks = TasksInFlight::new(&self.threads.workers, self.threads.count);
        let mut batches = Vec::new();
        let mut blocks = BlockGroup::new(&self.plan.stage);
        // An error of the input is reported after the results of the batches before it.
        let end = loop {
            match runs.next(input, cx) {
                Ok(Some(run)) => {
                    // Groups keep the order of first occurrence.
                    if !batches.is_empty() {
                        let batches = std::mem::take(&mut batches);
                        if let Some(grouped) = tasks.push(part(batches, &frontier))? {
                            absorb(noted(&mut frontier, grouped))?;
                        }
                    }
                    while let Some(grouped) = tasks.pop()? {
                        absorb(noted(&mut frontier, grouped))?;
                    }
                    absorb(InputPart::Run(run))?;
                    continue;
                }
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            let batch = match next_filled(input, cx) {
                Ok(Some(batch)) => batch,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            match (&frontier, batch) {
                (Some(frontier), Batch::Block(block)) => match frontier.part_by_header(block, cx) {
                    Ok(ControlFlow::Break(())) => break Ok(()),
                    Ok(ControlFlow::Continue(block)) => batches.extend(block.map(Batch::Block)),
                    Err(error) => break Err(error),
                },
                (_, batch) => batches.push(batch),
            }
            let per_task = match blocks.has_row_keys() {
                true => self.threads.batches_per_task * ROW_KEY_TASK,
                false => self.threads.batches_per_task,
            };
            if batches.len() < per_task {
                continue;
            }
            let batches = std::mem::take(&mut batches);
            // The bins of a frontier are those of its columns.
            if frontier.is_none() && needs_no_decoding(&mut blocks, deferred.as_ref(), &batches)? {
                while let Some(grouped) = tasks.pop()? {
                    absorb(noted(&mut frontier, grouped))?;
                }
                absorb(InputPart::Ungrouped(batches))?;
            } else if let Some(grouped) = tasks.push(part(batches, &frontier))? {
                absorb(noted(&mut frontier, grouped))?;
            }
        };
        if !batches.is_empty()
            && let Some(grouped) = tasks.push(part(batches, &frontier))?
        {
            absorb(noted(&mut frontier, grouped))?;
        }
        while let Some(grouped) = tasks.pop()? {
            absorb(noted(&mut frontier, grouped))?;
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nilometer_bson::{Document, Value, array, doc};

    use super::*;
    use crate::query::exec::ExecLimits;
    use crate::query::exec::testing::{
        MemoryCollections, MemoryRecords, operation, run_with, settings,
    };
    use crate::query::exec::workers::Workers;
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::Resolved;

    /// A few thousand documents with doubles whose sums depend on the order of addition.
    fn documents() -> Vec<Document> {
        let one = |at: i32| {
            let wild = f64::from(at * 7919 % 10_007) * 10f64.powi(at % 25 - 12);
            doc! {"k": at * 31 % 97, "d": wild, "l": i64::from(at) << 30, "t": at}
        };
        (0..6000).map(one).collect()
    }

    fn grouped(
        stage: &Document,
        workers: Option<&Arc<Workers>>,
        bytes: u64,
        folder: &Path,
    ) -> Vec<Document> {
        let source = Resolved::Ordinary(Arc::new(MemoryRecords(documents())));
        let limits = ExecLimits {
            group_bytes_max: bytes,
            ..ExecLimits::default()
        };
        let mut settings = settings(PlanOptions::default(), limits);
        settings.spill = Some(folder.into());
        settings.threads = workers.map(|workers| QueryThreads {
            batches_before: 2,
            batches_per_task: 3,
            ..QueryThreads::new(Arc::clone(workers), 4)
        });
        // The threads of a scan with a limit have groups to build alone.
        let stages = array![doc! {"$limit": 10_000}, doc! {"$group": stage.clone()}];
        run_with(&MemoryCollections::of(source), &stages, settings).unwrap()
    }

    #[test]
    fn the_answer_is_that_of_one_thread() {
        let folder = tempfile::tempdir().unwrap();
        let workers = Arc::<Workers>::default();
        let stage = doc! {
            "_id": "$k",
            "sum": doc! {"$sum": "$d"}, "avg": doc! {"$avg": "$d"}, "whole": doc! {"$sum": "$l"},
            "n": doc! {"$count": doc! {}}, "first": doc! {"$first": "$t"}, "last": doc! {"$last": "$t"},
            "max": doc! {"$max": "$d"}, "min": doc! {"$min": "$l"},
            "two": doc! {"$firstN": doc! {"n": 2, "input": "$t"}},
            "top": doc! {"$topN": doc! {"n": 2, "sortBy": doc! {"d": -1}, "output": "$t"}},
        };
        let expected = grouped(&stage, None, u64::MAX, folder.path());
        let found = grouped(&stage, Some(&workers), u64::MAX, folder.path());
        assert_eq!(workers.running(), 3);
        assert_eq!(found, expected);
        // Spilled groups are returned in key order.
        let mut expected = expected;
        expected.sort_by_key(|group| group.get("_id").as_exact_i64());
        let found = grouped(&stage, Some(&workers), 9_000, folder.path());
        assert_eq!(found, expected);
    }

    #[test]
    fn what_does_not_add_up_is_left_to_one_thread() {
        let folder = tempfile::tempdir().unwrap();
        for accumulator in [
            doc! {"$stdDevPop": "$d"},
            doc! {"$push": "$t"},
            doc! {"$sum": doc! {"$rand": doc! {}}},
        ] {
            let workers = Arc::<Workers>::default();
            let stage = doc! {"_id": Value::Null, "v": accumulator};
            assert_eq!(
                grouped(&stage, Some(&workers), u64::MAX, folder.path()).len(),
                1
            );
            assert_eq!(workers.running(), 0);
        }
    }

    #[test]
    fn a_killed_query_ends_in_its_helpers_too() {
        let killed = operation();
        let helper = killed.for_worker();
        assert!(helper.check_interrupt().is_ok());
        killed
            .kill_switch()
            .kill(crate::error::ErrorCode::Interrupted);
        assert!(helper.check_interrupt().is_err());
        let mut late = operation();
        late.set_time_limit(Some(std::time::Duration::ZERO));
        let error = late.for_worker().check_interrupt().unwrap_err();
        assert_eq!(error.code, crate::error::ErrorCode::MaxTimeMSExpired);
    }
}
