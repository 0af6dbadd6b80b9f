//! The division of time into the bins of a rollup.

use nilometer_bson::civil_date::DAY_MS;

use crate::eval::date::{TimeZone, add};
use crate::eval::expression::DateBins;

/// Bins of `$dateTrunc` in UTC.
#[derive(Clone, Debug)]
pub struct RollupBins {
    bins: DateBins,
    /// The length of a bin, if all have the same.
    width_ms: Option<i64>,
}

impl RollupBins {
    /// Returns the division; `None` if it is not one in UTC.
    pub fn new(bins: &DateBins) -> Option<Self> {
        let in_utc = matches!(bins.timezone, TimeZone::Utc | TimeZone::Fixed(0));
        in_utc.then(|| Self {
            width_ms: width_of(bins),
            bins: bins.clone(),
        })
    }

    /// Returns the start of the bin that contains an instant; the earliest date if the bin has no start.
    pub fn floor(&self, ms: i64) -> i64 {
        self.bins.trunc(ms).unwrap_or(i64::MIN)
    }

    /// Returns the start of the bin after the one that starts at `start`; the latest date if there is none.
    pub fn next(&self, start: i64) -> i64 {
        match self.width_ms {
            Some(width) => start.saturating_add(width),
            None => {
                add(start, self.bins.unit, self.bins.bin_size, &TimeZone::Utc).unwrap_or(i64::MAX)
            }
        }
    }

    /// Returns the start of the first bin that does not start before an instant.
    pub fn ceil(&self, ms: i64) -> i64 {
        match self.floor(ms) {
            start if start == ms => ms,
            start => self.next(start),
        }
    }

    /// True if `other` has the same bins.
    pub fn are(&self, other: &DateBins) -> bool {
        let is_as_wide = match (self.width_ms, width_of(other)) {
            (Some(own), Some(other)) => own == other,
            (None, None) => months_of(other) == months_of(&self.bins),
            _ => false,
        };
        is_as_wide && self.divides(other)
    }

    /// True if every bin of `wider` consists of whole bins of this division.
    pub fn divides(&self, wider: &DateBins) -> bool {
        if !matches!(wider.timezone, TimeZone::Utc | TimeZone::Fixed(0)) {
            return false;
        }
        let (own, other) = (&self.bins, wider);
        let is_start = |ms: i64| self.floor(ms) == ms;
        match (self.width_ms, width_of(other)) {
            (Some(own), Some(wide)) => wide % own == 0 && other.trunc(0).is_ok_and(is_start),
            // Calendar bins start at midnight.
            (Some(own), None) => DAY_MS % own == 0 && is_start(0),
            (None, Some(_)) => false,
            (None, None) => months_of(other) % months_of(own) == 0,
        }
    }
}

/// Returns the length of the bins, if all have the same.
fn width_of(bins: &DateBins) -> Option<i64> {
    let unit_ms = bins
        .unit
        .clock_ms()
        .or_else(|| bins.unit.days().map(|days| days * DAY_MS))?;
    unit_ms.checked_mul(bins.bin_size)
}

/// Returns the number of months in a calendar bin; 1 if there are too many to count.
fn months_of(bins: &DateBins) -> i64 {
    let months = bins.unit.months().unwrap_or(1);
    months.checked_mul(bins.bin_size).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, doc};

    use super::*;
    use crate::eval::{Expression, ParseContext};

    fn date_bins(unit: &str, size: i32) -> DateBins {
        let spec = doc! {"$dateTrunc": doc! {"date": "$t", "unit": unit, "binSize": size}};
        let parsed = Expression::parse(Value::from(spec).as_ref(), &ParseContext::new()).unwrap();
        let Expression::DateTrunc(trunc) = parsed else {
            panic!("not a truncation");
        };
        trunc.constant_bins().unwrap().clone()
    }

    #[test]
    fn a_division_divides_wider_ones() {
        for (own, wider, expected) in [
            (("minute", 1), ("hour", 1), true),
            (("minute", 7), ("hour", 1), false),
            (("hour", 1), ("day", 1), true),
            (("hour", 5), ("day", 5), true),
            (("hour", 6), ("month", 1), true),
            (("hour", 36), ("month", 1), false),
            (("day", 1), ("week", 1), true),
            (("week", 1), ("month", 1), false),
            (("week", 1), ("week", 2), true),
            (("month", 1), ("quarter", 1), true),
            (("month", 2), ("quarter", 1), false),
            (("month", 1), ("day", 30), false),
            (("day", 1), ("day", 1), true),
            (("day", 1), ("hour", 1), false),
        ] {
            let bins = RollupBins::new(&date_bins(own.0, own.1)).unwrap();
            let wide = date_bins(wider.0, wider.1);
            assert_eq!(bins.divides(&wide), expected, "{own:?} {wider:?}");
            if !expected {
                continue;
            }
            // Each wider bin starts with a bin, on both sides of 1970 and 2000.
            let outer = RollupBins::new(&wide).unwrap();
            let mut start = outer.floor(-2_000_000_000_000);
            for _ in 0..40 {
                assert_eq!(bins.floor(start), start);
                start = outer.next(start);
                assert_eq!(outer.floor(start), start);
                assert_eq!(outer.ceil(start - 1), start);
            }
        }
    }
}
