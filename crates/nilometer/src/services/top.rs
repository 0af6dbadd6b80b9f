//! Time per collection and type of operation: shown by `top` and `$collStats`.
//!
//! At most [`NAMESPACES_MAX`] collections are tracked; a dropped collection is removed.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Most tracked collections.
const NAMESPACES_MAX: usize = 10_000;

/// The type of an operation in `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopKind {
    /// `find`.
    Queries,
    /// `getMore`.
    GetMore,
    /// `insert`.
    Insert,
    /// `update`.
    Update,
    /// `delete`.
    Remove,
    /// Everything else.
    Commands,
}

/// The class of an operation in `latencyStats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyClass {
    /// It reads documents.
    Read,
    /// It writes documents.
    Write,
    /// Everything else.
    Command,
}

/// Buckets of a histogram: one per power of two of microseconds, the last for all above.
const HISTOGRAM_BUCKETS: usize = 40;

/// Count, time and histogram of one class.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// All operations.
    pub total: TopUse,
    buckets: [u64; HISTOGRAM_BUCKETS],
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            total: TopUse::default(),
            buckets: [0; HISTOGRAM_BUCKETS],
        }
    }
}

impl Latency {
    fn add(&mut self, time: Duration) {
        self.total.add(time);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let place = micros.checked_ilog2().map_or(0, |power| power as usize);
        self.buckets[place.min(HISTOGRAM_BUCKETS - 1)] += 1;
    }

    /// Returns the lower bound in microseconds and the count of each non-empty bucket.
    pub fn histogram(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counted = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        counted.map(|(place, n)| (if place == 0 { 0 } else { 1 << place }, *n))
    }
}

/// Count and time of one type.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopUse {
    /// Microseconds.
    pub time_us: u64,
    /// Operations.
    pub count: u64,
}

impl TopUse {
    fn add(&mut self, time: Duration) {
        self.time_us += u64::try_from(time.as_micros()).unwrap_or(0);
        self.count += 1;
    }
}

/// The statistics of one collection.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopEntry {
    /// All operations.
    pub total: TopUse,
    /// Operations that only read.
    pub read_lock: TopUse,
    /// Operations that may write.
    pub write_lock: TopUse,
    /// By type, in the order of [`TopKind`].
    kinds: [TopUse; 6],
    /// By class, in the order of [`LatencyClass`].
    latencies: [Latency; 3],
}

impl TopEntry {
    /// Returns the statistics of one type.
    pub fn kind(&self, kind: TopKind) -> TopUse {
        self.kinds[kind as usize]
    }

    /// Returns the statistics of one class.
    pub fn latency(&self, class: LatencyClass) -> Latency {
        self.latencies[class as usize]
    }
}

/// The statistics of all collections.
#[derive(Debug, Default)]
pub struct Top {
    entries: Mutex<BTreeMap<String, TopEntry>>,
}

impl Top {
    /// Counts an operation on `namespace`. A new namespace is tracked if it `exists`.
    pub fn record(
        &self,
        namespace: &str,
        kind: TopKind,
        writes: bool,
        class: LatencyClass,
        time: Duration,
        exists: impl FnOnce() -> bool,
    ) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if !entries.contains_key(namespace) {
            if entries.len() >= NAMESPACES_MAX || !exists() {
                return;
            }
            entries.insert(namespace.to_owned(), TopEntry::default());
        }
        let entry = entries.get_mut(namespace).expect("inserted above");
        entry.total.add(time);
        if writes {
            entry.write_lock.add(time);
        } else {
            entry.read_lock.add(time);
        }
        entry.kinds[kind as usize].add(time);
        entry.latencies[class as usize].add(time);
    }

    /// Returns the statistics of one collection.
    pub fn entry(&self, namespace: &str) -> TopEntry {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.get(namespace).copied().unwrap_or_default()
    }

    /// Removes a dropped collection.
    pub fn forget(&self, namespace: &str) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.remove(namespace);
    }

    /// Returns all statistics by namespace.
    pub fn list(&self) -> BTreeMap<String, TopEntry> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clone()
    }
}
