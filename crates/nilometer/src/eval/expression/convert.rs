//! Conversion between types: `$convert`, its short forms `$toBool $toDate $toDecimal $toDouble $toInt
//! $toLong $toObjectId $toString $toUUID`, and `$type`, `$isNumber`.
//!
//! `$convert: {input, to, onError?, onNull?, format?}`. `to` is a type's name or number, or `{type,
//! subtype}`. A null input gives `onNull` or null, a null `to` gives null; a failed conversion
//! gives `onError`, or error 241. Unknown or absent members are error 9, an unknown type error 2.
//!
//! ```text
//! to        from                                          rule
//! bool      bool, numbers, and string, id, date, …        zero is false, everything else true
//! int long  bool, numbers, string; date to long           cut off towards zero, within range
//! double    bool, numbers, string, date                   decimals within range
//! decimal   bool, numbers, string, date                   doubles with 15 digits
//! date      double, long, decimal, string, id, timestamp  milliseconds; not from int
//! objectId  string                                        24 hexadecimal digits
//! string    bool, numbers, id, date, binData              dates in ISO form
//! binData   string                                        by format: base64, base64url, hex, utf8, uuid
//! ```

use std::sync::Arc;

use nilometer_bson::number::{ConversionError, Number, format_f64};
use nilometer_bson::value::Binary;
use nilometer_bson::{Decimal128, ObjectId, Value, ValueRef, type_code};

use super::binary_text::{self, BinaryFormat};
use super::date_arguments::date_ms;
use super::evaluated::Evaluated;
use super::numeric::integral;
use super::operation::{CallContext, Operation, arg};
use super::registry::{NamedArguments, optional, required};
use super::scope::Scope;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::date::{DateFormat, parse_date};

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: ErrorCode::FailedToParse.0,
    unknown: ErrorCode::FailedToParse.0,
    fields: &[
        required("input", ErrorCode::FailedToParse.0),
        required("to", ErrorCode::FailedToParse.0),
        optional("onError"),
        optional("onNull"),
        optional("format"),
    ],
};

/// Subtype of a UUID.
const UUID: u8 = 4;

/// The type to convert to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ConversionTarget {
    Double,
    String,
    Binary {
        subtype: u8,
    },
    ObjectId,
    Bool,
    Date,
    Int,
    Long,
    Decimal,
    /// A type that is not a valid target.
    Other(&'static str),
}

