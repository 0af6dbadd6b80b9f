//! The tail of a bucket: measurements committed since its document was last written.
//!
//! An insert appends one small entry instead of rewriting the bucket document. An entry holds the measurements of one
//! insert command for one bucket, column by column, without meta and without field names that the bucket already has. Its
//! key is the bucket's `_id` and a sequence number (4 bytes, big-endian), so a bucket's entries are adjacent and in the
//! order of writing.
//!
//! ```text
//! entry    version 03 | flags | varint rows | [header] | varint columns | column … | sum
//! flags    bit 0: header present
//! header   varint length | document {start: date, meta?: any}       how the bucket was opened
//! column   varint id << 1 | named | [varint length, name] | chunk
//! chunk    varint 0, value × rows          each value: type byte, value bytes (00: missing)
//!          varint length, BSONColumn       length > 0
//! sum      lower half of xxh3-64 of all before it, little-endian
//! value    also E0: int32, E1: int64, E2: double, each as varint zigzag of its integer;
//!          E3: the previous value again; E4: a date, as varint zigzag of its distance in ms from the
//!          previous date (from 1970 for the first); E5: an object id whose first nine bytes are those
//!          of the previous one, as varint zigzag of the distance of their counters
//! ```
//!
//! Version 02 has the same form without E3 to E5; it is still read.
//!
//! Column 0 is the time field. Entries repeat a column's name until an entry with the name has committed, and likewise the
//! header: entries of concurrent inserts become visible in any order, and each must be readable without earlier ones that
//! are not visible yet. So an entry may name a column and have no value for it; if no insert with a value commits, the
//! document leaves the column out.

use std::ops::Range;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::column::{self, ColumnBuilder};
use nilometer_bson::document::{decode_value, value_length, write_value};
use nilometer_bson::{DocRef, Document, ObjectId, Value, ValueRef, type_code, varint};
use nilometer_storage::Bytes;

use super::sealed::sum;
use crate::error::{Error, ErrorCode, Result};

/// The version that this code writes.
const VERSION: u8 = 3;
/// The oldest version that this code reads.
const VERSION_MIN: u8 = 2;
const HAS_HEADER: u8 = 1;

/// Up to this many measurements are stored value by value; more are stored as a compressed column.
///
/// A compressed column begins with a whole value and two blocks of eight bytes. Up to about this number single values take less space
/// and less time to write and read.
const PLAIN_ROWS_MAX: usize = 8;

/// Measurements that a stored entry may hold; more is damage.
const ROWS_MAX: usize = 1 << 20;

const SMALL_INT32: u8 = 0xE0;
const SMALL_INT64: u8 = 0xE1;
const SMALL_DOUBLE: u8 = 0xE2;
const REPEATED: u8 = 0xE3;
const NEXT_DATE: u8 = 0xE4;
const NEXT_OBJECT_ID: u8 = 0xE5;

/// Bytes of an object id before its counter.
const OBJECT_ID_PREFIX_BYTES: usize = 9;

/// Length of a tail key: bucket id and sequence number.
pub(crate) const KEY_BYTES: usize = 16;

/// Returns the key of an entry.
pub(crate) fn key(bucket: [u8; 12], sequence: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(KEY_BYTES);
    key.extend_from_slice(&bucket);
    key.extend_from_slice(&sequence.to_be_bytes());
    key
}

/// Splits a key into bucket id and sequence number.
pub(crate) fn split_key(key: &[u8]) -> Result<([u8; 12], u32)> {
    let damaged = || damage("its key has another length");
    let (id, sequence) = key.split_first_chunk::<12>().ok_or_else(damaged)?;
    let sequence = <[u8; 4]>::try_from(sequence).map_err(|_| damaged())?;
    Ok((*id, u32::from_be_bytes(sequence)))
}

/// Returns the error for an entry that cannot be read.
pub(crate) fn damage(what: &str) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("an entry of a bucket's tail cannot be read: {what}"),
    )
}

/// How a bucket was opened: what its first document needs besides measurements.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    /// `control.min` of the time field: the first time, rounded down, in ms.
    pub(crate) start_ms: i64,
    /// The normalised meta value; missing for a series without one.
    pub(crate) meta: Value,
}

impl Header {
    fn to_document(&self) -> Document {
        nilometer_bson::doc! {
            "start": Value::DateTime(self.start_ms),
            "meta": self.meta.clone(),
        }
    }
}

