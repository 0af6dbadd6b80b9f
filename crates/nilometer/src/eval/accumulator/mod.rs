//! Accumulators of `$group`, `$bucket`, `$bucketAuto` and window functions.
//!
//! ```text
//! {$sum: "$v"} ──parse──▶ AccumulatorSpec ──new_state──▶ AccumulatorState ──finish──▶ Value
//!                              │                          ▲ ▲
//!                              └── add(document) ─────────┘ └── merge(a later state)
//! ```
//!
//! **Two inputs, one state.** Rows are added with [`AccumulatorSpec::add`]; column kernels add
//! slices of numbers ([`AccumulatorSpec::add_f64s`] and the other `add_…s`). Both change the same
//! [`AccumulatorState`] by the same steps, so results are identical bit by bit.
//!
//! **Totals are exact.** Integers are added in 128 bits, doubles in a pair of doubles, decimals as
//! decimals, each separately; they are combined only in [`AccumulatorSpec::finish`].
//!
//! **The table** of operators is in [`registry`]; the treatment of null, missing and other types is
//! documented with each family. Spilling is done by the executor: [`AccumulatorState::memory_bytes`] tells
//! when, and [`saved`] converts a state to a value and back. Accumulators that keep their input
//! have a limit of their own ([`ACCUMULATOR_BYTES_MAX`]) that applies on disk as well: error 146.
//!
//! JavaScript (`$accumulator`) is rejected.

mod collect;
mod deviation;
mod extremes;
mod merge_objects;
mod ordered;
mod parse;
pub mod percentile;
mod registry;
mod saved;
mod total;

#[cfg(test)]
mod interrupt_tests;
#[cfg(test)]
mod tests;

use nilometer_bson::{DocRef, Value, ValueRef};

pub use collect::ValueSet;
pub use deviation::StdDev;
pub use extremes::{MinMaxN, MinMaxState};
pub use ordered::KeptRanks;
pub use percentile::{PercentileList, PercentileState};
pub use registry::{ACCUMULATORS, AccumulatorRow};
pub use total::{ColumnTotal, Total};

use crate::error::{Error, ErrorCode, Result};
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::eval::{Collation, Dependencies, EvalContext, Expression};
use collect::PushState;
use merge_objects::MergeObjectsState;
use ordered::{FirstN, LastN, Ranked};

/// Maximum size of one accumulator state that keeps values, in bytes.
pub const ACCUMULATOR_BYTES_MAX: usize = 100 << 20;

/// The operator of an accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "MongoDB's names")]
pub enum AccumulatorKind {
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
    ConcatArrays,
    SetUnion,
    Count,
    MergeObjects,
    StdDevPop,
    StdDevSamp,
    FirstN,
    LastN,
    MinN,
    MaxN,
    Top,
    Bottom,
    TopN,
    BottomN,
    Percentile,
    Median,
}

/// A parsed accumulator.
#[derive(Clone, Debug)]
pub struct AccumulatorSpec {
    kind: AccumulatorKind,
    /// What is accumulated; for `$top`, `$bottom`, `$topN` and `$bottomN` the output.
    argument: Expression,
    /// The number of values to keep, for operators with `n`.
    n: Option<Expression>,
    /// The order of `$top`, `$bottom`, `$topN` and `$bottomN`.
    sort: Option<SortPattern>,
    percentiles: PercentileList,
    collation: Collation,
}

