//! Documents that name a field twice, on every path into a bucket: they are refused, or stored such that all readers
//! agree.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::support::{Fixture, show};

/// Measurements with a repeated name, at the top, in time and metadata, and below.
fn repeating() -> Vec<Document> {
    let build = |fields: &[(&str, Value)]| {
        let mut out = DocumentBuilder::new();
        for (name, value) in fields {
            out.append(name, value.clone());
        }
        out.finish()
    };
    let time = |ms| Value::DateTime(ms);
    let twice = || Value::from(build(&[("x", 1.into()), ("x", 2.into())]));
    vec![
        build(&[("t", time(1)), ("a", 1.into()), ("a", 2.into())]),
        build(&[
            ("t", time(2)),
            ("a", 1.into()),
            ("b", 5.into()),
            ("a", "s".into()),
        ]),
        build(&[("t", time(3)), ("t", time(4)), ("a", 1.into())]),
        build(&[("t", time(5)), ("m", 1.into()), ("m", 2.into())]),
        build(&[("t", time(6)), ("m", twice()), ("a", 1.into())]),
        build(&[("t", time(7)), ("a", twice())]),
        build(&[("_id", 1.into()), ("t", time(8)), ("_id", 2.into())]),
    ]
}

fn series(fixture: &mut Fixture) {
    fixture.run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
}

/// All readers of the series agree, and its buckets are valid.
fn assert_sound(fixture: &mut Fixture, path: &str) {
    let found = fixture.all(doc! {"find": "ts"});
    let aggregate = |stages: Value| {
        doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}}
    };
    let counted = fixture.all(aggregate(array![doc! {"$count": "n"}]));
    let counted = counted
        .first()
        .map_or(0, |c| c.get("n").as_exact_i64().unwrap_or(-1));
    assert_eq!(counted, found.len() as i64, "{path}");
    for field in ["a", "m", "t", "_id"] {
        let group =
            |accumulator: Document| doc! {"$group": doc! {"_id": Value::Null, "v": accumulator}};
        let name = format!("${field}");
        let quick = fixture.all(aggregate(array![group(doc! {"$max": name.as_str()})]));
        // `$$ROOT` makes every reader build whole rows.
        let slow = fixture.all(aggregate(array![
            doc! {"$set": doc! {"copy": "$$ROOT"}},
            group(doc! {"$max": format!("$copy.{field}")}),
        ]));
        assert_eq!(quick, slow, "{path}: {field}");
    }
    let valid = fixture.run(doc! {"validate": "ts", "full": true});
    assert!(
        matches!(valid.get("valid"), ValueRef::Bool(true)),
        "{path}: {}",
        show(&valid)
    );
    for document in &found {
        let mut names: Vec<&str> = document.iter().map(|e| e.name()).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{path}: {}", show(document));
    }
}

#[test]
fn a_repeated_field_is_refused_or_stored_once_on_every_path_into_a_bucket() {
    for (at, measurement) in repeating().into_iter().enumerate() {
        let plain = |fixture: &mut Fixture| {
            fixture.run(doc! {"insert": "c", "documents": array![measurement.clone()]});
        };
        let write = |fixture: &mut Fixture, path: &str| match path {
            "insert" => {
                fixture.reply(doc! {"insert": "ts", "documents": array![measurement.clone()]})
            }
            "bulkWrite" => fixture.reply_on(
                "admin",
                doc! {
                    "bulkWrite": 1, "nsInfo": array![doc! {"ns": "test.ts"}],
                    "ops": array![doc! {"insert": 0, "document": measurement.clone()}],
                },
            ),
            "replace" => {
                fixture.run(doc! {"insert": "ts", "documents": array![
                    doc! {"t": Value::DateTime(0), "old": 1},
                ]});
                fixture.reply(doc! {"update": "ts", "updates": array![
                    doc! {"q": doc! {"old": 1}, "u": measurement.clone(), "multi": false},
                ]})
            }
            "$out" | "$merge" => {
                plain(fixture);
                let target = match path {
                    "$out" => doc! {"$out": doc! {
                        "db": "test", "coll": "ts",
                        "timeseries": doc! {"timeField": "t", "metaField": "m"},
                    }},
                    _ => doc! {"$merge": doc! {"into": "ts"}},
                };
                fixture.reply(doc! {
                    "aggregate": "c", "pipeline": array![target], "cursor": doc! {},
                })
            }
            other => panic!("{other}"),
        };
        for path in ["insert", "bulkWrite", "replace", "$out", "$merge"] {
            let mut fixture = Fixture::new();
            series(&mut fixture);
            write(&mut fixture, path);
            let name = format!("{path} {at}");
            assert_sound(&mut fixture, &name);
            // More measurements of the same series, then sealed buckets.
            for ms in 20..40 {
                let more = doc! {"t": Value::DateTime(ms), "a": ms, "m": 2};
                fixture.run(doc! {"insert": "ts", "documents": array![more]});
            }
            fixture.database.settle().expect("sealed buckets");
            assert_sound(&mut fixture, &name);
        }
    }
}

#[test]
fn a_raw_bucket_that_repeats_a_column_is_refused() {
    let mut fixture = Fixture::new();
    series(&mut fixture);
    fixture.run(doc! {"insert": "ts", "documents": array![doc! {"t": Value::DateTime(1), "a": 1}]});
    let bucket = fixture.all(doc! {"find": "system.buckets.ts"}).remove(0);
    fixture.run(doc! {"delete": "ts", "deletes": array![doc! {"q": doc! {}, "limit": 0}]});
    for twice in ["_id", "control", "data", "meta"] {
        let mut out = DocumentBuilder::new();
        for element in bucket.iter() {
            out.append_element(element);
        }
        match bucket.get(twice) {
            ValueRef::Missing => out.append(twice, 1).append(twice, 2),
            value => out.append_ref(twice, value),
        };
        let insert = doc! {"insert": "system.buckets.ts", "documents": array![out.finish()]};
        let reply = fixture.reply(insert);
        let errors = reply.get("writeErrors").as_array();
        assert!(errors.is_some(), "{twice}: {}", show(&reply));
        assert_sound(&mut fixture, twice);
    }
    for (part, inner) in [("data", "a"), ("control", "min"), ("control", "version")] {
        let mut out = DocumentBuilder::new();
        for element in bucket.iter() {
            if element.name() != part {
                out.append_element(element);
                continue;
            }
            out.begin_document(part);
            let fields = element.value().as_document().expect("an object");
            for field in fields {
                out.append_element(field);
            }
            out.append_ref(inner, fields.get(inner));
            out.end();
        }
        let insert = doc! {"insert": "system.buckets.ts", "documents": array![out.finish()]};
        let reply = fixture.reply(insert);
        let errors = reply.get("writeErrors").as_array();
        assert!(errors.is_some(), "{part}.{inner}: {}", show(&reply));
        assert_sound(&mut fixture, &format!("{part}.{inner}"));
    }
}
