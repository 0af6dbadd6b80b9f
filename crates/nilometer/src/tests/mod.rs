//! What unit tests share: the size of generated tests.

/// Returns whether the long tests are asked for. What takes seconds and has no size to shorten runs only then.
pub(crate) fn is_long() -> bool {
    std::env::var_os("NILOMETER_LONG").is_some()
}

/// Returns the size of a repeated test: `fast`, or `long` with NILOMETER_LONG (`cargo xtask histories`), which every
/// change must pass.
pub(crate) fn effort(fast: u64, long: u64) -> u64 {
    if is_long() { long } else { fast }
}