/// The state of an accumulator for one group.
#[derive(Clone, Debug)]
pub enum AccumulatorState {
    /// `$sum`
    Sum(Total),
    /// `$avg`, with the number of numbers.
    Avg(Total, u64),
    /// `$min`
    Min(MinMaxState),
    /// `$max`
    Max(MinMaxState),
    /// `$first`
    First(Option<Value>),
    /// `$last`
    Last(Option<Value>),
    /// `$push`
    Push(Box<PushState>),
    /// `$addToSet`
    AddToSet(Box<ValueSet>),
    /// `$count`
    Count(u64),
    /// `$mergeObjects`
    MergeObjects(Box<MergeObjectsState>),
    /// `$stdDevPop`
    StdDevPop(StdDev),
    /// `$stdDevSamp`
    StdDevSamp(StdDev),
    /// `$firstN`
    FirstN(Box<FirstN>),
    /// `$lastN`
    LastN(Box<LastN>),
    /// `$minN`, `$maxN`
    MinMaxN(Box<MinMaxN>),
    /// `$top`, `$bottom`, `$topN`, `$bottomN`
    Ranked(Box<Ranked>),
    /// `$percentile`, `$median`
    Percentile(Box<PercentileState>),
}

impl AccumulatorSpec {
    /// Returns the operator.
    pub fn kind(&self) -> AccumulatorKind {
        self.kind
    }

