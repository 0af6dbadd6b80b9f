//! Geometry against oracles that are too simple to be wrong.
//!
//! Seen from the middle of the globe onto a plane that touches it (gnomonic projection), great circles
//! are straight lines. So shapes within one half of the globe have the same relations as flat ones,
//! and school geometry on the plane is the oracle for arcs on the sphere. Distances are held against the
//! haversine formula.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::testing::{Draw, haversine, line, point, polygon, position, walk};
use super::*;

type Degrees = (f64, f64);

/// The place on the plane that touches the globe at `middle`; none on the other half.
fn project(middle: Degrees, (lng, lat): Degrees) -> Option<(f64, f64)> {
    let (lat0, lat) = (middle.1.to_radians(), lat.to_radians());
    let turn = (lng - middle.0).to_radians();
    let cos = lat0.sin() * lat.sin() + lat0.cos() * lat.cos() * turn.cos();
    (cos > 1e-3).then(|| {
        let x = lat.cos() * turn.sin() / cos;
        let y = (lat0.cos() * lat.sin() - lat0.sin() * lat.cos() * turn.cos()) / cos;
        (x, y)
    })
}

fn cross(o: (f64, f64), a: (f64, f64), b: (f64, f64)) -> f64 {
    (a.0 - o.0) * (b.1 - o.1) - (a.1 - o.1) * (b.0 - o.0)
}

fn sides<T: Copy>(ring: &[T]) -> impl Iterator<Item = (T, T)> + '_ {
    (0..ring.len()).map(|at| (ring[at], ring[(at + 1) % ring.len()]))
}

/// Inside, outside, or too near to a side to tell.
fn flat_contains(ring: &[(f64, f64)], p: (f64, f64)) -> Option<bool> {
    let mut inside = false;
    for (a, b) in sides(ring) {
        let length = (b.0 - a.0).hypot(b.1 - a.1);
        if cross(a, b, p).abs() < 1e-9 * length {
            return None;
        }
        if (a.1 > p.1) != (b.1 > p.1) && p.0 < a.0 + (p.1 - a.1) / (b.1 - a.1) * (b.0 - a.0) {
            inside = !inside;
        }
    }
    Some(inside)
}

fn flat_cross(a: (f64, f64), b: (f64, f64), c: (f64, f64), d: (f64, f64)) -> bool {
    cross(a, b, c) * cross(a, b, d) < 0.0 && cross(c, d, a) * cross(c, d, b) < 0.0
}

fn within(shape: Document) -> GeoTest {
    let operand = doc! {"$geometry": shape};
    GeoTest::within(ValueRef::Document(operand.as_ref())).unwrap()
}

fn intersects(shape: Document) -> GeoTest {
    let operand = doc! {"$geometry": shape};
    GeoTest::intersects(ValueRef::Document(operand.as_ref())).unwrap()
}

fn passes(test: &GeoTest, shape: &Document) -> bool {
    test.test(ValueRef::Document(shape.as_ref()))
}

fn flat(middle: Degrees, ring: &[Degrees]) -> Vec<(f64, f64)> {
    ring.iter().map(|p| project(middle, *p).unwrap()).collect()
}

#[test]
fn points_in_polygons_are_those_in_flat_ones() {
    let mut draw = Draw::new(1);
    for round in 0..400 {
        let middle = draw.place();
        let size = [0.001, 1.0, 20.0, 60.0][round % 4];
        let ring = draw.ring(middle, size);
        let oracle = flat(middle, &ring);
        let test = within(polygon(std::slice::from_ref(&ring)));
        let touching = intersects(polygon(&[ring]));
        for _ in 0..30 {
            let (bearing, reach) = (draw.within(0.0, 360.0), draw.within(0.0, 1.3 * size));
            let at = walk(middle, bearing, reach);
            let Some(expected) =
                project(middle, at).map_or(Some(false), |p| flat_contains(&oracle, p))
            else {
                continue;
            };
            assert_eq!(
                passes(&test, &point(at)),
                expected,
                "{round}: {at:?} in {oracle:?}"
            );
            assert_eq!(passes(&touching, &point(at)), expected);
            assert_eq!(test.test(position(at).as_ref()), expected, "as a pair");
        }
    }
}

