//! Extended JSON as values: `$serializeEJSON` and `$deserializeEJSON`, as MongoDB 8.3 has them.
//!
//! `$serializeEJSON` wraps values as extended JSON does (`{$numberInt: "42"}`), in canonical form unless `relaxed` is
//! true; `$deserializeEJSON` unwraps them and keeps values that are not wrapped. Null or missing gives null. `onError` is
//! the result for a wrapper that holds no such value, else the error is 241.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nilometer_bson::extjson::{ExtJsonError, format_date, parse_value, value_to_relaxed};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::evaluated::Evaluated;
use super::operation::Operation;
use super::registry::{NamedArguments, optional, required};
use super::scope::Scope;
use crate::error::{Error, ErrorCode, Result};

pub(super) const SERIALIZE: NamedArguments = NamedArguments {
    not_object: ErrorCode::FailedToParse.0,
    unknown: ErrorCode::IDLUnknownField.0,
    fields: &[
        required("input", ErrorCode::IDLFailedToParse.0),
        optional("relaxed"),
        optional("onError"),
    ],
};

pub(super) const DESERIALIZE: NamedArguments = NamedArguments {
    not_object: ErrorCode::FailedToParse.0,
    unknown: ErrorCode::IDLUnknownField.0,
    fields: &[
        required("input", ErrorCode::IDLFailedToParse.0),
        optional("onError"),
    ],
};

pub(super) fn serialize<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let relaxed = match operation.value(1, scope)?.as_ref() {
        ValueRef::Bool(relaxed) => relaxed,
        value if value.is_nullish() => false,
        other => {
            return Err(Error::type_mismatch(format!(
                "'relaxed' of $serializeEJSON must be a bool, found: {}",
                other.type_name()
            )));
        }
    };
    let input = operation.value(0, scope)?;
    match input.as_ref() {
        value if value.is_nullish() => Ok(Evaluated::NULL),
        value => Ok(Evaluated::from(wrapped(value, relaxed))),
    }
}

/// Returns a value with the wrappers of extended JSON.
fn wrapped(value: ValueRef<'_>, relaxed: bool) -> Value {
    match value {
        ValueRef::Int32(number) if !relaxed => doc! {"$numberInt": number.to_string()}.into(),
        ValueRef::Int64(number) if !relaxed => doc! {"$numberLong": number.to_string()}.into(),
        ValueRef::Double(number) if relaxed && number.is_finite() => Value::Double(number),
        ValueRef::Double(number) => doc! {"$numberDouble": double(number)}.into(),
        ValueRef::Decimal128(number) => doc! {"$numberDecimal": number.to_string()}.into(),
        ValueRef::ObjectId(id) => doc! {"$oid": id.to_hex()}.into(),
        ValueRef::DateTime(ms) => match format_date(ms).filter(|_| relaxed && ms >= 0) {
            // Milliseconds are always written.
            Some(text) if ms % 1000 == 0 => {
                doc! {"$date": format!("{}.000Z", text.trim_end_matches('Z'))}.into()
            }
            Some(text) => doc! {"$date": text}.into(),
            None => doc! {"$date": doc! {"$numberLong": ms.to_string()}}.into(),
        },
        ValueRef::Binary { subtype, bytes } => {
            let (text, subtype) = (BASE64.encode(bytes), format!("{subtype:02x}"));
            doc! {"$binary": doc! {"base64": text, "subType": subtype}}.into()
        }
        ValueRef::Regex { pattern, options } => {
            doc! {"$regularExpression": doc! {"pattern": pattern, "options": options}}.into()
        }
        ValueRef::Timestamp(time) => {
            let (t, i) = (i64::from(time.seconds), i64::from(time.increment));
            doc! {"$timestamp": doc! {"t": t, "i": i}}.into()
        }
        ValueRef::DbPointer { namespace, id } => {
            let id = doc! {"$oid": id.to_hex()};
            doc! {"$dbPointer": doc! {"$ref": namespace, "$id": id}}.into()
        }
        ValueRef::Code(code) => doc! {"$code": code}.into(),
        ValueRef::CodeWithScope { code, scope } => {
            doc! {"$code": code, "$scope": document(scope, relaxed)}.into()
        }
        ValueRef::Symbol(name) => doc! {"$symbol": name}.into(),
        ValueRef::MinKey => doc! {"$minKey": 1}.into(),
        ValueRef::MaxKey => doc! {"$maxKey": 1}.into(),
        ValueRef::Undefined => doc! {"$undefined": true}.into(),
        ValueRef::Document(inner) => document(inner, relaxed).into(),
        ValueRef::Array(array) => {
            let elements = array.iter().map(|element| wrapped(element, relaxed));
            Value::Array(elements.collect())
        }
        other => other.to_value(),
    }
}

