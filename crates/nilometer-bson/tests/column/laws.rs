//! Properties of every column, tested on generated values.

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::column::{self, ColumnBuilder, RawValue};
use nilometer_bson::fuzz::{self, Numbers};
use nilometer_bson::{ValueRef, doc};
use proptest::prelude::*;

/// Consecutive values of one pattern, similar to those of a sensor.
#[derive(Debug, Clone)]
struct Run {
    kind: u8,
    len: usize,
    seed: u64,
    /// One in this many values is missing; 0 for none.
    gaps: u64,
}

const KINDS: u8 = 20;

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let run =
        (0..KINDS, 1_usize..200, any::<u64>(), 0_u64..6).prop_map(|(kind, len, seed, gaps)| {
            let len = if seed.is_multiple_of(9) {
                len * 20
            } else {
                len
            };
            Run {
                kind,
                len,
                seed,
                gaps: if gaps < 3 { 0 } else { gaps },
            }
        });
    prop::collection::vec(run, 1..6)
}

fn raw(value: ValueRef<'_>) -> RawValue {
    let mut bytes = Vec::new();
    nilometer_bson::document::write_value(&mut bytes, value);
    RawValue {
        tag: value.type_code(),
        bytes: bytes.into(),
    }
}

fn values(runs: &[Run]) -> Vec<RawValue> {
    let mut out = Vec::new();
    for run in runs {
        let mut numbers = Numbers::new(run.seed);
        for at in 0..run.len as i64 {
            if run.gaps > 0 && numbers.below(run.gaps) == 0 {
                out.push(RawValue::missing());
            } else {
                out.push(value(run, at, &mut numbers));
            }
        }
    }
    out
}

fn value(run: &Run, at: i64, numbers: &mut Numbers) -> RawValue {
    let random = numbers.next_u64();
    let few = numbers.below(4) as i64;
    let scale = [1.0, 10.0, 100.0, 1e4, 1e8][(run.seed % 5) as usize];
    let text = |len: u64, numbers: &mut Numbers| -> String {
        (0..len)
            .map(|_| (b'a' + numbers.below(26) as u8) as char)
            .collect()
    };
    match run.kind {
        0 => raw(ValueRef::Int32(run.seed as i32)),
        1 => raw(ValueRef::Int32(at as i32 * 3)),
        2 => raw(ValueRef::Int32((few * few * few) as i32)),
        3 => raw(ValueRef::Int64((random >> (run.seed % 64)) as i64)),
        4 => raw(ValueRef::Int64((at * 1000) << (run.seed % 30))),
        5 => raw(ValueRef::Double((at * few) as f64 / scale)),
        6 => raw(ValueRef::Double(f64::from_bits(random))),
        7 => {
            let mixed = [1.0, 2.5, 3.25, 0.1, -0.0, 1e-9, f64::NAN, 7.0];
            raw(ValueRef::Double(mixed[(random % 8) as usize]))
        }
        8 => raw(ValueRef::Bool(random.is_multiple_of(5))),
        9 => raw(ValueRef::DateTime(1_700_000_000_000 + at * 1000)),
        10 => raw(ValueRef::DateTime(1_700_000_000_000 + at * 1000 + few)),
        11 => raw(ValueRef::Timestamp(nilometer_bson::Timestamp {
            seconds: 1000 + at as u32,
            increment: few as u32,
        })),
        12 => {
            let mut id = [0x55; 12];
            id[..4].copy_from_slice(&(at as u32 / 7).to_be_bytes());
            id[9..].copy_from_slice(&(at as u32).to_be_bytes()[1..]);
            id[5] = u8::from(random.is_multiple_of(50));
            raw(ValueRef::ObjectId(nilometer_bson::ObjectId(id)))
        }
        13 => raw(ValueRef::String(&format!("host_{few}"))),
        14 => raw(ValueRef::String(&text(random % 20, numbers))),
        15 => {
            let len = (random % 20) as usize;
            let bytes = [few as u8; 20];
            let subtype = [0, 0, 5][(random % 3) as usize];
            let bytes = &bytes[..if run.seed.is_multiple_of(2) { 12 } else { len }];
            raw(ValueRef::Binary { subtype, bytes })
        }
        16 => raw(ValueRef::Decimal128(nilometer_bson::Decimal128 {
            low: (random >> 50) << (run.seed % 50),
            high: 0x3040_0000_0000_0000,
        })),
        17 => match random % 40 {
            0 => raw(ValueRef::Undefined),
            1 => raw(ValueRef::MinKey),
            2 => raw(ValueRef::MaxKey),
            3 => raw(ValueRef::Symbol("s")),
            4 => raw(ValueRef::Regex {
                pattern: "a",
                options: "i",
            }),
            _ => raw(ValueRef::Null),
        },
        18 => {
            let inner = doc! { "c": few, "s": if random.is_multiple_of(3) { "x" } else { "y" } };
            let inner = if random.is_multiple_of(20) {
                doc! {}
            } else {
                inner
            };
            let extra = (random.is_multiple_of(11)).then_some(at as f64 / 2.0);
            let whole = doc! { "a": at as i32, "b": inner, "d": extra };
            raw(ValueRef::Document(whole.as_ref()))
        }
        _ => {
            let list: Vec<nilometer_bson::Value> =
                (0..few.max(1)).map(|item| (at + item).into()).collect();
            raw(nilometer_bson::Value::from(list).as_ref())
        }
    }
}

