//! A more compact encoding of columns, for storage.
//!
//! Simple-8b gives every slot of a word the width of the widest. Most differences are small and a
//! few are not, so a variable-length code takes about half: [Rice codes](rice), with a parameter
//! for each column, or [sparse] codes if almost all values are zero. A column that is one literal
//! and blocks can be packed if no value is missing and the result is shorter; [`unpack`] restores
//! the exact bytes, and [`decode_packed`] the values without restoring the column.
//!
//! ```text
//! packed   60 + parameter │ literal │ run … │ codes
//!          60 + 30        │ literal │ run … │ sparse codes
//!          60 + 30        │ 0 │ codes of ObjectIds, see ids.rs
//! literal  type │ integers, dates: varint zigzag; doubles: varint of their bytes, the last first; others: as they are
//! run      scale nibble, + 1 if another run follows │ varint values                      blocks of one scale
//! ```
//!
//! The first byte starts no column, so both forms can be stored in the same place.

mod decode;
mod direct;
mod ids;
mod rice;
mod rice_reader;
mod sparse;

use std::borrow::Cow;

use super::delta::{Scale, unzigzag, zigzag};
use super::element::tag;
use super::error::ColumnError;
use super::pieces::{self, Piece, Pieces};
use super::simple8b;
use super::stream::{Blocks, RawRef};
use super::words::WordBuilder;
use crate::varint;

use self::ids::PackedIds;

pub use decode::{decode_first, decode_packed};
pub use direct::pack_numbers;

/// First byte of a packed column, with parameter 0.
const PACKED: u8 = 0x60;

/// First byte of a packed column with sparse codes.
const SPARSE: u8 = PACKED + rice::PARAMETER_MAX as u8 + 1;

/// Follows [`SPARSE`], where the type of a literal would be, before codes of ObjectIds.
const IDS: u8 = 0;

/// Flag in the nibble of a run that is followed by another.
const MORE: u8 = 1;

/// Columns with more values are not packed.
const VALUES_MAX: usize = 1 << 20;

/// Shorter columns are not packed, in bytes.
const COLUMN_BYTES_MIN: usize = 20;

/// A column is packed if that saves at least one of this many bytes.
const SAVING_MIN: usize = 8;

/// Packs a column; `None` if it has another form or would not shrink enough.
pub fn pack(column: &[u8]) -> Option<Vec<u8>> {
    let (parts, packed) = ColumnParts::packed(column)?;
    // Another builder may have divided the words differently.
    (parts.unpack() == column).then_some(packed)
}

/// Packs a column built by this process, whose words need no check. See [`pack`].
pub fn pack_built(column: &[u8]) -> Option<Vec<u8>> {
    let (parts, packed) = ColumnParts::packed(column)?;
    debug_assert_eq!(parts.unpack(), column);
    Some(packed)
}

/// Restores the column if `bytes` are packed, else returns them. At most `max_values` values.
pub fn unpack(bytes: &[u8], max_values: usize) -> Result<Cow<'_, [u8]>, ColumnError> {
    match ColumnParts::read(bytes, max_values)? {
        Some(parts) => Ok(Cow::Owned(parts.unpack())),
        None => Ok(Cow::Borrowed(bytes)),
    }
}

/// Values in blocks of one scale.
#[derive(Clone, Copy)]
struct BlockRun {
    nibble: u8,
    count: usize,
}

/// The part of a packed column before its codes.
struct PackedHeader {
    tag: u8,
    /// The value bytes of the literal.
    literal: Vec<u8>,
    runs: Vec<BlockRun>,
}

/// A packed column whose codes were not read yet.
struct PackedColumn<'a> {
    head: PackedHeader,
    /// Number of codes: values after the literal.
    count: usize,
    /// Parameter of the Rice codes; `None` for sparse codes.
    parameter: Option<u32>,
    codes: &'a [u8],
}

/// A column of one literal and blocks: the differences in the blocks, coded as in their words.
struct ColumnParts {
    head: PackedHeader,
    values: Vec<u64>,
}