/// A column of an entry to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnChunk<'c, 'a> {
    /// The position in the bucket; 0 is the time field.
    pub(crate) id: usize,
    /// The name, unless an entry with it has committed.
    pub(crate) name: Option<&'c str>,
    /// One value for each measurement.
    pub(crate) values: &'c [ValueRef<'a>],
}

/// Writes an entry.
pub(crate) fn encode(
    rows: usize,
    header: Option<&Header>,
    columns: &[ColumnChunk<'_, '_>],
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(64 + rows * columns.len() * 4);
    let flags = if header.is_some() { HAS_HEADER } else { 0 };
    out.extend_from_slice(&[VERSION, flags]);
    varint::put(&mut out, rows as u64);
    if let Some(header) = header {
        let document = header.to_document();
        varint::put(&mut out, document.as_bytes().len() as u64);
        out.extend_from_slice(document.as_bytes());
    }
    varint::put(&mut out, columns.len() as u64);
    for column in columns {
        let named = u64::from(column.name.is_some());
        varint::put(&mut out, (column.id as u64) << 1 | named);
        if let Some(name) = column.name {
            varint::put(&mut out, name.len() as u64);
            out.extend_from_slice(name.as_bytes());
        }
        encode_chunk(&mut out, rows, column.values)?;
    }
    out.extend_from_slice(&sum(&out));
    Ok(out)
}

