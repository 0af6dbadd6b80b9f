//! The memory a stage holds, against its limit.
//!
//! What is counted is an honest estimate (bytes of documents and keys, plus a fixed overhead per
//! entry), enough to refuse a query long before it endangers the process.

use super::ExecContext;
use crate::error::{Error, ErrorCode, Result};

/// Counts bytes up to a limit.
#[derive(Clone, Debug)]
pub struct MemoryGauge {
    stage: &'static str,
    used: u64,
    most: u64,
}

impl MemoryGauge {
    /// A gauge for `stage` with a limit of `most` bytes.
    pub fn new(stage: &'static str, most: u64) -> Self {
        Self {
            stage,
            used: 0,
            most,
        }
    }

    /// A gauge with the limit of stages that gather their input.
    pub fn gather(stage: &'static str, cx: &ExecContext<'_>) -> Self {
        Self::new(stage, cx.settings.limits.gather_bytes_max)
    }

    /// Counts `bytes` more; error 292 above the limit.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.used = self.used.saturating_add(bytes as u64);
        if self.used > self.most {
            return Err(self.exceeded());
        }
        Ok(())
    }

    /// Counts `bytes` less.
    pub fn release(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes as u64);
    }

    /// Counts from zero again.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Bytes counted now.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// True above the limit.
    pub fn is_exceeded(&self) -> bool {
        self.used > self.most
    }

    /// The error of a stage above its limit.
    pub fn exceeded(&self) -> Error {
        Error::new(
            ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed,
            format!(
                "PlanExecutor error during aggregation :: caused by :: Exceeded memory limit for {}, used {} bytes but limit is {} bytes",
                self.stage, self.used, self.most
            ),
        )
    }
}
