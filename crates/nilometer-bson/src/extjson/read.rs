//! Parsing of Extended JSON.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::date::parse_date;
use crate::document::{Document, DocumentBuilder};
use crate::validate::DEPTH_MAX;
use crate::value::{
    Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Value,
};

/// Why text is not Extended JSON.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtJsonError {
    /// Not JSON.
    #[error("invalid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A wrapper such as `{"$oid": …}` with invalid content.
    #[error("invalid {0} in Extended JSON")]
    Wrapper(String),
    /// A field name with a NUL, which BSON does not allow.
    #[error("field name with a NUL: {0:?}")]
    Name(String),
    /// Nested deeper than a document may be.
    #[error("nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// The text is a value but not a document.
    #[error("expected a document")]
    NotADocument,
}

/// Parses a document.
pub fn parse_document(text: &str) -> Result<Document, ExtJsonError> {
    match parse_value(text)? {
        Value::Document(document) => Ok(document),
        _ => Err(ExtJsonError::NotADocument),
    }
}

/// Levels a wrapper adds to the value it encodes: `{"$code": …, "$scope": …}` and a `$numberLong`
/// inside a `$date`.
const WRAPPER_LEVELS: usize = 2;

/// Parses any value.
pub fn parse_value(text: &str) -> Result<Value, ExtJsonError> {
    // The parser's own limit is lower than the nesting limit of documents, so it is replaced by
    // this check.
    if depth(text) > DEPTH_MAX + WRAPPER_LEVELS {
        return Err(ExtJsonError::TooDeep);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    let json = Json::deserialize(&mut reader)?;
    reader.end()?;
    json.into_value()
}

/// Returns the nesting depth of brackets outside strings. For invalid JSON, at least the depth a
/// parser reaches.
fn depth(text: &str) -> usize {
    let (mut now, mut most, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                now += 1;
                most = most.max(now);
            }
            b'}' | b']' => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// JSON with field order, before wrappers are recognised.
enum Json {
    Null,
    Bool(bool),
    Long(i64),
    Double(f64),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    fn into_value(self) -> Result<Value, ExtJsonError> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(v) => v.into(),
            Self::Long(v) => i32::try_from(v).map_or(Value::Int64(v), Value::Int32),
            Self::Double(v) => v.into(),
            Self::String(v) => v.into(),
            Self::Array(elements) => elements
                .into_iter()
                .map(Self::into_value)
                .collect::<Result<Vec<_>, _>>()?
                .into(),
            Self::Object(fields) => return object(fields),
        })
    }

    fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    fn as_u32(&self) -> Option<u32> {
        match self {
            Self::Long(v) => u32::try_from(*v).ok(),
            _ => None,
        }
    }

    /// Returns the fields, if this is an object with exactly these names in this order.
    fn fields<const N: usize>(&self, names: [&str; N]) -> Option<[&Json; N]> {
        match self {
            Self::Object(fields) => pick(fields, names),
            _ => None,
        }
    }
}

fn pick<'a, const N: usize>(
    fields: &'a [(String, Json)],
    names: [&str; N],
) -> Option<[&'a Json; N]> {
    if fields.len() != N {
        return None;
    }
    let mut out = [&Json::Null; N];
    for (slot, name) in out.iter_mut().zip(names) {
        *slot = &fields.iter().find(|(field, _)| field == name)?.1;
    }
    Some(out)
}

fn object(fields: Vec<(String, Json)>) -> Result<Value, ExtJsonError> {
    let wrapper = fields
        .first()
        .is_some_and(|(name, _)| name.starts_with('$'));
    if wrapper && let Some((name, value)) = unwrap(&fields) {
        return value.ok_or_else(|| ExtJsonError::Wrapper(name.to_owned()));
    }
    if let Some([Json::String(code), Json::Object(_)]) = pick(&fields, ["$code", "$scope"]) {
        let code = code.as_str().into();
        let scope = fields.into_iter().find(|(name, _)| name == "$scope");
        let scope = scope.map_or(Ok(Value::Missing), |(_, scope)| scope.into_value())?;
        return match scope {
            Value::Document(scope) => Ok(Value::CodeWithScope(Arc::new(CodeWithScope {
                code,
                scope,
            }))),
            _ => Err(ExtJsonError::Wrapper("$scope".to_owned())),
        };
    }
    let mut builder = DocumentBuilder::new();
    for (name, value) in fields {
        if name.contains('\0') {
            return Err(ExtJsonError::Name(name));
        }
        builder.append(&name, value.into_value()?);
    }
    Ok(Value::Document(builder.finish()))
}

