//! The rest of a scan of an ordinary collection, by several threads: each reads and filters a part of the record ids, and the
//! parts are returned in order.
//!
//! ```text
//! query thread   4,096 records │ part 1 │ part 2 │ part 3 │ …  │ what was inserted since: by the query thread
//!                                worker   worker   not started: run by the query thread when it waits
//! ```
//!
//! The ids of a part are a guess, as ids may be missing: the parts grow while they hold few records. A part that holds more
//! than a thread should read ahead is read to its end by the query's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_bson::Document;

use super::next_batch;
use crate::error::Result;
use crate::query::exec::parts::{PartsInFlight, Processed};
use crate::query::exec::row::filter::matching;
use crate::query::exec::{BATCH_BYTES_MAX, ExecContext, RowBatch};
use crate::query::planner::physical::{AccessPath, RecordInput};
use crate::query::source::{Direction, RecordKey, RecordScanOptions, ScanCounters};

/// Most records of a part.
const PART_RECORDS_MAX: u64 = 2048;

/// Record ids of the first parts.
const FIRST_PART_IDS: u64 = 512;

/// Bytes of the documents of a part after which none is added to it.
const PART_BYTES_MAX: usize = BATCH_BYTES_MAX;

/// The parts of a scan.
pub(super) struct RecordParts {
    input: Arc<RecordInput>,
    /// The last record of the collection when the first part was planned.
    end: RecordKey,
    /// The key after which the next part begins.
    after: RecordKey,
    ids_per_part: u64,
    parts: PartsInFlight<KeyRange, Part>,
    /// What is left of the part being returned.
    current: Option<Processed<Part>>,
}

/// The keys after the first up to the second.
#[derive(Clone)]
struct KeyRange {
    after: RecordKey,
    last: RecordKey,
}

/// What was read of a part.
struct Part {
    keys: KeyRange,
    batches: VecDeque<FilteredBatch>,
    records: u64,
    bytes: usize,
    /// The last record read, if the part has or may have more.
    stopped_at: Option<RecordKey>,
}

/// The documents of some records that pass the filter.
struct FilteredBatch {
    records: u64,
    rows: Vec<Document>,
}

impl RecordParts {
    /// Splits what follows `last` of a scan, the key of the last record of `batch`, which is batch number `batches`; `None` if one
    /// thread must or should read it.
    pub(super) fn behind(
        input: &RecordInput,
        last: &RecordKey,
        (batch, batches): (&RowBatch, usize),
        cx: &ExecContext<'_>,
    ) -> Result<Option<Self>> {
        let Some(threads) = &cx.settings.threads else {
            return Ok(None);
        };
        let may = threads.count > 1
            && batches == threads.batches_before.max(1)
            && matches!(input.access, AccessPath::CollectionScan)
            && input.direction == Direction::Forward
            && input.limit.is_none()
            && !input.is_tail
            && input.source.key_behind(last, FIRST_PART_IDS).is_some();
        if !may {
            return Ok(None);
        }
        let newest = RecordScanOptions {
            direction: Direction::Backward,
            ..RecordScanOptions::default()
        };
        let newest = input.source.scan(&newest)?.next().transpose()?;
        let Some((end, _)) = newest.filter(|(end, _)| end > last) else {
            return Ok(None);
        };
        // Documents as large as those before fill no more than a part.
        let records = PART_BYTES_MAX * batch.len() / batch.bytes().max(1);
        let input = Arc::new(input.clone());
        let read = Arc::clone(&input);
        Ok(Some(Self {
            parts: PartsInFlight::new(threads, move |keys, cx| Part::read(&read, keys, cx)),
            input,
            end,
            after: last.clone(),
            ids_per_part: (records as u64).clamp(1, FIRST_PART_IDS),
            current: None,
        }))
    }

    /// Returns the key after which the scan continues once all parts are read.
    pub(super) fn end(&self) -> &RecordKey {
        &self.end
    }

    /// Returns the documents of the next records that pass the filter, maybe none; `None` behind the last part.
    pub(super) fn next(
        &mut self,
        counters: &ScanCounters,
        cx: &ExecContext<'_>,
    ) -> Result<Option<Vec<Document>>> {
        loop {
            if let Some(Processed { found, failed }) = &mut self.current {
                if let Some(batch) = found.batches.pop_front() {
                    counters
                        .documents
                        .fetch_add(batch.records, Ordering::Relaxed);
                    return Ok(Some(batch.rows));
                }
                if let Some(error) = failed.take() {
                    return Err(error);
                }
                self.current = found.stopped_at.take().map(|after| {
                    let last = found.keys.last.clone();
                    self.parts.process(&KeyRange { after, last }, cx)
                });
                continue;
            }
            self.plan(cx)?;
            let Some(part) = self.parts.pop(cx)? else {
                return Ok(None);
            };
            self.note_size(&part.found);
            self.current = Some(part);
        }
    }

    /// Hands out parts while threads take some.
    fn plan(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        while !self.parts.is_full() && self.after < self.end {
            let behind = self.input.source.key_behind(&self.after, self.ids_per_part);
            let last = behind.map_or_else(|| self.end.clone(), |key| key.min(self.end.clone()));
            let after = std::mem::replace(&mut self.after, last.clone());
            self.parts.push(KeyRange { after, last }, cx)?;
        }
        Ok(())
    }

