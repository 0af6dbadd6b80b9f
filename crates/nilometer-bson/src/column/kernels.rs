//! Inner loops: one word to a run of running sums.
//!
//! [`RunningSums::word`] checks selector and extension once and then runs the loop for that shape; the
//! loop has no branch per value. The common cases are shorter still:
//!
//! ```text
//! word of zeros     first order: the same number, filled      second order: numbers one step apart
//! repeat word       the same, 120 to 1920 at a time
//! no missing slot   detected for the whole word in five operations; the loop then needs no bitmap
//! ```
//!
//! No missing slot means no field of the word is all ones. With `x` the inverted slots, `L` the lowest bit of each and `H`
//! the highest, that is `(x − L) & !x & H == 0`: subtracting borrows through a field exactly if it is zero.

use super::simple8b::{self, WordShape};
use crate::block::PresenceBuilder;

/// Maximum number of slots in a word.
pub(crate) const SLOTS_MAX: usize = 60;

/// Represents a missing value where slots are unsigned integers.
pub(crate) const MISSING: u64 = u64::MAX;

/// The integer type of sums: i64, or i32 where only the low half is needed.
pub(crate) trait SumInteger: Copy + Default {
    fn plus(self, other: Self) -> Self;
    fn times(self, count: usize) -> Self;
    fn unzigzag(coded: u64) -> Self;
    /// Returns `self` if `keep`, else 0.
    fn masked(self, keep: bool) -> Self;
    fn is_zero(self) -> bool;
}

macro_rules! number {
    ($type:ty) => {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "sums wrap in the width of the type"
        )]
        impl SumInteger for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, count: usize) -> Self {
                self.wrapping_mul(count as $type)
            }

            #[inline(always)]
            fn unzigzag(coded: u64) -> Self {
                (coded >> 1) as $type ^ ((coded & 1) as $type).wrapping_neg()
            }

            #[inline(always)]
            fn masked(self, keep: bool) -> Self {
                self & (keep as $type).wrapping_neg()
            }

            #[inline(always)]
            fn is_zero(self) -> bool {
                self == 0
            }
        }
    };
}

number!(i32);
number!(i64);

/// Output of a decoder: a slice filled from the front.
#[derive(Debug)]
pub(crate) struct DecodeOutput<'a, T> {
    rest: &'a mut [T],
    at: usize,
}

impl<'a, T: Copy> DecodeOutput<'a, T> {
    /// Creates an output that starts at position `at`.
    pub(crate) fn new(values: &'a mut [T], at: usize) -> Self {
        DecodeOutput { rest: values, at }
    }

    /// Returns the number of values written.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the next `count` positions to be written; fewer if the slice ends.
    #[inline(always)]
    pub(crate) fn take(&mut self, count: usize) -> &'a mut [T] {
        let rest = std::mem::take(&mut self.rest);
        let count = count.min(rest.len());
        let (head, rest) = rest.split_at_mut(count);
        self.rest = rest;
        self.at += count;
        head
    }

    #[inline(always)]
    fn take_array<const N: usize>(&mut self) -> Option<&'a mut [T; N]> {
        let rest = std::mem::take(&mut self.rest);
        let (head, rest) = rest.split_first_chunk_mut()?;
        self.rest = rest;
        self.at += N;
        Some(head)
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) {
        if let [slot] = self.take(1) {
            *slot = value;
        }
    }

    #[inline(always)]
    pub(crate) fn fill(&mut self, count: usize, value: T) {
        self.take(count).fill(value);
    }
}

/// Decoding state of one stream of numbers. `SECOND`: deltas are second-order differences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunningSums<T, const SECOND: bool> {
    pub(crate) number: T,
    step: T,
    /// The previous slot, [`MISSING`] for a missing one.
    repeat: u64,
}

/// Returns a mask with the lowest bit of each of `slots` fields.
const fn lows(slots: usize, bits: usize) -> u64 {
    let mut word = 0;
    let mut slot = 0;
    while slot < slots {
        word |= 1 << (slot * bits);
        slot += 1;
    }
    word
}

/// True if any field is all ones.
#[inline(always)]
fn any_missing<const N: usize, const BITS: usize>(slots: u64) -> bool {
    let (low, high) = const {
        let low = lows(N, BITS);
        (low, low << (BITS - 1))
    };
    let inverted = !slots;
    inverted.wrapping_sub(low) & slots & high != 0
}

impl<T: SumInteger, const SECOND: bool> RunningSums<T, SECOND> {
    /// Creates the state after a literal.
    pub(crate) fn after(number: T) -> Self {
        RunningSums {
            number,
            step: T::default(),
            repeat: 0,
        }
    }

