//! Vectorized grouping of a block: keys for runs of measurements, and accumulators over slices of columns.
//!
//! ```text
//! key {host: "$m.host", hour: {$dateTrunc: {date: "$t", unit: "hour"}}}
//!        └ the same in all rows      └ the same in a run of rows
//!
//! times    |09:58 09:59|10:00 10:01 10:02|      two runs, two groups
//! column v |  3     1  |  4     1     5  |      $max: one call per run and accumulator
//! ```
//!
//! The rows of a run are slices of columns if each part of the key is a constant, reads only the metadata, or (one part) is a
//! `$dateTrunc` of the time field with constant bins ([`TimeBins`]). For any other key the rows are ordered by their
//! groups first ([`row_keys`](super::row_keys)). An accumulator takes a slice if its argument is a
//! column, and a single value if it is constant in the block; `$sum` and `$avg` over whole buckets use the stored
//! total of the column. `$top` and `$bottom` by time look at one row of a run
//! ([`top_by_time`](super::top_by_time)). Other arguments are computed by column kernels where these exist
//! ([`arithmetic`](crate::query::exec::vector::arithmetic)), else evaluated on rows that hold only the fields they read. States
//! see values in row order on every path, so results do not depend on the path.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::{Value, ValueRef};

use crate::error::{Error, ErrorCode, Result};
use crate::eval::Dependencies;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec, AccumulatorState};
use crate::eval::expression::Expression;
use crate::query::batch::{MeasurementBlock, MeasurementShape};
use crate::query::exec::ExecContext;
use crate::query::exec::group::Table;
use crate::query::exec::group::keys::KeyForm;
use crate::query::exec::group::row_keys::{RECENT, RowPart, find_row_runs, recent_place};
use crate::query::exec::group::top_by_time::Ranking;
use crate::query::exec::group::top_by_value;
use crate::query::exec::vector::arithmetic::{computed_vector, has_kernels};
use crate::query::exec::vector::filter::narrowed;
use crate::query::exec::vector::vectors::Vector;
use crate::query::pipeline::GroupStage;
use crate::query::planner::physical::{TimeBin, TimeBins, is_constant, time_bins, time_rank};
use crate::query::source::ColumnName;

/// Rows of a run from which on repeated values are looked for before they are added to a set.
const DISTINCT_MIN: usize = 64;

/// Adds blocks to a [`Table`].
pub(crate) struct BlockGroup {
    stage: GroupStage,
    /// The plan for blocks of one shape; replaced when the shape changes.
    plan: Option<(Arc<MeasurementShape>, Option<BlockGroupPlan>)>,
    /// The runs of a block; the buffer is reused.
    runs: Vec<GroupRun>,
}

/// How a stage processes blocks of one shape.
pub(super) struct BlockGroupPlan {
    pub(super) parts: Vec<KeyPart>,
    pub(super) form: Arc<KeyForm>,
    /// The bins of the key part that depends on the time.
    pub(super) bins: Option<TimeBins>,
    pub(super) inputs: Vec<Input>,
    /// The orders by time among the inputs.
    rankings: Vec<Ranking>,
    /// The fields read by inputs that are evaluated on rows.
    row_fields: Option<BTreeSet<Arc<str>>>,
}

/// A part of the key.
pub(super) enum KeyPart {
    /// Constant in the block.
    Constant(Expression),
    /// The bin of the time.
    Bin,
    /// Differs between the rows of the block.
    Row(RowPart),
}

/// Source of an accumulator's values.
pub(super) enum Input {
    /// The number of rows.
    Count,
    /// Constant in the block.
    Constant(Expression),
    /// A column that measurements may have.
    Column(ColumnName),
    /// The one row of each run that sorts first or last by time: see [`BlockGroupPlan::rankings`].
    Ranked,
    /// Evaluated on rows.
    Rows,
}

