//! The first rows of a sort with a limit.
//!
//! ```text
//! rows, blocks ──► in memory: the first rows so far, in order, and rows since then that may be among them
//!                  above the memory limit: all of them sorted into a run on disk, with a mark for every few rows
//! ```
//!
//! A row whose key is not before the worst of `limit` known rows is left out, and so is a block whose bounds are not. With
//! runs on disk the marks tell such a key: together the runs have `limit` rows up to it. So a limit of any size reads no more
//! than it must, and writes little more than it returns.

use std::ops::ControlFlow;
use std::sync::Arc;

use nilometer_bson::{Document, Value};

use super::external_sort::{ENTRY_OVERHEAD, Sorter};
use super::{ByPattern, Everything, SortOutput, assert_span, gauge};
use crate::error::{Error, Result};
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::query::batch::{Batch, MeasurementBlock, MeasurementShape, Selection};
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::vector::filter::narrowed;
use crate::query::exec::vector::rows_before::SortEnd;
use crate::query::exec::vector::time_rank::SortPrefix;
use crate::query::exec::{BoxOperator, ExecContext, next_filled};
use crate::query::planner::physical::{BucketArrival, PhysicalSort};

/// Largest limit for which measurements of blocks are kept as positions. Each position may keep a
/// bucket with its decoded columns in memory, so their number must be small.
pub(in crate::query::exec) const LATE_ROWS_MAX: usize = 1000;

/// Keys of a run on disk that are kept as marks, at most: each stands for the same number of rows.
const MARKS_OF_RUN: usize = 64;

/// Bytes of all marks, at most: above, every second one is left out.
const MARKS_BYTES_MAX: usize = if cfg!(test) { 2_000 } else { 1 << 20 };

/// The first rows are put in order again when at least so many rows were added.
const UNORDERED_MIN: usize = 64;

/// Returns the first `limit` rows of the input.
pub(super) fn first_rows(
    input: &mut BoxOperator,
    plan: &PhysicalSort,
    limit: u64,
    cx: &ExecContext<'_>,
) -> Result<SortOutput> {
    let pattern = &plan.stage.pattern;
    let mut first = FirstRows {
        plan,
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        entries: Vec::new(),
        ordered: 0,
        memory: gauge(cx),
        runs: None,
        prefixes: Prefixes::default(),
    };
    while let Some(batch) = next_filled(input, cx)? {
        match batch {
            Batch::Rows(rows) => {
                for document in rows {
                    let key = pattern.extract(document.as_ref(), &cx.eval)?;
                    first.offer(key, cx, || Row::Document(document))?;
                }
            }
            Batch::Block(block) => {
                if first.offer_block(block, cx)?.is_break() {
                    break;
                }
            }
        }
    }
    first.finish(cx)
}

/// A row and its key.
type KeyedRow = (SortKey, Row);

/// The first rows so far.
struct FirstRows<'p> {
    plan: &'p PhysicalSort,
    limit: usize,
    /// Those in memory: `ordered` of them in order, at most `limit`, and later rows in the order of their arrival.
    entries: Vec<KeyedRow>,
    ordered: usize,
    memory: MemoryGauge,
    /// Earlier rows.
    runs: Option<Runs>,
    prefixes: Prefixes,
}

/// Rows on disk, in sorted runs.
struct Runs {
    sorter: Sorter<ByPattern>,
    /// Keys of runs in order, each with a number of rows up to it that no other mark counts.
    marks: Vec<(SortKey, usize)>,
    /// The first mark with `limit` rows up to it.
    worst: Option<SortKey>,
}

