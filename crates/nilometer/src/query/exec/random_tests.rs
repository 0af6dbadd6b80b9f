//! Random measurements in random buckets: every strategy gives the result of plain documents.
//!
//! The oracle reads the same measurements from an ordinary collection, without rules and without blocks.

use std::sync::Arc;

use nilometer_bson::order::compare;
use nilometer_bson::testing::awkward_values;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::ExecLimits;
use super::testing::{MemoryBuckets, MemoryCollections, MemoryRecords, run, run_with, settings};
use super::workers::{QueryThreads, Workers};
use crate::query::planner::rules::RuleSet;
use crate::query::planner::settings::PlanOptions;
use crate::query::source::{Collections, Resolved};

/// A small random number generator: the same on every machine, for every seed.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Start times, including some before 1970 and beyond 2038.
pub(super) const EPOCHS: [i64; 4] = [1_600_000_000_000, -7_200_000, 0, 2_147_483_000_000];

fn time(draw: &mut Draw, epoch: i64) -> Value {
    Value::DateTime(epoch + draw.below(14_400) as i64 * 1000)
}

pub(super) fn number(draw: &mut Draw) -> Value {
    match draw.below(8) {
        0 => Value::Int64(draw.below(10) as i64),
        1 => Value::Double(draw.below(40) as f64 / 4.0),
        2 => draw.pick(&[f64::NAN, -0.0, 1e300, f64::INFINITY]).into(),
        _ => Value::Int32(draw.below(10) as i32 - 3),
    }
}

/// Draws a field value, possibly one of `awkward`.
fn anything(draw: &mut Draw, awkward: &[Value]) -> Value {
    match draw.below(10) {
        0..=5 => number(draw),
        6 => draw.pick(&["cpu", "disk", ""]).into(),
        7 => array![number(draw), number(draw)],
        8 => doc! {"b": number(draw), "c": draw.pick(awkward)}.into(),
        _ => draw.pick(awkward),
    }
}

fn metadata(draw: &mut Draw) -> Value {
    match draw.below(10) {
        0 => Value::Missing,
        8 => Value::Null,
        9 => doc! {"host": Value::Null, "region": draw.below(2) as i32}.into(),
        1 => "plain".into(),
        2 => doc! {"host": draw.below(3) as i32}.into(),
        _ => {
            let mut meta = DocumentBuilder::new();
            meta.append("host", draw.pick(&["a", "b", "c"]));
            if draw.chance(70) {
                meta.append("region", draw.below(2) as i32);
            }
            meta.finish().into()
        }
    }
}

pub(super) fn measurements(
    draw: &mut Draw,
    epoch: i64,
    unique: bool,
    awkward: &[Value],
) -> Vec<Document> {
    let series: Vec<Value> = (0..1 + draw.below(4)).map(|_| metadata(draw)).collect();
    let count = draw.below(120);
    let is_sorted = draw.chance(50);
    // Some collections are tame: columns of one type without gaps, as kernels require.
    let tame = draw.chance(40);
    // In some, a field keeps its value for several buckets.
    let slow = draw.chance(50);
    let mut times: Vec<Value> = (0..count)
        .map(|at| match time(draw, epoch) {
            // Times are whole seconds; adding up to 999 milliseconds makes them unique.
            Value::DateTime(ms) if unique => Value::DateTime(ms + at as i64),
            time => time,
        })
        .collect();
    if is_sorted {
        times.sort_by_key(|t| match t {
            Value::DateTime(at) => *at,
            _ => 0,
        });
    }
    let of = |draw: &mut Draw, at: usize, time: Value| {
        let mut out = DocumentBuilder::new();
        out.append("t", time);
        out.append("m", draw.pick(&series));
        out.append("_id", at as i32);
        if tame {
            out.append("i", draw.below(20) as i32);
            out.append("d", draw.below(400) as f64 / 8.0);
            out.append("s", "cpu");
        } else {
            if draw.chance(80) {
                out.append("i", number(draw));
            }
            if draw.chance(80) {
                out.append("d", anything(draw, awkward));
            }
            if slow {
                out.append("s", if at < count / 2 { "cpu" } else { "disk" });
            } else if draw.chance(90) {
                out.append("s", draw.pick(&["cpu", "disk"]));
            }
        }
        if draw.chance(30) {
            let objects = [doc! {"b": number(draw)}.into(), anything(draw, awkward)];
            out.append("o", objects[usize::from(draw.chance(20))].clone());
        }
        out.finish()
    };
    times
        .into_iter()
        .enumerate()
        .map(|(at, time)| of(draw, at, time))
        .collect()
}

