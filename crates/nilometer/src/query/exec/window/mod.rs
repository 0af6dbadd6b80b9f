//! `$setWindowFields`: sorts its input by partition and `sortBy`, and computes the partitions one by one.
//! If the planner placed a sort below that gives this order, partitions are computed as they arrive.
//! `$densify` ([`densify`], over whole buckets [`densify_buckets`]) works on the same partitions.
//!
//! ```text
//! in    block   block   rows …     of one partition, sorted
//!         │ times, arguments          columns of the bucket, or one value per row
//!         ▼
//! compute                             one column per output
//!         ▼
//! out   block+x block+x rows+x …   as in the input, each with its part of the results
//! ```
//!
//! Above the memory limit the sorter writes runs to disk, and the documents of the current partition are
//! written to disk; the columns that its functions read ([`PartitionColumns`]) must fit into memory.

#[cfg(test)]
mod bucket_tests;
pub mod densify;
pub(crate) mod densify_buckets;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::order::{compare, compare_with};
use nilometer_bson::{Document, Value, ValueRef};

use super::memory::MemoryGauge;
use super::sort::bucket_sort::held_bytes;
use super::sort::external_sort::{ENTRY_OVERHEAD, RowOrder, Sorted, Sorter};
use super::sort::spill::{RunWriter, SpilledRun};
use super::vector::computed_columns::{column_of, with_results};
use super::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, RowBatch, next_filled};
use crate::error::Result;
use crate::eval::memory_bytes;
use crate::eval::sort_key::SortKey;
use crate::eval::window::{BlockColumns, PartitionColumns, PartitionResults, SetWindowFields};
use crate::query::batch::{Batch, MeasurementBlock, Selection};
use crate::query::planner::physical::{WindowInput, is_constant};

/// Stage name for memory errors.
const NAME: &str = "$setWindowFields";

/// Bytes counted for a value of a decoded column.
const DECODED_VALUE_BYTES: usize = 8;

/// Computes fields over windows.
pub struct WindowFields {
    input: Option<BoxOperator>,
    spec: Arc<SetWindowFields>,
    order: WindowInput,
    sorted: Option<Rows>,
    /// The first piece of the next partition.
    waiting: Option<(PartitionKey, Piece)>,
    /// The partition whose documents are being returned.
    given: Option<Given>,
}

/// A computed partition.
struct Given {
    results: PartitionResults,
    documents: Documents,
    at: usize,
    /// Count the memory of the functions and of the documents.
    _memory: [MemoryGauge; 2],
}

impl WindowFields {
    /// Computes `spec` over `input`, which arrives in `order`.
    pub fn new(input: BoxOperator, spec: Arc<SetWindowFields>, order: WindowInput) -> Self {
        Self {
            input: Some(input),
            spec,
            order,
            sorted: None,
            waiting: None,
            given: None,
        }
    }

    fn sort(&self, mut input: BoxOperator, cx: &ExecContext<'_>) -> Result<Rows> {
        let order = ByPartition(Arc::clone(&self.spec));
        let mut first = Vec::new();
        if self.order == WindowInput::Densified {
            if let Some(batch) = next_filled(&mut input, cx)? {
                first = batch.into_rows()?;
            }
            if !self.begins_before_null(&first, cx)? {
                return Ok(Rows::AsTheyCome(order, input, first.into()));
            }
        }
        if self.order == WindowInput::InOrder {
            return Ok(Rows::AsTheyCome(order, input, VecDeque::new()));
        }
        let mut sorter = Sorter::new(order, MemoryGauge::gather(NAME, cx));
        for row in first {
            sorter.add(row, cx)?;
        }
        while let Some(batch) = next_filled(&mut input, cx)? {
            for row in batch.into_rows()? {
                sorter.add(row, cx)?;
            }
        }
        sorter.finish(cx).map(Rows::Sorted)
    }

    /// True if the partition value of the first document is missing or sorts before null.
    ///
    /// `$densify` returns documents with a missing value before those with null, which belong to the same partition; documents of
    /// other partitions may lie between them. If its first document is not before null, there are none.
    fn begins_before_null(&self, first: &[Document], cx: &ExecContext<'_>) -> Result<bool> {
        let (Some(partition), Some(row)) = (self.spec.partition_by(), first.first()) else {
            return Ok(false);
        };
        let value = partition.evaluate(row.as_ref(), &cx.eval)?;
        Ok(compare(value.as_ref(), ValueRef::Null).is_lt())
    }

