//! What a collation lets a query skip: an index or a bound serves only comparisons that it agrees with.

use nilometer_bson::{Document, array, doc};

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
    // Numbers are the same under any.
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
