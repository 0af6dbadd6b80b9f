//! `$geoNear`, `$near` and `$text` over partitions answer as one server does.

use nilometer::Database;
use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::router::Cluster;
use crate::support::{Fixture, primary_environment, show};

const DOCUMENTS: i32 = 120;

const WORDS: [&str; 6] = ["river", "flood", "gauge", "delta", "rain", "stone"];

/// A cluster with a sharded collection `c` and a sharded time series `ts` beside one server with the same.
struct Sides {
    cluster: Cluster,
    single: Fixture,
}

impl Sides {
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::new(3);
        cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"_id": "hashed"}});
        let options = doc! {"timeField": "t", "metaField": "m"};
        let create = doc! {"create": "ts", "timeseries": options};
        cluster.router.run(create.clone());
        cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": "hashed"}});
        let single = Database::in_memory_with(primary_environment()).unwrap();
        let mut new = Self {
            cluster,
            single: Fixture::of(single),
        };
        new.single.run(create);
        let mut random = Random::new(seed);
        let mut degrees =
            |bound: i32| f64::from(random.int(bound * 2000)) / 1000.0 - f64::from(bound);
        let mut documents = Vec::new();
        let mut measurements = Vec::new();
        for at in 0..DOCUMENTS {
            let pair = array![degrees(170), degrees(80)];
            let point = doc! {"type": "Point", "coordinates": pair.clone()};
            let words: Vec<&str> = WORDS.iter().copied().filter(|_| degrees(2) > 0.5).collect();
            documents.push(Value::from(doc! {
                "_id": at, "loc": point.clone(), "p": pair, "v": at % 7, "s": words.join(" "),
                "other": point.clone(),
            }));
            measurements.push(Value::from(doc! {
                "t": Value::DateTime(i64::from(at) * 1000), "x": at,
                "m": doc! {"host": at % 10, "at": point.clone()}, "place": point,
            }));
        }
        let indexes = [
            doc! {"key": doc! {"loc": "2dsphere"}, "name": "loc"},
            doc! {"key": doc! {"p": "2d"}, "name": "p"},
            doc! {"key": doc! {"s": "text"}, "name": "s"},
        ];
        let indexes: Vec<Value> = indexes.into_iter().map(Value::from).collect();
        let of_series = array![doc! {"key": doc! {"m.at": "2dsphere"}, "name": "at"}];
        for side in [&mut new.cluster.router, &mut new.single] {
            side.run(doc! {"createIndexes": "c", "indexes": indexes.clone()});
            side.run(doc! {"createIndexes": "ts", "indexes": of_series.clone()});
            side.run(doc! {"insert": "c", "documents": documents.clone()});
            side.run(doc! {"insert": "ts", "documents": measurements.clone()});
        }
        let spread = new.cluster.counts("c");
        assert!(spread.iter().all(|count| *count > 10), "{spread:?}");
        new
    }

    /// Both give the same documents in the same order, or the same error.
    fn check(&mut self, command: &Document) -> Vec<Document> {
        let mut errors = Vec::new();
        let mut answers = [&mut self.cluster.router, &mut self.single].map(|side| {
            let reply = side.reply(command.clone());
            let code = reply.get("code").as_exact_i64();
            errors.push(reply.get("errmsg").as_str().unwrap_or_default().to_owned());
            match code {
                Some(_) => (code, Vec::new()),
                None if reply.get("cursor").is_missing() => (code, vec![without_times(&reply)]),
                None => (code, side.rest(reply)),
            }
        });
        let texts = answers.each_ref().map(|(code, rows)| {
            let rows: Vec<String> = rows.iter().map(show).collect();
            (*code, rows)
        });
        assert_eq!(
            texts[0],
            texts[1],
            "{}: {}",
            show(command),
            errors.join(", ")
        );
        std::mem::take(&mut answers[0].1)
    }

    fn find(&mut self, filter: Document, more: Document) -> Vec<Document> {
        let mut find = nilometer_bson::DocumentBuilder::new();
        find.append("find", "c");
        find.append("filter", filter);
        for option in more.iter() {
            find.append_element(option);
        }
        self.check(&find.finish())
    }

    fn aggregate(&mut self, name: &str, stages: Vec<Document>) -> Vec<Document> {
        let stages: Vec<Value> = stages.into_iter().map(Value::from).collect();
        let variables = doc! {"far": 5_000_000, "least": 2};
        self.check(&doc! {
            "aggregate": name, "pipeline": stages, "cursor": doc! {"batchSize": 7}, "let": variables,
        })
    }
}