fn condition(draw: &mut Draw, epoch: i64, awkward: &[Value]) -> Document {
    let mut out = DocumentBuilder::new();
    let op = draw.pick(&["$eq", "$gt", "$gte", "$lt", "$lte", "$ne", "$in"]);
    let field = draw.pick(&[
        "t", "i", "d", "s", "o.b", "d.b", "m.host", "m.region", "m", "_id", "none", "x", "x.b",
    ]);
    let operand = |draw: &mut Draw| match field {
        "t" if draw.chance(70) => time(draw, epoch),
        // The boundary of two hours, or a distant date.
        "t" if draw.chance(60) => {
            Value::DateTime((epoch / 3_600_000 + draw.below(5) as i64) * 3_600_000)
        }
        "t" if draw.chance(80) => {
            let far = draw.pick(&EPOCHS);
            time(draw, far)
        }
        "s" => draw.pick(&["cpu", "disk", "zz"]).into(),
        "m.host" => draw.pick(&["a", "b", "zz"]).into(),
        "m" => doc! {"host": draw.pick(&["a", "b"])}.into(),
        _ if draw.chance(85) => number(draw),
        _ => draw.pick(awkward),
    };
    let mut value = operand(draw);
    while matches!(value, Value::Missing | Value::Undefined) {
        value = operand(draw);
    }
    match draw.below(13) {
        0 => {
            let value = draw.chance(50);
            out.append(field, doc! {"$exists": value});
        }
        12 => {
            let types = ["number", "int", "double", "string", "date", "null", "array"];
            out.append(field, doc! {"$type": draw.pick(&types)});
        }
        1 if field != "m" => {
            let cmp = draw.pick(&["$gt", "$lt", "$eq", "$gte"]);
            let mut inner = DocumentBuilder::new();
            inner.append(cmp, array![format!("${field}"), doc! {"$literal": value}]);
            out.append("$expr", inner.finish());
        }
        2 => {
            let arms = array![
                condition(draw, epoch, awkward),
                condition(draw, epoch, awkward)
            ];
            out.append(draw.pick(&["$or", "$and", "$nor"]), arms);
        }
        _ => {
            let regex = matches!(value, Value::Regex(_));
            let mut inner = DocumentBuilder::new();
            match op {
                "$in" => inner.append("$in", array![value, number(draw)]),
                _ if regex => inner.append("$in", array![value]),
                op => inner.append(op, value),
            };
            out.append(field, inner.finish());
        }
    }
    out.finish()
}

pub(super) fn filter(draw: &mut Draw, epoch: i64, awkward: &[Value]) -> Document {
    let parts: Vec<Value> = (0..1 + draw.below(3))
        .map(|_| condition(draw, epoch, awkward).into())
        .collect();
    doc! {"$and": parts}
}

