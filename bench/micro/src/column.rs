//! BSONColumn: decoding into blocks and encoding, for realistic columns.
//!
//! Where the time goes, on the reference machine:
//!
//! - runs of zeros and repeats are filled: limited by memory, for short columns by allocation;
//! - other words cost one pass of shift, mask, un-zigzag and add per value, between two and six instructions each;
//! - scaled doubles add a conversion and a division per value, in a second loop over one word;
//! - values that do not fit a word (random doubles) are literals: ten bytes are stepped over at a time;
//! - encoding is the width of a value and a push for each, and packing once per word; doubles also divide.

use std::hint::black_box;

use nilometer_bson::column::{self, ColumnBuilder};
use nilometer_bson::fuzz::Numbers;
use nilometer_bson::{ObjectId, Value, ValueRef};

use crate::measure::seconds;

/// Columns of each kind, so that the branch predictor does not learn one.
const COLUMNS: usize = 64;

struct ColumnKind {
    name: &'static str,
    value: fn(usize, &mut Numbers) -> Value,
}

const START_MS: i64 = 1_700_000_000_000;

const KINDS: &[ColumnKind] = &[
    ColumnKind {
        name: "timestamps, fixed interval",
        value: |at, _| Value::DateTime(START_MS + at as i64 * 10_000),
    },
    ColumnKind {
        name: "timestamps, jittered",
        value: |at, numbers| {
            Value::DateTime(START_MS + at as i64 * 10_000 + numbers.below(50) as i64)
        },
    },
    ColumnKind {
        name: "RLE-heavy int64",
        value: |at, _| Value::Int64((at / 400) as i64),
    },
    ColumnKind {
        name: "constant double",
        value: |_, _| Value::Double(21.5),
    },
    ColumnKind {
        name: "small int32",
        value: |_, numbers| Value::Int32(numbers.below(16) as i32),
    },
    ColumnKind {
        name: "small int64",
        value: |_, numbers| Value::Int64(numbers.below(100) as i64),
    },
    ColumnKind {
        name: "counter int64",
        value: |at, numbers| Value::Int64(1_000_000 + at as i64 * 40 + numbers.below(40) as i64),
    },
    ColumnKind {
        name: "smooth double, 1 decimal",
        value: |at, numbers| {
            let wave = ((at as f64 / 50.0).sin() * 300.0) as i64 + numbers.below(3) as i64;
            Value::Double((200 + wave) as f64 / 10.0)
        },
    },
    ColumnKind {
        name: "smooth double, 2 decimals",
        value: |at, numbers| {
            let wave = ((at as f64 / 50.0).sin() * 3000.0) as i64 + numbers.below(20) as i64;
            Value::Double((2000 + wave) as f64 / 100.0)
        },
    },
    ColumnKind {
        name: "whole double (0..100)",
        value: |_, numbers| Value::Double(numbers.below(100) as f64),
    },
    ColumnKind {
        name: "random double",
        value: |_, numbers| Value::Double((numbers.next_u64() >> 11) as f64 / 9.0e15),
    },
    ColumnKind {
        name: "gappy int64 (1 in 10 missing)",
        value: |_, numbers| match numbers.below(10) {
            0 => Value::Missing,
            _ => Value::Int64(numbers.below(100) as i64),
        },
    },
    ColumnKind {
        name: "low-cardinality string",
        value: |_, numbers| Value::String(format!("host_{}", numbers.below(8)).into()),
    },
    ColumnKind {
        name: "constant string",
        value: |_, _| Value::String("eu-central-1".into()),
    },
    ColumnKind {
        name: "object id",
        value: |at, numbers| {
            let mut id = [0x5A; 12];
            let seconds = 1_700_000_000 + at as u32 / 10 + numbers.below(2) as u32;
            id[..4].copy_from_slice(&seconds.to_be_bytes());
            id[9..].copy_from_slice(&(at as u32).to_be_bytes()[1..]);
            Value::ObjectId(ObjectId(id))
        },
    },
];

