//! Projections by table, and generated documents compared with a path-by-path implementation.

use nilometer_bson::{Document, Value, array, doc, order};

use super::*;
use crate::eval::ParseContext;

fn find(spec: &Document) -> Result<Projection> {
    Projection::parse_find(spec.as_ref(), &ParseContext::new())
}

fn project(spec: &Document) -> Result<Projection> {
    Projection::parse_project(spec.as_ref(), &ParseContext::new())
}

fn add(spec: &Document) -> Result<AddFields> {
    AddFields::parse(spec.as_ref(), &ParseContext::new())
}

fn same(found: &Document, expected: &Document, context: &str) {
    // Compares bytes, so that types and the order of fields matter.
    assert_eq!(
        found.as_bytes(),
        expected.as_bytes(),
        "{context}: {found:?} is not {expected:?}"
    );
}

/// Checks that `find` and `$project` return the same.
fn check(spec: Document, input: Document, expected: Document) {
    let ctx = EvalContext::default();
    for (name, parsed) in [("find", find(&spec)), ("$project", project(&spec))] {
        let parsed = parsed.unwrap_or_else(|e| panic!("{name} {spec:?}: {e}"));
        let found = parsed.apply(input.as_ref(), &ctx).unwrap();
        same(&found, &expected, &format!("{name} {spec:?} of {input:?}"));
    }
}

fn check_find(spec: Document, input: Document, expected: Document) {
    let parsed = find(&spec).unwrap_or_else(|e| panic!("{spec:?}: {e}"));
    let found = parsed
        .apply(input.as_ref(), &EvalContext::default())
        .unwrap();
    same(&found, &expected, &format!("{spec:?} of {input:?}"));
}

fn check_add(spec: Document, input: Document, expected: Document) {
    let parsed = add(&spec).unwrap_or_else(|e| panic!("{spec:?}: {e}"));
    let found = parsed
        .apply(input.as_ref(), &EvalContext::default())
        .unwrap();
    same(&found, &expected, &format!("{spec:?} of {input:?}"));
}

#[test]
fn inclusion() {
    let input = doc! {"_id": 1, "a": 1, "b": doc! {"x": 1, "y": 2}, "c": 3};
    check(
        doc! {"c": 1, "a": true},
        input.clone(),
        doc! {"_id": 1, "a": 1, "c": 3},
    );
    check(doc! {"a": 1, "_id": 0}, input.clone(), doc! {"a": 1});
    check(doc! {"_id": 1}, input.clone(), doc! {"_id": 1});
    check(
        doc! {"b.y": 1},
        input.clone(),
        doc! {"_id": 1, "b": doc! {"y": 2}},
    );
    check(
        doc! {"b": doc! {"y": 1}},
        input.clone(),
        doc! {"_id": 1, "b": doc! {"y": 2}},
    );
    check(doc! {"a.x": 1}, input.clone(), doc! {"_id": 1});
    check(
        doc! {"b.z": 1},
        input.clone(),
        doc! {"_id": 1, "b": doc! {}},
    );
    check(doc! {"none": 1}, input, doc! {"_id": 1});
    check(
        doc! {"a.b": 1},
        doc! {"a": array![1, doc! {"b": 2, "c": 3}, array![doc! {"b": 4}, 5], doc! {}]},
        doc! {"a": array![doc! {"b": 2}, array![doc! {"b": 4}], doc! {}]},
    );
    check(
        doc! {"_id.x": 1},
        doc! {"_id": doc! {"x": 1, "y": 2}},
        doc! {"_id": doc! {"x": 1}},
    );
}

#[test]
fn exclusion() {
    let input = doc! {"_id": 1, "a": 1, "b": doc! {"x": 1, "y": 2}};
    check(
        doc! {"a": 0},
        input.clone(),
        doc! {"_id": 1, "b": doc! {"x": 1, "y": 2}},
    );
    check(
        doc! {"_id": 0},
        input.clone(),
        doc! {"a": 1, "b": doc! {"x": 1, "y": 2}},
    );
    check(
        doc! {"_id": 1, "a": 0},
        input.clone(),
        doc! {"_id": 1, "b": doc! {"x": 1, "y": 2}},
    );
    check(
        doc! {"b.x": 0, "_id": false},
        input.clone(),
        doc! {"a": 1, "b": doc! {"y": 2}},
    );
    check(doc! {"a.x": 0}, input.clone(), input);
    check(
        doc! {"a.b": 0},
        doc! {"a": array![1, doc! {"b": 2, "c": 3}, array![doc! {"b": 4}, 5]]},
        doc! {"a": array![1, doc! {"c": 3}, array![doc! {}, 5]]},
    );
}

