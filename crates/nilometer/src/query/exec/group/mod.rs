//! `$group`: a hash table of keys, with a state for each accumulator of each key.
//!
//! ```text
//! key ── hash, compare ──► number of the group ──► its states
//!
//! mod           the table; rows are added one by one
//! keys          keys by value, or by bin and constant parts
//! row_keys      keys that differ between the measurements of a bucket
//! states        the states of the accumulators by group
//! vectorized    adds runs of a block to the same states, by the same steps
//! bucket_runs   adds many whole buckets by the summaries they share
//! top_by_time   $top and $bottom by time: one row of a run
//! top_by_value  the same by values: few rows of a run
//! from_bounds   adds whole buckets by their headers, without their columns
//! parallel      several threads fill tables of parts of the input; the parts are merged in input order
//! streaming     over sorted input: a group is complete when its key has passed
//! first_bins    stops reading when the first few groups by time are complete
//! settled_bins  skips buckets whose bounds change none of them
//! within_groups the input in the order of time within each group
//! order         the order of groups by their keys, in place of a sort of rows
//! output        rows of finished groups, or their states for the reader of several partitions
//! bucket_auto   $bucketAuto, with `granularity` for its preferred numbers
//! ```
//!
//! Keys that compare equal form one group, shown with the first such key; null and missing form one group. Groups are
//! returned in order of first occurrence. A table above its memory limit is written to disk in key order, groups as values
//! ([`crate::eval::accumulator`]), and a new table is begun; at the end all runs are merged, and groups are returned in key
//! order. One group must fit into memory: its merged states and its output document count against the query memory pool.

pub mod bucket_auto;
mod bucket_runs;
pub mod first_bins;
pub mod from_bounds;
pub(crate) mod keys;
mod order;
pub(crate) mod output;
pub(crate) mod parallel;
mod row_keys;
mod settled_bins;
mod states;
pub mod streaming;
pub(crate) mod top_by_time;
mod top_by_value;
pub mod vectorized;
pub(crate) mod within_groups;

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

use nilometer_bson::key_string::{KeyBuilder, KeyOrder};
use nilometer_bson::{Document, DocumentBuilder, Value};

use self::bucket_runs::RunReader;
use self::first_bins::Frontier;
use self::keys::{Keys, NewGroup};
use self::output::RowMaker;
use self::parallel::{InputPart, ParallelGroup};
use self::states::States;
use self::vectorized::BlockGroup;
use super::memory::MemoryGauge;
use super::sort::external_sort::{RowOrder, Sorted, Sorter};
use super::{BlockSteps, BoxOperator, ExecContext, Operator, RowBatch, next_filled};
use crate::error::Result;
use crate::eval::EvalContext;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec, AccumulatorState};
use crate::eval::expression::Expression;
use crate::eval::sort_key::SortPattern;
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::pipeline::GroupStage;
use crate::query::planner::physical::{CountedSource, GroupSide, PhysicalGroup};

/// Stage name for memory errors.
const NAME: &str = "$group";

/// Bytes counted for a group in addition to key and states.
const GROUP_OVERHEAD: usize = 64;

/// Bytes counted for a key in addition to its value.
const KEY_BYTES: usize = 32;

/// Groups documents by key.
pub struct Group {
    input: Option<BoxOperator>,
    plan: PhysicalGroup,
    finished: Groups,
}

/// Finished groups.
enum Groups {
    InMemory(Box<Finished>),
    OnDisk(Box<Merged>),
}

impl Group {
    /// Groups the documents of `input`.
    pub fn new(input: BoxOperator, plan: PhysicalGroup) -> Self {
        let rows = RowMaker::of(&plan);
        Self {
            input: Some(input),
            plan,
            finished: Groups::InMemory(Box::new(Finished {
                rows,
                groups: Vec::new().into_iter(),
                keys: Keys::new(&Expression::Constant(Value::Null)),
                states: States::new(0),
                memory: MemoryGauge::new(NAME, 0),
                results: MemoryGauge::new(NAME, 0),
            })),
        }
    }

    /// Returns the only group, if it follows from the number of measurements and that is known.
    fn counted(&self, cx: &ExecContext<'_>) -> Result<Option<Groups>> {
        let (Some(CountedSource(source)), Some(bounds)) =
            (&self.plan.counted, &self.plan.from_bounds)
        else {
            return Ok(None);
        };
        let Some(count) = source.measurement_count()? else {
            return Ok(None);
        };
        let mut table = Table::new(&self.plan.stage, cx);
        from_bounds::add_counted(bounds, &self.plan.stage, count, &mut table, cx)?;
        let rows = RowMaker::of(&self.plan);
        Ok(Some(Groups::InMemory(Box::new(Finished::of(
            table, rows, cx,
        )))))
    }

