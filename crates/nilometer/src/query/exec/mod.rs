//! Execution: operators that pull batches from each other, built from a physical plan ([`build`]).
//!
//! ```text
//! Executor ─ next ─► Limit ─► Group ─► Filter ─► Scan ─► source
//!                      ◄─ rows     ◄─ blocks   ◄─ blocks
//! ```
//!
//! [`Operator::next`] returns a batch, or `None` at the end of its output and on every later call. Empty batches are
//! allowed and skipped. A batch is rows, or a block of measurements whose columns are still compressed ([`Batch`]). An
//! operator that cannot process blocks asks for rows and gets the same measurements as documents. So a
//! stage is complete when it works on rows; a block path only makes it faster.
//!
//! Operators hold no borrowed state: an executor lives in a cursor between commands. Everything that belongs to
//! one command (deadline, kill switch) is in the [`ExecContext`] of each call.
//!
//! [`Batch`]: crate::query::batch::Batch

pub mod build;
pub mod change_stream;
mod context;
pub mod group;
pub mod join;
pub mod memory;
mod parts;
pub mod row;
pub mod scan;
pub mod sink;
pub mod sort;
pub mod vector;
pub mod window;
pub mod workers;

#[cfg(test)]
mod partition_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::Document;

use crate::error::Result;
use crate::eval::sort_key::SortPattern;
use crate::operation::OperationContext;
use crate::query::batch::{Batch, BlockRun};
use crate::query::source::ScanCounters;

pub(crate) use self::vector::block_selection::BlockSelection;
pub(crate) use self::vector::block_steps::{BlockStep, BlockSteps};

use self::scan::block_parts::BlockParts;
pub(crate) use self::scan::rollup::{bin_document, live_bins};

pub use self::context::{ExecContext, ExecLimits, ExecSettings, REPLY_BYTES_MAX, STAGE_MEMORY_MAX};

/// Rows in a batch made of rows.
pub const ROWS_PER_BATCH: usize = 128;

/// Bytes of a batch after which no row is added to it. Batches in flight between operators are not counted as memory.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// Rows of a batch that is being filled.
#[derive(Default)]
pub(crate) struct RowBatch {
    rows: Vec<Document>,
    bytes: usize,
}

impl RowBatch {
    /// Adds a row.
    pub(crate) fn push(&mut self, row: Document) {
        self.bytes += row.as_bytes().len();
        self.rows.push(row);
    }

    /// True if no more rows should be added.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= ROWS_PER_BATCH || self.bytes >= BATCH_BYTES_MAX
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the bytes of the rows.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the rows.
    pub(crate) fn into_rows(self) -> Vec<Document> {
        self.rows
    }

    /// Returns the batch; `None` if there are no rows.
    pub(crate) fn into_batch(self) -> Option<Batch> {
        (!self.rows.is_empty()).then_some(Batch::Rows(self.rows))
    }
}

/// One operator of a running query.
pub trait Operator: Send {
    /// Returns the next batch; `None` at the end.
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>>;

    /// True if the end is known to be reached without another call.
    fn is_exhausted(&self) -> bool {
        false
    }

    /// Leaves the selection of measurements to the caller, who may apply it on another thread: blocks returned from now on
    /// are for [`BlockSelection::apply`]. `None` if the operator returns only what is selected.
    fn defer_selection(&mut self) -> Option<Arc<BlockSelection>> {
        None
    }

    /// The same with all that the operator does with each batch: blocks returned from now on are for [`BlockSteps::apply`], rows
    /// are finished. `None` if that cannot be left to the caller.
    fn defer_steps(&mut self) -> Option<BlockSteps> {
        self.defer_selection().map(BlockSteps::of_scan)
    }

    /// Returns the buckets that follow, if all of their measurements are selected and their summaries are side by side.
    /// `None` if [`Operator::next`] returns what follows.
    fn next_run(&mut self, cx: &ExecContext<'_>) -> Result<Option<BlockRun>> {
        let _ = cx;
        Ok(None)
    }

    /// Returns rows in the order of a pattern from now on, equal ones in the order they have now; false if the caller must sort
    /// them. Called before the first row.
    fn order_rows(&mut self, pattern: &SortPattern, cx: &ExecContext<'_>) -> Result<bool> {
        let _ = (pattern, cx);
        Ok(false)
    }
}

