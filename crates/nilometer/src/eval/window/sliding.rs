//! Accumulators over a sliding window, with two stacks.
//!
//! ```text
//! front  one state for each document at the old end: that document and all later ones up to
//!        the last refill;  leaving the window is a pop
//! back   one state of all documents that entered since the refill;  entering is an add
//! result top of front merged with back
//! refill when front is empty and a document must leave: front is built from back's documents
//! ```
//!
//! Each document is added twice and merged twice in total, whatever the size of the window, and a
//! state never contains values that have left.

use std::ops::Range;

use nilometer_bson::Value;
use nilometer_bson::block::ColumnBlock;
use nilometer_bson::number::Number;

use super::numbers;
use super::partition::FunctionInput;
use crate::error::Result;
use crate::eval::accumulator::{
    AccumulatorKind as Kind, AccumulatorSpec, AccumulatorState, ValueSet, percentile,
};
use crate::eval::{Collation, EvalContext};

/// An aggregate that can be added to in order and merged with a later one.
pub(super) trait Aggregate {
    type State: Clone;
    fn empty(&self) -> Self::State;
    fn add(&self, state: &mut Self::State, at: usize) -> Result<()>;
    fn merge(&self, state: &mut Self::State, later: Self::State) -> Result<()>;
}

/// A window as two stacks.
struct TwoStacks<A: Aggregate> {
    aggregate: A,
    front: Vec<A::State>,
    back: A::State,
    /// Range of positions in `back`.
    back_range: Range<usize>,
}

impl<A: Aggregate> TwoStacks<A> {
    fn new(aggregate: A) -> Self {
        let back = aggregate.empty();
        Self {
            aggregate,
            front: Vec::new(),
            back,
            back_range: 0..0,
        }
    }

    fn push(&mut self, at: usize) -> Result<()> {
        if self.back_range.is_empty() {
            self.back_range = at..at;
        }
        self.aggregate.add(&mut self.back, at)?;
        self.back_range.end = at + 1;
        Ok(())
    }

    fn pop(&mut self) -> Result<()> {
        if self.front.is_empty() {
            for at in self.back_range.clone().rev() {
                let mut state = self.aggregate.empty();
                self.aggregate.add(&mut state, at)?;
                if let Some(behind) = self.front.last() {
                    self.aggregate.merge(&mut state, behind.clone())?;
                }
                self.front.push(state);
            }
            self.back = self.aggregate.empty();
            self.back_range = self.back_range.end..self.back_range.end;
        }
        self.front.pop();
        Ok(())
    }

    fn state(&self) -> Result<A::State> {
        match self.front.last() {
            None => Ok(self.back.clone()),
            Some(front) => {
                let mut state = front.clone();
                self.aggregate.merge(&mut state, self.back.clone())?;
                Ok(state)
            }
        }
    }
}

/// Returns the result of every frame. Ends of frames only move forward.
pub(super) fn slide<A: Aggregate, V: Clone>(
    aggregate: A,
    frames: &[Range<usize>],
    finish: impl Fn(A::State) -> V,
) -> Result<Vec<V>> {
    let mut window = TwoStacks::new(aggregate);
    let mut values: Vec<V> = Vec::with_capacity(frames.len());
    let (mut start, mut end) = (0, 0);
    let mut last: Option<&Range<usize>> = None;
    for frame in frames {
        if last == Some(frame)
            && let Some(value) = values.last()
        {
            values.push(value.clone());
            continue;
        }
        last = Some(frame);
        if frame.start >= end {
            // The frames do not overlap: clear the window instead of popping each document.
            window.front.clear();
            window.back = window.aggregate.empty();
            window.back_range = 0..0;
            (start, end) = (frame.start, frame.start);
        }
        while end < frame.end {
            window.push(end)?;
            end += 1;
        }
        while start < frame.start {
            window.pop()?;
            start += 1;
        }
        values.push(finish(window.state()?));
    }
    Ok(values)
}

/// An accumulator over the arguments of a partition.
struct AccumulatorAggregate<'a> {
    spec: &'a AccumulatorSpec,
    empty: AccumulatorState,
    argument: &'a FunctionInput,
}

impl Aggregate for AccumulatorAggregate<'_> {
    type State = AccumulatorState;

    fn empty(&self) -> AccumulatorState {
        self.empty.clone()
    }

    fn add(&self, state: &mut AccumulatorState, at: usize) -> Result<()> {
        // For `$top` and `$bottom`.
        match self.argument.keys.get(at) {
            Some(key) => {
                let value = self.argument.values.to_value(at);
                self.spec.add_ranked(state, key.clone(), value);
                Ok(())
            }
            None => self.spec.add_value(state, self.argument.values.value(at)),
        }
    }

    fn merge(&self, state: &mut AccumulatorState, later: AccumulatorState) -> Result<()> {
        self.spec.merge(state, later)
    }
}