    fn gather_once(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        if let Some(input) = self.input.take() {
            self.finished = self.gather(input, cx)?;
        }
        Ok(())
    }

    fn gather(&self, mut input: BoxOperator, cx: &ExecContext<'_>) -> Result<Groups> {
        if let Some(groups) = self.counted(cx)? {
            return Ok(groups);
        }
        let mut table = Table::new(&self.plan.stage, cx);
        let mut blocks = BlockGroup::new(&self.plan.stage);
        let mut spilled: Option<Sorter<ByKey>> = None;
        let mut frontier = Frontier::of(&self.plan);
        let parallel = ParallelGroup::of(&self.plan, cx);
        let runs = RunReader::of(&self.plan);
        let mut gathered = 0;
        let deferred = Frontier::deferred_selection(frontier.as_ref(), &mut input, cx);
        loop {
            if let Some(run) = runs.next(&mut input, cx)? {
                table.add_run(&run, &runs, (&self.plan, &mut blocks), &mut spilled, cx)?;
                continue;
            }
            let Some(batch) = next_filled(&mut input, cx)? else {
                break;
            };
            let part = Frontier::part_of(frontier.as_mut(), batch, deferred.as_ref(), cx)?;
            let ControlFlow::Continue(part) = part else {
                break;
            };
            let Some(batch) = part else { continue };
            table.add(batch, &self.plan, &mut blocks, &mut spilled, cx)?;
            gathered += 1;
            Frontier::note_batch(frontier.as_mut(), &table);
            if let Some(parallel) = &parallel
                && gathered >= parallel.batches_before()
            {
                parallel.gather(&mut input, &runs, frontier, cx, |part| {
                    let batches = match part {
                        InputPart::Grouped(later) => {
                            table.absorb(*later, cx)?;
                            return table.spill_if_full(&mut spilled, cx);
                        }
                        InputPart::Run(run) => {
                            let into = (&self.plan, &mut blocks);
                            return table.add_run(&run, &runs, into, &mut spilled, cx);
                        }
                        InputPart::Ungrouped(batches) => batches,
                    };
                    for batch in batches {
                        table.add(batch, &self.plan, &mut blocks, &mut spilled, cx)?;
                    }
                    Ok(())
                })?;
                break;
            }
        }
        let rows = RowMaker::of(&self.plan);
        let Some(mut spilled) = spilled else {
            return Ok(Groups::InMemory(Box::new(Finished::of(table, rows, cx))));
        };
        table.spill(&mut spilled, cx)?;
        let mut sorted = spilled.finish(cx)?;
        Ok(Groups::OnDisk(Box::new(Merged {
            rows,
            waiting: sorted.next(cx)?,
            sorted,
            results: MemoryGauge::of_results(NAME, cx),
        })))
    }
}

impl Operator for Group {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        self.gather_once(cx)?;
        let rows = match &mut self.finished {
            Groups::InMemory(groups) => groups.take(cx)?,
            Groups::OnDisk(groups) => groups.take(cx)?,
        };
        Ok(rows.into_batch())
    }

    fn order_rows(&mut self, pattern: &SortPattern, cx: &ExecContext<'_>) -> Result<bool> {
        self.gather_once(cx)?;
        Ok(match &mut self.finished {
            Groups::InMemory(groups) => groups.order(pattern),
            Groups::OnDisk(_) => false,
        })
    }

    fn is_exhausted(&self) -> bool {
        let is_empty = match &self.finished {
            Groups::InMemory(groups) => groups.groups.len() == 0,
            Groups::OnDisk(groups) => groups.waiting.is_none(),
        };
        self.input.is_none() && is_empty
    }
}

/// Returns the heap bytes of a state.
fn heap_bytes(state: &AccumulatorState) -> usize {
    state.memory_bytes() - size_of::<AccumulatorState>()
}

/// Groups of a table that was never written out.
struct Finished {
    rows: RowMaker,
    /// The numbers of the groups to return.
    groups: std::vec::IntoIter<u32>,
    keys: Keys,
    states: States,
    /// Counts the remaining groups.
    memory: MemoryGauge,
    /// Counts the documents returned last.
    results: MemoryGauge,
}

