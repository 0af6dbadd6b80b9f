//! Decoding of keys.

use std::sync::Arc;

use super::number::{self, Digits, Magnitude};
use super::type_bits::{StoredType, TypeBitsReader};
use super::{DEPTH_MAX, END, ESCAPE, KeyOrder, lead};
use crate::document::{Document, DocumentBuilder};
use crate::value::{Array, Binary, CodeWithScope, DbPointer, ObjectId, Regex, Timestamp, Value};

/// Why bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyStringError {
    /// The key ends within a component.
    #[error("index key is truncated")]
    Truncated,
    /// No type has this lead byte.
    #[error("unknown lead byte {0:#04x} in index key")]
    Lead(u8),
    /// A 00 in a string is followed by this byte.
    #[error("invalid escape {0:#04x} in index key")]
    Escape(u8),
    /// A string or name is not UTF-8: the key belongs to a collated index, or is damaged.
    #[error("text in index key is not UTF-8")]
    Text,
    /// The type bits do not match the key.
    #[error("type bits do not fit the index key")]
    TypeBits,
    /// Nested deeper than [`DEPTH_MAX`].
    #[error("index key is nested too deep")]
    Depth,
}

/// Decodes the first `components` values of a key; returns them and the remaining bytes.
pub fn decode<'a>(
    key: &'a [u8],
    order: KeyOrder,
    components: usize,
    type_bits: &[u8],
) -> Result<(Vec<Value>, &'a [u8]), KeyStringError> {
    let mut decoder = Decoder {
        rest: key,
        mask: 0,
        kinds: TypeBitsReader::new(type_bits)?,
    };
    let mut values = Vec::with_capacity(components.min(super::COMPONENTS_MAX));
    for component in 0..components {
        decoder.mask = if order.is_descending(component) {
            0xFF
        } else {
            0
        };
        values.push(decoder.value(DEPTH_MAX)?);
    }
    Ok((values, decoder.rest))
}

/// Skips the first `components` values of a key; returns the remaining bytes.
pub fn skip(key: &[u8], order: KeyOrder, components: usize) -> Result<&[u8], KeyStringError> {
    // Type bits affect only the decoded values, so empty ones are sufficient to skip.
    let mut decoder = Decoder {
        rest: key,
        mask: 0,
        kinds: TypeBitsReader::new(&[])?,
    };
    for component in 0..components {
        decoder.mask = if order.is_descending(component) {
            0xFF
        } else {
            0
        };
        decoder.skip(DEPTH_MAX)?;
    }
    Ok(decoder.rest)
}

/// Reads bytes of a key, inverting those of descending components.
struct Decoder<'a, 'b> {
    rest: &'a [u8],
    mask: u8,
    kinds: TypeBitsReader<'b>,
}

impl Decoder<'_, '_> {
    fn byte(&mut self) -> Result<u8, KeyStringError> {
        let (&first, rest) = self.rest.split_first().ok_or(KeyStringError::Truncated)?;
        self.rest = rest;
        Ok(first ^ self.mask)
    }

    fn peek(&self) -> Result<u8, KeyStringError> {
        let first = self.rest.first().ok_or(KeyStringError::Truncated)?;
        Ok(first ^ self.mask)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], KeyStringError> {
        let (mut bytes, rest) = match self.rest.split_first_chunk::<N>() {
            Some((bytes, rest)) => (*bytes, rest),
            None => return Err(KeyStringError::Truncated),
        };
        self.rest = rest;
        for byte in &mut bytes {
            *byte ^= self.mask;
        }
        Ok(bytes)
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, KeyStringError> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(KeyStringError::Truncated)?;
        self.rest = rest;
        Ok(bytes.iter().map(|b| b ^ self.mask).collect())
    }

    fn length(&mut self) -> Result<usize, KeyStringError> {
        let length = u32::from_be_bytes(self.array()?);
        usize::try_from(length).map_err(|_| KeyStringError::Truncated)
    }

