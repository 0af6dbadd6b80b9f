//! Totals without loss of precision: the state of `$sum` and `$avg`.
//!
//! Integers and doubles are added to a pair of doubles whose sum is the total (about 106 bits), so
//! ten times 0.1 is 1.0, `1e16 + 1 + 1 - 1e16` is 2, and the order of the addends rarely matters.
//! Decimals are added to a separate decimal. The result has the widest type that was added.

use super::{LONG_END, Number};
use crate::value::Decimal128;

/// A compensated sum of doubles and longs.
#[derive(Clone, Copy, Debug, Default)]
pub struct DoubleSum {
    sum: f64,
    /// Compensation: the part of the total not in `sum`.
    rest: f64,
    /// Plain sum of infinities and NaNs, which would spoil the compensation.
    special: f64,
    seen_special: bool,
}

impl DoubleSum {
    /// Returns the complete state as numbers, for [`DoubleSum::from_parts`].
    pub fn to_parts(&self) -> [f64; 4] {
        let seen = f64::from(u8::from(self.seen_special));
        [self.sum, self.rest, self.special, seen]
    }

    /// Restores a sum from [`DoubleSum::to_parts`].
    pub fn from_parts([sum, rest, special, seen]: [f64; 4]) -> Self {
        Self {
            sum,
            rest,
            special,
            seen_special: seen != 0.0,
        }
    }
}

/// Returns `a + b` exactly, as the rounded sum and its error.
#[inline]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_part = sum - a;
    let a_part = sum - b_part;
    (sum, (a - a_part) + (b - b_part))
}

/// Doubles added at a time.
const CHUNK: usize = 1024;

/// Sums computed in parallel.
const LANES: usize = 8;

/// A chunk of whole numbers up to this size has a sum that a double holds exactly.
const WHOLE_MAX: f64 = (1u64 << 42) as f64;

/// Adding and subtracting this rounds a small double to the nearest whole number.
const ROUND: f64 = 1.5 * (1u64 << 52) as f64;

/// Returns the exact sum if all values are whole numbers of limited size.
fn whole_sum(values: &[f64]) -> Option<f64> {
    let mut sums = [0.0; LANES];
    let mut others = [0u64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        // Indexing arrays of one length: zipped iterators are not always vectorised.
        for at in 0..LANES {
            let value = chunk[at];
            let is_whole = ((value + ROUND) - ROUND == value) & (value.abs() < WHOLE_MAX);
            others[at] |= u64::from(!is_whole);
            sums[at] += value;
        }
    }
    let is_whole = |value: &f64| value.abs() < WHOLE_MAX && value.trunc() == *value;
    let all = others == [0; LANES] && rest.iter().all(is_whole);
    all.then(|| sums.iter().chain(rest).sum())
}

/// Sums of doubles above this may overflow, depending on the order of addition.
const LARGE: f64 = 1e290;

/// Returns one compensated sum per lane; `None` if a value is not finite or is large.
fn lane_sums(values: &[f64]) -> Option<[(f64, f64); LANES]> {
    // False for NaN as well.
    let small = |all, value: &f64| all & (value.abs() < LARGE);
    if !values.iter().fold(true, small) {
        return None;
    }
    let mut sums = [0.0; LANES];
    let mut rests = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for at in 0..LANES {
            let (high, error) = two_sum(sums[at], chunk[at]);
            (sums[at], rests[at]) = two_sum(high, rests[at] + error);
        }
    }
    for ((sum, low), value) in sums.iter_mut().zip(&mut rests).zip(rest) {
        let (high, error) = two_sum(*sum, *value);
        (*sum, *low) = two_sum(high, *low + error);
    }
    let mut pairs = [(0.0, 0.0); LANES];
    for (pair, (sum, rest)) in pairs.iter_mut().zip(sums.into_iter().zip(rests)) {
        *pair = (sum, rest);
    }
    Some(pairs)
}