    /// Returns the last slot of the words so far.
    pub(crate) fn repeat(&self) -> u64 {
        self.repeat
    }

    /// Records a word of zeros that leaves the number unchanged.
    #[inline(always)]
    pub(crate) fn still(&mut self) {
        self.repeat = 0;
    }

    /// Returns the number after one more present slot.
    #[inline(always)]
    pub(crate) fn next(&mut self, coded: u64) -> T {
        self.add(T::unzigzag(coded))
    }

    /// True if the number does not change while slots are zero.
    #[inline(always)]
    pub(crate) fn rests(&self) -> bool {
        !SECOND || self.step.is_zero()
    }

    /// Returns the number after one more difference.
    #[inline(always)]
    pub(crate) fn add(&mut self, delta: T) -> T {
        if SECOND {
            self.step = self.step.plus(delta);
            self.number = self.number.plus(self.step);
        } else {
            self.number = self.number.plus(delta);
        }
        self.number
    }

    /// Writes the sums of one valid word that is not a repeat word.
    ///
    /// Long because it has one arm per shape: the table of selectors as code.
    #[inline]
    pub(crate) fn word(
        &mut self,
        word: u64,
        out: &mut DecodeOutput<'_, T>,
        presence: &mut PresenceBuilder,
    ) {
        match word & 0xFF {
            0x07 => self.plain::<8, 7, 8>(word, out, presence),
            0x17 => self.extended::<9, 2, 4, 1>(word, out, presence),
            0x27 => self.extended::<8, 3, 4, 1>(word, out, presence),
            0x37 => self.extended::<7, 4, 4, 1>(word, out, presence),
            0x47 => self.extended::<6, 5, 4, 1>(word, out, presence),
            0x57 => self.extended::<5, 7, 4, 1>(word, out, presence),
            0x67 => self.extended::<4, 10, 4, 1>(word, out, presence),
            0x77 => self.extended::<3, 14, 4, 1>(word, out, presence),
            0x87 => self.extended::<2, 24, 4, 1>(word, out, presence),
            0x97 => self.extended::<1, 52, 4, 1>(word, out, presence),
            0x08 => self.plain::<7, 8, 8>(word, out, presence),
            0x18 => self.extended::<7, 4, 4, 4>(word, out, presence),
            0x28 => self.extended::<6, 5, 4, 4>(word, out, presence),
            0x38 => self.extended::<5, 7, 4, 4>(word, out, presence),
            0x48 => self.extended::<4, 10, 4, 4>(word, out, presence),
            0x58 => self.extended::<3, 14, 4, 4>(word, out, presence),
            0x68 => self.extended::<2, 24, 4, 4>(word, out, presence),
            0x78 => self.extended::<1, 52, 4, 4>(word, out, presence),
            0x88 => self.extended::<6, 4, 5, 4>(word, out, presence),
            0x98 => self.extended::<5, 6, 5, 4>(word, out, presence),
            0xA8 => self.extended::<4, 9, 5, 4>(word, out, presence),
            0xB8 => self.extended::<3, 13, 5, 4>(word, out, presence),
            0xC8 => self.extended::<2, 23, 5, 4>(word, out, presence),
            0xD8 => self.extended::<1, 51, 5, 4>(word, out, presence),
            _ => match word & 0xF {
                1 => self.plain::<60, 1, 4>(word, out, presence),
                2 => self.plain::<30, 2, 4>(word, out, presence),
                3 => self.plain::<20, 3, 4>(word, out, presence),
                4 => self.plain::<15, 4, 4>(word, out, presence),
                5 => self.plain::<12, 5, 4>(word, out, presence),
                6 => self.plain::<10, 6, 4>(word, out, presence),
                9 => self.plain::<6, 10, 4>(word, out, presence),
                10 => self.plain::<5, 12, 4>(word, out, presence),
                11 => self.plain::<4, 15, 4>(word, out, presence),
                12 => self.plain::<3, 20, 4>(word, out, presence),
                13 => self.plain::<2, 30, 4>(word, out, presence),
                14 => self.plain::<1, 60, 4>(word, out, presence),
                _ => {}
            },
        }
    }