impl Finished {
    fn of(mut table: Table, rows: RowMaker, cx: &ExecContext<'_>) -> Self {
        table.keys.finish();
        let groups: Vec<u32> = (0..).take(table.keys.len()).collect();
        Self {
            rows,
            groups: groups.into_iter(),
            keys: table.keys,
            states: table.states,
            memory: table.memory,
            results: MemoryGauge::of_results(NAME, cx),
        }
    }

    /// Returns the groups in the order of a pattern from now on; false if their keys do not tell it.
    fn order(&mut self, pattern: &SortPattern) -> bool {
        if self.rows.returns_states() {
            return false;
        }
        let Some(ordered) = order::ordered(self.groups.as_slice(), &self.keys, pattern) else {
            return false;
        };
        self.groups = ordered.into_iter();
        true
    }

    fn take(&mut self, cx: &ExecContext<'_>) -> Result<RowBatch> {
        let mut out = RowBatch::default();
        self.results.clear();
        while !out.is_full()
            && let Some(group) = self.groups.next()
        {
            let group = group as usize;
            let mut held = self.keys.bytes(group);
            let states = self.states.of_group(group).iter_mut().map(|state| {
                held += heap_bytes(state);
                std::mem::replace(state, AccumulatorState::Count(0))
            });
            let (rows, keys, results) = (&self.rows, &mut self.keys, &mut self.results);
            let row = match rows.is_plain() {
                true => {
                    let key = |out: &mut DocumentBuilder| keys.append(group, "_id", out);
                    rows.plain_row(key, states, results, &cx.eval)
                }
                false => rows.row(keys.take(group), states, results, &cx.eval),
            };
            out.push(row?);
            self.memory.release(held);
        }
        if self.groups.len() == 0 {
            self.keys.clear();
            self.states.clear();
            self.memory.clear();
        }
        Ok(out)
    }
}

/// Orders spilled groups by key. Parts of one group keep the order in which they were written.
struct ByKey;

impl RowOrder for ByKey {
    /// Bytes in the order of the keys: each is compared many times.
    type Key = Box<[u8]>;

    fn key(&self, row: &Document, cx: &ExecContext<'_>) -> Result<Box<[u8]>> {
        let mut key = KeyBuilder::with_collator(KeyOrder::ASCENDING, cx.eval.collator);
        key.push(output::group_of(row.as_ref())?.0);
        Ok(key.bytes().into())
    }

    fn compare(&self, a: &Box<[u8]>, b: &Box<[u8]>, _: &ExecContext<'_>) -> Ordering {
        a.cmp(b)
    }

    fn key_bytes(&self, key: &Box<[u8]>) -> usize {
        key.len()
    }
}

/// Groups merged from spilled parts.
struct Merged {
    rows: RowMaker,
    sorted: Sorted<ByKey>,
    /// The first part of the next group, after the bytes of its key.
    waiting: Option<(Box<[u8]>, Document)>,
    /// Counts the group being merged and the documents returned last.
    results: MemoryGauge,
}

impl Merged {
    fn take(&mut self, cx: &ExecContext<'_>) -> Result<RowBatch> {
        let mut out = RowBatch::default();
        self.results.clear();
        while !out.is_full()
            && let Some((order, part)) = self.waiting.take()
        {
            let key = output::group_of(part.as_ref())?.0.to_value();
            let fields = self.rows.fields().iter();
            let states = fields.map(|(_, spec)| spec.new_state(&key, &cx.eval));
            let mut states = states.collect::<Result<Vec<AccumulatorState>>>()?;
            let mut held = 0;
            self.add_part(&key, &part, &mut states, &mut held, cx)?;
            drop(part);
            loop {
                self.waiting = self.sorted.next(cx)?;
                match self.waiting.take() {
                    Some((next, part)) if next == order => {
                        self.add_part(&key, &part, &mut states, &mut held, cx)?;
                    }
                    other => {
                        self.waiting = other;
                        break;
                    }
                }
            }
            let states = states.into_iter();
            let row = self.rows.row(key, states, &mut self.results, &cx.eval);
            out.push(row?);
            self.results.release(held);
        }
        Ok(out)
    }

    /// Merges a later part of a group into its states, of which `held` bytes are counted.
    fn add_part(
        &mut self,
        key: &Value,
        part: &Document,
        states: &mut [AccumulatorState],
        held: &mut usize,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        let (_, saved) = output::group_of(part.as_ref())?;
        let fields = self.rows.fields().iter();
        for (((_, spec), state), saved) in fields.zip(states.iter_mut()).zip(saved.iter()) {
            spec.merge_saved(state, key.as_ref(), saved, &cx.eval)?;
        }
        let now: usize = states.iter().map(heap_bytes).sum();
        self.results.release(*held);
        *held = now;
        self.results.add(now)
    }
}