impl DoubleSum {
    /// Adds a double.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.special += value;
            self.seen_special = true;
            return;
        }
        let (sum, error) = two_sum(self.sum, value);
        if !sum.is_finite() {
            // Overflowed for good: the error term has no meaning.
            self.special += sum;
            self.seen_special = true;
            return;
        }
        let (sum, rest) = two_sum(sum, self.rest + error);
        self.sum = sum;
        self.rest = rest;
    }

    /// Adds doubles.
    ///
    /// Whole numbers are added exactly, so the result equals calling [`DoubleSum::add`] for each.
    /// Others are added to several compensated sums in parallel, which are merged at the end: no
    /// less precise than a compensated sum in any order.
    pub fn add_all(&mut self, values: &[f64]) {
        let chunks = values.chunks(CHUNK);
        for chunk in chunks {
            if let Some(whole) = whole_sum(chunk) {
                self.add(whole);
            } else if let Some(lanes) = lane_sums(chunk) {
                for (sum, rest) in lanes {
                    self.add(sum);
                    self.add(rest);
                }
            } else {
                chunk.iter().for_each(|value| self.add(*value));
            }
        }
    }

    /// Adds a long, exactly.
    pub fn add_i64(&mut self, value: i64) {
        // Split into two halves that doubles hold exactly.
        let low = value & 0xFFFF_FFFF;
        self.add((value - low) as f64);
        self.add(low as f64);
    }

    /// Merges another sum.
    pub fn merge(&mut self, other: &Self) {
        self.add(other.sum);
        self.add(other.rest);
        if other.seen_special {
            self.special += other.special;
            self.seen_special = true;
        }
    }

    /// Returns the total as the nearest double.
    pub fn total(&self) -> f64 {
        if self.seen_special {
            return self.special;
        }
        self.sum + self.rest
    }

    /// Returns the total as a long, if it is a whole number in range.
    pub fn total_i64(&self) -> Option<i64> {
        if self.seen_special || !(-LONG_END..=LONG_END).contains(&self.sum) {
            return None;
        }
        if self.sum.trunc() != self.sum || self.rest.trunc() != self.rest {
            return None;
        }
        i64::try_from(self.sum as i128 + self.rest as i128).ok()
    }

    /// Returns the total as a decimal of 34 digits.
    pub fn total_decimal(&self) -> Decimal128 {
        if self.seen_special {
            return Decimal128::from_f64(self.total());
        }
        Decimal128::from_f64_closest(self.sum).add(Decimal128::from_f64_closest(self.rest))
    }
}

/// The widest type added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum WidestType {
    #[default]
    Int,
    Long,
    Double,
    Decimal,
}

/// A total over numbers of all four types.
#[derive(Clone, Copy, Debug)]
pub struct NumberSum {
    binary: DoubleSum,
    decimal: Decimal128,
    widest: WidestType,
}

impl Default for NumberSum {
    fn default() -> Self {
        Self {
            binary: DoubleSum::default(),
            decimal: Decimal128::ZERO,
            widest: WidestType::Int,
        }
    }
}

impl NumberSum {
    /// Creates the empty sum: int 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a number.
    pub fn add(&mut self, number: Number) {
        let kind = match number {
            Number::Int(v) => {
                self.binary.add(v.into());
                WidestType::Int
            }
            Number::Long(v) => {
                self.binary.add_i64(v);
                WidestType::Long
            }
            Number::Double(v) => {
                self.binary.add(v);
                WidestType::Double
            }
            Number::Decimal(v) => {
                self.decimal = self.decimal.add(v);
                WidestType::Decimal
            }
        };
        self.widest = self.widest.max(kind);
    }

    /// Adds a sum of doubles accumulated separately, as kernels do.
    pub fn add_doubles(&mut self, doubles: &DoubleSum) {
        self.binary.merge(doubles);
        self.widest = self.widest.max(WidestType::Double);
    }

    /// Merges another total.
    pub fn merge(&mut self, other: &Self) {
        self.binary.merge(&other.binary);
        if other.widest == WidestType::Decimal {
            self.decimal = self.decimal.add(other.decimal);
        }
        self.widest = self.widest.max(other.widest);
    }

    /// Returns the total in the widest type added; an int total that overflows becomes long, a long
    /// total double.
    pub fn total(&self) -> Number {
        match self.widest {
            WidestType::Decimal => Number::Decimal(self.total_decimal()),
            WidestType::Double => Number::Double(self.binary.total()),
            WidestType::Int | WidestType::Long => match self.binary.total_i64() {
                Some(whole) if self.widest == WidestType::Int => super::narrow(whole),
                Some(whole) => Number::Long(whole),
                None => Number::Double(self.binary.total()),
            },
        }
    }

