//! Rules that read less of buckets: tables of cases where they fire and where they do not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use super::{T0, buckets, names, plain, plan_over, series};
use crate::query::batch::FieldSet;
use crate::query::exec::ExecSettings;
use crate::query::exec::testing::{
    MemoryBuckets, MemoryCollections, MemoryRecords, executor, operation, run,
};
use crate::query::planner::physical::{BucketOrder, PhysicalPlan, PhysicalStage};
use crate::query::planner::rules::RuleSet;
use crate::query::planner::settings::{PlanOptions, PlanSettings};
use crate::query::source::{Collections, Direction, Resolved};

pub(super) const HOUR: i64 = 3_600_000;

pub(super) fn date(ms: i64) -> Value {
    Value::DateTime(ms)
}

/// Returns a stage by name.
pub(super) fn stage(name: &str, argument: impl Into<Value>) -> Value {
    let mut out = DocumentBuilder::new();
    out.append(name, argument.into());
    out.finish().into()
}

/// An even number of measurements: buckets stay within the hour, as the collection declares.
pub(super) fn fixed() -> Resolved {
    series(&[T0, T0 + 1])
}

/// An odd number: no such declaration.
pub(super) fn loose() -> Resolved {
    series(&[T0])
}

fn fires(rule: &str, source: Resolved, stages: Vec<Value>) -> bool {
    plan_over(source, stages.into()).fired.contains(&rule)
}

#[track_caller]
pub(super) fn check(rule: &str, expected: bool, source: Resolved, stages: Vec<Value>) {
    let shown = format!("{stages:?}");
    assert_eq!(fires(rule, source, stages), expected, "{rule}: {shown}");
}

#[test]
fn rules_are_left_out_by_name() {
    let options = PlanOptions {
        disabled: RuleSet::named(["SortLimit"]).unwrap(),
        ..PlanOptions::default()
    };
    assert_eq!(options.disabled.names(), ["SortLimit"]);
    assert_eq!(
        RuleSet::from_number(options.disabled.number()),
        options.disabled
    );
    let error = RuleSet::named(["SortLimit", "Nonsense"]).unwrap_err();
    assert_eq!(error.code.0, 2);
    assert!(error.message.contains("'Nonsense'") && error.message.contains("MergeMatches"));
    let stages = array![doc! {"$sort": doc! {"v": 1}}, doc! {"$limit": 1}];
    let plan = |options| {
        let settings = ExecSettings {
            plan: PlanSettings {
                options,
                ..PlanSettings::default()
            },
            ..ExecSettings::default()
        };
        super::plan_with(plain(), stages.clone(), settings)
    };
    assert_eq!(names(&plan(PlanOptions::default())), ["$sort"]);
    assert_eq!(names(&plan(options)), ["$sort", "$limit"]);
}

#[test]
fn groups_from_bounds() {
    let group = |key: Value, field: Document| vec![stage("$group", doc! {"_id": key, "o": field})];
    let max = || doc! {"$max": "$v"};
    let hour =
        |date: &str| -> Value { doc! {"$dateTrunc": doc! {"date": date, "unit": "hour"}}.into() };
    let rule = "GroupFromBounds";
    for key in [
        Value::Null,
        7.into(),
        "$m".into(),
        "$m.a".into(),
        doc! {"$toUpper": "$m.a"}.into(),
        doc! {"a": "$m.a", "b": 1}.into(),
        hour("$t"),
        doc! {"h": hour("$t"), "m": "$m.a"}.into(),
    ] {
        check(rule, true, loose(), group(key, max()));
    }
    for key in [
        Value::from("$v"),
        "$t".into(),
        hour("$v"),
        doc! {"$add": array!["$v", 1]}.into(),
        doc! {"m": "$m", "v": "$v"}.into(),
        doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour", "binSize": "$v"}}.into(),
        "$$ROOT".into(),
    ] {
        check(rule, false, loose(), group(key, max()));
    }
    for field in [
        doc! {"$min": "$v"},
        doc! {"$max": "$t"},
        doc! {"$min": "$m.a"},
        doc! {"$sum": 1},
        doc! {"$sum": 7},
        doc! {"$count": doc! {}},
        doc! {"$first": "$m"},
    ] {
        check(rule, true, loose(), group("$m".into(), field));
    }
    for field in [
        doc! {"$min": "$t"},
        doc! {"$min": doc! {"$add": array!["$v", 1]}},
        doc! {"$max": "$o.b"},
        doc! {"$sum": "$v"},
        doc! {"$avg": "$v"},
        doc! {"$first": "$v"},
        doc! {"$push": "$v"},
    ] {
        check(rule, false, loose(), group("$m".into(), field));
    }
    let behind = |first: Value| vec![first, stage("$group", doc! {"_id": "$m", "o": max()})];
    let time = doc! {"t": doc! {"$gte": date(T0)}};
    check(
        rule,
        true,
        loose(),
        behind(stage("$match", doc! {"m.a": 1})),
    );
    check(rule, true, loose(), behind(stage("$match", time)));
    check(
        rule,
        true,
        loose(),
        behind(stage("$project", doc! {"v": 1})),
    );
    check(rule, true, loose(), behind(stage("$match", doc! {"v": 1})));
    // A computed column has known bounds if it is constant in the bucket.
    check(rule, true, loose(), behind(stage("$set", doc! {"v": 1})));
    let computed = stage("$set", doc! {"v": "$w"});
    check(rule, false, loose(), behind(computed));
    check(rule, false, plain(), group(Value::Null, max()));
    check(rule, true, loose(), vec![stage("$count", "n")]);
}