/// The hash table of groups.
pub(crate) struct Table {
    key: Expression,
    fields: Arc<[(Arc<str>, AccumulatorSpec)]>,
    keys: Keys,
    states: States,
    memory: MemoryGauge,
    /// If true, the table is written to disk above its limit; if false, the query fails.
    may_spill: bool,
}

impl Table {
    /// Creates a table for `stage`.
    pub(crate) fn new(stage: &GroupStage, cx: &ExecContext<'_>) -> Self {
        Self {
            key: stage.key.clone(),
            fields: Arc::clone(&stage.fields),
            keys: Keys::new(&stage.key),
            states: States::new(stage.fields.len()),
            memory: MemoryGauge::of_query(NAME, cx.settings.limits.group_bytes_max, cx),
            may_spill: cx.settings.spill.is_some(),
        }
    }

    /// Adds a batch.
    fn add(
        &mut self,
        batch: Batch,
        plan: &PhysicalGroup,
        blocks: &mut BlockGroup,
        spilled: &mut Option<Sorter<ByKey>>,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        let rows = match batch {
            Batch::Block(block) if self.add_block(&block, plan, blocks, cx)? => {
                return self.spill_if_full(spilled, cx);
            }
            batch => batch.into_rows()?,
        };
        for row in &rows {
            match plan.side {
                GroupSide::Whole | GroupSide::Part => self.add_row(row, cx)?,
                GroupSide::Merge | GroupSide::Combine => self.add_states(row, cx)?,
            }
            self.spill_if_full(spilled, cx)?;
        }
        Ok(())
    }

    /// Adds a block from its header or its columns; false if its rows must be added one by one instead.
    fn add_block(
        &mut self,
        block: &MeasurementBlock,
        plan: &PhysicalGroup,
        blocks: &mut BlockGroup,
        cx: &ExecContext<'_>,
    ) -> Result<bool> {
        let by_bounds = match &plan.from_bounds {
            Some(aggregate) => from_bounds::add(aggregate, &plan.stage, block, self, cx)?,
            None => false,
        };
        Ok(by_bounds || blocks.add(block, self, cx)?)
    }

    /// Returns a table of the groups of `batches`, to be merged into another table later. `deferred` is done with
    /// their blocks first, and `frontier` the first bins.
    pub(super) fn of_batches(
        plan: &PhysicalGroup,
        batches: Vec<Batch>,
        (deferred, mut frontier): (Option<&BlockSteps>, Option<&mut Frontier>),
        cx: &ExecContext<'_>,
    ) -> Result<Self> {
        let mut table = Self::new(&plan.stage, cx);
        let mut blocks = BlockGroup::new(&plan.stage);
        for batch in batches {
            cx.operation.check_interrupt()?;
            let part = Frontier::part_of(frontier.as_deref_mut(), batch, deferred, cx)?;
            let ControlFlow::Continue(part) = part else {
                break;
            };
            let Some(batch) = part else { continue };
            match batch {
                Batch::Block(block) if table.add_block(&block, plan, &mut blocks, cx)? => {}
                batch => {
                    for row in batch.into_rows()? {
                        table.add_row(&row, cx)?;
                    }
                }
            }
            Frontier::note_batch(frontier.as_deref_mut(), &table);
        }
        Ok(table)
    }

    /// Merges the groups of a later part of the input.
    fn absorb(&mut self, mut later: Self, cx: &ExecContext<'_>) -> Result<()> {
        let fields = Arc::clone(&self.fields);
        let mut states = later.states.take();
        let collator = cx.eval.collator;
        let mut series: Vec<Option<u32>> = vec![None; later.keys.series.len()];
        if let Some(form) = later.keys.common_form() {
            self.keys.set_form(form, collator);
        }
        for at in 0..later.keys.len() {
            let group = match later.keys.parts(at) {
                Some((of_later, bin)) => {
                    let known = series.get(of_later as usize).copied().flatten();
                    let here = known.unwrap_or_else(|| {
                        let values = later.keys.series.values(of_later);
                        self.keys.series_of(values, collator)
                    });
                    if let Some(known) = series.get_mut(of_later as usize) {
                        *known = Some(here);
                    }
                    self.number_of_parts(here, bin, cx)?
                }
                None => self.number_of(later.keys.take(at), cx)?,
            };
            for ((at, (_, spec)), state) in fields.iter().enumerate().zip(states.by_ref()) {
                self.change(group, at, spec, |known| spec.merge(known, state))?;
            }
        }
        Ok(())
    }

