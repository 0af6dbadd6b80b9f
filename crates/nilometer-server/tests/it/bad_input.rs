//! Bad input gets a clear error with MongoDB's code or a closed connection, the server keeps answering, and
//! acknowledged data is untouched.

use nilometer_bson::{Array, Document, DocumentBuilder, Value, array, doc};

use crate::client::{MSG, body, code, is_ok, message, op_msg, sequence};
use crate::server::{Directory, Server, nilometer};

/// A server with acknowledged data, which no case may change.
struct Fixture {
    server: Server,
    arguments: Vec<String>,
    measurements: Vec<Document>,
    _directory: Directory,
}

fn measurement(at: i64) -> Document {
    doc! {"_id": at, "m": at % 3, "t": Value::DateTime(1_700_000_000_000 + at * 1000), "v": at}
}

/// Sorts fields by name: a time series returns its time and meta first.
fn by_name(document: &Document) -> Document {
    let mut elements: Vec<_> = document.iter().collect();
    elements.sort_by_key(|e| e.name());
    let mut sorted = DocumentBuilder::new();
    for element in elements {
        sorted.append_element(element);
    }
    sorted.finish()
}

fn insert(collection: &str) -> Vec<u8> {
    body(&doc! {"insert": collection, "$db": "test"})
}

impl Fixture {
    fn start() -> Self {
        let directory = Directory::new();
        let path = directory.0.join("data");
        let path = path.to_str().expect("a UTF-8 path");
        let arguments = ["serve", "--port", "0", "--dbpath", path].map(str::to_owned);
        let server = Self::spawn(&arguments);
        let mut client = server.connect();
        let options = doc! {"timeField": "t", "metaField": "m"};
        assert!(is_ok(
            &client.run_on("test", &doc! {"create": "ts", "timeseries": options})
        ));
        let measurements: Vec<Document> = (0..300).map(measurement).collect();
        for collection in ["ts", "plain"] {
            let sections = [insert(collection), sequence("documents", &measurements)];
            let reply = client.ask(&op_msg(0, &sections));
            assert_eq!(reply.get("n").as_exact_i64(), Some(300), "{reply:?}");
        }
        Self {
            server,
            arguments: arguments.to_vec(),
            measurements,
            _directory: directory,
        }
    }

    fn spawn(arguments: &[String]) -> Server {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Server::spawn(&mut nilometer(&arguments))
    }

    /// Checks that the server answers and has exactly the acknowledged data.
    fn is_untouched(&self, case: &str) {
        let mut client = self.server.connect();
        assert!(is_ok(&client.run(&doc! {"ping": 1})), "{case}");
        for collection in ["ts", "plain"] {
            let find = doc! {"find": collection, "sort": doc! {"_id": 1}};
            let found = client.find_all("test", &find);
            assert_eq!(found.len(), self.measurements.len(), "{case}: {collection}");
            for (found, sent) in found.iter().zip(&self.measurements) {
                assert_eq!(&by_name(found), sent, "{case}: {collection} is changed");
            }
        }
    }

    /// Checks the same, also after a kill and a restart.
    fn outlives(mut self, case: &str) {
        self.is_untouched(case);
        self.server.signal("KILL");
        self.server.wait();
        self.server = Self::spawn(&self.arguments);
        self.is_untouched(case);
    }
}

/// Returns code and index of the only write error of an insert that stored `n` documents.
fn write_error(reply: &Document, n: i64) -> (i64, i64) {
    assert!(is_ok(reply), "{reply:?}");
    assert_eq!(reply.get("n").as_exact_i64(), Some(n), "{reply:?}");
    let errors = reply.get("writeErrors").as_array().expect("write errors");
    assert_eq!(errors.len(), 1);
    let error = errors.get(0).as_document().expect("a write error");
    assert!(!error.get("errmsg").as_str().expect("a text").is_empty());
    let number = |name: &str| error.get(name).as_exact_i64().expect("a number");
    (number("code"), number("index"))
}

