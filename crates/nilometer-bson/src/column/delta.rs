//! Arithmetic between values and words: zig-zag coding, decimal scales, and values as integers.
//!
//! ```text
//! value ──integer──► n ──minus the one before──► d ──zig-zag──► u ──► slot of a word
//! ```
//!
//! | type | integer |
//! |---|---|
//! | int32, int64, bool, date | itself |
//! | timestamp | seconds high, increment low |
//! | double | itself × 1, 10, 100, 10⁴ or 10⁸ where that loses nothing, else its bits |
//! | ObjectId | seven of its bytes, see [`object_id_to_int`] |
//! | decimal128 | its 16 bytes |
//! | binary up to 16 bytes | its bytes, little-endian |
//! | string and code up to 16 bytes | their bytes, big-endian |
//!
//! Dates, timestamps and ObjectIds store second-order differences. All sums wrap.

use super::element::tag;

/// Moves the sign into the lowest bit: 0, −1, 1, −2 become 0, 1, 2, 3.
pub(crate) fn zigzag(delta: i64) -> u64 {
    ((delta << 1) ^ (delta >> 63)).cast_unsigned()
}

/// Reverses [`zigzag`].
pub(crate) fn unzigzag(coded: u64) -> i64 {
    (coded >> 1).cast_signed() ^ -(coded & 1).cast_signed()
}

/// [`zigzag`] in 128 bits.
pub(crate) fn zigzag_wide(delta: i128) -> u128 {
    ((delta << 1) ^ (delta >> 127)).cast_unsigned()
}

/// Reverses [`zigzag_wide`].
pub(crate) fn unzigzag_wide(coded: u128) -> i128 {
    (coded >> 1).cast_signed() ^ -(coded & 1).cast_signed()
}

/// True if this type stores second-order differences.
pub(crate) fn is_second_order(tag: u8) -> bool {
    matches!(tag, tag::OBJECT_ID | tag::DATE | tag::TIMESTAMP)
}

/// True if deltas of this type have 128 bits.
pub(crate) fn is_wide(tag: u8) -> bool {
    matches!(tag, tag::STRING | tag::CODE | tag::BINARY | tag::DECIMAL128)
}

/// Scale at which the doubles of a block are stored as integers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scale {
    One,
    Ten,
    Hundred,
    TenThousand,
    HundredMillion,
    /// The bits of the double, always exact.
    #[default]
    Memory,
}

/// Integers from here on, and below the negative of this, are not all exact in a double.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Below this a scaled value is so far from a tie that every rounding mode finds the same integer.
const QUICK_MAX: f64 = 1_125_899_906_842_624.0;

/// Adding this leaves the nearest integer in the low bits of the sum.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

impl Scale {
    pub(crate) const ALL: [Scale; 6] = [
        Scale::One,
        Scale::Ten,
        Scale::Hundred,
        Scale::TenThousand,
        Scale::HundredMillion,
        Scale::Memory,
    ];

    /// Returns the factor of the scale; 1 for [`Scale::Memory`].
    pub(crate) fn multiplier(self) -> f64 {
        match self {
            Scale::One | Scale::Memory => 1.0,
            Scale::Ten => 10.0,
            Scale::Hundred => 100.0,
            Scale::TenThousand => 10_000.0,
            Scale::HundredMillion => 100_000_000.0,
        }
    }

    /// Returns the high nibble of a control byte.
    pub(crate) fn nibble(self) -> u8 {
        match self {
            Scale::Memory => 0x80,
            Scale::One => 0x90,
            Scale::Ten => 0xA0,
            Scale::Hundred => 0xB0,
            Scale::TenThousand => 0xC0,
            Scale::HundredMillion => 0xD0,
        }
    }

    /// Returns the scale of a control byte.
    pub(crate) fn from_control(control: u8) -> Option<Scale> {
        Scale::ALL
            .into_iter()
            .find(|scale| scale.nibble() == control & 0xF0)
    }

