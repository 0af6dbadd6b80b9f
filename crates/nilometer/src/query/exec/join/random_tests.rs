//! Random `$lookup`s, with an `$unwind` and later stages, against nested loops over plain documents: with every rule, without each rule
//! for lookups, without any, and with too little memory for the other collection.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::eval::expression::parse_path;
use crate::query::exec::ExecLimits;
use crate::query::exec::row::unwind::{value_at, with_value_at};
use crate::query::exec::testing::{MemoryCollections, MemoryRecords, run, run_limited, run_stages};
use crate::query::planner::rules::RuleSet;
use crate::query::planner::settings::PlanOptions;
use crate::query::source::{Collections, Resolved};

/// Generated cases of a run.
const CASES: Effort = Effort {
    fast: 150,
    long: 2_000,
    soak: 1_000_000,
};

struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn scalar(&mut self) -> Value {
        let number = self.below(4);
        match self.below(8) {
            0 => Value::Null,
            1 => Value::Double(number as f64),
            2 => Value::Int64(number as i64),
            3 => "a".into(),
            4 => doc! {"k": number as i32}.into(),
            _ => Value::Int32(number as i32),
        }
    }

    fn value(&mut self) -> Value {
        match self.below(7) {
            0 => Value::from(
                (0..self.below(3))
                    .map(|_| self.scalar())
                    .collect::<Vec<_>>(),
            ),
            1 => array![array![self.scalar()], self.scalar()],
            _ => self.scalar(),
        }
    }

    fn document(&mut self, id: usize, names: &[&str]) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("_id", id as i64);
        for name in names {
            match self.below(5) {
                0 => {}
                1 => {
                    out.append(name, doc! {"y": self.value(), "z": 1});
                }
                _ => {
                    out.append(name, self.value());
                }
            }
        }
        out.finish()
    }
}

/// Returns the elements of an array, or the value itself; null if it is missing.
fn looked_for(document: &Document, path: &FieldPath) -> Vec<Value> {
    let values: Vec<Value> = match value_at(document.as_ref(), path) {
        ValueRef::Array(array) => array.iter().map(|v| v.to_value()).collect(),
        ValueRef::Missing => Vec::new(),
        other => vec![other.to_value()],
    };
    if values.is_empty() {
        vec![Value::Null]
    } else {
        values
    }
}

/// Returns the documents that a filter finds by one of the values.
fn equal(other: &[Document], path: &str, wanted: Vec<Value>) -> Vec<Document> {
    let mut filter = DocumentBuilder::new();
    filter.append(path, doc! {"$in": wanted});
    let filter = filter.finish();
    run_stages(array![doc! {"$match": filter}], other.to_vec()).unwrap()
}

struct Case {
    lookup: Document,
    unwind: Option<Document>,
    later: Vec<Value>,
}

fn case(chance: &mut Chance) -> Case {
    let target = chance.pick(&["x", "x", "x.y", "l"]);
    let mut lookup = DocumentBuilder::new();
    lookup.append("from", "other");
    lookup.append("localField", chance.pick(&["l", "l", "l.y", "m"]));
    lookup.append("foreignField", chance.pick(&["f", "f", "f.y", "g"]));
    match chance.below(5) {
        0 => {
            lookup.append("pipeline", array![doc! {"$limit": 1}]);
        }
        1 => {
            lookup.append(
                "pipeline",
                array![
                    doc! {"$match": doc! {"g": 1}},
                    doc! {"$project": doc! {"v": 1}}
                ],
            );
        }
        _ => {}
    }
    lookup.append("as", target);
    let unwind = (chance.below(3) > 0).then(|| {
        let mut unwind = DocumentBuilder::new();
        unwind.append("path", format!("${target}"));
        if chance.below(3) == 0 {
            unwind.append("preserveNullAndEmptyArrays", true);
        }
        if chance.below(3) == 0 {
            unwind.append("includeArrayIndex", chance.pick(&["i", "x.i", "m"]));
        }
        unwind.finish()
    });
    let below = |name: &str| format!("${target}.{name}");
    let path = |name: &str| format!("{target}.{name}");
    let sum = doc! {"n": doc! {"$sum": below("v")}, "c": doc! {"$sum": 1}, "p": doc! {"$push": below("g")}};
    let with_id = |id: Value| {
        let mut out = DocumentBuilder::new();
        out.append("_id", id);
        sum.iter().for_each(|e| {
            out.append_element(e);
        });
        doc! {"$group": out.finish()}
    };
    let again = doc! {"from": "other", "localField": path("v"), "foreignField": "v", "as": "again"};
    let mut second = DocumentBuilder::new();
    second.append(&path("g"), Value::Int32(1));
    second.append("m", 1);
    let later: Vec<Value> = match chance.below(10) {
        0 => vec![with_id(below("f").into()).into(), doc! {"$sort": doc! {"_id": 1}}.into()],
        1 => vec![with_id("$m".into()).into(), doc! {"$sort": doc! {"_id": 1}}.into()],
        2 => vec![doc! {"$project": second.finish()}.into()],
        3 => vec![doc! {"$replaceWith": doc! {"v": below("v"), "m": "$m"}}.into()],
        4 => vec![doc! {"$set": doc! {"q": below("v")}}.into(), doc! {"$project": doc! {"q": 1, "_id": 0}}.into()],
        5 => vec![doc! {"$lookup": again.clone()}.into(), doc! {"$unwind": "$again"}.into(),
            doc! {"$replaceWith": doc! {"v": "$again.v", "w": below("g")}}.into()],
        6 => vec![doc! {"$match": doc! {"m": doc! {"$gte": 1}}}.into(), doc! {"$count": "n"}.into()],
        7 => vec![doc! {"$group": doc! {"_id": "$l", "all": doc! {"$push": format!("${target}")}}}.into(),
            doc! {"$sort": doc! {"_id": 1}}.into()],
        8 => vec![doc! {"$project": doc! {"v": below("0"), "w": doc! {"$size": doc! {"$ifNull": array![below("v"), array![]]}}}}.into()],
        _ => Vec::new(),
    };
    Case {
        lookup: lookup.finish(),
        unwind,
        later,
    }
}

