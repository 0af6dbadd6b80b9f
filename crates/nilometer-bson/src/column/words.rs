//! Packing of unsigned values into Simple-8b words, identical to MongoDB's.
//!
//! [`WordBuilder`] delays values until a word is determined: a word takes as many of the oldest
//! values as fit, which is known only when the next value does not. So at any moment there are
//! either up to 60 *pending* values, or a *repeat*: a value that ended the last word exactly and
//! has been repeated since.
//!
//! ```text
//! append(u) ──► fits with the pending ones? ── yes ──► pending
//!                        │ no
//!                        ▼
//!               a word of the oldest, until it fits ──► pending, or a repeat if nothing is pending
//! ```
//!
//! Four families of words compete (see [`simple8b`](super::simple8b)). The first that holds all
//! pending values and the new one stays open; one that does not is closed until the next word.
//! Almost all values fit the plain family, so the widths for the other three are computed only when
//! the plain one closes, from the few relevant values.
//!
//! The content of a word is the same for every builder that follows the rules. The rules must not
//! change, or a server that reopens a column would misread where its last flush started.

use super::simple8b::{FAMILIES, PLAIN, REPEAT, REPEAT_STEPS_MAX, REPEAT_UNIT, WordShape};

/// Bits available for slots in a word of each family.
const ROOM: [u32; 4] = [60, 56, 56, 56];
const COUNT_BITS: [u32; 4] = [0, 4, 4, 5];
const UNIT: [u32; 4] = [1, 1, 4, 4];
/// Maximum number of trailing zeros a slot of each family can omit.
const ZEROS_MAX: [u32; 4] = [0, 15, 60, 124];
/// Minimum number of value bits in a slot.
const LEAST_BITS: [u32; 4] = [1, 2, 4, 4];

/// The unsigned integers of a stream: u64, or u128 for strings, binaries and decimals.
///
/// The maximum, all ones, cannot be stored; builders use it as a missing value.
pub(crate) trait Unsigned: Copy + Eq + std::fmt::Debug {
    const ZERO: Self;
    const MISSING: Self;
    const WIDE: bool;
    /// Returns the bits of the smallest plain slot that holds this without being all ones.
    fn plain_bits(self) -> u32;
    /// Returns the number of trailing zeros, 0 for 0.
    fn zeros(self) -> u32;
    /// Returns the bits of `self >> shift` plus `extra`.
    fn bits_shifted(self, shift: u32, extra: u32) -> u32;
    /// Returns the low 64 bits of `self >> shift`.
    fn low(self, shift: u32) -> u64;
}

impl Unsigned for u64 {
    const ZERO: Self = 0;
    const MISSING: Self = u64::MAX;
    const WIDE: bool = false;

    #[inline]
    fn plain_bits(self) -> u32 {
        64 - self.wrapping_add(1).leading_zeros()
    }

    fn zeros(self) -> u32 {
        if self == 0 { 0 } else { self.trailing_zeros() }
    }

    fn bits_shifted(self, shift: u32, extra: u32) -> u32 {
        64 - ((self >> shift) + u64::from(extra)).leading_zeros()
    }

    #[inline]
    fn low(self, shift: u32) -> u64 {
        self >> shift
    }
}

impl Unsigned for u128 {
    const ZERO: Self = 0;
    const MISSING: Self = u128::MAX;
    const WIDE: bool = true;

    #[inline]
    fn plain_bits(self) -> u32 {
        if self >> 64 != 0 {
            return 128 - self.leading_zeros();
        }
        128 - (self + 1).leading_zeros()
    }

    fn zeros(self) -> u32 {
        if self == 0 { 0 } else { self.trailing_zeros() }
    }

    fn bits_shifted(self, shift: u32, extra: u32) -> u32 {
        128 - ((self >> shift) + u128::from(extra)).leading_zeros()
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "callers mask to the slot, at most 60 bits"
    )]
    fn low(self, shift: u32) -> u64 {
        (self >> shift) as u64
    }
}

/// Receives finished words.
pub(crate) trait WordSink {
    /// Appends one word.
    fn word(&mut self, word: u64);
}

/// A sink that only counts.
#[derive(Debug, Default)]
pub(crate) struct WordCounter(pub(crate) usize);

impl WordSink for WordCounter {
    fn word(&mut self, _: u64) {
        self.0 += 1;
    }
}

impl WordSink for Vec<u64> {
    fn word(&mut self, word: u64) {
        self.push(word);
    }
}

/// A value too wide for any word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooWide;

