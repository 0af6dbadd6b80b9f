//! Reading a rollup: its bins where they are up to date, its source elsewhere.
//!
//! ```text
//! frozen               clean       dirty      clean        closed         newest
//! ─────────────────────┬───────────┬──────────┬────────────┬──────────────┬──► time
//!  stored              │ stored    │ live     │ stored     │ live
//! ```
//!
//! Which spans are live is read from one snapshot, and so are the stored bins. The live spans are groups over the source, or
//! over the bins of the rollup below, with partial states. Every bin is in one of both, so nothing counts twice.
//!
//! An index, where one was chosen, leads to the bins of all stored spans, which are read first.
//!
//! Where a rollup answers a group of its source, another thread computes a live span while the stored one before it is read.

mod indexed_bins;
mod open_bins;
mod rows;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nilometer_bson::{DocRef, DocumentBuilder, Value};

use self::indexed_bins::IndexedBins;
use self::open_bins::OpenBinScan;
pub(crate) use self::rows::bin_document;
use self::rows::{BinRows, document_of};
use super::Nothing;
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, ParseContext};
use crate::query::batch::Batch;
use crate::query::exec::build::Builder;
use crate::query::exec::workers::TaskAhead;
use crate::query::exec::{
    BoxOperator, ExecContext, ExecSettings, Operator, ROWS_PER_BATCH, RowBatch,
};
use crate::query::pipeline::{GroupStage, MatchStage, Stage};
use crate::query::planner;
use crate::query::planner::access::bins::BinHint;
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::physical::{
    Input, PhysicalGroup, PhysicalPlan, PhysicalStage, RollupInput, RollupOutput, StateMapping,
};
use crate::query::planner::resolve::measurements;
use crate::query::planner::rules::{LogicalRule, RuleSet, UseRollup};
use crate::query::source::{RollupSource, ScanCounters};
use crate::rollup::view::TimeSpan;
use crate::rollup::{PartSource, RollupDefinition, RollupView, StoredBin};

/// A span of time that is read from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RollupPart {
    /// From stored bins.
    Stored(i64, i64),
    /// From the stored bins of all such spans, by an index.
    Indexed,
    /// From the source.
    Live(i64, i64),
}

/// A live part, and its first batch if that is known.
type BegunPart = (BoxOperator, Option<Batch>);

/// What is being read.
enum CurrentPart {
    Stored(Box<dyn Iterator<Item = Result<StoredBin>> + Send>),
    Indexed(Box<IndexedBins>),
    Live(BegunPart),
}

/// Reads a rollup.
pub(crate) struct RollupScan {
    rows: BinRows,
    builder: Builder,
    counters: Arc<ScanCounters>,
    /// `None` before the first batch.
    parts: Option<VecDeque<RollupPart>>,
    view: Option<RollupView>,
    current: Option<CurrentPart>,
    /// What [`RollupPart::Indexed`] reads.
    indexed: Option<Box<IndexedBins>>,
    /// The next live part.
    ahead: Option<TaskAhead<BegunPart>>,
}

impl RollupScan {
    /// Reads the rollup of `input`.
    pub(crate) fn new(input: RollupInput, builder: Builder, counters: Arc<ScanCounters>) -> Self {
        // Groups of a rollup compare strings byte by byte, and its definition has no variables.
        let mut settings = ExecSettings::clone(&builder.settings);
        settings.plan.collator = None;
        settings.plan.variables = Arc::default();
        if let Ok(own) = RuleSet::named([UseRollup.name()]) {
            settings.plan.options.disabled = settings.plan.options.disabled.or(own);
        }
        let builder = builder.with_settings(Arc::new(settings));
        Self {
            rows: BinRows::new(input),
            builder,
            counters,
            parts: None,
            view: None,
            current: None,
            indexed: None,
            ahead: None,
        }
    }

    fn input(&self) -> &RollupInput {
        self.rows.input()
    }

