//! Packing of numbers without building a column first.
//!
//! Building a column and splitting it again costs more than the rest of packing. If all values are
//! of one plain type and none is missing, the differences in its words are known without building
//! them, and so are the packed bytes. Whether packing is shorter is estimated from the approximate
//! number of words; if the estimate is not conclusive, nothing is packed here.

use super::super::delta::{Scale, zigzag};
use super::super::element::tag;
use super::super::simple8b::{REPEAT_STEPS_MAX, REPEAT_UNIT};
use super::{BlockRun, COLUMN_BYTES_MIN, ColumnParts, PackedHeader, SAVING_MIN, VALUES_MAX};

/// From here on a difference may be too wide for a word.
const STEP_MAX: u64 = 1 << 59;

/// Whole doubles from here on are handled by [`Scale::encode`].
const WHOLE_MAX: u64 = 1 << 50;

/// Bits of a word for its slots.
const WORD_BITS: u32 = 60;

/// Minimum bits in a slot that count omitted zeros, and the maximum count.
const ZEROS_COUNT_BITS: u32 = 4;
const ZEROS_MAX: u32 = 15;

/// Returns the packed form of the column that [`ColumnBuilder`](super::super::ColumnBuilder) would
/// build from integers, dates or doubles, the latter given as their bits. `None` if the column must
/// be built first: the values have no simple form, or the estimate is not conclusive.
pub fn pack_numbers(type_code: u8, numbers: &[i64]) -> Option<Vec<u8>> {
    let (&first, rest) = numbers.split_first()?;
    if rest.is_empty() || numbers.len() >= VALUES_MAX {
        return None;
    }
    let (scale, values) = match type_code {
        tag::INT32 | tag::INT64 => (Scale::Memory, steps(numbers).map(zigzag).collect()),
        tag::DATE => (Scale::Memory, second_steps(numbers)),
        tag::DOUBLE => (Scale::One, whole_steps(numbers)?),
        _ => return None,
    };
    let all = values.iter().fold(0, |all, value| all | value);
    if all >= STEP_MAX {
        return None;
    }
    let bytes = first.to_le_bytes();
    let (literal, _) = bytes.split_at_checked(if type_code == tag::INT32 { 4 } else { 8 })?;
    let words = words_at_least(&values);
    let column_bytes = 2 + literal.len() + 8 * words + words.div_ceil(16) + 1;
    if column_bytes < COLUMN_BYTES_MIN {
        return None;
    }
    let run = BlockRun {
        nibble: scale.nibble(),
        count: values.len(),
    };
    let head = PackedHeader {
        tag: type_code,
        literal: literal.to_vec(),
        runs: vec![run],
    };
    ColumnParts { head, values }.pack(column_bytes - column_bytes / SAVING_MIN)
}

fn steps(numbers: &[i64]) -> impl Iterator<Item = i64> {
    let behind = numbers.iter().skip(1);
    numbers.iter().zip(behind).map(|(a, b)| b.wrapping_sub(*a))
}

fn second_steps(numbers: &[i64]) -> Vec<u64> {
    let mut before = 0;
    let second =
        steps(numbers).map(|step| zigzag(step.wrapping_sub(std::mem::replace(&mut before, step))));
    second.collect()
}

/// Returns the deltas of doubles that are all whole: words of other doubles may have different
/// scales.
fn whole_steps(bits: &[i64]) -> Option<Vec<u64>> {
    let mut all_whole = true;
    let whole = |bits: &i64| {
        let number = f64::from_bits(bits.cast_unsigned()) as i64;
        // Exceptions are rare: accumulating the result avoids a branch per value.
        all_whole &=
            (number as f64).to_bits().cast_signed() == *bits && number.unsigned_abs() < WHOLE_MAX;
        number
    };
    let numbers: Vec<i64> = bits.iter().map(whole).collect();
    all_whole.then(|| steps(&numbers).map(zigzag).collect())
}

/// Returns a lower estimate of the number of words a builder makes of values; the caller tests
/// whether there are too many.
fn words_at_least(values: &[u64]) -> usize {
    let repeats_max = REPEAT_UNIT * REPEAT_STEPS_MAX;
    let (mut words, mut width, mut slots) = (0, 0, 0);
    for same in values.chunk_by(|a, b| a == b) {
        let mut count = same.len();
        if count >= REPEAT_UNIT {
            words += count.div_ceil(repeats_max);
            count %= REPEAT_UNIT;
        }
        let bits = same.first().map_or(1, |value| slot_bits(*value));
        for _ in 0..count {
            let wider = bits.max(width);
            if wider * (slots + 1) > WORD_BITS {
                words += 1;
                (width, slots) = (bits, 1);
            } else {
                (width, slots) = (wider, slots + 1);
            }
        }
    }
    words + usize::from(slots > 0)
}