#[test]
fn a_measurement_needs_a_date() {
    let fixture = Fixture::start();
    let mut client = fixture.server.connect();
    for document in [
        doc! {"m": 1, "_id": 1000},
        doc! {"t": "2024-01-01", "_id": 1000},
        doc! {"t": 1_700_000_000_000i64, "_id": 1000},
        doc! {"t": Value::Null, "_id": 1000},
        doc! {"t": array![Value::DateTime(0)], "_id": 1000},
        doc! {"t": doc! {"t": Value::DateTime(0)}, "_id": 1000},
        doc! {},
    ] {
        for ordered in [true, false] {
            let command = doc! {"insert": "ts", "ordered": ordered, "$db": "test"};
            let documents = sequence("documents", std::slice::from_ref(&document));
            let reply = client.ask(&op_msg(0, &[body(&command), documents]));
            assert_eq!(write_error(&reply, 0), (2, 0), "{document:?}");
        }
    }
    fixture.outlives("no date");
}

#[test]
fn what_stands_before_a_bad_measurement_is_stored() {
    let server = Server::start();
    let mut client = server.connect();
    let options = doc! {"timeField": "t", "metaField": "m"};
    for (ordered, stored) in [(true, 1), (false, 2)] {
        let name = format!("ts_{ordered}");
        let create = doc! {"create": name.as_str(), "timeseries": options.clone()};
        assert!(is_ok(&client.run_on("test", &create)));
        let command = doc! {"insert": name.as_str(), "ordered": ordered, "$db": "test"};
        let documents = [measurement(1), doc! {"m": 1}, measurement(2)];
        let sections = [body(&command), sequence("documents", &documents)];
        assert_eq!(
            write_error(&client.ask(&op_msg(0, &sections)), stored),
            (2, 1)
        );
        let found = client.find_all("test", &doc! {"find": name.as_str()});
        assert_eq!(found.len() as i64, stored);
    }
}

#[test]
fn documents_beyond_16_megabytes_are_refused() {
    let fixture = Fixture::start();
    for collection in ["ts", "plain"] {
        let large = |size: usize| {
            let time = Value::DateTime(1_700_000_000_000);
            doc! {"t": time, "m": 1, "_id": 5000i64, "x": "x".repeat(size)}
        };
        let mut client = fixture.server.connect();
        let sections = [
            insert(collection),
            sequence("documents", &[large(17 << 20)]),
        ];
        assert_eq!(code(&client.ask(&op_msg(0, &sections))), 10_334);
        // It does not fit into the body, either.
        let mut client = fixture.server.connect();
        let documents = Value::Array(
            [Value::from(large(17 << 20))]
                .into_iter()
                .collect::<Array>(),
        );
        let command = doc! {"insert": collection, "documents": documents, "$db": "test"};
        assert_eq!(code(&client.ask(&op_msg(0, &[body(&command)]))), 10_334);
        fixture.is_untouched(collection);
    }
    fixture.outlives("17 MB");
}

/// Returns a document nested `depth` times in its first field.
fn nested(depth: usize, arrays: bool) -> Document {
    let mut value: Value = 1.into();
    for _ in 0..depth {
        value = if arrays {
            Value::Array([value].into_iter().collect())
        } else {
            doc! {"a": value}.into()
        };
    }
    doc! {"t": Value::DateTime(0), "_id": 6000i64, "a": value}
}

#[test]
fn nesting_200_deep_is_refused() {
    let fixture = Fixture::start();
    for collection in ["ts", "plain"] {
        for (depth, arrays) in [(200, false), (200, true), (5000, false)] {
            let mut client = fixture.server.connect();
            let sections = [
                insert(collection),
                sequence("documents", &[nested(depth, arrays)]),
            ];
            let reply = client.ask(&op_msg(0, &sections));
            let refused = !is_ok(&reply) || !reply.get("writeErrors").is_missing();
            assert!(refused, "{depth} {reply:?}");
        }
    }
    let mut client = fixture.server.connect();
    for command in [
        doc! {"find": "ts", "filter": nested(200, false)},
        doc! {"aggregate": "ts", "pipeline": array![doc! {"$match": nested(200, true)}], "cursor": doc! {}},
    ] {
        assert_ne!(code(&client.run_on("test", &command)), 0);
    }
    fixture.outlives("nesting");
}