    fn begin(&mut self, cx: &ExecContext<'_>) -> Result<VecDeque<RollupPart>> {
        let rollup = &self.input().rollup;
        let view = RollupView::open(&*rollup.engine, &rollup.stored)?;
        let of_series = self.filter_of_series();
        let wanted = |key: DocRef<'_>| match &of_series {
            Some(filter) => filter.matches(document_of(key).as_ref(), &cx.eval),
            None => Ok(true),
        };
        let mut parts = match self.input().of_series {
            true => parts_of_series(&view, self.input(), &wanted)?,
            false => parts_of(&view, self.input(), &wanted)?,
        };
        if let Some(access) = &self.input().index
            && let Some(indexed) = IndexedBins::new(access, &parts)
        {
            self.indexed = Some(Box::new(indexed));
            parts.retain(|part| matches!(part, RollupPart::Live(..)));
            parts.push_front(RollupPart::Indexed);
        }
        self.view = Some(view);
        Ok(parts)
    }

    /// Returns the condition on keys whose documents may pass, whatever their bin; `None` if all may.
    fn filter_of_series(&self) -> Option<MatchExpression> {
        let filter = self.input().key_filter.clone()?;
        let time = &*self.input().rollup.definition.time_name;
        let in_id = format!("_id.{time}");
        // The whole key has the time of its bin.
        let has_time = |path: &str| path == time || path == "_id" || path.starts_with(&in_id);
        let (of_series, _) = filter.split(|path| !has_time(path));
        Some(of_series)
    }

    /// Begins to read `part`, and to compute `next`.
    fn open(
        &mut self,
        part: RollupPart,
        next: Option<&RollupPart>,
        cx: &ExecContext<'_>,
    ) -> Result<CurrentPart> {
        if !matches!(part, RollupPart::Live(..))
            && let Some(RollupPart::Live(from, to)) = next
        {
            self.ahead = self.compute_ahead((*from, *to), cx)?;
        }
        Ok(match (part, &self.view, self.indexed.take()) {
            (RollupPart::Stored(from, to), Some(view), _) => {
                CurrentPart::Stored(view.bins((from, to))?)
            }
            (RollupPart::Indexed, _, Some(bins)) => CurrentPart::Indexed(bins),
            (RollupPart::Indexed, ..) => CurrentPart::Live((Box::new(Nothing), None)),
            (RollupPart::Live(from, to) | RollupPart::Stored(from, to), ..) => {
                // A task that failed is repeated: its time limit may have been that of an earlier command.
                match self.ahead.take().map(TaskAhead::finish) {
                    Some(Ok((_, None))) => CurrentPart::Live((Box::new(Nothing), None)),
                    Some(Ok(begun)) => CurrentPart::Live(begun),
                    Some(Err(_)) | None => CurrentPart::Live((self.live((from, to))?, None)),
                }
            }
        })
    }

    /// Lets another thread compute a live span; `None` if the query runs on one, or may end before it needs the span.
    fn compute_ahead(
        &self,
        span: TimeSpan,
        cx: &ExecContext<'_>,
    ) -> Result<Option<TaskAhead<BegunPart>>> {
        let threads = self.builder.settings.threads.as_ref();
        let Some(threads) = threads.filter(|_| self.input().of_series) else {
            return Ok(None);
        };
        let mut operator = self.live(span)?;
        let operation = cx.operation.for_worker();
        let settings = Arc::clone(&self.builder.settings);
        Ok(Some(TaskAhead::offer(
            threads,
            Box::new(move || {
                let first = operator.next(&ExecContext::new(&operation, &settings))?;
                Ok((operator, first))
            }),
        )))
    }

    /// Returns what computes the bins of a span.
    fn live(&self, span: TimeSpan) -> Result<BoxOperator> {
        let mapping = self.input().output.mapping();
        let selected = mapping.map(|mapping| mapping.fields.as_slice());
        if let Some(scan) = self.over_open_bins(span, selected) {
            return Ok(Box::new(scan));
        }
        if self.input().of_series
            && let Some(plan) = self.plan_over_parent(span)
        {
            return self.builder.build(plan);
        }
        live_bins(
            &self.builder,
            &self.input().rollup,
            span,
            self.input().series_filter.as_ref(),
            selected,
            self.input().of_series,
        )
    }

    /// Returns what computes the bins of all series; `None` if there is no rollup below, or some series are asked for.
    fn over_open_bins(&self, span: TimeSpan, selected: Option<&[usize]>) -> Option<OpenBinScan> {
        let input = self.input();
        if input.key_filter.is_some() || input.series_filter.is_some() {
            return None;
        }
        let all: Vec<usize> = (0..input.rollup.definition.fields.len()).collect();
        let selected = selected.unwrap_or(&all);
        OpenBinScan::new(
            &input.rollup,
            &self.builder,
            span,
            selected,
            input.of_series,
        )
    }

    /// Returns the plan that reads the measurements of a span from the rollup below: what is open here may be stored there. `None`
    /// if there is none, or if the condition cannot be put to its key.
    fn plan_over_parent(&self, span: (i64, i64)) -> Option<PhysicalPlan> {
        let rollup = &self.input().rollup;
        let (parent, asked) = (rollup.parent.as_ref()?, self.input().output.mapping()?);
        let from_parent = rollup.definition.from_parent.as_ref()?;
        let mut conjuncts = Vec::new();
        for conjunct in self.input().key_filter.iter().cloned() {
            for conjunct in conjunct.into_conjuncts() {
                conjuncts.push(from_parent.parts.iter().find_map(
                    |(name, source)| match source {
                        PartSource::Part(below) => conjunct.renamed(name, below),
                        _ => None,
                    },
                )?);
            }
        }
        let mut input = RollupInput {
            rollup: Arc::clone(parent),
            span,
            key_filter: (!conjuncts.is_empty()).then(|| MatchExpression::and(conjuncts)),
            series_filter: self.input().series_filter.clone(),
            output: RollupOutput::States(
                StateMapping::of_parent(&rollup.definition)?.only(&asked.fields),
            ),
            of_series: true,
            index: None,
        };
        if let Some(filter) = input.key_filter.clone() {
            let conjuncts = filter.into_conjuncts();
            input.choose_index(&conjuncts, &BinHint::None, &Collation::SIMPLE);
        }
        let group = group_of(&rollup.definition, &asked.fields);
        states_plan(input, group).ok()
    }
}

