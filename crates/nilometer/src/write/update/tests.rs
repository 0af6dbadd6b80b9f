//! Tables of a document, an update and the result. `same` marks an update that changes nothing.

use nilometer_bson::extjson::{parse_document, parse_value, to_relaxed};
use nilometer_bson::{DocRef, Document, ValueRef, doc};

use super::{Update, check, document_of_filter};
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};

const NOW_MS: i64 = 1_700_000_000_000;

fn parsed(text: &str) -> Document {
    parse_document(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn update_of(update: &str, filters: &str) -> Result<Update> {
    let update = parse_value(update).unwrap_or_else(|e| panic!("{update}: {e}"));
    let filters = parse_value(filters).unwrap();
    Update::parse(
        update.as_ref(),
        filters.as_ref().as_array(),
        &ParseContext::new(),
    )
}

fn eval() -> EvalContext<'static> {
    EvalContext {
        now_ms: NOW_MS,
        ..EvalContext::default()
    }
}

fn applied(before: &str, update: &str, filters: &str, at: Option<usize>) -> Result<String> {
    let before = parsed(before);
    let update = update_of(update, filters)?;
    let after = update.apply(before.as_ref(), at, &eval())?;
    if let Some(after) = &after {
        check::id_unchanged(&update, before.as_ref(), after)?;
    }
    Ok(after.map_or("same".into(), |after| to_relaxed(after.as_ref())))
}

#[track_caller]
fn table(rows: &[(&str, &str, &str)]) {
    for (before, update, after) in rows {
        let found = applied(before, update, "[]", None)
            .unwrap_or_else(|error| panic!("{before} {update}: {error}"));
        let wanted = match *after {
            "same" => "same".to_owned(),
            after => to_relaxed(parsed(after).as_ref()),
        };
        assert_eq!(found, wanted, "{before} {update}");
    }
}

#[track_caller]
fn refused(rows: &[(&str, &str, i32)]) {
    for (before, update, code) in rows {
        match applied(before, update, "[]", None) {
            Ok(after) => panic!("{before} {update}: {after}"),
            Err(error) => assert_eq!(error.code.0, *code, "{before} {update}: {error}"),
        }
    }
}

#[test]
fn set_and_unset() {
    table(&[
        (r#"{"_id":1}"#, r#"{"$set":{"a":1}}"#, r#"{"_id":1,"a":1}"#),
        (
            r#"{"a":1,"b":2}"#,
            r#"{"$set":{"a":3}}"#,
            r#"{"a":3,"b":2}"#,
        ),
        (r#"{"a":1}"#, r#"{"$set":{"a":1}}"#, "same"),
        (r#"{"a":1}"#, r#"{"$set":{"a":1.5}}"#, r#"{"a":1.5}"#),
        (r#"{"a":1}"#, r#"{"$set":{}}"#, "same"),
        // New fields in the order of their names, numbers numerically.
        (
            r#"{}"#,
            r#"{"$set":{"b":1,"a":2,"10":3,"9":4}}"#,
            r#"{"9":4,"10":3,"a":2,"b":1}"#,
        ),
        (r#"{}"#, r#"{"$set":{"a.b.c":1}}"#, r#"{"a":{"b":{"c":1}}}"#),
        (r#"{}"#, r#"{"$set":{"a.0":1}}"#, r#"{"a":{"0":1}}"#),
        (r#"{"a":[1]}"#, r#"{"$set":{"a.0":2}}"#, r#"{"a":[2]}"#),
        (
            r#"{"a":[]}"#,
            r#"{"$set":{"a.2":2}}"#,
            r#"{"a":[null,null,2]}"#,
        ),
        (
            r#"{"a":[{"b":1}]}"#,
            r#"{"$set":{"a.0.c":2,"a.1.b":3}}"#,
            r#"{"a":[{"b":1,"c":2},{"b":3}]}"#,
        ),
        (r#"{"a":1,"b":2}"#, r#"{"$unset":{"a":""}}"#, r#"{"b":2}"#),
        (
            r#"{"a":{"b":1}}"#,
            r#"{"$unset":{"a.b":""}}"#,
            r#"{"a":{}}"#,
        ),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$unset":{"a.0":""}}"#,
            r#"{"a":[null,2]}"#,
        ),
        (
            r#"{"a":1}"#,
            r#"{"$unset":{"a.b":1,"c":1,"c2.d":1}}"#,
            "same",
        ),
        (r#"{"a":[1]}"#, r#"{"$unset":{"a.5":1,"a.x":1}}"#, "same"),
        (r#"{"a":[null]}"#, r#"{"$unset":{"a.0":1}}"#, "same"),
        (r#"{"a":1}"#, r#"{"$setOnInsert":{"a":2,"a1":3}}"#, "same"),
        (
            r#"{"_id":1}"#,
            r#"{"$set":{"_id":1,"a":{"$x":1}}}"#,
            r#"{"_id":1,"a":{"$x":1}}"#,
        ),
    ]);
    refused(&[
        (r#"{"a":1}"#, r#"{"$set":{"a.b":1}}"#, 28),
        (r#"{"a":null}"#, r#"{"$set":{"a.b":1}}"#, 28),
        (r#"{"a":[1]}"#, r#"{"$set":{"a.b":1}}"#, 28),
        (r#"{"a":1}"#, r#"{"$set":{"a.b.c":1}}"#, 28),
        (r#"{"_id":1}"#, r#"{"$set":{"_id":2}}"#, 66),
        (r#"{"_id":1}"#, r#"{"$unset":{"_id":1}}"#, 66),
        (r#"{"_id":{"a":1}}"#, r#"{"$set":{"_id.a":2}}"#, 66),
        (r#"{}"#, r#"{"$set":{"$a":2}}"#, 52),
        (r#"{}"#, r#"{"$set":{"":2}}"#, 56),
        (r#"{"a":[]}"#, r#"{"$set":{"a.1500001":2}}"#, 34),
    ]);
}

#[test]
fn invalid_updates_are_refused() {
    refused(&[
        (r#"{}"#, r#"{"$foo":{"a":1}}"#, 9),
        (r#"{}"#, r#"{"$set":1}"#, 9),
        (r#"{}"#, r#"{"$set":{"a":1},"b":1}"#, 9),
        (r#"{}"#, r#"{"a":1,"$set":{"b":1}}"#, 52),
        (r#"{}"#, r#"7"#, 9),
    ]);
}

#[test]
fn conflicts() {
    refused(&[
        (r#"{}"#, r#"{"$set":{"a":1},"$inc":{"a":1}}"#, 40),
        (r#"{}"#, r#"{"$set":{"a":1,"a.b":1}}"#, 40),
        (r#"{}"#, r#"{"$set":{"a.b":1},"$unset":{"a":1}}"#, 40),
        (r#"{}"#, r#"{"$set":{"a.b":1},"$push":{"a.b.c":1}}"#, 40),
        (r#"{}"#, r#"{"$set":{"a.$[].b":1,"a.0":1}}"#, 40),
        (r#"{}"#, r#"{"$set":{"a.$[]":1},"$inc":{"a.$[]":1}}"#, 40),
        (r#"{}"#, r#"{"$rename":{"a":"b"},"$set":{"b":1}}"#, 40),
        (r#"{}"#, r#"{"$rename":{"a":"b"},"$set":{"a.c":1}}"#, 40),
    ]);
    let both = r#"{"$set":{"a.0":1,"a.$":2}}"#;
    let error = applied(r#"{"a":[5]}"#, both, "[]", Some(0)).unwrap_err();
    assert_eq!(error.code.0, 40);
    let after = applied(r#"{"a":[5,6]}"#, both, "[]", Some(1)).unwrap();
    assert_eq!(after, to_relaxed(parsed(r#"{"a":[1,2]}"#).as_ref()));
}

#[test]
fn arithmetic() {
    table(&[
        (r#"{"a":1}"#, r#"{"$inc":{"a":2}}"#, r#"{"a":3}"#),
        (r#"{"a":1}"#, r#"{"$inc":{"a":0}}"#, "same"),
        (r#"{}"#, r#"{"$inc":{"a.b":-2}}"#, r#"{"a":{"b":-2}}"#),
        (r#"{"a":1}"#, r#"{"$inc":{"a":0.5}}"#, r#"{"a":1.5}"#),
        (
            r#"{"a":2147483647}"#,
            r#"{"$inc":{"a":1}}"#,
            r#"{"a":{"$numberLong":"2147483648"}}"#,
        ),
        (r#"{"a":3}"#, r#"{"$mul":{"a":2}}"#, r#"{"a":6}"#),
        (r#"{}"#, r#"{"$mul":{"a":2}}"#, r#"{"a":0}"#),
        (
            r#"{}"#,
            r#"{"$mul":{"a":2.5}}"#,
            r#"{"a":{"$numberDouble":"0.0"}}"#,
        ),
        (
            r#"{"a":2}"#,
            r#"{"$mul":{"a":{"$numberDecimal":"1.5"}}}"#,
            r#"{"a":{"$numberDecimal":"3.0"}}"#,
        ),
    ]);
    refused(&[
        (r#"{"a":"x"}"#, r#"{"$inc":{"a":1}}"#, 14),
        (r#"{"a":null}"#, r#"{"$mul":{"a":1}}"#, 14),
        (r#"{"a":1}"#, r#"{"$inc":{"a":"x"}}"#, 14),
        (
            r#"{"a":{"$numberLong":"9223372036854775807"}}"#,
            r#"{"$inc":{"a":1}}"#,
            2,
        ),
        (
            r#"{"a":{"$numberLong":"9223372036854775807"}}"#,
            r#"{"$mul":{"a":2}}"#,
            2,
        ),
        (r#"{"a":{"b":1}}"#, r#"{"$inc":{"a.b.c":1}}"#, 28),
    ]);
}

#[test]
fn min_max_and_bits() {
    table(&[
        (r#"{"a":5}"#, r#"{"$min":{"a":3}}"#, r#"{"a":3}"#),
        (r#"{"a":5}"#, r#"{"$min":{"a":7}}"#, "same"),
        (r#"{"a":5}"#, r#"{"$max":{"a":5.0}}"#, "same"),
        (r#"{"a":5}"#, r#"{"$max":{"a":"x"}}"#, r#"{"a":"x"}"#),
        (r#"{}"#, r#"{"$max":{"a":null}}"#, r#"{"a":null}"#),
        (r#"{"a":13}"#, r#"{"$bit":{"a":{"and":10}}}"#, r#"{"a":8}"#),
        (
            r#"{"a":3}"#,
            r#"{"$bit":{"a":{"or":4,"xor":1}}}"#,
            r#"{"a":6}"#,
        ),
        (r#"{}"#, r#"{"$bit":{"a":{"or":4}}}"#, r#"{"a":4}"#),
        (r#"{"a":4}"#, r#"{"$bit":{"a":{"or":4}}}"#, "same"),
        (
            r#"{"a":-1}"#,
            r#"{"$bit":{"a":{"and":{"$numberLong":"7"}}}}"#,
            r#"{"a":{"$numberLong":"7"}}"#,
        ),
    ]);
    refused(&[
        (r#"{"a":1.5}"#, r#"{"$bit":{"a":{"and":1}}}"#, 2),
        (r#"{}"#, r#"{"$bit":{"a":{"nand":1}}}"#, 2),
        (r#"{}"#, r#"{"$bit":{"a":{"and":1.5}}}"#, 2),
        (r#"{}"#, r#"{"$bit":{"a":{}}}"#, 2),
        (r#"{}"#, r#"{"$bit":{"a":1}}"#, 2),
    ]);
}

#[test]
fn dates() {
    let now = format!(r#"{{"$date":{{"$numberLong":"{NOW_MS}"}}}}"#);
    let both = r#"{"$currentDate":{"a":true,"b":{"$type":"timestamp"}}}"#;
    let after = format!(r#"{{"a":{now},"b":{{"$timestamp":{{"t":1700000000,"i":1}}}}}}"#);
    table(&[(r#"{"a":1}"#, both, &after)]);
    refused(&[
        (r#"{}"#, r#"{"$currentDate":{"a":1}}"#, 2),
        (r#"{}"#, r#"{"$currentDate":{"a":{"$type":"x"}}}"#, 2),
        (r#"{}"#, r#"{"$currentDate":{"a":{"x":"date"}}}"#, 2),
    ]);
}

#[test]
fn rename() {
    table(&[
        (
            r#"{"a":1,"c":2}"#,
            r#"{"$rename":{"a":"b"}}"#,
            r#"{"c":2,"b":1}"#,
        ),
        (r#"{"a":1,"b":2}"#, r#"{"$rename":{"a":"b"}}"#, r#"{"b":1}"#),
        (r#"{"a":1,"b":1}"#, r#"{"$rename":{"a":"b"}}"#, r#"{"b":1}"#),
        (
            r#"{"a":{"x":1}}"#,
            r#"{"$rename":{"a.x":"b.y"}}"#,
            r#"{"a":{},"b":{"y":1}}"#,
        ),
        (r#"{"c":1}"#, r#"{"$rename":{"a":"b"}}"#, "same"),
        (r#"{"c":{}}"#, r#"{"$rename":{"c.a":"b"}}"#, "same"),
    ]);
    refused(&[
        (r#"{}"#, r#"{"$rename":{"a":1}}"#, 2),
        (r#"{}"#, r#"{"$rename":{"a":"a"}}"#, 2),
        (r#"{}"#, r#"{"$rename":{"a":"a.b"}}"#, 2),
        (r#"{}"#, r#"{"$rename":{"a.b":"a"}}"#, 2),
        (r#"{}"#, r#"{"$rename":{"a.$":"b"}}"#, 2),
        (r#"{"a":[{"b":1}]}"#, r#"{"$rename":{"a.0.b":"c"}}"#, 2),
        (r#"{"c":1}"#, r#"{"$rename":{"c.a":"b"}}"#, 28),
        (r#"{"a":1,"b":[1]}"#, r#"{"$rename":{"a":"b.0"}}"#, 2),
        (r#"{"a":1,"b":1}"#, r#"{"$rename":{"a":"b.c"}}"#, 28),
        (r#"{"_id":1}"#, r#"{"$rename":{"_id":"b"}}"#, 66),
    ]);
}

#[test]
fn push() {
    table(&[
        (r#"{"a":[1]}"#, r#"{"$push":{"a":2}}"#, r#"{"a":[1,2]}"#),
        (r#"{}"#, r#"{"$push":{"a":[2]}}"#, r#"{"a":[[2]]}"#),
        (
            r#"{"a":[1]}"#,
            r#"{"$push":{"a":{"$each":[2,3]}}}"#,
            r#"{"a":[1,2,3]}"#,
        ),
        (r#"{"a":[1]}"#, r#"{"$push":{"a":{"$each":[]}}}"#, "same"),
        (r#"{}"#, r#"{"$push":{"a":{"$each":[]}}}"#, r#"{"a":[]}"#),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$push":{"a":{"$each":[8,9],"$position":1}}}"#,
            r#"{"a":[1,8,9,2]}"#,
        ),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$push":{"a":{"$each":[8],"$position":-1}}}"#,
            r#"{"a":[1,8,2]}"#,
        ),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$push":{"a":{"$each":[8],"$position":-9}}}"#,
            r#"{"a":[8,1,2]}"#,
        ),
        (
            r#"{"a":[3,1]}"#,
            r#"{"$push":{"a":{"$slice":-2,"$each":[2],"$sort":1}}}"#,
            r#"{"a":[2,3]}"#,
        ),
        (
            r#"{"a":[3,1]}"#,
            r#"{"$push":{"a":{"$each":[2],"$sort":-1,"$slice":1}}}"#,
            r#"{"a":[3]}"#,
        ),
        (
            r#"{"a":[3,1]}"#,
            r#"{"$push":{"a":{"$each":[2],"$slice":0}}}"#,
            r#"{"a":[]}"#,
        ),
        (
            r#"{"a":[{"x":2,"y":1},{"x":1}]}"#,
            r#"{"$push":{"a":{"$each":[{"y":9},5],"$sort":{"x":-1}}}}"#,
            r#"{"a":[{"x":2,"y":1},{"x":1},{"y":9},5]}"#,
        ),
    ]);
    refused(&[
        (r#"{"a":1}"#, r#"{"$push":{"a":2}}"#, 2),
        (r#"{}"#, r#"{"$push":{"a":{"$each":1}}}"#, 2),
        (r#"{}"#, r#"{"$push":{"a":{"$each":[],"$foo":1}}}"#, 2),
        (r#"{}"#, r#"{"$push":{"a":{"$each":[],"$slice":"x"}}}"#, 2),
        (
            r#"{}"#,
            r#"{"$push":{"a":{"$each":[],"$position":1.5}}}"#,
            2,
        ),
        (r#"{}"#, r#"{"$push":{"a":{"$each":[],"$sort":2}}}"#, 2),
        (r#"{}"#, r#"{"$push":{"a":{"$each":[],"$sort":{}}}}"#, 2),
    ]);
}

#[test]
fn sets_pulls_and_pops() {
    table(&[
        (r#"{"a":[1]}"#, r#"{"$addToSet":{"a":1.0}}"#, "same"),
        (
            r#"{"a":[1]}"#,
            r#"{"$addToSet":{"a":{"$each":[2,1,2]}}}"#,
            r#"{"a":[1,2]}"#,
        ),
        (
            r#"{}"#,
            r#"{"$addToSet":{"a":{"$each":[2,2]}}}"#,
            r#"{"a":[2]}"#,
        ),
        (
            r#"{"a":[{"x":1}]}"#,
            r#"{"$addToSet":{"a":{"x":1}}}"#,
            "same",
        ),
        (r#"{"a":[1,2,1]}"#, r#"{"$pull":{"a":1}}"#, r#"{"a":[2]}"#),
        (
            r#"{"a":[1,5,7]}"#,
            r#"{"$pull":{"a":{"$gte":5}}}"#,
            r#"{"a":[1]}"#,
        ),
        (
            r#"{"a":[[1],[5]]}"#,
            r#"{"$pull":{"a":{"$gte":5}}}"#,
            r#"{"a":[[1]]}"#,
        ),
        (
            r#"{"a":[[1],[1,2]]}"#,
            r#"{"$pull":{"a":[1]}}"#,
            r#"{"a":[[1,2]]}"#,
        ),
        (
            r#"{"a":[{"x":1,"y":2},{"x":2},1]}"#,
            r#"{"$pull":{"a":{"x":1}}}"#,
            r#"{"a":[{"x":2},1]}"#,
        ),
        (
            r#"{"a":[{"x":1},{"x":9}]}"#,
            r#"{"$pull":{"a":{"$or":[{"x":9},{"x":8}]}}}"#,
            r#"{"a":[{"x":1}]}"#,
        ),
        (
            r#"{"a":["ab","b"]}"#,
            r#"{"$pull":{"a":{"$regularExpression":{"pattern":"^a","options":""}}}}"#,
            r#"{"a":["b"]}"#,
        ),
        (
            r#"{"b":1}"#,
            r#"{"$pull":{"a":1},"$pop":{"c":1},"$pullAll":{"d":[1]}}"#,
            "same",
        ),
        (
            r#"{"a":[1,2,3]}"#,
            r#"{"$pullAll":{"a":[1,3,9]}}"#,
            r#"{"a":[2]}"#,
        ),
        (
            r#"{"a":[{"x":1,"y":1}]}"#,
            r#"{"$pullAll":{"a":[{"x":1}]}}"#,
            "same",
        ),
        (r#"{"a":[1,2,3]}"#, r#"{"$pop":{"a":1}}"#, r#"{"a":[1,2]}"#),
        (r#"{"a":[1,2,3]}"#, r#"{"$pop":{"a":-1}}"#, r#"{"a":[2,3]}"#),
        (r#"{"a":[]}"#, r#"{"$pop":{"a":-1}}"#, "same"),
    ]);
    refused(&[
        (r#"{"a":1}"#, r#"{"$addToSet":{"a":1}}"#, 2),
        (r#"{}"#, r#"{"$addToSet":{"a":{"$each":1}}}"#, 14),
        (r#"{}"#, r#"{"$addToSet":{"a":{"$each":[],"x":1}}}"#, 2),
        (r#"{"a":1}"#, r#"{"$pull":{"a":1}}"#, 2),
        (r#"{"a":1}"#, r#"{"$pull":{"a.b":1}}"#, 28),
        (r#"{"a":1}"#, r#"{"$pullAll":{"a":[1]}}"#, 2),
        (r#"{}"#, r#"{"$pullAll":{"a":1}}"#, 2),
        (r#"{"a":1}"#, r#"{"$pop":{"a":1}}"#, 14),
        (r#"{}"#, r#"{"$pop":{"a":2}}"#, 9),
        (r#"{}"#, r#"{"$pop":{"a":"x"}}"#, 9),
    ]);
}

#[test]
fn positions_and_array_filters() {
    let found = |before: &str, update: &str, filters: &str, at: Option<usize>| -> String {
        match applied(before, update, filters, at) {
            Ok(after) => after,
            Err(error) => error.code.0.to_string(),
        }
    };
    let rows: &[(&str, &str, &str, Option<usize>, &str)] = &[
        (
            r#"{"a":[1,2]}"#,
            r#"{"$set":{"a.$":9}}"#,
            "[]",
            Some(1),
            r#"{"a":[1,9]}"#,
        ),
        (
            r#"{"a":[{"b":1}]}"#,
            r#"{"$inc":{"a.$.b":1}}"#,
            "[]",
            Some(0),
            r#"{"a":[{"b":2}]}"#,
        ),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$unset":{"a.$":1}}"#,
            "[]",
            Some(0),
            r#"{"a":[null,2]}"#,
        ),
        (r#"{"a":[1]}"#, r#"{"$set":{"a.$":9}}"#, "[]", None, "2"),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$inc":{"a.$[]":1}}"#,
            "[]",
            None,
            r#"{"a":[2,3]}"#,
        ),
        (r#"{"a":[]}"#, r#"{"$inc":{"a.$[]":1}}"#, "[]", None, "same"),
        (r#"{"a":1}"#, r#"{"$inc":{"a.$[]":1}}"#, "[]", None, "2"),
        (r#"{}"#, r#"{"$inc":{"a.$[]":1}}"#, "[]", None, "2"),
        (
            r#"{"a":[1,6,8]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{"x":{"$gt":5}}]"#,
            None,
            r#"{"a":[1,0,0]}"#,
        ),
        (
            r#"{"a":[{"k":1,"v":[1,2]},{"k":2,"v":[3]}]}"#,
            r#"{"$inc":{"a.$[x].v.$[y]":10}}"#,
            r#"[{"x.k":1},{"y":{"$gte":2}}]"#,
            None,
            r#"{"a":[{"k":1,"v":[1,12]},{"k":2,"v":[3]}]}"#,
        ),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$set":{"a.$[x]":0,"a.$[y]":9}}"#,
            r#"[{"x":1},{"y":2}]"#,
            None,
            r#"{"a":[0,9]}"#,
        ),
        (
            r#"{"a":[1,2]}"#,
            r#"{"$set":{"a.$[x]":0,"a.$[y]":9}}"#,
            r#"[{"x":1},{"y":{"$lt":5}}]"#,
            None,
            "40",
        ),
        (r#"{"a":[1]}"#, r#"{"$set":{"a.$[x]":0}}"#, "[]", None, "2"),
        (
            r#"{"a":[1]}"#,
            r#"{"$set":{"a":0}}"#,
            r#"[{"x":1}]"#,
            None,
            "9",
        ),
        (
            r#"{"a":[1]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{"x":1},{"x":2}]"#,
            None,
            "9",
        ),
        (
            r#"{"a":[1]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{"x":1,"y":2}]"#,
            None,
            "9",
        ),
        (
            r#"{"a":[1]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{}]"#,
            None,
            "9",
        ),
        (
            r#"{"a":[1]}"#,
            r#"{"$set":{"a.$[X]":0}}"#,
            r#"[{"X":1}]"#,
            None,
            "2",
        ),
        (r#"{"a":[1]}"#, r#"{"a":0}"#, r#"[{"x":1}]"#, None, "9"),
        (
            r#"{"a":[1]}"#,
            r#"[{"$set":{"a":0}}]"#,
            r#"[{"x":1}]"#,
            None,
            "9",
        ),
    ];
    for (before, update, filters, at, after) in rows {
        let wanted = match after.starts_with('{') {
            true => to_relaxed(parsed(after).as_ref()),
            false => (*after).to_owned(),
        };
        assert_eq!(
            found(before, update, filters, *at),
            wanted,
            "{before} {update} {filters}"
        );
    }
}

#[test]
fn replacements_and_pipelines() {
    table(&[
        (r#"{"_id":1,"a":1}"#, r#"{"b":2}"#, r#"{"_id":1,"b":2}"#),
        (r#"{"_id":1,"a":1}"#, r#"{}"#, r#"{"_id":1}"#),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"b":2,"_id":1}"#,
            r#"{"_id":1,"b":2}"#,
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"a":1}"#, "same"),
        (
            r#"{"_id":1,"a":1}"#,
            r#"[{"$set":{"b":{"$add":["$a",1]}}},{"$unset":"a"}]"#,
            r#"{"_id":1,"b":2}"#,
        ),
        (
            r#"{"_id":1,"a":{"x":1}}"#,
            r#"[{"$replaceWith":"$a"}]"#,
            r#"{"_id":1,"x":1}"#,
        ),
        (
            r#"{"_id":1,"a":{"x":1}}"#,
            r#"[{"$replaceRoot":{"newRoot":"$a"}},{"$addFields":{"t":"$$NOW"}},{"$project":{"x":1}}]"#,
            r#"{"_id":1,"x":1}"#,
        ),
        (r#"{"_id":1,"a":1}"#, r#"[]"#, "same"),
        (
            r#"{"_id":1,"a":1}"#,
            r#"[{"$set":{"a":"$none"}}]"#,
            r#"{"_id":1}"#,
        ),
    ]);
    refused(&[
        (r#"{"_id":1}"#, r#"{"_id":2}"#, 66),
        (r#"{"_id":1}"#, r#"[{"$set":{"_id":2}}]"#, 66),
        (r#"{}"#, r#"[{"$match":{"a":2}}]"#, 72),
        (r#"{}"#, r#"[{"$nope":{"a":2}}]"#, 40_324),
        (r#"{}"#, r#"[{"$set":{"a":2},"$unset":"a"}]"#, 40_323),
        (r#"{}"#, r#"[1]"#, 14),
        (r#"{"a":1}"#, r#"[{"$replaceWith":"$a"}]"#, 40_228),
        (r#"{}"#, r#"{"_id":{"$x":1}}"#, 52),
    ]);
}

#[test]
fn upserts_start_from_the_equalities_of_the_filter() {
    let made = |filter: &str, update: &str| -> String {
        let filter = MatchExpression::parse(parsed(filter).as_ref(), &ParseContext::new())
            .unwrap()
            .simplify();
        let update = update_of(update, "[]").unwrap();
        let made = document_of_filter(&filter, &update)
            .and_then(|base| update.apply_to_new(&base, &eval()));
        match made {
            Ok(made) => to_relaxed(made.as_ref()),
            Err(error) => error.code.0.to_string(),
        }
    };
    for (filter, update, wanted) in [
        (r#"{"a":1}"#, r#"{"$set":{"b":2}}"#, r#"{"a":1,"b":2}"#),
        (
            r#"{"a":1,"b":{"$gt":3}}"#,
            r#"{"$inc":{"a":2}}"#,
            r#"{"a":3}"#,
        ),
        (
            r#"{"a.b":1,"a.c":2}"#,
            r#"{"$setOnInsert":{"d":2}}"#,
            r#"{"a":{"b":1,"c":2},"d":2}"#,
        ),
        (
            r#"{"$and":[{"a":1},{"_id":{"$eq":7}}]}"#,
            r#"{"$set":{"b":2}}"#,
            r#"{"_id":7,"a":1,"b":2}"#,
        ),
        (
            r#"{"$or":[{"a":1}]}"#,
            r#"{"$set":{"b":2}}"#,
            r#"{"a":1,"b":2}"#,
        ),
        (
            r#"{"$or":[{"a":1},{"a":2}]}"#,
            r#"{"$set":{"b":2}}"#,
            r#"{"b":2}"#,
        ),
        (r#"{"a":1,"_id":5}"#, r#"{"b":2}"#, r#"{"_id":5,"b":2}"#),
        (r#"{"a":1}"#, r#"{"b":2,"_id":4}"#, r#"{"_id":4,"b":2}"#),
        (r#"{"a":1}"#, r#"[{"$set":{"b":"$a"}}]"#, r#"{"a":1,"b":1}"#),
        (r#"{"a":1,"a.b":2}"#, r#"{"$set":{"b":2}}"#, "54"),
        (r#"{"$and":[{"a":1},{"a":2}]}"#, r#"{"$set":{"b":2}}"#, "54"),
        (r#"{"_id.x":1}"#, r#"{"b":2}"#, "111"),
        (r#"{"a":[1]}"#, r#"{"$set":{"a.$":2}}"#, "2"),
    ] {
        let wanted = match wanted.starts_with('{') {
            true => to_relaxed(parsed(wanted).as_ref()),
            false => wanted.to_owned(),
        };
        assert_eq!(made(filter, update), wanted, "{filter} {update}");
    }
}

#[test]
fn unstorable_results_are_refused() {
    let mut deep = doc! {"x": 1};
    for _ in 0..178 {
        deep = doc! {"a": deep};
    }
    let set = doc! {"$set": doc! {"d": deep.clone()}};
    let update = Update::parse(ValueRef::Document(set.as_ref()), None, &ParseContext::new());
    let update = update.unwrap();
    assert!(update.apply(DocRef::EMPTY, None, &eval()).is_ok());
    let set = doc! {"$set": doc! {"d": doc! {"e": deep}}};
    let update = Update::parse(ValueRef::Document(set.as_ref()), None, &ParseContext::new());
    let error = update
        .unwrap()
        .apply(DocRef::EMPTY, None, &eval())
        .unwrap_err();
    assert_eq!(error.code.0, 15);

    let half = doc! {"a": "x".repeat(9 << 20)};
    let set = doc! {"$set": doc! {"b": "x".repeat(9 << 20)}};
    let update = Update::parse(ValueRef::Document(set.as_ref()), None, &ParseContext::new());
    let error = update
        .unwrap()
        .apply(half.as_ref(), None, &eval())
        .unwrap_err();
    assert_eq!(error.code.0, 17_419);
}