/// Returns the accumulator's result for every frame.
pub(super) fn accumulate(
    spec: &AccumulatorSpec,
    argument: &FunctionInput,
    frames: &[Range<usize>],
    ctx: &EvalContext<'_>,
) -> Result<ColumnBlock> {
    match numbers::accumulate(spec, &argument.values, frames)? {
        Some(answers) => Ok(answers),
        None => accumulate_any(spec, argument, frames, ctx),
    }
}

/// [`accumulate`] for values of any type.
pub(super) fn accumulate_any(
    spec: &AccumulatorSpec,
    argument: &FunctionInput,
    frames: &[Range<usize>],
    ctx: &EvalContext<'_>,
) -> Result<ColumnBlock> {
    let column = &argument.values;
    let empty = spec.new_state(&Value::Null, ctx)?;
    let each = |answer: &dyn Fn(Range<usize>) -> Value| {
        let end = column.len();
        per_frame(frames, |frame| {
            answer(frame.start.min(end)..frame.end.min(end))
        })
    };
    let n = spec
        .constant_n()
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let or_null = |at: usize| crate::eval::accumulator::or_null(column.to_value(at));
    let values = match spec.kind() {
        Kind::Push => each(&|rows| {
            let present = rows.filter(|at| !column.is_missing(*at));
            Value::Array(present.map(|at| column.to_value(at)).collect())
        }),
        Kind::AddToSet => each(&|rows| {
            let mut set = ValueSet::new(Collation::clone(spec.collation()));
            rows.for_each(|at| set.add(column.value(at)));
            set.finish()
        }),
        Kind::First => each(&|mut rows| rows.next().map_or(Value::Null, or_null)),
        Kind::Last => each(&|mut rows| rows.next_back().map_or(Value::Null, or_null)),
        Kind::FirstN => each(&|rows| Value::Array(rows.take(n).map(or_null).collect())),
        Kind::LastN => each(&|rows| {
            let skipped = rows.len().saturating_sub(n);
            Value::Array(rows.skip(skipped).map(or_null).collect())
        }),
        Kind::Count => per_frame(frames, |frame| {
            crate::eval::accumulator::count_value(frame.len() as u64)
        }),
        Kind::Percentile | Kind::Median => percentiles(spec, column, frames, ctx)?,
        _ => {
            let aggregate = AccumulatorAggregate {
                spec,
                empty,
                argument,
            };
            slide(aggregate, frames, |state| spec.finish(state))?
        }
    };
    Ok(ColumnBlock::from_values(&values))
}

/// Returns a result for every frame; consecutive equal frames share it.
fn per_frame(frames: &[Range<usize>], answer: impl Fn(&Range<usize>) -> Value) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::with_capacity(frames.len());
    let mut last: Option<&Range<usize>> = None;
    for frame in frames {
        let value = match (last == Some(frame), values.last()) {
            (true, Some(value)) => value.clone(),
            _ => answer(frame),
        };
        values.push(value);
        last = Some(frame);
    }
    values
}

/// Returns percentiles from a sorted list that numbers enter and leave by binary search.
fn percentiles(
    spec: &AccumulatorSpec,
    column: &ColumnBlock,
    frames: &[Range<usize>],
    ctx: &EvalContext<'_>,
) -> Result<Vec<Value>> {
    let ranks = spec.percentiles(ctx)?;
    let single = spec.kind() == Kind::Median;
    let numbers: Vec<Option<f64>> = column
        .iter()
        .map(|value| {
            let number = Number::of(value)?;
            (!number.is_nan()).then(|| number.to_f64())
        })
        .collect();
    let number = |at: usize| numbers.get(at).copied().flatten();
    let mut sorted: Vec<f64> = Vec::new();
    let find =
        |sorted: &[f64], number: f64| sorted.partition_point(|v| v.total_cmp(&number).is_lt());
    let mut values = Vec::with_capacity(frames.len());
    let (mut start, mut end) = (0, 0);
    for frame in frames {
        while end < frame.end {
            if let Some(number) = number(end) {
                sorted.insert(find(&sorted, number), number);
            }
            end += 1;
        }
        while start < frame.start {
            if start < end
                && let Some(number) = number(start)
            {
                sorted.remove(find(&sorted, number));
            }
            start += 1;
        }
        end = end.max(start);
        values.push(percentile::of_sorted(&sorted, &ranks, single));
    }
    Ok(values)
}
