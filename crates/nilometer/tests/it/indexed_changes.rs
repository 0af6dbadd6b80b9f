//! Indexes, collations and changes together: a time series with random indexes of various collations, whose
//! measurements are updated and deleted through the view, answers like an ordinary collection without
//! indexes after the same commands.
//!
//! Strings have forms that collations make equal; points are in metadata and in measurements, under
//! `2dsphere`, `2d` and the points of buckets. There are no arrays, as indexes on measurements refuse them.
//! Afterwards `validate` compares every entry with a recomputed one.

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::{Effort, effort};

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, show};

const START_MS: i64 = 1_700_000_000_000;

/// Generated databases of a run, and steps on each.
const DATABASES: Effort = Effort {
    fast: 1,
    long: 10,
    soak: 400,
};
const STEPS: u64 = 50;

/// Strings of which collations make some equal.
const TEXTS: [&str; 12] = [
    "a", "A", "á", "b", "B", "10", "9", "010", "ab", "Ab", "z", "",
];

fn collation(random: &mut Random) -> Document {
    match random.below(4) {
        0 => doc! {"locale": "simple"},
        1 => doc! {"locale": "en", "numericOrdering": true},
        2 => doc! {"locale": "en", "strength": 1},
        _ => doc! {"locale": "en", "strength": 2},
    }
}

fn text(random: &mut Random) -> Value {
    Value::from(*random.pick(&TEXTS))
}

fn degrees(random: &mut Random, most: i32) -> f64 {
    f64::from(random.int(8 * most) - 4 * most) / 4.0
}

fn point(random: &mut Random) -> Value {
    let (lng, lat) = (degrees(random, 40), degrees(random, 20));
    doc! {"type": "Point", "coordinates": array![lng, lat]}.into()
}

fn time(random: &mut Random) -> Value {
    let spread = *random.pick(&[60_000, 3_600_000, 40 * 3_600_000]);
    let at = START_MS + random.below(spread) as i64;
    Value::DateTime(match random.below(30) {
        0 => -at,
        1 => at * 3,
        _ => at,
    })
}

/// Returns metadata with sorted fields, as a time series stores it.
fn meta(random: &mut Random) -> Document {
    let mut out = DocumentBuilder::new();
    if random.below(3) > 0 {
        // Few places, so that series have several measurements.
        let lng = f64::from(random.int(4) * 10 - 20);
        let lat = f64::from(random.int(3) * 10);
        let place = doc! {"coordinates": array![lng, lat], "type": "Point"};
        out.append("at", place);
    }
    match random.below(6) {
        0 => {}
        1 => {
            out.append("h", random.int(4));
        }
        _ => {
            out.append("h", text(random));
        }
    }
    if random.below(4) > 0 {
        out.append("r", random.int(3));
    }
    out.finish()
}

fn measurement(random: &mut Random, id: i32) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", id).append("t", time(random));
    if random.below(12) > 0 {
        out.append("m", meta(random));
    }
    if random.below(4) > 0 {
        out.append("s", text(random));
    }
    match random.below(8) {
        0 => {}
        1 => {
            out.append("k", Value::Double(f64::from(random.int(40)) / 4.0));
        }
        2 => {
            out.append("k", text(random));
        }
        _ => {
            out.append("k", random.int(10));
        }
    }
    if random.below(3) > 0 {
        out.append("p", point(random));
    }
    out.finish()
}

fn region(random: &mut Random, on_plane: bool) -> Value {
    let (lng, lat) = (degrees(random, 40), degrees(random, 20));
    let size = f64::from(1 + random.int(25));
    let (east, north) = (lng + size, lat + size);
    let ring = array![
        array![lng, lat],
        array![east, lat],
        array![east, north],
        array![lng, north],
        array![lng, lat]
    ];
    let polygon = doc! {"type": "Polygon", "coordinates": array![ring]};
    match random.below(if on_plane { 5 } else { 3 }) {
        0 => doc! {"$geoWithin": doc! {"$geometry": polygon}}.into(),
        1 => doc! {"$geoIntersects": doc! {"$geometry": polygon}}.into(),
        2 => {
            let disc = array![array![lng, lat], size.to_radians()];
            doc! {"$geoWithin": doc! {"$centerSphere": disc}}.into()
        }
        3 => {
            let corners = array![array![lng, lat], array![east, north]];
            doc! {"$geoWithin": doc! {"$box": corners}}.into()
        }
        _ => doc! {"$geoWithin": doc! {"$center": array![array![lng, lat], size]}}.into(),
    }
}

