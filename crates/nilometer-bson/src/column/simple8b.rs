//! Simple-8b words: up to 60 unsigned values, or 1920 repeats of one, in 64 bits.
//!
//! ```text
//!  63                                   8 7      4 3        0
//! ┌──────┬──────┬───────────┬──────┬──────────┬──────────┐
//! │ slot │ slot │     …     │ slot │ extension│ selector │
//! │ n−1  │      │           │  0   │ 7, 8, 15 │          │
//! └──────┴──────┴───────────┴──────┴──────────┴──────────┘
//! ```
//!
//! The selector determines number and width of the slots. Selectors 7, 8 and 15 have an extension
//! in bits 4–7 and their slots start at bit 8; all others start at bit 4. A slot of all ones is a
//! missing value.
//!
//! | family | selector | extension | a slot is |
//! |---|---|---|---|
//! | plain | 1–14 | none, or 0 for 7 and 8 | the value |
//! | trailing zeros | 7 | 1–9 | value bits, then 4 bits of count: value << count |
//! | trailing nibbles | 8 | 1–7 | value bits, then 4 bits of count: value << 4·count |
//! | trailing nibbles, wide | 8 | 8–13 | value bits, then 5 bits of count: value << 4·count |
//! | repeat | 15 | k − 1 | none: 120·k times the slot before this word |
//!
//! `1c00000200300000` is selector 12: three slots of 20 bits with 1, 2 and 3.
//!
//! This module decodes words and defines their shapes. [`words`](super::words) builds them.

/// Values per unit of a repeat word.
pub(crate) const REPEAT_UNIT: usize = 120;

/// Maximum number of units in one repeat word.
pub(crate) const REPEAT_STEPS_MAX: usize = 16;

/// Selector of repeat words.
pub(crate) const REPEAT: u8 = 15;

/// How a word is divided into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordShape {
    /// Low byte of the word (selector, and extension where there is one).
    pub(crate) code: u8,
    pub(crate) slots: u8,
    /// Width of one slot, value and count together.
    pub(crate) bits: u8,
    /// Bits of the slot that count trailing zeros (0: plain).
    pub(crate) count_bits: u8,
    /// Zeros per count.
    pub(crate) unit: u8,
    /// First bit of the first slot.
    pub(crate) start: u8,
}

const fn plain(selector: u8, slots: u8, bits: u8) -> WordShape {
    let start = if selector == 7 || selector == 8 { 8 } else { 4 };
    WordShape {
        code: selector,
        slots,
        bits,
        count_bits: 0,
        unit: 0,
        start,
    }
}

const fn extended(selector: u8, extension: u8, slots: u8, value_bits: u8) -> WordShape {
    let (count_bits, unit) = match (selector, extension) {
        (7, _) => (4, 1),
        (_, 1..=7) => (4, 4),
        _ => (5, 4),
    };
    WordShape {
        code: extension << 4 | selector,
        slots,
        bits: value_bits + count_bits,
        count_bits,
        unit,
        start: 8,
    }
}

/// The plain shapes, narrowest slot first.
pub(crate) const PLAIN: [WordShape; 14] = [
    plain(1, 60, 1),
    plain(2, 30, 2),
    plain(3, 20, 3),
    plain(4, 15, 4),
    plain(5, 12, 5),
    plain(6, 10, 6),
    plain(7, 8, 7),
    plain(8, 7, 8),
    plain(9, 6, 10),
    plain(10, 5, 12),
    plain(11, 4, 15),
    plain(12, 3, 20),
    plain(13, 2, 30),
    plain(14, 1, 60),
];

/// Selector 7 extended: 4 bits count trailing zeros.
pub(crate) const ZEROS: [WordShape; 9] = [
    extended(7, 1, 9, 2),
    extended(7, 2, 8, 3),
    extended(7, 3, 7, 4),
    extended(7, 4, 6, 5),
    extended(7, 5, 5, 7),
    extended(7, 6, 4, 10),
    extended(7, 7, 3, 14),
    extended(7, 8, 2, 24),
    extended(7, 9, 1, 52),
];

/// Selector 8 extended: 4 bits count trailing nibbles of zeros.
pub(crate) const NIBBLES: [WordShape; 7] = [
    extended(8, 1, 7, 4),
    extended(8, 2, 6, 5),
    extended(8, 3, 5, 7),
    extended(8, 4, 4, 10),
    extended(8, 5, 3, 14),
    extended(8, 6, 2, 24),
    extended(8, 7, 1, 52),
];

/// Selector 8 extended: 5 bits count trailing nibbles of zeros.
pub(crate) const NIBBLES_WIDE: [WordShape; 6] = [
    extended(8, 8, 6, 4),
    extended(8, 9, 5, 6),
    extended(8, 10, 4, 9),
    extended(8, 11, 3, 13),
    extended(8, 12, 2, 23),
    extended(8, 13, 1, 51),
];