#[test]
fn nested_operators_are_refused_or_answered() {
    let fixture = Fixture::start();
    for depth in [50, 90, 190] {
        for operator in ["$and", "$or", "$nor"] {
            let mut filter = doc! {"_id": 1};
            for _ in 0..depth {
                let mut outer = DocumentBuilder::new();
                outer.append(operator, array![filter]);
                filter = outer.finish();
            }
            let mut client = fixture.server.connect();
            // Any answer is accepted.
            let reply = client.run_on("test", &doc! {"find": "ts", "filter": filter});
            assert!(is_ok(&reply) || code(&reply) != 0);
        }
        let mut sum: Value = 1.into();
        for _ in 0..depth {
            sum = doc! {"$add": array![sum, 1]}.into();
        }
        let stages = array![doc! {"$project": doc! {"x": sum}}];
        let command = doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}};
        let reply = fixture.server.connect().run_on("test", &command);
        assert!(is_ok(&reply) || code(&reply) != 0);
    }
    fixture.outlives("nested operators");
}

#[test]
fn lying_lengths_store_nothing() {
    let fixture = Fixture::start();
    let whole = measurement(7000);
    let bytes = whole.as_bytes();
    let length = bytes.len() as i32;
    let lies = [
        0,
        1,
        4,
        5,
        -1,
        i32::MIN,
        i32::MAX,
        length - 1,
        length + 1,
        length + 100,
    ];
    for lie in lies {
        for collection in ["ts", "plain"] {
            let mut lying = bytes.to_vec();
            lying[..4].copy_from_slice(&lie.to_le_bytes());
            // As the document of a sequence.
            let inside = [b"documents\0".as_slice(), &lying].concat();
            let size = (inside.len() + 4) as i32;
            let section = [&[1], size.to_le_bytes().as_slice(), &inside].concat();
            refused(&fixture, &op_msg(0, &[insert(collection), section]), lie);
            // As the whole body.
            let section = [&[0], lying.as_slice()].concat();
            refused(&fixture, &op_msg(0, &[section]), lie);
        }
    }
    // A string that announces more bytes than it has.
    for claim in [-1, 0, 100, i32::MAX] {
        let text = doc! {"t": Value::DateTime(0), "_id": 7001i64, "s": "text"};
        let mut lying = text.as_bytes().to_vec();
        let at = lying.len() - 1 - 5 - 4;
        lying[at..at + 4].copy_from_slice(&i32::to_le_bytes(claim));
        let inside = [b"documents\0".as_slice(), &lying].concat();
        let size = (inside.len() + 4) as i32;
        let section = [&[1], size.to_le_bytes().as_slice(), &inside].concat();
        for collection in ["ts", "plain"] {
            refused(
                &fixture,
                &op_msg(0, &[insert(collection), section.clone()]),
                claim,
            );
        }
    }
    fixture.outlives("lying lengths");
}

/// Sends bytes that must get an error or a closed connection.
fn refused(fixture: &Fixture, bytes: &[u8], case: i32) {
    let mut client = fixture.server.connect();
    client.try_send(bytes);
    client.finish();
    if let Some(reply) = client.receive_or_lose() {
        assert!(!is_ok(&reply), "{case}: {reply:?}");
    }
}

#[test]
fn a_message_cut_anywhere_stores_nothing() {
    let fixture = Fixture::start();
    let documents = [measurement(8000), measurement(8001)];
    let whole = op_msg(0, &[insert("ts"), sequence("documents", &documents)]);
    for end in (0..whole.len()).step_by(7) {
        let mut client = fixture.server.connect();
        client.try_send(&whole[..end]);
        client.finish();
        assert!(client.receive_or_lose().is_none(), "{end}");
    }
    // Truncated, with a matching header.
    for end in (20..whole.len() - 1).step_by(5) {
        let cut = message(MSG, &whole[16..end]);
        refused(&fixture, &cut, end as i32);
    }
    fixture.outlives("cut messages");
}

