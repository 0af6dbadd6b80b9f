//! Every conversion, its argument errors, and the short forms.

use nilometer_bson::{Document, Timestamp, array, doc};

use super::super::testing::{check_exact, eval_code, parse_code};
use super::*;

fn decimal(text: &str) -> Value {
    Value::from(Decimal128::parse_exact(text).unwrap())
}

fn binary(subtype: u8, bytes: &[u8]) -> Value {
    Value::Binary(Binary {
        subtype,
        bytes: bytes.into(),
    })
}

fn id() -> ObjectId {
    ObjectId::parse_hex("5ab9cbfa31c2ab715d42129e").unwrap()
}

/// Every conversion: input, target, result (`None` for error 241).
#[test]
fn the_table() {
    let date = Value::DateTime(1_522_127_866_000);
    let cases: Vec<(Value, &str, Option<Value>)> = vec![
        (true.into(), "bool", Some(true.into())),
        (0.into(), "bool", Some(false.into())),
        (1.99.into(), "bool", Some(true.into())),
        (f64::NAN.into(), "bool", Some(true.into())),
        (decimal("0.0"), "bool", Some(false.into())),
        ("false".into(), "bool", Some(true.into())),
        ("".into(), "bool", Some(true.into())),
        (date.clone(), "bool", Some(true.into())),
        (id().into(), "bool", Some(true.into())),
        (true.into(), "int", Some(1.into())),
        (1.99.into(), "int", Some(1.into())),
        ((-1.99).into(), "int", Some((-1).into())),
        (decimal("5.5"), "int", Some(5.into())),
        (2_147_483_648i64.into(), "int", None),
        (f64::NAN.into(), "int", None),
        (f64::INFINITY.into(), "long", None),
        ("-2".into(), "int", Some((-2).into())),
        ("2.5".into(), "int", None),
        ("".into(), "int", None),
        (" 1".into(), "int", None),
        ("0x6400".into(), "int", None),
        ("2147483648".into(), "int", None),
        ("2147483648".into(), "long", Some(2_147_483_648i64.into())),
        (
            1e18.into(),
            "long",
            Some(1_000_000_000_000_000_000i64.into()),
        ),
        (1e19.into(), "long", None),
        (date.clone(), "long", Some(1_522_127_866_000i64.into())),
        (date.clone(), "int", None),
        (date.clone(), "double", Some(1_522_127_866_000.0.into())),
        (date.clone(), "decimal", Some(decimal("1522127866000"))),
        (false.into(), "double", Some(0.0.into())),
        ("-5.5".into(), "double", Some((-5.5).into())),
        ("1e3".into(), "double", Some(1000.0.into())),
        ("5e10000".into(), "double", None),
        ("abc".into(), "double", None),
        (decimal("1E400"), "double", None),
        (true.into(), "decimal", Some(decimal("1"))),
        (2.5.into(), "decimal", Some(decimal("2.50000000000000"))),
        ("1.10".into(), "decimal", Some(decimal("1.10"))),
        ("x".into(), "decimal", None),
        (
            120_000_000_000.5.into(),
            "date",
            Some(Value::DateTime(120_000_000_000)),
        ),
        (
            1_100_000_000_000i64.into(),
            "date",
            Some(Value::DateTime(1_100_000_000_000)),
        ),
        (5.into(), "date", None),
        (
            id().into(),
            "date",
            Some(Value::DateTime(1_522_125_818_000)),
        ),
        (
            Value::Timestamp(Timestamp {
                seconds: 5,
                increment: 1,
            }),
            "date",
            Some(Value::DateTime(5000)),
        ),
        (
            "2018-03-03".into(),
            "date",
            Some(Value::DateTime(1_520_035_200_000)),
        ),
        ("Friday".into(), "date", None),
        (true.into(), "date", None),
        (
            "5ab9cbfa31c2ab715d42129e".into(),
            "objectId",
            Some(id().into()),
        ),
        ("5ab9cbfa31c2ab715d42129".into(), "objectId", None),
        (5.into(), "objectId", None),
        (true.into(), "string", Some("true".into())),
        (2.5.into(), "string", Some("2.5".into())),
        (2i64.into(), "string", Some("2".into())),
        (decimal("2.50"), "string", Some("2.50".into())),
        (
            id().into(),
            "string",
            Some("5ab9cbfa31c2ab715d42129e".into()),
        ),
        (
            date.clone(),
            "string",
            Some("2018-03-27T05:17:46.000Z".into()),
        ),
        (array![1], "string", None),
        (Value::from(doc! {}), "string", None),
        (array![1], "array", Some(array![1])),
        (1.into(), "array", None),
        (1.into(), "regex", None),
    ];
    for (input, to, expected) in cases {
        let doc = doc! { "v": input.clone() };
        let convert = doc! { "$convert": doc! { "input": "$v", "to": to } };
        match expected {
            Some(expected) => check_exact(&doc, convert, expected),
            None => {
                assert_eq!(eval_code(&doc, convert), 241, "{input:?} to {to}");
                let or = doc! { "input": "$v", "to": to, "onError": "$v" };
                check_exact(&doc, doc! { "$convert": or }, input);
            }
        }
    }
}