#[test]
fn computed() {
    let input = doc! {"_id": 1, "a": 1, "b": 2};
    check(
        doc! {"x": "$b", "a": 1},
        input.clone(),
        doc! {"_id": 1, "a": 1, "x": 2},
    );
    check(
        doc! {"a": "$b", "b": "$a"},
        input.clone(),
        doc! {"_id": 1, "a": 2, "b": 1},
    );
    check(doc! {"x": "$none"}, input.clone(), doc! {"_id": 1});
    check(
        doc! {"x": "$$REMOVE", "a": 1},
        input.clone(),
        doc! {"_id": 1, "a": 1},
    );
    check(
        doc! {"x": Value::Null},
        input.clone(),
        doc! {"_id": 1, "x": Value::Null},
    );
    check(
        doc! {"x": "text"},
        input.clone(),
        doc! {"_id": 1, "x": "text"},
    );
    check(
        doc! {"x": array!["$a", "$none"]},
        input.clone(),
        doc! {"_id": 1, "x": array![1, Value::Null]},
    );
    check(doc! {"_id": "$a"}, input.clone(), doc! {"_id": 1});
    check(
        doc! {"x.y": "$a"},
        input.clone(),
        doc! {"_id": 1, "x": doc! {"y": 1}},
    );
    check(
        doc! {"x.y": "$none"},
        input.clone(),
        doc! {"_id": 1, "x": doc! {}},
    );
    check(
        doc! {"a.y": "$b"},
        input.clone(),
        doc! {"_id": 1, "a": doc! {"y": 2}},
    );
    check(
        doc! {"a.y": "$b", "a.z": 1},
        doc! {"a": doc! {"z": 9, "w": 8}, "b": 2},
        doc! {"a": doc! {"z": 9, "y": 2}},
    );
    check(
        doc! {"a.y": "$b"},
        doc! {"a": array![1, doc! {"q": 1}], "b": 2},
        doc! {"a": array![doc! {"y": 2}]},
    );
    check(
        doc! {"x": doc! {"$literal": 1}},
        input,
        doc! {"_id": 1, "x": 1},
    );
}

#[test]
fn add_fields() {
    let input = doc! {"a": 1, "b": doc! {"x": 1}, "c": 3};
    check_add(
        doc! {"b": 5, "d": "$a"},
        input.clone(),
        doc! {"a": 1, "b": 5, "c": 3, "d": 1},
    );
    check_add(
        doc! {"b.y": true},
        input.clone(),
        doc! {"a": 1, "b": doc! {"x": 1, "y": true}, "c": 3},
    );
    check_add(
        doc! {"b": doc! {"x": 7}},
        input.clone(),
        doc! {"a": 1, "b": doc! {"x": 7}, "c": 3},
    );
    check_add(
        doc! {"a.y": 2},
        input.clone(),
        doc! {"a": doc! {"y": 2}, "b": doc! {"x": 1}, "c": 3},
    );
    check_add(
        doc! {"a": "$c", "c": "$a"},
        input.clone(),
        doc! {"a": 3, "b": doc! {"x": 1}, "c": 1},
    );
    check_add(
        doc! {"a": "$none"},
        input.clone(),
        doc! {"b": doc! {"x": 1}, "c": 3},
    );
    check_add(
        doc! {"n.m.o": 1},
        input,
        doc! {"a": 1, "b": doc! {"x": 1}, "c": 3, "n": doc! {"m": doc! {"o": 1}}},
    );
    check_add(
        doc! {"a.x": 9},
        doc! {"a": array![1, doc! {"x": 1, "y": 2}, array![doc! {}, 3], doc! {}]},
        doc! {"a": array![
            doc! {"x": 9}, doc! {"x": 9, "y": 2}, array![doc! {"x": 9}, doc! {"x": 9}], doc! {"x": 9},
        ]},
    );
    check_add(doc! {"a.x": 9}, doc! {"a": array![]}, doc! {"a": array![]});
}

#[test]
fn chains_match_the_reference() {
    let ctx = EvalContext::default();
    for (input, expected) in [
        (
            doc! {"o": doc! {"a": 1}, "n": 5},
            doc! {"o": doc! {"new": 5}},
        ),
        (doc! {"o": doc! {"a": 1}}, doc! {"o": doc! {}}),
    ] {
        let first = project(&doc! {"o.new": "$n"}).unwrap();
        let second = project(&doc! {"_id": 0, "o.a": 0}).unwrap();
        let between = first.apply(input.as_ref(), &ctx).unwrap();
        same(
            &second.apply(between.as_ref(), &ctx).unwrap(),
            &expected,
            "chained",
        );
    }
}

