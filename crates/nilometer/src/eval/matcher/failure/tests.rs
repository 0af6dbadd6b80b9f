//! Explanations of failures of each kind.

use nilometer_bson::{Document, array, doc};

use super::*;

fn why(filter: &Document, document: &Document) -> Document {
    let expressions = ParseContext::new();
    let eval = EvalContext::default();
    let parsed = MatchExpression::parse(filter.as_ref(), &expressions).unwrap();
    assert!(
        !parsed.matches(document.as_ref(), &eval).unwrap(),
        "{filter:?} of {document:?}"
    );
    MatchExpression::explain_failure(filter.as_ref(), document.as_ref(), &expressions, &eval)
        .unwrap()
}

#[test]
fn operators_on_paths() {
    for (filter, document, reason) in [
        (doc! {"a": 2}, doc! {"a": 1}, "comparison failed"),
        (doc! {"a": 2}, doc! {}, "field was missing"),
        (
            doc! {"a": doc! {"$ne": 2}},
            doc! {"a": 2},
            "comparison succeeded",
        ),
        (
            doc! {"a": doc! {"$in": array![1, 2]}},
            doc! {"a": 3},
            "no matching value found in array",
        ),
        (
            doc! {"a": doc! {"$exists": true}},
            doc! {},
            "path does not exist",
        ),
        (
            doc! {"a": doc! {"$exists": false}},
            doc! {"a": 1},
            "path does exist",
        ),
        (
            doc! {"a": doc! {"$size": 2}},
            doc! {"a": array![1]},
            "array length was not equal to given size",
        ),
        (
            doc! {"a": doc! {"$regex": "^x"}},
            doc! {"a": "y"},
            "regular expression did not match",
        ),
        (
            doc! {"a": doc! {"$mod": array![2, 0]}},
            doc! {"a": 1},
            "$mod did not evaluate to expected remainder",
        ),
    ] {
        let explanation = why(&filter, &document);
        assert_eq!(
            explanation.get("reason").as_str(),
            Some(reason),
            "{explanation:?}"
        );
        assert_eq!(
            explanation
                .get("specifiedAs")
                .as_document()
                .unwrap()
                .to_document(),
            filter
        );
    }
}

#[test]
fn logic_is_followed_inward() {
    let lt = |than: i32| doc! {"$lt": than};
    let explanation = why(&doc! {"a": doc! {"$not": lt(2)}}, &doc! {"a": 1});
    let inner = doc! {
        "operatorName": "$lt",
        "specifiedAs": doc! {"a": lt(2)},
        "reason": "comparison succeeded",
        "consideredValue": 1,
    };
    assert_eq!(
        explanation,
        doc! {"operatorName": "$not", "details": inner.clone()}
    );
    let explanation = why(
        &doc! {"$nor": array![doc! {"a": lt(0)}, doc! {"a": lt(2)}]},
        &doc! {"a": 1},
    );
    let clause = doc! {"index": 1, "details": inner};
    assert_eq!(
        explanation,
        doc! {"operatorName": "$nor", "clausesSatisfied": array![clause]}
    );
    let explanation = why(&doc! {"a": 1, "b": 1}, &doc! {"a": 1, "b": 2});
    let failed = doc! {
        "operatorName": "$eq",
        "specifiedAs": doc! {"b": 1},
        "reason": "comparison failed",
        "consideredValue": 2,
    };
    let clause = doc! {"index": 1, "details": failed};
    assert_eq!(
        explanation,
        doc! {"operatorName": "$and", "clausesNotSatisfied": array![clause]}
    );
}

#[test]
fn long_explanations_are_truncated() {
    let many: Vec<Value> = (0..50).map(Value::from).collect();
    let explanation = why(&doc! {"a": doc! {"$lt": -1}}, &doc! {"a": many});
    let values = explanation.get("consideredValues").as_array().unwrap();
    assert_eq!(values.len(), VALUES_SHOWN_MAX);
    assert!(explanation.as_ref().contains("consideredValuesTruncated"));
    let long = "x".repeat(EXPLANATION_BYTES_MAX);
    let explanation = why(&doc! {"a": 1}, &doc! {"a": long});
    assert!(explanation.as_bytes().len() < 200, "{explanation:?}");
}
