//! Intervals of values, and sets of them.
//!
//! A set is a list of disjoint intervals in ascending order. All operations take the collator of the index, by which
//! its keys order strings.

use std::cmp::Ordering;

use nilometer_bson::Value;
use nilometer_bson::order::{Collator, compare_with};

/// The values between two ends, each included or excluded.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Lower end.
    pub low: Value,
    /// Upper end.
    pub high: Value,
    /// True if the lower end is included.
    pub low_inclusive: bool,
    /// True if the upper end is included.
    pub high_inclusive: bool,
}

type Order<'a> = Option<&'a dyn Collator>;

fn compare(a: &Value, b: &Value, order: Order<'_>) -> Ordering {
    compare_with(a.as_ref(), b.as_ref(), order)
}

impl Interval {
    /// Returns the interval of all values.
    pub fn all() -> Self {
        Self::closed(Value::MinKey, Value::MaxKey)
    }

    /// Returns the interval of one value.
    pub fn point(value: Value) -> Self {
        Self::closed(value.clone(), value)
    }

    /// Returns the interval from `low` to `high`, both included.
    pub fn closed(low: Value, high: Value) -> Self {
        Self::new(low, true, high, true)
    }

    /// Returns the interval from `low` to `high`.
    pub fn new(low: Value, low_inclusive: bool, high: Value, high_inclusive: bool) -> Self {
        Self {
            low,
            high,
            low_inclusive,
            high_inclusive,
        }
    }

    /// True if the interval contains every value.
    pub fn is_all(&self) -> bool {
        matches!((&self.low, &self.high), (Value::MinKey, Value::MaxKey))
            && self.low_inclusive
            && self.high_inclusive
    }

    /// True if the interval contains exactly one value.
    pub fn is_point(&self, order: Order<'_>) -> bool {
        self.low_inclusive && self.high_inclusive && compare(&self.low, &self.high, order).is_eq()
    }

    /// True if the interval contains no value.
    pub fn is_empty(&self, order: Order<'_>) -> bool {
        match compare(&self.low, &self.high, order) {
            Ordering::Less => false,
            Ordering::Equal => !(self.low_inclusive && self.high_inclusive),
            Ordering::Greater => true,
        }
    }

    /// True if the interval contains `value`.
    pub fn contains(&self, value: &Value, order: Order<'_>) -> bool {
        let above = match compare(&self.low, value, order) {
            Ordering::Less => true,
            Ordering::Equal => self.low_inclusive,
            Ordering::Greater => false,
        };
        above
            && match compare(value, &self.high, order) {
                Ordering::Less => true,
                Ordering::Equal => self.high_inclusive,
                Ordering::Greater => false,
            }
    }

    fn intersection(&self, other: &Self, order: Order<'_>) -> Option<Self> {
        let (low, low_inclusive) = match compare(&self.low, &other.low, order) {
            Ordering::Less => (&other.low, other.low_inclusive),
            Ordering::Greater => (&self.low, self.low_inclusive),
            Ordering::Equal => (&self.low, self.low_inclusive && other.low_inclusive),
        };
        let (high, high_inclusive) = match compare(&self.high, &other.high, order) {
            Ordering::Less => (&self.high, self.high_inclusive),
            Ordering::Greater => (&other.high, other.high_inclusive),
            Ordering::Equal => (&self.high, self.high_inclusive && other.high_inclusive),
        };
        let both = Self::new(low.clone(), low_inclusive, high.clone(), high_inclusive);
        (!both.is_empty(order)).then_some(both)
    }
}

/// Returns the union of `intervals`, which may be in any order.
pub(super) fn normalised(mut intervals: Vec<Interval>, order: Order<'_>) -> Vec<Interval> {
    intervals.retain(|interval| !interval.is_empty(order));
    intervals
        .sort_by(|a, b| compare(&a.low, &b.low, order).then(b.low_inclusive.cmp(&a.low_inclusive)));
    let mut out: Vec<Interval> = Vec::with_capacity(intervals.len());
    for interval in intervals {
        match out.last_mut() {
            Some(last) if touches(last, &interval, order) => {
                match compare(&last.high, &interval.high, order) {
                    Ordering::Less => {
                        last.high = interval.high;
                        last.high_inclusive = interval.high_inclusive;
                    }
                    Ordering::Equal => last.high_inclusive |= interval.high_inclusive,
                    Ordering::Greater => {}
                }
            }
            _ => out.push(interval),
        }
    }
    out
}

/// True if no value lies between the end of `a` and the start of `b`. `b` does not start before `a`.
fn touches(a: &Interval, b: &Interval, order: Order<'_>) -> bool {
    match compare(&a.high, &b.low, order) {
        Ordering::Greater => true,
        Ordering::Equal => a.high_inclusive || b.low_inclusive,
        Ordering::Less => false,
    }
}

/// Returns the intersection of two sets.
pub(super) fn intersection(a: &[Interval], b: &[Interval], order: Order<'_>) -> Vec<Interval> {
    let mut out = Vec::new();
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(x), Some(y)) = (left.peek(), right.peek()) {
        out.extend(x.intersection(y, order));
        // The interval that ends first intersects no further interval.
        let ends = compare(&x.high, &y.high, order).then(x.high_inclusive.cmp(&y.high_inclusive));
        if ends.is_lt() {
            left.next();
        } else {
            right.next();
        }
    }
    out
}

/// Returns the complement of a set.
pub(super) fn complement(set: &[Interval], order: Order<'_>) -> Vec<Interval> {
    let mut out = Vec::with_capacity(set.len() + 1);
    let (mut low, mut low_inclusive) = (Value::MinKey, true);
    for interval in set {
        out.push(Interval::new(
            low,
            low_inclusive,
            interval.low.clone(),
            !interval.low_inclusive,
        ));
        low = interval.high.clone();
        low_inclusive = !interval.high_inclusive;
    }
    out.push(Interval::new(low, low_inclusive, Value::MaxKey, true));
    out.retain(|interval| !interval.is_empty(order));
    out
}
