//! Values as text for CSV.

use nilometer_bson::ValueRef;
use nilometer_bson::extjson::{format_date, value_to_relaxed};

/// Returns a value in the form that `nilometer import` reads.
pub(crate) fn csv_text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Missing | ValueRef::Null => String::new(),
        ValueRef::String(text) => text.to_owned(),
        ValueRef::Int32(number) => number.to_string(),
        ValueRef::Int64(number) => number.to_string(),
        ValueRef::Double(number) => number.to_string(),
        ValueRef::Bool(value) => value.to_string(),
        ValueRef::ObjectId(id) => id.to_hex(),
        ValueRef::DateTime(ms) => format_date(ms).unwrap_or_else(|| ms.to_string()),
        other => value_to_relaxed(other),
    }
}

/// Returns a line of CSV with its end.
pub(crate) fn csv_line<'a>(values: impl Iterator<Item = &'a str>) -> Result<Vec<u8>, String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(values).map_err(|e| e.to_string())?;
    writer.into_inner().map_err(|e| e.to_string())
}