#[test]
fn flipped_bits_never_end_the_server() {
    let mut fixture = Fixture::start();
    let find = doc! {"find": "ts", "filter": doc! {"v": doc! {"$gt": 3}}, "$db": "test"};
    let stages = array![doc! {"$group": doc! {"_id": "$m", "n": doc! {"$sum": "$v"}}}];
    let aggregate = doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}, "$db": "test"};
    for whole in [op_msg(0, &[body(&find)]), op_msg(0, &[body(&aggregate)])] {
        // The header's own errors may make the server wait for more.
        for at in 20..whole.len() {
            for bit in [0, 4, 7] {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                let mut client = fixture.server.connect();
                client.try_send(&flipped);
                client.finish();
                // The answer is one document or nothing.
                drop(client.receive_or_lose());
            }
        }
    }
    // A flipped bit may have created another collection, but not a measurement.
    fixture.is_untouched("flipped bits");
    fixture.server.signal("TERM");
    assert_eq!(fixture.server.wait().code(), Some(0));
}

#[test]
fn a_batch_of_100_001_is_refused_whole() {
    let fixture = Fixture::start();
    for collection in ["ts", "plain"] {
        let documents: Vec<Document> = (0..100_001i64)
            .map(|at| doc! {"t": Value::DateTime(at), "_id": 10_000 + at})
            .collect();
        let mut client = fixture.server.connect();
        let sections = [insert(collection), sequence("documents", &documents)];
        assert_eq!(code(&client.ask(&op_msg(0, &sections))), 16);
        let sections = [insert(collection), sequence("documents", &[])];
        assert_eq!(code(&client.ask(&op_msg(0, &sections))), 16);
    }
    fixture.outlives("100,001 documents");
}

#[test]
fn unknown_names_are_refused_by_name() {
    let fixture = Fixture::start();
    let mut client = fixture.server.connect();
    let aggregate = |stage: Document| {
        doc! {"aggregate": "ts", "pipeline": array![stage], "cursor": doc! {}}
    };
    let find = |filter: Document| doc! {"find": "ts", "filter": filter};
    let project = |expression: Document| aggregate(doc! {"$project": doc! {"x": expression}});
    for (command, number, name) in [
        (doc! {"nonsense": 1}, 59, "nonsense"),
        (doc! {"Find": "ts"}, 59, "Find"),
        (doc! {"find": "ts", "nonsense": 1}, 40_415, "nonsense"),
        (
            doc! {"insert": "ts", "documents": array![doc! {}], "nonsense": 1},
            40_415,
            "nonsense",
        ),
        (
            doc! {"aggregate": "ts", "pipeline": array![], "cursor": doc! {}, "nonsense": 1},
            40_415,
            "nonsense",
        ),
        (
            doc! {"aggregate": "ts", "pipeline": array![], "cursor": doc! {"nonsense": 1}},
            40_415,
            "nonsense",
        ),
        (doc! {"create": "x", "nonsense": 1}, 40_415, "nonsense"),
        (
            doc! {"create": "x", "timeseries": doc! {"timeField": "t", "nonsense": 1}},
            40_415,
            "nonsense",
        ),
        (doc! {"drop": "ts", "nonsense": 1}, 40_415, "nonsense"),
        (doc! {"count": "ts", "nonsense": 1}, 40_415, "nonsense"),
        (
            doc! {"distinct": "ts", "key": "v", "nonsense": 1},
            40_415,
            "nonsense",
        ),
        (
            doc! {"getMore": 1i64, "collection": "ts", "nonsense": 1},
            40_415,
            "nonsense",
        ),
        (aggregate(doc! {"$nonsense": doc! {}}), 40_324, "$nonsense"),
        (aggregate(doc! {"nonsense": doc! {}}), 40_324, "nonsense"),
        (
            aggregate(doc! {"$match": doc! {}, "$limit": 1}),
            40_323,
            "exactly one",
        ),
        (
            aggregate(doc! {"$group": doc! {"_id": 1, "x": doc! {"$nonsense": 1}}}),
            15_952,
            "$nonsense",
        ),
        (
            aggregate(doc! {"$group": doc! {"x": doc! {"$sum": 1}}}),
            15_955,
            "_id",
        ),
        (aggregate(doc! {"$limit": 0}), 15_958, "positive"),
        (project(doc! {"$nonsense": 1}), 31_325, "$nonsense"),
        (
            project(doc! {"$add": array![doc! {"$nonsense": 1}, 1]}),
            168,
            "$nonsense",
        ),
        (
            aggregate(doc! {"$match": doc! {"v": doc! {"$nonsense": 1}}}),
            2,
            "$nonsense",
        ),
        (find(doc! {"v": doc! {"$nonsense": 1}}), 2, "$nonsense"),
        (find(doc! {"$nonsense": array![]}), 2, "$nonsense"),
        (
            find(doc! {"$expr": doc! {"$nonsense": 1}}),
            168,
            "$nonsense",
        ),
        (find(doc! {"$and": 1}), 2, "$and"),
        (find(doc! {"v": doc! {"$in": 1}}), 2, "$in"),
        (find(doc! {"v": doc! {"$regex": "("}}), 51_091, ""),
    ] {
        let reply = client.run_on("test", &command);
        assert!(!is_ok(&reply), "{command:?}");
        let text = reply.get("errmsg").as_str().unwrap_or_default().to_owned();
        assert_eq!(code(&reply), number, "{command:?}: {text}");
        assert!(text.contains(name), "{text}");
    }
    fixture.outlives("unknown names");
}