    /// Reads and computes the next partition; `None` if there is none.
    fn next_partition(&mut self, cx: &ExecContext<'_>) -> Result<Option<Given>> {
        let Some(sorted) = &mut self.sorted else {
            return Ok(None);
        };
        let Some((first, mut piece)) = self.waiting.take() else {
            return Ok(None);
        };
        let mut documents = PartitionDocuments::default();
        let mut columns = PartitionColumns::default();
        let mut taken = MemoryGauge::gather(NAME, cx);
        let mut shown = MemoryGauge::gather(NAME, cx);
        loop {
            match &piece {
                Piece::Row(row) => columns.add(&self.spec, row, &cx.eval)?,
                Piece::Block(block) => columns.add_columns(&self.spec, &block.columns()),
            }
            // Updated each time: decoding changes the size of columns.
            if taken.set(columns.memory_bytes()).is_err() {
                // Where both do not fit, spill the documents.
                documents.write_out(&mut shown, cx)?;
                taken.add(0)?;
            }
            documents.add(piece, &mut shown, cx)?;
            if columns.len() % ROWS_PER_BATCH == 0 {
                cx.operation.check_interrupt()?;
            }
            let Some((key, next)) = sorted.next(cx)? else {
                break;
            };
            if first.compare_partition(&key, cx).is_ne() {
                self.waiting = Some((key, next));
                break;
            }
            piece = next;
        }
        let results = self.spec.compute(columns, &cx.eval)?;
        Ok(Some(Given {
            results,
            documents: documents.finish()?,
            at: 0,
            _memory: [taken, shown],
        }))
    }
}

impl Operator for WindowFields {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(input) = self.input.take() {
            let mut sorted = self.sort(input, cx)?;
            self.waiting = sorted.next(cx)?;
            self.sorted = Some(sorted);
        }
        let mut rows = RowBatch::default();
        while !rows.is_full() {
            let Some(given) = &mut self.given else {
                self.given = self.next_partition(cx)?;
                if self.given.is_none() {
                    break;
                }
                continue;
            };
            match given.documents.next()? {
                Some(StoredPiece::Row(row)) => {
                    let results = &given.results;
                    rows.push(self.spec.with_fields(&row, given.at, results, &cx.eval)?);
                    given.at += 1;
                }
                Some(StoredPiece::Block(block)) if rows.len() == 0 => {
                    let count = block.selection.len();
                    let results = given.results.columns(given.at..given.at + count);
                    let paths = self.spec.outputs().iter().map(|o| &*o.path);
                    match with_results(&block, paths.zip(results))? {
                        Some(block) => {
                            given.at += count;
                            return Ok(Some(Batch::Block(block)));
                        }
                        None => given
                            .documents
                            .put_back(StoredPiece::Rows(block.to_rows()?)),
                    }
                }
                // Pending documents come first.
                Some(block) => {
                    given.documents.put_back(block);
                    break;
                }
                None => self.given = None,
            }
        }
        Ok(rows.into_batch())
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none() && self.waiting.is_none() && self.given.is_none()
    }
}

/// A part of the input.
enum Piece {
    Row(Document),
    Block(Box<Columns>),
}

/// A block whose columns suffice for the computation.
struct Columns {
    block: MeasurementBlock,
    rows: Vec<std::ops::Range<usize>>,
    times: Arc<ColumnBlock>,
    arguments: Vec<Option<Arc<ColumnBlock>>>,
}

impl Columns {
    /// Returns the block's partition and columns; `None` if it must be read row by row.
    fn of(
        spec: &SetWindowFields,
        block: &MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> Result<Option<(Value, Self)>> {
        let shape = &block.shape;
        let partition = spec.partition_by();
        if !spec.reads_columns(&shape.time_field)
            || !partition.is_none_or(|partition| is_constant(partition, shape))
        {
            return Ok(None);
        }
        let Some(times) = block.column(&shape.time_field)? else {
            return Ok(None);
        };
        let times = Arc::clone(times);
        let mut arguments = Vec::with_capacity(spec.outputs().len());
        for output in spec.outputs() {
            arguments.push(match output.function.argument() {
                None => None,
                Some(argument) => match column_of(argument, block, cx)? {
                    Some(column) => Some(column),
                    None => return Ok(None),
                },
            });
        }
        let partition = spec.partition_key(&block.constant_document(), &cx.eval)?;
        let columns = Self {
            block: block.clone(),
            rows: runs(&block.selection),
            times,
            arguments,
        };
        Ok(Some((partition, columns)))
    }

    fn columns(&self) -> BlockColumns<'_> {
        BlockColumns {
            rows: &self.rows,
            times: &self.times,
            arguments: &self.arguments,
        }
    }

    /// Returns the bytes held with the block.
    fn memory_bytes(&self) -> usize {
        let decoded = 1 + self.arguments.iter().flatten().count();
        let values = decoded * self.block.bucket.count() as usize;
        held_bytes(&self.block) + values * DECODED_VALUE_BYTES
    }
}

