//! Keys of geospatial indexes and bounds of buckets: every match has a key in the ranges, and its
//! bucket is kept.

use super::*;

fn random_shape(draw: &mut TestRandom, middle: Degrees, size: f64) -> Document {
    match draw.below(4) {
        0 | 1 => point(draw.near(middle, size)),
        2 => {
            let mut points = draw.ring(middle, size);
            points.truncate(3);
            line(&points)
        }
        _ => polygon(&[draw.ring(middle, size)]),
    }
}

#[test]
fn shapes_that_touch_a_region_have_a_key_in_its_ranges() {
    let mut draw = TestRandom::new(8);
    let mut met = 0;
    for _ in 0..nilometer_storage::testing::effort(80, 200, 200) {
        let middle = draw.place();
        let size = 10f64.powf(draw.within(-4.0, 1.6));
        let wanted = random_shape(&mut draw, middle, size);
        let wanted_geometry = Geometry::stored(ValueRef::Document(wanted.as_ref()));
        let wanted_geometry = wanted_geometry.and_then(Geometry::into_sphere).unwrap();
        let ranges = wanted_geometry.query_cells();
        assert!(ranges.windows(2).all(|pair| pair[0].max < pair[1].min));
        let disc = Disc {
            center: LngLat::new(middle.0, middle.1).unwrap(),
            radius: size.to_radians(),
        };
        let disc_ranges = query_cells(&SphereRegion::Disc(disc));
        let test = intersects(wanted.clone());
        for _ in 0..6 {
            let stored_middle = draw.near(middle, size);
            let stored_size = size * draw.within(0.01, 1.0);
            let stored = random_shape(&mut draw, stored_middle, stored_size);
            let keys = index_cells(ValueRef::Document(stored.as_ref())).unwrap();
            let found = |ranges: &[CellRange]| {
                keys.iter()
                    .any(|key| ranges.iter().any(|range| range.contains(*key)))
            };
            if passes(&test, &stored) {
                met += 1;
                assert!(found(&ranges), "{stored:?} and {wanted:?}");
            }
            let geometry = Geometry::stored(ValueRef::Document(stored.as_ref()));
            let geometry = geometry.and_then(Geometry::into_sphere).unwrap();
            if SphereRegion::Disc(disc).covers(&geometry) {
                assert!(found(&disc_ranges), "{stored:?} in {disc:?}");
            }
        }
        // A point is found by its own key.
        let own = index_cells(ValueRef::Document(point(middle).as_ref())).unwrap();
        let own_ranges = SphereGeometry::point(disc.center).query_cells();
        assert!(own_ranges.iter().any(|range| range.contains(own[0])));
    }
    assert!(met > 100, "{met}");
}

#[test]
fn coverings_are_small_and_errors_have_their_codes() {
    let keys = |value: Value| index_cells(value.as_ref());
    assert_eq!(keys(array![1, 2]).unwrap().len(), 1);
    assert_eq!(keys(Value::Null).unwrap(), []);
    assert_eq!(keys(array![]).unwrap(), []);
    assert_eq!(
        keys(array![array![1, 2], array![3, 4], array![1, 2]])
            .unwrap()
            .len(),
        2
    );
    assert!(
        keys(polygon(&[vec![(0.0, 0.0), (50.0, 0.0), (20.0, 40.0)]]).into())
            .unwrap()
            .len()
            <= 20
    );
    for bad in [
        Value::from(1),
        "x".into(),
        array![200, 0],
        doc! {"type": "Point"}.into(),
    ] {
        assert_eq!(keys(bad).unwrap_err().code.0, 16_755);
    }
    let bucket = |values: &[Value]| bucket_cells(values.iter().map(Value::as_ref));
    assert_eq!(bucket(&[Value::Null, Value::Missing]).unwrap(), []);
    assert_eq!(bucket(&[array![1, 2], array![1, 2]]).unwrap().len(), 1);
    let bad = doc! {"type": "Point", "coordinates": array!["bad", 0]};
    assert_eq!(bucket(&[bad.into()]).unwrap_err().code.0, 183_934);
    let flat_ring = doc! {"type": "Polygon", "coordinates": array![1, 2]};
    assert_eq!(bucket(&[flat_ring.into()]).unwrap_err().code.0, 183_934);
    let not_a_point = line(&[(0.0, 0.0), (1.0, 1.0)]);
    assert_eq!(bucket(&[not_a_point.into()]).unwrap_err().code.0, 183_493);
}

/// Returns the bounds of values that all have one form.
fn bounds(values: &[Value]) -> (Value, Value) {
    let numbers = |value: &Value| -> Vec<f64> {
        let members = match value.as_ref() {
            ValueRef::Array(array) => array,
            ValueRef::Document(d) => match d.get("coordinates") {
                ValueRef::Array(array) => array,
                _ => nilometer_bson::ArrayRef::new(d),
            },
            _ => panic!("a point"),
        };
        members
            .iter()
            .map(|v| nilometer_bson::number::Number::of(v).unwrap().to_f64())
            .collect()
    };
    let fold = |pick: fn(f64, f64) -> f64| {
        let all = values.iter().map(numbers);
        let pair = all.reduce(|a, b| a.iter().zip(&b).map(|(x, y)| pick(*x, *y)).collect());
        let pair = pair.unwrap();
        match values[0].as_ref() {
            ValueRef::Array(_) => array![pair[0], pair[1]],
            ValueRef::Document(d) if d.contains("type") => point((pair[0], pair[1])).into(),
            _ => doc! {"lng": pair[0], "lat": pair[1]}.into(),
        }
    };
    (fold(f64::min), fold(f64::max))
}

