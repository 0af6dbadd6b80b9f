//! Checksums of stored bytes: xxh3, all 64 bits.
//!
//! A seed ties bytes to their place: log records are seeded with the id of their segment, so that a record that remains
//! in a recycled file does not pass.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// Returns the checksum of `bytes` with `seed`.
pub(crate) fn checksum(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Returns the 128-bit checksum that the trees use for whole files.
pub(crate) fn checksum_128(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values_hold() {
        // On disk: may never change within a format version.
        assert_eq!(checksum(b"", 0), 0x2d06_8005_38d3_94c2);
        assert_ne!(checksum(b"nilometer", 1), checksum(b"nilometer", 2));
        assert_eq!(checksum_128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
    }
}