/// Returns the figures of a reply, and its values in one order.
fn without_times(reply: &Document) -> Document {
    let mut out = nilometer_bson::DocumentBuilder::new();
    for field in reply.iter() {
        match (field.name(), field.value()) {
            ("n" | "nModified", _) => out.append_element(field),
            ("values", ValueRef::Array(values)) => {
                let mut values: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
                values.sort();
                let values: Vec<Value> = values.into_iter().map(Value::from).collect();
                out.append("values", values)
            }
            _ => continue,
        };
    }
    out.finish()
}

fn point(lng: f64, lat: f64) -> Document {
    doc! {"type": "Point", "coordinates": array![lng, lat]}
}

#[test]
fn documents_are_found_by_distance() {
    for seed in 1..4 {
        let mut sides = Sides::new(seed);
        let center = point(10.0 * seed as f64, 20.0);
        let on_sphere = |max: i64| {
            let near = doc! {"$geometry": center.clone(), "$maxDistance": max};
            doc! {"loc": doc! {"$near": near}}
        };
        let all = sides.find(on_sphere(30_000_000), doc! {});
        assert_eq!(all.len(), DOCUMENTS as usize);
        assert!(
            all.iter()
                .all(|row| row.get("$geoNearDistance").is_missing())
        );
        let shown = doc! {"_id": 1, "d": doc! {"$meta": "geoNearDistance"}, "at": doc! {"$meta": "geoNearPoint"}};
        for filter in [
            on_sphere(4_000_000),
            doc! {"loc": doc! {"$nearSphere": array![3, 4]}},
            doc! {"p": doc! {"$near": array![3, 4], "$maxDistance": 60}},
            doc! {"p": doc! {"$nearSphere": array![3, 4], "$minDistance": 0.2, "$maxDistance": 1}, "v": doc! {"$lt": 4}},
            doc! {"loc": doc! {"$geoNear": center.clone()}, "$expr": doc! {"$gt": array!["$v", 2]}},
            // Without an index, and with one of the other kind.
            doc! {"other": doc! {"$near": array![3, 4]}},
            doc! {"loc": doc! {"$near": array![3, 4]}},
        ] {
            for more in [
                doc! {},
                doc! {"limit": 5},
                doc! {"skip": 3, "limit": 9},
                doc! {"projection": shown.clone(), "limit": 20},
                doc! {"projection": doc! {"v": 1}},
                doc! {"sort": doc! {"_id": -1}, "limit": 6, "projection": shown.clone()},
                doc! {"batchSize": 4},
            ] {
                sides.find(filter.clone(), more);
            }
            sides.check(&doc! {"count": "c", "query": filter.clone()});
        }
        // On one partition.
        let of_one = doc! {"_id": 7, "loc": doc! {"$near": doc! {"$geometry": center.clone()}}};
        assert_eq!(sides.find(of_one, doc! {}).len(), 1);
        let series = doc! {"find": "ts", "filter": doc! {"place": doc! {"$near": doc! {"$geometry": center}}}};
        sides.check(&series);
    }
}

#[test]
fn a_stage_measures_distances() {
    for seed in 1..3 {
        let mut sides = Sides::new(seed);
        let near = point(-20.0, 10.0 * seed as f64);
        let stage = |more: Document| {
            let mut spec = nilometer_bson::DocumentBuilder::new();
            if more.get("near").is_missing() {
                spec.append("near", near.clone());
            }
            if more.get("distanceField").is_missing() {
                spec.append("distanceField", "d");
            }
            for option in more.iter() {
                spec.append_element(option);
            }
            doc! {"$geoNear": spec.finish()}
        };
        let meta = doc! {"$meta": "geoNearDistance"};
        let behind = [
            vec![],
            vec![doc! {"$limit": 4}],
            vec![doc! {"$skip": 2}, doc! {"$limit": 4}],
            vec![doc! {"$match": doc! {"v": 3}}, doc! {"$limit": 3}],
            vec![doc! {"$sort": doc! {"d": -1}}, doc! {"$limit": 3}],
            vec![doc! {"$sort": doc! {"v": 1, "_id": 1}}],
            vec![
                doc! {"$group": doc! {"_id": "$v", "n": doc! {"$sum": 1}, "least": doc! {"$min": "$d"}}},
                doc! {"$sort": doc! {"_id": 1}},
            ],
            vec![doc! {"$project": doc! {"_id": 1, "d": 1}}],
            vec![
                doc! {"$addFields": doc! {"m": meta.clone(), "at": doc! {"$meta": "geoNearPoint"}}},
                doc! {"$limit": 9},
            ],
            vec![
                doc! {"$unwind": "$p"},
                doc! {"$limit": 3},
                doc! {"$project": doc! {"p": 1, "m": meta}},
            ],
            vec![doc! {"$count": "n"}],
        ];
        for spec in [
            doc! {"key": "loc"},
            doc! {"key": "loc", "distanceField": "a.d", "includeLocs": "a.at", "distanceMultiplier": 0.001},
            doc! {"key": "loc", "maxDistance": "$$far", "query": doc! {"$expr": doc! {"$gte": array!["$v", "$$least"]}}},
            doc! {"key": "p", "near": array![1, 2], "minDistance": 10, "maxDistance": 80},
            doc! {"key": "p", "near": array![1, 2], "spherical": true, "query": doc! {"v": doc! {"$in": array![1, 2]}}},
            doc! {"near": array![1, 2]},
            doc! {"key": "loc", "query": doc! {"_id": 5}},
            // Refused.
            doc! {},
            doc! {"key": "other"},
            doc! {"key": "loc", "near": "here"},
        ] {
            for more in &behind {
                let stages = [vec![stage(spec.clone())], more.clone()].concat();
                let rows = sides.aggregate("c", stages);
                assert!(
                    rows.iter()
                        .all(|row| row.get("$geoNearDistance").is_missing())
                );
            }
        }
        for spec in [
            doc! {"key": "place", "maxDistance": 9_000_000},
            doc! {"key": "m.at", "query": doc! {"m.host": 3}},
            doc! {"key": "place", "query": doc! {"x": 3}},
            doc! {"key": "m.none"},
            doc! {},
        ] {
            let shown = doc! {"$project": doc! {"_id": 0, "x": 1, "d": 1}};
            sides.aggregate("ts", vec![stage(spec), shown]);
        }
        let late = vec![doc! {"$limit": 1}, stage(doc! {"key": "loc"})];
        sides.aggregate("c", late);
        let told = doc! {"aggregate": "c", "pipeline": array![stage(doc! {"key": "loc"}), doc! {"$limit": 2}], "cursor": doc! {}};
        let told = sides.cluster.router.run(doc! {"explain": told});
        assert!(show(&told).contains("GEO_NEAR_2DSPHERE"), "{}", show(&told));
    }
}

