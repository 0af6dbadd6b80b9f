//! The choice between candidate indexes.
//!
//! A single candidate is used. Of several, the plan cache may know the best one; otherwise all run in turn, one step at
//! a time, until one has 101 rows or is exhausted, or after 10,000 steps. The score is rows per step, plus a large bonus
//! for an exhausted candidate and small ones for needing no documents and no sort. Of equal scores the first candidate
//! wins.
//!
//! A candidate whose rows must still be sorted has no row until it is exhausted.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder};

use super::cache::{self, PlanCache, ShapeHashes, WORSE_BEFORE_TRIAL, hashes, signature};
use super::candidates::Request;
use super::cluster;
use super::covering::paths_read;
use super::filters::IndexFilter;
use super::{Candidate, Choice, ID_INDEX, KeyLimits, KeyPlan, implied, text};
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::sort_key::SortPattern;
use crate::index::Index;
use crate::query::planner::physical::{
    AccessPath, Input, PhysicalPlan, PhysicalStage, RecordInput,
};
use crate::query::planner::settings::PlanSettings;

/// The number of rows of one candidate that ends a trial.
pub const TRIAL_ROWS: u64 = 101;
/// The number of steps of each candidate that ends a trial.
const TRIAL_STEPS_MAX: u64 = 10_000;
/// The largest bonus for needing no documents, or no sort.
const TIE_BREAK_MAX: f64 = 1e-4;

/// The result of one candidate in a trial.
#[derive(Clone, Debug, Default)]
pub struct TrialResult {
    /// The number of steps.
    pub works: u64,
    /// The number of rows returned.
    pub rows: u64,
    /// True if it was exhausted.
    pub at_end: bool,
    /// The number of keys examined.
    pub keys: u64,
    /// The number of documents fetched.
    pub documents: u64,
    /// The score.
    pub score: f64,
}

/// Chooses the access path to the records of a plan, after the rules have fixed the filter and the order.
pub fn choose(plan: &mut PhysicalPlan, cx: ChoiceContext<'_>) -> Result<()> {
    choose_index(plan, cx)?;
    cluster::take_order(plan, cx.settings);
    set_limit(plan);
    Ok(())
}

/// Reads by the best usable index, if there is one.
fn choose_index(plan: &mut PhysicalPlan, cx: ChoiceContext<'_>) -> Result<()> {
    let settings = cx.settings;
    let filter = take_filter(plan, cx);
    let is_text = prepare_text(plan, settings);
    let Input::Records(input) = &plan.input else {
        return Ok(());
    };
    let forced = input.forced.clone();
    let plain = match &input.access {
        AccessPath::CollectionScan => !input.is_natural,
        // No index finds one record faster.
        AccessPath::ClusteredScan { min, max } => {
            !input.is_natural && !cluster::is_point(min.as_ref(), max.as_ref())
        }
        _ => false,
    };
    if forced.is_none() && (!plain || settings.options.no_rules) {
        return Ok(());
    }
    let mut indexes = indexes_of(input)?;
    if let Some(filter) = &filter {
        indexes.retain(|index| filter.allows(index));
    }
    if indexes.is_empty() && !is_text {
        return Ok(());
    }
    let mut candidates = candidates_of(plan, input, settings, &indexes)?;
    if is_text {
        keep_text(&mut candidates, input, settings)?;
    }
    if let (Some(forced), Some(index)) = (&forced, indexes.first()) {
        stay_within(&mut candidates, &forced.limits(index)?);
    }
    if candidates.is_empty() {
        // A hinted index that no scan can read (geometry) leaves the collection scan.
        return Ok(());
    }
    let hashes = shape_hashes(plan, input, &indexes);
    let mut choice = Choice {
        query_hash: Some(hashes.query_hash),
        plan_cache_key: Some(hashes.plan_cache_key),
        filter_shape: (cx.cache.filters().is_used())
            .then(|| filter_shape(plan, input, &collation(settings))),
        is_filtered: filter.is_some(),
        order: first_order(plan).map(SortPattern::to_document),
        ..Choice::default()
    };
    let best = match (candidates.len(), cx.runner) {
        (0 | 1, _) => 0,
        (_, None) => best_known(cx.cache, input, hashes, &candidates).unwrap_or(0),
        (_, Some(runner)) => {
            let trial = Trial {
                input,
                cache: cx.cache,
                runner,
                hashes,
                needs_order: first_order(plan).is_some(),
            };
            trial.best(&candidates, &mut choice)?
        }
    };
    let chosen = candidates.swap_remove(best.min(candidates.len() - 1));
    choice.rejected = candidates;
    take(plan, chosen, choice);
    Ok(())
}

