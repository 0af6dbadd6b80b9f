//! Building of columns value by value, and differences between two states of a column.
//!
//! [`ColumnBuilder`] writes the same bytes as MongoDB's builder for the same values, so a server
//! that reopens the bucket can continue appending to them. It is the top of three layers:
//! [`words`](super::words) packs numbers, [`stream`](super::stream) converts values of one field to
//! numbers, [`super::objects`] splits documents into streams.
//!
//! ```text
//! append(1)  append(2)  to_bytes()  append(3)  diff()
//!                          │                      │
//!                          ▼                      ▼
//!                    whole column      (offset, bytes): cut the column there, append these
//! ```
//!
//! All bytes before the control byte that may still grow are final. [`ColumnBuilder::diff`] returns
//! the offset of the first byte that differs from the previously described column, as MongoDB
//! writes it into its oplog.

use super::blocks;
use super::element::{self, tag};
use super::error::{BsonCause, ColumnError};
use super::objects::{self, Section};
use super::reference_decoder::decode_raw;
use super::stream::{RawRef, StreamEncoder};
use crate::document::write_value;
use crate::value::{ObjectId, Timestamp, ValueRef};

/// Turns one column into a later one: truncate it at `offset`, then append `bytes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnDiff {
    /// Number of bytes of the earlier column to keep.
    pub offset: usize,
    /// Bytes to append.
    pub bytes: Vec<u8>,
}

impl ColumnDiff {
    /// Applies the difference to `column`.
    pub fn apply(&self, column: &mut Vec<u8>) {
        column.truncate(self.offset);
        column.extend_from_slice(&self.bytes);
    }
}

/// Builds a column. See the module.
///
/// ```
/// use nilometer_bson::{ValueRef, column::ColumnBuilder};
///
/// let mut builder = ColumnBuilder::new();
/// for number in [100, 100, 101] {
///     builder.append(ValueRef::Int32(number))?;
/// }
/// assert_eq!(builder.finish(), b"\x10\0d\0\0\0\x80\x0d\0\0\0\x08\0\0\0\0");
/// # Ok::<(), nilometer_bson::column::ColumnError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ColumnBuilder {
    flat: StreamEncoder,
    section: Option<Box<Section>>,
    count: usize,
    described: DiffBase,
    /// Buffer for the bytes of a value being appended.
    scratch: Vec<u8>,
}

/// State of the column at the last [`ColumnBuilder::diff`].
#[derive(Debug, Clone, Default)]
struct DiffBase {
    /// Number of final bytes.
    base: usize,
    /// The last control byte, its offset (from `base`), and the number of bytes after `base` before
    /// the flush.
    control: Option<(u8, usize)>,
    len: usize,
}

impl ColumnBuilder {
    /// Creates a builder with no values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a builder that continues a stored column of at most `max_values` values, as if it
    /// had written the column and [`diff`](Self::diff) had just described it.
    ///
    /// Values before the last literal do not affect later bytes, so only values from there on are
    /// appended again; a column with interleaved sections is rebuilt completely. If another builder
    /// encoded that part differently, [`to_bytes`](Self::to_bytes) returns the stored column as it
    /// would be written here, and later diffs are relative to that.
    pub fn reopen(bytes: &[u8], max_values: usize) -> Result<Self, ColumnError> {
        let mut builder = ColumnBuilder::new();
        let (kept, count) = blocks::last_restart(bytes, max_values)?;
        let (head, tail) = bytes.split_at(kept);
        builder.flat.blocks.bytes.extend_from_slice(head);
        builder.count = count;
        match blocks::decode_block(tail, max_values - count) {
            Ok(block) => block.iter().try_for_each(|value| builder.append(value))?,
            Err(ColumnError::InvalidUtf8 { .. }) => {
                for value in decode_raw(tail, max_values - count)? {
                    builder.append_raw(value.tag, &value.bytes)?;
                }
            }
            Err(error) => return Err(error),
        }
        builder.diff();
        Ok(builder)
    }

    /// Returns the number of values added, missing ones included.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the approximate number of bytes of the column. Constant time (one step per leaf
    /// inside a section).
    pub fn size_bytes(&self) -> usize {
        let section = self
            .section
            .as_ref()
            .map_or(0, |section| section.size_bytes());
        self.flat.size_bytes() + section + 1
    }