/// Returns the name of a wrapper and its value (`None` if the content is invalid); `None` if the
/// names are not those of a wrapper.
fn unwrap(fields: &[(String, Json)]) -> Option<(&str, Option<Value>)> {
    if let Some([namespace, id]) = dotted_pointer(fields) {
        return Some(("$dbPointer", pointer(namespace, id)));
    }
    let [(name, inner)] = fields else {
        return None;
    };
    let text = inner.as_str();
    let value = match name.as_str() {
        "$oid" => text.and_then(ObjectId::parse_hex).map(Value::from),
        "$symbol" => text.map(|t| Value::Symbol(t.into())),
        "$numberInt" => text.and_then(|t| t.parse::<i32>().ok()).map(Value::from),
        "$numberLong" => text.and_then(|t| t.parse::<i64>().ok()).map(Value::from),
        "$numberDouble" => text.and_then(double).map(Value::from),
        "$numberDecimal" => text
            .and_then(|t| Decimal128::parse_exact(t).ok())
            .map(Value::from),
        "$binary" => binary(inner),
        "$uuid" => text.and_then(uuid),
        "$code" => text.map(|t| Value::Code(t.into())),
        "$timestamp" => inner.fields(["t", "i"]).and_then(|[t, i]| {
            let (seconds, increment) = (t.as_u32()?, i.as_u32()?);
            Some(Timestamp { seconds, increment }.into())
        }),
        "$regularExpression" => regex(inner),
        "$date" => date(inner).map(Value::DateTime),
        "$minKey" => (inner.as_u32() == Some(1)).then_some(Value::MinKey),
        "$maxKey" => (inner.as_u32() == Some(1)).then_some(Value::MaxKey),
        "$undefined" => matches!(inner, Json::Bool(true)).then_some(Value::Undefined),
        _ => return None,
    };
    Some((name, value))
}

/// Returns the parts of `{"$dbPointer": {"$ref": …, "$id": …}}`.
fn dotted_pointer(fields: &[(String, Json)]) -> Option<[&Json; 2]> {
    let [inner] = pick(fields, ["$dbPointer"])?;
    inner.fields(["$ref", "$id"])
}

fn pointer(namespace: &Json, id: &Json) -> Option<Value> {
    let [id] = id.fields(["$oid"])?;
    Some(Value::DbPointer(Arc::new(DbPointer {
        namespace: namespace.as_str()?.into(),
        id: ObjectId::parse_hex(id.as_str()?)?,
    })))
}

fn double(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok().filter(|v: &f64| v.is_finite()),
    }
}

fn binary(inner: &Json) -> Option<Value> {
    let [data, subtype] = inner.fields(["base64", "subType"])?;
    let bytes = BASE64.decode(data.as_str()?).ok()?;
    let subtype = u8::from_str_radix(subtype.as_str()?, 16).ok()?;
    Some(Value::Binary(Binary {
        subtype,
        bytes: bytes.into(),
    }))
}

/// Parses 32 hexadecimal digits with dashes at the standard positions.
fn uuid(text: &str) -> Option<Value> {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    let hex: String = text.split('-').collect();
    if groups != [8, 4, 4, 4, 12] || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = u128::from_str_radix(&hex, 16).ok()?.to_be_bytes();
    Some(Value::Binary(Binary {
        subtype: 4,
        bytes: bytes.as_slice().into(),
    }))
}

fn regex(inner: &Json) -> Option<Value> {
    let [pattern, options] = inner.fields(["pattern", "options"])?;
    let (pattern, options) = (pattern.as_str()?, options.as_str()?);
    if pattern.contains('\0') || options.contains('\0') {
        return None;
    }
    let mut letters: Vec<char> = options.chars().collect();
    letters.sort_unstable();
    Some(Value::Regex(Arc::new(Regex {
        pattern: pattern.into(),
        options: letters.into_iter().collect::<String>().into(),
    })))
}

fn date(inner: &Json) -> Option<i64> {
    match inner {
        Json::String(text) => parse_date(text),
        Json::Long(ms) => Some(*ms),
        other => {
            let [ms] = other.fields(["$numberLong"])?;
            ms.as_str()?.parse().ok()
        }
    }
}

struct JsonVisitor;

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Long(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Double(value as f64), Json::Long))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Double(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = access.next_element()? {
            elements.push(element);
        }
        Ok(Json::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = access.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}