impl Operator for RollupScan {
    fn next(&mut self, outer: &ExecContext<'_>) -> Result<Option<Batch>> {
        let settings = Arc::clone(&self.builder.settings);
        let cx = ExecContext::new(outer.operation, &settings);
        let mut parts = match self.parts.take() {
            Some(parts) => parts,
            None => self.begin(&cx)?,
        };
        let mut out = RowBatch::default();
        let mut bins_read = 0;
        while !out.is_full() {
            let Some(current) = &mut self.current else {
                match parts.pop_front() {
                    Some(part) => self.current = Some(self.open(part, parts.front(), &cx)?),
                    None => break,
                }
                continue;
            };
            let bin = match current {
                CurrentPart::Stored(bins) => bins.next().transpose()?,
                CurrentPart::Indexed(bins) => match &self.view {
                    Some(view) => bins.next(view, &self.counters.keys, &cx)?,
                    None => None,
                },
                CurrentPart::Live((operator, first)) => {
                    let batch = match first.take() {
                        None => operator.next(&cx)?,
                        first => first,
                    };
                    let Some(batch) = batch else {
                        self.current = None;
                        continue;
                    };
                    for group in batch.into_rows()? {
                        if let Some(row) = self.rows.row(group.as_ref(), false, &cx.eval)? {
                            out.push(row);
                        }
                    }
                    continue;
                }
            };
            let Some(bin) = bin else {
                self.current = None;
                continue;
            };
            if bins_read % ROWS_PER_BATCH == 0 {
                cx.operation.check_interrupt()?;
            }
            bins_read += 1;
            if let Some(row) = self.rows.row(bin.as_doc(), true, &cx.eval)? {
                out.push(row);
            }
        }
        let documents = &self.counters.documents;
        documents.fetch_add(bins_read as u64, Relaxed);
        if parts.is_empty() && self.current.is_none() {
            self.view = None;
        }
        self.parts = Some(parts);
        Ok(out.into_batch())
    }
}

