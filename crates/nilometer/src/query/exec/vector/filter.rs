//! Filters a block: from a selection and a filter to a smaller selection.
//!
//! ```text
//! $and                          each arm on the result of the preceding one
//! fields constant in a bucket   evaluated once for all buckets with equal values ([`BucketFilter`])
//! $or                           each arm on the rows no earlier arm selected
//! metadata only                 evaluated once for all rows
//! time comparison               two binary searches when the bucket is sorted
//! typed comparison              a kernel over the column ([`super::compare`])
//! $expr                         kernels over the columns it reads ([`super::arithmetic`]), where these suffice
//! test of one field             once per distinct value of the column if these are few, else once per row
//! anything else                 rows with only the fields the filter reads
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::{Value, ValueRef};

use super::arithmetic::select_computed;
use super::compare::{select_compare, sorted_range};
use crate::error::Result;
use crate::eval::matcher::{CompareOp, Comparison, MatchExpression, MatchPath};
use crate::query::batch::{FieldSet, MeasurementBlock, MeasurementShape, Selection};
use crate::query::exec::ExecContext;
use crate::query::source::ConstantAnswer;

/// Values of an `$in` that are each compared with a whole column, at most; more are searched in for each row.
const IN_KERNELS_MAX: usize = 16;

/// A filter applied to many buckets, on measurements that show all fields.
pub(crate) struct BucketFilter {
    arms: Vec<Arm>,
}

/// One conjunct of the filter.
struct Arm {
    test: MatchExpression,
    /// The fields it reads, if they can all be constant in a bucket.
    fields: Option<Vec<Arc<str>>>,
    answer: ConstantAnswer,
}

impl Arm {
    fn new(test: MatchExpression, shape: &MeasurementShape) -> Self {
        let reads = test.dependencies();
        let differs =
            |field: &str| *field == *shape.time_field || shape.meta_field.as_deref() == Some(field);
        let fields = reads.top_level_fields();
        let may = !reads.whole
            && !reads.random
            && !fields.is_empty()
            && !fields.iter().any(|field| differs(field));
        let fields = may.then(|| fields.into_iter().map(Arc::from).collect());
        Self {
            test,
            fields,
            answer: ConstantAnswer::default(),
        }
    }

    /// Returns its result for all measurements; `None` if it reads fields that are not constant in the bucket.
    fn answer(&self, block: &MeasurementBlock, cx: &ExecContext<'_>) -> Result<Option<bool>> {
        let Some(fields) = &self.fields else {
            return Ok(None);
        };
        let Some(number) = block.bucket.constants_id()? else {
            return Ok(None);
        };
        self.answer.of(number, || {
            let constants = block.bucket.constants()?;
            let is_constant = |field: &Arc<str>| !constants.get(field).is_missing();
            match fields.iter().all(is_constant) {
                true => self.test.matches(constants.as_ref(), &cx.eval).map(Some),
                false => Ok(None),
            }
        })
    }
}

impl BucketFilter {
    /// Creates the filter for measurements of shape `shape`, with all their fields.
    pub(crate) fn new(filter: &MatchExpression, shape: &MeasurementShape) -> Self {
        let arms = match filter {
            MatchExpression::And(arms) => arms.as_slice(),
            single => std::slice::from_ref(single),
        };
        let arms = arms.iter().map(|arm| Arm::new(arm.clone(), shape));
        Self {
            arms: arms.collect(),
        }
    }

