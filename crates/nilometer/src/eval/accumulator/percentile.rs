//! `$percentile` and `$median`.
//!
//! The method `approximate` is computed exactly: the value at rank ceil(p·n) of the sorted numbers,
//! which is also what MongoDB's digest returns for small groups. It costs eight bytes per number, or sixteen for each different
//! one where numbers repeat often, counted against the stage's memory. NaN and values that are not numbers are skipped; without
//! numbers the results are null. Of two numbers the median is the smaller.

use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, Value, ValueRef, array};

use super::saved;
use crate::error::{Error, Result};
use crate::eval::{EvalContext, Expression};

/// The requested ranks.
#[derive(Clone, Debug, Default)]
pub enum PercentileList {
    /// Not a percentile operator.
    #[default]
    None,
    /// Constant ranks.
    Constant(Arc<[f64]>),
    /// Ranks that depend on variables.
    Deferred(Box<Expression>),
}

impl PercentileList {
    /// Parses `p`: an expression that is constant or uses variables only.
    pub(crate) fn parse(p: Expression) -> Result<Self> {
        match p.as_constant() {
            Some(value) => Ok(Self::Constant(check(value.as_ref())?)),
            None => {
                let mut reads = crate::eval::Dependencies::default();
                p.dependencies(&mut reads);
                if !reads.reads_nothing() {
                    return Err(invalid("must be a constant expression"));
                }
                Ok(Self::Deferred(Box::new(p)))
            }
        }
    }

    /// Returns the ranks, each from 0 to 1.
    pub fn resolve(&self, ctx: &EvalContext<'_>) -> Result<Arc<[f64]>> {
        match self {
            Self::None => Ok(Arc::new([])),
            Self::Constant(ranks) => Ok(Arc::clone(ranks)),
            Self::Deferred(p) => check(p.evaluate(DocRef::EMPTY, ctx)?.as_ref()),
        }
    }
}

fn invalid(what: &str) -> Error {
    Error::bad_value(format!("The $percentile 'p' field {what}"))
}

fn check(p: ValueRef<'_>) -> Result<Arc<[f64]>> {
    const RANKS: &str = "must be an array of numbers from [0.0, 1.0]";
    let array = p.as_array().ok_or_else(|| invalid(RANKS))?;
    let ranks = array
        .iter()
        .map(|rank| {
            Number::of(rank)
                .map(Number::to_f64)
                .filter(|rank| (0.0..=1.0).contains(rank))
                .ok_or_else(|| invalid(RANKS))
        })
        .collect::<Result<Vec<f64>>>()?;
    if ranks.is_empty() {
        return Err(invalid("cannot be an empty array"));
    }
    Ok(ranks.into())
}

/// Numbers after which a state looks for repeated ones for the first time.
const COUNTED_MIN: usize = 4096;

/// Numbers above which a state does not look for repeated ones: that would sort too many at once.
const COUNTED_MAX: usize = 1 << 20;

/// Numbers are counted if each occurs so often on average.
const REPETITIONS_MIN: usize = 4;

/// A number and how often it was added.
type Counted = (f64, u64);

/// The state of `$percentile` and `$median`: all numbers added.
#[derive(Clone, Debug)]
pub struct PercentileState {
    ranks: Arc<[f64]>,
    /// True to return one value instead of an array.
    single: bool,
    /// Numbers that were not counted yet, in any order.
    numbers: Vec<f64>,
    /// The counted ones in ascending order.
    counted: Vec<Counted>,
    /// How many numbers are counted next.
    count_at: usize,
}

impl PercentileState {
    /// Creates an empty state.
    pub fn new(ranks: Arc<[f64]>, single: bool) -> Self {
        Self {
            ranks,
            single,
            numbers: Vec::new(),
            counted: Vec::new(),
            count_at: COUNTED_MIN,
        }
    }

    /// Adds a value if it is a number.
    pub fn add(&mut self, value: ValueRef<'_>) {
        if let Some(number) = Number::of(value).map(Number::to_f64) {
            self.add_f64(number);
        }
    }

