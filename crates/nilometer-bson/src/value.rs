//! BSON values, borrowed and owned.
//!
//! Documents stay in their encoded form. [`DocRef`] reads them in place. [`Document`] owns them
//! behind a reference counter, so a [`Value`] takes 24 bytes and cloning it increments a counter.
//! [`ValueRef`] is the same value borrowed from the bytes of a document; comparison, hashing and
//! conversion are written once, for [`ValueRef`].
//!
//! Both have a `Missing` variant for an absent field, which expressions produce and compare. It is
//! never stored: builders leave it out.
//!
//! Input from outside is checked once by [`crate::validate::validate_document`]. Reading malformed
//! bytes never panics: iterators end early.

use std::sync::Arc;

use crate::document::{ArrayRef, DocRef, Document};

/// An ObjectId, 12 bytes: seconds (4, big-endian), process (5), counter (3, big-endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId(pub [u8; 12]);

impl ObjectId {
    /// Returns the first four bytes: seconds since 1970.
    pub fn timestamp_seconds(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Formats the id as 24 lower-case hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Parses 24 hexadecimal digits.
    pub fn parse_hex(text: &str) -> Option<Self> {
        if text.len() != 24 || !text.is_ascii() {
            return None;
        }
        let mut out = [0u8; 12];
        for (byte, at) in out.iter_mut().zip((0..24).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(out))
    }
}

/// IEEE 754 decimal128 in BID form, as its two little-endian words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Decimal128 {
    /// Lower 64 bits: the low part of the coefficient.
    pub low: u64,
    /// Upper 64 bits: sign, exponent, high part of the coefficient.
    pub high: u64,
}

impl Decimal128 {
    /// Decodes the 16 bytes of a BSON element.
    pub fn from_le_bytes(bytes: [u8; 16]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self {
            low: all as u64,
            high: (all >> 64) as u64,
        }
    }

    /// Encodes the value as the 16 bytes of a BSON element.
    pub fn to_le_bytes(self) -> [u8; 16] {
        self.bits().to_le_bytes()
    }

    /// Returns all 128 bits as one number.
    pub fn bits(self) -> u128 {
        (u128::from(self.high) << 64) | u128::from(self.low)
    }
}

/// The BSON timestamp type: seconds and an increment within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Position within that second.
    pub increment: u32,
}

impl Timestamp {
    /// Packs seconds into the high and increment into the low 32 bits: the stored form, ordered
    /// like the values.
    pub fn to_u64(self) -> u64 {
        (u64::from(self.seconds) << 32) | u64::from(self.increment)
    }

    /// Reverses [`Timestamp::to_u64`].
    pub fn from_u64(bits: u64) -> Self {
        Self {
            seconds: (bits >> 32) as u32,
            increment: bits as u32,
        }
    }
}

/// A regular expression value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regex {
    /// The pattern, without delimiters.
    pub pattern: Arc<str>,
    /// Option letters in alphabetical order.
    pub options: Arc<str>,
}

/// A deprecated pointer to a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DbPointer {
    /// Namespace pointed into.
    pub namespace: Arc<str>,
    /// Identity of the document.
    pub id: ObjectId,
}

/// Code with the variables in its scope.
#[derive(Clone, Debug)]
pub struct CodeWithScope {
    /// The source text.
    pub code: Arc<str>,
    /// The variables.
    pub scope: Document,
}

/// An owned BSON value, cheap to copy.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// No value: an absent field. Orders below null and is never stored.
    #[default]
    Missing,
    /// 64-bit binary floating point.
    Double(f64),
    /// UTF-8 text.
    String(Arc<str>),
    /// An embedded document.
    Document(Document),
    /// An array, stored as a document with the names "0", "1", …
    Array(Array),
    /// Bytes with a subtype.
    Binary(Binary),
    /// Deprecated.
    Undefined,
    /// An object id.
    ObjectId(ObjectId),
    /// True or false.
    Bool(bool),
    /// Milliseconds since 1970, UTC.
    DateTime(i64),
    /// Null.
    Null,
    /// A regular expression.
    Regex(Arc<Regex>),
    /// Deprecated.
    DbPointer(Arc<DbPointer>),
    /// Source text.
    Code(Arc<str>),
    /// Deprecated string-like type.
    Symbol(Arc<str>),
    /// Source text with variables.
    CodeWithScope(Arc<CodeWithScope>),
    /// 32-bit integer.
    Int32(i32),
    /// BSON timestamp.
    Timestamp(Timestamp),
    /// 64-bit integer.
    Int64(i64),
    /// 128-bit decimal floating point.
    Decimal128(Decimal128),
    /// Orders below all other values.
    MinKey,
    /// Orders above all other values.
    MaxKey,
}

