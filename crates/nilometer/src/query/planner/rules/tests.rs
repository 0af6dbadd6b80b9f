//! Each rule where it applies, and where it must not.

use std::sync::Arc;

use nilometer_bson::{Document, Value, array, doc};

use super::{LOGICAL_RULES, PHYSICAL_RULES};
use crate::query::batch::FieldSet;
use crate::query::exec::build::Builder;
use crate::query::exec::testing::{MemoryBuckets, MemoryCollections, MemoryRecords, settings};
use crate::query::exec::{ExecLimits, ExecSettings};
use crate::query::pipeline::testing::parse;
use crate::query::planner::physical::{
    AccessPath, BucketArrival, BucketInput, Input, PhysicalPlan, PhysicalStage,
};
use crate::query::planner::settings::PlanOptions;
use crate::query::source::{
    Direction, RecordIter, RecordKey, RecordScanOptions, RecordSource, Resolved,
};

mod buckets;
mod computed;
mod ordered;
mod windows;

const T0: i64 = 1_600_000_000_000;

fn plan_over(source: Resolved, stages: Value) -> PhysicalPlan {
    let settings = settings(PlanOptions::default(), ExecLimits::default());
    plan_with(source, stages, settings)
}

fn plan_with(source: Resolved, stages: Value, settings: ExecSettings) -> PhysicalPlan {
    let builder = Builder {
        collections: MemoryCollections::of(source),
        database: "test".into(),
        collection: Some("c".into()),
        settings: Arc::new(settings),
        depth: 0,
    };
    builder.plan(Some("c"), parse(stages).unwrap()).unwrap()
}

fn series(times: &[i64]) -> Resolved {
    let measurement = |at: &i64| doc! {"t": Value::DateTime(*at), "m": doc! {"a": 1}, "v": 1};
    let list: Vec<Document> = times.iter().map(measurement).collect();
    Resolved::TimeSeries(Arc::new(MemoryBuckets::new(&list, 10)))
}

fn plain() -> Resolved {
    Resolved::Ordinary(Arc::new(MemoryRecords(vec![])))
}

fn names(plan: &PhysicalPlan) -> Vec<&'static str> {
    plan.stages.iter().map(PhysicalStage::name).collect()
}

fn buckets(plan: &PhysicalPlan) -> &BucketInput {
    match &plan.input {
        Input::Buckets(input) => input,
        _ => panic!("no buckets are read"),
    }
}

/// Returns the parts of a `$match` over time-series data: bucket predicate, event filter, whole-bucket filter.
fn split(filter: Document) -> (Document, Option<Document>, Option<Document>) {
    let plan = plan_over(series(&[T0]), array![doc! {"$match": filter}]);
    let input = buckets(&plan);
    assert!(plan.stages.is_empty());
    (
        input.buckets.predicate.to_document(),
        input.unpack.event_filter.as_ref().map(|f| f.to_document()),
        input
            .unpack
            .whole_bucket_filter
            .as_ref()
            .map(|f| f.to_document()),
    )
}