fn at(path: &str, test: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(path, test);
    out.finish()
}

/// Returns a predicate on one path.
fn test(random: &mut Random) -> Document {
    let path: &str = random.pick::<&str>(&["s", "m.h", "k", "m.h", "s"]);
    match random.below(16) {
        0..=2 => at(path, text(random)),
        3 => at(path, doc! {"$in": array![text(random), text(random), 3]}),
        4 => at(
            path,
            doc! {"$gte": text(random), "$lt": *random.pick(&["b", "c", "zz"])},
        ),
        5 => at(path, doc! {"$gt": text(random)}),
        6 => at("k", doc! {"$gt": random.int(8), "$lte": 9}),
        7 => at("m.r", random.int(3)),
        // Of one field: updates order the fields of metadata differently than a series.
        8 => at("m", at("h", text(random))),
        9 => at("m.at", region(random, true)),
        10 | 11 => at("p", region(random, true)),
        12 => at("t", doc! {"$gte": time(random), "$lt": time(random)}),
        13 => at(path, doc! {"$exists": random.below(2) == 0}),
        14 => at(path, doc! {"$ne": text(random)}),
        _ => at("m.h", Value::Null),
    }
}

fn filter(random: &mut Random) -> Document {
    match random.below(8) {
        0..=3 => test(random),
        4 => doc! {"$or": array![test(random), test(random)]},
        5 => {
            doc! {"$and": array![test(random), doc! {"$or": array![test(random), test(random)]}]}
        }
        _ => doc! {"$and": array![test(random), test(random)]},
    }
}

fn index(random: &mut Random, number: usize) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("name", format!("i{number}"));
    let direction = *random.pick(&[1, -1]);
    let ordered = |path: &str| at(path, direction);
    let mut partial = random.below(5) == 0;
    let mut collated = random.below(2) == 0;
    let key = match random.below(14) {
        0 => ordered("s"),
        1 => ordered("m.h"),
        2 => ordered("k"),
        3 => doc! {"m.h": direction, "t": 1},
        4 => doc! {"m.h": 1, "s": direction},
        5 => doc! {"m.r": 1, "m.h": direction},
        6 => ordered("m"),
        7 => doc! {"m.h": "hashed"},
        8 => {
            partial = false;
            doc! {"m.$**": 1}
        }
        9 | 10 => {
            collated = false;
            doc! {"p": "2dsphere"}
        }
        11 => {
            collated = false;
            doc! {"m.at": "2dsphere", "m.r": 1}
        }
        12 => {
            collated = false;
            at("m.at", "2dsphere")
        }
        _ => {
            // A TTL index that expires nothing here, as no date is old enough.
            partial = false;
            collated = false;
            out.append("expireAfterSeconds", 2_000_000_000i64);
            out.append("partialFilterExpression", at("m.h", text(random)));
            ordered("t")
        }
    };
    out.append("key", key);
    if collated {
        out.append("collation", collation(random));
    } else {
        out.append("collation", doc! {"locale": "simple"});
    }
    if partial {
        let filter = match random.below(4) {
            0 => at("m.h", doc! {"$gte": text(random)}),
            1 => at("m.r", doc! {"$gte": 1}),
            2 => at("k", doc! {"$gt": random.int(6)}),
            _ => at("s", doc! {"$gte": text(random)}),
        };
        out.append("partialFilterExpression", filter);
    }
    out.finish()
}

fn change(random: &mut Random) -> Value {
    match random.below(9) {
        0 => doc! {"$set": at("s", text(random))}.into(),
        1 => doc! {"$set": at("m.h", text(random))}.into(),
        2 => doc! {"$set": at("m.r", random.int(3))}.into(),
        3 => doc! {"$set": at("k", random.int(10))}.into(),
        4 => doc! {"$set": at("p", point(random))}.into(),
        5 => doc! {"$unset": at(random.pick::<&str>(&["s", "p", "k", "m.at"]), "")}.into(),
        6 => doc! {"$set": doc! {"m": meta(random), "k": 1}}.into(),
        7 => array![doc! {"$set": doc! {"m": doc! {"h": "$s"}}}],
        _ => doc! {"$set": at("t", time(random))}.into(),
    }
}

