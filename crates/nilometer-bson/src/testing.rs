//! Edge-case values for tests of every order: comparison, filters, sorting, grouping, min and max,
//! index keys.
//!
//! [`awkward_groups`] lists them in ascending order; values of one group compare equal. With the
//! feature `testing` (and in this crate's own tests) the module `strategies` generates random
//! values.

mod descriptions;
#[cfg(any(test, feature = "testing"))]
pub mod strategies;

use std::sync::Arc;

pub use descriptions::{apply_description, with_sorted_fields};

use crate::value::{
    Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Value,
};
use crate::{array, doc};

/// 2^53: above it doubles skip integers.
const DOUBLE_GAP: i64 = 1 << 53;
/// 2^63 as a double.
const LONG_END: f64 = 9_223_372_036_854_775_808.0;

/// Returns groups of equal values, in ascending order of the groups.
pub fn awkward_groups() -> Vec<Vec<Value>> {
    let mut groups = vec![
        vec![Value::MinKey],
        vec![Value::Missing, Value::Undefined],
        vec![Value::Null],
    ];
    groups.extend(numbers());
    groups.extend(strings());
    groups.extend(containers());
    groups.extend(binaries());
    groups.extend(scalars());
    groups.push(vec![Value::MaxKey]);
    groups
}

/// Returns every value with the number of its group.
pub fn awkward_values() -> Vec<(usize, Value)> {
    let numbered = awkward_groups().into_iter().enumerate();
    numbered
        .flat_map(|(at, group)| group.into_iter().map(move |value| (at, value)))
        .collect()
}

fn dec(text: &str) -> Value {
    text.parse::<Decimal128>().unwrap_or(Decimal128::NAN).into()
}

fn whole(value: i64) -> Vec<Value> {
    let mut group = vec![value.into(), Decimal128::from(value).into()];
    if let Ok(int) = i32::try_from(value) {
        group.push(int.into());
    }
    // Exactly representable: small, or a multiple of a large power of two.
    if value.unsigned_abs() < 1 << 53 || value.trailing_zeros() > 10 {
        group.push((value as f64).into());
    }
    group
}