impl ConversionTarget {
    fn name(self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::String => "string",
            Self::Binary { .. } => "binData",
            Self::ObjectId => "objectId",
            Self::Bool => "bool",
            Self::Date => "date",
            Self::Int => "int",
            Self::Long => "long",
            Self::Decimal => "decimal",
            Self::Other(name) => name,
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "double" => Self::Double,
            "string" => Self::String,
            "binData" => Self::Binary { subtype: 0 },
            "objectId" => Self::ObjectId,
            "bool" => Self::Bool,
            "date" => Self::Date,
            "int" => Self::Int,
            "long" => Self::Long,
            "decimal" => Self::Decimal,
            _ => Self::Other(other_type(name)?),
        })
    }

    fn of_code(code: i64) -> Option<Self> {
        let code = match code {
            -1 => type_code::MIN_KEY,
            code => u8::try_from(code).ok()?,
        };
        Some(match code {
            type_code::DOUBLE => Self::Double,
            type_code::STRING => Self::String,
            type_code::BINARY => Self::Binary { subtype: 0 },
            type_code::OBJECT_ID => Self::ObjectId,
            type_code::BOOL => Self::Bool,
            type_code::DATE_TIME => Self::Date,
            type_code::INT32 => Self::Int,
            type_code::INT64 => Self::Long,
            type_code::DECIMAL128 => Self::Decimal,
            type_code::DOCUMENT => Self::Other("object"),
            type_code::ARRAY => Self::Other("array"),
            type_code::UNDEFINED => Self::Other("undefined"),
            type_code::NULL => Self::Other("null"),
            type_code::REGEX => Self::Other("regex"),
            type_code::DB_POINTER => Self::Other("dbPointer"),
            type_code::CODE => Self::Other("javascript"),
            type_code::SYMBOL => Self::Other("symbol"),
            type_code::CODE_WITH_SCOPE => Self::Other("javascriptWithScope"),
            type_code::TIMESTAMP => Self::Other("timestamp"),
            type_code::MIN_KEY => Self::Other("minKey"),
            type_code::MAX_KEY => Self::Other("maxKey"),
            0 => Self::Other("missing"),
            _ => return None,
        })
    }

    /// Parses the `to` argument.
    fn parse(value: ValueRef<'_>) -> Result<Self> {
        match value {
            ValueRef::String(name) => Self::of_name(name)
                .ok_or_else(|| Error::bad_value(format!("Unknown type name: {name}"))),
            ValueRef::Document(doc) => {
                if let Some(other) = doc.iter().find(|e| !matches!(e.name(), "type" | "subtype")) {
                    return Err(Error::failed_to_parse(format!(
                        "$convert found an unknown argument: {}",
                        other.name()
                    )));
                }
                let target = match doc.get("type") {
                    ValueRef::Document(_) | ValueRef::Missing => {
                        return Err(Error::failed_to_parse(
                            "$convert requires 'to' to name a 'type'",
                        ));
                    }
                    name => Self::parse(name)?,
                };
                match (target, doc.get("subtype")) {
                    (target, ValueRef::Missing) => Ok(target),
                    (Self::Binary { .. }, subtype) => integral(subtype)
                        .and_then(|subtype| u8::try_from(subtype).ok())
                        .map(|subtype| Self::Binary { subtype })
                        .ok_or_else(|| {
                            Error::bad_value(
                                "In $convert, 'subtype' must be a number from 0 to 255",
                            )
                        }),
                    (target, _) => Ok(target),
                }
            }
            number if number.is_number() => {
                let code = integral(number).ok_or_else(|| {
                    Error::failed_to_parse("In $convert, numeric 'to' argument is not an integer")
                })?;
                Self::of_code(code).ok_or_else(|| {
                    Error::failed_to_parse(format!(
                        "In $convert, numeric value for 'to' does not correspond to a BSON type: {code}"
                    ))
                })
            }
            other => Err(Error::failed_to_parse(format!(
                "$convert's 'to' argument must be a string or number, but is {}",
                other.type_name()
            ))),
        }
    }
}

/// Names of types that are not valid targets.
fn other_type(name: &str) -> Option<&'static str> {
    [
        "object",
        "array",
        "undefined",
        "null",
        "regex",
        "dbPointer",
        "javascript",
        "symbol",
        "javascriptWithScope",
        "timestamp",
        "minKey",
        "maxKey",
        "missing",
    ]
    .into_iter()
    .find(|known| *known == name)
}

fn failure(message: String) -> Error {
    Error::new(
        ErrorCode::ConversionFailure,
        format!("{message} in $convert with no onError value"),
    )
}

fn unsupported(value: ValueRef<'_>, target: ConversionTarget) -> Error {
    failure(format!(
        "Unsupported conversion from {} to {}",
        value.type_name(),
        target.name()
    ))
}

/// Converts a value other than null.
fn convert_value(
    value: ValueRef<'_>,
    target: ConversionTarget,
    format: Option<BinaryFormat>,
) -> Result<Value> {
    match target {
        ConversionTarget::Bool => to_bool(value),
        ConversionTarget::Int => to_number(value, target, |number| {
            number.to_i32_truncated().map(Number::Int)
        }),
        ConversionTarget::Long => match value {
            ValueRef::DateTime(ms) => Ok(Value::Int64(ms)),
            _ => to_number(value, target, |number| {
                number.to_i64_truncated().map(Number::Long)
            }),
        },
        ConversionTarget::Double => match value {
            ValueRef::DateTime(ms) => Ok(Value::Double(ms as f64)),
            _ => to_number(value, target, |number| {
                number.to_f64_checked().map(Number::Double)
            }),
        },
        ConversionTarget::Decimal => match value {
            ValueRef::DateTime(ms) => Ok(Decimal128::from(ms).into()),
            _ => to_number(value, target, |number| {
                Ok(Number::Decimal(number.to_decimal()))
            }),
        },
        ConversionTarget::Date => to_date(value),
        ConversionTarget::ObjectId => to_object_id(value),
        ConversionTarget::String => to_text(value, format),
        ConversionTarget::Binary { subtype } => to_binary(value, subtype, format),
        ConversionTarget::Other(name) if name == value.type_name() => Ok(value.to_value()),
        ConversionTarget::Other(_) => Err(unsupported(value, target)),
    }
}