/// Packs values into words. See the module.
#[derive(Debug, Clone)]
pub(crate) struct WordBuilder<U> {
    /// Values not yet in a word; [`Unsigned::MISSING`] for missing ones.
    pending: Vec<U>,
    /// Number of pending repeats of `last`.
    repeats: usize,
    last: U,
    /// The family that fitted most recently: the one a flush uses.
    family: usize,
    /// Which families can still hold all pending values. The last three are valid only while the
    /// first is closed.
    open: [bool; 4],
    /// The widest pending value in each family, valid like `open`.
    top: [u32; 4],
}

impl<U: Unsigned> Default for WordBuilder<U> {
    fn default() -> Self {
        WordBuilder {
            pending: Vec::new(),
            repeats: 0,
            last: U::ZERO,
            family: 0,
            open: [true; 4],
            top: LEAST_BITS,
        }
    }
}

/// Returns the trailing zeros omitted in a family: at most what its count can express.
fn zeros_in<U: Unsigned>(value: U, family: usize) -> u32 {
    let (unit, max) = match family {
        0 => return 0,
        1 => (UNIT[1], ZEROS_MAX[1]),
        2 => (UNIT[2], ZEROS_MAX[2]),
        _ => (UNIT[3], ZEROS_MAX[3]),
    };
    let zeros = value.zeros().min(max);
    zeros - zeros % unit
}

/// Returns the value bits a present value needs in each family.
fn bits_in<U: Unsigned>(value: U) -> [u32; 4] {
    let plain = value.plain_bits();
    let zeros = value.zeros();
    let bits = |family: usize, most: u32| {
        if zeros == most {
            // The count is all ones, so the value bits must not be.
            value.bits_shifted(most, 1)
        } else {
            plain - zeros_in(value, family)
        }
    };
    [
        plain,
        bits(1, ZEROS_MAX[1]),
        bits(2, ZEROS_MAX[2]),
        if U::WIDE {
            bits(3, ZEROS_MAX[3])
        } else {
            plain - zeros_in(value, 3)
        },
    ]
}

#[expect(
    clippy::indexing_slicing,
    reason = "the arrays have one entry per family and `family` is below 4 throughout; \
              nothing here reads outside bytes"
)]
impl<U: Unsigned> WordBuilder<U> {
    /// Creates a builder that may continue repeating `last`.
    pub(crate) fn after(last: U) -> Self {
        WordBuilder {
            last,
            ..WordBuilder::default()
        }
    }

    /// Resets the builder.
    pub(crate) fn reset(&mut self) {
        self.pending.clear();
        self.repeats = 0;
        self.last = U::ZERO;
        self.family = 0;
        self.open_all();
        self.top = LEAST_BITS;
    }

