//! Every keyword with values it accepts and rejects, and invalid schemas.

use nilometer_bson::{Binary, array, doc};

use super::*;

fn check(schema: Document, cases: Vec<(Document, bool)>) {
    let parsed = JsonSchema::parse(schema.as_ref()).unwrap_or_else(|e| panic!("{schema:?}: {e}"));
    let ctx = EvalContext::default();
    for (document, expected) in cases {
        assert_eq!(
            parsed.matches(document.as_ref(), &ctx).unwrap(),
            expected,
            "{schema:?} of {document:?}"
        );
        // The explanation reports a failure exactly if there is one.
        let broken =
            JsonSchema::rules_not_satisfied(schema.as_ref(), document.as_ref(), &ctx).unwrap();
        assert_eq!(broken.is_empty(), expected, "{schema:?}: {broken:?}");
    }
}

/// Returns a schema for the field `a`.
fn on_a(schema: Document) -> Document {
    doc! { "properties": doc! { "a": schema } }
}

#[test]
fn types() {
    check(doc! {}, vec![(doc! {}, true), (doc! {"a": 1}, true)]);
    check(doc! {"type": "string"}, vec![(doc! {}, false)]);
    check(doc! {"type": "object"}, vec![(doc! {}, true)]);
    check(
        on_a(doc! {"type": "number"}),
        vec![
            (doc! {"a": 1}, true),
            (doc! {"a": 1i64}, true),
            (doc! {"a": 1.5}, true),
            (doc! {"a": "1"}, false),
            (doc! {"a": array![1]}, false),
            (doc! {}, true),
        ],
    );
    check(
        on_a(doc! {"bsonType": array!["int", "null"]}),
        vec![
            (doc! {"a": 1}, true),
            (doc! {"a": Value::Null}, true),
            (doc! {"a": 1.0}, false),
        ],
    );
    check(
        on_a(doc! {"type": "boolean"}),
        vec![(doc! {"a": true}, true), (doc! {"a": 1}, false)],
    );
}

#[test]
fn numbers() {
    check(
        on_a(doc! {"minimum": 5, "maximum": 7, "exclusiveMaximum": true}),
        vec![
            (doc! {"a": 5}, true),
            (doc! {"a": 6.5}, true),
            (doc! {"a": 7}, false),
            (doc! {"a": 4}, false),
            (doc! {"a": f64::NAN}, false),
            (doc! {"a": "x"}, true),
        ],
    );
    check(
        on_a(doc! {"multipleOf": 2.5}),
        vec![
            (doc! {"a": 5}, true),
            (doc! {"a": 0}, true),
            (doc! {"a": 4}, false),
            (doc! {"a": f64::INFINITY}, false),
        ],
    );
}

#[test]
fn strings() {
    check(
        on_a(doc! {"minLength": 2, "maxLength": 3, "pattern": "^é"}),
        vec![
            (doc! {"a": "éa"}, true),
            (doc! {"a": "é"}, false),
            (doc! {"a": "éabc"}, false),
            (doc! {"a": "ab"}, false),
            (doc! {"a": 5}, true),
        ],
    );
}

#[test]
fn objects() {
    check(
        doc! {"required": array!["a", "b"]},
        vec![
            (doc! {"a": 1, "b": Value::Null}, true),
            (doc! {"a": 1}, false),
        ],
    );
    check(
        doc! {
            "properties": doc! {"a": doc! {}},
            "patternProperties": doc! {"^x": doc! {"type": "number"}},
            "additionalProperties": doc! {"type": "string"},
        },
        vec![
            (doc! {"a": 1, "x1": 2, "other": "s"}, true),
            (doc! {"x1": "s"}, false),
            (doc! {"other": 1}, false),
        ],
    );
    check(
        doc! {"properties": doc! {"a": doc! {}}, "additionalProperties": false},
        vec![(doc! {"a": 1}, true), (doc! {"a": 1, "b": 1}, false)],
    );
    check(
        doc! {"minProperties": 1, "maxProperties": 2},
        vec![
            (doc! {}, false),
            (doc! {"a": 1}, true),
            (doc! {"a": 1, "b": 1, "c": 1}, false),
        ],
    );
    check(
        doc! {"dependencies": doc! {
            "a": array!["b"],
            "c": doc! {"required": array!["d"]},
        }},
        vec![
            (doc! {"a": 1, "b": 1}, true),
            (doc! {"a": 1}, false),
            (doc! {"c": 1}, false),
            (doc! {"c": 1, "d": 1}, true),
            (doc! {"x": 1}, true),
        ],
    );
}

