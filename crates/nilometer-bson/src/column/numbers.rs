//! Decoding of runs of literals and blocks of one type into typed vectors.
//!
//! Integers and dates are equal to their running sums ([`direct`]). Doubles, bools, timestamps and
//! ObjectIds are computed from the sums of one word at a time ([`mapped`]), which stay in the
//! first-level cache.

use std::cell::Cell;

use super::blocks::PieceAt;
use super::delta::{Scale, object_id_from_int};
use super::error::ColumnError;
use super::kernels::{DecodeOutput, MISSING, RunningSums, SLOTS_MAX, SumInteger};
use super::pieces::{self, Piece};
use super::simple8b;
use super::stream::RawRef;
use crate::block::{Presence, PresenceBuilder};
use crate::value::{ObjectId, Timestamp};

/// Values of a run, and which of them are present.
type TypedVector<T> = (Vec<T>, Option<Presence>);

/// Control bytes of blocks without a decimal scale.
const UNSCALED: u8 = 0x80;

/// Decodes a run of `count` values that are equal to their sums.
pub(crate) fn direct<'a, T: SumInteger, const SECOND: bool>(
    pieces: impl Iterator<Item = PieceAt<'a>>,
    base: Option<RawRef<'a>>,
    count: usize,
    number: impl Fn(RawRef<'a>) -> T,
) -> Result<TypedVector<T>, ColumnError> {
    let mut values = vec![T::default(); count];
    let mut out = DecodeOutput::new(&mut values, 0);
    let mut presence = PresenceBuilder::new(count);
    let mut sums = base.map(|base| RunningSums::<T, SECOND>::after(number(base)));
    for (offset, piece) in pieces {
        match piece {
            Piece::Literal(literal) => {
                let first = number(literal);
                sums = Some(RunningSums::after(first));
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
fn skip_block<T: Copy>(
    words: &[u8],
    out: &mut DecodeOutput<'_, T>,
    presence: &mut PresenceBuilder,
) {
    let count = pieces::words(words).map(simple8b::value_count).sum();
    presence.clear_range(out.at(), count);
    out.take(count);
}

/// Conversion from the sums of a stream to values of a type.
pub(crate) trait SumMap {
    /// The value type.
    type Value: Copy + Default;

    /// Returns the value of a literal, and the integer that sums continue from.
    fn literal(&mut self, literal: RawRef<'_>) -> (Self::Value, i64);

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
pub(crate) fn mapped<'a, M: SumMap, const SECOND: bool>(
    mut map: M,
    pieces: impl Iterator<Item = PieceAt<'a>>,
    base: Option<RawRef<'a>>,
    count: usize,
) -> Result<TypedVector<M::Value>, ColumnError> {
    let mut values = vec![M::Value::default(); count];
    let mut out = DecodeOutput::new(&mut values, 0);
    let mut presence = PresenceBuilder::new(count);
    let mut sums = base.map(|base| RunningSums::<i64, SECOND>::after(map.literal(base).1));
    for (offset, piece) in pieces {
        match piece {
            Piece::Literal(literal) => {
                let (value, number) = map.literal(literal);
                sums = Some(RunningSums::after(number));
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

fn mapped_block<M: SumMap, const SECOND: bool>(
    map: &M,
    words: &[u8],
    sums: &mut RunningSums<i64, SECOND>,
    out: &mut DecodeOutput<'_, M::Value>,
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
                let mut numbers = DecodeOutput::new(&mut buffer, out.at());
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
        let mut numbers = DecodeOutput::new(&mut buffer, out.at());
        sums.word(word, &mut numbers, presence);
        map.values(&buffer, out.take(count));
    }
}

/// Integers of 64 bits, and dates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int64Map;

impl SumMap for Int64Map {
    type Value = i64;

    fn literal(&mut self, literal: RawRef<'_>) -> (i64, i64) {
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
    overflow: Cell<i64>,
}

impl ShortMap {
    /// True if all values did fit.
    pub(crate) fn fits(&self) -> bool {
        self.overflow.get() == 0
    }
}

impl SumMap for ShortMap {
    type Value = i16;

    fn literal(&mut self, literal: RawRef<'_>) -> (i16, i64) {
        let number = literal.to_int();
        (self.value(number), number)
    }

    #[inline]
    fn value(&self, number: i64) -> i16 {
        let short = number as i16;
        self.overflow
            .set(self.overflow.get() | number ^ i64::from(short));
        short
    }

    #[inline]
    fn values(&self, numbers: &[i64], values: &mut [i16]) {
        let mut overflow = 0;
        for (value, number) in values.iter_mut().zip(numbers) {
            *value = *number as i16;
            overflow |= number ^ i64::from(*value);
        }
        self.overflow.set(self.overflow.get() | overflow);
    }
}

/// Integers of 32 bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int32Map;

impl SumMap for Int32Map {
    type Value = i32;

    fn literal(&mut self, literal: RawRef<'_>) -> (i32, i64) {
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

impl SumMap for DoubleMap {
    type Value = f64;

    fn literal(&mut self, literal: RawRef<'_>) -> (f64, i64) {
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

impl SumMap for BoolMap {
    type Value = bool;

    fn literal(&mut self, literal: RawRef<'_>) -> (bool, i64) {
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

impl SumMap for TimestampMap {
    type Value = Timestamp;

    fn literal(&mut self, literal: RawRef<'_>) -> (Timestamp, i64) {
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

impl SumMap for IdMap {
    type Value = ObjectId;

    fn literal(&mut self, literal: RawRef<'_>) -> (ObjectId, i64) {
        self.0 = ObjectId(literal.array());
        (self.0, literal.to_int())
    }

    #[inline]
    fn value(&self, number: i64) -> ObjectId {
        ObjectId(object_id_from_int(number, &self.0.0))
    }
}
