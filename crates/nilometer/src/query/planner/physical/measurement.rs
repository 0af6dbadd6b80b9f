//! What an expression or accumulator reads from measurements of one shape. Strategies depend on it.

use crate::eval::Dependencies;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::expression::{DateBins, Expression};
use crate::eval::sort_key::SortBy;
use crate::query::batch::MeasurementShape;

/// True if the expression is constant over a block.
pub(crate) fn is_constant(expression: &Expression, shape: &MeasurementShape) -> bool {
    let mut dependencies = Dependencies::default();
    expression.dependencies(&mut dependencies);
    !dependencies.whole
        && !dependencies.random
        && dependencies
            .top_level_fields()
            .iter()
            .all(|field| shape.meta_field.as_deref() == Some(*field))
}

/// Returns the time bins, if the expression is a `$dateTrunc` of the time with constant bins.
pub(crate) fn time_bins<'e>(
    expression: &'e Expression,
    shape: &MeasurementShape,
) -> Option<&'e DateBins> {
    let Expression::DateTrunc(trunc) = expression else {
        return None;
    };
    let path = trunc.date.as_field_path()?;
    let is_time = path.as_str() == &*shape.time_field && shape.fields.contains(&shape.time_field);
    if is_time { trunc.constant_bins() } else { None }
}

/// The row of a run that an accumulator ordered by time and metadata keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeRank {
    /// By time: the newest or the oldest; `None` if the order does not include the time.
    pub(crate) newest: Option<bool>,
    /// Of equal rows it keeps the last, not the first.
    pub(crate) last: bool,
}

/// Returns how a `$top` or `$bottom` ranks the rows of a block, if it orders by metadata and time only.
pub(crate) fn time_rank(
    spec: &AccumulatorSpec,
    time_field: &str,
    meta_field: Option<&str>,
) -> Option<TimeRank> {
    let last = match spec.kind() {
        AccumulatorKind::Top => false,
        AccumulatorKind::Bottom => true,
        _ => return None,
    };
    let mut newest = None;
    for part in spec.sort()?.parts() {
        let SortBy::Field(path) = &part.by else {
            return None;
        };
        if path.as_str() == time_field {
            newest = Some(part.descending != last);
        } else if meta_field != Some(path.first()) {
            return None;
        }
    }
    Some(TimeRank { newest, last })
}
