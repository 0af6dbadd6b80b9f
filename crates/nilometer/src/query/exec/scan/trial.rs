//! Runs candidate index plans for a limited time, so that the planner can compare them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::index_fetch::{AccessStats, IndexRead, Step};
use super::index_scan::ViewAt;
use crate::error::Result;
use crate::operation::OperationContext;
use crate::query::exec::{ExecContext, ExecSettings};
use crate::query::planner::TrialRunner;
use crate::query::planner::access::choose::{TRIAL_ROWS, TrialResult};
use crate::query::planner::access::{Candidate, IndexAccess};
use crate::query::planner::physical::RecordInput;
use crate::query::source::ScanCounters;

/// Steps between two interrupt checks.
const STEPS_PER_LOOK: u64 = 128;

/// Runs candidates for one command.
pub struct Trials<'a> {
    /// Settings of the query.
    pub settings: &'a ExecSettings,
    /// The command.
    pub operation: &'a OperationContext,
}

/// A running candidate.
struct TrialRun {
    read: IndexRead,
    stats: AccessStats,
    result: TrialResult,
}

impl TrialRunner for Trials<'_> {
    fn run(
        &self,
        input: &RecordInput,
        candidates: &[Candidate],
        steps_max: u64,
    ) -> Result<Vec<TrialResult>> {
        let mut runs: Vec<TrialRun> = candidates
            .iter()
            .map(|candidate| {
                let stats = AccessStats::of(&candidate.access);
                let counters = Arc::<ScanCounters>::default();
                let access: IndexAccess = candidate.access.clone();
                let mut input = input.clone();
                input.limit = None;
                TrialRun {
                    read: IndexRead::new(input, access, counters, stats.clone()),
                    stats,
                    result: TrialResult::default(),
                }
            })
            .collect();
        let Some(view) = input.source.view()? else {
            return Ok(runs.into_iter().map(|run| run.result).collect());
        };
        let at = ViewAt {
            view: &*view,
            number: 1,
            memory: &self.settings.memory,
        };
        let cx = ExecContext::new(self.operation, self.settings);
        'trial: for step in 0..steps_max {
            if step % STEPS_PER_LOOK == 0 {
                self.operation.check_interrupt()?;
            }
            let mut ended = false;
            for run in &mut runs {
                let before = run.stats.keys();
                match run.read.step(at, &cx)? {
                    Step::Row(..) => run.result.rows += 1,
                    Step::Nothing => {}
                    Step::Done => run.result.at_end = true,
                }
                // Skipped keys count as steps, too.
                let looked = run.stats.keys() - before;
                run.result.works += looked.max(1);
                ended |= run.result.at_end || run.result.rows >= TRIAL_ROWS;
            }
            if ended {
                break 'trial;
            }
        }
        let results = runs.into_iter().map(|mut run| {
            run.result.keys = run.stats.keys();
            let fetched = &run.stats.fetched;
            run.result.documents = fetched.load(Ordering::Relaxed);
            run.result
        });
        Ok(results.collect())
    }
}
