//! Whole numbers as options give them.

use nilometer_bson::ValueRef;
use nilometer_bson::number::Number;

/// The number with its fraction cut; NaN is 0, what lies beyond 64 bits the nearest end. 0 for what
/// is no number.
pub(crate) fn truncated_i64(value: ValueRef<'_>) -> i64 {
    match Number::of(value) {
        None => 0,
        // A cast from a double is exactly this rule; a decimal beyond its range is infinite there.
        Some(number) => number
            .to_i64_truncated()
            .unwrap_or_else(|_| number.to_f64() as i64),
    }
}
