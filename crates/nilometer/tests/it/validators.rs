//! A validator accepts exactly the documents that a query with the same filter finds, at every level, and
//! reports the reason of a failure.

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};
use nilometer_storage::testing::effort;

use crate::random::Random;
use crate::support::{Fixture, show};

fn value(random: &mut Random, depth: u32) -> Value {
    match random.below(if depth == 0 { 6 } else { 9 }) {
        0..=2 => Value::from(random.int(6)),
        3 => Value::from(f64::from(random.int(10)) / 2.0),
        4 => Value::from(*random.pick(&["", "a", "ab", "abc"])),
        5 => random.pick(&[Value::Null, Value::Bool(true)]).clone(),
        6 | 7 => (0..random.below(4))
            .map(|_| value(random, depth - 1))
            .collect::<Vec<_>>()
            .into(),
        _ => fields(random, depth - 1).into(),
    }
}

fn fields(random: &mut Random, depth: u32) -> Document {
    let mut out = DocumentBuilder::new();
    for name in ["a", "b", "c"] {
        if random.below(4) > 0 {
            out.append(name, value(random, depth));
        }
    }
    out.finish()
}

fn schema(random: &mut Random, depth: u32) -> Document {
    let mut out = DocumentBuilder::new();
    let list = |random: &mut Random| {
        let schemas = (0..=random.below(2)).map(|_| Value::from(schema(random, depth - 1)));
        schemas.collect::<Vec<_>>()
    };
    let count = Value::from(random.int(3));
    match random.below(if depth == 0 { 10 } else { 17 }) {
        0 => out.append(
            "bsonType",
            *random.pick(&["int", "string", "array", "object", "number"]),
        ),
        1 => out
            .append("minimum", count)
            .append("exclusiveMinimum", random.below(2) == 0),
        2 => out.append("maximum", count),
        3 => out.append("minLength", count),
        4 => out.append("pattern", "b"),
        5 => out.append("enum", array![1, "a", Value::Null]),
        6 => out.append("maxItems", count).append("uniqueItems", true),
        7 => out.append("required", array!["a", "b"]),
        8 => out.append("minProperties", count),
        9 => out.append("multipleOf", 2),
        10 => out.append("allOf", list(random)),
        11 => out.append("anyOf", list(random)),
        12 => out.append("oneOf", list(random)),
        13 => out.append("not", schema(random, depth - 1)),
        14 => out.append("items", schema(random, depth - 1)),
        15 => out
            .append(
                "patternProperties",
                doc! { "^a": schema(random, depth - 1) },
            )
            .append("additionalProperties", schema(random, depth - 1)),
        _ => out.append(
            "properties",
            doc! { "a": schema(random, depth - 1), "b": schema(random, depth - 1) },
        ),
    };
    out.finish()
}

fn filter(random: &mut Random, depth: u32) -> Document {
    let mut out = DocumentBuilder::new();
    let path = *random.pick(&["a", "b", "a.b", "c.a"]);
    let arms = |random: &mut Random| {
        let arms = (0..=random.below(2)).map(|_| Value::from(filter(random, depth - 1)));
        arms.collect::<Vec<_>>()
    };
    match random.below(if depth == 0 { 9 } else { 13 }) {
        0 => out.append(path, value(random, 1)),
        1 => out.append(path, doc! { "$gt": random.int(5), "$lte": random.int(6) }),
        2 => out.append(
            path,
            doc! { "$in": array![value(random, 0), value(random, 0)] },
        ),
        3 => out.append(path, doc! { "$exists": random.below(2) == 0 }),
        4 => out.append(
            path,
            doc! { "$type": *random.pick(&["int", "string", "array"]) },
        ),
        5 => out.append(path, doc! { "$not": doc! { "$gte": random.int(5) } }),
        6 => out.append(path, doc! { "$size": random.int(3) }),
        7 => out.append(path, doc! { "$regex": "^a" }),
        8 => out.append("$expr", doc! { "$lt": array!["$a", "$b"] }),
        9 => out.append("$and", arms(random)),
        10 => out.append("$or", arms(random)),
        11 => out.append("$nor", arms(random)),
        _ => out.append("$jsonSchema", schema(random, 2)),
    };
    out.finish()
}

/// Returns the `_id`s the filter finds among all.
fn found(fixture: &mut Fixture, name: &str, filter: &Document) -> Vec<i64> {
    let command = doc! { "find": name, "filter": filter.clone(), "sort": doc! { "_id": 1 } };
    let documents = fixture.all(command);
    documents
        .iter()
        .filter_map(|d| d.get("_id").as_exact_i64())
        .collect()
}

fn with_id(id: i32, fields: &Document) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", id);
    for element in fields.iter() {
        out.append_element(element);
    }
    out.finish()
}

#[test]
fn fuzz_validators_accept_what_queries_find() {
    for seed in 0..effort(40, 150, 150) {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let validator = filter(&mut random, 2);
        let level = *random.pick(&["strict", "moderate"]);
        fixture.run(
            doc! { "create": "checked", "validator": validator.clone(), "validationLevel": level },
        );
        let documents: Vec<Value> = (0..20)
            .map(|id| with_id(id, &fields(&mut random, 2)).into())
            .collect();
        let all =
            |name: &str| doc! { "insert": name, "documents": documents.clone(), "ordered": false };
        fixture.run(all("plain"));
        let reply = fixture.run(all("checked"));
        let accepted = found(&mut fixture, "checked", &doc! {});
        assert_eq!(
            accepted,
            found(&mut fixture, "plain", &validator),
            "{}",
            show(&validator)
        );
        for error in reply
            .get("writeErrors")
            .as_array()
            .into_iter()
            .flat_map(|e| e.iter())
        {
            let details = error
                .as_document()
                .unwrap()
                .get("errInfo")
                .as_document()
                .unwrap();
            let details = details.get("details").as_document().unwrap();
            assert!(
                !details.get("operatorName").is_missing(),
                "{}",
                show(&validator)
            );
        }

        // All documents exist; each is replaced by another.
        let mut unchecked = DocumentBuilder::new();
        for element in all("checked").iter() {
            unchecked.append_element(element);
        }
        unchecked.append("bypassDocumentValidation", true);
        fixture.run(unchecked.finish());
        let conformed = found(&mut fixture, "checked", &validator);
        for id in 0..20 {
            let after = with_id(id, &fields(&mut random, 2));
            fixture.run(
                doc! { "delete": "plain", "deletes": array![doc! { "q": doc! {}, "limit": 0 }] },
            );
            fixture.run(doc! { "insert": "plain", "documents": array![after.clone()] });
            let conforms = !found(&mut fixture, "plain", &validator).is_empty();
            let was = conformed.contains(&i64::from(id));
            let statement = doc! { "q": doc! { "_id": id }, "u": after.clone() };
            let reply = fixture.run(doc! { "update": "checked", "updates": array![statement] });
            let refused = reply.as_ref().contains("writeErrors");
            // A replacement by an equal document is checked, too.
            let expected = !conforms && (level == "strict" || was);
            assert_eq!(
                refused,
                expected,
                "{level} {} {}",
                show(&validator),
                show(&after)
            );
        }
    }
}
