//! Several servers of one database: one writes, the others read, and one of them takes over.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::server::{Server, command, contents, exchange as ask, fill, fill_more, refused, url};
use crate::support::Scratch;

/// Time for a server to take over, or to read what another wrote.
const PATIENCE: Duration = Duration::from_secs(40);

fn hello(stream: &mut TcpStream) -> Document {
    ask(stream, doc! { "hello": 1, "$db": "admin" }).expect("a reply")
}

/// Waits until the `hello` of a server fits. Returns it.
pub(crate) fn until(server: &Server, what: &str, fits: impl Fn(&Document) -> bool) -> Document {
    let mut stream = server.connect();
    let end = Instant::now() + PATIENCE;
    loop {
        let told = hello(&mut stream);
        if fits(&told) {
            return told;
        }
        assert!(Instant::now() < end, "no {what}: {told}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn is_primary(told: &Document) -> bool {
    told.get_bool("isWritablePrimary").ok() == Some(true)
}

pub(crate) fn is_secondary(told: &Document) -> bool {
    told.get_bool("secondary").ok() == Some(true)
}

fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port)
}

/// A read that other members than the primary may answer.
fn anywhere(mut command: Document) -> Document {
    command.insert("$readPreference", doc! { "mode": "secondaryPreferred" });
    command
}

/// A write with a number in a session.
fn numbered(mut command: Document, number: i64) -> Document {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    command.insert("lsid", doc! { "id": id });
    command.insert("txnNumber", number);
    command
}

fn code(reply: &Document) -> i32 {
    reply.get_i32("code").unwrap_or(0)
}

#[test]
fn a_server_that_stands_by_takes_over() {
    let directory = Scratch::new("standby");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    until(&first, "primary", is_primary);
    fill(&first);
    let expected = contents(&first);
    let second = Server::stand_by(&url);
    until(&second, "secondary", is_secondary);
    first.stop();
    until(&second, "primary", is_primary);
    assert_eq!(contents(&second), expected);
    let third = Server::stand_by(&url);
    drop(second);
    until(&third, "primary", is_primary);
    assert_eq!(contents(&third), expected);
    fill_more(&third);
    // One that stands by ends when it is stopped.
    Server::stand_by(&url).stop();
    assert!(refused(&["serve", "--standby"], 2).contains("--standby needs --storage"));
}

/// The interval of the secondary is longer than the test: only reads that ask for it see what is new.
#[test]
fn a_secondary_waits_for_what_a_client_has_seen() {
    let directory = Scratch::new("causal");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    until(&first, "primary", is_primary);
    let arguments = ["--storage", &url, "--readOnly", "--readIntervalMS", "3000"];
    let second = Server::start(&arguments);
    until(&second, "secondary", is_secondary);
    let mut stream = second.connect();
    let mut read = |time| {
        let concern = doc! { "afterClusterTime": time };
        let find = anywhere(doc! { "find": "beds", "readConcern": concern });
        ask(&mut stream, find).expect("a reply")
    };
    let found = |reply: &Document| {
        let cursor = reply.get_document("cursor").expect("a cursor");
        cursor.get_array("firstBatch").expect("a batch").len()
    };
    let mut last = None;
    for id in 0..6 {
        let insert = doc! { "insert": "beds", "documents": [{ "_id": id }] };
        let written = command(&first, insert);
        let time = written.get_timestamp("operationTime").expect("a time");
        let shown = read(time);
        assert_eq!(found(&shown), id as usize + 1, "{shown}");
        // What it has waited for once is there.
        assert_eq!(found(&read(time)), id as usize + 1);
        last = Some((time, shown.get_timestamp("operationTime").expect("a time")));
    }
    let (written, shown) = last.expect("a write");
    assert_eq!(written, shown);
    // Without a writer nothing newer comes, and the look says so.
    let later = bson::Timestamp {
        time: written.time + 1,
        increment: 1,
    };
    assert_eq!(found(&read(later)), 6);
}