/// True if the plan must read a text index: its filter has a `$text`. A look-up by `_id` is given up.
fn prepare_text(plan: &mut PhysicalPlan, settings: &PlanSettings) -> bool {
    let Input::Records(input) = &mut plan.input else {
        return false;
    };
    let is_text = input
        .filter
        .as_ref()
        .is_some_and(|filter| filter.text().is_some());
    if !is_text || settings.options.no_rules {
        return false;
    }
    input.access = AccessPath::CollectionScan;
    true
}

/// Removes candidates that read no text index; fails if none is left.
fn keep_text(
    candidates: &mut Vec<Candidate>,
    input: &RecordInput,
    settings: &PlanSettings,
) -> Result<()> {
    if settings.strict_api {
        return Err(text::not_in_api());
    }
    candidates.retain(text::is_text);
    match &input.filter {
        Some(filter) if candidates.is_empty() => Err(text::no_plan(filter)),
        _ => Ok(()),
    }
}

/// Returns the index filter of a plan's shape, and removes the hint it replaces.
fn take_filter(plan: &mut PhysicalPlan, cx: ChoiceContext<'_>) -> Option<Arc<IndexFilter>> {
    let Input::Records(input) = &plan.input else {
        return None;
    };
    let shape = || filter_shape(plan, input, &collation(cx.settings));
    let filter = cx.cache.filters().get(&input.namespace, shape)?;
    let Input::Records(input) = &mut plan.input else {
        return None;
    };
    if let Some(forced) = &input.forced {
        if forced.min.is_some() || forced.max.is_some() {
            return None;
        }
        input.forced = None;
    }
    input.choice = Arc::new(Choice {
        is_filtered: true,
        ..Choice::default()
    });
    Some(filter)
}

/// Returns the usable indexes: the hinted one, or all that are not hidden. None if the access path already looks up the `_id`.
fn indexes_of(input: &RecordInput) -> Result<Vec<Arc<Index>>> {
    let all = input.source.all_indexes()?;
    let indexes: Vec<Arc<Index>> = match &input.forced {
        Some(forced) => vec![forced.hint.find(&all)?],
        None => {
            let usable = all.into_iter().filter(|index| index.stored.is_usable());
            usable.collect()
        }
    };
    let is_id = |index: &Arc<Index>| index.stored.spec.name == ID_INDEX;
    let looked_up = matches!(input.access, AccessPath::IdLookup(_));
    let limited = input
        .forced
        .as_ref()
        .is_some_and(|forced| forced.min.is_some() || forced.max.is_some());
    if looked_up && !limited && indexes.iter().all(is_id) {
        return Ok(Vec::new());
    }
    Ok(indexes)
}

/// Limits candidates to the keys between `min` and `max`.
fn stay_within(candidates: &mut Vec<Candidate>, limits: &KeyLimits) {
    if limits.min.is_some() || limits.max.is_some() {
        candidates.retain(|candidate| candidate.access.keys.only().is_some());
    }
    for candidate in candidates {
        if let KeyPlan::Scan(scan) = &mut candidate.access.keys {
            scan.limits = limits.clone();
            // A document sorts by its least or greatest element, which may lie outside.
            candidate.sorted &= scan.shape.parts.iter().all(|part| !part.multikey);
        }
    }
}

pub(crate) fn candidates_of(
    plan: &PhysicalPlan,
    input: &RecordInput,
    settings: &PlanSettings,
    indexes: &[Arc<Index>],
) -> Result<Vec<Candidate>> {
    let conjuncts = match &input.filter {
        Some(filter) => filter.clone().into_conjuncts(),
        None => Vec::new(),
    };
    let paths = if input.show_record_id {
        None
    } else {
        paths_read(&plan.stages, &plan.wanted, plan.distinct.as_deref())
    };
    let collation = collation(settings);
    let grouped = grouped_by(plan);
    let implied = implied::comparisons(&conjuncts);
    let request = Request {
        conjuncts: &conjuncts,
        implied: &implied,
        order: first_order(plan),
        paths: paths.as_ref(),
        distinct: match (&plan.distinct, plan.stages.is_empty()) {
            (Some(path), true) => Some(path),
            _ => grouped.as_deref(),
        },
        collation: &collation,
        forced: input.forced.is_some(),
    };
    Ok(request.candidates(indexes))
}