impl ColumnParts {
    /// Splits a column and packs it.
    fn packed(column: &[u8]) -> Option<(Self, Vec<u8>)> {
        let parts = Self::of(column)?;
        let bytes_max = column.len() - column.len() / SAVING_MIN;
        let packed = parts.pack(bytes_max);
        let bytes_max = packed.as_ref().map_or(bytes_max, |packed| packed.len() - 1);
        let packed = parts.pack_ids(bytes_max).or(packed)?;
        Some((parts, packed))
    }

    fn of(column: &[u8]) -> Option<Self> {
        if column.len() < COLUMN_BYTES_MIN {
            return None;
        }
        let mut pieces = Pieces::new(column);
        let Piece::Literal(RawRef { tag, bytes }) = pieces.next().ok()? else {
            return None;
        };
        literal_bytes(tag)?;
        let mut runs: Vec<BlockRun> = Vec::with_capacity(1);
        let mut values = Vec::with_capacity(column.len());
        loop {
            match pieces.next().ok()? {
                Piece::Block { control, words } => {
                    let (before, nibble) = (values.len(), control & 0xF0);
                    pieces::words(words).try_for_each(|word| read_word(word, &mut values))?;
                    let count = values.len() - before;
                    match runs.last_mut().filter(|run| run.nibble == nibble) {
                        Some(run) => run.count += count,
                        None => runs.push(BlockRun { nibble, count }),
                    }
                }
                Piece::End => break,
                _ => return None,
            }
        }
        pieces.finish().ok()?;
        let head = PackedHeader {
            tag,
            literal: bytes.to_vec(),
            runs,
        };
        (!head.runs.is_empty()).then_some(Self { head, values })
    }

    /// Returns the packed form; `None` if it would be longer than `bytes_max`.
    fn pack(&self, bytes_max: usize) -> Option<Vec<u8>> {
        let (parameter, bits) = rice::best_parameter(&self.values);
        let codes_max = bits.div_ceil(8);
        let mut out = Vec::with_capacity(32 + self.head.literal.len() + codes_max.min(bytes_max));
        out.push(SPARSE);
        put_literal(&mut out, self.head.tag, &self.head.literal);
        for (at, run) in self.head.runs.iter().enumerate() {
            let more = if at + 1 < self.head.runs.len() {
                MORE
            } else {
                0
            };
            out.push(run.nibble | more);
            varint::put(&mut out, run.count as u64);
        }
        let room = bytes_max.checked_sub(out.len())?;
        if sparse::write(&mut out, &self.values, codes_max.min(room)).is_none() {
            if codes_max > room {
                return None;
            }
            if let Some(first) = out.first_mut() {
                *first = PACKED + parameter as u8;
            }
            rice::write(&mut out, &self.values, parameter);
        }
        (out.len() <= bytes_max).then_some(out)
    }

    /// Returns the packed form of a column of ObjectIds; `None` if it would be longer than `bytes_max`.
    fn pack_ids(&self, bytes_max: usize) -> Option<Vec<u8>> {
        let mut out = vec![SPARSE, IDS];
        let room = bytes_max.checked_sub(out.len())?;
        ids::write(&mut out, &self.head, &self.values, room)?;
        Some(out)
    }

    /// Reads a packed column; `None` if `bytes` are not packed.
    fn read(bytes: &[u8], max_values: usize) -> Result<Option<Self>, ColumnError> {
        if let Some(ids) = packed_ids(bytes, max_values)? {
            let (head, values) = ids.into_parts();
            return Ok(Some(Self { head, values }));
        }
        let Some(packed) = PackedColumn::of(bytes, max_values)? else {
            return Ok(None);
        };
        let PackedColumn {
            head, count, codes, ..
        } = packed;
        let values = match packed.parameter {
            Some(parameter) => rice::read(codes, count, parameter),
            None => sparse::read(codes, count),
        };
        let values = values.ok_or(ColumnError::Truncated {
            offset: bytes.len(),
        })?;
        Ok(Some(Self { head, values }))
    }

