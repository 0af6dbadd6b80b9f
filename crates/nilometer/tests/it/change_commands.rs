//! `update`, `delete` and `findAndModify` on ordinary collections, as a client sees them.

use nilometer::Database;
use nilometer_bson::extjson::parse_document;
use nilometer_bson::{Document, Value, ValueRef, array, doc};
use nilometer_storage::testing::effort;

use crate::support::{Fixture, TemporaryDirectory, primary_environment, show};

fn parsed(text: &str) -> Document {
    parse_document(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Makes a collection "c" with the documents.
fn with(documents: &[&str]) -> Fixture {
    let mut fixture = Fixture::new();
    let documents: Vec<Value> = documents.iter().map(|d| parsed(d).into()).collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    fixture
}

#[track_caller]
fn contents(fixture: &mut Fixture, wanted: &[&str]) {
    let found = fixture.all(doc! {"find": "c"});
    let found: Vec<String> = found.iter().map(show).collect();
    let wanted: Vec<String> = wanted.iter().map(|d| show(&parsed(d))).collect();
    assert_eq!(found, wanted);
}

/// Runs a command given as text; returns the reply without `ok`, as text.
fn reply(fixture: &mut Fixture, command: &str) -> String {
    let reply = fixture.run(parsed(command));
    let mut out = nilometer_bson::DocumentBuilder::new();
    for element in reply.iter().filter(|e| e.name() != "ok") {
        out.append_element(element);
    }
    show(&out.finish())
}

#[track_caller]
fn replies(fixture: &mut Fixture, command: &str, wanted: &str) {
    assert_eq!(reply(fixture, command), show(&parsed(wanted)), "{command}");
}

/// Returns the codes of `writeErrors`, with their indexes.
fn write_errors(fixture: &mut Fixture, command: &str) -> Vec<(i64, i64)> {
    let reply = fixture.run(parsed(command));
    let errors = reply.get("writeErrors").as_array();
    let errors = errors.into_iter().flat_map(|errors| errors.iter());
    let number = |e: ValueRef<'_>, name| {
        let document = e.as_document().unwrap();
        document.get(name).as_exact_i64().unwrap()
    };
    errors
        .map(|e| (number(e, "index"), number(e, "code")))
        .collect()
}

#[test]
fn update_counts_matched_and_modified_documents() {
    let mut f = with(&[
        r#"{"_id":1,"a":1}"#,
        r#"{"_id":2,"a":1}"#,
        r#"{"_id":3,"a":2}"#,
    ]);
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"a":1},"u":{"$set":{"b":1}}}]}"#,
        r#"{"n":1,"nModified":1}"#,
    );
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"a":1},"u":{"$set":{"b":1}},"multi":true}]}"#,
        r#"{"n":2,"nModified":1}"#,
    );
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"_id":3},"u":{"x":9}},{"q":{"_id":9},"u":{"x":9}}]}"#,
        r#"{"n":1,"nModified":1}"#,
    );
    contents(
        &mut f,
        &[
            r#"{"_id":1,"a":1,"b":1}"#,
            r#"{"_id":2,"a":1,"b":1}"#,
            r#"{"_id":3,"x":9}"#,
        ],
    );
}

#[test]
fn every_match_is_updated_once() {
    // Documents that move ahead in an index must not be met again.
    let mut f = Fixture::new();
    let documents: Vec<Value> = (0..3000)
        .map(|at| doc! {"_id": at, "v": at % 7}.into())
        .collect();
    f.run(doc! {"insert": "c", "documents": documents});
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"v":{"$gte":0}},"u":{"$inc":{"v":100}},"multi":true}]}"#,
        r#"{"n":3000,"nModified":3000}"#,
    );
    let reply = f.run(doc! {"count": "c", "query": doc! {"v": doc! {"$gte": 200}}});
    assert_eq!(reply.get("n").as_exact_i64(), Some(0));
    let reply = f.run(doc! {"count": "c", "query": doc! {"v": doc! {"$gte": 100}}});
    assert_eq!(reply.get("n").as_exact_i64(), Some(3000));
}