/// Returns numbers from NaN to infinity.
// long function: one list in ascending order.
pub fn numbers() -> Vec<Vec<Value>> {
    let negative_nan = Decimal128 {
        low: 0,
        high: 0xFC00 << 48,
    };
    let mut groups = vec![
        vec![f64::NAN.into(), Decimal128::NAN.into(), negative_nan.into()],
        vec![f64::NEG_INFINITY.into(), dec("-Infinity")],
        vec![dec("-9.999999999999999999999999999999999E+6144")],
        vec![dec("-1E+400")],
        vec![f64::MIN.into()],
        vec![dec("-1E+23")],
        vec![(-1e23).into()],
        vec![dec("-9223372036854775809")],
        whole(i64::MIN),
        whole(i64::MIN + 1),
        whole(-DOUBLE_GAP - 1),
        whole(-DOUBLE_GAP),
        whole(i32::MIN.into()),
        whole(-256),
        vec![(-1.5).into(), dec("-1.5"), dec("-1.50")],
        vec![dec("-1.000000000000000000000000000000001")],
        whole(-1),
        vec![(-0.1).into()],
        vec![dec("-0.1")],
        vec![(-5e-324).into()],
        vec![dec("-4.9E-324")],
        vec![dec("-1E-6176")],
    ];
    groups.push(vec![
        0.into(),
        0i64.into(),
        0.0.into(),
        (-0.0).into(),
        dec("0"),
        dec("-0"),
        dec("0E+10"),
        dec("0E-6176"),
    ]);
    groups.extend([
        vec![dec("1E-6176"), dec("1E-6176")],
        vec![dec("1E-400"), dec("10E-401")],
        vec![dec("4.940656458412465441765687928682213E-324")],
        vec![5e-324.into()],
        vec![dec("4.940656458412465441765687928682214E-324")],
        vec![f64::MIN_POSITIVE.into()],
        vec![dec("0.1"), dec("0.10")],
        vec![dec("0.1000000000000000055511151231257827")],
        vec![0.1.into()],
        vec![dec("0.1000000000000000055511151231257828")],
        vec![dec("0.3333333333333333333333333333333333")],
        vec![0.5.into(), dec("0.5"), dec("0.500000")],
        vec![1.0f64.next_down().into()],
        vec![dec("0.9999999999999999999999999999999999")],
    ]);
    groups.push(
        [
            whole(1),
            vec![dec("1.0"), dec("1.000000000000000000000000000000000")],
        ]
        .concat(),
    );
    groups.extend([
        vec![dec("1.000000000000000000000000000000001")],
        vec![1.0f64.next_up().into()],
        vec![1.1.into()],
        vec![dec("1.1000000000000001")],
        vec![1.5.into(), dec("1.5"), dec("1.500")],
        whole(127),
        vec![127.25.into(), dec("127.25")],
        whole(128),
        whole(255),
        whole(256),
        whole(32_767),
        whole(32_768),
        whole(65_536),
        whole(i32::MAX.into()),
        vec![dec("2147483647.1")],
        whole(1 << 31),
        whole(1 << 40),
        whole(DOUBLE_GAP - 1),
        whole(DOUBLE_GAP),
        vec![dec("9007199254740992.5")],
        whole(DOUBLE_GAP + 1),
        vec![(DOUBLE_GAP + 2).into(), ((DOUBLE_GAP + 2) as f64).into()],
        whole(1 << 62),
        whole(i64::MAX - 1),
        whole(i64::MAX),
        vec![dec("9223372036854775807.5")],
        vec![
            LONG_END.into(),
            dec("9223372036854775808"),
            dec("9223372036854775808.0"),
        ],
        vec![dec("9223372036854775809")],
        vec![1e22.into(), dec("1E+22"), dec("10000000000000000000000")],
        vec![1e23.into()],
        vec![dec("1E+23")],
        vec![dec("1.797693134862315708145274237317043E+308")],
        vec![f64::MAX.into()],
        vec![dec("1.797693134862315708145274237317044E+308")],
        vec![dec("1E+400")],
        vec![dec("9.999999999999999999999999999999999E+6144")],
        vec![f64::INFINITY.into(), dec("Infinity")],
    ]);
    groups
}

/// Returns strings, with and without NULs.
fn strings() -> Vec<Vec<Value>> {
    let texts = [
        "",
        "\0",
        "\0\0",
        "\0a",
        "\0\u{ff}",
        "\u{1}",
        "A",
        "a",
        "a\0",
        "a\0b",
        "a\u{1}",
        "ab",
        "b",
        "é",
        "\u{ffff}",
        "\u{10000}",
    ];
    texts
        .into_iter()
        .map(|text| vec![text.into(), Value::Symbol(text.into())])
        .collect()
}

