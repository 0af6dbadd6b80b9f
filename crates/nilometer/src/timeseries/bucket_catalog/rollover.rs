//! Rollover: when a bucket stops taking measurements.
//!
//! A pure decision: facts about the bucket and the measurement in, a reason or none out. The checks have the order in which
//! MongoDB names reasons: time, count, size. The schema comes last and is checked by `BucketWriter::push`, which has the values.
//!
//! The limit of a bucket's bytes is dynamic: the more buckets are active, the smaller the share of the cache of each.
//!
//! ```text
//! derived = max(cache / (2 × active buckets), timeseriesBucketMinSize)
//! limit   = min(timeseriesBucketMaxSize, derived)         above it a bucket closes, …
//! ceiling = min(12 MiB, derived)                          … with few large measurements above this
//! ```

/// Limits of buckets, from the server parameters of the same names.
#[derive(Clone, Copy, Debug)]
pub struct BucketLimits {
    /// `timeseriesBucketMaxCount`: measurements in a bucket.
    pub count_max: usize,
    /// `timeseriesBucketMaxSize`: bytes of a bucket document.
    pub bytes_max: usize,
    /// `timeseriesBucketMinCount`: below this a large bucket stays open.
    pub count_min: usize,
    /// `timeseriesBucketMinSize`: the dynamic limit never falls below it.
    pub bytes_min: usize,
    /// `timeseriesIdleBucketExpiryMaxCountPerAttempt`: series closed at most when memory is short.
    pub expiry_count_max: usize,
    /// Bytes of cache that active buckets share; 0 for no dynamic limit.
    pub cache_bytes: u64,
}

impl Default for BucketLimits {
    fn default() -> Self {
        Self {
            count_max: 1000,
            bytes_max: 128_000,
            count_min: 10,
            bytes_min: 5120,
            expiry_count_max: 3,
            cache_bytes: 0,
        }
    }
}

impl BucketLimits {
    /// Returns a bucket's share of the cache, in bytes, with this many active buckets.
    pub(crate) fn derived_bytes(&self, active: usize, bytes_min: usize) -> usize {
        let shares = u64::try_from(active).unwrap_or(u64::MAX).saturating_mul(2);
        match self.cache_bytes.checked_div(shares) {
            Some(share) if self.cache_bytes > 0 => {
                usize::try_from(share).unwrap_or(usize::MAX).max(bytes_min)
            }
            _ => usize::MAX,
        }
    }
}

/// A bucket of large measurements closes at this size whatever its count: 16 MiB less 4 MiB.
pub(crate) const LARGE_BUCKET_BYTES_MAX: usize = 12 << 20;

/// Why a bucket takes no more measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rollover {
    /// It has the maximum of measurements.
    Count,
    /// It has the maximum size.
    Size,
    /// It exceeds its share of the cache.
    CachePressure,
    /// The measurement is later than its span allows.
    TimeForward,
    /// The measurement is earlier than its start.
    TimeBackward,
    /// A field of the measurement has another canonical type.
    SchemaChange,
    /// It cannot be read.
    Frozen,
}

/// The facts that decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RolloverInput {
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
    /// Bytes the measurement adds; may be 0 if both together are below every limit.
    pub(crate) measurement_bytes: usize,
    /// The bucket's share of the cache, in bytes.
    pub(crate) derived_bytes: usize,
}