#[test]
fn sorts_by_buckets() {
    let rule = "SortByBuckets";
    let order = |source: Resolved, stages: Vec<Value>| {
        let plan = plan_over(source, stages.into());
        let order = match &plan.stages[0] {
            PhysicalStage::Sort(sort) => sort.buckets,
            _ => None,
        };
        (order, buckets(&plan).direction)
    };
    let sort = |spec: Document| vec![stage("$sort", spec)];
    let forward = |order| (Some(order), Direction::Forward);
    let arrival = BucketOrder::Arrival;
    for (spec, expected) in [
        (doc! {"t": 1}, forward(arrival(None))),
        (doc! {"t": 1, "v": 1}, forward(arrival(None))),
        (
            doc! {"t": -1},
            (Some(arrival(Some(HOUR))), Direction::Backward),
        ),
        (doc! {"m": 1}, forward(BucketOrder::Metadata)),
        (doc! {"m.a": 1, "m.b": -1}, forward(BucketOrder::Metadata)),
        (
            doc! {"m": 1, "t": 1},
            forward(BucketOrder::Bounds { parts: 1 }),
        ),
        (
            doc! {"m.a": 1, "m.b": 1, "t": -1},
            forward(BucketOrder::Bounds { parts: 2 }),
        ),
    ] {
        assert_eq!(order(loose(), sort(spec.clone())), expected, "{spec:?}");
    }
    for spec in [
        doc! {"v": 1},
        doc! {"v": 1, "t": 1},
        doc! {"m": 1, "v": 1},
        doc! {"t.x": 1},
    ] {
        check(rule, false, loose(), sort(spec));
    }
    // With dates outside the range of ids, only gathered buckets have known times.
    for spec in [doc! {"t": 1}, doc! {"t": -1}, doc! {"t": 1, "v": 1}] {
        let found = order(series(&[T0, -5_000]), sort(spec));
        assert_eq!(found, forward(BucketOrder::Bounds { parts: 0 }));
    }
    let wide = || series(&[T0, -5_000]);
    check(rule, true, wide(), sort(doc! {"m": 1, "t": 1}));
    for (before, expected) in [
        (stage("$project", doc! {"v": 0}), true),
        (stage("$project", doc! {"m": 1, "t": 1}), true),
        (stage("$match", doc! {"v": 1}), true),
        (stage("$project", doc! {"t": 0}), false),
        (stage("$unset", "m"), false),
        (stage("$set", doc! {"t": 1}), false),
        (stage("$addFields", doc! {"x": 1}), true),
        (stage("$addFields", doc! {"x": "$v"}), false),
    ] {
        let stages = vec![before, stage("$sort", doc! {"m": 1, "t": 1})];
        check(rule, expected, loose(), stages);
    }
    let limited = |spec: Document| vec![stage("$sort", spec), stage("$limit", 3)];
    check(rule, false, loose(), limited(doc! {"t": 1}));
    check(rule, true, loose(), limited(doc! {"m": 1}));
}

