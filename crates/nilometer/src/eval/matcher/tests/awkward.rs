//! Comparisons over the shared list of edge-case values.

use super::*;

/// True if `value` of group `at` passes, derived from the list's order alone.
fn expected_by_group(
    op: CompareOp,
    (at, value): (usize, &Value),
    (of, operand): (usize, &Value),
) -> bool {
    use nilometer_bson::order::canonical_type;
    let is_nan = |v: &Value| comparison::is_nan(v.as_ref());
    match operand {
        Value::Null => {
            matches!(value, Value::Null | Value::Missing)
                && !matches!(op, CompareOp::Gt | CompareOp::Lt)
        }
        Value::MinKey | Value::MaxKey => op.accepts(at.cmp(&of)),
        _ if canonical_type(value.as_ref()) != canonical_type(operand.as_ref()) => false,
        _ if is_nan(value) != is_nan(operand) => false,
        _ => op.accepts(at.cmp(&of)),
    }
}

#[test]
fn awkward_values_compare_as_their_list_says() {
    let values = nilometer_bson::testing::awkward_values();
    let ctx = EvalContext::default();
    for (of, operand) in &values {
        if matches!(operand, Value::Missing | Value::Undefined | Value::Regex(_)) {
            continue;
        }
        for op in [
            CompareOp::Eq,
            CompareOp::Gt,
            CompareOp::Gte,
            CompareOp::Lt,
            CompareOp::Lte,
        ] {
            let filter = doc! {"a": doc_of(op.name(), operand.clone())};
            let parsed = parse(&filter).unwrap();
            let list =
                parse(&doc! {"a": doc! {"$in": array!["no such text", operand.clone()]}}).unwrap();
            for (at, value) in &values {
                let document = doc_of("a", value.clone());
                let mut expected = expected_by_group(op, (*at, value), (*of, operand));
                if let Value::Array(array) = value {
                    // The elements are tested too; their groups are unknown, so the test itself is
                    // used.
                    let comparison = Comparison {
                        path: MatchPath::itself(),
                        op,
                        value: operand.clone(),
                        collation: Default::default(),
                    };
                    expected |= array
                        .as_ref()
                        .iter()
                        .any(|element| comparison.test(element));
                }
                let found = parsed.matches(document.as_ref(), &ctx).unwrap();
                assert_eq!(found, expected, "{filter:?} on {document:?}");
                if op == CompareOp::Eq {
                    let found = list.matches(document.as_ref(), &ctx).unwrap();
                    assert_eq!(found, expected, "$in {operand:?} on {document:?}");
                }
            }
        }
    }
}