    fn u64(&mut self) -> Result<u64, KeyStringError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn value(&mut self, depth: usize) -> Result<Value, KeyStringError> {
        let depth = depth.checked_sub(1).ok_or(KeyStringError::Depth)?;
        Ok(match self.byte()? {
            lead::MIN_KEY => Value::MinKey,
            lead::UNDEFINED => Value::Undefined,
            lead::NULL => Value::Null,
            lead @ lead::NAN..=lead::LARGE => {
                let (negative, size) = self.size(lead)?;
                let kind = self.kinds.take()?;
                number::rebuild(negative, size, kind)?.into()
            }
            lead::STRING => {
                let text = self.text()?;
                match self.kinds.take()? {
                    None => Value::String(text.into()),
                    Some(StoredType::Symbol) => Value::Symbol(text.into()),
                    Some(_) => return Err(KeyStringError::TypeBits),
                }
            }
            lead::OBJECT => Value::Document(self.object(depth)?),
            lead::ARRAY => {
                let mut out = DocumentBuilder::new();
                let mut count = 0;
                while self.peek()? != END {
                    let value = self.value(depth)?;
                    out.append_indexed(count, value.as_ref());
                    count += 1;
                }
                self.byte()?;
                Value::Array(Array::from_document(out.finish()))
            }
            lead::BINARY => {
                let length = match self.byte()? {
                    0xFF => self.length()?,
                    short => short.into(),
                };
                let subtype = self.byte()?;
                Value::Binary(Binary {
                    subtype,
                    bytes: self.bytes(length)?.into(),
                })
            }
            lead::OBJECT_ID => Value::ObjectId(ObjectId(self.array()?)),
            lead::FALSE => Value::Bool(false),
            lead::TRUE => Value::Bool(true),
            lead::DATE => Value::DateTime((self.u64()? ^ (1 << 63)) as i64),
            lead::TIMESTAMP => Value::Timestamp(Timestamp::from_u64(self.u64()?)),
            lead::REGEX => Value::Regex(Arc::new(Regex {
                pattern: self.text()?.into(),
                options: self.text()?.into(),
            })),
            lead::DB_POINTER => {
                let length = self.length()?;
                let namespace = utf8(self.bytes(length)?)?;
                Value::DbPointer(Arc::new(DbPointer {
                    namespace: namespace.into(),
                    id: ObjectId(self.array()?),
                }))
            }
            lead::CODE => Value::Code(self.text()?.into()),
            lead::CODE_WITH_SCOPE => Value::CodeWithScope(Arc::new(CodeWithScope {
                code: self.text()?.into(),
                scope: self.object(depth)?,
            })),
            lead::MAX_KEY => Value::MaxKey,
            other => return Err(KeyStringError::Lead(other)),
        })
    }

    /// Skips one component.
    fn skip(&mut self, depth: usize) -> Result<(), KeyStringError> {
        let depth = depth.checked_sub(1).ok_or(KeyStringError::Depth)?;
        match self.byte()? {
            lead @ lead::NAN..=lead::LARGE => self.size(lead).map(drop),
            lead::STRING | lead::CODE => self.unescaped().map(drop),
            lead::OBJECT => self.skip_object(depth),
            lead::ARRAY => {
                while self.peek()? != END {
                    self.skip(depth)?;
                }
                self.byte().map(drop)
            }
            lead::BINARY => {
                let length = match self.byte()? {
                    0xFF => self.length()?,
                    short => short.into(),
                };
                self.byte()?;
                self.pass(length)
            }
            lead::OBJECT_ID => self.pass(12),
            lead::DATE | lead::TIMESTAMP => self.pass(8),
            lead::REGEX => {
                self.unescaped()?;
                self.unescaped().map(drop)
            }
            lead::DB_POINTER => {
                let length = self.length()?;
                self.pass(length)?;
                self.pass(12)
            }
            lead::CODE_WITH_SCOPE => {
                self.unescaped()?;
                self.skip_object(depth)
            }
            lead::MIN_KEY
            | lead::UNDEFINED
            | lead::NULL
            | lead::FALSE
            | lead::TRUE
            | lead::MAX_KEY => Ok(()),
            other => Err(KeyStringError::Lead(other)),
        }
    }

