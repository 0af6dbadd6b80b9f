//! `$addFields` and `$project` over a block: computed fields become columns of the block.
//!
//! ```text
//! {$set: {host: "$m.host"}}          reads only the metadata: one value for the whole block
//! {$set: {sum: {$add: ["$a", 1]}}}   a kernel, if all of it has kernels
//! {$set: {name: {$concat: […]}}}     evaluated on rows that hold only the fields it reads
//! bucket     t m a b c …             unchanged, its columns undecoded
//! ```
//!
//! A recomputed field keeps its position among the others only in measurements that had it before. A block in which only
//! some measurements have the field is left to the row path, as is any change of the time or the metadata.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::column::values_at_path;
use nilometer_bson::{ObjectId, Value, ValueRef};

use super::arithmetic::{computed_for_all, has_kernels};
use super::distinct_rows::DistinctRows;
use super::filter::narrowed;
use crate::error::Result;
use crate::eval::accumulator::ColumnTotal;
use crate::eval::{Dependencies, Expression};
use crate::query::batch::{FieldSet, MeasurementBlock, MeasurementShape, Selection};
use crate::query::exec::ExecContext;
use crate::query::pipeline::{ProjectStage, is_field, with_names};
use crate::query::planner::physical::is_constant;
use crate::query::source::{Bucket, BucketHeader, place_of};

/// Applies the stage to a block; `None` if its rows must be changed one by one.
pub(crate) fn over_block(
    stage: &ProjectStage,
    block: &MeasurementBlock,
    cx: &ExecContext<'_>,
) -> Result<Option<MeasurementBlock>> {
    let shape = &block.shape;
    let Some(fields) = stage.shown_behind(shape) else {
        return Ok(None);
    };
    let mut columns = Vec::new();
    for (name, expression) in stage.computed() {
        let name: Arc<str> = name.into();
        if !may_take_place(stage.keeps_places(), block, &name)? {
            return Ok(None);
        }
        let Some(column) = column_of(expression, block, cx)? else {
            return Ok(None);
        };
        columns.push((name, column));
    }
    Ok(Some(with_columns(block, columns, fields)))
}

/// Adds columns to the block, which then shows `fields`.
fn with_columns(
    block: &MeasurementBlock,
    columns: Vec<(Arc<str>, Arc<ColumnBlock>)>,
    fields: FieldSet,
) -> MeasurementBlock {
    MeasurementBlock {
        bucket: Arc::new(ComputedBucket::new(Arc::clone(&block.bucket), columns)),
        selection: block.selection.clone(),
        shape: Arc::new(MeasurementShape {
            fields,
            ..(*block.shape).clone()
        }),
    }
}

/// Adds fields computed elsewhere for the selected rows, each a path and its values; `None` if the
/// rows must be changed one by one.
pub(crate) fn with_results<'p>(
    block: &MeasurementBlock,
    results: impl Iterator<Item = (&'p str, ColumnBlock)>,
) -> Result<Option<MeasurementBlock>> {
    let mut columns = Vec::new();
    for (path, values) in results {
        if !is_field(path, &block.shape) || !may_take_place(true, block, path)? {
            return Ok(None);
        }
        columns.push((Arc::from(path), Arc::new(in_places(block, values))));
    }
    let names = columns.iter().map(|(name, _): &(Arc<str>, _)| &**name);
    let fields = with_names(block.shape.fields.clone(), names);
    Ok(Some(with_columns(block, columns, fields)))
}

/// Expands values of the selected rows, in the order of the selection, to a column of the whole bucket.
fn in_places(block: &MeasurementBlock, values: ColumnBlock) -> ColumnBlock {
    match block.selection {
        Selection::Range(_) if block.is_whole() => values,
        _ => values.select(&in_rows(block, 0..)),
    }
}

/// Returns numbers of the selected rows by row; a number beyond all others for those outside the selection.
fn in_rows(block: &MeasurementBlock, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut by_row = vec![u32::MAX; block.bucket.count() as usize];
    for (number, row) in numbers.into_iter().zip(block.selection.to_vec()) {
        by_row[row as usize] = number;
    }
    by_row
}

/// True if a computed field has the same position in every measurement as its column among the columns: that of
/// a column all measurements have, or the last.
fn may_take_place(keeps_places: bool, block: &MeasurementBlock, name: &str) -> Result<bool> {
    if !block.bucket.columns().iter().any(|known| **known == *name) {
        return Ok(true);
    }
    if !keeps_places || !block.shape.fields.contains(name) {
        return Ok(false);
    }
    let column = block.column(name)?;
    Ok(column.is_some_and(|column| column.is_all_present()))
}