fn to_bool(value: ValueRef<'_>) -> Result<Value> {
    Ok(Value::Bool(match value {
        ValueRef::Bool(_)
        | ValueRef::Int32(_)
        | ValueRef::Int64(_)
        | ValueRef::Double(_)
        | ValueRef::Decimal128(_) => super::is_true(value),
        _ => true,
    }))
}

fn to_number(
    value: ValueRef<'_>,
    target: ConversionTarget,
    convert: fn(Number) -> Result<Number, ConversionError>,
) -> Result<Value> {
    let number = match value {
        ValueRef::Bool(truth) => Number::Int(truth.into()),
        ValueRef::String(text) => parse_number(text, target)?,
        value => Number::of(value).ok_or_else(|| unsupported(value, target))?,
    };
    convert(number)
        .map(Value::from)
        .map_err(|error| failure(error.to_string()))
}

/// Parses a number in the form of the target type.
fn parse_number(text: &str, target: ConversionTarget) -> Result<Number> {
    let fail = |reason: &str| failure(format!("Failed to parse number '{text}': {reason}"));
    match target {
        ConversionTarget::Int | ConversionTarget::Long => {
            let number = text
                .parse::<i64>()
                .map_err(|error| fail(&error.to_string()))?;
            if target == ConversionTarget::Int && i32::try_from(number).is_err() {
                return Err(fail("out of range"));
            }
            Ok(Number::Long(number))
        }
        ConversionTarget::Double => {
            let number = text
                .parse::<f64>()
                .map_err(|error| fail(&error.to_string()))?;
            if number.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) {
                return Err(fail("out of range"));
            }
            Ok(Number::Double(number))
        }
        _ => Decimal128::parse_exact(text)
            .map(Number::Decimal)
            .map_err(|error| fail(&error.to_string())),
    }
}

fn to_date(value: ValueRef<'_>) -> Result<Value> {
    match value {
        ValueRef::Double(_) | ValueRef::Int64(_) | ValueRef::Decimal128(_) => {
            let number = Number::of(value).unwrap_or(Number::Int(0));
            number
                .to_i64_truncated()
                .map(Value::DateTime)
                .map_err(|error| failure(error.to_string()))
        }
        ValueRef::String(text) => parse_date(text, None).map(Value::DateTime),
        value => date_ms(value)
            .map(Value::DateTime)
            .ok_or_else(|| unsupported(value, ConversionTarget::Date)),
    }
}

fn to_object_id(value: ValueRef<'_>) -> Result<Value> {
    match value {
        ValueRef::ObjectId(id) => Ok(id.into()),
        ValueRef::String(text) => ObjectId::parse_hex(text)
            .map(Value::from)
            .ok_or_else(|| failure(format!("Failed to parse objectId '{text}'"))),
        other => Err(unsupported(other, ConversionTarget::ObjectId)),
    }
}

fn to_text(value: ValueRef<'_>, format: Option<BinaryFormat>) -> Result<Value> {
    Ok(match value {
        ValueRef::String(text) => text.into(),
        ValueRef::Bool(truth) => truth.to_string().into(),
        ValueRef::Int32(v) => v.to_string().into(),
        ValueRef::Int64(v) => v.to_string().into(),
        ValueRef::Double(v) => format_f64(v).into(),
        ValueRef::Decimal128(v) => v.to_string().into(),
        ValueRef::ObjectId(id) => id.to_hex().into(),
        ValueRef::DateTime(ms) => DateFormat::iso_utc(ms)?.into(),
        ValueRef::Binary { subtype, bytes } => {
            let format = format.unwrap_or(BinaryFormat::Auto);
            binary_text::encode(bytes, subtype == UUID, format)
                .ok_or_else(|| {
                    failure(format!(
                        "binData of subtype {subtype} has no such text form"
                    ))
                })?
                .into()
        }
        other => return Err(unsupported(other, ConversionTarget::String)),
    })
}