    /// Builds the column. A value that fits no word, possible only in damaged data, ends it.
    fn unpack(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(32 + self.values.len());
        head.extend_from_slice(&[self.head.tag, 0]);
        head.extend_from_slice(&self.head.literal);
        let mut blocks = Blocks::after(head);
        let mut words = WordBuilder::<u64>::default();
        let mut values = self.values.iter();
        for run in &self.head.runs {
            blocks.set_nibble(run.nibble);
            for &value in values.by_ref().take(run.count) {
                if words.append(value, &mut blocks).is_err() {
                    break;
                }
            }
            words.flush(&mut blocks);
            words.reset();
        }
        blocks.bytes.push(0);
        blocks.bytes
    }
}

/// Reads a packed column of ObjectIds; `None` if `bytes` have another form.
fn packed_ids(bytes: &[u8], max_values: usize) -> Result<Option<PackedIds>, ColumnError> {
    let [SPARSE, IDS, codes @ ..] = bytes else {
        return Ok(None);
    };
    match ids::read(codes, max_values) {
        Some(Some(ids)) => Ok(Some(ids)),
        Some(None) => Err(ColumnError::TooManyValues { limit: max_values }),
        None => Err(ColumnError::Truncated {
            offset: bytes.len(),
        }),
    }
}

impl<'a> PackedColumn<'a> {
    /// Parses a packed column; `None` if `bytes` are not packed.
    fn of(bytes: &'a [u8], max_values: usize) -> Result<Option<Self>, ColumnError> {
        let Some((&first, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        if !(PACKED..=SPARSE).contains(&first) {
            return Ok(None);
        }
        let head = PackedHeader::read(rest).ok_or(ColumnError::Truncated {
            offset: bytes.len(),
        });
        let (head, codes) = head?;
        // The literal is a value too.
        let counts = head.runs.iter().map(|run| run.count);
        let count = counts.fold(0, usize::saturating_add);
        if count >= max_values.min(VALUES_MAX) {
            return Err(ColumnError::TooManyValues { limit: max_values });
        }
        let parameter = (first != SPARSE).then(|| u32::from(first - PACKED));
        Ok(Some(Self {
            head,
            count,
            parameter,
            codes,
        }))
    }
}

impl PackedHeader {
    /// Parses the head; returns it and the codes.
    fn read(mut bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&tag, rest) = bytes.split_first()?;
        bytes = rest;
        let literal = take_literal(&mut bytes, tag)?;
        let mut runs = Vec::with_capacity(1);
        loop {
            let (&nibble, rest) = bytes.split_first()?;
            bytes = rest;
            let count = usize::try_from(varint::take(&mut bytes)?).ok()?;
            if nibble & 0x0F & !MORE != 0 {
                return None;
            }
            Scale::from_control(nibble)?;
            runs.push(BlockRun {
                nibble: nibble & 0xF0,
                count,
            });
            if nibble & MORE == 0 {
                break;
            }
        }
        let head = Self { tag, literal, runs };
        Some((head, bytes))
    }

    fn literal(&self) -> RawRef<'_> {
        RawRef {
            tag: self.tag,
            bytes: &self.literal,
        }
    }
}

/// Returns the length of a literal of a type with 64-bit differences.
fn literal_bytes(tag: u8) -> Option<usize> {
    Some(match tag {
        tag::BOOL => 1,
        tag::INT32 => 4,
        tag::INT64 | tag::DATE | tag::TIMESTAMP | tag::DOUBLE => 8,
        tag::OBJECT_ID => 12,
        _ => return None,
    })
}

fn put_literal(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    let raw = RawRef { tag, bytes };
    match tag {
        tag::INT32 | tag::INT64 | tag::DATE => varint::put(out, zigzag(raw.to_int())),
        // Round numbers end in zeros.
        tag::DOUBLE => varint::put(out, u64::from_be_bytes(raw.array())),
        _ => out.extend_from_slice(bytes),
    }
}

