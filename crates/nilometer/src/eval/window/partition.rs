//! Inputs of the functions of a stage for the documents of one partition.
//!
//! Documents are added one by one, so that they may be stored elsewhere (on disk) while the
//! functions are computed, or column by column if they are in buckets:
//!
//! ```text
//! add(document) …      arguments, sort values, ties      one column each
//! add_columns(…) …     the same, from the columns of a bucket
//! compute              one column of results for each output
//! with_fields          document + its results
//! ```

use std::ops::Range;
use std::sync::Arc;

use nilometer_bson::block::{BlockData, ColumnBlock, ColumnBlockBuilder};
use nilometer_bson::order::compare;
use nilometer_bson::path::FieldPath;
use nilometer_bson::{Document, Value};

use super::{SetWindowFields, WindowFunction};
use crate::error::Result;
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::eval::{EvalContext, memory_bytes, value_bytes};

/// The columns of an incomplete partition.
#[derive(Debug, Default)]
pub struct PartitionColumns {
    length: usize,
    sort_values: ColumnBlockBuilder,
    ties: Vec<bool>,
    last_key: Option<SortKey>,
    /// For every output the function's argument for every document; empty if it has none.
    arguments: Vec<ColumnBlockBuilder>,
    /// For every output the sort key of its own order for every document; empty if it has none.
    keys: Vec<Vec<SortKey>>,
    /// Heap bytes of values and keys.
    bytes: usize,
}

/// Inputs shared by all outputs of a partition.
pub(super) struct Partition {
    pub(super) length: usize,
    /// The value of the single sort field for every document; empty if not needed.
    pub(super) sort_values: ColumnBlock,
    /// For every document, whether its sort key equals that of the previous one; empty if not
    /// needed.
    pub(super) ties: Vec<bool>,
}

/// Inputs of one output of a partition.
pub(super) struct FunctionInput {
    /// For every document; empty if there is none.
    pub(super) values: ColumnBlock,
    /// For every document the sort key of `$top` and `$bottom`.
    pub(super) keys: Vec<SortKey>,
}

impl Default for FunctionInput {
    fn default() -> Self {
        Self {
            values: ColumnBlock::missing(0),
            keys: Vec::new(),
        }
    }
}

/// Documents as columns, in the order of the partition: row `i` of each is document `i`.
#[derive(Debug)]
pub struct BlockColumns<'a> {
    /// The rows to add, as ranges.
    pub rows: &'a [Range<usize>],
    /// The single sort field: dates without gaps.
    pub times: &'a ColumnBlock,
    /// The argument of every output, if it has one.
    pub arguments: &'a [Option<Arc<ColumnBlock>>],
}

/// Results of a partition: for every output a value for every document.
#[derive(Debug)]
pub struct PartitionResults(pub(super) Vec<ColumnBlock>);

impl PartitionColumns {
    /// Adds the next document of the partition.
    pub fn add(
        &mut self,
        spec: &SetWindowFields,
        doc: &Document,
        ctx: &EvalContext<'_>,
    ) -> Result<()> {
        let doc = doc.as_ref();
        if let Some(path) = spec.sort_value_path() {
            let value = path.get(doc).into_value();
            self.bytes += memory_bytes(&value);
            self.sort_values.push(value.as_ref());
        }
        if let Some(sort) = spec.sort_by().filter(|_| spec.has_ranks()) {
            let key = sort.extract(doc, ctx)?;
            self.record_tie(sort, key);
        }
        self.make_room(spec);
        let columns = self.arguments.iter_mut().zip(&mut self.keys);
        for (output, (arguments, keys)) in spec.outputs().iter().zip(columns) {
            if let Some(argument) = output.function.argument() {
                let value = argument.evaluate(doc, ctx)?;
                self.bytes += memory_bytes(&value);
                arguments.push(value.as_ref());
            }
            if let WindowFunction::Accumulator(accumulator) = &output.function
                && let Some(sort) = accumulator.sort()
            {
                let key = sort.extract(doc, ctx)?;
                self.bytes += key.memory_bytes();
                keys.push(key);
            }
        }
        self.length += 1;
        Ok(())
    }

    /// Adds the next documents of the partition as columns. Requires
    /// [`SetWindowFields::reads_columns`].
    pub fn add_columns(&mut self, spec: &SetWindowFields, block: &BlockColumns<'_>) {
        self.make_room(spec);
        for rows in block.rows {
            if spec.sort_value_path().is_some() {
                self.sort_values.append(block.times, rows.clone());
            }
            if let Some(sort) = spec.sort_by().filter(|_| spec.has_ranks()) {
                self.add_ties(sort, block.times, rows);
            }
            for (taken, argument) in self.arguments.iter_mut().zip(block.arguments) {
                let Some(argument) = argument else {
                    continue;
                };
                if !has_inline_values(argument) {
                    let values = rows.clone().map(|at| argument.value(at));
                    self.bytes += values.map(value_bytes).sum::<usize>();
                }
                taken.append(argument, rows.clone());
            }
            self.length += rows.len();
        }
    }

