//! Generated filters and documents compared with a slow, simple matcher.

use super::*;

struct Generator(u64);

impl Generator {
    fn below(&mut self, bound: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound) as usize
    }

    fn scalar(&mut self) -> Value {
        match self.below(10) {
            0 => Value::Null,
            1 => 0.into(),
            2 => 1.into(),
            3 => 1.0.into(),
            4 => f64::NAN.into(),
            5 => "a".into(),
            6 => "b".into(),
            7 => true.into(),
            8 => Value::DateTime(1),
            _ => Value::MinKey,
        }
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(4) {
            0 if depth > 0 => {
                let count = self.below(3);
                let values = (0..count)
                    .map(|_| self.value(depth - 1))
                    .collect::<Vec<_>>();
                values.into()
            }
            1 if depth > 0 => self.document(depth - 1).into(),
            _ => self.scalar(),
        }
    }

    fn document(&mut self, depth: usize) -> Document {
        let mut out = nilometer_bson::DocumentBuilder::new();
        for name in ["a", "b", "0"] {
            if self.below(3) > 0 {
                out.append(name, self.value(depth));
            }
        }
        out.finish()
    }

    fn path(&mut self) -> &'static str {
        ["a", "b", "a.b", "a.0", "a.0.b", "b.a.0", "a.a"][self.below(7)]
    }

    fn leaf(&mut self) -> Document {
        let op = [
            "$eq", "$gt", "$gte", "$lt", "$lte", "$ne", "$in", "$nin", "$exists",
        ][self.below(9)];
        let operand = match op {
            "$in" | "$nin" => array![self.scalar(), self.value(1)],
            "$exists" => (self.below(2) == 0).into(),
            _ => self.value(1),
        };
        doc_of(op, operand)
    }

    fn filter(&mut self, depth: usize) -> Document {
        match self.below(5) {
            0 if depth > 0 => {
                let name = ["$and", "$or", "$nor"][self.below(3)];
                doc_of(name, array![self.filter(depth - 1), self.filter(depth - 1)])
            }
            1 if depth > 0 => {
                let path = self.path();
                let inner = self.leaf();
                doc_of(path, doc! {"$not": inner})
            }
            2 if depth > 0 => {
                let path = self.path();
                let inner = if self.below(2) == 0 {
                    self.filter(depth - 1)
                } else {
                    self.leaf()
                };
                doc_of(path, doc! {"$elemMatch": inner})
            }
            _ => {
                let path = self.path();
                let leaf = self.leaf();
                doc_of(path, leaf)
            }
        }
    }
}

/// Returns every value `path` finds, with arrays at the end expanded or not.
fn naive_values(value: &Value, path: &[&str], expand: bool) -> Vec<Value> {
    let Some((name, rest)) = path.split_first() else {
        return vec![value.clone()];
    };
    let fields: Document = match value {
        Value::Document(doc) => doc.clone(),
        Value::Array(array) => array.as_ref().as_document().to_document(),
        _ => return vec![Value::Missing],
    };
    let found = fields.get(name).to_value();
    match (&found, rest) {
        (Value::Array(array), []) if expand => {
            let mut values = array.to_vec();
            values.push(found.clone());
            values
        }
        (_, []) => vec![found],
        (Value::Array(array), _) => naive_values_in_array(&array.to_vec(), rest, expand),
        (Value::Document(_), _) => naive_values(&found, rest, expand),
        _ => vec![Value::Missing],
    }
}

/// Returns every value that the path (not empty) finds below the elements of an array.
fn naive_values_in_array(elements: &[Value], path: &[&str], expand: bool) -> Vec<Value> {
    let mut values = Vec::new();
    for (at, element) in elements.iter().enumerate() {
        if let Value::Document(_) = element {
            values.extend(naive_values(element, path, expand));
        }
        if path[0] != at.to_string() {
            continue;
        }
        match (element, &path[1..]) {
            (_, []) => values.push(element.clone()),
            (Value::Document(_), below) => values.extend(naive_values(element, below, expand)),
            (Value::Array(inner), below) => {
                values.extend(naive_values_in_array(&inner.to_vec(), below, expand));
            }
            _ => {}
        }
    }
    values
}