fn take_literal(bytes: &mut &[u8], tag: u8) -> Option<Vec<u8>> {
    let length = literal_bytes(tag)?;
    let mut literal = match tag {
        tag::INT32 | tag::INT64 | tag::DATE => {
            unzigzag(varint::take(bytes)?).to_le_bytes().to_vec()
        }
        tag::DOUBLE => varint::take(bytes)?.to_be_bytes().to_vec(),
        _ => {
            let (literal, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            literal.to_vec()
        }
    };
    literal.truncate(length);
    Some(literal)
}

/// Appends the values of a word; `None` if one is missing or there are too many.
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
    let (word, mut missing) = (word >> shape.start, false);
    values.extend((0..shape.slots).map(|slot| {
        let value = word >> (u32::from(slot) * u32::from(shape.bits)) & mask;
        missing |= value == mask;
        value
    }));
    (!missing).then_some(())
}

#[cfg(test)]
mod tests {
    use super::super::{ColumnBuilder, decode_values};
    use super::*;
    use crate::value::{ObjectId, Value};

    /// A small pseudo-random number generator.
    struct TestNumbers(u64);

    impl TestNumbers {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    fn written(values: impl IntoIterator<Item = Value>) -> Vec<u8> {
        let mut builder = ColumnBuilder::new();
        for value in values {
            match value {
                Value::Missing => builder.skip(),
                value => builder.append(value.as_ref()).unwrap(),
            }
        }
        builder.finish()
    }

    /// Checks that the packed column decodes to the same values.
    fn same_values(packed: &[u8], column: &[u8]) {
        let values = decode_packed(packed, 1 << 20).unwrap().to_values();
        assert_eq!(
            written(values),
            written(decode_values(column, 1 << 20).unwrap())
        );
        let all = decode_values(column, 1 << 20).unwrap();
        for count in [1, 2, 63, 64, 65, 66, 129, all.len() / 2, all.len()] {
            let first = decode_first(packed, 1 << 20, count).unwrap();
            let expected = all
                .get(..count)
                .filter(|_| packed_ids(packed, 1 << 20).unwrap().is_none());
            assert_eq!(
                first.map(|block| written(block.to_values())),
                expected.map(|values| written(values.to_vec())),
                "{count}"
            );
        }
    }

    fn restored(column: &[u8]) -> Vec<u8> {
        let packed = pack(column).expect("it pays");
        assert_eq!(pack_built(column).as_ref(), Some(&packed));
        assert!(packed.len() + column.len() / SAVING_MIN <= column.len() + 1);
        let back = unpack(&packed, 1 << 20).unwrap().into_owned();
        assert_eq!(back, column);
        same_values(&packed, column);
        packed
    }

    /// Returns deltas of -3 to 3, most of them 0: a random walk of small numbers.
    fn walk(length: usize) -> Vec<i64> {
        let (mut draw, mut at) = (TestNumbers(7), 50i64);
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
        let packed = restored(&written(numbers.iter().map(|&n| Value::Int64(n))));
        assert!(packed.len() < 360 * 3 / 8 + 16, "{}", packed.len());
        restored(&written(numbers.iter().map(|&n| Value::Int32(n as i32))));
        let times = numbers.iter().zip(0..);
        restored(&written(
            times.map(|(&n, at)| Value::DateTime(at * 10_000 + n)),
        ));
        restored(&written(numbers.iter().map(|&n| Value::Double(n as f64))));
        restored(&written(
            numbers.iter().map(|&n| Value::Double(n as f64 / 10.0)),
        ));
    }

    #[test]
    fn constant_steps_take_few_bytes() {
        let packed = restored(&written((0..360).map(|n| Value::DateTime(n * 10_000))));
        assert!(packed.len() < 16, "{}", packed.len());
        let packed = restored(&written((0..360).map(|n| Value::Int32(n / 200))));
        assert!(packed.len() < 12, "{}", packed.len());
        restored(&written((0..360).map(|n| Value::Bool(n > 100))));
        let id = |n: u8| ObjectId([1, 2, 3, 4, 5, 6, 7, 8, 9, 0, n, 100]);
        restored(&written((0..200).map(|n| Value::ObjectId(id(n)))));
    }