    fn make_room(&mut self, spec: &SetWindowFields) {
        let outputs = spec.outputs().len();
        self.arguments.resize_with(outputs, Default::default);
        self.keys.resize_with(outputs, Vec::new);
    }

    fn add_ties(&mut self, sort: &SortPattern, times: &ColumnBlock, rows: &Range<usize>) {
        let key_at = |at: usize| SortKey::from_values([times.to_value(at)]);
        let Some(last) = rows.clone().next_back() else {
            return;
        };
        self.record_tie(sort, key_at(rows.start));
        for at in rows.clone().skip(1) {
            let is_tied = compare(times.value(at), times.value(at - 1)).is_eq();
            self.ties.push(is_tied);
        }
        self.last_key = Some(key_at(last));
    }

    /// Records whether the next document has the same key as the previous one.
    fn record_tie(&mut self, sort: &SortPattern, key: SortKey) {
        let before = self.last_key.as_ref();
        let is_tied = before.is_some_and(|before| sort.compare(before, &key).is_eq());
        self.ties.push(is_tied);
        self.last_key = Some(key);
    }

    /// Returns the inputs, once the partition is complete.
    pub(super) fn finish(self) -> (Partition, Vec<FunctionInput>) {
        let partition = Partition {
            length: self.length,
            sort_values: self.sort_values.finish(),
            ties: self.ties,
        };
        let columns = self.arguments.into_iter().zip(self.keys);
        let arguments = columns.map(|(values, keys)| FunctionInput {
            values: values.finish(),
            keys,
        });
        (partition, arguments.collect())
    }

    /// Returns the number of documents added.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if no document was added.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the bytes held, for the memory limit of the stage.
    pub fn memory_bytes(&self) -> usize {
        let arguments = self.arguments.iter();
        let places = arguments
            .map(ColumnBlockBuilder::place_bytes)
            .sum::<usize>();
        self.bytes + places + self.sort_values.place_bytes() + self.ties.len()
    }
}

/// True if no value of a column has heap data.
fn has_inline_values(column: &ColumnBlock) -> bool {
    let is_short = |value: &Value| memory_bytes(value) == 0;
    match column.data() {
        BlockData::Constant(value) => is_short(value),
        BlockData::Dictionary { values, .. } => {
            let values = values.as_values();
            values.is_some_and(|values| values.iter().all(is_short))
        }
        BlockData::Mixed(values) => values.iter().all(is_short),
        _ => true,
    }
}

impl SetWindowFields {
    /// Returns the field whose value positions a document on the axis of ranges and slopes, if any
    /// output reads it.
    fn sort_value_path(&self) -> Option<&FieldPath> {
        let (path, _) = self.sort_by().and_then(SortPattern::single_field)?;
        let reads = self.outputs().iter().any(|output| {
            output.bounds.needs_sort_values()
                || matches!(
                    output.function,
                    WindowFunction::Derivative { .. }
                        | WindowFunction::Integral { .. }
                        | WindowFunction::LinearFill(_)
                )
        });
        reads.then_some(path)
    }

    fn has_ranks(&self) -> bool {
        self.outputs().iter().any(|output| {
            matches!(
                output.function,
                WindowFunction::Rank | WindowFunction::DenseRank
            )
        })
    }

    /// True if documents are sorted by the time alone and the functions read only the time and
    /// their arguments.
    pub fn reads_columns(&self, time_field: &str) -> bool {
        let sort_by = self.sort_by().and_then(SortPattern::single_field);
        sort_by.is_some_and(|(path, _)| path.as_str() == time_field)
            && self.outputs().iter().all(|output| match &output.function {
                WindowFunction::Accumulator(spec) => spec.sort().is_none(),
                _ => true,
            })
    }

    /// Returns document `at` of the partition with the output fields.
    pub fn with_fields(
        &self,
        doc: &Document,
        at: usize,
        results: &PartitionResults,
        ctx: &EvalContext<'_>,
    ) -> Result<Document> {
        let of_column = |column: &ColumnBlock| match at < column.len() {
            true => column.to_value(at),
            false => Value::Null,
        };
        let row: Vec<Value> = results.0.iter().map(of_column).collect();
        self.writer.apply(doc.as_ref(), &row, ctx)
    }
}

impl PartitionResults {
    /// Returns the results of the documents with these numbers, one column for each output.
    pub fn columns(&self, numbers: Range<usize>) -> impl Iterator<Item = ColumnBlock> {
        self.0.iter().map(move |column| match column.data() {
            // A null at the start of the partition makes the column mixed, but not each part of it.
            BlockData::Mixed(_) => {
                let mut part = ColumnBlockBuilder::new();
                part.append(column, numbers.clone());
                part.finish()
            }
            _ => column.slice(numbers.clone()),
        })
    }
}
