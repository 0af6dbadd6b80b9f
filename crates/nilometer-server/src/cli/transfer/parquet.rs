//! Rows of a Parquet file as documents; behind the feature `parquet`.
//!
//! | a column of | is |
//! |---|---|
//! | booleans, numbers | a boolean, an `int` if the type has at most 32 bits and a sign or 16 without, else a `long`, a `double` |
//! | decimals | a `decimal`, if it has at most 34 digits |
//! | text, enumerations, JSON | a string |
//! | dates, timestamps of any unit | a date, cut to milliseconds; times without a zone count as UTC |
//! | times of day | the number of the column's unit since midnight |
//! | UUIDs, other bytes | binary |
//! | lists, structs, maps with text for keys | an array, a document, a document |
//!
//! Rows are numbered from 1. An empty value makes no field, or `null` in a list. Dots in column names make nested
//! documents, as in CSV.

use std::fs::File;
use std::path::Path;

use nilometer_bson::civil_date::DAY_MS;
use nilometer_bson::extjson::parse_value;
use nilometer_bson::{Binary, Document, DocumentBuilder, Value};
use parquet::basic::{LogicalType, TimeUnit};
use parquet::data_type::Decimal;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use super::csv::nested;
use crate::cli::Failure;

/// Digits of the longest Decimal128.
const DECIMAL_DIGITS_MAX: usize = 34;

/// Binary subtype of a UUID.
const SUBTYPE_UUID: u8 = 4;

/// Calls `each` for every row after the first `skip`, with its number, and its document or error.
pub(super) fn rows(
    path: &Path,
    skip: u64,
    mut each: impl FnMut(u64, Result<Document, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let bad = |e: parquet::errors::ParquetError| {
        Failure::Other(format!("{} cannot be read: {e}", path.display()))
    };
    let file = File::open(path).map_err(|e| super::no_file(path, &e))?;
    let reader = SerializedFileReader::new(file).map_err(bad)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let schema = schema.root_schema();
    let mut number = 0;
    for at in 0..reader.num_row_groups() {
        let group = reader.get_row_group(at).map_err(bad)?;
        let count = u64::try_from(group.metadata().num_rows()).unwrap_or(0);
        if number + count <= skip {
            number += count;
            continue;
        }
        for row in group.get_row_iter(None).map_err(bad)? {
            let row = row.map_err(bad)?;
            number += 1;
            if number > skip {
                each(number, document(&row, schema))?;
            }
        }
    }
    Ok(())
}

/// Returns the number of rows of a file.
pub(super) fn count(path: &Path) -> Option<u64> {
    let reader = SerializedFileReader::new(File::open(path).ok()?).ok()?;
    u64::try_from(reader.metadata().file_metadata().num_rows()).ok()
}

fn document(row: &Row, schema: &Type) -> Result<Document, String> {
    let mut fields = Vec::new();
    for (name, field) in row.get_column_iter() {
        if !matches!(field, Field::Null) {
            let read = value(field, child(schema, name));
            let read = read.map_err(|what| format!("the column '{name}' holds {what}"))?;
            fields.push((name.as_str(), read));
        }
    }
    Ok(nested(fields))
}

/// Returns the type of the field with this name.
fn child<'t>(schema: &'t Type, name: &str) -> Option<&'t Type> {
    let mut children = children(schema).iter();
    children.find(|child| child.name() == name).map(|c| &**c)
}

fn children(schema: &Type) -> &[parquet::schema::types::TypePtr] {
    match schema.is_group() {
        true => schema.get_fields(),
        false => &[],
    }
}

/// Returns the type of a list's elements: inside the repeated group, or the group itself if it has not exactly one
/// field.
fn element(schema: &Type) -> Option<&Type> {
    let repeated = children(schema).first()?;
    match children(repeated) {
        [only] => Some(only),
        _ => Some(repeated),
    }
}