    /// Returns the integer that represents exactly `value`, if there is one.
    #[inline]
    pub(crate) fn encode(self, value: f64) -> Option<i64> {
        if self == Scale::Memory {
            return Some(value.to_bits().cast_signed());
        }
        let multiplier = self.multiplier();
        let scaled = value * multiplier;
        if scaled.abs() < QUICK_MAX {
            // An integer n with n / multiplier == value lies within 2⁻² of `scaled` here, so the
            // nearest integer is the only candidate and ties need no special handling.
            let shifted = scaled + ROUNDER;
            let nearest = shifted - ROUNDER;
            let back = if self == Scale::One {
                nearest
            } else {
                nearest / multiplier
            };
            let bits = shifted.to_bits().wrapping_sub(ROUNDER.to_bits());
            return (back.to_bits() == value.to_bits()).then_some(bits.cast_signed());
        }
        if !(-EXACT_MAX..=EXACT_MAX).contains(&scaled) {
            return None;
        }
        let nearest = scaled.round();
        let exact = (nearest / multiplier).to_bits() == value.to_bits();
        exact.then_some(nearest as i64)
    }

    /// Returns the double represented by an integer.
    #[inline]
    pub(crate) fn decode(self, number: i64) -> f64 {
        if self == Scale::Memory {
            return f64::from_bits(number.cast_unsigned());
        }
        number as f64 / self.multiplier()
    }

    /// Returns the smallest scale, not below `from`, that represents `value`, and the integer at
    /// that scale.
    #[inline]
    pub(crate) fn lowest(value: f64, from: Scale) -> (i64, Scale) {
        let finest = Scale::HundredMillion;
        if (value * finest.multiplier()).abs() < QUICK_MAX {
            // Values of a coarser scale are representable here too, and no two of them round to the
            // same double.
            return match finest.encode(value) {
                Some(number) if from <= finest => Scale::reduce(number, finest, from),
                _ => (value.to_bits().cast_signed(), Scale::Memory),
            };
        }
        for scale in Scale::ALL {
            if scale >= from
                && let Some(number) = scale.encode(value)
            {
                return (number, scale);
            }
        }
        (value.to_bits().cast_signed(), Scale::Memory)
    }

    /// Returns the smallest scale, not below `from`, for the value that `number` represents at this
    /// scale.
    #[inline]
    pub(crate) fn lowest_for(self, number: i64, from: Scale) -> (i64, Scale) {
        if self != Scale::Memory && number.unsigned_abs() < QUICK_MAX as u64 {
            return Scale::reduce(number, self, from);
        }
        Scale::lowest(self.decode(number), from)
    }

    /// Removes factors of ten from a number below [`QUICK_MAX`]. Two fractions n/10 and m/100 of
    /// that size are the same double only if they are the same number.
    #[inline]
    fn reduce(mut number: i64, mut scale: Scale, from: Scale) -> (i64, Scale) {
        let coarser = [
            (Scale::HundredMillion, Scale::TenThousand, 10_000),
            (Scale::TenThousand, Scale::Hundred, 100),
            (Scale::Hundred, Scale::Ten, 10),
            (Scale::Ten, Scale::One, 10),
        ];
        if number % 10 != 0 {
            return (number, scale);
        }
        for (fine, coarse, factor) in coarser {
            if scale == fine && coarse >= from && number % factor == 0 {
                number /= factor;
                scale = coarse;
            }
        }
        (number, scale)
    }
}

/// Returns the 56 bits of an ObjectId that change: time and counter, the fast-changing bytes
/// lowest.
///
/// ```text
/// ObjectId   t0 t1 t2 t3  p0 p1 p2 p3 p4  c0 c1 c2
/// integer    t0 t1 c0 t2 c1 t3 c2       (highest byte first)
/// ```
#[inline]
pub(crate) fn object_id_to_int(id: &[u8; 12]) -> i64 {
    let [front @ .., _, _, _, _] = *id;
    let front = u64::from_le_bytes(front);
    let [.., b0, b1, b2, b3] = *id;
    let back = u64::from(u32::from_le_bytes([b0, b1, b2, b3]));
    let time = (front & 0xFF) << 48
        | (front >> 8 & 0xFF) << 40
        | (front >> 16 & 0xFF) << 24
        | (front >> 24 & 0xFF) << 8;
    let counter = (back >> 8 & 0xFF) << 32 | (back >> 16 & 0xFF) << 16 | back >> 24;
    (time | counter).cast_signed()
}