fn builder(values: &[RawValue]) -> ColumnBuilder {
    let mut builder = ColumnBuilder::new();
    for value in values {
        builder.append_raw(value.tag, &value.bytes).unwrap();
    }
    builder
}

fn raw_values(block: &ColumnBlock) -> Vec<RawValue> {
    block.iter().map(raw).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn columns_round_trip(runs in runs()) {
        let values = values(&runs);
        let column = builder(&values).finish();
        let read = column::decode_raw(&column, values.len()).unwrap();
        prop_assert!(read == values, "values differ");
        let block = column::decode_block(&column, values.len()).unwrap();
        prop_assert!(raw_values(&block) == values, "block differs");
        prop_assert_eq!(column::count(&column), Ok(values.len()));
        prop_assert_eq!(column::validate(&column, values.len()), Ok(values.len()));
        let last = column::last(&column, values.len()).unwrap();
        prop_assert_eq!(&raw(last.as_ref()), values.last().unwrap());
        let refused = column::decode_block(&column, values.len() - 1);
        let limit = values.len() - 1;
        prop_assert_eq!(refused.unwrap_err(), column::ColumnError::TooManyValues { limit });
    }

    #[test]
    fn typed_appends_write_the_same_bytes(runs in runs()) {
        let values = values(&runs);
        let column = builder(&values).finish();
        let mut typed = ColumnBuilder::new();
        for value in &column::decode_values(&column, values.len()).unwrap() {
            typed.append(value.as_ref()).unwrap();
        }
        prop_assert!(typed.finish() == column);
    }

    #[test]
    fn diffs_add_up_to_the_whole(runs in runs(), every in 1_usize..90) {
        let values = values(&runs);
        let mut whole = ColumnBuilder::new();
        let mut column = Vec::new();
        for part in values.chunks(every) {
            for value in part {
                whole.append_raw(value.tag, &value.bytes).unwrap();
            }
            whole.diff().apply(&mut column);
            prop_assert!(column == whole.to_bytes(), "after a part");
        }
        prop_assert!(column == builder(&values).finish());
    }

    #[test]
    fn reopened_columns_go_on(runs in runs(), at in 0_usize..400) {
        let values = values(&runs);
        let (first, rest) = values.split_at(at.min(values.len()));
        let column = builder(first).finish();
        let mut reopened = ColumnBuilder::reopen(&column, first.len()).unwrap();
        prop_assert_eq!(reopened.count(), first.len());
        for value in rest {
            reopened.append_raw(value.tag, &value.bytes).unwrap();
        }
        let mut patched = column;
        reopened.diff().apply(&mut patched);
        prop_assert!(patched == builder(&values).finish());
    }

    #[test]
    fn blocks_built_by_value_hold_the_same(runs in runs(), from in 0_usize..300, len in 0_usize..300) {
        let values = values(&runs);
        let column = builder(&values).finish();
        let owned = column::decode_values(&column, values.len()).unwrap();
        let block = ColumnBlock::from_values(&owned);
        prop_assert!(raw_values(&block) == values);
        let read = column::decode_block(&column, values.len()).unwrap();
        prop_assert_eq!(read.present_count(), block.present_count());
        prop_assert!(raw_values(&read.clone().flatten()) == values);
        let short = read.clone().shortened();
        prop_assert!(raw_values(&short) == values);
        prop_assert_eq!(format!("{:?}", short.min_max()), format!("{:?}", read.min_max()));
        let indices: Vec<u32> = (0..len as u32).map(|at| at * 7 % (values.len() as u32 + 3)).collect();
        let picked: Vec<RawValue> = indices
            .iter()
            .map(|at| values.get(*at as usize).cloned().unwrap_or_default())
            .collect();
        let sliced: Vec<RawValue> = values.iter().skip(from).take(len).cloned().collect();
        for block in [read, block, short] {
            prop_assert!(raw_values(&block.select(&indices)) == picked);
            prop_assert!(raw_values(&block.slice(from..from + len)) == sliced);
        }
    }

    #[test]
    fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), seed in any::<u64>()) {
        fuzz::column_decode(&bytes);
        fuzz::column_decode(&fuzz::column_bytes(seed));
    }

    #[test]
    fn decoding_damaged_columns_does_not_panic(runs in runs(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let values = values(&runs);
        let mut column = builder(&values).finish();
        let at = at.index(column.len());
        column[at] ^= 1_u8 << bit;
        fuzz::column_decode(&column);
    }
}

