//! The sizes of generated and repeated tests: small in the fast suite, larger with NILOMETER_LONG (`cargo xtask
//! histories`), and for minutes with NILOMETER_SOAK. NILOMETER_LONG=5 runs a fifth of the larger size (`cargo xtask ci`).

/// The size of a test in each kind of run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// In the fast suite.
    pub fast: u64,
    /// With NILOMETER_LONG=1.
    pub long: u64,
    /// With NILOMETER_SOAK.
    pub soak: u64,
}

impl Effort {
    /// Returns the size in this run.
    pub fn requested(self) -> u64 {
        if is_set("NILOMETER_SOAK") {
            self.soak
        } else if let Some(divisor) = long_divisor() {
            (self.long / divisor).max(self.fast)
        } else {
            self.fast
        }
    }
}

/// Returns the size in this run.
pub fn effort(fast: u64, long: u64, soak: u64) -> u64 {
    Effort { fast, long, soak }.requested()
}

/// Returns whether the long tests are requested. What takes seconds and has no size to shorten runs only then.
pub fn is_long() -> bool {
    is_set("NILOMETER_LONG")
}

/// Returns what NILOMETER_LONG divides the long size by. A value that is no number is 1.
fn long_divisor() -> Option<u64> {
    let value = std::env::var_os("NILOMETER_LONG")?;
    let divisor = value.to_str().and_then(|text| text.parse().ok());
    Some(divisor.unwrap_or(1).max(1))
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}