/// Returns the rows of a selection as runs.
fn runs(selection: &Selection) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    match selection {
        Selection::Range(rows) => runs.push(rows.start as usize..rows.end as usize),
        Selection::Rows(rows) => {
            for row in rows.iter().map(|row| *row as usize) {
                match runs.last_mut() {
                    Some(run) if run.end == row => run.end += 1,
                    _ => runs.push(row..row + 1),
                }
            }
        }
    }
    runs
}

/// The sorted input.
enum Rows {
    Sorted(Sorted<ByPartition>),
    AsTheyCome(ByPartition, BoxOperator, VecDeque<Document>),
}

impl Rows {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<(PartitionKey, Piece)>> {
        let (order, input, rows) = match self {
            Self::Sorted(sorted) => {
                let next = sorted.next(cx)?;
                return Ok(next.map(|(key, row)| (key, Piece::Row(row))));
            }
            Self::AsTheyCome(order, input, rows) => (order, input, rows),
        };
        if rows.is_empty() {
            match next_filled(input, cx)? {
                Some(Batch::Block(block)) => match Columns::of(&order.0, &block, cx)? {
                    Some((partition, columns)) => {
                        let key = PartitionKey {
                            partition,
                            key: None,
                        };
                        return Ok(Some((key, Piece::Block(Box::new(columns)))));
                    }
                    None => rows.extend(block.to_rows()?),
                },
                Some(Batch::Rows(more)) => rows.extend(more),
                None => {}
            }
        }
        let Some(row) = rows.pop_front() else {
            return Ok(None);
        };
        // Sorted already: the sort keys are not needed.
        let key = PartitionKey {
            partition: order.0.partition_key(&row, &cx.eval)?,
            key: None,
        };
        Ok(Some((key, Piece::Row(row))))
    }
}

/// The documents of a partition, on disk above the memory limit.
#[derive(Default)]
struct PartitionDocuments {
    documents: VecDeque<StoredPiece>,
    file: Option<RunWriter>,
}

/// Documents in the form in which they arrived.
enum StoredPiece {
    Row(Document),
    Rows(Vec<Document>),
    Block(MeasurementBlock),
}

impl PartitionDocuments {
    fn add(&mut self, piece: Piece, memory: &mut MemoryGauge, cx: &ExecContext<'_>) -> Result<()> {
        if let Some(file) = &mut self.file {
            return match piece {
                Piece::Row(row) => file.push(&row),
                Piece::Block(columns) => {
                    let mut rows = columns.block.to_rows()?.into_iter();
                    rows.try_for_each(|row| file.push(&row))
                }
            };
        }
        let (bytes, shown) = match piece {
            Piece::Row(row) => (row.as_bytes().len() + ENTRY_OVERHEAD, StoredPiece::Row(row)),
            Piece::Block(columns) => (columns.memory_bytes(), StoredPiece::Block(columns.block)),
        };
        let counted = memory.add(bytes);
        self.documents.push_back(shown);
        match counted {
            Err(_) => self.write_out(memory, cx),
            Ok(()) => Ok(()),
        }
    }

    /// Moves all documents to disk, now and from here on; the memory error if spilling is not allowed.
    fn write_out(&mut self, memory: &mut MemoryGauge, cx: &ExecContext<'_>) -> Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let Some(folder) = &cx.settings.spill else {
            return memory.add(0);
        };
        let mut file = RunWriter::new(folder)?;
        let mut rows = Documents::InMemory(std::mem::take(&mut self.documents));
        while let Some(row) = rows.next_row()? {
            file.push(&row)?;
        }
        self.file = Some(file);
        memory.clear();
        Ok(())
    }

    fn finish(self) -> Result<Documents> {
        Ok(match self.file {
            Some(file) => Documents::OnDisk(file.finish()?),
            None => Documents::InMemory(self.documents),
        })
    }
}

enum Documents {
    InMemory(VecDeque<StoredPiece>),
    OnDisk(SpilledRun),
}

impl Documents {
    /// Returns the next row or block.
    fn next(&mut self) -> Result<Option<StoredPiece>> {
        loop {
            let shown = match self {
                Self::InMemory(shown) => shown,
                Self::OnDisk(run) => return Ok(run.next()?.map(StoredPiece::Row)),
            };
            match shown.pop_front() {
                Some(StoredPiece::Rows(rows)) => {
                    for row in rows.into_iter().rev() {
                        shown.push_front(StoredPiece::Row(row));
                    }
                }
                other => return Ok(other),
            }
        }
    }

