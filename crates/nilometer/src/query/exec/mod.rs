//! Execution: operators that pull batches from each other.
//!
//! ```text
//! Executor ─ next ─► Limit ─► Group ─► Filter ─► Scan ─► source
//!                      ◄─ rows     ◄─ blocks   ◄─ blocks
//! ```
//!
//! An operator answers [`Operator::next`] with a batch, or with `None` when there is nothing left
//! (and goes on answering `None`). Empty batches are allowed and skipped. A batch is rows, or a block
//! of measurements with its columns still undecoded ([`Batch`]); an operator that has no way with
//! blocks asks for rows and gets the same measurements as documents. So a stage is complete once it
//! works on rows, and a block path is an addition that must not show.
//!
//! Operators hold no borrowed state: an executor lives in a cursor between commands. What belongs to
//! one command (deadline, kill switch) comes with every call in the [`ExecContext`].
//!
//! [`Batch`]: crate::query::batch::Batch

pub mod build;
mod context;
pub mod group;
pub mod join;
pub mod memory;
pub mod row;
pub mod scan;
pub mod sink;
pub mod sort;
pub mod vector;
pub mod window;
pub mod workers;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::Document;

use crate::error::Result;
use crate::operation::OperationContext;
use crate::query::batch::Batch;
use crate::query::source::ScanCounters;

pub use self::context::{ExecContext, ExecLimits, ExecSettings, REPLY_BYTES_MAX, STAGE_MEMORY_MAX};

/// Rows in a batch made of rows.
pub const ROWS_PER_BATCH: usize = 128;

/// Bytes of a batch after which no row is added to it: what is on its way from stage to stage is not counted.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// Rows of a batch in the making.
#[derive(Default)]
pub(crate) struct RowsInMaking {
    rows: Vec<Document>,
    bytes: usize,
}

impl RowsInMaking {
    /// Adds a row.
    pub(crate) fn push(&mut self, row: Document) {
        self.bytes += row.as_bytes().len();
        self.rows.push(row);
    }

    /// True when it is a batch.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= ROWS_PER_BATCH || self.bytes >= BATCH_BYTES_MAX
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows.
    pub(crate) fn into_rows(self) -> Vec<Document> {
        self.rows
    }

    /// The batch; none without a row.
    pub(crate) fn into_batch(self) -> Option<Batch> {
        (!self.rows.is_empty()).then_some(Batch::Rows(self.rows))
    }
}

/// One step of a running query.
pub trait Operator: Send {
    /// The next batch; `None` when there is nothing left.
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>>;

    /// True if it is certain that nothing is left, without looking further.
    fn is_exhausted(&self) -> bool {
        false
    }
}

/// An operator on the heap.
pub type BoxOperator = Box<dyn Operator>;

/// A planned query, ready to give its answer piece by piece.
pub struct Executor {
    root: BoxOperator,
    settings: Arc<ExecSettings>,
    finished: bool,
    /// The end of what there is may not be the end.
    is_tail: bool,
    watched: Option<Watched>,
}

/// What is told of a query to the operation that runs it.
struct Watched {
    counters: Arc<ScanCounters>,
    summary: Arc<str>,
}

impl Executor {
    /// An executor of the operators under `root`.
    pub fn new(root: BoxOperator, settings: Arc<ExecSettings>) -> Self {
        Self {
            root,
            settings,
            finished: false,
            is_tail: false,
            watched: None,
        }
    }

    /// Lets operations know how documents are found, and what `counters` count.
    pub fn watch(&mut self, counters: Arc<ScanCounters>, summary: Arc<str>) {
        self.watched = Some(Watched { counters, summary });
    }

    /// How documents are found, if it was said.
    pub fn plan_summary(&self) -> Option<&str> {
        self.watched.as_ref().map(|watched| &*watched.summary)
    }

    /// Makes it go on behind its end when more has come.
    pub fn tail(&mut self) {
        self.is_tail = true;
    }

    /// What an answer may hold, in bytes.
    pub fn batch_bytes_max(&self) -> usize {
        self.settings.limits.batch_bytes_max
    }

    /// The next batch; `None` when there is nothing left.
    pub fn next(&mut self, operation: &OperationContext) -> Result<Option<Batch>> {
        if self.finished {
            return Ok(None);
        }
        operation.check_interrupt()?;
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

    /// The next batch as documents.
    pub fn next_rows(&mut self, operation: &OperationContext) -> Result<Option<Vec<Document>>> {
        self.next(operation)?.map(Batch::into_rows).transpose()
    }

    /// All that is left, as documents.
    pub fn drain(&mut self, operation: &OperationContext) -> Result<Vec<Document>> {
        let mut all = Vec::new();
        while let Some(rows) = self.next_rows(operation)? {
            all.extend(rows);
        }
        Ok(all)
    }

    /// True if it is certain that nothing is left.
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

/// What one operator did, for explain.
#[derive(Debug, Default)]
pub struct OperatorStats {
    /// Documents given upward.
    pub returned: AtomicU64,
    /// Nanoseconds spent in it and below it.
    pub nanos: AtomicU64,
}

/// Counts what another operator gives.
pub struct Counted {
    inner: BoxOperator,
    stats: Arc<OperatorStats>,
}

impl Counted {
    /// Counts what `inner` gives into `stats`.
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

/// Pulls from `input` until a batch that is not empty comes; checks for interrupts on the way.
pub(crate) fn next_filled(input: &mut BoxOperator, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
    loop {
        cx.operation.check_interrupt()?;
        match input.next(cx)? {
            Some(batch) if batch.is_empty() => {}
            other => return Ok(other),
        }
    }
}
