//! Helpers for unit tests of several modules.

use std::ops::Range;

/// Returns the seeds of a fuzz target: 0 to 199, or those of `cargo xtask fuzz`.
pub(crate) fn seeds() -> Range<u64> {
    let setting = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first = setting("NILOMETER_FUZZ_SEED", 0);
    first..first.saturating_add(setting("NILOMETER_FUZZ_RUNS", 200))
}
