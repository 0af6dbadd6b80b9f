//! Decoding of runs of literals and blocks of one type into typed vectors.
//!
//! Integers and dates are equal to their running sums ([`direct`]). Doubles, bools, timestamps and
//! ObjectIds are computed from the sums of one word at a time ([`mapped`]), which stay in the
//! first-level cache.

use std::cell::Cell;

use super::blocks::Placed;
use super::delta::{Scale, object_id_from_int};
use super::error::ColumnError;
use super::kernels::{MISSING, Number, Out, SLOTS_MAX, Sums};
use super::pieces::{self, Piece};
use super::simple8b;
use super::stream::Raw;
use crate::block::{Presence, PresenceBuilder};
use crate::value::{ObjectId, Timestamp};

/// Values of a run, and which of them are present.
type Vector<T> = (Vec<T>, Option<Presence>);

/// Control bytes of blocks without a decimal scale.
const UNSCALED: u8 = 0x80;

/// Decodes a run of `count` values that are equal to their sums.
pub(crate) fn direct<'a, T: Number, const SECOND: bool>(
    pieces: impl Iterator<Item = Placed<'a>>,
    base: Option<Raw<'a>>,
    count: usize,
    number: impl Fn(Raw<'a>) -> T,
) -> Result<Vector<T>, ColumnError> {
    let mut values = vec![T::default(); count];
    let mut out = Out::new(&mut values, 0);
    let mut presence = PresenceBuilder::new(count);
    let mut sums = base.map(|base| Sums::<T, SECOND>::after(number(base)));
    for (offset, piece) in pieces {
        match piece {
            Piece::Literal(literal) => {
                let first = number(literal);
                sums = Some(Sums::after(first));
                out.push(first);
            }
            Piece::Block { control, words } => {
                if control & 0xF0 != UNSCALED {
                    return Err(ColumnError::InvalidScale { offset });
                }
                let Some(sums) = &mut sums else {
                    skip_block(words, &mut out, &mut presence);
                    continue;
                };
                for word in pieces::words(words) {
                    match simple8b::repeat_count(word) {
                        Some(count) => sums.repeated(count, &mut out, &mut presence),
                        None => sums.word(word, &mut out, &mut presence),
                    }
                }
            }
            _ => {}
        }
    }
    Ok((values, presence.finish()))
}

/// Skips a block before any literal: all its values are missing.
fn skip_block<T: Copy>(words: &[u8], out: &mut Out<'_, T>, presence: &mut PresenceBuilder) {
    let count = pieces::words(words).map(simple8b::value_count).sum();
    presence.clear_range(out.at(), count);
    out.take(count);
}

/// Conversion from the sums of a stream to values of a type.
pub(crate) trait Map {
    /// The value type.
    type Value: Copy + Default;

    /// Returns the value of a literal, and the integer that sums continue from.
    fn literal(&mut self, literal: Raw<'_>) -> (Self::Value, i64);

    /// Starts a block: returns the integer to continue from, given the last one.
    fn block(&mut self, control: u8, number: i64, offset: usize) -> Result<i64, ColumnError> {
        if control & 0xF0 == UNSCALED {
            Ok(number)
        } else {
            Err(ColumnError::InvalidScale { offset })
        }
    }

    /// Converts one value.
    fn value(&self, number: i64) -> Self::Value;

    /// Converts many values.
    #[inline]
    fn values(&self, numbers: &[i64], values: &mut [Self::Value]) {
        for (value, number) in values.iter_mut().zip(numbers) {
            *value = self.value(*number);
        }
    }
}

/// Decodes a run of `count` values that are converted from sums.
pub(crate) fn mapped<'a, M: Map, const SECOND: bool>(
    mut map: M,
    pieces: impl Iterator<Item = Placed<'a>>,
    base: Option<Raw<'a>>,
    count: usize,
) -> Result<Vector<M::Value>, ColumnError> {
    let mut values = vec![M::Value::default(); count];
    let mut out = Out::new(&mut values, 0);
    let mut presence = PresenceBuilder::new(count);
    let mut sums = base.map(|base| Sums::<i64, SECOND>::after(map.literal(base).1));
    for (offset, piece) in pieces {
        match piece {
            Piece::Literal(literal) => {
                let (value, number) = map.literal(literal);
                sums = Some(Sums::after(number));
                out.push(value);
            }
            Piece::Block { control, words } => match &mut sums {
                Some(sums) => {
                    sums.number = map.block(control, sums.number, offset)?;
                    mapped_block(&map, words, sums, &mut out, &mut presence);
                }
                None if control & 0xF0 != UNSCALED => {
                    return Err(ColumnError::InvalidScale { offset });
                }
                None => skip_block(words, &mut out, &mut presence),
            },
            _ => {}
        }
    }
    Ok((values, presence.finish()))
}