#[test]
fn documents_are_found_by_words() {
    let mut sides = Sides::new(5);
    let text = |words: &str| doc! {"$text": doc! {"$search": words}};
    let score = doc! {"$meta": "textScore"};
    let by_score = doc! {"score": score.clone(), "_id": 1};
    for words in [
        "river",
        "flood rain",
        "\"gauge\" delta",
        "stone -river",
        "rivers",
        "none",
    ] {
        for more in [
            doc! {"sort": doc! {"_id": 1}},
            doc! {"sort": by_score.clone()},
            doc! {"sort": by_score.clone(), "skip": 2, "limit": 5},
            doc! {"sort": doc! {"_id": 1}, "projection": doc! {"v": 1, "score": score.clone()}},
            doc! {"sort": by_score.clone(), "projection": doc! {"_id": 1, "score": score.clone()}, "limit": 12},
        ] {
            let rows = sides.find(text(words), more);
            assert!(rows.iter().all(|row| row.get("$textScore").is_missing()));
        }
        let both = doc! {"$text": doc! {"$search": words}, "v": doc! {"$gt": 2}};
        sides.find(both.clone(), doc! {"sort": by_score.clone()});
        sides.check(&doc! {"count": "c", "query": both.clone()});
        sides.check(&doc! {"distinct": "c", "key": "v", "query": text(words)});
        for more in [
            vec![doc! {"$sort": by_score.clone()}, doc! {"$limit": 6}],
            vec![
                doc! {"$group": doc! {"_id": "$v", "n": doc! {"$sum": 1}}},
                doc! {"$sort": doc! {"_id": 1}},
            ],
            vec![
                doc! {"$group": doc! {"_id": score.clone(), "n": doc! {"$sum": 1}}},
                doc! {"$sort": doc! {"_id": 1}},
            ],
            vec![
                doc! {"$addFields": doc! {"s": score.clone()}},
                doc! {"$match": doc! {"s": doc! {"$gt": 0.6}}},
                doc! {"$sort": doc! {"s": -1, "_id": 1}},
            ],
            vec![
                doc! {"$project": doc! {"s": score.clone(), "v": 1}},
                doc! {"$sort": doc! {"_id": 1}},
            ],
        ] {
            sides.aggregate("c", [vec![doc! {"$match": both.clone()}], more].concat());
        }
    }
    // Refused alike.
    sides.aggregate(
        "c",
        vec![doc! {"$limit": 1}, doc! {"$match": text("river")}],
    );
    sides.aggregate("ts", vec![doc! {"$match": text("river")}]);
    sides.find(text("river"), doc! {"hint": "loc"});
    let update = doc! {"q": text("flood"), "u": doc! {"$inc": doc! {"v": 100}}, "multi": true};
    sides.check(&doc! {"update": "c", "updates": array![update]});
    sides.find(doc! {}, doc! {"sort": doc! {"_id": 1}});
}
