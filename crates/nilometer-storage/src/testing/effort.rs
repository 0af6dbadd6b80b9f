//! The sizes of generated and repeated tests: small in the fast suite, larger with NILOMETER_LONG (`cargo xtask
//! histories`), which every change must pass, and for minutes with NILOMETER_SOAK.

/// The size of a test in each kind of run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// In the fast suite.
    pub fast: u64,
    /// With NILOMETER_LONG.
    pub long: u64,
    /// With NILOMETER_SOAK.
    pub soak: u64,
}

impl Effort {
    /// Returns the size in this run.
    pub fn requested(self) -> u64 {
        if is_set("NILOMETER_SOAK") {
            self.soak
        } else if is_long() {
            self.long
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

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}
