//! Columns in fewer bytes than the format takes, for where they are kept and not looked at.
//!
//! Simple-8b gives every slot of a word the width of the widest. Most differences are small and a few are not, so a code
//! whose length follows the value takes about half: Rice codes, with a parameter for each column. A column that is one
//! literal and blocks can be packed, if no value is missing and it pays; [`unpack`] gives back the very bytes.
//!
//! ```text
//! packed   60 │ parameter │ varint literal bytes, literal │ varint runs │ run … │ codes …
//! run      scale nibble │ varint values                              blocks of one scale
//! code     quotient (value >> parameter) in unary: so many 0 bits and a 1; then the low `parameter` bits
//!          from QUOTIENT_MAX on: QUOTIENT_MAX 0 bits and a 1; then 64 bits
//! ```
//!
//! Bits fill bytes from the lowest. The first byte begins no column, so both forms may stand in the same place.

use std::borrow::Cow;

use super::delta::Scale;
use super::element::tag;
use super::error::ColumnError;
use super::pieces::{self, Piece, Pieces};
use super::simple8b;
use super::stream::{Blocks, Raw};
use super::words::WordBuilder;

/// First byte of a packed column.
const PACKED: u8 = 0x60;

/// Quotients from here on are followed by the whole value.
const QUOTIENT_MAX: u32 = 24;

/// Greatest parameter; wider values than this leaves are kept as they are.
const PARAMETER_MAX: u32 = 31;

/// Columns of more values are left alone.
const VALUES_MAX: usize = 1 << 20;

/// Shorter columns are left alone, in bytes.
const COLUMN_BYTES_MIN: usize = 48;

/// A column is packed if that saves at least one in so many of its bytes.
const SAVING_MIN: usize = 8;

/// Packs a column; `None` if it is not of that form or would not shrink enough.
pub fn pack(column: &[u8]) -> Option<Vec<u8>> {
    let parts = Parts::of(column)?;
    let packed = parts.pack(column.len() - column.len() / SAVING_MIN)?;
    // Another builder may have cut its words elsewhere.
    (unpack(&packed, parts.values.len() + 1).ok()? == column).then_some(packed)
}

/// The column that was packed, if these bytes are; else themselves. At most `max_values` values.
pub fn unpack(bytes: &[u8], max_values: usize) -> Result<Cow<'_, [u8]>, ColumnError> {
    let Some((&PACKED, rest)) = bytes.split_first() else {
        return Ok(Cow::Borrowed(bytes));
    };
    let damaged = || ColumnError::Truncated {
        offset: bytes.len(),
    };
    let header = Header::read(rest).ok_or_else(damaged)?;
    // The literal is a value too.
    let count = header.runs.iter().map(|run| run.count).sum::<usize>();
    if count >= max_values {
        return Err(ColumnError::TooManyValues { limit: max_values });
    }
    let mut blocks = Blocks::behind(header.literal.to_vec());
    let mut words = WordBuilder::<u64>::default();
    let mut bits = BitReader::new(header.codes);
    for run in &header.runs {
        blocks.go_on_with(run.nibble);
        for _ in 0..run.count {
            let value = bits.code(header.parameter).ok_or_else(damaged)?;
            let fits = words.append(value, &mut blocks);
            fits.map_err(|_| damaged())?;
        }
        words.flush(&mut blocks);
        words.reset();
    }
    blocks.bytes.push(0);
    Ok(Cow::Owned(blocks.bytes))
}

/// Values in blocks of one scale.
#[derive(Clone, Copy)]
struct Run {
    nibble: u8,
    count: usize,
}

/// A column of one literal and blocks.
struct Parts<'a> {
    literal: &'a [u8],
    runs: Vec<Run>,
    values: Vec<u64>,
}

