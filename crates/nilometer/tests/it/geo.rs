//! Geography over time series: the answers of an ordinary collection, buckets excluded by their bounds, and
//! `$geoNear` against the haversine formula.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::support::{Fixture, show};

fn degrees(random: &mut Random, low: f64, high: f64) -> f64 {
    low + (high - low) * (random.below(1 << 40) as f64 / (1u64 << 40) as f64)
}

fn position(random: &mut Random) -> (f64, f64) {
    match random.below(10) {
        0 => (180.0, degrees(random, -80.0, 80.0)),
        1 => (-180.0, degrees(random, -80.0, 80.0)),
        2 => (degrees(random, -180.0, 180.0), 90.0),
        _ => (degrees(random, -180.0, 180.0), degrees(random, -85.0, 85.0)),
    }
}

fn point((lng, lat): (f64, f64)) -> Value {
    doc! {"type": "Point", "coordinates": array![lng, lat]}.into()
}

/// Returns a value of the field: mostly points, in a form that may be constant per series.
fn place(random: &mut Random, at: (f64, f64), form: u64) -> Value {
    let at = (
        (at.0 + degrees(random, -3.0, 3.0)).clamp(-180.0, 180.0),
        (at.1 + degrees(random, -3.0, 3.0)).clamp(-90.0, 90.0),
    );
    match form {
        0 => point(at),
        1 => array![at.0, at.1],
        2 => doc! {"lng": at.0, "lat": at.1}.into(),
        3 => array![point(at), point((at.0, -at.1))],
        _ => match random.below(7) {
            0 => Value::Missing,
            1 => Value::Null,
            2 => "nowhere".into(),
            3 => doc! {"type": "Point", "coordinates": array!["bad", 0]}.into(),
            4 => {
                doc! {"type": "LineString", "coordinates": array![array![at.0, at.1], array![0, 0]]}
                    .into()
            }
            5 => doc! {"lat": at.1, "lng": at.0}.into(),
            _ => point(at),
        },
    }
}

fn fill(random: &mut Random) -> Fixture {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let series: Vec<((f64, f64), u64)> = (0..12)
        .map(|_| (position(random), random.below(6)))
        .collect();
    let documents: Vec<Value> = (0..150i64)
        .map(|id| {
            let which = random.below(12);
            let (at, form) = series[which as usize];
            let mut out = DocumentBuilder::new();
            out.append("t", Value::DateTime(1_700_000_000_000 + id * 60_000));
            out.append("m", doc! {"s": which as i32, "at": point(at)});
            out.append("_id", id);
            let value = place(random, at, form);
            if !value.is_missing() {
                out.append("p", value.clone());
                out.append("o", doc! {"p": value});
            }
            out.finish().into()
        })
        .collect();
    for collection in ["ts", "plain"] {
        fixture.run(doc! {"insert": collection, "documents": documents.clone()});
    }
    fixture
}

fn shape(random: &mut Random) -> Document {
    let at = position(random);
    let size = degrees(random, 1.0, 30.0);
    let low = at.1.clamp(-85.0, 80.0);
    let high = (low + size).min(89.0);
    let east = if at.0 + size > 180.0 {
        at.0 + size - 360.0
    } else {
        at.0 + size
    };
    let ring = array![
        array![at.0, low],
        array![east, low],
        array![east, high],
        array![at.0, high],
        array![at.0, low]
    ];
    let polygon = doc! {"type": "Polygon", "coordinates": array![ring]};
    match random.below(6) {
        0 => doc! {"$geoWithin": doc! {"$geometry": polygon}},
        1 => doc! {"$geoIntersects": doc! {"$geometry": polygon}},
        2 => {
            doc! {"$geoWithin": doc! {"$centerSphere": array![array![at.0, at.1], size.to_radians()]}}
        }
        3 => doc! {"$geoWithin": doc! {"$center": array![array![at.0, at.1], size]}},
        4 => {
            let corners = array![array![at.0, at.1], array![at.0 + size, at.1 + size]];
            doc! {"$geoWithin": doc! {"$box": corners}}
        }
        _ => {
            let corners = array![
                array![at.0, at.1],
                array![at.0 + size, at.1],
                array![at.0, at.1 + size]
            ];
            doc! {"$geoWithin": doc! {"$polygon": corners}}
        }
    }
}

fn ids(documents: &[Document]) -> Vec<i64> {
    let id = |d: &Document| d.get("_id").as_exact_i64().unwrap();
    documents.iter().map(id).collect()
}