    /// Returns the operator's name with its dollar sign.
    pub fn name(&self) -> &'static str {
        registry::name(self.kind)
    }

    /// Returns the expression evaluated for each document (for `$top` and `$bottom` the output).
    pub fn argument(&self) -> &Expression {
        &self.argument
    }

    /// Returns the number of values kept, if it is constant.
    pub fn constant_n(&self) -> Option<i64> {
        let value = self.n.as_ref()?.as_constant()?;
        parse::check_n(value.as_ref(), self.name()).ok()
    }

    /// True if `n` depends on the group.
    pub fn n_depends_on_group(&self) -> bool {
        self.n.as_ref().is_some_and(|n| n.as_constant().is_none())
    }

    /// Returns the order of `$top` and `$bottom`.
    pub fn sort(&self) -> Option<&SortPattern> {
        self.sort.as_ref()
    }

    /// Returns the collation by which strings are compared.
    pub(crate) fn collation(&self) -> &Collation {
        &self.collation
    }

    /// Returns the ranks of `$percentile` and `$median`.
    pub(crate) fn percentiles(&self, ctx: &EvalContext<'_>) -> Result<std::sync::Arc<[f64]>> {
        self.percentiles.resolve(ctx)
    }

    /// Returns the accumulator with an order, to turn `$first` of a sorted input into `$top`.
    #[must_use]
    pub fn ordered_by(self, kind: AccumulatorKind, sort: SortPattern) -> Self {
        Self {
            kind,
            sort: Some(sort),
            ..self
        }
    }

    /// Returns the accumulator with another argument.
    #[must_use]
    pub fn with_argument(self, argument: Expression) -> Self {
        Self { argument, ..self }
    }

    /// True if a `$top` or `$bottom` state is full: a further document must sort before a kept one
    /// to be kept.
    pub fn is_ranked_full(&self, state: &AccumulatorState) -> bool {
        matches!(state, AccumulatorState::Ranked(ranked) if ranked.is_full())
    }

    /// Returns which documents a `$top` or `$bottom` state keeps.
    pub fn ranks<'s>(&'s self, state: &'s AccumulatorState) -> Option<KeptRanks<'s>> {
        match (state, &self.sort) {
            (AccumulatorState::Ranked(ranked), Some(sort)) => Some(ranked.ranks(sort)),
            _ => None,
        }
    }

    /// False if a `$top` or `$bottom` state would drop a document with this key.
    pub fn would_keep_ranked(&self, state: &AccumulatorState, key: &SortKey) -> bool {
        match (state, &self.sort) {
            (AccumulatorState::Ranked(ranked), Some(sort)) => ranked.would_keep(key, sort),
            _ => true,
        }
    }

    /// Adds the inputs read from a document.
    pub fn dependencies(&self, into: &mut Dependencies) {
        self.argument.dependencies(into);
        if let Some(sort) = &self.sort {
            sort.dependencies(into);
        }
    }

    /// Creates a state for a group whose key is `group` (which `n` may read: `"$a"` is the key's
    /// field a).
    pub fn new_state(&self, group: &Value, ctx: &EvalContext<'_>) -> Result<AccumulatorState> {
        use AccumulatorKind as K;
        Ok(match self.kind {
            K::Sum => AccumulatorState::Sum(Total::default()),
            K::Avg => AccumulatorState::Avg(Total::default(), 0),
            K::Min => AccumulatorState::Min(MinMaxState::default()),
            K::Max => AccumulatorState::Max(MinMaxState::default()),
            K::First => AccumulatorState::First(None),
            K::Last => AccumulatorState::Last(None),
            K::Push | K::ConcatArrays => AccumulatorState::Push(Box::default()),
            K::AddToSet | K::SetUnion => {
                AccumulatorState::AddToSet(Box::new(ValueSet::new(self.collation.clone())))
            }
            K::Count => AccumulatorState::Count(0),
            K::MergeObjects => AccumulatorState::MergeObjects(Box::default()),
            K::StdDevPop => AccumulatorState::StdDevPop(StdDev::default()),
            K::StdDevSamp => AccumulatorState::StdDevSamp(StdDev::default()),
            K::FirstN => {
                AccumulatorState::FirstN(Box::new(FirstN::new(self.evaluate_n(group, ctx)?)))
            }
            K::LastN => AccumulatorState::LastN(Box::new(LastN::new(self.evaluate_n(group, ctx)?))),
            K::MinN | K::MaxN => AccumulatorState::MinMaxN(Box::new(MinMaxN::new(
                self.evaluate_n(group, ctx)?,
                self.kind == K::MaxN,
                self.collation.clone(),
            ))),
            K::Top | K::Bottom | K::TopN | K::BottomN => {
                let single = matches!(self.kind, K::Top | K::Bottom);
                let n = if single {
                    1
                } else {
                    self.evaluate_n(group, ctx)?
                };
                let last = matches!(self.kind, K::Bottom | K::BottomN);
                AccumulatorState::Ranked(Box::new(Ranked::new(n, last, single)))
            }
            K::Percentile | K::Median => {
                let ranks = self.percentiles.resolve(ctx)?;
                AccumulatorState::Percentile(Box::new(PercentileState::new(
                    ranks,
                    self.kind == K::Median,
                )))
            }
        })
    }

    fn evaluate_n(&self, group: &Value, ctx: &EvalContext<'_>) -> Result<i64> {
        let Some(n) = &self.n else {
            return Ok(1);
        };
        let root = match group {
            Value::Document(doc) => doc.as_ref(),
            _ => DocRef::EMPTY,
        };
        let value = n.evaluate_ref(root, ctx)?;
        parse::check_n(value.as_ref(), self.name())
    }

    /// Adds one document.
    pub fn add(
        &self,
        state: &mut AccumulatorState,
        doc: DocRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<()> {
        match (state, &self.sort) {
            (AccumulatorState::Count(count), _) => *count += 1,
            (AccumulatorState::Ranked(ranked), Some(sort)) => {
                ctx.charge(1)?;
                let key = sort.extract(doc, ctx)?;
                if ranked.would_keep(&key, sort) {
                    let output = self.argument.evaluate(doc, ctx)?;
                    ranked.add(key, output, sort, ctx)?;
                    self.check_bytes(ranked.memory_bytes())?;
                }
            }
            (state, _) => {
                let value = self.argument.evaluate_ref(doc, ctx)?;
                ctx.charge_value(value.as_ref())?;
                self.add_value(state, value.as_ref())?;
            }
        }
        Ok(())
    }

    /// Adds one value of the argument. Not for `$top` and `$bottom`, which also need a sort key.
    pub fn add_value(&self, state: &mut AccumulatorState, value: ValueRef<'_>) -> Result<()> {
        match state {
            AccumulatorState::Sum(total) => {
                total.add(value);
            }
            AccumulatorState::Avg(total, count) => *count += u64::from(total.add(value)),
            AccumulatorState::Min(extreme) => extreme.update_min(value, &self.collation),
            AccumulatorState::Max(extreme) => extreme.update_max(value, &self.collation),
            AccumulatorState::First(first) => {
                if first.is_none() {
                    *first = Some(value.to_value());
                }
            }
            AccumulatorState::Last(last) => *last = Some(value.to_value()),
            AccumulatorState::Push(pushed) => {
                match self.takes_elements() {
                    true => self.each(value, |v| pushed.add(v))?,
                    false => pushed.add(value),
                }
                return self.check_bytes(pushed.bytes());
            }
            AccumulatorState::AddToSet(set) => {
                match self.takes_elements() {
                    true => self.each(value, |v| set.add(v))?,
                    false => set.add(value),
                }
                return self.check_bytes(set.memory_bytes());
            }
            AccumulatorState::Count(count) => *count += 1,
            AccumulatorState::MergeObjects(merged) => merged.add(value)?,
            AccumulatorState::StdDevPop(deviation) | AccumulatorState::StdDevSamp(deviation) => {
                deviation.add(value)
            }
            AccumulatorState::FirstN(first) => {
                first.add(value);
                return self.check_bytes(first.memory_bytes());
            }
            AccumulatorState::LastN(last) => {
                last.add(value);
                return self.check_bytes(last.memory_bytes());
            }
            AccumulatorState::MinMaxN(bounded) => {
                bounded.add(value);
                return self.check_bytes(bounded.memory_bytes());
            }
            AccumulatorState::Percentile(percentile) => percentile.add(value),
            AccumulatorState::Ranked(_) => {}
        }
        Ok(())
    }

    /// True if the elements of arrays are added, not the arrays.
    fn takes_elements(&self) -> bool {
        matches!(
            self.kind,
            AccumulatorKind::ConcatArrays | AccumulatorKind::SetUnion
        )
    }

    /// Passes the elements of an array to `add`. Null counts as one element, and a missing array as none.
    fn each(&self, value: ValueRef<'_>, mut add: impl FnMut(ValueRef<'_>)) -> Result<()> {
        match value {
            ValueRef::Missing | ValueRef::Undefined => {}
            ValueRef::Null => add(value),
            ValueRef::Array(array) => array.iter().for_each(add),
            other => {
                return Err(Error::type_mismatch(format!(
                    "{} requires array inputs, but an input is of type: {}",
                    self.name(),
                    other.type_name()
                )));
            }
        }
        Ok(())
    }

    /// Returns error 146 if one state exceeds its limit, in memory or on disk.
    fn check_bytes(&self, bytes: usize) -> Result<()> {
        if bytes <= ACCUMULATOR_BYTES_MAX {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::ExceededMemoryLimit,
            format!(
                "{} used too much memory and cannot spill to disk. Used: {bytes} bytes. Memory limit: {ACCUMULATOR_BYTES_MAX} bytes",
                self.name()
            ),
        ))
    }

    /// Adds a value with its sort key, for `$top` and `$bottom`.
    pub fn add_ranked(
        &self,
        state: &mut AccumulatorState,
        key: SortKey,
        output: Value,
        ctx: &EvalContext<'_>,
    ) -> Result<()> {
        match (state, &self.sort) {
            (AccumulatorState::Ranked(ranked), Some(sort)) => ranked.add(key, output, sort, ctx),
            _ => Ok(()),
        }
    }

    /// For `$top` and `$bottom`: adds the result of `output` if a document with this sort key is
    /// kept.
    pub fn offer_ranked(
        &self,
        state: &mut AccumulatorState,
        key: &SortKey,
        ctx: &EvalContext<'_>,
        output: impl FnOnce() -> Result<Value>,
    ) -> Result<()> {
        if let (AccumulatorState::Ranked(ranked), Some(sort)) = (state, &self.sort)
            && ranked.would_keep(key, sort)
        {
            ranked.add(key.clone(), output()?, sort, ctx)?;
            self.check_bytes(ranked.memory_bytes())?;
        }
        Ok(())
    }

    /// Adds the same value `count` times.
    pub fn add_repeated(
        &self,
        state: &mut AccumulatorState,
        value: ValueRef<'_>,
        count: u64,
    ) -> Result<()> {
        use AccumulatorState as S;
        let once = match state {
            S::Count(total) => {
                *total += count;
                return Ok(());
            }
            S::Sum(total) => {
                if total.add_whole_repeated(value, count) {
                    return Ok(());
                }
                false
            }
            S::Avg(total, numbers) => {
                if total.add_whole_repeated(value, count) {
                    *numbers += count;
                    return Ok(());
                }
                false
            }
            S::Min(_)
            | S::Max(_)
            | S::First(_)
            | S::Last(_)
            | S::AddToSet(_)
            | S::MergeObjects(_) => true,
            _ => false,
        };
        let times = if once { count.min(1) } else { count };
        (0..times).try_for_each(|_| self.add_value(state, value))
    }

    /// Adds a whole column by its total. Returns false and adds nothing if the operator needs more
    /// than the total.
    pub fn add_total(&self, state: &mut AccumulatorState, column: &ColumnTotal) -> bool {
        match state {
            AccumulatorState::Sum(total) => total.add_column(column),
            AccumulatorState::Avg(total, count) => {
                total.add_column(column);
                *count += column.count();
            }
            _ => return false,
        }
        true
    }

    /// Adds doubles in order, with the result of [`AccumulatorSpec::add_value`] for each.
    pub fn add_f64s(&self, state: &mut AccumulatorState, values: &[f64]) -> Result<()> {
        match state {
            AccumulatorState::Sum(total) => total.add_f64s(values),
            AccumulatorState::Avg(total, count) => {
                total.add_f64s(values);
                *count += values.len() as u64;
            }
            AccumulatorState::Min(_) => self.add_extreme(state, extremes::least_f64(values)),
            AccumulatorState::Max(_) => self.add_extreme(state, extremes::greatest_f64(values)),
            AccumulatorState::StdDevPop(deviation) | AccumulatorState::StdDevSamp(deviation) => {
                values.iter().for_each(|value| deviation.add_f64(*value));
            }
            AccumulatorState::Count(count) => *count += values.len() as u64,
            AccumulatorState::MinMaxN(bounded) => bounded.add_f64s(values),
            AccumulatorState::Percentile(percentile) => {
                values.iter().for_each(|value| percentile.add_f64(*value));
            }
            state => {
                for value in values {
                    self.add_value(state, ValueRef::Double(*value))?;
                }
            }
        }
        Ok(())
    }

    /// Adds longs in order.
    pub fn add_i64s(&self, state: &mut AccumulatorState, values: &[i64]) -> Result<()> {
        self.add_whole(state, values, ValueRef::Int64)
    }

    /// Adds longs that fit into 16 bits, in order.
    pub fn add_short_i64s(&self, state: &mut AccumulatorState, values: &[i16]) -> Result<()> {
        self.add_whole(state, values, |value| ValueRef::Int64(value.into()))
    }

    /// Adds ints in order.
    pub fn add_i32s(&self, state: &mut AccumulatorState, values: &[i32]) -> Result<()> {
        self.add_whole(state, values, ValueRef::Int32)
    }

    /// Adds dates in order; `$sum` and `$avg` ignore them.
    pub fn add_dates(&self, state: &mut AccumulatorState, values: &[i64]) -> Result<()> {
        match state {
            AccumulatorState::Min(_) => {
                self.add_extreme(state, extremes::least(values).map(ValueRef::DateTime))
            }
            AccumulatorState::Max(_) => {
                self.add_extreme(state, extremes::greatest(values).map(ValueRef::DateTime))
            }
            AccumulatorState::Count(count) => *count += values.len() as u64,
            state => {
                for value in values {
                    self.add_value(state, ValueRef::DateTime(*value))?;
                }
            }
        }
        Ok(())
    }

    fn add_whole<T: Copy + Ord + Into<i64>>(
        &self,
        state: &mut AccumulatorState,
        values: &[T],
        wrap: fn(T) -> ValueRef<'static>,
    ) -> Result<()> {
        match state {
            AccumulatorState::Sum(total) => total.add_whole(values, wrap),
            AccumulatorState::Avg(total, count) => {
                total.add_whole(values, wrap);
                *count += values.len() as u64;
            }
            AccumulatorState::Min(_) => self.add_extreme(state, extremes::least(values).map(wrap)),
            AccumulatorState::Max(_) => {
                self.add_extreme(state, extremes::greatest(values).map(wrap))
            }
            AccumulatorState::Count(count) => *count += values.len() as u64,
            AccumulatorState::MinMaxN(bounded) => bounded.add_whole(values, wrap),
            AccumulatorState::Percentile(percentile) => {
                let numbers = values.iter().map(|value| (*value).into() as f64);
                numbers.for_each(|number| percentile.add_f64(number));
            }
            state => {
                for value in values {
                    self.add_value(state, wrap(*value))?;
                }
            }
        }
        Ok(())
    }

    fn add_extreme(&self, state: &mut AccumulatorState, value: Option<ValueRef<'static>>) {
        match (state, value) {
            (AccumulatorState::Min(extreme), Some(value)) => {
                extreme.update_min(value, &self.collation)
            }
            (AccumulatorState::Max(extreme), Some(value)) => {
                extreme.update_max(value, &self.collation)
            }
            _ => {}
        }
    }

    /// Merges a later partial state; for order-dependent accumulators the later input must follow
    /// this one's.
    pub fn merge(&self, state: &mut AccumulatorState, later: AccumulatorState) -> Result<()> {
        self.merge_unchecked(state, later);
        match state {
            AccumulatorState::Push(pushed) => self.check_bytes(pushed.bytes()),
            AccumulatorState::AddToSet(set) => self.check_bytes(set.memory_bytes()),
            _ => Ok(()),
        }
    }

    fn merge_unchecked(&self, state: &mut AccumulatorState, later: AccumulatorState) {
        match (state, later) {
            (AccumulatorState::Sum(total), AccumulatorState::Sum(other)) => total.merge(&other),
            (AccumulatorState::Avg(total, count), AccumulatorState::Avg(other, more)) => {
                total.merge(&other);
                *count += more;
            }
            (AccumulatorState::Min(extreme), AccumulatorState::Min(other)) => {
                extreme.update_min(other.value(), &self.collation);
            }
            (AccumulatorState::Max(extreme), AccumulatorState::Max(other)) => {
                extreme.update_max(other.value(), &self.collation);
            }
            (AccumulatorState::First(first), AccumulatorState::First(other)) => {
                if first.is_none() {
                    *first = other;
                }
            }
            (AccumulatorState::Last(last), AccumulatorState::Last(other)) => {
                if other.is_some() {
                    *last = other;
                }
            }
            (AccumulatorState::Push(pushed), AccumulatorState::Push(other)) => pushed.merge(*other),
            (AccumulatorState::AddToSet(set), AccumulatorState::AddToSet(other)) => {
                set.merge(*other)
            }
            (AccumulatorState::Count(count), AccumulatorState::Count(other)) => *count += other,
            (AccumulatorState::MergeObjects(merged), AccumulatorState::MergeObjects(other)) => {
                merged.merge(*other)
            }
            (AccumulatorState::StdDevPop(deviation), AccumulatorState::StdDevPop(other))
            | (AccumulatorState::StdDevSamp(deviation), AccumulatorState::StdDevSamp(other)) => {
                deviation.merge(&other)
            }
            (AccumulatorState::FirstN(first), AccumulatorState::FirstN(other)) => {
                first.merge(*other)
            }
            (AccumulatorState::LastN(last), AccumulatorState::LastN(other)) => last.merge(*other),
            (AccumulatorState::MinMaxN(bounded), AccumulatorState::MinMaxN(other)) => {
                bounded.merge(*other)
            }
            (AccumulatorState::Ranked(ranked), AccumulatorState::Ranked(other)) => {
                if let Some(sort) = &self.sort {
                    ranked.merge(*other, sort);
                }
            }
            (AccumulatorState::Percentile(percentile), AccumulatorState::Percentile(other)) => {
                percentile.merge(*other)
            }
            // Both states were created by this specification.
            _ => unreachable!("states of different accumulators"),
        }
    }

    /// Returns the result. Sorting can be interrupted.
    pub fn finish(&self, state: AccumulatorState, ctx: &EvalContext<'_>) -> Result<Value> {
        Ok(match state {
            AccumulatorState::Sum(total) => total.total().into(),
            AccumulatorState::Avg(total, count) => {
                total.average(count).map_or(Value::Null, Value::from)
            }
            AccumulatorState::Min(extreme) | AccumulatorState::Max(extreme) => extreme.finish(),
            AccumulatorState::First(value) | AccumulatorState::Last(value) => {
                or_null(value.unwrap_or_default())
            }
            AccumulatorState::Push(pushed) => pushed.finish(),
            AccumulatorState::AddToSet(set) => set.finish(),
            AccumulatorState::Count(count) => count_value(count),
            AccumulatorState::MergeObjects(merged) => merged.finish(),
            AccumulatorState::StdDevPop(deviation) => deviation.population(),
            AccumulatorState::StdDevSamp(deviation) => deviation.sample(),
            AccumulatorState::FirstN(first) => first.finish(),
            AccumulatorState::LastN(last) => last.finish(),
            AccumulatorState::MinMaxN(bounded) => bounded.finish(),
            AccumulatorState::Ranked(ranked) => match &self.sort {
                Some(sort) => ranked.finish(sort, ctx)?,
                None => Value::Null,
            },
            AccumulatorState::Percentile(percentile) => percentile.finish(ctx)?,
        })
    }
}

