//! Random choices from a seed.

/// A SplitMix64 generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns the generator of a run, from NILOMETER_SEED or `seed`. Prints the seed, for a run that fails.
    #[expect(clippy::print_stdout, reason = "the seed of a run that fails")]
    pub(crate) fn of_run(seed: u64) -> Self {
        let asked = std::env::var("NILOMETER_SEED");
        let seed = asked.map_or(seed, |text| text.parse().expect("a number"));
        println!("NILOMETER_SEED={seed}");
        Self(seed)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    /// Returns a number below `end` as an `i32`.
    pub(crate) fn int(&mut self, end: u64) -> i32 {
        self.below(end) as i32
    }
}
