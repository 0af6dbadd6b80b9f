//! Entries of one bucket that arrive in another order than they were staged in, or never.
//!
//! An entry names each column that no entry before it named, entries in flight included. Readers see a column once a value of it
//! has arrived, with its bounds.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::{Fixture, measurements, sorted_fields};

fn with_field(seconds: i64, name: &str, value: i32) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", seconds);
    out.append("t", Value::DateTime(seconds * 1000));
    out.append("m", "a").append("v", 1).append(name, value);
    out.finish()
}

/// The only bucket's columns, and its measurements by time.
fn columns_and_rows(f: &Fixture) -> (Vec<String>, Vec<Document>) {
    let buckets = f.buckets(false);
    let [bucket] = &buckets[..] else {
        panic!("{} buckets", buckets.len())
    };
    let document = bucket.to_document().unwrap();
    let control = document.get("control").as_document().unwrap();
    let names = |part: ValueRef<'_>| -> Vec<String> {
        let fields = part.as_document().unwrap().iter();
        fields.map(|element| element.name().to_owned()).collect()
    };
    let columns = names(document.get("data"));
    assert_eq!(names(control.get("min")), columns);
    assert_eq!(names(control.get("max")), columns);
    let mut rows = measurements(bucket);
    rows.sort_by_key(|row| row.get("_id").as_exact_i64());
    (columns, rows)
}

fn all_of(documents: &[&Document]) -> Vec<Document> {
    let documents = documents.iter();
    documents.map(|d| sorted_fields(d.as_ref())).collect()
}

#[test]
fn a_column_is_there_when_its_first_value_has_arrived() {
    let f = Fixture::new();
    let [first, second, third] = [
        with_field(1, "w", 1),
        with_field(2, "late", 2),
        with_field(3, "soon", 3),
    ];
    f.insert(std::slice::from_ref(&first), true);
    let late = f.stage(std::slice::from_ref(&second));
    let soon = f.stage(std::slice::from_ref(&third));
    f.arrive(soon);
    let without = (
        ["t", "_id", "v", "w", "soon"].map(str::to_owned).to_vec(),
        all_of(&[&first, &third]),
    );
    assert_eq!(columns_and_rows(&f), without);
    // The entries the late one depends on are not folded.
    f.timeseries.seal_all(&f.collection).unwrap();
    assert_eq!(columns_and_rows(&f), without);
    f.arrive(late);
    let whole = (
        ["t", "_id", "v", "w", "late", "soon"]
            .map(str::to_owned)
            .to_vec(),
        all_of(&[&first, &second, &third]),
    );
    assert_eq!(columns_and_rows(&f), whole);
    f.timeseries.wait_for_maintenance().unwrap();
    assert_eq!(columns_and_rows(&f), whole);
}

#[test]
fn a_column_whose_first_value_was_lost_in_a_crash_is_left_out() {
    for sealed_at_once in [false, true] {
        let f = Fixture::new();
        let first = with_field(1, "w", 1);
        f.insert(std::slice::from_ref(&first), true);
        let _lost = f.stage(&[with_field(2, "lost", 2)]);
        let third = with_field(3, "kept", 3);
        f.arrive(f.stage(std::slice::from_ref(&third)));
        let f = f.reopened();
        let expected = ["t", "_id", "v", "w", "kept"].map(str::to_owned).to_vec();
        assert_eq!(columns_and_rows(&f).0, expected);
        if sealed_at_once {
            f.timeseries.seal_unsealed(&f.collection).unwrap();
            f.timeseries.wait_for_maintenance().unwrap();
        }
        // It is reopened, and further fields find their columns.
        let more = [with_field(4, "kept", 4), with_field(5, "new", 5)];
        f.insert(&more[..1], true);
        f.insert(&more[1..], true);
        let rows = all_of(&[&first, &third, &more[0], &more[1]]);
        let expected = ["t", "_id", "v", "w", "kept", "new"];
        let expected = (expected.map(str::to_owned).to_vec(), rows);
        assert_eq!(columns_and_rows(&f), expected);
        f.timeseries.seal_unsealed(&f.collection).unwrap();
        f.timeseries.wait_for_maintenance().unwrap();
        assert_eq!(columns_and_rows(&f), expected);
        let again = with_field(6, "new", 6);
        f.insert(std::slice::from_ref(&again), true);
        let (columns, rows) = columns_and_rows(&f);
        assert_eq!(
            (columns, rows.last()),
            (expected.0, all_of(&[&again]).last())
        );
    }
}

/// Measurements of 40 series in commands of 300, their fields and those of their metadata as given or in any order.
fn of_series(is_shuffled: bool) -> Fixture {
    let f = Fixture::new();
    let mut draw = super::Draw::new(9);
    let mut in_order = |count: usize| {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let at = draw.below(last as u64 + 1) as usize;
            if is_shuffled {
                order.swap(last, at);
            }
        }
        order
    };
    let document = |n: i64, order: &[usize], of_meta: &[usize]| {
        let mut out = DocumentBuilder::new();
        for field in order {
            match field {
                0 => {
                    out.append("t", Value::DateTime(n * 10));
                }
                1 => {
                    out.begin_document("m");
                    for tag in of_meta {
                        let name = ["host", "a", "rack", "service_environment"][*tag];
                        out.append(name, format!("{}", (n % 40) >> tag));
                    }
                    out.end();
                }
                2 => {
                    out.append("_id", n);
                }
                3 => {
                    out.append("s", "cpu");
                }
                _ => {
                    out.append(&format!("usage_{field}"), (n * 7 % 13) as f64);
                }
            }
        }
        out.finish()
    };
    for command in 0..10 {
        let documents: Vec<Document> = (command * 300..command * 300 + 300)
            .map(|n| document(n, &in_order(9), &in_order(4)))
            .collect();
        f.insert(&documents, true);
    }
    f
}

#[test]
fn fields_in_any_order_make_the_same_series_and_buckets() {
    let contents = |f: &Fixture| {
        let buckets = f.buckets(false);
        let buckets = buckets.iter().map(|bucket| {
            let document = bucket.to_document().unwrap();
            let meta = sorted_fields(document.get("meta").as_document().unwrap());
            let rows = measurements(bucket);
            (meta, rows)
        });
        let mut buckets: Vec<_> = buckets.collect();
        buckets.sort_by_key(|(meta, _)| meta.as_bytes().to_vec());
        buckets
    };
    let (plain, shuffled) = (of_series(false), of_series(true));
    let expected = contents(&plain);
    assert_eq!(expected.len(), 40);
    assert_eq!(contents(&shuffled), expected);
    for f in [&plain, &shuffled] {
        f.timeseries.seal_all(&f.collection).unwrap();
        assert_eq!(contents(f), expected);
    }
}