fn group(draw: &mut Draw, unique: bool) -> Document {
    let unit = draw.pick(&["minute", "hour", "day", "month"]);
    let bins = draw.pick(&[1, 1, 7, 10]);
    let zone = draw.pick(&["UTC", "America/New_York", "+05:45"]);
    let shift = draw.pick(&[
        Value::from(5_000),
        (-7_260_000i64).into(),
        1500.5.into(),
        i64::MAX.into(),
    ]);
    let mut date = Value::from("$t");
    if draw.chance(30) {
        date = doc! {"$subtract": array![date, shift.clone()]}.into();
    }
    let mut trunc =
        doc! {"$dateTrunc": doc! {"date": date, "unit": unit, "binSize": bins, "timezone": zone}};
    if draw.chance(20) {
        trunc = doc! {"$add": array![trunc, shift]};
    }
    let level = doc! {"$floor": doc! {"$divide": array!["$i", 3]}};
    let below = draw.pick(&["$o.b", "$d.b"]);
    let differs = draw.pick(&[
        Value::from("$i"),
        "$d".into(),
        "$t".into(),
        "$s".into(),
        below.into(),
        doc! {"$hour": "$t"}.into(),
        doc! {"$cond": array![doc! {"$isNumber": "$i"}, level, "other"]}.into(),
        doc! {"$ifNull": array!["$s", "$m.host"]}.into(),
        doc! {"$eq": array!["$i", "$d"]}.into(),
    ]);
    let key: Value = match draw.below(13) {
        9 => differs,
        10 => doc! {"a": differs, "host": "$m.host"}.into(),
        11 => doc! {"a": differs, "h": trunc, "s": "$s"}.into(),
        12 => doc! {"a": differs}.into(),
        0 => Value::Null,
        1 => "$m".into(),
        2 => "$m.host".into(),
        3 => trunc.into(),
        4 => doc! {"h": trunc, "host": "$m.host"}.into(),
        5 => doc! {"host": "$m.host", "region": "$m.region"}.into(),
        6 => doc! {"host": "$m.none"}.into(),
        7 => "$s".into(),
        _ => doc! {"h": trunc, "x": doc! {"y": "$m.region"}, "c": 1}.into(),
    };
    let mut out = DocumentBuilder::new();
    out.append("_id", key);
    for at in 0..1 + draw.below(4) {
        let name = draw.pick(&[
            "$sum",
            "$avg",
            "$min",
            "$max",
            "$first",
            "$last",
            "$push",
            "$stdDevPop",
            "$sum",
        ]);
        let argument: Value = match draw.below(8) {
            0 => 1.into(),
            7 => {
                let known =
                    doc! {"$gt": array![draw.pick(&["$d", "$i", "$s", "$none"]), Value::Null]};
                draw.pick(&[
                    doc! {"$cond": array![known.clone(), 1, 0]},
                    doc! {"$cond": array![known.clone(), "$i", Value::Null]},
                    doc! {"$cond": array![known, "$$REMOVE", "$d"]},
                    doc! {"$ifNull": array!["$i", 0.5]},
                    doc! {"$max": array!["$i", "$d", 3]},
                    doc! {"$avg": array!["$i", "$none", 2i64]},
                    doc! {"$sum": array!["$i", "$d"]},
                    doc! {"$switch": doc! {"branches": array![
                        doc! {"case": doc! {"$lt": array!["$i", "$d"]}, "then": "$t"},
                        doc! {"case": "$i", "then": true},
                    ], "default": "$i"}},
                ])
                .into()
            }
            1 => "$m.host".into(),
            2 => "$t".into(),
            3 => draw.pick(&["$d", "$o.b", "$d.b"]).into(),
            4 => "$none".into(),
            _ => "$i".into(),
        };
        let mut accumulator = DocumentBuilder::new();
        accumulator.append(name, argument);
        out.append(&format!("f{at}"), accumulator.finish());
    }
    if draw.chance(30) {
        let top =
            doc! {"$top": doc! {"sortBy": doc! {"t": -1, "_id": 1}, "output": array!["$t", "$i"]}};
        out.append("top", top);
    }
    if draw.chance(20) {
        let sort = draw.pick(&[
            doc! {"i": -1, "_id": 1},
            doc! {"d": 1, "_id": 1},
            doc! {"d": -1, "t": 1, "_id": 1},
            doc! {"s": 1, "_id": -1},
        ]);
        let ranked = doc! {"n": 2, "sortBy": sort, "output": array!["$i", "$_id"]};
        let mut best = DocumentBuilder::new();
        best.append(draw.pick(&["$topN", "$bottomN"]), ranked);
        out.append("best", best.finish());
    }
    if unique && draw.chance(50) {
        let order = draw.pick(&[doc! {"t": 1}, doc! {"t": -1}, doc! {"m.host": 1, "t": -1}]);
        let name = draw.pick(&["$top", "$bottom"]);
        let output = draw.pick(&["$i", "$$ROOT", "$m"]);
        let mut top = DocumentBuilder::new();
        top.append(name, doc! {"sortBy": order, "output": output});
        out.append("last", top.finish());
    }
    if draw.chance(30) {
        out.append("n", doc! {"$count": doc! {}});
    }
    doc! {"$group": out.finish()}
}

/// Draws running totals by metadata and time.
fn window(draw: &mut Draw) -> Value {
    let partition = draw.pick(&["$m", "$m.host", "$s", "$m.region"]);
    let order = draw.pick(&[
        doc! {"t": 1},
        doc! {"t": -1},
        doc! {"t": 1, "i": 1},
        doc! {"i": 1},
    ]);
    let sum = doc! {"$sum": "$i", "window": doc! {"documents": array!["unbounded", "current"]}};
    doc! {"$setWindowFields": doc! {
        "partitionBy": partition, "sortBy": order, "output": doc! {"sum": sum},
    }}
    .into()
}