    /// Returns the total divided by `count`, as a double or, if a decimal was added, a decimal.
    pub fn average(&self, count: u64) -> Option<Number> {
        if count == 0 {
            return None;
        }
        Some(if self.widest == WidestType::Decimal {
            Number::Decimal(self.total_decimal().div(Decimal128::from(count)))
        } else {
            Number::Double(self.binary.total() / count as f64)
        })
    }

    /// Returns the total as a decimal of 34 digits.
    pub fn total_decimal(&self) -> Decimal128 {
        self.decimal.add(self.binary.total_decimal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(numbers: &[Number]) -> Number {
        let mut sum = NumberSum::new();
        for number in numbers {
            sum.add(*number);
        }
        sum.total()
    }

    #[test]
    fn doubles_are_compensated() {
        assert!(matches!(sum(&[Number::Double(0.1); 10]), Number::Double(v) if v == 1.0));
        let far = [1e16, 1.0, 1.0, -1e16].map(Number::Double);
        assert!(matches!(sum(&far), Number::Double(v) if v == 2.0));
    }

    #[test]
    fn integers_widen_only_when_they_must() {
        assert!(matches!(sum(&[]), Number::Int(0)));
        assert!(matches!(
            sum(&[Number::Int(i32::MAX), Number::Int(1)]),
            Number::Long(2_147_483_648)
        ));
        assert!(matches!(
            sum(&[Number::Long(i64::MAX), Number::Long(1), Number::Long(-1)]),
            Number::Long(i64::MAX)
        ));
        assert!(matches!(
            sum(&[Number::Long(i64::MAX), Number::Int(1)]),
            Number::Double(_)
        ));
        assert!(matches!(
            sum(&[Number::Long(3), Number::Int(-1)]),
            Number::Long(2)
        ));
    }

    #[test]
    fn add_all_equals_adding_one_by_one() {
        let mut seed = 0x2545_F491_4F6C_DD1Du64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for round in 0..400 {
            let length = next() as usize % 2500;
            let kind = round % 5;
            let values: Vec<f64> = (0..length)
                .map(|_| match kind {
                    0 => (next() % 200) as f64 - 100.0,
                    1 => (next() % 100_000) as f64 / 100.0,
                    2 => f64::from_bits(next() & !(1 << 62)),
                    3 if next() % 900 == 0 => {
                        [f64::INFINITY, f64::NAN, -f64::MAX, f64::MAX][next() as usize % 4]
                    }
                    3 => (next() % 4) as f64 * -0.0,
                    _ => (next() >> 11) as f64 * if next() % 2 == 0 { 1.0 } else { -1.0 },
                })
                .collect();
            let (mut one, mut all) = (DoubleSum::default(), DoubleSum::default());
            values.iter().for_each(|value| one.add(*value));
            all.add_all(&values);
            let (one, all) = (one.total(), all.total());
            assert!(
                one.to_bits() == all.to_bits() || (one.is_nan() && all.is_nan()),
                "{kind}: {one} {all}"
            );
        }
    }

    #[test]
    fn infinities_do_not_poison() {
        let mut sum = DoubleSum::default();
        sum.add(f64::INFINITY);
        sum.add(1.0);
        assert_eq!(sum.total(), f64::INFINITY);
        sum.add(f64::NEG_INFINITY);
        assert!(sum.total().is_nan());
        let mut overflow = DoubleSum::default();
        overflow.add(f64::MAX);
        overflow.add(f64::MAX);
        assert_eq!(overflow.total(), f64::INFINITY);
    }

    #[test]
    fn decimals_join_the_binary_total() {
        let mut total = NumberSum::new();
        total.add(Number::Decimal("0.1".parse().unwrap()));
        total.add(Number::Int(2));
        total.add(Number::Double(0.5));
        let Number::Decimal(value) = total.total() else {
            panic!("not a decimal");
        };
        assert_eq!(value.to_string(), "2.6");
        let Some(Number::Decimal(average)) = total.average(4) else {
            panic!("not a decimal");
        };
        assert_eq!(average.to_string(), "0.65");
    }
}
