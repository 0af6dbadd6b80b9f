//! Logins, refusals and the audit log, over the wire.

use std::time::Instant;

use nilometer::auth::Mechanism;
use nilometer_bson::{DocRef, Document, Value, ValueRef, array, doc};

use crate::client::{Client, code, is_ok, prover};
use crate::server::{Directory, Server, with_audit};

pub(crate) fn create_root(server: &Server) {
    let create = doc! {"createUser": "root", "pwd": "pencil", "roles": array!["root"]};
    let reply = server.connect().run(&create);
    assert!(is_ok(&reply), "{reply:?}");
}

#[test]
fn a_user_logs_in_by_either_mechanism_and_may_then_work() {
    let server = Server::start_with(&["--auth"]);
    let mut client = server.connect();
    assert_eq!(code(&client.run(&doc! {"find": "c"})), 13);
    create_root(&server);
    assert_eq!(
        code(&client.run(&doc! {"createUser": "x", "pwd": "x", "roles": array![]})),
        13
    );
    for mechanism in Mechanism::ALL {
        let mut client = server.connect();
        let wrong = client.log_in(mechanism, "admin", "root", "wrong");
        let nobody = client.log_in(mechanism, "admin", "nobody", "wrong");
        assert_eq!(code(&wrong), 18);
        assert_eq!(
            wrong.as_bytes(),
            nobody.as_bytes(),
            "an unknown user is not distinguished"
        );
        assert_eq!(code(&client.run(&doc! {"find": "c"})), 13);
        let reply = client.log_in(mechanism, "admin", "root", "pencil");
        assert!(matches!(reply.get("done"), ValueRef::Bool(true)));
        assert!(is_ok(&client.run(&doc! {"find": "c"})));
        let status = client.run(&doc! {"connectionStatus": 1});
        let info = status.get("authInfo").as_document().expect("info");
        let users = info.get("authenticatedUsers").as_array().expect("users");
        assert_eq!(users.len(), 1);
        assert!(is_ok(&client.run(&doc! {"logout": 1})));
        assert_eq!(code(&client.run(&doc! {"find": "c"})), 13);
    }
}

#[test]
fn a_login_begins_in_the_handshake() {
    let server = Server::start_with(&["--auth"]);
    create_root(&server);
    let mut client = server.connect();
    let (prover, first) = prover(Mechanism::Sha256, ("root", "pencil"));
    let hello = doc! {
        "hello": 1,
        "saslSupportedMechs": "admin.root",
        "speculativeAuthenticate": doc! {
            "saslStart": 1,
            "mechanism": "SCRAM-SHA-256",
            "payload": first,
            "options": doc! {"skipEmptyExchange": true},
            "db": "admin",
        },
    };
    let reply = client.run(&hello);
    let mechanisms = reply.get("saslSupportedMechs").as_array().expect("names");
    assert_eq!(mechanisms.len(), 2);
    let begun = reply
        .get("speculativeAuthenticate")
        .as_document()
        .expect("a challenge");
    let reply = client.finish_login(prover, "admin", &begun.to_document());
    assert!(is_ok(&reply), "{reply:?}");
    assert!(is_ok(&client.run(&doc! {"find": "c"})));
}

#[test]
fn failures_take_longer_and_longer() {
    let server = Server::start_with(&["--auth"]);
    create_root(&server);
    let mut client = server.connect();
    let mut fail = || {
        let started = Instant::now();
        let reply = client.log_in(Mechanism::Sha1, "admin", "root", "wrong");
        assert_eq!(code(&reply), 18);
        started.elapsed()
    };
    for _ in 0..6 {
        fail();
    }
    assert!(fail().as_millis() >= 200);
}

