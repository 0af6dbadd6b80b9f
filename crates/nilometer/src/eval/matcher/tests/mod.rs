//! Every operator over the cases of MongoDB's manual and the project's query reference, and
//! generated filters compared with a naive matcher.

mod awkward;
mod generated;
mod geo;

use nilometer_bson::{Array, Binary, Document, Value, ValueRef, array, doc};

use super::*;
use crate::error::Result;
use crate::eval::{EvalContext, ParseContext};

fn parse(filter: &Document) -> Result<MatchExpression> {
    MatchExpression::parse(filter.as_ref(), &ParseContext::new())
}

fn matches(filter: &Document, document: &Document) -> bool {
    parse(filter)
        .unwrap_or_else(|e| panic!("{filter:?}: {e}"))
        .matches(document.as_ref(), &EvalContext::default())
        .unwrap()
}

/// Checks that the filter and its serialised form match exactly the documents marked true.
fn check(filter: Document, cases: Vec<(Document, bool)>) {
    let parsed = parse(&filter).unwrap_or_else(|e| panic!("{filter:?}: {e}"));
    let shown = parsed.to_document();
    let again = parse(&shown).unwrap_or_else(|e| panic!("{filter:?} shown as {shown:?}: {e}"));
    let simple = parsed.clone().simplify();
    let ctx = EvalContext::default();
    for (document, expected) in cases {
        for (way, filter_) in [("", &parsed), ("shown ", &again), ("simplified ", &simple)] {
            assert_eq!(
                filter_.matches(document.as_ref(), &ctx).unwrap(),
                expected,
                "{way}{filter:?} on {document:?}"
            );
        }
    }
}

fn regex(pattern: &str, options: &str) -> Value {
    ValueRef::Regex { pattern, options }.to_value()
}

#[test]
fn equality() {
    check(
        doc! {"a": 1},
        vec![
            (doc! {"a": 1}, true),
            (doc! {"a": 1.0}, true),
            (doc! {"a": 1i64}, true),
            (doc! {"a": "1"}, false),
            (doc! {"a": true}, false),
            (doc! {"a": array![3, 1]}, true),
            (doc! {"a": array![array![1]]}, false),
            (doc! {}, false),
        ],
    );
    check(
        doc! {"a": array![1, 2]},
        vec![
            (doc! {"a": array![1, 2]}, true),
            (doc! {"a": array![array![1, 2], 3]}, true),
            (doc! {"a": array![2, 1]}, false),
            (doc! {"a": array![1, 2, 3]}, false),
        ],
    );
    check(
        doc! {"a": array![]},
        vec![
            (doc! {"a": array![]}, true),
            (doc! {"a": array![array![]]}, true),
            (doc! {"a": array![1]}, false),
            (doc! {}, false),
        ],
    );
    check(
        doc! {"a": doc! {"b": 1, "c": 2}},
        vec![
            (doc! {"a": doc! {"b": 1, "c": 2.0}}, true),
            (doc! {"a": doc! {"c": 2, "b": 1}}, false),
            (doc! {"a": doc! {"b": 1}}, false),
        ],
    );
    check(
        doc! {"a": doc! {}},
        vec![(doc! {"a": doc! {}}, true), (doc! {}, false)],
    );
    check(
        doc! {"a": doc! {"$ref": "c", "$id": 1}},
        vec![(doc! {"a": doc! {"$ref": "c", "$id": 1}}, true)],
    );
    check(doc! {}, vec![(doc! {}, true)]);
    check(
        doc! {"": 1},
        vec![(doc! {"": 1}, true), (doc! {"a": 1}, false)],
    );
}

#[test]
fn null_and_missing() {
    check(
        doc! {"a": Value::Null},
        vec![
            (doc! {}, true),
            (doc! {"a": Value::Null}, true),
            (doc! {"a": array![Value::Null]}, true),
            (doc! {"a": array![]}, false),
            (doc! {"a": 0}, false),
            (doc! {"a": Value::Undefined}, false),
        ],
    );
    check(
        doc! {"a.b": Value::Null},
        vec![
            (doc! {}, true),
            (doc! {"a": 5}, true),
            (doc! {"a": Value::Null}, true),
            (doc! {"a": doc! {}}, true),
            (doc! {"a": array![]}, false),
            (doc! {"a": array![1]}, false),
            (doc! {"a": array![doc! {}]}, true),
            (doc! {"a": array![doc! {"b": 1}, doc! {}]}, true),
        ],
    );
    for op in ["$gte", "$lte"] {
        check(
            doc! {"a": doc_of(op, Value::Null)},
            vec![
                (doc! {}, true),
                (doc! {"a": Value::Null}, true),
                (doc! {"a": 1}, false),
            ],
        );
    }
    for op in ["$gt", "$lt"] {
        check(
            doc! {"a": doc_of(op, Value::Null)},
            vec![
                (doc! {}, false),
                (doc! {"a": Value::Null}, false),
                (doc! {"a": 1}, false),
            ],
        );
    }
    check(
        doc! {"a": doc! {"$ne": Value::Null}},
        vec![
            (doc! {}, false),
            (doc! {"a": 1}, true),
            (doc! {"a": Value::Undefined}, true),
        ],
    );
}

