//! Parsing of canonical Extended JSON and the shorthands of the vector file.

use nilometer_bson::column::RawValue;
use serde_json::Value as Json;

/// Expands a list with `$repeat` and `$count` to its values.
pub(crate) fn values(list: &Json) -> Vec<RawValue> {
    let mut out = Vec::new();
    for item in list.as_array().unwrap() {
        if let Some(count) = item.get("$repeat") {
            let value = value(&item["of"]);
            out.extend(std::iter::repeat_n(value, count.as_u64().unwrap() as usize));
        } else if let Some(count) = item.get("$count") {
            out.extend((0..count.as_i64().unwrap()).map(|at| counted(item, at)));
        } else {
            out.push(value(item));
        }
    }
    out
}

fn counted(item: &Json, at: i64) -> RawValue {
    let step = at * item["by"].as_i64().unwrap();
    let (name, from) = only(&item["from"]);
    let from: i64 = from.as_str().unwrap().parse().unwrap();
    match name {
        "$numberInt" => raw(0x10, &((from + step) as i32).to_le_bytes()),
        "$numberLong" => raw(0x12, &(from + step).to_le_bytes()),
        name => panic!("cannot count {name}"),
    }
}

fn only(object: &Json) -> (&str, &Json) {
    let (name, value) = object.as_object().unwrap().iter().next().unwrap();
    (name, value)
}

fn raw(tag: u8, bytes: &[u8]) -> RawValue {
    RawValue {
        tag,
        bytes: bytes.into(),
    }
}

fn text(tag: u8, text: &Json) -> RawValue {
    let text = text.as_str().unwrap();
    let mut bytes = (text.len() as u32 + 1).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.push(0);
    raw(tag, &bytes)
}

fn document(tag: u8, fields: impl Iterator<Item = (String, RawValue)>) -> RawValue {
    let mut bytes = vec![0; 4];
    for (name, value) in fields {
        bytes.push(value.tag);
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(&*value.bytes);
    }
    bytes.push(0);
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    raw(tag, &bytes)
}

/// Parses one value.
pub(crate) fn value(json: &Json) -> RawValue {
    match json {
        Json::Null => return raw(0x0a, &[]),
        Json::Bool(value) => return raw(0x08, &[u8::from(*value)]),
        Json::String(_) => return text(0x02, json),
        Json::Array(items) => {
            let fields = items.iter().enumerate();
            return document(0x04, fields.map(|(at, item)| (at.to_string(), value(item))));
        }
        Json::Number(_) => panic!("bare number {json}"),
        Json::Object(_) => {}
    }
    let fields = json.as_object().unwrap();
    match fields.iter().next() {
        Some((name, inner)) if name.starts_with('$') => extended(json, name, inner),
        _ => document(
            0x03,
            fields
                .iter()
                .map(|(name, inner)| (name.clone(), value(inner))),
        ),
    }
}

fn extended(json: &Json, name: &str, inner: &Json) -> RawValue {
    let number = || inner.as_str().unwrap();
    match name {
        "$missing" => RawValue::missing(),
        "$raw" => {
            let bytes = hex(number());
            raw(bytes[0], &bytes[1..])
        }
        "$numberInt" => raw(0x10, &number().parse::<i32>().unwrap().to_le_bytes()),
        "$numberLong" => raw(0x12, &number().parse::<i64>().unwrap().to_le_bytes()),
        "$numberDouble" => {
            let value = match number() {
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                other => other.parse().unwrap(),
            };
            raw(0x01, &value.to_le_bytes())
        }
        "$numberDecimal" => raw(0x13, &decimal(number())),
        "$date" => raw(0x09, &value(inner).bytes),
        "$oid" => raw(0x07, &hex(number())),
        "$timestamp" => {
            let part = |name: &str| inner[name].as_u64().unwrap() as u32;
            let mut bytes = part("i").to_le_bytes().to_vec();
            bytes.extend(part("t").to_le_bytes());
            raw(0x11, &bytes)
        }
        "$binary" => {
            let data = base64(inner["base64"].as_str().unwrap());
            let mut bytes = (data.len() as u32).to_le_bytes().to_vec();
            bytes.extend(hex(inner["subType"].as_str().unwrap()));
            bytes.extend(data);
            raw(0x05, &bytes)
        }
        "$regularExpression" => {
            let part = |name: &str| inner[name].as_str().unwrap();
            let text = format!("{}\0{}\0", part("pattern"), part("options"));
            raw(0x0b, text.as_bytes())
        }
        "$dbPointer" => {
            let mut bytes = text(0x02, &inner["$ref"]).bytes.to_vec();
            bytes.extend(&*value(&inner["$id"]).bytes);
            raw(0x0c, &bytes)
        }
        "$code" => match json.get("$scope") {
            None => text(0x0d, inner),
            Some(scope) => {
                let mut bytes = vec![0; 4];
                bytes.extend(&*text(0x02, inner).bytes);
                bytes.extend(&*value(scope).bytes);
                let len = bytes.len() as u32;
                bytes[..4].copy_from_slice(&len.to_le_bytes());
                raw(0x0f, &bytes)
            }
        },
        "$symbol" => text(0x0e, inner),
        "$undefined" => raw(0x06, &[]),
        "$minKey" => raw(0xff, &[]),
        "$maxKey" => raw(0x7f, &[]),
        name => panic!("unknown {name}"),
    }
}

/// Encodes a plain decimal number (digits, a point, an exponent) as BID bits.
fn decimal(text: &str) -> [u8; 16] {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (digits, exponent) = text.split_once('E').unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let coefficient: u128 = format!("{whole}{fraction}").parse().unwrap();
    let exponent = exponent.parse::<i32>().unwrap() - fraction.len() as i32 + 6176;
    let bits = u128::from(negative) << 127 | (exponent as u128) << 113 | coefficient;
    bits.to_le_bytes()
}

/// Decodes hexadecimal text.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Decodes base64 text.
pub(crate) fn base64(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes().filter(|&letter| letter != b'=') {
        let digit = LETTERS.iter().position(|&other| other == letter).unwrap();
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}