fn to_binary(value: ValueRef<'_>, subtype: u8, format: Option<BinaryFormat>) -> Result<Value> {
    match value {
        ValueRef::String(text) => {
            let Some(format) = format else {
                return Err(Error::failed_to_parse(
                    "Format must be specified when converting from 'string' to 'binData'",
                ));
            };
            let bytes = binary_text::decode(text, subtype == UUID, format)
                .ok_or_else(|| failure(format!("Input '{text}' is not in the format asked for")))?;
            Ok(Value::Binary(Binary {
                subtype,
                bytes: Arc::from(bytes),
            }))
        }
        ValueRef::Binary {
            subtype: given,
            bytes,
        } if given == subtype => Ok(Value::Binary(Binary {
            subtype,
            bytes: bytes.into(),
        })),
        ValueRef::Binary { .. } => Err(failure(
            "Conversions between different binData subtypes are not supported".to_owned(),
        )),
        other => Err(unsupported(other, ConversionTarget::Binary { subtype })),
    }
}

/// `$convert`.
pub(super) fn convert<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let input = operation.value(0, scope)?;
    let to = operation.value(1, scope)?;
    let target = if to.is_nullish() {
        None
    } else {
        Some(ConversionTarget::parse(to.as_ref())?)
    };
    if input.is_nullish() {
        return Ok(operation.optional(3, scope)?.unwrap_or(Evaluated::NULL));
    }
    let Some(target) = target else {
        return Ok(Evaluated::NULL);
    };
    let format = match operation.optional(4, scope)? {
        None => None,
        Some(format) if format.is_nullish() => return Ok(Evaluated::NULL),
        Some(format) => Some(read_format(format.as_ref())?),
    };
    match convert_value(input.as_ref(), target, format) {
        Ok(value) => Ok(Evaluated::Owned(value)),
        Err(error) if error.code == ErrorCode::ConversionFailure => {
            match operation.optional(2, scope)? {
                Some(value) => Ok(value),
                None => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn read_format(value: ValueRef<'_>) -> Result<BinaryFormat> {
    let ValueRef::String(name) = value else {
        return Err(Error::location(
            location::CONVERT_FORMAT_NOT_STRING,
            format!(
                "$convert requires that 'format' be a string, found: {}",
                value.type_name()
            ),
        ));
    };
    BinaryFormat::parse(name).ok_or_else(|| {
        Error::location(
            location::CONVERT_FORMAT_UNKNOWN,
            format!("Invalid 'format' argument for $convert: {name}"),
        )
    })
}

/// Evaluates the short forms.
pub(super) fn to_type<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let value = arg(values, 0).as_ref();
    if value.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let (target, format) = match call.name {
        "$toBool" => (ConversionTarget::Bool, None),
        "$toDate" => (ConversionTarget::Date, None),
        "$toDecimal" => (ConversionTarget::Decimal, None),
        "$toDouble" => (ConversionTarget::Double, None),
        "$toInt" => (ConversionTarget::Int, None),
        "$toLong" => (ConversionTarget::Long, None),
        "$toObjectId" => (ConversionTarget::ObjectId, None),
        "$toUUID" => (
            ConversionTarget::Binary { subtype: UUID },
            Some(BinaryFormat::Uuid),
        ),
        _ => (ConversionTarget::String, None),
    };
    convert_value(value, target, format).map(Evaluated::Owned)
}

pub(super) fn type_name<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let name = arg(values, 0).type_name();
    Ok(Evaluated::Borrowed(ValueRef::String(name)))
}

pub(super) fn is_number<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    Ok(Evaluated::from(arg(values, 0).as_ref().is_number()))
}

#[cfg(test)]
mod tests;