/// Consecutive rows of one group.
pub(crate) struct GroupRun {
    /// The number of the group.
    pub(crate) group: u32,
    /// The rows, counted within the selection.
    pub(crate) rows: Range<usize>,
}

impl BlockGroupPlan {
    /// Returns the parts of the key that differ between the rows of a block.
    pub(super) fn row_parts(&self) -> impl Iterator<Item = &RowPart> {
        self.parts.iter().filter_map(|part| match part {
            KeyPart::Row(part) => Some(part),
            KeyPart::Constant(_) | KeyPart::Bin => None,
        })
    }

    /// True if it matters for some accumulator which rows a run consists of.
    pub(super) fn reads_rows(&self) -> bool {
        let mut inputs = self.inputs.iter();
        inputs.any(|input| !matches!(input, Input::Count | Input::Constant(_)))
    }

    /// True if the key differs between the rows of a block by more than the bin of the time.
    pub(super) fn has_row_parts(&self) -> bool {
        self.row_parts().next().is_some()
    }
}

impl BlockGroup {
    /// Creates the block path of `stage`.
    pub(crate) fn new(stage: &GroupStage) -> Self {
        Self {
            stage: stage.clone(),
            plan: None,
            runs: Vec::new(),
        }
    }

    /// True if no column of the block has to be decoded: its header and known totals suffice.
    pub(crate) fn needs_no_decoding(&mut self, block: &MeasurementBlock) -> Result<bool> {
        let fields = Arc::clone(&self.stage.fields);
        let Some(plan) = self.plan_for(&block.shape) else {
            return Ok(false);
        };
        if let Some(bins) = &plan.bins
            && whole_bin(bins, block)?.is_none()
        {
            return Ok(false);
        }
        if plan.has_row_parts() {
            return Ok(false);
        }
        let mut rankings = plan.rankings.iter();
        Ok(rankings.all(|ranking| ranking.needs_no_decoding(block))
            && plan
                .inputs
                .iter()
                .zip(fields.iter())
                .all(|(input, (_, spec))| match input {
                    Input::Count | Input::Constant(_) | Input::Ranked => true,
                    Input::Column(name) => adds_totals(spec) && block.has_total(name),
                    Input::Rows => false,
                }))
    }

    /// True if keys of the blocks met last differ between their rows.
    pub(super) fn has_row_keys(&self) -> bool {
        let plan = self.plan.as_ref().and_then(|(_, plan)| plan.as_ref());
        plan.is_some_and(BlockGroupPlan::has_row_parts)
    }

    /// Returns how blocks of a shape are processed; `None` if their rows are added one by one.
    pub(super) fn plan_for(&mut self, shape: &Arc<MeasurementShape>) -> Option<&BlockGroupPlan> {
        let known = self.plan.as_ref();
        if !known.is_some_and(|(known, _)| Arc::ptr_eq(known, shape)) {
            let plan = plan(&self.stage, shape);
            self.plan = Some((Arc::clone(shape), plan));
        }
        self.plan.as_ref().and_then(|(_, plan)| plan.as_ref())
    }

    /// Adds a block; false if its rows must be added one by one instead.
    pub(crate) fn add(
        &mut self,
        block: &MeasurementBlock,
        table: &mut Table,
        cx: &ExecContext<'_>,
    ) -> Result<bool> {
        self.plan_for(&block.shape);
        let Some((_, Some(plan))) = &self.plan else {
            return Ok(false);
        };
        self.runs.clear();
        let ordered = match plan.has_row_parts() {
            true => find_row_runs(plan, block, table, &mut self.runs, cx)?,
            false => {
                find_runs(plan, block, table, &mut self.runs, cx)?;
                None
            }
        };
        let block = ordered.as_ref().unwrap_or(block);
        accumulate(plan, &self.stage, block, &self.runs, table, cx)?;
        Ok(true)
    }
}