fn doc_of(name: &str, value: impl Into<Value>) -> Document {
    let mut out = nilometer_bson::DocumentBuilder::new();
    out.append(name, value);
    out.finish()
}

#[test]
fn order_keeps_types_apart() {
    check(
        doc! {"a": doc! {"$lt": 10}},
        vec![
            (doc! {"a": 9}, true),
            (doc! {"a": 9.99}, true),
            (doc! {"a": 10}, false),
            (doc! {"a": "9"}, false),
            (doc! {"a": Value::Null}, false),
            (doc! {}, false),
            (doc! {"a": f64::NAN}, false),
            (doc! {"a": f64::NEG_INFINITY}, true),
            (doc! {"a": array![20, 5]}, true),
            (doc! {"a": array![array![5]]}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$gte": 104, "$lt": 102}},
        vec![
            (doc! {"a": array![101, 105]}, true),
            (doc! {"a": 103}, false),
        ],
    );
    for (op, expected) in [
        ("$eq", true),
        ("$gte", true),
        ("$lte", true),
        ("$gt", false),
        ("$lt", false),
    ] {
        check(
            doc! {"a": doc_of(op, f64::NAN)},
            vec![
                (doc! {"a": f64::NAN}, expected),
                (doc! {"a": 1}, false),
                (doc! {}, false),
            ],
        );
    }
    check(
        doc! {"a": doc! {"$gt": array![1, 2]}},
        vec![
            (doc! {"a": array![1, 3]}, true),
            (doc! {"a": array![1, 1]}, false),
            (doc! {"a": 5}, false),
            (doc! {"a": array![array![9]]}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$gt": Value::MinKey}},
        vec![
            (doc! {"a": 5}, true),
            (doc! {"a": Value::Null}, true),
            (doc! {"a": Value::MinKey}, false),
            (doc! {"a": Value::MaxKey}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$lt": Value::MaxKey}},
        vec![(doc! {"a": 5}, true), (doc! {"a": Value::MaxKey}, false)],
    );
    check(
        doc! {"a": doc! {"$gt": false}},
        vec![(doc! {"a": true}, true), (doc! {"a": 1}, false)],
    );
    check(
        doc! {"t": doc! {"$ne": 5}},
        vec![
            (doc! {"t": Value::DateTime(5)}, true),
            (doc! {}, true),
            (doc! {"t": 5}, false),
        ],
    );
}

#[test]
fn complements() {
    check(
        doc! {"a": doc! {"$ne": 1}},
        vec![
            (doc! {"a": 1}, false),
            (doc! {"a": array![1, 2]}, false),
            (doc! {"a": 2}, true),
            (doc! {}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$not": doc! {"$gt": 5}}},
        vec![
            (doc! {"a": 6}, false),
            (doc! {"a": 5}, true),
            (doc! {"a": "x"}, true),
            (doc! {}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$not": doc! {"$gt": 5, "$lt": 8}}},
        vec![
            (doc! {"a": 6}, false),
            (doc! {"a": 9}, true),
            (doc! {"a": array![1, 9]}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$not": regex("^x", "")}},
        vec![
            (doc! {"a": "xa"}, false),
            (doc! {"a": "a"}, true),
            (doc! {}, true),
        ],
    );
    check(
        doc! {"$nor": array![doc! {"a": 1}, doc! {"b": 2}]},
        vec![
            (doc! {}, true),
            (doc! {"a": 1}, false),
            (doc! {"b": 2}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$nin": array![1, Value::Null]}},
        vec![
            (doc! {"a": 1}, false),
            (doc! {}, false),
            (doc! {"a": 2}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$not": doc! {"$not": doc! {"$eq": 1}}}},
        vec![(doc! {"a": 1}, true), (doc! {}, false)],
    );
}

#[test]
fn in_lists() {
    check(
        doc! {"a": doc! {"$in": array![1, "x", regex("^r", "i"), Value::Null, array![5], f64::NAN]}},
        vec![
            (doc! {"a": 1.0}, true),
            (doc! {"a": "x"}, true),
            (doc! {"a": "Red"}, true),
            (doc! {"a": "ared"}, false),
            (doc! {}, true),
            (doc! {"a": array![5]}, true),
            (doc! {"a": array![array![5], 7]}, true),
            (doc! {"a": 5}, false),
            (doc! {"a": f64::NAN}, true),
            (doc! {"a": array![9, 1]}, true),
            (doc! {"a": Value::Undefined}, false),
            (doc! {"a": regex("^r", "i")}, true),
            (doc! {"a": 2}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$in": array![]}},
        vec![(doc! {}, false), (doc! {"a": 1}, false)],
    );
}

#[test]
fn logic() {
    check(
        doc! {"$or": array![doc! {"a": 1}, doc! {"$and": array![doc! {"b": 1}, doc! {"c": 1}]}]},
        vec![
            (doc! {"a": 1}, true),
            (doc! {"b": 1}, false),
            (doc! {"b": 1, "c": 1}, true),
        ],
    );
    check(doc! {"$alwaysTrue": 1}, vec![(doc! {}, true)]);
    check(doc! {"$alwaysFalse": 1}, vec![(doc! {}, false)]);
    check(doc! {"$or": array![doc! {}]}, vec![(doc! {}, true)]);
    check(
        doc! {"$comment": "c", "a": 1},
        vec![(doc! {"a": 1}, true), (doc! {}, false)],
    );
    check(doc! {"$sampleRate": 1}, vec![(doc! {}, true)]);
    check(doc! {"$sampleRate": 0.0}, vec![(doc! {}, false)]);
}

#[test]
fn exists_and_type() {
    check(
        doc! {"a.b": doc! {"$exists": true}},
        vec![
            (doc! {"a": doc! {"b": Value::Null}}, true),
            (doc! {"a": array![doc! {}, doc! {"b": 1}]}, true),
            (doc! {"a": array![]}, false),
            (doc! {"a": doc! {}}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$exists": 0}},
        vec![(doc! {}, true), (doc! {"a": Value::Null}, false)],
    );
    check(
        doc! {"a": doc! {"$type": "number"}},
        vec![
            (doc! {"a": 1}, true),
            (doc! {"a": 1.5}, true),
            (doc! {"a": array!["x", 1]}, true),
            (doc! {"a": "1"}, false),
            (doc! {}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$type": array!["string", 10, "array"]}},
        vec![
            (doc! {"a": "x"}, true),
            (doc! {"a": Value::Null}, true),
            (doc! {"a": array![1]}, true),
            (doc! {"a": 1}, false),
            (doc! {}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$type": -1}},
        vec![
            (doc! {"a": Value::MinKey}, true),
            (doc! {"a": Value::MaxKey}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$type": 127.0}},
        vec![
            (doc! {"a": Value::MinKey}, false),
            (doc! {"a": Value::MaxKey}, true),
        ],
    );
}

#[test]
fn mod_and_size() {
    check(
        doc! {"a": doc! {"$mod": array![4, 1]}},
        vec![
            (doc! {"a": 5}, true),
            (doc! {"a": 5.9}, true),
            (doc! {"a": -3}, false),
            (doc! {"a": f64::NAN}, false),
            (doc! {"a": f64::INFINITY}, false),
            (doc! {"a": "5"}, false),
            (doc! {"a": array![2, 9]}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$mod": array![-1, 0]}},
        vec![(doc! {"a": i64::MIN}, true), (doc! {"a": 1e300}, false)],
    );
    check(
        doc! {"a": doc! {"$size": 2}},
        vec![
            (doc! {"a": array![1, 2]}, true),
            (doc! {"a": array![array![1, 2]]}, false),
            (doc! {"a": "xx"}, false),
        ],
    );
    check(
        doc! {"a.b": doc! {"$size": 1}},
        vec![(doc! {"a": array![doc! {"b": array![7]}]}, true)],
    );
}

#[test]
fn all() {
    check(
        doc! {"a": doc! {"$all": array![1, 2]}},
        vec![
            (doc! {"a": array![2, 3, 1]}, true),
            (doc! {"a": array![1]}, false),
            (doc! {"a": 1}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$all": array![array![1, 2]]}},
        vec![
            (doc! {"a": array![1, 2]}, true),
            (doc! {"a": array![array![1, 2]]}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$all": array![]}},
        vec![(doc! {"a": array![]}, false)],
    );
    check(
        doc! {"a": doc! {"$all": array![Value::Null]}},
        vec![(doc! {}, true)],
    );
    check(
        doc! {"a": doc! {"$all": array![regex("x", ""), "y"]}},
        vec![
            (doc! {"a": array!["axa", "y"]}, true),
            (doc! {"a": array!["y"]}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$all": array![
            doc! {"$elemMatch": doc! {"x": 1}}, doc! {"$elemMatch": doc! {"x": 2}},
        ]}},
        vec![
            (doc! {"a": array![doc! {"x": 1}, doc! {"x": 2}]}, true),
            (doc! {"a": array![doc! {"x": 1}]}, false),
        ],
    );
}

#[test]
fn elem_match() {
    check(
        doc! {"a": doc! {"$elemMatch": doc! {"$gte": 80, "$lt": 85}}},
        vec![
            (doc! {"a": array![82, 85]}, true),
            (doc! {"a": array![75, 88]}, false),
            (doc! {"a": 82}, false),
            (doc! {"a": array![array![82]]}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$elemMatch": doc! {"x": 1, "y": doc! {"$gt": 5}}}},
        vec![
            (doc! {"a": array![doc! {"x": 1, "y": 6}]}, true),
            (doc! {"a": array![doc! {"x": 1}, doc! {"y": 6}]}, false),
            (doc! {"a": doc! {"x": 1, "y": 6}}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$elemMatch": doc! {"$elemMatch": doc! {"$gt": 5}}}},
        vec![
            (doc! {"a": array![array![6]]}, true),
            (doc! {"a": array![6]}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$elemMatch": doc! {"0": 5}}},
        vec![
            (doc! {"a": array![array![5, 6]]}, true),
            (doc! {"a": array![array![6, 5]]}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$elemMatch": doc! {"$or": array![doc! {"x": 1}, doc! {"x": 2}]}}},
        vec![
            (doc! {"a": array![doc! {"x": 2}]}, true),
            (doc! {"a": array![doc! {"x": 3}]}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$elemMatch": doc! {"$not": doc! {"$gt": 5}, "$ne": 1}}},
        vec![
            (doc! {"a": array![6, 1]}, false),
            (doc! {"a": array![6, 2]}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$elemMatch": doc! {"$in": array![1, regex("x", "")]}}},
        vec![(doc! {"a": array!["ax"]}, true), (doc! {"a": "ax"}, false)],
    );
    check(
        doc! {"a": doc! {"$elemMatch": doc! {}}},
        vec![
            (doc! {"a": array![1]}, false),
            (doc! {"a": array![doc! {}]}, true),
        ],
    );
    check(
        doc! {"a.b": doc! {"$elemMatch": doc! {"$exists": true}}},
        vec![(doc! {"a": array![doc! {"b": array![1]}]}, true)],
    );
}

#[test]
fn patterns() {
    check(
        doc! {"a": regex("^AB", "i")},
        vec![
            (doc! {"a": "abc"}, true),
            (doc! {"a": array![1, "ABx"]}, true),
            (doc! {"a": "xab"}, false),
            (doc! {"a": regex("^AB", "i")}, true),
            (doc! {"a": regex("^AB", "")}, false),
            (doc! {"a": Value::Symbol("abx".into())}, true),
            (doc! {"a": 5}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$options": "i", "$regex": "^ab"}},
        vec![(doc! {"a": "ABC"}, true)],
    );
    check(
        doc! {"a": doc! {"$regex": regex("^ab", "i"), "$ne": "abc"}},
        vec![(doc! {"a": "ABC"}, true), (doc! {"a": "abc"}, false)],
    );
    check(
        doc! {"a": doc! {"$eq": regex("x", "")}},
        vec![(doc! {"a": "x"}, false), (doc! {"a": regex("x", "")}, true)],
    );
}

#[test]
fn bits() {
    let binary = |bytes: &[u8]| Binary {
        subtype: 0,
        bytes: bytes.into(),
    };
    check(
        doc! {"a": doc! {"$bitsAllSet": array![1, 5]}},
        vec![
            (doc! {"a": 0b10_0010}, true),
            (doc! {"a": 54.0}, true),
            (doc! {"a": 2}, false),
            (doc! {"a": 54.5}, false),
            (doc! {"a": binary(&[0x36])}, true),
            (doc! {"a": "x"}, false),
            (doc! {"a": -1}, true),
        ],
    );
    check(
        doc! {"a": doc! {"$bitsAllSet": array![200]}},
        vec![
            (doc! {"a": -1}, true),
            (doc! {"a": 1}, false),
            (doc! {"a": binary(&[255])}, false),
        ],
    );
    check(
        doc! {"a": doc! {"$bitsAnyClear": 35}},
        vec![(doc! {"a": 35}, false), (doc! {"a": 34}, true)],
    );
    check(
        doc! {"a": doc! {"$bitsAllClear": binary(&[0, 1])}},
        vec![(doc! {"a": 255}, true), (doc! {"a": 256}, false)],
    );
    check(
        doc! {"a": doc! {"$bitsAnySet": array![]}},
        vec![(doc! {"a": 255}, false)],
    );
    check(
        doc! {"a": doc! {"$bitsAllSet": array![]}},
        vec![(doc! {"a": 0}, true), (doc! {"a": "x"}, false)],
    );
}

#[test]
fn internal_comparisons_have_no_type_bracketing() {
    check(
        doc! {"a": doc! {"$_internalExprLte": 10}},
        vec![
            (doc! {"a": 5}, true),
            (doc! {}, true),
            (doc! {"a": Value::Null}, true),
            (doc! {"a": f64::NAN}, true),
            (doc! {"a": "x"}, false),
            (doc! {"a": array![5]}, false),
        ],
    );
    check(
        doc! {"a.b": doc! {"$_internalExprGt": 10}},
        vec![
            (doc! {"a": array![1]}, true),
            (doc! {"a": doc! {"b": 10}}, false),
        ],
    );
}

#[test]
fn refused_filters() {
    for (filter, code) in [
        (doc! {"$foo": 1}, 2),
        (doc! {"a": doc! {"$foo": 1}}, 2),
        (doc! {"a": doc! {"$gt": 1, "b": 1}}, 2),
        (doc! {"$and": doc! {}}, 2),
        (doc! {"$and": array![]}, 2),
        (doc! {"$or": array![1]}, 2),
        (doc! {"a": Value::Undefined}, 2),
        (doc! {"a": doc! {"$gt": Value::Undefined}}, 2),
        (doc! {"a": doc! {"$gt": regex("x", "")}}, 2),
        (doc! {"a": doc! {"$ne": regex("x", "")}}, 2),
        (doc! {"a": doc! {"$in": 1}}, 2),
        (doc! {"a": doc! {"$in": array![doc! {"$gt": 1}]}}, 2),
        (doc! {"a": doc! {"$in": array![Value::Undefined]}}, 2),
        (doc! {"a": doc! {"$not": 1}}, 2),
        (doc! {"a": doc! {"$not": doc! {}}}, 2),
        (doc! {"a": doc! {"$not": doc! {"b": 1}}}, 2),
        (doc! {"a": doc! {"$type": "nope"}}, 2),
        (doc! {"a": doc! {"$type": 0}}, 2),
        (doc! {"a": doc! {"$type": 99}}, 2),
        (doc! {"a": doc! {"$type": 2.5}}, 2),
        (doc! {"a": doc! {"$type": true}}, 14),
        (doc! {"a": doc! {"$type": array![]}}, 9),
        (doc! {"a": doc! {"$mod": 1}}, 2),
        (doc! {"a": doc! {"$mod": array![0, 1]}}, 2),
        (doc! {"a": doc! {"$mod": array![2]}}, 2),
        (doc! {"a": doc! {"$mod": array![2, "x"]}}, 2),
        (doc! {"a": doc! {"$mod": array![f64::NAN, 1]}}, 2),
        (doc! {"a": doc! {"$size": "x"}}, 2),
        (doc! {"a": doc! {"$size": -1}}, 2),
        (doc! {"a": doc! {"$size": 1.5}}, 2),
        (doc! {"a": doc! {"$all": 1}}, 2),
        (doc! {"a": doc! {"$all": array![doc! {"$gt": 1}]}}, 2),
        (
            doc! {"a": doc! {"$all": array![doc! {"$elemMatch": doc! {}}, 1]}},
            2,
        ),
        (doc! {"a": doc! {"$elemMatch": 1}}, 2),
        (doc! {"a": doc! {"$elemMatch": doc! {"$expr": true}}}, 2),
        (doc! {"a": doc! {"$elemMatch": doc! {"$where": "1"}}}, 2),
        (doc! {"a": doc! {"$regex": 1}}, 2),
        (doc! {"a": doc! {"$regex": "("}}, 51091),
        (doc! {"a": doc! {"$regex": "x", "$options": "g"}}, 51108),
        (
            doc! {"a": doc! {"$regex": regex("x", "i"), "$options": "i"}},
            51074,
        ),
        (
            doc! {"a": doc! {"$options": "i", "$regex": regex("x", "i")}},
            51075,
        ),
        (doc! {"a": doc! {"$options": "i"}}, 2),
        (doc! {"a": doc! {"$bitsAllSet": "x"}}, 9),
        (doc! {"a": doc! {"$bitsAllSet": -1}}, 9),
        (doc! {"a": doc! {"$bitsAllSet": 1.5}}, 9),
        (doc! {"a": doc! {"$bitsAllSet": array![-1]}}, 9),
        (doc! {"$alwaysTrue": 2}, 9),
        (doc! {"$sampleRate": 2}, 2),
        (doc! {"$sampleRate": "x"}, 2),
        (doc! {"$where": "1"}, 2),
        (doc! {"$text": doc! {"$search": "x"}}, 2),
        (doc! {"a": doc! {"$near": array![0, 0]}}, 5_626_500),
        (doc! {"$jsonSchema": 1}, 14),
    ] {
        let error = parse(&filter).expect_err(&format!("{filter:?}"));
        assert_eq!(error.code.0, code, "{filter:?}: {error}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        let mut filter = doc! {"a": 1};
        for _ in 0..depth {
            filter = doc! {"$and": array![filter]};
        }
        filter
    };
    assert!(parse(&nested(FILTER_DEPTH_MAX)).is_ok());
    assert_eq!(parse(&nested(FILTER_DEPTH_MAX + 1)).unwrap_err().code.0, 2);
}

#[test]
fn positions() {
    let at = |filter: Document, document: Document| {
        parse(&filter)
            .unwrap()
            .matches_with_position(document.as_ref(), &EvalContext::default())
            .unwrap()
    };
    let scores = doc! {"a": array![75, 82, 91], "b": array![doc! {"x": 1}, doc! {"x": 2}]};
    assert_eq!(
        at(doc! {"a": doc! {"$gt": 80}}, scores.clone()),
        (true, Some(1))
    );
    assert_eq!(at(doc! {"b.x": 2}, scores.clone()), (true, Some(1)));
    assert_eq!(
        at(
            doc! {"b": doc! {"$elemMatch": doc! {"x": 2}}},
            scores.clone()
        ),
        (true, Some(1))
    );
    assert_eq!(at(doc! {"a.0": 75}, scores.clone()), (true, None));
    assert_eq!(at(doc! {"a": 5}, scores), (false, None));
}

#[test]
fn splits_and_renames() {
    let filter = doc! {
        "m.a": 1, "v": doc! {"$gt": 5},
        "$or": array![doc! {"m.b": 1}, doc! {"m": 2}],
        "$expr": "$m.c",
    };
    let (meta, rest) = parse(&filter)
        .unwrap()
        .split(|path| path == "m" || path.starts_with("m."));
    assert_eq!(rest.to_document(), doc! {"v": doc! {"$gt": 5}});
    let renamed = meta.renamed("m", "meta").unwrap().to_document();
    assert_eq!(
        renamed,
        doc! {"$and": array![
            doc! {"meta.a": doc! {"$eq": 1}},
            doc! {"$or": array![doc! {"meta.b": doc! {"$eq": 1}}, doc! {"meta": doc! {"$eq": 2}}]},
            doc! {"$expr": "$meta.c"},
        ]}
    );
    assert!(parse(&filter).unwrap().renamed("m", "meta").is_none());
    let whole = parse(&doc! {"$expr": "$$ROOT"}).unwrap();
    assert!(whole.dependencies().whole);
    assert_eq!(whole.split(|_| true).0.to_document(), doc! {});
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = PATH_OPERATOR_NAMES.to_vec();
    names.extend(TOP_LEVEL_OPERATOR_NAMES);
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(matches(&doc! {}, &doc! {}));
}