#[test]
fn rules_have_names_of_their_own() {
    let mut names: Vec<&str> = LOGICAL_RULES.iter().map(|rule| rule.name()).collect();
    names.extend(PHYSICAL_RULES.iter().map(|rule| rule.name()));
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn matches_come_together_and_forward() {
    let sort = doc! {"$sort": doc! {"x": 1}};
    let of = |field: &str| {
        let mut filter = nilometer_bson::DocumentBuilder::new();
        filter.append(field, 1);
        doc! {"$match": filter.finish()}
    };
    let limit = doc! {"$limit": 3};
    // After a stage that stays, so that the scan does not absorb them.
    let unwind = doc! {"$unwind": "$u"};
    let both = plan_over(plain(), array![unwind.clone(), of("a"), of("b")]);
    assert_eq!(names(&both), ["$unwind", "$match"]);
    let sorted = plan_over(plain(), array![unwind.clone(), sort.clone(), of("a")]);
    assert_eq!(names(&sorted), ["$unwind", "$match", "$sort"]);
    let limited = plan_over(plain(), array![unwind.clone(), sort, limit, of("a")]);
    assert_eq!(names(&limited), ["$unwind", "$sort", "$match"]);
    let project = |spec: Document| {
        let stages = array![unwind.clone(), doc! {"$project": spec}, of("a")];
        names(&plan_over(plain(), stages))
    };
    assert_eq!(project(doc! {"a": 1}), ["$unwind", "$match", "$project"]);
    assert_eq!(project(doc! {"b": 0}), ["$unwind", "$match", "$project"]);
    for kept in [
        doc! {"b": 1},
        doc! {"a": 0},
        doc! {"a": "$b.c"},
        doc! {"a.b": 0},
    ] {
        assert_eq!(project(kept), ["$unwind", "$project", "$match"]);
    }
}

#[test]
fn limits_come_together() {
    let stages = |list: &[(&str, i64)]| -> Value {
        let stage = |(name, n): &(&str, i64)| {
            let mut stage = nilometer_bson::DocumentBuilder::new();
            stage.append(name, *n);
            Value::from(stage.finish())
        };
        list.iter().map(stage).collect::<Vec<_>>().into()
    };
    let plan = plan_over(
        plain(),
        stages(&[("$limit", 5), ("$limit", 3), ("$skip", 1), ("$skip", 2)]),
    );
    assert!(matches!(
        plan.stages.as_slice(),
        [PhysicalStage::Limit(3), PhysicalStage::Skip(3)]
    ));
    let sorted = |rest: &[Value]| {
        let mut list = vec![Value::from(doc! {"$sort": doc! {"a": 1}})];
        list.extend_from_slice(rest);
        plan_over(plain(), list.into())
    };
    let limit: Value = doc! {"$limit": 4}.into();
    let skip: Value = doc! {"$skip": 2}.into();
    let plan = sorted(&[limit.clone(), doc! {"$limit": 2}.into()]);
    assert!(matches!(plan.stages.as_slice(), [PhysicalStage::Sort(s)] if s.stage.limit == Some(2)));
    let plan = sorted(&[skip, limit.clone()]);
    assert!(matches!(
        plan.stages.as_slice(),
        [PhysicalStage::Sort(s), PhysicalStage::Skip(2), PhysicalStage::Limit(4)] if s.stage.limit == Some(6)
    ));
    let plan = sorted(&[doc! {"$unwind": "$u"}.into(), limit]);
    assert!(matches!(&plan.stages[0], PhysicalStage::Sort(s) if s.stage.limit.is_none()));
}

#[test]
fn metadata_leaves_the_event_filter() {
    let (predicate, event, whole) = split(doc! {"m.a": 1, "m.b": doc! {"$ne": 2}});
    assert_eq!(
        predicate,
        doc! {"$and": array![
            doc! {"meta.a": doc! {"$eq": 1}},
            doc! {"meta.b": doc! {"$not": doc! {"$eq": 2}}},
        ]}
    );
    assert_eq!((event, whole), (None, None));
    // With a measurement field in `$or` it stays, but the disjunction of both forms rules buckets out.
    let (predicate, event, _) = split(doc! {"$or": array![doc! {"m.a": 1}, doc! {"v": 5}]});
    let bounds = doc! {"$and": array![
        doc! {"control.min.v": doc! {"$_internalExprLte": 5}},
        doc! {"control.max.v": doc! {"$_internalExprGte": 5}},
    ]};
    assert_eq!(
        predicate,
        doc! {"$or": array![doc! {"meta.a": doc! {"$eq": 1}}, bounds]}
    );
    assert!(event.is_some());
}

#[test]
fn measurements_bound_buckets_only_where_it_is_sound() {
    let max = |filter| split(filter).0;
    assert_eq!(
        max(doc! {"v": doc! {"$gt": 5}}),
        doc! {"control.max.v": doc! {"$_internalExprGt": 5}}
    );
    assert_eq!(
        max(doc! {"v": doc! {"$lte": "x"}}),
        doc! {"control.min.v": doc! {"$_internalExprLte": "x"}}
    );
    assert_eq!(
        max(doc! {"v": doc! {"$exists": true}}),
        doc! {"control.max.v": doc! {"$_internalExprGte": Value::MinKey}}
    );
    for silent in [
        doc! {"v": Value::Null},
        doc! {"v": doc! {"$ne": 1}},
        doc! {"v": doc! {"$exists": false}},
        doc! {"v": doc! {"$gt": array![1]}},
        doc! {"v": doc! {"a": 1}},
        doc! {"v": doc! {"$gte": f64::NAN}},
        doc! {"v": doc! {"$lt": Value::MaxKey}},
        doc! {"v": doc! {"$type": "int"}},
        doc! {"v.0": 1},
        doc! {"v": doc! {"$in": array![1, Value::Null]}},
        doc! {"$or": array![doc! {"v": 1}, doc! {"w": Value::Null}]},
        doc! {"$expr": doc! {"$lt": array!["$v", 1]}},
        doc! {"$nor": array![doc! {"v": 1}]},
    ] {
        assert_eq!(max(silent.clone()), doc! {}, "{silent:?}");
    }
}

#[test]
fn times_bound_ids_and_accept_whole_buckets() {
    let at = Value::DateTime(T0 + 7_200_000);
    let filter = doc! {"t": doc! {"$gte": at.clone(), "$lt": Value::DateTime(T0 + 10_800_000)}};
    let plan = plan_over(series(&[T0]), array![doc! {"$match": filter}]);
    let input = buckets(&plan);
    let second = |ms: i64| u32::try_from((T0 + ms) / 1000).unwrap();
    // Lower by the longest span a bucket may have (an hour).
    assert_eq!(input.buckets.id_min, Some(second(3_600_000)));
    assert_eq!(input.buckets.id_max, Some(second(10_799_000)));
    assert!(input.unpack.whole_bucket_filter.is_some());
    let mixed = split(doc! {"t": doc! {"$gte": at.clone()}, "v": 1});
    assert!(mixed.1.is_some() && mixed.2.is_none());
    let (predicate, ..) = split(doc! {"t": doc! {"$gt": 5}});
    assert_eq!(predicate, doc! {"$alwaysFalse": 1});
}

#[test]
fn dates_outside_the_range_of_ids_switch_their_bounds_off() {
    let stages = || array![doc! {"$match": doc! {"t": doc! {"$gte": Value::DateTime(T0)}}}];
    let plan = plan_over(series(&[T0, -5_000]), stages());
    assert_eq!(buckets(&plan).buckets.id_min, None);
    let early = array![doc! {"$match": doc! {"t": doc! {"$lt": Value::DateTime(-1)}}}];
    let plan = plan_over(series(&[T0]), early.clone());
    assert_eq!(
        buckets(&plan).buckets.predicate.to_document(),
        doc! {"$alwaysFalse": 1}
    );
    let plan = plan_over(series(&[T0, -5_000]), early);
    assert_ne!(
        buckets(&plan).buckets.predicate.to_document(),
        doc! {"$alwaysFalse": 1}
    );
}

#[test]
fn a_match_behind_a_change_of_its_field_is_left_there() {
    let stages = array![
        doc! {"$addFields": doc! {"v": "$m.a"}},
        doc! {"$match": doc! {"v": 1}},
    ];
    let plan = plan_over(series(&[T0]), stages);
    assert_eq!(names(&plan), ["$match"]);
    assert_eq!(buckets(&plan).unpack.computed.len(), 1);
    assert!(buckets(&plan).unpack.event_filter.is_none());
}

#[test]
fn only_needed_fields_are_unpacked() {
    let fields = |stages| {
        buckets(&plan_over(series(&[T0]), stages))
            .unpack
            .fields
            .clone()
    };
    let only = |names: &[&str]| FieldSet::Only(names.iter().map(|n| Arc::from(*n)).collect());
    assert_eq!(fields(array![]), FieldSet::All);
    assert_eq!(fields(array![doc! {"$limit": 1}]), FieldSet::All);
    assert_eq!(fields(array![doc! {"$count": "n"}]), only(&[]));
    let filter = doc! {"$match": doc! {"w": 1}};
    let group = doc! {"$group": doc! {"_id": "$m.a", "x": doc! {"$max": "$v"}}};
    assert_eq!(fields(array![filter, group]), only(&["m", "v"]));
    let project = doc! {"$project": doc! {"v": 1, "_id": 0}};
    assert_eq!(fields(array![project]), only(&["v"]));
    let root = doc! {"$group": doc! {"_id": Value::Null, "x": doc! {"$push": "$$ROOT"}}};
    assert_eq!(fields(array![root]), FieldSet::All);
}

/// A clustered collection without records.
struct Clustered;

impl RecordSource for Clustered {
    fn scan(&self, _: &RecordScanOptions) -> crate::Result<RecordIter> {
        Ok(Box::new(std::iter::empty()))
    }

    fn count_estimate(&self) -> crate::Result<u64> {
        Ok(0)
    }

    fn is_clustered(&self) -> bool {
        true
    }

    fn clustered_key(&self, id: nilometer_bson::ValueRef<'_>) -> Option<RecordKey> {
        match id {
            nilometer_bson::ValueRef::Int32(v) => Some(v.to_be_bytes().to_vec()),
            _ => None,
        }
    }
}

#[test]
fn ids_bound_the_scan_of_a_clustered_collection() {
    let access = |filter: Document| {
        let source = Resolved::Ordinary(Arc::new(Clustered));
        match plan_over(source, array![doc! {"$match": filter}]).input {
            Input::Records(input) => match input.access {
                AccessPath::ClusteredScan { min, max } => (min.map(|b| b.key), max.map(|b| b.key)),
                AccessPath::CollectionScan => (None, None),
                AccessPath::IdLookup(_) | AccessPath::Index(_) => panic!("there is no index"),
            },
            _ => panic!("no records are read"),
        }
    };
    let key = |v: i32| Some(v.to_be_bytes().to_vec());
    assert_eq!(access(doc! {"_id": 5}), (key(5), key(5)));
    let range = doc! {"_id": doc! {"$gt": 5, "$lte": 9, "$gte": 7}};
    assert_eq!(access(range), (key(7), key(9)));
    let open = doc! {"_id": doc! {"$gt": 5}};
    assert_eq!(access(open), (key(5), None));
    let list = doc! {"_id": doc! {"$in": array![9, 5, 7]}};
    assert_eq!(access(list), (key(5), key(9)));
    assert_eq!(access(doc! {"_id": "x"}), (None, None));
    assert_eq!(access(doc! {"a": 5}), (None, None));
    let either = doc! {"$or": array![doc! {"_id": 5}, doc! {"a": 1}]};
    assert_eq!(access(either), (None, None));
}

fn direction_of(stages: Value, times: &[i64]) -> Direction {
    buckets(&plan_over(series(times), stages)).direction
}

#[test]
fn the_first_of_a_sorted_group_needs_no_sort() {
    let sort = doc! {"$sort": doc! {"m.a": 1, "t": -1}};
    let group = |name: &str| {
        let mut spec = nilometer_bson::DocumentBuilder::new();
        spec.append(name, "$v");
        let spec = doc! {"_id": "$m.a", "x": doc! {"$first": "$v"}, "y": spec.finish()};
        doc! {"$group": spec}
    };
    for alike in ["$first", "$last", "$sum", "$avg"] {
        let plan = plan_over(series(&[T0]), array![sort.clone(), group(alike)]);
        assert_eq!(names(&plan), ["$group"], "{alike}");
    }
    for other in ["$push", "$max", "$min", "$addToSet", "$mergeObjects"] {
        let plan = plan_over(series(&[T0]), array![sort.clone(), group(other)]);
        assert_eq!(names(&plan), ["$sort", "$group"], "{other}");
    }
    let limited = array![sort.clone(), doc! {"$limit": 3}, group("$first")];
    let plan = plan_over(series(&[T0]), limited);
    assert_eq!(names(&plan), ["$sort", "$group"]);
    let PhysicalStage::Group(shown) = &plan_over(plain(), array![sort, group("$last")]).stages[0]
    else {
        panic!("a group")
    };
    let order = doc! {"m.a": 1, "t": -1};
    assert_eq!(
        shown.stage.source,
        doc! {
            "_id": "$m.a",
            "x": doc! {"$top": doc! {"sortBy": order.clone(), "output": "$v"}},
            "y": doc! {"$bottom": doc! {"sortBy": order, "output": "$v"}},
        }
    );
}

#[test]
fn accumulators_that_keep_the_same_row_are_one() {
    let first = |field: &str| doc! {"$first": field};
    let sort = doc! {"$sort": doc! {"t": -1}};
    let spec = doc! {
        "_id": "$m.a",
        "a": first("$v"),
        "n": doc! {"$sum": "$v"},
        "b": first("$w"),
        "l": doc! {"$last": "$v"},
        "c": first("$x.y"),
    };
    let plan = plan_over(series(&[T0]), array![sort.clone(), doc! {"$group": spec}]);
    let PhysicalStage::Group(group) = &plan.stages[0] else {
        panic!("a group")
    };
    let fields: Vec<_> = group.stage.fields.iter().map(|(_, s)| s.name()).collect();
    assert_eq!(fields, ["$top", "$sum", "$bottom"]);
    let shown = group.stage.shown.as_ref().unwrap().iter();
    let shown: Vec<_> = shown.map(|f| (&*f.name, f.from, f.is_part)).collect();
    let expected = [
        ("a", 0, true),
        ("n", 1, false),
        ("b", 0, true),
        ("l", 2, false),
        ("c", 0, true),
    ];
    assert_eq!(shown, expected);
    let single = doc! {"_id": "$m.a", "a": first("$v"), "l": doc! {"$last": "$v"}};
    let plan = plan_over(series(&[T0]), array![sort, doc! {"$group": single}]);
    assert!(matches!(&plan.stages[0], PhysicalStage::Group(group) if group.stage.shown.is_none()));
}

#[test]
fn only_the_newest_is_read_backwards() {
    let top = |name: &str, order: Document| {
        let mut spec = nilometer_bson::DocumentBuilder::new();
        spec.append(name, doc! {"sortBy": order, "output": "$v"});
        array![doc! {"$group": doc! {"_id": "$m", "x": spec.finish()}}]
    };
    let of = |stages| direction_of(stages, &[T0]);
    assert_eq!(of(top("$top", doc! {"t": -1})), Direction::Backward);
    assert_eq!(
        of(top("$bottom", doc! {"m.a": 1, "t": 1})),
        Direction::Backward
    );
    assert_eq!(of(top("$top", doc! {"t": 1})), Direction::Forward);
    assert_eq!(of(top("$top", doc! {"t": -1, "v": 1})), Direction::Forward);
    let beside = doc! {
        "_id": "$m",
        "x": doc! {"$top": doc! {"sortBy": doc! {"t": -1}, "output": "$v"}},
        "all": doc! {"$push": "$v"},
    };
    assert_eq!(of(array![doc! {"$group": beside}]), Direction::Forward);
}

#[test]
fn a_sort_by_time_with_a_limit_knows_how_buckets_arrive() {
    let of = |sort: Document, rest: &[Document], times: &[i64]| {
        let mut stages = vec![Value::from(doc! {"$sort": sort})];
        stages.extend(rest.iter().cloned().map(Value::from));
        let plan = plan_over(series(times), stages.into());
        let arrival = match &plan.stages[0] {
            PhysicalStage::Sort(sort) => sort.arrival,
            _ => None,
        };
        (arrival, buckets(&plan).direction)
    };
    let limit = [doc! {"$limit": 3}];
    let span_ms = 3_600_000;
    let newest = Some(BucketArrival::NewestFirst { span_ms });
    assert_eq!(
        of(doc! {"t": -1}, &limit, &[T0]),
        (newest, Direction::Backward)
    );
    let oldest = Some(BucketArrival::OldestFirst);
    assert_eq!(
        of(doc! {"t": 1, "v": 1}, &limit, &[T0]),
        (oldest, Direction::Forward)
    );
    let plain = (None, Direction::Forward);
    assert_eq!(of(doc! {"t": -1}, &[], &[T0]), (None, Direction::Backward));
    assert_eq!(of(doc! {"m.a": 1, "t": -1}, &limit, &[T0]), plain);
    assert_eq!(of(doc! {"t": -1}, &limit, &[T0, -1]), plain);
}
