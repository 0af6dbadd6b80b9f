//! Random queries: `find`, `count`, `distinct` and pipelines.

use super::documents::{meta, scalar, time, value};
use super::*;

pub(crate) fn path(random: &mut Random) -> String {
    let paths = [
        "a", "b", "c", "d", "a.x", "b.x", "c.y.z", "d.0", "m", "m.x", "t", "_id", "none", "meta",
        "meta.x", "control", "data", "data.t",
    ];
    (*random.pick(&paths)).to_owned()
}

pub(crate) fn operand(random: &mut Random, path: &str) -> Value {
    match (path, random.below(5)) {
        ("t", 1..) => time(random),
        ("m", 2..) => match meta(random) {
            Value::Missing => Value::Null,
            found => found,
        },
        (_, 0) => value(random, 2),
        _ => scalar(random),
    }
}

pub(crate) fn field_filter(random: &mut Random) -> Document {
    let path = path(random);
    let given = operand(random, &path);
    let condition: Value = match random.below(14) {
        0 | 1 => given,
        2 => doc! {"$gt": given}.into(),
        3 => doc! {"$gte": given}.into(),
        4 => doc! {"$lt": given}.into(),
        5 => doc! {"$lte": given}.into(),
        6 => doc! {"$ne": given}.into(),
        7 => doc! {"$in": array![given, operand(random, &path)]}.into(),
        8 => doc! {"$nin": array![given, Value::Null]}.into(),
        9 => doc! {"$exists": random.below(2) == 0}.into(),
        10 => {
            doc! {"$type": *random.pick(&["number", "string", "null", "array", "object", "date"])}
                .into()
        }
        11 => doc! {"$not": doc! {"$gte": given}}.into(),
        12 => doc! {"$elemMatch": doc! {"$gte": given}}.into(),
        _ => doc! {"$gte": given, "$lt": operand(random, &path)}.into(),
    };
    let mut filter = DocumentBuilder::new();
    filter.append(&path, condition);
    filter.finish()
}

pub(crate) fn filter(random: &mut Random) -> Document {
    match random.below(9) {
        0 => doc! {},
        1 => doc! {"$and": array![field_filter(random), field_filter(random)]},
        2 => doc! {"$or": array![field_filter(random), field_filter(random)]},
        3 => doc! {"$nor": array![field_filter(random), field_filter(random)]},
        4 => {
            let (a, b) = (format!("${}", path(random)), format!("${}", path(random)));
            let operator = *random.pick(&["$eq", "$gt", "$lte", "$ne"]);
            let mut compared = DocumentBuilder::new();
            compared.append(operator, array![a, b]);
            doc! {"$expr": compared.finish()}
        }
        _ => field_filter(random),
    }
}

pub(crate) fn sort(random: &mut Random) -> Document {
    let mut sort = DocumentBuilder::new();
    let sign = |random: &mut Random| *random.pick(&[1, -1]);
    let first = path(random);
    if first != "_id" {
        let direction = sign(random);
        sort.append(&first, direction);
        // In the order of an index of metadata and time, or nearly.
        if first.starts_with('m') && random.below(2) == 0 {
            let direction = sign(random);
            sort.append("t", direction);
        }
    }
    let direction = sign(random);
    sort.append("_id", direction);
    sort.finish()
}

pub(crate) fn find(random: &mut Random) -> Question {
    let filter = filter(random);
    match random.below(4) {
        0 | 1 => Question {
            compare: Compare::Set,
            command: doc! {"find": "c", "filter": filter},
        },
        2 => Question {
            compare: Compare::Sequence,
            command: doc! {
                "find": "c", "filter": filter, "sort": sort(random),
                "skip": random.int(3), "limit": random.int(20),
            },
        },
        _ => {
            let projection = match random.below(5) {
                0 => doc! {"a": 1, "t": 1},
                1 => doc! {"a": 0, "m": 0},
                2 => doc! {"_id": 0, "a.x": 1, "m.x": 1},
                3 => doc! {"sum": doc! {"$type": "$a"}, "b": 1},
                _ => doc! {"c.y": 0, "t": 0},
            };
            Question {
                compare: Compare::Set,
                command: doc! {"find": "c", "filter": filter, "projection": projection},
            }
        }
    }
}

pub(crate) fn group_key(random: &mut Random) -> Value {
    let unit = *random.pick(&[
        "second", "minute", "hour", "day", "week", "month", "quarter", "year",
    ]);
    let trunc = doc! {"$dateTrunc": doc! {
        "date": "$t", "unit": unit, "binSize": *random.pick(&[1, 3, 10]),
    }};
    match random.below(9) {
        0 => Value::Null,
        1 => format!("${}", path(random)).into(),
        2 => trunc.into(),
        3 => doc! {"at": trunc, "m": "$m"}.into(),
        4 => doc! {"at": trunc, "x": "$m.x"}.into(),
        5 => doc! {"at": trunc, "a": "$a"}.into(),
        6 => doc! {"$year": "$t"}.into(),
        7 => "$m.x".into(),
        _ => doc! {"a": "$a", "b": "$b.x"}.into(),
    }
}

