//! Collations and access paths: an index or a bound serves only comparisons with its own collation.

use nilometer_bson::{Document, Value, array, doc};

use crate::support::{Fixture, show};

fn folding(strength: i32) -> Document {
    doc! {"locale": "en", "strength": strength}
}

fn plan(fixture: &mut Fixture, command: Document) -> String {
    let reply = fixture.run(doc! {"explain": command, "verbosity": "queryPlanner"});
    show(&reply)
}

#[test]
fn the_id_index_serves_its_own_collation() {
    let mut fixture = Fixture::new();
    fixture.run(doc! {"create": "c", "collation": folding(2)});
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": "a"}, doc! {"_id": 1}]});
    let by_text = doc! {"find": "c", "filter": doc! {"_id": "A"}};
    assert!(plan(&mut fixture, by_text.clone()).contains("EXPRESS_IXSCAN"));
    assert_eq!(fixture.all(by_text), [doc! {"_id": "a"}]);
    let other = doc! {"find": "c", "filter": doc! {"_id": "a"}, "collation": folding(1)};
    assert!(plan(&mut fixture, other).contains("COLLSCAN"));
    // Numbers are the same under any collation.
    let number = doc! {"find": "c", "filter": doc! {"_id": 1}, "collation": folding(1)};
    assert!(plan(&mut fixture, number).contains("EXPRESS_IXSCAN"));
}

#[test]
fn bounds_serve_their_own_collation() {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options, "collation": folding(2)});
    let find = |filter: Document, collation: Option<Document>| {
        doc! {"find": "ts", "filter": filter, "collation": collation}
    };
    let text = doc! {"v": doc! {"$gt": "x"}};
    let expression = doc! {"$expr": doc! {"$gt": array!["$v", "x"]}};
    let mut uses_bounds = |command| plan(&mut fixture, command).contains("control.max.v");
    for filter in [text, expression] {
        assert!(uses_bounds(find(filter.clone(), None)));
        assert!(uses_bounds(find(filter.clone(), Some(folding(2)))));
        assert!(!uses_bounds(find(filter.clone(), Some(folding(1)))));
        assert!(!uses_bounds(find(filter, Some(doc! {"locale": "simple"}))));
    }
    let number = doc! {"v": doc! {"$gt": 5}};
    assert!(uses_bounds(find(number, Some(folding(1)))));
}

#[test]
fn equal_strings_come_once_from_an_index_of_the_same_collation() {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options, "collation": folding(2)});
    for (id, host) in (0i64..).zip(["a", "A", "b", "B", "c"]) {
        let time = Value::DateTime(id);
        let measurement = doc! {"_id": id, "t": time, "m": doc! {"h": host}};
        fixture.run(doc! {"insert": "ts", "documents": array![measurement]});
    }
    let index = doc! {"key": doc! {"m.h": 1}, "name": "h"};
    fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
    let mut ask = |query: Document, collation: Option<Document>| {
        let distinct =
            doc! {"distinct": "ts", "key": "m.h", "query": query, "collation": collation};
        let from_index = plan(&mut fixture, distinct.clone()).contains("DISTINCT_SCAN");
        let reply = fixture.run(distinct);
        let values = reply.get("values").as_array().unwrap();
        let values: Vec<_> = values.iter().filter_map(|v| v.as_str()).collect();
        (values.join(" "), from_index)
    };
    let up = |query: &str| doc! {"m.h": doc! {"$gte": query}};
    let (all, from_index) = ask(doc! {}, None);
    assert_eq!((all.to_lowercase().as_str(), from_index), ("a b c", true));
    let (some, from_index) = ask(up("B"), None);
    assert_eq!((some.to_lowercase().as_str(), from_index), ("b c", true));
    // Another collation, and comparisons that distinguish equal strings.
    let simple = ask(doc! {}, Some(doc! {"locale": "simple"}));
    assert!(!simple.1 && simple.0.len() == 9, "{simple:?}");
    let pattern = doc! {"m.h": doc! {"$regex": "^[AB]"}};
    assert_eq!(ask(pattern, None), ("A B".to_owned(), false));
}