/// Returns an expression's value in each measurement; `None` if it would read whole documents.
pub(crate) fn column_of(
    expression: &Expression,
    block: &MeasurementBlock,
    cx: &ExecContext<'_>,
) -> Result<Option<Arc<ColumnBlock>>> {
    let count = block.bucket.count() as usize;
    if is_constant(expression, &block.shape) {
        let value = expression.evaluate(block.constant_document().as_ref(), &cx.eval)?;
        return Ok(Some(Arc::new(match value {
            Value::Missing => ColumnBlock::missing(count),
            value => ColumnBlock::constant(count, value),
        })));
    }
    if let Some(path) = expression.as_field_path().filter(|path| path.len() == 1) {
        let column = block.column(path.as_str())?.map(Arc::clone);
        return Ok(Some(
            column.unwrap_or_else(|| Arc::new(ColumnBlock::missing(count))),
        ));
    }
    let path = expression.as_field_path();
    if let Some(path) = path
        && let Some(column) = block.column_at_path(path.as_str())?
    {
        return Ok(Some(column));
    }
    let mut reads = Dependencies::default();
    expression.dependencies(&mut reads);
    if reads.whole || reads.random {
        return Ok(None);
    }
    if path.is_none()
        && has_kernels(expression)
        && let Some(column) = computed_for_all(expression, block, cx)
    {
        return Ok(Some(Arc::new(column)));
    }
    let fields: BTreeSet<Arc<str>> = reads
        .top_level_fields()
        .into_iter()
        .map(Arc::from)
        .collect();
    let mut columns = Vec::new();
    for name in &fields {
        columns.extend(block.column(name)?.map(|column| &**column));
    }
    let narrow = narrowed(block, fields);
    let column = match DistinctRows::of(columns.into_iter(), &block.selection) {
        Some(rows) => {
            let first = Selection::Rows(rows.first);
            let results =
                ColumnBlock::from_values(&evaluate_rows(expression, &narrow, &first, cx)?);
            results.select(&in_rows(block, rows.numbers))
        }
        None => {
            let results = evaluate_rows(expression, &narrow, &block.selection, cx)?;
            in_places(block, ColumnBlock::from_values(&results))
        }
    };
    Ok(Some(Arc::new(column)))
}

/// Evaluates an expression on the documents of some rows.
fn evaluate_rows(
    expression: &Expression,
    block: &MeasurementBlock,
    rows: &Selection,
    cx: &ExecContext<'_>,
) -> Result<Vec<Value>> {
    let documents = block.rows_of(rows)?;
    let results = documents
        .iter()
        .map(|document| expression.evaluate(document.as_ref(), &cx.eval));
    results.collect()
}

/// A bucket with computed columns.
struct ComputedBucket {
    bucket: Arc<dyn Bucket>,
    /// The bucket's columns, then the new ones.
    names: Vec<Arc<str>>,
    /// The computed column of each name; `None` for the bucket's own.
    computed: Vec<Option<Arc<ColumnBlock>>>,
}

impl ComputedBucket {
    fn new(bucket: Arc<dyn Bucket>, columns: Vec<(Arc<str>, Arc<ColumnBlock>)>) -> Self {
        let mut names = bucket.columns().to_vec();
        let mut computed = vec![None; names.len()];
        for (name, column) in columns {
            match place_of(&names, &name) {
                Some(at) => computed[at] = Some(column),
                None => {
                    names.push(name);
                    computed.push(Some(column));
                }
            }
        }
        Self {
            bucket,
            names,
            computed,
        }
    }

    fn computed_at(&self, at: usize) -> Option<&Arc<ColumnBlock>> {
        self.computed.get(at).and_then(Option::as_ref)
    }

    fn computed(&self, name: &str) -> Option<&Arc<ColumnBlock>> {
        place_of(&self.names, name).and_then(|at| self.computed_at(at))
    }

    /// Returns the bound of a computed column: its value if constant, else null (unknown).
    fn bound(column: &ColumnBlock) -> ValueRef<'_> {
        match column.as_constant().filter(|_| column.is_all_present()) {
            Some(value) => value.as_ref(),
            None if column.is_all_missing() => ValueRef::Missing,
            None => ValueRef::Null,
        }
    }
}

impl BucketHeader for ComputedBucket {
    fn id(&self) -> ObjectId {
        self.bucket.id()
    }

    fn meta(&self) -> ValueRef<'_> {
        self.bucket.meta()
    }

    fn meta_id(&self) -> Option<NonZeroU64> {
        self.bucket.meta_id()
    }

    fn min(&self, field: &str) -> ValueRef<'_> {
        match self.computed(field) {
            Some(column) => Self::bound(column),
            None => self.bucket.min(field),
        }
    }

    fn max(&self, field: &str) -> ValueRef<'_> {
        match self.computed(field) {
            Some(column) => Self::bound(column),
            None => self.bucket.max(field),
        }
    }

    fn count(&self) -> u32 {
        self.bucket.count()
    }
}

impl Bucket for ComputedBucket {
    fn version(&self) -> i32 {
        self.bucket.version()
    }

    fn is_sorted(&self) -> bool {
        self.bucket.is_sorted()
    }

    fn columns(&self) -> &[Arc<str>] {
        &self.names
    }

    fn place_shown(&self, nth: usize) -> Option<usize> {
        let own = self.bucket.place_shown(nth);
        own.or(Some(nth).filter(|nth| *nth < self.names.len()))
    }

    fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        match self.computed_at(at) {
            Some(column) => Ok(Some(column)),
            None => self.bucket.column_at(at),
        }
    }

    fn path_at(&self, at: usize, below: &str) -> Result<Option<Arc<ColumnBlock>>> {
        match self.computed_at(at) {
            Some(column) => Ok(values_at_path(column, below).map(Arc::new)),
            None => self.bucket.path_at(at, below),
        }
    }

    fn bounds_at(&self, at: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        match self.computed_at(at) {
            Some(column) => (Self::bound(column), Self::bound(column)),
            None => self.bucket.bounds_at(at),
        }
    }

    fn has_column_at(&self, at: usize) -> bool {
        self.computed_at(at).is_some() || self.bucket.has_column_at(at)
    }

    fn total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        match self.computed_at(at) {
            Some(_) => Ok(None),
            None => self.bucket.total_at(at),
        }
    }

    fn has_total_at(&self, at: usize) -> bool {
        self.computed_at(at).is_none() && self.bucket.has_total_at(at)
    }
}