/// Reverses [`object_id_to_int`]; the process bytes are taken from `like`.
#[inline]
pub(crate) fn object_id_from_int(number: i64, like: &[u8; 12]) -> [u8; 12] {
    let number = number.cast_unsigned();
    let [.., p0, p1, p2, p3, p4, _, _, _] = *like;
    let time = (number >> 48) & 0xFF
        | (number >> 40 & 0xFF) << 8
        | (number >> 24 & 0xFF) << 16
        | (number >> 8 & 0xFF) << 24;
    let front = time | u64::from(u32::from_le_bytes([p0, p1, p2, p3])) << 32;
    let counter = (number >> 32 & 0xFF) << 8 | (number >> 16 & 0xFF) << 16 | (number & 0xFF) << 24;
    let back = u64::from(p4) | counter;
    let mut id = [0; 12];
    let (head, tail) = id.split_at_mut(8);
    head.copy_from_slice(&front.to_le_bytes());
    tail.copy_from_slice(back.to_le_bytes().split_at(4).0);
    id
}

/// Returns the constant bytes of an ObjectId: the process.
pub(crate) fn object_id_process(id: &[u8; 12]) -> [u8; 5] {
    let [_, _, _, _, p0, p1, p2, p3, p4, ..] = *id;
    [p0, p1, p2, p3, p4]
}

/// Converts text (without length and terminator) to an integer, its last byte lowest. `None` for
/// text longer than 16 bytes or starting with a zero byte.
#[inline]
pub(crate) fn text_to_int(text: &[u8]) -> Option<u128> {
    if text.len() > 16 || text.first() == Some(&0) {
        return None;
    }
    // Two overlapping reads of fixed size; they agree where they overlap.
    Some(
        if let (Some(front), Some(back)) = (text.first_chunk(), text.last_chunk()) {
            let front = u128::from(u64::from_be_bytes(*front));
            front << (8 * (text.len() - 8)) | u128::from(u64::from_be_bytes(*back))
        } else if let (Some(front), Some(back)) = (text.first_chunk(), text.last_chunk()) {
            let front = u64::from(u32::from_be_bytes(*front));
            u128::from(front << (8 * (text.len() - 4)) | u64::from(u32::from_be_bytes(*back)))
        } else {
            let fold = |number, &byte| number << 8 | u128::from(byte);
            text.iter().fold(0, fold)
        },
    )
}

/// Converts binary data to an integer, its first byte lowest. `None` beyond 16 bytes.
pub(crate) fn binary_to_int(data: &[u8]) -> Option<u128> {
    if data.len() > 16 {
        return None;
    }
    let mut bytes = [0; 16];
    let (low, _) = bytes.split_at_mut(data.len());
    low.copy_from_slice(data);
    Some(u128::from_le_bytes(bytes))
}

/// Converts a value with 128-bit deltas to an integer, from its BSON bytes.
pub(crate) fn wide_to_int(tag: u8, value: &[u8]) -> Option<u128> {
    match tag {
        tag::STRING | tag::CODE => text_to_int(value.get(4..value.len().checked_sub(1)?)?),
        tag::BINARY => binary_to_int(value.get(5..)?),
        tag::DECIMAL128 => value.first_chunk().map(|bytes| u128::from_le_bytes(*bytes)),
        _ => None,
    }
}

