//! Functions of values in order of time: each point gives a value, or none.

use std::collections::VecDeque;

use super::cell::Cell;
use crate::influxql::ast::Operator;

/// Values that a moving average takes.
pub(super) const WINDOW_MAX: usize = 100_000;

/// A function with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TransformKind {
    /// The difference to the value before, for each so many ns.
    Derivative {
        /// The unit in ns.
        unit_ns: i64,
        /// Negative results are left out.
        non_negative: bool,
    },
    /// The difference to the value before.
    Difference {
        /// Negative results are left out.
        non_negative: bool,
    },
    /// The mean of so many values.
    MovingAverage(usize),
    /// The sum of all values so far.
    CumulativeSum,
}

impl TransformKind {
    /// True if its values are doubles whatever it is applied to.
    pub(super) fn is_float(&self) -> bool {
        match self {
            Self::Derivative { .. } | Self::MovingAverage(_) => true,
            Self::Difference { .. } | Self::CumulativeSum => false,
        }
    }

    /// Returns how many windows before the first the function needs.
    pub(super) fn windows_before(&self) -> i64 {
        match self {
            Self::Derivative { .. } | Self::Difference { .. } => 1,
            Self::MovingAverage(count) => i64::try_from(*count).unwrap_or(i64::MAX) - 1,
            Self::CumulativeSum => 0,
        }
    }
}

/// The state of a function.
#[derive(Clone, Debug)]
pub(super) struct Transform {
    kind: TransformKind,
    last: Option<(i64, Cell)>,
    recent: VecDeque<f64>,
    sum: Cell,
}

impl Transform {
    /// Begins a series.
    pub(super) fn new(kind: TransformKind) -> Self {
        Self {
            kind,
            last: None,
            recent: VecDeque::new(),
            sum: Cell::Integer(0),
        }
    }

    /// Takes the next point, which is not before the last one. Null if it gives no value.
    #[allow(clippy::cast_precision_loss, reason = "InfluxDB calculates in doubles")]
    pub(super) fn push(&mut self, time_ns: i64, value: &Cell) -> Cell {
        let Some(number) = value.as_f64() else {
            return Cell::Null;
        };
        match &self.kind {
            TransformKind::Derivative {
                unit_ns,
                non_negative,
            } => {
                let before = self.last.replace((time_ns, value.clone()));
                let Some((time_before, before)) = before else {
                    return Cell::Null;
                };
                let elapsed = time_ns.saturating_sub(time_before);
                let difference = number - before.as_f64().unwrap_or(0.0);
                if elapsed == 0 || *non_negative && difference < 0.0 {
                    return Cell::Null;
                }
                Cell::finite(difference / (elapsed as f64 / *unit_ns as f64))
            }
            TransformKind::Difference { non_negative } => {
                let before = self.last.replace((time_ns, value.clone()));
                let Some((_, before)) = before else {
                    return Cell::Null;
                };
                let difference = super::cell::arithmetic(Operator::Subtract, value, &before);
                match difference.as_f64() {
                    Some(result) if *non_negative && result < 0.0 => Cell::Null,
                    _ => difference,
                }
            }
            TransformKind::MovingAverage(count) => {
                self.recent.push_back(number);
                if self.recent.len() > *count {
                    self.recent.pop_front();
                }
                match self.recent.len() == *count {
                    true => Cell::finite(self.recent.iter().sum::<f64>() / *count as f64),
                    false => Cell::Null,
                }
            }
            TransformKind::CumulativeSum => {
                self.sum = super::cell::arithmetic(Operator::Add, &self.sum, value);
                self.sum.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: TransformKind, values: &[f64]) -> Vec<Cell> {
        let mut transform = Transform::new(kind);
        let points = values.iter().zip(0_i64..);
        points
            .map(|(value, at)| transform.push(at * 10, &Cell::Float(*value)))
            .collect()
    }

    #[test]
    fn values_follow_from_those_before() {
        let float = |values: &[f64]| values.iter().map(|v| Cell::Float(*v)).collect::<Vec<_>>();
        let derivative = |non_negative| TransformKind::Derivative {
            unit_ns: 5,
            non_negative,
        };
        let with_null = |values: &[f64]| [vec![Cell::Null], float(values)].concat();
        assert_eq!(
            run(derivative(false), &[1.0, 3.0, 2.0]),
            with_null(&[1.0, -0.5])
        );
        let positive = run(derivative(true), &[1.0, 3.0, 2.0]);
        assert_eq!(positive, [Cell::Null, Cell::Float(1.0), Cell::Null]);
        let difference = TransformKind::Difference {
            non_negative: false,
        };
        assert_eq!(run(difference, &[1.0, 3.0, 2.0]), with_null(&[2.0, -1.0]));
        assert_eq!(
            run(TransformKind::MovingAverage(2), &[1.0, 3.0, 2.0]),
            with_null(&[2.0, 2.5])
        );
        assert_eq!(
            run(TransformKind::CumulativeSum, &[1.0, 3.0, 2.0]),
            float(&[1.0, 4.0, 6.0])
        );
    }
}