#[test]
fn users_outlive_the_server_and_configuration_files_ask_for_them() {
    let directory = Directory::new();
    let config = directory.0.join("nilometer.yaml");
    let file = format!(
        "storage:\n  dbPath: {}\nnet:\n  port: 0\nsecurity:\n  authorization: enabled\n",
        directory.0.join("data").display()
    );
    std::fs::write(&config, file).expect("a file");
    let path = config.to_str().expect("a path");
    for round in 0..2 {
        let mut command = crate::server::nilometer(&["serve", "--config", path]);
        let mut server = Server::spawn(&mut command);
        if round == 0 {
            create_root(&server);
        }
        let mut client = server.connect();
        assert_eq!(code(&client.run(&doc! {"find": "c"})), 13);
        let reply = client.log_in(Mechanism::Sha256, "admin", "root", "pencil");
        assert!(is_ok(&reply), "{reply:?}");
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn the_audit_log_tells_of_logins_refusals_and_changes_and_of_no_secret() {
    let directory = Directory::new();
    let path = directory.0.join("audit.json");
    let server = Server::start_with(&with_audit(&path));
    create_root(&server);
    let mut client = server.connect();
    assert_eq!(code(&client.run(&doc! {"find": "c"})), 13);
    client.log_in(Mechanism::Sha256, "admin", "root", "wrong");
    client.log_in(Mechanism::Sha256, "admin", "root", "pencil");
    assert!(is_ok(&client.run_on("a", &doc! {"create": "c"})));
    assert!(is_ok(&client.run_on("a", &doc! {"drop": "c"})));
    // Collections that are created implicitly, each reported once.
    let index = array![doc! {"key": doc! {"x": 1}, "name": "x"}];
    let upsert = array![doc! {"q": doc! {}, "u": doc! {"x": 1}, "upsert": true}];
    let pipeline = |stage: Document| array![doc! {"$match": doc! {}}, stage];
    let write = |stage| doc! {"aggregate": "c", "pipeline": pipeline(stage), "cursor": doc! {}};
    for command in [
        doc! {"insert": "c", "documents": array![doc! {"x": 1}]},
        doc! {"insert": "c", "documents": array![doc! {"x": 2}]},
        doc! {"update": "d", "updates": upsert},
        doc! {"createIndexes": "e", "indexes": index},
        write(doc! {"$out": "f"}),
        write(doc! {"$out": "f"}),
        write(doc! {"$merge": "g"}),
        doc! {"find": "nothing"},
    ] {
        let reply = client.run_on("a", &command);
        assert!(is_ok(&reply), "{reply:?}");
    }
    let written = std::fs::read_to_string(&path).expect("a log");
    let events: Vec<(String, i64, String)> = written
        .lines()
        .map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
            for field in ["ts", "local", "remote", "users", "roles", "param"] {
                assert!(event.get(field).is_some(), "{field} in {line}");
            }
            let kind = event["atype"].as_str().expect("a kind").to_owned();
            let ns = event["param"]["ns"].as_str().unwrap_or_default();
            let result = event["result"].as_i64().expect("a code");
            (kind, result, ns.to_owned())
        })
        .collect();
    let expected = [
        ("createUser", 0, ""),
        ("authCheck", 13, "admin.c"),
        ("authenticate", 18, ""),
        ("authenticate", 0, ""),
        ("createCollection", 0, "a.c"),
        ("dropCollection", 0, "a.c"),
        ("createCollection", 0, "a.c"),
        ("createCollection", 0, "a.d"),
        ("createCollection", 0, "a.e"),
        ("createIndex", 0, "a.e"),
        ("createCollection", 0, "a.f"),
        ("createCollection", 0, "a.g"),
    ];
    let expected = expected.map(|(kind, code, ns)| (kind.to_owned(), code, ns.to_owned()));
    assert_eq!(events, expected);
    assert!(!written.contains("pencil"));
}

