//! `$group` by time bins with a limit: reading ends once no later bucket can hold a measurement of the first few bins.
//!
//! ```text
//! newest five minutes      │09:54│09:55│09:56│09:57│09:58│      five bins are known:
//! buckets, newest first    [────────────────────────────────]   measurements before 09:54 are skipped
//!                [──────────]                                   skipped by its header
//!    [─────]  starts more than a span before 09:54              reading ends
//! ```
//!
//! The output may contain further, incomplete groups; the sort with a limit that follows drops them.
//! Rows that come without their bucket are all added: they give no bound on later rows.
//!
//! Several threads each have a copy of the bins that were known when their part of the input was handed out
//! ([`super::parallel`]). Fewer known bins skip less, and change no group of the first bins.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use nilometer_bson::block::BlockData;
use nilometer_bson::{Value, ValueRef};

use super::Table;
use super::settled_bins::Extremes;
use crate::error::Result;
use crate::query::batch::{Batch, MeasurementBlock, Selection};
use crate::query::exec::sort::assert_span;
use crate::query::exec::{BlockSteps, BoxOperator, ExecContext};
use crate::query::planner::physical::{BucketArrival, FirstBins, PhysicalGroup};

/// The first bins known so far.
#[derive(Clone)]
pub(crate) struct Frontier {
    first: Arc<FirstBins>,
    /// Starts of the first bins, at most as many as the limit.
    known: BTreeSet<i64>,
    /// Their extremes, if these are all that is asked for.
    extremes: Option<Extremes>,
}

/// A part that is read; `None` if nothing of it is. Breaks if nothing of what follows is read either.
type PartOf<T> = ControlFlow<(), Option<T>>;

impl Frontier {
    /// Creates a frontier with no known bins, if the plan has one.
    pub(super) fn of(plan: &PhysicalGroup) -> Option<Self> {
        let first = plan.first_bins.clone()?;
        Some(Self {
            first,
            known: BTreeSet::new(),
            extremes: Extremes::of(plan),
        })
    }

    /// Returns the selection of the input, left to the group if headers of blocks may tell that they change none of the first bins:
    /// these are asked before measurements are selected.
    pub(super) fn deferred_selection(
        frontier: Option<&Self>,
        input: &mut BoxOperator,
        cx: &ExecContext<'_>,
    ) -> Option<BlockSteps> {
        let has_extremes = frontier.is_some_and(|frontier| frontier.extremes.is_some());
        match has_extremes && !cx.settings.plan.options.force_rows {
            true => input.defer_selection().map(BlockSteps::of_scan),
            false => None,
        }
    }

    fn newest_first(&self) -> bool {
        matches!(self.first.arrival, BucketArrival::NewestFirst { .. })
    }

    /// Returns the last bin within the limit, once that many bins are known.
    fn edge(&self) -> Option<i64> {
        if self.known.len() < self.first.wanted {
            return None;
        }
        match self.newest_first() {
            true => self.known.first().copied(),
            false => self.known.last().copied(),
        }
    }

    /// True if a bin lies beyond the last one within the limit.
    fn is_behind(&self, bin: i64) -> bool {
        match (self.edge(), self.newest_first()) {
            (Some(edge), true) => bin < edge,
            (Some(edge), false) => bin > edge,
            (None, _) => false,
        }
    }

    fn note(&mut self, bin: i64) {
        if self.is_behind(bin) || !self.known.insert(bin) {
            return;
        }
        if self.known.len() > self.first.wanted {
            match self.newest_first() {
                true => self.known.pop_first(),
                false => self.known.pop_last(),
            };
        }
    }

    /// Notes the bins that are known elsewhere.
    pub(crate) fn note_all(&mut self, other: &Self) {
        for bin in &other.known {
            self.note(*bin);
        }
        if let (Some(known), Some(other)) = (&mut self.extremes, &other.extremes) {
            known.note_all(other);
        }
    }

