//! Tests of bucket documents.

use super::super::sealed;
use super::*;

/// The reference: a column that is built value by value.
fn one_by_one(values: &[Value]) -> (Vec<u8>, Value, Value) {
    let mut builder = ColumnBuilder::new();
    let (mut min, mut max) = (Extreme::none(), Extreme::none());
    for value in values {
        let value = value.as_ref();
        tail::append_value(&mut builder, value).unwrap();
        min.update(value, Side::Min, &Collation::SIMPLE);
        max.update(value, Side::Max, &Collation::SIMPLE);
    }
    (builder.finish(), min.to_value(), max.to_value())
}

/// The identity of a number: its type and bytes.
fn bytes(value: &Value) -> (u8, Vec<u8>) {
    let mut out = Vec::new();
    nilometer_bson::document::write_value(&mut out, value.as_ref());
    (value.type_code(), out)
}

#[test]
fn values_that_were_held_are_those_that_came() {
    let mut seed = 7u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let number = |kind: usize, n: usize| match kind {
        0 => Value::from(n as i32 - 3),
        1 => Value::from(n as i64 - 3),
        2 => Value::from([0.0, -0.0, 1.5, f64::NAN, 3.0, -2.0, 2.0][n]),
        3 => Value::DateTime(n as i64 * 1000),
        4 => Value::Missing,
        _ => Value::from("text"),
    };
    for round in 0..400 {
        let kinds = 1 + round % 6;
        let mut values = Vec::new();
        while values.len() < 60 {
            let kind = next(kinds);
            for _ in 0..=next(12) {
                values.push(number(kind, next(if round % 2 == 0 { 3 } else { 7 })));
            }
        }
        let mut column = ImageColumn::new("v".into());
        for (row, value) in values.iter().enumerate() {
            if !value.is_missing() {
                column.pad(row, &Collation::SIMPLE);
                column.append(value.as_ref(), &Collation::SIMPLE).unwrap();
            }
        }
        column.pad(values.len(), &Collation::SIMPLE);
        let found = column.finish(&Collation::SIMPLE);
        let (expected, min, max) = one_by_one(&values);
        assert_eq!(found.bytes, expected, "{values:?}");
        assert_eq!(bytes(&found.min), bytes(&min), "{values:?}");
        assert_eq!(bytes(&found.max), bytes(&max), "{values:?}");
        let dates = values.iter().map(Value::as_ref).filter_map(|v| match v {
            ValueRef::DateTime(ms) => Some(ms),
            _ => None,
        });
        assert_eq!(column.ascending, dates.is_sorted());
    }
}
#[test]
fn what_is_split_without_being_made_is_the_document() {
    let layout = Layout {
        time_field: "t",
        collation: Collation::SIMPLE,
    };
    let header = Header {
        start_ms: 0,
        meta: Value::from("m"),
    };
    // The value of column `at` in a row.
    let value = |at: usize, row: i64| match (at, row % 50) {
        (0, _) => Value::DateTime(row * 1000 + row % 3),
        (1, _) => Value::from(row * row % 40),
        (2, _) => Value::from((row % 7) as i32),
        (3, _) => Value::from((row % 5) as f64),
        (4, _) => Value::from(row as f64 / 10.0),
        (5, 17) => Value::Missing,
        (6, _) => Value::from("the same"),
        (7, 13) => Value::from("another type"),
        (8, _) => Value::from(-0.0),
        (9, _) => Value::Missing,
        _ => Value::from(row),
    };
    for rows in [1, 2, 9, 100, 360, 1000, 2500] {
        let image = || {
            let mut image = BucketImage::new([7; 12], &header, &layout);
            for at in 0..11 {
                let name = if at == 0 {
                    "t".to_owned()
                } else {
                    format!("f{at}")
                };
                let column = image.column(&name);
                for row in 0..rows {
                    image.append(column, value(at, row).as_ref()).unwrap();
                }
            }
            image.rows = rows as usize;
            image
        };
        let stored = sealed::seal_split(&image().into_split());
        let document = sealed::load(&stored).unwrap();
        assert_eq!(document, image().into_document(), "{rows}");
    }
}