    #[test]
    fn constant_columns_decode_to_one_value() {
        let packed = restored(&written((0..360).map(|_| Value::Int64(7))));
        let block = decode_packed(&packed, 360).unwrap();
        assert!(block.as_constant().is_some());
    }

    #[test]
    fn small_longs_decode_to_16_bits() {
        let form = |numbers: &[i64]| {
            let packed = restored(&written(numbers.iter().map(|&n| Value::Int64(n))));
            decode_packed(&packed, 1 << 20).unwrap().as_i64().is_some()
        };
        let numbers = walk(400);
        assert!(!form(&numbers), "in two bytes");
        // Outliers at the first, a middle and the last position.
        for at in [0, 200, 399] {
            for wide in [32_768, -32_769] {
                let mut numbers = numbers.clone();
                numbers[at] = wide;
                assert!(form(&numbers), "{wide} at {at}");
                numbers[at] -= wide.signum();
                assert!(!form(&numbers), "{wide} at {at}");
            }
        }
        let far: Vec<i64> = numbers.iter().map(|n| n + (1 << 40)).collect();
        assert!(form(&far));
    }

    #[test]
    fn outliers_are_written_whole() {
        let mut numbers = walk(500);
        numbers[300] += 1 << 50;
        restored(&written(numbers.into_iter().map(Value::Int64)));
    }

    #[test]
    fn zero_differences_round_trip_as_repeats() {
        let mut numbers = walk(300);
        let last = numbers[299];
        numbers.extend(std::iter::repeat_n(last, 150));
        numbers.extend(walk(300).iter().map(|n| n + last));
        restored(&written(numbers.into_iter().map(Value::Int64)));
    }

    #[test]
    fn unsuitable_columns_are_not_packed() {
        let kept = [
            written([]),
            written([Value::Int32(1)]),
            written(walk(300).into_iter().map(|n| match n % 5 {
                0 => Value::Missing,
                _ => Value::Int64(n),
            })),
            written((0..300).map(|n| Value::from(format!("text {n}")))),
            written(walk(300).into_iter().enumerate().map(|(at, n)| match at {
                150 => Value::Double(n as f64),
                _ => Value::Int64(n),
            })),
            written((0..100).map(|n| Value::ObjectId(ObjectId([n; 12])))),
        ];
        for column in kept {
            assert_eq!(pack(&column), None);
            assert_eq!(unpack(&column, 1 << 20).unwrap(), column);
        }
    }

    fn read_anyhow(bytes: &[u8]) {
        let _ = unpack(bytes, 1 << 10).map(|bytes| decode_values(&bytes, 1 << 10));
        let _ = decode_packed(bytes, 1 << 10);
        let _ = decode_first(bytes, 1 << 10, 5);
    }

    #[test]
    fn damaged_columns_give_an_error_or_another_column() {
        let numbers = walk(200);
        let packed = pack(&written(numbers.into_iter().map(Value::Int64))).unwrap();
        assert!(unpack(&packed, 200).is_ok());
        assert!(unpack(&packed, 199).is_err());
        for end in 1..packed.len() {
            read_anyhow(&packed[..end]);
            for bit in 0..8 {
                let mut flipped = packed.clone();
                flipped[end] ^= 1 << bit;
                read_anyhow(&flipped);
            }
        }
    }

    #[test]
    fn packed_columns_round_trip() {
        let mut draw = TestNumbers(99);
        for _ in 0..300 {
            let (length, width) = (draw.next() % 400 + 1, draw.next() % 40);
            let mut at = 0i64;
            let numbers = (0..length).map(|_| {
                let spread = draw.next() % (width + 1);
                at = at.wrapping_add((draw.next() >> (63 - spread)) as i64);
                at
            });
            let column = written(numbers.collect::<Vec<_>>().into_iter().map(Value::Int64));
            if let Some(packed) = pack(&column) {
                assert_eq!(unpack(&packed, 1 << 20).unwrap(), column);
                same_values(&packed, &column);
            }
        }
    }
}