/// An operator on the heap.
pub type BoxOperator = Box<dyn Operator>;

/// A running query: the operators, and the settings they run with.
pub struct Executor {
    root: BoxOperator,
    settings: Arc<ExecSettings>,
    finished: bool,
    /// If true, the query continues after its end when more records arrive.
    is_tail: bool,
    watched: Option<WatchedScan>,
}

/// Progress a query reports to the operation that runs it.
struct WatchedScan {
    counters: Arc<ScanCounters>,
    summary: Arc<str>,
}

impl Executor {
    /// Creates an executor of the operators under `root`.
    pub fn new(root: BoxOperator, settings: Arc<ExecSettings>) -> Self {
        Self {
            root: BlockParts::over(root, &settings),
            settings,
            finished: false,
            is_tail: false,
            watched: None,
        }
    }

    /// Reports the plan summary and `counters` to the operations that run the query.
    pub fn watch(&mut self, counters: Arc<ScanCounters>, summary: Arc<str>) {
        self.watched = Some(WatchedScan { counters, summary });
    }

    /// Returns the plan summary, if one was set.
    pub fn plan_summary(&self) -> Option<&str> {
        self.watched.as_ref().map(|watched| &*watched.summary)
    }

    /// Makes the query continue after its end when more records arrive.
    pub fn tail(&mut self) {
        self.is_tail = true;
    }

    /// Returns the maximum size of a reply, in bytes.
    pub fn batch_bytes_max(&self) -> usize {
        self.settings.limits.batch_bytes_max
    }

    /// Returns the next batch; `None` at the end.
    pub fn next(&mut self, operation: &OperationContext) -> Result<Option<Batch>> {
        if self.finished {
            return Ok(None);
        }
        operation.pace()?;
        let cx = ExecContext::new(operation, &self.settings);
        let before = self.watched.as_ref().map(|watched| watched.counters.now());
        let batch = self.root.next(&cx);
        if let (Some(watched), Some((keys, documents))) = (&self.watched, before) {
            let now = watched.counters.now();
            operation.usage().set_plan_summary(&watched.summary);
            operation.usage().examined(now.0 - keys, now.1 - documents);
        }
        let batch = batch?;
        self.finished = batch.is_none() && !self.is_tail;
        Ok(batch)
    }

    /// Returns the next batch as documents.
    pub fn next_rows(&mut self, operation: &OperationContext) -> Result<Option<Vec<Document>>> {
        self.next(operation)?.map(Batch::into_rows).transpose()
    }

    /// Returns all remaining documents.
    pub fn drain(&mut self, operation: &OperationContext) -> Result<Vec<Document>> {
        let mut all = Vec::new();
        while let Some(rows) = self.next_rows(operation)? {
            all.extend(rows);
        }
        Ok(all)
    }

    /// True if the end is known to be reached.
    pub fn is_exhausted(&self) -> bool {
        self.finished || self.root.is_exhausted()
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor")
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

/// Counters of one operator, for explain.
#[derive(Debug, Default)]
pub struct OperatorStats {
    /// Documents returned.
    pub returned: AtomicU64,
    /// Nanoseconds spent in the operator and its inputs.
    pub nanos: AtomicU64,
}

/// An operator with counters.
pub struct Counted {
    inner: BoxOperator,
    stats: Arc<OperatorStats>,
}

impl Counted {
    /// Counts the output of `inner` in `stats`.
    pub fn new(inner: BoxOperator, stats: Arc<OperatorStats>) -> Self {
        Self { inner, stats }
    }
}

impl Operator for Counted {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let clock = cx.operation.clock();
        let from = clock.monotonic();
        let batch = self.inner.next(cx)?;
        let spent = clock.monotonic().saturating_sub(from);
        let nanos = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.stats.nanos.fetch_add(nanos, Ordering::Relaxed);
        if let Some(batch) = &batch {
            self.stats
                .returned
                .fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        Ok(batch)
    }

    fn is_exhausted(&self) -> bool {
        self.inner.is_exhausted()
    }
}

/// Returns the next batch that is not empty; checks for interrupts, and waits for a turn if the query is long.
pub(crate) fn next_filled(input: &mut BoxOperator, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
    loop {
        cx.operation.pace()?;
        match input.next(cx)? {
            Some(batch) if batch.is_empty() => {}
            other => return Ok(other),
        }
    }
}
