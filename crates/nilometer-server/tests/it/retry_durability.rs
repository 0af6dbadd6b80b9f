//! The server is killed while clients send numbered writes. After each start every client repeats its last statement: the
//! answer is the one that the statement has when it runs once, and the change is there once.
//!
//! Each client has a session of its own, and knows what each of its statements must answer. With NILOMETER_SOAK=1 there are
//! more kills; NILOMETER_SEED repeats the choices of a run, but not its timing.

use std::collections::BTreeSet;
use std::time::Duration;

use nilometer_bson::{Array, Binary, Document, DocumentBuilder, Value, array, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, is_ok, op_msg};
use crate::random::Random;
use crate::server::{Directory, Server, nilometer};

/// Kills of the server.
const KILLS: Effort = Effort {
    fast: 3,
    long: 15,
    soak: 300,
};

const CLIENTS: u8 = 5;

/// Maximum time before a kill, in ms.
const WRITING_MS_MAX: u64 = 200;

/// The fields of an answer that say what the statement did.
const ANSWERS: [&str; 6] = [
    "n",
    "nModified",
    "upserted",
    "value",
    "lastErrorObject",
    "writeErrors",
];

fn serve(directory: &Directory) -> Server {
    let path = directory.0.join("data");
    let path = path.to_str().expect("a path");
    let arguments = ["serve", "--port", "0", "--quiet", "--dbpath", path];
    let set = ["--replSet", "garden"];
    Server::spawn(&mut nilometer(&[&arguments[..], &set].concat()))
}

/// What a statement changes.
#[derive(Clone, Debug)]
enum Change {
    /// Adds 1 to the counter.
    Count,
    /// Adds documents, or measurements.
    Insert(&'static str, Vec<i64>),
    Delete(i64),
}

/// A statement, and what it must answer.
#[derive(Clone, Debug)]
struct Statement {
    command: Document,
    change: Change,
    expected: Document,
}

/// A client and what it has changed.
struct Writer {
    number: u8,
    random: Random,
    /// The number of the last statement.
    statements: i64,
    next_id: i64,
    /// The last statement. It was answered, or not.
    last: Option<(Statement, bool)>,
    counted: i64,
    documents: BTreeSet<i64>,
    measurements: BTreeSet<i64>,
    /// Answers to repetitions that say that the statement had run before.
    repeated: u64,
}

/// Adds the session and the number of a statement.
fn numbered(command: &Document, session: u8, number: i64) -> Document {
    let id = Binary {
        subtype: 4,
        bytes: vec![session; 16].into(),
    };
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("$db", "test")
        .append("lsid", doc! {"id": id})
        .append("txnNumber", number);
    out.finish()
}

impl Writer {
    fn new(number: u8, random: u64) -> Self {
        Self {
            number,
            random: Random(random),
            statements: 0,
            next_id: i64::from(number) << 32,
            last: None,
            counted: 0,
            documents: BTreeSet::new(),
            measurements: BTreeSet::new(),
            repeated: 0,
        }
    }

    fn new_ids(&mut self) -> Vec<i64> {
        let first = self.next_id;
        self.next_id += 1 + self.random.below(5) as i64;
        (first..self.next_id).collect()
    }

    fn next(&mut self) -> Statement {
        let own = i32::from(self.number);
        let add = doc! {"$inc": doc! {"n": 1_i64}};
        let after = self.counted + 1;
        let (command, change, expected) = match self.random.below(6) {
            0 => {
                let update = doc! {"q": doc! {"_id": own}, "u": add};
                let expected = doc! {"n": 1, "nModified": 1};
                (
                    doc! {"update": "counters", "updates": array![update]},
                    Change::Count,
                    expected,
                )
            }
            1 => {
                let command = doc! {
                    "findAndModify": "counters", "query": doc! {"_id": own}, "update": add, "new": true,
                };
                let value = doc! {"_id": own, "n": after};
                let error = doc! {"n": 1, "updatedExisting": true};
                (
                    command,
                    Change::Count,
                    doc! {"value": value, "lastErrorObject": error},
                )
            }
            2 => {
                let ids = self.new_ids();
                let documents = ids.iter().map(|id| Value::from(doc! {"_id": *id}));
                let command =
                    doc! {"insert": "documents", "documents": documents.collect::<Array>()};
                let expected = doc! {"n": ids.len() as i32};
                (command, Change::Insert("documents", ids), expected)
            }
            3 => {
                let ids = self.new_ids();
                let measurements = ids.iter().map(|id| {
                    let time = Value::DateTime(1_700_000_000_000 + (id & 0xFFFF_FFFF) * 1000);
                    Value::from(doc! {"t": time, "m": own, "k": *id})
                });
                let command = doc! {"insert": "soil", "documents": measurements.collect::<Array>()};
                let expected = doc! {"n": ids.len() as i32};
                (command, Change::Insert("soil", ids), expected)
            }
            4 => {
                let id = self.new_ids()[0];
                let update = doc! {
                    "q": doc! {"_id": id}, "u": doc! {"$set": doc! {"new": true}}, "upsert": true,
                };
                let upserted = array![doc! {"index": 0, "_id": id}];
                let expected = doc! {"n": 1, "nModified": 0, "upserted": upserted};
                (
                    doc! {"update": "documents", "updates": array![update]},
                    Change::Insert("documents", vec![id]),
                    expected,
                )
            }
            _ => {
                let Some(id) = self.documents.first().copied() else {
                    return self.next();
                };
                let delete = doc! {"q": doc! {"_id": id}, "limit": 1};
                (
                    doc! {"delete": "documents", "deletes": array![delete]},
                    Change::Delete(id),
                    doc! {"n": 1},
                )
            }
        };
        self.statements += 1;
        Statement {
            command: numbered(&command, self.number, self.statements),
            change,
            expected,
        }
    }