/// Returns the collation of a query.
fn collation(settings: &PlanSettings) -> Collation {
    Collation::from(settings.collator.clone())
}

/// Returns the field a plan groups by, if its group has no accumulators.
fn grouped_by(plan: &PhysicalPlan) -> Option<Arc<str>> {
    match plan.stages.first() {
        Some(PhysicalStage::Group(group)) if group.stage.fields.is_empty() => group
            .stage
            .key
            .as_field_path()
            .map(|path| path.as_str().into()),
        _ => None,
    }
}

fn first_order(plan: &PhysicalPlan) -> Option<&SortPattern> {
    match plan.stages.first() {
        Some(PhysicalStage::Sort(sort)) if !sort.stage.is_random() => Some(&sort.stage.pattern),
        _ => None,
    }
}

/// Reads by the candidate. Removes a sort that it makes unnecessary, but keeps its limit.
pub(crate) fn take(plan: &mut PhysicalPlan, chosen: Candidate, choice: Choice) {
    if chosen.sorted
        && let Some(PhysicalStage::Sort(sort)) = plan.stages.first()
    {
        let limit = sort.stage.limit.map(PhysicalStage::Limit);
        plan.stages.splice(0..1, limit);
    }
    if let Input::Records(input) = &mut plan.input {
        input.access = AccessPath::Index(Box::new(chosen.access));
        input.choice = Arc::new(choice);
    }
}

/// Limits the reading to what leading `$limit` and `$skip` stages need.
pub(crate) fn set_limit(plan: &mut PhysicalPlan) {
    let limit = match &*plan.stages {
        [PhysicalStage::Limit(limit), ..] => Some(*limit),
        [PhysicalStage::Skip(skip), PhysicalStage::Limit(limit), ..] => skip.checked_add(*limit),
        _ => None,
    };
    if let Input::Records(input) = &mut plan.input {
        input.limit = limit;
    }
}

fn shape_hashes(plan: &PhysicalPlan, input: &RecordInput, indexes: &[Arc<Index>]) -> ShapeHashes {
    let mut rest = String::new();
    if let Some(order) = first_order(plan) {
        rest.push_str(&format!("{:?}", order.to_document()));
    }
    for stage in &plan.stages {
        rest.push_str(stage.name());
        if let PhysicalStage::Project(project) = stage {
            rest.push_str(&format!("{:?}", project.source));
        }
    }
    hashes(input.filter.as_ref(), &rest, indexes)
}

/// Returns the hash of a plan's shape before an index was chosen, without its limits.
fn filter_shape(plan: &PhysicalPlan, input: &RecordInput, collation: &Collation) -> u32 {
    let order = first_order(plan).map(SortPattern::to_document);
    let mut rest = format!("{order:?}{:?}", collation.to_document());
    for stage in &plan.stages {
        if let PhysicalStage::Project(project) = stage {
            rest.push_str(&format!("{:?}", project.source));
        }
    }
    hashes(input.filter.as_ref(), &rest, &[]).query_hash
}

/// Returns the hash by which the index filter of a planned query is found; `None` if it reads no ordinary collection.
pub fn filter_shape_of(plan: &PhysicalPlan, collation: &Collation) -> Option<u32> {
    match &plan.input {
        Input::Records(input) => {
            let chosen = input.choice.filter_shape;
            Some(chosen.unwrap_or_else(|| filter_shape(plan, input, collation)))
        }
        _ => None,
    }
}

fn best_known(
    cache: &PlanCache,
    input: &RecordInput,
    hashes: ShapeHashes,
    candidates: &[Candidate],
) -> Option<usize> {
    let known = cache.get(&input.namespace, hashes)?;
    candidates
        .iter()
        .position(|candidate| signature(candidate) == known.signature)
}

