//! Rules that merge `$match` stages and move them forward.

use super::LogicalRule;
use crate::query::pipeline::{MatchStage, PipelineStage, ProjectStage, Stage};
use crate::query::planner::logical::LogicalPlan;
use crate::query::planner::settings::PlanSettings;

/// Merges two adjacent `$match` stages into one conjunction.
///
/// The first filter is still tested first, and the second only on documents that pass it.
pub struct MergeMatches;

impl LogicalRule for MergeMatches {
    fn name(&self) -> &'static str {
        "MergeMatches"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        let pair = |pair: &[Stage]| matches!(pair, [Stage::Match(_), Stage::Match(_)]);
        let Some(at) = plan.stages.windows(2).position(pair) else {
            return false;
        };
        let second = plan.stages.remove(at + 1);
        if let (Some(Stage::Match(first)), Stage::Match(second)) = (plan.stages.get_mut(at), second)
        {
            *first = first.clone().and(second);
        }
        true
    }
}

/// Reorders `$sort, $match` to `$match, $sort`: the remaining documents keep their order.
///
/// Does not fire when the sort has a limit, because it would keep other documents.
pub struct MatchBeforeSort;

impl LogicalRule for MatchBeforeSort {
    fn name(&self) -> &'static str {
        "MatchBeforeSort"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        let pair = |pair: &[Stage]| match pair {
            [Stage::Sort(sort), Stage::Match(filter)] => {
                sort.limit.is_none() && !filter.is_random()
            }
            _ => false,
        };
        let Some(at) = plan.stages.windows(2).position(pair) else {
            return false;
        };
        plan.stages.swap(at, at + 1);
        true
    }
}

/// Reorders `$project, $match` to `$match, $project` for the conjuncts whose fields the projection neither computes nor
/// drops.
///
/// A dropped field is missing for the `$match` and a computed one is new: conjuncts that read either stay behind.
pub struct MatchBeforeProject;

impl LogicalRule for MatchBeforeProject {
    fn name(&self) -> &'static str {
        "MatchBeforeProject"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        for at in 1..plan.stages.len() {
            let Some([Stage::Project(project), Stage::Match(filter)]) =
                plan.stages.get(at - 1..at + 1)
            else {
                continue;
            };
            let (before, after) = filter.clone().split(|path| project.leaves_alone(path));
            let Some(before) = before else {
                continue;
            };
            let project = Stage::Project(project.clone());
            move_in_front(plan, at, before, project, after);
            return true;
        }
        false
    }
}

/// Reorders `$lookup, $match` to `$match, $lookup` for the conjuncts that do not read the joined field; the same for
/// `$graphLookup`.
pub struct MatchBeforeLookup;

impl LogicalRule for MatchBeforeLookup {
    fn name(&self) -> &'static str {
        "MatchBeforeLookup"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        for at in 1..plan.stages.len() {
            let Some([lookup, Stage::Match(filter)]) = plan.stages.get(at - 1..at + 1) else {
                continue;
            };
            let target = lookup.opaque().and_then(PipelineStage::adds);
            let Some(target) = target.and_then(first_of) else {
                continue;
            };
            let (before, after) = filter.clone().split(|path| first_of(path) != Some(target));
            let Some(before) = before else {
                continue;
            };
            let lookup = lookup.clone();
            move_in_front(plan, at, before, lookup, after);
            return true;
        }
        false
    }
}

/// Inserts `before`, the movable part of the `$match` at `at`, in front of `stage`, which preceded it, and leaves
/// `after` behind.
fn move_in_front(
    plan: &mut LogicalPlan,
    at: usize,
    before: MatchStage,
    stage: Stage,
    after: Option<MatchStage>,
) {
    let mut replacement = vec![Stage::Match(before), stage];
    replacement.extend(after.map(Stage::Match));
    plan.stages.splice(at - 1..at + 1, replacement);
}

fn first_of(path: &str) -> Option<&str> {
    path.split('.').next()
}

/// Rewrites a `$match` on a field that a `$project` or `$addFields` only renames to the old name, and moves it in front.
///
/// Conditions: both names are whole top-level fields, because paths through arrays find other values than an
/// expression does; the conjunct reads nothing else.
pub struct MatchOnRenamed;

impl LogicalRule for MatchOnRenamed {
    fn name(&self) -> &'static str {
        "MatchOnRenamed"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        for at in 1..plan.stages.len() {
            let Some([Stage::Project(project), Stage::Match(filter)]) =
                plan.stages.get(at - 1..at + 1)
            else {
                continue;
            };
            let Some((before, after)) = by_old_names(project, filter) else {
                continue;
            };
            let project = Stage::Project(project.clone());
            move_in_front(plan, at, before, project, after);
            return true;
        }
        false
    }
}

fn by_old_names(
    project: &ProjectStage,
    filter: &MatchStage,
) -> Option<(MatchStage, Option<MatchStage>)> {
    for (new, old) in project.renames() {
        let below = |path: &str| first_of(path) == Some(&new);
        let (inside, after) = filter.clone().split(below);
        if let Some(before) = inside.and_then(|stage| stage.filter.renamed(&new, &old)) {
            return Some((MatchStage::new(before), after));
        }
    }
    None
}

/// Removes the `$match` at the front of the plan and returns its filter.
pub(super) fn take_leading_match(plan: &mut LogicalPlan) -> Option<MatchStage> {
    match plan.stages.first() {
        Some(Stage::Match(_)) => match plan.stages.remove(0) {
            Stage::Match(filter) => Some(filter),
            other => {
                plan.stages.insert(0, other);
                None
            }
        },
        _ => None,
    }
}
