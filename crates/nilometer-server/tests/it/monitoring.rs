//! Clients that watch the server: `hello` that waits for a change of the topology, and its stream of answers.

use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, ObjectId, Value, doc};

use crate::client::{Client, REQUEST_ID, body, code, is_ok, op_msg, op_query};
use crate::server::Server;

/// The flag of a request that takes several answers.
const EXHAUST_ALLOWED: u32 = 0x1_0000;

/// The flag of an answer that another follows.
const MORE_TO_COME: u32 = 2;

fn hello(fields: Document) -> Document {
    let mut hello = DocumentBuilder::new();
    hello.append("hello", 1);
    for field in fields.iter() {
        hello.append_element(field);
    }
    hello.append("$db", "admin");
    hello.finish()
}

/// Returns the version that the server tells.
fn version(client: &mut Client) -> Document {
    let reply = client.ask(&op_msg(0, &[body(&hello(doc! {}))]));
    let version = reply.get("topologyVersion").as_document();
    version.expect("a version").to_document()
}

fn awaited(version: &Document, ms: i64) -> Document {
    hello(doc! {"topologyVersion": version.clone(), "maxAwaitTimeMS": ms})
}

/// Receives an answer; returns it, the id it answers, its own id, and true if another follows.
fn receive(client: &mut Client) -> (Document, i32, i32, bool) {
    let mut reply = client.receive();
    let flags = u32::from_le_bytes(reply.body[..4].try_into().expect("flags"));
    assert_eq!(flags & !MORE_TO_COME, 0);
    reply.body[..4].fill(0);
    let document = reply.document();
    (
        document,
        reply.response_to,
        reply.request_id,
        flags == MORE_TO_COME,
    )
}

fn connections(client: &mut Client, field: &str) -> i64 {
    let status = client.run(&doc! {"serverStatus": 1});
    let connections = status.get("connections").as_document().expect("figures");
    connections.get(field).as_exact_i64().expect("a number")
}

#[test]
fn hello_waits_while_the_topology_stays() {
    let server = Server::start();
    let mut client = server.connect();
    let version = version(&mut client);
    assert_eq!(version.get("counter").as_exact_i64(), Some(0));
    let began = Instant::now();
    let reply = client.ask(&op_msg(0, &[body(&awaited(&version, 300))]));
    assert!(is_ok(&reply));
    assert!(began.elapsed() >= Duration::from_millis(300));
    let told = reply
        .get("topologyVersion")
        .as_document()
        .expect("a version");
    assert_eq!(told.to_document(), version);
    assert!(client.is_silent());
    // The older command in the older message, too.
    let mut old = DocumentBuilder::new();
    old.append("isMaster", 1);
    for field in awaited(&version, 100)
        .iter()
        .filter(|field| field.name() != "hello")
    {
        old.append_element(field);
    }
    let began = Instant::now();
    assert!(is_ok(&client.ask(&op_query("admin.$cmd", &old.finish()))));
    assert!(began.elapsed() >= Duration::from_millis(100));
    // A time that never ends does not overflow.
    let mut other = server.connect();
    other.send(&op_msg(0, &[body(&awaited(&version, i64::MAX))]));
    assert!(other.is_silent());
}