/// Draws a query for the newest or oldest measurement of each group, in the usual forms.
fn last_point(draw: &mut Draw) -> Vec<Value> {
    let sort = draw.pick(&[
        doc! {"t": 1},
        doc! {"t": -1},
        doc! {"m.host": 1, "t": -1},
        doc! {"m": -1, "t": 1},
    ]);
    let mut group = DocumentBuilder::new();
    let hour = doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}};
    group.append(
        "_id",
        draw.pick(&[
            Value::from("$m"),
            "$m.host".into(),
            "$s".into(),
            doc! {"host": "$m.host", "h": hour}.into(),
            doc! {"region": doc! {"$ifNull": array!["$m.region", 1]}}.into(),
        ]),
    );
    let collects = draw.chance(50);
    for at in 0..1 + draw.below(5) {
        let name = match collects {
            true => draw.pick(&["$first", "$last", "$push", "$min", "$max", "$mergeObjects"]),
            false => draw.pick(&[
                "$first", "$last", "$first", "$last", "$first", "$sum", "$max",
            ]),
        };
        let mut spec = DocumentBuilder::new();
        let of = [
            "$t",
            "$i",
            "$$ROOT",
            "$m.region",
            "$none",
            "$d",
            "$o.b",
            "$m",
        ];
        match name {
            "$mergeObjects" => spec.append(name, doc! {"i": "$i", "d": "$d"}),
            name => spec.append(name, draw.pick(&of)),
        };
        group.append(&format!("f{at}"), spec.finish());
    }
    vec![
        doc! {"$sort": sort}.into(),
        doc! {"$group": group.finish()}.into(),
    ]
}

/// Returns arithmetic that never fails: which errors occur depends on what is filtered before.
pub(super) fn doubled() -> Document {
    let twice = doc! {"$multiply": array!["$i", 2]};
    doc! {"$cond": array![doc! {"$isNumber": "$i"}, twice, "$m.region"]}
}

