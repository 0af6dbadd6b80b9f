//! How long a node that is killed keeps its partitions from answering, and that the partitions of others never stop.
//!
//! One client for each partition writes and reads what is in it alone, at nodes that stay. The times are printed.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};

use crate::nodes::{admin, node, until_owned};
use crate::server::{Server, command, exchange, url};
use crate::support::{Scratch, SetAtDrop};

const PARTITIONS: i64 = 6;

/// Time without answers from the partitions of a killed node on a busy machine: the target is 8 s on one that does nothing else.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

/// Makes a time series that is spread by a hash of the host. Returns a host of each partition.
fn prepare(server: &Server) -> Vec<i64> {
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    command(server, doc! { "create": "ts", "timeseries": timeseries });
    admin(
        server,
        doc! { "shardCollection": "garden.ts", "key": { "m.host": "hashed" } },
    );
    let mut hosts = vec![None; usize::try_from(PARTITIONS).expect("a number")];
    for host in 0_i64.. {
        let find = doc! { "find": "ts", "filter": { "m.host": host } };
        let plan = command(server, doc! { "explain": find });
        let shards = plan.get_document("shards").expect("the parts");
        let name = shards.keys().next().expect("a partition");
        let number: usize = name.trim_start_matches('p').parse().expect("a number");
        hosts[number - 1].get_or_insert(host);
        if hosts.iter().all(Option::is_some) {
            break;
        }
    }
    hosts.into_iter().flatten().collect()
}

/// Returns the numbers of the partitions, from 0 on, that are at a node.
fn partitions_of(server: &Server, at: &Server) -> Vec<i64> {
    let address = format!("127.0.0.1:{}", at.port);
    let reply = admin(server, doc! { "listShards": 1 });
    let shards = reply.get_array("shards").expect("shards").iter();
    let shards = shards.filter_map(Bson::as_document).zip(0_i64..);
    let own = shards.filter(|(shard, _)| shard.get_str("host").ok() == Some(address.as_str()));
    own.map(|(_, number)| number).collect()
}

/// Writes and reads measurements of one host until the end, and notes how many were written. Returns their number, and the longest
/// command.
fn use_host(port: u16, host: i64, is_ended: &AtomicBool, progress: &AtomicI64) -> (i64, Duration) {
    let (mut written, mut longest) = (0, Duration::ZERO);
    while !is_ended.load(Ordering::Relaxed) {
        let time = bson::DateTime::from_millis(written * 1000);
        let one = doc! { "t": time, "m": { "host": host }, "x": written };
        let session = bson::Binary {
            subtype: bson::spec::BinarySubtype::Uuid,
            bytes: [host.to_be_bytes(), host.to_be_bytes()].concat(),
        };
        let insert = doc! {
            "insert": "ts", "documents": [one], "lsid": { "id": session }, "txnNumber": written + 1,
        };
        longest = longest.max(until_done(port, &insert).1);
        written += 1;
        let count = doc! { "count": "ts", "query": { "m.host": host } };
        let (counted, took) = until_done(port, &count);
        longest = longest.max(took);
        assert_eq!(
            counted.get_i32("n").map(i64::from).ok(),
            Some(written),
            "{host}"
        );
        progress.store(written, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }
    (written, longest)
}

/// Sends a command until it succeeds. Returns the reply, and the time since the first attempt.
fn until_done(port: u16, command: &Document) -> (Document, Duration) {
    let began = Instant::now();
    loop {
        let stream = std::net::TcpStream::connect(("127.0.0.1", port));
        let reply = exchange(&mut stream.expect("a connection"), command.clone());
        let reply = reply.expect("a reply");
        if reply.get_f64("ok").ok() == Some(1.0) {
            return (reply, began.elapsed());
        }
        assert!(began.elapsed() < OUTAGE_MAX, "{reply}");
    }
}

#[test]
fn the_partitions_of_others_answer_while_a_node_is_killed() {
    let directory = Scratch::new("nodes-outage");
    let url = url(directory.path());
    let first = node(&url, &["--partitions", &PARTITIONS.to_string()]);
    until_owned(&first, &[&first]);
    let (second, third) = (node(&url, &[]), node(&url, &[]));
    for server in [&first, &second, &third] {
        until_owned(server, &[&first, &second, &third]);
    }
    let hosts = prepare(&first);
    // The first one has the catalog, too.
    let lost = partitions_of(&second, &first);
    assert!(!lost.is_empty());
    let is_ended = AtomicBool::new(false);
    let progress: Vec<AtomicI64> = hosts.iter().map(|_| AtomicI64::new(0)).collect();
    let mut answered: Vec<bool> = Vec::new();
    let written = || progress.iter().map(|one| one.load(Ordering::Relaxed));
    let used: Vec<(i64, Duration)> = std::thread::scope(|scope| {
        let end = SetAtDrop(&is_ended);
        let ports = [second.port, third.port].into_iter().cycle();
        let users: Vec<_> = hosts
            .iter()
            .zip(ports)
            .zip(&progress)
            .map(|((host, port), progress)| {
                let (host, is_ended) = (*host, &is_ended);
                scope.spawn(move || use_host(port, host, is_ended, progress))
            })
            .collect();
        std::thread::sleep(Duration::from_secs(2));
        drop(first);
        let before: Vec<i64> = written().collect();
        until_owned(&second, &[&second, &third]);
        // One command may have begun before.
        let both = before.into_iter().zip(written());
        answered = both.map(|(before, after)| after > before + 1).collect();
        std::thread::sleep(Duration::from_secs(3));
        drop(end);
        let used = users.into_iter().map(|user| user.join().expect("a user"));
        used.collect()
    });
    let longest = |is_lost: bool| {
        let of = (0..).zip(&used);
        let of = of.filter(|(number, _)| lost.contains(number) == is_lost);
        of.map(|(_, (_, longest))| *longest)
            .max()
            .unwrap_or_default()
    };
    let (outage, others) = (longest(true), longest(false));
    eprintln!(
        "the partitions of the killed node answered after {outage:.1?}; the longest command of {} others took {others:.0?}",
        PARTITIONS - i64::try_from(lost.len()).expect("a number"),
    );
    assert!(outage < OUTAGE_MAX, "{outage:?}");
    let stayed = (0..).zip(&answered);
    let mut stayed = stayed.filter(|(number, _)| !lost.contains(number));
    assert!(stayed.all(|(_, answered)| *answered), "{answered:?}");
    for (host, (written, _)) in hosts.iter().zip(&used) {
        let count = doc! { "count": "ts", "query": { "m.host": *host } };
        let counted = command(&third, count).get_i32("n").map(i64::from).ok();
        assert_eq!(counted, Some(*written), "{host}");
    }
}
