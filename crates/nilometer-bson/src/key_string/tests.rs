//! Tests of index keys.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;
use crate::order;
use crate::testing::{awkward_values, strategies};
use crate::value::Value;
use crate::{array, doc};

fn key(value: &Value, order: KeyOrder) -> Vec<u8> {
    encode([value.as_ref()], order).0
}

/// True if both are identical: same types, bits and bytes, except NaNs and missing.
fn identical(a: &Value, b: &Value) -> bool {
    let bytes = |value: &Value| doc! { "v": value.clone() }.into_bytes();
    bytes(a) == bytes(b) || (a.type_code() == b.type_code() && is_unfaithful(b))
}

/// True for values a key does not preserve: payloads of NaNs, decimals in a non-canonical form of
/// zero.
fn is_unfaithful(value: &Value) -> bool {
    match value {
        Value::Double(v) => v.is_nan(),
        Value::Decimal128(v) => v.is_nan() || !is_canonical(*v),
        Value::Document(v) => v.iter().any(|e| is_unfaithful(&e.value().to_value())),
        Value::Array(v) => v.to_vec().iter().any(is_unfaithful),
        Value::CodeWithScope(v) => v.scope.iter().any(|e| is_unfaithful(&e.value().to_value())),
        _ => false,
    }
}

/// Decimals with a coefficient out of range read as zero and are decoded as a canonical zero.
fn is_canonical(value: crate::Decimal128) -> bool {
    match value.parts() {
        crate::decimal128::DecimalParts::Finite {
            negative,
            exponent,
            coefficient,
        } => crate::Decimal128::from_parts(negative, exponent, coefficient) == Some(value),
        crate::decimal128::DecimalParts::Infinite { .. } => value.bits() << 5 == 0,
        crate::decimal128::DecimalParts::Nan => false,
    }
}

fn check_round_trip(value: &Value, key_order: KeyOrder) {
    let (bytes, type_bits) = encode([value.as_ref(), value.as_ref()], key_order);
    let suffixed = [bytes.as_slice(), b"\xFFid"].concat();
    let (values, rest) = decode(&suffixed, key_order, 2, &type_bits).unwrap();
    assert_eq!(rest, b"\xFFid", "{value:?}");
    assert_eq!(skip(&suffixed, key_order, 2), Ok(&b"\xFFid"[..]));
    for got in &values {
        assert!(
            order::equal(got.as_ref(), value.as_ref()),
            "{got:?} is not {value:?}"
        );
        assert!(
            value.is_missing() || identical(got, value),
            "{got:?} is not the same as {value:?}"
        );
    }
}

#[test]
fn keys_of_awkward_values_compare_like_the_values() {
    let values = awkward_values();
    let down = KeyOrder::new([true]);
    let keys: Vec<_> = values
        .iter()
        .map(|(at, v)| (*at, v, key(v, KeyOrder::ASCENDING), key(v, down)))
        .collect();
    for (a_group, a, a_up, a_down) in &keys {
        for (b_group, b, b_up, b_down) in &keys {
            let expected = a_group.cmp(b_group);
            assert_eq!(a_up.cmp(b_up), expected, "{a:?} against {b:?}");
            assert_eq!(
                b_down.cmp(a_down),
                expected,
                "{a:?} against {b:?}, descending"
            );
            assert!(
                a_group == b_group || !b_up.starts_with(a_up),
                "key of {a:?} is a prefix of that of {b:?}"
            );
        }
    }
}

#[test]
fn awkward_values_come_back() {
    for (_, value) in awkward_values() {
        check_round_trip(&value, KeyOrder::ASCENDING);
        check_round_trip(&value, KeyOrder::new([true, false]));
    }
}

#[test]
fn golden_bytes() {
    let hex = |values: &[Value], order| {
        let (bytes, bits) = encode(values.iter().map(Value::as_ref), order);
        let text = |b: Vec<u8>| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        (text(bytes), text(bits))
    };
    for (value, bytes, bits) in [
        (Value::from(0), "2a", ""),
        (Value::from(1), "2c02", ""),
        (Value::from(1.0), "2c02", "02"),
        (Value::from(1i64), "2c02", "01"),
        (Value::from(-1), "28fd", ""),
        (Value::from(300), "2d0258", ""),
        (Value::from(1.5), "2c0380000000000000", ""),
        (Value::from(0.5), "2b7fc0000000000000", ""),
        (Value::from("a\0"), "3c6100ff0000", ""),
        (Value::from(doc! { "a": 1 }), "460461002c0200", ""),
        (array![true], "506f00", ""),
        (Value::DateTime(0), "788000000000000000", ""),
    ] {
        let got = hex(&[value], KeyOrder::ASCENDING);
        assert_eq!((got.0.as_str(), got.1.as_str()), (bytes, bits));
    }
    let pair = [Value::from(1), Value::Symbol("b".into())];
    assert_eq!(
        hex(&pair, KeyOrder::new([false, true])),
        ("2c02c39dffff".to_owned(), "0e".to_owned())
    );
}

