//! Type bits: the types of a key's numbers and strings, which the key alone does not record.

use super::decode::KeyStringError;

/// The type of a number or string that differs from the type its key decodes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredType {
    Int,
    Long,
    Double,
    /// With its exponent.
    Decimal(i32),
    /// The double minus zero.
    NegativeZero,
    /// The decimal minus zero.
    NegativeDecimalZero(i32),
    Symbol,
}

const KIND_BITS: u32 = 3;
const KIND_MASK: u8 = (1 << KIND_BITS) - 1;
/// Counts from here on continue in a varint.
const COUNT_MAX: u64 = 31;

/// Encodes the type bits of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct TypeBitsWriter {
    bytes: Vec<u8>,
    passed: u64,
}

impl TypeBitsWriter {
    /// Adds a value of the default type.
    pub(super) fn push_default(&mut self) {
        self.passed += 1;
    }

    /// Adds a value of another type.
    pub(super) fn push(&mut self, kind: StoredType) {
        let (code, exponent) = match kind {
            StoredType::Int => (0, None),
            StoredType::Long => (1, None),
            StoredType::Double => (2, None),
            StoredType::Decimal(exponent) => (3, Some(exponent)),
            StoredType::NegativeZero => (4, None),
            StoredType::NegativeDecimalZero(exponent) => (5, Some(exponent)),
            StoredType::Symbol => (6, None),
        };
        let count = self.passed.min(COUNT_MAX) as u8;
        self.bytes.push(code | (count << KIND_BITS));
        if self.passed >= COUNT_MAX {
            self.varint(self.passed - COUNT_MAX);
        }
        if let Some(exponent) = exponent {
            let zigzag = ((exponent << 1) ^ (exponent >> 31)) as u32;
            self.varint(zigzag.into());
        }
        self.passed = 0;
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Decodes the type bits of a key in order.
#[derive(Clone, Debug)]
pub(super) struct TypeBitsReader<'a> {
    bytes: &'a [u8],
    /// Values of the default type before `next`.
    passed: u64,
    next: Option<StoredType>,
}

impl<'a> TypeBitsReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, KeyStringError> {
        let mut reader = Self {
            bytes,
            passed: 0,
            next: None,
        };
        reader.load()?;
        Ok(reader)
    }

    /// Returns the type of the next number or string; `None` for the default type.
    pub(super) fn take(&mut self) -> Result<Option<StoredType>, KeyStringError> {
        if self.next.is_none() {
            return Ok(None);
        }
        if self.passed > 0 {
            self.passed -= 1;
            return Ok(None);
        }
        let kind = self.next.take();
        self.load()?;
        Ok(kind)
    }

    fn load(&mut self) -> Result<(), KeyStringError> {
        let Some((&first, rest)) = self.bytes.split_first() else {
            return Ok(());
        };
        self.bytes = rest;
        self.passed = u64::from(first >> KIND_BITS);
        if self.passed == COUNT_MAX {
            self.passed += self.varint()?;
        }
        self.next = Some(match first & KIND_MASK {
            0 => StoredType::Int,
            1 => StoredType::Long,
            2 => StoredType::Double,
            3 => StoredType::Decimal(self.exponent()?),
            4 => StoredType::NegativeZero,
            5 => StoredType::NegativeDecimalZero(self.exponent()?),
            6 => StoredType::Symbol,
            _ => return Err(KeyStringError::TypeBits),
        });
        Ok(())
    }

    fn exponent(&mut self) -> Result<i32, KeyStringError> {
        let zigzag = u32::try_from(self.varint()?).map_err(|_| KeyStringError::TypeBits)?;
        Ok((zigzag >> 1) as i32 ^ -((zigzag & 1) as i32))
    }

    fn varint(&mut self) -> Result<u64, KeyStringError> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.bytes.split_first().ok_or(KeyStringError::TypeBits)?;
            self.bytes = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(KeyStringError::TypeBits)
    }
}
