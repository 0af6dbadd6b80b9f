//! Fields computed from the metadata: where they are computed once for each bucket, and where not.

use std::sync::Arc;

use nilometer_bson::{Value, array, doc};

use super::buckets::{check, decoded, loose, stage};
use super::{T0, buckets, names, plain, plan_over, series};
use crate::query::batch::FieldSet;

#[test]
fn computed_metadata_is_a_column() {
    let rule = "ComputedMetas";
    for first in [
        stage("$set", doc! {"x": "$m.a"}),
        stage("$addFields", doc! {"x": doc! {"$toUpper": "$m.a"}, "y": 1}),
        stage("$set", doc! {"v": "$m"}),
        stage("$project", doc! {"x": "$m.a", "v": 1}),
    ] {
        check(rule, true, loose(), vec![first.clone()]);
        check(rule, false, plain(), vec![first.clone()]);
        // Filters are tested before.
        let behind = stage(
            "$match",
            doc! {"v": 1, "t": doc! {"$gt": Value::DateTime(T0)}},
        );
        check(rule, true, loose(), vec![behind, first.clone()]);
        check(rule, false, loose(), vec![stage("$limit", 1), first]);
    }
    for first in [
        stage("$set", doc! {"x": "$v"}),
        stage("$set", doc! {"x": "$m.a", "y": "$v"}),
        stage("$set", doc! {"x": "$$ROOT"}),
        stage("$set", doc! {"x": doc! {"$rand": doc! {}}}),
        stage("$set", doc! {"m": "$m.a"}),
        stage("$set", doc! {"m.b": "$m.a"}),
        stage("$set", doc! {"t": "$m.a"}),
        stage("$set", doc! {"x.y": "$m.a"}),
        stage("$project", doc! {"x": "$m.a", "v.w": 1}),
        stage("$project", doc! {"m": "$m.a"}),
        stage("$project", doc! {"v": 0}),
    ] {
        check(rule, false, loose(), vec![first]);
    }
}

#[test]
fn later_rules_see_what_is_left() {
    let project = stage("$project", doc! {"x": "$m.a", "t": 1, "_id": 0});
    let sort = stage("$sort", doc! {"m": 1});
    // The metadata is dropped: buckets have no order by it.
    let plan = plan_over(loose(), vec![project.clone(), sort.clone()].into());
    assert!(!plan.fired.contains(&"SortByBuckets"), "{:?}", plan.fired);
    let set = stage("$set", doc! {"x": "$m.a"});
    let plan = plan_over(loose(), vec![set, sort].into());
    assert!(plan.fired.contains(&"SortByBuckets"), "{:?}", plan.fired);
    assert_eq!(names(&plan), ["$sort"]);
    // Computed fields may read fields that no later stage needs.
    let plan = plan_over(
        series(&[T0]),
        array![project, doc! {"$group": doc! {"_id": "$t"}}],
    );
    let FieldSet::Only(fields) = &buckets(&plan).unpack.fields else {
        panic!("{:?}", buckets(&plan).unpack.fields)
    };
    assert_eq!(fields, &["m", "t"].map(Arc::from).into());
}

#[test]
fn what_is_computed_is_found_in_blocks() {
    let group =
        doc! {"_id": Value::Null, "hosts": doc! {"$addToSet": "$x"}, "most": doc! {"$max": "$x"}};
    let set = stage("$set", doc! {"x": "$m.a"});
    let (found, columns) = decoded(vec![set.clone(), stage("$group", group.clone())]);
    assert_eq!(found[0].get("most").as_str(), Some("b"));
    assert_eq!(columns, 0);
    // Arithmetic reads the column it needs and no other.
    let sum = doc! {"$add": array!["$v", 1000]};
    let sum = stage("$set", doc! {"x": sum, "w": 7});
    let (found, columns) = decoded(vec![set, sum, stage("$group", group)]);
    assert_eq!(found[0].get("most").as_exact_i64(), Some(1179));
    // Twelve buckets: `v`, and `w` to see whether every measurement has it.
    assert_eq!(columns, 24);
}
