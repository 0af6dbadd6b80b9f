//! `$top` and `$bottom` by time, over a run of measurements: one row of the run can matter.
//!
//! ```text
//! {$top: {sortBy: {"m.host": 1, t: -1}, …}}    in a block only t varies: the newest row, and of several
//!                                              the first, as a stable sort has it
//! control.max.t older than what is kept        no row can matter, and no column is decoded
//! ```
//!
//! The same bound spares a sort with a limit the blocks that come after all it keeps.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use nilometer_bson::block::BlockData;
use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::filter::narrowed;
use super::group::{Run, selected};
use crate::error::Result;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::sort_key::{SortBy, SortKey, SortPattern};
use crate::eval::variables::SharedCollator;
use crate::eval::{Dependencies, ParseContext};
use crate::query::batch::{MeasurementBlock, MeasurementShape, Selection};
use crate::query::exec::ExecContext;
use crate::query::exec::group::Table;

/// Which row of a run an accumulator ordered by time and metadata keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeRank {
    /// By time: the newest (or the oldest); all rows alike if time is not in the order.
    pub(crate) newest: Option<bool>,
    /// Of equal rows the last and not the first.
    last: bool,
}

/// How a `$top` or `$bottom` ranks the rows of a block, if metadata and time are all it orders by.
pub(crate) fn time_rank(
    spec: &AccumulatorSpec,
    time_field: &str,
    meta_field: Option<&str>,
) -> Option<TimeRank> {
    let last = match spec.kind() {
        AccumulatorKind::Top => false,
        AccumulatorKind::Bottom => true,
        _ => return None,
    };
    let mut newest = None;
    for part in spec.sort()?.parts() {
        let SortBy::Field(path) = &part.by else {
            return None;
        };
        if path.as_str() == time_field {
            newest = Some(part.descending != last);
        } else if meta_field != Some(path.first()) {
            return None;
        }
    }
    Some(TimeRank { newest, last })
}

/// How far a sort goes by what a block's header tells: the metadata and time it begins with.
pub(crate) struct SortPrefix {
    rank: TimeRank,
    /// The parts of the pattern up to the first that reads anything else.
    sort: SortPattern,
    /// How many.
    parts: usize,
    /// They are all of the pattern.
    is_whole: bool,
}

impl SortPrefix {
    /// The prefix of a pattern over blocks of this shape; `None` if time is not in it.
    pub(crate) fn of(
        pattern: &SortPattern,
        shape: &MeasurementShape,
        collator: Option<SharedCollator>,
    ) -> Option<Self> {
        let mut newest = None;
        let mut prefix = DocumentBuilder::new();
        let mut parts = 0;
        for part in pattern.parts() {
            let SortBy::Field(path) = &part.by else {
                break;
            };
            let is_time =
                path.as_str() == &*shape.time_field && shape.fields.contains(&shape.time_field);
            if is_time {
                newest = Some(part.descending);
            } else if shape.meta_field.as_deref() != Some(path.first()) {
                break;
            }
            prefix.append(path.as_str(), if part.descending { -1 } else { 1 });
            parts += 1;
        }
        newest?;
        let cx = ParseContext::new().with_collator(collator);
        Some(Self {
            rank: TimeRank {
                newest,
                last: false,
            },
            sort: SortPattern::parse(prefix.finish().as_ref(), &cx).ok()?,
            parts,
            is_whole: parts == pattern.parts().len(),
        })
    }

    /// True if no row of the block can come before a row with the key `worst`.
    pub(crate) fn is_beyond(
        &self,
        block: &MeasurementBlock,
        worst: &SortKey,
        cx: &ExecContext<'_>,
    ) -> Result<bool> {
        let Some(bound) = self.rank.best_possible(block) else {
            return Ok(false);
        };
        let bound = self.sort.extract(bound.as_ref(), &cx.eval)?;
        let worst = worst.values().get(..self.parts).unwrap_or(&[]);
        let worst = match worst {
            [single] => SortKey::One(single.clone()),
            several => SortKey::Many(several.into()),
        };
        let order = self.sort.compare(&bound, &worst);
        Ok(order.is_gt() || (self.is_whole && order.is_eq()))
    }
}

/// Accumulators of one stage that rank rows alike.
pub(super) struct Ranking {
    rank: TimeRank,
    /// The order they have in common.
    sort: SortPattern,
    /// Their places among the accumulators.
    members: Vec<usize>,
    /// What they read.
    dependencies: Dependencies,
}

