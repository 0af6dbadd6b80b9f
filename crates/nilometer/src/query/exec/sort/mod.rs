//! `$sort`: gathers its input and returns it sorted; with a limit it keeps only rows that may still be
//! among the first.
//!
//! ```text
//! mod            rows: a heap of the best for small limits, else a full sort
//! external_sort  any number of rows in bounded memory: sorted runs, merged; `spill` holds the files
//! bucket_sort    buckets sorted by their headers first, rows only where buckets overlap
//! block_pool     the same where the consumer takes blocks; overlapping buckets become a `merged_bucket`
//! ```
//!
//! Equal keys keep their input order, also across merged runs. With a limit, measurements of a block are kept as positions
//! and become documents only when they are returned. A block whose bounds all sort after the current limit is not opened.
//! Where buckets arrive in time order, reading ends at the first bucket that neither it nor any later one can improve on the
//! kept rows.

pub(crate) mod block_pool;
pub mod bucket_sort;
pub(crate) mod external_sort;
pub(crate) mod merged_bucket;
pub(crate) mod spill;
#[cfg(test)]
mod spill_tests;

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::sync::Arc;

use nilometer_bson::{Document, Value, ValueRef};

use self::external_sort::{ENTRY_OVERHEAD, RowOrder, Sorted, Sorter};
use super::memory::{self, MemoryGauge};
use super::vector::filter::narrowed;
use super::vector::rows_before::SortEnd;
use super::vector::time_rank::SortPrefix;
use super::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, RowBatch, next_filled};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::query::batch::{Batch, MeasurementBlock, MeasurementShape, Selection};
use crate::query::planner::physical::{BucketArrival, PhysicalSort};

/// Largest limit for which a heap of the best rows is kept; above it everything is sorted and cut.
const HEAP_LIMIT_MAX: u64 = 100_000;

/// Largest limit for which measurements of blocks are kept as positions. Each position may keep a
/// bucket with its decoded columns in memory, so their number must be small.
pub(super) const LATE_ROWS_MAX: usize = 1000;

/// Sorts documents.
pub struct Sort {
    input: Option<BoxOperator>,
    plan: PhysicalSort,
    given: SortOutput,
}

/// The sorted output.
enum SortOutput {
    /// The rows, and the gauge that counts them.
    Rows(std::vec::IntoIter<Row>, MemoryGauge),
    Everything(Everything),
    /// The input returns its rows in the order of the sort: it, and how many rows are left.
    Ordered(BoxOperator, u64),
}

/// A document, or a position in a block.
pub(super) enum Row {
    /// A finished document.
    Document(Document),
    /// A row of a block, which becomes a document when it is returned.
    InBlock(Arc<MeasurementBlock>, u32),
}

impl Row {
    /// Returns the document.
    pub(super) fn into_document(self) -> Result<Document> {
        match self {
            Self::Document(document) => Ok(document),
            Self::InBlock(block, row) => {
                let rows = block.rows_of(&Selection::Range(row..row + 1))?;
                Ok(rows.into_iter().next().unwrap_or_default())
            }
        }
    }

    /// Returns the bytes counted for the row.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Document(document) => document.as_bytes().len() + ENTRY_OVERHEAD,
            Self::InBlock(..) => ENTRY_OVERHEAD,
        }
    }
}

impl Sort {
    /// Sorts `input`.
    pub fn new(input: BoxOperator, plan: PhysicalSort) -> Self {
        Self {
            input: Some(input),
            plan,
            given: SortOutput::Rows(Vec::new().into_iter(), MemoryGauge::new(memory::SORT, 0)),
        }
    }
}

