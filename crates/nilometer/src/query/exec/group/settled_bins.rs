//! Buckets that change none of the first bins: those are known, and their extremes lie beyond the bounds of the bucket.
//!
//! ```text
//! greatest value     │ 09:54: 98 │ 09:55: 97 │ 09:56: 99 │      measurements end before 09:57
//! control.max.v      [─────────────── 93 ───────────────────    not read
//! ```
//!
//! Only `$min` and `$max` of numbers and dates: a bound is a value of a measurement, or beyond all of them, and equal values need not
//! be told apart.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilometer_bson::order::compare;
use nilometer_bson::{Value, ValueRef};

use super::{Table, from_bounds};
use crate::eval::accumulator::AccumulatorState;
use crate::query::batch::MeasurementBlock;
use crate::query::exec::ExecContext;
use crate::query::planner::physical::{BoundsAggregate, BoundsInput, KeyPart, PhysicalGroup};

/// First bins whose extremes are noted, and groups of a table that is searched for them.
const GROUPS_MAX: usize = 64;

/// Batches after which the extremes of the first bins are looked up.
const BATCHES: usize = if cfg!(test) { 2 } else { 4 };

/// The extremes of the first bins known so far: some of them, or of measurements that are among others in the group.
#[derive(Clone)]
pub(super) struct Extremes {
    aggregate: Arc<BoundsAggregate>,
    /// A value for each accumulator.
    of_bins: BTreeMap<i64, Vec<Value>>,
    /// Batches since they were looked up.
    batches: usize,
}

impl Extremes {
    /// Returns none yet. `None` if the groups are not those of bins alone, or have other accumulators than extremes.
    pub(super) fn of(plan: &PhysicalGroup) -> Option<Self> {
        let aggregate = plan.from_bounds.as_ref()?;
        let has_bins_alone = matches!(&*aggregate.parts, [KeyPart::Bin(_)]);
        let extreme = |input| matches!(input, &BoundsInput::Min(_) | &BoundsInput::Max(_));
        let few = plan
            .first_bins
            .as_ref()
            .is_some_and(|first| first.wanted <= GROUPS_MAX);
        let may = few && has_bins_alone && aggregate.inputs.iter().all(extreme);
        may.then(|| Self {
            aggregate: Arc::clone(aggregate),
            of_bins: BTreeMap::new(),
            batches: 0,
        })
    }

    /// Counts a batch that was added to a table, and notes the extremes of `bins` there after a few. `None`: not all bins are known.
    pub(super) fn note_batch(&mut self, bins: Option<&BTreeSet<i64>>, table: &Table) {
        self.batches += 1;
        if self.batches < BATCHES {
            return;
        }
        self.batches = 0;
        if let Some(bins) = bins {
            self.note(bins, table);
        }
    }

    fn note(&mut self, bins: &BTreeSet<i64>, table: &Table) {
        if table.keys.len() > GROUPS_MAX {
            return;
        }
        for group in 0..table.keys.len() {
            let bin = match table.keys.parts(group) {
                Some((_, bin)) => Some(bin),
                None => bin_of(table.keys.key(group).as_ref()),
            };
            let Some(bin) = bin.filter(|bin| bins.contains(bin)) else {
                continue;
            };
            let values =
                (0..self.aggregate.inputs.len()).map(|at| match table.states.get(group, at) {
                    Some(AccumulatorState::Min(state) | AccumulatorState::Max(state)) => {
                        state.value().to_value()
                    }
                    _ => Value::Missing,
                });
            self.improve(bin, values.collect());
        }
    }

    /// Notes extremes that are known elsewhere.
    pub(super) fn note_all(&mut self, other: &Self) {
        for (bin, values) in &other.of_bins {
            self.improve(*bin, values.clone());
        }
    }

    fn improve(&mut self, bin: i64, values: Vec<Value>) {
        let Some(known) = self.of_bins.get_mut(&bin) else {
            self.of_bins.insert(bin, values);
            return;
        };
        let inputs = self.aggregate.inputs.iter();
        for ((input, known), value) in inputs.zip(known).zip(values) {
            if known.is_missing() || goes_beyond(input, value.as_ref(), known.as_ref()) {
                *known = value;
            }
        }
    }

    /// True if no value of a block lies beyond the extremes of any of these bins.
    pub(super) fn bound(
        &self,
        mut bins: impl Iterator<Item = i64>,
        block: &MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> bool {
        let bounds = self.aggregate.inputs.iter().map(|input| {
            let (BoundsInput::Min(name) | BoundsInput::Max(name)) = input else {
                return None;
            };
            let (min, max) = from_bounds::bounds(&self.aggregate, name, block, cx)?;
            let is_max = matches!(input, BoundsInput::Max(_));
            Some((input, if is_max { max } else { min }))
        });
        let Some(bounds) = bounds.collect::<Option<Vec<_>>>() else {
            return false;
        };
        let is_within = |bin: i64| {
            self.of_bins.get(&bin).is_some_and(|known| {
                bounds.iter().zip(known).all(|((input, bound), known)| {
                    // A field that the bucket does not have adds nothing.
                    bound.is_missing()
                        || is_comparable(known.as_ref(), *bound)
                            && !goes_beyond(input, *bound, known.as_ref())
                })
            })
        };
        bins.all(is_within)
    }
}

/// Returns the bin of a key that is a date, or an object whose only member is one.
fn bin_of(key: ValueRef<'_>) -> Option<i64> {
    match key {
        ValueRef::DateTime(bin) => Some(bin),
        ValueRef::Document(key) => match key.iter().next()?.value() {
            ValueRef::DateTime(bin) => Some(bin),
            _ => None,
        },
        _ => None,
    }
}

/// True if a value replaces the one that an accumulator has.
fn goes_beyond(input: &BoundsInput, value: ValueRef<'_>, known: ValueRef<'_>) -> bool {
    let better = match input {
        BoundsInput::Min(_) => Ordering::Less,
        _ => Ordering::Greater,
    };
    compare(value, known) == better
}

/// True for two numbers, and for two dates.
fn is_comparable(one: ValueRef<'_>, other: ValueRef<'_>) -> bool {
    let is_date = |value| matches!(value, ValueRef::DateTime(_));
    one.is_number() && other.is_number() || is_date(one) && is_date(other)
}