#[test]
fn unset() {
    let ctx = ParseContext::new();
    let apply = |operand: Value, input: Document| {
        Projection::parse_unset(operand.as_ref(), &ctx)
            .unwrap()
            .apply(input.as_ref(), &EvalContext::default())
            .unwrap()
    };
    same(
        &apply("a".into(), doc! {"_id": 1, "a": 1}),
        &doc! {"_id": 1},
        "string",
    );
    same(
        &apply(
            array!["a.b", "_id"],
            doc! {"_id": 1, "a": doc! {"b": 1, "c": 2}},
        ),
        &doc! {"a": doc! {"c": 2}},
        "array",
    );
    for (operand, code) in [
        (Value::from(1), 31002),
        (array![], 31119),
        (array![1], 31120),
        (array!["a", "a.b"], 31249),
        ("$a".into(), 16410),
    ] {
        let error = Projection::parse_unset(operand.as_ref(), &ctx).unwrap_err();
        assert_eq!(error.code.0, code, "{operand:?}");
    }
}

#[test]
fn slices() {
    let input =
        doc! {"_id": 1, "a": array![1, 2, 3, 4], "b": 2, "n": doc! {"a": array![1, 2], "z": 1}};
    let cut = |spec: Value, expected: Value| {
        check_find(
            doc! {"a": doc! {"$slice": spec}, "b": 1},
            input.clone(),
            doc! {"_id": 1, "a": expected, "b": 2},
        );
    };
    cut(2.into(), array![1, 2]);
    cut((-1).into(), array![4]);
    cut(0.into(), array![]);
    cut(99.into(), array![1, 2, 3, 4]);
    cut((-99).into(), array![1, 2, 3, 4]);
    cut(array![1, 2], array![2, 3]);
    cut(array![-3, 2], array![2, 3]);
    cut(array![9, 2], array![]);
    cut(array![-9, 2], array![1, 2]);
    // Alone it keeps all other fields.
    check_find(
        doc! {"n.a": doc! {"$slice": 1}, "a": 0},
        input.clone(),
        doc! {"_id": 1, "b": 2, "n": doc! {"a": array![1], "z": 1}},
    );
    check_find(
        doc! {"b": doc! {"$slice": 1}},
        doc! {"b": 2, "c": 3},
        doc! {"b": 2, "c": 3},
    );
    check_find(
        doc! {"n.a": doc! {"$slice": 1}, "b": 1, "_id": 0},
        input,
        doc! {"b": 2, "n": doc! {"a": array![1]}},
    );
}

#[test]
fn elem_match() {
    let input = doc! {
        "_id": 1,
        "a": array![doc! {"x": 1}, doc! {"x": 2, "y": 1}, doc! {"x": 2, "y": 2}],
        "b": array![1, 5, 9],
        "c": 3,
    };
    check_find(
        doc! {"a": doc! {"$elemMatch": doc! {"x": 2}}},
        input.clone(),
        doc! {"_id": 1, "a": array![doc! {"x": 2, "y": 1}]},
    );
    // Existing inclusions come first.
    check_find(
        doc! {"b": doc! {"$elemMatch": doc! {"$gt": 3}}, "c": 1, "_id": 0},
        input.clone(),
        doc! {"c": 3, "b": array![5]},
    );
    check_find(
        doc! {"b": doc! {"$elemMatch": doc! {"$gt": 99}}, "c": doc! {"$elemMatch": doc! {}}},
        input,
        doc! {"_id": 1},
    );
}

#[test]
fn positional() {
    let parsed = find(&doc! {"a.$": 1, "n.b.$": 1}).unwrap_err();
    assert_eq!(parsed.code.0, 31276);
    let at = |spec: Document, input: Document, position: Option<usize>| {
        let parsed = find(&spec).unwrap();
        assert!(parsed.needs_position());
        let facts = ProjectionInput {
            position,
            ..Default::default()
        };
        parsed.apply_with(input.as_ref(), &EvalContext::default(), &facts)
    };
    same(
        &at(
            doc! {"a.$": 1, "c": 1},
            doc! {"_id": 1, "a": array![1, 2, 3], "c": 4},
            Some(1),
        )
        .unwrap(),
        &doc! {"_id": 1, "a": array![2], "c": 4},
        "top level",
    );
    same(
        &at(
            doc! {"n.b.$": 1},
            doc! {"n": doc! {"b": array![1, 2], "z": 1}},
            Some(0),
        )
        .unwrap(),
        &doc! {"n": doc! {"b": array![1]}},
        "nested",
    );
    let error = at(doc! {"a.$": 1}, doc! {"a": array![1]}, None).unwrap_err();
    assert_eq!(error.code.0, 51246);
    let error = at(doc! {"a.$": 1}, doc! {"a": array![1]}, Some(4)).unwrap_err();
    assert_eq!(error.code.0, 51247);
}