impl FirstRows<'_> {
    fn pattern(&self) -> &SortPattern {
        &self.plan.stage.pattern
    }

    /// Returns a key with `limit` known rows up to it.
    fn worst(&self) -> Option<&SortKey> {
        let at = self.limit.checked_sub(1).filter(|at| *at < self.ordered);
        let kept = at.and_then(|at| self.entries.get(at)).map(|(key, _)| key);
        let written = self.runs.as_ref().and_then(|runs| runs.worst.as_ref());
        match (kept, written) {
            (Some(kept), Some(written)) => {
                let is_less = self.pattern().compare(kept, written).is_lt();
                Some(if is_less { kept } else { written })
            }
            (kept, written) => kept.or(written),
        }
    }

    fn offer(
        &mut self,
        key: SortKey,
        cx: &ExecContext<'_>,
        row: impl FnOnce() -> Row,
    ) -> Result<()> {
        // A later row with an equal key sorts after.
        let is_behind = |worst: &SortKey| self.pattern().compare(&key, worst).is_ge();
        if self.limit == 0 || self.worst().is_some_and(is_behind) {
            return Ok(());
        }
        let row = row();
        let counted = self.memory.add(bytes_of(&key, &row));
        self.entries.push((key, row));
        if self.entries.len() - self.ordered >= (self.limit / 4).max(UNORDERED_MIN) {
            self.order();
        }
        match counted {
            Ok(()) => Ok(()),
            Err(exceeded) => self.make_room(exceeded, cx),
        }
    }

    /// Puts the rows in order and keeps the first ones.
    fn order(&mut self) {
        if self.entries.len() == self.ordered {
            return;
        }
        let pattern = &self.plan.stage.pattern;
        // Stable: equal keys stay in the order of their arrival. The part in order is found by the sort.
        self.entries.sort_by(|a, b| pattern.compare(&a.0, &b.0));
        for (key, row) in self.entries.drain(self.limit.min(self.entries.len())..) {
            self.memory.release(bytes_of(&key, &row));
        }
        self.ordered = self.entries.len();
    }

    /// Leaves out what is behind the first rows; if that is little, writes the others out.
    fn make_room(&mut self, exceeded: Error, cx: &ExecContext<'_>) -> Result<()> {
        if !self.memory.is_exceeded() {
            return Ok(());
        }
        let before = self.entries.len();
        self.order();
        if !self.memory.is_exceeded() && self.entries.len() <= before - before / 8 {
            return Ok(());
        }
        if cx.settings.spill.is_none() {
            return match self.memory.is_exceeded() {
                true => Err(exceeded),
                false => Ok(()),
            };
        }
        self.write_out(cx)
    }

    /// Writes the rows in memory to a run.
    fn write_out(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        self.order();
        let pattern = &self.plan.stage.pattern;
        let runs = self.runs.get_or_insert_with(|| Runs {
            sorter: Sorter::new(ByPattern(pattern.clone()), gauge(cx)).with_limit(self.limit),
            marks: Vec::new(),
            worst: None,
        });
        self.memory.clear();
        let entries = std::mem::take(&mut self.entries);
        self.ordered = 0;
        let share = entries.len().div_ceil(MARKS_OF_RUN).max(1);
        for (number, (key, row)) in entries.into_iter().enumerate() {
            runs.sorter.add(row.into_document()?, cx)?;
            // Random keys are drawn again when rows are read back.
            if (number + 1).is_multiple_of(share) && !self.plan.stage.is_random() {
                runs.marks.push((key, share));
            }
        }
        runs.sorter.flush(cx)?;
        runs.update_worst(pattern, self.limit);
        runs.thin_marks();
        Ok(())
    }

    /// Adds the rows of a block; breaks if no later block can contribute.
    fn offer_block(
        &mut self,
        mut block: MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> Result<ControlFlow<()>> {
        let pattern = &self.plan.stage.pattern;
        if let Some(span_ms) = self.plan.guarded_span_ms() {
            assert_span(&block, span_ms)?;
        }
        let worst = self.worst().cloned();
        if let Some(worst) = &worst {
            if is_past(self.plan, &block, worst) {
                return Ok(ControlFlow::Break(()));
            }
            if let Some(prefix) = self.prefixes.of(pattern, &block, cx)
                && prefix.is_beyond(&block, worst, cx)?
            {
                return Ok(ControlFlow::Continue(()));
            }
        }
        block.selection = SortEnd::new(pattern, false).rows(&block, worst.as_ref(), self.limit)?;
        if self.limit > LATE_ROWS_MAX {
            for document in block.to_rows()? {
                let key = pattern.extract(document.as_ref(), &cx.eval)?;
                self.offer(key, cx, || Row::Document(document))?;
            }
            return Ok(ControlFlow::Continue(()));
        }
        let block = Arc::new(block);
        let keys = key_rows(&block, pattern)?;
        for (row, document) in block.selection.to_vec().into_iter().zip(keys) {
            let key = pattern.extract(document.as_ref(), &cx.eval)?;
            self.offer(key, cx, || Row::InBlock(Arc::clone(&block), row))?;
        }
        // The next block is compared with the worst row.
        self.order();
        Ok(ControlFlow::Continue(()))
    }

    fn finish(mut self, cx: &ExecContext<'_>) -> Result<SortOutput> {
        self.order();
        if let Some(runs) = self.runs.take() {
            return self.merged(runs, cx);
        }
        // Blocks are released: those of a scan by summaries hold its snapshot.
        let mut entries = std::mem::take(&mut self.entries).into_iter();
        let mut rows = Vec::with_capacity(entries.len());
        for (key, row) in entries.by_ref() {
            cx.operation.check_interrupt()?;
            self.memory.release(bytes_of(&key, &row));
            let row = Row::Document(row.into_document()?);
            let counted = self.memory.add(row.memory_bytes());
            rows.push(row);
            match (counted, &cx.settings.spill) {
                (Ok(()), _) => {}
                (Err(exceeded), None) => return Err(exceeded),
                (Err(_), Some(_)) => break,
            }
        }
        if entries.len() == 0 && !self.memory.is_exceeded() {
            return Ok(SortOutput::Rows(rows.into_iter(), self.memory));
        }
        self.memory.clear();
        let mut sorter = Sorter::new(ByPattern(self.pattern().clone()), gauge(cx));
        for row in rows.into_iter().chain(entries.map(|(_, row)| row)) {
            sorter.add(row.into_document()?, cx)?;
        }
        Everything::of(sorter, Some(self.limit as u64), cx).map(SortOutput::Everything)
    }

    /// Returns the rows of the runs and those in memory.
    fn merged(self, mut runs: Runs, cx: &ExecContext<'_>) -> Result<SortOutput> {
        drop(self.memory);
        for (_, row) in self.entries {
            runs.sorter.add(row.into_document()?, cx)?;
        }
        Everything::of(runs.sorter, Some(self.limit as u64), cx).map(SortOutput::Everything)
    }
}