/// Returns the parts that hold the bins of the input, in order of time.
fn parts_of(
    view: &RollupView,
    input: &RollupInput,
    wanted: &dyn Fn(DocRef<'_>) -> Result<bool>,
) -> Result<VecDeque<RollupPart>> {
    let progress = view.progress;
    let mut parts = VecDeque::new();
    let (mut from, to) = input.span;
    from = from.max(progress.expired_ms);
    let stored_to = to.min(progress.closed_ms);
    let mut push = |part: RollupPart| match part {
        RollupPart::Stored(from, to) | RollupPart::Live(from, to) if from >= to => {}
        part => parts.push_back(part),
    };
    for (start, end) in view.dirty(wanted)? {
        // Frozen bins keep their value.
        let start = start.max(progress.changeable_from_ms()).max(from);
        let end = end.min(stored_to);
        if start >= end {
            continue;
        }
        push(RollupPart::Stored(from, start));
        push(RollupPart::Live(start, end));
        from = end;
    }
    push(RollupPart::Stored(from, stored_to));
    push(RollupPart::Live(from.max(stored_to), to));
    Ok(parts)
}

/// Returns the parts that hold the measurements of the input: parts of bins, and what the source has of frozen ones, are live.
fn parts_of_series(
    view: &RollupView,
    input: &RollupInput,
    wanted: &dyn Fn(DocRef<'_>) -> Result<bool>,
) -> Result<VecDeque<RollupPart>> {
    let (progress, bins) = (view.progress, &input.rollup.definition.bins);
    let (from, to) = input.span;
    let first = bins.ceil(from).max(progress.changeable_from_ms());
    let end = bins.floor(to).min(progress.closed_ms);
    // A condition on an array differs from one on what leads to it.
    let is_unusable = progress.has_arrays && input.key_filter.is_some();
    if first >= end || is_unusable {
        return Ok(VecDeque::from([RollupPart::Live(from, to)]));
    }
    let inner = RollupInput {
        span: (first, end),
        ..input.clone()
    };
    let mut parts = parts_of(view, &inner, wanted)?;
    if from < first {
        parts.push_front(RollupPart::Live(from, first));
    }
    if end < to {
        parts.push_back(RollupPart::Live(end, to));
    }
    Ok(parts)
}

/// Returns an operator that computes the bins of a span from what the rollup stands on: groups with partial states.
/// `filter` is a condition on measurements, `selected` the places of the accumulators. With `is_of_series` measurements are read in
/// any case, and the span may cut bins.
pub(crate) fn live_bins(
    builder: &Builder,
    rollup: &Arc<RollupSource>,
    span: (i64, i64),
    filter: Option<&MatchExpression>,
    selected: Option<&[usize]>,
    is_of_series: bool,
) -> Result<BoxOperator> {
    let definition = &rollup.definition;
    let all: Vec<usize> = (0..definition.fields.len()).collect();
    let selected = selected.unwrap_or(&all);
    let stage = group_of(definition, selected);
    let plan = match (&rollup.parent, StateMapping::of_parent(definition)) {
        (Some(parent), Some(mapping)) if !is_of_series => {
            let input = RollupInput {
                rollup: Arc::clone(parent),
                span,
                key_filter: None,
                series_filter: filter.cloned(),
                output: RollupOutput::States(mapping.only(selected)),
                of_series: false,
                index: None,
            };
            states_plan(input, stage)?
        }
        _ => {
            let mut filters: Vec<MatchExpression> = definition.filter.iter().cloned().collect();
            filters.extend(filter.cloned());
            filters.push(time_filter(&definition.series_time_field, span)?);
            let filter = MatchExpression::and(filters);
            let mut stages = Vec::new();
            if !matches!(filter, MatchExpression::AlwaysTrue) {
                stages.push(Stage::Match(MatchStage::new(filter)));
            }
            stages.push(Stage::Group(stage));
            let source = measurements(Arc::clone(&rollup.series), rollup.series_namespace.clone());
            let plan = LogicalPlan::new(LogicalSource::Measurements(Box::new(source)), stages);
            let mut plan = planner::optimize(plan, builder.settings.choice(None))?;
            plan.return_states()?;
            plan
        }
    };
    builder.build(plan)
}

/// Returns the `$group` of a definition with some of its accumulators.
fn group_of(definition: &RollupDefinition, selected: &[usize]) -> GroupStage {
    let mut stage = GroupStage::new(
        definition.key.clone(),
        definition.fields.clone(),
        definition.group.clone(),
    );
    stage.fields = selected
        .iter()
        .filter_map(|at| definition.fields.get(*at).cloned())
        .collect();
    stage
}

/// Returns the plan that merges the states of a rollup and returns those of `stage`.
fn states_plan(input: RollupInput, stage: GroupStage) -> Result<PhysicalPlan> {
    let group = PhysicalGroup::of_states(stage);
    let mut plan = PhysicalPlan {
        input: Input::Rollup(Box::new(input)),
        stages: vec![PhysicalStage::Group(group)],
        wanted: crate::query::pipeline::needs::Needs::All,
        distinct: None,
        fired: Vec::new(),
    };
    plan.return_states()?;
    Ok(plan)
}

/// Returns the condition that a measurement lies within a span.
fn time_filter(field: &str, (from, to): (i64, i64)) -> Result<MatchExpression> {
    let mut bounds = DocumentBuilder::new();
    if from != i64::MIN {
        bounds.append("$gte", Value::DateTime(from));
    }
    if to != i64::MAX {
        bounds.append("$lt", Value::DateTime(to));
    }
    if bounds.is_empty() {
        return Ok(MatchExpression::AlwaysTrue);
    }
    let mut filter = DocumentBuilder::new();
    filter.append(field, Value::Document(bounds.finish()));
    MatchExpression::parse(filter.finish().as_ref(), &ParseContext::new())
}