fn with(command: Document, name: &str, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append(name, value);
    out.finish()
}

struct Case {
    random: Random,
    fixture: Fixture,
    created: usize,
    fresh: i32,
    seed: u64,
}

impl Case {
    /// Runs a command on both collections; the replies must be equal.
    fn both(&mut self, name: &str, rest: &Document) {
        self.both_with(name, rest, rest);
    }

    /// Runs a command on both, each with its own fields.
    fn both_with(&mut self, name: &str, rest: &Document, of_plain: &Document) {
        let mut run = |collection: &str, rest: &Document| {
            let mut command = DocumentBuilder::new();
            command.append(name, collection);
            for element in rest.iter() {
                command.append_element(element);
            }
            show(&self.fixture.reply(command.finish()))
        };
        let (found, wanted) = (run("ts", rest), run("plain", of_plain));
        assert_eq!(found, wanted, "{}", self.context(rest));
    }

    /// Returns the name of an index that contains every measurement and can be hinted, if there is one.
    fn any_whole_index(&mut self) -> Option<Value> {
        let indexes = self.fixture.all(doc! {"listIndexes": "ts"});
        let whole: Vec<&Document> = indexes.iter().filter(|index| is_whole(index)).collect();
        match whole.is_empty() {
            true => None,
            false => Some(self.random.pick(&whole).get("name").to_value()),
        }
    }

    fn context(&mut self, what: &Document) -> String {
        let listed = self.fixture.all(doc! {"listIndexes": "ts"});
        let listed: Vec<String> = listed.iter().map(show).collect();
        format!(
            "seed {}: {}\n  {}",
            self.seed,
            show(what),
            listed.join("\n  ")
        )
    }

    fn insert(&mut self) {
        let count = match self.random.below(5) {
            0 => 1 + self.random.below(150),
            _ => 1 + self.random.below(12),
        };
        let mut batch = Vec::new();
        for _ in 0..count {
            self.fresh += 1;
            batch.push(Value::from(measurement(&mut self.random, self.fresh)));
        }
        self.both("insert", &doc! {"documents": batch});
    }

    fn create_index(&mut self) {
        self.created += 1;
        let index = index(&mut self.random, self.created);
        let reply = self
            .fixture
            .reply(doc! {"createIndexes": "ts", "indexes": array![index.clone()]});
        // It exists already, with the same or another name.
        let code = reply.get("code").as_exact_i64().unwrap_or(0);
        assert!(
            [0, 85, 86].contains(&code),
            "{} for {}",
            show(&reply),
            show(&index)
        );
    }

    fn drop_index(&mut self) {
        let listed = self.fixture.all(doc! {"listIndexes": "ts"});
        if !listed.is_empty() {
            let name = self.random.pick(&listed).get("name").to_value();
            self.fixture.run(doc! {"dropIndexes": "ts", "index": name});
        }
    }

    fn change(&mut self) {
        let narrow = at("_id", doc! {"$mod": array![4, self.random.int(4)]});
        let q = doc! {"$and": array![filter(&mut self.random), narrow]};
        let own = match self.random.below(3) {
            0 => None,
            _ => Some(collation(&mut self.random)),
        };
        let (name, field, mut statement) = match self.random.below(4) {
            0 => ("delete", "deletes", doc! {"q": q, "limit": 0}),
            _ => {
                let change = change(&mut self.random);
                let statement = doc! {"q": q, "u": change, "multi": true};
                ("update", "updates", statement)
            }
        };
        if let Some(own) = own {
            statement = with(statement, "collation", own);
        }
        // The access path makes no difference.
        let hint = match self.random.below(4) {
            0 => Some(doc! {"$natural": 1}.into()),
            1 => self.any_whole_index(),
            _ => None,
        };
        let hinted = match hint {
            Some(hint) => with(statement.clone(), "hint", hint),
            None => statement.clone(),
        };
        let (hinted, plain) = (array![hinted], array![statement]);
        self.both_with(name, &at(field, hinted), &at(field, plain));
    }

