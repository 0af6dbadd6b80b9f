//! Generated documents against an oracle that walks each path on its own and joins the results.
//!
//! The oracle records, for each value a path finds, the array elements on its way. Values of two paths belong
//! to one key if they agree on all arrays both pass; if they pass different arrays at the same depth, the
//! arrays are parallel.

use std::collections::BTreeSet;

use nilometer_bson::key_string::{self, KeyOrder};
use nilometer_bson::order::compare;
use nilometer_bson::testing::awkward_values;
use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::index;

const CASES: u64 = 3000;

/// A SplitMix64 generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let at = self.below(choices.len());
        &choices[at]
    }
}

fn value(random: &mut Random, leaves: &[(usize, Value)], depth: usize) -> Value {
    match random.below(if depth == 0 { 1 } else { 4 }) {
        0 => match &random.pick(leaves).1 {
            Value::Missing => Value::Null,
            leaf => leaf.clone(),
        },
        1 => Value::Document(document(random, leaves, depth - 1)),
        _ => {
            let count = random.below(4);
            let elements = (0..count).map(|_| value(random, leaves, depth - 1));
            Value::Array(elements.collect::<Array>())
        }
    }
}

fn document(random: &mut Random, leaves: &[(usize, Value)], depth: usize) -> Document {
    let mut out = DocumentBuilder::new();
    for name in ["a", "b", "0", "1"] {
        if random.below(3) > 0 {
            out.append(name, value(random, leaves, depth));
        }
    }
    out.finish()
}

/// The array elements on the path to a value: where the array is, and the position of the element.
type Trace = Vec<(String, usize)>;

/// Returns every value of a path with its trace; `Err` for a number that is both position and name.
fn walk<'a>(
    value: ValueRef<'a>,
    path: &[&str],
    place: &str,
    trace: &Trace,
    out: &mut Vec<(Trace, ValueRef<'a>)>,
) -> Result<(), i32> {
    let Some((name, rest)) = path.split_first() else {
        let ValueRef::Array(array) = value else {
            out.push((trace.clone(), value));
            return Ok(());
        };
        if array.is_empty() {
            out.push((with(trace, place, 0), ValueRef::Undefined));
        }
        for (at, element) in array.iter().enumerate() {
            out.push((with(trace, place, at), element));
        }
        return Ok(());
    };
    match value {
        ValueRef::Document(document) => walk(
            document.get(name),
            rest,
            &format!("{place}.{name}"),
            trace,
            out,
        ),
        ValueRef::Array(array) => {
            let position = name.parse::<usize>().ok();
            let chosen = position.map(|at| array.get(at)).filter(|e| !e.is_missing());
            if let Some(element) = chosen {
                let named = |e: ValueRef<'_>| e.as_document().is_some_and(|d| d.contains(name));
                if array.iter().any(named) {
                    return Err(16746);
                }
                let place = format!("{place}.{name}");
                return match element {
                    ValueRef::Document(_) | ValueRef::Array(_) => {
                        walk(element, rest, &place, trace, out)
                    }
                    _ if rest.is_empty() => walk(element, rest, &place, trace, out),
                    _ => {
                        out.push((trace.clone(), ValueRef::Missing));
                        Ok(())
                    }
                };
            }
            if array.is_empty() {
                out.push((with(trace, place, 0), ValueRef::Missing));
            }
            for (at, element) in array.iter().enumerate() {
                let trace = with(trace, place, at);
                match element {
                    ValueRef::Document(_) => {
                        walk(element, path, &format!("{place}.{at}"), &trace, out)?;
                    }
                    _ => out.push((trace, ValueRef::Missing)),
                }
            }
            Ok(())
        }
        _ => {
            out.push((trace.clone(), ValueRef::Missing));
            Ok(())
        }
    }
}

fn with(trace: &Trace, place: &str, at: usize) -> Trace {
    let mut longer = trace.clone();
    longer.push((place.to_owned(), at));
    longer
}