impl Runs {
    /// Looks for the first mark with `limit` rows up to it, and forgets those behind it.
    fn update_worst(&mut self, pattern: &SortPattern, limit: usize) {
        self.marks.sort_by(|a, b| pattern.compare(&a.0, &b.0));
        let mut rows: usize = 0;
        let at = self.marks.iter().position(|(_, share)| {
            rows = rows.saturating_add(*share);
            rows >= limit
        });
        if let Some(at) = at {
            self.marks.truncate(at + 1);
            self.worst = self.marks.last().map(|(key, _)| key.clone());
        }
    }

    /// Leaves out marks until their bytes are within the limit: the rows of one that is left out count for the next.
    fn thin_marks(&mut self) {
        let bytes = |(key, _): &(SortKey, usize)| key.memory_bytes() + size_of::<usize>();
        while !self.marks.is_empty()
            && self.marks.iter().map(bytes).sum::<usize>() > MARKS_BYTES_MAX
        {
            let marks = std::mem::take(&mut self.marks).into_iter();
            let mut before = 0;
            for (at, (key, rows)) in marks.enumerate() {
                match at % 2 {
                    0 => before = rows,
                    _ => self.marks.push((key, before + rows)),
                }
            }
        }
    }
}

fn bytes_of(key: &SortKey, row: &Row) -> usize {
    row.memory_bytes() + key.memory_bytes()
}

/// The sort prefix of the pattern for the block shape met last.
#[derive(Default)]
struct Prefixes {
    known: Option<(Arc<MeasurementShape>, Option<SortPrefix>)>,
}

impl Prefixes {
    fn of(
        &mut self,
        pattern: &SortPattern,
        block: &MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> Option<&SortPrefix> {
        let is_known = self
            .known
            .as_ref()
            .is_some_and(|(shape, _)| Arc::ptr_eq(shape, &block.shape));
        if !is_known {
            let collator = cx.settings.plan.collator.clone();
            let prefix = SortPrefix::of(pattern, &block.shape, collator);
            self.known = Some((Arc::clone(&block.shape), prefix));
        }
        self.known.as_ref().and_then(|(_, prefix)| prefix.as_ref())
    }
}

/// True if neither this block nor any later one has a row that sorts before the key `worst`.
fn is_past(plan: &PhysicalSort, block: &MeasurementBlock, worst: &SortKey) -> bool {
    let (Some(arrival), Some(Value::DateTime(worst))) = (plan.arrival, worst.values().first())
    else {
        return false;
    };
    let opened_ms = i64::from(block.bucket.id().timestamp_seconds()) * 1000;
    match arrival {
        BucketArrival::OldestFirst => opened_ms > *worst,
        BucketArrival::NewestFirst { span_ms } => opened_ms.saturating_add(span_ms) < *worst,
    }
}

/// A document, or a position in a block.
pub(in crate::query::exec) enum Row {
    /// A finished document.
    Document(Document),
    /// A row of a block, which becomes a document when it is returned.
    InBlock(Arc<MeasurementBlock>, u32),
}

impl Row {
    /// Returns the document.
    pub(in crate::query::exec) fn into_document(self) -> Result<Document> {
        match self {
            Self::Document(document) => Ok(document),
            Self::InBlock(block, row) => {
                let rows = block.rows_of(&Selection::Range(row..row + 1))?;
                Ok(rows.into_iter().next().unwrap_or_default())
            }
        }
    }

    /// Returns the bytes counted for the row.
    pub(in crate::query::exec) fn memory_bytes(&self) -> usize {
        match self {
            Self::Document(document) => document.as_bytes().len() + ENTRY_OVERHEAD,
            Self::InBlock(..) => ENTRY_OVERHEAD,
        }
    }
}

/// Returns the measurements of a block with only the fields of the pattern.
fn key_rows(block: &MeasurementBlock, pattern: &SortPattern) -> Result<Vec<Document>> {
    let paths = pattern.paths().iter();
    let fields = paths.filter_map(|path| path.as_str().split('.').next());
    narrowed(block, fields.map(Arc::from).collect()).to_rows()
}