    /// Notes now and then, after a batch was added to a table, the extremes of the first bins there. The table holds nothing but
    /// measurements of the result.
    pub(super) fn note_batch(frontier: Option<&mut Self>, table: &Table) {
        let Some(frontier) = frontier else { return };
        let is_full = frontier.edge().is_some();
        if let Some(extremes) = &mut frontier.extremes {
            extremes.note_batch(is_full.then_some(&frontier.known), table);
        }
    }

    /// True if the measurements of a block change none of the first bins, by its header.
    fn is_settled(&self, block: &MeasurementBlock, cx: &ExecContext<'_>) -> Result<bool> {
        let (Some(extremes), Some(length)) = (&self.extremes, self.first.bins.length_ms()) else {
            return Ok(false);
        };
        let (Some(first), Some(last), Some(_)) =
            (self.known.first(), self.known.last(), self.edge())
        else {
            return Ok(false);
        };
        // A bin between two known ones that is not known would be one of the first.
        let mut pairs = self.known.iter().zip(self.known.iter().skip(1));
        if !pairs.all(|(bin, next)| next - bin == length) {
            return Ok(false);
        }
        let time_field = &block.shape.time_field;
        let (bound, times) = (&block.bucket, self.first.times);
        let nearest = match (
            self.newest_first(),
            bound.min(time_field),
            bound.max(time_field),
        ) {
            (true, _, ValueRef::DateTime(max)) => max.min(times.max),
            (false, ValueRef::DateTime(min), _) => min.max(times.min),
            _ => return Ok(false),
        };
        let nearest = self.first.bins.key_of(nearest)?;
        let (is_known, bins) = match self.newest_first() {
            true => (nearest <= *last, self.known.range(..=nearest)),
            false => (nearest >= *first, self.known.range(nearest..)),
        };
        let is_settled = is_known && extremes.bound(bins.copied(), block, cx);
        #[cfg(test)]
        if is_settled {
            cov_mark::hit!(settled_bins);
        }
        Ok(is_settled)
    }

    /// Returns a batch after `steps`: of its measurements those that may belong to one of the first bins, all without a frontier.
    pub(super) fn part_of(
        frontier: Option<&mut Self>,
        batch: Batch,
        steps: Option<&BlockSteps>,
        cx: &ExecContext<'_>,
    ) -> Result<PartOf<Batch>> {
        let Batch::Block(mut block) = batch else {
            return Ok(ControlFlow::Continue(Some(batch)));
        };
        // The header is asked first: to select measurements, their times are read.
        if let Some(frontier) = &frontier {
            block = match frontier.part_by_header(block, cx)? {
                ControlFlow::Continue(Some(block)) => block,
                ControlFlow::Continue(None) => return Ok(ControlFlow::Continue(None)),
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
            };
        }
        if let Some(steps) = steps {
            block = match steps.apply(block, cx)? {
                Batch::Block(block) => block,
                rows => return Ok(ControlFlow::Continue(Some(rows))),
            };
        }
        let part = match frontier {
            _ if block.selection.is_empty() => None,
            Some(frontier) => frontier.part_by_times(block)?,
            None => Some(block),
        };
        Ok(ControlFlow::Continue(part.map(Batch::Block)))
    }