    /// Returns the rows of the block's selection that match.
    pub(crate) fn select(
        &self,
        block: &MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> Result<Selection> {
        let mut left = block.selection.clone();
        for arm in &self.arms {
            left = match arm.answer(block, cx)? {
                Some(true) => continue,
                Some(false) => return Ok(Selection::none()),
                None => select_within(&arm.test, block, &left, cx)?,
            };
            if left.is_empty() {
                break;
            }
        }
        Ok(left)
    }
}

/// Returns the rows of the block's selection that match.
pub(crate) fn select(
    filter: &MatchExpression,
    block: &MeasurementBlock,
    cx: &ExecContext<'_>,
) -> Result<Selection> {
    select_within(filter, block, &block.selection, cx)
}

fn select_within(
    filter: &MatchExpression,
    block: &MeasurementBlock,
    selection: &Selection,
    cx: &ExecContext<'_>,
) -> Result<Selection> {
    if selection.is_empty() {
        return Ok(Selection::none());
    }
    match filter {
        MatchExpression::AlwaysTrue => Ok(selection.clone()),
        MatchExpression::AlwaysFalse => Ok(Selection::none()),
        MatchExpression::And(arms) => {
            let mut left = selection.clone();
            for arm in arms {
                left = select_within(arm, block, &left, cx)?;
            }
            Ok(left)
        }
        MatchExpression::Or(arms) => {
            let mut left = selection.clone();
            for arm in arms {
                let taken = select_within(arm, block, &left, cx)?;
                left = without(&left, &taken);
            }
            Ok(without(selection, &left))
        }
        MatchExpression::Nor(arms) => {
            let mut left = selection.clone();
            for arm in arms {
                let taken = select_within(arm, block, &left, cx)?;
                left = without(&left, &taken);
            }
            Ok(left)
        }
        MatchExpression::Not(arm) => {
            let taken = select_within(arm, block, selection, cx)?;
            Ok(without(selection, &taken))
        }
        leaf => select_leaf(leaf, block, selection, cx),
    }
}

/// Returns the rows of `all` that are not in its subset `taken`.
pub(super) fn without(all: &Selection, taken: &Selection) -> Selection {
    if taken.is_empty() {
        return all.clone();
    }
    if taken.len() == all.len() {
        return Selection::none();
    }
    let taken = taken.to_vec();
    let mut taken = taken.iter().peekable();
    all.filter(|row| taken.next_if(|next| **next == row).is_none())
}

fn select_leaf(
    leaf: &MatchExpression,
    block: &MeasurementBlock,
    selection: &Selection,
    cx: &ExecContext<'_>,
) -> Result<Selection> {
    if reads_only_meta(leaf, block) {
        let document = block.constant_document();
        return Ok(if leaf.matches(document.as_ref(), &cx.eval)? {
            selection.clone()
        } else {
            Selection::none()
        });
    }
    if let MatchExpression::Expr(test) = leaf
        && let Some(selected) = select_computed(&test.expression, block, selection, cx)
    {
        return Ok(selected);
    }
    if let MatchExpression::Compare(comparison) = leaf
        && let Some(verdict) = verdict_of_bounds(comparison, block)
    {
        return Ok(match verdict {
            true => selection.clone(),
            false => Selection::none(),
        });
    }
    if let Some(path) = leaf.leaf_path()
        && !path.is_itself()
        && !path.as_str().contains('.')
        && block.shape.meta_field.as_deref() != Some(path.as_str())
    {
        let missing;
        let column = match block.column(path.as_str())? {
            Some(column) => column,
            None => {
                missing = ColumnBlock::missing(block.bucket.count() as usize);
                &missing
            }
        };
        if let Some(selected) = select_on_column(leaf, path, column, block, selection, cx)? {
            return Ok(selected);
        }
    }
    if let Some(path) = leaf.leaf_path()
        && let Some(column) = block.column_at_path(path.as_str())?
        && let Some(selected) = select_on_column(leaf, path, &column, block, selection, cx)?
    {
        return Ok(selected);
    }
    select_on_rows(leaf, block, selection, cx)
}

/// Returns the result of a time comparison for all measurements, if the bucket's bounds decide it without the time
/// column.
fn verdict_of_bounds(comparison: &Comparison, block: &MeasurementBlock) -> Option<bool> {
    let time_field = &block.shape.time_field;
    let is_time = comparison.path.as_str() == &**time_field;
    let Value::DateTime(operand) = comparison.value else {
        return None;
    };
    if !is_time || !block.shape.fields.contains(time_field) {
        return None;
    }
    let (min, max) = block.time_bounds();
    let (min, max) = (min.unwrap_or(i64::MIN), max?);
    let (all, none) = match comparison.op {
        CompareOp::Gte => (min >= operand, max < operand),
        CompareOp::Gt => (min > operand, max <= operand),
        CompareOp::Lte => (max <= operand, min > operand),
        CompareOp::Lt => (max < operand, min >= operand),
        CompareOp::Eq => (false, operand < min || max < operand),
    };
    (all || none).then_some(all)
}

fn reads_only_meta(leaf: &MatchExpression, block: &MeasurementBlock) -> bool {
    let Some(meta) = block.shape.meta_field.as_deref() else {
        return false;
    };
    // Runs for every block: no set of paths is built where there is one path.
    if let Some(path) = leaf.leaf_path().filter(|path| !path.is_itself()) {
        return path.first() == meta;
    }
    let dependencies = leaf.dependencies();
    !dependencies.whole
        && !dependencies.random
        && !dependencies.reads_nothing()
        && dependencies.top_level_fields().iter().all(|f| *f == meta)
}

fn select_on_column(
    leaf: &MatchExpression,
    path: &MatchPath,
    column: &ColumnBlock,
    block: &MeasurementBlock,
    selection: &Selection,
    cx: &ExecContext<'_>,
) -> Result<Option<Selection>> {
    if let MatchExpression::Compare(comparison) = leaf {
        if path.as_str() == &*block.shape.time_field
            && block.bucket.is_sorted()
            && let Some(range) = sorted_range(column, comparison.op, &comparison.value)
        {
            return Ok(Some(selection.within(range)));
        }
        let kernel = select_compare(column, comparison.op, &comparison.value, selection);
        if kernel.is_some() {
            return Ok(kernel);
        }
    }
    let kernel = select_typed(leaf, column, selection);
    if kernel.is_some() {
        return Ok(kernel);
    }
    // The same test on a single value. It does not descend into arrays, so those are tested on rows.
    let test = match leaf {
        MatchExpression::Compare(_) => None,
        leaf => match leaf.at_path(MatchPath::itself()) {
            None => return Ok(None),
            test => test,
        },
    };
    let passes = |value: ValueRef<'_>| match (leaf, &test) {
        (MatchExpression::Compare(comparison), _) => Ok(comparison.test(value)),
        (_, Some(test)) => test.matches_value(value, &cx.eval),
        (_, None) => Ok(false),
    };
    if matches!(leaf, MatchExpression::Type { .. }) && has_scalars(column) {
        return select_by_first(column, passes, selection).map(Some);
    }
    match column.data() {
        BlockData::Missing => Ok(Some(if passes(ValueRef::Missing)? {
            selection.clone()
        } else {
            Selection::none()
        })),
        BlockData::Constant(value) => select_coded(
            column,
            std::iter::once(value.as_ref()),
            |_| 0,
            passes,
            selection,
        ),
        BlockData::Dictionary { codes, values } => {
            let code = |row: u32| codes.get(row as usize).map_or(0, |code| *code as usize);
            select_coded(column, values.iter(), code, passes, selection)
        }
        BlockData::Mixed(values) if values.iter().any(is_array) => Ok(None),
        _ => {
            let mut rows = Vec::new();
            for row in selection.to_vec() {
                if passes(column.value(row as usize))? {
                    rows.push(row);
                }
            }
            Ok(Some(Selection::from_rows(rows)))
        }
    }
}

