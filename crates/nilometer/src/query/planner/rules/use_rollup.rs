//! Answering a `$group` of a time series from a rollup.

use std::sync::Arc;

use nilometer_bson::order::compare;
use nilometer_bson::{Value, ValueRef};

use super::LogicalRule;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, Expression};
use crate::query::pipeline::{GroupStage, Stage};
use crate::query::planner::access::bins::BinHint;
use crate::query::planner::logical::{
    LogicalMeasurements, LogicalPlan, LogicalRollup, LogicalSource,
};
use crate::query::planner::physical::{RollupInput, RollupOutput, StateMapping, span_of};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::RollupSource;
use crate::rollup::PartSource;

/// Reads the stored bins of a rollup in the place of measurements; the edges of the time range, and bins that are open, dirty
/// or frozen, are read from the rollup below, in the same way, or from the source.
///
/// Conditions: a `$group` is first, but for a `$match`. Each part of the key is a part of that of the rollup, a constant, or
/// bins that those of the rollup divide; each accumulator is one of the rollup, and one whose states merge to what one pass
/// returns. The filter consists of all conditions in the filter of the rollup, as written there, of comparisons of the time
/// with dates, and of conditions on one part of the key each. Some bin lies within the range of time. No hint and no
/// collation is given. Of several rollups that fit, the one with the widest bins is used. If each group is one bin, the rollup
/// takes the place of the `$group`.
pub struct UseRollup;

impl LogicalRule for UseRollup {
    fn name(&self) -> &'static str {
        "UseRollup"
    }

    fn apply(&self, plan: &mut LogicalPlan, settings: &PlanSettings) -> bool {
        let LogicalSource::Measurements(scan) = &plan.source else {
            return false;
        };
        let is_hinted = scan.is_natural || scan.is_direction_fixed || scan.hint.is_some();
        if scan.rollups.is_empty() || is_hinted || settings.collator.is_some() {
            return false;
        }
        let (leading, group) = match plan.stages.as_slice() {
            [Stage::Group(group), ..] => (None, group),
            [Stage::Match(first), Stage::Group(group), ..] => (Some(&first.filter), group),
            _ => return false,
        };
        let mut found: Option<(i64, RollupInput)> = None;
        for rollup in &scan.rollups {
            let Some(input) = input_from(rollup, scan, leading, group) else {
                continue;
            };
            let bins = &rollup.definition.bins;
            let start = bins.floor(0);
            let width = bins.next(start).saturating_sub(start);
            if found.as_ref().is_none_or(|(widest, _)| width > *widest) {
                found = Some((width, input));
            }
        }
        let Some((_, mut input)) = found else {
            return false;
        };
        if leading.is_some() {
            plan.stages.remove(0);
        }
        if let RollupOutput::States(mapping) = &input.output
            && mapping.is_one_to_one(&input.rollup.definition)
            && let Some(Stage::Group(group)) = plan.stages.first()
        {
            let names = group.fields.iter().map(|(name, _)| Arc::clone(name));
            input.output = RollupOutput::Groups(mapping.clone(), names.collect());
            plan.stages.remove(0);
        } else if let Some(Stage::Group(group)) = plan.stages.first_mut() {
            group.takes_states = true;
        }
        plan.source = LogicalSource::Rollup(LogicalRollup::States(Box::new(input)));
        true
    }
}

/// Returns the input from a rollup that answers the `$group`, if one does.
fn input_from(
    rollup: &Arc<RollupSource>,
    scan: &LogicalMeasurements,
    leading: Option<&MatchExpression>,
    group: &GroupStage,
) -> Option<RollupInput> {
    let definition = &rollup.definition;
    if group.shown.is_some() || group.takes_states {
        return None;
    }
    let mut parts = Vec::new();
    for (name, part) in group.key_parts() {
        parts.push((name.map(Arc::from), part_of(rollup, part)?));
    }
    let mut fields = Vec::new();
    for (name, spec) in group.fields.iter() {
        let asked = (spec, group.source.get(name));
        let same = |(name, known): &(Arc<str>, AccumulatorSpec)| {
            is_same((known, definition.group.get(name)), asked)
        };
        fields.push(definition.fields.iter().position(same)?);
    }
    let mut input = RollupInput {
        rollup: Arc::clone(rollup),
        span: (i64::MIN, i64::MAX),
        key_filter: None,
        series_filter: None,
        output: RollupOutput::States(StateMapping { parts, fields }),
        of_series: true,
        index: None,
    };
    let filters = scan.filter.iter().chain(leading).cloned();
    let filter = MatchExpression::and(filters.collect());
    let (mut of_key, mut of_series) = (Vec::new(), Vec::new());
    for conjunct in without(filter, definition.filter.as_ref())? {
        match &conjunct {
            MatchExpression::Compare(comparison)
                if comparison.path.as_str() == &*definition.series_time_field =>
            {
                let Value::DateTime(at) = comparison.value else {
                    return None;
                };
                let (from, to) = span_of(comparison.op, at);
                input.span = (input.span.0.max(from), input.span.1.min(to));
            }
            _ => {
                of_key.push(on_key(rollup, &conjunct)?);
                of_series.push(conjunct);
            }
        }
    }
    let bins = &definition.bins;
    if bins.ceil(input.span.0) >= bins.floor(input.span.1) {
        return None;
    }
    let and = |all: Vec<MatchExpression>| (!all.is_empty()).then(|| MatchExpression::and(all));
    // The rule is for queries without a collation.
    input.choose_index(&of_key, &BinHint::None, &Collation::SIMPLE);
    (input.key_filter, input.series_filter) = (and(of_key), and(of_series));
    Some(input)
}

