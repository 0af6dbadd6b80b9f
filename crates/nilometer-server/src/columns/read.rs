//! Arrow arrays as documents.
//!
//! | a column of | is |
//! |---|---|
//! | what [`super`] writes | the BSON type that it was |
//! | booleans | a boolean |
//! | signed integers of up to 32 bits, unsigned ones of up to 16 | an `int` |
//! | other integers, times of day, durations | a `long`, in the unit of the column |
//! | floating point | a `double` |
//! | decimals | a `decimal`, if it has at most 34 digits |
//! | dates, timestamps of any unit | a date, cut to milliseconds; times without a zone count as UTC |
//! | text | a string |
//! | bytes | binary |
//! | lists, structs, maps with text for keys | an array, a document, a document |
//! | dictionaries | what their values are |
//!
//! An empty value makes no field, or `null` in a list. Dots in names make nested documents.

use arrow_array::cast::AsArray;
use arrow_array::types as t;
use arrow_array::{Array, ArrowPrimitiveType, RecordBatch};
use arrow_schema::{DataType, Field, Fields, SchemaRef, TimeUnit};
use nilometer_bson::civil_date::DAY_MS;
use nilometer_bson::extjson::parse_value;
use nilometer_bson::{Binary, Document, DocumentBuilder, ObjectId, Timestamp, Value};

use super::array::{BSON_TYPE, OBJECT_ID_BYTES, PATH, path_of};
use super::file::MADE_BY;

/// Digits of the longest Decimal128.
const DECIMAL_DIGITS_MAX: usize = 34;

/// True if the columns were written here.
pub(crate) fn is_own(schema: &SchemaRef) -> bool {
    schema.metadata().contains_key(MADE_BY)
}

/// Returns the names that lead to the values of each column. Two columns at one place, or one inside of another, are an error.
pub(crate) fn paths(schema: &SchemaRef) -> Result<Vec<Vec<String>>, String> {
    let fields = schema.fields().iter();
    let paths = fields.map(|field| {
        let given = field.metadata().get(PATH).and_then(|text| path_of(text));
        given.unwrap_or_else(|| field.name().split('.').map(str::to_owned).collect())
    });
    let paths: Vec<Vec<String>> = paths.collect();
    let mut sorted: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[1].starts_with(pair[0])) {
        Some(pair) => Err(format!(
            "the columns '{}' and '{}' have one place",
            pair[0].join("."),
            pair[1].join(".")
        )),
        None => Ok(paths),
    }
}

/// Returns the document of a row.
pub(crate) fn document(
    batch: &RecordBatch,
    paths: &[Vec<String>],
    at: usize,
) -> Result<Document, String> {
    let schema = batch.schema();
    let columns = batch.columns().iter().zip(schema.fields());
    let mut fields = Vec::new();
    for ((column, field), path) in columns.zip(paths) {
        let read = value(&**column, field, at);
        let read = read.map_err(|what| format!("the column '{}' holds {what}", field.name()))?;
        if let Some(read) = read {
            fields.push((path.as_slice(), read));
        }
    }
    Ok(nested(fields))
}

/// Nests values by the names that lead to them, in the order of first appearance.
fn nested(mut fields: Vec<(&[String], Value)>) -> Document {
    let mut out = DocumentBuilder::new();
    while !fields.is_empty() {
        let (path, value) = fields.remove(0);
        let Some((first, rest)) = path.split_first() else {
            continue;
        };
        if rest.is_empty() {
            out.append(first, value);
            continue;
        }
        let mut inside = vec![(rest, value)];
        let (mut same, mut beside) = (Vec::new(), Vec::new());
        for (path, value) in fields {
            match path.split_first() {
                Some((name, rest)) if name == first => same.push((rest, value)),
                _ => beside.push((path, value)),
            }
        }
        inside.append(&mut same);
        out.append(first, nested(inside));
        fields = beside;
    }
    out.finish()
}