/// Tests a column of numbers, dates or other scalars of one type: for presence, or for a few values. `None` if there is no kernel.
fn select_typed(
    leaf: &MatchExpression,
    column: &ColumnBlock,
    selection: &Selection,
) -> Option<Selection> {
    if !has_scalars(column) {
        return None;
    }
    let where_missing = |is: bool| match column.presence() {
        None if is => Selection::none(),
        None => selection.clone(),
        Some(_) => selection.filter(|row| column.is_missing(row as usize) == is),
    };
    match leaf {
        MatchExpression::Exists(_) => Some(where_missing(false)),
        MatchExpression::Compare(Comparison {
            op: CompareOp::Eq,
            value: Value::Null,
            ..
        }) => Some(where_missing(true)),
        // Scalars match no pattern.
        MatchExpression::In(list) if list.values().len() <= IN_KERNELS_MAX => {
            let mut left = selection.clone();
            for value in list.values() {
                let taken = match value {
                    // Not taken before: no other value is equal to null.
                    Value::Null => where_missing(true),
                    value => select_compare(column, CompareOp::Eq, value, &left)?,
                };
                left = without(&left, &taken);
            }
            Some(without(selection, &left))
        }
        _ => None,
    }
}

/// True if all values of a column are scalars of one type.
fn has_scalars(column: &ColumnBlock) -> bool {
    matches!(
        column.data(),
        BlockData::Int32(_)
            | BlockData::Int64(_)
            | BlockData::ShortInt64(_)
            | BlockData::Double(_)
            | BlockData::DateTime(_)
            | BlockData::Bool(_)
            | BlockData::Timestamp(_)
            | BlockData::ObjectId(_)
    )
}

