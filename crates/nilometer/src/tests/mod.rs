//! What unit tests share: the size of generated tests.

/// Returns the size of a repeated test: `fast`, or `long` with NILOMETER_LONG (`cargo xtask histories`), which every
/// change must pass.
pub(crate) fn effort(fast: u64, long: u64) -> u64 {
    match std::env::var_os("NILOMETER_LONG") {
        Some(_) => long,
        None => fast,
    }
}