fn mapped_block<M: Map, const SECOND: bool>(
    map: &M,
    words: &[u8],
    sums: &mut Sums<i64, SECOND>,
    out: &mut Out<'_, M::Value>,
    presence: &mut PresenceBuilder,
) {
    let mut buffer = [0_i64; SLOTS_MAX];
    for word in pieces::words(words) {
        if let Some(count) = simple8b::repeat_count(word) {
            if sums.repeat() == MISSING || (sums.repeat() == 0 && sums.rests()) {
                if sums.repeat() == MISSING {
                    presence.clear_range(out.at(), count);
                }
                out.fill(count, map.value(sums.number));
                continue;
            }
            for _ in 0..count / SLOTS_MAX {
                let mut numbers = Out::new(&mut buffer, out.at());
                sums.repeated(SLOTS_MAX, &mut numbers, presence);
                map.values(&buffer, out.take(SLOTS_MAX));
            }
            continue;
        }
        let count = simple8b::value_count(word);
        if word >> 4 == 0 && sums.rests() {
            sums.still();
            out.fill(count, map.value(sums.number));
            continue;
        }
        let mut numbers = Out::new(&mut buffer, out.at());
        sums.word(word, &mut numbers, presence);
        map.values(&buffer, out.take(count));
    }
}

/// Integers of 64 bits, and dates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int64Map;

impl Map for Int64Map {
    type Value = i64;

    fn literal(&mut self, literal: Raw<'_>) -> (i64, i64) {
        let number = literal.to_int();
        (number, number)
    }

    #[inline]
    fn value(&self, number: i64) -> i64 {
        number
    }
}

/// Integers of 64 bits while they fit in 16.
#[derive(Debug, Default)]
pub(crate) struct ShortMap {
    /// Not 0 once a value did not fit.
    lost: Cell<i64>,
}

impl ShortMap {
    /// True if all values did fit.
    pub(crate) fn fits(&self) -> bool {
        self.lost.get() == 0
    }
}

impl Map for ShortMap {
    type Value = i16;

    fn literal(&mut self, literal: Raw<'_>) -> (i16, i64) {
        let number = literal.to_int();
        (self.value(number), number)
    }

    #[inline]
    fn value(&self, number: i64) -> i16 {
        let short = number as i16;
        self.lost.set(self.lost.get() | number ^ i64::from(short));
        short
    }

    #[inline]
    fn values(&self, numbers: &[i64], values: &mut [i16]) {
        let mut lost = 0;
        for (value, number) in values.iter_mut().zip(numbers) {
            *value = *number as i16;
            lost |= number ^ i64::from(*value);
        }
        self.lost.set(self.lost.get() | lost);
    }
}

/// Integers of 32 bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int32Map;

impl Map for Int32Map {
    type Value = i32;

    fn literal(&mut self, literal: Raw<'_>) -> (i32, i64) {
        let number = literal.to_int();
        (self.value(number), number)
    }

    #[inline]
    fn value(&self, number: i64) -> i32 {
        number as i32
    }
}

/// Doubles at the scale of their block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DoubleMap(pub(crate) Scale);

impl Map for DoubleMap {
    type Value = f64;

    fn literal(&mut self, literal: Raw<'_>) -> (f64, i64) {
        self.0 = Scale::Memory;
        (f64::from_le_bytes(literal.array()), literal.to_int())
    }

    fn block(&mut self, control: u8, number: i64, offset: usize) -> Result<i64, ColumnError> {
        let last = self.0.decode(number);
        let scale = Scale::from_control(control).filter(|scale| scale.encode(last).is_some());
        self.0 = scale.ok_or(ColumnError::InvalidScale { offset })?;
        self.0
            .encode(last)
            .ok_or(ColumnError::InvalidScale { offset })
    }

    #[inline]
    fn value(&self, number: i64) -> f64 {
        self.0.decode(number)
    }

    #[inline]
    fn values(&self, numbers: &[i64], values: &mut [f64]) {
        let pairs = values.iter_mut().zip(numbers);
        match self.0 {
            Scale::Memory => {
                for (value, number) in pairs {
                    *value = f64::from_bits(number.cast_unsigned());
                }
            }
            Scale::One => {
                for (value, number) in pairs {
                    *value = *number as f64;
                }
            }
            scale => {
                let divisor = scale.multiplier();
                for (value, number) in pairs {
                    *value = *number as f64 / divisor;
                }
            }
        }
    }
}

/// Bools: any number other than 0 is true.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoolMap;

impl Map for BoolMap {
    type Value = bool;

    fn literal(&mut self, literal: Raw<'_>) -> (bool, i64) {
        let number = literal.to_int();
        (number != 0, number)
    }

    #[inline]
    fn value(&self, number: i64) -> bool {
        number != 0
    }
}

/// Timestamps: seconds high, increment low.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimestampMap;

impl Map for TimestampMap {
    type Value = Timestamp;

    fn literal(&mut self, literal: Raw<'_>) -> (Timestamp, i64) {
        let number = literal.to_int();
        (self.value(number), number)
    }

    #[inline]
    fn value(&self, number: i64) -> Timestamp {
        Timestamp::from_u64(number.cast_unsigned())
    }
}

/// ObjectIds: the process bytes are those of the last literal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdMap(pub(crate) ObjectId);

impl Map for IdMap {
    type Value = ObjectId;

    fn literal(&mut self, literal: Raw<'_>) -> (ObjectId, i64) {
        self.0 = ObjectId(literal.array());
        (self.0, literal.to_int())
    }

    #[inline]
    fn value(&self, number: i64) -> ObjectId {
        ObjectId(object_id_from_int(number, &self.0.0))
    }
}
