//! `$sort`: gathers its input and returns it sorted; with a limit it keeps only rows that may still be
//! among the first.
//!
//! ```text
//! mod            rows: all of them, or what `first_rows` keeps
//! first_rows     the first rows of a sort with a limit, in memory and in runs
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
pub(in crate::query::exec) mod first_rows;
pub(crate) mod merged_bucket;
pub(crate) mod spill;
#[cfg(test)]
mod spill_tests;

use std::cmp::Ordering;

use nilometer_bson::{Document, ValueRef};

use self::external_sort::{RowOrder, Sorted, Sorter};
use self::first_rows::{Row, first_rows};
use super::memory::{self, MemoryGauge};
use super::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, RowBatch, next_filled};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::planner::physical::PhysicalSort;

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
                Some(limit) => first_rows(&mut input, &self.plan, limit, cx)?,
                None => {
                    let sorter = Sorter::new(ByPattern(self.plan.stage.pattern.clone()), gauge(cx));
                    SortOutput::Everything(everything(sorter, &mut input, None, cx)?)
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
pub(in crate::query::exec) fn gauge(cx: &ExecContext<'_>) -> MemoryGauge {
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
pub(in crate::query::exec) fn everything(
    mut sorter: Sorter<ByPattern>,
    input: &mut BoxOperator,
    limit: Option<u64>,
    cx: &ExecContext<'_>,
) -> Result<Everything> {
    while let Some(batch) = next_filled(input, cx)? {
        add_all(&mut sorter, batch, cx)?;
    }
    Everything::of(sorter, limit, cx)
}

/// The whole input, sorted and cut at the limit.
pub(in crate::query::exec) struct Everything {
    sorted: Sorted<ByPattern>,
    left: u64,
}

impl Everything {
    /// Sorts the content of the sorter, and cuts it at the limit.
    pub(in crate::query::exec) fn of(
        sorter: Sorter<ByPattern>,
        limit: Option<u64>,
        cx: &ExecContext<'_>,
    ) -> Result<Self> {
        Ok(Self {
            sorted: sorter.finish(cx)?,
            left: limit.unwrap_or(u64::MAX),
        })
    }

    /// True if no rows remain.
    pub(super) fn is_exhausted(&self) -> bool {
        self.left == 0 || self.sorted.is_exhausted()
    }

    /// Returns at most `rows` next rows; none only at the end.
    pub(in crate::query::exec) fn take(
        &mut self,
        rows: usize,
        cx: &ExecContext<'_>,
    ) -> Result<Vec<Document>> {
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
pub(in crate::query::exec) struct ByPattern(pub(in crate::query::exec) SortPattern);

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
        for limit in [None, Some(large), Some(1500), Some(700), Some(20)] {
            let expected = sorted(limit, 1 << 30, folder.path()).unwrap();
            assert_eq!(expected.len() as u64, limit.unwrap_or(large).min(2000));
            for bytes in [3_000, 50_000] {
                let found = sorted(limit, bytes, folder.path()).unwrap();
                assert!(found == expected, "{limit:?} {bytes}");
            }
        }
    }
}
