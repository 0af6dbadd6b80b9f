//! InfluxDB's line protocol, version 1.
//!
//! ```text
//! cpu,host=a,region=eu\ west usage=64.2,cores=8i,name="a \"b\"",up=t 1590488773254420000
//! └┬┘ └────────┬───────────┘ └───────────────┬───────────────────┘ └────────┬────────┘
//! measurement  tags                       fields                     time, optional
//! ```
//!
//! - Lines end with a line feed, which may follow a carriage return. Lines that are empty or begin with `#` are skipped.
//! - A backslash makes a comma, an equals sign or a space part of a name or tag value; in a quoted text it does so with a
//!   quote or a backslash. Before another byte it means itself. A quoted text may contain line feeds.
//! - A value is a double, an integer with `i`, an unsigned integer with `u`, a quoted text, or a truth value: `t`, `T`,
//!   `true`, `True`, `TRUE`, and the same of false.
//! - Times count units of the request's [`Precision`] since 1970.
//!
//! [`Parser`] reads a body line by line. A line that is invalid is an error with its line and column; the parser continues
//! behind the next line feed. It copies nothing: names are slices with their escapes, see [`Text`].
//!
//! `docs/decisions/0031-influxdb-surface.md` says why this is no crate of others.

mod documents;
mod known_heads;
mod number;
mod parser;

use std::num::NonZeroUsize;

pub use documents::{Batch, Batches, Names, Rejection, Schema, SchemasOf};
pub(crate) use documents::{BatchWriter, check_key, check_measurement, is_full};
pub use parser::{LineError, Parser};

/// The most tags of a point.
pub const TAGS_MAX: usize = 256;

/// The most fields of a point.
pub const FIELDS_MAX: usize = 4096;

/// The most bytes of a name or tag value. InfluxDB's series keys have at most 64 KiB.
pub const TEXT_BYTES_MAX: usize = 64 * 1024 - 1;

/// The last time that line protocol can name, in ms; the first is as far before 1970.
pub const TIME_MS_MAX: i64 = i64::MAX / 1_000_000;

/// A name or tag value as it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text<'a> {
    /// The bytes, with escapes.
    pub raw: &'a [u8],
    /// True if there is a backslash among them.
    pub has_escapes: bool,
}

impl<'a> Text<'a> {
    /// Returns a text that was not written with escapes.
    pub(crate) fn plain(text: &'a str) -> Self {
        Self {
            raw: text.as_bytes(),
            has_escapes: false,
        }
    }

    /// Appends the bytes without escapes.
    pub fn append_to(self, out: &mut Vec<u8>) {
        if !self.has_escapes {
            out.extend_from_slice(self.raw);
            return;
        }
        let mut bytes = self.raw.iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            match bytes.peek() {
                Some(next) if byte == b'\\' && matches!(next, b',' | b'=' | b' ') => {}
                _ => out.push(byte),
            }
        }
    }

    /// Returns the text without escapes, invalid UTF-8 replaced.
    pub fn to_text(self) -> String {
        let mut bytes = Vec::with_capacity(self.raw.len());
        self.append_to(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'a> {
    /// A finite double.
    Float(f64),
    /// An integer, signed or not, in the range of the signed.
    Integer(i64),
    /// A truth value.
    Boolean(bool),
    /// A quoted text: bytes between the quotes, and whether there are backslashes.
    String(&'a [u8], bool),
}

impl FieldValue<'_> {
    /// Returns its type.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Float(_) => FieldType::Float,
            Self::Integer(_) => FieldType::Integer,
            Self::Boolean(_) => FieldType::Boolean,
            Self::String(..) => FieldType::String,
        }
    }
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldType {
    /// A double.
    Float,
    /// An integer.
    Integer,
    /// A text.
    String,
    /// A truth value.
    Boolean,
}

impl FieldType {
    /// Returns InfluxDB's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Integer => "integer",
            Self::String => "string",
            Self::Boolean => "boolean",
        }
    }

    /// Returns the type of the values that BSON's type code stands for, if fields can have it.
    pub fn of_bson(type_name: &str) -> Option<Self> {
        match type_name {
            "double" | "decimal" => Some(Self::Float),
            "int" | "long" => Some(Self::Integer),
            "string" => Some(Self::String),
            "bool" => Some(Self::Boolean),
            _ => None,
        }
    }
}

/// One line. Its vectors are reused from line to line.
#[derive(Debug, Default)]
pub struct Point<'a> {
    /// The measurement.
    pub measurement: Text<'a>,
    /// Keys and values, in the order of the line.
    pub tags: Vec<(Text<'a>, Text<'a>)>,
    /// Keys and values, in the order of the line; at least one.
    pub fields: Vec<(Text<'a>, FieldValue<'a>)>,
    /// Milliseconds since 1970, rounded down, if the line has a time.
    pub time_ms: Option<i64>,
    /// Positions in the line of measurement and fields, for errors of later checks.
    pub field_columns: Vec<usize>,
    /// A number that all points of the body with the same bytes of measurement and tags share.
    pub(crate) head: Option<usize>,
    /// A number that consecutive points share whose fields have the same keys in the same order.
    pub(crate) field_keys: Option<NonZeroUsize>,
}

/// The unit of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Nanoseconds.
    #[default]
    Nanosecond,
    /// Microseconds.
    Microsecond,
    /// Milliseconds.
    Millisecond,
    /// Seconds.
    Second,
    /// Minutes.
    Minute,
    /// Hours.
    Hour,
}

impl Precision {
    /// Parses the parameter `precision` or `epoch`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "n" | "ns" => Some(Self::Nanosecond),
            "u" | "us" | "µ" | "µs" => Some(Self::Microsecond),
            "ms" => Some(Self::Millisecond),
            "s" => Some(Self::Second),
            "m" => Some(Self::Minute),
            "h" => Some(Self::Hour),
            _ => None,
        }
    }

    /// Returns a time in milliseconds, rounded down. `None` if it is out of range.
    pub fn to_ms(self, time: i64) -> Option<i64> {
        let ms = match self {
            Self::Nanosecond => time.div_euclid(1_000_000),
            Self::Microsecond => time.div_euclid(1_000),
            Self::Millisecond => time,
            Self::Second => time.checked_mul(1_000)?,
            Self::Minute => time.checked_mul(60_000)?,
            Self::Hour => time.checked_mul(3_600_000)?,
        };
        // A time in nanoseconds may be rounded down to one millisecond before the first.
        (-TIME_MS_MAX - 1..=TIME_MS_MAX).contains(&ms).then_some(ms)
    }

    /// Returns a time of milliseconds in this unit, rounded down.
    pub fn of_ms(self, ms: i64) -> i64 {
        match self {
            Self::Nanosecond => ms.saturating_mul(1_000_000),
            Self::Microsecond => ms.saturating_mul(1_000),
            Self::Millisecond => ms,
            Self::Second => ms.div_euclid(1_000),
            Self::Minute => ms.div_euclid(60_000),
            Self::Hour => ms.div_euclid(3_600_000),
        }
    }
}