    /// Spills the table if it is above its limit.
    fn spill_if_full(
        &mut self,
        spilled: &mut Option<Sorter<ByKey>>,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        if !self.memory.is_exceeded() {
            return Ok(());
        }
        let gauge = MemoryGauge::of_query(NAME, cx.settings.limits.group_bytes_max, cx);
        let sorter = spilled.get_or_insert_with(|| Sorter::new(ByKey, gauge));
        self.spill(sorter, cx)
    }

    fn spill(&mut self, spilled: &mut Sorter<ByKey>, cx: &ExecContext<'_>) -> Result<()> {
        cx.operation.check_interrupt()?;
        let mut states = self.states.take();
        let fields = Arc::clone(&self.fields);
        for group in 0..self.keys.len() {
            let mut held = self.keys.bytes(group);
            let saved = fields
                .iter()
                .zip(states.by_ref())
                .map(|((_, spec), state)| {
                    held += heap_bytes(&state);
                    spec.save(state)
                });
            let part = output::saved_group(self.keys.take(group), saved.collect());
            // The sorter holds the group from now on.
            self.memory.release(held);
            spilled.add(part, cx)?;
        }
        spilled.flush(cx)?;
        self.keys.clear();
        self.memory.clear();
        Ok(())
    }

    /// Adds a document.
    pub(crate) fn add_row(&mut self, row: &Document, cx: &ExecContext<'_>) -> Result<()> {
        let group = {
            let key = self.key.evaluate_ref(row.as_ref(), &cx.eval)?;
            let key = self.normal_key(key.into_value());
            self.number_of(key, cx)?
        };
        let fields = Arc::clone(&self.fields);
        for (at, (_, spec)) in fields.iter().enumerate() {
            self.change(group, at, spec, |state| {
                spec.add(state, row.as_ref(), &cx.eval)
            })?;
        }
        Ok(())
    }

    /// Adds the states of a group of a partition.
    fn add_states(&mut self, row: &Document, cx: &ExecContext<'_>) -> Result<()> {
        let (key, saved) = output::group_of(row.as_ref())?;
        let group = match self.keys.find(key, cx.eval.collator) {
            Ok(group) => group,
            Err(hash) => self.insert(Keys::new_group(hash, key.to_value()), &cx.eval)?,
        };
        let fields = Arc::clone(&self.fields);
        let mut saved = saved.iter();
        for (at, (_, spec)) in fields.iter().enumerate() {
            let saved = saved.next().ok_or_else(output::not_a_group)?;
            self.change(group, at, spec, |state| {
                spec.merge_saved(state, key, saved, &cx.eval)
            })?;
        }
        match saved.next() {
            None => Ok(()),
            Some(_) => Err(output::not_a_group()),
        }
    }

    /// Normalizes a key: never missing.
    pub(crate) fn normal_key(&self, key: Value) -> Value {
        self.keys.normal(key)
    }

    /// Returns the number of the group with this key; adds a group if there is none.
    pub(crate) fn number_of(&mut self, key: Value, cx: &ExecContext<'_>) -> Result<u32> {
        match self.keys.find(key.as_ref(), cx.eval.collator) {
            Ok(group) => Ok(group),
            Err(hash) => self.insert(Keys::new_group(hash, key), &cx.eval),
        }
    }

    /// Returns the number of the group of a bin of a series; adds a group if there is none.
    fn number_of_parts(&mut self, series: u32, bin: i64, cx: &ExecContext<'_>) -> Result<u32> {
        match self.keys.find_parts(series, bin, cx.eval.collator) {
            Ok(group) => Ok(group),
            Err(new) => self.insert(new, &cx.eval),
        }
    }

    fn insert(&mut self, new: NewGroup, cx: &EvalContext<'_>) -> Result<u32> {
        let group = self.keys.len();
        let Ok(number) = u32::try_from(group) else {
            return Err(self.memory.exceeded());
        };
        self.keys.add(new);
        // Few accumulators read the key.
        let mut fields = self.fields.iter();
        let key = match fields.any(|(_, spec)| spec.n_depends_on_group()) {
            true => self.keys.key(group),
            false => Value::Null,
        };
        let mut bytes = GROUP_OVERHEAD + KEY_BYTES + self.keys.bytes(group);
        for (_, spec) in self.fields.iter() {
            let state = spec.new_state(&key, cx)?;
            bytes += state.memory_bytes();
            self.states.push(state);
        }
        let added = self.memory.add(bytes);
        if !self.may_spill {
            added?;
        }
        Ok(number)
    }

