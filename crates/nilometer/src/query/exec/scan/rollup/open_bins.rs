//! Bins of a rollup that are open, computed from a rollup below.
//!
//! ```text
//! rollup by day     … │ stored │ open                                  │
//! rollup by hour  … │ stored │ stored │ stored │ stored │ open         │
//!                              └── merged once, kept ───┘ └ each query ┘
//! ```
//!
//! What is stored below, from the first open bin on, is merged once and kept in memory ([`OpenBins`]). It holds while the
//! stored bins have the same version and none of them is dirty; a snapshot shows both.

use std::sync::Arc;

use nilometer_bson::Document;

use super::rows::with_states;
use super::{group_of, states_plan};
use crate::catalog::OpenBins;
use crate::error::Result;
use crate::query::batch::Batch;
use crate::query::exec::build::Builder;
use crate::query::exec::group::Group;
use crate::query::exec::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH};
use crate::query::pipeline::needs::Needs;
use crate::query::planner::physical::{
    GroupSide, Input, PhysicalGroup, PhysicalPlan, RollupInput, RollupOutput, StateMapping,
};
use crate::query::source::RollupSource;
use crate::rollup::RollupView;
use crate::rollup::view::TimeSpan;

/// Bytes of states that are kept for a rollup. If its open bins have more, each query merges them.
const OPEN_BINS_BYTES_MAX: usize = 4 << 20;

/// Computes open bins: returns groups with states.
pub(super) struct OpenBinScan {
    rollup: Arc<RollupSource>,
    parent: Arc<RollupSource>,
    mapping: StateMapping,
    builder: Builder,
    span: TimeSpan,
    /// The places of the accumulators.
    selected: Vec<usize>,
    /// The answer is that of the time series at the bottom.
    of_series: bool,
    /// `None` before the first batch.
    groups: Option<BoxOperator>,
}

impl OpenBinScan {
    /// Computes the bins of `span` with the accumulators at `selected`; `None` if there is no rollup below.
    pub(super) fn new(
        rollup: &Arc<RollupSource>,
        builder: &Builder,
        span: TimeSpan,
        selected: &[usize],
        of_series: bool,
    ) -> Option<Self> {
        Some(Self {
            parent: Arc::clone(rollup.parent.as_ref()?),
            mapping: StateMapping::of_parent(&rollup.definition)?,
            rollup: Arc::clone(rollup),
            builder: builder.clone(),
            span,
            selected: selected.to_vec(),
            of_series,
            groups: None,
        })
    }

    fn begin(&self, cx: &ExecContext<'_>) -> Result<BoxOperator> {
        let kept = self.kept(cx)?;
        let from = kept.as_ref().map_or(self.span.0, |kept| kept.span.1);
        let mapping = self.mapping.clone().only(&self.selected);
        let rest = PhysicalPlan {
            input: Input::Rollup(Box::new(self.input((from, self.span.1), mapping))),
            stages: Vec::new(),
            wanted: Needs::All,
            distinct: None,
            fired: Vec::new(),
        };
        let rows = KeptRows {
            kept,
            at: 0,
            selected: self.selected.clone(),
            is_all: self.mapping_is_all(),
            rest: self.builder.build(rest)?,
        };
        let group = PhysicalGroup {
            side: GroupSide::Combine,
            ..PhysicalGroup::of_states(group_of(&self.rollup.definition, &self.selected))
        };
        Ok(Box::new(Group::new(Box::new(rows), group)))
    }

    fn mapping_is_all(&self) -> bool {
        let all = 0..self.rollup.definition.fields.len();
        self.selected.iter().copied().eq(all)
    }

    /// Returns what reads a span of the rollup below.
    fn input(&self, span: TimeSpan, mapping: StateMapping) -> RollupInput {
        RollupInput {
            rollup: Arc::clone(&self.parent),
            span,
            key_filter: None,
            series_filter: None,
            output: RollupOutput::States(mapping),
            of_series: self.of_series,
            index: None,
        }
    }