#[test]
fn a_secondary_reads_what_the_primary_writes() {
    let directory = Scratch::new("secondary");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    fill(&first);
    let second = Server::stand_by(&url);
    let arguments = ["--storage", &url, "--readOnly", "--readIntervalMS", "100"];
    let third = Server::start(&arguments);
    for server in [&second, &third] {
        let told = until(server, "members", |told| {
            is_secondary(told)
                && told.get_str("primary").ok() == Some(&*address(&first))
                && told.get_array("hosts").is_ok_and(|hosts| hosts.len() == 2)
                && told
                    .get_array("passives")
                    .is_ok_and(|hosts| hosts.len() == 1)
        });
        assert_eq!(told.get_str("setName").ok(), Some("nilometer"), "{told}");
        assert_eq!(told.get_str("me").ok(), Some(&*address(server)), "{told}");
        let mut stream = server.connect();
        let refused = ask(&mut stream, doc! { "find": "beds" }).expect("a reply");
        assert_eq!(code(&refused), 13_435, "{refused}");
        let insert = doc! { "insert": "beds", "documents": [{ "_id": 2 }] };
        let refused = ask(&mut stream, numbered(insert, 1)).expect("a reply");
        assert_eq!(code(&refused), 10_107, "{refused}");
        let text = refused.to_string();
        assert!(text.contains(&address(&first)), "{text}");
        assert!(text.contains("topologyVersion") && text.contains("RetryableWriteError"));
        let found = anywhere(doc! { "find": "beds" });
        assert!(
            ask(&mut stream, found)
                .expect("a reply")
                .to_string()
                .contains("roses")
        );
    }
    // A cursor continues with what it began with, while newer contents are shown to others.
    let mut stream = second.connect();
    let sort = doc! { "time": 1, "bed": 1 };
    let open = doc! { "find": "soil", "sort": sort, "batchSize": 100 };
    let reply = ask(&mut stream, anywhere(open)).expect("a reply");
    let cursor = reply.get_document("cursor").expect("a cursor");
    let id = cursor.get_i64("id").expect("an id");
    let insert = doc! { "insert": "beds", "documents": [{ "_id": 3, "bed": "moss" }] };
    command(&first, insert);
    for server in [&second, &third] {
        let mut stream = server.connect();
        let end = Instant::now() + PATIENCE;
        while !ask(&mut stream, anywhere(doc! { "find": "beds" }))
            .expect("a reply")
            .to_string()
            .contains("moss")
        {
            assert!(Instant::now() < end, "the write is not seen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let mut rest = 0;
    let mut id = id;
    while id != 0 {
        let more = doc! { "getMore": id, "collection": "soil", "batchSize": 150 };
        let reply = ask(&mut stream, more).expect("a reply");
        let cursor = reply.get_document("cursor");
        let cursor = cursor.unwrap_or_else(|_| panic!("{reply}"));
        rest += cursor.get_array("nextBatch").expect("a batch").len();
        id = cursor.get_i64("id").expect("an id");
    }
    assert_eq!(rest, 400);
    let status = command(&second, doc! { "replSetGetStatus": 1, "$db": "admin" });
    assert_eq!(
        status.get_array("members").map(Vec::len).ok(),
        Some(3),
        "{status}"
    );
    let shown = command(&second, doc! { "serverStatus": 1, "$db": "admin" });
    let shown = shown.get_document("repl").expect("repl");
    assert_eq!(
        shown.get_i64("readIntervalMillis").ok(),
        Some(100),
        "{shown}"
    );
    // It never takes over.
    drop((first, second));
    std::thread::sleep(Duration::from_secs(7));
    assert!(!is_primary(&hello(&mut third.connect())));
    third.stop();
}

#[test]
fn a_primary_that_steps_down_is_replaced_and_reads() {
    let directory = Scratch::new("step-down");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    fill(&first);
    let step_down = doc! { "replSetStepDown": 60, "$db": "admin" };
    let mut alone = step_down.clone();
    alone.insert("secondaryCatchUpPeriodSecs", 1);
    let begun = Instant::now();
    let alone = ask(&mut first.connect(), alone).expect("a reply");
    assert_eq!(code(&alone), 262, "{alone}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "it waits");
    let second = Server::stand_by(&url);
    until(&first, "other", |told| {
        told.get_array("hosts").is_ok_and(|hosts| hosts.len() == 2)
    });
    // A client that waits for a change is told.
    let mut waiting = first.connect();
    let told = hello(&mut waiting);
    let version = told
        .get_document("topologyVersion")
        .expect("a version")
        .clone();
    let awaited = std::thread::spawn(move || {
        let hello = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 30_000, "$db": "admin" };
        ask(&mut waiting, hello).expect("a reply")
    });
    let write = doc! { "insert": "beds", "documents": [{ "_id": 5, "bed": "ferns" }] };
    command(&first, numbered(write.clone(), 3));
    let begun = Instant::now();
    command(&first, step_down);
    until(&second, "primary", is_primary);
    // Half a second on an idle machine.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let told = awaited.join().expect("a reply");
    assert!(!is_primary(&told), "{told}");
    until(&first, "secondary", |told| {
        is_secondary(told) && told.get_str("primary").ok() == Some(&*address(&second))
    });
    // The other server knows what was written, so it is not written again.
    let again = command(&second, numbered(write, 3));
    assert!(again.to_string().contains("retriedStmtIds"), "{again}");
    let late = doc! { "insert": "beds", "documents": [{ "_id": 6, "bed": "late" }] };
    command(&second, late);
    let mut stream = first.connect();
    let end = Instant::now() + PATIENCE;
    let found = anywhere(doc! { "find": "beds" });
    while !ask(&mut stream, found.clone())
        .expect("a reply")
        .to_string()
        .contains("late")
    {
        assert!(Instant::now() < end, "the write is not seen");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Who steps down by force may be the only one that can write.
    let step_down = doc! { "replSetStepDown": 1, "force": true, "$db": "admin" };
    command(&second, step_down);
    second.stop();
    first.stop();
}

/// The wait for another server ends when there is one, or when the command is to end.
#[test]
fn a_primary_that_steps_down_waits_for_another_member() {
    let directory = Scratch::new("step-down-early");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    fill(&first);
    let mut stream = first.connect();
    let limited = doc! {
        "replSetStepDown": 600, "secondaryCatchUpPeriodSecs": 600, "maxTimeMS": 200, "$db": "admin",
    };
    let limited = ask(&mut stream, limited).expect("a reply");
    assert_eq!(code(&limited), 50, "{limited}");
    let waiting = std::thread::spawn(move || {
        let step_down =
            doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 50, "$db": "admin" };
        ask(&mut stream, step_down).expect("a reply")
    });
    let second = Server::stand_by(&url);
    let told = waiting.join().expect("a reply");
    assert_eq!(told.get_f64("ok").ok(), Some(1.0), "{told}");
    until(&second, "primary", is_primary);
    let again = doc! { "replSetStepDown": 60, "$db": "admin" };
    let again = ask(&mut first.connect(), again).expect("a reply");
    assert_eq!(code(&again), 10_107, "{again}");
}

/// A writer that was paused while another one took over serves reads again, and takes over when it is its turn.
#[test]
fn a_writer_that_was_paused_stands_by_again() {
    let directory = Scratch::new("paused-member");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    until(&first, "primary", is_primary);
    fill(&first);
    let mut old = first.connect();
    let open = doc! { "find": "soil", "batchSize": 10 };
    let open = ask(&mut old, open).expect("a reply");
    let cursor = open.get_document("cursor").expect("a cursor").get_i64("id");
    let cursor = cursor.expect("an id");
    let second = Server::stand_by(&url);
    until(&second, "secondary", is_secondary);
    let third = Server::stand_by(&url);
    until(&third, "secondary", is_secondary);
    first.signal("STOP");
    let both = [&second, &third];
    let end = Instant::now() + PATIENCE;
    let next = loop {
        let writes = |server: &&&Server| is_primary(&hello(&mut server.connect()));
        if let Some(next) = both.iter().find(writes) {
            break *next;
        }
        assert!(Instant::now() < end, "no other server writes");
        std::thread::sleep(Duration::from_millis(20));
    };
    fill_more(next);
    first.signal("CONT");
    first.line("Standing by again");
    until(&first, "secondary", |told| {
        is_secondary(told) && told.get_str("primary").ok() == Some(&*address(next))
    });
    // On a connection that was open all the time.
    let found = ask(&mut old, anywhere(doc! { "find": "beds" })).expect("a reply");
    assert!(found.to_string().contains("herbs"), "{found}");
    let insert = doc! { "insert": "beds", "documents": [{ "_id": 9 }] };
    let refused = ask(&mut old, insert).expect("a reply");
    assert_eq!(code(&refused), 10_107, "{refused}");
    let more = ask(&mut old, doc! { "getMore": cursor, "collection": "soil" });
    let more = more.expect("a reply");
    assert_eq!(code(&more), 43, "{more}");
    // The set is whole again: it is the only one that is left, and writes.
    drop((second, third));
    until(&first, "primary", is_primary);
    let count = command(&first, doc! { "count": "beds" });
    assert_eq!(count.get_i32("n").ok(), Some(2), "{count}");
    command(
        &first,
        doc! { "insert": "beds", "documents": [{ "_id": 9 }] },
    );
    first.stop();
}

/// Returns the time between the last answer to a write of a server and the first of its successor.
fn without_a_writer(first: &Server, second: &Server, hand_over: impl FnOnce()) -> Duration {
    let writes = |stream: &mut TcpStream| {
        let insert = doc! { "insert": "handed", "documents": [{ "a": 1 }] };
        let reply = ask(stream, insert);
        reply.is_some_and(|reply| reply.get_f64("ok").ok() == Some(1.0))
    };
    let (mut old, mut new) = (first.connect(), second.connect());
    assert!(writes(&mut old));
    std::thread::scope(|scope| {
        let last = scope.spawn(move || {
            let mut last = Instant::now();
            while writes(&mut old) {
                last = Instant::now();
            }
            last
        });
        let next = scope.spawn(move || {
            let end = Instant::now() + PATIENCE;
            while !writes(&mut new) {
                assert!(Instant::now() < end, "no other server writes");
                std::thread::sleep(Duration::from_millis(2));
            }
            Instant::now()
        });
        hand_over();
        let last = last.join().expect("no panic");
        next.join().expect("no panic").duration_since(last)
    })
}

/// Another server writes within a second, half of it on an idle machine: a look of the others, and the opening. On a busy one it
/// is tried again.
#[test]
fn a_writer_hands_over_within_a_second_when_it_is_stopped_or_steps_down() {
    const GAP_MAX: Duration = Duration::from_secs(1);
    const TRIES: usize = 10;
    let directory = Scratch::new("hand-over");
    let url = url(directory.path());
    let mut writer = Server::stand_by(&url);
    fill(&writer);
    for by_signal in [false, true] {
        let mut gaps = Vec::new();
        while gaps.iter().all(|gap| *gap >= GAP_MAX) {
            assert!(gaps.len() < TRIES, "by a signal: {by_signal}, {gaps:?}");
            let next = Server::stand_by(&url);
            until(&next, "secondary", is_secondary);
            gaps.push(without_a_writer(&writer, &next, || match by_signal {
                true => writer.signal("TERM"),
                false => {
                    let step_down = doc! { "replSetStepDown": 60, "$db": "admin" };
                    drop(command(&writer, step_down));
                }
            }));
            writer = next;
        }
        eprintln!("by a signal: {by_signal}, no writer for {gaps:?}");
    }
}

/// Measurements and documents that a stream has shown, and where it continues.
struct Follower {
    token: Document,
    ids: Vec<i32>,
    last: bson::Timestamp,
}

impl Follower {
    /// Resumes the stream, and reads until it has shown `count` inserts.
    fn follow(&mut self, server: &Server, count: usize) {
        let stage = doc! { "$changeStream": { "resumeAfter": self.token.clone() } };
        let (mut stream, mut batch) = (server.connect(), "firstBatch");
        let open = doc! { "aggregate": 1, "pipeline": [stage], "cursor": {} };
        let mut reply = ask(&mut stream, open).expect("a reply");
        let end = Instant::now() + PATIENCE;
        loop {
            let cursor = reply.get_document("cursor");
            let cursor = cursor.unwrap_or_else(|_| panic!("{reply}"));
            for event in cursor.get_array(batch).expect("a batch") {
                self.note(event.as_document().expect("an event"));
            }
            let token = cursor.get_document("postBatchResumeToken");
            self.token = token.expect("a token").clone();
            if self.ids.len() >= count {
                return;
            }
            assert!(Instant::now() < end, "{} of {count}", self.ids.len());
            let more = doc! { "getMore": cursor.get_i64("id").expect("an id"), "collection": "$cmd.aggregate" };
            batch = "nextBatch";
            reply = ask(&mut stream, more).expect("a reply");
        }
    }

    fn note(&mut self, event: &Document) {
        let time = event.get_timestamp("clusterTime").expect("a time");
        assert!(self.last <= time, "{event}");
        self.last = time;
        if event.get_str("operationType").ok() == Some("insert") {
            let document = event.get_document("fullDocument").expect("a document");
            self.ids.push(document.get_i32("_id").expect("an _id"));
        }
    }
}

/// A stream is resumed on the server that took over: it shows what both have written, each once, in order.
#[test]
fn a_stream_goes_on_where_another_server_writes() {
    const ROUNDS: i32 = 4;
    const EACH: i32 = 25;
    let directory = Scratch::new("streams");
    let url = url(directory.path());
    let mut server = Server::stand_by(&url);
    until(&server, "primary", is_primary);
    let timeseries = doc! { "timeField": "time", "metaField": "bed" };
    let created = command(
        &server,
        doc! { "create": "soil", "timeseries": timeseries, "comment": "first" },
    );
    let stage = doc! { "$changeStream": {} };
    let open = doc! { "aggregate": 1, "pipeline": [stage], "cursor": {} };
    let opened = command(&server, open);
    let token = opened.get_document("cursor").expect("a cursor");
    let token = token.get_document("postBatchResumeToken");
    let mut follower = Follower {
        token: token.expect("a token").clone(),
        ids: Vec::new(),
        last: created.get_timestamp("operationTime").expect("a time"),
    };
    let mut last = follower.last;
    for round in 0..ROUNDS {
        for id in round * EACH..(round + 1) * EACH {
            let time = bson::DateTime::from_millis(1_700_000_000_000 + i64::from(id));
            let document = doc! { "_id": id, "time": time, "bed": id % 3, "v": id };
            let into = ["soil", "beds"][usize::from(id % 2 == 1)];
            let reply = command(&server, doc! { "insert": into, "documents": [document] });
            let time = reply.get_timestamp("operationTime").expect("a time");
            assert!(last < time, "{reply}");
            last = time;
        }
        // Half of it before the takeover, the rest on the next server.
        let shown = round * EACH + EACH / 2;
        follower.follow(&server, usize::try_from(shown).expect("a count"));
        let next = Server::stand_by(&url);
        match round % 2 {
            0 => drop(server),
            _ => server.stop(),
        }
        until(&next, "primary", is_primary);
        server = next;
    }
    let all = 0..ROUNDS * EACH;
    follower.follow(&server, all.len());
    assert_eq!(follower.ids, all.collect::<Vec<_>>());
}
