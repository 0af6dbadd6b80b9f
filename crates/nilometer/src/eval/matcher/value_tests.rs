//! `$type`, `$mod`, `$size` and the bit tests: tests of one value that are not comparisons.

use nilometer_bson::{ValueRef, type_code as t};

use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::comparison::is_nan;
use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::number::Number;

/// Type codes with their names in `$type` and `bsonType`.
pub const TYPE_NAMES: &[(&str, u8)] = &[
    ("double", t::DOUBLE),
    ("string", t::STRING),
    ("object", t::DOCUMENT),
    ("array", t::ARRAY),
    ("binData", t::BINARY),
    ("undefined", t::UNDEFINED),
    ("objectId", t::OBJECT_ID),
    ("bool", t::BOOL),
    ("date", t::DATE_TIME),
    ("null", t::NULL),
    ("regex", t::REGEX),
    ("dbPointer", t::DB_POINTER),
    ("javascript", t::CODE),
    ("symbol", t::SYMBOL),
    ("javascriptWithScope", t::CODE_WITH_SCOPE),
    ("int", t::INT32),
    ("timestamp", t::TIMESTAMP),
    ("long", t::INT64),
    ("decimal", t::DECIMAL128),
    ("minKey", t::MIN_KEY),
    ("maxKey", t::MAX_KEY),
];

/// The types of "number".
const NUMBER_TYPES: [u8; 4] = [t::DOUBLE, t::INT32, t::INT64, t::DECIMAL128];

/// A set of BSON types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeSet {
    bits: u32,
    /// True if the set contains the name "number", which is then shown.
    number: bool,
}

impl TypeSet {
    /// The empty set.
    pub const EMPTY: Self = Self {
        bits: 0,
        number: false,
    };

    /// Returns the bit of a type byte. MinKey and MaxKey use the two bits that no other type has.
    fn bit(code: u8) -> u32 {
        match code {
            t::MIN_KEY => 1 << 30,
            t::MAX_KEY => 1 << 31,
            1..=0x13 => 1 << code,
            _ => 0,
        }
    }

    /// Adds a type by its type byte.
    pub fn insert(&mut self, code: u8) {
        self.bits |= Self::bit(code);
    }

    /// True for the type byte of a number type.
    pub fn is_number_code(code: u8) -> bool {
        NUMBER_TYPES.contains(&code)
    }

    /// Adds the four number types.
    pub fn insert_number(&mut self) {
        self.number = true;
        for code in NUMBER_TYPES {
            self.insert(code);
        }
    }

    /// True if a value of this type byte is in the set.
    pub fn contains(self, code: u8) -> bool {
        self.bits & Self::bit(code) != 0
    }

    /// True if `value` is of a type in the set.
    pub fn test(self, value: ValueRef<'_>) -> bool {
        self.contains(value.type_code())
    }

    /// True if the set contains the name "number".
    pub fn is_number(self) -> bool {
        self.number
    }

    /// Returns the type bytes in the set, in the order of their codes.
    pub fn codes(self) -> impl Iterator<Item = u8> {
        TYPE_NAMES
            .iter()
            .map(|(_, code)| *code)
            .filter(move |code| self.contains(*code))
    }

    /// Adds the type called `name`, including "number".
    pub fn insert_name(&mut self, name: &str) -> Result<()> {
        if name == "number" {
            self.insert_number();
            return Ok(());
        }
        let code = TYPE_NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, code)| *code)
            .ok_or_else(|| Error::bad_value(format!("Unknown type name alias: {name}")))?;
        self.insert(code);
        Ok(())
    }

    /// Parses the operand of `$type`: a name, a number, or an array of them.
    pub fn parse(operand: ValueRef<'_>, path: &str) -> Result<Self> {
        let mut set = Self::EMPTY;
        match operand {
            ValueRef::Array(array) => {
                for element in array.iter() {
                    set.insert_operand(element)?;
                }
                if set == Self::EMPTY {
                    return Err(Error::failed_to_parse(format!(
                        "{path} must match at least one type"
                    )));
                }
            }
            single => set.insert_operand(single)?,
        }
        Ok(set)
    }

    fn insert_operand(&mut self, operand: ValueRef<'_>) -> Result<()> {
        match operand {
            ValueRef::String(name) => self.insert_name(name),
            number if number.is_number() => {
                let code = exact_i64(number);
                match code {
                    Some(0) => Err(Error::bad_value(
                        "Invalid numerical type code: 0. Instead use {$exists:false}.",
                    )),
                    Some(-1) => {
                        self.insert(t::MIN_KEY);
                        Ok(())
                    }
                    Some(code @ (1..=0x13 | 127)) => {
                        self.insert(code as u8);
                        Ok(())
                    }
                    _ => Err(Error::bad_value(format!(
                        "Invalid numerical type code: {}",
                        format_value(number)
                    ))),
                }
            }
            _ => Err(Error::type_mismatch(
                "type must be represented as a number or a string",
            )),
        }
    }
}

