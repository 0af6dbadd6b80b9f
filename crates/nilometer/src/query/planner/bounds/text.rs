//! Formats bounds for explain: `["[5, 5]"]`, `["(5.0, inf.0]"]`, in the direction of the scan.

use std::fmt::Write as _;

use nilometer_bson::order::{CanonicalType, canonical_type};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::{IndexBounds, IndexShape, Interval};

/// Greatest size in bytes of one formatted string. Longer ones are cut, as they are only shown.
const TEXT_BYTES_MAX: usize = 1024;

impl IndexBounds {
    /// Returns the bounds by path, for a forward or backward scan.
    pub fn explain(&self, shape: &IndexShape, backward: bool) -> Document {
        let mut out = DocumentBuilder::new();
        for (bounds, part) in self.parts.iter().zip(&shape.parts) {
            let turned = part.descending != backward;
            let mut texts: Vec<Value> = bounds
                .intervals
                .iter()
                .map(|interval| Value::from(text(interval, turned, shape)))
                .collect();
            if turned {
                texts.reverse();
            }
            out.append(&part.path, texts);
        }
        out.finish()
    }
}

fn text(interval: &Interval, turned: bool, shape: &IndexShape) -> String {
    let low = (&interval.low, interval.low_inclusive);
    let high = (&interval.high, interval.high_inclusive);
    let (first, last) = if turned { (high, low) } else { (low, high) };
    let mut out = String::new();
    out.push(if first.1 { '[' } else { '(' });
    value(first.0.as_ref(), shape, &mut out);
    out.push_str(", ");
    value(last.0.as_ref(), shape, &mut out);
    out.push(if last.1 { ']' } else { ')' });
    if out.len() > TEXT_BYTES_MAX {
        let mut end = TEXT_BYTES_MAX;
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        out.push_str("...");
    }
    out
}

/// Formats one value. Writing to a string does not fail.
// long function: one arm per type.
fn value(shown: ValueRef<'_>, shape: &IndexShape, out: &mut String) {
    let hex = |bytes: &[u8], out: &mut String| {
        for byte in bytes {
            let _ = write!(out, "{byte:02X}");
        }
    };
    if let Some(collator) = shape.collator()
        && canonical_type(shown) == CanonicalType::String
        && let Some(text) = as_text(shown)
    {
        let mut key = Vec::new();
        collator.sort_key(text, &mut key);
        out.push_str("CollationKey(0x");
        for byte in key {
            let _ = write!(out, "{byte:02x}");
        }
        out.push(')');
        return;
    }
    let _ = match shown {
        ValueRef::MinKey => write!(out, "MinKey"),
        ValueRef::MaxKey => write!(out, "MaxKey"),
        ValueRef::Missing | ValueRef::Undefined => write!(out, "undefined"),
        ValueRef::Null => write!(out, "null"),
        ValueRef::Bool(value) => write!(out, "{value}"),
        ValueRef::Int32(value) => write!(out, "{value}"),
        ValueRef::Int64(value) => write!(out, "{value}"),
        ValueRef::Double(value) => double(value, out),
        ValueRef::Decimal128(value) => write!(out, "{value}"),
        ValueRef::String(text) | ValueRef::Symbol(text) => {
            quoted(text, out);
            Ok(())
        }
        ValueRef::DateTime(ms) => write!(out, "new Date({ms})"),
        ValueRef::ObjectId(id) => write!(out, "ObjectId('{}')", id.to_hex()),
        ValueRef::Timestamp(time) => {
            let bits = time.to_u64();
            write!(
                out,
                "Timestamp({}, {})",
                bits >> 32,
                bits & u64::from(u32::MAX)
            )
        }
        ValueRef::Regex { pattern, options } => write!(out, "/{pattern}/{options}"),
        ValueRef::Binary { subtype, bytes } => {
            let _ = write!(out, "BinData({subtype}, ");
            hex(bytes, out);
            write!(out, ")")
        }
        ValueRef::DbPointer { namespace, id } => {
            write!(out, "DBRef('{namespace}', ObjectId('{}'))", id.to_hex())
        }
        ValueRef::Code(code) => write!(out, "{code}"),
        ValueRef::CodeWithScope { code, scope } => {
            let _ = write!(out, "CodeWScope({code}, ");
            document(scope, shape, out);
            write!(out, ")")
        }
        ValueRef::Document(inner) => {
            document(inner, shape, out);
            Ok(())
        }
        ValueRef::Array(array) => {
            out.push('[');
            for (at, element) in array.iter().enumerate() {
                out.push_str(if at == 0 { " " } else { ", " });
                value(element, shape, out);
            }
            out.push_str(if array.is_empty() { "]" } else { " ]" });
            Ok(())
        }
    };
}

fn as_text(value: ValueRef<'_>) -> Option<&str> {
    match value {
        ValueRef::String(text) | ValueRef::Symbol(text) => Some(text),
        _ => None,
    }
}

fn document(shown: DocRef<'_>, shape: &IndexShape, out: &mut String) {
    out.push('{');
    for (at, element) in shown.iter().enumerate() {
        out.push_str(if at == 0 { " " } else { ", " });
        out.push_str(element.name());
        out.push_str(": ");
        value(element.value(), shape, out);
    }
    out.push_str(if shown.is_empty() { "}" } else { " }" });
}

/// Formats a double. Whole numbers keep a decimal place: `5.0`, as do `inf.0` and `nan.0`.
fn double(value: f64, out: &mut String) -> std::fmt::Result {
    if value.is_nan() {
        write!(out, "nan.0")
    } else if value.is_infinite() {
        write!(out, "{}inf.0", if value < 0.0 { "-" } else { "" })
    } else if value.fract() == 0.0 && value.abs() < 1e15 {
        write!(out, "{value:.1}")
    } else {
        write!(out, "{value}")
    }
}

fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            other if u32::from(other) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(other));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