    /// Returns the next row.
    fn next_row(&mut self) -> Result<Option<Document>> {
        loop {
            match self.next()? {
                Some(StoredPiece::Row(row)) => return Ok(Some(row)),
                Some(StoredPiece::Block(block)) => {
                    self.put_back(StoredPiece::Rows(block.to_rows()?))
                }
                Some(rows) => self.put_back(rows),
                None => return Ok(None),
            }
        }
    }

    /// Puts `next` back in front.
    fn put_back(&mut self, next: StoredPiece) {
        if let Self::InMemory(shown) = self {
            shown.push_front(next);
        }
    }
}

/// Order by partition, then by `sortBy`.
struct ByPartition(Arc<SetWindowFields>);

struct PartitionKey {
    partition: Value,
    key: Option<SortKey>,
}

impl PartitionKey {
    fn compare_partition(&self, other: &Self, cx: &ExecContext<'_>) -> Ordering {
        let (a, b) = (self.partition.as_ref(), other.partition.as_ref());
        compare_with(a, b, cx.eval.collator)
    }
}

impl RowOrder for ByPartition {
    type Key = PartitionKey;

    fn key(&self, row: &Document, cx: &ExecContext<'_>) -> Result<PartitionKey> {
        let sort_by = self.0.sort_by();
        Ok(PartitionKey {
            partition: self.0.partition_key(row, &cx.eval)?,
            key: sort_by
                .map(|by| by.extract(row.as_ref(), &cx.eval))
                .transpose()?,
        })
    }

    fn compare(&self, a: &PartitionKey, b: &PartitionKey, cx: &ExecContext<'_>) -> Ordering {
        a.compare_partition(b, cx)
            .then_with(|| match (self.0.sort_by(), &a.key, &b.key) {
                (Some(by), Some(a), Some(b)) => by.compare(a, b),
                _ => Ordering::Equal,
            })
    }

    fn key_bytes(&self, key: &PartitionKey) -> usize {
        let sort_key = key.key.as_ref().map_or(0, SortKey::memory_bytes);
        size_of::<PartitionKey>() + memory_bytes(&key.partition) + sort_key
    }
}

#[cfg(test)]
mod tests {
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{Document, Value, array, doc};

    fn run(spec: Document, documents: Vec<Document>) -> Vec<Document> {
        run_stages(array![doc! {"$setWindowFields": spec}], documents).unwrap()
    }

    #[test]
    fn a_running_sum_starts_anew_in_each_partition() {
        let documents = [(2, "b", 10), (1, "b", 1), (3, "a", 5), (1, "a", 7)];
        let documents = documents
            .map(|(t, p, v)| doc! {"t": t, "p": p, "v": v})
            .to_vec();
        let window = doc! {"documents": array!["unbounded", "current"]};
        let found = run(
            doc! {
                "partitionBy": "$p",
                "sortBy": doc! {"t": 1},
                "output": doc! {"sum": doc! {"$sum": "$v", "window": window}},
            },
            documents,
        );
        let shown: Vec<_> = found
            .iter()
            .map(|d| {
                let number = |name: &str| d.get(name).as_exact_i64().unwrap();
                (d.get("p").as_str().unwrap(), number("t"), number("sum"))
            })
            .collect();
        assert_eq!(
            shown,
            [("a", 1, 7), ("a", 3, 12), ("b", 1, 1), ("b", 2, 11)]
        );
    }

    #[test]
    fn neighbours_are_shifted_and_ranked() {
        let documents = (0..5).rev().map(|t| doc! {"t": t, "v": t * t}).collect();
        let shift = doc! {"$shift": doc! {"output": "$v", "by": 1, "default": -1}};
        let rank = doc! {"$documentNumber": doc! {}};
        let output = doc! {"next": shift, "n": rank};
        let found = run(doc! {"sortBy": doc! {"t": 1}, "output": output}, documents);
        let next: Vec<_> = found
            .iter()
            .map(|d| d.get("next").as_exact_i64().unwrap())
            .collect();
        assert_eq!(next, [1, 4, 9, 16, -1]);
        assert_eq!(found[4].get("n").as_exact_i64(), Some(5));
    }

    #[test]
    fn null_and_missing_partitions_are_one_and_arrays_none() {
        let documents = vec![doc! {"p": Value::Null}, doc! {}, doc! {"p": 1}];
        let output = doc! {"n": doc! {"$count": doc! {}}};
        let spec = doc! {"partitionBy": "$p", "output": output};
        let counts: Vec<_> = run(spec.clone(), documents)
            .iter()
            .map(|d| d.get("n").as_exact_i64().unwrap())
            .collect();
        assert_eq!(counts, [2, 2, 1]);
        let stage = array![doc! {"$setWindowFields": spec}];
        let error = run_stages(stage, vec![doc! {"p": array![1]}]).unwrap_err();
        assert_eq!(error.code.0, 14);
    }
}