/// An owned array: the bytes of its document form.
#[derive(Clone, Debug)]
pub struct Array(pub(crate) Document);

impl Array {
    /// Wraps a document whose field names are "0", "1", …
    pub fn from_document(document: Document) -> Self {
        Self(document)
    }

    /// Returns the array, borrowed.
    pub fn as_ref(&self) -> ArrayRef<'_> {
        ArrayRef::new(self.0.as_ref())
    }

    /// Returns the elements, owned.
    pub fn to_vec(&self) -> Vec<Value> {
        self.as_ref().iter().map(ValueRef::to_value).collect()
    }
}

impl FromIterator<Value> for Array {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Self {
        let mut builder = crate::document::DocumentBuilder::new();
        for (at, value) in values.into_iter().enumerate() {
            builder.append_indexed(at, value.as_ref());
        }
        Self(builder.finish())
    }
}

/// Owned bytes with a subtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binary {
    /// The subtype byte; 7 is a compressed column.
    pub subtype: u8,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// A BSON value borrowed from the bytes of a document.
#[derive(Clone, Copy, Debug, Default)]
pub enum ValueRef<'a> {
    /// No value: an absent field.
    #[default]
    Missing,
    /// 64-bit binary floating point.
    Double(f64),
    /// UTF-8 text.
    String(&'a str),
    /// An embedded document.
    Document(DocRef<'a>),
    /// An array.
    Array(ArrayRef<'a>),
    /// Bytes with a subtype.
    Binary {
        /// The subtype byte.
        subtype: u8,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Deprecated.
    Undefined,
    /// An object id.
    ObjectId(ObjectId),
    /// True or false.
    Bool(bool),
    /// Milliseconds since 1970, UTC.
    DateTime(i64),
    /// Null.
    Null,
    /// A regular expression.
    Regex {
        /// The pattern.
        pattern: &'a str,
        /// Option letters.
        options: &'a str,
    },
    /// Deprecated.
    DbPointer {
        /// Namespace pointed into.
        namespace: &'a str,
        /// Identity of the document.
        id: ObjectId,
    },
    /// Source text.
    Code(&'a str),
    /// Deprecated string-like type.
    Symbol(&'a str),
    /// Source text with variables.
    CodeWithScope {
        /// The source text.
        code: &'a str,
        /// The variables.
        scope: DocRef<'a>,
    },
    /// 32-bit integer.
    Int32(i32),
    /// BSON timestamp.
    Timestamp(Timestamp),
    /// 64-bit integer.
    Int64(i64),
    /// 128-bit decimal floating point.
    Decimal128(Decimal128),
    /// Orders below all other values.
    MinKey,
    /// Orders above all other values.
    MaxKey,
}

/// The BSON type byte of each type.
pub mod type_code {
    /// Double.
    pub const DOUBLE: u8 = 0x01;
    /// String.
    pub const STRING: u8 = 0x02;
    /// Embedded document.
    pub const DOCUMENT: u8 = 0x03;
    /// Array.
    pub const ARRAY: u8 = 0x04;
    /// Binary data.
    pub const BINARY: u8 = 0x05;
    /// Undefined (deprecated).
    pub const UNDEFINED: u8 = 0x06;
    /// Object id.
    pub const OBJECT_ID: u8 = 0x07;
    /// Boolean.
    pub const BOOL: u8 = 0x08;
    /// Date.
    pub const DATE_TIME: u8 = 0x09;
    /// Null.
    pub const NULL: u8 = 0x0A;
    /// Regular expression.
    pub const REGEX: u8 = 0x0B;
    /// DBPointer (deprecated).
    pub const DB_POINTER: u8 = 0x0C;
    /// Code.
    pub const CODE: u8 = 0x0D;
    /// Symbol (deprecated).
    pub const SYMBOL: u8 = 0x0E;
    /// Code with scope.
    pub const CODE_WITH_SCOPE: u8 = 0x0F;
    /// 32-bit integer.
    pub const INT32: u8 = 0x10;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x11;
    /// 64-bit integer.
    pub const INT64: u8 = 0x12;
    /// Decimal128.
    pub const DECIMAL128: u8 = 0x13;
    /// MaxKey.
    pub const MAX_KEY: u8 = 0x7F;
    /// MinKey.
    pub const MIN_KEY: u8 = 0xFF;
}

impl<'a> ValueRef<'a> {
    /// Returns the BSON type byte; 0 for missing.
    pub fn type_code(self) -> u8 {
        use type_code as t;
        match self {
            Self::Missing => 0,
            Self::Double(_) => t::DOUBLE,
            Self::String(_) => t::STRING,
            Self::Document(_) => t::DOCUMENT,
            Self::Array(_) => t::ARRAY,
            Self::Binary { .. } => t::BINARY,
            Self::Undefined => t::UNDEFINED,
            Self::ObjectId(_) => t::OBJECT_ID,
            Self::Bool(_) => t::BOOL,
            Self::DateTime(_) => t::DATE_TIME,
            Self::Null => t::NULL,
            Self::Regex { .. } => t::REGEX,
            Self::DbPointer { .. } => t::DB_POINTER,
            Self::Code(_) => t::CODE,
            Self::Symbol(_) => t::SYMBOL,
            Self::CodeWithScope { .. } => t::CODE_WITH_SCOPE,
            Self::Int32(_) => t::INT32,
            Self::Timestamp(_) => t::TIMESTAMP,
            Self::Int64(_) => t::INT64,
            Self::Decimal128(_) => t::DECIMAL128,
            Self::MinKey => t::MIN_KEY,
            Self::MaxKey => t::MAX_KEY,
        }
    }

    /// Returns the name `$type` gives this type, as in error messages: "int", "string", "missing",
    /// …
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Document(_) => "object",
            Self::Array(_) => "array",
            Self::Binary { .. } => "binData",
            Self::Undefined => "undefined",
            Self::ObjectId(_) => "objectId",
            Self::Bool(_) => "bool",
            Self::DateTime(_) => "date",
            Self::Null => "null",
            Self::Regex { .. } => "regex",
            Self::DbPointer { .. } => "dbPointer",
            Self::Code(_) => "javascript",
            Self::Symbol(_) => "symbol",
            Self::CodeWithScope { .. } => "javascriptWithScope",
            Self::Int32(_) => "int",
            Self::Timestamp(_) => "timestamp",
            Self::Int64(_) => "long",
            Self::Decimal128(_) => "decimal",
            Self::MinKey => "minKey",
            Self::MaxKey => "maxKey",
        }
    }

    /// True for the absence of a value.
    pub fn is_missing(self) -> bool {
        matches!(self, Self::Missing)
    }

    /// True for missing, null and undefined.
    pub fn is_nullish(self) -> bool {
        matches!(self, Self::Missing | Self::Null | Self::Undefined)
    }

    /// True for int, long, double and decimal.
    pub fn is_number(self) -> bool {
        matches!(
            self,
            Self::Int32(_) | Self::Int64(_) | Self::Double(_) | Self::Decimal128(_)
        )
    }

    /// Returns a copy that owns its bytes.
    pub fn to_value(self) -> Value {
        match self {
            Self::Missing => Value::Missing,
            Self::Double(v) => Value::Double(v),
            Self::String(v) => Value::String(v.into()),
            Self::Document(v) => Value::Document(v.to_document()),
            Self::Array(v) => Value::Array(Array(v.as_document().to_document())),
            Self::Binary { subtype, bytes } => Value::Binary(Binary {
                subtype,
                bytes: bytes.into(),
            }),
            Self::Undefined => Value::Undefined,
            Self::ObjectId(v) => Value::ObjectId(v),
            Self::Bool(v) => Value::Bool(v),
            Self::DateTime(v) => Value::DateTime(v),
            Self::Null => Value::Null,
            Self::Regex { pattern, options } => Value::Regex(Arc::new(Regex {
                pattern: pattern.into(),
                options: options.into(),
            })),
            Self::DbPointer { namespace, id } => Value::DbPointer(Arc::new(DbPointer {
                namespace: namespace.into(),
                id,
            })),
            Self::Code(v) => Value::Code(v.into()),
            Self::Symbol(v) => Value::Symbol(v.into()),
            Self::CodeWithScope { code, scope } => Value::CodeWithScope(Arc::new(CodeWithScope {
                code: code.into(),
                scope: scope.to_document(),
            })),
            Self::Int32(v) => Value::Int32(v),
            Self::Timestamp(v) => Value::Timestamp(v),
            Self::Int64(v) => Value::Int64(v),
            Self::Decimal128(v) => Value::Decimal128(v),
            Self::MinKey => Value::MinKey,
            Self::MaxKey => Value::MaxKey,
        }
    }

    /// Returns the document, if it is one.
    pub fn as_document(self) -> Option<DocRef<'a>> {
        match self {
            Self::Document(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the array, if it is one.
    pub fn as_array(self) -> Option<ArrayRef<'a>> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the text, if it is a string.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the integer this number equals exactly, if there is one that fits in 64 bits. `None`
    /// for decimals.
    pub fn as_exact_i64(self) -> Option<i64> {
        match self {
            Self::Int32(v) => Some(i64::from(v)),
            Self::Int64(v) => Some(v),
            Self::Double(v) if v.trunc() == v && v.abs() < 9.2e18 => Some(v as i64),
            _ => None,
        }
    }
}

impl Value {
    /// Returns the value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Missing => ValueRef::Missing,
            Self::Double(v) => ValueRef::Double(*v),
            Self::String(v) => ValueRef::String(v),
            Self::Document(v) => ValueRef::Document(v.as_ref()),
            Self::Array(v) => ValueRef::Array(v.as_ref()),
            Self::Binary(v) => ValueRef::Binary {
                subtype: v.subtype,
                bytes: &v.bytes,
            },
            Self::Undefined => ValueRef::Undefined,
            Self::ObjectId(v) => ValueRef::ObjectId(*v),
            Self::Bool(v) => ValueRef::Bool(*v),
            Self::DateTime(v) => ValueRef::DateTime(*v),
            Self::Null => ValueRef::Null,
            Self::Regex(v) => ValueRef::Regex {
                pattern: &v.pattern,
                options: &v.options,
            },
            Self::DbPointer(v) => ValueRef::DbPointer {
                namespace: &v.namespace,
                id: v.id,
            },
            Self::Code(v) => ValueRef::Code(v),
            Self::Symbol(v) => ValueRef::Symbol(v),
            Self::CodeWithScope(v) => ValueRef::CodeWithScope {
                code: &v.code,
                scope: v.scope.as_ref(),
            },
            Self::Int32(v) => ValueRef::Int32(*v),
            Self::Timestamp(v) => ValueRef::Timestamp(*v),
            Self::Int64(v) => ValueRef::Int64(*v),
            Self::Decimal128(v) => ValueRef::Decimal128(*v),
            Self::MinKey => ValueRef::MinKey,
            Self::MaxKey => ValueRef::MaxKey,
        }
    }

    /// Returns the BSON type byte; 0 for missing.
    pub fn type_code(&self) -> u8 {
        self.as_ref().type_code()
    }

    /// Returns the name `$type` gives this type.
    pub fn type_name(&self) -> &'static str {
        self.as_ref().type_name()
    }

    /// True for the absence of a value.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    /// True for missing, null and undefined.
    pub fn is_nullish(&self) -> bool {
        self.as_ref().is_nullish()
    }

    /// True for int, long, double and decimal.
    pub fn is_number(&self) -> bool {
        self.as_ref().is_number()
    }
}

macro_rules! from {
    ($($from:ty => |$v:ident| $to:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($v: $from) -> Self { $to }
        }
    )*};
}

from! {
    f64 => |v| Value::Double(v);
    i32 => |v| Value::Int32(v);
    i64 => |v| Value::Int64(v);
    bool => |v| Value::Bool(v);
    &str => |v| Value::String(v.into());
    String => |v| Value::String(v.into());
    &String => |v| Value::String(v.as_str().into());
    Arc<str> => |v| Value::String(v);
    ObjectId => |v| Value::ObjectId(v);
    Timestamp => |v| Value::Timestamp(v);
    Decimal128 => |v| Value::Decimal128(v);
    Document => |v| Value::Document(v);
    Array => |v| Value::Array(v);
    Binary => |v| Value::Binary(v);
    Vec<Value> => |v| Value::Array(v.into_iter().collect());
    ValueRef<'_> => |v| v.to_value();
    DocRef<'_> => |v| Value::Document(v.to_document());
    ArrayRef<'_> => |v| ValueRef::Array(v).to_value();
}

impl<T: Into<Value>> From<Option<T>> for Value {
    /// `None` becomes missing, so an optional field is left out of a document.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}
