//! The tail of a bucket: measurements committed since its document was last written.
//!
//! Appending a measurement writes one small entry instead of rewriting the bucket document. An entry
//! holds the measurements one insert command gave one bucket, column by column, without meta and
//! without the field names the bucket already knows. Its key is the bucket's `_id` and a sequence
//! number (4 bytes, big-endian), so that a bucket's entries lie side by side in the order written.
//!
//! ```text
//! entry    version 02 | flags | varint rows | [header] | varint columns | column … | sum
//! flags    bit 0: header present
//! header   varint length | document {start: date, meta?: any}       how the bucket was opened
//! column   varint id << 1 | named | [varint length, name] | chunk
//! chunk    varint 0, value × rows          each value: type byte, value bytes (00: missing)
//!          varint length, BSONColumn       length > 0
//! sum      lower half of xxh3-64 of all before it, little-endian
//! value    also E0: int32, E1: int64, E2: double, each as varint zigzag of its integer
//! ```
//!
//! Column 0 is the time field. A column's name is given in each entry until one that gives it has
//! been committed, and likewise the header: entries of concurrent inserts become visible in any
//! order, and each must be readable without those before it that are not there yet.

use std::sync::Arc;

use nilometer_bson::column::{self, ColumnBuilder};
use nilometer_bson::document::{decode_value, value_length, write_value};
use nilometer_bson::{DocRef, Document, Value, ValueRef};

use super::sealed::sum;
use crate::error::{Error, ErrorCode, Result};

/// The format this code writes.
const VERSION: u8 = 2;
const HAS_HEADER: u8 = 1;

/// Up to this many measurements are stored value by value; more make a compressed column.
const PLAIN_ROWS_MAX: usize = 2;

/// Measurements one entry may hold when read.
const ROWS_MAX: usize = 1 << 20;

const SMALL_INT32: u8 = 0xE0;
const SMALL_INT64: u8 = 0xE1;
const SMALL_DOUBLE: u8 = 0xE2;

/// Length of a tail key: bucket id and sequence.
pub(crate) const KEY_BYTES: usize = 16;

/// The key of an entry.
pub(crate) fn key(bucket: [u8; 12], sequence: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(KEY_BYTES);
    key.extend_from_slice(&bucket);
    key.extend_from_slice(&sequence.to_be_bytes());
    key
}

/// Splits a key into bucket id and sequence.
pub(crate) fn split_key(key: &[u8]) -> Result<([u8; 12], u32)> {
    let damaged = || damage("its key has another length");
    let (id, sequence) = key.split_first_chunk::<12>().ok_or_else(damaged)?;
    let sequence = <[u8; 4]>::try_from(sequence).map_err(|_| damaged())?;
    Ok((*id, u32::from_be_bytes(sequence)))
}

fn damage(what: &str) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("an entry of a bucket's tail cannot be read: {what}"),
    )
}

/// How a bucket was opened: what its first document will need besides measurements.
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

/// A column of an entry while it is written.
#[derive(Debug)]
pub(crate) struct ColumnChunk<'a> {
    /// Its position in the bucket; 0 is the time field.
    pub(crate) id: usize,
    /// Its name, unless readers are sure to know it.
    pub(crate) name: Option<&'a str>,
    /// One value for each measurement, missing where there is none.
    pub(crate) values: Vec<ValueRef<'a>>,
}

/// Writes an entry.
pub(crate) fn encode(
    rows: usize,
    header: Option<&Header>,
    columns: &[ColumnChunk<'_>],
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(64 + rows * columns.len() * 4);
    let flags = if header.is_some() { HAS_HEADER } else { 0 };
    out.extend_from_slice(&[VERSION, flags]);
    put_varint(&mut out, rows as u64);
    if let Some(header) = header {
        let document = header.to_document();
        put_varint(&mut out, document.as_bytes().len() as u64);
        out.extend_from_slice(document.as_bytes());
    }
    put_varint(&mut out, columns.len() as u64);
    for column in columns {
        let named = u64::from(column.name.is_some());
        put_varint(&mut out, (column.id as u64) << 1 | named);
        if let Some(name) = column.name {
            put_varint(&mut out, name.len() as u64);
            out.extend_from_slice(name.as_bytes());
        }
        encode_chunk(&mut out, rows, &column.values)?;
    }
    out.extend_from_slice(&sum(&out));
    Ok(out)
}

fn encode_chunk(out: &mut Vec<u8>, rows: usize, values: &[ValueRef<'_>]) -> Result<()> {
    debug_assert_eq!(rows, values.len());
    if rows <= PLAIN_ROWS_MAX {
        put_varint(out, 0);
        for value in values {
            put_plain(out, *value);
        }
        return Ok(());
    }
    let mut builder = ColumnBuilder::new();
    for value in values {
        append_value(&mut builder, *value)?;
    }
    let bytes = builder.finish();
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(&bytes);
    Ok(())
}

/// Appends a value or, where it is missing, a gap.
pub(crate) fn append_value(builder: &mut ColumnBuilder, value: ValueRef<'_>) -> Result<()> {
    if value.is_missing() {
        builder.skip();
        return Ok(());
    }
    builder
        .append(value)
        .map_err(|e| Error::bad_value(format!("a value cannot be stored in a column: {e}")))
}

fn put_plain(out: &mut Vec<u8>, value: ValueRef<'_>) {
    let integral = |v: f64| (v as i64 as f64).to_bits() == v.to_bits() && v.abs() < 1e9;
    match value {
        ValueRef::Int32(v) => put_small(out, SMALL_INT32, i64::from(v)),
        ValueRef::Int64(v) if v.unsigned_abs() < 1 << 40 => put_small(out, SMALL_INT64, v),
        ValueRef::Double(v) if integral(v) => put_small(out, SMALL_DOUBLE, v as i64),
        other => {
            out.push(other.type_code());
            write_value(out, other);
        }
    }
}

fn put_small(out: &mut Vec<u8>, tag: u8, value: i64) {
    out.push(tag);
    put_varint(out, zigzag(value));
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends an unsigned integer, seven bits a byte, low bits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes bytes from the front of a slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
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

    fn plain(&mut self) -> Option<ValueRef<'a>> {
        let [tag] = *self.take(1)?.first_chunk::<1>()?;
        Some(match tag {
            0 => ValueRef::Missing,
            SMALL_INT32 => ValueRef::Int32(i32::try_from(unzigzag(self.varint()?)).ok()?),
            SMALL_INT64 => ValueRef::Int64(unzigzag(self.varint()?)),
            SMALL_DOUBLE => ValueRef::Double(unzigzag(self.varint()?) as f64),
            code => {
                let length = value_length(code, self.0)?;
                decode_value(code, self.take(length)?)?
            }
        })
    }
}

/// The measurements of one column of an entry, as stored.
#[derive(Clone, Debug)]
pub(crate) enum Chunk {
    /// A compressed column.
    Column(Arc<[u8]>),
    /// A few values.
    Values(Vec<Value>),
}

impl Chunk {
    /// The values, missing ones included.
    pub(crate) fn values(&self, rows: usize) -> Result<Vec<Value>> {
        match self {
            Self::Values(values) => Ok(values.clone()),
            Self::Column(bytes) => {
                column::decode_values(bytes, rows).map_err(|e| damage(&e.to_string()))
            }
        }
    }
}

/// An entry as read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Measurements in it.
    pub(crate) rows: usize,
    /// How the bucket was opened, if repeated here.
    pub(crate) header: Option<Header>,
    /// Its columns: id, name if given, values.
    pub(crate) columns: Vec<(usize, Option<Arc<str>>, Chunk)>,
}