/// Returns a value; `None` if it is empty.
fn value(array: &dyn Array, field: &Field, at: usize) -> Result<Option<Value>, String> {
    if array.is_null(at) {
        return Ok(None);
    }
    let bson_type = field.metadata().get(BSON_TYPE).map(String::as_str);
    Ok(Some(match array.data_type() {
        DataType::Null => return Ok(None),
        DataType::Boolean => Value::Bool(array.as_boolean().value(at)),
        kind if kind.is_floating() || kind.is_integer() && *kind != DataType::UInt64 => {
            number(array, at)?
        }
        DataType::UInt64 => {
            let number = primitive::<t::UInt64Type>(array, at);
            match bson_type {
                Some("timestamp") => Value::Timestamp(Timestamp::from_u64(number)),
                _ => Value::Int64(
                    i64::try_from(number)
                        .map_err(|_| format!("{number}, which is more than a long can be"))?,
                ),
            }
        }
        DataType::Date32 => {
            Value::DateTime(i64::from(primitive::<t::Date32Type>(array, at)) * DAY_MS)
        }
        DataType::Date64 => Value::DateTime(primitive::<t::Date64Type>(array, at)),
        DataType::Timestamp(unit, _) => timestamp(array, *unit, at)?,
        DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_) => elapsed(array, at)?,
        DataType::Utf8 => text(array.as_string::<i32>().value(at), bson_type)?,
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(at), bson_type)?,
        DataType::Utf8View => text(array.as_string_view().value(at), bson_type)?,
        DataType::Binary => bytes(array.as_binary::<i32>().value(at), bson_type)?,
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(at), bson_type)?,
        DataType::BinaryView => bytes(array.as_binary_view().value(at), bson_type)?,
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(at), bson_type)?,
        DataType::Decimal128(_, _) => decimal(
            &array
                .as_primitive::<t::Decimal128Type>()
                .value_as_string(at),
        )?,
        DataType::Decimal256(_, _) => decimal(
            &array
                .as_primitive::<t::Decimal256Type>()
                .value_as_string(at),
        )?,
        DataType::List(inner) => list(&array.as_list::<i32>().value(at), inner)?,
        DataType::LargeList(inner) => list(&array.as_list::<i64>().value(at), inner)?,
        DataType::FixedSizeList(inner, _) => list(&array.as_fixed_size_list().value(at), inner)?,
        DataType::Struct(fields) => structure(array, fields, at)?,
        DataType::Map(entries, _) => map(&array.as_map().value(at), entries)?,
        DataType::Dictionary(_, _) => {
            let dictionary = array.as_any_dictionary();
            let key = key_at(dictionary.keys(), at);
            let key = key.filter(|key| *key < dictionary.values().len());
            let key = key.ok_or("a number that is not in its dictionary")?;
            return value(&**dictionary.values(), field, key);
        }
        other => {
            return Err(format!(
                "values of the type {other}, for which there is no type"
            ));
        }
    }))
}

/// Returns a number that a BSON type holds.
fn number(array: &dyn Array, at: usize) -> Result<Value, String> {
    Ok(match array.data_type() {
        DataType::Int8 => Value::Int32(primitive::<t::Int8Type>(array, at).into()),
        DataType::Int16 => Value::Int32(primitive::<t::Int16Type>(array, at).into()),
        DataType::Int32 => Value::Int32(primitive::<t::Int32Type>(array, at)),
        DataType::UInt8 => Value::Int32(primitive::<t::UInt8Type>(array, at).into()),
        DataType::UInt16 => Value::Int32(primitive::<t::UInt16Type>(array, at).into()),
        DataType::UInt32 => Value::Int64(primitive::<t::UInt32Type>(array, at).into()),
        DataType::Int64 => Value::Int64(primitive::<t::Int64Type>(array, at)),
        DataType::Float16 => Value::Double(primitive::<t::Float16Type>(array, at).to_f64()),
        DataType::Float32 => Value::Double(primitive::<t::Float32Type>(array, at).into()),
        DataType::Float64 => Value::Double(primitive::<t::Float64Type>(array, at)),
        other => return Err(format!("no number, but {other}")),
    })
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, at: usize) -> T::Native {
    array.as_primitive::<T>().value(at)
}

/// Returns the number of a dictionary's value.
fn key_at(keys: &dyn Array, at: usize) -> Option<usize> {
    match keys.data_type() {
        DataType::Int8 => usize::try_from(primitive::<t::Int8Type>(keys, at)).ok(),
        DataType::Int16 => usize::try_from(primitive::<t::Int16Type>(keys, at)).ok(),
        DataType::Int32 => usize::try_from(primitive::<t::Int32Type>(keys, at)).ok(),
        DataType::Int64 => usize::try_from(primitive::<t::Int64Type>(keys, at)).ok(),
        DataType::UInt8 => Some(primitive::<t::UInt8Type>(keys, at).into()),
        DataType::UInt16 => Some(primitive::<t::UInt16Type>(keys, at).into()),
        DataType::UInt32 => usize::try_from(primitive::<t::UInt32Type>(keys, at)).ok(),
        DataType::UInt64 => usize::try_from(primitive::<t::UInt64Type>(keys, at)).ok(),
        _ => None,
    }
}

