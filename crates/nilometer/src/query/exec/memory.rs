//! Memory accounting: the memory of a stage against its limit, and the memory of all queries against theirs.
//!
//! Counts are estimates (bytes of documents and keys, plus a fixed overhead per
//! entry), close enough to refuse a query long before it endangers the process. A gauge lives as long as the data it counts:
//! until the last row is returned, not until the last is gathered.
//!
//! ```text
//!   stage ── gauge: at most 100 MiB ── takes in chunks ──> pool: nilometerQueryMemoryBytes for all
//! ```
//!
//! A stage that finds the pool empty is above its limit: it writes to disk if allowed, else its query fails. The
//! first half chunk of each stage does not count against the pool, so that small queries run beside large ones.

use std::sync::Arc;

use super::ExecContext;
pub use crate::budget::MemoryPool;
use crate::error::{Error, ErrorCode, Result};

/// Bytes a stage takes from the pool at a time.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// Bytes a stage may use without taking from the pool.
const OWN_BYTES: u64 = 512 * 1024;

/// Bytes a stage may overdraw from the pool to merge its spilled runs: a buffer and a document of a few KiB for each of the
/// largest number of files.
const OVERDRAFT_BYTES_MAX: u64 = 4 << 20;

/// The stage with an error text of its own.
pub(super) const SORT: &str = "sort";

/// Counts the memory of a stage up to a limit.
#[derive(Debug)]
pub struct MemoryGauge {
    stage: &'static str,
    used: u64,
    most: u64,
    pool: Arc<MemoryPool>,
    /// Bytes taken from the pool.
    held: u64,
    /// Bytes of `held` taken beyond the limit of the pool.
    overdrawn: u64,
    /// True if the pool had too few free bytes at the last request.
    is_starved: bool,
}

impl Drop for MemoryGauge {
    fn drop(&mut self) {
        self.pool.give_back(self.held);
    }
}

impl MemoryGauge {
    /// Creates a gauge for `stage` with a limit of `most` bytes and without a shared pool.
    pub fn new(stage: &'static str, most: u64) -> Self {
        Self {
            stage,
            used: 0,
            most,
            pool: Arc::default(),
            held: 0,
            overdrawn: 0,
            is_starved: false,
        }
    }

    /// Creates a gauge for `stage` that is limited only by the pool.
    pub fn of_pool(stage: &'static str, pool: Arc<MemoryPool>) -> Self {
        Self {
            pool,
            ..Self::new(stage, u64::MAX)
        }
    }

    /// Creates a gauge for `stage` of a query, limited to `most` bytes and by the query memory pool.
    pub fn of_query(stage: &'static str, most: u64, cx: &ExecContext<'_>) -> Self {
        Self {
            pool: Arc::clone(&cx.settings.memory),
            ..Self::new(stage, most)
        }
    }

    /// Creates a gauge with the limit of stages that gather their input.
    pub fn gather(stage: &'static str, cx: &ExecContext<'_>) -> Self {
        Self::of_query(stage, cx.settings.limits.gather_bytes_max, cx)
    }

    /// Creates a gauge for the results of a stage; limited only by the pool.
    pub fn of_results(stage: &'static str, cx: &ExecContext<'_>) -> Self {
        Self::of_query(stage, u64::MAX, cx)
    }

