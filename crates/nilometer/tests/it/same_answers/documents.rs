//! Random measurements: times at the limits of bucket ids, columns of one type, of few values, of any values.

use super::*;

/// Significant days, in ms since 1970: long before 1970, its eve, its first moment, an ordinary one, the
/// end of 32-bit seconds, and after it.
pub(crate) const DAYS: [i64; 7] = [
    -2_208_988_800_000,
    -7_200_000,
    0,
    1_700_000_000_000,
    1_700_003_600_000,
    2_147_483_640_000,
    4_102_444_800_000,
];

pub(crate) fn decimal(text: &str) -> Value {
    let value =
        nilometer_bson::extjson::parse_value(&format!("{{\"$numberDecimal\": \"{text}\"}}"));
    value.expect("a decimal")
}

pub(crate) fn time(random: &mut Random) -> Value {
    let day = *random.pick(&DAYS);
    let offset = match random.below(4) {
        0 => 0,
        1 => random.below(60_000) as i64,
        2 => random.below(3_600_000) as i64,
        _ => random.below(10) as i64 * 86_400_000,
    };
    Value::DateTime(day + offset)
}

pub(crate) fn scalar(random: &mut Random) -> Value {
    match random.below(16) {
        0..=3 => Value::Int32(random.int(7) - 2),
        4..=6 => Value::Double(f64::from(random.int(24) - 8) / 4.0),
        7 => Value::Int64(i64::from(random.int(7) - 2)),
        8 => Value::Null,
        9 => Value::Double(f64::NAN),
        10 => decimal(["1", "1.50", "-2", "0.25"][random.below(4) as usize]),
        11 | 12 => Value::from(*random.pick(&["", "a", "b", "ab", "é"])),
        13 => Value::Bool(random.below(2) == 0),
        14 => time(random),
        _ => Value::Double(*random.pick(&[-0.0, f64::INFINITY, f64::NEG_INFINITY])),
    }
}

pub(crate) fn list(random: &mut Random, depth: u32) -> Value {
    let length = random.below(4);
    let values = (0..length).map(|_| value(random, depth));
    Value::Array(values.collect::<Array>())
}

pub(crate) fn value(random: &mut Random, depth: u32) -> Value {
    match random.below(8) {
        0 if depth > 0 => list(random, depth - 1),
        1 if depth > 0 => {
            let mut inner = DocumentBuilder::new();
            for name in ["x", "y", "z"] {
                if random.below(3) > 0 {
                    inner.append(name, value(random, depth - 1));
                }
            }
            inner.finish().into()
        }
        _ => scalar(random),
    }
}

/// Returns a value of a kind of column: of one type, of few values, of any values.
pub(crate) fn field(random: &mut Random, kind: u64, at: i32) -> Value {
    match kind {
        0 => Value::Int32(random.int(5)),
        1 => Value::Double(f64::from(random.int(40)) / 4.0),
        2 => Value::from(*random.pick(&["a", "b", "c"])),
        3 => Value::Int64(i64::from(at) * 1000),
        4 if random.below(3) == 0 => Value::Missing,
        4 => Value::Int32(at),
        5 => doc! {"x": random.int(3), "y": doc! {"z": random.int(2)}}.into(),
        6 => Value::Int32(7),
        7 => list(random, 1),
        _ if random.below(4) == 0 => Value::Missing,
        _ => value(random, 2),
    }
}

pub(crate) fn meta(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Missing,
        1 => Value::Null,
        2 => Value::from("a"),
        3 => Value::Int32(1),
        4 => Value::Double(1.0),
        5 => doc! {"x": 1, "y": "a"}.into(),
        6 => array![1, "a"],
        _ => doc! {"x": random.int(3)}.into(),
    }
}

pub(crate) fn documents(random: &mut Random) -> Vec<Document> {
    let kinds: Vec<u64> = (0..4).map(|_| random.below(12)).collect();
    let one_day = random.below(3) == 0;
    // Buckets have fields of these names, too.
    let names = match random.below(3) {
        0 => ["a", "meta", "control", "data"],
        _ => ["a", "b", "c", "d"],
    };
    // Sometimes more than a bucket holds.
    let count = if random.below(16) == 0 {
        1200 + random.int(1500)
    } else {
        1 + random.int(120)
    };
    let mut order: Vec<i32> = (0..count).collect();
    if random.below(2) == 0 {
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
    }
    let mut documents = Vec::new();
    for at in order {
        let time = if one_day {
            Value::DateTime(1_700_000_000_000 + i64::from(at) * 7_000)
        } else {
            time(random)
        };
        let mut document = DocumentBuilder::new();
        document.append("_id", at).append("t", time);
        let meta = meta(random);
        if !meta.is_missing() {
            document.append("m", meta);
        }
        for (name, kind) in names.into_iter().zip(&kinds) {
            let value = field(random, *kind, at);
            if !value.is_missing() {
                document.append(name, value);
            }
        }
        documents.push(document.finish());
    }
    documents
}