#[test]
fn limits_end_the_reading_of_buckets() {
    let limit = |stages: Vec<Value>| buckets(&plan_over(loose(), stages.into())).limit;
    assert_eq!(limit(vec![stage("$limit", 5)]), Some(5));
    assert_eq!(limit(vec![stage("$limit", 5), stage("$limit", 3)]), Some(3));
    assert_eq!(limit(vec![stage("$skip", 2), stage("$limit", 3)]), Some(5));
    let by_meta = vec![stage("$match", doc! {"m.a": 1}), stage("$limit", 3)];
    assert_eq!(limit(by_meta), Some(3));
    let by_value = vec![stage("$match", doc! {"v": 1}), stage("$limit", 3)];
    assert_eq!(limit(by_value), None);
    assert_eq!(
        limit(vec![stage("$unwind", "$u"), stage("$limit", 3)]),
        None
    );
}

#[test]
fn projections_are_left_to_unpacking() {
    let of = |stages: Vec<Value>| {
        let plan = plan_over(loose(), stages.into());
        (buckets(&plan).unpack.fields.clone(), names(&plan))
    };
    let set = |names: &[&str]| names.iter().map(|n| Arc::from(*n)).collect();
    assert_eq!(
        of(vec![stage("$project", doc! {"v": 1})]),
        (FieldSet::Only(set(&["_id", "v"])), vec![])
    );
    assert_eq!(
        of(vec![stage("$unset", array!["m", "t"])]),
        (FieldSet::Except(set(&["m", "t"])), vec![])
    );
    // Dropped fields stay dropped, whichever stage reads them.
    let again = vec![
        stage("$project", doc! {"m": 0}),
        stage("$project", doc! {"x": "$m", "v": 1, "y": "$v"}),
    ];
    let (fields, stages) = of(again);
    assert_eq!(stages, ["$project"]);
    assert!(!fields.contains("m") && fields.contains("v"));
    for kept in [
        doc! {"v.a": 1},
        doc! {"v.a": 0},
        doc! {"x": "$v"},
        doc! {"v": 1, "x": doc! {"$add": array!["$v", 1]}},
    ] {
        assert_eq!(of(vec![stage("$project", kept)]).1, ["$project"]);
    }
}

#[test]
fn matches_find_renamed_fields_and_pass_lookups() {
    let of = |first: Value, filter: Document| {
        // After a stage that stays, so that the scan does not absorb it.
        let stages = vec![stage("$unwind", "$u"), first, stage("$match", filter)];
        let plan = plan_over(plain(), stages.into());
        let sources = plan.stages.iter().filter_map(|stage| match stage {
            PhysicalStage::Match(stage) => Some(stage.filter.to_document()),
            _ => None,
        });
        let sources: Vec<Document> = sources.collect();
        (names(&plan), sources)
    };
    let renamed = stage("$project", doc! {"x": "$v"});
    let (order, filters) = of(renamed.clone(), doc! {"x.y": 1});
    assert_eq!(order, ["$unwind", "$match", "$project"]);
    assert_eq!(filters, [doc! {"v.y": doc! {"$eq": 1}}]);
    let (order, _) = of(stage("$set", doc! {"v": "$w"}), doc! {"v": 1});
    assert_eq!(order, ["$unwind", "$match", "$set"]);
    for (first, filter) in [
        (stage("$project", doc! {"x": "$v.a"}), doc! {"x": 1}),
        (stage("$project", doc! {"x.a": "$v"}), doc! {"x.a": 1}),
        (
            stage("$project", doc! {"x": doc! {"$abs": "$v"}}),
            doc! {"x": 1},
        ),
        (renamed, doc! {"$or": array![doc! {"x": 1}, doc! {"y": 1}]}),
    ] {
        assert_eq!(of(first, filter).0, ["$unwind", "$project", "$match"]);
    }
    let lookup = stage(
        "$lookup",
        doc! {"from": "d", "localField": "a", "foreignField": "b", "as": "found.here"},
    );
    let (order, filters) = of(lookup.clone(), doc! {"a": 1, "found.here.c": 2});
    assert_eq!(order, ["$unwind", "$match", "$lookup", "$match"]);
    assert_eq!(filters[0], doc! {"a": doc! {"$eq": 1}});
    let (order, _) = of(lookup, doc! {"found": 1});
    assert_eq!(order, ["$unwind", "$lookup", "$match"]);
}