/// Returns the parts of a key of which one at most differs between the rows of a block, as the bin of the time.
fn parts_by_bin(
    expressions: &[&Expression],
    shape: &MeasurementShape,
) -> Option<(Vec<KeyPart>, Option<TimeBins>)> {
    let mut bins = None;
    let mut parts = Vec::new();
    for expression in expressions {
        parts.push(if is_constant(expression, shape) {
            KeyPart::Constant((*expression).clone())
        } else {
            let found = time_bins(expression, shape)?;
            if bins.replace(found).is_some() {
                return None;
            }
            KeyPart::Bin
        });
    }
    Some((parts, bins))
}

/// Returns the places of the parts that differ between the rows of a block, with the column each reads.
fn row_parts(parts: &[KeyPart]) -> Vec<(usize, Option<Box<str>>)> {
    let parts = parts.iter().enumerate();
    let rows = parts.filter_map(|(at, part)| match part {
        KeyPart::Row(part) => Some((at, part.column().map(Box::from))),
        KeyPart::Constant(_) | KeyPart::Bin => None,
    });
    rows.collect()
}

/// Returns the parts of any other key; `None` if one must be evaluated on whole documents.
fn parts_by_row(expressions: &[&Expression], shape: &MeasurementShape) -> Option<Vec<KeyPart>> {
    let part = |expression: &&Expression| match is_constant(expression, shape) {
        true => Some(KeyPart::Constant((*expression).clone())),
        false => RowPart::of(expression, shape).map(KeyPart::Row),
    };
    expressions.iter().map(part).collect()
}

fn plan(stage: &GroupStage, shape: &MeasurementShape) -> Option<BlockGroupPlan> {
    let (names, expressions): (Option<Vec<Arc<str>>>, Vec<&Expression>) = match &stage.key {
        Expression::Object(members) => (
            Some(members.iter().map(|(name, _)| Arc::clone(name)).collect()),
            members.iter().map(|(_, part)| part).collect(),
        ),
        single => (None, vec![single]),
    };
    let (parts, bins) = parts_by_bin(&expressions, shape)
        .or_else(|| Some((parts_by_row(&expressions, shape)?, None)))?;
    let mut row_dependencies = Dependencies::default();
    let mut any_rows = false;
    let mut inputs = Vec::new();
    let mut rankings = Vec::new();
    for (at, (_, spec)) in stage.fields.iter().enumerate() {
        let input = match time_rank(spec, &shape.time_field, shape.meta_field.as_deref()) {
            Some(rank) => {
                Ranking::add(&mut rankings, rank, (at, spec), shape);
                Input::Ranked
            }
            None => input(spec, shape),
        };
        if matches!(input, Input::Rows) {
            any_rows = true;
            spec.dependencies(&mut row_dependencies);
        }
        inputs.push(input);
    }
    for ranking in &mut rankings {
        ranking.settle(shape);
    }
    let all_fields = || shape_fields(shape);
    let row_fields = any_rows.then(|| {
        if row_dependencies.whole {
            all_fields()
        } else {
            let fields = row_dependencies.top_level_fields().into_iter();
            Some(fields.map(Arc::from).collect())
        }
    });
    Some(BlockGroupPlan {
        form: Arc::new(KeyForm {
            names,
            bin: parts.iter().position(|part| matches!(part, KeyPart::Bin)),
            rows: row_parts(&parts),
            meta_field: shape.meta_field.clone(),
        }),
        parts,
        bins,
        inputs,
        rankings,
        row_fields: match row_fields {
            None => None,
            // An accumulator of whole documents reads all fields: columns do not help.
            Some(None) => return None,
            Some(fields) => fields,
        },
    })
}

/// Returns the fields of a shape that lists its fields; `None` for other shapes.
fn shape_fields(shape: &MeasurementShape) -> Option<BTreeSet<Arc<str>>> {
    match &shape.fields {
        crate::query::batch::FieldSet::Only(fields) => Some(fields.clone()),
        _ => None,
    }
}

