//! When a bucket stops taking measurements.
//!
//! A pure decision: facts about the bucket and the measurement in, a reason or none out. The order
//! of the checks is the order in which MongoDB names reasons: time, count, size, schema.

/// Limits of buckets, from the server parameters of the same names.
#[derive(Clone, Copy, Debug)]
pub struct BucketLimits {
    /// `timeseriesBucketMaxCount`: measurements in a bucket.
    pub count_max: usize,
    /// `timeseriesBucketMaxSize`: bytes of a bucket document.
    pub bytes_max: usize,
    /// `timeseriesBucketMinCount`: below this a large bucket stays open.
    pub count_min: usize,
    /// `timeseriesIdleBucketExpiryMaxCountPerAttempt`: series closed at most when memory is short.
    pub expiry_count_max: usize,
}

impl Default for BucketLimits {
    fn default() -> Self {
        Self {
            count_max: 1000,
            bytes_max: 128_000,
            count_min: 10,
            expiry_count_max: 3,
        }
    }
}

/// A bucket of large measurements closes at this size whatever its count: 16 MiB less 4 MiB.
pub(crate) const LARGE_BUCKET_BYTES_MAX: usize = 12 << 20;

/// Why a bucket takes no more measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rollover {
    /// It has as many as it may.
    Count,
    /// It is as large as it may be.
    Size,
    /// The measurement is later than its span allows.
    TimeForward,
    /// The measurement is earlier than its start.
    TimeBackward,
    /// A field of the measurement has another canonical type.
    SchemaChange,
}

/// What is asked about a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// `control.min` of the time, in ms.
    pub(crate) start_ms: i64,
    /// Span of the collection's buckets, in ms.
    pub(crate) span_ms: i64,
    /// Time of the measurement, in ms.
    pub(crate) time_ms: i64,
    /// Measurements in the bucket.
    pub(crate) count: usize,
    /// Bytes of the bucket.
    pub(crate) bytes: usize,
    /// Bytes the measurement adds.
    pub(crate) measurement_bytes: usize,
}

/// The reason to close the bucket rather than add the measurement, schema aside.
pub(crate) fn decide(facts: &Facts, limits: &BucketLimits) -> Option<Rollover> {
    if facts.time_ms < facts.start_ms {
        return Some(Rollover::TimeBackward);
    }
    // Times 2^32 seconds apart agree in a bucket's id; the subtraction must not wrap either.
    if facts
        .time_ms
        .checked_sub(facts.start_ms)
        .is_none_or(|ahead| ahead >= facts.span_ms)
    {
        return Some(Rollover::TimeForward);
    }
    if facts.count >= limits.count_max {
        return Some(Rollover::Count);
    }
    let bytes = facts.bytes.saturating_add(facts.measurement_bytes);
    let over = bytes > limits.bytes_max && facts.count >= limits.count_min;
    if over || bytes > LARGE_BUCKET_BYTES_MAX && facts.count > 0 {
        return Some(Rollover::Size);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            start_ms: 0,
            span_ms: 3_600_000,
            time_ms: 10,
            count: 500,
            bytes: 1000,
            measurement_bytes: 100,
        }
    }

    #[test]
    fn each_reason_at_its_edge() {
        let limits = BucketLimits::default();
        let check = |change: fn(&mut Facts), expected| {
            let mut facts = facts();
            change(&mut facts);
            assert_eq!(decide(&facts, &limits), expected, "{facts:?}");
        };
        check(|_| (), None);
        check(|f| f.time_ms = 3_599_999, None);
        check(|f| f.time_ms = 3_600_000, Some(Rollover::TimeForward));
        check(|f| f.time_ms = -1, Some(Rollover::TimeBackward));
        check(
            |f| (f.start_ms, f.time_ms) = (i64::MIN, i64::MAX),
            Some(Rollover::TimeForward),
        );
        check(|f| f.count = 999, None);
        check(|f| f.count = 1000, Some(Rollover::Count));
        check(|f| f.bytes = 127_900, None);
        check(|f| f.bytes = 127_901, Some(Rollover::Size));
        check(|f| (f.bytes, f.count) = (1 << 20, 9), None);
        check(|f| (f.bytes, f.count) = (12 << 20, 3), Some(Rollover::Size));
    }
}
