//! A clustered collection gives the answers of an ordinary one with the same documents, and examines less.

use nilometer_bson::{Document, DocumentBuilder, ObjectId, Value, array, doc};
use nilometer_storage::testing::effort;

use crate::random::Random;
use crate::support::{Fixture, show};

/// Returns an `_id`, of several types, with few values of each so that some repeat.
fn id(random: &mut Random) -> Value {
    match random.below(8) {
        0 => Value::from(random.int(20)),
        1 => Value::from(f64::from(random.int(40)) / 2.0),
        2 => Value::from(i64::from(random.int(20))),
        3 => Value::from(*random.pick(&["", "a", "B", "b", "ä", "zz"])),
        4 => Value::DateTime(i64::from(random.int(9)) * 1000),
        5 => Value::ObjectId(ObjectId([random.int(5) as u8; 12])),
        6 => doc! { "x": random.int(4) }.into(),
        _ => random
            .pick(&[
                Value::Null,
                Value::Bool(true),
                Value::Double(f64::NAN),
                Value::MinKey,
                Value::MaxKey,
            ])
            .clone(),
    }
}

fn filter(random: &mut Random) -> Document {
    let mut out = DocumentBuilder::new();
    let ids = |random: &mut Random| (0..3).map(|_| id(random)).collect::<Vec<_>>();
    match random.below(7) {
        0 => out.append("_id", id(random)),
        1 => out.append("_id", doc! { "$in": ids(random) }),
        2 => out.append("_id", doc! { "$gt": id(random), "$lte": id(random) }),
        3 => out
            .append("_id", doc! { "$gte": id(random) })
            .append("a", random.int(5)),
        4 => out.append("_id", doc! { "$lt": id(random) }),
        5 => out.append("_id", doc! { "$ne": id(random) }),
        _ => out.append("a", doc! { "$gte": random.int(5) }),
    };
    out.finish()
}

struct CollectionPair(Fixture);

impl CollectionPair {
    fn new(seed: u64) -> Self {
        let mut fixture = Fixture::new();
        let index = doc! { "key": doc! { "_id": 1 }, "unique": true, "name": "by id" };
        let mut options = vec![doc! {}, doc! { "clusteredIndex": index }];
        if seed.is_multiple_of(3) {
            let collation = doc! { "collation": doc! { "locale": "en", "strength": 2 } };
            options = options.iter().map(|o| joined(o, &collation)).collect();
        }
        for (name, options) in ["o", "c"].into_iter().zip(&options) {
            fixture.run(joined(&doc! { "create": name }, options));
            if seed.is_multiple_of(2) {
                let index = doc! { "key": doc! { "a": 1 }, "name": "a_1" };
                fixture.run(doc! { "createIndexes": name, "indexes": array![index] });
            }
        }
        Self(fixture)
    }

    /// Returns the replies of both to a command, without collection names.
    fn replies(&mut self, command: &str, rest: &Document) -> [String; 2] {
        ["o", "c"].map(|name| {
            let mut whole = DocumentBuilder::new();
            whole.append(command, name);
            for element in rest.iter() {
                whole.append_element(element);
            }
            let reply = show(&self.0.reply(whole.finish()));
            reply.replace(&format!("test.{name}"), "test.x")
        })
    }

    fn same(&mut self, command: &str, rest: Document) {
        let [ordinary, clustered] = self.replies(command, &rest);
        assert_eq!(ordinary, clustered, "{command} {}", show(&rest));
    }
}

fn joined(first: &Document, second: &Document) -> Document {
    let mut out = DocumentBuilder::new();
    for element in first.iter().chain(second.iter()) {
        out.append_element(element);
    }
    out.finish()
}

fn step(both: &mut CollectionPair, random: &mut Random) {
    match random.below(8) {
        0..=2 => {
            let documents: Vec<Value> = (0..=random.below(5))
                .map(|_| doc! { "_id": id(random), "a": random.int(5) }.into())
                .collect();
            both.same("insert", doc! { "documents": documents, "ordered": false });
        }
        3 => {
            let change = doc! { "$inc": doc! { "a": 1 } };
            let all = doc! { "q": filter(random), "u": change, "multi": true };
            both.same("update", doc! { "updates": array![all] });
        }
        4 => {
            let all = doc! { "q": filter(random), "limit": 0 };
            // Limits the number of documents.
            if random.below(3) == 0 {
                both.same("delete", doc! { "deletes": array![all] });
            }
        }
        5 => {
            let one = doc! { "q": doc! { "_id": random.int(20) }, "u": doc! { "$set": doc! { "a": 9 } }, "upsert": true };
            both.same("update", doc! { "updates": array![one] });
        }
        _ => {
            let direction = *random.pick(&[1, -1]);
            let sort = doc! { "_id": direction };
            let limit = random.int(6);
            let asked = doc! { "filter": filter(random), "sort": sort, "limit": limit };
            both.same("find", asked);
            both.same("count", doc! { "query": filter(random) });
        }
    }
}

#[test]
fn fuzz_clustered_collections_answer_like_ordinary_ones() {
    for seed in 0..effort(10, 40, 40) {
        let mut random = Random::new(seed);
        let mut both = CollectionPair::new(seed);
        for _ in 0..50 {
            step(&mut both, &mut random);
        }
        let by_id = doc! { "sort": doc! { "_id": 1 }, "batchSize": 1000 };
        both.same("find", by_id);
        let checked = both.0.run(doc! { "validate": "c" });
        assert_eq!(checked.get("nInvalidDocuments").as_exact_i64(), Some(0));
        let natural = both.0.all(doc! { "find": "c" });
        let sorted = both.0.all(doc! { "find": "c", "sort": doc! { "_id": 1 } });
        let shown = |all: &[Document]| all.iter().map(show).collect::<Vec<_>>();
        assert_eq!(shown(&natural), shown(&sorted));
    }
}

#[test]
fn a_clustered_collection_survives_reopening() {
    let directory = crate::support::TemporaryDirectory::new();
    let mut fixture = Fixture::open(&directory.0);
    let index = doc! { "key": doc! { "_id": 1 }, "unique": true };
    fixture.run(doc! { "create": "c", "clusteredIndex": index });
    let documents: Vec<Value> = [3, 1, 2].map(|i| doc! { "_id": i, "a": i }.into()).into();
    fixture.run(doc! { "insert": "c", "documents": documents });
    drop(fixture);
    let mut fixture = Fixture::open(&directory.0);
    assert_eq!(
        fixture.code(doc! { "insert": "c", "documents": array![doc! { "_id": 2 }] }),
        0
    );
    let found = fixture.all(doc! { "find": "c" });
    let ids: Vec<_> = found.iter().map(|d| d.get("_id").as_exact_i64()).collect();
    assert_eq!(ids, [Some(1), Some(2), Some(3)]);
    let explained = fixture.run(doc! {
        "explain": doc! { "find": "c", "filter": doc! { "_id": 2 } },
        "verbosity": "executionStats",
    });
    let stats = explained.get("executionStats").as_document().unwrap();
    assert_eq!(stats.get("totalDocsExamined").as_exact_i64(), Some(1));
}