/// Prints a line for each kind of column whose name contains `filter`.
pub(crate) fn run(len: usize, filter: &str) {
    let columns = columns(len);
    println!("BSONColumn, {columns} columns of {len} values; M = million values/s");
    println!(
        "{:32}{:>10}{:>12}{:>10}{:>12}{:>10}",
        "", "bits/value", "decode M/s", "MB/s in", "encode M/s", "MB/s out"
    );
    for kind in KINDS.iter().filter(|kind| kind.name.contains(filter)) {
        run_kind(kind, len);
    }
}

/// Returns the number of columns of a length to measure together.
fn columns(len: usize) -> usize {
    if len > 10_000 { 2 } else { COLUMNS }
}

fn run_kind(kind: &ColumnKind, len: usize) {
    let columns = columns(len);
    let inputs: Vec<Vec<Value>> = (0..columns)
        .map(|seed| {
            let mut numbers = Numbers::new(seed as u64);
            (0..len).map(|at| (kind.value)(at, &mut numbers)).collect()
        })
        .collect();
    let encoded: Vec<Vec<u8>> = inputs.iter().map(|input| encode(input)).collect();
    let values = (columns * len) as f64;
    let bytes: usize = encoded.iter().map(Vec::len).sum();
    let decode = seconds(|| {
        for column in &encoded {
            let block = column::decode_block(black_box(column), len);
            black_box(block).ok();
        }
    });
    let encode = encode_seconds(&inputs);
    println!(
        "{:32}{:>10.2}{:>12.0}{:>10.0}{:>12.0}{:>10.0}",
        kind.name,
        bytes as f64 * 8.0 / values,
        values / decode / 1e6,
        bytes as f64 / decode / 1e6,
        values / encode / 1e6,
        bytes as f64 / encode / 1e6,
    );
}

fn encode(input: &[Value]) -> Vec<u8> {
    let mut builder = ColumnBuilder::new();
    for value in input {
        builder.append(value.as_ref()).expect("storable");
    }
    builder.finish()
}

/// Measures encoding from typed vectors if possible, else from values.
fn encode_seconds(inputs: &[Vec<Value>]) -> f64 {
    let typed = |wanted: fn(&Value) -> bool| inputs.iter().flatten().all(wanted);
    if typed(|value| matches!(value, Value::Double(_))) {
        let inputs = vectors(inputs, |value| match value {
            Value::Double(value) => *value,
            _ => 0.0,
        });
        return time_typed(&inputs, ColumnBuilder::append_f64);
    }
    if typed(|value| matches!(value, Value::Int64(_))) {
        let inputs = vectors(inputs, |value| match value {
            Value::Int64(value) => *value,
            _ => 0,
        });
        return time_typed(&inputs, ColumnBuilder::append_i64);
    }
    if typed(|value| matches!(value, Value::DateTime(_))) {
        let inputs = vectors(inputs, |value| match value {
            Value::DateTime(value) => *value,
            _ => 0,
        });
        return time_typed(&inputs, ColumnBuilder::append_datetime);
    }
    let borrowed: Vec<Vec<ValueRef<'_>>> = inputs
        .iter()
        .map(|input| input.iter().map(Value::as_ref).collect())
        .collect();
    time_typed(&borrowed, |builder, value| {
        builder.append(value).expect("storable");
    })
}

fn vectors<T>(inputs: &[Vec<Value>], get: impl Fn(&Value) -> T) -> Vec<Vec<T>> {
    let vector = |input: &Vec<Value>| input.iter().map(&get).collect();
    inputs.iter().map(vector).collect()
}

fn time_typed<T: Copy>(inputs: &[Vec<T>], append: impl Fn(&mut ColumnBuilder, T)) -> f64 {
    seconds(|| {
        for input in inputs {
            let mut builder = ColumnBuilder::new();
            for value in black_box(input) {
                append(&mut builder, *value);
            }
            black_box(builder.finish());
        }
    })
}
