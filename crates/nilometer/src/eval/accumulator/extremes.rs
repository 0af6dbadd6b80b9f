//! `$min`, `$max`, `$minN`, `$maxN`: null and missing are skipped, values of all types compare in
//! the order of BSON, of equal values the first is kept.

use std::cmp::Ordering;

use nilometer_bson::number::compare_f64;
use nilometer_bson::{Value, ValueRef};

use crate::eval::{Collation, memory_bytes};

/// The least or greatest value so far.
#[derive(Clone, Debug, Default)]
pub struct Extreme(Value);

impl Extreme {
    /// Takes `value` if it is less.
    #[inline]
    pub fn offer_least(&mut self, value: ValueRef<'_>, collation: &Collation) {
        self.offer(value, Ordering::Less, collation);
    }

    /// Takes `value` if it is greater.
    #[inline]
    pub fn offer_greatest(&mut self, value: ValueRef<'_>, collation: &Collation) {
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

    /// The value, missing if there was none.
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

/// The first of the least doubles.
pub(super) fn least_f64(values: &[f64]) -> Option<ValueRef<'static>> {
    extreme_f64(values, Ordering::Less)
}

/// The first of the greatest doubles.
pub(super) fn greatest_f64(values: &[f64]) -> Option<ValueRef<'static>> {
    extreme_f64(values, Ordering::Greater)
}

fn extreme_f64(values: &[f64], better: Ordering) -> Option<ValueRef<'static>> {
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
pub struct Bounded {
    n: usize,
    greatest: bool,
    collation: Collation,
    /// At most twice `n` values and a few; the first `sorted` are the best so far, in order.
    values: Vec<Value>,
    sorted: usize,
    bytes: usize,
}

/// Values gathered beyond `n` before they are sorted out.
const SLACK: usize = 32;

impl Bounded {
    /// Keeps `n` values.
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
        if self.sorted == self.n
            && let Some(worst) = self
                .sorted
                .checked_sub(1)
                .and_then(|at| self.values.get(at))
            && !self.order(value, worst.as_ref()).is_lt()
        {
            return;
        }
        let value = value.to_value();
        self.bytes += memory_bytes(&value);
        self.values.push(value);
        if self.values.len() >= self.n.saturating_mul(2).saturating_add(SLACK) {
            self.settle();
        }
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