#[test]
fn a_client_that_knows_another_process_is_answered_at_once() {
    let server = Server::start();
    let mut client = server.connect();
    let other = doc! {"processId": ObjectId([7; 12]), "counter": 5_i64};
    let began = Instant::now();
    let reply = client.ask(&op_msg(0, &[body(&awaited(&other, 60_000))]));
    assert!(is_ok(&reply));
    // In a stream the first answer comes at once, and the next ones take their time.
    let mut client = server.connect();
    client.send(&op_msg(EXHAUST_ALLOWED, &[body(&awaited(&other, 60_000))]));
    let (reply, _, _, more) = receive(&mut client);
    assert!(is_ok(&reply) && more);
    assert!(client.is_silent());
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn answers_are_streamed_to_a_client_that_takes_several() {
    let server = Server::start();
    let (mut client, mut other) = (server.connect(), server.connect());
    let version = version(&mut client);
    let began = Instant::now();
    client.send(&op_msg(EXHAUST_ALLOWED, &[body(&awaited(&version, 150))]));
    let mut answered = REQUEST_ID;
    for answer in 1..=4 {
        let (reply, response_to, id, more) = receive(&mut client);
        assert!(is_ok(&reply) && more);
        assert_eq!(response_to, answered, "each answers the one before");
        answered = id;
        assert!(began.elapsed() >= Duration::from_millis(150) * answer);
    }
    assert_eq!(connections(&mut other, "exhaustHello"), 1);
    assert_eq!(connections(&mut other, "exhaustIsMaster"), 0);
    // A message ends the stream: its last answer says so, and the message is answered.
    client.send(&op_msg(0, &[body(&doc! {"ping": 1, "$db": "admin"})]));
    loop {
        let (reply, response_to, id, more) = receive(&mut client);
        assert!(is_ok(&reply));
        if response_to == REQUEST_ID {
            break;
        }
        assert_eq!(response_to, answered);
        answered = id;
        if !more {
            let (reply, response_to, ..) = receive(&mut client);
            assert!(is_ok(&reply) && reply.get("topologyVersion").is_missing());
            assert_eq!(response_to, REQUEST_ID);
            break;
        }
    }
    assert_eq!(connections(&mut other, "exhaustHello"), 0);
    assert_eq!(connections(&mut other, "awaitingTopologyChanges"), 0);
    // Not even without a time to wait is the client flooded.
    client.send(&op_msg(EXHAUST_ALLOWED, &[body(&awaited(&version, 0))]));
    let began = Instant::now();
    for _ in 0..20 {
        assert!(receive(&mut client).3);
    }
    assert!(began.elapsed() >= Duration::from_millis(150));
}

#[test]
fn what_a_waiting_client_must_send() {
    let server = Server::start();
    let mut client = server.connect();
    let version = version(&mut client);
    let process = version.get("processId").to_value();
    let with = |process: Value, counter: Value| -> Document {
        doc! {"processId": process, "counter": counter}
    };
    let other = Value::from(ObjectId([7; 12]));
    for (fields, expected) in [
        (doc! {"topologyVersion": version.clone()}, 31_368),
        (doc! {"maxAwaitTimeMS": 10}, 31_368),
        (
            doc! {"topologyVersion": version.clone(), "maxAwaitTimeMS": -1},
            31_373,
        ),
        (
            doc! {"topologyVersion": version.clone(), "maxAwaitTimeMS": "x"},
            14,
        ),
        (doc! {"topologyVersion": 1, "maxAwaitTimeMS": 10}, 14),
        (
            doc! {"topologyVersion": with(process.clone(), (-1).into()), "maxAwaitTimeMS": 10},
            31_372,
        ),
        (
            doc! {"topologyVersion": with(process.clone(), 1.into()), "maxAwaitTimeMS": 10},
            31_382,
        ),
        (
            doc! {"topologyVersion": with(1.into(), 0.into()), "maxAwaitTimeMS": 10},
            14,
        ),
        (
            doc! {"topologyVersion": doc! {"counter": 0}, "maxAwaitTimeMS": 10},
            40_414,
        ),
        (
            doc! {"topologyVersion": doc! {"processId": process}, "maxAwaitTimeMS": 10},
            40_414,
        ),
        (
            doc! {"topologyVersion": with(other, 9.into()), "maxAwaitTimeMS": 10},
            0,
        ),
    ] {
        // A refusal ends a stream.
        let message = op_msg(EXHAUST_ALLOWED, &[body(&hello(fields.clone()))]);
        if expected == 0 {
            assert!(is_ok(&client.ask(&op_msg(0, &[body(&hello(fields))]))));
        } else {
            assert_eq!(code(&client.ask(&message)), expected, "{fields:?}");
        }
    }
    assert!(client.is_silent());
}

#[test]
fn waiting_clients_hold_neither_threads_nor_a_shutdown() {
    let mut server = Server::start();
    let mut status = server.connect();
    let version = version(&mut status);
    let mut clients: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        let flags = if at % 2 == 0 { EXHAUST_ALLOWED } else { 0 };
        client.send(&op_msg(flags, &[body(&awaited(&version, 3_600_000))]));
    }
    let end = Instant::now() + Duration::from_secs(20);
    while connections(&mut status, "awaitingTopologyChanges") < 200 {
        assert!(Instant::now() < end);
    }
    let tasks = format!("/proc/{}/task", server.process());
    let threads = || std::fs::read_dir(&tasks).map(|tasks| tasks.count());
    // Threads end soon after their connections have released them.
    while threads().is_ok_and(|threads| threads > 100) {
        assert!(Instant::now() < end, "{:?}", threads());
        std::thread::sleep(Duration::from_millis(50));
    }
    // A closed connection ends its wait.
    clients.truncate(150);
    while connections(&mut status, "awaitingTopologyChanges") > 150 {
        assert!(Instant::now() < end);
    }
    let began = Instant::now();
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert!(clients.iter_mut().all(Client::is_closed));
}

#[test]
fn many_streams_go_on_beside_commands() {
    let server = Server::start();
    let mut status = server.connect();
    let version = version(&mut status);
    let mut clients: Vec<Client> = (0..150).map(|_| server.connect()).collect();
    let began = Instant::now();
    for client in &mut clients {
        client.send(&op_msg(EXHAUST_ALLOWED, &[body(&awaited(&version, 50))]));
    }
    // Every second client sends a command, which ends its stream.
    let ping = op_msg(0, &[body(&doc! {"ping": 1, "$db": "admin"})]);
    for (at, client) in clients.iter_mut().enumerate() {
        for _ in 0..10 {
            assert!(receive(client).3);
        }
        if at % 2 == 0 {
            client.send(&ping);
            while receive(client).3 {}
            assert!(is_ok(&receive(client).0));
            for _ in 0..10 {
                assert!(is_ok(&client.ask(&ping)));
            }
        }
    }
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert_eq!(connections(&mut status, "exhaustHello"), 75);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process()));
    let threads = tasks.map_or(0, |tasks| tasks.count());
    assert!(threads < 300, "{threads} threads");
}