/// True if two values belong to one key; `Err` if their arrays are parallel.
fn agree(a: &Trace, b: &Trace) -> Result<bool, i32> {
    for ((place, at), (other_place, other_at)) in a.iter().zip(b) {
        if place != other_place {
            return Err(171);
        }
        if at != other_at {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns all key strings, or the error code.
fn oracle(
    document: DocRef<'_>,
    paths: &[&str],
    order: KeyOrder,
) -> Result<BTreeSet<Vec<u8>>, Vec<i32>> {
    let mut errors = Vec::new();
    let mut rows: Vec<(Vec<Trace>, Vec<ValueRef<'_>>)> = vec![(Vec::new(), Vec::new())];
    for path in paths {
        let names: Vec<&str> = path.split('.').collect();
        let mut found = Vec::new();
        let root = ValueRef::Document(document);
        if let Err(code) = walk(root, &names, "", &Trace::new(), &mut found) {
            errors.push(code);
            continue;
        }
        let mut longer = Vec::new();
        for (traces, values) in &rows {
            for (trace, value) in &found {
                let mut together = true;
                for other in traces {
                    match agree(other, trace) {
                        Ok(fits) => together &= fits,
                        Err(code) => errors.push(code),
                    }
                }
                if together {
                    let value = match value {
                        ValueRef::Missing => ValueRef::Null,
                        value => *value,
                    };
                    let traces = traces.iter().chain([trace]).cloned().collect();
                    longer.push((traces, [&values[..], &[value]].concat()));
                }
            }
        }
        rows = longer;
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let encoded = rows
        .into_iter()
        .map(|(_, values)| key_string::encode(values, order).0);
    Ok(encoded.collect())
}

/// The awkward values, except those no index can hold.
fn short_values() -> Vec<(usize, Value)> {
    let mut values = awkward_values();
    values.retain(|(_, value)| {
        key_string::encode([value.as_ref()], KeyOrder::ASCENDING)
            .0
            .len()
            < 4000
    });
    values
}

#[test]
fn keys_equal_those_of_the_oracle() {
    let leaves = short_values();
    let paths = [
        "a", "b", "a.b", "a.a", "a.b.a", "a.0", "a.1.b", "b.0.0", "a.0.b",
    ];
    let (mut refused, mut several) = (0, 0);
    for seed in 0..CASES {
        let mut random = Random(seed);
        let document = document(&mut random, &leaves, 4);
        let mut key = DocumentBuilder::new();
        let mut chosen: Vec<&str> = Vec::new();
        let mut directions = Vec::new();
        for _ in 0..1 + random.below(3) {
            let path = *random.pick(&paths);
            if !chosen.contains(&path) {
                chosen.push(path);
                let descending = random.below(2) == 1;
                key.append(path, if descending { -1 } else { 1 });
                directions.push(descending);
            }
        }
        let index = index(key.finish());
        let order = KeyOrder::new(directions.iter().copied());
        let found = index.keys(document.as_ref());
        match oracle(document.as_ref(), &chosen, order) {
            Ok(expected) => {
                let found = found.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                several += usize::from(expected.len() > 1);
                let strings = found.keys.into_iter().map(|key| key.key);
                assert!(
                    strings.eq(expected),
                    "seed {seed}: {chosen:?} of {document:?}"
                );
            }
            Err(codes) => {
                refused += 1;
                let code = found.expect_err(&format!("seed {seed}")).code.0;
                assert!(
                    codes.contains(&code),
                    "seed {seed}: {code} not of {codes:?}"
                );
            }
        }
    }
    assert!(refused > 50 && several > 200, "{refused} {several}");
}

/// Key strings sort like the values, each part in its direction.
#[test]
fn keys_sort_as_their_values() {
    let values: Vec<_> = short_values()
        .into_iter()
        .map(|(_, value)| value)
        .filter(|value| !matches!(value, Value::Array(_) | Value::Missing))
        .collect();
    let index = index(nilometer_bson::doc! { "a": 1, "b": -1 });
    let key = |a: &Value, b: &Value| {
        let document = nilometer_bson::doc! { "a": a.clone(), "b": b.clone() };
        index.keys(document.as_ref()).unwrap().keys.remove(0).key
    };
    let mut random = Random(1);
    for _ in 0..20_000 {
        let (a, b) = (random.pick(&values), random.pick(&values));
        let (c, d) = (random.pick(&values), random.pick(&values));
        let expected = compare(a.as_ref(), c.as_ref()).then(compare(d.as_ref(), b.as_ref()));
        assert_eq!(
            key(a, b).cmp(&key(c, d)),
            expected,
            "{a:?} {b:?} / {c:?} {d:?}"
        );
    }
}