impl<'a> Parts<'a> {
    fn of(column: &'a [u8]) -> Option<Self> {
        if column.len() < COLUMN_BYTES_MIN {
            return None;
        }
        let mut pieces = Pieces::new(column);
        match pieces.next().ok()? {
            Piece::Literal(Raw { tag, .. }) if is_narrow(tag) => {}
            _ => return None,
        }
        let literal = pieces.between(0, pieces.offset());
        let mut runs: Vec<Run> = Vec::with_capacity(1);
        let mut values = Vec::with_capacity(column.len());
        loop {
            match pieces.next().ok()? {
                Piece::Block { control, words } => {
                    let (before, nibble) = (values.len(), control & 0xF0);
                    pieces::words(words).try_for_each(|word| read_word(word, &mut values))?;
                    let count = values.len() - before;
                    match runs.last_mut().filter(|run| run.nibble == nibble) {
                        Some(run) => run.count += count,
                        None => runs.push(Run { nibble, count }),
                    }
                }
                Piece::End => break,
                _ => return None,
            }
        }
        pieces.finish().ok()?;
        Some(Self {
            literal,
            runs,
            values,
        })
    }

    /// The packed form; `None` if it would be longer than `bytes_max`.
    fn pack(&self, bytes_max: usize) -> Option<Vec<u8>> {
        let (parameter, bits) = best_parameter(&self.values);
        if bits.div_ceil(8) > bytes_max {
            return None;
        }
        let mut out = Vec::with_capacity(16 + self.literal.len() + bits.div_ceil(8));
        out.extend_from_slice(&[PACKED, parameter as u8]);
        put_varint(&mut out, self.literal.len());
        out.extend_from_slice(self.literal);
        put_varint(&mut out, self.runs.len());
        for run in &self.runs {
            out.push(run.nibble);
            put_varint(&mut out, run.count);
        }
        if out.len() + bits.div_ceil(8) > bytes_max {
            return None;
        }
        let mut writer = BitWriter::new(out);
        for &value in &self.values {
            writer.code(value, parameter);
        }
        Some(writer.finish())
    }
}

/// Types whose differences are 64 bits wide.
fn is_narrow(tag: u8) -> bool {
    matches!(
        tag,
        tag::INT32
            | tag::INT64
            | tag::BOOL
            | tag::DATE
            | tag::TIMESTAMP
            | tag::DOUBLE
            | tag::OBJECT_ID
    )
}

/// Appends the values of a word; `None` if one is missing, or they become too many.
fn read_word(word: u64, values: &mut Vec<u64>) -> Option<()> {
    if let Some(count) = simple8b::repeat_count(word) {
        let last = values.last().copied().unwrap_or(0);
        values.resize(values.len() + count, last);
        return (values.len() <= VALUES_MAX).then_some(());
    }
    let shape = simple8b::shape(word)?;
    if shape.count_bits > 0 {
        for slot in shape.slots(word, false) {
            values.push(u64::try_from(slot?).ok()?);
        }
        return Some(());
    }
    let mask = u64::MAX >> (64 - u32::from(shape.bits));
    let mut rest = word >> shape.start;
    for _ in 0..shape.slots {
        let value = rest & mask;
        if value == mask {
            return None;
        }
        values.push(value);
        rest >>= shape.bits;
    }
    Some(())
}

/// Bits of a value's code.
fn code_bits(value: u64, parameter: u32) -> u64 {
    match value >> parameter {
        quotient if quotient < u64::from(QUOTIENT_MAX) => quotient + 1 + u64::from(parameter),
        _ => u64::from(QUOTIENT_MAX) + 1 + 64,
    }
}

/// The parameter that makes the codes shortest, of those around the length of half of the values, and
/// their bits. A mean would follow the few that are far off.
fn best_parameter(values: &[u64]) -> (u32, usize) {
    let mut lengths = [0usize; 65];
    for value in values {
        if let Some(count) = lengths.get_mut(64 - value.leading_zeros() as usize) {
            *count += 1;
        }
    }
    let mut left = values.len() / 2;
    let median = lengths.iter().position(|&count| {
        let is_it = left < count;
        left = left.saturating_sub(count);
        is_it
    });
    let median = median.unwrap_or(0) as u32;
    let bits = |parameter: u32| -> u64 { values.iter().map(|&v| code_bits(v, parameter)).sum() };
    let candidates = median.saturating_sub(2)..=median.min(PARAMETER_MAX);
    let best = candidates
        .map(|p| (bits(p), p))
        .min()
        .unwrap_or((u64::MAX, 0));
    (best.1, usize::try_from(best.0).unwrap_or(usize::MAX))
}

