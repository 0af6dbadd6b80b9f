//! `$group` over runs of whole buckets by the summaries they share: sums and counts are added column by column.
//!
//! ```text
//! buckets   a 10:00   b 10:00   c 10:00   d 11:00     one block of summaries
//! groups    17        18        19        20          by series and bin
//! totals v  3         1         4         1           one loop for each accumulator
//! ```
//!
//! A run is added up to the first bucket that spans two bins or has no total of a column that is needed; the rest is grouped
//! bucket by bucket. Both ways change the same states by the same steps.

use std::cell::Cell;

use nilometer_bson::ValueRef;

use super::vectorized::{
    BlockGroup, BlockGroupPlan, Input, by_meta, constant_parts, new_group_of_block,
};
use super::{Sorter, Table};
use crate::error::Result;
use crate::eval::accumulator::{AccumulatorKind, ColumnTotal};
use crate::query::batch::{Batch, BlockRun};
use crate::query::exec::{BoxOperator, ExecContext};
use crate::query::planner::physical::{GroupSide, PhysicalGroup};
use crate::query::source::place_of;

/// Runs are read while at most one of this many buckets has to be grouped by itself.
const REST_SHARE: usize = 8;

/// Reads runs of whole buckets, if a stage can use them and as long as that pays.
pub(super) struct RunReader {
    is_wanted: Cell<bool>,
}

impl RunReader {
    pub(super) fn of(plan: &PhysicalGroup) -> Self {
        use AccumulatorKind as K;
        let is_sum = |kind| matches!(kind, K::Sum | K::Avg | K::Count);
        let mut fields = plan.stage.fields.iter();
        let is_wanted = matches!(plan.side, GroupSide::Whole | GroupSide::Part)
            && plan.first_bins.is_none()
            && plan.from_bounds.is_none()
            && fields.all(|(_, spec)| is_sum(spec.kind()));
        Self {
            is_wanted: Cell::new(is_wanted),
        }
    }

    /// Returns the next run of an input; `None` if something else follows.
    pub(super) fn next(
        &self,
        input: &mut BoxOperator,
        cx: &ExecContext<'_>,
    ) -> Result<Option<BlockRun>> {
        if !self.is_wanted.get() {
            return Ok(None);
        }
        cx.operation.pace()?;
        input.next_run(cx)
    }

    fn note(&self, buckets: usize, added: usize) {
        if (buckets - added) * REST_SHARE > buckets {
            self.is_wanted.set(false);
        }
    }
}

impl Table {
    /// Adds a run.
    pub(super) fn add_run(
        &mut self,
        run: &BlockRun,
        reader: &RunReader,
        (plan, blocks): (&PhysicalGroup, &mut BlockGroup),
        spilled: &mut Option<Sorter<super::ByKey>>,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        let added = blocks.add_run(run, self, cx)?;
        reader.note(run.len(), added);
        self.spill_if_full(spilled, cx)?;
        for at in added..run.len() {
            self.add(Batch::Block(run.block(at)), plan, blocks, spilled, cx)?;
        }
        Ok(())
    }
}

/// What is added to an accumulator.
enum Addend {
    /// The number of measurements.
    Count,
    Totals(Vec<ColumnTotal>),
    Nothing,
}

impl BlockGroup {
    /// Adds the first buckets of a run; returns how many.
    fn add_run(
        &mut self,
        run: &BlockRun,
        table: &mut Table,
        cx: &ExecContext<'_>,
    ) -> Result<usize> {
        let Some(plan) = self.plan_for(&run.shape) else {
            return Ok(0);
        };
        if plan.has_row_parts() {
            return Ok(0);
        }
        let columns = run.buckets.columns();
        let mut length = run.len();
        let mut addends = Vec::with_capacity(plan.inputs.len());
        for input in &plan.inputs {
            let place = match input {
                Input::Count => {
                    addends.push(Addend::Count);
                    continue;
                }
                Input::Column(name) => place_of(columns, name.as_str()),
                Input::Constant(_) | Input::Ranked | Input::Rows => return Ok(0),
            };
            addends.push(match place {
                Some(at) => {
                    let totals = run.buckets.totals(at);
                    length = length.min(totals.len());
                    Addend::Totals(totals)
                }
                // No measurement has the field.
                None => Addend::Nothing,
            });
        }
        let groups = groups_of(plan, run, length, table, cx)?;
        let fields = table.fields.clone();
        for ((at, (_, spec)), addend) in fields.iter().enumerate().zip(&addends) {
            match addend {
                Addend::Nothing => {}
                Addend::Count => {
                    for (bucket, group) in groups.iter().enumerate() {
                        let count = u64::from(run.buckets.count(bucket));
                        table.change(*group, at, spec, |state| {
                            spec.add_repeated(state, ValueRef::Missing, count)
                        })?;
                    }
                }
                Addend::Totals(totals) => {
                    for (total, group) in totals.iter().zip(&groups) {
                        table.change(*group, at, spec, |state| {
                            spec.add_total(state, total);
                            Ok(())
                        })?;
                    }
                }
            }
        }
        Ok(groups.len())
    }
}

/// Returns the groups of the first buckets of a run, up to one that spans two bins; `length` at most.
fn groups_of(
    plan: &BlockGroupPlan,
    run: &BlockRun,
    length: usize,
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<Vec<u32>> {
    let mut groups = Vec::with_capacity(length);
    let Some(bins) = &plan.bins else {
        for at in 0..length {
            groups.push(group_of_run(plan, run, at, table, cx)?);
        }
        return Ok(groups);
    };
    let time = place_of(run.buckets.columns(), &run.shape.time_field);
    let times = time.and_then(|at| run.buckets.dates(at)).unwrap_or(&[]);
    let mut bin = None;
    for (at, [min, max]) in times.iter().enumerate().take(length) {
        // A minimum before 1970 is no lower bound.
        if *min <= 0 {
            break;
        }
        let bin = bins.bin_cached(&mut bin, *min)?;
        if !bins.contains(bin, *max)? {
            break;
        }
        let series = by_meta(
            plan,
            || run.meta_id(at),
            table,
            cx,
            |table| {
                let values = constant_parts(plan, &run.block(at), cx)?;
                Ok(table.keys.series_of(&values, cx.eval.collator))
            },
        )?;
        groups.push(table.number_of_parts(series, bin.key, cx)?);
    }
    Ok(groups)
}

/// Returns the group of a bucket whose key is the same in all measurements.
fn group_of_run(
    plan: &BlockGroupPlan,
    run: &BlockRun,
    at: usize,
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<u32> {
    by_meta(
        plan,
        || run.meta_id(at),
        table,
        cx,
        |table| new_group_of_block(plan, &run.block(at), table, cx),
    )
}