#[test]
fn upserts() {
    let mut f = Fixture::new();
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"_id":1,"a":5},"u":{"$inc":{"n":1},"$setOnInsert":{"s":2}},"upsert":true}]}"#,
        r#"{"n":1,"upserted":[{"index":0,"_id":1}],"nModified":0}"#,
    );
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"_id":1,"a":5},"u":{"$inc":{"n":1},"$setOnInsert":{"s":7}},"upsert":true}]}"#,
        r#"{"n":1,"nModified":1}"#,
    );
    contents(&mut f, &[r#"{"_id":1,"a":5,"n":2,"s":2}"#]);
    let errors = write_errors(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"_id":1,"a":6},"u":{"$set":{"b":1}},"upsert":true}]}"#,
    );
    assert_eq!(errors, [(0, 11_000)]);
    let made = f.run(parsed(
        r#"{"update":"c","updates":[{"q":{"x":1},"u":{"y":2},"upsert":true}]}"#,
    ));
    let list = made.get("upserted").as_array().unwrap();
    let entry = list.get(0).as_document().unwrap();
    assert!(matches!(entry.get("_id"), ValueRef::ObjectId(_)));
    // Without `upsert` nothing is inserted.
    f.run(parsed(
        r#"{"update":"none","updates":[{"q":{},"u":{"y":2}}]}"#,
    ));
    let listed = f.all(doc! {"listCollections": 1, "filter": doc! {"name": "none"}});
    assert!(listed.is_empty());
}