/// Returns the bits of the smallest slot that may hold a value below [`STEP_MAX`].
fn slot_bits(value: u64) -> u32 {
    let plain = u64::BITS - (value + 1).leading_zeros();
    let zeros = value.trailing_zeros().min(ZEROS_MAX);
    plain.min(plain.saturating_sub(zeros) + ZEROS_COUNT_BITS)
}

#[cfg(test)]
mod tests {
    use super::super::super::ColumnBuilder;
    use super::super::{pack_built, unpack};
    use super::*;
    use crate::value::ValueRef;

    struct TestNumbers(u64);

    impl TestNumbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % end
        }
    }

    fn built(type_code: u8, numbers: &[i64]) -> Vec<u8> {
        let mut builder = ColumnBuilder::new();
        for &number in numbers {
            let value = match type_code {
                tag::INT32 => ValueRef::Int32(number as i32),
                tag::INT64 => ValueRef::Int64(number),
                tag::DATE => ValueRef::DateTime(number),
                _ => ValueRef::Double(f64::from_bits(number.cast_unsigned())),
            };
            builder.append(value).unwrap();
        }
        builder.finish()
    }

    /// Packs numbers directly; true if that succeeded. Checks that the built column gives the same
    /// bytes.
    fn packs(type_code: u8, numbers: &[i64]) -> bool {
        let column = built(type_code, numbers);
        let packed = pack_numbers(type_code, numbers);
        if let Some(packed) = &packed {
            assert_eq!(unpack(packed, 1 << 20).unwrap(), column, "{numbers:?}");
            if let Some(expected) = pack_built(&column) {
                assert_eq!(*packed, expected, "{numbers:?}");
            }
        }
        packed.is_some()
    }

    /// Generates numbers of several patterns.
    fn numbers(draw: &mut TestNumbers, kind: u64) -> Vec<i64> {
        let length = 1 + draw.below(700);
        let width = draw.below(31);
        let spread = 1 + draw.below(1 << width);
        let mut at = draw.below(1 << 20).cast_signed();
        let mut number = || {
            let step = draw.below(spread).cast_signed() - draw.below(spread).cast_signed();
            at = match kind {
                0 => at.wrapping_add(step),
                1 => at + 1000,
                2 if draw.below(20) > 0 => at,
                3 => at + step * 1024,
                4 if draw.below(50) == 0 => at.wrapping_add(i64::MAX / 2 + step),
                _ => at.wrapping_add(step % 4),
            };
            at
        };
        (0..length).map(|_| number()).collect()
    }

    #[test]
    fn direct_packing_equals_packing_the_built_column() {
        let mut draw = TestNumbers(3);
        let mut packed = [0; 4];
        for round in 0..1500 {
            let numbers = numbers(&mut draw, round % 6);
            let narrow: Vec<i64> = numbers.iter().map(|&n| i64::from(n as i32)).collect();
            let doubles = |by: f64| -> Vec<i64> {
                let bits = |n: &i64| (*n as i32 as f64 / by).to_bits().cast_signed();
                numbers.iter().map(bits).collect()
            };
            packed[0] += usize::from(packs(tag::INT64, &numbers));
            packed[1] += usize::from(packs(tag::INT32, &narrow));
            packed[2] += usize::from(packs(tag::DATE, &numbers));
            packed[3] += usize::from(packs(tag::DOUBLE, &doubles(1.0)));
            packs(tag::DOUBLE, &doubles(10.0));
        }
        assert!(packed.iter().all(|&count| count > 300), "{packed:?}");
    }

    #[test]
    fn values_without_simple_form_are_not_packed() {
        let bits = |values: [f64; 40]| values.map(|value| value.to_bits().cast_signed());
        let mut values = [3.0; 40];
        values[20] = 4.0;
        assert!(packs(tag::DOUBLE, &bits(values)));
        for strange in [-0.0, 0.5, f64::NAN, 1e300, f64::INFINITY] {
            values[7] = strange;
            assert!(!packs(tag::DOUBLE, &bits(values)), "{strange}");
        }
        assert!(!packs(
            tag::INT64,
            &[i64::MIN, i64::MAX, 0, i64::MIN, i64::MAX, 1, 2, 3]
        ));
        for few in [&[][..], &[1]] {
            assert!(!packs(tag::INT64, few));
        }
        assert_eq!(pack_numbers(tag::STRING, &[1; 100]), None);
    }

    #[test]
    fn repeats_in_one_word_are_not_packed() {
        let counter: Vec<i64> = (0..1000).map(|n| n * 12_345).collect();
        assert!(!packs(tag::INT64, &counter));
        let still = vec![12_345; 1000];
        assert!(packs(tag::INT64, &still));
    }
}
