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

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use nilometer_bson::block::BlockData;
use nilometer_bson::{Value, ValueRef};

use crate::error::Result;
use crate::query::batch::{MeasurementBlock, Selection};
use crate::query::exec::sort::assert_span;
use crate::query::planner::physical::{BucketArrival, FirstBins};

/// The first bins known so far.
pub(crate) struct Frontier<'s> {
    first: &'s FirstBins,
    /// Starts of the first bins, at most as many as the limit.
    known: BTreeSet<i64>,
}

impl<'s> Frontier<'s> {
    /// Creates a frontier with no known bins.
    pub(crate) fn new(first: &'s FirstBins) -> Self {
        Self {
            first,
            known: BTreeSet::new(),
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

    /// Returns the part of a block that may belong to one of the first bins; breaks if neither this block nor any later one
    /// has such a part.
    pub(crate) fn part(
        &mut self,
        mut block: MeasurementBlock,
    ) -> Result<ControlFlow<(), Option<MeasurementBlock>>> {
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
        let Some(times) = block.column(time_field)? else {
            return Ok(ControlFlow::Continue(Some(block)));
        };
        block.selection = match times.data() {
            BlockData::DateTime(times) => self.rows(times, &block)?,
            BlockData::Constant(Value::DateTime(time)) => {
                self.note(bins.key_of(*time)?);
                match self.is_behind(bins.key_of(*time)?) {
                    true => Selection::none(),
                    false => block.selection,
                }
            }
            _ => block.selection,
        };
        let is_empty = block.selection.is_empty();
        Ok(ControlFlow::Continue((!is_empty).then_some(block)))
    }

    /// Returns the selected rows that may belong to one of the first bins, after adding their bins.
    fn rows(&mut self, times: &[i64], block: &MeasurementBlock) -> Result<Selection> {
        let bins = &self.first.bins;
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
