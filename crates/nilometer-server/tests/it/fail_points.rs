//! `configureFailPoint`: commands fail on purpose.

use std::time::{Duration, Instant};

use nilometer_bson::{Binary, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::client::body;
use crate::client::{Client, code, is_ok, op_msg};
use crate::server::Server;

fn server() -> Server {
    Server::start_with(&["--setParameter", "enableTestCommands=1"])
}

fn configure(client: &mut Client, mode: impl Into<Value>, data: Document) -> Document {
    let command = doc! {"configureFailPoint": "failCommand", "mode": mode.into(), "data": data};
    client.run(&command)
}

fn labels(reply: &Document) -> Vec<String> {
    let labels = reply.get("errorLabels").as_array();
    let labels = labels.into_iter().flat_map(|labels| labels.iter());
    labels
        .filter_map(|label| label.as_str().map(str::to_owned))
        .collect()
}

fn ping() -> Document {
    doc! {"ping": 1}
}

#[test]
fn there_is_no_fail_point_outside_of_tests() {
    let server = Server::start();
    let mut client = server.connect();
    let reply = configure(
        &mut client,
        "alwaysOn",
        doc! {"failCommands": array!["ping"]},
    );
    assert_eq!(code(&reply), 59);
    let commands = client.run(&doc! {"listCommands": 1});
    let commands = commands.get("commands").as_document().expect("commands");
    assert!(commands.get("configureFailPoint").is_missing());
    assert!(is_ok(&client.run(&ping())));
}

#[test]
fn commands_fail_as_often_as_the_mode_says() {
    let server = server();
    let mut client = server.connect();
    let data = doc! {"failCommands": array!["ping", "hello"], "errorCode": 11600};
    let reply = configure(&mut client, doc! {"times": 2}, data);
    assert_eq!(reply.get("count").as_exact_i64(), Some(0));
    for _ in 0..2 {
        assert_eq!(code(&client.run(&ping())), 11600);
    }
    assert!(is_ok(&client.run(&ping())));
    let data = doc! {
        "failCommands": array!["find"], "errorCode": 91,
        "errorLabels": array!["RetryableWriteError"], "namespace": "db.c",
    };
    configure(&mut client, doc! {"skip": 1}, data);
    let find = |name: &str| doc! {"find": name};
    assert!(is_ok(&client.run_on("db", &find("c"))));
    let failed = client.run_on("db", &find("c"));
    assert_eq!(
        (code(&failed), labels(&failed)),
        (91, vec!["RetryableWriteError".to_owned()])
    );
    assert!(is_ok(&client.run_on("db", &find("d"))));
    let count = configure(&mut client, "off", doc! {});
    assert_eq!(count.get("count").as_exact_i64(), Some(3));
    assert!(is_ok(&client.run_on("db", &find("c"))));
}

#[test]
fn a_write_concern_error_comes_beside_the_effect() {
    let server = server();
    let mut client = server.connect();
    let error = doc! {"code": 91, "errmsg": "on purpose"};
    let data = doc! {"failCommands": array!["insert"], "writeConcernError": error.clone()};
    configure(&mut client, "alwaysOn", data);
    let insert = doc! {"insert": "c", "documents": array![doc! {"_id": 1}]};
    let reply = client.run_on("db", &insert);
    assert!(is_ok(&reply) && reply.get("n").as_exact_i64() == Some(1));
    assert_eq!(
        reply
            .get("writeConcernError")
            .as_document()
            .map(|found| found.to_document()),
        Some(error)
    );
    assert_eq!(client.find_all("db", &doc! {"find": "c"}).len(), 1);
}

#[test]
fn a_connection_is_blocked_and_closed_without_an_answer() {
    let server = server();
    let mut client = server.connect();
    let data = doc! {"failCommands": array!["ping"], "blockConnection": true, "blockTimeMS": 50};
    configure(&mut client, doc! {"times": 1}, data);
    let began = Instant::now();
    assert!(is_ok(&client.run(&ping())));
    assert!(began.elapsed() >= Duration::from_millis(50));
    let data = doc! {"failCommands": array!["insert"], "closeConnection": true};
    configure(&mut client, doc! {"times": 1}, data);
    let insert = doc! {"insert": "c", "documents": array![doc! {"_id": 1}], "$db": "db"};
    client.send(&op_msg(0, &[body(&insert)]));
    assert!(client.is_closed());
    let mut other = server.connect();
    assert!(
        other.find_all("db", &doc! {"find": "c"}).is_empty(),
        "it did not run"
    );
    assert!(is_ok(&other.run_on(
        "db",
        &doc! {"insert": "c", "documents": array![doc! {"_id": 1}]}
    )));
}

#[test]
fn what_the_fail_point_does_not_know_is_refused() {
    let server = server();
    let mut client = server.connect();
    let named = |fields: Document| {
        let mut data = nilometer_bson::DocumentBuilder::new();
        data.append("failCommands", array!["ping"]);
        for field in fields.iter() {
            data.append_element(field);
        }
        data.finish()
    };
    for (data, expected) in [
        (doc! {"threadName": "x"}, 40415),
        (doc! {"blockConnection": true}, 72),
        (doc! {"errorCode": "x"}, 14),
        (doc! {"blockConnection": true, "blockTimeMS": -1}, 51024),
    ] {
        let reply = configure(&mut client, "alwaysOn", named(data));
        assert_eq!(code(&reply), expected, "{reply:?}");
    }
    for mode in [
        doc! {"times": 1, "skip": 1},
        doc! {"activationProbability": 2.0},
        doc! {},
    ] {
        assert_eq!(code(&configure(&mut client, mode, named(doc! {}))), 2);
    }
    assert_eq!(
        code(&configure(&mut client, "sometimes", named(doc! {}))),
        2
    );
    let other = doc! {"configureFailPoint": "other", "mode": "off"};
    assert_eq!(code(&client.run(&other)), 266);
    assert!(matches!(
        client.run(&ping()).get("ok"),
        ValueRef::Double(1.0)
    ));
}

/// A stream whose `getMore` fails has the label by which drivers resume it; another cursor has not.
#[test]
fn a_get_more_fails_that_has_its_cursor() {
    let arguments = ["--setParameter", "enableTestCommands=1", "--replSet", "rs"];
    let server = Server::start_with(&arguments);
    let mut client = server.connect();
    let documents = array![doc! {"_id": 1}, doc! {"_id": 2}];
    client.run_on("db", &doc! {"insert": "c", "documents": documents});
    let stage = doc! {"$changeStream": doc! {}};
    let watch = doc! {"aggregate": "c", "pipeline": array![stage], "cursor": doc! {}};
    let find = doc! {"find": "c", "batchSize": 1};
    for (open, expected) in [
        (watch, vec!["ResumableChangeStreamError".to_owned()]),
        (find, vec![]),
    ] {
        let reply = client.run_on("db", &open);
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let id = cursor.get("id").as_exact_i64().expect("an id");
        let fail = doc! {
            "configureFailPoint": "failGetMoreAfterCursorCheckout",
            "mode": doc! {"times": 1}, "data": doc! {"errorCode": 234},
        };
        assert!(is_ok(&client.run(&fail)));
        let more = doc! {"getMore": id, "collection": "c"};
        let failed = client.run_on("db", &more);
        assert_eq!((code(&failed), labels(&failed)), (234, expected));
    }
    let other = doc! {"configureFailPoint": "other", "mode": "off"};
    assert_eq!(code(&client.run(&other)), 266);
}

/// A statement of a retryable write fails before its commit, or its connection is closed behind it; the repetition finds out.
#[test]
fn a_retryable_write_fails_before_its_commit_or_is_not_answered() {
    let arguments = ["--setParameter", "enableTestCommands=1", "--replSet", "rs"];
    let server = Server::start_with(&arguments);
    let session = Value::Binary(Binary {
        subtype: 4,
        bytes: vec![7; 16].into(),
    });
    let counted = |client: &mut Client| {
        let reply = client.run_on("db", &doc! {"count": "c"});
        reply.get("n").as_exact_i64()
    };
    for (number, data, is_committed) in [
        (1_i64, doc! {"failBeforeCommitExceptionCode": 1}, false),
        (2, doc! {}, true),
    ] {
        let mut client = server.connect();
        let before = counted(&mut client);
        let point = doc! {
            "configureFailPoint": "onPrimaryTransactionalWrite", "mode": doc! {"times": 1}, "data": data,
        };
        assert!(is_ok(&client.run(&point)));
        let insert = doc! {
            "insert": "c", "documents": array![doc! {"_id": number}],
            "lsid": doc! {"id": session.clone()}, "txnNumber": number,
        };
        let mut sent = DocumentBuilder::extending(insert.clone());
        sent.append("$db", "db");
        client.send(&op_msg(0, &[body(&sent.finish())]));
        assert!(client.is_closed());
        let mut client = server.connect();
        assert_eq!(counted(&mut client) != before, is_committed);
        let repeated = client.run_on("db", &insert);
        assert_eq!(repeated.get("n").as_exact_i64(), Some(1));
        assert_eq!(!repeated.get("retriedStmtIds").is_missing(), is_committed);
        assert_eq!(counted(&mut client), before.map(|before| before + 1));
    }
    let mut client = server.connect();
    let point = doc! {
        "configureFailPoint": "onPrimaryTransactionalWrite", "mode": doc! {"times": 1},
        "data": doc! {"failBeforeCommitExceptionCode": 91, "closeConnection": false},
    };
    client.run(&point);
    let insert = doc! {
        "insert": "c", "documents": array![doc! {"_id": 3}],
        "lsid": doc! {"id": session.clone()}, "txnNumber": 3_i64,
    };
    assert_eq!(code(&client.run_on("db", &insert)), 91);
    // The rest of a command runs before its connection is closed.
    let point = doc! {"configureFailPoint": "onPrimaryTransactionalWrite", "mode": "alwaysOn"};
    client.run(&point);
    let set = |id: i32| doc! {"q": doc! {"_id": id}, "u": doc! {"$set": doc! {"a": 1}}};
    let update = doc! {
        "update": "c", "updates": array![set(1), set(2)],
        "lsid": doc! {"id": session}, "txnNumber": 4_i64,
    };
    let mut sent = DocumentBuilder::extending(update.clone());
    sent.append("$db", "db");
    client.send(&op_msg(0, &[body(&sent.finish())]));
    assert!(client.is_closed());
    let mut client = server.connect();
    let changed = doc! {"count": "c", "query": doc! {"a": 1}};
    let changed = client.run_on("db", &changed);
    assert_eq!(changed.get("n").as_exact_i64(), Some(2));
    let repeated = client.run_on("db", &update);
    assert_eq!(repeated.get("nModified").as_exact_i64(), Some(2));
}

#[test]
fn errors_of_a_server_that_ends_are_no_older_than_what_a_driver_knows() {
    let arguments = ["--setParameter", "enableTestCommands=1", "--replSet", "rs"];
    let server = Server::start_with(&arguments);
    let mut client = server.connect();
    for (code, has_version) in [(91, false), (11600, false), (10107, true), (189, true)] {
        let data = doc! {"failCommands": array!["ping"], "errorCode": code};
        configure(&mut client, doc! {"times": 1}, data);
        let reply = client.run(&ping());
        assert_eq!(!reply.get("topologyVersion").is_missing(), has_version);
    }
    // Where the fail point gives no labels, they are those of the write concern error.
    let mut insert = |concern: i32, number: i64| {
        let error = doc! {"code": concern, "errmsg": "x"};
        let data = doc! {"failCommands": array!["insert"], "writeConcernError": error};
        configure(&mut client, doc! {"times": 1}, data);
        let session = Value::Binary(Binary {
            subtype: 4,
            bytes: vec![8; 16].into(),
        });
        let insert = doc! {
            "insert": "c", "documents": array![doc! {"_id": number}],
            "lsid": doc! {"id": session}, "txnNumber": number,
        };
        labels(&client.run_on("db", &insert))
    };
    assert_eq!(insert(91, 1), ["RetryableWriteError"]);
    assert!(insert(100, 2).is_empty());
}

#[test]
fn a_command_that_fails_says_that_its_concern_was_not_met_too() {
    let server = Server::start_with(&["--replSet", "rs"]);
    let mut client = server.connect();
    let unmet = doc! {"w": 2};
    let twice = [
        (doc! {"create": "c", "writeConcern": unmet.clone()}, true),
        (
            doc! {"create": "c", "capped": true, "size": 4096, "writeConcern": unmet},
            false,
        ),
    ];
    for (create, expected) in twice {
        let reply = client.run_on("db", &create);
        assert_eq!(is_ok(&reply), expected);
        let unmet = reply.get("writeConcernError").as_document();
        let unmet = unmet.expect("an error").get("code").as_exact_i64();
        assert_eq!(unmet, Some(100));
    }
}
