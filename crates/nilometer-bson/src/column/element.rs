//! BSON elements as bytes: lengths of values and iteration over documents.
//!
//! The codec works on `(type, value bytes)` pairs so that literals are copied, compared and counted
//! without building values. [`value_len`] validates everything it reads; [`Elements`] then iterates
//! over validated documents.
//!
//! Field names and text encoding are not checked. Values in memory are the concern of
//! `crate::value`.

use super::error::BsonCause;

/// BSON type bytes, named as in the specification.
pub(crate) mod tag {
    pub(crate) const DOUBLE: u8 = 0x01;
    pub(crate) const STRING: u8 = 0x02;
    pub(crate) const OBJECT: u8 = 0x03;
    pub(crate) const ARRAY: u8 = 0x04;
    pub(crate) const BINARY: u8 = 0x05;
    pub(crate) const UNDEFINED: u8 = 0x06;
    pub(crate) const OBJECT_ID: u8 = 0x07;
    pub(crate) const BOOL: u8 = 0x08;
    pub(crate) const DATE: u8 = 0x09;
    pub(crate) const NULL: u8 = 0x0A;
    pub(crate) const REGEX: u8 = 0x0B;
    pub(crate) const DB_POINTER: u8 = 0x0C;
    pub(crate) const CODE: u8 = 0x0D;
    pub(crate) const SYMBOL: u8 = 0x0E;
    pub(crate) const CODE_WITH_SCOPE: u8 = 0x0F;
    pub(crate) const INT32: u8 = 0x10;
    pub(crate) const TIMESTAMP: u8 = 0x11;
    pub(crate) const INT64: u8 = 0x12;
    pub(crate) const DECIMAL128: u8 = 0x13;
    pub(crate) const MAX_KEY: u8 = 0x7F;
    pub(crate) const MIN_KEY: u8 = 0xFF;
}

/// Maximum nesting of documents inside one value.
pub(crate) const DEPTH_MAX: usize = 200;

/// Binary subtype of a compressed column, which must not be nested.
const SUBTYPE_COLUMN: u8 = 7;

/// One element of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl<'a> Element<'a> {
    /// True if this is an object or an array.
    pub(crate) fn is_nested(&self) -> bool {
        is_nested(self.tag)
    }

    /// Returns the elements of a nested document.
    pub(crate) fn children(&self) -> Elements<'a> {
        Elements::new(self.value)
    }

    /// True if this is an object or array without elements.
    pub(crate) fn is_empty_nested(&self) -> bool {
        self.is_nested() && is_empty_document(self.value)
    }
}

/// True if values of this type are documents.
pub(crate) fn is_nested(tag: u8) -> bool {
    matches!(tag, tag::OBJECT | tag::ARRAY)
}

/// True if a validated document has no elements.
pub(crate) fn is_empty_document(document: &[u8]) -> bool {
    document.len() <= 5
}

/// Iterates over a document validated by [`value_len`]. Ends early on other bytes.
#[derive(Debug, Clone)]
pub(crate) struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    pub(crate) fn new(document: &'a [u8]) -> Self {
        Elements {
            rest: document.get(4..).unwrap_or_default(),
        }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.rest.split_first()?;
        if tag == 0 {
            self.rest = &[];
            return None;
        }
        let name_len = c_string_len(rest).ok()?;
        let name = rest.get(..name_len - 1)?;
        let after = rest.get(name_len..)?;
        let len = shallow_len(tag, after).ok()?;
        let (value, rest) = after.split_at_checked(len)?;
        self.rest = rest;
        Some(Element { tag, name, value })
    }
}

/// Validates a literal's value at the start of `bytes`; returns its length.
pub(crate) fn value_len(tag: u8, bytes: &[u8]) -> Result<usize, BsonCause> {
    checked_len(tag, bytes, DEPTH_MAX)
}

/// Validates the document at the start of `bytes`; returns its length.
pub(crate) fn document_len(bytes: &[u8]) -> Result<usize, BsonCause> {
    checked_document(bytes, DEPTH_MAX)
}

