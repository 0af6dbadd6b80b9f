//! Logins, refusals and the audit log, over the wire.

use std::time::Instant;

use nilometer::auth::Mechanism;
use nilometer_bson::{Binary, Document, Value, ValueRef, array, doc};

use crate::client::{Client, code, is_ok};
use crate::server::{Directory, Server};

/// What is in base64 in a message.
fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes().filter(|b| *b != b'=') {
        let value = DIGITS.iter().position(|d| *d == digit).expect("a digit");
        bits = (bits << 6) | u32::try_from(value).expect("small");
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push(u8::try_from((bits >> held) & 0xFF).expect("a byte"));
        }
    }
    out
}

fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in bytes.chunks(3) {
        let byte = |at: usize| usize::from(part.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for at in 0..4 {
            if at <= part.len() {
                out.push(char::from(DIGITS[(bits >> (18 - 6 * at)) & 63]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

fn binary(text: &str) -> Value {
    Value::from(Binary {
        subtype: 0,
        bytes: text.as_bytes().into(),
    })
}

fn text(reply: &Document, field: &str) -> String {
    match reply.get(field) {
        ValueRef::Binary { bytes, .. } => String::from_utf8(bytes.to_vec()).expect("text"),
        other => panic!("{other:?} in {reply:?}"),
    }
}

/// Logs in by SCRAM on the database `db`, and gives the last reply.
pub(crate) fn log_in(
    client: &mut Client,
    mechanism: Mechanism,
    db: &str,
    user: &str,
    pwd: &str,
) -> Document {
    let bare = format!("n={user},r=abcdefghijkl");
    let begin = doc! {
        "saslStart": 1,
        "mechanism": mechanism.name(),
        "payload": binary(&format!("n,,{bare}")),
        "autoAuthorize": 1,
        "options": doc! {"skipEmptyExchange": true},
    };
    let reply = client.run_on(db, &begin);
    if !is_ok(&reply) {
        return reply;
    }
    let id = reply.get("conversationId").to_value();
    finish(
        client,
        mechanism,
        db,
        (user, pwd),
        &bare,
        &text(&reply, "payload"),
        id,
    )
}

fn finish(
    client: &mut Client,
    mechanism: Mechanism,
    db: &str,
    (user, pwd): (&str, &str),
    bare: &str,
    challenge: &str,
    id: Value,
) -> Document {
    let part = |name: &str| {
        let mut parts = challenge.split(',');
        let found = parts.find_map(|p| p.strip_prefix(name));
        found.expect("a part").to_owned()
    };
    let salted = mechanism.stretch(
        mechanism.prepare(user, pwd).expect("a password").as_bytes(),
        &decode(&part("s=")),
        part("i=").parse().expect("a number"),
    );
    let unproven = format!("c=biws,r={}", part("r="));
    let signed = format!("{bare},{challenge},{unproven}");
    let key = mechanism.hmac(&salted, b"Client Key");
    let signature = mechanism.hmac(&mechanism.hash(&key), signed.as_bytes());
    let proof: Vec<u8> = key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
    let payload = format!("{unproven},p={}", encode(&proof));
    let go_on = doc! {"saslContinue": 1, "conversationId": id, "payload": binary(&payload)};
    let reply = client.run_on(db, &go_on);
    if is_ok(&reply) {
        let server = mechanism.hmac(&salted, b"Server Key");
        let signature = mechanism.hmac(&server, signed.as_bytes());
        assert_eq!(text(&reply, "payload"), format!("v={}", encode(&signature)));
    }
    reply
}

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
        let wrong = log_in(&mut client, mechanism, "admin", "root", "wrong");
        let nobody = log_in(&mut client, mechanism, "admin", "nobody", "wrong");
        assert_eq!(code(&wrong), 18);
        assert_eq!(
            wrong.as_bytes(),
            nobody.as_bytes(),
            "nobody is not told apart"
        );
        assert_eq!(code(&client.run(&doc! {"find": "c"})), 13);
        let reply = log_in(&mut client, mechanism, "admin", "root", "pencil");
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
    let bare = "n=root,r=abcdefghijkl";
    let hello = doc! {
        "hello": 1,
        "saslSupportedMechs": "admin.root",
        "speculativeAuthenticate": doc! {
            "saslStart": 1,
            "mechanism": "SCRAM-SHA-256",
            "payload": binary(&format!("n,,{bare}")),
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
    let (begun, id) = (begun.to_document(), begun.get("conversationId").to_value());
    let challenge = text(&begun, "payload");
    let who = ("root", "pencil");
    let reply = finish(
        &mut client,
        Mechanism::Sha256,
        "admin",
        who,
        bare,
        &challenge,
        id,
    );
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
        let reply = log_in(&mut client, Mechanism::Sha1, "admin", "root", "wrong");
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
        let reply = log_in(&mut client, Mechanism::Sha256, "admin", "root", "pencil");
        assert!(is_ok(&reply), "{reply:?}");
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn the_audit_log_tells_of_logins_refusals_and_changes_and_of_no_secret() {
    let directory = Directory::new();
    let path = directory.0.join("audit.json");
    let server = Server::start_with(&[
        "--auth",
        "--auditDestination",
        "file",
        "--auditFormat",
        "JSON",
        "--auditPath",
        path.to_str().expect("a path"),
    ]);
    create_root(&server);
    let mut client = server.connect();
    assert_eq!(code(&client.run(&doc! {"find": "c"})), 13);
    log_in(&mut client, Mechanism::Sha256, "admin", "root", "wrong");
    log_in(&mut client, Mechanism::Sha256, "admin", "root", "pencil");
    assert!(is_ok(&client.run_on("a", &doc! {"create": "c"})));
    assert!(is_ok(&client.run_on("a", &doc! {"drop": "c"})));
    let written = std::fs::read_to_string(&path).expect("a log");
    let events: Vec<(String, i64)> = written
        .lines()
        .map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
            for field in ["ts", "local", "remote", "users", "roles", "param"] {
                assert!(event.get(field).is_some(), "{field} in {line}");
            }
            let kind = event["atype"].as_str().expect("a kind").to_owned();
            (kind, event["result"].as_i64().expect("a code"))
        })
        .collect();
    let expected = [
        ("createUser", 0),
        ("authCheck", 13),
        ("authenticate", 18),
        ("authenticate", 0),
        ("createCollection", 0),
        ("dropCollection", 0),
    ];
    assert_eq!(events, expected.map(|(kind, code)| (kind.to_owned(), code)));
    assert!(!written.contains("pencil"));
}