#[test]
fn null_and_arguments() {
    let doc = doc! { "n": Value::Null, "five": 5 };
    let convert = |arguments: Document| doc! { "$convert": arguments };
    check_exact(
        &doc,
        convert(doc! { "input": "$n", "to": "int" }),
        Value::Null,
    );
    check_exact(
        &doc,
        convert(doc! { "input": "$gone", "to": "int", "onNull": "$five" }),
        5,
    );
    check_exact(
        &doc,
        convert(doc! { "input": "$five", "to": "$n" }),
        Value::Null,
    );
    check_exact(
        &doc,
        convert(doc! { "input": "$n", "to": "$n", "onNull": 1 }),
        1,
    );
    check_exact(&doc, convert(doc! { "input": "$five", "to": 1 }), 5.0);
    check_exact(&doc, convert(doc! { "input": "$five", "to": 18.0 }), 5i64);
    check_exact(
        &doc,
        convert(doc! { "input": "$five", "to": doc! { "type": "string" } }),
        "5",
    );
    for (arguments, code) in [
        (doc! { "input": "$five", "to": "integer" }, 2),
        (doc! { "input": "$five", "to": 1.5 }, 9),
        (doc! { "input": "$five", "to": 77 }, 9),
        (doc! { "input": "$five", "to": true }, 9),
    ] {
        assert_eq!(eval_code(&doc, convert(arguments)), code);
    }
    for argument in [
        Value::from("x"),
        doc! { "to": "int" }.into(),
        doc! { "input": 1 }.into(),
        doc! { "input": 1, "to": "int", "x": 1 }.into(),
    ] {
        assert_eq!(parse_code(doc! { "$convert": argument }), 9);
    }
}

#[test]
fn short_forms() {
    let doc = doc! { "n": Value::Null };
    for (name, input, expected) in [
        ("$toBool", Value::from(2), Value::from(true)),
        ("$toDate", 5i64.into(), Value::DateTime(5)),
        ("$toDecimal", 5.into(), decimal("5")),
        ("$toDouble", 5.into(), 5.0.into()),
        ("$toInt", 5.9.into(), 5.into()),
        ("$toLong", 5.into(), 5i64.into()),
        ("$toObjectId", id().to_hex().into(), id().into()),
        ("$toString", 5.into(), "5".into()),
        (
            "$toUUID",
            "00112233-4455-6677-8899-aabbccddeeff".into(),
            binary(
                4,
                &[
                    0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC,
                    0xDD, 0xEE, 0xFF,
                ],
            ),
        ),
    ] {
        let call = |argument: Value| {
            let mut out = nilometer_bson::DocumentBuilder::new();
            out.append(name, argument);
            out.finish()
        };
        check_exact(&doc, call(input), expected);
        check_exact(&doc, call("$n".into()), Value::Null);
        check_exact(&doc, call(array!["$gone"]), Value::Null);
        assert_eq!(eval_code(&doc, call(array![1, 2])), 16020);
    }
    assert_eq!(eval_code(&doc, doc! { "$toInt": "x" }), 241);
    assert_eq!(eval_code(&doc, doc! { "$toUUID": "x" }), 241);
}

#[test]
fn binary_and_text() {
    let doc = doc! { "b": binary(0, b"hi\xFF"), "u": binary(4, &[0; 16]), "s": "aGn/" };
    let convert = |arguments: Document| doc! { "$convert": arguments };
    let to_text = |format: &str| convert(doc! { "input": "$b", "to": "string", "format": format });
    check_exact(&doc, to_text("base64"), "aGn/");
    check_exact(&doc, to_text("base64url"), "aGn_");
    check_exact(&doc, to_text("hex"), "6869FF");
    check_exact(&doc, to_text("auto"), "aGn/");
    assert_eq!(eval_code(&doc, to_text("utf8")), 241);
    assert_eq!(eval_code(&doc, to_text("uuid")), 241);
    assert_eq!(eval_code(&doc, to_text("x")), 4_341_125);
    check_exact(
        &doc,
        doc! { "$toString": "$u" },
        "00000000-0000-0000-0000-000000000000",
    );
    let back =
        doc! { "input": "$s", "to": doc! { "type": "binData", "subtype": 0 }, "format": "base64" };
    check_exact(&doc, convert(back), binary(0, b"hi\xFF"));
    let without = doc! { "input": "$s", "to": "binData" };
    assert_eq!(eval_code(&doc, convert(without)), 9);
}

#[test]
fn types() {
    let doc = doc! { "n": Value::Null, "a": array![1], "r": 1.5 };
    for (expression, expected) in [
        ("$n", "null"),
        ("$gone", "missing"),
        ("$a", "array"),
        ("$r", "double"),
    ] {
        check_exact(&doc, doc! { "$type": expression }, expected);
    }
    check_exact(&doc, doc! { "$type": array![array![1]] }, "array");
    check_exact(&doc, doc! { "$isNumber": "$r" }, true);
    check_exact(&doc, doc! { "$isNumber": "$gone" }, false);
    check_exact(&doc, doc! { "$isNumber": "5" }, false);
}