/// Appends the value bytes of `number` after a value `like` of the same type.
pub(crate) fn wide_from_int(tag: u8, number: u128, like: &[u8], out: &mut Vec<u8>) {
    match tag {
        tag::STRING | tag::CODE => {
            let bytes = number.to_be_bytes();
            let zeros = (number.leading_zeros() / 8) as usize;
            let text = bytes.get(zeros..).unwrap_or_default();
            out.extend_from_slice(&(text.len() as u32 + 1).to_le_bytes());
            out.extend_from_slice(text);
            out.push(0);
        }
        tag::BINARY => {
            let (head, data) = like.split_at_checked(5).unwrap_or_default();
            out.extend_from_slice(head);
            out.extend_from_slice(number.to_le_bytes().get(..data.len()).unwrap_or_default());
        }
        _ => out.extend_from_slice(&number.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zigzag_folds_the_sign() {
        for (delta, coded) in [(0, 0), (-1, 1), (1, 2), (-2, 3), (i64::MIN, u64::MAX)] {
            assert_eq!(zigzag(delta), coded);
            assert_eq!(unzigzag(coded), delta);
        }
        assert_eq!(zigzag_wide(i128::MIN), u128::MAX);
        assert_eq!(unzigzag_wide(u128::MAX), i128::MIN);
    }

    /// Returns the definition, without the shortcut of [`Scale::encode`].
    fn encode_slowly(scale: Scale, value: f64) -> Option<i64> {
        let scaled = value * scale.multiplier();
        if !(-EXACT_MAX..=EXACT_MAX).contains(&scaled) {
            return None;
        }
        let nearest = scaled.round();
        let exact = (nearest as i64 as f64 / scale.multiplier()).to_bits() == value.to_bits();
        exact.then_some(nearest as i64)
    }

    #[test]
    fn scales_round_as_defined() {
        let mut values = vec![0.0, -0.0, 0.5, -0.5, 0.49999999999999994, f64::NAN, 1e300];
        values.extend([f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, 5e-324]);
        let mut state = 1_u64;
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = (state >> 11) as i64 >> (state & 63).min(53);
            for scale in Scale::ALL {
                values.push(number as f64 / scale.multiplier());
            }
            values.push(f64::from_bits(state));
        }
        for value in values {
            for scale in Scale::ALL {
                if scale != Scale::Memory {
                    let expected = encode_slowly(scale, value);
                    assert_eq!(scale.encode(value), expected, "{scale:?} {value:e}");
                    assert_eq!(scale.encode(-value), encode_slowly(scale, -value));
                }
            }
        }
    }

    #[test]
    fn the_lowest_scale_is_found_as_defined() {
        let mut state = 7_u64;
        for round in 0..300_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let scale = Scale::ALL[round % 6];
            let number = (state >> 11) as i64 >> (state & 63).min(53);
            let zeros = [1, 10, 100, 10_000, 1000][round % 5];
            let value = scale.decode(number / zeros * zeros);
            for from in Scale::ALL {
                let slowly = Scale::ALL
                    .into_iter()
                    .filter(|scale| *scale >= from)
                    .find_map(|scale| match scale {
                        Scale::Memory => Some((value.to_bits() as i64, scale)),
                        _ => encode_slowly(scale, value).map(|number| (number, scale)),
                    })
                    .unwrap();
                assert_eq!(Scale::lowest(value, from), slowly, "{value:e}");
                if let Some(number) = scale.encode(value)
                    && from <= scale
                {
                    assert_eq!(
                        scale.lowest_for(number, from),
                        slowly,
                        "{value:e} {scale:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn object_ids_interleave_time_and_counter() {
        let id = [
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC,
        ];
        assert_eq!(object_id_to_int(&id), 0x0011_22AA_33BB_44CC);
        assert_eq!(object_id_from_int(0x0011_22AA_33BB_44CC, &id), id);
    }

    #[test]
    fn text_is_big_endian() {
        assert_eq!(text_to_int(b""), Some(0));
        assert_eq!(text_to_int(b"ab"), Some(0x6162));
        assert_eq!(text_to_int(b"\0b"), None);
        let text = b"abcdefghijklmnop";
        for len in 0..=16 {
            let mut bytes = [0; 16];
            bytes[16 - len..].copy_from_slice(&text[..len]);
            assert_eq!(text_to_int(&text[..len]), Some(u128::from_be_bytes(bytes)));
        }
        assert_eq!(text_to_int(&[b'x'; 17]), None);
        let mut out = Vec::new();
        wide_from_int(tag::STRING, 0x6162, b"", &mut out);
        assert_eq!(out, b"\x03\0\0\0ab\0");
    }
}