/// Reads an entry.
pub(crate) fn decode(bytes: &[u8]) -> Result<Entry> {
    let (bytes, kept) = bytes
        .split_last_chunk::<4>()
        .ok_or_else(|| damage("it is too short"))?;
    if *kept != sum(bytes) {
        return Err(damage("its checksum does not fit"));
    }
    let mut reader = Reader(bytes);
    let entry = read_entry(&mut reader).ok_or_else(|| damage("it is malformed"))?;
    if reader.0.is_empty() {
        Ok(entry)
    } else {
        Err(damage("bytes are left over"))
    }
}

fn read_entry(reader: &mut Reader<'_>) -> Option<Entry> {
    let [version, flags] = *reader.take(2)?.first_chunk::<2>()?;
    if version != VERSION {
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
    let count = usize::try_from(reader.varint()?).ok()?;
    let mut columns = Vec::with_capacity(count.min(reader.0.len()));
    for _ in 0..count {
        let id = reader.varint()?;
        let name = if id & 1 == 1 {
            Some(Arc::from(std::str::from_utf8(reader.counted()?).ok()?))
        } else {
            None
        };
        columns.push((
            usize::try_from(id >> 1).ok()?,
            name,
            read_chunk(reader, rows)?,
        ));
    }
    Some(Entry {
        rows,
        header,
        columns,
    })
}

fn read_chunk(reader: &mut Reader<'_>, rows: usize) -> Option<Chunk> {
    let length = usize::try_from(reader.varint()?).ok()?;
    if length > 0 {
        return Some(Chunk::Column(reader.take(length)?.into()));
    }
    (0..rows)
        .map(|_| reader.plain().map(ValueRef::to_value))
        .collect::<Option<_>>()
        .map(Chunk::Values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{doc, order};

    fn round_trip(rows: usize, values: Vec<Value>) {
        let header = Header {
            start_ms: -60_000,
            meta: doc! { "host": "a" }.into(),
        };
        let times: Vec<_> = (0..rows).map(|i| Value::DateTime(i as i64 * 10)).collect();
        let columns = [
            ColumnChunk {
                id: 0,
                name: None,
                values: times.iter().map(Value::as_ref).collect(),
            },
            ColumnChunk {
                id: 7,
                name: Some("v"),
                values: values.iter().map(Value::as_ref).collect(),
            },
        ];
        let bytes = encode(rows, Some(&header), &columns).unwrap();
        let entry = decode(&bytes).unwrap();
        assert_eq!(entry.rows, rows);
        assert_eq!(entry.header.unwrap().start_ms, -60_000);
        let (id, name, chunk) = &entry.columns[1];
        assert_eq!((*id, name.as_deref()), (7, Some("v")));
        for (found, given) in chunk.values(rows).unwrap().iter().zip(&values) {
            assert_eq!(found.type_code(), given.type_code());
            assert!(order::compare(found.as_ref(), given.as_ref()).is_eq());
        }
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
            let mut flipped = bytes.clone();
            flipped[end] ^= 0x10;
            assert!(decode(&flipped).is_err(), "byte {end}");
        }
    }

    #[test]
    fn entries_read_back() {
        round_trip(1, vec![Value::from(-5)]);
        round_trip(1, vec![(1i64 << 50).into()]);
        round_trip(2, vec![Value::Missing, 36i64.into()]);
        round_trip(2, vec![(-0.0).into(), 1e300.into()]);
        round_trip(2, vec!["text".into(), doc! { "a": 1 }.into()]);
        round_trip(
            5,
            (0..5)
                .map(|i| if i == 2 { Value::Missing } else { i.into() })
                .collect(),
        );
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