fn timestamp(array: &dyn Array, unit: TimeUnit, at: usize) -> Result<Value, String> {
    let ms = match unit {
        TimeUnit::Second => {
            let seconds = primitive::<t::TimestampSecondType>(array, at);
            seconds.checked_mul(1000).ok_or("a time that is no date")?
        }
        TimeUnit::Millisecond => primitive::<t::TimestampMillisecondType>(array, at),
        TimeUnit::Microsecond => {
            primitive::<t::TimestampMicrosecondType>(array, at).div_euclid(1000)
        }
        TimeUnit::Nanosecond => {
            primitive::<t::TimestampNanosecondType>(array, at).div_euclid(1_000_000)
        }
    };
    Ok(Value::DateTime(ms))
}

/// Returns a time of day or a duration in the unit of its column.
fn elapsed(array: &dyn Array, at: usize) -> Result<Value, String> {
    Ok(Value::Int64(match array.data_type() {
        DataType::Time32(TimeUnit::Second) => primitive::<t::Time32SecondType>(array, at).into(),
        DataType::Time32(_) => primitive::<t::Time32MillisecondType>(array, at).into(),
        DataType::Time64(TimeUnit::Microsecond) => primitive::<t::Time64MicrosecondType>(array, at),
        DataType::Time64(_) => primitive::<t::Time64NanosecondType>(array, at),
        DataType::Duration(TimeUnit::Second) => primitive::<t::DurationSecondType>(array, at),
        DataType::Duration(TimeUnit::Millisecond) => {
            primitive::<t::DurationMillisecondType>(array, at)
        }
        DataType::Duration(TimeUnit::Microsecond) => {
            primitive::<t::DurationMicrosecondType>(array, at)
        }
        DataType::Duration(TimeUnit::Nanosecond) => {
            primitive::<t::DurationNanosecondType>(array, at)
        }
        _ => return Err("no time".into()),
    }))
}

fn text(text: &str, bson_type: Option<&str>) -> Result<Value, String> {
    match bson_type {
        Some("decimal") => decimal(text),
        Some("json") => parse_value(text).map_err(|e| format!("no extended JSON: {e}")),
        _ => Ok(text.into()),
    }
}

fn bytes(bytes: &[u8], bson_type: Option<&str>) -> Result<Value, String> {
    if bson_type == Some("objectId") {
        let id = <[u8; OBJECT_ID_BYTES as usize]>::try_from(bytes);
        return match id {
            Ok(id) => Ok(ObjectId(id).into()),
            Err(_) => Err(format!("{} bytes, which are no ObjectId", bytes.len())),
        };
    }
    let subtype = bson_type.map_or(Ok(0), str::parse::<u8>);
    Ok(Value::from(Binary {
        subtype: subtype.map_err(|_| "bytes of an unknown type")?,
        bytes: bytes.into(),
    }))
}

fn decimal(text: &str) -> Result<Value, String> {
    let value = nilometer_bson::Decimal128::parse_exact(text);
    value
        .map(Value::from)
        .map_err(|_| format!("{text}, which is no decimal of up to {DECIMAL_DIGITS_MAX} digits"))
}

fn list(values: &dyn Array, inner: &Field) -> Result<Value, String> {
    let values = (0..values.len()).map(|at| Ok(value(values, inner, at)?.unwrap_or(Value::Null)));
    Ok(Value::from(values.collect::<Result<Vec<Value>, String>>()?))
}

fn structure(array: &dyn Array, fields: &Fields, at: usize) -> Result<Value, String> {
    let columns = array.as_struct().columns().iter();
    let mut out = DocumentBuilder::new();
    for (column, field) in columns.zip(fields) {
        if let Some(inner) = value(&**column, field, at)? {
            out.append(field.name(), inner);
        }
    }
    Ok(out.finish().into())
}

fn map(entries: &arrow_array::StructArray, field: &Field) -> Result<Value, String> {
    let (DataType::Struct(fields), [keys, values]) = (field.data_type(), entries.columns()) else {
        return Err("a map without keys and values".into());
    };
    let [key_field, value_field] = &fields[..] else {
        return Err("a map without keys and values".into());
    };
    let mut out = DocumentBuilder::new();
    for at in 0..entries.len() {
        let Some(Value::String(key)) = value(&**keys, key_field, at)? else {
            return Err("a map whose keys are not text".into());
        };
        if let Some(held) = value(&**values, value_field, at)? {
            out.append(&key, held);
        }
    }
    Ok(out.finish().into())
}