fn unpacked(plan: &PhysicalPlan) -> (bool, bool, bool) {
    let unpack = &buckets(plan).unpack;
    let (event, whole) = (&unpack.event_filter, &unpack.whole_bucket_filter);
    (event.is_some(), whole.is_some(), unpack.takes_whole)
}

#[test]
fn borders_of_fixed_buckets_decide() {
    let of = |source, filter: Document| {
        unpacked(&plan_over(source, vec![stage("$match", filter)].into()))
    };
    let border = || date(T0 / HOUR * HOUR);
    for op in ["$gte", "$lt"] {
        let filter = |at: Value| doc! {"t": stage(op, at)};
        assert_eq!(of(fixed(), filter(border())), (true, true, true), "{op}");
        assert_eq!(of(loose(), filter(border())), (true, true, false), "{op}");
        assert_eq!(of(fixed(), filter(date(T0))), (true, true, false), "{op}");
    }
    for op in ["$lte", "$gt", "$eq"] {
        let filter = doc! {"t": stage(op, border())};
        assert_eq!(of(fixed(), filter), (true, true, false), "{op}");
    }
    let listed = doc! {"t": doc! {"$in": array![border()]}};
    assert!(!of(fixed(), listed).2);
    let both = doc! {"t": doc! {"$gte": border(), "$lt": date(T0 / HOUR * HOUR + HOUR)}};
    assert!(of(fixed(), both).2);
    let mixed = doc! {"t": doc! {"$gte": border()}, "v": 1};
    assert_eq!(of(fixed(), mixed), (true, false, false));
}

#[test]
fn dates_out_of_range_are_decided() {
    let of = |filter: Document| {
        let plan = plan_over(loose(), vec![stage("$match", filter)].into());
        let (event, ..) = unpacked(&plan);
        (event, buckets(&plan).buckets.predicate.to_document())
    };
    let (early, late) = (-1, 2_147_483_648_000);
    let nothing = doc! {"$alwaysFalse": 1};
    for (op, at, everything) in [
        ("$lt", early, false),
        ("$lte", early, false),
        ("$eq", early, false),
        ("$gt", early, true),
        ("$gte", early, true),
        ("$lt", late, true),
        ("$lte", late, true),
        ("$eq", late, false),
        ("$gt", late, false),
        ("$gte", late, false),
    ] {
        let expected = if everything {
            doc! {}
        } else {
            nothing.clone()
        };
        let (event, predicate) = of(doc! {"t": stage(op, date(at))});
        assert_eq!(predicate, expected, "{op} {at}");
        assert!(!(event && everything), "{op} {at}");
    }
    // The last second counts in full.
    assert!(of(doc! {"t": doc! {"$lt": date(late - 1)}}).0);
    let stages = vec![stage("$match", doc! {"t": doc! {"$gt": date(-1)}})];
    check("DatesOutOfRange", false, series(&[T0, -5_000]), stages);
}

/// Two hosts over three hours, half an hour of measurements each.
pub(super) fn hosts() -> Arc<MemoryBuckets> {
    let mut list = Vec::new();
    for at in 0..180i32 {
        for host in ["a", "b"] {
            let time = date(T0 / HOUR * HOUR + i64::from(at) * 60_000);
            list.push(doc! {"t": time, "m": doc! {"a": host}, "v": at, "w": f64::from(at)});
        }
    }
    Arc::new(MemoryBuckets::new(&list, 30))
}

/// Returns the answer of the stages, and how many columns were decoded for it.
pub(super) fn decoded(stages: Vec<Value>) -> (Vec<Document>, u64) {
    let source = hosts();
    let collections = MemoryCollections::of(Resolved::TimeSeries(Arc::clone(&source) as _));
    let found = run(&collections, &stages.into(), PlanOptions::default()).unwrap();
    (found, source.columns_read.load(Ordering::Relaxed))
}