/// Returns how a part of the key follows from the key of the rollup.
fn part_of(rollup: &RollupSource, part: &Expression) -> Option<PartSource> {
    let definition = &rollup.definition;
    match part {
        Expression::Constant(value) => Some(PartSource::Constant(value.clone())),
        Expression::DateTrunc(trunc) => {
            let is_time = trunc.date.as_field_path()?.as_str() == &*definition.series_time_field;
            let bins = trunc.constant_bins()?;
            (is_time && definition.bins.divides(bins)).then(|| PartSource::Bins(bins.clone()))
        }
        _ => {
            let path = part.as_field_path()?;
            let mut known = definition.parts.iter();
            let known = known.find(|known| known.expression.as_field_path() == Some(path))?;
            Some(PartSource::Part(Arc::clone(&known.name)))
        }
    }
}

/// Returns the conjuncts of a filter but those of the filter of a rollup; `None` if it lacks one of these.
fn without(
    filter: MatchExpression,
    of_rollup: Option<&MatchExpression>,
) -> Option<Vec<MatchExpression>> {
    let mut conjuncts = filter.into_conjuncts();
    let Some(of_rollup) = of_rollup else {
        return Some(conjuncts);
    };
    for wanted in of_rollup.clone().into_conjuncts() {
        let wanted = wanted.to_document();
        let before = conjuncts.len();
        conjuncts.retain(|conjunct| conjunct.to_document() != wanted);
        if conjuncts.len() == before {
            return None;
        }
    }
    Some(conjuncts)
}

/// An accumulator and its text.
type Written<'a> = (&'a AccumulatorSpec, ValueRef<'a>);

/// True if both have the same states, and these merge to what one pass over the measurements returns.
///
/// Not so `$top` and `$bottom`, where measurements of equal keys may change places, and deviations, which depend on the order of
/// additions.
fn is_same((known, known_text): Written<'_>, (asked, asked_text): Written<'_>) -> bool {
    use AccumulatorKind as K;
    if known.kind() != asked.kind() {
        return false;
    }
    match asked.kind() {
        K::Count => true,
        K::Sum | K::Avg | K::Min | K::Max => {
            let is_same_argument = match (known.argument(), asked.argument()) {
                (Expression::Constant(a), Expression::Constant(b)) => {
                    a.as_ref().type_name() == b.as_ref().type_name()
                        && compare(a.as_ref(), b.as_ref()).is_eq()
                }
                (a, b) => match (a.as_field_path(), b.as_field_path()) {
                    (Some(a), Some(b)) => a == b,
                    _ => false,
                },
            };
            is_same_argument || is_same_text(known_text, asked_text)
        }
        K::MinN | K::MaxN | K::Percentile | K::Median => is_same_text(known_text, asked_text),
        _ => false,
    }
}

/// True if both values are the same bytes. The text of a rollup has neither variables nor changing operators.
fn is_same_text(known: ValueRef<'_>, asked: ValueRef<'_>) -> bool {
    match (known.as_document(), asked.as_document()) {
        (Some(known), Some(asked)) => known.as_bytes() == asked.as_bytes(),
        _ => false,
    }
}

/// Returns a condition on one part of the metadata as one on the part of the key.
fn on_key(rollup: &RollupSource, conjunct: &MatchExpression) -> Option<MatchExpression> {
    let reads = conjunct.dependencies();
    if reads.whole || reads.random || reads.paths.is_empty() {
        return None;
    }
    rollup.definition.parts.iter().find_map(|part| {
        let path = part.expression.as_field_path()?;
        conjunct.renamed(path.as_str(), &part.name)
    })
}