fn input(spec: &AccumulatorSpec, shape: &MeasurementShape) -> Input {
    if spec.kind() == AccumulatorKind::Count {
        return Input::Count;
    }
    if spec.sort().is_some() {
        return Input::Rows;
    }
    let argument = spec.argument();
    if is_constant(argument, shape) {
        return Input::Constant(argument.clone());
    }
    match argument.as_field_path() {
        Some(path) if path.len() == 1 => match shape.shows_column(path.as_str()) {
            true => Input::Column(ColumnName::new(path.as_str())),
            false => Input::Constant(Expression::Constant(Value::Missing)),
        },
        _ => Input::Rows,
    }
}

/// Finds the runs of the block's selection, in row order. Row numbers count within the selection.
fn find_runs(
    plan: &BlockGroupPlan,
    block: &MeasurementBlock,
    table: &mut Table,
    runs: &mut Vec<GroupRun>,
    cx: &ExecContext<'_>,
) -> Result<()> {
    let count = block.selection.len();
    let Some(bins) = &plan.bins else {
        let group = group_of_block(plan, block, table, cx)?;
        runs.push(GroupRun {
            group,
            rows: 0..count,
        });
        return Ok(());
    };
    let series = series_of_block(plan, block, table, cx)?;
    if let Some(bin) = whole_bin(bins, block)? {
        let group = table.number_of_parts(series, bin, cx)?;
        runs.push(GroupRun {
            group,
            rows: 0..count,
        });
        return Ok(());
    }
    let times = block.column(&block.shape.time_field)?;
    let times = times.map(|times| block.selected(times));
    let constant;
    let times: &[i64] = match times.as_ref().map(|(times, from)| (times.data(), *from)) {
        Some((BlockData::DateTime(times), from)) => cut(times, from..from + count),
        // A bucket with one measurement, or with one time.
        Some((BlockData::Constant(Value::DateTime(time)), _)) => {
            constant = vec![*time; count];
            &constant
        }
        _ => {
            return Err(Error::new(
                ErrorCode::DataCorruptionDetected,
                "a bucket's time column does not hold dates",
            ));
        }
    };
    let is_sorted = block.bucket.is_sorted();
    let mut from = 0;
    while let Some(first) = times.get(from) {
        let bin = bins.bin_of(*first)?;
        let rest = times.get(from..).unwrap_or(&[]);
        let length = if is_sorted {
            run_length_sorted(rest, bin, bins)?
        } else {
            run_length(rest, bin, bins)?
        };
        let group = table.number_of_parts(series, bin.key, cx)?;
        runs.push(GroupRun {
            group,
            rows: from..from + length,
        });
        from += length;
    }
    Ok(())
}

/// Returns the key parts that are constant in the block, each at its position.
pub(super) fn constant_parts(
    plan: &BlockGroupPlan,
    block: &MeasurementBlock,
    cx: &ExecContext<'_>,
) -> Result<Vec<Value>> {
    // Built only if some part is more than a path into the metadata.
    let constants = OnceCell::new();
    let parts = plan.parts.iter().map(|part| match part {
        KeyPart::Constant(expression) => {
            let path = expression.as_field_path();
            if let Some(value) = path.and_then(|path| block.plain_meta(path)) {
                return Ok(value.to_value());
            }
            let constants = constants.get_or_init(|| block.constant_document());
            expression.evaluate(constants.as_ref(), &cx.eval)
        }
        KeyPart::Bin | KeyPart::Row(_) => Ok(Value::Missing),
    });
    parts.collect()
}

/// True if the expression is the metadata itself.
fn is_meta(expression: &Expression, shape: &MeasurementShape) -> bool {
    let path = expression.as_field_path().filter(|path| path.len() == 1);
    path.is_some_and(|path| Some(path.as_str()) == shape.meta_field.as_deref())
}

