//! `$min`, `$max`, `$minN`, `$maxN`. Null and missing are skipped, values of all types compare in
//! BSON order, of equal values the first is kept.

use std::cmp::Ordering;

use nilometer_bson::number::compare_f64;
use nilometer_bson::{Value, ValueRef};

use crate::eval::{Collation, memory_bytes};

/// The least or greatest value so far.
#[derive(Clone, Debug, Default)]
pub struct MinMaxState(Value);

impl MinMaxState {
    /// Replaces the value if `value` is less.
    #[inline]
    pub fn update_min(&mut self, value: ValueRef<'_>, collation: &Collation) {
        self.offer(value, Ordering::Less, collation);
    }

    /// Replaces the value if `value` is greater.
    #[inline]
    pub fn update_max(&mut self, value: ValueRef<'_>, collation: &Collation) {
        self.offer(value, Ordering::Greater, collation);
    }

    fn offer(&mut self, value: ValueRef<'_>, better: Ordering, collation: &Collation) {
        if value.is_nullish() {
            return;
        }
        if self.0.is_missing() || collation.compare(value, self.0.as_ref()) == better {
            self.0 = value.to_value();
        }
    }

    /// Returns the value, missing if there was none.
    pub fn value(&self) -> ValueRef<'_> {
        self.0.as_ref()
    }

    pub(super) fn finish(self) -> Value {
        super::or_null(self.0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        memory_bytes(&self.0)
    }
}

/// Independent comparison chains, so that comparisons do not wait for each other.
const LANES: usize = 8;

/// Returns the value that `better` prefers over all others.
fn extreme_of<T: Copy>(values: &[T], better: impl Fn(T, T) -> T) -> Option<T> {
    let first = *values.first()?;
    let mut lanes = [first; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for at in 0..LANES {
            lanes[at] = better(lanes[at], chunk[at]);
        }
    }
    let rest = rest.iter().copied().fold(first, &better);
    Some(lanes.into_iter().fold(rest, better))
}

/// Returns the least integer.
pub(super) fn least<T: Copy + Ord>(values: &[T]) -> Option<T> {
    extreme_of(values, T::min)
}

/// Returns the greatest integer.
pub(super) fn greatest<T: Copy + Ord>(values: &[T]) -> Option<T> {
    extreme_of(values, T::max)
}

/// Returns the first of the least doubles.
pub(super) fn least_f64(values: &[f64]) -> Option<ValueRef<'static>> {
    let best = extreme_of(values, |a, b| if b < a { b } else { a })?;
    extreme_f64(values, best, Ordering::Less)
}

/// Returns the first of the greatest doubles.
pub(super) fn greatest_f64(values: &[f64]) -> Option<ValueRef<'static>> {
    let best = extreme_of(values, |a, b| if b > a { b } else { a })?;
    extreme_f64(values, best, Ordering::Greater)
}

/// Returns the first value equal to `best` (zeros of both signs are equal, but print differently).
/// If there are NaNs the values are compared one by one.
fn extreme_f64(values: &[f64], best: f64, better: Ordering) -> Option<ValueRef<'static>> {
    let nans = values.iter().fold(false, |any, value| any | value.is_nan());
    if !nans {
        if best != 0.0 {
            return Some(ValueRef::Double(best));
        }
        let first = values.iter().find(|value| **value == best)?;
        return Some(ValueRef::Double(*first));
    }
    let (first, rest) = values.split_first()?;
    let mut best = *first;
    for value in rest {
        if compare_f64(*value, best) == better {
            best = *value;
        }
    }
    Some(ValueRef::Double(best))
}

/// The `n` least or greatest values, best first.
#[derive(Clone, Debug)]
pub struct MinMaxN {
    n: usize,
    greatest: bool,
    collation: Collation,
    /// At most `2 * n + SLACK` values, or `n` if that is small; the first `sorted` are the best so far, in order.
    values: Vec<Value>,
    sorted: usize,
    bytes: usize,
}

/// Largest `n` for which values are kept in order; others are put in order now and then.
const INSERTED_MAX: usize = 16;

/// Values collected beyond `n` before the worst are dropped.
const SLACK: usize = 32;

impl MinMaxN {
    /// Creates a state that keeps `n` values.
    pub fn new(n: i64, greatest: bool, collation: Collation) -> Self {
        Self {
            n: usize::try_from(n).unwrap_or(usize::MAX),
            greatest,
            collation,
            values: Vec::new(),
            sorted: 0,
            bytes: 0,
        }
    }