    /// Returns the merged states of what is stored below; `None` if nothing can be kept.
    fn kept(&self, cx: &ExecContext<'_>) -> Result<Option<Arc<OpenBins>>> {
        let Some((version, span)) = self.stored_below()? else {
            return Ok(None);
        };
        let stored = &self.rollup.stored;
        let known = stored.open_bins();
        let known = known.filter(|known| known.version == version && known.span == span);
        let found = match known {
            Some(known) => known,
            None => {
                let found = Arc::new(OpenBins {
                    version,
                    span,
                    groups: self.merge(span, cx)?,
                });
                // The states were read from a later snapshot.
                if self.stored_below()? != Some((version, span)) {
                    return Ok(None);
                }
                stored.keep_open_bins(Arc::clone(&found));
                found
            }
        };
        Ok(Some(found).filter(|found| found.groups.is_some()))
    }

    /// Returns the span of clean bins of the rollup below, from the first that is asked for to the last that is stored, with the version of its
    /// bins; `None` if there are none, or if more is stored than is asked for.
    fn stored_below(&self) -> Result<Option<(u64, TimeSpan)>> {
        let view = RollupView::open(&*self.parent.engine, &self.parent.stored)?;
        let (progress, from) = (view.progress, self.span.0);
        let is_bin = self.parent.definition.bins.floor(from) == from;
        let (first, end) = (progress.changeable_from_ms(), progress.closed_ms);
        if !is_bin || from < first || end <= from || end > self.span.1 {
            return Ok(None);
        }
        let Some(version) = view.version()? else {
            return Ok(None);
        };
        let dirty = view.dirty(&|_| Ok(true))?;
        let is_clean = dirty.iter().all(|span| span.1 <= from || span.0 >= end);
        Ok(is_clean.then_some((version, (from, end))))
    }

    /// Returns the groups of a span with all states; `None` if they are too large to be kept.
    fn merge(&self, span: TimeSpan, cx: &ExecContext<'_>) -> Result<Option<Vec<Document>>> {
        let all: Vec<usize> = (0..self.rollup.definition.fields.len()).collect();
        let input = self.input(span, self.mapping.clone());
        let plan = states_plan(input, group_of(&self.rollup.definition, &all))?;
        let mut operator = self.builder.build(plan)?;
        let (mut out, mut bytes) = (Vec::new(), 0);
        while let Some(batch) = operator.next(cx)? {
            for group in batch.into_rows()? {
                bytes += group.as_bytes().len();
                if bytes > OPEN_BINS_BYTES_MAX {
                    return Ok(None);
                }
                out.push(group);
            }
        }
        Ok(Some(out))
    }
}

impl Operator for OpenBinScan {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.groups.is_none() {
            self.groups = Some(self.begin(cx)?);
        }
        match &mut self.groups {
            Some(groups) => groups.next(cx),
            None => Ok(None),
        }
    }
}

/// Returns the groups that were kept, and then those of another operator.
struct KeptRows {
    kept: Option<Arc<OpenBins>>,
    /// The first group that was not returned.
    at: usize,
    selected: Vec<usize>,
    /// All states are selected.
    is_all: bool,
    rest: BoxOperator,
}

impl Operator for KeptRows {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let kept = self.kept.as_ref().and_then(|kept| kept.groups.as_ref());
        let groups = kept.into_iter().flatten();
        let groups = groups.skip(self.at).take(ROWS_PER_BATCH);
        let rows: Vec<Document> = groups
            .map(|group| match self.is_all {
                true => group.clone(),
                false => with_states(group.as_ref(), &self.selected),
            })
            .collect();
        if rows.is_empty() {
            self.kept = None;
            return self.rest.next(cx);
        }
        self.at += rows.len();
        Ok(Some(Batch::Rows(rows)))
    }
}