    /// True if a flush would change nothing.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.pending.is_empty() && self.repeats == 0 && self.last == U::ZERO
    }

    /// Returns the value a new builder that takes over the pending values may repeat: see
    /// [`WordBuilder::after`].
    pub(crate) fn repeatable(&self) -> U {
        if self.pending.is_empty() || self.repeats > 0 {
            self.last
        } else {
            U::ZERO
        }
    }

    /// Returns every value that is not in a word yet, oldest first.
    pub(crate) fn held(&self) -> impl Iterator<Item = U> + '_ {
        std::iter::repeat_n(self.last, self.repeats).chain(self.pending.iter().copied())
    }

    /// Returns the repeated value, its number of pending repeats, and the pending values after
    /// them.
    pub(crate) fn held_parts(&self) -> (U, usize, &[U]) {
        (self.last, self.repeats, &self.pending)
    }

    /// Returns the approximate number of bytes a flush would write.
    pub(crate) fn pending_bytes(&self) -> usize {
        let bits = self.pending.len() * self.top[0] as usize;
        bits.div_ceil(60) * 8 + if self.repeats > 0 { 8 } else { 0 }
    }

    /// Adds a value.
    #[inline]
    pub(crate) fn append(&mut self, value: U, sink: &mut impl WordSink) -> Result<(), TooWide> {
        if self.pending.is_empty() || self.repeats > 0 {
            if self.last == value && value != U::MISSING {
                self.repeat();
                return Ok(());
            }
            self.end_repeat(sink);
        }
        self.add(value, true, sink)
    }

    /// Adds a missing value.
    pub(crate) fn skip(&mut self, sink: &mut impl WordSink) {
        if self.pending.is_empty() || self.repeats > 0 {
            if self.last == U::MISSING {
                self.repeat();
                return;
            }
            self.end_repeat(sink);
        }
        self.add_missing(true, sink);
    }

    /// Writes all pending values. No repeat can start from a flushed word.
    pub(crate) fn flush(&mut self, sink: &mut impl WordSink) {
        self.end_repeat(sink);
        while !self.pending.is_empty() {
            self.word(sink);
        }
    }

    fn repeat(&mut self) {
        self.repeats += 1;
        self.family = 0;
        self.open_all();
    }

    fn open_all(&mut self) {
        self.open = [true; 4];
    }

    #[inline]
    fn add(&mut self, value: U, may_repeat: bool, sink: &mut impl WordSink) -> Result<(), TooWide> {
        let bits = value.plain_bits();
        if self.open[0] && bits != 0 {
            let top = self.top[0].max(bits);
            if top as usize * (self.pending.len() + 1) <= ROOM[0] as usize {
                self.family = 0;
                self.top[0] = top;
                self.pending.push(value);
                return Ok(());
            }
        }
        self.add_slowly(value, may_repeat, sink)
    }

    fn add_slowly(
        &mut self,
        value: U,
        may_repeat: bool,
        sink: &mut impl WordSink,
    ) -> Result<(), TooWide> {
        if value == U::MISSING {
            return Err(TooWide);
        }
        let bits = bits_in(value);
        if (0..4).all(|family| bits[family] + COUNT_BITS[family] > ROOM[family]) {
            return Err(TooWide);
        }
        if self.fits(bits) {
            self.push(value, bits);
            return Ok(());
        }
        let tail = self.pending.last().copied();
        loop {
            self.word(sink);
            if self.fits(bits) {
                break;
            }
        }
        if may_repeat && self.pending.is_empty() && tail == Some(value) {
            self.start_repeat(value);
        } else {
            self.push(value, bits);
        }
        Ok(())
    }

    #[inline]
    fn add_missing(&mut self, may_repeat: bool, sink: &mut impl WordSink) {
        let count = self.pending.len() + 1;
        if self.open[0] && self.top[0] as usize * count <= ROOM[0] as usize {
            if count > 1 {
                self.family = 0;
            }
            self.pending.push(U::MISSING);
            return;
        }
        self.add_missing_slowly(may_repeat, sink);
    }

    fn add_missing_slowly(&mut self, may_repeat: bool, sink: &mut impl WordSink) {
        if !self.pending.is_empty() {
            let was_missing = self.pending.last() == Some(&U::MISSING);
            if !self.fits(LEAST_BITS) {
                self.word(sink);
                self.family = 0;
            }
            if self.pending.is_empty() && was_missing && may_repeat {
                self.start_repeat(U::MISSING);
                return;
            }
        }
        self.pending.push(U::MISSING);
    }

    fn start_repeat(&mut self, value: U) {
        self.repeats = 1;
        self.last = value;
        self.family = 0;
        self.open_all();
    }

    fn push(&mut self, value: U, bits: [u32; 4]) {
        for (top, bits) in self.top.iter_mut().zip(bits) {
            *top = (*top).max(bits);
        }
        self.pending.push(value);
    }

    /// Selects the first family that holds all pending values and one more; closes those before it.
    fn fits(&mut self, bits: [u32; 4]) -> bool {
        let count = self.pending.len() as u32 + 1;
        let fits = |top: u32, family: usize| {
            (top.max(bits[family]) + COUNT_BITS[family]) * count <= ROOM[family]
        };
        if self.open[0] {
            if fits(self.top[0], 0) {
                self.family = 0;
                return true;
            }
            self.open[0] = false;
            // The other families matter until the next word.
            if !self.measure_extended(bits, count) {
                self.open = [false; 4];
                return false;
            }
        }
        for family in 1..4 {
            if self.open[family] {
                if fits(self.top[family], family) {
                    self.family = family;
                    return true;
                }
                self.open[family] = false;
            }
        }
        false
    }

    /// Computes the widest pending value in the families that omit zeros. False as soon as none of
    /// them can hold `count` values, including the one with `bits`.
    fn measure_extended(&mut self, bits: [u32; 4], count: u32) -> bool {
        let most = (ROOM[1] / count).saturating_sub(COUNT_BITS[1]);
        if most < bits[1].min(bits[2]).min(bits[3]) || most < LEAST_BITS[1] {
            return false;
        }
        let mut top = LEAST_BITS;
        for &value in &self.pending {
            if value == U::MISSING {
                continue;
            }
            if value.plain_bits() - value.zeros() > most {
                return false;
            }
            for (top, bits) in top.iter_mut().zip(bits_in(value)).skip(1) {
                *top = (*top).max(bits);
            }
        }
        self.top[1..].copy_from_slice(&top[1..]);
        true
    }

    /// Writes the fullest word of the current family from the oldest pending values.
    fn word(&mut self, sink: &mut impl WordSink) {
        let count = self.pending.len();
        let shape = if self.family == 0 {
            PLAIN.get(usize::from(PLAIN_FOR[count.min(60)]))
        } else {
            let fits = |shape: &&WordShape| usize::from(shape.slots) <= count;
            FAMILIES[self.family].iter().find(fits)
        };
        let Some(shape) = shape else {
            return;
        };
        let slots = usize::from(shape.slots);
        let word = if self.family == 0 {
            pack_plain(&self.pending[..slots], shape)
        } else {
            pack_extended(&self.pending[..slots], shape, self.family)
        };
        sink.word(word);
        self.pending.copy_within(slots.., 0);
        self.pending.truncate(count - slots);
        self.open_all();
        self.top[0] = self.pending.iter().fold(LEAST_BITS[0], |top, &value| {
            top.max(if value == U::MISSING {
                1
            } else {
                value.plain_bits()
            })
        });
    }

    /// Converts a repeat to repeat words; repeats that do not fill a unit become pending values.
    fn end_repeat(&mut self, sink: &mut impl WordSink) {
        let mut steps = self.repeats / REPEAT_UNIT;
        while steps > 0 {
            let now = steps.min(REPEAT_STEPS_MAX);
            self.repeats -= now * REPEAT_UNIT;
            sink.word(u64::from(REPEAT) | (now as u64 - 1) << 4);
            steps -= now;
        }
        while self.repeats > 0 {
            if self.last == U::MISSING {
                self.add_missing(false, sink);
            } else {
                // It was stored before, so it is not too wide.
                let _ = self.add(self.last, false, sink);
            }
            self.repeats -= 1;
        }
        self.last = U::ZERO;
        if self.pending.is_empty() {
            self.family = 0;
            self.open_all();
        }
    }
}