#[test]
fn meta() {
    let parsed = find(&doc! {"k": doc! {"$meta": "sortKey"}}).unwrap();
    assert!(parsed.needs_meta(MetaField::SortKey));
    assert_eq!(parsed.mode(), Mode::Exclusion);
    let key = array![5];
    let facts = ProjectionInput {
        sort_key: Some(&key),
        ..Default::default()
    };
    let input = doc! {"a": 5};
    same(
        &parsed
            .apply_with(input.as_ref(), &EvalContext::default(), &facts)
            .unwrap(),
        &doc! {"a": 5, "k": array![5]},
        "sort key",
    );
    let error = parsed
        .apply(input.as_ref(), &EvalContext::default())
        .unwrap_err();
    assert_eq!(error.code.0, 40218);
}

#[test]
fn refused() {
    for (spec, code) in [
        (doc! {"a": 1, "b": 0}, 31254),
        (doc! {"a": 0, "b": 1}, 31253),
        (doc! {"a": 0, "b": "$c"}, 31252),
        (doc! {"a": "$c", "b": 0}, 31254),
        (doc! {"a": 1, "a.b": 1}, 31249),
        (doc! {"a.b": 1, "a": 1}, 31250),
        (doc! {"a.b": 1, "a": doc! {"b": 1}}, 31250),
        (doc! {"_id": 1, "_id.a": 1}, 31249),
        (doc! {"a": doc! {}}, 51270),
        (doc! {"": 1}, 40352),
        (doc! {"a.": 1}, 40353),
        (doc! {"a..b": 1}, 15998),
        (doc! {"$a": 1}, 16410),
        (doc! {"a.$b": 1}, 16410),
        (doc! {"a": doc! {"b": 1, "$c": 1}}, 16410),
        (doc! {"a": doc! {"$nope": 1}}, 31_325),
        (doc! {"a": doc! {"$meta": 1}}, 17307),
        (doc! {"a": doc! {"$meta": "nope"}}, 17308),
        (doc! {"a": doc! {"$meta": "searchScore"}}, 40218),
    ] {
        for (name, parsed) in [("find", find(&spec)), ("$project", project(&spec))] {
            let error = parsed.expect_err(&format!("{name} {spec:?}"));
            assert_eq!(error.code.0, code, "{name} {spec:?}: {error}");
        }
    }
    for (spec, code) in [
        (doc! {"a.$": 1, "b": doc! {"$elemMatch": doc! {}}}, 31255),
        (doc! {"a.$": 0}, 31395),
        (doc! {"a.$": 1, "b": 0}, 31254),
        (doc! {"b": 0, "a.$": 1}, 31395),
        (doc! {"a.$": "$b"}, 31271),
        (doc! {"a.$.b.$": 1}, 31270),
        (doc! {"a": doc! {"$elemMatch": 1}}, 31274),
        (doc! {"a.b": doc! {"$elemMatch": doc! {}}}, 31275),
    ] {
        let error = find(&spec).expect_err(&format!("{spec:?}"));
        assert_eq!(error.code.0, code, "{spec:?}: {error}");
    }
    assert_eq!(project(&doc! {}).unwrap_err().code.0, 51272);
    assert_eq!(project(&doc! {"a.$": 1}).unwrap_err().code.0, 31324);
    assert!(find(&doc! {}).unwrap().is_identity());
    for (spec, code) in [
        (doc! {"a": 1, "a.b": 1}, 40176),
        (doc! {"a.b": 1, "a": 1}, 40176),
        (doc! {"a": doc! {"b": 1, "$add": 1}}, 40181),
        (doc! {"a": doc! {"b.c": 1}}, 40183),
        (doc! {"$a": 1}, 16410),
    ] {
        assert_eq!(add(&spec).unwrap_err().code.0, code, "{spec:?}");
    }
}

#[test]
fn says_what_it_reads() {
    let parsed = project(&doc! {"a": 1, "b.c": "$x.y", "d": doc! {"e": 1}}).unwrap();
    let mut reads = Dependencies::default();
    parsed.dependencies(&mut reads);
    let paths: Vec<&str> = reads.paths.iter().map(|path| &**path).collect();
    assert_eq!(paths, ["_id", "a", "b", "d.e", "x.y"]);
    assert_eq!(parsed.included_paths(), ["_id", "a", "d.e"]);
    assert_eq!(parsed.computed().len(), 1);
    assert!(!parsed.is_simple());
    let parsed = project(&doc! {"a": 0, "b.c": 0}).unwrap();
    assert_eq!(parsed.excluded_paths(), ["a", "b.c"]);
    assert!(parsed.is_simple());
}

