//! Relations and distances of shapes, compared with plane geometry.

use super::*;

#[test]
fn points_in_polygons_match_flat_ones() {
    let mut draw = TestRandom::new(1);
    for round in 0..400 {
        let middle = draw.place();
        let size = [0.001, 1.0, 20.0, 60.0][round % 4];
        let ring = draw.ring(middle, size);
        let oracle = flat(middle, &ring);
        let test = within(polygon(std::slice::from_ref(&ring)));
        let touching = intersects(polygon(&[ring]));
        for _ in 0..30 {
            let (bearing, reach) = (draw.within(0.0, 360.0), draw.within(0.0, 1.3 * size));
            let at = destination(middle, bearing, reach);
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
fn relations_of_shapes_match_flat_ones() {
    let mut draw = TestRandom::new(2);
    let mut seen = [0; 3];
    for round in 0..1500 {
        let middle = draw.place();
        let size = [0.01, 5.0, 25.0][round % 3];
        let ring = draw.ring(middle, size);
        let (bearing, reach) = (draw.within(0.0, 360.0), draw.within(0.0, 1.8 * size));
        let other_middle = destination(middle, bearing, reach);
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
        // The ring of the other as a line: within in the same cases; touches unless it surrounds.
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
        // With the other as a hole, nothing in the interior of the hole is within.
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
fn a_shape_is_within_itself_and_touches_its_parts() {
    let mut draw = TestRandom::new(3);
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
fn distances_match_the_haversine_formula() {
    let mut draw = TestRandom::new(4);
    for _ in 0..2000 {
        let (a, b) = (draw.place(), draw.place());
        let expected = haversine(a, b);
        let near = NearQuery::from_point(ValueRef::Document(point(a).as_ref()), true).unwrap();
        let found = near
            .distance(ValueRef::Document(point(b).as_ref()))
            .unwrap();
        // The oracle itself loses half its digits near the antipode.
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
fn distances_to_shapes_match_their_nearest_points() {
    let mut draw = TestRandom::new(5);
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
        // Advance along the sides in small steps.
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
fn discs_contain_shapes_whose_every_point_they_contain() {
    let mut draw = TestRandom::new(6);
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
fn antimeridian_and_poles_are_not_borders() {
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
fn planes_accept_points_and_globes_accept_valid_coordinates() {
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