    /// Adds a number.
    pub(super) fn add_f64(&mut self, number: f64) {
        if number.is_nan() {
            return;
        }
        self.numbers.push(number);
        if self.numbers.len() >= self.count_at {
            self.count();
        }
    }

    /// Counts the numbers, if they repeat often.
    fn count(&mut self) {
        self.numbers.sort_unstable_by(f64::total_cmp);
        let counted = counted(&self.numbers);
        if counted.len() * REPETITIONS_MIN > self.numbers.len() {
            self.count_at = match self.numbers.len() * REPETITIONS_MIN {
                at @ ..=COUNTED_MAX => at,
                _ => usize::MAX,
            };
            return;
        }
        self.numbers.clear();
        self.counted = merged(std::mem::take(&mut self.counted), counted);
        self.count_at = COUNTED_MIN.max(2 * REPETITIONS_MIN * self.counted.len());
    }

    pub(super) fn save(&self) -> Value {
        let numbers = saved::f64s(&self.numbers);
        if self.counted.is_empty() {
            return numbers;
        }
        let (values, counts): (Vec<f64>, Vec<u64>) = self.counted.iter().copied().unzip();
        array![numbers, saved::f64s(&values), saved::u64s(&counts)]
    }

    pub(super) fn restore(&mut self, saved: ValueRef<'_>) -> Option<()> {
        let Some(parts) = saved.as_array() else {
            self.numbers = saved::as_f64s(saved)?;
            return Some(());
        };
        let mut parts = parts.iter();
        self.numbers = saved::as_f64s(parts.next()?)?;
        let values = saved::as_f64s(parts.next()?)?;
        let counts = saved::as_u64s(parts.next()?)?;
        let is_sound = values.len() == counts.len()
            && values.is_sorted_by(|a, b| a.total_cmp(b).is_lt())
            && !values.iter().any(|number| number.is_nan())
            && !counts.contains(&0)
            && parts.next().is_none();
        self.counted = values.into_iter().zip(counts).collect();
        is_sound.then_some(())
    }

    pub(super) fn merge(&mut self, later: Self) {
        self.numbers.extend(later.numbers);
        if !later.counted.is_empty() {
            self.counted = merged(std::mem::take(&mut self.counted), later.counted);
        }
        if (self.count_at..=COUNTED_MAX).contains(&self.numbers.len()) {
            self.count();
        }
    }

    pub(super) fn finish(self, ctx: &EvalContext<'_>) -> Result<Value> {
        let numbers = ctx.sort_numbers(self.numbers)?;
        if self.counted.is_empty() {
            return Ok(of_sorted(&numbers, &self.ranks, self.single));
        }
        let all = merged(self.counted, counted(&numbers));
        Ok(of_counted(&all, &self.ranks, self.single))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<f64>() + self.counted.capacity() * size_of::<Counted>()
    }
}

/// Counts numbers in ascending order. Zeros of both signs are two numbers.
fn counted(sorted: &[f64]) -> Vec<Counted> {
    let runs = sorted.chunk_by(|a, b| a.to_bits() == b.to_bits());
    let first = |run: &[f64]| Some((*run.first()?, run.len() as u64));
    runs.filter_map(first).collect()
}

/// Merges two lists of counted numbers.
fn merged(left: Vec<Counted>, right: Vec<Counted>) -> Vec<Counted> {
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        match a.0.total_cmp(&b.0) {
            Ordering::Less => out.extend(left.next()),
            Ordering::Greater => out.extend(right.next()),
            Ordering::Equal => {
                out.push((a.0, a.1.saturating_add(b.1)));
                left.next();
                right.next();
            }
        }
    }
    out.extend(left);
    out.extend(right);
    out
}

/// Returns the percentiles of counted numbers.
fn of_counted(all: &[Counted], ranks: &[f64], single: bool) -> Value {
    let mut ends = Vec::with_capacity(all.len());
    let mut count: u64 = 0;
    for (_, times) in all {
        count = count.saturating_add(*times);
        ends.push(count);
    }
    of_ranks(count as f64, ranks, single, |position| {
        let at = ends.partition_point(|end| *end < position.max(1) as u64);
        all.get(at).map(|(number, _)| *number)
    })
}