    /// Returns a block that may belong to one of the first bins by its header, of which no column is read.
    pub(super) fn part_by_header(
        &self,
        block: MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> Result<PartOf<MeasurementBlock>> {
        let bins = &self.first.bins;
        let opened_ms = i64::from(block.bucket.id().timestamp_seconds()) * 1000;
        let nearest_ms = match self.first.arrival {
            BucketArrival::NewestFirst { span_ms } => {
                assert_span(&block, span_ms)?;
                opened_ms.saturating_add(span_ms)
            }
            BucketArrival::OldestFirst => opened_ms,
        };
        if self.edge().is_some() && self.is_behind(bins.key_of(nearest_ms)?) {
            return Ok(ControlFlow::Break(()));
        }
        let time_field = &block.shape.time_field;
        let bound = match self.newest_first() {
            true => block.bucket.max(time_field),
            false => block.bucket.min(time_field),
        };
        if let ValueRef::DateTime(bound) = bound
            && self.edge().is_some()
            && self.is_behind(bins.key_of(bound)?)
        {
            return Ok(ControlFlow::Continue(None));
        }
        if self.is_settled(&block, cx)? {
            return Ok(ControlFlow::Continue(None));
        }
        Ok(ControlFlow::Continue(Some(block)))
    }

    /// Returns the rows of a block that may belong to one of the first bins; `None` if there are none.
    fn part_by_times(&mut self, mut block: MeasurementBlock) -> Result<Option<MeasurementBlock>> {
        let Some(times) = block.column(&block.shape.time_field)? else {
            return Ok(Some(block));
        };
        block.selection = match times.data() {
            BlockData::DateTime(times) => self.rows(times, &block)?,
            BlockData::Constant(Value::DateTime(time)) => {
                let bin = self.first.bins.key_of(*time)?;
                self.note(bin);
                match self.is_behind(bin) {
                    true => Selection::none(),
                    false => block.selection,
                }
            }
            _ => block.selection,
        };
        Ok((!block.selection.is_empty()).then_some(block))
    }

    /// Returns the selected rows that may belong to one of the first bins, after adding their bins.
    fn rows(&mut self, times: &[i64], block: &MeasurementBlock) -> Result<Selection> {
        let first = Arc::clone(&self.first);
        let bins = &first.bins;
        let time_of = |row: u32| times.get(row as usize).copied().unwrap_or_default();
        if !block.bucket.is_sorted() {
            let mut rows = Vec::with_capacity(block.selection.len());
            for row in block.selection.to_vec() {
                let bin = bins.key_of(time_of(row))?;
                self.note(bin);
                rows.push((row, bin));
            }
            let wanted = rows.into_iter().filter(|(_, bin)| !self.is_behind(*bin));
            return Ok(Selection::from_rows(wanted.map(|(row, _)| row).collect()));
        }
        // Scans from the end where the first bins are: beyond the first row outside, no row is inside.
        let newest_first = self.newest_first();
        let count = block.selection.len();
        let mut rows = Vec::new();
        let mut last = None;
        for at in 0..count {
            let at = if newest_first { count - 1 - at } else { at };
            let Some(row) = block.selection.get(at) else {
                break;
            };
            let before = last;
            let bin = bins.bin_cached(&mut last, time_of(row))?;
            if before != Some(bin) {
                self.note(bin.key);
                if self.is_behind(bin.key) {
                    break;
                }
            }
            rows.push(row);
        }
        if newest_first {
            rows.reverse();
        }
        Ok(Selection::from_rows(rows))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

    use crate::query::exec::ExecLimits;
    use crate::query::exec::random_tests::Draw;
    use crate::query::exec::testing::{
        MemoryBuckets, MemoryCollections, MemoryRecords, run_with, settings,
    };
    use crate::query::exec::workers::{QueryThreads, Workers};
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::Resolved;

    const MINUTE_MS: usize = 60_000;
    const HOURS: usize = 40;

    /// Measurements of a few series in each hour, at random times: many or few of them.
    fn measurements(draw: &mut Draw) -> Vec<Document> {
        let values = draw.pick(&[2, 1000]);
        let few = draw.pick(&[50, 2]);
        let counts: Vec<usize> = (0..HOURS).map(|_| draw.pick(&[50, few])).collect();
        let one = |(at, hour): (usize, usize)| {
            let time = (hour * 60 * MINUTE_MS + draw.below(60 * MINUTE_MS)) as i64;
            let series = format!("s{}", draw.below(6));
            let mut one = DocumentBuilder::new();
            one.append("t", Value::DateTime(time));
            one.append("m", series.as_str());
            one.append("_id", at as i32);
            one.append("v", draw.below(values) as i32);
            // Few values, of several types, and none.
            match draw.below(40) {
                0 => one.append("w", "text"),
                1 => one.append("w", Value::Null),
                2 => one.append("w", Value::Double(f64::NAN)),
                // Of equal values of several types any may be kept.
                3..20 => one.append("w", draw.below(4) as f64 + 0.5),
                20..35 => one.append("w", draw.below(4) as i64),
                _ => &mut one,
            };
            one.finish()
        };
        let hours = counts.iter().enumerate();
        let hours = hours.flat_map(|(hour, count)| std::iter::repeat_n(hour, *count));
        hours.enumerate().map(one).collect()
    }

    fn stages(draw: &mut Draw) -> Value {
        let unit = draw.pick(&["minute", "hour"]);
        let bin = doc! {"$dateTrunc": doc! {"date": "$t", "unit": unit}};
        let end = Value::DateTime((draw.below(HOURS * 60) * MINUTE_MS) as i64);
        let (direction, filter) = draw.pick(&[
            (-1, doc! {"t": doc! {"$lt": end.clone()}}),
            (1, doc! {"t": doc! {"$gte": end}}),
        ]);
        let (key, order) = match draw.chance(50) {
            true => (Value::from(bin), doc! {"_id": direction}),
            false => (
                doc! {"bin": bin, "series": "$m"}.into(),
                doc! {"_id.bin": direction, "_id": 1},
            ),
        };
        let group = match draw.below(3) {
            0 => doc! {"_id": key, "max": doc! {"$max": "$v"}},
            1 => {
                doc! {"_id": key, "max": doc! {"$max": "$v"}, "n": doc! {"$sum": 1}, "mean": doc! {"$avg": "$v"}}
            }
            _ => doc! {"_id": key, "max": doc! {"$max": "$v"}, "least": doc! {"$min": "$w"}},
        };
        let limit = 1 + draw.below(9) as i32;
        array![
            doc! {"$match": filter},
            doc! {"$group": group},
            doc! {"$sort": order},
            doc! {"$limit": limit},
        ]
    }

    #[test]
    fn several_threads_find_the_first_bins_of_plain_documents() {
        cov_mark::check!(settled_bins);
        let workers = Arc::<Workers>::default();
        let (mut read_alone, mut read_together) = (0, 0);
        for seed in 1..200 {
            let draw = &mut Draw(seed);
            let list = measurements(draw);
            let buckets = Arc::new(MemoryBuckets::new(&list, 1 + draw.below(12)));
            let plain = Arc::new(MemoryRecords(buckets.measurements()));
            let plain = MemoryCollections::of(Resolved::Ordinary(plain));
            let columns_read = Arc::clone(&buckets.columns_read);
            let series = MemoryCollections::of(Resolved::TimeSeries(buckets));
            let stages = stages(draw);
            let naive = PlanOptions {
                force_rows: true,
                no_rules: true,
                ..PlanOptions::default()
            };
            let naive = settings(naive, ExecLimits::default());
            let expected = run_with(&plain, &stages, naive).unwrap();
            let alone = settings(PlanOptions::default(), ExecLimits::default());
            let mut together = alone.clone();
            together.threads = Some(QueryThreads {
                batches_before: 1 + draw.below(9),
                batches_per_task: 1 + draw.below(9),
                ..QueryThreads::new(Arc::clone(&workers), 3)
            });
            for (settings, read) in [(alone, &mut read_alone), (together, &mut read_together)] {
                let before = columns_read.load(Ordering::Relaxed);
                assert_eq!(
                    run_with(&series, &stages, settings).unwrap(),
                    expected,
                    "{seed}"
                );
                *read += columns_read.load(Ordering::Relaxed) - before;
            }
        }
        assert_eq!(workers.running(), 2);
        assert!(
            read_together < 3 * read_alone,
            "{read_together}, {read_alone}"
        );
    }
}