#[test]
fn buckets_with_a_match_are_kept() {
    let mut draw = TestRandom::new(9);
    let (mut kept, mut dropped) = (0, 0);
    for _ in 0..2000 {
        let middle = draw.place();
        let form = draw.below(3);
        let spread = 10f64.powf(draw.within(-3.0, 2.0));
        let count = 1 + draw.below(5);
        let values: Vec<Value> = (0..count)
            .map(|_| {
                let at = draw.near(middle, spread);
                match form {
                    0 => position(at),
                    1 => point(at).into(),
                    _ => doc! {"lng": at.0, "lat": at.1}.into(),
                }
            })
            .collect();
        let (min, max) = bounds(&values);
        let wanted = draw.near(middle, 30.0);
        let size = draw.within(0.01, 20.0);
        let test = match draw.below(5) {
            0 => within(polygon(&[draw.ring(wanted, size)])),
            1 => intersects(polygon(&[draw.ring(wanted, size)])),
            2 => {
                let of = doc! {"$centerSphere": array![position(wanted), size.to_radians()]};
                GeoTest::within(ValueRef::Document(of.as_ref())).unwrap()
            }
            3 => {
                let of = doc! {"$center": array![position(wanted), size]};
                GeoTest::within(ValueRef::Document(of.as_ref())).unwrap()
            }
            _ => {
                let of = doc! {"$box": array![position(wanted), position(draw.near(wanted, size))]};
                GeoTest::within(ValueRef::Document(of.as_ref())).unwrap()
            }
        };
        let matches = values.iter().any(|v| test.test(v.as_ref()));
        let may = may_contain(&test, min.as_ref(), max.as_ref());
        assert!(may || !matches, "{values:?} {test:?}");
        if may {
            kept += 1;
        } else {
            dropped += 1;
        }
        // The index keys of the bucket intersect those of the region, too.
        if let Some(Region::Sphere(region)) = test.region()
            && matches
        {
            let keys = bucket_cells(values.iter().map(Value::as_ref)).unwrap();
            let ranges = query_cells(region);
            let found = keys
                .iter()
                .any(|key| ranges.iter().any(|range| range.contains(*key)));
            assert!(found, "{values:?} {test:?}");
        }
    }
    assert!(kept > 200 && dropped > 200, "{kept} {dropped}");
}

#[test]
fn inconclusive_bounds_keep_their_bucket() {
    let far = within(polygon(&[vec![
        (100.0, 50.0),
        (101.0, 50.0),
        (100.0, 51.0),
    ]]));
    let keeps = |min: Value, max: Value| may_contain(&far, min.as_ref(), max.as_ref());
    let here = || Value::from(point((1.0, 1.0)));
    assert!(!keeps(here(), here()));
    assert!(!keeps(array![1, 1], array![2, 2]));
    for (min, max) in [
        (Value::Missing, Value::Missing),
        (Value::Null, here()),
        (here(), array![1, 1]),
        (array![1, 1], array![2, 2, 3]),
        (array![1, 1], array![2, "x"]),
        (
            doc! {"x": 1, "y": 1, "type": "Point"}.into(),
            doc! {"x": 1, "y": 1, "type": "Point"}.into(),
        ),
        (
            doc! {"type": "LineString", "coordinates": array![1, 1]}.into(),
            doc! {"type": "Point", "coordinates": array![1, 1]}.into(),
        ),
        // One measurement stores {lat, lng}: then the pair has the other order.
        (
            doc! {"x": 50.5, "y": 100.2}.into(),
            doc! {"x": 50.6, "y": 100.3}.into(),
        ),
    ] {
        assert!(keeps(min.clone(), max.clone()), "{min:?} {max:?}");
    }
}

#[test]
fn a_region_in_another_implies_it() {
    let mut draw = TestRandom::new(10);
    let mut implied = 0;
    for _ in 0..500 {
        let middle = draw.place();
        let mut region = |scale: f64| {
            let at = draw.near(middle, 3.0);
            let size = scale * draw.within(0.5, 10.0);
            let operand = match draw.below(3) {
                0 => doc! {"$geometry": polygon(&[draw.ring(at, size)])},
                1 => doc! {"$centerSphere": array![position(at), size.to_radians()]},
                _ => doc! {"$box": array![position(at), array![at.0 + size, at.1 + size]]},
            };
            GeoTest::within(ValueRef::Document(operand.as_ref())).unwrap()
        };
        let (narrow, wide) = (region(0.3), region(3.0));
        assert!(narrow.implies(&narrow.clone()));
        if !narrow.implies(&wide) {
            continue;
        }
        implied += 1;
        for _ in 0..100 {
            let at = position(draw.near(middle, 6.0));
            assert!(
                !narrow.test(at.as_ref()) || wide.test(at.as_ref()),
                "{at:?}"
            );
        }
    }
    assert!(implied > 20, "{implied}");
}