pub(crate) fn group(random: &mut Random) -> Document {
    let mut group = DocumentBuilder::new();
    group.append("_id", group_key(random));
    for at in 0..1 + random.below(4) {
        let argument: Value = match random.below(4) {
            0 => 1.into(),
            _ => format!("${}", path(random)).into(),
        };
        let operator = *random.pick(&["$sum", "$avg", "$min", "$max", "$count", "$addToSet"]);
        let accumulator = match operator {
            "$count" => doc! {"$count": doc! {}},
            // The order of a set is unspecified; its size is not.
            "$addToSet" => doc! {"$sum": doc! {"$size": array![array![argument]]}},
            other => {
                let mut accumulator = DocumentBuilder::new();
                accumulator.append(other, argument);
                accumulator.finish()
            }
        };
        group.append(&format!("v{at}"), accumulator);
    }
    doc! {"$group": group.finish()}
}

/// Returns windows whose answer does not depend on the order of measurements of the same time.
pub(crate) fn windows(random: &mut Random) -> Document {
    let unit = *random.pick(&["second", "minute", "hour", "day"]);
    let low: Value = match random.below(3) {
        0 => "unbounded".into(),
        _ => (-random.int(40)).into(),
    };
    let window = doc! {"range": array![low, random.int(3)], "unit": unit};
    let mut output = DocumentBuilder::new();
    for at in 0..1 + random.below(3) {
        let mut function = DocumentBuilder::new();
        match *random.pick(&["$sum", "$avg", "$min", "$max", "$count", "$rank"]) {
            "$rank" => function.append("$rank", doc! {}),
            "$count" => function
                .append("$count", doc! {})
                .append("window", window.clone()),
            name => function
                .append(name, format!("${}", path(random)))
                .append("window", window.clone()),
        };
        output.append(&format!("w{at}"), function.finish());
    }
    let mut spec = DocumentBuilder::new();
    match random.below(4) {
        0 => &mut spec,
        1 => spec.append("partitionBy", format!("${}", path(random))),
        _ => spec.append("partitionBy", *random.pick(&["$m", "$m.x"])),
    };
    spec.append("sortBy", doc! {"t": *random.pick(&[1, 1, -1])});
    spec.append("output", output.finish());
    doc! {"$setWindowFields": spec.finish()}
}

pub(crate) fn stages(random: &mut Random) -> (Compare, Vec<Value>) {
    let matched: Value = doc! {"$match": filter(random)}.into();
    let by_id: Value = doc! {"$sort": sort(random)}.into();
    let first = path(random);
    match random.below(14) {
        12 => (Compare::Values, vec![windows(random).into()]),
        13 => (
            Compare::Values,
            vec![matched, windows(random).into(), group(random).into()],
        ),
        0..=2 => (Compare::Values, vec![group(random).into()]),
        3 | 4 => (Compare::Values, vec![matched, group(random).into()]),
        5 => {
            let ends = doc! {"$group": doc! {
                "_id": group_key(random),
                "first": doc! {"$first": format!("${first}")},
                "last": doc! {"$last": "$a"},
                "all": doc! {"$push": "$b"},
            }};
            (Compare::Values, vec![doc! {"$sort": doc! {"t": 1, "_id": 1}}.into(), ends.into()])
        }
        6 => (
            Compare::Values,
            vec![
                matched,
                doc! {"$unwind": doc! {"path": "$a", "preserveNullAndEmptyArrays": random.below(2) == 0}}.into(),
                group(random).into(),
            ],
        ),
        7 => (
            Compare::Values,
            vec![matched, doc! {"$sortByCount": format!("${first}")}.into()],
        ),
        8 => (
            Compare::Sequence,
            vec![
                matched,
                by_id,
                doc! {"$limit": 1 + random.int(10)}.into(),
                doc! {"$project": doc! {"a": 1, "t": 1, "y": doc! {"$year": "$t"}}}.into(),
            ],
        ),
        9 => (
            Compare::Values,
            vec![
                doc! {"$addFields": doc! {"a": doc! {"$ifNull": array!["$a", "none"]}, "n": 1}}.into(),
                matched,
                group(random).into(),
            ],
        ),
        10 => (
            Compare::Set,
            vec![doc! {"$unset": "m"}.into(), matched, doc! {"$set": doc! {"u": "$b"}}.into()],
        ),
        _ => (Compare::Values, vec![matched, doc! {"$count": "n"}.into()]),
    }
}

pub(crate) fn question(random: &mut Random) -> Question {
    match random.below(10) {
        0..=3 => find(random),
        4 => Question {
            compare: Compare::Values,
            command: doc! {"count": "c", "query": filter(random)},
        },
        5 => Question {
            compare: Compare::Values,
            command: doc! {"distinct": "c", "key": path(random), "query": filter(random)},
        },
        _ => {
            let (compare, stages) = stages(random);
            let stages = Value::Array(stages.into_iter().collect::<Array>());
            Question {
                compare,
                command: doc! {"aggregate": "c", "pipeline": stages, "cursor": doc! {}},
            }
        }
    }
}
