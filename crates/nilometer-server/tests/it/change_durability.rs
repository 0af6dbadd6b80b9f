//! The server is killed while measurements are updated, replaced, moved and deleted through their
//! collection, and started again on the same directory.
//!
//! Each writer has measurements of its own and notes what its commands did on ordinary documents, in a
//! database in memory. After a kill its measurements are those after the last command that was answered,
//! or after the one under way as well: each change is there once, none in part. A writer has no more
//! measurements than buckets are changed in one batch, so that each statement is all or nothing.
//!
//! With NILOMETER_SOAK=1 there are more kills; NILOMETER_SEED repeats the choices of a run, though not its
//! timing.

use std::time::Duration;

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::client::{Client, body, is_ok, op_msg};
use crate::random::Random;
use crate::server::{Directory, Effort};

/// Kills of the server.
const KILLS: Effort = Effort {
    fast: 4,
    long: 15,
    soak: 300,
};

const WRITERS: i32 = 4;

/// Measurements of a writer; fewer than the 64 buckets of a batch.
const MEASUREMENTS_MAX: i64 = 56;

/// How long is written before a kill, in ms.
const WRITING_MS_MAX: u64 = 300;

const START_MS: i64 = 1_700_000_000_000;
const HOUR_MS: i64 = 3_600_000;

/// A command's first field and the others, without the name of the collection.
type Command = (&'static str, Document);

fn addressed((name, rest): &Command, collection: &str) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, collection);
    for element in rest.iter() {
        out.append_element(element);
    }
    out.append("$db", "test");
    out.finish()
}

fn number(document: &Document, name: &str) -> i64 {
    let found = document.get(name).as_exact_i64();
    found.unwrap_or_else(|| panic!("{name} of {document:?}"))
}

/// A writer and what it knows.
struct Writer {
    number: i32,
    random: Random,
    fresh: i64,
    answered: u64,
    /// Its documents on an ordinary collection.
    plain: Database,
    session: ClientSession,
    /// The command that was not answered.
    pending: Option<Command>,
}

impl Writer {
    fn new(number: i32, seed: u64) -> Self {
        Self {
            number,
            random: Random(seed),
            fresh: i64::from(number) * 1_000_000_000,
            answered: 0,
            plain: Database::in_memory().expect("a database"),
            session: ClientSession::embedded(),
            pending: None,
        }
    }

    fn on_plain(&mut self, command: &Command) -> Document {
        let request = Request::new(addressed(command, "plain"));
        let reply = self.plain.run_command(&mut self.session, &request);
        assert!(is_ok(&reply), "{reply:?}");
        reply
    }

    fn count(&mut self) -> i64 {
        number(&self.on_plain(&("count", doc! {})), "n")
    }

    fn meta(&mut self) -> Document {
        doc! {"c": self.number, "h": self.random.int(4)}
    }

    fn time(&mut self) -> Value {
        Value::DateTime(START_MS + self.random.below(3 * 24) as i64 * HOUR_MS)
    }

    fn measurement(&mut self) -> Document {
        self.fresh += 1;
        doc! {"_id": self.fresh, "t": self.time(), "m": self.meta(), "n": self.random.int(10)}
    }

    /// Of one of its measurements, which may have gone.
    fn id(&mut self) -> i64 {
        self.fresh - self.random.below(60) as i64
    }

    fn filter(&mut self) -> Document {
        let (series, number) = (self.random.int(4), self.random.int(10));
        match self.random.below(4) {
            0 => doc! {"m.c": self.number, "n": doc! {"$lt": number}},
            1 => doc! {"m.c": self.number, "m.h": series, "t": doc! {"$gte": self.time()}},
            2 => doc! {"m.c": self.number, "_id": doc! {"$mod": array![3, number % 3]}},
            _ => doc! {"m.c": self.number, "m.h": series},
        }
    }

    fn change(&mut self) -> Value {
        let hours = i64::from(self.random.int(5)) * HOUR_MS;
        match self.random.below(5) {
            0 => doc! {"$inc": doc! {"n": 1}}.into(),
            1 => {
                doc! {"$set": doc! {"m.h": self.random.int(4)}, "$inc": doc! {"changed": 1}}.into()
            }
            2 => doc! {"$set": doc! {"m.h": self.random.int(4)}}.into(),
            3 => {
                let later = doc! {"$add": array!["$t", hours]};
                let n = doc! {"$add": array!["$n", 1]};
                array![doc! {"$set": doc! {"t": later, "n": n}}]
            }
            _ => doc! {"$push": doc! {"a": self.random.int(9)}}.into(),
        }
    }