#[test]
fn errors_of_statements_and_order() {
    let mut f = with(&[r#"{"_id":1,"a":"x"}"#, r#"{"_id":2,"a":1}"#]);
    let ordered = r#"{"update":"c","updates":[{"q":{"_id":1},"u":{"$inc":{"a":1}}},{"q":{"_id":2},"u":{"$inc":{"a":1}}}]}"#;
    assert_eq!(write_errors(&mut f, ordered), [(0, 14)]);
    contents(&mut f, &[r#"{"_id":1,"a":"x"}"#, r#"{"_id":2,"a":1}"#]);
    let unordered = ordered.replace(r#""c","#, r#""c","ordered":false,"#);
    assert_eq!(write_errors(&mut f, &unordered), [(0, 14)]);
    contents(&mut f, &[r#"{"_id":1,"a":"x"}"#, r#"{"_id":2,"a":2}"#]);
    for (statement, code) in [
        (r#"{"q":{},"u":{"$foo":{"a":1}}}"#, 9),
        (r#"{"q":{"$bad":1},"u":{"$set":{"a":1}}}"#, 2),
        (r#"{"q":{},"u":{"_id":7}}"#, 66),
        (r#"{"q":{},"u":{"a":1},"multi":true}"#, 9),
        (r#"{"q":{},"u":{"$set":{"a":1}},"hint":"nope"}"#, 2),
        (
            r#"{"q":{},"u":{"$set":{"a":1}},"multi":true,"sort":{"a":1}}"#,
            9,
        ),
        (r#"{"q":{},"u":{"$set":{"a":1}},"c":{"x":1}}"#, 51_198),
        (
            r#"{"q":{},"u":{"$set":{"a":1}},"collation":{"locale":"xx"}}"#,
            2,
        ),
    ] {
        let command = format!(r#"{{"update":"c","updates":[{statement}]}}"#);
        assert_eq!(write_errors(&mut f, &command), [(0, code)], "{statement}");
    }
    for (command, code) in [
        (r#"{"update":"c","updates":[]}"#, 16),
        (r#"{"update":"c"}"#, 40_414),
        (r#"{"update":"c","updates":[{"q":{}}]}"#, 40_414),
        (r#"{"update":"c","updates":[{"u":{}}]}"#, 40_414),
        (r#"{"update":"c","updates":[{"q":{},"u":1}]}"#, 9),
        (
            r#"{"update":"c","updates":[{"q":{},"u":{},"z":1}]}"#,
            40_415,
        ),
        (r#"{"delete":"c","deletes":[{"q":{}}]}"#, 40_414),
        (r#"{"delete":"c","deletes":[{"q":{},"limit":2}]}"#, 9),
    ] {
        assert_eq!(f.code(parsed(command)), code, "{command}");
    }
}

#[test]
fn positions_filters_variables_and_constants() {
    let mut f = with(&[
        r#"{"_id":1,"a":[{"k":1,"v":1},{"k":2,"v":2}]}"#,
        r#"{"_id":2,"a":[{"k":2,"v":5}]}"#,
    ]);
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"a.k":2},"u":{"$inc":{"a.$.v":10}},"multi":true}]}"#,
        r#"{"n":2,"nModified":2}"#,
    );
    replies(
        &mut f,
        r#"{"update":"c","updates":[{"q":{"_id":1},"u":{"$set":{"a.$[x].v":0}},"arrayFilters":[{"x.v":{"$lt":5}}]}]}"#,
        r#"{"n":1,"nModified":1}"#,
    );
    contents(
        &mut f,
        &[
            r#"{"_id":1,"a":[{"k":1,"v":0},{"k":2,"v":12}]}"#,
            r#"{"_id":2,"a":[{"k":2,"v":15}]}"#,
        ],
    );
    replies(
        &mut f,
        r#"{"update":"c","let":{"want":2},"updates":[{"q":{"$expr":{"$eq":["$_id","$$want"]}},"u":[{"$set":{"a":"$$want","b":"$$add"}}],"c":{"add":7}}]}"#,
        r#"{"n":1,"nModified":1}"#,
    );
    // In an operator it is an ordinary string.
    replies(
        &mut f,
        r#"{"update":"c","let":{"want":2},"updates":[{"q":{"_id":1},"u":{"$set":{"a":"$$want"}}}]}"#,
        r#"{"n":1,"nModified":1}"#,
    );
    contents(
        &mut f,
        &[r#"{"_id":1,"a":"$$want"}"#, r#"{"_id":2,"a":2,"b":7}"#],
    );
}

#[test]
fn the_first_in_an_order_is_updated() {
    let mut f = with(&[
        r#"{"_id":1,"a":2}"#,
        r#"{"_id":2,"a":9}"#,
        r#"{"_id":3,"a":1}"#,
    ]);
    for sort in [r#"{"a":-1}"#, r#"{"a":1}"#, r#"{"$natural":-1}"#] {
        let command = format!(
            r#"{{"update":"c","updates":[{{"q":{{}},"u":{{"$push":{{"by":1}},"$set":{{"a":5}}}},"sort":{sort}}}]}}"#
        );
        replies(&mut f, &command, r#"{"n":1,"nModified":1}"#);
    }
    contents(
        &mut f,
        &[
            r#"{"_id":1,"a":2}"#,
            r#"{"_id":2,"a":5,"by":[1]}"#,
            r#"{"_id":3,"a":5,"by":[1,1]}"#,
        ],
    );
}

#[test]
fn delete_one_and_many() {
    let mut f = with(&[
        r#"{"_id":1,"a":1}"#,
        r#"{"_id":2,"a":1}"#,
        r#"{"_id":3,"a":1}"#,
        r#"{"_id":4,"a":2}"#,
    ]);
    replies(
        &mut f,
        r#"{"delete":"c","deletes":[{"q":{"a":1},"limit":1},{"q":{"_id":4},"limit":0}]}"#,
        r#"{"n":2}"#,
    );
    contents(&mut f, &[r#"{"_id":2,"a":1}"#, r#"{"_id":3,"a":1}"#]);
    // The _id is free after the delete, not before.
    let insert = r#"{"insert":"c","documents":[{"_id":1}]}"#;
    replies(&mut f, insert, r#"{"n":1}"#);
    assert_eq!(write_errors(&mut f, insert), [(0, 11_000)]);
    replies(
        &mut f,
        r#"{"delete":"c","deletes":[{"q":{},"limit":0}]}"#,
        r#"{"n":3}"#,
    );
    contents(&mut f, &[]);
    replies(&mut f, insert, r#"{"n":1}"#);
    replies(
        &mut f,
        r#"{"delete":"none","deletes":[{"q":{},"limit":0}]}"#,
        r#"{"n":0}"#,
    );
}

#[test]
fn find_and_modify_in_all_forms() {
    let mut f = with(&[
        r#"{"_id":1,"a":1}"#,
        r#"{"_id":2,"a":2}"#,
        r#"{"_id":3,"a":3}"#,
    ]);
    for (command, wanted) in [
        (
            r#"{"findAndModify":"c","query":{"a":1},"update":{"$inc":{"a":10}}}"#,
            r#"{"lastErrorObject":{"n":1,"updatedExisting":true},"value":{"_id":1,"a":1}}"#,
        ),
        (
            r#"{"findAndModify":"c","query":{"_id":1},"update":{"$inc":{"a":10}},"new":true}"#,
            r#"{"lastErrorObject":{"n":1,"updatedExisting":true},"value":{"_id":1,"a":21}}"#,
        ),
        (
            r#"{"findandmodify":"c","sort":{"a":-1},"update":{"x":1},"new":true,"fields":{"_id":0}}"#,
            r#"{"lastErrorObject":{"n":1,"updatedExisting":true},"value":{"x":1}}"#,
        ),
        (
            r#"{"findAndModify":"c","sort":{"_id":-1},"remove":true}"#,
            r#"{"lastErrorObject":{"n":1},"value":{"_id":3,"a":3}}"#,
        ),
        (
            r#"{"findAndModify":"c","query":{"_id":9},"remove":true}"#,
            r#"{"lastErrorObject":{"n":0},"value":null}"#,
        ),
        (
            r#"{"findAndModify":"c","query":{"_id":9},"update":{"$set":{"a":1}}}"#,
            r#"{"lastErrorObject":{"n":0,"updatedExisting":false},"value":null}"#,
        ),
        (
            r#"{"findAndModify":"c","query":{"_id":9},"update":{"$set":{"a":1}},"upsert":true}"#,
            r#"{"lastErrorObject":{"n":1,"updatedExisting":false,"upserted":9},"value":null}"#,
        ),
        (
            r#"{"findAndModify":"c","query":{"_id":8},"update":[{"$set":{"a":"$$v"}}],"let":{"v":4},"upsert":true,"new":true}"#,
            r#"{"lastErrorObject":{"n":1,"updatedExisting":false,"upserted":8},"value":{"_id":8,"a":4}}"#,
        ),
        (
            r#"{"findAndModify":"c","query":{"_id":8},"update":{"$set":{"a":4}}}"#,
            r#"{"lastErrorObject":{"n":1,"updatedExisting":true},"value":{"_id":8,"a":4}}"#,
        ),
    ] {
        replies(&mut f, command, wanted);
    }
    contents(
        &mut f,
        &[
            r#"{"_id":1,"x":1}"#,
            r#"{"_id":2,"a":2}"#,
            r#"{"_id":9,"a":1}"#,
            r#"{"_id":8,"a":4}"#,
        ],
    );
    for (command, code) in [
        (r#"{"findAndModify":"c"}"#, 9),
        (r#"{"findAndModify":"c","remove":true,"update":{}}"#, 9),
        (r#"{"findAndModify":"c","remove":true,"new":true}"#, 9),
        (r#"{"findAndModify":"c","remove":true,"upsert":true}"#, 9),
        (r#"{"findAndModify":"c","update":{"_id":77}}"#, 66),
        (r#"{"findAndModify":"c","update":1}"#, 9),
        (r#"{"findAndModify":"c","update":{},"hint":"x"}"#, 2),
    ] {
        assert_eq!(f.code(parsed(command)), code, "{command}");
    }
}

#[test]
fn views_are_refused() {
    let mut f = Fixture::with_measurements(3);
    f.run(doc! {"create": "v", "viewOn": "plain", "pipeline": array![]});
    let statement = array![doc! {"q": doc! {}, "u": doc! {"$set": doc! {"x": 1}}}];
    assert_eq!(f.code(doc! {"update": "v", "updates": statement}), 166);
    let statement = array![doc! {"q": doc! {}, "limit": 0}];
    assert_eq!(f.code(doc! {"delete": "v", "deletes": statement}), 166);
    assert_eq!(f.code(doc! {"findAndModify": "v", "remove": true}), 166);
}

#[test]
fn writes_are_counted() {
    let mut f = with(&[r#"{"_id":1}"#, r#"{"_id":2}"#]);
    let set = r#"{"update":"c","updates":[{"q":{},"u":{"$set":{"a":1}},"multi":true},{"q":{"_id":5},"u":{"$set":{"a":1}},"upsert":true}]}"#;
    reply(&mut f, set);
    reply(&mut f, r#"{"delete":"c","deletes":[{"q":{},"limit":0}]}"#);
    let counters = &f.database.services().counters;
    assert_eq!(counters.operations.update.get(), 2);
    assert_eq!(counters.operations.delete.get(), 1);
    assert_eq!(counters.documents.updated.get(), 2);
    assert_eq!(counters.documents.inserted.get(), 3);
    assert_eq!(counters.documents.deleted.get(), 3);
}

#[test]
fn concurrent_writers_lose_nothing() {
    let f = with(&[r#"{"_id":1,"n":0}"#]);
    let database = &f.database;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let mut session = nilometer::ClientSession::embedded();
                for at in 0..50 {
                    // One counter by id, one by a scan, one inserted by the first upsert.
                    let query = if at % 2 == 0 { doc! {"_id": 1} } else { doc! {"n": doc! {"$gte": 0}} };
                    let inc = doc! {"$inc": doc! {"n": 1}};
                    let rival = doc! {"q": doc! {"_id": "new"}, "u": doc! {"$inc": doc! {"k": 1}}, "upsert": true};
                    let updates = array![doc! {"q": query, "u": inc}, rival];
                    let command = doc! {"update": "c", "updates": updates, "$db": "test"};
                    let request = nilometer::Request::new(command);
                    let reply = database.run_command(&mut session, &request);
                    assert_eq!(reply.get("n").as_exact_i64(), Some(2), "{}", show(&reply));
                }
            });
        }
    });
    let mut f = f;
    contents(
        &mut f,
        &[r#"{"_id":1,"n":200}"#, r#"{"_id":"new","k":200}"#],
    );
}

#[test]
fn changes_by_many_ids() {
    let mut f = Fixture::new();
    let documents: Vec<Value> = (0..1000)
        .map(|at| doc! {"_id": at, "v": 0}.into())
        .collect();
    f.run(doc! {"insert": "c", "documents": documents});
    let ids: Vec<Value> = (0..1500).step_by(3).map(Value::Int64).collect();
    let query = doc! {"_id": doc! {"$in": ids}};
    let update = doc! {"q": query.clone(), "u": doc! {"$inc": doc! {"v": 1}}, "multi": true};
    let reply = f.run(doc! {"update": "c", "updates": array![update]});
    assert_eq!(reply.get("n").as_exact_i64(), Some(334));
    let first =
        doc! {"q": query.clone(), "u": doc! {"$inc": doc! {"v": 10}}, "sort": doc! {"_id": -1}};
    f.run(doc! {"update": "c", "updates": array![first]});
    let found = f.all(doc! {"find": "c", "filter": doc! {"v": 11}});
    let found: Vec<String> = found.iter().map(show).collect();
    assert_eq!(found, [show(&doc! {"_id": 999, "v": 11})]);
    let reply = f.run(doc! {"delete": "c", "deletes": array![doc! {"q": query, "limit": 0}]});
    assert_eq!(reply.get("n").as_exact_i64(), Some(334));
    let reply = f.run(doc! {"count": "c", "query": doc! {"v": 0}});
    assert_eq!(reply.get("n").as_exact_i64(), Some(666));
}

#[test]
fn changes_survive_reopening() {
    let directory = TemporaryDirectory::new();
    {
        let mut f = Fixture::open(&directory.0);
        f.run(parsed(
            r#"{"insert":"c","documents":[{"_id":1,"a":1},{"_id":2},{"_id":3}]}"#,
        ));
        reply(
            &mut f,
            r#"{"update":"c","updates":[{"q":{"_id":1},"u":{"$inc":{"a":1}}},{"q":{"_id":4},"u":{"$set":{"a":9}},"upsert":true}]}"#,
        );
        reply(
            &mut f,
            r#"{"delete":"c","deletes":[{"q":{"_id":2},"limit":1}]}"#,
        );
    }
    let mut f = Fixture::open(&directory.0);
    contents(
        &mut f,
        &[r#"{"_id":1,"a":2}"#, r#"{"_id":3}"#, r#"{"_id":4,"a":9}"#],
    );
    let insert =
        r#"{"insert":"c","ordered":false,"documents":[{"_id":1},{"_id":2},{"_id":3},{"_id":4}]}"#;
    let errors = write_errors(&mut f, insert);
    assert_eq!(errors, [(0, 11_000), (2, 11_000), (3, 11_000)]);
}

/// A small random number generator: the same on every machine for the same seed.
struct NumberGenerator(u64);

impl NumberGenerator {
    fn below(&mut self, n: u64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n) as i64
    }
}

/// The contents of a collection, in natural order: `_id` and `v`.
type Model = Vec<(i64, i64)>;

#[test]
fn random_changes_agree_with_a_list() {
    for seed in 1..effort(15, 60, 60) {
        let mut draw = NumberGenerator(seed * 0x9E37_79B9);
        let mut f = Fixture::new();
        let mut model = Model::new();
        for step in 0..60 {
            random_change(&mut f, &mut model, &mut draw);
            let found = f.all(doc! {"find": "c"});
            let number = |d: &Document, name| d.get(name).as_exact_i64().unwrap();
            let found: Model = found
                .iter()
                .map(|d| (number(d, "_id"), number(d, "v")))
                .collect();
            assert_eq!(found, model, "seed {seed}, step {step}");
        }
    }
}

/// Runs one command on the collection and the model; the counts must agree.
fn random_change(f: &mut Fixture, model: &mut Model, draw: &mut NumberGenerator) {
    let (id, low, by) = (draw.below(8), draw.below(6), draw.below(4));
    let multi = draw.below(2) == 1;
    // By id, by value, or by both, with the matching predicate on the model.
    let kind = draw.below(3);
    let query = match kind {
        0 => doc! {"_id": id},
        1 => doc! {"v": doc! {"$gte": low}},
        _ => doc! {"_id": doc! {"$in": array![id, id + 3]}, "v": doc! {"$gte": low}},
    };
    let selects = |(known, v): &(i64, i64)| match kind {
        0 => *known == id,
        1 => *v >= low,
        _ => (*known == id || *known == id + 3) && *v >= low,
    };
    let chosen: Vec<usize> = (0..model.len()).filter(|at| selects(&model[*at])).collect();
    let chosen: Vec<usize> = match multi {
        true => chosen,
        // Of a list of ids, the first requested may come first.
        false if kind == 2 => chosen
            .iter()
            .copied()
            .min_by_key(|at| model[*at].0)
            .into_iter()
            .collect(),
        false => chosen.into_iter().take(1).collect(),
    };
    match draw.below(4) {
        0 => {
            let taken = model.iter().any(|(known, _)| *known == id);
            let reply =
                f.run(doc! {"insert": "c", "documents": array![doc! {"_id": id, "v": low}]});
            assert_eq!(reply.get("n").as_exact_i64(), Some(i64::from(!taken)));
            if !taken {
                model.push((id, low));
            }
        }
        1 => {
            let statement = doc! {"q": query, "limit": i32::from(!multi)};
            let reply = f.run(doc! {"delete": "c", "deletes": array![statement]});
            assert_eq!(reply.get("n").as_exact_i64(), Some(chosen.len() as i64));
            for at in chosen.into_iter().rev() {
                model.remove(at);
            }
        }
        _ => {
            let upsert = kind == 0 && draw.below(2) == 1;
            let inc = doc! {"$inc": doc! {"v": by}};
            let statement = doc! {"q": query, "u": inc, "multi": multi, "upsert": upsert};
            let reply = f.run(doc! {"update": "c", "updates": array![statement]});
            let made = upsert && chosen.is_empty();
            let n = chosen.len() + usize::from(made);
            assert_eq!(
                reply.get("n").as_exact_i64(),
                Some(n as i64),
                "{}",
                show(&reply)
            );
            let modified = if by == 0 { 0 } else { chosen.len() };
            assert_eq!(reply.get("nModified").as_exact_i64(), Some(modified as i64));
            for at in chosen {
                model[at].1 += by;
            }
            if made {
                model.push((id, by));
            }
        }
    }
}

/// A set of one does what it is told, and says that no other member has it.
#[test]
fn a_write_concern_that_the_set_cannot_meet_is_reported_behind_the_write() {
    let mut f = Fixture::of(Database::in_memory_with(primary_environment()).unwrap());
    for (w, expected) in [(Value::from(2), 100), (Value::from("elsewhere"), 79)] {
        let insert = doc! {
            "insert": "c", "documents": array![doc! {}], "writeConcern": doc! {"w": w.clone()}
        };
        let before = f.counted("c");
        let reply = f.run(insert);
        let error = reply.get("writeConcernError").as_document().unwrap();
        assert_eq!(error.get("code").as_exact_i64(), Some(expected));
        assert_eq!(f.counted("c"), before + 1);
        // A standalone refuses it.
        let mut alone = Fixture::new();
        let insert = doc! {
            "insert": "c", "documents": array![doc! {}], "writeConcern": doc! {"w": w}
        };
        assert_eq!(alone.code(insert), 2);
    }
}

#[test]
fn a_bulk_write_waits_for_the_disk_once_for_all_collections() {
    const COLLECTIONS: i32 = 60;
    let directory = TemporaryDirectory::new();
    let mut fixture = Fixture::open(&directory.0);
    for number in 0..COLLECTIONS {
        let timeseries = doc! {"timeField": "t", "metaField": "m"};
        fixture.run(doc! {"create": format!("c{number}"), "timeseries": timeseries});
    }
    let insert = |number: i32, value: i32| {
        let document = doc! {"t": Value::DateTime(i64::from(value)), "m": "a", "v": value};
        Value::from(doc! {"insert": number, "document": document})
    };
    let ops: Vec<Value> = (0..COLLECTIONS)
        .flat_map(|number| [insert(number, 1), insert(number, 2)])
        .collect();
    let named = (0..COLLECTIONS).map(|number| doc! {"ns": format!("test.c{number}")}.into());
    let namespaces: Vec<Value> = named.collect();
    let bulk = doc! {"bulkWrite": 1, "ops": ops, "nsInfo": namespaces, "errorsOnly": true};
    let syncs = |fixture: &mut Fixture| {
        let status = fixture.run(doc! {"serverStatus": 1});
        let engine = status.get("storageEngine").as_document().expect("figures");
        let log = engine.get("log").as_document().expect("figures");
        log.get("syncs").as_exact_i64().expect("a number")
    };
    let before = syncs(&mut fixture);
    let reply = fixture.reply_on("admin", bulk);
    assert_eq!(
        reply.get("nInserted").as_exact_i64(),
        Some(120),
        "{}",
        show(&reply)
    );
    // The engine syncs on its own, too, while the command runs.
    let waited = syncs(&mut fixture) - before;
    assert!((1..20).contains(&waited), "{waited} syncs");
    for number in 0..COLLECTIONS {
        assert_eq!(fixture.counted(&format!("c{number}")), 2);
    }
}