fn encode_chunk(out: &mut Vec<u8>, rows: usize, values: &[ValueRef<'_>]) -> Result<()> {
    debug_assert_eq!(rows, values.len());
    if rows <= PLAIN_ROWS_MAX {
        varint::put(out, 0);
        let mut before = &ValueRef::Missing;
        for value in values {
            put_plain(out, value, before);
            before = value;
        }
        return Ok(());
    }
    let mut builder = ColumnBuilder::new();
    for value in values {
        append_value(&mut builder, *value)?;
    }
    let bytes = builder.finish();
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(&bytes);
    Ok(())
}

/// Appends a value, or a gap for a missing one.
pub(crate) fn append_value(builder: &mut ColumnBuilder, value: ValueRef<'_>) -> Result<()> {
    if value.is_missing() {
        builder.skip();
        return Ok(());
    }
    builder
        .append(value)
        .map_err(|e| Error::bad_value(format!("a value cannot be stored in a column: {e}")))
}

/// Writes one value; `before` is the previous one. Both are passed by reference, because a copy costs more than the encoding.
#[inline]
fn put_plain(out: &mut Vec<u8>, value: &ValueRef<'_>, before: &ValueRef<'_>) {
    let integral = |v: f64| (v as i64 as f64).to_bits() == v.to_bits() && v.abs() < 1e9;
    match value {
        ValueRef::Int32(v) => put_small(out, SMALL_INT32, i64::from(*v)),
        ValueRef::Int64(v) if v.unsigned_abs() < 1 << 40 => put_small(out, SMALL_INT64, *v),
        ValueRef::Double(v) if integral(*v) => put_small(out, SMALL_DOUBLE, *v as i64),
        ValueRef::DateTime(v) => {
            let before = if let ValueRef::DateTime(ms) = before {
                *ms
            } else {
                0
            };
            put_small(out, NEXT_DATE, v.wrapping_sub(before));
        }
        ValueRef::ObjectId(id) => match before {
            ValueRef::ObjectId(before) if split_id(*id).0 == split_id(*before).0 => {
                let distance = i64::from(split_id(*id).1) - i64::from(split_id(*before).1);
                put_small(out, NEXT_OBJECT_ID, distance);
            }
            _ => put_whole(out, *value),
        },
        ValueRef::String(text) if matches!(before, ValueRef::String(known) if known == text) => {
            out.push(REPEATED);
        }
        other => put_whole(out, *other),
    }
}

fn put_whole(out: &mut Vec<u8>, value: ValueRef<'_>) {
    out.push(value.type_code());
    write_value(out, value);
}

/// Splits an object id into the part before its counter, and the counter.
fn split_id(ObjectId(id): ObjectId) -> ([u8; OBJECT_ID_PREFIX_BYTES], u32) {
    let [a, b, c, d, e, f, g, h, i, high, middle, low] = id;
    let counter = u32::from_be_bytes([0, high, middle, low]);
    ([a, b, c, d, e, f, g, h, i], counter)
}

/// Adds `distance` to the counter of an object id; `None` if the counter overflows.
fn id_behind(before: ObjectId, distance: i64) -> Option<ObjectId> {
    let (prefix, counter) = split_id(before);
    let counter = u32::try_from(i64::from(counter).checked_add(distance)?).ok()?;
    let [0, high, middle, low] = counter.to_be_bytes() else {
        return None;
    };
    let [a, b, c, d, e, f, g, h, i] = prefix;
    let id = [a, b, c, d, e, f, g, h, i, high, middle, low];
    Some(ObjectId(id))
}

fn put_small(out: &mut Vec<u8>, tag: u8, value: i64) {
    // Most values take one or two bytes, which need one capacity check.
    match zigzag(value) {
        small @ 0..0x80 => out.extend_from_slice(&[tag, small as u8]),
        small @ 0x80..0x4000 => {
            out.extend_from_slice(&[tag, small as u8 | 0x80, (small >> 7) as u8]);
        }
        more => {
            out.push(tag);
            varint::put(out, more);
        }
    }
}

pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Takes bytes from the front of a slice.
pub(crate) struct ByteReader<'a>(pub(crate) &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) fn varint(&mut self) -> Option<u64> {
        varint::take(&mut self.0)
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }

    /// Reads numbers of one plain type, doubles as their bits, until another value follows or `into` is full. Returns their type and
    /// count; `None` if they are malformed.
    #[inline]
    fn numbers(&mut self, before: ValueRef<'a>, into: &mut [i64]) -> Option<(u8, usize)> {
        let mut last_ms = match before {
            ValueRef::DateTime(ms) => ms,
            _ => 0,
        };
        let (mut of_all, mut count) = (0, 0);
        for number in into {
            let Some((&tag, rest)) = self.0.split_first() else {
                break;
            };
            let type_code = match tag {
                SMALL_INT64 => type_code::INT64,
                SMALL_DOUBLE => type_code::DOUBLE,
                SMALL_INT32 => type_code::INT32,
                NEXT_DATE => type_code::DATE_TIME,
                _ => break,
            };
            if count > 0 && type_code != of_all {
                break;
            }
            self.0 = rest;
            let small = unzigzag(self.varint()?);
            *number = match tag {
                SMALL_INT32 => i64::from(i32::try_from(small).ok()?),
                SMALL_INT64 => small,
                SMALL_DOUBLE => (small as f64).to_bits().cast_signed(),
                _ => {
                    last_ms = last_ms.wrapping_add(small);
                    last_ms
                }
            };
            (of_all, count) = (type_code, count + 1);
        }
        Some((of_all, count))
    }

    /// Skips the values of a column of an entry. Returns whether one of them is not missing, which it only finds out if it `must_look`.
    fn skip_chunk(&mut self, rows: usize, must_look: bool) -> Option<bool> {
        let length = usize::try_from(self.varint()?).ok()?;
        if length > 0 {
            let bytes = self.take(length)?;
            return match must_look {
                true => Some(!column::decode_block(bytes, rows).ok()?.is_all_missing()),
                false => Some(false),
            };
        }
        let mut found = false;
        for _ in 0..rows {
            let (&tag, rest) = self.0.split_first()?;
            self.0 = rest;
            found |= tag != 0;
            match tag {
                0 | REPEATED => {}
                SMALL_INT32 | SMALL_INT64 | SMALL_DOUBLE | NEXT_DATE | NEXT_OBJECT_ID => {
                    self.varint()?;
                }
                code => {
                    let length = value_length(code, self.0)?;
                    self.take(length)?;
                }
            }
        }
        Some(found)
    }

    /// Reads any other value; `before` is the previous one.
    fn plain(&mut self, before: ValueRef<'a>) -> Option<ValueRef<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match tag {
            0 => ValueRef::Missing,
            REPEATED => before,
            NEXT_OBJECT_ID => {
                let ValueRef::ObjectId(before) = before else {
                    return None;
                };
                ValueRef::ObjectId(id_behind(before, unzigzag(self.varint()?))?)
            }
            code => {
                let length = value_length(code, self.0)?;
                decode_value(code, self.take(length)?)?
            }
        })
    }
}

