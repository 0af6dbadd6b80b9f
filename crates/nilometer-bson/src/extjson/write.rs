//! Formatting of values as Extended JSON.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::date::format_date;
use crate::document::DocRef;
use crate::value::ValueRef;

/// Formats a document in relaxed form.
pub fn to_relaxed(document: DocRef<'_>) -> String {
    value_to_relaxed(ValueRef::Document(document))
}

/// Formats a document in canonical form.
pub fn to_canonical(document: DocRef<'_>) -> String {
    value_to_canonical(ValueRef::Document(document))
}

/// Formats a value in relaxed form; missing is formatted as `undefined`.
pub fn value_to_relaxed(value: ValueRef<'_>) -> String {
    JsonWriter::print(value, true)
}

/// Formats a value in canonical form; missing is formatted as `undefined`.
pub fn value_to_canonical(value: ValueRef<'_>) -> String {
    JsonWriter::print(value, false)
}

struct JsonWriter {
    out: String,
    relaxed: bool,
}

impl JsonWriter {
    fn print(value: ValueRef<'_>, relaxed: bool) -> String {
        let mut writer = Self {
            out: String::new(),
            relaxed,
        };
        writer.value(value);
        writer.out
    }

    fn value(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Missing | ValueRef::Undefined => self.out.push_str(r#"{"$undefined":true}"#),
            ValueRef::Null => self.out.push_str("null"),
            ValueRef::Bool(v) => self.out.push_str(if v { "true" } else { "false" }),
            ValueRef::String(v) => self.string(v),
            ValueRef::Int32(v) if self.relaxed => self.display(v),
            ValueRef::Int32(v) => self.wrap("$numberInt", &v.to_string()),
            ValueRef::Int64(v) if self.relaxed => self.display(v),
            ValueRef::Int64(v) => self.wrap("$numberLong", &v.to_string()),
            ValueRef::Double(v) => self.double(v),
            ValueRef::Decimal128(v) => self.wrap("$numberDecimal", &v.to_string()),
            ValueRef::Document(v) => self.document(v),
            ValueRef::Array(v) => {
                self.out.push('[');
                for (at, element) in v.iter().enumerate() {
                    self.comma(at);
                    self.value(element);
                }
                self.out.push(']');
            }
            ValueRef::Binary { subtype, bytes } => {
                let data = BASE64.encode(bytes);
                let _ = write!(
                    self.out,
                    r#"{{"$binary":{{"base64":"{data}","subType":"{subtype:02x}"}}}}"#
                );
            }
            ValueRef::ObjectId(v) => self.wrap("$oid", &v.to_hex()),
            ValueRef::DateTime(ms) => self.date(ms),
            ValueRef::Regex { pattern, options } => {
                self.out.push_str(r#"{"$regularExpression":{"pattern":"#);
                self.string(pattern);
                self.out.push_str(r#","options":"#);
                self.string(options);
                self.out.push_str("}}");
            }
            ValueRef::DbPointer { namespace, id } => {
                self.out.push_str(r#"{"$dbPointer":{"$ref":"#);
                self.string(namespace);
                self.out.push_str(r#","$id":"#);
                self.wrap("$oid", &id.to_hex());
                self.out.push_str("}}");
            }
            ValueRef::Code(v) => self.wrap("$code", v),
            ValueRef::Symbol(v) => self.wrap("$symbol", v),
            ValueRef::CodeWithScope { code, scope } => {
                self.out.push_str(r#"{"$code":"#);
                self.string(code);
                self.out.push_str(r#","$scope":"#);
                self.document(scope);
                self.out.push('}');
            }
            ValueRef::Timestamp(v) => {
                let (t, i) = (v.seconds, v.increment);
                let _ = write!(self.out, r#"{{"$timestamp":{{"t":{t},"i":{i}}}}}"#);
            }
            ValueRef::MinKey => self.out.push_str(r#"{"$minKey":1}"#),
            ValueRef::MaxKey => self.out.push_str(r#"{"$maxKey":1}"#),
        }
    }

    fn document(&mut self, document: DocRef<'_>) {
        self.out.push('{');
        for (at, element) in document.iter().enumerate() {
            self.comma(at);
            self.string(element.name());
            self.out.push(':');
            self.value(element.value());
        }
        self.out.push('}');
    }

    fn comma(&mut self, at: usize) {
        if at > 0 {
            self.out.push(',');
        }
    }

    fn display(&mut self, value: impl std::fmt::Display) {
        let _ = write!(self.out, "{value}");
    }

    /// Writes a wrapper object with a text value.
    fn wrap(&mut self, name: &str, text: &str) {
        let _ = write!(self.out, r#"{{"{name}":"#);
        self.string(text);
        self.out.push('}');
    }

    fn double(&mut self, value: f64) {
        let text = if value.is_nan() {
            "NaN".to_owned()
        } else if value.is_infinite() {
            if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        } else {
            // Shortest form that parses to the same double, always with a point or an exponent.
            format!("{value:?}")
        };
        if self.relaxed && value.is_finite() {
            self.out.push_str(&text);
        } else {
            self.wrap("$numberDouble", &text);
        }
    }

    /// Writes a date; relaxed form uses text for the years 1970 to 9999.
    fn date(&mut self, ms: i64) {
        match format_date(ms) {
            Some(text) if self.relaxed && ms >= 0 => self.wrap("$date", &text),
            _ => {
                let _ = write!(self.out, r#"{{"$date":{{"$numberLong":"{ms}"}}}}"#);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if u32::from(c) < 0x20 => {
                    let _ = write!(self.out, "\\u{:04x}", u32::from(c));
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