#[test]
fn arrays() {
    check(
        on_a(doc! {"items": doc! {"type": "number"}, "minItems": 1, "maxItems": 2}),
        vec![
            (doc! {"a": array![1, 2.5]}, true),
            (doc! {"a": array![1, "x"]}, false),
            (doc! {"a": array![]}, false),
            (doc! {"a": array![1, 2, 3]}, false),
            (doc! {"a": "no array"}, true),
        ],
    );
    check(
        on_a(doc! {
            "items": array![doc! {"type": "number"}, doc! {"type": "string"}],
            "additionalItems": false,
        }),
        vec![
            (doc! {"a": array![1, "x"]}, true),
            (doc! {"a": array![1]}, true),
            (doc! {"a": array![1, "x", 2]}, false),
        ],
    );
    check(
        on_a(doc! {"uniqueItems": true}),
        vec![
            (doc! {"a": array![1, 2, "1"]}, true),
            (doc! {"a": array![1, 1.0]}, false),
            (
                doc! {"a": array![doc! {"x": 1, "y": 2}, doc! {"y": 2, "x": 1}]},
                false,
            ),
        ],
    );
}

#[test]
fn logic_and_enum() {
    let number = doc! {"type": "number"};
    let small = doc! {"maximum": 10};
    check(
        on_a(doc! {"allOf": array![number.clone(), small.clone()]}),
        vec![(doc! {"a": 5}, true), (doc! {"a": "x"}, false)],
    );
    check(
        on_a(doc! {"anyOf": array![number.clone(), doc! {"type": "string"}]}),
        vec![(doc! {"a": "x"}, true), (doc! {"a": true}, false)],
    );
    check(
        on_a(doc! {"oneOf": array![number.clone(), small]}),
        vec![
            (doc! {"a": 11}, true),
            (doc! {"a": 5}, false),
            (doc! {"a": "x"}, true),
        ],
    );
    check(
        on_a(doc! {"not": number}),
        vec![(doc! {"a": 5}, false), (doc! {}, true)],
    );
    check(
        on_a(doc! {"enum": array![1, "x", doc! {"p": 1, "q": 2}, Value::Null]}),
        vec![
            (doc! {"a": 1.0}, true),
            (doc! {"a": doc! {"q": 2, "p": 1}}, true),
            (doc! {"a": Value::Null}, true),
            (doc! {"a": 2}, false),
            (doc! {}, true),
        ],
    );
}

#[test]
fn encrypted_values() {
    let mut blob = vec![1u8; 17];
    blob.push(2);
    let binary = |subtype: u8| Binary {
        subtype,
        bytes: blob.as_slice().into(),
    };
    check(
        on_a(doc! {"encrypt": doc! {}}),
        vec![
            (doc! {"a": binary(6)}, true),
            (doc! {"a": binary(0)}, false),
            (doc! {"a": 1}, false),
        ],
    );
    check(
        on_a(doc! {"encrypt": doc! {"bsonType": "string", "algorithm": "x"}}),
        vec![(doc! {"a": binary(6)}, true)],
    );
    check(
        on_a(doc! {"encrypt": doc! {"bsonType": "int"}}),
        vec![(doc! {"a": binary(6)}, false)],
    );
}

#[test]
fn refused_schemas() {
    for (schema, code) in [
        (doc! {"foo": 1}, 9),
        (doc! {"$ref": "x"}, 9),
        (doc! {"type": 1}, 14),
        (doc! {"type": "integer"}, 9),
        (doc! {"type": "int"}, 2),
        (doc! {"bsonType": "nope"}, 2),
        (doc! {"type": "string", "bsonType": "int"}, 9),
        (doc! {"type": array![]}, 9),
        (doc! {"properties": 1}, 14),
        (doc! {"properties": doc! {"a": 1}}, 14),
        (doc! {"required": array![]}, 9),
        (doc! {"required": array!["a", "a"]}, 9),
        (doc! {"required": array![1]}, 14),
        (doc! {"minimum": "x"}, 14),
        (doc! {"exclusiveMinimum": true}, 9),
        (doc! {"multipleOf": 0}, 9),
        (doc! {"minLength": -1}, 9),
        (doc! {"minLength": 1.5}, 9),
        (doc! {"enum": array![]}, 9),
        (doc! {"enum": array![1, 1.0]}, 9),
        (doc! {"allOf": array![]}, 2),
        (doc! {"allOf": doc! {}}, 14),
        (doc! {"uniqueItems": 1}, 14),
        (doc! {"pattern": "("}, 51091),
        (doc! {"encrypt": doc! {"x": 1}}, 40415),
        (doc! {"encrypt": doc! {}, "type": "string"}, 9),
    ] {
        let error = JsonSchema::parse(schema.as_ref()).unwrap_err();
        assert_eq!(error.code.0, code, "{schema:?}: {error}");
    }
    let mut deep = doc! {};
    for _ in 0..200 {
        deep = doc! {"not": deep};
    }
    assert_eq!(JsonSchema::parse(deep.as_ref()).unwrap_err().code.0, 9);
}
