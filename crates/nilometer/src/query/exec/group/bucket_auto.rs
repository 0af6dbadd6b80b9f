//! `$bucketAuto`: sorts by a value and cuts into ranges of about equal size.
//!
//! Each range takes n / buckets documents (rounded), then continues while the value stays the same:
//! equal values are never separated. Its upper bound is the lower bound of the next one; the last bound is the
//! greatest value itself.
//!
//! With a granularity, bounds are numbers of a series. The upper bound is the next number above the greatest
//! value, and all values below it join the range; the first lower bound is the next number below the
//! least value ([`crate::query::pipeline::granularity`]).

use std::cmp::Ordering;

use nilometer_bson::order::compare_with;
use nilometer_bson::{Document, DocumentBuilder, Value};

use crate::error::Result;
use crate::eval::{Expression, memory_bytes};
use crate::query::batch::Batch;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::sort::external_sort::{RowOrder, Sorted, Sorter};
use crate::query::exec::{
    BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, RowBatch, next_filled,
};
use crate::query::pipeline::BucketAutoStage;
use crate::query::pipeline::granularity::Granularity;

/// Stage name for memory errors.
const NAME: &str = "$bucketAuto";

/// Cuts documents into ranges.
pub struct BucketAuto {
    input: Option<BoxOperator>,
    stage: BucketAutoStage,
    ranges: Option<Ranges>,
}

impl BucketAuto {
    /// Cuts the documents of `input` into ranges.
    pub fn new(input: BoxOperator, stage: BucketAutoStage) -> Self {
        Self {
            input: Some(input),
            stage,
            ranges: None,
        }
    }

    fn sort(&self, mut input: BoxOperator, cx: &ExecContext<'_>) -> Result<Ranges> {
        let order = ByValue(self.stage.group_by.clone());
        let mut sorter = Sorter::new(order, MemoryGauge::gather(NAME, cx));
        let mut count = 0;
        while let Some(batch) = next_filled(&mut input, cx)? {
            for row in batch.into_rows()? {
                sorter.add(row, cx)?;
                count += 1;
            }
        }
        let mut sorted = sorter.finish(cx)?;
        Ok(Ranges {
            size: range_size(count, self.stage.buckets),
            waiting: sorted.next(cx)?,
            sorted,
            given: 0,
            last_bound: None,
            results: MemoryGauge::of_results(NAME, cx),
        })
    }
}

/// Returns the number of documents per range, rounded to the nearest, at least one.
fn range_size(documents: usize, ranges: usize) -> usize {
    ((documents + ranges / 2) / ranges).max(1)
}

impl Operator for BucketAuto {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(input) = self.input.take() {
            self.ranges = Some(self.sort(input, cx)?);
        }
        let mut rows = RowBatch::default();
        if let Some(ranges) = &mut self.ranges {
            ranges.results.clear();
            while !rows.is_full()
                && let Some(range) = ranges.next(&self.stage, cx)?
            {
                rows.push(range);
            }
        }
        Ok(rows.into_batch())
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none() && self.ranges.as_ref().is_none_or(|r| r.waiting.is_none())
    }
}

/// The sorted documents, cut into ranges while they are read.
struct Ranges {
    sorted: Sorted<ByValue>,
    /// The first document of the next range.
    waiting: Option<(Value, Document)>,
    /// Documents in a range, before ties and rounded bounds extend it.
    size: usize,
    /// Number of ranges returned.
    given: usize,
    /// The upper bound of the last range, if bounds are rounded.
    last_bound: Option<Value>,
    /// Counts the finished ranges.
    results: MemoryGauge,
}

impl Ranges {
    fn next(&mut self, stage: &BucketAutoStage, cx: &ExecContext<'_>) -> Result<Option<Document>> {
        let Some((first, _)) = &self.waiting else {
            return Ok(None);
        };
        let least = first.clone();
        let mut greatest = least.clone();
        let mut states = Vec::with_capacity(stage.fields.len());
        for (_, spec) in stage.fields.iter() {
            states.push(spec.new_state(&Value::Null, &cx.eval)?);
        }
        self.given += 1;
        let wanted = if self.given == stage.buckets {
            usize::MAX
        } else {
            self.size
        };
        let mut taken = 0;
        let mut bound = None;
        while let Some((key, _)) = &self.waiting {
            let order =
                |other: &Value| compare_with(key.as_ref(), other.as_ref(), cx.eval.collator);
            if taken >= wanted && order(&greatest).is_ne() {
                let Some(series) = stage.granularity else {
                    break;
                };
                let bound = match &bound {
                    Some(bound) => bound,
                    None => bound.insert(rounded_up(series, &greatest)?),
                };
                if order(bound).is_ge() {
                    break;
                }
            }
            let Some((key, row)) = self.waiting.take() else {
                break;
            };
            for ((_, spec), state) in stage.fields.iter().zip(&mut states) {
                let before = state.memory_bytes();
                spec.add(state, row.as_ref(), &cx.eval)?;
                let grown = state.memory_bytes().saturating_sub(before);
                self.results.add(grown)?;
            }
            greatest = key;
            taken += 1;
            if taken % ROWS_PER_BATCH == 0 {
                cx.operation.check_interrupt()?;
            }
            self.waiting = self.sorted.next(cx)?;
        }
        let (min, max) = self.bounds(stage.granularity, least, greatest, bound)?;
        let mut out = DocumentBuilder::new();
        out.begin_document("_id");
        out.append("min", min).append("max", max).end();
        for ((name, spec), state) in stage.fields.iter().zip(states) {
            out.append(name, spec.finish(state, &cx.eval)?);
        }
        Ok(Some(out.finish()))
    }

