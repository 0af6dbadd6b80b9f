//! The marks of a write: which stored bins of which rollups it makes dirty.
//!
//! ```text
//!           frozen            closed                newest
//! ──────────┼─────────────────┼─────────────────────┼──────► time
//!  ignored  │  a mark         │  nothing: the bin is computed live
//! ```
//!
//! A measurement in order costs one comparison for each rollup. The list of rollups is held for reading from here to the
//! commit of the batch, so a refresh that raises `closed` knows what it has to wait for.

use nilometer_bson::ValueRef;
use nilometer_storage::WriteBatch;

use super::definition::{RollupDefinition, definition_of};
use super::view::put_mark;
use crate::catalog::{
    Collection, RollupListGuard, RollupProgress, StoredRollup, TimeseriesOptions,
};
use crate::error::Result;

/// The rollups on a collection, which do not change while this exists.
pub struct RollupMarks<'c> {
    list: RollupListGuard<'c>,
    options: Option<&'c TimeseriesOptions>,
}

impl<'c> RollupMarks<'c> {
    /// Locks the list of rollups of a collection.
    pub fn lock(collection: &'c Collection) -> Self {
        Self {
            list: collection.rollups.lock_shared(),
            options: collection.timeseries.as_ref(),
        }
    }

    /// True if there are no rollups.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Marks the bins of measurements of a series. The times ascend.
    pub fn mark_times(
        &self,
        batch: &mut WriteBatch,
        meta: ValueRef<'_>,
        times: impl Iterator<Item = i64> + Clone,
    ) -> Result<()> {
        let Some(first) = times.clone().next() else {
            return Ok(());
        };
        for rollup in self.list.iter() {
            rollup.touch();
            let progress = rollup.progress();
            if first >= progress.closed_ms {
                continue;
            }
            let definition = self.definition(rollup)?;
            let mut open: Option<(i64, i64)> = None;
            for time in times.clone() {
                if open.is_some_and(|(_, end)| time < end) {
                    continue;
                }
                let start = definition.bins.floor(time);
                if start >= progress.closed_ms {
                    break;
                }
                if start < progress.changeable_from_ms() {
                    continue;
                }
                let end = definition.bins.next(start);
                match &mut open {
                    Some(span) if span.1 == start => span.1 = end,
                    _ => {
                        if let Some(span) = open.replace((start, end)) {
                            mark(batch, rollup, progress, &definition, meta, span);
                        }
                    }
                }
            }
            if let Some(span) = open {
                mark(batch, rollup, progress, &definition, meta, span);
            }
        }
        Ok(())
    }

    /// Marks all bins of a series between two instants, both inclusive.
    pub fn mark_span(
        &self,
        batch: &mut WriteBatch,
        meta: ValueRef<'_>,
        (first, last): (i64, i64),
    ) -> Result<()> {
        for rollup in self.list.iter() {
            rollup.touch();
            let progress = rollup.progress();
            // One that does not fit to the series has no bins, either.
            if progress.closed_ms == i64::MIN {
                continue;
            }
            let definition = self.definition(rollup)?;
            let bins = &definition.bins;
            let from = bins.floor(first).max(progress.changeable_from_ms());
            let to = bins.next(bins.floor(last)).min(progress.closed_ms);
            if from < to {
                mark(batch, rollup, progress, &definition, meta, (from, to));
            }
        }
        Ok(())
    }

    fn definition(&self, rollup: &StoredRollup) -> Result<std::sync::Arc<RollupDefinition>> {
        let options = self.options.ok_or_else(|| {
            crate::error::Error::bad_value("a rollup stands on a time-series collection")
        })?;
        definition_of(rollup, options)
    }
}

/// Adds the mark of a span. A key that cannot be computed marks all series: queries fail on it, too.
fn mark(
    batch: &mut WriteBatch,
    rollup: &StoredRollup,
    progress: RollupProgress,
    definition: &RollupDefinition,
    meta: ValueRef<'_>,
    span: (i64, i64),
) {
    let key = definition.key_of_series(meta, span.0).ok();
    put_mark(batch, rollup, progress.generation, span, key.as_ref());
}
