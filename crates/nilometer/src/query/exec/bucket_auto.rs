//! `$bucketAuto`: sorts by a value and cuts into ranges of about equal size.
//!
//! Each range takes n / buckets documents (rounded), then goes on as long as the value stays the same:
//! equal values are never parted. Its upper bound is the lower bound of the next one; the last bound is the
//! greatest value itself.

use std::cmp::Ordering;

use nilometer_bson::order::compare_with;
use nilometer_bson::{Document, DocumentBuilder, Value};

use super::documents::GivenDocuments;
use super::memory::MemoryGauge;
use super::{BoxOperator, ExecContext, Operator, next_filled};
use crate::error::Result;
use crate::eval::memory_bytes;
use crate::query::batch::Batch;
use crate::query::pipeline::BucketAutoStage;

/// Cuts documents into ranges.
pub struct BucketAuto {
    input: Option<BoxOperator>,
    stage: BucketAutoStage,
    ranges: GivenDocuments,
}

impl BucketAuto {
    /// Cuts what `input` gives.
    pub fn new(input: BoxOperator, stage: BucketAutoStage) -> Self {
        Self {
            input: Some(input),
            stage,
            ranges: GivenDocuments::new(Vec::new()),
        }
    }

    fn gather(
        &self,
        mut input: BoxOperator,
        cx: &ExecContext<'_>,
    ) -> Result<Vec<(Value, Document)>> {
        let mut memory = MemoryGauge::gather("$bucketAuto", cx);
        let mut all = Vec::new();
        while let Some(batch) = next_filled(&mut input, cx)? {
            for row in batch.into_rows()? {
                let mut key = self.stage.group_by.evaluate(row.as_ref(), &cx.eval)?;
                if key.is_missing() {
                    key = Value::Null;
                }
                memory.add(memory_bytes(&key) + row.as_bytes().len() + size_of::<Value>())?;
                all.push((key, row));
            }
        }
        all.sort_by(|(a, _), (b, _)| compare_with(a.as_ref(), b.as_ref(), cx.eval.collator));
        Ok(all)
    }

    fn ranges(&self, all: &[(Value, Document)], cx: &ExecContext<'_>) -> Result<Vec<Document>> {
        let size = range_size(all.len(), self.stage.buckets);
        let same = |a: usize, b: usize| match (all.get(a), all.get(b)) {
            (Some((a, _)), Some((b, _))) => {
                compare_with(a.as_ref(), b.as_ref(), cx.eval.collator) == Ordering::Equal
            }
            _ => false,
        };
        let mut out = Vec::new();
        let mut from = 0;
        while from < all.len() {
            let is_last = out.len() + 1 == self.stage.buckets;
            let mut to = if is_last {
                all.len()
            } else {
                (from + size).min(all.len())
            };
            while same(to - 1, to) {
                to += 1;
            }
            out.push(self.range(all, from, to, cx)?);
            from = to;
        }
        Ok(out)
    }

    fn range(
        &self,
        all: &[(Value, Document)],
        from: usize,
        to: usize,
        cx: &ExecContext<'_>,
    ) -> Result<Document> {
        let key_at = |at: usize| all.get(at).map(|(key, _)| key.clone());
        let mut bounds = DocumentBuilder::new();
        bounds.append("min", key_at(from));
        bounds.append("max", key_at(to).or_else(|| key_at(to - 1)));
        let mut out = DocumentBuilder::new();
        out.append("_id", bounds.finish());
        for (name, spec) in self.stage.fields.iter() {
            let mut state = spec.new_state(&Value::Null, &cx.eval)?;
            for (_, row) in all.get(from..to).unwrap_or(&[]) {
                spec.add(&mut state, row.as_ref(), &cx.eval)?;
            }
            out.append(name, spec.finish(state));
        }
        Ok(out.finish())
    }
}

/// Documents per range, rounded to the nearest, at least one.
fn range_size(documents: usize, ranges: usize) -> usize {
    ((documents + ranges / 2) / ranges).max(1)
}

impl Operator for BucketAuto {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(input) = self.input.take() {
            let all = self.gather(input, cx)?;
            self.ranges = GivenDocuments::new(self.ranges(&all, cx)?);
        }
        self.ranges.next(cx)
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none() && self.ranges.is_exhausted()
    }
}

#[cfg(test)]
mod tests {
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{Document, array, doc};

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
}