    /// Adds `bytes`; error 292 above the limit.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.used = self.used.saturating_add(bytes as u64);
        if self.used <= self.most {
            self.take_from_pool();
        }
        if self.is_exceeded() {
            return Err(self.exceeded());
        }
        Ok(())
    }

    /// Sets the count to `bytes`; error 292 above the limit.
    pub fn set(&mut self, bytes: usize) -> Result<()> {
        match (bytes as u64).checked_sub(self.used) {
            Some(more) => self.add(usize::try_from(more).unwrap_or(usize::MAX)),
            None => {
                self.release(usize::try_from(self.used - bytes as u64).unwrap_or(usize::MAX));
                Ok(())
            }
        }
    }

    /// Adds `bytes` needed to return gathered data. May overdraw an empty pool by up to `OVERDRAFT_BYTES_MAX`; error 292 above
    /// that.
    pub fn hold(&mut self, bytes: usize) -> Result<()> {
        self.used = self.used.saturating_add(bytes as u64);
        self.take_from_pool();
        if self.is_starved {
            let more = self.wanted_from_pool();
            if self.overdrawn + more > OVERDRAFT_BYTES_MAX {
                return Err(self.exceeded());
            }
            self.pool.overdraw(more);
            self.overdrawn += more;
            self.held += more;
            self.is_starved = false;
        }
        Ok(())
    }

    /// Returns the bytes to request from the pool, in whole chunks.
    fn wanted_from_pool(&self) -> u64 {
        let wanted = self.used.saturating_sub(OWN_BYTES);
        wanted
            .saturating_sub(self.held)
            .next_multiple_of(CHUNK_BYTES)
    }

    fn take_from_pool(&mut self) {
        let more = self.wanted_from_pool();
        self.is_starved = more > 0 && !self.pool.take(more);
        if !self.is_starved {
            self.held += more;
        }
    }

    /// Subtracts `bytes`.
    pub fn release(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes as u64);
        let free = self.held.saturating_sub(self.used) / CHUNK_BYTES * CHUNK_BYTES;
        self.held -= free;
        self.overdrawn = self.overdrawn.saturating_sub(free);
        self.pool.give_back(free);
        if self.is_starved {
            self.take_from_pool();
        }
    }

    /// Resets the count to zero.
    pub fn clear(&mut self) {
        self.used = 0;
        self.is_starved = false;
        self.overdrawn = 0;
        self.pool.give_back(std::mem::take(&mut self.held));
    }

    /// Returns the bytes counted.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// True above the limit, or if the pool is exhausted.
    pub fn is_exceeded(&self) -> bool {
        self.used > self.most || self.is_starved
    }

    /// Returns the error of a stage above its limit.
    pub fn exceeded(&self) -> Error {
        if self.is_starved {
            return Error::new(
                ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed,
                format!(
                    "PlanExecutor error during aggregation :: caused by :: {} needs more memory than other queries leave: \
                     together they may hold {} bytes (nilometerQueryMemoryBytes), and {} are in use",
                    self.stage,
                    self.pool.most(),
                    self.pool.used()
                ),
            );
        }
        if self.stage == SORT {
            return Error::new(
                ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed,
                format!(
                    "Sort exceeded memory limit of {} bytes, but did not opt in to external sorting.",
                    self.most
                ),
            );
        }
        Error::new(
            ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed,
            format!(
                "PlanExecutor error during aggregation :: caused by :: Exceeded memory limit for {}, used {} bytes but limit is {} bytes",
                self.stage, self.used, self.most
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn gauge(pool: &Arc<MemoryPool>) -> MemoryGauge {
        MemoryGauge {
            pool: Arc::clone(pool),
            ..MemoryGauge::new("$group", 100 * MIB as u64)
        }
    }

    #[test]
    fn queries_share_what_there_is() {
        let pool = Arc::new(MemoryPool::default());
        pool.set_most(10 * MIB as u64);
        let mut large = gauge(&pool);
        large.add(9 * MIB).expect("there is room");
        let mut small = gauge(&pool);
        small.add(MIB / 2).expect("each has some of its own");
        small.add(MIB).expect("and there is a chunk left");
        let error = small.add(2 * MIB).expect_err("but no more");
        assert_eq!(
            error.code,
            ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed
        );
        assert!(
            error.message.contains("nilometerQueryMemoryBytes"),
            "{error:?}"
        );
        assert!(small.is_exceeded());
        small.clear();
        assert!(!small.is_exceeded(), "what it held is on disk");
        drop(large);
        small.add(10 * MIB).expect("the other has ended");
        assert_eq!(pool.used(), 10 * MIB as u64);
        small.release(5 * MIB);
        assert!(pool.used() < 7 * MIB as u64);
        drop(small);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn what_must_be_held_is_taken_from_others() {
        let pool = Arc::new(MemoryPool::default());
        pool.set_most(10 * MIB as u64);
        let mut merging = gauge(&pool);
        for _ in 0..14 {
            merging.hold(MIB).expect("a part is not there");
        }
        assert!(!merging.is_exceeded());
        assert_eq!(pool.used(), 14 * MIB as u64);
        assert!(merging.hold(20 * MIB).is_err(), "too large a part");
        merging.release(20 * MIB);
        let mut other = gauge(&pool);
        assert!(other.add(2 * MIB).is_err());
        merging.set(4 * MIB).expect("less is never refused");
        assert_eq!(merging.used(), 4 * MIB as u64);
        other.add(0).expect("there is room again");
        assert!(merging.set(20 * MIB).is_err());
        drop(merging);
        drop(other);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_stage_has_its_own_limit_too() {
        let pool = Arc::new(MemoryPool::default());
        let mut one = gauge(&pool);
        assert!(one.add(101 * MIB).is_err());
        one.release(2 * MIB);
        assert!(!one.is_exceeded());
        one.add(0).expect("within");
    }
}