fn is_array(value: &Value) -> bool {
    matches!(value, Value::Array(_))
}

/// Selects all values or none, and all gaps or none, by a test that depends on the type alone.
fn select_by_first(
    column: &ColumnBlock,
    passes: impl Fn(ValueRef<'_>) -> Result<bool>,
    selection: &Selection,
) -> Result<Selection> {
    let mut rows = (0..column.len()).filter(|row| !column.is_missing(*row));
    let first = rows
        .next()
        .map_or(ValueRef::Missing, |row| column.value(row));
    let (present, missing) = (passes(first)?, passes(ValueRef::Missing)?);
    Ok(
        selection.filter(|row| match column.is_missing(row as usize) {
            true => missing,
            false => present,
        }),
    )
}

/// Tests each distinct value once.
fn select_coded<'v>(
    column: &ColumnBlock,
    values: impl Iterator<Item = ValueRef<'v>> + Clone,
    code: impl Fn(u32) -> usize,
    passes: impl Fn(ValueRef<'_>) -> Result<bool>,
    selection: &Selection,
) -> Result<Option<Selection>> {
    let is_array = |value| matches!(value, ValueRef::Array(_));
    if values.clone().any(is_array) {
        return Ok(None);
    }
    let verdicts: Vec<bool> = values.map(&passes).collect::<Result<_>>()?;
    let gaps = !column.is_all_present();
    let missing = gaps && passes(ValueRef::Missing)?;
    let all_are =
        |verdict: bool| verdicts.iter().all(|own| *own == verdict) && (!gaps || missing == verdict);
    if all_are(true) {
        return Ok(Some(selection.clone()));
    }
    if all_are(false) {
        return Ok(Some(Selection::none()));
    }
    Ok(Some(selection.filter(|row| {
        if gaps && column.is_missing(row as usize) {
            missing
        } else {
            verdicts.get(code(row)).copied().unwrap_or(false)
        }
    })))
}

/// Tests each row, built from the fields the filter reads.
fn select_on_rows(
    filter: &MatchExpression,
    block: &MeasurementBlock,
    selection: &Selection,
    cx: &ExecContext<'_>,
) -> Result<Selection> {
    let dependencies = filter.dependencies();
    let narrow = if dependencies.whole {
        block.clone()
    } else {
        let fields = dependencies.top_level_fields().into_iter().map(Arc::from);
        narrowed(block, fields.collect())
    };
    let mut rows = Vec::new();
    for (row, document) in selection
        .to_vec()
        .into_iter()
        .zip(narrow.rows_of(selection)?)
    {
        if filter.matches(document.as_ref(), &cx.eval)? {
            rows.push(row);
        }
    }
    Ok(Selection::from_rows(rows))
}

/// Returns the block restricted to those of its fields that are in `fields`.
pub(crate) fn narrowed(block: &MeasurementBlock, fields: BTreeSet<Arc<str>>) -> MeasurementBlock {
    let shown = &block.shape.fields;
    let fields = fields.into_iter().filter(|f| shown.contains(f)).collect();
    MeasurementBlock {
        shape: Arc::new(MeasurementShape {
            fields: FieldSet::Only(fields),
            ..(*block.shape).clone()
        }),
        ..block.clone()
    }
}