    /// Sends a statement and compares its answer. False if the connection is lost.
    fn send(&mut self, client: &mut Client, statement: &Statement) -> bool {
        let message = op_msg(0, &[body(&statement.command)]);
        let Some(reply) = client.ask_or_lose(&message) else {
            return false;
        };
        assert!(is_ok(&reply), "{reply:?} to {:?}", statement.command);
        for name in ANSWERS {
            let (given, expected) = (reply.get(name), statement.expected.get(name));
            let is_equal = nilometer_bson::order::equal(given, expected);
            assert!(is_equal, "{name} of {reply:?} to {:?}", statement.command);
        }
        let says = |name| !reply.get(name).is_missing();
        // `findAndModify` has one statement.
        self.repeated += u64::from(says("retriedStmtIds") || says("retriedStmtId"));
        true
    }

    /// Notes what an answered statement has changed.
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Count => self.counted += 1,
            Change::Insert("soil", ids) => self.measurements.extend(ids),
            Change::Insert(_, ids) => self.documents.extend(ids),
            Change::Delete(id) => drop(self.documents.remove(id)),
        }
    }

    /// Repeats the last statement, several times.
    fn repeat(&mut self, client: &mut Client) {
        let Some((statement, was_answered)) = self.last.take() else {
            return;
        };
        if !was_answered {
            assert!(self.send(client, &statement), "it answers");
            self.apply(&statement.change);
        }
        let before = self.repeated;
        for _ in 0..2 {
            assert!(self.send(client, &statement), "it answers");
        }
        assert_eq!(self.repeated, before + 2, "{:?}", statement.command);
        self.last = Some((statement, true));
    }

    /// Writes until the connection is lost.
    fn write(&mut self, port: u16) {
        let mut client = Client::connect(port);
        loop {
            let statement = self.next();
            let is_answered = self.send(&mut client, &statement);
            if is_answered {
                self.apply(&statement.change);
            }
            self.last = Some((statement, is_answered));
            if !is_answered {
                return;
            }
        }
    }
}

/// Compares what is stored with what the clients have changed.
fn check(client: &mut Client, writers: &[Writer]) {
    let number = |document: &Document, name: &str| {
        let number = document.get(name).as_exact_i64();
        number.expect("a number")
    };
    for counter in client.find_all("test", &doc! {"find": "counters"}) {
        let id = number(&counter, "_id");
        let writer = writers.iter().find(|writer| i64::from(writer.number) == id);
        let writer = writer.expect("a client");
        assert_eq!(number(&counter, "n"), writer.counted, "client {id}");
    }
    let mut sorted = |collection: &str, key: &str| {
        let found = client.find_all("test", &doc! {"find": collection});
        let mut keys = found.iter().map(|one| number(one, key)).collect::<Vec<_>>();
        keys.sort_unstable();
        keys
    };
    let all = |of: fn(&Writer) -> &BTreeSet<i64>| {
        let all = writers.iter().flat_map(|writer| of(writer).iter().copied());
        all.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(sorted("documents", "_id"), all(|writer| &writer.documents));
    assert_eq!(sorted("soil", "k"), all(|writer| &writer.measurements));
}

#[test]
#[expect(clippy::print_stdout, reason = "what a run did")]
fn statements_that_are_repeated_after_a_kill_are_done_once() {
    let kills = KILLS.requested();
    let mut random = Random::of_run(9);
    let directory = Directory::new();
    let mut server = serve(&directory);
    let mut client = server.connect();
    let timeseries = doc! {"timeField": "t", "metaField": "m"};
    let create = doc! {"create": "soil", "timeseries": timeseries};
    assert!(is_ok(&client.run_on("test", &create)));
    let counters = (0..CLIENTS).map(|own| Value::from(doc! {"_id": i32::from(own), "n": 0_i64}));
    let insert = doc! {"insert": "counters", "documents": counters.collect::<Array>()};
    assert!(is_ok(&client.run_on("test", &insert)));
    let mut writers = Vec::new();
    for number in 0..CLIENTS {
        writers.push(Writer::new(number, random.below(u64::MAX)));
    }
    let mut unanswered = 0;
    for _ in 0..kills {
        let port = server.port;
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(move || writer.write(port));
            }
            std::thread::sleep(Duration::from_millis(20 + random.below(WRITING_MS_MAX)));
            server.signal("KILL");
            server.wait();
        });
        let lost = |writer: &&Writer| matches!(writer.last, Some((_, false)));
        unanswered += writers.iter().filter(lost).count();
        server = serve(&directory);
        let mut client = server.connect();
        for writer in &mut writers {
            writer.repeat(&mut client);
        }
        check(&mut client, &writers);
    }
    let statements: i64 = writers.iter().map(|writer| writer.statements).sum();
    println!("{kills} kills, {statements} statements, {unanswered} of them without an answer");
    assert!(statements as u64 > kills);
}