/// Shapes of the four families, in the order a builder tries them.
pub(crate) const FAMILIES: [&[WordShape]; 4] = [&PLAIN, &ZEROS, &NIBBLES, &NIBBLES_WIDE];

/// Returns the shape of a word from its low byte. `None` for repeat words and invalid selectors.
pub(crate) fn shape(word: u64) -> Option<WordShape> {
    let [low, ..] = word.to_le_bytes();
    let (selector, extension) = (low & 15, low >> 4);
    let (shapes, index) = match (selector, extension) {
        (7, 1..) => (FAMILIES[1], extension - 1),
        (8, 1..=7) => (FAMILIES[2], extension - 1),
        (8, 8..) => (FAMILIES[3], extension - 8),
        (1..=14, _) => (FAMILIES[0], selector - 1),
        _ => return None,
    };
    shapes.get(usize::from(index)).copied()
}

/// Number of values in a word by its low byte: 0 for an invalid word.
#[expect(
    clippy::indexing_slicing,
    reason = "a byte indexes a table of 256 entries"
)]
pub(crate) fn value_count(word: u64) -> usize {
    let [low, ..] = word.to_le_bytes();
    usize::from(COUNTS[usize::from(low)])
}

static COUNTS: [u16; 256] = count_table();

#[expect(
    clippy::indexing_slicing,
    reason = "evaluated by the compiler, which checks every index"
)]
const fn count_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut low = 0;
    while low < 256 {
        let (selector, extension) = (low & 15, low >> 4);
        table[low] = match (selector, extension) {
            (0, _) => 0,
            (15, _) => (REPEAT_UNIT * (extension + 1)) as u16,
            (7, 1..=9) => ZEROS[extension - 1].slots as u16,
            (7, 10..) => 0,
            (8, 1..=7) => NIBBLES[extension - 1].slots as u16,
            (8, 8..=13) => NIBBLES_WIDE[extension - 8].slots as u16,
            (8, 14..) => 0,
            _ => PLAIN[selector - 1].slots as u16,
        };
        low += 1;
    }
    table
}

/// Returns the number of values of a repeat word, `None` for any other word.
pub(crate) fn repeat_count(word: u64) -> Option<usize> {
    let [low, ..] = word.to_le_bytes();
    (low & 15 == REPEAT).then(|| REPEAT_UNIT * (usize::from(low >> 4) + 1))
}

impl WordShape {
    /// Returns the slots of `word`, in order: `None` is a missing value. `wide` streams shift in
    /// 128 bits, others in 64 with the shift taken modulo 64.
    ///
    /// This is the reference implementation that the fast kernels are compared with.
    pub(crate) fn slots(self, word: u64, wide: bool) -> impl Iterator<Item = Option<u128>> {
        let mask = u64::MAX >> (64 - u32::from(self.bits));
        (0..self.slots).map(move |slot| {
            let raw = word >> (self.start + slot * self.bits) & mask;
            if raw == mask {
                return None;
            }
            let count = raw & !(u64::MAX << self.count_bits);
            let shift = count * u64::from(self.unit);
            let value = raw >> self.count_bits;
            Some(if wide {
                u128::from(value) << shift
            } else {
                u128::from(value << (shift % 64))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_found_by_its_code_and_fits_a_word() {
        for shapes in FAMILIES {
            for &expected in shapes {
                let word = u64::from(expected.code);
                assert_eq!(shape(word), Some(expected));
                assert_eq!(value_count(word), usize::from(expected.slots));
                let end = u32::from(expected.start)
                    + u32::from(expected.slots) * u32::from(expected.bits);
                assert!(end <= 64, "{expected:?}");
            }
        }
    }

    #[test]
    fn invalid_selectors_have_no_shape() {
        for low in [0x00, 0x10, 0xf0, 0xa7, 0xf7, 0xe8, 0xf8] {
            assert_eq!(shape(low), None);
            assert_eq!(value_count(low), 0);
            assert_eq!(repeat_count(low), None);
        }
    }

    #[test]
    fn golden_words() {
        let read = |bytes: [u8; 8]| {
            let word = u64::from_le_bytes(bytes);
            shape(word).unwrap().slots(word, false).collect::<Vec<_>>()
        };
        assert_eq!(
            read([0x1c, 0, 0, 0x02, 0, 0x30, 0, 0]),
            [Some(1), Some(2), Some(3)]
        );
        assert_eq!(
            read([0xfd, 0xff, 0xff, 0xff, 0x03, 0, 0, 0]),
            [None, Some(0)]
        );
        assert_eq!(repeat_count(0xff), Some(1920));
        assert_eq!(repeat_count(0x0f), Some(120));
    }
}
