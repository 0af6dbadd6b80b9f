//! Tests whether one of many values lies between the bounds of a field, as a filter with `$in` demands.
//!
//! A test of each value by itself would cost each bucket two comparisons for it; a search among sorted values costs their logarithm.

use std::sync::Arc;

use nilometer_bson::{Value, ValueRef};

use super::predicate::{AskedBounds, BoundTest, Bounds, Side, Truth, bounds_of, is_rounded_up};
use super::{BucketHeader, BucketPredicate, ConstantAnswer};
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::matcher::CompareOp;

/// `control.min.<path> <= v` and `control.max.<path> >= v` for one of the values at least.
#[derive(Clone, Debug)]
pub struct ValuesTest {
    /// The measurement field, dotted.
    pub path: Arc<str>,
    /// In the order of the collation.
    values: Arc<[Value]>,
    /// True for the time field, whose minimum is rounded.
    is_time: bool,
    /// The collation of bounds that are strings.
    collation: Collation,
    /// Cached answer for a constant field.
    answer: ConstantAnswer,
}

impl ValuesTest {
    /// Returns the test of the bounds at `path` against `values`.
    pub fn new(
        path: Arc<str>,
        mut values: Vec<Value>,
        is_time: bool,
        collation: Collation,
    ) -> Self {
        values.sort_by(|a, b| collation.compare(a.as_ref(), b.as_ref()));
        Self {
            path,
            values: values.into(),
            is_time,
            collation,
            answer: ConstantAnswer::default(),
        }
    }

    /// True for the time field.
    pub fn is_time(&self) -> bool {
        self.is_time
    }

    /// Returns the comparisons of bounds that the test stands for, by value.
    pub fn to_comparisons(&self) -> BucketPredicate {
        BucketPredicate::any(self.values.iter().map(|value| {
            let both = [
                self.bound(Side::Min, CompareOp::Lte, value),
                self.bound(Side::Max, CompareOp::Gte, value),
            ];
            BucketPredicate::all(both.map(BucketPredicate::Bound))
        }))
    }

    /// Returns what all values imply: the least bound is at most the greatest value, and the greatest at least the least.
    pub fn hull(&self) -> Vec<BoundTest> {
        let (Some(least), Some(greatest)) = (self.values.first(), self.values.last()) else {
            return Vec::new();
        };
        vec![
            self.bound(Side::Min, CompareOp::Lte, greatest),
            self.bound(Side::Max, CompareOp::Gte, least),
        ]
    }

    fn bound(&self, side: Side, op: CompareOp, value: &Value) -> BoundTest {
        BoundTest {
            is_time: self.is_time,
            collation: self.collation.clone(),
            ..BoundTest::new(side, &self.path, op, value)
        }
    }

    /// Evaluates the test on a header; `last` holds the bounds that were read last.
    pub(super) fn truth<'p, 'h>(
        &'p self,
        header: &'h (impl BucketHeader + ?Sized),
        last: &mut Option<AskedBounds<'p, 'h>>,
    ) -> Result<Truth> {
        let by_bounds = || self.truth_of(header, &mut None);
        if !self.is_time
            && let Some(truth) = self.answer.truth(&self.path, header, by_bounds)?
        {
            return Ok(truth);
        }
        Ok(self.truth_of(header, last))
    }

    fn truth_of<'p, 'h>(
        &'p self,
        header: &'h (impl BucketHeader + ?Sized),
        last: &mut Option<AskedBounds<'p, 'h>>,
    ) -> Truth {
        match bounds_of(&self.path, header, last) {
            Bounds::Absent => Truth::False,
            Bounds::Unknown => Truth::Unknown,
            Bounds::Between(min, max) if self.is_time && is_rounded_up(min) => {
                match self.values.first() {
                    Some(least) if self.is_at_most(least, max) => Truth::Unknown,
                    _ => Truth::False,
                }
            }
            Bounds::Between(min, max) => {
                let is_below = |value: &Value| {
                    let order = self.collation.compare(value.as_ref(), min);
                    order.is_lt()
                };
                let next = self.values.partition_point(is_below);
                let next = self.values.get(next);
                Truth::of(next.is_some_and(|value| self.is_at_most(value, max)))
            }
        }
    }

    fn is_at_most(&self, value: &Value, max: ValueRef<'_>) -> bool {
        self.collation.compare(value.as_ref(), max).is_le()
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, ObjectId, doc};

    use super::*;

    /// A header with the bounds of one field.
    struct Header(Document);

    impl BucketHeader for Header {
        fn id(&self) -> ObjectId {
            ObjectId::default()
        }

        fn meta(&self) -> ValueRef<'_> {
            ValueRef::Missing
        }

        fn min(&self, _: &str) -> ValueRef<'_> {
            self.0.get("min")
        }

        fn max(&self, _: &str) -> ValueRef<'_> {
            self.0.get("max")
        }

        fn count(&self) -> u32 {
            1
        }
    }

    /// Compares the test of each of some lists with one of its values passing.
    fn check(lists: impl Iterator<Item = Vec<Value>>, bounds: &[Value], is_time: bool) {
        for list in lists.filter(|list| !list.is_empty()) {
            let test = ValuesTest::new("f".into(), list.clone(), is_time, Collation::default());
            let comparisons = test.to_comparisons();
            for min in bounds {
                for max in bounds {
                    let header = Header(doc! {"min": min.clone(), "max": max.clone()});
                    assert_eq!(
                        test.truth(&header, &mut None).unwrap(),
                        comparisons.truth(&header, None).unwrap(),
                        "{list:?} between {min:?} and {max:?}"
                    );
                }
            }
        }
    }

    /// Returns all lists of some of the values.
    fn lists_of(values: &[Value]) -> impl Iterator<Item = Vec<Value>> {
        (0..1_usize << values.len()).map(|taken| {
            let values = values.iter().enumerate();
            let taken = values.filter(|(at, _)| taken >> at & 1 == 1);
            taken.map(|(_, value)| value.clone()).collect()
        })
    }

    #[test]
    fn the_test_of_a_list_is_one_of_its_values_passing() {
        let values = [
            3.into(),
            (-7.5).into(),
            "a".into(),
            "m".into(),
            true.into(),
            Value::DateTime(900),
            ObjectId::default().into(),
        ];
        let mut bounds = values.to_vec();
        bounds.extend([
            Value::Null,
            Value::Missing,
            Value::MinKey,
            Value::MaxKey,
            4.into(),
            "b".into(),
            doc! {}.into(),
            Vec::<Value>::new().into(),
        ]);
        check(lists_of(&values), &bounds, false);
    }

    #[test]
    fn times_before_1970_are_below_their_lower_bound() {
        let times = [-1000, -5, 0, 5, 1000].map(Value::DateTime);
        check(lists_of(&times), &times, true);
    }
}