/// Converts a field to a value. `schema` adds what the field does not know.
fn value(field: &Field, schema: Option<&Type>) -> Result<Value, String> {
    let logical = schema.and_then(|s| s.get_basic_info().logical_type_ref());
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::Bool(*value),
        Field::Byte(number) => Value::Int32(i32::from(*number)),
        Field::Short(number) => Value::Int32(i32::from(*number)),
        Field::Int(number) | Field::TimeMillis(number) => Value::Int32(*number),
        Field::UByte(number) => Value::Int32(i32::from(*number)),
        Field::UShort(number) => Value::Int32(i32::from(*number)),
        Field::UInt(number) => Value::Int64(i64::from(*number)),
        Field::Long(number) => match logical {
            Some(LogicalType::Timestamp(time)) if time.unit == TimeUnit::NANOS => {
                Value::DateTime(number.div_euclid(1_000_000))
            }
            _ => Value::Int64(*number),
        },
        Field::ULong(number) => Value::Int64(
            i64::try_from(*number)
                .map_err(|_| format!("{number}, which is more than a long can be"))?,
        ),
        Field::Float16(number) => Value::Double(f64::from(*number)),
        Field::Float(number) => Value::Double(f64::from(*number)),
        Field::Double(number) => Value::Double(*number),
        Field::Decimal(number) => decimal(number)?,
        Field::Str(text) => Value::from(text.as_str()),
        Field::Bytes(bytes) => {
            let is_uuid = matches!(logical, Some(LogicalType::Uuid)) && bytes.data().len() == 16;
            Value::from(Binary {
                subtype: if is_uuid { SUBTYPE_UUID } else { 0 },
                bytes: bytes.data().into(),
            })
        }
        Field::Date(days) => Value::DateTime(i64::from(*days) * DAY_MS),
        Field::TimeMicros(micros) => Value::Int64(*micros),
        Field::TimestampMillis(ms) => Value::DateTime(*ms),
        Field::TimestampMicros(micros) => Value::DateTime(micros.div_euclid(1000)),
        Field::Group(row) => {
            let mut out = DocumentBuilder::new();
            for (name, field) in row.get_column_iter() {
                if !matches!(field, Field::Null) {
                    out.append(name, value(field, schema.and_then(|s| child(s, name)))?);
                }
            }
            out.finish().into()
        }
        Field::ListInternal(list) => {
            let schema = schema.and_then(element);
            let all = list.elements().iter();
            let all: Result<Vec<Value>, String> = all.map(|field| value(field, schema)).collect();
            all?.into()
        }
        Field::MapInternal(map) => {
            let pair = schema.and_then(|s| children(s).first());
            let schema = pair.and_then(|pair| children(pair).get(1));
            let mut out = DocumentBuilder::new();
            for (key, held) in map.entries() {
                let Field::Str(key) = key else {
                    return Err("a map whose keys are not text".into());
                };
                out.append(key, value(held, schema.map(|s| &**s))?);
            }
            out.finish().into()
        }
    })
}

/// Converts a decimal: a big-endian two's complement integer and the number of digits after the point.
fn decimal(number: &Decimal) -> Result<Value, String> {
    let too_long = || format!("a decimal of more than {DECIMAL_DIGITS_MAX} digits");
    let bytes = number.data();
    let is_negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let mut whole: i128 = if is_negative { -1 } else { 0 };
    for byte in bytes {
        let shifted = whole.checked_mul(256).ok_or_else(too_long)?;
        whole = shifted | i128::from(*byte);
    }
    if whole.unsigned_abs().to_string().len() > DECIMAL_DIGITS_MAX {
        return Err(too_long());
    }
    let text = format!("{{\"$numberDecimal\": \"{whole}E{}\"}}", -number.scale());
    parse_value(&text).map_err(|e| format!("a decimal that cannot be stored: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: &Decimal) -> Result<String, String> {
        decimal(number).map(|value| nilometer_bson::extjson::value_to_relaxed(value.as_ref()))
    }

    #[test]
    fn decimals_keep_their_sign_and_their_zeros() {
        let shown = |text: &str| Ok(format!("{{\"$numberDecimal\":\"{text}\"}}"));
        assert_eq!(text(&Decimal::from_i32(-150, 9, 2)), shown("-1.50"));
        assert_eq!(text(&Decimal::from_i64(7, 18, 0)), shown("7"));
        let wide = |bytes: Vec<u8>| text(&Decimal::from_bytes(bytes.into(), 38, 1));
        assert_eq!(wide(vec![0xFF; 16]), shown("-0.1"));
        assert_eq!(wide(vec![0, 0x80]), shown("12.8"));
        assert!(wide(vec![0x7F; 16]).is_err());
        assert!(wide(vec![0x7F; 40]).is_err());
    }
}
