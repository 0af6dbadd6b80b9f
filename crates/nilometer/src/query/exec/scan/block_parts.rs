//! The output of a scan of buckets, by several threads: each selects the measurements of some buckets and decodes the columns
//! they show. The query's thread finds the buckets, and returns the blocks in order.
//!
//! ```text
//! query thread   32 blocks │ finds buckets ─► part 1 │ part 2 │ part 3 │ …
//!                                             worker   worker   not started: run by the query thread when it waits
//! ```
//!
//! For a query whose result is the scan, since it shows all columns of a block. Operators above a scan decide themselves which
//! columns they decode.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::exec::parts::{PartsInFlight, Processed};
use crate::query::exec::workers::QueryThreads;
use crate::query::exec::{
    BATCH_BYTES_MAX, BlockSelection, BoxOperator, ExecContext, ExecSettings, Operator,
};

/// Most blocks of a part.
const PART_BLOCKS_MAX: usize = 8;

/// Bytes of the buckets of a part after which none is added to it: as stored, or their numbers decoded.
const PART_BYTES_MAX: usize = BATCH_BYTES_MAX;

/// Parts that a cursor keeps, at most, however many threads there are.
const PARTS_MAX: usize = 16;

type Blocks = Vec<MeasurementBlock>;

/// Returns the blocks of its input with the measurements selected and the columns decoded.
pub(in crate::query::exec) struct BlockParts {
    input: BoxOperator,
    selection: Arc<BlockSelection>,
    /// Blocks that the query's thread still processes alone.
    alone: usize,
    blocks_per_part: usize,
    parts: PartsInFlight<Blocks, Blocks>,
    /// What is left of the part being returned.
    current: VecDeque<MeasurementBlock>,
    /// The error that follows it.
    failed: Option<Error>,
    /// Set at the end of the input: the error that ended it.
    end: Option<Result<()>>,
}

impl BlockParts {
    /// Returns `root` with its blocks processed by several threads, or as it is.
    pub(in crate::query::exec) fn over(
        mut root: BoxOperator,
        settings: &ExecSettings,
    ) -> BoxOperator {
        let Some(threads) = settings
            .threads
            .as_ref()
            .filter(|threads| threads.count > 1)
        else {
            return root;
        };
        match root.defer_selection() {
            Some(selection) => Box::new(Self::new(root, selection, threads)),
            None => root,
        }
    }

    fn new(input: BoxOperator, selection: Arc<BlockSelection>, threads: &QueryThreads) -> Self {
        let process = Arc::clone(&selection);
        Self {
            input,
            selection,
            alone: threads.batches_before,
            blocks_per_part: threads.batches_per_task.min(PART_BLOCKS_MAX),
            parts: PartsInFlight::new(threads, move |blocks, cx| prepare(blocks, &process, cx)),
            current: VecDeque::new(),
            failed: None,
            end: None,
        }
    }

