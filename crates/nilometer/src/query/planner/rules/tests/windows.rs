//! Rules for windows and gaps over buckets: tables of cases where they fire and where they do not.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use super::buckets::{HOUR, check, date, decoded, fixed, hosts, loose, stage};
use super::{T0, names, plain, plan_over};
use crate::query::exec::testing::{MemoryCollections, executor, operation};
use crate::query::source::Resolved;

#[test]
fn windows_by_metadata_and_time_come_in_order() {
    let of = |partition: Value, order: Document| {
        let total = doc! {"$sum": "$v"};
        let mut spec = DocumentBuilder::new();
        spec.append("partitionBy", partition);
        spec.append("sortBy", order);
        spec.append("output", doc! {"total": total});
        vec![stage("$setWindowFields", spec.finish())]
    };
    let rule = "WindowsInOrder";
    for (partition, order) in [
        (Value::from("$m"), doc! {"t": 1}),
        ("$m.a".into(), doc! {"t": -1}),
        ("$m.a".into(), doc! {"t": 1, "v": 1}),
        ("$m.a".into(), doc! {"m.b": 1}),
    ] {
        check(rule, true, loose(), of(partition, order));
    }
    for (partition, order) in [
        (Value::from("$v"), doc! {"t": 1}),
        ("$m".into(), doc! {"v": 1}),
        (doc! {"$toUpper": "$m.a"}.into(), doc! {"t": 1}),
        ("$t".into(), doc! {"t": 1}),
    ] {
        check(rule, false, loose(), of(partition, order));
    }
    let alone = |order: Document| {
        let spec = doc! {"sortBy": order, "output": doc! {"total": doc! {"$sum": "$v"}}};
        vec![stage("$setWindowFields", spec)]
    };
    check(rule, true, loose(), alone(doc! {"t": 1}));
    check(rule, false, loose(), alone(doc! {"t": -1}));
    check(rule, false, plain(), alone(doc! {"t": 1}));
    let plan = plan_over(loose(), of("$m".into(), doc! {"t": 1}).into());
    assert_eq!(names(&plan), ["$sort", "$_internalSetWindowFields"]);
    let rule = "WindowsOverBlocks";
    check(rule, true, loose(), of("$m".into(), doc! {"t": 1}));
    check(rule, true, loose(), of("$m.a".into(), doc! {"t": -1}));
    check(rule, true, loose(), alone(doc! {"t": 1}));
    // Fields ordered after the time are compared row by row; so are rows that functions rank.
    check(
        rule,
        false,
        loose(),
        of("$m.a".into(), doc! {"t": 1, "v": 1}),
    );
    check(rule, false, loose(), of("$m.a".into(), doc! {"m.b": 1}));
    let top = doc! {"$top": doc! {"sortBy": doc! {"v": 1}, "output": "$v"}};
    let ranked = doc! {"sortBy": doc! {"t": 1}, "output": doc! {"top": top}};
    check(
        rule,
        false,
        loose(),
        vec![stage("$setWindowFields", ranked)],
    );
}

#[test]
fn the_axis_of_time_is_filled_as_buckets_come() {
    let rule = "WindowsInOrder";
    let of = |field: &str, bounds: Value, partitions: Value| {
        let mut range = DocumentBuilder::new();
        range.append("step", 1);
        range.append("bounds", bounds);
        if field == "t" {
            range.append("unit", "minute");
        }
        let mut spec = DocumentBuilder::new();
        spec.append("field", field);
        spec.append("partitionByFields", partitions);
        spec.append("range", range.finish());
        vec![stage("$densify", spec.finish())]
    };
    let full = || Value::from("full");
    check(rule, true, loose(), of("t", full(), Value::Missing));
    check(rule, true, loose(), of("t", full(), array![]));
    check(
        rule,
        true,
        fixed(),
        of("t", array![date(T0), date(T0 + HOUR)], Value::Missing),
    );
    for (field, partitions) in [
        ("v", Value::Missing),
        ("t", array!["m.a"]),
        ("t", array!["v"]),
    ] {
        check(rule, false, loose(), of(field, full(), partitions));
    }
    check(rule, false, plain(), of("t", full(), Value::Missing));
    let partitioned = "DensifyOverBuckets";
    for (field, partitions, fires) in [
        ("t", array!["m.a"], true),
        ("t", array!["m.a", "m"], true),
        ("t", array!["m.a", "v"], false),
        ("t", array![], false),
        ("v", array!["m.a"], false),
    ] {
        check(partitioned, fires, loose(), of(field, full(), partitions));
    }
    let behind = |partitions: Value, by: Value, sort: Document| {
        let mut stages = of("t", full(), partitions);
        let mut spec = DocumentBuilder::new();
        spec.append("partitionBy", by);
        spec.append("sortBy", sort);
        spec.append("output", doc! {"v": doc! {"method": "locf"}});
        stages.push(stage("$fill", spec.finish()));
        stages
    };
    for (partitions, by, sort, fires) in [
        (array!["m.a"], "$m.a".into(), doc! {"t": 1}, true),
        (array![], Value::Missing, doc! {"t": 1}, true),
        (array!["v"], "$v".into(), doc! {"t": 1}, true),
        (array!["m.a"], "$m".into(), doc! {"t": 1}, false),
        (array!["m.a"], Value::Missing, doc! {"t": 1}, false),
        (array!["m.a"], "$m.a".into(), doc! {"t": -1}, false),
        (array!["m.a"], "$m.a".into(), doc! {"t": 1, "v": 1}, false),
        (array!["m.a", "v"], "$m.a".into(), doc! {"t": 1}, false),
    ] {
        let stages = behind(partitions, by, sort);
        check("WindowsBehindDensify", fires, loose(), stages);
    }
    let mut hidden = of("t", full(), array!["m"]);
    hidden.insert(0, stage("$project", doc! {"m": 1}));
    check(partitioned, false, loose(), hidden);
    let plan = plan_over(loose(), of("t", full(), Value::Missing).into());
    assert_eq!(names(&plan), ["$sort", "$_internalDensify"]);
    let mut computed = of("t", full(), Value::Missing);
    computed.insert(0, stage("$set", doc! {"t": "$v"}));
    check(rule, false, loose(), computed);
    // The first documents are returned before all input is read.
    let source = hosts();
    let collections = MemoryCollections::of(Resolved::TimeSeries(Arc::clone(&source) as _));
    let stages: Value = of("t", full(), Value::Missing).into();
    let mut filled = executor(&collections, &stages);
    // A row of the executor is a batch of many; two hosts have a document for every minute already.
    let first = filled.next(&operation()).unwrap().unwrap();
    assert!(!first.is_empty());
    let (found, _) = decoded(of(
        "t",
        array![date(T0 / HOUR * HOUR - HOUR), date(T0 / HOUR * HOUR)],
        Value::Missing,
    ));
    assert_eq!(found.len(), 60 + 360);
    let (wide, _) = decoded(of("t", full(), Value::Missing));
    assert_eq!(wide.len(), 360);
}