fn naive_test(op: &str, operand: &Value, value: &Value) -> bool {
    use nilometer_bson::order::{canonical_type, compare};
    let is_nan = |v: &Value| matches!(v, Value::Double(d) if d.is_nan());
    let equal = |a: &Value, b: &Value| {
        let b = if b.is_missing() { &Value::Null } else { b };
        compare(a.as_ref(), b.as_ref()).is_eq()
    };
    if op == "$in" {
        let Value::Array(list) = operand else {
            panic!()
        };
        return list.to_vec().iter().any(|v| equal(v, value));
    }
    if op == "$exists" {
        return !value.is_missing();
    }
    let order = compare(value.as_ref(), operand.as_ref());
    let is_equal = equal(operand, value);
    if matches!(operand, Value::MinKey) {
        return match op {
            "$eq" => order.is_eq(),
            "$gt" => order.is_gt(),
            "$gte" => true,
            "$lt" => false,
            _ => order.is_eq(),
        };
    }
    let same_kind = canonical_type(value.as_ref()) == canonical_type(operand.as_ref());
    let ordered = same_kind && !is_nan(value) && !is_nan(operand);
    match op {
        "$eq" => is_equal,
        "$gt" => ordered && order.is_gt(),
        "$gte" => is_equal || (ordered && order.is_gt()),
        "$lt" => ordered && order.is_lt(),
        "$lte" => is_equal || (ordered && order.is_lt()),
        _ => panic!("{op}"),
    }
}

fn naive_operators(operators: &Document, path: &[&str], root: &Value) -> bool {
    operators.iter().all(|element| {
        let operand = element.value().to_value();
        let any = |op: &str, expand: bool| {
            naive_values(root, path, expand)
                .iter()
                .any(|value| naive_test(op, &operand, value))
        };
        match element.name() {
            "$ne" => !any("$eq", true),
            "$nin" => !any("$in", true),
            "$exists" => any("$exists", false) == matches!(operand, Value::Bool(true)),
            "$not" => {
                let Value::Document(inner) = &operand else {
                    panic!()
                };
                !naive_operators(inner, path, root)
            }
            "$elemMatch" => {
                let Value::Document(inner) = &operand else {
                    panic!()
                };
                let first = inner
                    .iter()
                    .next()
                    .map(|e| e.name().to_owned())
                    .unwrap_or_default();
                let on_value =
                    first.starts_with('$') && !["$and", "$or", "$nor"].contains(&&*first);
                naive_values(root, path, false)
                    .iter()
                    .any(|value| match value {
                        Value::Array(array) => array.to_vec().iter().any(|element| {
                            if on_value {
                                naive_operators(inner, &[], element)
                            } else {
                                matches!(element, Value::Document(_) | Value::Array(_))
                                    && naive_matches(inner, element)
                            }
                        }),
                        _ => false,
                    })
            }
            op => any(op, true),
        }
    })
}

fn naive_matches(filter: &Document, root: &Value) -> bool {
    filter.iter().all(|element| {
        let arms = || {
            let Value::Array(arms) = element.value().to_value() else {
                panic!()
            };
            let arms: Array = arms;
            arms.to_vec().into_iter().map(|arm| match arm {
                Value::Document(arm) => naive_matches(&arm, root),
                _ => panic!(),
            })
        };
        match element.name() {
            "$and" => arms().all(|m| m),
            "$or" => arms().any(|m| m),
            "$nor" => !arms().any(|m| m),
            path => {
                let path: Vec<&str> = path.split('.').collect();
                let ValueRef::Document(operators) = element.value() else {
                    panic!()
                };
                naive_operators(&operators.to_document(), &path, root)
            }
        }
    })
}

#[test]
fn generated_filters_match_the_naive_matcher() {
    let mut generator = Generator(0x9E37_79B9_7F4A_7C15);
    let ctx = EvalContext::default();
    for round in 0..6000 {
        let filter = generator.filter(2);
        let parsed = parse(&filter).unwrap_or_else(|e| panic!("{filter:?}: {e}"));
        let shown = parse(&parsed.to_document()).unwrap();
        let simple = parsed.clone().simplify();
        let (inside, outside) = parsed.clone().split(|path| path.starts_with('a'));
        for _ in 0..6 {
            let document = generator.document(2);
            let expected = naive_matches(&filter, &Value::Document(document.clone()));
            let got = |filter: &MatchExpression| filter.matches(document.as_ref(), &ctx).unwrap();
            assert_eq!(
                got(&parsed),
                expected,
                "round {round}: {filter:?} on {document:?}"
            );
            assert_eq!(got(&shown), expected, "shown: {filter:?} on {document:?}");
            assert_eq!(
                got(&simple),
                expected,
                "simplified: {filter:?} on {document:?}"
            );
            assert_eq!(
                got(&inside) && got(&outside),
                expected,
                "split: {filter:?} on {document:?}"
            );
            let (matched, _) = parsed
                .matches_with_position(document.as_ref(), &ctx)
                .unwrap();
            assert_eq!(matched, expected);
        }
    }
}