    /// Compares the ids a filter finds, counts and groups, by any access path.
    fn ask(&mut self) {
        let filter = filter(&mut self.random);
        let own = match self.random.below(3) {
            0 => None,
            _ => Some(collation(&mut self.random)),
        };
        let asked = |command: Document| match &own {
            Some(own) => with(command, "collation", own.clone()),
            None => command,
        };
        let sort = doc! {"_id": 1};
        let find = |collection: &str| {
            asked(doc! {"find": collection, "filter": filter.clone(), "sort": sort.clone()})
        };
        let wanted = ids(&self.fixture.all(find("plain")));
        let found = ids(&self.fixture.all(find("ts")));
        assert_eq!(found, wanted, "{}", self.context(&find("ts")));
        let count = asked(doc! {"count": "ts", "query": filter.clone()});
        let counted = self.fixture.run(count).get("n").as_exact_i64();
        assert_eq!(
            counted,
            Some(wanted.len() as i64),
            "{}",
            self.context(&find("ts"))
        );
        if let Some(name) = self.any_whole_index() {
            let hinted = with(find("ts"), "hint", name);
            let found = ids(&self.fixture.all(hinted.clone()));
            assert_eq!(found, wanted, "{}", self.context(&hinted));
        }
        self.ask_metas(&filter);
    }

    /// Compares values of the metadata, which may come from an index alone.
    fn ask_metas(&mut self, filter: &Document) {
        let meta_filter = match self.random.below(5) {
            0 => doc! {},
            1 => at("m.h", text(&mut self.random)),
            2 => at(
                "m.h",
                doc! {"$in": array![text(&mut self.random), text(&mut self.random)]},
            ),
            3 => doc! {"m.r": doc! {"$gte": 1}, "m.h": doc! {"$ne": text(&mut self.random)}},
            _ => filter.clone(),
        };
        let key: &str = self.random.pick::<&str>(&["m.h", "m.r", "m"]);
        let simple = doc! {"locale": "simple"};
        let mut values = |collection: &str| {
            let distinct = doc! {"distinct": collection, "key": key, "query": meta_filter.clone()};
            let reply = self
                .fixture
                .run(with(distinct, "collation", simple.clone()));
            let values = reply.get("values").as_array().unwrap();
            let mut values: Vec<String> = values.iter().map(by_name).collect();
            values.sort();
            // The order of fields may differ if nothing sorts them.
            values.dedup();
            let group = doc! {"_id": doc! {"h": "$m.h", "r": "$m.r"}};
            let pipeline = array![doc! {"$match": meta_filter.clone()}, doc! {"$group": group}];
            let aggregate = doc! {
                "aggregate": collection, "pipeline": pipeline, "cursor": doc! {}, "collation": simple.clone(),
            };
            let mut groups: Vec<String> = self.fixture.all(aggregate).iter().map(show).collect();
            groups.sort();
            (values, groups)
        };
        let (found, wanted) = (values("ts"), values("plain"));
        self.ask_collated(&meta_filter);
        let asked = with(meta_filter.clone(), "key", key);
        for (found, wanted) in [(found.0, wanted.0), (found.1, wanted.1)] {
            let extra: Vec<_> = found
                .iter()
                .filter(|v| !wanted.contains(v))
                .take(3)
                .collect();
            let lost: Vec<_> = wanted
                .iter()
                .filter(|v| !found.contains(v))
                .take(3)
                .collect();
            let same = found == wanted;
            assert!(
                same,
                "extra {extra:?}, lost {lost:?}\n{}",
                self.context(&asked)
            );
        }
    }

    /// Under a collation one of several equal strings represents all.
    fn ask_collated(&mut self, filter: &Document) {
        let collation = doc! {"locale": "en", "strength": 1, "numericOrdering": true};
        let strength = *self.random.pick(&[1, 2]);
        let collation = match self.random.below(3) {
            0 => collation,
            _ => doc! {"locale": "en", "strength": strength},
        };
        let number = matches!(collation.get("numericOrdering"), ValueRef::Bool(true));
        let marks = collation.get("strength").as_exact_i64() == Some(1);
        let fold = |value: ValueRef<'_>| match value {
            ValueRef::String(text) => {
                let mut text = text.to_lowercase();
                if marks {
                    text = text.replace('á', "a");
                }
                if number {
                    text = text.trim_start_matches('0').to_owned();
                }
                text
            }
            other => format!("{other:?}"),
        };
        let mut values = |collection: &str| {
            let distinct = doc! {"distinct": collection, "key": "m.h", "query": filter.clone()};
            let reply = self
                .fixture
                .run(with(distinct, "collation", collation.clone()));
            let values = reply.get("values").as_array().unwrap();
            let mut values: Vec<String> = values.iter().map(fold).collect();
            values.sort();
            values
        };
        let (found, wanted) = (values("ts"), values("plain"));
        let asked = with(filter.clone(), "collation", collation.clone());
        assert_eq!(found, wanted, "{}", self.context(&asked));
    }
}

