//! The measurements of a bucket that pass the filter of a scan.

use std::sync::Arc;

use nilometer_bson::{ObjectId, ValueRef};

use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::query::batch::{BlockRun, FieldSet, MeasurementBlock, MeasurementShape, Selection};
use crate::query::exec::ExecContext;
use crate::query::exec::vector::filter::BucketFilter;
use crate::query::planner::physical::{BucketInput, Unpack};
use crate::query::source::{Bucket, BucketHeader, BucketPredicate, BucketRun, place_of};

/// Selects measurements of buckets, and the fields they show. A block has the shape of all fields until its measurements
/// are selected, so it can be handed on before.
pub struct BlockSelection {
    /// The shape of measurements for the filter: all fields.
    full: Arc<MeasurementShape>,
    /// The shape of measurements in the output.
    shown: Arc<MeasurementShape>,
    /// The filter on measurements, as a whole and by columns.
    filter: Option<(MatchExpression, BucketFilter)>,
    /// Measurements of buckets that pass it skip the filter.
    whole: Option<BucketPredicate>,
}

impl BlockSelection {
    /// Returns the selection of a scan.
    pub(crate) fn new(input: &BucketInput) -> Self {
        let options = input.source.options();
        let shape = |fields| {
            Arc::new(MeasurementShape {
                time_field: Arc::clone(&options.time_field),
                meta_field: options.meta_field.clone(),
                fields,
            })
        };
        let Unpack {
            fields,
            event_filter,
            whole_bucket_filter,
            ..
        } = &input.unpack;
        let full = shape(FieldSet::All);
        let filter = event_filter.as_ref();
        Self {
            filter: filter.map(|filter| (filter.clone(), BucketFilter::new(filter, &full))),
            whole: whole_bucket_filter.clone(),
            shown: shape(fields.clone()),
            full,
        }
    }

    /// Returns all measurements of a bucket; not yet selected, unless every one is known to pass.
    pub(crate) fn begin(
        &self,
        bucket: Arc<dyn Bucket>,
        cx: &ExecContext<'_>,
    ) -> Result<MeasurementBlock> {
        let mut block = MeasurementBlock::all(bucket, Arc::clone(&self.full));
        if self.passes_whole(&block, cx)? {
            block.shape = Arc::clone(&self.shown);
        }
        Ok(block)
    }

    fn passes_whole(&self, block: &MeasurementBlock, cx: &ExecContext<'_>) -> Result<bool> {
        match (&self.filter, &self.whole) {
            (None, _) => Ok(true),
            (Some(_), Some(predicate)) => predicate.surely_matches(&*block.bucket, cx.eval.limits),
            (Some(_), None) => Ok(false),
        }
    }

    /// Returns how many of the first buckets of a run are selected with all of their measurements. `predicate` is that of the
    /// scan. Buckets count only if their times decide.
    pub(crate) fn count_of_whole(
        &self,
        run: &dyn BucketRun,
        predicate: &BucketPredicate,
        cx: &ExecContext<'_>,
    ) -> Result<usize> {
        let filter = match (&self.filter, &self.whole) {
            (None, _) => &BucketPredicate::Always,
            (Some(_), Some(whole)) => whole,
            (Some(_), None) => return Ok(0),
        };
        // Either may have parts that the other has not.
        let tests = [predicate, filter];
        if tests.iter().all(|test| test.is_always()) {
            return Ok(run.bucket_count());
        }
        let time = place_of(run.columns(), &self.full.time_field);
        let times = time.and_then(|at| run.dates(at));
        let by_times = tests.iter().all(|test| test.reads_only_times());
        let (Some(times), true) = (times, by_times) else {
            return Ok(0);
        };
        let passes = |bounds: [i64; 2]| -> Result<bool> {
            let header = TimeBounds {
                field: &self.full.time_field,
                bounds,
            };
            for test in tests {
                if !test.surely_matches(&header, cx.eval.limits)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let Some(first) = times.first() else {
            return Ok(0);
        };
        if !passes(*first)? {
            return Ok(0);
        }
        // What is true for all times between the outermost bounds is true for each bucket.
        let all = times
            .iter()
            .fold(*first, |all, at| [all[0].min(at[0]), all[1].max(at[1])]);
        if passes(all)? {
            return Ok(times.len());
        }
        for (at, bounds) in times.iter().enumerate() {
            if !passes(*bounds)? {
                return Ok(at);
            }
        }
        Ok(times.len())
    }

    /// Returns the measurements of buckets that are selected with all of them.
    pub(crate) fn run(&self, buckets: Box<dyn BucketRun>) -> BlockRun {
        BlockRun {
            buckets,
            shape: Arc::clone(&self.shown),
        }
    }

    /// True if the measurements of the block are selected.
    pub(crate) fn is_applied(&self, block: &MeasurementBlock) -> bool {
        Arc::ptr_eq(&block.shape, &self.shown)
    }

    /// Selects the measurements of a block, unless they are selected.
    pub(crate) fn apply(&self, block: &mut MeasurementBlock, cx: &ExecContext<'_>) -> Result<()> {
        if self.is_applied(block) {
            return Ok(());
        }
        if let Some((filter, by_columns)) = &self.filter {
            block.selection = match cx.settings.plan.options.force_rows {
                true => select_by_rows(block, filter, cx)?,
                false => by_columns.select(block, cx)?,
            };
        }
        block.shape = Arc::clone(&self.shown);
        Ok(())
    }
}

/// The header of a bucket of which only the times matter.
struct TimeBounds<'t> {
    field: &'t str,
    bounds: [i64; 2],
}

impl BucketHeader for TimeBounds<'_> {
    fn id(&self) -> ObjectId {
        ObjectId::default()
    }

    fn meta(&self) -> ValueRef<'_> {
        ValueRef::Missing
    }

    fn min(&self, field: &str) -> ValueRef<'_> {
        match field == self.field {
            true => ValueRef::DateTime(self.bounds[0]),
            false => ValueRef::Missing,
        }
    }

    fn max(&self, field: &str) -> ValueRef<'_> {
        match field == self.field {
            true => ValueRef::DateTime(self.bounds[1]),
            false => ValueRef::Missing,
        }
    }

    fn count(&self) -> u32 {
        1
    }
}

/// Row-by-row filter for comparison in tests: every measurement as a document.
fn select_by_rows(
    block: &MeasurementBlock,
    filter: &MatchExpression,
    cx: &ExecContext<'_>,
) -> Result<Selection> {
    let mut kept = Vec::new();
    for (row, document) in (0u32..).zip(block.to_rows()?) {
        if filter.matches(document.as_ref(), &cx.eval)? {
            kept.push(row);
        }
    }
    Ok(Selection::from_rows(kept))
}
