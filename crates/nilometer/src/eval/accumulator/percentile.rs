//! `$percentile` and `$median`.
//!
//! The method `approximate` is computed exactly: the value at rank ceil(p·n) of the sorted numbers,
//! which is also what MongoDB's digest returns for small groups. It costs eight bytes per number,
//! counted against the stage's memory. NaN and values that are not numbers are skipped; without
//! numbers the results are null. Of two numbers the median is the smaller.

use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, Value, ValueRef};

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

/// The state of `$percentile` and `$median`: all numbers added.
#[derive(Clone, Debug)]
pub struct PercentileState {
    ranks: Arc<[f64]>,
    /// True to return one value instead of an array.
    single: bool,
    numbers: Vec<f64>,
}

impl PercentileState {
    /// Creates an empty state.
    pub fn new(ranks: Arc<[f64]>, single: bool) -> Self {
        Self {
            ranks,
            single,
            numbers: Vec::new(),
        }
    }

    /// Adds a value if it is a number.
    pub fn add(&mut self, value: ValueRef<'_>) {
        if let Some(number) = Number::of(value).map(Number::to_f64)
            && !number.is_nan()
        {
            self.numbers.push(number);
        }
    }

    pub(super) fn save(&self) -> Value {
        saved::f64s(&self.numbers)
    }

    pub(super) fn restore(&mut self, saved: ValueRef<'_>) -> Option<()> {
        self.numbers = saved::as_f64s(saved)?;
        Some(())
    }

    pub(super) fn merge(&mut self, later: Self) {
        self.numbers.extend(later.numbers);
    }

    pub(super) fn finish(self, ctx: &EvalContext<'_>) -> Result<Value> {
        let numbers = ctx.sort_numbers(self.numbers)?;
        Ok(of_sorted(&numbers, &self.ranks, self.single))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<f64>()
    }
}

/// Returns the percentiles of numbers in ascending order.
pub fn of_sorted(numbers: &[f64], ranks: &[f64], single: bool) -> Value {
    let at = |rank: &f64| {
        let position = (rank * numbers.len() as f64).ceil() as usize;
        numbers
            .get(position.saturating_sub(1))
            .map_or(Value::Null, |number| Value::Double(*number))
    };
    if single {
        ranks.first().map_or(Value::Null, at)
    } else {
        Value::from(ranks.iter().map(at).collect::<Vec<_>>())
    }
}