/// Compares the tree traversal with a path-by-path implementation on decoded values.
mod generated {
    use super::*;

    struct Generator(u64);

    impl Generator {
        fn below(&mut self, bound: u64) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % bound) as usize
        }

        fn value(&mut self, depth: usize) -> Value {
            match self.below(4) {
                0 if depth > 0 => {
                    let count = self.below(3);
                    (0..count)
                        .map(|_| self.value(depth - 1))
                        .collect::<Vec<_>>()
                        .into()
                }
                1 | 2 if depth > 0 => self.document(depth - 1).into(),
                _ => Value::from(i32::try_from(self.below(5)).unwrap()),
            }
        }

        fn document(&mut self, depth: usize) -> Document {
            let mut out = DocumentBuilder::new();
            for name in ["_id", "a", "b", "c"] {
                if self.below(4) > 0 {
                    out.append(name, self.value(depth));
                }
            }
            out.finish()
        }
    }

    /// Removes `path`, in every element of arrays.
    fn remove(value: Value, path: &[&str]) -> Value {
        match value {
            Value::Document(doc) => {
                let mut out = DocumentBuilder::new();
                for element in doc.iter() {
                    if element.name() != path[0] {
                        out.append_element(element);
                    } else if path.len() > 1 {
                        out.append(
                            element.name(),
                            remove(element.value().to_value(), &path[1..]),
                        );
                    }
                }
                out.finish().into()
            }
            Value::Array(array) => {
                let elements = array.to_vec().into_iter();
                elements
                    .map(|element| remove(element, path))
                    .collect::<Vec<_>>()
                    .into()
            }
            scalar => scalar,
        }
    }

    /// Keeps the values at or below one of `paths`.
    fn keep(value: &Value, paths: &[Vec<&str>]) -> Value {
        match value {
            Value::Document(doc) => {
                let mut out = DocumentBuilder::new();
                for element in doc.iter() {
                    let below: Vec<Vec<&str>> = paths
                        .iter()
                        .filter(|path| path[0] == element.name())
                        .map(|path| path[1..].to_vec())
                        .collect();
                    if below.iter().any(Vec::is_empty) {
                        out.append_element(element);
                    } else if !below.is_empty() {
                        out.append(element.name(), keep(&element.value().to_value(), &below));
                    }
                }
                out.finish().into()
            }
            Value::Array(array) => array
                .to_vec()
                .iter()
                .map(|element| keep(element, paths))
                .filter(|element| !element.is_missing())
                .collect::<Vec<_>>()
                .into(),
            _ => Value::Missing,
        }
    }

    const PATHS: &[&[&str]] = &[
        &["a"],
        &["a.b", "a.c", "b"],
        &["a.a.b", "c"],
        &["b.a", "_id.a"],
        &["a.b.c", "a.c", "a.a"],
    ];

    #[test]
    fn matches_the_naive_implementation() {
        let mut generator = Generator(77);
        let ctx = EvalContext::default();
        for _ in 0..3000 {
            let input = generator.document(3);
            let paths = PATHS[generator.below(PATHS.len() as u64)];
            let mut include = DocumentBuilder::new();
            let mut exclude = DocumentBuilder::new();
            for path in paths {
                include.append(path, 1);
                exclude.append(path, 0);
            }
            let mut split: Vec<Vec<&str>> = paths.iter().map(|p| p.split('.').collect()).collect();
            let excluded = split
                .iter()
                .fold(Value::from(input.clone()), |value, path| {
                    remove(value, path)
                });
            let found = project(&exclude.finish())
                .unwrap()
                .apply(input.as_ref(), &ctx)
                .unwrap();
            assert!(
                order::equal(Value::from(found).as_ref(), excluded.as_ref()),
                "{input:?}"
            );
            if !paths.iter().any(|path| path.starts_with("_id")) {
                split.push(vec!["_id"]);
            }
            let kept = keep(&Value::from(input.clone()), &split);
            let found = project(&include.finish())
                .unwrap()
                .apply(input.as_ref(), &ctx)
                .unwrap();
            assert!(
                order::equal(Value::from(found.clone()).as_ref(), kept.as_ref()),
                "{paths:?} of {input:?}: {found:?} {kept:?}"
            );
        }
    }
}
