//! `$densify`: fills an axis of numbers or dates with values at even steps.
//!
//! ```text
//! input ── sort by partition, field ──► 0   3   4        ▪  a document of the input
//! steps of 2 from 0                     ▪ ○ ▪   ▪ ○ ○    ○  a generated document
//!                                       0 2 3   4 6 8
//! ```
//!
//! | bounds | a partition begins at | and ends |
//! |---|---|---|
//! | `full`, no partitions; `partition` | its own least value | at its own greatest |
//! | `full` with partitions | the least value of all | at the greatest value of all, included |
//! | `[lo, hi]` | lo | before hi |
//!
//! Value k is the first value plus k steps, so rounding errors do not accumulate and months do not
//! drift. No document is generated where the input has one. Numbers have the widest type met so far among step,
//! first value and the partition's documents. Documents without a value (null, missing) come first in
//! their partition, unchanged. A generated document has the field and the partition's fields, nothing else.
//!
//! Without partitions, an input sorted by the field is streamed: documents are generated between the input's documents.
//! Partitions by metadata of a time series are sorted as buckets ([`super::densify_buckets`]).
//!
//! The number of generated documents is limited for the whole stage. A step too small to change a value counts as
//! one generated document, so that every input terminates.

use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::order::compare_with;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::densify_buckets;
use super::densify_buckets::PartitionedBuckets;
use crate::error::{Error, Result, location};
use crate::eval::date::{self, TimeZone};
use crate::eval::memory_bytes;
use crate::query::batch::Batch;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::unwind::{value_at, with_value_at};
use crate::query::exec::sort::external_sort::{RowOrder, Sorted, Sorter};
use crate::query::exec::{BoxOperator, ExecContext, Operator, RowBatch, next_filled};
use crate::query::pipeline::{AxisPoint, DensifyBounds, DensifyStage, DensifyStep};
use crate::query::planner::physical::{DensifyInput, PhysicalDensify};

/// Stage name for memory errors.
pub(crate) const NAME: &str = "$densify";

/// Fills an axis.
pub struct Densify {
    input: Option<BoxOperator>,
    stage: Arc<DensifyStage>,
    /// The order of the input.
    order: DensifyInput,
    running: Option<Running>,
}

impl Densify {
    /// Fills the axis of `input`, which arrives in the planned order.
    pub fn new(input: BoxOperator, plan: PhysicalDensify) -> Self {
        Self {
            input: Some(input),
            stage: plan.stage,
            order: plan.input,
            running: None,
        }
    }

    fn start(&self, mut input: BoxOperator, cx: &ExecContext<'_>) -> Result<Running> {
        let order = DensifyOrder {
            stage: Arc::clone(&self.stage),
        };
        let has_partitions = !self.stage.partition_by.is_empty();
        let (rows, ends) = match self.order {
            DensifyInput::InOrder => (Rows::arriving(input, order), None),
            DensifyInput::Buckets => match densify_buckets::gather(&self.stage, &mut input, cx)? {
                densify_buckets::BufferedInput::Buckets(buckets, ends) => {
                    (Rows::Buckets(buckets), ends)
                }
                densify_buckets::BufferedInput::Rows(first) => {
                    self.gather(first, input, order, cx)?
                }
            },
            DensifyInput::Any => self.gather(Vec::new(), input, order, cx)?,
        };
        let span = match self.stage.bounds {
            DensifyBounds::Between(low, high) => Span::Before(low, high),
            DensifyBounds::Full if has_partitions => match ends {
                Some((low, high)) => Span::Through(low, high),
                None => Span::Own,
            },
            DensifyBounds::Full | DensifyBounds::Partition => Span::Own,
        };
        let mut running = Running {
            rows,
            waiting: None,
            partition: None,
            span,
            left: cx.settings.limits.densify_documents_max,
        };
        running.waiting = running.rows.next(cx)?;
        if !has_partitions && running.waiting.is_none() {
            // Bounds are filled even if the input is empty.
            running.partition = Some(Partition::open(Arc::new([]), span, &self.stage));
        }
        Ok(running)
    }

