//! Definitions of rollups: what is checked, shown, and made before what it stands on.

use std::sync::Arc;

use nilometer_bson::{Document, array, doc};
use nilometer_storage::{Engine, MemoryEngine};

use crate::rollups::{HOUR_MS, START_MS, TestClock, insert, opened, simple, sums, trunc};
use crate::support::{Fixture, show};

#[test]
fn definitions_are_checked_and_shown() {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    fixture.run(doc! {"create": "plain"});
    let hour = trunc("hour", 1, "$t");
    let with = |group: Document| {
        let rollup = doc! {"source": "ts", "pipeline": array![doc! {"$group": group}]};
        doc! {"create": "r", "rollup": rollup}
    };
    let key = doc! {"t": hour.clone()};
    for refused in [
        with(doc! {"_id": hour.clone()}),
        with(doc! {"_id": doc! {"bed": "$m.bed"}}),
        with(doc! {"_id": doc! {"v": "$v", "t": hour.clone()}}),
        with(
            doc! {"_id": doc! {"t": doc! {"$dateTrunc": doc! {"date": "$t", "unit": "day", "timezone": "Europe/Berlin"}}}},
        ),
        with(doc! {"_id": key.clone(), "all": doc! {"$push": "$v"}}),
        with(doc! {"_id": key.clone(), "all": doc! {"$addToSet": "$v"}}),
        with(doc! {"_id": key.clone(), "two": doc! {"$firstN": doc! {"input": "$v", "n": 2}}}),
        with(doc! {"_id": key.clone(), "r": doc! {"$sum": doc! {"$rand": doc! {}}}}),
        with(
            doc! {"_id": key.clone(), "age": doc! {"$max": doc! {"$subtract": array!["$$NOW", "$t"]}}},
        ),
        with(doc! {"_id": key.clone(), "t": doc! {"$sum": 1}}),
        doc! {"create": "r", "rollup": doc! {"source": "ts", "pipeline": array![]}},
    ] {
        assert_eq!(fixture.code(refused.clone()), 72, "{}", show(&refused));
    }
    let good = simple("r", "ts", "hour", "$v");
    fixture.run(good.clone());
    fixture.run(good.clone());
    assert_eq!(fixture.code(simple("r", "ts", "hour", "$w")), 48);
    assert_eq!(fixture.code(simple("x", "plain", "hour", "$v")), 26);
    assert_eq!(fixture.code(simple("x", "r", "minute", "$sum")), 72);
    assert_eq!(fixture.code(simple("x", "r", "day", "$v")), 72);
    fixture.run(simple("x", "r", "day", "$sum"));
    // What stands on something is dropped first.
    for (command, code) in [
        (doc! {"drop": "ts"}, 96),
        (doc! {"drop": "r"}, 96),
        (
            doc! {"insert": "r", "documents": array![doc! {"t": 1}]},
            166,
        ),
        (doc! {"find": "r", "hint": "t_1"}, 2),
        (doc! {"collMod": "r", "viewOn": "plain"}, 72),
        (doc! {"refreshRollup": "ts"}, 26),
    ] {
        assert_eq!(fixture.code(command.clone()), code, "{}", show(&command));
    }
    let rename = doc! {"renameCollection": "test.ts", "to": "test.other"};
    let renamed = fixture.reply_on("admin", rename);
    assert_eq!(renamed.get("code").as_exact_i64(), Some(96));
    let listed = fixture.all(doc! {"listCollections": 1, "filter": doc! {"name": "r"}});
    let options = listed[0]
        .get("options")
        .as_document()
        .unwrap()
        .to_document();
    let shown = options.get("rollup").as_document().unwrap().to_document();
    let given = good.get("rollup").as_document().unwrap().to_document();
    for name in ["source", "pipeline"] {
        let one = |of: &Document| doc! {"v": of.get(name).to_value()};
        assert_eq!(one(&shown), one(&given));
    }
    assert_eq!(shown.get("lateness").as_exact_i64(), Some(0));
    fixture.run(doc! {"collMod": "r", "rollup": doc! {"lateness": 90}});
    let counted = fixture.run(doc! {"count": "r"});
    assert_eq!(counted.get("n").as_exact_i64(), Some(0));
    fixture.run(doc! {"drop": "x"});
    fixture.run(doc! {"drop": "r"});
    fixture.run(doc! {"drop": "ts"});
}

/// As `mongorestore` does, which creates collections in any order.
#[test]
fn rollups_may_be_created_before_what_they_stand_on() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let clock = Arc::<TestClock>::default();
    let mut fixture = opened(&engine, &clock);
    fixture.run(simple("weekly", "daily", "week", "$sum"));
    assert_eq!(fixture.code(simple("daily", "weekly", "day", "$sum")), 2);
    assert_eq!(fixture.code(simple("own", "own", "day", "$sum")), 2);
    fixture.run(simple("hourly", "ts", "hour", "$v"));
    fixture.run(simple("daily", "hourly", "day", "$sum"));
    // These do not fit to the series.
    fixture.run(simple("wrong", "ts", "hour", "$t"));
    let by_value = doc! {"$group": doc! {"_id": doc! {"v": "$v", "t": trunc("hour", 1, "$t")}}};
    let unfit = doc! {"source": "ts", "pipeline": array![by_value]};
    fixture.run(doc! {"create": "unfit", "rollup": unfit});
    let no_stages = doc! {"source": "ts", "pipeline": array![doc! {"$sort": doc! {"t": 1}}]};
    assert_eq!(
        fixture.code(doc! {"create": "bad", "rollup": no_stages}),
        72
    );
    for name in ["hourly", "daily", "weekly", "unfit"] {
        assert!(fixture.all(doc! {"find": name}).is_empty());
    }
    assert_eq!(fixture.code(doc! {"refreshRollup": "hourly"}), 26);
    drop(fixture);
    let mut fixture = opened(&engine, &clock);
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options, "expireAfterSeconds": 1_000_000_000});
    for reopened in [false, true] {
        if reopened {
            drop(fixture);
            fixture = opened(&engine, &clock);
        }
        for at in [40, 3, 2] {
            insert(&mut fixture, START_MS + at * HOUR_MS, "a", 1);
        }
        for name in ["weekly", "hourly"] {
            for is_refreshed in [false, true] {
                if is_refreshed {
                    fixture.run(doc! {"refreshRollup": name});
                }
                let sum: i64 = sums(&mut fixture, name).iter().map(|(_, sum)| sum).sum();
                assert_eq!(sum, if reopened { 6 } else { 3 }, "{name}");
            }
        }
        assert_eq!(fixture.code(doc! {"find": "unfit"}), 72);
        assert_eq!(fixture.code(doc! {"refreshRollup": "unfit"}), 72);
        assert_eq!(fixture.code(doc! {"drop": "ts"}), 96);
        let update = doc! {"q": doc! {"v": 1}, "u": doc! {"$set": doc! {"w": 1}}, "multi": true};
        fixture.run(doc! {"update": "ts", "updates": array![update]});
    }
    let group = doc! {"$group": doc! {"_id": trunc("hour", 1, "$t"), "sum": doc! {"$sum": "$v"}}};
    let query = doc! {"aggregate": "ts", "pipeline": array![group], "cursor": doc! {}};
    let explained = show(&fixture.run(doc! {"explain": query.clone()}));
    assert!(explained.contains("test.hourly"), "{explained}");
    assert_eq!(fixture.all(query).len(), 3);
}