/// Returns the reason to close the bucket before adding the measurement, if there is one. Does not check the schema.
pub(crate) fn decide(input: &RolloverInput, limits: &BucketLimits) -> Option<Rollover> {
    if input.time_ms < input.start_ms {
        return Some(Rollover::TimeBackward);
    }
    // Times 2^32 seconds apart have the same bucket id; the subtraction must not wrap either.
    if input
        .time_ms
        .checked_sub(input.start_ms)
        .is_none_or(|ahead| ahead >= input.span_ms)
    {
        return Some(Rollover::TimeForward);
    }
    if input.count >= limits.count_max {
        return Some(Rollover::Count);
    }
    let with_it = input.bytes.saturating_add(input.measurement_bytes);
    let over = |bytes: usize, of_all: usize| match bytes {
        bytes if bytes > of_all => Some(Rollover::Size),
        bytes if bytes > input.derived_bytes => Some(Rollover::CachePressure),
        _ => None,
    };
    if input.count >= limits.count_min {
        let too_large = with_it > LARGE_BUCKET_BYTES_MAX;
        over(input.bytes, limits.bytes_max).or(too_large.then_some(Rollover::Size))
    } else if input.count > 0 && input.bytes > limits.bytes_max.min(input.derived_bytes) {
        over(with_it, LARGE_BUCKET_BYTES_MAX)
    } else if input.count > 0 && with_it > LARGE_BUCKET_BYTES_MAX {
        Some(Rollover::Size)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> RolloverInput {
        RolloverInput {
            start_ms: 0,
            span_ms: 3_600_000,
            time_ms: 10,
            count: 500,
            bytes: 1000,
            measurement_bytes: 100,
            derived_bytes: usize::MAX,
        }
    }

    fn check(limits: &BucketLimits, change: fn(&mut RolloverInput), expected: Option<Rollover>) {
        let mut input = input();
        change(&mut input);
        assert_eq!(decide(&input, limits), expected, "{input:?}");
    }

    #[test]
    fn each_reason_at_its_edge() {
        let limits = BucketLimits::default();
        let check = |change, expected| check(&limits, change, expected);
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
        check(|f| f.bytes = 128_000, None);
        check(|f| f.bytes = 128_001, Some(Rollover::Size));
    }

    #[test]
    fn few_large_measurements_have_another_limit() {
        let limits = BucketLimits::default();
        check(&limits, |f| (f.bytes, f.count) = (1 << 20, 9), None);
        check(
            &limits,
            |f| (f.bytes, f.count) = (1 << 20, 10),
            Some(Rollover::Size),
        );
        check(
            &limits,
            |f| (f.bytes, f.count, f.measurement_bytes) = (10 << 20, 3, 2 << 20),
            None,
        );
        check(
            &limits,
            |f| (f.bytes, f.count, f.measurement_bytes) = (10 << 20, 3, (2 << 20) + 1),
            Some(Rollover::Size),
        );
        check(
            &limits,
            |f| (f.bytes, f.count, f.measurement_bytes) = (1000, 3, 15 << 20),
            Some(Rollover::Size),
        );
        let switched_off = BucketLimits {
            count_min: 1,
            ..limits
        };
        check(
            &switched_off,
            |f| (f.bytes, f.count) = (1 << 20, 1),
            Some(Rollover::Size),
        );
    }

    #[test]
    fn many_active_buckets_press_on_the_cache() {
        let limits = BucketLimits {
            cache_bytes: 256_000_000,
            ..BucketLimits::default()
        };
        assert_eq!(limits.derived_bytes(0, 5120), usize::MAX);
        assert_eq!(limits.derived_bytes(1000, 5120), 128_000);
        assert_eq!(limits.derived_bytes(2000, 5120), 64_000);
        assert_eq!(limits.derived_bytes(1_000_000, 5120), 5120);
        check(
            &limits,
            |f| (f.bytes, f.derived_bytes) = (64_001, 64_000),
            Some(Rollover::CachePressure),
        );
        check(
            &limits,
            |f| (f.bytes, f.derived_bytes) = (64_000, 64_000),
            None,
        );
        check(
            &limits,
            |f| (f.bytes, f.derived_bytes) = (128_001, 64_000),
            Some(Rollover::Size),
        );
        // The share of the cache limits few large measurements, too.
        check(
            &limits,
            |f| (f.bytes, f.count, f.derived_bytes) = (64_001, 2, 64_000),
            Some(Rollover::CachePressure),
        );
        check(
            &limits,
            |f| (f.bytes, f.count, f.derived_bytes) = (200_000, 2, 1 << 20),
            None,
        );
    }
}