#[test]
fn size_is_roughly_right_at_any_time() {
    let mut builder = ColumnBuilder::new();
    for at in 0..5000_i64 {
        builder.append_i64(at * at % 1000);
        let (size, real) = (builder.size_bytes(), builder.to_bytes().len());
        if at % 97 == 0 {
            assert!(size.abs_diff(real) <= 16, "{size} for {real}");
        }
    }
}

#[test]
fn decoding_memory_is_limited() {
    // One literal of 64 KiB and 16 repeat words: 30,721 times the same value.
    let mut column = vec![2, 0];
    column.extend(65_537_u32.to_le_bytes());
    column.extend(vec![b'x'; 65_536]);
    column.extend([0, 0x8F]);
    column.extend([0xFF, 0, 0, 0, 0, 0, 0, 0].repeat(16));
    column.push(0);
    assert_eq!(column::count(&column), Ok(30_721));
    let refused = column::decode_values(&column, 1000).unwrap_err();
    assert_eq!(refused, column::ColumnError::TooManyValues { limit: 1000 });
    let block = column::decode_block(&column, 40_000).unwrap();
    assert!(block.as_constant().is_some());
    // As objects this would be 2 GiB of documents.
    let mut section = vec![0xF1];
    let reference = doc! { "x": "x".repeat(65_536), "y": 1 };
    section.extend(reference.as_bytes());
    for second in [0_u8, 1] {
        section.push(0x8F);
        for word in 0..16 {
            let slot = if second == 1 && word == 0 { 0x2E } else { 0x0E };
            section.extend([if word == 0 { slot } else { 0xFF }, 0, 0, 0, 0, 0, 0, 0]);
        }
    }
    section.extend([0, 0]);
    let refused = column::decode_block(&section, 40_000).unwrap_err();
    assert!(
        matches!(refused, column::ColumnError::TooLarge { .. }),
        "{refused}"
    );
}

#[test]
fn references_without_leaves_are_rejected() {
    let leaves = 2_000_000_u32;
    let mut column = vec![0xF1];
    column.extend((leaves * 2 + 5).to_le_bytes());
    column.extend([0x0A, 0].repeat(leaves as usize));
    column.extend([0, 0, 0]);
    for refused in [
        column::decode_block(&column, 10).map(drop),
        column::decode_raw(&column, 10).map(drop),
        column::count(&column).map(drop),
    ] {
        assert!(
            matches!(refused, Err(column::ColumnError::TooLarge { .. })),
            "{refused:?}"
        );
    }
}
