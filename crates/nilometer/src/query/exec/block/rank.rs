//! `$top` and `$bottom` by time, over a run of measurements: one row of the run can matter.
//!
//! ```text
//! {$top: {sortBy: {"m.host": 1, t: -1}, …}}    in a block only t varies: the newest row, and of several
//!                                              the first, as a stable sort has it
//! control.max.t older than what is kept        no row can matter, and no column is decoded
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use nilometer_bson::block::BlockData;
use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::filter::narrowed;
use super::group::selected;
use crate::error::Result;
use crate::eval::Dependencies;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec, State};
use crate::eval::sort_key::SortBy;
use crate::query::batch::{MeasurementBlock, Selection};
use crate::query::exec::ExecContext;

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

impl TimeRank {
    /// The one row of the run that may change the state, with the fields the accumulator reads; `None` if
    /// none may.
    pub(super) fn candidate(
        self,
        spec: &AccumulatorSpec,
        state: Option<&State>,
        block: &MeasurementBlock,
        rows: &Range<usize>,
        cx: &ExecContext<'_>,
    ) -> Result<Option<Document>> {
        if let (Some(state), Some(bound)) = (state, self.best_possible(block))
            && let Some(sort) = spec.sort()
        {
            let key = sort.extract(bound.as_ref(), &cx.eval)?;
            if !spec.wants_ranked(state, &key) {
                return Ok(None);
            }
        }
        let Some(at) = self.place(block, rows)? else {
            return Ok(None);
        };
        let row = match &block.selection {
            Selection::Range(range) => u32::try_from(at).ok().map(|at| range.start + at),
            Selection::Rows(rows) => rows.get(at).copied(),
        };
        let Some(row) = row else {
            return Ok(None);
        };
        let mut dependencies = Dependencies::default();
        spec.dependencies(&mut dependencies);
        let block = if dependencies.whole {
            block.clone()
        } else {
            let fields = dependencies.top_level_fields().into_iter();
            narrowed(block, fields.map(Arc::from).collect::<BTreeSet<_>>())
        };
        let found = block.rows_of(&Selection::Range(row..row + 1))?;
        Ok(found.into_iter().next())
    }

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
        let best = if newest {
            run.iter().max()
        } else {
            run.iter().min()
        };
        let found = best.and_then(|best| {
            if self.last {
                run.iter().rposition(|time| time == best)
            } else {
                run.iter().position(|time| time == best)
            }
        });
        Ok(found.map(|at| rows.start + at))
    }
}