    /// Adds a value; [`ValueRef::Missing`] equals [`skip`](Self::skip).
    pub fn append(&mut self, value: ValueRef<'_>) -> Result<(), ColumnError> {
        match value {
            ValueRef::Missing => self.skip(),
            ValueRef::Double(value) => self.append_f64(value),
            ValueRef::Int32(value) => self.append_i32(value),
            ValueRef::Int64(value) => self.append_i64(value),
            ValueRef::Bool(value) => self.append_bool(value),
            ValueRef::DateTime(value) => self.append_datetime(value),
            ValueRef::Timestamp(value) => self.append_timestamp(value),
            ValueRef::ObjectId(value) => self.append_object_id(value),
            ValueRef::String(text) => self.append_text(tag::STRING, text),
            ValueRef::Code(text) => self.append_text(tag::CODE, text),
            value => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.clear();
                write_value(&mut scratch, value);
                let result = self.append_raw(value.type_code(), &scratch);
                self.scratch = scratch;
                return result;
            }
        }
        Ok(())
    }

    /// Adds a value from its BSON type and value bytes. Type 0 is a missing value.
    ///
    /// An error if the bytes are not exactly one value of the type, or contain a compressed column
    /// at any depth.
    pub fn append_raw(&mut self, tag: u8, bytes: &[u8]) -> Result<(), ColumnError> {
        if tag == 0 {
            self.skip();
            return Ok(());
        }
        match element::value_len(tag, bytes) {
            Ok(len) if len == bytes.len() => {}
            Err(BsonCause::NestedColumn) => return Err(ColumnError::Unstorable),
            Err(cause) => return Err(ColumnError::InvalidBson { offset: 0, cause }),
            Ok(_) => {
                let cause = BsonCause::BadLength;
                return Err(ColumnError::InvalidBson { offset: 0, cause });
            }
        }
        self.count += 1;
        let value = RawRef { tag, bytes };
        if objects::is_interleaved(value) {
            self.append_nested(value);
        } else {
            self.scalars().append(value);
        }
        Ok(())
    }

    /// Adds a double.
    #[inline]
    pub fn append_f64(&mut self, value: f64) {
        self.count += 1;
        self.scalars().append_double(value);
    }

    /// Adds a 32-bit integer.
    #[inline]
    pub fn append_i32(&mut self, value: i32) {
        self.count += 1;
        self.scalars().append_int(tag::INT32, i64::from(value));
    }

    /// Adds a 64-bit integer.
    #[inline]
    pub fn append_i64(&mut self, value: i64) {
        self.count += 1;
        self.scalars().append_int(tag::INT64, value);
    }

    /// Adds a bool.
    #[inline]
    pub fn append_bool(&mut self, value: bool) {
        self.count += 1;
        self.scalars().append_int(tag::BOOL, i64::from(value));
    }

    /// Adds a date, in milliseconds since 1970.
    #[inline]
    pub fn append_datetime(&mut self, value: i64) {
        self.count += 1;
        self.scalars().append_time(tag::DATE, value);
    }

    /// Adds a timestamp.
    #[inline]
    pub fn append_timestamp(&mut self, value: Timestamp) {
        self.count += 1;
        let number = value.to_u64().cast_signed();
        self.scalars().append_time(tag::TIMESTAMP, number);
    }

    /// Adds a string.
    pub fn append_str(&mut self, value: &str) {
        self.append_text(tag::STRING, value);
    }

    fn append_text(&mut self, tag: u8, text: &str) {
        self.count += 1;
        if self.section.is_some() {
            self.close_section();
        }
        self.flat.append_text(tag, text.as_bytes());
    }

    /// Adds an ObjectId.
    #[inline]
    pub fn append_object_id(&mut self, value: ObjectId) {
        self.count += 1;
        self.scalars().append_object_id(&value.0);
    }

    /// Adds a missing value.
    #[inline]
    pub fn skip(&mut self) {
        self.count += 1;
        if let Some(section) = &mut self.section {
            if section.skip() {
                return;
            }
            self.close_section();
        }
        self.flat.skip();
    }

    /// Returns the stream for values that are not interleaved; ends an open section.
    #[inline]
    fn scalars(&mut self) -> &mut StreamEncoder {
        if self.section.is_some() {
            self.close_section();
        }
        &mut self.flat
    }

    #[cold]
    fn close_section(&mut self) {
        if let Some(section) = self.section.take() {
            section.close(&mut self.flat);
        }
    }

    fn append_nested(&mut self, value: RawRef<'_>) {
        if let Some(section) = &mut self.section {
            if section.root() == value.tag && section.append(value.bytes, &mut self.flat) {
                return;
            }
            self.close_section();
        }
        if objects::holds_scalar(value.bytes) {
            self.flat.restart();
            self.section = Some(Box::new(Section::new(value.tag, value.bytes)));
        } else {
            self.flat.append(value);
        }
    }

    /// Returns the whole column as if no more values followed.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.finished_from(0)
    }

    /// Finishes the column.
    pub fn finish(mut self) -> Vec<u8> {
        self.close_section();
        self.flat.flush();
        self.flat.blocks.bytes.push(0);
        self.flat.blocks.bytes
    }

    /// Returns the finished column from a final offset on.
    fn finished_from(&self, from: usize) -> Vec<u8> {
        let copy = ColumnBuilder {
            flat: self.flat.clone_from(from),
            section: self.section.clone(),
            ..ColumnBuilder::default()
        };
        copy.finish()
    }

    /// Returns the difference from the column described by the last call; the first call describes
    /// the whole column.
    pub fn diff(&mut self) -> ColumnDiff {
        let from = self.described.base;
        let mut out = self.finished_from(from);
        let held = self.flat.blocks.bytes.len() - from;
        let open = match self.section {
            Some(_) => None,
            None => self.flat.blocks.open(),
        };
        let Some(open) = open.map(|open| open - from) else {
            self.described = DiffBase {
                base: from + held,
                ..DiffBase::default()
            };
            return ColumnDiff {
                offset: from,
                bytes: out,
            };
        };
        let first = out.get(open).copied().unwrap_or_default();
        let (last, last_at) = last_control(&out, open);
        let known = from != 0 && self.described.control == Some((last, last_at));
        let same = if known {
            self.described.len.saturating_sub(open)
        } else {
            0
        };
        let control = if first & 0xF0 == last & 0xF0 {
            (first, 0)
        } else {
            (last, last_at - open)
        };
        self.described = DiffBase {
            base: from + open,
            control: Some(control),
            len: held - open,
        };
        out.drain(..same);
        ColumnDiff {
            offset: from + same,
            bytes: out,
        }
    }
}

/// Returns the last control byte of a finished column and its offset, iterating over control blocks
/// from the one at `at`.
fn last_control(column: &[u8], mut at: usize) -> (u8, usize) {
    loop {
        let control = column.get(at).copied().unwrap_or_default();
        let next = at + 9 + 8 * usize::from(control & 0x0F);
        if next + 1 >= column.len() {
            return (control, at);
        }
        at = next;
    }
}