    /// Hands out a part, and others while threads take some and the first is not done.
    fn read_ahead(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        while self.end.is_none() && !self.parts.is_full() && self.parts.len() < PARTS_MAX {
            let blocks = self.next_part(cx)?;
            if !blocks.is_empty() {
                self.parts.push(blocks, cx)?;
            }
            if self.parts.is_first_done() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the blocks of the next part. Fails if the operation is interrupted; an error of the input follows the parts before it.
    fn next_part(&mut self, cx: &ExecContext<'_>) -> Result<Blocks> {
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        while blocks.len() < self.blocks_per_part && bytes < PART_BYTES_MAX {
            cx.operation.pace()?;
            match self.input.next(cx) {
                Ok(Some(Batch::Block(block))) => {
                    bytes += block.decoded_bytes();
                    blocks.push(block);
                }
                // A scan whose selection is deferred has no other rows than those of an empty batch.
                Ok(Some(Batch::Rows(_))) => {}
                end => {
                    if end.is_err() {
                        cx.operation.check_interrupt()?;
                    }
                    self.end = Some(end.map(drop));
                    break;
                }
            }
        }
        Ok(blocks)
    }
}

/// Selects the measurements of some blocks, and decodes what they show. Blocks without selected measurements are left out.
fn prepare(blocks: &Blocks, selection: &BlockSelection, cx: &ExecContext<'_>) -> Processed<Blocks> {
    let mut found = Vec::with_capacity(blocks.len());
    let prepared = blocks.iter().try_for_each(|block| {
        cx.operation.check_interrupt()?;
        let mut block = block.clone();
        selection.apply(&mut block, cx)?;
        if !block.selection.is_empty() {
            // The bucket keeps what it has decoded.
            block.shown_fields()?;
            found.push(block);
        }
        Ok(())
    });
    Processed {
        failed: prepared.err(),
        found,
    }
}

impl Operator for BlockParts {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.alone > 0 {
            let mut batch = self.input.next(cx)?;
            if let Some(Batch::Block(block)) = &mut batch {
                self.alone -= 1;
                self.selection.apply(block, cx)?;
            }
            return Ok(batch.map(|batch| match batch.is_empty() {
                true => Batch::Rows(Vec::new()),
                false => batch,
            }));
        }
        loop {
            if let Some(block) = self.current.pop_front() {
                return Ok(Some(Batch::Block(block)));
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            self.read_ahead(cx)?;
            let Some(Processed { found, failed }) = self.parts.pop(cx)? else {
                return match &mut self.end {
                    Some(end) => std::mem::replace(end, Ok(())).map(|()| None),
                    None => Ok(None),
                };
            };
            (self.current, self.failed) = (found.into(), failed);
        }
    }

    fn is_exhausted(&self) -> bool {
        let is_end = self.end.as_ref().is_none_or(Result::is_ok);
        let is_empty = self.current.is_empty() && self.failed.is_none() && self.parts.len() == 0;
        is_end && is_empty && self.input.is_exhausted()
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, array, doc};

    use super::*;
    use crate::error::ErrorCode;
    use crate::query::exec::testing::{
        MemoryBuckets, MemoryCollections, alone, assert_same_with_threads, executor_with,
        operation, rows_before_error, with_threads,
    };
    use crate::query::exec::workers::Workers;
    use crate::query::source::{Collections, Resolved};

    /// Buckets of up to seven measurements of three series. One measurement, the last but 200, has `zero` 0.
    fn collection(count: i32) -> Arc<dyn Collections> {
        let one = |n: i32| {
            let series = doc! {"host": n * 7919 % 3};
            let gap = (n % 11 == 0).then(|| f64::from(n) / 3.0);
            doc! {
                "t": Value::DateTime(1_600_000_000_000 + i64::from(n) * 1000), "m": series, "n": n,
                "r": n * 7919 % 101, "zero": i32::from(n != count - 200), "s": "x".repeat(n as usize % 5), "gap": gap
            }
        };
        let measurements: Vec<Document> = (0..count).map(one).collect();
        let buckets = MemoryBuckets::new(&measurements, 7);
        MemoryCollections::of(Resolved::TimeSeries(Arc::new(buckets)))
    }

    #[test]
    fn several_threads_return_what_one_does() {
        let workers = Arc::<Workers>::default();
        let collection = collection(2_000);
        let pipelines = [
            array![],
            array![doc! {"$match": doc! {"r": doc! {"$lt": 5}}}],
            array![doc! {"$match": doc! {"r": -1}}],
            array![doc! {"$match": doc! {"m.host": 1, "n": doc! {"$gt": 700}}}],
            array![
                doc! {"$match": doc! {"gap": doc! {"$gt": 100}}},
                doc! {"$project": doc! {"n": 1, "s": 1, "_id": 0}}
            ],
            array![doc! {"$project": doc! {"twice": doc! {"$add": array!["$n", "$n"]}}}],
            array![doc! {"$match": doc! {"r": 3}}, doc! {"$limit": 9}],
        ];
        for stages in pipelines {
            let stages: Value = stages;
            assert_same_with_threads(&collection, &stages, &workers);
        }
        assert_eq!(workers.running(), 2);
        workers.close();
        let stages: Value = array![doc! {"$match": doc! {"r": doc! {"$lt": 50}}}];
        assert_same_with_threads(&collection, &stages, &workers);
    }

    #[test]
    fn blocks_without_selected_measurements_are_not_decoded() {
        let workers = Arc::<Workers>::default();
        let measurements: Vec<Document> = (0..700)
            .map(|n| {
                let at = Value::DateTime(1_600_000_000_000 + i64::from(n) * 1000);
                doc! {"t": at, "m": 1, "r": n % 2 * 10, "s": "x", "n": n}
            })
            .collect();
        let buckets = MemoryBuckets::new(&measurements, 7);
        let columns_read = Arc::clone(&buckets.columns_read);
        let collection = MemoryCollections::of(Resolved::TimeSeries(Arc::new(buckets)));
        // Within the bounds of each bucket.
        let stages: Value = array![doc! {"$match": doc! {"r": 5}}];
        let mut query = executor_with(&collection, &stages, with_threads(&workers, 2)).unwrap();
        let operation = operation();
        while let Some(batch) = query.next(&operation).unwrap() {
            assert!(matches!(batch, Batch::Rows(rows) if rows.is_empty()));
        }
        // The column of the filter.
        assert_eq!(columns_read.load(std::sync::atomic::Ordering::Relaxed), 100);
    }

    #[test]
    fn an_error_comes_after_the_blocks_before_it() {
        let workers = Arc::<Workers>::default();
        let collection = collection(2_000);
        let fails = doc! {"$expr": doc! {"$gt": array![doc! {"$divide": array![1, "$zero"]}, 0]}};
        let stages: Value = array![doc! {"$match": fails}];
        let query = |settings| executor_with(&collection, &stages, settings).unwrap();
        let expected = rows_before_error(query(alone()));
        assert!(expected.0 > 1_000, "{expected:?}");
        for threads in [2, 3] {
            let found = rows_before_error(query(with_threads(&workers, threads)));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_an_earlier_operation_left_unread_obeys_the_next() {
        let workers = Arc::<Workers>::default();
        let collection = collection(2_000);
        let stages: Value = array![];
        let mut query = executor_with(&collection, &stages, with_threads(&workers, 2)).unwrap();
        let (mut first, mut rows) = (operation(), 0);
        first.id = 1;
        while rows < 100 {
            rows += query.next_rows(&first).unwrap().unwrap().len();
        }
        first.kill_switch().kill(ErrorCode::Interrupted);
        let mut second = operation();
        second.id = 2;
        assert!(!query.is_exhausted());
        rows += query.drain(&second).unwrap().len();
        assert_eq!(rows, 2_000);
        assert!(query.is_exhausted());
    }
}