/// True if an index contains every measurement.
fn is_whole(index: &Document) -> bool {
    let key = index.get("key").as_document();
    let ordered = key.is_some_and(|key| {
        key.iter()
            .all(|part| part.value().is_number() && !part.name().ends_with('*'))
    });
    ordered && index.get("partialFilterExpression").is_missing()
}

fn ids(documents: &[Document]) -> Vec<i64> {
    let id = |d: &Document| d.get("_id").as_exact_i64().unwrap();
    documents.iter().map(id).collect()
}

/// Returns a value as text, with the fields of documents sorted by name.
fn by_name(value: ValueRef<'_>) -> String {
    let ValueRef::Document(document) = value else {
        return format!("{value:?}");
    };
    let field = |element: nilometer_bson::Element<'_>| {
        format!("{}: {}", element.name(), by_name(element.value()))
    };
    let mut fields: Vec<String> = document.iter().map(field).collect();
    fields.sort();
    format!("{{{}}}", fields.join(", "))
}

fn contents(fixture: &mut Fixture, collection: &str) -> Vec<String> {
    let found = fixture.all(doc! {"find": collection, "sort": doc! {"_id": 1}});
    let documents = found.iter();
    documents
        .map(|d| by_name(ValueRef::Document(d.as_ref())))
        .collect()
}

fn check_database(seed: u64) {
    let mut random = Random::new(seed);
    let directory = TemporaryDirectory::new();
    let own = collation(&mut random);
    let mut case = Case {
        random,
        fixture: Fixture::open(&directory.0),
        created: 0,
        fresh: 0,
        seed,
    };
    let granularity = *case.random.pick(&["seconds", "minutes", "hours"]);
    let options = doc! {"timeField": "t", "metaField": "m", "granularity": granularity};
    let create = doc! {"create": "ts", "timeseries": options, "collation": own.clone()};
    case.fixture.run(create);
    case.fixture.run(doc! {"create": "plain", "collation": own});
    case.insert();
    for _ in 0..STEPS {
        match case.random.below(12) {
            0 | 1 => case.create_index(),
            2 if case.random.below(4) == 0 => case.drop_index(),
            3 | 4 => case.insert(),
            5..=7 => case.change(),
            8 if case.random.below(4) == 0 => {
                drop(std::mem::replace(&mut case.fixture, Fixture::new()));
                case.fixture = Fixture::open(&directory.0);
            }
            _ => case.ask(),
        }
    }
    let found = contents(&mut case.fixture, "ts");
    let wanted = contents(&mut case.fixture, "plain");
    assert_eq!(found.len(), wanted.len(), "seed {seed}");
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found, wanted, "seed {seed}");
    }
    let reply = case.fixture.run(doc! {"validate": "ts", "full": true});
    let valid = matches!(reply.get("valid"), ValueRef::Bool(true));
    assert!(valid, "{}\n{}", show(&reply), case.context(&doc! {}));
}

#[test]
fn changes_under_indexes_and_collations_change_no_answer() {
    let databases = DATABASES.requested();
    let first = std::env::var("NILOMETER_SEED").map_or(1, |text| text.parse().expect("a number"));
    for seed in first..first + databases {
        check_database(seed);
    }
}