#[test]
fn everybody_sees_the_operations_of_their_own_and_some_those_of_others() {
    let server = Server::start_with(&["--auth"]);
    create_root(&server);
    let mut root = server.connect();
    root.log_in(Mechanism::Sha256, "admin", "root", "pencil");
    let roles = array![doc! {"role": "readWrite", "db": "a"}];
    let create = doc! {"createUser": "gauge", "pwd": "x", "roles": roles};
    assert!(is_ok(&root.run(&create)));
    let mut connections = Vec::new();
    for (user, pwd) in [("root", "pencil"), ("gauge", "x"), ("gauge", "x")] {
        let mut client = server.connect();
        let reply = client.log_in(Mechanism::Sha1, "admin", user, pwd);
        assert!(is_ok(&reply), "{reply:?}");
        connections.push(client);
    }
    // A connection is there once the server has answered on it.
    let mut nobody = server.connect();
    assert!(is_ok(&nobody.run_on("admin", &doc! {"hello": 1})));
    let documents: Vec<Value> = (0..5).map(|n| doc! {"n": n}.into()).collect();
    let mut gauge = connections.pop().expect("a client");
    let insert = doc! {"insert": "c", "documents": documents};
    assert!(is_ok(&gauge.run_on("a", &insert)));
    // Each has one waiting cursor.
    for client in [&mut root, &mut gauge] {
        let reply = client.run_on("a", &doc! {"find": "c", "batchSize": 1});
        assert!(is_ok(&reply), "{reply:?}");
    }
    let shown = |client: &mut Client, options: Document| {
        let stage = doc! {"$currentOp": options};
        let command = doc! {"aggregate": 1, "pipeline": array![stage], "cursor": doc! {}};
        let reply = client.run(&command);
        if !is_ok(&reply) {
            return Err(code(&reply));
        }
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let batch = cursor.get("firstBatch").as_array().expect("a batch");
        let count = |which: &dyn Fn(DocRef<'_>) -> bool| {
            let documents = batch.iter().filter_map(|d| d.as_document());
            documents.filter(|d| which(*d)).count()
        };
        let is_active = |d: DocRef<'_>| matches!(d.get("active"), ValueRef::Bool(true));
        let is_cursor = |d: DocRef<'_>| d.get("type").as_str() == Some("idleCursor");
        let active = count(&is_active);
        let cursors = count(&is_cursor);
        Ok((active, batch.len() - active - cursors, cursors))
    };
    let idle = |all: bool| doc! {"allUsers": all, "idleConnections": true, "idleCursors": true};
    assert_eq!(shown(&mut gauge, doc! {}), Ok((1, 0, 0)));
    assert_eq!(shown(&mut gauge, idle(false)), Ok((1, 1, 1)));
    assert_eq!(shown(&mut gauge, idle(true)), Err(13));
    assert_eq!(shown(&mut root, idle(false)), Ok((1, 1, 1)));
    assert_eq!(shown(&mut root, idle(true)), Ok((1, 4, 2)));
    assert_eq!(code(&gauge.run(&doc! {"currentOp": 1})), 13);
    let own = gauge.run(&doc! {"currentOp": 1, "$ownOps": true, "$all": true});
    let own = own.get("inprog").as_array().expect("a list");
    assert_eq!(own.len(), 2);
    let user = own.get(1).as_document().expect("a connection");
    let user = user.get("effectiveUsers").as_array().expect("users");
    let user = user.get(0).as_document().expect("a user");
    assert_eq!(user.get("user").as_str(), Some("gauge"));
    drop(nobody);
}

#[test]
fn the_handshake_offers_no_login_by_a_mechanism_the_user_lacks() {
    let server = Server::start_with(&["--auth"]);
    create_root(&server);
    let mut root = server.connect();
    root.log_in(Mechanism::Sha256, "admin", "root", "pencil");
    for (name, mechanism) in [("old", "SCRAM-SHA-1"), ("new", "SCRAM-SHA-256")] {
        let create = doc! {
            "createUser": name, "pwd": "pencil", "roles": array!["root"],
            "mechanisms": array![mechanism],
        };
        assert!(is_ok(&root.run(&create)));
    }
    let greet = |user: &str, mechanism: Mechanism| {
        let (_, first) = prover(mechanism, (user, "pencil"));
        let reply = server.connect().run(&doc! {
            "hello": 1,
            "saslSupportedMechs": format!("admin.{user}"),
            "speculativeAuthenticate": doc! {
                "saslStart": 1, "mechanism": mechanism.name(), "payload": first, "db": "admin",
            },
        });
        let names = reply.get("saslSupportedMechs").as_array().expect("names");
        let names: Vec<String> = names
            .iter()
            .filter_map(|n| n.as_str().map(str::to_owned))
            .collect();
        (names, reply.as_ref().contains("speculativeAuthenticate"))
    };
    assert_eq!(
        greet("old", Mechanism::Sha256),
        (vec!["SCRAM-SHA-1".to_owned()], false)
    );
    assert!(greet("old", Mechanism::Sha1).1);
    assert!(!greet("new", Mechanism::Sha1).1);
    assert!(greet("root", Mechanism::Sha1).1);
    // Names without a user are answered as users are: each always the same, some with one mechanism.
    let mut answers = std::collections::BTreeSet::new();
    for number in 0..40 {
        let name = format!("unknown{number}");
        let (names, answered) = greet(&name, Mechanism::Sha256);
        assert_eq!(greet(&name, Mechanism::Sha256), (names.clone(), answered));
        assert_eq!(answered, names.iter().any(|name| name == "SCRAM-SHA-256"));
        answers.insert(names);
    }
    assert_eq!(answers.len(), 3, "{answers:?}");
}