/// Receives the columns of an entry, one after the other.
pub(crate) trait EntrySink {
    /// Begins a column, given its position in the bucket and its name, if the entry has it.
    fn column(&mut self, id: usize, name: Option<&str>) -> Result<()>;

    /// Receives the next value, missing ones included.
    fn value(&mut self, id: usize, value: ValueRef<'_>) -> Result<()>;

    /// Receives the next values if they are integers, dates or doubles of one type; doubles as their bits.
    fn numbers(&mut self, id: usize, type_code: u8, numbers: &[i64]) -> Result<()> {
        let mut numbers = numbers.iter();
        numbers.try_for_each(|number| self.value(id, number_value(type_code, *number)))
    }
}

/// Returns a number as a value of its type.
fn number_value(type_code: u8, number: i64) -> ValueRef<'static> {
    match type_code {
        type_code::INT32 => ValueRef::Int32(number as i32),
        type_code::INT64 => ValueRef::Int64(number),
        type_code::DATE_TIME => ValueRef::DateTime(number),
        _ => ValueRef::Double(f64::from_bits(number.cast_unsigned())),
    }
}

/// The beginning of a column of an entry.
pub(crate) struct ChunkHead<'e> {
    /// The position of the column in the bucket.
    pub(crate) id: usize,
    /// The name, if the entry has it.
    pub(crate) name: Option<&'e str>,
    /// The offset of the values in [`TailEntry::columns`].
    pub(crate) at: usize,
}

/// A parsed entry; its columns are decoded on request.
#[derive(Clone, Debug)]
pub(crate) struct TailEntry {
    /// The number of measurements.
    pub(crate) rows: usize,
    /// The header, if the entry has it.
    pub(crate) header: Option<Header>,
    bytes: Bytes,
    /// The offsets of the columns.
    columns: Range<usize>,
}

impl TailEntry {
    /// Returns an entry without header of bytes that hold its columns.
    pub(crate) fn of_columns(bytes: Bytes, columns: Range<usize>, rows: usize) -> Self {
        Self {
            rows,
            header: None,
            bytes,
            columns,
        }
    }

    /// The stored columns.
    pub(crate) fn columns(&self) -> &[u8] {
        self.bytes.get(self.columns.clone()).unwrap_or_default()
    }

    /// Passes all values to `sink`, column by column.
    pub(crate) fn visit(&self, sink: &mut impl EntrySink) -> Result<()> {
        let rows = self.rows;
        self.visit_columns(|reader, head| {
            sink.column(head.id, head.name)?;
            visit_values(reader, rows, head.id, sink)
        })
    }

    /// Passes the places of the columns to `found`, which returns whether it must know if the column has a value, and then to
    /// `with_values` those that have one.
    pub(crate) fn visit_chunks(
        &self,
        mut found: impl FnMut(&ChunkHead<'_>) -> Result<bool>,
        mut with_values: impl FnMut(usize),
    ) -> Result<()> {
        self.visit_columns(|reader, head| {
            let must_look = found(&head)?;
            let has_value = reader.skip_chunk(self.rows, must_look);
            if has_value.ok_or_else(malformed)? && must_look {
                with_values(head.id);
            }
            Ok(())
        })
    }

    fn visit_columns<'e>(
        &'e self,
        mut visit: impl FnMut(&mut ByteReader<'e>, ChunkHead<'e>) -> Result<()>,
    ) -> Result<()> {
        let bytes = self.columns();
        let mut reader = ByteReader(bytes);
        let count = reader.varint().ok_or_else(malformed)?;
        for _ in 0..count {
            let head = reader.varint().ok_or_else(malformed)?;
            let id = usize::try_from(head >> 1).map_err(|_| malformed())?;
            let name = match head & 1 {
                1 => reader.counted().map(std::str::from_utf8),
                _ => None,
            };
            let name = name.transpose().map_err(|_| malformed())?;
            if name.is_some() != (head & 1 == 1) {
                return Err(malformed());
            }
            let at = bytes.len() - reader.0.len();
            visit(&mut reader, ChunkHead { id, name, at })?;
        }
        if reader.0.is_empty() {
            Ok(())
        } else {
            Err(damage("bytes are left over"))
        }
    }
}

fn malformed() -> Error {
    damage("it is malformed")
}