#[test]
fn shapes_find_the_same_measurements_as_documents() {
    let mut random = Random::new(1);
    let mut found = 0;
    for _ in 0..6 {
        let mut fixture = fill(&mut random);
        for _ in 0..25 {
            let path = *random.pick(&["p", "o.p", "m.at", "p.0", "p.1"]);
            let test = match random.below(5) {
                0 => doc! {"$not": shape(&mut random)},
                _ => shape(&mut random),
            };
            let mut filter = DocumentBuilder::new();
            filter.append(path, test);
            let filter = filter.finish();
            let mut answer = |collection: &str| {
                let sort = doc! {"_id": 1};
                ids(&fixture.all(doc! {"find": collection, "filter": filter.clone(), "sort": sort}))
            };
            let expected = answer("plain");
            found += expected.len();
            assert_eq!(answer("ts"), expected, "{}", show(&filter));
        }
    }
    assert!(found > 500, "{found}");
}

/// The oracle of distances.
fn haversine(a: (f64, f64), b: (f64, f64)) -> f64 {
    let half = |x: f64| (x.to_radians() / 2.0).sin().powi(2);
    let h = half(b.1 - a.1) + a.1.to_radians().cos() * b.1.to_radians().cos() * half(b.0 - a.0);
    2.0 * h.clamp(0.0, 1.0).sqrt().asin() * 6_378_100.0
}

#[test]
fn the_nearest_come_first() {
    let mut random = Random::new(2);
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let places: Vec<(f64, f64)> = (0..200).map(|_| position(&mut random)).collect();
    let documents: Vec<Value> = places
        .iter()
        .enumerate()
        .map(|(id, at)| {
            let time = Value::DateTime(1_700_000_000_000 + id as i64 * 1000);
            doc! {"t": time, "m": (id % 7) as i32, "_id": id as i64, "p": point(*at)}.into()
        })
        .collect();
    fixture.run(doc! {"insert": "ts", "documents": documents});
    for _ in 0..30 {
        let from = position(&mut random);
        let max = degrees(&mut random, 1e5, 2e7);
        let min = degrees(&mut random, 0.0, 1e6);
        let near = doc! {"near": point(from), "distanceField": "d.m", "key": "p",
        "minDistance": min, "maxDistance": max, "distanceMultiplier": 0.001};
        let pipeline = array![doc! {"$geoNear": near}];
        let answer = fixture.all(doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": doc! {}});
        let mut expected: Vec<(f64, i64)> = places
            .iter()
            .enumerate()
            .map(|(id, at)| (haversine(from, *at), id as i64))
            .filter(|(d, _)| (min..=max).contains(d))
            .collect();
        expected.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert_eq!(answer.len(), expected.len());
        for (document, (distance, _)) in answer.iter().zip(&expected) {
            let ValueRef::Document(d) = document.get("d") else {
                panic!("{}", show(document))
            };
            let ValueRef::Double(shown) = d.get("m") else {
                panic!("{}", show(document))
            };
            assert!(
                (shown * 1000.0 - distance).abs() < 1.0,
                "{shown} {distance}"
            );
        }
        let few = array![
            doc! {"$geoNear": doc! {"near": point(from), "distanceField": "d", "key": "p"}},
            doc! {"$limit": 3}
        ];
        let few = fixture.all(doc! {"aggregate": "ts", "pipeline": few, "cursor": doc! {}});
        let mut all: Vec<f64> = places.iter().map(|at| haversine(from, *at)).collect();
        all.sort_by(f64::total_cmp);
        for (document, distance) in few.iter().zip(&all) {
            let ValueRef::Double(shown) = document.get("d") else {
                panic!("{}", show(document))
            };
            assert!((shown - distance).abs() < 1.0);
        }
        assert_eq!(few.len(), 3);
    }
}

#[test]
fn explain_counts_the_excluded_buckets() {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let documents: Vec<Value> = (0..20)
        .map(|at| {
            let time = Value::DateTime(1_700_000_000_000 + at);
            doc! {"t": time, "m": at, "p": point((at as f64, 0.0))}.into()
        })
        .collect();
    fixture.run(doc! {"insert": "ts", "documents": documents});
    let filter =
        doc! {"p": doc! {"$geoWithin": doc! {"$centerSphere": array![array![5, 0], 0.02]}}};
    let find = doc! {"find": "ts", "filter": filter};
    let reply = fixture.run(doc! {"explain": find, "verbosity": "executionStats"});
    let text = show(&reply);
    assert!(text.contains("$_internalBucketGeoWithin"), "{text}");
    let nested = |document: &Document, path: &[&str]| {
        let mut value = ValueRef::Document(document.as_ref()).to_value();
        for name in path {
            value = match (&value, name.parse::<usize>()) {
                (Value::Document(d), _) => d.get(name).to_value(),
                (Value::Array(a), Ok(at)) => a.as_ref().get(at).to_value(),
                _ => Value::Missing,
            };
        }
        value
    };
    let unpacked = nested(&reply, &["stages", "1", "nReturned"]);
    assert_eq!(unpacked.as_ref().as_exact_i64(), Some(3), "{text}");
    let buckets = nested(
        &reply,
        &["stages", "0", "$cursor", "executionStats", "nReturned"],
    );
    assert_eq!(buckets.as_ref().as_exact_i64(), Some(3), "{text}");
}