fn checked_len(tag: u8, bytes: &[u8], depth: usize) -> Result<usize, BsonCause> {
    let len = shallow_len(tag, bytes)?;
    let value = bytes.get(..len).ok_or(BsonCause::Truncated)?;
    match tag {
        tag::BOOL if value.first().is_some_and(|&byte| byte > 1) => Err(BsonCause::BadBool),
        tag::BINARY if value.get(4) == Some(&SUBTYPE_COLUMN) => Err(BsonCause::NestedColumn),
        tag::STRING | tag::CODE | tag::SYMBOL => check_terminator(value).map(|()| len),
        tag::DB_POINTER => {
            check_terminator(value.get(..len - 12).unwrap_or_default()).map(|()| len)
        }
        tag::OBJECT | tag::ARRAY => checked_document(value, depth),
        tag::CODE_WITH_SCOPE => {
            let code = value.get(4..).ok_or(BsonCause::Truncated)?;
            let code_len = shallow_len(tag::STRING, code)?;
            let text = code.get(..code_len).ok_or(BsonCause::BadLength)?;
            check_terminator(text)?;
            let scope = code.get(code_len..).unwrap_or_default();
            if checked_document(scope, depth)? != scope.len() {
                return Err(BsonCause::BadLength);
            }
            Ok(len)
        }
        _ => Ok(len),
    }
}

fn checked_document(bytes: &[u8], depth: usize) -> Result<usize, BsonCause> {
    let depth = depth.checked_sub(1).ok_or(BsonCause::TooDeep)?;
    let len = shallow_len(tag::OBJECT, bytes)?;
    let document = bytes.get(..len).ok_or(BsonCause::Truncated)?;
    let mut rest = document.get(4..).ok_or(BsonCause::BadLength)?;
    loop {
        let (&tag, after) = rest.split_first().ok_or(BsonCause::MissingTerminator)?;
        if tag == 0 {
            return if after.is_empty() {
                Ok(len)
            } else {
                Err(BsonCause::BadLength)
            };
        }
        let name_len = c_string_len(after)?;
        let value = after.get(name_len..).ok_or(BsonCause::Truncated)?;
        let value_len = checked_len(tag, value, depth)?;
        rest = value.get(value_len..).ok_or(BsonCause::Truncated)?;
    }
}

/// Returns the length of a value from its own header, without validating nested documents.
fn shallow_len(tag: u8, bytes: &[u8]) -> Result<usize, BsonCause> {
    Ok(match tag {
        tag::UNDEFINED | tag::NULL | tag::MAX_KEY | tag::MIN_KEY => 0,
        tag::BOOL => 1,
        tag::INT32 => 4,
        tag::DOUBLE | tag::DATE | tag::TIMESTAMP | tag::INT64 => 8,
        tag::OBJECT_ID => 12,
        tag::DECIMAL128 => 16,
        tag::STRING | tag::CODE | tag::SYMBOL => string_len(bytes)?,
        tag::OBJECT | tag::ARRAY => length_prefix(bytes, 5)?,
        tag::BINARY => length_prefix(bytes, 0)?
            .checked_add(5)
            .ok_or(BsonCause::BadLength)?,
        tag::REGEX => {
            let pattern = c_string_len(bytes)?;
            let options = bytes.get(pattern..).ok_or(BsonCause::Truncated)?;
            pattern + c_string_len(options)?
        }
        tag::DB_POINTER => string_len(bytes)?
            .checked_add(12)
            .ok_or(BsonCause::BadLength)?,
        // Length, then at least an empty string (5) and an empty document (5).
        tag::CODE_WITH_SCOPE => length_prefix(bytes, 14)?,
        _ => return Err(BsonCause::UnknownType),
    })
}

fn string_len(bytes: &[u8]) -> Result<usize, BsonCause> {
    length_prefix(bytes, 1)?
        .checked_add(4)
        .ok_or(BsonCause::BadLength)
}

fn length_prefix(bytes: &[u8], least: usize) -> Result<usize, BsonCause> {
    let prefix = bytes.first_chunk().ok_or(BsonCause::Truncated)?;
    let len = usize::try_from(i32::from_le_bytes(*prefix)).map_err(|_| BsonCause::BadLength)?;
    if len < least {
        return Err(BsonCause::BadLength);
    }
    Ok(len)
}

/// Returns the length of a C string including its zero byte.
fn c_string_len(bytes: &[u8]) -> Result<usize, BsonCause> {
    let zero = bytes.iter().position(|&byte| byte == 0);
    zero.map(|at| at + 1).ok_or(BsonCause::MissingTerminator)
}

fn check_terminator(string: &[u8]) -> Result<(), BsonCause> {
    if string.last() == Some(&0) {
        Ok(())
    } else {
        Err(BsonCause::MissingTerminator)
    }
}
