//! Nodes of a cluster, as processes over one directory: all route, each writes some partitions, and they take over from each
//! other.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};

use crate::server::{Server, command, exchange, receive, refused, run, send, url};
use crate::support::{Scratch, SetAtDrop};

/// Time for partitions to be taken over, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn node(url: &str, more: &[&str]) -> Server {
    Server::start(&[&["--storage", url, "--cluster"], more].concat())
}

fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port)
}

pub(crate) fn admin(server: &Server, mut given: Document) -> Document {
    given.insert("$db", "admin");
    command(server, given)
}

/// Returns the address of the node of each partition, as a node knows it.
fn hosts(server: &Server) -> Vec<String> {
    let reply = admin(server, doc! { "listShards": 1 });
    let shards = reply.get_array("shards").expect("shards").iter();
    let host = |shard: &Bson| shard.as_document()?.get_str("host").ok().map(str::to_owned);
    shards.filter_map(host).collect()
}

/// Waits until a node knows that each of these nodes, and no other, has partitions. Returns how long that took.
pub(crate) fn until_owned(server: &Server, by: &[&Server]) -> Duration {
    until_hosts(server, by.iter().map(|server| address(server)).collect())
}

/// The same for nodes with these addresses.
pub(crate) fn until_hosts(server: &Server, mut expected: Vec<String>) -> Duration {
    expected.sort();
    let began = Instant::now();
    loop {
        let found = hosts(server);
        let mut owners = found.clone();
        owners.sort();
        owners.dedup();
        if owners == expected {
            return began.elapsed();
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{found:?} instead of {expected:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn measurements(from: i64, count: i64) -> Vec<Document> {
    let one = |n: i64| {
        let time = bson::DateTime::from_millis((from + n) * 1000);
        doc! { "t": time, "m": { "host": (from + n) % 16 }, "x": from + n }
    };
    (0..count).map(one).collect()
}

pub(crate) fn insert(server: &Server, from: i64, count: i64) {
    let insert = doc! { "insert": "ts", "documents": measurements(from, count), "ordered": false };
    let reply = command(server, insert);
    assert!(reply.get("writeErrors").is_none(), "{reply}");
    assert_eq!(reply.get_i32("n").ok(), i32::try_from(count).ok());
}

pub(crate) fn batch(reply: &Document) -> Vec<Document> {
    let cursor = reply.get_document("cursor").expect("a cursor");
    let batch = cursor.get_array("firstBatch").expect("a batch").iter();
    batch.filter_map(Bson::as_document).cloned().collect()
}

/// Checks that a node answers with all measurements of 0 to `count`.
pub(crate) fn check(server: &Server, count: i64) {
    let reply = command(server, doc! { "count": "ts", "query": {} });
    assert_eq!(
        reply.get_i32("n").ok(),
        i32::try_from(count).ok(),
        "{reply}"
    );
    let group = doc! {
        "_id": "$m.host", "n": { "$sum": 1_i64 }, "sum": { "$sum": "$x" }, "last": { "$max": "$x" },
    };
    let pipeline = vec![doc! { "$group": group }, doc! { "$sort": { "_id": 1 } }];
    let reply = command(
        server,
        doc! { "aggregate": "ts", "pipeline": pipeline, "cursor": {} },
    );
    let mut expected: BTreeMap<i64, (i64, i64, i64)> = BTreeMap::new();
    for x in 0..count {
        let (n, sum, last) = expected.entry(x % 16).or_default();
        (*n, *sum, *last) = (*n + 1, *sum + x, x);
    }
    let found = batch(&reply).into_iter().map(|group| {
        let number = |name| group.get_i64(name).expect("a number");
        (number("_id"), (number("n"), number("sum"), number("last")))
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);
    let find =
        doc! { "find": "ts", "sort": { "x": -1 }, "limit": 5, "filter": { "m.host": 3_i64 } };
    let found = batch(&command(server, find));
    let newest = (0..count).rev().filter(|x| x % 16 == 3).take(5);
    let found = found
        .iter()
        .map(|document| document.get_i64("x").expect("x"));
    assert_eq!(found.collect::<Vec<_>>(), newest.collect::<Vec<_>>());
}

fn shard(server: &Server) {
    command(
        server,
        doc! { "create": "ts", "timeseries": { "timeField": "t", "metaField": "m" } },
    );
    admin(
        server,
        doc! { "shardCollection": "garden.ts", "key": { "m.host": "hashed" } },
    );
}

#[test]
fn nodes_take_over_from_each_other_and_others_join() {
    let directory = Scratch::new("nodes");
    let url = url(directory.path());
    let first = node(&url, &["--partitions", "4"]);
    until_owned(&first, &[&first]);
    let hello = admin(&first, doc! { "hello": 1 });
    assert_eq!(hello.get_str("msg").ok(), Some("isdbgrid"), "{hello}");
    let (second, third) = (node(&url, &[]), node(&url, &[]));
    for server in [&first, &second, &third] {
        until_owned(server, &[&first, &second, &third]);
    }
    // The second node does not have the catalog.
    shard(&second);
    command(
        &third,
        doc! { "insert": "plain", "documents": [{ "_id": 1 }] },
    );
    for (at, server) in (0..).zip([&first, &second, &third]) {
        insert(server, at * 500, 500);
    }
    for server in [&first, &second, &third] {
        check(server, 1500);
        assert_eq!(batch(&command(server, doc! { "find": "plain" })).len(), 1);
    }
    // Killed: it has the catalog and one or two partitions.
    drop(first);
    insert(&second, 1500, 100);
    check(&third, 1600);
    until_owned(&second, &[&second, &third]);
    until_owned(&third, &[&second, &third]);
    command(&third, doc! { "create": "after" });
    let listed = batch(&command(
        &second,
        doc! { "listCollections": 1, "nameOnly": true },
    ));
    let names = listed.iter().filter_map(|entry| entry.get_str("name").ok());
    let own = names.filter(|name| !name.starts_with("system."));
    assert_eq!(own.count(), 3, "{listed:?}");
    let fourth = node(&url, &[]);
    let router = node(&url, &["--noPartitions"]);
    let all = [&second, &third, &fourth];
    for server in [&second, &third, &fourth, &router] {
        until_owned(server, &all);
        check(server, 1600);
    }
    insert(&router, 1600, 200);
    check(&fourth, 1800);
    // A node that is stopped hands over at once.
    let began = Instant::now();
    second.stop();
    check(&router, 1800);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    until_owned(&router, &[&third, &fourth]);
    insert(&fourth, 1800, 50);
    check(&third, 1850);
    for server in [router, third, fourth] {
        server.stop();
    }
    // All are gone: the next one finds everything.
    let again = node(&url, &["--partitions", "4"]);
    until_owned(&again, &[&again]);
    check(&again, 1850);
}

#[test]
fn nodes_that_start_at_once_create_one_cluster() {
    for round in 0..3 {
        let directory = Scratch::new(&format!("nodes-at-once-{round}"));
        let url = url(directory.path());
        let start = || node(&url, &["--partitions", "3"]);
        let nodes: Vec<Server> = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..3).map(|_| scope.spawn(start)).collect();
            let started = starting
                .into_iter()
                .map(|node| node.join().expect("a node"));
            started.collect()
        });
        let all: Vec<&Server> = nodes.iter().collect();
        until_owned(all[0], &all);
        shard(all[1]);
        insert(all[2], 0, 48);
        for node in &all {
            check(node, 48);
        }
    }
}

/// Writers with numbers, which repeat what failed as drivers do, while a node is killed: nothing is lost, and nothing is there
/// twice.
#[test]
fn a_node_is_killed_under_load() {
    let directory = Scratch::new("nodes-load");
    let url = url(directory.path());
    let victim = node(&url, &["--partitions", "3"]);
    let (second, third) = (node(&url, &[]), node(&url, &[]));
    for server in [&victim, &second, &third] {
        until_owned(server, &[&victim, &second, &third]);
    }
    shard(&second);
    insert(&second, 0, 16);
    let (next, is_ended) = (AtomicI64::new(16), AtomicBool::new(false));
    let longest = std::thread::scope(|scope| {
        let end = SetAtDrop(&is_ended);
        let writers: Vec<_> = [second.port, third.port, second.port, third.port]
            .into_iter()
            .zip(1..)
            .map(|(port, writer)| {
                let (next, is_ended) = (&next, &is_ended);
                scope.spawn(move || write(port, writer, next, is_ended))
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        drop(victim);
        until_owned(&second, &[&second, &third]);
        std::thread::sleep(Duration::from_secs(1));
        drop(end);
        let longest = writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer"));
        longest.max().expect("writers")
    });
    let count = next.load(Ordering::Relaxed);
    check(&second, count);
    check(&third, count);
    assert!(longest < PATIENCE, "{longest:?}");
}

/// Inserts one batch after the other until the end. Returns the time of the longest.
fn write(port: u16, writer: u8, next: &AtomicI64, is_ended: &AtomicBool) -> Duration {
    const BATCH: i64 = 20;
    let session = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![writer; 16],
    };
    let mut longest = Duration::ZERO;
    for number in 1_i64.. {
        if is_ended.load(Ordering::Relaxed) {
            break;
        }
        let from = next.fetch_add(BATCH, Ordering::Relaxed);
        let insert = doc! {
            "insert": "ts", "documents": measurements(from, BATCH), "ordered": number % 2 == 0,
            "lsid": { "id": session.clone() }, "txnNumber": number,
        };
        let began = Instant::now();
        loop {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
            let reply = exchange(&mut stream, insert.clone()).expect("a reply");
            if reply.get_f64("ok").ok() == Some(1.0) {
                assert_eq!(reply.get_i32("n").ok(), Some(BATCH as i32), "{reply}");
                break;
            }
            let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
            let is_retryable = labels.contains(&Bson::from("RetryableWriteError"));
            assert!(is_retryable, "{reply}");
            assert!(began.elapsed() < PATIENCE, "{reply}");
        }
        longest = longest.max(began.elapsed());
    }
    longest
}

/// A node that was paused while others took its partitions and the catalog over answers nothing old, and belongs to the cluster
/// again.
#[test]
fn a_paused_node_answers_nothing_old() {
    let directory = Scratch::new("nodes-paused");
    let url = url(directory.path());
    let paused = node(&url, &["--partitions", "3"]);
    until_owned(&paused, &[&paused]);
    shard(&paused);
    let (second, third) = (node(&url, &[]), node(&url, &[]));
    for server in [&paused, &second, &third] {
        until_owned(server, &[&paused, &second, &third]);
    }
    insert(&paused, 0, 64);
    let mut early = (0..2).map(|_| paused.connect()).collect::<Vec<_>>();
    check(&second, 64);
    paused.signal("STOP");
    until_owned(&second, &[&second, &third]);
    insert(&second, 64, 64);
    command(&third, doc! { "create": "after" });
    check(&third, 128);
    let commands = [
        doc! { "count": "ts", "query": {} },
        doc! { "insert": "after", "documents": [{ "_id": 1 }] },
    ];
    for (stream, command) in early.iter_mut().zip(commands) {
        send(stream, command).expect("sent");
    }
    paused.signal("CONT");
    for stream in &mut early {
        let reply = receive(stream).expect("a reply");
        let is_right = matches!(reply.get_i32("n"), Ok(1 | 128));
        assert!(is_right || reply.get_f64("ok").ok() == Some(0.0), "{reply}");
    }
    for server in [&paused, &second, &third] {
        until_owned(server, &[&paused, &second, &third]);
    }
    insert(&paused, 128, 64);
    for server in [&paused, &second, &third] {
        check(server, 192);
    }
}

#[test]
fn users_log_in_at_every_node() {
    let directory = Scratch::new("nodes-auth");
    let url = url(directory.path());
    let first = node(&url, &["--auth", "--partitions", "2"]);
    let second = node(&url, &["--auth"]);
    let mut stream = first.connect();
    let create = doc! { "createUser": "ada", "pwd": "x", "roles": ["root"], "$db": "admin" };
    let reply = exchange(&mut stream, create).expect("a reply");
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    // A client that has not logged in can neither read nor act as a node.
    for command in [
        doc! { "find": "ts" },
        doc! { "find": "ts", "$partition": { "name": "p0001" } },
        doc! { "usersInfo": 1, "$partition": { "name": "config" }, "$db": "admin" },
    ] {
        for server in [&first, &second] {
            let reply = exchange(&mut server.connect(), command.clone()).expect("a reply");
            assert_eq!(reply.get_i32("code").ok(), Some(13), "{reply}");
        }
    }
    let start =
        doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "biws", "$db": "local" };
    let reply = exchange(&mut second.connect(), start).expect("a reply");
    assert_eq!(reply.get_i32("code").ok(), Some(18), "{reply}");
}

#[test]
fn what_only_nodes_may_ask_is_refused() {
    let directory = Scratch::new("nodes-refused");
    let url = url(directory.path());
    let first = node(&url, &["--partitions", "1"]);
    until_owned(&first, &[&first]);
    let probe = doc! { "count": "ts", "$partition": { "name": "p0001" }, "$db": "garden" };
    let reply = exchange(&mut first.connect(), probe).expect("a reply");
    assert_eq!(reply.get_i32("code").ok(), Some(13), "{reply}");
    // A single server does not begin a database in the place of a cluster, and no node one with other partitions.
    let told = refused(&["serve", "--port", "0", "--storage", &url], 100);
    assert!(told.contains("there is a cluster"), "{told}");
    let other = [
        "serve",
        "--port",
        "0",
        "--storage",
        &url,
        "--cluster",
        "--partitions",
        "2",
    ];
    let told = refused(&other, 100);
    assert!(told.contains("has 1 partitions, not 2"), "{told}");
    for (arguments, text) in [
        (vec!["--cluster"], "--cluster needs --storage"),
        (
            vec!["--storage", &url, "--partitions", "2"],
            "need --cluster",
        ),
        (
            vec!["--storage", &url, "--cluster", "--standby"],
            "excludes --standby",
        ),
        (
            vec!["--storage", &url, "--cluster", "--replSet", "rs"],
            "excludes --replSet",
        ),
        (
            vec!["--storage", &url, "--cluster", "--partitions", "2001"],
            "between 1 and 2000",
        ),
    ] {
        let told = refused(
            &[&["serve", "--port", "0"], arguments.as_slice()].concat(),
            2,
        );
        assert!(told.contains(text), "{told}");
    }
}

/// Each database of a cluster is copied out of it, beside the node that writes it, and checked there.
#[test]
fn partitions_are_copied_and_verified() {
    let directory = Scratch::new("nodes-copied");
    let url = url(&directory.path().join("cluster"));
    let first = node(&url, &["--partitions", "2"]);
    until_owned(&first, &[&first]);
    shard(&first);
    insert(&first, 0, 500);
    let target = |name: &str| directory.path().join(name).display().to_string();
    for name in ["config", "p0001", "p0002"] {
        let target = target(name);
        let copied = run(&["copy", "--partition", name, &url, &target]);
        assert!(copied.status.success(), "{copied:?}");
        let checked = run(&["verify", &target]);
        assert!(checked.status.success(), "{checked:?}");
        let told = run(&["inspect", &target]);
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("garden.system.buckets.ts"), "{name}: {told}");
    }
    // Together they have everything.
    let counts = ["p0001", "p0002"].map(|name| {
        let server = Server::start(&["--dbpath", &target(name)]);
        let reply = command(&server, doc! { "count": "ts", "query": {} });
        reply.get_i32("n").expect("a count")
    });
    assert!(
        counts.iter().sum::<i32>() == 500 && counts.iter().all(|count| *count > 0),
        "{counts:?}"
    );
    check(&first, 500);
    let told = refused(&["copy", &url, &target("whole")], 100);
    assert!(
        told.contains("name one of its databases, which are config and p0001 to p0002"),
        "{told}"
    );
    for name in ["p0003", "p1", "members"] {
        let told = refused(&["copy", "--partition", name, &url, &target("other")], 100);
        assert!(told.contains("there is a cluster"), "{told}");
    }
    let copy = [
        "copy",
        "--partition",
        "p0001",
        &target("p0001"),
        &target("x"),
    ]
    .map(str::to_owned);
    let copy: Vec<&str> = copy.iter().map(String::as_str).collect();
    assert!(refused(&copy, 2).contains("the URL of a cluster"));
    // No database begins in the place of a cluster.
    let told = refused(&["copy", &target("p0001"), &url], 100);
    assert!(told.contains("there is a cluster"), "{told}");
}
