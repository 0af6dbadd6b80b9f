//! Ranges of times, and of bucket ids, that contain the matches of a filter.

use crate::eval::matcher::CompareOp;

/// A range of times in milliseconds, both ends inclusive; empty if `min > max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// The earliest time.
    pub min: i64,
    /// The latest time.
    pub max: i64,
}

impl Default for TimeRange {
    fn default() -> Self {
        Self::ALL
    }
}

impl TimeRange {
    /// All times.
    pub const ALL: TimeRange = TimeRange {
        min: i64::MIN,
        max: i64::MAX,
    };

    /// No time.
    pub const NONE: TimeRange = TimeRange {
        min: i64::MAX,
        max: i64::MIN,
    };

    /// True if the range is empty.
    pub fn is_empty(self) -> bool {
        self.min > self.max
    }

    /// Returns the intersection.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self {
            min: self.min.max(other.min),
            max: self.max.min(other.max),
        }
    }

    /// Returns the smallest range that contains both.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    pub(super) fn of(op: CompareOp, at: i64) -> Self {
        let (min, max) = match op {
            CompareOp::Eq => (at, at),
            CompareOp::Gt => (at.saturating_add(1), i64::MAX),
            CompareOp::Gte => (at, i64::MAX),
            CompareOp::Lt => (i64::MIN, at.saturating_sub(1)),
            CompareOp::Lte => (i64::MIN, at),
        };
        // No date is later than the last or earlier than the first.
        let beyond = matches!(
            (op, at),
            (CompareOp::Gt, i64::MAX) | (CompareOp::Lt, i64::MIN)
        );
        if beyond {
            Self::NONE
        } else {
            Self { min, max }
        }
    }
}

/// A range of the seconds in bucket ids, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdBounds {
    /// No bucket can match.
    Empty,
    /// Only ids within these.
    Within {
        /// Lowest second, if there is a lower bound.
        min: Option<u32>,
        /// Highest second, if there is an upper bound.
        max: Option<u32>,
    },
}