/// What stands before the codes.
struct Header<'a> {
    parameter: u32,
    literal: &'a [u8],
    runs: Vec<Run>,
    codes: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads what follows the first byte.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&parameter, rest) = bytes.split_first()?;
        let parameter = u32::from(parameter);
        if parameter > PARAMETER_MAX {
            return None;
        }
        let (length, rest) = take_varint(rest)?;
        let (literal, rest) = rest.split_at_checked(length)?;
        let (count, mut codes) = take_varint(rest)?;
        let mut runs = Vec::with_capacity(count.min(codes.len()));
        for _ in 0..count {
            let (&nibble, rest) = codes.split_first()?;
            let (count, rest) = take_varint(rest)?;
            if nibble & 0x0F != 0 || Scale::from_control(nibble).is_none() {
                return None;
            }
            runs.push(Run { nibble, count });
            codes = rest;
        }
        Some(Self {
            parameter,
            literal,
            runs,
            codes,
        })
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(mut bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    // Lengths and counts here stay below 2^28.
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = bytes.split_first()?;
        bytes = rest;
        value |= usize::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some((value, bytes));
        }
    }
    None
}

/// Writes bits, the lowest of a byte first.
struct BitWriter {
    out: Vec<u8>,
    /// Bits that do not fill a byte yet, and how many.
    held: u64,
    count: u32,
}

impl BitWriter {
    fn new(out: Vec<u8>) -> Self {
        Self {
            out,
            held: 0,
            count: 0,
        }
    }