/// Runs candidates for a limited time. The executor implements it, because planning does not know operators.
pub trait TrialRunner {
    /// Runs candidates in turn, each for at most `steps_max` steps or until one has [`TRIAL_ROWS`] rows.
    fn run(
        &self,
        input: &RecordInput,
        candidates: &[Candidate],
        steps_max: u64,
    ) -> Result<Vec<TrialResult>>;
}

/// Inputs to a choice between indexes, besides the plan.
#[derive(Clone, Copy)]
pub struct ChoiceContext<'a> {
    /// Collation and switches.
    pub settings: &'a PlanSettings,
    /// The cached plans.
    pub cache: &'a PlanCache,
    /// Compares candidates by running them; without it the cache or the first candidate decides.
    pub runner: Option<&'a dyn TrialRunner>,
}

/// A comparison of candidates.
struct Trial<'a> {
    input: &'a RecordInput,
    cache: &'a PlanCache,
    runner: &'a dyn TrialRunner,
    hashes: ShapeHashes,
    needs_order: bool,
}

impl Trial<'_> {
    fn best(&self, candidates: &[Candidate], choice: &mut Choice) -> Result<usize> {
        let plans = self.cache;
        if let Some(known) = plans.get(&self.input.namespace, self.hashes)
            && let Some(at) = candidates
                .iter()
                .position(|candidate| signature(candidate) == known.signature)
        {
            let budget = known.works.saturating_mul(WORSE_BEFORE_TRIAL);
            let only = candidates.get(at..=at).unwrap_or_default();
            let results = self.runner.run(self.input, only, budget)?;
            let result = results.into_iter().next().unwrap_or_default();
            if result.at_end || result.rows >= TRIAL_ROWS || result.works < budget {
                choice.is_cached = true;
                return Ok(at);
            }
            plans.deactivate(&self.input.namespace, self.hashes);
        }
        let mut results = self.runner.run(self.input, candidates, TRIAL_STEPS_MAX)?;
        for (result, candidate) in results.iter_mut().zip(candidates) {
            result.score = self.score(result, candidate);
        }
        let best = results
            .iter()
            .enumerate()
            .rev()
            .max_by(|(_, a), (_, b)| a.score.total_cmp(&b.score))
            .map_or(0, |(at, _)| at);
        if let (Some(result), Some(candidate)) = (results.get(best), candidates.get(best)) {
            plans.put(
                &self.input.namespace,
                self.hashes,
                signature(candidate),
                result.works.max(1),
                self.created_from(choice.order.as_ref()),
            );
        }
        // In the order of explain: the chosen one, then the rejected ones in their order.
        let taken = results.swap_remove(best.min(results.len().saturating_sub(1)));
        choice.trials = vec![taken];
        choice.trials.extend(results);
        Ok(best)
    }

    fn created_from(&self, order: Option<&Document>) -> Document {
        let mut out = DocumentBuilder::new();
        let filter = self.input.filter.as_ref();
        out.append("query", filter.map(|f| f.to_document()).unwrap_or_default());
        out.append("sort", order.cloned().unwrap_or_default());
        out.append("projection", Document::new());
        out.finish()
    }

    fn score(&self, result: &TrialResult, candidate: &Candidate) -> f64 {
        let sorts = self.needs_order && !candidate.sorted;
        // Sorted rows are returned one by one, too.
        let given = if sorts { result.rows } else { 0 };
        let works = (result.works + given).max(1) as f64;
        let rows = if sorts && !result.at_end {
            0.0
        } else {
            result.rows as f64
        };
        let tie = TIE_BREAK_MAX.min(1.0 / (10.0 * works));
        let mut score = 1.0 + rows / works;
        if candidate.access.covering.is_some() {
            score += tie;
        }
        if !sorts {
            score += tie;
        }
        if result.at_end {
            score += 1.0;
        }
        score
    }
}

/// Returns the names of the shape for explain.
pub fn explain_hashes(choice: &Choice, out: &mut DocumentBuilder) {
    if let Some(hash) = choice.query_hash {
        out.append("queryHash", cache::hex(hash));
        out.append("planCacheShapeHash", cache::hex(hash));
    }
    if let Some(key) = choice.plan_cache_key {
        out.append("planCacheKey", cache::hex(key));
    }
}