#[test]
fn shapes_within_and_touching_are_those_of_flat_ones() {
    let mut draw = Draw::new(2);
    let mut seen = [0; 3];
    for round in 0..1500 {
        let middle = draw.place();
        let size = [0.01, 5.0, 25.0][round % 3];
        let ring = draw.ring(middle, size);
        let (bearing, reach) = (draw.within(0.0, 360.0), draw.within(0.0, 1.8 * size));
        let other_middle = walk(middle, bearing, reach);
        let other_size = size * draw.within(0.05, 1.0);
        let other = draw.ring(other_middle, other_size);
        let (mine, theirs) = (flat(middle, &ring), flat(middle, &other));
        let inside = |ring: &[(f64, f64)], p| flat_contains(ring, p);
        let all: Option<Vec<bool>> = theirs.iter().map(|p| inside(&mine, *p)).collect();
        let any: Option<Vec<bool>> = mine.iter().map(|p| inside(&theirs, *p)).collect();
        let (Some(all), Some(any)) = (all, any) else {
            continue;
        };
        let cross = sides(&mine).any(|(a, b)| sides(&theirs).any(|(c, d)| flat_cross(a, b, c, d)));
        let is_within = all.iter().all(|x| *x) && !cross;
        let touches = cross || all.iter().chain(&any).any(|x| *x);
        seen[usize::from(is_within) + usize::from(touches)] += 1;
        let region = polygon(std::slice::from_ref(&ring));
        let shape = polygon(std::slice::from_ref(&other));
        let context = format!("{round}: {ring:?} and {other:?}");
        assert_eq!(
            passes(&within(region.clone()), &shape),
            is_within,
            "{context}"
        );
        assert_eq!(
            passes(&intersects(region.clone()), &shape),
            touches,
            "{context}"
        );
        assert_eq!(
            passes(&intersects(shape.clone()), &region),
            touches,
            "{context}"
        );
        // The ring of the other as a line: it lies within alike, and touches unless it goes round.
        let mut closed = other.clone();
        closed.push(other[0]);
        let chain = line(&closed);
        assert_eq!(
            passes(&within(region.clone()), &chain),
            is_within,
            "{context}"
        );
        let line_touches = cross || all.iter().any(|x| *x);
        assert_eq!(
            passes(&intersects(region.clone()), &chain),
            line_touches,
            "{context}"
        );
        assert_eq!(
            passes(&intersects(chain), &region),
            line_touches,
            "{context}"
        );
        // With the other as a hole, nothing of the hole's inside is within.
        if is_within {
            let hollow = polygon(&[ring, other]);
            assert!(
                !passes(&within(hollow.clone()), &point(other_middle)),
                "{context}"
            );
            assert!(passes(&within(region), &hollow), "{context}");
            assert!(!passes(&within(shape), &hollow), "{context}");
        }
    }
    assert!(seen.iter().all(|n| *n > 50), "all cases were met: {seen:?}");
}

#[test]
fn a_shape_lies_within_itself_and_touches_its_parts() {
    let mut draw = Draw::new(3);
    for _ in 0..300 {
        let middle = draw.place();
        let size = 10f64.powf(draw.within(-4.0, 1.5));
        let ring = draw.ring(middle, size);
        let shape = polygon(std::slice::from_ref(&ring));
        assert!(passes(&within(shape.clone()), &shape), "{ring:?}");
        for corner in &ring {
            assert!(
                passes(&within(shape.clone()), &point(*corner)),
                "{corner:?}"
            );
            assert!(passes(&intersects(point(*corner)), &shape), "{corner:?}");
        }
        let side = line(&ring[..2]);
        assert!(passes(&within(shape.clone()), &side), "{ring:?}");
        assert!(passes(&intersects(side), &shape));
    }
}