impl Ranking {
    /// Puts the accumulator at place `at` beside those that rank as it does.
    pub(super) fn add(rankings: &mut Vec<Self>, rank: TimeRank, at: usize, spec: &AccumulatorSpec) {
        let Some(sort) = spec.sort() else {
            return;
        };
        let alike = |other: &&mut Self| {
            other.rank == rank && other.sort.to_document() == sort.to_document()
        };
        if let Some(known) = rankings.iter_mut().find(alike) {
            known.members.push(at);
            spec.dependencies(&mut known.dependencies);
            return;
        }
        let mut dependencies = Dependencies::default();
        spec.dependencies(&mut dependencies);
        rankings.push(Self {
            rank,
            sort: sort.clone(),
            members: vec![at],
            dependencies,
        });
    }

    /// Offers each run's best row to the members.
    pub(super) fn accumulate(
        &self,
        fields: &[(Arc<str>, AccumulatorSpec)],
        block: &MeasurementBlock,
        runs: &[Run],
        table: &mut Table,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        let bound = match self.rank.best_possible(block) {
            Some(bound) => Some(self.sort.extract(bound.as_ref(), &cx.eval)?),
            None => None,
        };
        let members = || {
            let spec = |at: &usize| fields.get(*at).map(|(_, spec)| (*at, spec));
            self.members.iter().filter_map(spec)
        };
        for run in runs {
            let may_matter =
                members().any(|(at, spec)| match (table.state(run.group, at), &bound) {
                    (Some(state), Some(bound)) => spec.wants_ranked(state, bound),
                    _ => true,
                });
            if !may_matter {
                continue;
            }
            let Some(row) = self.best_row(block, &run.rows)? else {
                continue;
            };
            for (at, spec) in members() {
                table.change(run.group, at, spec, |state| {
                    spec.add(state, row.as_ref(), &cx.eval)
                })?;
            }
        }
        Ok(())
    }

    /// The best row of a run, with the fields the members read.
    fn best_row(&self, block: &MeasurementBlock, rows: &Range<usize>) -> Result<Option<Document>> {
        let Some(at) = self.rank.place(block, rows)? else {
            return Ok(None);
        };
        let row = match &block.selection {
            Selection::Range(range) => u32::try_from(at).ok().map(|at| range.start + at),
            Selection::Rows(rows) => rows.get(at).copied(),
        };
        let Some(row) = row else {
            return Ok(None);
        };
        let block = if self.dependencies.whole {
            block.clone()
        } else {
            let fields = self.dependencies.top_level_fields().into_iter();
            narrowed(block, fields.map(Arc::from).collect::<BTreeSet<_>>())
        };
        let found = block.rows_of(&Selection::Range(row..row + 1))?;
        Ok(found.into_iter().next())
    }
}

impl TimeRank {
    /// A document at least as good as any of the block, made of its header. `None` if the header
    /// does not tell: the lower bound of times is rounded towards 1970, so before it there is none.
    fn best_possible(self, block: &MeasurementBlock) -> Option<Document> {
        let time_field = &block.shape.time_field;
        let mut out = DocumentBuilder::new();
        if block.shape.fields.contains(time_field) {
            let bound = match self.newest {
                Some(true) => block.bucket.max(time_field),
                Some(false) => match block.bucket.min(time_field) {
                    ValueRef::DateTime(at) if at <= 0 => return None,
                    bound => bound,
                },
                None => ValueRef::Missing,
            };
            if self.newest.is_some() && !matches!(bound, ValueRef::DateTime(_)) {
                return None;
            }
            out.append_ref(time_field, bound);
        }
        if let Some(meta) = &block.shape.meta_field {
            out.append_ref(meta, block.meta());
        }
        Some(out.finish())
    }

    /// The place of the best row among the rows of a run.
    fn place(self, block: &MeasurementBlock, rows: &Range<usize>) -> Result<Option<usize>> {
        let edge = if self.last {
            rows.end.checked_sub(1)
        } else {
            Some(rows.start)
        };
        let Some(newest) = self.newest else {
            return Ok(edge);
        };
        let Some(times) = selected(block, &block.shape.time_field)? else {
            return Ok(edge);
        };
        let BlockData::DateTime(times) = times.data() else {
            return Ok(edge);
        };
        let run = times.get(rows.clone()).unwrap_or(&[]);
        let best = match (block.bucket.is_sorted(), newest) {
            (true, true) => run.last(),
            (true, false) => run.first(),
            (false, true) => run.iter().max(),
            (false, false) => run.iter().min(),
        };
        let found = best.and_then(|best| {
            // From the end it lies at, if they are sorted.
            match (self.last, newest && block.bucket.is_sorted()) {
                (true, _) => run.iter().rposition(|time| time == best),
                (false, false) => run.iter().position(|time| time == best),
                (false, true) => {
                    let alike = run.iter().rev().take_while(|time| *time == best);
                    run.len().checked_sub(alike.count())
                }
            }
        });
        Ok(found.map(|at| rows.start + at))
    }
}