/// Passes the values of a column at the beginning of `bytes` to `sink`.
pub(crate) fn visit_chunk(
    bytes: &[u8],
    rows: usize,
    id: usize,
    sink: &mut impl EntrySink,
) -> Result<()> {
    visit_values(&mut ByteReader(bytes), rows, id, sink)
}

fn visit_values(
    reader: &mut ByteReader<'_>,
    rows: usize,
    id: usize,
    sink: &mut impl EntrySink,
) -> Result<()> {
    let length = reader.varint().ok_or_else(malformed)?;
    if length > 0 {
        let length = usize::try_from(length).map_err(|_| malformed())?;
        let bytes = reader.take(length).ok_or_else(malformed)?;
        let block = column::decode_block(bytes, rows);
        let block = block.map_err(|e| damage(&e.to_string()))?;
        visit_block(&block, id, sink)?;
        // A shorter column has missing values at its end.
        return (block.len()..rows).try_for_each(|_| sink.value(id, ValueRef::Missing));
    }
    let (mut before, mut left) = (ValueRef::Missing, rows);
    while left > 0 {
        let mut numbers = [0; PLAIN_ROWS_MAX];
        let (into, _) = numbers.split_at_mut(left.min(PLAIN_ROWS_MAX));
        let read = reader.numbers(before, into);
        let (type_code, count) = read.ok_or_else(malformed)?;
        let numbers = numbers.get(..count).unwrap_or_default();
        if let Some(last) = numbers.last() {
            sink.numbers(id, type_code, numbers)?;
            before = number_value(type_code, *last);
        } else {
            before = reader.plain(before).ok_or_else(malformed)?;
            sink.value(id, before)?;
        }
        left -= count.max(1);
    }
    Ok(())
}

/// Passes the values of a decoded column to `sink`.
fn visit_block(block: &ColumnBlock, id: usize, sink: &mut impl EntrySink) -> Result<()> {
    match block.data() {
        BlockData::Int64(numbers) if block.is_all_present() => {
            sink.numbers(id, type_code::INT64, numbers)
        }
        BlockData::DateTime(numbers) if block.is_all_present() => {
            sink.numbers(id, type_code::DATE_TIME, numbers)
        }
        BlockData::Double(numbers) if block.is_all_present() => {
            let bits = numbers.iter().map(|number| number.to_bits().cast_signed());
            sink.numbers(id, type_code::DOUBLE, &bits.collect::<Vec<_>>())
        }
        _ => block.iter().try_for_each(|value| sink.value(id, value)),
    }
}

/// Returns the number of measurements in an entry, of which only the beginning is read.
pub(crate) fn rows(entry: &[u8]) -> Result<usize> {
    let mut reader = ByteReader(entry);
    let rows = reader.take(2).and_then(|_| reader.varint());
    rows.and_then(|rows| usize::try_from(rows).ok())
        .filter(|rows| *rows <= ROWS_MAX)
        .ok_or_else(|| damage("it is malformed"))
}

/// Parses an entry.
pub(crate) fn decode(bytes: &Bytes) -> Result<TailEntry> {
    let (content, kept) = bytes
        .split_last_chunk::<4>()
        .ok_or_else(|| damage("it is too short"))?;
    if *kept != sum(content) {
        return Err(damage("its checksum does not fit"));
    }
    let mut reader = ByteReader(content);
    read_entry(&mut reader, bytes).ok_or_else(|| damage("it is malformed"))
}