pub(super) fn pipeline(draw: &mut Draw, epoch: i64, unique: bool, awkward: &[Value]) -> Value {
    let mut stages: Vec<Value> = Vec::new();
    if unique && draw.chance(25) {
        if draw.chance(50) {
            stages.push(doc! {"$match": filter(draw, epoch, awkward)}.into());
        }
        stages.extend(last_point(draw));
        return stages.into();
    }
    for _ in 0..draw.below(5) {
        stages.push(match draw.below(9) {
            0..=2 => doc! {"$match": filter(draw, epoch, awkward)}.into(),
            3 => doc! {"$project": draw.pick(&[
                doc! {"i": 1, "m": 1},
                doc! {"d": 0},
                doc! {"m": 0, "_id": 0},
                doc! {"t": 1, "x": "$m.host", "i": 1},
                doc! {"o.b": 1, "t": 1},
                doc! {"x": "$d", "m": 1, "t": 1},
                doc! {"x": doc! {"$toString": "$m.region"}, "d": 1, "_id": 0},
                doc! {"i": "$m.host", "t": 1},
                doc! {"o.b": 0},
            ])}
            .into(),
            4 => doc! {"$addFields": draw.pick(&[
                doc! {"x": "$i"},
                doc! {"i": "$m.region"},
                doc! {"m": "$s"},
                doc! {"o.b": "$d"},
                doc! {"t": "$i"},
                doc! {"d": "$i"},
                doc! {"x": "$d", "i": "$s"},
                doc! {"x": "$m.host", "y": doc! {"$ifNull": array!["$m.region", "none"]}},
                doc! {"i": "$m", "s": "$m.none"},
                doc! {"x": doubled(), "h": doc! {"$eq": array!["$t", "$i"]}},
                doc! {"i": doubled()},
            ])}
            .into(),
            5 if unique && draw.chance(50) => doc! {"$sort": draw.pick(&[
                doc! {"t": 1},
                doc! {"t": -1},
                doc! {"t": -1, "i": 1},
                doc! {"m": 1, "t": 1},
                doc! {"m.host": -1, "m.region": 1, "t": -1},
                doc! {"m.region": 1, "t": 1, "d": 1},
                doc! {"i": -1, "t": 1},
                doc! {"d": 1, "t": -1},
                doc! {"d": -1, "m.host": 1, "t": 1},
                doc! {"s": -1, "i": 1, "t": 1},
            ])}
            .into(),
            5 => doc! {"$sort": draw.pick(&[
                doc! {"t": -1, "_id": 1},
                doc! {"m.host": 1, "_id": -1},
                doc! {"m": -1},
                doc! {"m.region": 1, "m.host": -1},
                doc! {"i": 1},
                doc! {"d": -1},
                doc! {"i": -1, "d": 1},
                doc! {"m.host": 1, "i": -1},
            ])}
            .into(),
            6 => {
                let most = draw.pick(&[4, 30]);
                doc! {"$limit": 1 + draw.below(most) as i32}.into()
            }
            7 => doc! {"$skip": draw.below(5) as i32}.into(),
            8 if unique && draw.chance(50) => window(draw),
            _ => doc! {"$unwind": "$d"}.into(),
        });
    }
    if draw.chance(60) {
        if draw.chance(15) {
            let computed = draw.pick(&[
                doc! {"$set": doc! {"k": "$m.host", "m": doc! {"$toUpper": "$s"}}},
                doc! {"$project": doc! {"k": "$i", "m": "$m.region", "i": 1}},
                doc! {"$set": doc! {"m": doc! {"host": "$s", "region": "$none"}}},
                doc! {"$set": doc! {"k": doc! {"$add": array!["$t", 1000]}, "m": "$none"}},
            ]);
            let key = draw.pick(&[
                Value::from("$m"),
                doc! {"k": "$k", "m": "$m"}.into(),
                doc! {"k": doc! {"$dateTrunc": doc! {"date": "$k", "unit": "hour"}}, "m": "$m"}
                    .into(),
            ]);
            let group = doc! {"_id": key, "n": doc! {"$sum": "$i"}, "all": doc! {"$push": "$i"}};
            stages.push(computed.into());
            stages.push(doc! {"$group": group}.into());
            return stages.into();
        }
        stages.push(group(draw, unique).into());
        if draw.chance(30) {
            let order = draw.pick(&[
                doc! {"_id": 1},
                doc! {"_id": -1},
                doc! {"_id.h": 1, "_id": 1},
                doc! {"_id.h": -1, "_id": -1},
                doc! {"_id.host": 1, "_id.h": -1, "_id": 1},
            ]);
            let limit = draw.pick(&[1, 3, 8]);
            stages.push(doc! {"$sort": order}.into());
            stages.push(doc! {"$limit": limit}.into());
        }
    } else if draw.chance(30) {
        stages.push(doc! {"$count": "n"}.into());
    }
    stages.into()
}

/// Returns the result or the error code.
///
/// Sorting by parallel arrays fails for some documents. Which of two errors is reported may differ between plans; whether there
/// is one may not. Groups come in any order, so the output of a final group is sorted first.
pub(super) fn outcome(
    result: crate::Result<Vec<Document>>,
    stages: &Value,
) -> Result<Vec<Document>, i32> {
    let mut found = result.map_err(|error| error.code.0)?;
    let last = stages.as_ref().as_array().and_then(|list| {
        let last = list.iter().last()?.as_document()?;
        Some(last.contains("$group"))
    });
    if last == Some(true) {
        found.sort_by(|a, b| compare(a.get("_id"), b.get("_id")));
    }
    Ok(found)
}

/// True if two results are equal; where a group keeps least or greatest values, any of several equal values is accepted.
pub(super) fn is_same(
    found: &Result<Vec<Document>, i32>,
    expected: &Result<Vec<Document>, i32>,
    stages: &Value,
) -> bool {
    let text = show(stages.as_ref());
    let keeps_extremes =
        text.contains("$group") && (text.contains("$min:") || text.contains("$max:"));
    match (found, expected) {
        // Of equal keys of several types the first is shown. What reads in another order may meet another one first.
        (Ok(found), Ok(expected)) if text.contains("$group") && !keeps_extremes => {
            let rest = |row: &Document| -> Vec<u8> {
                let mut out = DocumentBuilder::new();
                let fields = row.iter().filter(|field| field.name() != "_id");
                fields.for_each(|field| {
                    out.append_element(field);
                });
                out.finish().as_bytes().to_vec()
            };
            let mut pairs = found.iter().zip(expected);
            found.len() == expected.len()
                && pairs
                    .all(|(a, b)| compare(a.get("_id"), b.get("_id")).is_eq() && rest(a) == rest(b))
        }
        (Ok(found), Ok(expected)) if keeps_extremes && found.len() == expected.len() => {
            let mut pairs = found.iter().zip(expected);
            pairs.all(|(a, b)| {
                let whole = |row| ValueRef::Document(Document::as_ref(row));
                compare(whole(a), whole(b)).is_eq()
            })
        }
        _ => found == expected,
    }
}