/// Bytes a file may have in the test of the full disk, in the blocks of 512 that `ulimit` counts.
const FILE_BLOCKS_MAX: &str = "8192";

#[test]
fn a_full_disk_refuses_writes_and_goes_on_reading() {
    let directory = Directory::new();
    let path = directory.0.join("data");
    let path = path.to_str().expect("a UTF-8 path");
    let arguments = ["serve", "--port", "0", "--quiet", "--dbpath", path];
    // A limit on the size of files simulates a full disk.
    let limited = format!("trap '' XFSZ; ulimit -f {FILE_BLOCKS_MAX}; exec \"$0\" \"$@\"");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_nilometer")]);
    command.args(arguments);
    let mut server = Server::spawn(&mut command);
    let mut client = server.connect();
    let options = doc! {"timeField": "t", "metaField": "m"};
    assert!(is_ok(
        &client.run_on("test", &doc! {"create": "ts", "timeseries": options})
    ));
    let mut acknowledged = [0i64; 2];
    let mut refused = 0;
    // Text that does not compress.
    let mut state = 1u64;
    for _ in 0..200 {
        for (collection, acknowledged) in ["ts", "plain"].into_iter().zip(&mut acknowledged) {
            let documents: Vec<Document> = (*acknowledged..*acknowledged + 20)
                .map(|at| {
                    let noise = std::iter::repeat_with(|| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        format!("{state:x}")
                    });
                    let time = Value::DateTime(1_700_000_000_000 + at);
                    doc! {"t": time, "m": 1, "_id": at, "s": noise.take(100).collect::<String>()}
                })
                .collect();
            let sections = [insert(collection), sequence("documents", &documents)];
            let reply = client.ask(&op_msg(0, &sections));
            if is_ok(&reply) && reply.get("writeErrors").is_missing() {
                *acknowledged += 20;
            } else {
                refused += 1;
                assert_eq!(code(&reply), 14_031, "{reply:?}");
            }
        }
        if refused > 4 {
            break;
        }
    }
    assert!(refused > 0 && acknowledged[0] > 0);
    let counts = |server: &Server| {
        let mut client = server.connect();
        ["ts", "plain"].map(|c| client.find_all("test", &doc! {"find": c}).len() as i64)
    };
    assert_eq!(counts(&server), acknowledged);
    server.signal("KILL");
    server.wait();
    // With space again, all data is there and writes are accepted.
    let server = Server::spawn(&mut nilometer(&arguments));
    assert_eq!(counts(&server), acknowledged);
    let sections = [insert("ts"), sequence("documents", &[measurement(-1)])];
    assert!(is_ok(&server.connect().ask(&op_msg(0, &sections))));
}
