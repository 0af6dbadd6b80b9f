//! Geospatial operators in filters. The shapes are tested in `geo`.

use super::*;

fn square(size: i32) -> Value {
    let ring = array![
        array![0, 0],
        array![size, 0],
        array![size, size],
        array![0, size],
        array![0, 0]
    ];
    doc! {"type": "Polygon", "coordinates": array![ring]}.into()
}

fn point(lng: f64, lat: f64) -> Value {
    doc! {"type": "Point", "coordinates": array![lng, lat]}.into()
}

#[test]
fn within_and_intersects_traverse_arrays() {
    let cases = || {
        vec![
            (doc! {"p": point(1.0, 1.0)}, true),
            (doc! {"p": array![1, 1]}, true),
            (doc! {"p": doc! {"lng": 1, "lat": 1}}, true),
            (doc! {"p": array![point(50.0, 1.0), point(1.0, 1.0)]}, true),
            (doc! {"p": array![array![50, 1], array![1, 1]]}, true),
            (doc! {"p": point(50.0, 1.0)}, false),
            (doc! {"p": array![point(50.0, 1.0)]}, false),
            (
                doc! {"p": doc! {"type": "Point", "coordinates": array!["bad", 0]}},
                false,
            ),
            (doc! {"p": Value::Null}, false),
            (doc! {"p": 5}, false),
            (doc! {}, false),
        ]
    };
    check(
        doc! {"p": doc! {"$geoWithin": doc! {"$geometry": square(9)}}},
        cases(),
    );
    check(
        doc! {"p": doc! {"$within": doc! {"$geometry": square(9)}}},
        cases(),
    );
    check(
        doc! {"p": doc! {"$geoIntersects": doc! {"$geometry": square(9)}}},
        cases(),
    );
    check(
        doc! {"p": doc! {"$geoWithin": doc! {"$box": array![array![0, 0], array![9, 9]]}}},
        cases(),
    );
    check(
        doc! {"p": doc! {"$geoWithin": doc! {"$center": array![array![1, 1], 2]}}},
        cases(),
    );
    check(
        doc! {"p": doc! {"$not": doc! {"$geoWithin": doc! {"$geometry": square(9)}}}},
        cases().into_iter().map(|(d, yes)| (d, !yes)).collect(),
    );
    check(
        doc! {"a.p": doc! {"$geoWithin": doc! {"$geometry": square(9)}}},
        vec![
            (doc! {"a": array![doc! {"p": point(1.0, 1.0)}]}, true),
            (doc! {"a": doc! {"p": array![1, 1]}}, true),
            (doc! {"a": 1}, false),
        ],
    );
}

#[test]
fn near_is_allowed_only_where_it_sorts_the_query() {
    let near = || doc! {"p": doc! {"$near": array![0, 0], "$maxDistance": 5}};
    let code = |filter: Document| {
        MatchExpression::parse_with_near(filter.as_ref(), &ParseContext::new())
            .and_then(MatchExpression::take_near)
            .map_or_else(|e| e.code.0, |_| 0)
    };
    assert_eq!(code(near()), 0);
    assert_eq!(code(doc! {"$and": array![near(), doc! {"a": 1}]}), 0);
    for bad in [
        doc! {"$or": array![near(), doc! {"a": 1}]},
        doc! {"$nor": array![near()]},
        doc! {"p": doc! {"$not": doc! {"$near": array![0, 0]}}},
        doc! {"a": doc! {"$elemMatch": near()}},
        doc! {"$and": array![near(), near()]},
        doc! {"p": doc! {"$maxDistance": 5}},
    ] {
        assert_eq!(code(bad.clone()), 2, "{bad:?}");
    }
    assert_eq!(parse(&near()).unwrap_err().code.0, 5_626_500);

    let filter = doc! {"$and": array![near(), doc! {"a": 1}]};
    let parsed = MatchExpression::parse_with_near(filter.as_ref(), &ParseContext::new()).unwrap();
    let matches = |doc: Document| {
        parsed
            .matches(doc.as_ref(), &EvalContext::default())
            .unwrap()
    };
    assert!(matches(doc! {"p": array![3, 4], "a": 1}));
    assert!(!matches(doc! {"p": array![3, 5], "a": 1}));
    assert!(!matches(doc! {"a": 1}));
    let (taken, rest) = parsed.take_near().unwrap();
    assert_eq!(taken.unwrap().0.as_str(), "p");
    assert_eq!(rest.to_document(), doc! {"a": doc! {"$eq": 1}});
}

#[test]
fn buckets_are_tested_by_their_bounds() {
    let operand = |region: Document| {
        doc! {"$_internalBucketGeoWithin": doc! {"withinRegion": region, "field": "a.p"}}
    };
    let bucket = |min: Value, max: Value| {
        doc! {"control": doc! {"min": doc! {"a": doc! {"p": min}}, "max": doc! {"a": doc! {"p": max}}}}
    };
    for region in [
        doc! {"$geometry": square(9)},
        doc! {"$box": array![array![0, 0], array![9, 9]]},
        doc! {"$geometry": doc! {"type": "LineString", "coordinates": array![array![0, 0], array![9, 9]]}},
    ] {
        check(
            operand(region),
            vec![
                (bucket(point(1.0, 1.0), point(2.0, 2.0)), true),
                (bucket(point(-9.0, -9.0), point(20.0, 20.0)), true),
                (bucket(point(40.0, 40.0), point(50.0, 50.0)), false),
                (bucket(array![40, 40], array![50, 50]), false),
                (bucket(point(40.0, 40.0), array![50, 50]), true),
                (bucket(Value::Null, point(50.0, 50.0)), true),
                (doc! {"control": doc! {}}, true),
                (
                    doc! {"control": doc! {"min": doc! {"a": array![1]}, "max": doc! {}}},
                    true,
                ),
            ],
        );
    }
    let code = |operand: Value| {
        parse(&doc! {"$_internalBucketGeoWithin": operand}).map_or_else(|e| e.code.0, |_| 0)
    };
    assert_eq!(code(doc! {}.into()), 9);
    assert_eq!(code(doc! {"withinRegion": 7, "field": "p"}.into()), 14);
    assert_eq!(code(doc! {"withinRegion": doc! {}, "field": "p"}.into()), 2);
    assert_eq!(code(doc! {"withinRegion": doc! {}, "field": 7}.into()), 14);
    assert_eq!(
        code(doc! {"withinRegion": doc! {}, "field": "p", "x": 1}.into()),
        9
    );
    let inner = operand(doc! {"$geometry": square(9)});
    let inside = doc! {"x": doc! {"$elemMatch": inner}};
    assert_eq!(parse(&inside).unwrap_err().code.0, 224);
}