/// Describes the first difference between two results.
pub(super) fn difference(
    found: &Result<Vec<Document>, i32>,
    expected: &Result<Vec<Document>, i32>,
) -> String {
    let (Ok(found), Ok(expected)) = (found, expected) else {
        let code = |r: &Result<Vec<Document>, i32>| r.as_ref().map(Vec::len).map_err(|e| *e);
        return format!("found {:?}, expected {:?}", code(found), code(expected));
    };
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    let at = at.unwrap_or(found.len().min(expected.len()));
    let row = |list: &[Document]| {
        list.get(at).map_or("nothing".to_owned(), |d| {
            show(ValueRef::Document(d.as_ref()))
        })
    };
    format!(
        "{} and {} documents, number {at}:\n   found {}\nexpected {}",
        found.len(),
        expected.len(),
        row(found),
        row(expected)
    )
}

pub(super) fn show(value: ValueRef<'_>) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        ValueRef::Document(d) => {
            let fields = d
                .iter()
                .map(|e| format!("{}: {}", e.name(), show(e.value())));
            format!("{{{}}}", list(fields.collect()))
        }
        ValueRef::Array(a) => format!("[{}]", list(a.iter().map(show).collect())),
        other => format!("{other:?}"),
    }
}

/// Random measurements, in a collection of each kind.
pub(super) struct Drawn {
    /// Draws queries on them.
    pub(super) draw: Draw,
    /// Start of their times.
    pub(super) epoch: i64,
    /// True if no time occurs twice.
    pub(super) unique: bool,
    pub(super) plain: Arc<dyn Collections>,
    pub(super) series: Arc<dyn Collections>,
}

impl Drawn {
    pub(super) fn new(seed: u64, awkward: &[Value]) -> Self {
        let mut draw = Draw(seed * 2 + 0x9E37_79B9_7F4A_7C15);
        let epoch = draw.pick(&EPOCHS);
        let unique = draw.chance(50);
        let list = measurements(&mut draw, epoch, unique, awkward);
        let most = 1 + draw.below(40);
        let buckets = Arc::new(MemoryBuckets::new(&list, most));
        let plain = Arc::new(MemoryRecords(buckets.measurements()));
        Self {
            draw,
            epoch,
            unique,
            plain: MemoryCollections::of(Resolved::Ordinary(plain)),
            series: MemoryCollections::of(Resolved::TimeSeries(buckets)),
        }
    }
}

fn check(seed: u64, awkward: &[Value], workers: &Arc<Workers>) {
    let Drawn {
        mut draw,
        epoch,
        unique,
        plain,
        series,
    } = Drawn::new(seed, awkward);
    let draw = &mut draw;
    for _ in 0..8 {
        let stages = pipeline(draw, epoch, unique, awkward);
        let naive = PlanOptions {
            force_rows: true,
            no_rules: true,
            ..PlanOptions::default()
        };
        let expected = outcome(run(&plain, &stages, naive), &stages);
        let all = PlanOptions::default();
        let rows = PlanOptions {
            force_rows: true,
            ..all
        };
        let unruled = PlanOptions {
            no_rules: true,
            ..all
        };
        // All rules but one, and one rule alone.
        let rule = draw.pick(&RuleSet::all().names());
        let without = RuleSet::named([rule]).unwrap();
        let others = RuleSet::all().names().into_iter().filter(|r| *r != rule);
        let alone = RuleSet::named(others).unwrap();
        let left_out = |disabled| PlanOptions { disabled, ..all };
        let ways = [
            all,
            rows,
            unruled,
            naive,
            left_out(without),
            left_out(alone),
        ];
        for options in ways {
            for collections in [&plain, &series] {
                let found = outcome(run(collections, &stages, options), &stages);
                if !is_same(&found, &expected, &stages) {
                    let difference = difference(&found, &expected);
                    panic!(
                        "seed {seed}, {rule}, {options:?}, {}\n{difference}",
                        show(stages.as_ref())
                    );
                }
            }
        }
        // Grouping on several threads gives the groups of one thread, in the same order.
        for collections in [&plain, &series] {
            let alone = settings(PlanOptions::default(), ExecLimits::default());
            let mut helped = alone.clone();
            helped.threads = Some(QueryThreads {
                batches_before: 1,
                batches_per_task: 1 + draw.below(3),
                ..QueryThreads::new(Arc::clone(workers), 3)
            });
            let bytes = |found: crate::Result<Vec<Document>>| found.map_err(|error| error.code.0);
            let found = bytes(run_with(collections, &stages, helped));
            let expected = bytes(run_with(collections, &stages, alone));
            if found != expected {
                let difference = difference(&found, &expected);
                panic!(
                    "seed {seed}, several threads, {}\n{difference}",
                    show(stages.as_ref())
                );
            }
        }
    }
}