/// `$mod: [divisor, remainder]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModTest {
    /// Not zero.
    pub divisor: i64,
    /// Has the sign of the dividend, as in C.
    pub remainder: i64,
}

impl ModTest {
    /// Parses the operand.
    pub fn parse(operand: ValueRef<'_>) -> Result<Self> {
        let array = operand
            .as_array()
            .ok_or_else(|| Error::bad_value("malformed mod, needs to be an array"))?;
        match array.len() {
            0 | 1 => return Err(Error::bad_value("malformed mod, not enough elements")),
            2 => {}
            _ => return Err(Error::bad_value("malformed mod, too many elements")),
        }
        let divisor = Self::part(array.get(0), "divisor")?;
        let remainder = Self::part(array.get(1), "remainder")?;
        if divisor == 0 {
            return Err(Error::bad_value("divisor cannot be 0"));
        }
        Ok(Self { divisor, remainder })
    }

    fn part(value: ValueRef<'_>, name: &str) -> Result<i64> {
        if !value.is_number() {
            return Err(Error::bad_value(format!(
                "malformed mod, {name} not a number"
            )));
        }
        truncated_i64(value).ok_or_else(|| {
            let reason = if is_nan(value) || is_infinite(value) {
                "Unable to coerce NaN/Inf to integral type"
            } else {
                "Out of bounds coercing to integral value"
            };
            Error::bad_value(format!(
                "malformed mod, {name} value is invalid :: caused by :: {reason}"
            ))
        })
    }

    /// True for a number with the remainder. Fractions are truncated first.
    pub fn test(self, value: ValueRef<'_>) -> bool {
        value.is_number()
            && truncated_i64(value).is_some_and(|v| v.wrapping_rem(self.divisor) == self.remainder)
    }
}

fn is_infinite(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Double(v) => v.is_infinite(),
        ValueRef::Decimal128(v) => v.is_infinite(),
        _ => false,
    }
}

/// Parses the operand of `$size`.
pub fn parse_size(operand: ValueRef<'_>) -> Result<i64> {
    let failed = |what: &str| {
        Error::bad_value(format!(
            "Failed to parse $size. {what} in: $size: {}",
            format_value(operand)
        ))
    };
    if !operand.is_number() {
        return Err(failed("Expected a number"));
    }
    if is_infinite(operand) {
        return Err(failed("Cannot represent as a 64-bit integer"));
    }
    let size = exact_i64(operand).ok_or_else(|| failed("Expected an integer"))?;
    if size < 0 {
        return Err(failed("Expected a non-negative number"));
    }
    Ok(size)
}

/// The bit test operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitTestKind {
    /// `$bitsAllSet`
    AllSet,
    /// `$bitsAllClear`
    AllClear,
    /// `$bitsAnySet`
    AnySet,
    /// `$bitsAnyClear`
    AnyClear,
}

impl BitTestKind {
    /// Returns the operator's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllSet => "$bitsAllSet",
            Self::AllClear => "$bitsAllClear",
            Self::AnySet => "$bitsAnySet",
            Self::AnyClear => "$bitsAnyClear",
        }
    }
}

/// A test of bits, by position from the least significant one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitTest {
    /// The operator.
    pub kind: BitTestKind,
    /// Ascending, without duplicates.
    positions: Vec<u32>,
}