#[test]
fn distances_are_those_of_the_haversine_formula() {
    let mut draw = Draw::new(4);
    for _ in 0..2000 {
        let (a, b) = (draw.place(), draw.place());
        let expected = haversine(a, b);
        let near = NearQuery::from_point(ValueRef::Document(point(a).as_ref()), true).unwrap();
        let found = near
            .distance(ValueRef::Document(point(b).as_ref()))
            .unwrap();
        // The oracle itself is good to half its digits near the opposite side.
        let slack = if expected > 3.1 { 1e-7 } else { 1e-12 };
        let error = (found / EARTH_RADIUS_METERS - expected).abs();
        assert!(error < slack, "{a:?} {b:?}: {found} {expected}");
        let radius = draw.within(0.0, 3.3);
        if (radius - expected).abs() > slack {
            let operand = doc! {"$centerSphere": array![position(a), radius]};
            let test = GeoTest::within(ValueRef::Document(operand.as_ref())).unwrap();
            assert_eq!(test.test(position(b).as_ref()), expected < radius);
        }
    }
}

#[test]
fn distances_to_shapes_are_those_to_their_nearest_points() {
    let mut draw = Draw::new(5);
    for _ in 0..200 {
        let middle = draw.place();
        let ring = draw.ring(middle, 10.0);
        let from = draw.near(middle, 25.0);
        let near = NearQuery::from_point(ValueRef::Document(point(from).as_ref()), true).unwrap();
        let shape = polygon(std::slice::from_ref(&ring));
        let found =
            near.distance(ValueRef::Document(shape.as_ref())).unwrap() / EARTH_RADIUS_METERS;
        if passes(&within(shape), &point(from)) {
            assert_eq!(found, 0.0);
            continue;
        }
        // Walk along the sides in small steps.
        let unit = |p: Degrees| LngLat::new(p.0, p.1).unwrap().to_unit();
        let steps = 400;
        let sampled = sides(&ring)
            .flat_map(|(a, b)| {
                let from = unit(from);
                (0..=steps).map(move |step| {
                    let t = f64::from(step) / f64::from(steps);
                    let on = s2rst::s2::edge_distances::interpolate(t, unit(a), unit(b));
                    from.distance(on).radians()
                })
            })
            .fold(f64::INFINITY, f64::min);
        assert!(
            found <= sampled + 1e-12 && found > sampled - 1e-3,
            "{found} {sampled}"
        );
    }
}

#[test]
fn discs_hold_lines_and_polygons_whose_every_point_they_hold() {
    let mut draw = Draw::new(6);
    for _ in 0..400 {
        let center = draw.place();
        let radius = draw.within(0.01, 3.1);
        let middle = draw.near(center, 60.0);
        let ring = draw.ring(middle, 30.0);
        let unit = |p: Degrees| LngLat::new(p.0, p.1).unwrap().to_unit();
        let farthest = sides(&ring)
            .flat_map(|(a, b)| {
                (0..=200).map(move |step| {
                    let on = s2rst::s2::edge_distances::interpolate(
                        f64::from(step) / 200.0,
                        unit(a),
                        unit(b),
                    );
                    on.distance(unit(center)).radians()
                })
            })
            .fold(0.0, f64::max);
        if (farthest - radius).abs() < 1e-3 {
            continue;
        }
        let operand = doc! {"$centerSphere": array![position(center), radius]};
        let test = GeoTest::within(ValueRef::Document(operand.as_ref())).unwrap();
        assert_eq!(
            passes(&test, &line(&[&ring[..], &ring[..1]].concat())),
            farthest < radius
        );
        let opposite = (
            if center.0 > 0.0 {
                center.0 - 180.0
            } else {
                center.0 + 180.0
            },
            -center.1,
        );
        let shape = polygon(std::slice::from_ref(&ring));
        let goes_round = passes(&within(shape.clone()), &point(opposite));
        assert_eq!(passes(&test, &shape), farthest < radius && !goes_round);
    }
}

