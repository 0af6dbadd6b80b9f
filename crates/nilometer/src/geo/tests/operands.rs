//! Operands of the operators: validation, and arbitrary geometry, which must not cause harm.

use super::*;

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

/// Generates a value similar to geometry, more or less invalid.
fn nearly_geometry(draw: &mut TestRandom, depth: usize) -> Value {
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
    let number = |draw: &mut TestRandom| match draw.below(3) {
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

/// Generates coordinates of the right nesting, with corners from a small set so that they coincide
/// and cross.
fn degenerate_shape(draw: &mut TestRandom) -> Document {
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
    let runs: u64 = std::env::var("NILOMETER_FUZZ_RUNS")
        .map_or(nilometer_storage::testing::effort(30, 200, 200), |s| {
            s.parse().unwrap()
        });
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
        let mut draw = TestRandom::new(seed);
        for _ in 0..20 {
            let value = match draw.below(2) {
                0 => nearly_geometry(&mut draw, 5),
                _ => degenerate_shape(&mut draw).into(),
            };
            for test in &tests {
                test.test(value.as_ref());
                may_contain(test, value.as_ref(), value.as_ref());
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
