//! The rewrite rules: each moves work towards the data, or does not fire.
//!
//! | rule | what it does |
//! |---|---|
//! | [`UseRollup`] | a `$group` reads the bins of a rollup in the place of measurements |
//! | [`MergeMatches`] | adjacent `$match` stages become one |
//! | [`MatchBeforeSort`] | `$match` after a `$sort` moves in front of it |
//! | [`MatchBeforeProject`] | `$match` moves in front of a `$project` or `$addFields` that leaves its fields alone |
//! | [`MatchOnRenamed`] | `$match` on a field that was only renamed moves in front, with the old name |
//! | [`MatchBeforeLookup`] | `$match` moves in front of a `$lookup` or `$graphLookup` whose results it does not read |
//! | [`DatesOutOfRange`] | comparisons of the time with dates that no measurement can have become constants |
//! | [`MatchOnRecords`] | a leading `$match` becomes the filter of a scan, with bounds on `_id` |
//! | [`MatchOnBuckets`] | a leading `$match` becomes the filter of the scan, which `physical::lower` splits |
//! | [`FixedBuckets`] | comparisons with the boundaries of fixed buckets select whole buckets |
//! | [`ProjectOnBuckets`] | a `$project` that keeps or drops fields becomes part of unpacking |
//! | [`ComputedMetas`] | fields computed from the metadata are computed once for each bucket |
//! | [`LimitOnBuckets`] | a `$limit` at the front ends the reading of buckets |
//! | [`NeededFields`] | only columns that a later stage needs are unpacked |
//! | [`ComputedKeys`] | `$addFields` and a `$group` by its computed fields become one |
//! | [`FirstOfSorted`] | `$sort` and `$group` with `$first` or `$last` become `$top` or `$bottom`, without a sort |
//! | [`GroupFromBounds`] | `$min`, `$max` and counts of whole buckets are read from their headers |
//! | [`SummariesOfBuckets`] | sums, averages, extremes and counts of whole buckets are read from blocks of summaries |
//! | [`CountOfAll`] | a count of all measurements is read from the counters of the collection |
//! | [`SampleFromBuckets`] | a `$sample` of few measurements reads random buckets |
//! | [`DistinctMetas`] | groups of metadata are read from an index, without buckets |
//! | [`IndexOnBuckets`] | an index leads to the buckets if that is cheaper than a scan |
//! | [`PointByIndex`] | an index leads to the newest, or the oldest, buckets of each series where only those matter |
//! | [`NewestFirst`] | buckets are read backward where only the newest measurements of groups matter |
//! | [`SortInOrderOfBuckets`] | a sort by time with a limit stops once no later bucket can matter |
//! | [`SortByBuckets`] | a sort by metadata, or by time, orders buckets first |
//! | [`SortWithinGroups`] | a sort by time in front of a `$group` by metadata orders the rows of each group alone |
//! | [`FirstGroupsFirst`] | a `$group` by time bins, followed by a sort with a limit, stops once the first bins are complete |
//! | [`GroupInOrder`] | after a sort by time, groups are returned when the part of the key that follows it changes |
//! | [`WindowsInOrder`] | `$setWindowFields` by metadata and time, and `$densify` of the time, get their input from such a sort |
//! | [`WindowsOverBlocks`] | `$setWindowFields` after such a sort computes on columns of buckets |
//! | [`DensifyOverBuckets`] | `$densify` of the time by metadata orders buckets instead of rows |
//! | [`WindowsBehindDensify`] | `$setWindowFields` and `$fill` after a `$densify` of the same partitions do not sort |
//! | [`SortLimit`] | a `$limit` after a `$sort` bounds the documents the sort keeps |
//! | [`UnwindInLookup`] | a `$lookup` returns rows in place of an array that is unwound |
//! | [`NeededOfLookups`] | rows and joined documents keep the fields that later stages read |
//! | [`MergeLimits`] | adjacent `$limit` stages become the smaller, `$skip` stages the sum |
//!
//! A rule is a small type with its conditions documented beside its code and counter-cases in its tests.
//! [`LOGICAL_RULES`] rewrite the logical plan repeatedly until none fires. Each makes the plan smaller or moves work
//! strictly forward, so the loop ends; a bound cuts it off otherwise. [`PHYSICAL_RULES`] then choose access paths and
//! strategies in the physical plan, each once.

mod computed_keys;
mod count_of_all;
mod distinct_metas;
mod fields;
mod first_groups;
mod group_from_bounds;
mod index_on_buckets;
mod last_point;
mod limits;
mod lookups;
mod match_on_buckets;
mod match_on_records;
mod matches;
mod sample;
mod sort_by_buckets;
mod streaming_group;
mod summaries;
#[cfg(test)]
mod tests;
mod times;
mod use_rollup;

use super::logical::LogicalPlan;
use super::physical::PhysicalPlan;
use super::settings::PlanSettings;
use crate::error::{Error, Result};