impl BitTest {
    /// Returns the positions, ascending.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Parses the operand: a bit mask, binary data (first byte lowest), or an array of positions.
    pub fn parse(kind: BitTestKind, operand: ValueRef<'_>, path: &str) -> Result<Self> {
        let mut positions = match operand {
            ValueRef::Array(array) => array
                .iter()
                .enumerate()
                .map(|(at, v)| position(at, v))
                .collect::<Result<Vec<_>>>()?,
            ValueRef::Binary { bytes, .. } => bits_of(bytes),
            number if number.is_number() => {
                let mask = non_negative(kind.name(), number, i64::MAX)?;
                bits_of(&mask.to_le_bytes())
            }
            other => {
                return Err(Error::failed_to_parse(format!(
                    "{path} takes an Array, a number, or a BinData but received: {}: {}",
                    kind.name(),
                    format_value(other)
                )));
            }
        };
        positions.sort_unstable();
        positions.dedup();
        Ok(Self { kind, positions })
    }

    /// True if the bits of `value` pass. Numbers are two's complement with infinite sign extension,
    /// binary data is followed by clear bits; other values have no bits and never pass.
    pub fn test(&self, value: ValueRef<'_>) -> bool {
        let is_set: &dyn Fn(u32) -> bool = match value {
            ValueRef::Binary { bytes, .. } => &move |at: u32| {
                bytes
                    .get((at / 8) as usize)
                    .is_some_and(|byte| byte >> (at % 8) & 1 == 1)
            },
            number if number.is_number() => match exact_i64(number) {
                Some(v) => &move |at: u32| v >> at.min(63) & 1 == 1,
                None => return false,
            },
            _ => return false,
        };
        let mut positions = self.positions.iter().copied();
        match self.kind {
            BitTestKind::AllSet => positions.all(is_set),
            BitTestKind::AllClear => !positions.any(is_set),
            BitTestKind::AnySet => positions.any(is_set),
            BitTestKind::AnyClear => !positions.all(is_set),
        }
    }
}

fn bits_of(bytes: &[u8]) -> Vec<u32> {
    let mut positions = Vec::new();
    for (at, byte) in (0u32..).zip(bytes) {
        positions.extend(
            (0..8)
                .filter(|bit| byte >> bit & 1 == 1)
                .map(|bit| at * 8 + bit),
        );
    }
    positions
}

fn position(at: usize, value: ValueRef<'_>) -> Result<u32> {
    if !value.is_number() {
        return Err(Error::failed_to_parse(format!(
            "Failed to parse bit position. Expected a number in: {at}: {}",
            format_value(value)
        )));
    }
    let position = non_negative(&at.to_string(), value, i64::from(i32::MAX))
        .map_err(|e| e.context("Failed to parse bit position"))?;
    Ok(u32::try_from(position).unwrap_or(u32::MAX))
}

fn non_negative(name: &str, value: ValueRef<'_>, max: i64) -> Result<i64> {
    let failed = |what: &str| {
        Error::new(
            ErrorCode::FailedToParse,
            format!("{what}: {name}: {}", format_value(value)),
        )
    };
    if is_nan(value) {
        return Err(failed("Expected an integer, but found NaN in"));
    }
    let exact = exact_i64(value);
    match exact {
        None if truncated_i64(value).is_some() => Err(failed("Expected an integer")),
        None => Err(failed("Cannot represent as a 64-bit integer")),
        Some(v) if v < 0 => Err(failed("Expected a non-negative number in")),
        Some(v) if v > max => Err(failed("bit positions must fit 32 bits")),
        Some(v) => Ok(v),
    }
}

/// Returns a number of any type as an integer; `None` for other values and for fractions.
pub(crate) fn exact_i64(value: ValueRef<'_>) -> Option<i64> {
    Number::of(value)?.to_i64_exact()
}

/// Returns the number truncated to an integer, if it fits in 64 bits.
fn truncated_i64(value: ValueRef<'_>) -> Option<i64> {
    Number::of(value)?.to_i64_truncated().ok()
}

/// Formats a value as in error messages.
pub(crate) fn format_value(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Missing => "missing".to_owned(),
        ValueRef::Double(v) if v.fract() == 0.0 && v.abs() < 1e15 => format!("{v:.1}"),
        other => value_to_relaxed(other),
    }
}