#[test]
fn bounds_spare_columns() {
    let extremes = doc! {"_id": "$m.a", "least": doc! {"$min": "$v"}, "most": doc! {"$max": "$v"}, "n": doc! {"$sum": 1}};
    let (found, columns) = decoded(vec![stage("$group", extremes.clone())]);
    assert_eq!(
        found,
        [
            doc! {"_id": "a", "least": 0, "most": 179, "n": 180},
            doc! {"_id": "b", "least": 0, "most": 179, "n": 180},
        ]
    );
    assert_eq!(columns, 0);
    let hours = doc! {"_id": doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}}, "most": doc! {"$max": "$v"}};
    let (found, columns) = decoded(vec![stage("$group", hours)]);
    assert_eq!((found.len(), columns), (3, 0));
    // For buckets at the edges of a range of time only the columns of the filter and of the group are read.
    let cut = doc! {"t": doc! {"$gte": date(T0 / HOUR * HOUR + 600_000)}};
    let (found, columns) = decoded(vec![stage("$match", cut), stage("$group", extremes)]);
    assert_eq!(found[0].get("n").as_exact_i64(), Some(170));
    assert!((1..=8).contains(&columns), "{columns}");
}

#[test]
fn sorts_by_metadata_decode_what_is_asked_for() {
    let sorted = vec![stage("$sort", doc! {"m.a": -1}), stage("$limit", 3)];
    let (found, columns) = decoded(sorted);
    let of = |d: &Document| d.get("v").as_exact_i64();
    assert_eq!(
        found.iter().map(of).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2)]
    );
    // The three columns of one bucket of twelve.
    assert_eq!(columns, 3);
}