    /// Returns the state of accumulator `at` of a group.
    pub(crate) fn state(&self, group: u32, at: usize) -> Option<&AccumulatorState> {
        self.states.get(group as usize, at)
    }

    /// Changes the state of accumulator `at` of a group and counts its growth.
    pub(crate) fn change(
        &mut self,
        group: u32,
        at: usize,
        spec: &AccumulatorSpec,
        change: impl FnOnce(&mut AccumulatorState) -> Result<()>,
    ) -> Result<()> {
        let Some(state) = self.states.get_mut(group as usize, at) else {
            return Ok(());
        };
        if !grows(spec.kind()) {
            return change(state);
        }
        let before = state.memory_bytes();
        change(state)?;
        let after = state.memory_bytes();
        if after > before {
            let added = self.memory.add(after - before);
            if !self.may_spill {
                added?;
            }
        } else if after < before {
            self.memory.release(before - after);
        }
        Ok(())
    }
}

/// True if the state of the accumulator grows with its input.
fn grows(kind: AccumulatorKind) -> bool {
    use AccumulatorKind as K;
    !matches!(kind, K::Count | K::StdDevPop | K::StdDevSamp)
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::*;
    use crate::query::exec::ExecLimits;
    use crate::query::exec::testing::{MemoryCollections, MemoryRecords, run_limited, run_stages};
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::Resolved;

    fn group(spec: Document, documents: Vec<Document>) -> Vec<Document> {
        run_stages(array![doc! {"$group": spec}], documents).unwrap()
    }

    #[test]
    fn equal_keys_of_all_types_are_one() {
        let rows = group(
            doc! {"_id": "$a", "n": doc! {"$sum": 1}},
            vec![
                doc! {"a": 1},
                doc! {"a": 1i64},
                doc! {"a": 1.0},
                doc! {"a": Value::Null},
                doc! {},
                doc! {"a": "1"},
            ],
        );
        assert_eq!(
            rows,
            [
                doc! {"_id": 1, "n": 3},
                doc! {"_id": Value::Null, "n": 2},
                doc! {"_id": "1", "n": 1},
            ]
        );
    }

    #[test]
    fn missing_parts_of_keys() {
        let documents = vec![doc! {"a": Value::Null}, doc! {}, doc! {"b": 1}];
        let single = group(
            doc! {"_id": doc! {"a": "$a"}, "n": doc! {"$count": doc! {}}},
            documents.clone(),
        );
        assert_eq!(single, [doc! {"_id": doc! {"a": Value::Null}, "n": 3}]);
        let two = group(
            doc! {"_id": doc! {"a": "$a", "b": "$b"}, "n": doc! {"$count": doc! {}}},
            documents,
        );
        assert_eq!(
            two,
            [
                doc! {"_id": doc! {"a": Value::Null}, "n": 1},
                doc! {"_id": doc! {}, "n": 1},
                doc! {"_id": doc! {"b": 1}, "n": 1},
            ]
        );
    }

    #[test]
    fn nothing_in_gives_nothing_out() {
        assert!(group(doc! {"_id": Value::Null, "n": doc! {"$sum": 1}}, vec![]).is_empty());
    }

    #[test]
    fn memory_is_limited() {
        let documents: Vec<Document> = (0..100)
            .map(|a| doc! {"a": a, "s": "x".repeat(50)})
            .collect();
        let collections =
            MemoryCollections::of(Resolved::Ordinary(Arc::new(MemoryRecords(documents))));
        let limits = ExecLimits {
            group_bytes_max: 2000,
            sort_bytes_max: 2000,
            ..ExecLimits::default()
        };
        for stage in [
            doc! {"$group": doc! {"_id": "$a"}},
            doc! {"$group": doc! {"_id": Value::Null, "all": doc! {"$push": "$s"}}},
            doc! {"$sort": doc! {"a": 1}},
        ] {
            let stages = array![stage];
            let error =
                run_limited(&collections, &stages, PlanOptions::default(), limits).unwrap_err();
            assert_eq!(error.code.0, 292);
        }
        let few = array![doc! {"$sort": doc! {"a": -1}}, doc! {"$limit": 2}];
        let rows = run_limited(&collections, &few, PlanOptions::default(), limits).unwrap();
        assert_eq!(rows.len(), 2);
    }
}