#[test]
fn every_way_gives_the_same_answer() {
    let awkward: Vec<Value> = awkward_values()
        .into_iter()
        .map(|(_, value)| value)
        .filter(|value| !matches!(value, Value::Missing))
        .collect();
    let workers = Arc::<Workers>::default();
    // Generated collections, eight pipelines over each.
    for seed in 0..nilometer_storage::testing::effort(10, 600, 10_000) {
        check(seed, &awkward, &workers);
    }
    assert_eq!(
        workers.running(),
        2,
        "the threads are shared by all queries"
    );
}

/// Extreme times overflow where rows do, with the same error.
#[test]
fn shifted_bins_of_extreme_times() {
    let run_all = |times: &[i64], key: &Document| {
        let measurement = |(at, time): (usize, &i64)| doc! {"t": Value::DateTime(*time), "m": "a", "_id": at as i32, "v": at as i32};
        let list: Vec<Document> = times.iter().enumerate().map(measurement).collect();
        let buckets = Arc::new(MemoryBuckets::new(&list, 3));
        let plain = Arc::new(MemoryRecords(buckets.measurements()));
        let plain = MemoryCollections::of(Resolved::Ordinary(plain));
        let series = MemoryCollections::of(Resolved::TimeSeries(buckets));
        let naive = PlanOptions {
            force_rows: true,
            no_rules: true,
            ..PlanOptions::default()
        };
        let group =
            doc! {"_id": key.clone(), "n": doc! {"$sum": "$v"}, "all": doc! {"$push": "$v"}};
        for limit in [false, true] {
            let mut stages: Vec<Value> = vec![doc! {"$group": group.clone()}.into()];
            if limit {
                stages.push(doc! {"$sort": doc! {"_id": 1}}.into());
                stages.push(doc! {"$limit": 2}.into());
            }
            let stages = Value::from(stages);
            let read = |found: crate::Result<Vec<Document>>| found.map_err(|e| e.to_string());
            let expected = read(run(&plain, &stages, naive));
            let found = read(run(&series, &stages, PlanOptions::default()));
            assert_eq!(found, expected, "{times:?} {}", show(stages.as_ref()));
        }
    };
    let (min, max) = (i64::MIN, i64::MAX);
    let fine = [0, 1_000, 59_999, 60_000, 119_999, 1_600_000_000_000];
    for times in [
        &fine[..],
        &[min + 70_000, 5],
        &[min + 200_000, min + 260_000],
        &[max - 3_000, max - 70_000],
        &[max, min],
    ] {
        for shift in [
            Value::from(7_000),
            (-7_000).into(),
            0.5.into(),
            (1i64 << 53).into(),
            max.into(),
        ] {
            for operator in ["$subtract", "$add"] {
                let shifted = |of: Value| {
                    let mut out = DocumentBuilder::new();
                    out.append(operator, array![of, shift.clone()]);
                    Value::from(out.finish())
                };
                let trunc = |of: Value| doc! {"$dateTrunc": doc! {"date": of, "unit": "minute"}};
                run_all(times, &trunc(shifted("$t".into())));
                run_all(times, &doc! {"h": shifted(trunc("$t".into()).into())});
                let back = doc! {"$add": array![shift.clone(), trunc(shifted("$t".into()))]};
                run_all(times, &doc! {"h": back, "m": "$m"});
            }
        }
    }
}
