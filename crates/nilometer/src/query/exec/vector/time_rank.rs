//! Rows ranked by time within a block, by its header and its column of times.
//!
//! ```text
//! {$top: {sortBy: {"m.host": 1, t: -1}, …}}    in a block only t varies: one row is the best of a run
//! {$sort: {"m.host": 1, t: -1}}, {$limit: 5}   a block that sorts behind all kept rows is skipped by its header
//! ```

use std::ops::Range;

use nilometer_bson::block::BlockData;
use nilometer_bson::{Document, DocumentBuilder, Value};

use crate::error::Result;
use crate::eval::ParseContext;
use crate::eval::sort_key::{SortBy, SortKey, SortPattern};
use crate::eval::variables::SharedCollator;
use crate::query::batch::{MeasurementBlock, MeasurementShape};
use crate::query::exec::ExecContext;
use crate::query::planner::physical::TimeRank;

/// The part of a sort pattern that a block's header decides: its leading metadata paths and time.
pub(crate) struct SortPrefix {
    rank: TimeRank,
    /// The parts of the pattern before the first that reads anything else.
    sort: SortPattern,
    /// Number of these parts.
    parts: usize,
    /// True if they are the whole pattern.
    is_whole: bool,
}

impl SortPrefix {
    /// Returns the prefix of a pattern over blocks of this shape; `None` if time is not in it.
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

    /// True if no row of the block can sort before a row with the key `worst`.
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
        let worst = SortKey::from_values(worst.iter().cloned());
        let order = self.sort.compare(&bound, &worst);
        Ok(order.is_gt() || (self.is_whole && order.is_eq()))
    }
}

impl TimeRank {
    /// Returns a document at least as good as any of the block, from its header; `None` if the header does not suffice.
    fn best_possible(self, block: &MeasurementBlock) -> Option<Document> {
        let mut out = DocumentBuilder::new();
        out.append(&block.shape.time_field, self.best_time(block)?);
        if let Some(meta) = &block.shape.meta_field {
            out.append_ref(meta, block.meta());
        }
        Some(out.finish())
    }

    /// Returns a time at least as good as any of the block, from its header: missing if time is not visible or not in the order.
    /// `None` if the header does not suffice.
    pub(crate) fn best_time(self, block: &MeasurementBlock) -> Option<Value> {
        let time_field = &block.shape.time_field;
        if !block.shape.fields.contains(time_field) {
            return Some(Value::Missing);
        }
        let (oldest, newest) = block.time_bounds();
        match self.newest {
            None => Some(Value::Missing),
            Some(true) => newest.map(Value::DateTime),
            Some(false) => oldest.map(Value::DateTime),
        }
    }

    /// Returns the position of the best row among the rows of a run, with its time if it was read.
    pub(crate) fn place(
        self,
        block: &MeasurementBlock,
        rows: &Range<usize>,
    ) -> Result<Option<(usize, Option<i64>)>> {
        let edge = match self.last {
            true => rows.end.checked_sub(1),
            false => Some(rows.start),
        };
        let edge = edge.map(|at| (at, None));
        let Some(newest) = self.newest else {
            return Ok(edge);
        };
        let Some(times) = block.column(&block.shape.time_field)? else {
            return Ok(edge);
        };
        let (times, from) = block.selected(times);
        let BlockData::DateTime(times) = times.data() else {
            return Ok(edge);
        };
        let run = times.get(from + rows.start..from + rows.end);
        let run = run.unwrap_or(&[]);
        let best = match (block.bucket.is_sorted(), newest) {
            (true, true) => run.last(),
            (true, false) => run.first(),
            (false, true) => run.iter().max(),
            (false, false) => run.iter().min(),
        };
        let found = best.and_then(|best| {
            // Searches sorted times from the end where the best one lies.
            match (self.last, newest && block.bucket.is_sorted()) {
                (true, _) => run.iter().rposition(|time| time == best),
                (false, false) => run.iter().position(|time| time == best),
                (false, true) => {
                    let alike = run.iter().rev().take_while(|time| *time == best);
                    run.len().checked_sub(alike.count())
                }
            }
        });
        Ok(found.map(|at| (rows.start + at, best.copied())))
    }
}