fn read_entry(reader: &mut ByteReader<'_>, bytes: &Bytes) -> Option<TailEntry> {
    let length = reader.0.len();
    let [version, flags] = *reader.take(2)?.first_chunk::<2>()?;
    if !(VERSION_MIN..=VERSION).contains(&version) {
        return None;
    }
    let rows = usize::try_from(reader.varint()?)
        .ok()
        .filter(|rows| *rows <= ROWS_MAX)?;
    let header = if flags & HAS_HEADER != 0 {
        let document: DocRef<'_> = DocRef::new(reader.counted()?)?;
        let ValueRef::DateTime(start_ms) = document.get("start") else {
            return None;
        };
        Some(Header {
            start_ms,
            meta: document.get("meta").to_value(),
        })
    } else {
        None
    };
    Some(TailEntry {
        rows,
        header,
        bytes: bytes.clone(),
        columns: length - reader.0.len()..length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{doc, order};

    /// The contents of an entry.
    #[derive(Default)]
    struct Columns {
        names: Vec<(usize, Option<String>)>,
        values: Vec<Value>,
    }

    impl EntrySink for Columns {
        fn column(&mut self, id: usize, name: Option<&str>) -> Result<()> {
            self.names.push((id, name.map(str::to_owned)));
            Ok(())
        }

        fn value(&mut self, _: usize, value: ValueRef<'_>) -> Result<()> {
            self.values.push(value.to_value());
            Ok(())
        }
    }

    fn round_trip(rows: usize, values: Vec<Value>) {
        let header = Header {
            start_ms: -60_000,
            meta: doc! { "host": "a" }.into(),
        };
        let times = (0..rows).map(|i| ValueRef::DateTime(i as i64 * 10));
        let times: Vec<_> = times.collect();
        let given: Vec<_> = values.iter().map(Value::as_ref).collect();
        let columns = [
            ColumnChunk {
                id: 0,
                name: None,
                values: &times,
            },
            ColumnChunk {
                id: 7,
                name: Some("v"),
                values: &given,
            },
        ];
        let bytes = encode(rows, Some(&header), &columns).unwrap();
        let entry = decode(&Bytes::copy_from(&bytes)).unwrap();
        assert_eq!(entry.rows, rows);
        assert_eq!(entry.header.as_ref().unwrap().start_ms, -60_000);
        let mut columns = Columns::default();
        entry.visit(&mut columns).unwrap();
        let names = columns.names.as_slice();
        assert_eq!(names, [(0, None), (7, Some("v".to_owned()))]);
        let found = columns.values.split_off(rows);
        assert_eq!(found.len(), rows);
        for (found, given) in found.iter().zip(&values) {
            assert_eq!(found.type_code(), given.type_code());
            assert!(order::compare(found.as_ref(), given.as_ref()).is_eq());
        }
        for end in 0..bytes.len() {
            assert!(
                decode(&Bytes::copy_from(&bytes[..end])).is_err(),
                "cut at {end}"
            );
            let mut flipped = bytes.clone();
            flipped[end] ^= 0x10;
            assert!(decode(&flipped.into()).is_err(), "byte {end}");
        }
    }

    #[test]
    fn entries_read_back() {
        round_trip(1, vec![Value::from(-5)]);
        round_trip(1, vec![(1i64 << 50).into()]);
        round_trip(2, vec![Value::Missing, 36i64.into()]);
        round_trip(2, vec![(-0.0).into(), 1e300.into()]);
        round_trip(2, vec!["text".into(), doc! { "a": 1 }.into()]);
        for rows in [5, 9] {
            round_trip(
                rows,
                (0..rows as i32)
                    .map(|i| if i == 2 { Value::Missing } else { i.into() })
                    .collect(),
            );
        }
    }

    #[test]
    fn values_may_lean_on_the_one_before() {
        let text = |t: &str| Value::from(t);
        round_trip(4, vec![text("a"), text("a"), Value::Missing, text("a")]);
        let dates = [i64::MAX, i64::MIN, 0, -1];
        round_trip(4, dates.map(Value::DateTime).to_vec());
        round_trip(2, vec![Value::Missing, Value::DateTime(5)]);
        let id = |first: u8, counter: [u8; 3]| {
            let [high, middle, low] = counter;
            let id = [first, 0, 0, 0, 0, 0, 0, 0, 0, high, middle, low];
            Value::ObjectId(ObjectId(id))
        };
        let ids = [
            id(1, [0, 0, 255]),
            id(1, [0, 1, 0]),
            id(1, [0, 0, 0]),
            id(1, [255, 255, 255]),
            id(2, [0, 0, 0]),
        ];
        round_trip(5, ids.to_vec());
        // A counter that would overflow, and a distance without a previous value.
        assert!(id_behind(ObjectId([255; 12]), 1).is_none());
        let mut reader = ByteReader(&[NEXT_OBJECT_ID, 2]);
        assert!(reader.plain(ValueRef::Missing).is_none());
    }

    #[test]
    fn keys_sort_by_bucket_then_sequence() {
        let keys = [
            key([1; 12], 0),
            key([1; 12], 1),
            key([1; 12], 256),
            key([2; 12], 0),
        ];
        assert!(keys.is_sorted());
        assert_eq!(split_key(&keys[2]).unwrap(), ([1; 12], 256));
        assert!(split_key(&keys[2][1..]).is_err());
    }
}
