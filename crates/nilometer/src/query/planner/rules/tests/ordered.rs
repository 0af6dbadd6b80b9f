//! Rules that read only the first buckets of an order by time: cases where they fire and where they do not.

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use super::buckets::{HOUR, check, date, decoded, loose, stage};
use super::{T0, plain, series};

fn trunc(date: &str) -> Value {
    doc! {"$dateTrunc": doc! {"date": date, "unit": "minute"}}.into()
}

/// Groups by `key`, sorted and limited.
fn first_few(key: Value, order: Document) -> Vec<Value> {
    let group = doc! {"_id": key, "most": doc! {"$max": "$v"}, "n": doc! {"$sum": 1}};
    vec![
        stage("$group", group),
        stage("$sort", order),
        stage("$limit", 2),
    ]
}

#[test]
fn groups_by_time_that_come_first() {
    let rule = "FirstGroupsFirst";
    let named = || -> Value { doc! {"h": trunc("$t"), "m": "$m.a"}.into() };
    let later = || -> Value { doc! {"m": "$m.a", "h": trunc("$t")}.into() };
    for (key, order) in [
        (trunc("$t"), doc! {"_id": -1}),
        (trunc("$t"), doc! {"_id": 1, "n": 1}),
        (named(), doc! {"_id": -1}),
        (named(), doc! {"_id.h": 1, "_id.m": -1}),
        (later(), doc! {"_id.h": -1}),
    ] {
        check(rule, true, loose(), first_few(key, order));
    }
    for (key, order) in [
        (trunc("$t"), doc! {"most": -1}),
        (trunc("$t"), doc! {"_id.h": -1}),
        (trunc("$v"), doc! {"_id": -1}),
        ("$t".into(), doc! {"_id": -1}),
        (later(), doc! {"_id": -1}),
        (named(), doc! {"_id.m": 1, "_id.h": 1}),
        (Value::Null, doc! {"_id": 1}),
    ] {
        check(rule, false, loose(), first_few(key, order));
    }
    let mut unlimited = first_few(trunc("$t"), doc! {"_id": -1});
    unlimited.pop();
    check(rule, false, loose(), unlimited);
    // Dates outside the range of ids, rows, and a computed time.
    let newest = || first_few(trunc("$t"), doc! {"_id": -1});
    check(rule, false, series(&[T0, -5_000]), newest());
    check(rule, false, plain(), newest());
    let mut computed = newest();
    computed.insert(0, stage("$set", doc! {"t": "$v", "x": 1}));
    check(rule, false, loose(), computed);
    // The pushed values show from which end buckets were read.
    for (order, expected) in [(1, true), (-1, false)] {
        let group = doc! {"_id": trunc("$t"), "all": doc! {"$push": "$v"}};
        let mut pushed = first_few(trunc("$t"), doc! {"_id": order});
        pushed[0] = stage("$group", group);
        check(rule, expected, loose(), pushed);
    }
    let mut filtered = newest();
    filtered.insert(0, stage("$match", doc! {"v": doc! {"$lt": 5}}));
    check(rule, true, loose(), filtered);
}

#[test]
fn reading_ends_with_the_groups_that_come_first() {
    let newest = first_few(trunc("$t"), doc! {"_id": -1});
    let (found, columns) = decoded(newest);
    let minute = |at: i64| date(T0 / HOUR * HOUR + at * 60_000);
    assert_eq!(
        found,
        [
            doc! {"_id": minute(179), "most": 179, "n": 2},
            doc! {"_id": minute(178), "most": 178, "n": 2},
        ]
    );
    // Of the four buckets of the last hour two are decoded: their time columns, and the measured one.
    assert!(columns <= 2 * 4, "{columns}");
    let mut before = first_few(trunc("$t"), doc! {"_id": 1});
    let filter = doc! {"$expr": doc! {"$gte": array!["$v", 70]}};
    before.insert(0, stage("$match", filter));
    let (found, _) = decoded(before);
    assert_eq!(
        found,
        [
            doc! {"_id": minute(70), "most": 70, "n": 2},
            doc! {"_id": minute(71), "most": 71, "n": 2},
        ]
    );
}

#[test]
fn groups_by_metadata_need_order_within_each_group() {
    let rule = "SortWithinGroups";
    let behind = |sort: Document, key: Value, extra: Document| {
        let mut group = DocumentBuilder::new();
        group.append("_id", key);
        group.append("first", doc! {"$first": "$v"});
        group.append("most", doc! {"$max": "$v"});
        for field in extra.iter() {
            group.append_element(field);
        }
        vec![stage("$sort", sort), stage("$group", group.finish())]
    };
    for key in [
        Value::from("$m"),
        "$m.a".into(),
        doc! {"$toUpper": "$m.a"}.into(),
        doc! {"h": trunc("$t"), "m": "$m.a", "v": "$v"}.into(),
    ] {
        let plainly = |sort: Document| behind(sort, key.clone(), doc! {});
        for order in [1, -1] {
            check(rule, true, loose(), plainly(doc! {"t": order}));
        }
        check(rule, false, loose(), plainly(doc! {"t": 1, "v": 1}));
        check(rule, false, plain(), plainly(doc! {"t": 1}));
        let mut limited = plainly(doc! {"t": 1});
        limited.insert(1, stage("$limit", 5));
        check(rule, false, loose(), limited);
        // A limit behind the group may end the reading, unless a sort reads all groups first.
        let mut limited = plainly(doc! {"t": 1});
        limited.push(stage("$match", doc! {"most": 5}));
        limited.push(stage("$limit", 5));
        check(rule, false, loose(), limited.clone());
        limited.insert(2, stage("$sort", doc! {"most": 1}));
        check(rule, true, loose(), limited);
    }
    let both = doc! {"x": "$m.a", "y": "$m.b"};
    let bins = doc! {"x": "$m.a", "h": trunc("$t")};
    let push = || doc! {"all": doc! {"$push": "$v"}};
    let metas = || doc! {"b": doc! {"$last": "$m.b"}};
    for (sort, key, extra, expected) in [
        (doc! {"m.a": 1, "t": 1}, Value::from("$m.a"), doc! {}, true),
        (doc! {"m.a": -1, "t": -1}, both.into(), doc! {}, true),
        (doc! {"m.a": 1, "t": 1}, "$m".into(), doc! {}, false),
        (doc! {"m": 1, "t": 1}, "$m.a".into(), doc! {}, false),
        (doc! {"v": 1, "t": 1}, "$m.a".into(), doc! {}, false),
        (doc! {"t": 1}, "$v".into(), doc! {}, false),
        (doc! {"t": 1}, Value::Null, doc! {}, false),
        (doc! {"t": 1}, trunc("$t"), doc! {}, false),
        // What is kept for a group ends with its bin.
        (doc! {"t": 1}, "$m.a".into(), push(), true),
        (doc! {"t": 1}, bins.into(), push(), false),
        // Other metadata is known only if the key has all of it.
        (doc! {"t": 1}, "$m.a".into(), metas(), false),
        (doc! {"t": 1}, "$m".into(), metas(), true),
    ] {
        check(rule, expected, loose(), behind(sort, key, extra));
    }
}