    /// Adapts the next parts to what this one held.
    fn note_size(&mut self, part: &Part) {
        if part.stopped_at.is_some() {
            self.ids_per_part = (self.ids_per_part / 2).max(1);
        } else if part.records <= PART_RECORDS_MAX / 2 && part.bytes <= PART_BYTES_MAX / 2 {
            self.ids_per_part = self.ids_per_part.saturating_mul(2);
        }
    }
}

impl Part {
    /// Reads a part, or the beginning of a large one.
    fn read(input: &RecordInput, keys: &KeyRange, cx: &ExecContext<'_>) -> Processed<Self> {
        let mut part = Self {
            keys: keys.clone(),
            batches: VecDeque::new(),
            records: 0,
            bytes: 0,
            stopped_at: None,
        };
        let failed = part.fill(input, cx).err();
        Processed {
            found: part,
            failed,
        }
    }

    fn fill(&mut self, input: &RecordInput, cx: &ExecContext<'_>) -> Result<()> {
        let mut records = input.source.scan(&RecordScanOptions {
            max: Some(self.keys.last.clone()),
            start_after: Some(self.keys.after.clone()),
            reads_all: true,
            ..RecordScanOptions::default()
        })?;
        loop {
            cx.operation.check_interrupt()?;
            let (rows, last) = next_batch(input, &mut records)?;
            let is_end = !rows.is_full();
            self.bytes += rows.bytes();
            let mut rows = rows.into_rows();
            let read = rows.len() as u64;
            self.records += read;
            if let Some(filter) = &input.filter {
                rows = matching(rows, filter, cx)?;
            }
            self.batches.push_back(FilteredBatch {
                records: read,
                rows,
            });
            if is_end || last.as_ref() == Some(&self.keys.last) {
                return Ok(());
            }
            if self.records >= PART_RECORDS_MAX || self.bytes >= PART_BYTES_MAX {
                self.stopped_at = last;
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nilometer_bson::{Value, array, doc};

    use super::*;
    use crate::error::ErrorCode;
    use crate::query::exec::testing::{
        MemoryCollections, MemoryRecords, alone, assert_same_with_threads, executor_with,
        operation, rows_before_error, with_threads,
    };
    use crate::query::exec::workers::Workers;
    use crate::query::source::{Collections, Resolved};

    /// Documents of many sizes: some parts hold more bytes than a thread reads, some ids are missing.
    fn collection(count: i32) -> Arc<dyn Collections> {
        let one = |n: i32| {
            let bytes = match n % 1000 {
                0..8 => 300_000,
                other => other as usize % 50,
            };
            doc! {"n": n, "r": n * 7919 % 101, "zero": i32::from(n != count - 700), "b": "x".repeat(bytes)}
        };
        let documents = (0..count).map(one).collect();
        MemoryCollections::of(Resolved::Ordinary(Arc::new(MemoryRecords(documents))))
    }

    #[test]
    fn several_threads_return_what_one_does() {
        let workers = Arc::<Workers>::default();
        let collection = collection(12_000);
        let project = doc! {"$project": doc! {"n": 1, "r": 1}};
        let pipelines = [
            array![project.clone()],
            array![
                doc! {"$match": doc! {"r": doc! {"$lt": 30}}},
                project.clone()
            ],
            array![doc! {"$match": doc! {"n": doc! {"$gt": 11_990}}}, project],
            array![doc! {"$match": doc! {"n": -1}}],
            array![
                doc! {"$group": doc! {"_id": "$r", "n": doc! {"$sum": "$n"}, "f": doc! {"$first": "$n"}}}
            ],
            array![
                doc! {"$sort": doc! {"r": 1}},
                doc! {"$limit": 900},
                doc! {"$project": doc! {"n": 1}}
            ],
        ];
        for stages in pipelines {
            let stages: Value = stages;
            assert_same_with_threads(&collection, &stages, &workers);
        }
        assert_eq!(workers.running(), 2);
        workers.close();
        let stages: Value = array![doc! {"$match": doc! {"r": 5}}];
        assert_same_with_threads(&collection, &stages, &workers);
    }

    #[test]
    fn an_error_comes_after_the_batches_before_it() {
        let workers = Arc::<Workers>::default();
        let collection = collection(9_000);
        let fails = doc! {"$expr": doc! {"$gt": array![doc! {"$divide": array![1, "$zero"]}, 0]}};
        let stages: Value = array![doc! {"$match": fails}];
        let query = |settings| executor_with(&collection, &stages, settings).unwrap();
        let expected = rows_before_error(query(alone()));
        assert!(expected.0 > 8_000, "{expected:?}");
        let found = rows_before_error(query(with_threads(&workers, 2)));
        // The batches of several threads begin at other records.
        assert!(
            found.0.abs_diff(expected.0) <= 128,
            "{found:?} {expected:?}"
        );
        assert_eq!(found.1, expected.1);
    }

    #[test]
    fn what_an_earlier_operation_left_unread_obeys_the_next() {
        let workers = Arc::<Workers>::default();
        let collection = collection(9_000);
        let stages: Value = array![doc! {"$match": doc! {"n": doc! {"$gte": 0}}}];
        let mut query = executor_with(&collection, &stages, with_threads(&workers, 2)).unwrap();
        let (mut first, mut rows) = (operation(), 0);
        first.id = 1;
        first.set_time_limit(Some(Duration::from_secs(600)));
        while rows < 1_000 {
            rows += query.next_rows(&first).unwrap().unwrap().len();
        }
        first.kill_switch().kill(ErrorCode::Interrupted);
        let mut second = operation();
        second.id = 2;
        rows += query.drain(&second).unwrap().len();
        assert_eq!(rows, 9_000);
    }
}