    fn skip_object(&mut self, depth: usize) -> Result<(), KeyStringError> {
        while self.byte()? != END {
            while self.byte()? != END {}
            self.skip(depth)?;
        }
        Ok(())
    }

    fn pass(&mut self, length: usize) -> Result<(), KeyStringError> {
        self.rest = self.rest.get(length..).ok_or(KeyStringError::Truncated)?;
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<Document, KeyStringError> {
        let mut out = DocumentBuilder::new();
        while self.byte()? != END {
            let mut name = Vec::new();
            loop {
                match self.byte()? {
                    END => break,
                    byte => name.push(byte),
                }
            }
            let value = self.value(depth)?;
            out.append(&utf8(name)?, value);
        }
        Ok(out.finish())
    }

    fn text(&mut self) -> Result<String, KeyStringError> {
        utf8(self.unescaped()?)
    }

    fn unescaped(&mut self) -> Result<Vec<u8>, KeyStringError> {
        let mut out = Vec::new();
        loop {
            match self.byte()? {
                END => match self.byte()? {
                    END => return Ok(out),
                    ESCAPE => out.push(0),
                    other => return Err(KeyStringError::Escape(other)),
                },
                byte => out.push(byte),
            }
        }
    }

    /// Decodes sign and size of the number after its lead byte.
    fn size(&mut self, lead: u8) -> Result<(bool, Magnitude), KeyStringError> {
        match lead {
            lead::NAN => return Ok((false, Magnitude::Nan)),
            lead::ZERO => return Ok((false, Magnitude::Zero)),
            _ => {}
        }
        let negative = lead < lead::ZERO;
        let outer = self.mask;
        if negative {
            self.mask ^= 0xFF;
        }
        let size = match lead {
            lead::SMALL | lead::NEGATIVE_SMALL | lead::LARGE | lead::NEGATIVE_LARGE => {
                let bits = self.u64()?;
                Magnitude::Double {
                    cut: f64::from_bits(bits >> 1),
                    inexact: self.digits(bits & 1 == 1)?,
                }
            }
            lead::WHOLE_1..=lead::WHOLE_8 => self.whole(lead - lead::WHOLE_1 + 1)?,
            lead::NEGATIVE_WHOLE_8..=lead::NEGATIVE_WHOLE_1 => {
                self.whole(lead::NEGATIVE_WHOLE_1 - lead + 1)?
            }
            other => return Err(KeyStringError::Lead(other)),
        };
        self.mask = outer;
        Ok((negative, size))
    }

    fn whole(&mut self, count: u8) -> Result<Magnitude, KeyStringError> {
        let bits = self.big_endian(count)?;
        let (fraction, inexact) = if bits & 1 == 1 {
            let bits = self.big_endian(7)?;
            (bits >> 1, self.digits(bits & 1 == 1)?)
        } else {
            (0, None)
        };
        Ok(Magnitude::Whole {
            whole: bits >> 1,
            fraction,
            inexact,
        })
    }

    fn big_endian(&mut self, count: u8) -> Result<u64, KeyStringError> {
        let mut value = 0;
        for _ in 0..count {
            value = (value << 8) | u64::from(self.byte()?);
        }
        Ok(value)
    }

    fn digits(&mut self, inexact: bool) -> Result<Option<Digits>, KeyStringError> {
        if !inexact {
            return Ok(None);
        }
        Ok(Some(Digits::from_bytes(self.array()?, self.array()?)))
    }
}

fn utf8(bytes: Vec<u8>) -> Result<String, KeyStringError> {
    String::from_utf8(bytes).map_err(|_| KeyStringError::Text)
}