/// Returns the bin of all measurements of a bucket, if all are selected and its bounds lie in one bin.
pub(crate) fn whole_bin(bins: &TimeBins, block: &MeasurementBlock) -> Result<Option<i64>> {
    let (Some(min), Some(max)) = block.time_bounds() else {
        return Ok(None);
    };
    if !block.is_whole() {
        return Ok(None);
    }
    let bin = bins.bin_of(min)?;
    Ok(bins.contains(bin, max)?.then_some(bin.key))
}

/// Returns how many of ascending times lie in the bin of the first, by galloping search.
fn run_length_sorted(times: &[i64], bin: TimeBin, bins: &TimeBins) -> Result<usize> {
    let inside = |at: usize| -> Result<bool> {
        match times.get(at) {
            Some(time) => bins.contains(bin, *time),
            None => Ok(false),
        }
    };
    let mut low = 0;
    let mut step = 1;
    while inside(low + step)? {
        low += step;
        step *= 2;
    }
    let mut high = low + step;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if inside(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low + 1)
}

fn run_length(times: &[i64], bin: TimeBin, bins: &TimeBins) -> Result<usize> {
    for (at, time) in times.iter().enumerate() {
        if !bins.contains(bin, *time)? {
            return Ok(at);
        }
    }
    Ok(times.len())
}

