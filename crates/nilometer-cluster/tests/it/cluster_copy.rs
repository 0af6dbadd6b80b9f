//! A cluster as a whole: copied beside its nodes under load, verified, inspected, and served elsewhere.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::{Document, doc};

use crate::nodes::{admin, batch, check, insert, measurements, node, until_owned};
use crate::server::{Server, command, exchange, refused, run, url};
use crate::support::{Scratch, SetAtDrop};

/// Copies that are made while the cluster is under load.
const COPIES: usize = 3;

/// Moves until a copy has ended. It begins again while documents move, and needs a time without.
const MOVES_PER_COPY: i64 = 4;

/// Gardeners that are inserted at once.
const GARDENERS: i64 = 20;

fn ask(port: u16, command: Document) -> Document {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    exchange(&mut stream, command).expect("a reply")
}

/// How far the writers have come: all below is acknowledged.
#[derive(Default)]
struct Progress {
    measurements: AtomicI64,
    gardeners: AtomicI64,
    moves: AtomicI64,
    copies: AtomicI64,
    is_ended: AtomicBool,
}

impl Progress {
    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }

    fn write_measurements(&self, port: u16) {
        while !self.is_ended() {
            let from = self.measurements.load(Ordering::Relaxed);
            let new = measurements(from, 40);
            let insert = doc! { "insert": "ts", "documents": new, "ordered": false };
            assert_eq!(ask(port, insert).get_i32("n").ok(), Some(40));
            self.measurements.store(from + 40, Ordering::Release);
        }
    }

    fn write_gardeners(&self, port: u16) {
        while !self.is_ended() {
            let from = self.gardeners.load(Ordering::Relaxed);
            let new = (from..from + GARDENERS).map(|id| doc! { "_id": id, "bed": id % 7 });
            let new: Vec<Document> = new.collect();
            let reply = ask(port, doc! { "insert": "gardeners", "documents": new });
            assert_eq!(reply.get_i32("n").ok(), Some(GARDENERS as i32), "{reply}");
            self.gardeners.store(from + GARDENERS, Ordering::Release);
        }
    }

    fn has_moved_enough(&self) -> bool {
        let copies = self.copies.load(Ordering::Relaxed);
        self.moves.load(Ordering::Relaxed) >= MOVES_PER_COPY * (copies + 1)
    }

    /// Moves gardeners from one partition to the next, and creates collections between.
    fn move_gardeners(&self, port: u16) {
        for round in 0_i64.. {
            while self.has_moved_enough() && !self.is_ended() {
                std::thread::sleep(Duration::from_millis(50));
            }
            if self.is_ended() {
                return;
            }
            let (low, to) = (round % 5 * 100, round % 3 + 1);
            let reply = ask(
                port,
                doc! {
                    "moveRange": "garden.gardeners", "min": { "_id": low }, "max": { "_id": low + 100 },
                    "toShard": format!("p{to:04}"), "$db": "admin",
                },
            );
            // A collection of which another move runs, or whose readers run on, says so.
            if reply.get_f64("ok").ok() == Some(1.0) {
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            if round % 8 == 0 {
                ask(port, doc! { "create": format!("shed{round}") });
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Checks that a copy has what was acknowledged before it began, each document once.
fn check_copy(server: &Server, measurements: i64, gardeners: i64) {
    let counts = |collection: &str, id: &str| {
        let group = doc! { "$group": { "_id": id, "n": { "$sum": 1 } } };
        let aggregate = doc! {
            "aggregate": collection, "pipeline": [group], "cursor": { "batchSize": 1_000_000 },
        };
        let groups = batch(&command(server, aggregate));
        let count = |group: &Document| {
            let id = group.get_i64("_id").expect("an id");
            (id, group.get_i32("n").expect("a count"))
        };
        groups.iter().map(count).collect::<BTreeMap<_, _>>()
    };
    for (collection, id, before) in [("ts", "$x", measurements), ("gardeners", "$_id", gardeners)] {
        let found = counts(collection, id);
        assert!(before > 0 && found.values().all(|count| *count == 1));
        let missing = (0..before).filter(|id| !found.contains_key(id));
        let missing: Vec<i64> = missing.collect();
        assert!(missing.is_empty(), "{collection}: {missing:?}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_cluster_under_load_is_copied_as_a_whole() {
    let directory = Scratch::new("cluster-copy");
    let target = |number: usize| url(&directory.path().join(format!("copy{number}")));
    let from = url(&directory.path().join("cluster"));
    let first = node(&from, &["--partitions", "3"]);
    let (second, third) = (node(&from, &[]), node(&from, &[]));
    for server in [&first, &second, &third] {
        until_owned(server, &[&first, &second, &third]);
    }
    shard_both(&first);
    let progress = Progress::default();
    let begun = |progress: &Progress| {
        let load = |number: &AtomicI64| number.load(Ordering::Acquire);
        (load(&progress.measurements), load(&progress.gardeners))
    };
    let ports = [&first, &second, &third].map(|server| server.port);
    let copied: Vec<(i64, i64)> = std::thread::scope(|scope| {
        let end = SetAtDrop(&progress.is_ended);
        scope.spawn(|| progress.write_measurements(ports[0]));
        scope.spawn(|| progress.write_gardeners(ports[1]));
        scope.spawn(|| progress.move_gardeners(ports[2]));
        let until = Instant::now() + Duration::from_secs(60);
        while progress.moves.load(Ordering::Relaxed) < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let copy = |number: usize| {
            let before = begun(&progress);
            let ended = run(&["copy", &from, &target(number)]);
            assert!(ended.status.success(), "{}", text(&ended.stderr));
            let told = text(&ended.stdout);
            assert!(told.contains("The catalog and 3 partitions"), "{told}");
            progress.copies.fetch_add(1, Ordering::Relaxed);
            before
        };
        let copied = (0..COPIES).map(copy).collect();
        drop(end);
        copied
    });
    assert!(progress.moves.load(Ordering::Relaxed) >= 2);
    for (number, (measurements, gardeners)) in copied.into_iter().enumerate() {
        let url = target(number);
        let checked = run(&["verify", &url]);
        let told = text(&checked.stdout);
        assert!(checked.status.success(), "{told}{}", text(&checked.stderr));
        assert!(told.contains("4 databases. Every checksum"), "{told}");
        let copy = node(&url, &[]);
        let other = node(&url, &["--partitions", "3"]);
        for server in [&copy, &other] {
            until_owned(server, &[&copy, &other]);
            check_copy(server, measurements, gardeners);
        }
        // It is a cluster like any other.
        let last = begun(&progress).0;
        insert(&other, last, 16);
        check_copy(&copy, measurements, gardeners);
    }
    check_copy(&third, begun(&progress).0, begun(&progress).1);
}

fn shard_both(server: &Server) {
    let series = doc! { "timeField": "t", "metaField": "m" };
    command(server, doc! { "create": "ts", "timeseries": series });
    for (name, key) in [
        ("ts", doc! { "m.host": "hashed" }),
        ("gardeners", doc! { "_id": 1 }),
    ] {
        let name = format!("garden.{name}");
        admin(server, doc! { "shardCollection": name, "key": key });
    }
}

/// Returns a cluster with measurements, whose node has ended.
fn ended_cluster(directory: &Path) -> String {
    let url = url(&directory.join("cluster"));
    let node = node(&url, &["--partitions", "2"]);
    until_owned(&node, &[&node]);
    shard_both(&node);
    insert(&node, 0, 320);
    node.stop();
    url
}

#[test]
fn a_copy_that_is_not_complete_is_no_cluster() {
    let directory = Scratch::new("cluster-copy-unfinished");
    let from = ended_cluster(directory.path());
    let to = url(&directory.path().join("copy"));
    assert!(run(&["copy", &from, &to]).status.success());
    for full in [&to, &from] {
        let told = refused(&["copy", &from, full], 100);
        assert!(told.contains("there is a cluster"), "{told}");
    }
    let told = refused(
        &[
            "copy",
            &from,
            &directory.path().join("d").display().to_string(),
        ],
        100,
    );
    assert!(told.contains("or copy all of it to a URL"), "{told}");
    // As a copy leaves it that was killed.
    let object = directory.path().join("copy/nilometer/cluster");
    std::fs::write(object, "nilometer cluster, unfinished copy\n").expect("written");
    let serve = ["serve", "--port", "0", "--storage", &to, "--cluster"];
    for command in [&serve[..], &["verify", &to], &["copy", &to, &from]] {
        let told = refused(command, 100);
        assert!(
            told.contains("a copy of a cluster is not complete"),
            "{told}"
        );
    }
    let single = url(&directory.path().join("single"));
    let server = Server::start(&["--storage", &single]);
    insert_one(&server);
    server.stop();
    let told = refused(&["copy", &from, &single], 100);
    assert!(told.contains("not empty"), "{told}");
    assert!(run(&["verify", &single]).status.success());
}

fn insert_one(server: &Server) {
    let documents = measurements(0, 1);
    command(server, doc! { "insert": "plain", "documents": documents });
}

/// Returns the tables below a directory.
fn tables(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    paths.filter(is_table).collect()
}

#[test]
fn every_database_of_a_cluster_is_verified_and_inspected() {
    let directory = Scratch::new("cluster-verified");
    let url = ended_cluster(directory.path());
    let checked = run(&["verify", &url]);
    let told = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(0), "{told}");
    for line in [
        "config\n",
        "p0001\n",
        "p0002\n",
        "3 databases. Every checksum",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let one = run(&["verify", "--partition", "p0002", &url]);
    assert!(one.status.success() && !text(&one.stdout).contains("p0001"));
    let inspected = run(&["inspect", &url]);
    let told = text(&inspected.stdout);
    assert!(inspected.status.success(), "{}", text(&inspected.stderr));
    let lines = told
        .lines()
        .filter_map(|line| line.trim().split_once(" measurements in "));
    let counts = lines.map(|(count, _)| count.parse::<i64>().expect("a number"));
    assert_eq!(counts.sum::<i64>(), 320, "{told}");
    // A single server's database has one report.
    let single = format!("{url}-single");
    let server = Server::start(&["--storage", &single]);
    insert_one(&server);
    let served = run(&["verify", &single]);
    assert!(served.status.success() && text(&served.stdout).contains("garden.plain"));
    assert!(text(&run(&["inspect", &single]).stdout).contains("garden.plain"));
    // One that is damaged does not hide the others.
    let partition = directory.path().join("cluster/nilometer/p0001");
    let tables = [
        tables(&partition.join("compacted")),
        tables(&partition.join("wal")),
    ]
    .concat();
    assert!(!tables.is_empty());
    for table in &tables {
        let mut bytes = std::fs::read(table).expect("a file");
        let middle = bytes.len() / 3;
        if let Some(byte) = bytes.get_mut(middle) {
            *byte ^= 0x55;
        }
        std::fs::write(table, bytes).expect("written");
    }
    let checked = run(&["verify", &url]);
    let told = text(&checked.stdout);
    assert_eq!(
        checked.status.code(),
        Some(3),
        "{told}{}",
        text(&checked.stderr)
    );
    assert!(text(&checked.stderr).contains("damaged: p0001"), "{told}");
    assert!(told.contains("p0002\nok"), "{told}");
    std::fs::remove_dir_all(&partition).expect("removed");
    let told = refused(&["verify", &url], 3);
    assert!(told.contains("damaged: p0001"), "{told}");
    let told = refused(&["verify", "--partition", "p0003", &url], 100);
    assert!(told.contains("name one of its databases"), "{told}");
    let directory = directory.path().display().to_string();
    for command in ["verify", "inspect"] {
        let told = refused(&[command, "--partition", "p0001", &directory], 2);
        assert!(told.contains("--partition needs a URL"), "{told}");
    }
    check_nothing_there(&url);
}

fn check_nothing_there(url: &str) {
    let nowhere = format!("{url}-nowhere");
    let told = refused(&["inspect", &nowhere], 100);
    assert!(told.contains("is not a directory"), "{told}");
}

/// A cluster that ended is copied, too, and its copy has all of it.
#[test]
fn a_cluster_without_nodes_is_copied() {
    let directory = Scratch::new("cluster-copy-ended");
    let from = ended_cluster(directory.path());
    let to = url(&directory.path().join("copy"));
    assert!(run(&["copy", &from, &to]).status.success());
    for url in [&from, &to] {
        let node = node(url, &["--partitions", "2"]);
        until_owned(&node, &[&node]);
        check(&node, 320);
    }
}