    /// Returns the bounds of a range from its least and greatest value and its rounded bound, if known.
    fn bounds(
        &mut self,
        granularity: Option<Granularity>,
        least: Value,
        greatest: Value,
        bound: Option<Value>,
    ) -> Result<(Value, Value)> {
        let Some(series) = granularity else {
            let next = self.waiting.as_ref().map(|(key, _)| key.clone());
            return Ok((least, next.unwrap_or(greatest)));
        };
        let max = match bound {
            Some(bound) => bound,
            None => rounded_up(series, &greatest)?,
        };
        let min = match self.last_bound.take() {
            Some(before) => before,
            None => series.round_down(Granularity::check(least.as_ref())?),
        };
        self.last_bound = Some(max.clone());
        Ok((min, max))
    }
}

fn rounded_up(series: Granularity, value: &Value) -> Result<Value> {
    Ok(series.round_up(Granularity::check(value.as_ref())?))
}

/// Orders documents by a computed value; null where there is none.
struct ByValue(Expression);

impl RowOrder for ByValue {
    type Key = Value;

    fn key(&self, row: &Document, cx: &ExecContext<'_>) -> Result<Value> {
        let key = self.0.evaluate(row.as_ref(), &cx.eval)?;
        Ok(if key.is_missing() { Value::Null } else { key })
    }

    fn compare(&self, a: &Value, b: &Value, cx: &ExecContext<'_>) -> Ordering {
        compare_with(a.as_ref(), b.as_ref(), cx.eval.collator)
    }

    fn key_bytes(&self, key: &Value) -> usize {
        memory_bytes(key) + size_of::<Value>()
    }
}

#[cfg(test)]
mod tests {
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{Document, Value, array, doc};

    fn auto(buckets: i32, values: &[i32]) -> Vec<Document> {
        let spec = doc! {"groupBy": "$a", "buckets": buckets};
        let documents = values.iter().map(|a| doc! {"a": *a}).collect();
        run_stages(array![doc! {"$bucketAuto": spec}], documents).unwrap()
    }

    fn range(min: i32, max: i32, count: i32) -> Document {
        doc! {"_id": doc! {"min": min, "max": max}, "count": count}
    }

    #[test]
    fn ranges_are_of_about_equal_size() {
        assert_eq!(
            auto(3, &[5, 1, 2, 3, 4, 0]),
            [range(0, 2, 2), range(2, 4, 2), range(4, 5, 2)]
        );
    }

    #[test]
    fn equal_values_stay_together() {
        assert_eq!(
            auto(3, &[1, 1, 1, 1, 2, 3]),
            [range(1, 2, 4), range(2, 3, 2)]
        );
        assert_eq!(auto(5, &[7, 7]), [range(7, 7, 2)]);
        assert!(auto(5, &[]).is_empty());
    }

    /// The manual's example: a hundred whole numbers from 0 in five ranges.
    fn rounded(granularity: &str) -> Vec<Document> {
        let spec = doc! {"groupBy": "$a", "buckets": 5, "granularity": granularity};
        let documents = (0..100).map(|a| doc! {"a": a}).collect();
        run_stages(array![doc! {"$bucketAuto": spec}], documents).unwrap()
    }

    fn rounded_range(min: i32, max: i32, count: i32) -> Document {
        let (min, max) = (f64::from(min), f64::from(max));
        doc! {"_id": doc! {"min": min, "max": max}, "count": count}
    }

    #[test]
    fn bounds_are_rounded_to_a_series() {
        for (granularity, expected) in [
            (
                "R20",
                &[
                    (0, 20, 20),
                    (20, 40, 20),
                    (40, 63, 23),
                    (63, 90, 27),
                    (90, 100, 10),
                ][..],
            ),
            (
                "E24",
                &[
                    (0, 20, 20),
                    (20, 43, 23),
                    (43, 68, 25),
                    (68, 91, 23),
                    (91, 100, 9),
                ],
            ),
            ("1-2-5", &[(0, 20, 20), (20, 50, 30), (50, 100, 50)]),
            ("POWERSOF2", &[(0, 32, 32), (32, 64, 32), (64, 128, 36)]),
        ] {
            let expected = expected
                .iter()
                .map(|(min, max, n)| rounded_range(*min, *max, *n));
            assert_eq!(
                rounded(granularity),
                expected.collect::<Vec<_>>(),
                "{granularity}"
            );
        }
    }

    #[test]
    fn only_numbers_can_be_rounded() {
        let code = |value: Value| {
            let spec = doc! {"groupBy": "$a", "buckets": 1, "granularity": "R5"};
            let found = run_stages(array![doc! {"$bucketAuto": spec}], vec![doc! {"a": value}]);
            found.map_or_else(|error| error.code.0, |_| 0)
        };
        assert_eq!(code("x".into()), 40_258);
        assert_eq!(code(Value::Missing), 40_258);
        assert_eq!(code(f64::NAN.into()), 40_259);
        assert_eq!(code((-1).into()), 40_260);
        assert_eq!(code(0.into()), 0);
    }
}