fn accumulate(
    plan: &BlockGroupPlan,
    stage: &GroupStage,
    block: &MeasurementBlock,
    runs: &[GroupRun],
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<()> {
    // Built only if some argument needs rows.
    let rows = OnceCell::new();
    for ranking in &plan.rankings {
        ranking.accumulate(&stage.fields, block, runs, table, cx)?;
    }
    for (at, ((_, spec), input)) in stage.fields.iter().zip(&plan.inputs).enumerate() {
        match input {
            Input::Count => {
                for run in runs {
                    table.change(run.group, at, spec, |state| {
                        spec.add_repeated(state, ValueRef::Missing, run.rows.len() as u64)
                    })?;
                }
            }
            Input::Constant(expression) => {
                let constants = block.constant_document();
                let value = expression.evaluate(constants.as_ref(), &cx.eval)?;
                add_constant(spec, at, &value, runs, table)?;
            }
            Input::Column(name) if add_total(spec, at, name, block, runs, table)? => {}
            Input::Column(name) => match name.column_of(&*block.bucket)? {
                Some(column) => {
                    let (column, from) = block.selected(column);
                    add_column(spec, at, (&column, from), runs, table)?;
                }
                None => add_constant(spec, at, &Value::Missing, runs, table)?,
            },
            Input::Ranked => {}
            Input::Rows if spec.sort().is_some() => {
                let fields = plan.row_fields.clone().unwrap_or_default();
                top_by_value::accumulate((at, spec), &fields, block, runs, table, cx)?;
            }
            Input::Rows if add_path(spec, at, block, runs, table)? => {}
            Input::Rows if add_computed(spec, at, block, runs, table, cx)? => {}
            Input::Rows => {
                if rows.get().is_none() {
                    let fields = plan.row_fields.clone().unwrap_or_default();
                    let made = narrowed(block, fields).to_rows()?;
                    rows.get_or_init(|| made);
                }
                let rows = rows.get().map_or(&[][..], Vec::as_slice);
                for run in runs {
                    table.change(run.group, at, spec, |state| {
                        for row in rows.get(run.rows.clone()).unwrap_or(&[]) {
                            spec.add(state, row.as_ref(), &cx.eval)?;
                        }
                        Ok(())
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// True if the total of a column suffices for the accumulator.
fn adds_totals(spec: &AccumulatorSpec) -> bool {
    matches!(spec.kind(), AccumulatorKind::Sum | AccumulatorKind::Avg)
}

/// Adds a column by its total; false, with nothing added, if the total does not suffice.
fn add_total(
    spec: &AccumulatorSpec,
    at: usize,
    name: &ColumnName,
    block: &MeasurementBlock,
    runs: &[GroupRun],
    table: &mut Table,
) -> Result<bool> {
    let ([run], true) = (runs, adds_totals(spec)) else {
        return Ok(false);
    };
    let Some(total) = block.total(name)? else {
        return Ok(false);
    };
    table.change(run.group, at, spec, |state| {
        spec.add_total(state, &total);
        Ok(())
    })?;
    Ok(true)
}

fn add_constant(
    spec: &AccumulatorSpec,
    at: usize,
    value: &Value,
    runs: &[GroupRun],
    table: &mut Table,
) -> Result<()> {
    for run in runs {
        table.change(run.group, at, spec, |state| {
            spec.add_repeated(state, value.as_ref(), run.rows.len() as u64)
        })?;
    }
    Ok(())
}

fn add_column(
    spec: &AccumulatorSpec,
    at: usize,
    (column, from): (&ColumnBlock, usize),
    runs: &[GroupRun],
    table: &mut Table,
) -> Result<()> {
    if let BlockData::Constant(value) = column.data()
        && column.is_all_present()
    {
        return add_constant(spec, at, value, runs, table);
    }
    if column.is_all_missing() {
        return add_constant(spec, at, &Value::Missing, runs, table);
    }
    for run in runs {
        let rows = from + run.rows.start..from + run.rows.end;
        table.change(run.group, at, spec, |state| {
            match spec.kind() {
                // Only one end of a run matters.
                AccumulatorKind::First => {
                    return spec.add_value(state, column.value(rows.start));
                }
                AccumulatorKind::Last => {
                    return spec.add_value(state, column.value(rows.end.saturating_sub(1)));
                }
                _ => {}
            }
            if spec.kind() == AccumulatorKind::AddToSet {
                return add_distinct(spec, state, column, rows);
            }
            if column.is_all_present() {
                match column.data() {
                    BlockData::Double(values) => return spec.add_f64s(state, cut(values, rows)),
                    BlockData::Int32(values) => return spec.add_i32s(state, cut(values, rows)),
                    BlockData::Int64(values) => return spec.add_i64s(state, cut(values, rows)),
                    BlockData::ShortInt64(values) => {
                        return spec.add_short_i64s(state, cut(values, rows));
                    }
                    BlockData::DateTime(values) => return spec.add_dates(state, cut(values, rows)),
                    _ => {}
                }
            }
            for row in rows {
                spec.add_value(state, column.value(row))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Adds values to a set, most repeated values of one type only once.
fn add_distinct(
    spec: &AccumulatorSpec,
    state: &mut AccumulatorState,
    column: &ColumnBlock,
    rows: Range<usize>,
) -> Result<()> {
    if rows.len() < DISTINCT_MIN {
        return rows
            .into_iter()
            .try_for_each(|row| spec.add_value(state, column.value(row)));
    }
    let mut met = [None; RECENT];
    for row in rows {
        let bits = match column.data() {
            _ if column.is_missing(row) => None,
            BlockData::Int32(values) => values.get(row).map(|value| i64::from(*value) as u64),
            BlockData::Int64(values) => values.get(row).map(|value| *value as u64),
            BlockData::ShortInt64(values) => values.get(row).map(|value| i64::from(*value) as u64),
            BlockData::Double(values) => values.get(row).map(|value| value.to_bits()),
            BlockData::DateTime(values) => values.get(row).map(|value| *value as u64),
            BlockData::Dictionary { codes, .. } => codes.get(row).map(|code| u64::from(*code)),
            _ => None,
        };
        if let Some(bits) = bits
            && let Some(known) = met.get_mut(recent_place(bits))
            && known.replace(bits) == Some(bits)
        {
            continue;
        }
        spec.add_value(state, column.value(row))?;
    }
    Ok(())
}

fn cut<T>(values: &[T], rows: Range<usize>) -> &[T] {
    values.get(rows).unwrap_or(&[])
}

/// Returns what was remembered for metadata with a number, a group or a series of a form of keys; else finds and remembers it.
pub(super) fn by_meta(
    plan: &BlockGroupPlan,
    meta_id: impl FnOnce() -> Option<NonZeroU64>,
    table: &mut Table,
    cx: &ExecContext<'_>,
    find: impl FnOnce(&mut Table) -> Result<u32>,
) -> Result<u32> {
    table.keys.set_form(&plan.form, cx.eval.collator);
    let (number, known) = table.keys.metas.get(meta_id);
    if let Some(known) = known {
        return Ok(known);
    }
    let found = find(table)?;
    table.keys.metas.remember(number, found);
    Ok(found)
}

/// Returns the group of a block whose key is the same for all its rows.
pub(super) fn group_of_block(
    plan: &BlockGroupPlan,
    block: &MeasurementBlock,
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<u32> {
    by_meta(
        plan,
        || block.meta_id(),
        table,
        cx,
        |table| new_group_of_block(plan, block, table, cx),
    )
}

/// The same if nothing is remembered for its metadata.
pub(super) fn new_group_of_block(
    plan: &BlockGroupPlan,
    block: &MeasurementBlock,
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<u32> {
    let key = match (&plan.form.names, plan.parts.as_slice(), block.meta()) {
        (None, [KeyPart::Constant(single)], ValueRef::Document(meta))
            if is_meta(single, &block.shape) =>
        {
            Value::Document(meta.to_document())
        }
        _ => {
            let parts = constant_parts(plan, block, cx)?;
            plan.form.key(parts.iter().map(Value::as_ref))
        }
    };
    table.number_of(table.normal_key(key), cx)
}

/// Returns the number of the block's constant key parts, of the current form of keys. They read only the metadata, so results remembered for
/// equal metadata are not evaluated again.
pub(super) fn series_of_block(
    plan: &BlockGroupPlan,
    block: &MeasurementBlock,
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<u32> {
    by_meta(
        plan,
        || block.meta_id(),
        table,
        cx,
        |table| {
            let values = constant_parts(plan, block, cx)?;
            Ok(table.keys.series_of(&values, cx.eval.collator))
        },
    )
}

/// Adds the values at the path that is an accumulator's argument; false, with nothing added, if it is none, or its values must be found
/// in documents.
fn add_path(
    spec: &AccumulatorSpec,
    at: usize,
    block: &MeasurementBlock,
    runs: &[GroupRun],
    table: &mut Table,
) -> Result<bool> {
    let Some(path) = spec.argument().as_field_path() else {
        return Ok(false);
    };
    let Some(column) = block.column_at_path(path.as_str())? else {
        return Ok(false);
    };
    let (column, from) = block.selected(&column);
    add_column(spec, at, (&column, from), runs, table)?;
    Ok(true)
}

/// Adds an accumulator's argument over each run of selected measurements; false, with nothing added, if there are no
/// kernels for it.
fn add_computed(
    spec: &AccumulatorSpec,
    at: usize,
    block: &MeasurementBlock,
    runs: &[GroupRun],
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<bool> {
    if !has_kernels(spec.argument()) {
        return Ok(false);
    }
    let Some(vector) = computed_vector(spec.argument(), block, cx) else {
        return Ok(false);
    };
    for run in runs {
        let rows = run.rows.clone();
        table.change(run.group, at, spec, |state| match &vector {
            Vector::Double(values) => spec.add_f64s(state, cut(values, rows)),
            Vector::Int(values) => spec.add_i32s(state, cut(values, rows)),
            Vector::Long(values) => spec.add_i64s(state, cut(values, rows)),
            Vector::Date(values) => spec.add_dates(state, cut(values, rows)),
            Vector::Bool(values) => cut(values, rows)
                .iter()
                .try_for_each(|value| spec.add_value(state, ValueRef::Bool(*value))),
            Vector::Values(values) => cut(values, rows)
                .iter()
                .try_for_each(|value| spec.add_value(state, value.as_ref())),
        })?;
    }
    Ok(true)
}