impl Operator for Sort {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(mut input) = self.input.take() {
            let limit = self.plan.stage.limit;
            let is_ordered = input.order_rows(&self.plan.stage.pattern, cx)?;
            self.given = match limit {
                limit if is_ordered => SortOutput::Ordered(input, limit.unwrap_or(u64::MAX)),
                Some(limit) if limit <= HEAP_LIMIT_MAX => {
                    first_few(&mut input, &self.plan, limit, cx)?
                }
                limit => {
                    let sorter = Sorter::new(ByPattern(self.plan.stage.pattern.clone()), gauge(cx));
                    SortOutput::Everything(everything(sorter, &mut input, limit, cx)?)
                }
            };
        }
        let (rows, memory) = match &mut self.given {
            SortOutput::Rows(rows, memory) => (rows, memory),
            SortOutput::Everything(all) => {
                let rows = all.take(ROWS_PER_BATCH, cx)?;
                return Ok((!rows.is_empty()).then_some(Batch::Rows(rows)));
            }
            SortOutput::Ordered(_, 0) => return Ok(None),
            SortOutput::Ordered(input, left) => {
                let mut batch = input.next(cx)?;
                if let Some(batch) = &mut batch {
                    batch.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= batch.len() as u64;
                }
                return Ok(batch);
            }
        };
        let mut out = RowBatch::default();
        while !out.is_full()
            && let Some(row) = rows.next()
        {
            memory.release(row.memory_bytes());
            out.push(row.into_document()?);
        }
        if rows.len() == 0 {
            memory.clear();
        }
        Ok(out.into_batch())
    }

    fn is_exhausted(&self) -> bool {
        let is_empty = match &self.given {
            SortOutput::Rows(rows, _) => rows.len() == 0,
            SortOutput::Everything(all) => all.is_exhausted(),
            SortOutput::Ordered(input, left) => *left == 0 || input.is_exhausted(),
        };
        self.input.is_none() && is_empty
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

/// Checks that a bucket's times lie within `span_ms` milliseconds of its start.
///
/// Reading buckets by descending start relies on it: no later bucket may hold a time beyond its start plus the span.
/// Every write keeps this, or marks the collection as one of extended range. A bucket that breaks it is corrupt, and
/// the query fails instead of returning rows in the wrong order.
pub fn assert_span(block: &MeasurementBlock, span_ms: i64) -> Result<()> {
    let id = block.bucket.id();
    let last_ms = i64::from(id.timestamp_seconds())
        .saturating_mul(1000)
        .saturating_add(span_ms);
    match block.bucket.max(&block.shape.time_field) {
        ValueRef::DateTime(at) if at > last_ms => Err(Error::new(
            ErrorCode::DataCorruptionDetected,
            format!(
                "the bucket {} holds a time later than {} seconds after its start",
                id.to_hex(),
                span_ms / 1000
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns the memory gauge of a sort.
pub(super) fn gauge(cx: &ExecContext<'_>) -> MemoryGauge {
    MemoryGauge::of_query(memory::SORT, cx.settings.limits.sort_bytes_max, cx)
}

/// Adds a batch to the sorter.
pub(super) fn add_all(
    sorter: &mut Sorter<ByPattern>,
    batch: Batch,
    cx: &ExecContext<'_>,
) -> Result<()> {
    for document in batch.into_rows()? {
        sorter.add(document, cx)?;
    }
    Ok(())
}

/// Sorts the content of the sorter and the rest of the input.
pub(super) fn everything(
    mut sorter: Sorter<ByPattern>,
    input: &mut BoxOperator,
    limit: Option<u64>,
    cx: &ExecContext<'_>,
) -> Result<Everything> {
    while let Some(batch) = next_filled(input, cx)? {
        add_all(&mut sorter, batch, cx)?;
    }
    Ok(Everything {
        sorted: sorter.finish(cx)?,
        left: limit.unwrap_or(u64::MAX),
    })
}

/// The whole input, sorted and cut at the limit.
pub(super) struct Everything {
    sorted: Sorted<ByPattern>,
    left: u64,
}

impl Everything {
    /// True if no rows remain.
    pub(super) fn is_exhausted(&self) -> bool {
        self.left == 0 || self.sorted.is_exhausted()
    }

    /// Returns at most `rows` next rows; none only at the end.
    pub(super) fn take(&mut self, rows: usize, cx: &ExecContext<'_>) -> Result<Vec<Document>> {
        let mut out = RowBatch::default();
        while out.len() < rows && !out.is_full() && self.left > 0 {
            let Some((_, row)) = self.sorted.next(cx)? else {
                break;
            };
            out.push(row);
            self.left -= 1;
        }
        Ok(out.into_rows())
    }
}

/// The order of a sort pattern.
pub(super) struct ByPattern(pub(super) SortPattern);

impl RowOrder for ByPattern {
    type Key = SortKey;

    fn key(&self, row: &Document, cx: &ExecContext<'_>) -> Result<SortKey> {
        self.0.extract(row.as_ref(), &cx.eval)
    }

    fn compare(&self, a: &SortKey, b: &SortKey, _: &ExecContext<'_>) -> Ordering {
        self.0.compare(a, b)
    }

    fn key_bytes(&self, key: &SortKey) -> usize {
        key.memory_bytes()
    }
}

/// An entry of the heap of best rows; the worst is on top.
struct HeapEntry<'p> {
    pattern: &'p SortPattern,
    key: SortKey,
    arrival: u64,
    row: Row,
}

impl Ord for HeapEntry<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.pattern
            .compare(&self.key, &other.key)
            .then(self.arrival.cmp(&other.arrival))
    }
}

impl PartialOrd for HeapEntry<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for HeapEntry<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for HeapEntry<'_> {}

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

/// Returns the first few rows. If even these exceed the memory limit, everything is sorted externally.
fn first_few(
    input: &mut BoxOperator,
    plan: &PhysicalSort,
    limit: u64,
    cx: &ExecContext<'_>,
) -> Result<SortOutput> {
    let pattern = &plan.stage.pattern;
    let mut best = Best {
        plan,
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        heap: BinaryHeap::new(),
        arrivals: 0,
        memory: gauge(cx),
        prefixes: Prefixes::default(),
    };
    while let Some(batch) = next_filled(input, cx)? {
        match batch {
            Batch::Rows(rows) => {
                for document in rows {
                    let key = pattern.extract(document.as_ref(), &cx.eval)?;
                    best.offer(key, cx, || Row::Document(document.clone()))?;
                }
            }
            Batch::Block(block) => {
                if best.offer_block(block, cx)?.is_break() {
                    break;
                }
            }
        }
        if best.memory.is_exceeded() {
            let mut sorter = Sorter::new(ByPattern(pattern.clone()), gauge(cx));
            // In sort order, so that equal keys keep their input order.
            for entry in best.heap.into_sorted_vec() {
                sorter.add(entry.row.into_document()?, cx)?;
            }
            return everything(sorter, input, Some(limit), cx).map(SortOutput::Everything);
        }
    }
    // Blocks are released: those of a scan by summaries hold its snapshot.
    let mut sorted = best.heap.into_sorted_vec().into_iter();
    let mut rows = Vec::with_capacity(sorted.len());
    for entry in sorted.by_ref() {
        cx.operation.check_interrupt()?;
        best.memory
            .release(entry.row.memory_bytes() + entry.key.memory_bytes());
        let row = Row::Document(entry.row.into_document()?);
        let counted = best.memory.add(row.memory_bytes());
        rows.push(row);
        match (counted, &cx.settings.spill) {
            (Ok(()), _) => {}
            (Err(exceeded), None) => return Err(exceeded),
            (Err(_), Some(_)) => break,
        }
    }
    if sorted.len() > 0 || best.memory.is_exceeded() {
        let mut sorter = Sorter::new(ByPattern(pattern.clone()), gauge(cx));
        best.memory.clear();
        for row in rows.into_iter().chain(sorted.map(|entry| entry.row)) {
            sorter.add(row.into_document()?, cx)?;
        }
        return everything(sorter, input, Some(limit), cx).map(SortOutput::Everything);
    }
    Ok(SortOutput::Rows(rows.into_iter(), best.memory))
}

/// The best rows so far.
struct Best<'p> {
    plan: &'p PhysicalSort,
    limit: usize,
    heap: BinaryHeap<HeapEntry<'p>>,
    arrivals: u64,
    memory: MemoryGauge,
    prefixes: Prefixes,
}

impl<'p> Best<'p> {
    /// Returns the worst of the kept rows once the limit is reached.
    fn worst(&self) -> Option<&HeapEntry<'p>> {
        self.heap.peek().filter(|_| self.heap.len() >= self.limit)
    }

    fn offer(
        &mut self,
        key: SortKey,
        cx: &ExecContext<'_>,
        row: impl FnOnce() -> Row,
    ) -> Result<()> {
        let pattern = &self.plan.stage.pattern;
        self.arrivals += 1;
        if let Some(worst) = self.worst() {
            // A later row with an equal key sorts after: only a smaller key is added.
            if pattern.compare(&key, &worst.key).is_ge() {
                return Ok(());
            }
            if let Some(worst) = self.heap.pop() {
                let bytes = worst.row.memory_bytes() + worst.key.memory_bytes();
                self.memory.release(bytes);
            }
        }
        let row = row();
        let counted = self.memory.add(row.memory_bytes() + key.memory_bytes());
        if let Err(exceeded) = counted
            && cx.settings.spill.is_none()
        {
            return Err(exceeded);
        }
        self.heap.push(HeapEntry {
            pattern,
            key,
            arrival: self.arrivals,
            row,
        });
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
        if let Some(worst) = self.heap.peek().filter(|_| self.heap.len() >= self.limit) {
            if is_past(self.plan, &block, &worst.key) {
                return Ok(ControlFlow::Break(()));
            }
            if let Some(prefix) = self.prefixes.of(pattern, &block, cx)
                && prefix.is_beyond(&block, &worst.key, cx)?
            {
                return Ok(ControlFlow::Continue(()));
            }
        }
        let worst = self.worst().map(|worst| &worst.key);
        block.selection = SortEnd::new(pattern, false).rows(&block, worst, self.limit)?;
        if self.limit > LATE_ROWS_MAX {
            for document in block.to_rows()? {
                let key = pattern.extract(document.as_ref(), &cx.eval)?;
                self.offer(key, cx, || Row::Document(document.clone()))?;
            }
            return Ok(ControlFlow::Continue(()));
        }
        let block = Arc::new(block);
        let keys = key_rows(&block, pattern)?;
        for (row, document) in block.selection.to_vec().into_iter().zip(keys) {
            let key = pattern.extract(document.as_ref(), &cx.eval)?;
            self.offer(key, cx, || Row::InBlock(Arc::clone(&block), row))?;
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the measurements of a block with only the fields of the pattern.
fn key_rows(block: &MeasurementBlock, pattern: &SortPattern) -> Result<Vec<Document>> {
    let paths = pattern.paths().iter();
    let fields = paths.filter_map(|path| path.as_str().split('.').next());
    narrowed(block, fields.map(Arc::from).collect()).to_rows()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::ParseContext;
    use crate::query::exec::ExecLimits;
    use crate::query::exec::row::documents::GivenDocuments;
    use crate::query::exec::testing::{operation, settings};
    use crate::query::pipeline::SortStage;
    use crate::query::planner::settings::PlanOptions;
    use nilometer_bson::doc;

    fn sorted(limit: Option<u64>, bytes: u64, folder: &std::path::Path) -> Result<Vec<Document>> {
        let documents: Vec<Document> = (0..2000i32)
            .map(|i| doc! { "k": i * 7919 % 100, "i": i, "pad": "x".repeat((i % 50) as usize) })
            .collect();
        let pattern = SortPattern::by_field("k", true, &ParseContext::new()).unwrap();
        let mut stage = SortStage::new(pattern);
        stage.limit = limit;
        let input = Box::new(GivenDocuments::new(documents));
        let mut sort = Sort::new(input, PhysicalSort::new(stage));
        let limits = ExecLimits {
            sort_bytes_max: bytes,
            ..ExecLimits::default()
        };
        let mut settings = settings(PlanOptions::default(), limits);
        settings.spill = Some(folder.into());
        let operation = operation();
        let cx = ExecContext::new(&operation, &settings);
        let mut out = Vec::new();
        while let Some(batch) = sort.next(&cx)? {
            out.extend(batch.into_rows()?);
        }
        assert!(sort.is_exhausted());
        Ok(out)
    }

    #[test]
    fn what_does_not_fit_is_merged_from_disk_in_the_same_order() {
        let folder = tempfile::tempdir().unwrap();
        let large = 200_000;
        for limit in [None, Some(large), Some(HEAP_LIMIT_MAX + 1), Some(700)] {
            let expected = sorted(limit, 1 << 30, folder.path()).unwrap();
            assert_eq!(expected.len(), if limit == Some(700) { 700 } else { 2000 });
            for bytes in [3_000, 50_000] {
                let found = sorted(limit, bytes, folder.path()).unwrap();
                assert!(found == expected, "{limit:?} {bytes}");
            }
        }
    }
}
