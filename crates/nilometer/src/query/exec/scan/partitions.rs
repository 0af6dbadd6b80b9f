//! Reads what the partitions of a collection return for their part of a pipeline: one partition after the other, or merged
//! by sort key.
//!
//! All partitions begin with the first call, so the slowest decides how long the first documents take. Of equal keys those
//! of earlier partitions come first, as in a stable sort of one partition after the other.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic;

use nilometer_bson::Document;

use crate::error::Result;
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::query::batch::Batch;
use crate::query::exec::{ExecContext, Operator, RowBatch};
use crate::query::partitions::PartitionCursor;
use crate::query::planner::physical::PartitionsInput;
use crate::query::source::ScanCounters;

/// Reads partitions.
pub struct PartitionScan {
    input: PartitionsInput,
    counters: Arc<ScanCounters>,
    /// `None` before the first call.
    opened: Option<Opened>,
}

/// The partitions that are being read.
enum Opened {
    OneByOne(VecDeque<Box<dyn PartitionCursor>>),
    Merged(Merge),
}

impl PartitionScan {
    /// Reads the partitions of `input`.
    pub fn new(input: PartitionsInput, counters: Arc<ScanCounters>) -> Self {
        Self {
            input,
            counters,
            opened: None,
        }
    }

    fn open(&self, cx: &ExecContext<'_>) -> Result<Opened> {
        let PartitionsInput { source, part, .. } = &self.input;
        let targets = self.input.targets.iter();
        let cursors = targets.map(|target| source.open(*target, part, cx.operation));
        let mut cursors = cursors.collect::<Result<VecDeque<_>>>()?;
        // A part that is refused after the first documents were returned could not be asked again elsewhere.
        for cursor in &mut cursors {
            cursor.wait_for_start(cx.operation)?;
        }
        Ok(match &self.input.order {
            Some(pattern) if cursors.len() > 1 => {
                Opened::Merged(Merge::new(cursors, pattern.clone()))
            }
            _ => Opened::OneByOne(cursors),
        })
    }
}

impl Operator for PartitionScan {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let opened = match &mut self.opened {
            Some(opened) => opened,
            None => {
                let opened = self.open(cx)?;
                self.opened.insert(opened)
            }
        };
        let rows = match opened {
            Opened::OneByOne(cursors) => one_by_one(cursors, cx)?,
            Opened::Merged(merge) => merge.take(cx)?,
        };
        let count = rows.as_ref().map_or(0, Vec::len) as u64;
        let returned = &self.counters.returned;
        returned.fetch_add(count, atomic::Ordering::Relaxed);
        Ok(rows.map(Batch::Rows))
    }

    fn is_exhausted(&self) -> bool {
        match &self.opened {
            None => false,
            Some(Opened::OneByOne(cursors)) => cursors.is_empty(),
            Some(Opened::Merged(merge)) => merge.is_filled && merge.heads.is_empty(),
        }
    }
}

fn one_by_one(
    cursors: &mut VecDeque<Box<dyn PartitionCursor>>,
    cx: &ExecContext<'_>,
) -> Result<Option<Vec<Document>>> {
    while let Some(first) = cursors.front_mut() {
        if let Some(rows) = first.next(cx.operation)? {
            return Ok(Some(rows));
        }
        cursors.pop_front();
    }
    Ok(None)
}

/// Sorted partitions.
struct Merge {
    pattern: Arc<SortPattern>,
    arms: Vec<Arm>,
    /// The next document of each partition that has one, the first on top.
    heads: BinaryHeap<Head>,
    /// True once the first document of each partition is known.
    is_filled: bool,
}

struct Arm {
    cursor: Box<dyn PartitionCursor>,
    rows: VecDeque<Document>,
}

/// The next document of a partition.
struct Head {
    pattern: Arc<SortPattern>,
    key: SortKey,
    arm: usize,
    row: Document,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns its greatest entry first.
        self.pattern
            .compare(&other.key, &self.key)
            .then(other.arm.cmp(&self.arm))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

impl Merge {
    fn new(cursors: VecDeque<Box<dyn PartitionCursor>>, pattern: SortPattern) -> Self {
        let arm = |cursor| Arm {
            cursor,
            rows: VecDeque::new(),
        };
        Self {
            pattern: Arc::new(pattern),
            arms: cursors.into_iter().map(arm).collect(),
            heads: BinaryHeap::new(),
            is_filled: false,
        }
    }

    /// Adds the next document of a partition to the heads.
    fn advance(&mut self, number: usize, cx: &ExecContext<'_>) -> Result<()> {
        let Some(arm) = self.arms.get_mut(number) else {
            return Ok(());
        };
        while arm.rows.is_empty() {
            match arm.cursor.next(cx.operation)? {
                Some(rows) => arm.rows.extend(rows),
                None => return Ok(()),
            }
        }
        if let Some(row) = arm.rows.pop_front() {
            let key = self.pattern.extract(row.as_ref(), &cx.eval)?;
            self.heads.push(Head {
                pattern: Arc::clone(&self.pattern),
                key,
                arm: number,
                row,
            });
        }
        Ok(())
    }

    fn take(&mut self, cx: &ExecContext<'_>) -> Result<Option<Vec<Document>>> {
        if !self.is_filled {
            for arm in 0..self.arms.len() {
                self.advance(arm, cx)?;
            }
            self.is_filled = true;
        }
        let mut out = RowBatch::default();
        while !out.is_full()
            && let Some(Head { arm, row, .. }) = self.heads.pop()
        {
            out.push(row);
            self.advance(arm, cx)?;
        }
        let rows = out.into_rows();
        Ok((!rows.is_empty()).then_some(rows))
    }
}
