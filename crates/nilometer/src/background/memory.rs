//! Keeps the memory of the process below its limit: a failed allocation aborts a Rust program, and a system
//! without memory kills the largest process.
//!
//! Large consumers have limits of their own: memtables, caches, query stages, messages. These add up to
//! less than the limit, but uncounted memory may exceed the rest. So the resident memory is examined four
//! times a second: above [`SHORT_PERCENT`] of the limit, the bucket cache is cleared, and until the memory
//! is below [`ENOUGH_PERCENT`] a command that reads or writes documents is refused with
//! `ExceededMemoryLimit` (146) while another one runs. One at a time is always admitted, so that idle
//! memory does not lock clients out. Running commands continue; cursors can be read to their end and
//! closed.
//!
//! Peaks between two examinations are not seen, nor is the memory of other programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::{info, warn};

use crate::services::Services;
use crate::timeseries::Timeseries;

/// Percentage of the limit above which memory is short.
const SHORT_PERCENT: u64 = 92;

/// Percentage of the limit below which memory suffices again.
const ENOUGH_PERCENT: u64 = 85;

/// Observes the memory of the process.
pub(super) struct MemoryMonitor {
    services: Arc<Services>,
    timeseries: Arc<Timeseries>,
}

impl MemoryMonitor {
    pub(super) fn new(services: Arc<Services>, timeseries: Arc<Timeseries>) -> Self {
        Self {
            services,
            timeseries,
        }
    }

    /// Examines the memory once.
    pub(super) fn observe(&self) {
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
            self.timeseries.cache.clear_opened();
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
                "Memory suffices again"
            );
        }
    }
}