#[test]
fn the_date_line_and_the_poles_are_no_borders() {
    let across = polygon(&[vec![
        (170.0, -10.0),
        (-170.0, -10.0),
        (-170.0, 10.0),
        (170.0, 10.0),
    ]]);
    let polar = polygon(&[vec![
        (0.0, 80.0),
        (90.0, 80.0),
        (180.0, 80.0),
        (-90.0, 80.0),
    ]]);
    for (shape, inside, outside) in [
        (
            &across,
            vec![(180.0, 0.0), (-180.0, 0.0), (175.0, 9.0), (-171.0, -9.0)],
            vec![(0.0, 0.0), (160.0, 0.0)],
        ),
        (
            &polar,
            vec![(0.0, 90.0), (77.0, 90.0), (45.0, 89.0), (-135.0, 85.0)],
            vec![(0.0, 70.0), (0.0, -90.0)],
        ),
    ] {
        for at in inside {
            assert!(passes(&within(shape.clone()), &point(at)), "{at:?}");
        }
        for at in outside {
            assert!(!passes(&within(shape.clone()), &point(at)), "{at:?}");
        }
    }
}

#[test]
fn the_order_of_corners_matters_only_with_strict_winding() {
    let ring = vec![(0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0)];
    let mut reversed = ring.clone();
    reversed.reverse();
    let strict = |ring: &[Degrees]| {
        let crs = doc! {"type": "name", "properties":
        doc! {"name": "urn:x-mongodb:crs:strictwinding:EPSG:4326"}};
        let coordinates = polygon(&[ring.to_vec()]).get("coordinates").to_value();
        doc! {"type": "Polygon", "coordinates": coordinates, "crs": crs}
    };
    let (inside, outside) = (point((5.0, 5.0)), point((-100.0, 20.0)));
    for ring in [&ring, &reversed] {
        let test = within(polygon(std::slice::from_ref(ring)));
        assert!(passes(&test, &inside) && !passes(&test, &outside));
    }
    let small = within(strict(&ring));
    assert!(passes(&small, &inside) && !passes(&small, &outside));
    let big = within(strict(&reversed));
    assert!(!passes(&big, &inside) && passes(&big, &outside));
    let touching = intersects(strict(&reversed));
    assert!(passes(&touching, &outside) && !passes(&touching, &inside));
    assert!(passes(&touching, &point((0.0, 0.0))), "a corner");
}

#[test]
fn planes_take_points_alone_and_globes_take_places_alone() {
    let box_ = doc! {"$box": array![array![0, 0], array![500, 500]]};
    let flat = GeoTest::within(ValueRef::Document(box_.as_ref())).unwrap();
    assert!(flat.test(array![400, 400].as_ref()));
    assert!(passes(&flat, &point((5.0, 5.0))));
    assert!(!passes(&flat, &line(&[(1.0, 1.0), (2.0, 2.0)])));
    let whole = doc! {"$centerSphere": array![array![0, 0], 4]};
    let whole = GeoTest::within(ValueRef::Document(whole.as_ref())).unwrap();
    assert!(!whole.test(array![400, 400].as_ref()));
    assert!(whole.test(array![40, 40].as_ref()));
    assert!(passes(&whole, &line(&[(1.0, 1.0), (2.0, 2.0)])));
    for not in [
        Value::Null,
        "x".into(),
        doc! {}.into(),
        array![],
        array!["a", 1],
    ] {
        assert!(
            !whole.test(not.as_ref()) && !flat.test(not.as_ref()),
            "{not:?}"
        );
    }
}