#[test]
fn bounds_enclose_a_prefix() {
    let order = KeyOrder::new([false, true]);
    let prefix = encode([ValueRef::Int32(5)], order).0;
    let low = bound(prefix.clone(), BoundSide::Before).unwrap();
    let high = bound(prefix, BoundSide::After).unwrap();
    for (first, inside) in [(4, false), (5, true), (6, false)] {
        for second in [ValueRef::MinKey, ValueRef::MaxKey, ValueRef::Int32(0)] {
            let mut builder = KeyBuilder::new(order);
            builder
                .push(ValueRef::Int32(first))
                .push(second)
                .push_suffix(&[0xFF; 12]);
            let key = builder.finish().0;
            assert_eq!(low <= key && key < high, inside);
        }
    }
    assert_eq!(prefix_end(vec![1, 0xFF, 0xFF]), Some(vec![2]));
    assert_eq!(prefix_end(vec![0xFF]), None);
}

#[test]
fn malformed_keys_are_errors() {
    let up = KeyOrder::ASCENDING;
    let error = |bytes: &[u8]| decode(bytes, up, 1, &[]).unwrap_err();
    assert_eq!(error(&[]), KeyStringError::Truncated);
    assert_eq!(error(&[0x01]), KeyStringError::Lead(1));
    assert_eq!(error(&[lead::STRING, 0, 7]), KeyStringError::Escape(7));
    assert_eq!(error(&[lead::STRING, 0xFF, 0, 0]), KeyStringError::Text);
    assert_eq!(error(&[lead::ARRAY; 1000]), KeyStringError::Depth);
    assert_eq!(
        skip(&[lead::ARRAY; 1000], up, 1),
        Err(KeyStringError::Depth)
    );
    assert_eq!(
        decode(&[lead::ZERO], up, 1, &[6]).unwrap_err(),
        KeyStringError::TypeBits
    );
}

#[test]
fn type_bits_skip_far() {
    let mut values = vec![Value::from(1); 100];
    values.push(Value::from(2.0));
    values.extend(vec![Value::from("x"); 31]);
    values.push(Value::Symbol("y".into()));
    let array = Value::from(values);
    check_round_trip(&array, KeyOrder::ASCENDING);
}

struct Backwards;

impl order::Collator for Backwards {
    fn compare(&self, a: &str, b: &str) -> Ordering {
        b.cmp(a)
    }

    fn sort_key(&self, text: &str, out: &mut Vec<u8>) {
        out.extend(text.bytes().flat_map(|b| [0, !b]));
        out.push(1);
    }
}

proptest! {
    #[test]
    fn keys_compare_like_values(
        a in strategies::value(),
        b in strategies::value(),
        c in strategies::number(),
        d in strategies::number(),
        down in any::<[bool; 2]>(),
    ) {
        let key_order = KeyOrder::new(down);
        let directed = |order: Ordering, down: bool| if down { order.reverse() } else { order };
        let expected = directed(order::compare(a.as_ref(), b.as_ref()), down[0])
            .then(directed(order::compare(c.as_ref(), d.as_ref()), down[1]));
        let left = encode([a.as_ref(), c.as_ref()], key_order).0;
        let right = encode([b.as_ref(), d.as_ref()], key_order).0;
        prop_assert_eq!(left.cmp(&right), expected);
    }

    #[test]
    fn numbers_compare_like_keys(a in strategies::number(), b in strategies::number()) {
        let up = KeyOrder::ASCENDING;
        prop_assert_eq!(key(&a, up).cmp(&key(&b, up)), order::compare(a.as_ref(), b.as_ref()));
    }

    #[test]
    fn values_come_back(value in strategies::value(), down in any::<[bool; 2]>()) {
        check_round_trip(&value, KeyOrder::new(down));
    }

    #[test]
    fn collated_keys_compare_like_collated_values(a in strategies::value(), b in strategies::value()) {
        let key = |value: &Value| {
            let mut builder = KeyBuilder::with_collator(KeyOrder::ASCENDING, Some(&Backwards));
            builder.push(value.as_ref());
            builder.finish().0
        };
        let expected = order::compare_with(a.as_ref(), b.as_ref(), Some(&Backwards));
        prop_assert_eq!(key(&a).cmp(&key(&b)), expected);
    }

    #[test]
    fn decoding_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), bits in proptest::collection::vec(any::<u8>(), 0..8)) {
        let _ = decode(&bytes, KeyOrder::ASCENDING, 3, &bits);
        let _ = skip(&bytes, KeyOrder::ASCENDING, 3);
    }
}
