//! The profiler settings: which operations are logged as slow, and which are written to `system.profile`.
//!
//! ```text
//! level 0   slow operations are logged
//! level 1   slow operations are logged and profiled
//! level 2   slow operations are logged, all are profiled
//! ```
//!
//! A random sample of the slow operations may be chosen. A database may set a filter instead; then neither
//! time nor sampling decides.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use nilometer_bson::Document;

use crate::eval::matcher::MatchExpression;

/// Default time in ms above which an operation is slow.
const SLOW_MS_DEFAULT: i64 = 100;

/// The profiler settings of one database.
#[derive(Clone, Default)]
pub struct ProfilerSettings {
    /// 0, 1 or 2.
    pub level: i32,
    /// A filter in place of the time limit: as the user wrote it, and compiled.
    pub filter: Option<(Document, Arc<MatchExpression>)>,
}

/// The settings of all databases.
pub struct Profiler {
    slow_ms: AtomicI64,
    /// The bits of a number from 0 to 1.
    sample_rate: AtomicU64,
    databases: RwLock<BTreeMap<String, ProfilerSettings>>,
}

impl Default for Profiler {
    fn default() -> Self {
        Self {
            slow_ms: AtomicI64::new(SLOW_MS_DEFAULT),
            sample_rate: AtomicU64::new(1f64.to_bits()),
            databases: RwLock::default(),
        }
    }
}

impl Profiler {
    /// Returns the time in ms above which an operation is slow.
    pub fn slow_ms(&self) -> i64 {
        self.slow_ms.load(Ordering::Relaxed)
    }

    /// Sets the time limit.
    pub fn set_slow_ms(&self, ms: i64) {
        self.slow_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the share of slow operations to report.
    pub fn sample_rate(&self) -> f64 {
        f64::from_bits(self.sample_rate.load(Ordering::Relaxed))
    }

    /// Sets the share.
    pub fn set_sample_rate(&self, rate: f64) {
        self.sample_rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Returns the settings of a database.
    pub fn of(&self, database: &str) -> ProfilerSettings {
        let databases = self
            .databases
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        databases.get(database).cloned().unwrap_or_default()
    }

    /// Sets the settings of a database.
    pub fn set(&self, database: &str, profiling: ProfilerSettings) {
        let mut databases = self
            .databases
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if profiling.level == 0 && profiling.filter.is_none() {
            databases.remove(database);
        } else {
            databases.insert(database.to_owned(), profiling);
        }
    }

    /// True if an operation of this duration is slow and in the sample; `random` returns a random number.
    pub fn is_slow(&self, millis: i64, random: impl FnOnce() -> u64) -> bool {
        if millis <= self.slow_ms() {
            return false;
        }
        let rate = self.sample_rate();
        rate >= 1.0 || (random() as f64) < rate * u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_operations_exceed_the_limit_and_are_sampled() {
        let profiler = Profiler::default();
        assert!(!profiler.is_slow(100, || 0));
        assert!(profiler.is_slow(101, || u64::MAX));
        profiler.set_sample_rate(0.5);
        assert!(profiler.is_slow(101, || 0));
        assert!(!profiler.is_slow(101, || u64::MAX));
        profiler.set_sample_rate(0.0);
        assert!(!profiler.is_slow(101, || 0));
        profiler.set_sample_rate(1.0);
        profiler.set_slow_ms(-1);
        assert!(profiler.is_slow(0, || 0));
    }
}
