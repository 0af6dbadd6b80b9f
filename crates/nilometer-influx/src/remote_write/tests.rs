//! Tests of remote write.

use super::*;
use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::validate::{Limits, validate_prefix};
use nilometer_bson::{DocRef, fuzz::Numbers};

fn bytes(number: u8, inside: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(inside.len()).unwrap()];
    out.extend_from_slice(inside);
    out
}

fn series(labels: &[(&str, &str)], samples: &[(i64, f64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in labels {
        let label = [bytes(1, name.as_bytes()), bytes(2, value.as_bytes())].concat();
        out.extend(bytes(1, &label));
    }
    for (time, value) in samples {
        let mut sample = vec![1 << 3 | 1];
        sample.extend_from_slice(&value.to_le_bytes());
        sample.push(2 << 3);
        let mut rest = time.cast_unsigned();
        while rest >= 0x80 {
            sample.push(rest as u8 & 0x7F | 0x80);
            rest >>= 7;
        }
        sample.push(rest as u8);
        out.extend(bytes(2, &sample));
    }
    bytes(1, &out)
}

fn known_all(names: &[&str]) -> Vec<Result<Arc<Schema>, String>> {
    names.iter().map(|_| Ok(Arc::default())).collect()
}

fn documents(batch: &Batch) -> Vec<String> {
    let mut rest = batch.documents.as_slice();
    let mut out = Vec::new();
    for _ in &batch.lines {
        let length = validate_prefix(rest, &Limits::default()).expect("a document");
        out.push(to_relaxed(
            DocRef::new(&rest[..length]).expect("a document"),
        ));
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
    out
}

#[test]
fn samples_become_documents_and_bad_series_are_rejected() {
    let body = [
        series(
            &[
                ("__name__", "up"),
                ("job", "a"),
                ("instance", "b:1"),
                ("empty", ""),
            ],
            &[(1, 1.0), (-2, 0.5)],
        ),
        bytes(3, b"metadata"),
        series(&[("job", "a")], &[(1, 1.0)]),
        series(&[("__name__", "up"), ("a.b", "x")], &[(1, 1.0)]),
        series(
            &[("__name__", "up"), ("job", "x"), ("job", "y")],
            &[(1, 1.0)],
        ),
        series(&[("__name__", "known")], &[(1, 1.0)]),
        series(&[("__name__", "up")], &[(i64::MAX, 1.0)]),
        series(&[("__name__", "up")], &[(3, f64::NAN)]),
    ]
    .concat();
    let read = read(&body, &mut |names| {
        let schema = |name: &&str| {
            let mut schema = Schema::default();
            if *name == "known" {
                schema.types.insert("value".to_owned(), FieldType::Integer);
            }
            Ok(Arc::new(schema))
        };
        names.iter().map(schema).collect()
    })
    .unwrap();
    let rejected: Vec<usize> = read.rejections.iter().map(|one| one.line).collect();
    assert_eq!(rejected, [2, 3, 4, 5, 6], "{:?}", read.rejections);
    assert_eq!(read.batches.len(), 1);
    assert_eq!(
        documents(&read.batches[0]),
        [
            r#"{"time":{"$date":"1970-01-01T00:00:00.001Z"},"tags":{"instance":"b:1","job":"a"},"value":1.0}"#,
            r#"{"time":{"$date":{"$numberLong":"-2"}},"tags":{"instance":"b:1","job":"a"},"value":0.5}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:00.003Z"},"value":{"$numberDouble":"NaN"}}"#,
        ]
    );
    assert_eq!(read.batches[0].lines, [1, 1, 7]);
}

#[test]
fn fuzz_remote_write() {
    let body = [
        series(&[("__name__", "up"), ("job", "a")], &[(1, 1.0), (2, 2.0)]),
        series(&[("__name__", "down"), ("job", "b")], &[(3, 1.0)]),
    ]
    .concat();
    let setting = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let first = setting("NILOMETER_FUZZ_SEED", 0);
    for seed in first..first + setting("NILOMETER_FUZZ_RUNS", 200) {
        let mut numbers = Numbers::new(seed);
        let mut bytes = body.clone();
        for _ in 0..1 + numbers.below(6) {
            let at = numbers.below(bytes.len() as u64) as usize;
            match numbers.below(3) {
                0 => bytes[at] = numbers.next_u64() as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, numbers.next_u64() as u8),
            }
        }
        if let Ok(read) = read(&bytes, &mut known_all) {
            read.batches.iter().for_each(|batch| drop(documents(batch)));
        }
    }
}

/// A field with bytes in it, whose length may take several bytes.
fn field(out: &mut Vec<u8>, number: u8, inside: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, inside.len() as u64);
    out.extend_from_slice(inside);
}

fn varint(out: &mut Vec<u8>, mut rest: u64) {
    while rest >= 0x80 {
        out.push(rest as u8 & 0x7F | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A series of a drawn body.
#[derive(Debug)]
struct DrawnSeries {
    labels: Vec<(Vec<u8>, Vec<u8>)>,
    samples: Vec<(i64, f64)>,
}

const DRAWN_NAMES: [&[u8]; 9] = [
    b"__name__",
    b"a",
    b"b",
    b"job",
    b"zone",
    b"",
    b"a.b",
    b"$a",
    b"\xFF",
];

fn draw_series(numbers: &mut Numbers) -> DrawnSeries {
    let mut labels = Vec::new();
    if numbers.below(20) > 0 {
        let metric = [b"up".to_vec(), b"down".to_vec(), b"$bad".to_vec()];
        let metric = metric[[0, 0, 0, 1, 1, 2][numbers.below(6) as usize]].clone();
        labels.push((NAME.into(), metric));
    }
    // Mostly in order and without flaws, as Prometheus sends them.
    let is_plain = numbers.below(3) > 0;
    for at in 0..numbers.below(6) as usize {
        let name = match is_plain {
            true => DRAWN_NAMES[1..5].get(at).map(|name| name.to_vec()),
            false => Some(DRAWN_NAMES[numbers.below(9) as usize].to_vec()),
        };
        let value = match numbers.below(12) {
            0 => Vec::new(),
            1 => vec![b'x'; 100 + numbers.below(100) as usize],
            2 => "\u{e4}".as_bytes().to_vec(),
            3 if !is_plain => vec![0xC3],
            _ => format!("v{}", numbers.below(3)).into_bytes(),
        };
        labels.extend(name.map(|name| (name, value)));
    }
    if numbers.below(10) == 0 {
        labels.reverse();
    }
    let samples = (0..numbers.below(4)).map(|_| match numbers.below(40) {
        0 => (i64::MAX, 0.0),
        _ => (numbers.next_u64() as i64 >> 24, numbers.below(9) as f64),
    });
    let samples = samples.collect();
    DrawnSeries { labels, samples }
}

fn write_series(numbers: &mut Numbers, series: &DrawnSeries) -> Vec<u8> {
    let (mut labels, mut samples) = (Vec::new(), Vec::new());
    for (name, value) in &series.labels {
        let mut label = Vec::new();
        // Absent fields and the other order are allowed.
        let value_first = numbers.below(10) == 0;
        if value_first {
            field(&mut label, 2, value);
        }
        if !name.is_empty() {
            field(&mut label, 1, name);
        }
        if !value_first {
            field(&mut label, 2, value);
        }
        field(&mut labels, 1, &label);
    }
    for (time, value) in &series.samples {
        let mut sample = vec![1 << 3 | 1];
        sample.extend_from_slice(&value.to_le_bytes());
        sample.push(2 << 3);
        varint(&mut sample, time.cast_unsigned());
        field(&mut samples, 2, &sample);
    }
    match numbers.below(10) {
        0 => [samples, labels].concat(),
        _ => [labels, samples].concat(),
    }
}

/// The documents of a series as relaxed JSON by plain rules; `None` if it is rejected.
fn expected(series: &DrawnSeries) -> Option<(String, Vec<String>)> {
    let name = series.labels.iter().find(|(name, _)| name == b"__name__");
    let metric = String::from_utf8(name?.1.clone()).ok()?;
    let mut tags = std::collections::BTreeMap::new();
    for (name, value) in &series.labels {
        if name == b"__name__" || value.is_empty() {
            continue;
        }
        let name = String::from_utf8(name.clone()).ok()?;
        let value = String::from_utf8(value.clone()).ok()?;
        if name.is_empty() || name.contains('.') || name.starts_with('$') {
            return None;
        }
        if tags.insert(name, value).is_some() {
            return None;
        }
    }
    let far = |(time, _): &(i64, f64)| *time > TIME_MS_MAX;
    if metric.contains('$') || series.samples.iter().any(far) {
        return None;
    }
    let document = |(time, value): &(i64, f64)| {
        let mut out = nilometer_bson::DocumentBuilder::new();
        out.append("time", nilometer_bson::Value::DateTime(*time));
        if !tags.is_empty() {
            out.begin_document("tags");
            for (name, value) in &tags {
                out.append(name, value.as_str());
            }
            out.end();
        }
        out.append("value", *value);
        to_relaxed(out.finish().as_ref())
    };
    Some((metric, series.samples.iter().map(document).collect()))
}

#[test]
fn drawn_bodies_become_the_documents_of_plain_rules() {
    let (mut rejected, mut written) = (0, 0);
    for seed in 0..3000 {
        let mut numbers = Numbers::new(seed);
        let all: Vec<_> = (0..numbers.below(8))
            .map(|_| draw_series(&mut numbers))
            .collect();
        let mut body = Vec::new();
        for series in &all {
            let series = write_series(&mut numbers, series);
            field(&mut body, 1, &series);
        }
        let read = read(&body, &mut known_all).unwrap();
        let (mut flaws, mut by_metric) = (Vec::new(), std::collections::BTreeMap::new());
        for (number, series) in (1..).zip(&all) {
            match expected(series) {
                None => flaws.push(number),
                Some((metric, documents)) => {
                    let documents = documents.into_iter().map(|document| (number, document));
                    let of_metric: &mut Vec<_> = by_metric.entry(metric).or_default();
                    of_metric.extend(documents);
                }
            }
        }
        by_metric.retain(|_, documents| !documents.is_empty());
        let found = read.batches.iter().map(|batch| {
            let lines = batch.lines.iter().copied();
            let documents = lines.zip(documents(batch)).collect();
            (batch.measurement.clone(), documents)
        });
        let found: std::collections::BTreeMap<_, Vec<_>> = found.collect();
        assert_eq!(found, by_metric, "seed {seed}: {all:?}");
        let lines: Vec<usize> = read.rejections.iter().map(|one| one.line).collect();
        assert_eq!(lines, flaws, "seed {seed}: {all:?}");
        rejected += flaws.len();
        written += found.values().map(Vec::len).sum::<usize>();
    }
    assert!(rejected > 1000 && written > 8000, "{rejected} {written}");
}

#[test]
fn a_series_of_many_samples_fills_several_batches() {
    let mut inside = Vec::new();
    let mut label = Vec::new();
    field(&mut label, 1, NAME.as_bytes());
    field(&mut label, 2, b"up");
    field(&mut inside, 1, &label);
    for time in 0..250_000_u64 {
        let mut sample = vec![2 << 3];
        varint(&mut sample, time);
        field(&mut inside, 2, &sample);
    }
    let mut body = Vec::new();
    field(&mut body, 1, &inside);
    let all = read(&body, &mut known_all).unwrap();
    let lengths: Vec<usize> = all.batches.iter().map(|one| one.lines.len()).collect();
    assert_eq!(lengths, [100_000, 100_000, 50_000]);
    let mut times = 0..;
    for batch in &all.batches {
        for document in documents(batch) {
            let time = times.next().unwrap();
            let time = nilometer_bson::Value::DateTime(time);
            let expected = nilometer_bson::doc! {"time": time, "value": 0.0};
            assert_eq!(document, to_relaxed(expected.as_ref()));
        }
    }
    assert_eq!(all.new_fields.len(), 1);
}

#[test]
fn samples_that_repeat_too_many_labels_are_refused() {
    let mut inside = Vec::new();
    for (name, value) in [(NAME, "up"), ("long", &*"x".repeat(60_000))] {
        let mut label = Vec::new();
        field(&mut label, 1, name.as_bytes());
        field(&mut label, 2, value.as_bytes());
        field(&mut inside, 1, &label);
    }
    for _ in 0..5_000 {
        field(&mut inside, 2, &[]);
    }
    let mut body = Vec::new();
    field(&mut body, 1, &inside);
    let refused = read(&body, &mut known_all).unwrap_err();
    assert!(refused.contains("more than 268435456 bytes"), "{refused}");
}