fn random_shape(draw: &mut Draw, middle: Degrees, size: f64) -> Document {
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
fn what_touches_a_region_has_a_key_in_its_ranges() {
    let mut draw = Draw::new(8);
    let mut met = 0;
    for _ in 0..200 {
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
        // A point finds itself.
        let own = index_cells(ValueRef::Document(point(middle).as_ref())).unwrap();
        let own_ranges = SphereGeometry::point(disc.center).query_cells();
        assert!(own_ranges.iter().any(|range| range.contains(own[0])));
    }
    assert!(met > 100, "{met}");
}

#[test]
fn keys_are_few_and_refusals_have_their_codes() {
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

/// Bounds of values that are all of one form.
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
fn buckets_with_a_match_are_kept_and_many_without_are_not() {
    let mut draw = Draw::new(9);
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
        let may = may_hold(&test, min.as_ref(), max.as_ref());
        assert!(may || !matches, "{values:?} {test:?}");
        if may {
            kept += 1;
        } else {
            dropped += 1;
        }
        // The index's keys of the bucket meet those of the region, too.
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
fn bounds_that_hide_something_keep_their_bucket() {
    let far = within(polygon(&[vec![
        (100.0, 50.0),
        (101.0, 50.0),
        (100.0, 51.0),
    ]]));
    let keeps = |min: Value, max: Value| may_hold(&far, min.as_ref(), max.as_ref());
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
        // One measurement writes {lat, lng}: then the pair is the other way round.
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
    let mut draw = Draw::new(10);
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

#[test]
fn operands_are_checked() {
    let code = |operand: Value| GeoTest::within(operand.as_ref()).map_or_else(|e| e.code.0, |_| 0);
    let square = array![array![0, 0], array![1, 0], array![1, 1]];
    assert_eq!(code(doc! {"$polygon": square.clone()}.into()), 0);
    assert_eq!(
        code(doc! {"$box": doc! {"a": array![0, 0], "b": array![1, 1]}}.into()),
        0
    );
    for bad in [
        Value::from(1),
        doc! {}.into(),
        doc! {"$foo": 1}.into(),
        doc! {"$geometry": point((0.0, 0.0))}.into(),
        doc! {"$geometry": array![1, 2]}.into(),
        doc! {"$geometry": doc! {"type": "GeometryCollection", "geometries":
        array![polygon(&[vec![(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]])]}}
        .into(),
        doc! {"$box": array![array![0, 0]]}.into(),
        doc! {"$polygon": array![array![0, 0], array![1, 1]]}.into(),
        doc! {"$center": array![array![0, 0], -1]}.into(),
        doc! {"$center": array![array![0, 0], "1"]}.into(),
        doc! {"$centerSphere": array![array![0, 91], 1]}.into(),
        doc! {"$polygon": square.clone(), "$center": array![array![0, 0], 1]}.into(),
    ] {
        assert_eq!(code(bad.clone()), 2, "{bad:?}");
    }
    let near = |operators: Document| NearQuery::parse(operators.as_ref());
    let metres =
        near(doc! {"$near": doc! {"$geometry": point((1.0, 2.0)), "$maxDistance": 5}}).unwrap();
    assert_eq!((metres.metric(), metres.max), (Metric::Meters, 5.0));
    let flat = near(doc! {"$near": array![1, 2], "$minDistance": 1, "$maxDistance": 7}).unwrap();
    assert_eq!(
        (flat.metric(), flat.min, flat.max),
        (Metric::Plane, 1.0, 7.0)
    );
    let radians = near(doc! {"$nearSphere": array![1, 2], "$maxDistance": 0.1}).unwrap();
    assert_eq!((radians.metric(), radians.max), (Metric::Radians, 0.1));
    let old = near(doc! {"$near": array![1, 2, 3]}).unwrap();
    assert_eq!((old.metric(), old.max), (Metric::Plane, 3.0));
    for bad in [
        doc! {"$near": 5},
        doc! {"$near": array![1, 2], "$maxDistance": -1},
        doc! {"$near": array![1, 2], "$maxDistance": "x"},
        doc! {"$near": array![1, 2], "$gt": 1},
        doc! {"$near": doc! {"$geometry": line(&[(0.0, 0.0), (1.0, 1.0)])}},
        doc! {"$near": doc! {"$geometry": point((0.0, 0.0))}, "$maxDistance": 1},
        doc! {"$near": doc! {"$geometry": point((0.0, 0.0)), "$foo": 1}},
        doc! {"$nearSphere": array![200, 0]},
        doc! {"$near": array![0, 0], "$nearSphere": array![0, 0]},
        doc! {"$maxDistance": 1},
    ] {
        assert_eq!(near(bad.clone()).unwrap_err().code.0, 2, "{bad:?}");
    }
}

/// Something like geometry, more or less broken.
fn nearly_geometry(draw: &mut Draw, depth: usize) -> Value {
    let numbers = [
        0.0,
        1.0,
        -180.0,
        180.0,
        90.0,
        -90.0,
        1e-300,
        1e308,
        f64::NAN,
        f64::INFINITY,
        -0.0,
        179.9999999999,
    ];
    let number = |draw: &mut Draw| match draw.below(3) {
        0 => Value::from(numbers[draw.below(numbers.len())]),
        1 => Value::from(draw.below(7) as i32 - 3),
        _ => Value::from(draw.within(-190.0, 190.0)),
    };
    if depth == 0 || draw.below(12) == 0 {
        return match draw.below(6) {
            0 => Value::Null,
            1 => "Point".into(),
            2 => nilometer_bson::Decimal128::from_f64(5.0).into(),
            _ => number(draw),
        };
    }
    match draw.below(3) {
        0 => {
            let count = draw.below(6);
            let mut list: Vec<Value> = (0..count)
                .map(|_| nearly_geometry(draw, depth - 1))
                .collect();
            if draw.below(2) == 0
                && let Some(first) = list.first().cloned()
            {
                list.push(first);
            }
            list.into()
        }
        1 => array![number(draw), number(draw)],
        _ => {
            let mut out = DocumentBuilder::new();
            let kinds = [
                "Point",
                "MultiPoint",
                "LineString",
                "MultiLineString",
                "Polygon",
                "MultiPolygon",
                "GeometryCollection",
                "x",
            ];
            let kind = kinds[draw.below(kinds.len())];
            out.append("type", kind);
            let name = if kind == "GeometryCollection" {
                "geometries"
            } else {
                "coordinates"
            };
            out.append(name, nearly_geometry(draw, depth - 1));
            out.finish().into()
        }
    }
}

/// Coordinates of the right nesting, with corners from a small set so that they meet and cross.
fn degenerate_shape(draw: &mut Draw) -> Document {
    let corners: Vec<Degrees> = (0..2 + draw.below(7))
        .map(|_| match draw.below(4) {
            0 => draw.place(),
            1 => (
                draw.below(5) as f64 * 90.0 - 180.0,
                draw.below(3) as f64 * 90.0 - 90.0,
            ),
            _ => (draw.below(4) as f64, draw.below(4) as f64 * 1e-14),
        })
        .collect();
    match draw.below(3) {
        0 => line(&corners),
        1 => polygon(&[corners]),
        _ => {
            let hole = corners.iter().map(|c| (c.0 / 2.0, c.1 / 2.0)).collect();
            polygon(&[corners, hole])
        }
    }
}

#[test]
fn fuzz_geometry_of_any_form() {
    let first: u64 = std::env::var("NILOMETER_FUZZ_SEED").map_or(0, |s| s.parse().unwrap());
    let runs: u64 = std::env::var("NILOMETER_FUZZ_RUNS").map_or(200, |s| s.parse().unwrap());
    let tests = [
        within(polygon(&[vec![
            (0.0, 0.0),
            (2.0, 0.0),
            (2.0, 2.0),
            (0.0, 2.0),
        ]])),
        intersects(polygon(&[vec![(-10.0, -10.0), (170.0, 0.0), (0.0, 80.0)]])),
        intersects(line(&[(0.0, 0.0), (3.0, 0.0)])),
    ];
    for seed in first..first + runs {
        let mut draw = Draw::new(seed);
        for _ in 0..20 {
            let value = match draw.below(2) {
                0 => nearly_geometry(&mut draw, 5),
                _ => degenerate_shape(&mut draw).into(),
            };
            for test in &tests {
                test.test(value.as_ref());
                may_hold(test, value.as_ref(), value.as_ref());
            }
            let _ = index_cells(value.as_ref());
            let _ = bucket_cells([value.as_ref()]);
            let _ = NearQuery::from_point(value.as_ref(), true);
            for name in ["$geometry", "$box", "$polygon", "$center", "$centerSphere"] {
                let mut operand = DocumentBuilder::new();
                operand.append(name, value.clone());
                let operand = operand.finish();
                if let Ok(test) = GeoTest::within(ValueRef::Document(operand.as_ref())) {
                    test.test(value.as_ref());
                    if let Some(Region::Sphere(region)) = test.region() {
                        query_cells(region);
                    }
                }
                if let Ok(test) = GeoTest::intersects(ValueRef::Document(operand.as_ref())) {
                    test.test(value.as_ref());
                }
                let _ = NearQuery::parse(doc! {"$near": operand}.as_ref());
            }
        }
    }
}