#[test]
fn groups_follow_a_sort_by_time() {
    let rule = "GroupInOrder";
    let trunc =
        |date: Value| -> Value { doc! {"$dateTrunc": doc! {"date": date, "unit": "hour"}}.into() };
    let behind = |sort: Document, key: Value| {
        let group = doc! {"_id": key, "all": doc! {"$push": "$v"}};
        vec![stage("$sort", sort), stage("$group", group)]
    };
    let by_time = || doc! {"t": 1};
    for key in [
        Value::from("$t"),
        trunc("$t".into()),
        doc! {"h": trunc("$t".into()), "m": "$m.a", "v": "$v"}.into(),
        trunc(doc! {"$subtract": array!["$t", 5]}.into()),
        doc! {"$add": array!["$t", 5]}.into(),
    ] {
        check(rule, true, loose(), behind(by_time(), key.clone()));
        check(rule, true, loose(), behind(doc! {"t": -1, "v": 1}, key));
    }
    for key in [
        Value::Null,
        "$v".into(),
        "$m".into(),
        trunc("$v".into()),
        doc! {"$subtract": array![5, "$t"]}.into(),
        doc! {"$hour": "$t"}.into(),
        doc! {"$dateTrunc": doc! {"date": "$t", "unit": "$m.unit"}}.into(),
    ] {
        check(rule, false, loose(), behind(by_time(), key));
    }
    for (sort, source) in [
        (doc! {"v": 1}, loose()),
        (doc! {"m": 1, "t": 1}, loose()),
        (doc! {"t": 1}, plain()),
    ] {
        check(rule, false, source, behind(sort, "$t".into()));
    }
    let mut computed = behind(by_time(), "$t".into());
    computed.insert(0, stage("$set", doc! {"t": "$v"}));
    check(rule, false, loose(), computed);
    // Explain shows which parts of the key follow the time.
    let parts = |key: Value| {
        let plan = plan_over(loose(), behind(by_time(), key).into());
        let shown = plan.stages[1].explain();
        let group = shown.get("$_internalStreamingGroup").as_document().unwrap();
        let names = group.get("$monotonicIdFields").as_array().unwrap();
        names
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(parts(trunc("$t".into())), ["_id"]);
    let key = doc! {"m": "$m.a", "h": trunc("$t".into()), "t": "$t"};
    assert_eq!(parts(key.into()), ["h", "t"]);
}

/// The rules for runs of times, for buckets between two times, and for groups in order rely on it.
#[test]
fn bins_never_fall_while_time_rises() {
    use crate::eval::ParseContext;
    use crate::eval::expression::Expression;
    let zones = ["UTC", "America/New_York", "Australia/Lord_Howe", "+05:45"];
    // Around the days on which clocks change in 2023.
    let days = [
        1_678_579_200_000i64,
        1_680_307_200_000,
        1_696_032_000_000,
        1_699_142_400_000,
    ];
    for zone in zones {
        for unit in [
            "second", "minute", "hour", "day", "week", "month", "quarter", "year",
        ] {
            for bins in [1, 7, 40] {
                let spec = doc! {"$dateTrunc": doc! {"date": "$t", "unit": unit, "binSize": bins, "timezone": zone}};
                let parsed = Expression::parse(Value::from(spec).as_ref(), &ParseContext::new());
                let Ok(Expression::DateTrunc(trunc)) = parsed else {
                    panic!("a $dateTrunc")
                };
                let bins = trunc.constant_bins().unwrap();
                for day in days {
                    let times = (0..48 * 12).map(|at| day - 43_200_000 + at * 300_000);
                    let starts: Vec<i64> = times.map(|at| bins.trunc(at).unwrap()).collect();
                    assert!(starts.is_sorted(), "{zone} {unit}");
                }
            }
        }
    }
}

#[test]
fn samples_decode_what_is_drawn() {
    let (found, columns) = decoded(vec![stage("$sample", doc! {"size": 2})]);
    assert_eq!(found.len(), 2);
    // At most three columns of each of two buckets.
    assert!(columns <= 6, "{columns}");
}

#[test]
fn sorted_answers_begin_before_all_is_read() {
    for sort in [doc! {"t": 1}, doc! {"t": -1}, doc! {"m.a": 1, "t": 1}] {
        let source = hosts();
        let collections = MemoryCollections::of(Resolved::TimeSeries(Arc::clone(&source) as _));
        let stages: Value = vec![stage("$sort", sort.clone())].into();
        let mut sorted = executor(&collections, &stages);
        let first = sorted.next(&operation()).unwrap().unwrap();
        assert!(!first.is_empty());
        // The first rows fill five of twelve buckets, of three columns each.
        let columns = source.columns_read.load(Ordering::Relaxed);
        assert!(columns <= 24, "{sort:?}: {columns}");
    }
}

/// Sorts that rely on the longest span of a bucket fail where one is longer; the others succeed.
#[test]
fn a_bucket_wider_than_promised_fails_what_relies_on_it() {
    let hour = T0 / HOUR * HOUR;
    let list = [0, 50].map(|minute| doc! {"t": date(hour + minute * 60_000), "m": 1, "v": 1});
    let answer = |promised: i64, stages: Vec<Value>| {
        let source = Arc::new(MemoryBuckets::new(&list, 10).promising(promised));
        let collections = MemoryCollections::of(Resolved::TimeSeries(source as _));
        run(&collections, &stages.into(), PlanOptions::default())
    };
    let sort = |spec: Document| vec![stage("$sort", spec)];
    let limited = |spec: Document| vec![stage("$sort", spec), stage("$limit", 1)];
    let minute = doc! {"$dateTrunc": doc! {"date": "$t", "unit": "minute"}};
    let newest = vec![
        stage("$group", doc! {"_id": minute, "n": doc! {"$sum": 1}}),
        stage("$sort", doc! {"_id": -1}),
        stage("$limit", 1),
    ];
    for relies in [sort(doc! {"t": -1}), limited(doc! {"t": -1}), newest] {
        assert!(answer(3600, relies.clone()).is_ok(), "{relies:?}");
        let error = answer(600, relies.clone()).unwrap_err();
        assert_eq!(error.code.0, 282, "{relies:?}");
        assert!(error.message.contains("600 seconds"), "{}", error.message);
    }
    for other in [
        sort(doc! {"t": 1}),
        limited(doc! {"t": 1}),
        sort(doc! {"m": 1, "t": -1}),
        vec![stage(
            "$group",
            doc! {"_id": "$m", "n": doc! {"$sum": "$v"}},
        )],
    ] {
        assert!(answer(600, other.clone()).is_ok(), "{other:?}");
    }
}

#[test]
fn lookups_push_what_they_look_for_into_buckets() {
    let hour = T0 / HOUR * HOUR;
    let joined = |lookup: Document| {
        let source = hosts();
        let asked = doc! {"_id": 1, "h": "a", "from": date(hour + 2 * HOUR), "least": 175};
        let asking = Resolved::Ordinary(Arc::new(MemoryRecords(vec![asked])));
        let collections: Arc<dyn Collections> = Arc::new(MemoryCollections(
            [
                ("c".to_owned(), asking),
                (
                    "ts".to_owned(),
                    Resolved::TimeSeries(Arc::clone(&source) as _),
                ),
            ]
            .into(),
        ));
        let mut spec = DocumentBuilder::new();
        spec.append("from", "ts");
        for part in lookup.iter() {
            spec.append_element(part);
        }
        spec.append("as", "found");
        let stages: Value = vec![stage("$lookup", spec.finish())].into();
        let found = run(&collections, &stages, PlanOptions::default()).unwrap();
        let list = found[0].get("found").as_array().unwrap().iter().count();
        (list, source.columns_read.load(Ordering::Relaxed))
    };
    let by = |condition: Document| {
        let pipeline = array![doc! {"$match": doc! {"$expr": condition}}];
        doc! {"let": doc! {"h": "$h", "from": "$from", "least": "$least"}, "pipeline": pipeline}
    };
    // Of twelve buckets with three columns: six of the host, four of the last hour, two of large values.
    let (found, columns) = joined(by(doc! {"$eq": array!["$m.a", "$$h"]}));
    assert_eq!(found, 180);
    assert!(columns <= 18, "{columns}");
    let (found, columns) = joined(by(doc! {"$gte": array!["$t", "$$from"]}));
    assert_eq!(found, 120);
    assert!(columns <= 12, "{columns}");
    let later = doc! {"$gte": array!["$t", doc! {"$add": array!["$$from", HOUR / 2]}]};
    let (found, columns) = joined(by(later));
    assert_eq!(found, 60);
    assert!(columns <= 8, "{columns}");
    let (found, columns) = joined(by(doc! {"$gt": array!["$v", "$$least"]}));
    assert_eq!(found, 8);
    assert!(columns <= 8, "{columns}");
}

#[test]
fn keys_are_computed_by_the_group() {
    let rule = "ComputedKeys";
    let of = |first: Value, key: Value, field: Document| {
        vec![first, stage("$group", doc! {"_id": key, "x": field})]
    };
    let set = |spec: Document| stage("$set", spec);
    let max = || doc! {"$max": "$v"};
    let hour = || doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}};
    for (first, key) in [
        (set(doc! {"k": "$m.a"}), Value::from("$k")),
        (
            set(doc! {"k": "$m.a", "h": hour()}),
            doc! {"k": "$k", "h": "$h"}.into(),
        ),
        (
            set(doc! {"d": "$t"}),
            doc! {"$dateTrunc": doc! {"date": "$d", "unit": "day"}}.into(),
        ),
        (stage("$project", doc! {"h": hour(), "v": 1}), "$h".into()),
    ] {
        check(rule, true, loose(), of(first, key, max()));
    }
    for (first, key, field) in [
        (set(doc! {"v": "$m.a"}), Value::from("$v"), max()),
        (set(doc! {"k": "$m.a", "l": 1}), "$k".into(), max()),
        (set(doc! {"k": doc! {"a": "$m.a"}}), "$k".into(), max()),
        (set(doc! {"k": doc! {"$rand": doc! {}}}), "$k".into(), max()),
        (set(doc! {"k.a": 1}), "$k.a".into(), max()),
        (set(doc! {"k": "$m"}), "$k.a".into(), max()),
        (set(doc! {"k": "$m"}), doc! {"$toUpper": "$k"}.into(), max()),
        (stage("$project", doc! {"h": hour()}), "$h".into(), max()),
        (
            set(doc! {"k": "$m.a"}),
            "$k".into(),
            doc! {"$push": "$$ROOT"},
        ),
    ] {
        check(rule, false, loose(), of(first, key, field));
    }
    let stages = of(set(doc! {"h": hour()}), doc! {"h": "$h"}.into(), max());
    let plan = plan_over(loose(), stages.clone().into());
    assert!(plan.fired.contains(&"GroupFromBounds"));
    let PhysicalStage::Group(group) = &plan.stages[0] else {
        panic!("a group")
    };
    assert_eq!(
        group
            .stage
            .source
            .get("_id")
            .to_value()
            .as_ref()
            .as_document()
            .unwrap()
            .to_document(),
        doc! {"h": hour()}
    );
    assert_eq!(decoded(stages).1, 0);
}