    fn command(&mut self) -> Command {
        match self.random.below(9) {
            0..=2 if self.count() < MEASUREMENTS_MAX - 10 => {
                let count = 1 + self.random.below(8);
                let documents: Array = (0..count).map(|_| self.measurement().into()).collect();
                ("insert", doc! {"documents": Value::Array(documents)})
            }
            0..=2 => {
                let statement = doc! {"q": self.filter(), "limit": 0};
                ("delete", doc! {"deletes": array![statement]})
            }
            3 => {
                let statement = doc! {"q": doc! {"_id": self.id()}, "limit": 1};
                ("delete", doc! {"deletes": array![statement]})
            }
            4 => {
                let (id, new) = (self.id(), self.measurement());
                let with_id = |e: &nilometer_bson::Element<'_>| e.name() == "_id";
                let mut replacement = DocumentBuilder::new();
                for element in new.iter().filter(|e| !with_id(e)) {
                    replacement.append_element(element);
                }
                let upsert = self.count() < MEASUREMENTS_MAX;
                let statement =
                    doc! {"q": doc! {"_id": id}, "u": replacement.finish(), "upsert": upsert};
                ("update", doc! {"updates": array![statement]})
            }
            5 => {
                let query = doc! {"_id": self.id()};
                (
                    "findAndModify",
                    doc! {"query": query, "update": self.change()},
                )
            }
            _ => {
                let statement = doc! {"q": self.filter(), "u": self.change(), "multi": true};
                ("update", doc! {"updates": array![statement]})
            }
        }
    }

    /// Changes until the server is gone.
    fn write(&mut self, port: u16) {
        let mut client = Client::connect(port);
        loop {
            let command = self.command();
            let message = op_msg(0, &[body(&addressed(&command, "ts"))]);
            let Some(reply) = client.ask_or_lose(&message) else {
                self.pending = Some(command);
                return;
            };
            assert!(is_ok(&reply), "{reply:?}");
            self.answered += 1;
            let wanted = self.on_plain(&command);
            for counted in ["n", "nModified"] {
                let (a, b) = (reply.get(counted), wanted.get(counted));
                let same = a.as_exact_i64() == b.as_exact_i64();
                assert!(same, "{command:?}: {reply:?} for {wanted:?}");
            }
        }
    }

    fn plain_documents(&mut self) -> Vec<String> {
        let find = doc! {"sort": doc! {"_id": 1}, "batchSize": 1000, "singleBatch": true};
        let reply = self.on_plain(&("find", find));
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let batch = cursor.get("firstBatch").as_array().expect("a batch");
        batch.iter().map(by_name).collect()
    }

    /// Its documents are those after all that was answered, or after one more.
    fn check(&mut self, client: &mut Client) {
        let filter = doc! {"m.c": self.number};
        let find = doc! {"find": "ts", "filter": filter, "sort": doc! {"_id": 1}};
        let found = client.find_all("test", &find);
        let found = found
            .iter()
            .map(|d| by_name(ValueRef::Document(d.as_ref())));
        let found: Vec<String> = found.collect();
        let answered = self.plain_documents();
        let pending = self.pending.take();
        if found == answered {
            return;
        }
        if let Some(command) = &pending {
            self.on_plain(command);
        }
        let with_pending = self.plain_documents();
        assert_eq!(found, with_pending, "nor {answered:?}, before {pending:?}");
    }
}

/// A value as text, fields of documents by name.
fn by_name(value: ValueRef<'_>) -> String {
    let ValueRef::Document(document) = value else {
        return format!("{value:?}");
    };
    let field = |e: nilometer_bson::Element<'_>| format!("{}: {}", e.name(), by_name(e.value()));
    let mut fields: Vec<String> = document.iter().map(field).collect();
    fields.sort();
    fields.join(", ")
}

/// Reads until the server is gone, so that buckets are read while they change.
fn read(port: u16) {
    let mut client = Client::connect(port);
    loop {
        let find = doc! {"count": "ts", "query": doc! {"n": doc! {"$gte": 3}}, "$db": "test"};
        match client.ask_or_lose(&op_msg(0, &[body(&find)])) {
            Some(reply) => assert!(is_ok(&reply), "{reply:?}"),
            None => return,
        }
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "what a run did")]
fn each_change_of_measurements_is_there_once_after_kills() {
    let kills = KILLS.asked();
    let mut random = Random::of_run(11);
    let directory = Directory::new();
    let mut server = directory.serve();
    let mut client = server.connect();
    let options = doc! {"timeField": "t", "metaField": "m"};
    let index = doc! {"key": doc! {"m.c": 1, "n": 1}, "name": "cn"};
    for command in [
        doc! {"create": "ts", "timeseries": options},
        doc! {"createIndexes": "ts", "indexes": array![index]},
    ] {
        let reply = client.run_on("test", &command);
        assert!(is_ok(&reply), "{reply:?}");
    }
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer::new(number, random.below(u64::MAX)))
        .collect();
    for _ in 0..kills {
        let port = server.port;
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(move || writer.write(port));
            }
            scope.spawn(move || read(port));
            std::thread::sleep(Duration::from_millis(20 + random.below(WRITING_MS_MAX)));
            server.signal("KILL");
            server.wait();
        });
        server = directory.serve();
        let mut client = server.connect();
        for writer in &mut writers {
            writer.check(&mut client);
        }
        let valid = client.run_on("test", &doc! {"validate": "ts", "full": true});
        let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
        assert!(is_valid, "{valid:?}");
    }
    let answered: u64 = writers.iter().map(|writer| writer.answered).sum();
    println!("{kills} kills, {answered} commands answered");
    assert!(answered > kills);
}
