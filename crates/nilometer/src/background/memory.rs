//! The memory of the process, kept below what it may use: an allocation that fails ends a program in Rust, and a
//! system that has none left ends the largest.
//!
//! What is large has a limit of its own: memtables, caches, the stages of queries, messages. They add up to less
//! than there is; what they do not count may still come on top. So the memory in use is looked at four times a
//! second: above [`SHORT_PERCENT`] of what the process may have, the cache of buckets is let go and commands that
//! read or write documents are refused with `ExceededMemoryLimit` (146) while another is at work, until it is below
//! [`ENOUGH_PERCENT`]: one at a time, so that nobody is shut out by what merely rests. What runs goes on, cursors can
//! be read to their end and closed.
//!
//! What a moment takes between two looks is not seen, and memory that other programs take neither.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::{info, warn};

use crate::services::Services;
use crate::timeseries::Timeseries;

/// Hundredths of the memory there is above which it is short.
const SHORT_PERCENT: u64 = 92;

/// Hundredths below which there is enough again.
const ENOUGH_PERCENT: u64 = 85;

/// Looks at the memory of the process.
pub(super) struct MemoryWatch {
    services: Arc<Services>,
    timeseries: Arc<Timeseries>,
}

impl MemoryWatch {
    pub(super) fn new(services: Arc<Services>, timeseries: Arc<Timeseries>) -> Self {
        Self {
            services,
            timeseries,
        }
    }

    /// Looks once.
    pub(super) fn look(&self) {
        let host = &self.services.host;
        let limit = self.services.memory_limit();
        let (Some(limit), Some(used)) = (limit, (host.memory_use)()) else {
            return;
        };
        let used = used.resident_bytes;
        let was_short = self.services.memory_is_short.load(Ordering::Relaxed);
        let percent = if was_short {
            ENOUGH_PERCENT
        } else {
            SHORT_PERCENT
        };
        let is_short = u128::from(used) * 100 > u128::from(limit) * u128::from(percent);
        if is_short == was_short {
            return;
        }
        self.services
            .memory_is_short
            .store(is_short, Ordering::Relaxed);
        if is_short {
            self.timeseries.bucket_cache.clear();
            warn!(
                c = "CONTROL",
                id = 22_442,
                residentBytes = used,
                limitBytes = limit,
                "Memory is short; commands on documents are served one at a time"
            );
        } else {
            info!(
                c = "CONTROL",
                id = 22_443,
                residentBytes = used,
                limitBytes = limit,
                "There is enough memory again"
            );
        }
    }
}