/// The plain shape of a word for each number of pending values.
#[expect(
    clippy::indexing_slicing,
    reason = "evaluated by the compiler, which checks every index"
)]
const PLAIN_FOR: [u8; 61] = {
    let mut table = [u8::MAX; 61];
    let mut count = 1;
    while count <= 60 {
        let mut shape = 0;
        while PLAIN[shape].slots as usize > count {
            shape += 1;
        }
        table[count] = shape as u8;
        count += 1;
    }
    table
};

fn pack_plain<U: Unsigned>(values: &[U], shape: &WordShape) -> u64 {
    match shape.code {
        1 => pack::<U, 60, 1>(values) << 4 | 1,
        2 => pack::<U, 30, 2>(values) << 4 | 2,
        3 => pack::<U, 20, 3>(values) << 4 | 3,
        4 => pack::<U, 15, 4>(values) << 4 | 4,
        5 => pack::<U, 12, 5>(values) << 4 | 5,
        6 => pack::<U, 10, 6>(values) << 4 | 6,
        7 => pack::<U, 8, 7>(values) << 8 | 7,
        8 => pack::<U, 7, 8>(values) << 8 | 8,
        9 => pack::<U, 6, 10>(values) << 4 | 9,
        10 => pack::<U, 5, 12>(values) << 4 | 10,
        11 => pack::<U, 4, 15>(values) << 4 | 11,
        12 => pack::<U, 3, 20>(values) << 4 | 12,
        13 => pack::<U, 2, 30>(values) << 4 | 13,
        _ => pack::<U, 1, 60>(values) << 4 | 14,
    }
}

/// Packs the slots of a plain word, the first value lowest.
#[inline(always)]
fn pack<U: Unsigned, const N: usize, const BITS: u32>(values: &[U]) -> u64 {
    let mask = u64::MAX >> (64 - BITS);
    let Some(values) = values.first_chunk::<N>() else {
        return 0;
    };
    let mut slots = 0;
    for (slot, value) in values.iter().enumerate() {
        slots |= (value.low(0) & mask) << (slot as u32 * BITS);
    }
    slots
}

fn pack_extended<U: Unsigned>(values: &[U], shape: &WordShape, family: usize) -> u64 {
    let bits = u32::from(shape.bits);
    let mask = u64::MAX >> (64 - bits);
    let slot = |value: U| {
        if value == U::MISSING {
            return mask;
        }
        let zeros = zeros_in(value, family);
        let count = u64::from(zeros / u32::from(shape.unit));
        value.low(zeros) << shape.count_bits | count
    };
    let slots = values
        .iter()
        .rev()
        .fold(0_u64, |slots, &value| slots << bits | slot(value));
    slots << shape.start | u64::from(shape.code)
}