fn document(inner: DocRef<'_>, relaxed: bool) -> Document {
    let mut out = DocumentBuilder::new();
    for element in inner {
        out.append(element.name(), wrapped(element.value(), relaxed));
    }
    out.finish()
}

/// Returns the shortest text that reads as the same number.
fn double(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        let text = if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        };
        text.to_owned()
    } else {
        format!("{number:?}")
    }
}

/// Returns a value without the wrappers of extended JSON.
fn unwrapped(value: ValueRef<'_>) -> Result<Value, ExtJsonError> {
    match value {
        ValueRef::Document(inner) => {
            let first = inner.iter().next();
            if first.is_some_and(|field| field.name().starts_with('$')) {
                let parsed = parse_value(&value_to_relaxed(value))?;
                if !matches!(parsed, Value::Document(_)) {
                    return Ok(parsed);
                }
            }
            let mut out = DocumentBuilder::new();
            for element in inner {
                out.append(element.name(), unwrapped(element.value())?);
            }
            Ok(out.finish().into())
        }
        ValueRef::Array(array) => {
            let elements: Result<_, _> = array.iter().map(unwrapped).collect();
            elements.map(Value::Array)
        }
        other => Ok(other.to_value()),
    }
}

pub(super) fn deserialize<'s>(
    operation: &'s Operation,
    scope: &Scope<'s>,
) -> Result<Evaluated<'s>> {
    let input = operation.value(0, scope)?;
    if input.as_ref().is_nullish() {
        return Ok(Evaluated::NULL);
    }
    match unwrapped(input.as_ref()) {
        Ok(value) => Ok(Evaluated::from(value)),
        Err(problem) => match operation.optional(1, scope)? {
            Some(otherwise) => Ok(otherwise),
            None => Err(Error::new(
                ErrorCode::ConversionFailure,
                format!("$deserializeEJSON cannot convert its input: {problem}"),
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check_exact, eval_code};

    #[test]
    fn values_are_wrapped_and_unwrapped() {
        let date = Value::DateTime(1_609_459_200_000);
        let doc = doc! {"i": 42, "d": 1.5, "t": date, "l": array![7_i64, Value::Null]};
        let serialize = |relaxed: bool| {
            doc! {
                "$serializeEJSON": doc! {"input": "$$ROOT", "relaxed": relaxed},
            }
        };
        let canonical = doc! {
            "i": doc! {"$numberInt": "42"},
            "d": doc! {"$numberDouble": "1.5"},
            "t": doc! {"$date": doc! {"$numberLong": "1609459200000"}},
            "l": array![doc! {"$numberLong": "7"}, Value::Null],
        };
        check_exact(&doc, serialize(false), canonical.clone());
        let readable = doc! {
            "i": 42, "d": 1.5, "t": doc! {"$date": "2021-01-01T00:00:00.000Z"},
            "l": array![7_i64, Value::Null],
        };
        check_exact(&doc, serialize(true), readable);
        let deserialize = doc! {"$deserializeEJSON": doc! {"input": "$$ROOT"}};
        check_exact(&canonical, deserialize.clone(), doc.clone());
        // Values without wrappers stay as they are.
        check_exact(&doc, deserialize, doc.clone());
        let gone = doc! {"$serializeEJSON": doc! {"input": "$gone"}};
        check_exact(&doc, gone, Value::Null);
    }

    #[test]
    fn a_wrapper_that_holds_no_such_value_is_an_error() {
        let doc = doc! {"x": doc! {"y": doc! {"$oid": "short"}}};
        let plain = doc! {"$deserializeEJSON": doc! {"input": "$x"}};
        assert_eq!(eval_code(&doc, plain), 241);
        let otherwise = doc! {"$deserializeEJSON": doc! {"input": "$x", "onError": "bad"}};
        check_exact(&doc, otherwise, "bad");
    }

    #[test]
    fn every_type_comes_back() {
        let binary = nilometer_bson::Binary {
            subtype: 4,
            bytes: [7; 16][..].into(),
        };
        let doc = doc! {
            "double": f64::NEG_INFINITY, "text": "$x", "int": -1, "long": i64::MIN,
            "bool": true, "null": Value::Null, "date": Value::DateTime(-1),
            "binary": Value::from(binary), "min": Value::MinKey, "max": Value::MaxKey,
            "nested": doc! {"list": array![doc! {}, array![]]},
        };
        let both = doc! {"$deserializeEJSON": doc! {
            "input": doc! {"$serializeEJSON": doc! {"input": "$$ROOT"}},
        }};
        check_exact(&doc, both, doc.clone());
    }
}