/// Joins by nested loops.
fn naive(case: &Case, own: &[Document], other: &[Document]) -> Vec<Document> {
    let path = |name: &str| parse_path(case.lookup.get(name).as_str().unwrap()).unwrap();
    let (local, target) = (path("localField"), path("as"));
    let foreign = case.lookup.get("foreignField").as_str().unwrap();
    let mut joined = Vec::new();
    for row in own {
        let mut found = equal(other, foreign, looked_for(row, &local));
        if let ValueRef::Array(stages) = case.lookup.get("pipeline") {
            found = run_stages(ValueRef::Array(stages).to_value(), found).unwrap();
        }
        let found = Value::Array(found.into_iter().map(Value::from).collect::<Array>());
        joined.push(with_value_at(row.as_ref(), &target, found.as_ref()));
    }
    match &case.unwind {
        Some(unwind) => run_stages(array![doc! {"$unwind": unwind.clone()}], joined).unwrap(),
        None => joined,
    }
}

fn collections(own: &[Document], other: &[Document]) -> Arc<dyn Collections> {
    let records = |d: &[Document]| Resolved::Ordinary(Arc::new(MemoryRecords(d.to_vec())));
    Arc::new(MemoryCollections(BTreeMap::from([
        ("c".to_owned(), records(own)),
        ("other".to_owned(), records(other)),
    ])))
}

#[test]
fn random_lookups_give_what_nested_loops_give() {
    let without = |names: &[&str]| PlanOptions {
        disabled: RuleSet::named(names.iter().copied()).unwrap(),
        ..PlanOptions::default()
    };
    let no_rules = PlanOptions {
        no_rules: true,
        ..PlanOptions::default()
    };
    let ways = [
        PlanOptions::default(),
        without(&["UnwindInLookup"]),
        without(&["NeededOfLookups"]),
        without(&["UnwindInLookup", "NeededOfLookups"]),
        no_rules,
    ];
    let mut failing = 0;
    for seed in 0..CASES.requested() {
        let mut chance = Chance(seed);
        let (few, some) = (chance.below(9) as usize, chance.below(14) as usize);
        let own: Vec<_> = (0..few)
            .map(|at| chance.document(at, &["l", "m", "x"]))
            .collect();
        let other: Vec<_> = (0..some)
            .map(|at| chance.document(at, &["f", "g", "v"]))
            .collect();
        let case = case(&mut chance);
        let mut stages: Vec<Value> = vec![doc! {"$lookup": case.lookup.clone()}.into()];
        stages.extend(
            case.unwind
                .iter()
                .map(|unwind| doc! {"$unwind": unwind.clone()}.into()),
        );
        stages.extend(case.later.iter().cloned());
        let stages = Value::from(stages);
        let after = Value::from(case.later.clone());
        let expected = run(
            &collections(&naive(&case, &own, &other), &other),
            &after,
            no_rules,
        );
        failing += usize::from(expected.is_err());
        let bytes: usize = other.iter().map(|d| d.as_bytes().len()).sum();
        let all = collections(&own, &other);
        for options in ways {
            for most in [1 << 20, bytes as u64 * 3 / 4, 1] {
                let limits = ExecLimits {
                    gather_bytes_max: most.max(1),
                    ..ExecLimits::default()
                };
                let got = run_limited(&all, &stages, options, limits);
                match (&got, &expected) {
                    // What joins one document must fit in any case.
                    (Err(error), _)
                        if error.code
                            == crate::error::ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed
                            && most < 1 << 20 => {}
                    (Err(got), Err(expected)) => assert_eq!(got.code, expected.code, "seed {seed}"),
                    (Ok(got), Ok(expected)) => {
                        assert_eq!(got, expected, "seed {seed} {options:?} {most} {stages:?}");
                    }
                    _ => panic!("seed {seed} {options:?} {most} {stages:?}: {got:?}, {expected:?}"),
                }
            }
        }
    }
    assert!(failing as u64 * 8 < CASES.requested(), "{failing}");
}
