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
use crate::eval::limits::MemoryMark;
use crate::eval::{Collation, EvalContext, memory_bytes};

/// An aggregate that can be added to in order and merged with a later one.
pub(super) trait Aggregate {
    type State: Clone;
    fn empty(&self) -> Self::State;
    fn add(&self, state: &mut Self::State, at: usize) -> Result<()>;
    fn merge(&self, state: &mut Self::State, later: Self::State) -> Result<()>;

    /// Returns the memory of a state besides its own size; 0 if it does not grow.
    fn bytes(&self, state: &Self::State) -> usize {
        let _ = state;
        0
    }
}

/// A window as two stacks.
struct TwoStacks<A: Aggregate> {
    aggregate: A,
    front: Vec<A::State>,
    back: A::State,
    /// Range of positions in `back`.
    back_range: Range<usize>,
    /// Memory of the states in `front`.
    front_bytes: usize,
}

impl<A: Aggregate> TwoStacks<A> {
    fn new(aggregate: A) -> Self {
        let back = aggregate.empty();
        Self {
            aggregate,
            front: Vec::new(),
            back,
            back_range: 0..0,
            front_bytes: 0,
        }
    }

    /// Returns the memory of the states.
    fn bytes(&self) -> usize {
        self.front_bytes + self.aggregate.bytes(&self.back)
    }

    fn push(&mut self, at: usize) -> Result<()> {
        if self.back_range.is_empty() {
            self.back_range = at..at;
        }
        self.aggregate.add(&mut self.back, at)?;
        self.back_range.end = at + 1;
        Ok(())
    }