pub use computed_keys::ComputedKeys;
pub use count_of_all::CountOfAll;
pub use distinct_metas::{DistinctMetas, PointByIndex, distinct_values};
pub use fields::{ComputedMetas, NeededFields, ProjectOnBuckets};
pub use first_groups::FirstGroupsFirst;
pub use group_from_bounds::GroupFromBounds;
pub use index_on_buckets::IndexOnBuckets;
pub use last_point::{FirstOfSorted, NewestFirst, SortInOrderOfBuckets};
pub use limits::{LimitOnBuckets, MergeLimits, SortLimit};
pub use lookups::{NeededOfLookups, UnwindInLookup};
pub use match_on_buckets::MatchOnBuckets;
pub use match_on_records::MatchOnRecords;
pub use matches::{
    MatchBeforeLookup, MatchBeforeProject, MatchBeforeSort, MatchOnRenamed, MergeMatches,
};
pub use sample::SampleFromBuckets;
pub use sort_by_buckets::{
    DensifyOverBuckets, SortByBuckets, SortWithinGroups, WindowsBehindDensify, WindowsInOrder,
    WindowsOverBlocks,
};
pub use streaming_group::GroupInOrder;
pub use summaries::SummariesOfBuckets;
pub use times::{DatesOutOfRange, FixedBuckets};
pub use use_rollup::UseRollup;

/// Maximum number of rounds: far more than any pipeline needs, and a bound should two rules ever undo each other.
const ROUNDS_MAX: usize = 100;

/// A rewrite of the logical plan that does not change the answer.
pub trait LogicalRule: Send + Sync {
    /// The name shown by explain and used in tests.
    fn name(&self) -> &'static str;

    /// Rewrites the plan if the conditions hold; returns true if it did.
    fn apply(&self, plan: &mut LogicalPlan, settings: &PlanSettings) -> bool;
}

/// A choice of an access path or a strategy that does not change the answer.
pub trait PhysicalRule: Send + Sync {
    /// The name shown by explain and used in tests.
    fn name(&self) -> &'static str;

    /// Changes the plan if the conditions hold; returns true if it did.
    fn apply(&self, plan: &mut PhysicalPlan, settings: &PlanSettings) -> bool;
}

/// The rules for logical plans, in order of application.
pub static LOGICAL_RULES: &[&dyn LogicalRule] = &[
    &UseRollup,
    &MergeMatches,
    &MatchBeforeSort,
    &MatchBeforeProject,
    &MatchOnRenamed,
    &MatchBeforeLookup,
    &MergeLimits,
    &ComputedKeys,
    &MatchOnRecords,
    &DatesOutOfRange,
    &MatchOnBuckets,
    &SortLimit,
    &FirstOfSorted,
];

/// The rules for physical plans, in order of application.
pub static PHYSICAL_RULES: &[&dyn PhysicalRule] = &[
    &FixedBuckets,
    &ProjectOnBuckets,
    &ComputedMetas,
    &LimitOnBuckets,
    &SampleFromBuckets,
    &DistinctMetas,
    &IndexOnBuckets,
    &PointByIndex,
    &NewestFirst,
    &SortInOrderOfBuckets,
    &SortWithinGroups,
    &SortByBuckets,
    &WindowsInOrder,
    &WindowsOverBlocks,
    &DensifyOverBuckets,
    &WindowsBehindDensify,
    &FirstGroupsFirst,
    &GroupFromBounds,
    &CountOfAll,
    &GroupInOrder,
    &SummariesOfBuckets,
    &UnwindInLookup,
    &NeededFields,
    &NeededOfLookups,
];

/// A set of rules, by name: those that a test or a bisection leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSet(u64);

impl RuleSet {
    /// All rules, in the order of the two tables.
    fn known() -> impl Iterator<Item = &'static str> {
        let logical = LOGICAL_RULES.iter().map(|rule| rule.name());
        logical.chain(PHYSICAL_RULES.iter().map(|rule| rule.name()))
    }

    /// Returns the rules with these names; error code 2, listing the valid names, if one is unknown.
    pub fn named<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self> {
        let mut set = Self::default();
        for name in names {
            let Some(at) = Self::known().position(|known| known == name) else {
                let known: Vec<&str> = Self::known().collect();
                return Err(Error::bad_value(format!(
                    "there is no rule called '{name}'; there are {}",
                    known.join(", ")
                )));
            };
            set.0 |= 1 << at;
        }
        Ok(set)
    }

    /// Returns the rules of either set.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set of all rules.
    pub fn all() -> Self {
        Self((1 << Self::known().count()) - 1)
    }

    /// Returns the set as a number, the inverse of [`RuleSet::from_number`].
    pub fn number(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// Returns the set for a number from the same process.
    pub fn from_number(number: i64) -> Self {
        Self(u64::try_from(number).unwrap_or(0))
    }

    /// Returns the names, in the order of the tables.
    pub fn names(self) -> Vec<&'static str> {
        let named = Self::known().enumerate();
        named
            .filter(|(at, _)| self.0 & (1 << at) != 0)
            .map(|(_, name)| name)
            .collect()
    }

    /// True if the set contains the rule.
    pub fn contains(self, name: &str) -> bool {
        self.0 != 0 && self.names().contains(&name)
    }
}

/// Applies the rules for logical plans until none fires.
pub fn apply_logical(plan: &mut LogicalPlan, settings: &PlanSettings) {
    let options = settings.options;
    if options.no_rules {
        return;
    }
    for _ in 0..ROUNDS_MAX {
        let mut fired = false;
        for rule in LOGICAL_RULES {
            if !options.disabled.contains(rule.name()) && rule.apply(plan, settings) {
                plan.fired.push(rule.name());
                fired = true;
            }
        }
        if !fired {
            break;
        }
    }
}

/// Applies the rules for physical plans, each once.
pub fn apply_physical(plan: &mut PhysicalPlan, settings: &PlanSettings) {
    let options = settings.options;
    if options.no_rules {
        return;
    }
    for rule in PHYSICAL_RULES {
        if !options.disabled.contains(rule.name()) && rule.apply(plan, settings) {
            plan.fired.push(rule.name());
        }
    }
}