/// Returns documents, then arrays.
fn containers() -> Vec<Vec<Value>> {
    vec![
        vec![doc! {}.into()],
        vec![doc! { "a": Value::MinKey }.into()],
        vec![doc! { "a": Value::Undefined }.into()],
        vec![doc! { "a": Value::Null }.into()],
        vec![doc! { "": 9 }.into()],
        vec![
            doc! { "a": 1 }.into(),
            doc! { "a": 1.0 }.into(),
            doc! { "a": dec("1.0") }.into(),
        ],
        vec![doc! { "a": 1, "b": Value::MinKey }.into()],
        vec![
            doc! { "a": 1, "b": 2 }.into(),
            doc! { "a": 1i64, "b": 2i64 }.into(),
        ],
        vec![doc! { "a": 2 }.into()],
        vec![doc! { "aa": 1 }.into()],
        vec![doc! { "b": 1 }.into()],
        vec![doc! { "b": 1, "a": 1 }.into()],
        vec![
            doc! { "a": "" }.into(),
            doc! { "a": Value::Symbol("".into()) }.into(),
        ],
        vec![doc! { "a": "b" }.into()],
        vec![doc! { "a": doc! {} }.into()],
        vec![doc! { "a": doc! { "b": 0 } }.into()],
        vec![doc! { "a": array![] }.into()],
        vec![doc! { "a": array![1] }.into()],
        vec![doc! { "a": true }.into()],
        vec![doc! { "a": Value::MaxKey }.into()],
        vec![array![]],
        vec![array![Value::MinKey]],
        vec![array![Value::Undefined]],
        vec![array![Value::Null]],
        vec![array![Value::Null, 1]],
        vec![array![1], array![1.0], array![dec("1.00")]],
        vec![array![1, Value::MinKey]],
        vec![array![1, 2]],
        vec![array![2]],
        vec![array!["a"]],
        vec![array!["a\0"]],
        vec![array!["a\0", "b"]],
        vec![array![doc! {}]],
        vec![array![array![]]],
        vec![array![array![1], 1]],
        vec![array![Value::MaxKey]],
    ]
}

/// Returns binary data: length before subtype before bytes.
fn binaries() -> Vec<Vec<Value>> {
    let binary = |subtype: u8, bytes: &[u8]| {
        Value::Binary(Binary {
            subtype,
            bytes: bytes.into(),
        })
    };
    vec![
        vec![binary(0, &[])],
        vec![binary(5, &[])],
        vec![binary(0, &[0])],
        vec![binary(0, &[255])],
        vec![binary(4, &[0])],
        vec![binary(255, &[1])],
        vec![binary(0, &[0, 0])],
        vec![binary(0, &[7; 254])],
        vec![binary(0, &[7; 255])],
        vec![binary(0, &[7; 256])],
        vec![binary(0, &[7; 70_000])],
    ]
}

/// Returns object ids, booleans, dates, timestamps, regular expressions, pointers, code.
fn scalars() -> Vec<Vec<Value>> {
    let pointer = |namespace: &str, id: u8| {
        Value::DbPointer(Arc::new(DbPointer {
            namespace: namespace.into(),
            id: ObjectId([id; 12]),
        }))
    };
    let regex = |pattern: &str, options: &str| {
        Value::Regex(Arc::new(Regex {
            pattern: pattern.into(),
            options: options.into(),
        }))
    };
    let scoped = |code: &str, scope| {
        Value::CodeWithScope(Arc::new(CodeWithScope {
            code: code.into(),
            scope,
        }))
    };
    let timestamp = |seconds, increment| Value::Timestamp(Timestamp { seconds, increment });
    vec![
        vec![ObjectId([0; 12]).into()],
        vec![ObjectId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).into()],
        vec![ObjectId([255; 12]).into()],
        vec![false.into()],
        vec![true.into()],
        vec![Value::DateTime(i64::MIN)],
        vec![Value::DateTime(-1)],
        vec![Value::DateTime(0)],
        vec![Value::DateTime(1)],
        vec![Value::DateTime(i64::MAX)],
        vec![timestamp(0, 0)],
        vec![timestamp(0, u32::MAX)],
        vec![timestamp(1, 0)],
        vec![timestamp(u32::MAX, u32::MAX)],
        vec![regex("", "")],
        vec![regex("a", "")],
        vec![regex("a", "i")],
        vec![regex("ab", "")],
        vec![pointer("b", 0)],
        vec![pointer("b", 1)],
        vec![pointer("aa", 0)],
        vec![Value::Code("".into())],
        vec![Value::Code("a".into())],
        vec![Value::Code("a\0".into())],
        vec![scoped("", doc! {})],
        vec![scoped("", doc! { "a": 1 }), scoped("", doc! { "a": 1.0 })],
        vec![scoped("a", doc! {})],
    ]
}