    fn pop(&mut self, ctx: &EvalContext<'_>, mark: MemoryMark, beside: usize) -> Result<()> {
        if self.front.is_empty() {
            for at in self.back_range.clone().rev() {
                let mut state = self.aggregate.empty();
                self.aggregate.add(&mut state, at)?;
                if let Some(behind) = self.front.last() {
                    self.aggregate.merge(&mut state, behind.clone())?;
                }
                self.front_bytes += self.aggregate.bytes(&state);
                self.front.push(state);
                ctx.hold(mark, beside + self.bytes())?;
            }
            self.back = self.aggregate.empty();
            self.back_range = self.back_range.end..self.back_range.end;
        }
        if let Some(gone) = self.front.pop() {
            let bytes = self.aggregate.bytes(&gone);
            self.front_bytes = self.front_bytes.saturating_sub(bytes);
        }
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
    let ctx = EvalContext::default();
    slide_within(aggregate, frames, &ctx, |state| Ok((finish(state), 0)))
}

/// [`slide`] within the limits of an operation. `finish` also returns the bytes of its result.
pub(super) fn slide_within<A: Aggregate, V: Clone>(
    aggregate: A,
    frames: &[Range<usize>],
    ctx: &EvalContext<'_>,
    finish: impl Fn(A::State) -> Result<(V, usize)>,
) -> Result<Vec<V>> {
    let mark = ctx.mark();
    let (mut bytes, mut last_bytes) = (0, 0);
    let mut window = TwoStacks::new(aggregate);
    let mut values: Vec<V> = Vec::with_capacity(frames.len());
    let (mut start, mut end) = (0, 0);
    let mut last: Option<&Range<usize>> = None;
    for frame in frames {
        if last == Some(frame)
            && let Some(value) = values.last()
        {
            values.push(value.clone());
            bytes += last_bytes;
            ctx.hold(mark, bytes + window.bytes())?;
            continue;
        }
        last = Some(frame);
        if frame.start >= end {
            // The frames do not overlap: clear the window instead of popping each document.
            window.front.clear();
            window.front_bytes = 0;
            window.back = window.aggregate.empty();
            window.back_range = 0..0;
            (start, end) = (frame.start, frame.start);
        }
        while end < frame.end {
            ctx.charge(1)?;
            window.push(end)?;
            end += 1;
        }
        while start < frame.start {
            ctx.charge(1)?;
            window.pop(ctx, mark, bytes)?;
            start += 1;
        }
        // The state is copied.
        ctx.hold(mark, bytes + 2 * window.bytes())?;
        let value;
        (value, last_bytes) = finish(window.state()?)?;
        bytes += last_bytes;
        values.push(value);
    }
    ctx.release(mark);
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
                let ctx = EvalContext::default();
                self.spec.add_ranked(state, key.clone(), value, &ctx)
            }
            None => self.spec.add_value(state, self.argument.values.value(at)),
        }
    }

    fn merge(&self, state: &mut AccumulatorState, later: AccumulatorState) -> Result<()> {
        self.spec.merge(state, later)
    }

    fn bytes(&self, state: &AccumulatorState) -> usize {
        state.memory_bytes() - size_of::<AccumulatorState>()
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
    let each = |answer: &dyn Fn(Range<usize>) -> Result<Value>| {
        let end = column.len();
        per_frame(frames, ctx, |frame| {
            answer(frame.start.min(end)..frame.end.min(end))
        })
    };
    let list = |rows: &mut dyn Iterator<Item = usize>, value: &dyn Fn(usize) -> Value| {
        let mut values = Vec::new();
        for at in rows {
            ctx.charge(1)?;
            values.push(value(at));
        }
        Ok(Value::Array(values.into_iter().collect()))
    };
    let n = spec
        .constant_n()
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let or_null = |at: usize| crate::eval::accumulator::or_null(column.to_value(at));
    let values = match spec.kind() {
        Kind::Push => each(&|rows| {
            let mut present = rows.filter(|at| !column.is_missing(*at));
            list(&mut present, &|at| column.to_value(at))
        })?,
        Kind::AddToSet => each(&|rows| {
            let mut set = ValueSet::new(Collation::clone(spec.collation()));
            for at in rows {
                let value = column.value(at);
                ctx.charge_value(value)?;
                set.add(value);
            }
            Ok(set.finish())
        })?,
        Kind::First => each(&|mut rows| Ok(rows.next().map_or(Value::Null, or_null)))?,
        Kind::Last => each(&|mut rows| Ok(rows.next_back().map_or(Value::Null, or_null)))?,
        Kind::FirstN => each(&|rows| list(&mut rows.take(n), &or_null))?,
        Kind::LastN => each(&|rows| {
            let skipped = rows.len().saturating_sub(n);
            list(&mut rows.skip(skipped), &or_null)
        })?,
        Kind::Count => per_frame(frames, ctx, |frame| {
            Ok(crate::eval::accumulator::count_value(frame.len() as u64))
        })?,
        Kind::Percentile | Kind::Median => percentiles(spec, column, frames, ctx)?,
        _ => {
            let aggregate = AccumulatorAggregate {
                spec,
                empty,
                argument,
            };
            slide_within(aggregate, frames, ctx, |state| {
                let value = spec.finish(state, ctx)?;
                let bytes = memory_bytes(&value);
                Ok((value, bytes))
            })?
        }
    };
    Ok(ColumnBlock::from_values(&values))
}

/// Returns a result for every frame; consecutive equal frames share it.
fn per_frame(
    frames: &[Range<usize>],
    ctx: &EvalContext<'_>,
    answer: impl Fn(&Range<usize>) -> Result<Value>,
) -> Result<Vec<Value>> {
    let mut values: Vec<Value> = Vec::with_capacity(frames.len());
    let mut last: Option<&Range<usize>> = None;
    let mark = ctx.mark();
    let mut bytes = 0;
    for frame in frames {
        let value = match (last == Some(frame), values.last()) {
            (true, Some(value)) => value.clone(),
            _ => answer(frame)?,
        };
        bytes += memory_bytes(&value);
        ctx.hold(mark, bytes)?;
        values.push(value);
        last = Some(frame);
    }
    ctx.release(mark);
    Ok(values)
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
                ctx.charge_bytes(size_of_val(&sorted[..]))?;
                sorted.insert(find(&sorted, number), number);
            }
            end += 1;
        }
        while start < frame.start {
            if start < end
                && let Some(number) = number(start)
            {
                ctx.charge_bytes(size_of_val(&sorted[..]))?;
                sorted.remove(find(&sorted, number));
            }
            start += 1;
        }
        end = end.max(start);
        values.push(percentile::of_sorted(&sorted, &ranks, single));
    }
    Ok(values)
}