    /// Sorts the rows of `batches` and of the rest of the input; also returns the least and the greatest value of the axis.
    fn gather(
        &self,
        first: Vec<Batch>,
        mut input: BoxOperator,
        order: DensifyOrder,
        cx: &ExecContext<'_>,
    ) -> Result<(Rows, Option<(AxisPoint, AxisPoint)>)> {
        let mut sorter = Sorter::new(order, MemoryGauge::gather(NAME, cx));
        let mut ends: Option<(AxisPoint, AxisPoint)> = None;
        let mut first = first.into_iter();
        loop {
            let batch = match first.next() {
                Some(batch) => batch,
                None => match next_filled(&mut input, cx)? {
                    Some(batch) => batch,
                    None => break,
                },
            };
            for row in batch.into_rows()? {
                if let Some(point) = point_of(&self.stage, row.as_ref())? {
                    let (low, high) = ends.get_or_insert((point, point));
                    if point.compare(*low).is_lt() {
                        *low = point;
                    }
                    if point.compare(*high).is_gt() {
                        *high = point;
                    }
                }
                sorter.add(row, cx)?;
            }
        }
        Ok((Rows::Sorted(sorter.finish(cx)?), ends))
    }
}

impl Operator for Densify {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(input) = self.input.take() {
            self.running = Some(self.start(input, cx)?);
        }
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        let mut rows = RowBatch::default();
        while !rows.is_full() {
            match running.next(&self.stage, cx)? {
                Some(row) => rows.push(row),
                None => break,
            }
        }
        Ok(rows.into_batch())
    }
}

/// The range of a partition.
#[derive(Clone, Copy)]
enum Span {
    /// From its own least to its own greatest value.
    Own,
    /// Between these values, the second excluded.
    Before(AxisPoint, AxisPoint),
    /// Between these values, both included.
    Through(AxisPoint, AxisPoint),
}

/// Rows sorted by partition and axis.
enum Rows {
    Sorted(Sorted<DensifyOrder>),
    Arriving {
        input: BoxOperator,
        order: DensifyOrder,
        waiting: std::vec::IntoIter<Document>,
    },
    Buckets(Box<PartitionedBuckets>),
}

impl Rows {
    fn arriving(input: BoxOperator, order: DensifyOrder) -> Self {
        Self::Arriving {
            input,
            order,
            waiting: Vec::new().into_iter(),
        }
    }

    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<(DensifyKey, Document)>> {
        match self {
            Self::Sorted(sorted) => sorted.next(cx),
            Self::Buckets(buckets) => buckets.next(cx),
            Self::Arriving {
                input,
                order,
                waiting,
            } => loop {
                if let Some(row) = waiting.next() {
                    return Ok(Some((order.key(&row, cx)?, row)));
                }
                match next_filled(input, cx)? {
                    Some(batch) => *waiting = batch.into_rows()?.into_iter(),
                    None => return Ok(None),
                }
            },
        }
    }
}

struct Running {
    rows: Rows,
    /// The next document of the input.
    waiting: Option<(DensifyKey, Document)>,
    partition: Option<Partition>,
    span: Span,
    /// Number of documents that may still be generated.
    left: u64,
}

impl Running {
    fn next(&mut self, stage: &DensifyStage, cx: &ExecContext<'_>) -> Result<Option<Document>> {
        loop {
            let goes_on = match (&self.waiting, &self.partition) {
                (Some((key, _)), Some(open)) => is_same(&key.partition, &open.values, cx),
                _ => false,
            };
            let ahead = match &self.waiting {
                Some((key, _)) if goes_on => Some(key.point),
                _ => None,
            };
            if let Some(open) = &mut self.partition {
                let until = match (goes_on, ahead) {
                    (true, Some(Some(point))) => Until::Point(point),
                    // A document without a value comes before the first step.
                    (true, _) => Until::Nothing,
                    (false, _) => Until::End,
                };
                if let Some(made) = open.step_towards(until, stage, &mut self.left)? {
                    return Ok(Some(made));
                }
            }
            let Some((key, row)) = self.waiting.take() else {
                return Ok(None);
            };
            if !goes_on {
                let span = self.span;
                let values = Arc::clone(&key.partition);
                self.partition = Some(Partition::open(values, span, stage));
                self.waiting = Some((key, row));
                continue;
            }
            if let (Some(open), Some(point)) = (&mut self.partition, key.point) {
                open.meet(point, stage.step)?;
            }
            self.waiting = self.rows.next(cx)?;
            return Ok(Some(row));
        }
    }
}