    #[inline(always)]
    fn plain<const N: usize, const BITS: usize, const START: usize>(
        &mut self,
        word: u64,
        out: &mut DecodeOutput<'_, T>,
        presence: &mut PresenceBuilder,
    ) {
        let mask = u64::MAX >> (64 - BITS);
        let mut slots = word >> START;
        if slots == 0 {
            self.repeat = 0;
            if let Some(values) = out.take_array::<N>() {
                self.again(values);
            }
            return;
        }
        if any_missing::<N, BITS>(slots) {
            self.word_with_missing(word, out, presence);
            return;
        }
        let Some(values) = out.take_array::<N>() else {
            return;
        };
        for value in values {
            *value = self.add(T::unzigzag(slots & mask));
            slots >>= BITS;
        }
        self.repeat = word >> (START + BITS * (N - 1)) & mask;
    }

    #[inline(always)]
    fn extended<const N: usize, const VALUE: usize, const COUNT: usize, const UNIT: u32>(
        &mut self,
        word: u64,
        out: &mut DecodeOutput<'_, T>,
        presence: &mut PresenceBuilder,
    ) {
        let bits = VALUE + COUNT;
        let mask = u64::MAX >> (64 - bits);
        let count_mask = (1 << COUNT) - 1;
        let mut slots = word >> 8;
        let missing = (0..N).any(|slot| slots >> (slot * bits) & mask == mask);
        if missing {
            self.word_with_missing(word, out, presence);
            return;
        }
        let Some(values) = out.take_array::<N>() else {
            return;
        };
        let mut coded = 0;
        for value in values {
            let zeros = (slots & count_mask) as u32 * UNIT;
            coded = ((slots & mask) >> COUNT).wrapping_shl(zeros);
            *value = self.add(T::unzigzag(coded));
            slots >>= bits;
        }
        self.repeat = coded;
    }

    /// Slow path of [`word`](Self::word): any shape, with a bit for each missing slot.
    fn word_with_missing(
        &mut self,
        word: u64,
        out: &mut DecodeOutput<'_, T>,
        presence: &mut PresenceBuilder,
    ) {
        let Some(shape) = simple8b::shape(word) else {
            return;
        };
        let WordShape { slots, bits, .. } = shape;
        let mask = u64::MAX >> (64 - u32::from(bits));
        let count_mask = (1 << shape.count_bits) - 1;
        let mut rest = word >> shape.start;
        let mut missing = 0;
        let mut coded = 0;
        let at = out.at();
        for (slot, value) in out.take(usize::from(slots)).iter_mut().enumerate() {
            let raw = rest & mask;
            rest >>= bits;
            let zeros = (raw & count_mask) as u32 * u32::from(shape.unit);
            let there = raw != mask;
            coded = if there {
                (raw >> shape.count_bits).wrapping_shl(zeros)
            } else {
                MISSING
            };
            missing |= u64::from(!there) << slot;
            let delta = T::unzigzag(coded).masked(there);
            if SECOND {
                self.step = self.step.plus(delta);
                self.number = self.number.plus(self.step.masked(there));
            } else {
                self.number = self.number.plus(delta);
            }
            *value = self.number;
        }
        self.repeat = coded;
        presence.clear_bits(at, missing);
    }

    /// Writes numbers as if each slot were zero.
    #[inline(always)]
    pub(crate) fn again(&mut self, values: &mut [T]) {
        if SECOND {
            series(&mut self.number, self.step, values);
        } else {
            values.fill(self.number);
        }
    }

    /// Writes `count` numbers that repeat the previous slot.
    pub(crate) fn repeated(
        &mut self,
        count: usize,
        out: &mut DecodeOutput<'_, T>,
        presence: &mut PresenceBuilder,
    ) {
        if self.repeat == MISSING {
            presence.clear_range(out.at(), count);
            out.fill(count, self.number);
            return;
        }
        let values = out.take(count);
        let delta = T::unzigzag(self.repeat);
        if self.repeat == 0 {
            self.again(values);
        } else if SECOND {
            for value in values {
                *value = self.add(delta);
            }
        } else {
            series(&mut self.number, delta, values);
        }
    }
}

/// Writes numbers `step` apart, starting one step after `number`.
#[inline(always)]
fn series<T: SumInteger>(number: &mut T, step: T, values: &mut [T]) {
    const LANES: usize = 8;
    let mut lanes = [T::default(); LANES];
    for (lane, value) in lanes.iter_mut().enumerate() {
        *value = number.plus(step.times(lane + 1));
    }
    let stride = step.times(LANES);
    *number = number.plus(step.times(values.len()));
    let (chunks, rest) = values.as_chunks_mut::<LANES>();
    for chunk in chunks {
        *chunk = lanes;
        for lane in &mut lanes {
            *lane = lane.plus(stride);
        }
    }
    for (value, lane) in rest.iter_mut().zip(lanes) {
        *value = lane;
    }
}
