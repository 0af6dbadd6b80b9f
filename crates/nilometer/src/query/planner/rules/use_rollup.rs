//! Answering a `$group` of a time series from a rollup.

use std::sync::Arc;

use nilometer_bson::Value;
use nilometer_bson::order::compare;

use super::LogicalRule;
use crate::eval::Expression;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::matcher::MatchExpression;
use crate::query::pipeline::{GroupStage, Stage};
use crate::query::planner::logical::{
    LogicalMeasurements, LogicalPlan, LogicalRollup, LogicalSource,
};
use crate::query::planner::physical::{RollupInput, RollupOutput, StateMapping, span_of};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::RollupSource;
use crate::rollup::PartSource;

/// Reads the stored bins of a rollup in the place of measurements; the edges of the time range, and bins that are open, dirty
/// or frozen, are read from the source.
///
/// Conditions: a `$group` is first, but for a `$match`. The rollup has no filter. Each part of the key is a part of that of the
/// rollup, a constant, or bins that those of the rollup divide; each accumulator is a `$sum`, `$avg`, `$min`, `$max` or
/// `$count` of the rollup. The filter consists of comparisons of the time with dates, and conditions on one part of the key
/// each. Some bin lies within the range of time. No hint and no collation is given. Of several rollups that fit, the one
/// with the widest bins is used.
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
        let Some((_, input)) = found else {
            return false;
        };
        if leading.is_some() {
            plan.stages.remove(0);
        }
        if let Some(Stage::Group(group)) = plan.stages.first_mut() {
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
    if definition.filter.is_some() || group.shown.is_some() || group.takes_states {
        return None;
    }
    let mut parts = Vec::new();
    for (name, part) in group.key_parts() {
        parts.push((name.map(Arc::from), part_of(rollup, part)?));
    }
    let mut fields = Vec::new();
    for (_, spec) in group.fields.iter() {
        let same = |(_, known): &(Arc<str>, AccumulatorSpec)| is_same(known, spec);
        fields.push(definition.fields.iter().position(same)?);
    }
    let mut input = RollupInput {
        rollup: Arc::clone(rollup),
        span: (i64::MIN, i64::MAX),
        key_filter: None,
        series_filter: None,
        output: RollupOutput::States(StateMapping { parts, fields }),
        of_series: true,
    };
    let filters = scan.filter.iter().chain(leading).cloned();
    let filter = MatchExpression::and(filters.collect());
    let (mut of_key, mut of_series) = (Vec::new(), Vec::new());
    for conjunct in filter.into_conjuncts() {
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

/// True if both have the same states, and these merge to what one pass over the measurements returns.
fn is_same(known: &AccumulatorSpec, asked: &AccumulatorSpec) -> bool {
    use AccumulatorKind as K;
    if known.kind() != asked.kind() {
        return false;
    }
    match asked.kind() {
        K::Count => true,
        K::Sum | K::Avg | K::Min | K::Max => match (known.argument(), asked.argument()) {
            (Expression::Constant(a), Expression::Constant(b)) => {
                a.as_ref().type_name() == b.as_ref().type_name()
                    && compare(a.as_ref(), b.as_ref()).is_eq()
            }
            (a, b) => match (a.as_field_path(), b.as_field_path()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        },
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