    /// Appends the low `count` bits of `bits`, at most 32; the others are 0.
    #[inline]
    fn put(&mut self, bits: u64, count: u32) {
        self.held |= bits << self.count;
        self.count += count;
        if self.count >= 32 {
            self.out
                .extend_from_slice(&(self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.count -= 32;
        }
    }

    #[inline]
    fn code(&mut self, value: u64, parameter: u32) {
        let quotient = value >> parameter;
        if quotient < u64::from(QUOTIENT_MAX) {
            let quotient = quotient as u32;
            self.put(1 << quotient, quotient + 1);
            self.put(value & !(u64::MAX << parameter), parameter);
        } else {
            self.put(1 << QUOTIENT_MAX, QUOTIENT_MAX + 1);
            self.put(value & 0xFFFF_FFFF, 32);
            self.put(value >> 32, 32);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let rest = self.held.to_le_bytes();
        let bytes = self.count.div_ceil(8) as usize;
        self.out.extend(rest.iter().take(bytes));
        self.out
    }
}

/// Reads them.
struct BitReader<'a> {
    bytes: &'a [u8],
    held: u64,
    count: u32,
}

impl<'a> BitReader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            held: 0,
            count: 0,
        }
    }

    /// Holds at least 32 bits, if there are so many.
    #[inline]
    fn fill(&mut self) {
        if self.count >= 32 {
            return;
        }
        if let Some((four, rest)) = self.bytes.split_first_chunk::<4>() {
            self.held |= u64::from(u32::from_le_bytes(*four)) << self.count;
            self.count += 32;
            self.bytes = rest;
            return;
        }
        while let Some((&byte, rest)) = self.bytes.split_first()
            && self.count < 32
        {
            self.held |= u64::from(byte) << self.count;
            self.count += 8;
            self.bytes = rest;
        }
    }

    /// Takes `count` bits, at most 32.
    #[inline]
    fn take(&mut self, count: u32) -> Option<u64> {
        self.fill();
        self.count = self.count.checked_sub(count)?;
        let bits = self.held & !(u64::MAX << count);
        self.held >>= count;
        Some(bits)
    }

    #[inline]
    fn code(&mut self, parameter: u32) -> Option<u64> {
        self.fill();
        let quotient = self.held.trailing_zeros();
        if quotient > QUOTIENT_MAX {
            return None;
        }
        self.take(quotient + 1)?;
        if quotient < QUOTIENT_MAX {
            return Some(u64::from(quotient) << parameter | self.take(parameter)?);
        }
        let low = self.take(32)?;
        Some(self.take(32)? << 32 | low)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ColumnBuilder, decode_values};
    use super::*;
    use crate::value::{ObjectId, Value};

    /// Numbers that look random, the same in every run.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    fn column(values: impl IntoIterator<Item = Value>) -> Vec<u8> {
        let mut builder = ColumnBuilder::new();
        for value in values {
            match value {
                Value::Missing => builder.skip(),
                value => builder.append(value.as_ref()).unwrap(),
            }
        }
        builder.finish()
    }

    fn restored(column: &[u8]) -> Vec<u8> {
        let packed = pack(column).expect("it pays");
        assert!(packed.len() + column.len() / SAVING_MIN <= column.len() + 1);
        let back = unpack(&packed, 1 << 20).unwrap().into_owned();
        assert_eq!(back, column);
        packed
    }

    /// Steps of -3 to 3, most of them 0: a random walk of small numbers.
    fn walk(length: usize) -> Vec<i64> {
        let (mut draw, mut at) = (Draw(7), 50i64);
        let mut step = || (0..6).map(|_| (draw.next() >> 63) as i64).sum::<i64>() - 3;
        (0..length)
            .map(|_| {
                at += step();
                at
            })
            .collect()
    }

    #[test]
    fn random_walks_take_about_three_bits() {
        let numbers = walk(360);
        let packed = restored(&column(numbers.iter().map(|&n| Value::Int64(n))));
        assert!(packed.len() < 360 * 3 / 8 + 16, "{}", packed.len());
        restored(&column(numbers.iter().map(|&n| Value::Int32(n as i32))));
        let times = numbers.iter().zip(0..);
        restored(&column(
            times.map(|(&n, at)| Value::DateTime(at * 10_000 + n)),
        ));
        restored(&column(numbers.iter().map(|&n| Value::Double(n as f64))));
        restored(&column(
            numbers.iter().map(|&n| Value::Double(n as f64 / 10.0)),
        ));
    }

    #[test]
    fn outliers_are_written_whole() {
        let mut numbers = walk(500);
        numbers[300] += 1 << 50;
        restored(&column(numbers.into_iter().map(Value::Int64)));
    }

    #[test]
    fn rests_come_back_as_repeats() {
        let mut numbers = walk(300);
        let last = numbers[299];
        numbers.extend(std::iter::repeat_n(last, 150));
        numbers.extend(walk(300).iter().map(|n| n + last));
        restored(&column(numbers.into_iter().map(Value::Int64)));
    }

    #[test]
    fn what_does_not_pay_or_fit_is_left() {
        let kept = [
            column([]),
            column([Value::Int32(1)]),
            column((0..500).map(|n| Value::DateTime(n * 1000))),
            column(walk(300).into_iter().map(|n| match n % 5 {
                0 => Value::Missing,
                _ => Value::Int64(n),
            })),
            column((0..300).map(|n| Value::from(format!("text {n}")))),
            column(walk(300).into_iter().enumerate().map(|(at, n)| match at {
                150 => Value::Double(n as f64),
                _ => Value::Int64(n),
            })),
            column((0..100).map(|n| Value::ObjectId(ObjectId([n; 12])))),
        ];
        for column in kept {
            assert_eq!(pack(&column), None);
            assert_eq!(unpack(&column, 1 << 20).unwrap(), column);
        }
    }

    #[test]
    fn damage_is_an_error_or_another_column() {
        let numbers = walk(200);
        let packed = pack(&column(numbers.into_iter().map(Value::Int64))).unwrap();
        assert!(unpack(&packed, 200).is_ok());
        assert!(unpack(&packed, 199).is_err());
        for end in 1..packed.len() {
            let _ = unpack(&packed[..end], 1 << 10).map(|bytes| decode_values(&bytes, 1 << 10));
            for bit in 0..8 {
                let mut flipped = packed.clone();
                flipped[end] ^= 1 << bit;
                let _ = unpack(&flipped, 1 << 10).map(|bytes| decode_values(&bytes, 1 << 10));
            }
        }
    }

    #[test]
    fn whatever_is_packed_comes_back() {
        let mut draw = Draw(99);
        for _ in 0..300 {
            let (length, width) = (draw.next() % 400 + 1, draw.next() % 40);
            let mut at = 0i64;
            let numbers = (0..length).map(|_| {
                let spread = draw.next() % (width + 1);
                at = at.wrapping_add((draw.next() >> (63 - spread)) as i64);
                at
            });
            let column = column(numbers.collect::<Vec<_>>().into_iter().map(Value::Int64));
            if let Some(packed) = pack(&column) {
                assert_eq!(unpack(&packed, 1 << 20).unwrap(), column);
            }
        }
    }
}