    /// Adds a value unless it is null or missing.
    pub fn add(&mut self, value: ValueRef<'_>) {
        if value.is_nullish() {
            return;
        }
        if let Some(worst) = self.worst()
            && !self.order(value, worst.as_ref()).is_lt()
        {
            return;
        }
        let value = value.to_value();
        self.bytes += memory_bytes(&value);
        if self.n <= INSERTED_MAX {
            return self.insert(value);
        }
        self.values.push(value);
        if self.values.len() >= self.n.saturating_mul(2).saturating_add(SLACK) {
            self.settle();
        }
    }

    /// Inserts a value behind those that are as good.
    fn insert(&mut self, value: Value) {
        let is_before = |known: &Value| !self.order(value.as_ref(), known.as_ref()).is_lt();
        let at = self.values.partition_point(is_before);
        self.values.insert(at, value);
        for worse in self.values.drain(self.n.min(self.values.len())..) {
            self.bytes -= memory_bytes(&worse);
        }
        self.sorted = self.values.len();
    }

    /// Adds ints or longs in order.
    pub(super) fn add_whole<T: Copy + Into<i64>>(
        &mut self,
        values: &[T],
        wrap: fn(T) -> ValueRef<'static>,
    ) {
        for value in values {
            let number: i64 = (*value).into();
            let is_behind = match self.worst() {
                Some(Value::Int64(worst)) => self.is_no_better(&number, worst),
                Some(Value::Int32(worst)) => self.is_no_better(&number, &i64::from(*worst)),
                _ => false,
            };
            if !is_behind {
                self.add(wrap(*value));
            }
        }
    }

    /// Adds doubles in order.
    pub(super) fn add_f64s(&mut self, values: &[f64]) {
        for value in values {
            // NaN is compared as a value.
            let is_behind = match self.worst() {
                Some(Value::Double(worst)) => self.is_no_better(value, worst),
                _ => false,
            };
            if !is_behind {
                self.add(ValueRef::Double(*value));
            }
        }
    }

    /// True if a number does not sort before the worst; false where one of them is NaN.
    fn is_no_better<T: PartialOrd>(&self, number: &T, worst: &T) -> bool {
        match self.greatest {
            true => number <= worst,
            false => number >= worst,
        }
    }

    /// Returns the last of the values once there are `n`: later values must be better.
    fn worst(&self) -> Option<&Value> {
        let last = self.sorted.checked_sub(1).filter(|_| self.sorted == self.n);
        last.and_then(|at| self.values.get(at))
    }

    fn order(&self, a: ValueRef<'_>, b: ValueRef<'_>) -> Ordering {
        let order = self.collation.compare(a, b);
        if self.greatest {
            order.reverse()
        } else {
            order
        }
    }

    fn settle(&mut self) {
        let mut values = std::mem::take(&mut self.values);
        values.sort_by(|a, b| self.order(a.as_ref(), b.as_ref()));
        values.truncate(self.n);
        self.bytes = values.iter().map(memory_bytes).sum();
        self.sorted = values.len();
        self.values = values;
    }

    pub(super) fn save(&self) -> Value {
        self.values.clone().into()
    }

    pub(super) fn merge(&mut self, later: Self) {
        for value in &later.values {
            self.add(value.as_ref());
        }
    }

    pub(super) fn finish(mut self) -> Value {
        self.settle();
        self.values.into()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.values.capacity() * size_of::<Value>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_the_extremes_of_their_values() {
        let mut seed = 88_172_645_463_325_252u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let special = [
            f64::NAN,
            -0.0,
            0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1.0,
            -1.0,
        ];
        for length in 0..60 {
            let longs: Vec<i64> = (0..length).map(|_| next().cast_signed()).collect();
            assert_eq!(least(&longs), longs.iter().min().copied());
            assert_eq!(greatest(&longs), longs.iter().max().copied());
            // Often without NaN, often with only zeros at the end.
            let kinds = 1 + next() as usize % special.len();
            let skipped = next() as usize % kinds;
            let doubles: Vec<f64> = (0..length)
                .map(|_| special[skipped + next() as usize % (kinds - skipped)])
                .collect();
            let (mut low, mut high) = (MinMaxState::default(), MinMaxState::default());
            for value in &doubles {
                low.update_min(ValueRef::Double(*value), &Collation::default());
                high.update_max(ValueRef::Double(*value), &Collation::default());
            }
            let bits = |value: Option<ValueRef<'_>>| match value {
                Some(ValueRef::Double(v)) => Some(v.to_bits()),
                _ => None,
            };
            assert_eq!(bits(least_f64(&doubles)), bits(Some(low.value())));
            assert_eq!(bits(greatest_f64(&doubles)), bits(Some(high.value())));
        }
    }
}