fn is_same(a: &Arc<[Value]>, b: &Arc<[Value]>, cx: &ExecContext<'_>) -> bool {
    Arc::ptr_eq(a, b) || compare_partitions(a, b, cx).is_eq()
}

/// Compares partitions; equal ones are one partition.
pub(crate) fn compare_partitions(a: &[Value], b: &[Value], cx: &ExecContext<'_>) -> Ordering {
    a.iter()
        .zip(b)
        .map(|(a, b)| compare_with(a.as_ref(), b.as_ref(), cx.eval.collator))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// How far documents are generated before the next document of the input.
#[derive(Clone, Copy)]
enum Until {
    Nothing,
    Point(AxisPoint),
    End,
}

/// The current partition.
struct Partition {
    values: Arc<[Value]>,
    /// A generated document without the field.
    stem: Document,
    series: Option<Series>,
    span: Span,
}

impl Partition {
    fn open(values: Arc<[Value]>, span: Span, stage: &DensifyStage) -> Self {
        let series = match span {
            Span::Own => None,
            Span::Before(low, _) | Span::Through(low, _) => Some(Series::new(low, stage.step)),
        };
        Self {
            stem: stem(stage, &values),
            values,
            series,
            span,
        }
    }

    /// Returns the next document to generate before `until`, if there is one.
    fn step_towards(
        &mut self,
        until: Until,
        stage: &DensifyStage,
        left: &mut u64,
    ) -> Result<Option<Document>> {
        let Some(series) = &mut self.series else {
            return Ok(None);
        };
        let Some(next) = series.next else {
            return Ok(None);
        };
        let is_within = match self.span {
            // A partition ends at its last document.
            Span::Own => matches!(until, Until::Point(_)),
            Span::Before(_, high) => next.compare(high).is_lt(),
            Span::Through(_, high) => next.compare(high).is_le(),
        };
        let is_due = match until {
            Until::Nothing => false,
            Until::Point(point) => next.compare(point).is_lt(),
            Until::End => true,
        };
        if !is_within || !is_due {
            return Ok(None);
        }
        take_one(left)?;
        let made = document(stage, &self.stem, series.typed(next));
        series.advance(stage.step, Some(left))?;
        Ok(Some(made))
    }

    /// Advances the series past a document of the input.
    fn meet(&mut self, point: AxisPoint, step: DensifyStep) -> Result<()> {
        let Some(series) = &mut self.series else {
            let mut series = Series::new(point, step);
            series.advance(step, None)?;
            self.series = Some(series);
            return Ok(());
        };
        if point.compare(series.first).is_ge() {
            series.widen(point);
        }
        if series.next.is_some_and(|next| next.compare(point).is_eq()) {
            series.advance(step, None)?;
        }
        Ok(())
    }
}

fn take_one(left: &mut u64) -> Result<()> {
    *left = left.checked_sub(1).ok_or_else(|| {
        Error::location(
            location::DENSIFY_TOO_MANY_DOCUMENTS,
            "Generated too many documents in $densify; the limit is internalQueryMaxAllowedDensifyDocs",
        )
    })?;
    Ok(())
}

/// Values at even steps.
struct Series {
    first: AxisPoint,
    steps: i64,
    /// The value after `steps` steps; `None` beyond the last possible date.
    next: Option<AxisPoint>,
    /// A zero of the widest type so far.
    zero: Number,
}

impl Series {
    fn new(first: AxisPoint, step: DensifyStep) -> Self {
        let mut series = Self {
            first,
            steps: 0,
            next: Some(first),
            zero: Number::Int(0),
        };
        series.widen(first);
        if let DensifyStep::Number(step) = step {
            series.widen(AxisPoint::Number(step));
        }
        series
    }

    fn widen(&mut self, point: AxisPoint) {
        let AxisPoint::Number(number) = point else {
            return;
        };
        self.zero = match (self.zero, number) {
            (zero @ Number::Decimal(_), _) => zero,
            (_, Number::Decimal(_)) => Number::Decimal(Number::Int(0).to_decimal()),
            (zero @ Number::Double(_), _) => zero,
            (_, Number::Double(_)) => Number::Double(0.0),
            (zero @ Number::Long(_), _) => zero,
            (_, Number::Long(_)) => Number::Long(0),
            (zero, Number::Int(_)) => zero,
        };
    }

    fn typed(&self, point: AxisPoint) -> AxisPoint {
        match point {
            AxisPoint::Number(number) => AxisPoint::Number(number.add(self.zero)),
            date @ AxisPoint::Date(_) => date,
        }
    }

    /// Advances to the next value. Steps that do not change the value are counted in `left`; without `left` it makes one
    /// step, and the next call with `left` continues.
    fn advance(&mut self, step: DensifyStep, mut left: Option<&mut u64>) -> Result<()> {
        loop {
            self.steps += 1;
            let next = match (self.first, step) {
                (AxisPoint::Number(first), DensifyStep::Number(step)) => {
                    let steps =
                        i32::try_from(self.steps).map_or(Number::Long(self.steps), Number::Int);
                    Some(AxisPoint::Number(first.add(step.multiply(steps))))
                }
                (AxisPoint::Date(first), DensifyStep::Date(amount, unit)) => amount
                    .checked_mul(self.steps)
                    .and_then(|amount| date::add(first, unit, amount, &TimeZone::Utc).ok())
                    .map(AxisPoint::Date),
                // Values of the other kind are refused when they are read.
                _ => None,
            };
            let moved = match (self.next, next) {
                (Some(before), Some(after)) => after.compare(before).is_gt(),
                _ => true,
            };
            self.next = next;
            if moved {
                return Ok(());
            }
            match &mut left {
                Some(left) => take_one(left)?,
                None => return Ok(()),
            }
        }
    }
}

/// Returns the fields of a partition as a document.
fn stem(stage: &DensifyStage, partition: &[Value]) -> Document {
    let fields = stage.partition_by.iter().zip(partition);
    if stage.field.len() == 1 && stage.partition_by.iter().all(|path| path.len() == 1) {
        let mut out = DocumentBuilder::with_capacity(64);
        for (path, value) in fields {
            out.append_ref(path.as_str(), value.as_ref());
        }
        return out.finish();
    }
    let present = fields.filter(|(_, value)| !value.is_missing());
    present.fold(Document::new(), |made, (path, value)| {
        with_value_at(made.as_ref(), path, value.as_ref())
    })
}

fn document(stage: &DensifyStage, stem: &Document, point: AxisPoint) -> Document {
    if stage.field.len() > 1 {
        return with_value_at(stem.as_ref(), &stage.field, point.to_ref());
    }
    // No partition field equals or lies within the field.
    let mut out = DocumentBuilder::with_capacity(stem.as_bytes().len() + 64);
    for element in stem.iter() {
        out.append_element(element);
    }
    out.append_ref(stage.field.as_str(), point.to_ref());
    out.finish()
}

/// Returns the position of a document on the axis; `None` for null and missing.
fn point_of(stage: &DensifyStage, row: DocRef<'_>) -> Result<Option<AxisPoint>> {
    let value = value_at(row, &stage.field);
    if value.is_nullish() {
        return Ok(None);
    }
    let point = match (stage.step, value) {
        (DensifyStep::Date(..), ValueRef::DateTime(ms)) => Some(AxisPoint::Date(ms)),
        (DensifyStep::Number(_), value) => Number::of(value).map(AxisPoint::Number),
        _ => None,
    };
    match (point, stage.step) {
        (Some(point), _) => Ok(Some(point)),
        (None, DensifyStep::Date(..)) => Err(Error::location(
            location::DENSIFY_VALUE_TYPE,
            "Encountered non-date value in collection when step has a date unit.",
        )),
        (None, DensifyStep::Number(_)) => Err(Error::location(
            location::DENSIFY_VALUE_TYPE,
            "Encountered non-numeric value in collection when step does not have a date unit.",
        )),
    }
}

/// Order by partition, then along the axis.
pub(crate) struct DensifyOrder {
    /// Axis and partitions.
    pub(crate) stage: Arc<DensifyStage>,
}

/// Position of a document in that order.
pub(crate) struct DensifyKey {
    partition: Arc<[Value]>,
    point: Option<AxisPoint>,
}

impl DensifyKey {
    /// Returns the key of a document of a partition.
    pub(crate) fn within(
        stage: &DensifyStage,
        partition: &Arc<[Value]>,
        row: DocRef<'_>,
    ) -> Result<Self> {
        Ok(Self {
            partition: Arc::clone(partition),
            point: point_of(stage, row)?,
        })
    }
}

impl RowOrder for DensifyOrder {
    type Key = DensifyKey;

    fn key(&self, row: &Document, _: &ExecContext<'_>) -> Result<DensifyKey> {
        let partition = self.stage.partition_by.iter();
        let partition = partition.map(|path| value_at(row.as_ref(), path).to_value());
        DensifyKey::within(&self.stage, &partition.collect(), row.as_ref())
    }

    fn compare(&self, a: &DensifyKey, b: &DensifyKey, cx: &ExecContext<'_>) -> Ordering {
        compare_partitions(&a.partition, &b.partition, cx).then_with(|| match (a.point, b.point) {
            (Some(a), Some(b)) => a.compare(b),
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
        })
    }

    fn key_bytes(&self, key: &DensifyKey) -> usize {
        let partition = key.partition.iter();
        size_of::<DensifyKey>()
            + partition
                .map(|value| memory_bytes(value) + size_of::<Value>())
                .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{array, doc};

    fn densify(spec: Document, documents: Vec<Document>) -> Result<Vec<Document>> {
        run_stages(array![doc! {"$densify": spec}], documents)
    }

    /// Wraps values in a document, for comparison.
    fn list(values: impl IntoIterator<Item = Value>) -> Document {
        doc! {"a": values.into_iter().collect::<Vec<Value>>()}
    }

    fn values(found: &[Document]) -> Document {
        list(found.iter().map(|d| d.get("a").to_value()))
    }

    /// Returns the values of `a` after `$densify`.
    fn filled(range: Document, values_in: Vec<Value>) -> Document {
        let documents = values_in.into_iter().map(|a| doc! {"a": a, "_id": 0});
        let spec = doc! {"field": "a", "range": range};
        values(&densify(spec, documents.collect()).unwrap())
    }

    #[test]
    fn bounds_take_in_the_lower_end_and_pass_what_lies_outside() {
        let range = doc! {"step": 2, "bounds": array![0, 6]};
        let found = filled(range, vec![(-1).into(), 3.into(), 4.into(), 9.into()]);
        let expected = [-1, 0, 2, 3, 4, 9].map(Value::from);
        assert_eq!(found, list(expected));
        let empty = filled(doc! {"step": 2, "bounds": array![0, 5]}, vec![]);
        assert_eq!(empty, list([0, 2, 4].map(Value::from)));
    }

    #[test]
    fn full_counts_from_the_least_value() {
        let found = filled(
            doc! {"step": 2, "bounds": "full"},
            vec![6.into(), 1.into(), Value::Null, 5.into()],
        );
        let mut expected = vec![Value::Null];
        expected.extend([1, 3, 5, 6].map(Value::from));
        assert_eq!(found, list(expected));
        let empty = filled(doc! {"step": 2, "bounds": "full"}, vec![]);
        assert_eq!(empty, list([]));
    }

    #[test]
    fn values_take_the_widest_type_so_far() {
        let found = filled(
            doc! {"step": 1, "bounds": "full"},
            vec![0.into(), 2.5.into(), 5i64.into()],
        );
        let expected: Vec<Value> = vec![
            0.into(),
            1.into(),
            2.into(),
            2.5.into(),
            3.0.into(),
            4.0.into(),
            5i64.into(),
        ];
        assert_eq!(found, list(expected));
        let long = filled(doc! {"step": 1i64, "bounds": array![0, 2]}, vec![]);
        assert_eq!(long, list([Value::Int64(0), Value::Int64(1)]));
    }

    fn partitioned(bounds: Value, documents: Vec<Document>) -> Vec<(String, i64)> {
        let spec = doc! {
            "field": "a",
            "partitionByFields": array!["p"],
            "range": doc! {"step": 1, "bounds": bounds},
        };
        let found = densify(spec, documents).unwrap();
        let row = |d: &Document| {
            let name = d.get("p").as_str().unwrap_or("-").to_owned();
            (name, d.get("a").as_exact_i64().unwrap_or(-1))
        };
        found.iter().map(row).collect()
    }

    fn rows(list: &[(&str, i64)]) -> Vec<(String, i64)> {
        list.iter().map(|(p, a)| ((*p).to_owned(), *a)).collect()
    }

    #[test]
    fn partitions() {
        let documents = vec![
            doc! {"p": "y", "a": 3},
            doc! {"p": "x", "a": 2},
            doc! {"p": "x", "a": 0},
        ];
        assert_eq!(
            partitioned("partition".into(), documents.clone()),
            rows(&[("x", 0), ("x", 1), ("x", 2), ("y", 3)])
        );
        let full = [("x", 0), ("x", 1), ("x", 2), ("x", 3)];
        let full = [full, [("y", 0), ("y", 1), ("y", 2), ("y", 3)]].concat();
        assert_eq!(partitioned("full".into(), documents.clone()), rows(&full));
        assert_eq!(
            partitioned(array![5, 6], documents),
            rows(&[("x", 0), ("x", 2), ("x", 5), ("y", 3), ("y", 5)])
        );
        assert!(partitioned(array![5, 6], vec![]).is_empty());
    }

    #[test]
    fn months_do_not_drift() {
        // 2020-01-31, then the last day of each month, then 2020-05-31.
        let (first, last) = (1_580_428_800_000, 1_590_883_200_000);
        let found = filled(
            doc! {"step": 1, "unit": "month", "bounds": "full"},
            vec![Value::DateTime(first), Value::DateTime(last)],
        );
        let expected = [
            first,
            1_582_934_400_000,
            1_585_612_800_000,
            1_588_204_800_000,
            last,
        ];
        assert_eq!(found, list(expected.map(Value::DateTime)));
    }

    #[test]
    fn dotted_fields_are_nested() {
        let spec = doc! {
            "field": "o.a",
            "partitionByFields": array!["p.q", "none"],
            "range": doc! {"step": 1, "bounds": "partition"},
        };
        let document = |a: i32| doc! {"p": doc! {"q": 1}, "o": doc! {"a": a, "x": 1}};
        let found = densify(spec, vec![document(2), document(0)]).unwrap();
        assert_eq!(
            found,
            [
                document(0),
                doc! {"p": doc! {"q": 1}, "o": doc! {"a": 1}},
                document(2)
            ]
        );
    }

    #[test]
    fn values_of_another_kind_are_refused() {
        let code = |range: Document, value: Value| {
            let spec = doc! {"field": "a", "range": range};
            let found = densify(spec, vec![doc! {"a": value}]);
            found.map_or_else(|error| error.code.0, |_| 0)
        };
        let numbers = doc! {"step": 1, "bounds": "full"};
        let days = doc! {"step": 1, "unit": "day", "bounds": "full"};
        assert_eq!(
            code(numbers.clone(), "x".into()),
            location::DENSIFY_VALUE_TYPE
        );
        assert_eq!(
            code(numbers.clone(), Value::DateTime(0)),
            location::DENSIFY_VALUE_TYPE
        );
        assert_eq!(code(numbers, array![1]), location::DENSIFY_VALUE_TYPE);
        assert_eq!(code(days.clone(), 1.into()), location::DENSIFY_VALUE_TYPE);
        assert_eq!(code(days, Value::DateTime(0)), 0);
    }

    #[test]
    fn what_is_made_is_limited_however_small_the_step() {
        let code = |range: Document, ends: [Value; 2]| {
            let documents = ends.map(|a| doc! {"a": a}).to_vec();
            let found = densify(doc! {"field": "a", "range": range}, documents);
            found.map_or_else(|error| error.code.0, |rows| rows.len() as i32)
        };
        let one = doc! {"step": 1, "bounds": "full"};
        assert_eq!(code(one.clone(), [0.into(), 500_001.into()]), 500_002);
        assert_eq!(
            code(one.clone(), [0.into(), 500_002.into()]),
            location::DENSIFY_TOO_MANY_DOCUMENTS
        );
        let [low, high] = [1e300, 1e301].map(Value::Double);
        assert_eq!(
            code(one.clone(), [low, high]),
            location::DENSIFY_TOO_MANY_DOCUMENTS
        );
        let infinite = [f64::NEG_INFINITY, f64::INFINITY].map(Value::Double);
        assert_eq!(
            code(one.clone(), infinite),
            location::DENSIFY_TOO_MANY_DOCUMENTS
        );
        assert_eq!(
            code(one, [f64::NAN.into(), 0.into()]),
            location::DENSIFY_TOO_MANY_DOCUMENTS
        );
        let ends = [Value::DateTime(i64::MAX - 10), Value::DateTime(i64::MAX)];
        let day = doc! {"step": 1, "unit": "day", "bounds": "full"};
        assert_eq!(code(day, ends), 2);
    }
}
