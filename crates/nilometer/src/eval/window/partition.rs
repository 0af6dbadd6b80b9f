//! What the functions of a stage read of the documents of one partition.
//!
//! Taken document by document, so that the documents themselves may be elsewhere (on disk, say) while the
//! functions work:
//!
//! ```text
//! add(document) …      arguments, sort values, ties      one column each
//! compute              one result for each document and output
//! with_fields          document + its results
//! ```

use nilometer_bson::path::FieldPath;
use nilometer_bson::{Document, Value};

use super::{SetWindowFields, WindowFunction};
use crate::error::Result;
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::eval::{EvalContext, memory_bytes};

/// The columns of a partition.
#[derive(Debug, Default)]
pub struct PartitionColumns {
    pub(super) length: usize,
    /// The value of the single sort field for every document; empty where nothing reads it.
    pub(super) sort_values: Vec<Value>,
    /// For every document, whether its sort key equals that of the one before; empty where nothing
    /// reads it.
    pub(super) ties: Vec<bool>,
    last_key: Option<SortKey>,
    /// For every output the function's argument for every document; empty where there is none.
    pub(super) arguments: Vec<Vec<Value>>,
    /// For every output the key of its own order for every document; empty where there is none.
    pub(super) keys: Vec<Vec<SortKey>>,
    bytes: usize,
}

/// What has been computed for a partition: for every output a value for every document.
#[derive(Debug)]
pub struct PartitionResults(pub(super) Vec<Vec<Value>>);

impl PartitionColumns {
    /// Takes the next document of the partition.
    pub fn add(
        &mut self,
        spec: &SetWindowFields,
        doc: &Document,
        ctx: &EvalContext<'_>,
    ) -> Result<()> {
        let doc = doc.as_ref();
        if let Some(path) = spec.sort_value_path() {
            let value = path.get(doc).into_value();
            self.bytes += memory_bytes(&value) + size_of::<Value>();
            self.sort_values.push(value);
        }
        if let Some(sort) = spec.sort_by().filter(|_| spec.has_ranks()) {
            let key = sort.extract(doc, ctx)?;
            let before = self.last_key.as_ref();
            let is_tied = before.is_some_and(|before| sort.compare(before, &key).is_eq());
            self.ties.push(is_tied);
            self.last_key = Some(key);
            self.bytes += size_of::<bool>();
        }
        self.arguments.resize_with(spec.outputs().len(), Vec::new);
        self.keys.resize_with(spec.outputs().len(), Vec::new);
        let columns = self.arguments.iter_mut().zip(&mut self.keys);
        for (output, (arguments, keys)) in spec.outputs().iter().zip(columns) {
            if let Some(argument) = output.function.argument() {
                let value = argument.evaluate(doc, ctx)?;
                self.bytes += memory_bytes(&value) + size_of::<Value>();
                arguments.push(value);
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

    /// Documents taken.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if none was.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes held, for the memory limit of the stage.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

impl SetWindowFields {
    /// The field whose value is the place of a document on the axis of ranges and slopes, if any output
    /// reads it.
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

    /// A document of the partition with the output fields; it is the one with the number `at`.
    pub fn with_fields(
        &self,
        doc: &Document,
        at: usize,
        results: &PartitionResults,
        ctx: &EvalContext<'_>,
    ) -> Result<Document> {
        let of_column = |column: &Vec<Value>| column.get(at).cloned().unwrap_or(Value::Null);
        let row: Vec<Value> = results.0.iter().map(of_column).collect();
        self.writer.apply(doc.as_ref(), &row, ctx)
    }
}
