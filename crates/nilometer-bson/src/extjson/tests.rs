//! Tests of Extended JSON.

use proptest::prelude::*;

use super::*;
use crate::testing::strategies;
use crate::value::Value;

/// Canonical and relaxed text of the same value.
const FORMS: &[(&str, &str)] = &[
    (r#"{"$numberInt":"1"}"#, "1"),
    (r#"{"$numberLong":"5000000000"}"#, "5000000000"),
    (r#"{"$numberDouble":"1.0"}"#, "1.0"),
    (r#"{"$numberDouble":"-0.0"}"#, "-0.0"),
    (r#"{"$numberDouble":"1e300"}"#, "1e300"),
    (r#"{"$numberDouble":"NaN"}"#, r#"{"$numberDouble":"NaN"}"#),
    (
        r#"{"$numberDouble":"-Infinity"}"#,
        r#"{"$numberDouble":"-Infinity"}"#,
    ),
    (
        r#"{"$numberDecimal":"1.20E+10"}"#,
        r#"{"$numberDecimal":"1.20E+10"}"#,
    ),
    (r#""a\"\\\n\u0000é""#, r#""a\"\\\n\u0000é""#),
    (r#"[null,true,{"$numberInt":"2"}]"#, "[null,true,2]"),
    (r#"{"b":{"$numberInt":"1"},"a":{}}"#, r#"{"b":1,"a":{}}"#),
    (
        r#"{"$date":{"$numberLong":"1356351330501"}}"#,
        r#"{"$date":"2012-12-24T12:15:30.501Z"}"#,
    ),
    (
        r#"{"$date":{"$numberLong":"0"}}"#,
        r#"{"$date":"1970-01-01T00:00:00Z"}"#,
    ),
    (
        r#"{"$date":{"$numberLong":"-1"}}"#,
        r#"{"$date":{"$numberLong":"-1"}}"#,
    ),
    (
        r#"{"$date":{"$numberLong":"253402300800000"}}"#,
        r#"{"$date":{"$numberLong":"253402300800000"}}"#,
    ),
    (
        r#"{"$oid":"56e1fc72e0c917e9c4714161"}"#,
        r#"{"$oid":"56e1fc72e0c917e9c4714161"}"#,
    ),
    (
        r#"{"$binary":{"base64":"AQID","subType":"80"}}"#,
        r#"{"$binary":{"base64":"AQID","subType":"80"}}"#,
    ),
    (
        r#"{"$timestamp":{"t":42,"i":1}}"#,
        r#"{"$timestamp":{"t":42,"i":1}}"#,
    ),
    (
        r#"{"$regularExpression":{"pattern":"a*","options":"ix"}}"#,
        r#"{"$regularExpression":{"pattern":"a*","options":"ix"}}"#,
    ),
    (
        r#"{"$dbPointer":{"$ref":"a.b","$id":{"$oid":"56e1fc72e0c917e9c4714161"}}}"#,
        r#"{"$dbPointer":{"$ref":"a.b","$id":{"$oid":"56e1fc72e0c917e9c4714161"}}}"#,
    ),
    (r#"{"$code":"f()"}"#, r#"{"$code":"f()"}"#),
    (
        r#"{"$code":"f()","$scope":{"a":{"$numberInt":"1"}}}"#,
        r#"{"$code":"f()","$scope":{"a":1}}"#,
    ),
    (r#"{"$symbol":"s"}"#, r#"{"$symbol":"s"}"#),
    (r#"{"$minKey":1}"#, r#"{"$minKey":1}"#),
    (r#"{"$maxKey":1}"#, r#"{"$maxKey":1}"#),
    (r#"{"$undefined":true}"#, r#"{"$undefined":true}"#),
];

#[test]
fn both_forms_of_every_type() {
    for (canonical, relaxed) in FORMS {
        for text in [canonical, relaxed] {
            let value = parse_value(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(&value_to_canonical(value.as_ref()), canonical);
            assert_eq!(&value_to_relaxed(value.as_ref()), relaxed);
        }
    }
}

#[test]
fn other_ways_to_write() {
    let same = |text: &str, canonical: &str| {
        let value = parse_value(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(value_to_canonical(value.as_ref()), canonical);
    };
    same(r#"{"$date":5}"#, r#"{"$date":{"$numberLong":"5"}}"#);
    same(
        "18446744073709551615",
        r#"{"$numberDouble":"1.8446744073709552e19"}"#,
    );
    same(
        r#"{"$uuid":"c8edabc3-f738-4ca3-b68d-ab92a91478a3"}"#,
        r#"{"$binary":{"base64":"yO2rw/c4TKO2jauSqRR4ow==","subType":"04"}}"#,
    );
    same(
        r#"{"$binary":{"subType":"0","base64":""}}"#,
        r#"{"$binary":{"base64":"","subType":"00"}}"#,
    );
    // Operators, references and near-wrappers are documents.
    for text in [
        r#"{"$gt":1}"#,
        r#"{"$regex":"a","$options":"i"}"#,
        r#"{"$ref":"c","$id":1}"#,
        r#"{"$oid":"x","y":1}"#,
        r#"{"x":1,"$oid":"56e1fc72e0c917e9c4714161"}"#,
        r#"{"a":1,"a":2}"#,
    ] {
        let value = parse_value(text).unwrap();
        assert!(matches!(value, Value::Document(_)), "{text}");
        assert_eq!(value_to_relaxed(value.as_ref()), text);
    }
}

#[test]
fn refused() {
    for text in [
        "",
        "{",
        "{a: 1}",
        r#"{"$oid":"123"}"#,
        r#"{"$numberInt":"2147483648"}"#,
        r#"{"$numberInt":1}"#,
        r#"{"$numberLong":"x"}"#,
        r#"{"$numberDouble":"inf"}"#,
        r#"{"$numberDecimal":"1x"}"#,
        r#"{"$date":"yesterday"}"#,
        r#"{"$timestamp":{"t":-1,"i":0}}"#,
        r#"{"$minKey":2}"#,
        r#"{"$binary":{"base64":"?","subType":"00"}}"#,
        r#"{"$undefined":false}"#,
        "{\"a\\u0000\":1}",
        r#"{"$regularExpression":{"pattern":"\u0000","options":""}}"#,
        r#"{"$uuid":"c8edabc3"}"#,
    ] {
        assert!(parse_value(text).is_err(), "{text}");
    }
    assert!(matches!(
        parse_document("[]"),
        Err(ExtJsonError::NotADocument)
    ));
    // Deep nesting is rejected without recursion.
    assert!(parse_value(&"[".repeat(100_000)).is_err());
}

#[test]
fn the_deepest_document_round_trips() {
    let mut document = crate::doc! {"at": Value::DateTime(i64::MAX)};
    for _ in 1..crate::validate::DEPTH_MAX {
        document = crate::doc! {"]\"{": document};
    }
    let text = to_canonical(document.as_ref());
    assert_eq!(parse_document(&text).expect("a document"), document);
    let deeper = format!("{{\"a\": {{\"a\": {{\"a\": {text}}}}}}}");
    assert!(matches!(
        parse_document(&deeper),
        Err(ExtJsonError::TooDeep)
    ));
}

proptest! {
    #[test]
    fn canonical_form_keeps_everything(document in strategies::document()) {
        let text = to_canonical(document.as_ref());
        let back = parse_document(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(to_canonical(back.as_ref()), text);
        prop_assert!(crate::order::equal(
            Value::from(back).as_ref(),
            Value::from(document).as_ref()
        ));
    }

    #[test]
    fn parsing_any_text_does_not_panic(text in any::<String>()) {
        let _ = parse_value(&text);
        let _ = parse_date(&text);
    }
}