/// Returns the percentiles of numbers in ascending order.
pub fn of_sorted(numbers: &[f64], ranks: &[f64], single: bool) -> Value {
    of_ranks(numbers.len() as f64, ranks, single, |position| {
        numbers.get(position.saturating_sub(1)).copied()
    })
}

/// Returns the numbers at the positions of ranks, counted from one; position 0 is that of the first.
fn of_ranks(
    count: f64,
    ranks: &[f64],
    single: bool,
    number: impl Fn(usize) -> Option<f64>,
) -> Value {
    let at = |rank: &f64| number((rank * count).ceil() as usize).map_or(Value::Null, Value::Double);
    if single {
        ranks.first().map_or(Value::Null, at)
    } else {
        Value::from(ranks.iter().map(at).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    /// Numbers of which `different` differ.
    fn numbers(count: usize, different: u64, seed: u64) -> Vec<f64> {
        let mut random = seed * 2 + 0x9E37_79B9_7F4A_7C15;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % different
        };
        let number = |n: u64| match n {
            0 => -0.0,
            1 => 0.0,
            2 => f64::INFINITY,
            n => n as f64 / 4.0 - 9.0,
        };
        (0..count).map(|_| number(next())).collect()
    }

    /// Counting repeated numbers changes no result, whatever is merged, saved and restored on the way.
    #[test]
    fn counted_numbers_have_the_percentiles_of_all() {
        let ranks: Arc<[f64]> = [0.0, 0.001, 0.25, 0.5, 0.95, 1.0].into();
        let counts = [0, 1, 5, 4095, 4096, 5000, 20_000, 70_000];
        for (seed, count) in (0..).zip(counts) {
            for different in [1, 3, 100, 3000, 1 << 40] {
                let all = numbers(count, different, seed);
                let mut state = PercentileState::new(Arc::clone(&ranks), false);
                for part in all.chunks(count.div_ceil(3).max(1)) {
                    let mut later = PercentileState::new(Arc::clone(&ranks), false);
                    part.iter().for_each(|number| later.add_f64(*number));
                    let saved = later.save();
                    let mut restored = PercentileState::new(Arc::clone(&ranks), false);
                    restored.restore(saved.as_ref()).unwrap();
                    state.merge(restored);
                    state.add_f64(f64::NAN);
                }
                let is_counted = !state.counted.is_empty();
                match different {
                    ..=100 => assert_eq!(is_counted, count >= COUNTED_MIN, "{count}"),
                    3000 => {}
                    _ => assert!(!is_counted, "{count}"),
                }
                let mut sorted = all;
                sorted.sort_unstable_by(f64::total_cmp);
                let expected = of_sorted(&sorted, &ranks, false);
                let found = state.finish(&EvalContext::default()).unwrap();
                let (found, expected) = (doc! {"p": found}, doc! {"p": expected});
                assert_eq!(found, expected, "{count} {different}");
            }
        }
    }

    #[test]
    fn damaged_states_are_refused() {
        let whole = || saved::f64s(&[1.0, 2.0]);
        for damaged in [
            array![],
            array![whole()],
            array![whole(), whole()],
            array![whole(), whole(), saved::u64s(&[1])],
            array![whole(), saved::f64s(&[2.0, 1.0]), saved::u64s(&[1, 1])],
            array![whole(), whole(), saved::u64s(&[1, 1]), 1],
            array![whole(), whole(), saved::u64s(&[1, 0])],
            array![whole(), saved::f64s(&[1.0, f64::NAN]), saved::u64s(&[1, 1])],
            Value::from(1),
        ] {
            let mut state = PercentileState::new([0.5].into(), true);
            assert!(state.restore(damaged.as_ref()).is_none(), "{damaged:?}");
        }
    }
}