impl AccumulatorState {
    /// Returns the bytes held, for the memory limit of the stage.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Sum(total) | Self::Avg(total, _) => total.heap_bytes(),
                Self::Count(_) | Self::StdDevPop(_) | Self::StdDevSamp(_) => 0,
                other => other.heap_bytes(),
            }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Sum(total) | Self::Avg(total, _) => total.heap_bytes(),
            Self::Count(_) | Self::StdDevPop(_) | Self::StdDevSamp(_) => 0,
            Self::Min(extreme) | Self::Max(extreme) => extreme.memory_bytes(),
            Self::First(value) | Self::Last(value) => {
                value.as_ref().map_or(0, crate::eval::memory_bytes)
            }
            Self::Push(pushed) => pushed.memory_bytes(),
            Self::AddToSet(set) => set.memory_bytes(),
            Self::MergeObjects(merged) => merged.memory_bytes(),
            Self::FirstN(first) => first.memory_bytes(),
            Self::LastN(last) => last.memory_bytes(),
            Self::MinMaxN(bounded) => bounded.memory_bytes(),
            Self::Ranked(ranked) => ranked.memory_bytes(),
            Self::Percentile(percentile) => percentile.memory_bytes(),
        }
    }
}

/// Returns a number of documents: int if it fits, else long.
pub(crate) fn count_value(count: u64) -> Value {
    match i32::try_from(count) {
        Ok(count) => Value::Int32(count),
        Err(_) => Value::Int64(i64::try_from(count).unwrap_or(i64::MAX)),
    }
}

/// Replaces missing by null.
pub(crate) fn or_null(value: Value) -> Value {
    if value.is_missing() {
        Value::Null
    } else {
        value
    }
}
