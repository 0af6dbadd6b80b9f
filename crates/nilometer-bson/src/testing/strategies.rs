//! Random values, biased towards edge cases.

use std::sync::Arc;

use proptest::prelude::*;

use crate::document::{Document, DocumentBuilder};
use crate::value::{
    Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Value,
};

/// Generates any decimal: random bits, near-integers, and small coefficients with any exponent.
pub fn decimal() -> impl Strategy<Value = Decimal128> {
    prop_oneof![
        any::<[u8; 16]>().prop_map(Decimal128::from_le_bytes),
        (any::<bool>(), -40i32..40, any::<u64>()).prop_map(|(negative, exponent, coefficient)| {
            finite(negative, exponent, coefficient.into())
        }),
        (any::<bool>(), -6176i32..=6111, 0u64..200).prop_map(
            |(negative, exponent, coefficient)| finite(negative, exponent, coefficient.into())
        ),
        (any::<bool>(), -34i32..5, 0..10u128.pow(34))
            .prop_map(|(negative, exponent, coefficient)| finite(negative, exponent, coefficient)),
        any::<f64>().prop_map(Decimal128::from_f64_closest),
    ]
}

fn finite(negative: bool, exponent: i32, coefficient: u128) -> Decimal128 {
    Decimal128::from_parts(negative, exponent, coefficient).unwrap_or_default()
}

/// Generates any double, often a whole or nearly whole one.
pub fn double() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        any::<u64>().prop_map(f64::from_bits),
        any::<i32>().prop_map(f64::from),
        any::<i64>().prop_map(|n| n as f64),
        (-1000i32..1000).prop_map(|n| f64::from(n) / 8.0),
    ]
}

/// Generates any long, often near a power of two.
pub fn long() -> impl Strategy<Value = i64> {
    prop_oneof![
        any::<i64>(),
        -300i64..300,
        (0u32..64, -2i64..=2).prop_map(|(shift, off)| (1i64 << shift).wrapping_add(off)),
    ]
}

/// Generates a number of any type.
pub fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i32>().prop_map(Value::from),
        (-3i32..4).prop_map(Value::from),
        long().prop_map(Value::from),
        double().prop_map(Value::from),
        decimal().prop_map(Value::from),
    ]
}

/// Generates text, often with NULs.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[\u{0}\u{1}ab\u{ff}]{0,4}", "[a-z]{0,12}", any::<String>(),]
}

/// Generates a field name: text without NULs.
pub fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]{0,2}", "[a-z0-9.$]{1,8}"]
}

/// Generates a value that contains no other value.
pub fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => number(),
        2 => text().prop_map(Value::from),
        1 => text().prop_map(|t| Value::Symbol(t.into())),
        1 => Just(Value::Null),
        1 => Just(Value::Undefined),
        1 => Just(Value::MinKey),
        1 => Just(Value::MaxKey),
        1 => any::<bool>().prop_map(Value::from),
        1 => long().prop_map(Value::DateTime),
        1 => any::<u64>().prop_map(|t| Timestamp::from_u64(t).into()),
        1 => any::<[u8; 12]>().prop_map(|id| ObjectId(id).into()),
        1 => (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(subtype, bytes)| Binary { subtype, bytes: bytes.into() }.into()),
        1 => (name(), "i?m?s?x?").prop_map(|(pattern, options)| {
            Value::Regex(Arc::new(Regex { pattern: pattern.into(), options: options.into() }))
        }),
        1 => (text(), any::<[u8; 12]>()).prop_map(|(namespace, id)| {
            Value::DbPointer(Arc::new(DbPointer { namespace: namespace.into(), id: ObjectId(id) }))
        }),
        1 => text().prop_map(|t| Value::Code(t.into())),
    ]
}

/// Generates any storable value, nested up to three levels.
pub fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            3 => fields(inner.clone()).prop_map(Value::Document),
            2 => proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            1 => (text(), fields(inner)).prop_map(|(code, scope)| {
                Value::CodeWithScope(Arc::new(CodeWithScope { code: code.into(), scope }))
            }),
        ]
    })
}

/// Generates any document.
pub fn document() -> impl Strategy<Value = Document> {
    fields(value())
}

fn fields(values: impl Strategy<Value = Value>) -> impl Strategy<Value = Document> {
    proptest::collection::vec((name(), values), 0..4).prop_map(|fields| {
        let mut builder = DocumentBuilder::new();
        for (name, value) in fields {
            builder.append(&name, value);
        }
        builder.finish()
    })
}