#[test]
fn an_index_on_bucket_points_finds_the_same_measurements() {
    for seed in 0..effort(1, 4, 4) {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let options = doc! {"timeField": "t", "metaField": "m"};
        fixture.run(doc! {"create": "ts", "timeseries": options});
        let documents: Array = (0..400)
            .map(|id| {
                let time = Value::DateTime(START_MS + i64::from(id) * 1000);
                let place = doc! {"at": point(&mut random)};
                doc! {"_id": id, "t": time, "m": id / 4, "o": place}.into()
            })
            .collect();
        for collection in ["ts", "plain"] {
            fixture.run(doc! {"insert": collection, "documents": Value::Array(documents.clone())});
        }
        let index = doc! {"key": doc! {"o.at": "2dsphere"}, "name": "places"};
        fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
        // After its entries, so that tails are read as well.
        for collection in ["ts", "plain"] {
            let late = doc! {"_id": 999, "t": Value::DateTime(START_MS + 5000), "m": 1, "o": doc! {"at": point(&mut Random::new(seed))}};
            fixture.run(doc! {"insert": collection, "documents": array![late]});
        }
        let mut by_index = 0;
        for _ in 0..40 {
            let filter = at("o.at", region(&mut random, false));
            let find = |collection: &str| {
                doc! {"find": collection, "filter": filter.clone(), "sort": doc! {"_id": 1}}
            };
            let wanted = ids(&fixture.all(find("plain")));
            assert_eq!(ids(&fixture.all(find("ts"))), wanted, "{}", show(&filter));
            let hinted = with(find("ts"), "hint", "places");
            assert_eq!(ids(&fixture.all(hinted)), wanted, "{}", show(&filter));
            let explain = doc! {"explain": find("ts"), "verbosity": "queryPlanner"};
            by_index += usize::from(show(&fixture.run(explain)).contains("places"));
        }
        assert!(by_index > 3, "{by_index}");
    }
}

#[test]
fn points_in_metadata_are_found_by_their_index() {
    let mut random = Random::new(3);
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let mut documents: Vec<Value> = Vec::new();
    for series in 0..120 {
        let (lng, lat) = (degrees(&mut random, 40), degrees(&mut random, 20));
        let place = doc! {"coordinates": array![lng, lat], "type": "Point"};
        let meta = doc! {"at": place, "xy": doc! {"x": lng, "y": lat}};
        for id in series * 3..series * 3 + 3 {
            let time = Value::DateTime(START_MS + i64::from(id) * 1000);
            documents.push(Value::from(doc! {"_id": id, "t": time, "m": meta.clone()}));
        }
    }
    let indexes = array![
        doc! {"key": doc! {"m.at": "2dsphere"}, "name": "sphere"},
        doc! {"key": doc! {"m.xy": "2d"}, "name": "plane"}
    ];
    for collection in ["ts", "plain"] {
        fixture.run(doc! {"insert": collection, "documents": documents.clone()});
        fixture.run(doc! {"createIndexes": collection, "indexes": indexes.clone()});
    }
    let mut by_index = 0;
    for _ in 0..30 {
        let on_plane = random.below(2) == 0;
        let from = array![degrees(&mut random, 40), degrees(&mut random, 20)];
        let near = match on_plane {
            true => doc! {"near": from, "key": "m.xy", "distanceField": "d", "maxDistance": 9.5},
            false => {
                let from = doc! {"type": "Point", "coordinates": from};
                doc! {"near": from, "key": "m.at", "distanceField": "d", "maxDistance": 900_000}
            }
        };
        let pipeline = array![
            doc! {"$geoNear": near},
            doc! {"$sort": doc! {"d": 1, "_id": 1}}
        ];
        let ask = |collection: &str| {
            doc! {"aggregate": collection, "pipeline": pipeline.clone(), "cursor": doc! {}}
        };
        let texts = |documents: Vec<Document>| -> Vec<String> {
            let line = |d: &Document| format!("{:?} {:?}", d.get("_id"), d.get("d"));
            documents.iter().map(line).collect()
        };
        let (found, wanted) = (fixture.all(ask("ts")), fixture.all(ask("plain")));
        assert_eq!(texts(found), texts(wanted), "{}", show(&ask("ts")));
        let explain = doc! {"explain": ask("ts"), "verbosity": "queryPlanner"};
        let name = if on_plane { "plane" } else { "sphere" };
        by_index += usize::from(show(&fixture.run(explain)).contains(name));
        let path = if on_plane { "m.xy" } else { "m.at" };
        let filter = at(path, region(&mut random, on_plane));
        let sort = doc! {"_id": 1};
        let find = |collection: &str| {
            doc! {"find": collection, "filter": filter.clone(), "sort": sort.clone()}
        };
        let wanted = ids(&fixture.all(find("plain")));
        assert_eq!(ids(&fixture.all(find("ts"))), wanted, "{}", show(&filter));
    }
    assert!(by_index > 20, "{by_index}");
}
