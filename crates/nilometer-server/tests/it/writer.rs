//! A client that inserts, updates, replaces, moves and deletes its own documents and knows their expected state.
//!
//! It applies its commands to ordinary documents in a database in memory. After a kill its documents are those after
//! the last answered command, or after the command in flight. A writer with at most as many documents as buckets
//! changed in one batch finds each statement done or not done; with more documents this holds for each document.

use std::collections::BTreeMap;

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::client::{Client, body, is_ok, op_msg};
use crate::random::Random;

const START_MS: i64 = 1_700_000_000_000;
const HOUR_MS: i64 = 3_600_000;

/// Maximum documents of a writer with atomic statements; fewer than the 64 buckets of a batch.
pub(crate) const WHOLE_MAX: i64 = 56;

/// A command's first field and the others, without the name of the collection.
type Command = (&'static str, Document);

/// The work of a writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The collection in `test`: a time series over `t` and `m`, or an ordinary one.
    pub(crate) collection: &'static str,
    /// Maximum documents.
    pub(crate) documents_max: i64,
    /// Maximum documents per insert.
    pub(crate) batch_max: u64,
}

/// A writer and its expectations.
pub(crate) struct Writer {
    number: i32,
    work: Work,
    random: Random,
    fresh: i64,
    pub(crate) answered: u64,
    /// Its documents on an ordinary collection.
    plain: Database,
    session: ClientSession,
    /// The unanswered command.
    pending: Option<Command>,
}

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

impl Writer {
    pub(crate) fn new(number: i32, seed: u64, work: Work) -> Self {
        Self {
            number,
            work,
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

    /// Returns the number of its documents.
    pub(crate) fn count(&mut self) -> i64 {
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

    /// Returns the id of one of its documents, which may be deleted.
    fn id(&mut self) -> i64 {
        self.fresh - self.random.below(self.work.documents_max as u64) as i64
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
            0..=2 => {
                let most = 1 + self.random.below(self.work.batch_max);
                if self.count() + most as i64 > self.work.documents_max {
                    let statement = doc! {"q": self.filter(), "limit": 0};
                    return ("delete", doc! {"deletes": array![statement]});
                }
                let documents: Array = (0..most).map(|_| self.measurement().into()).collect();
                ("insert", doc! {"documents": Value::Array(documents)})
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
                let upsert = self.count() < self.work.documents_max;
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

    /// Sends one command and compares the answer. False if the connection is lost.
    pub(crate) fn write_one(&mut self, client: &mut Client) -> bool {
        let command = self.command();
        let message = op_msg(0, &[body(&addressed(&command, self.work.collection))]);
        let Some(reply) = client.ask_or_lose(&message) else {
            self.pending = Some(command);
            return false;
        };
        assert!(is_ok(&reply), "{reply:?}");
        self.answered += 1;
        let wanted = self.on_plain(&command);
        for counted in ["n", "nModified"] {
            let (a, b) = (reply.get(counted), wanted.get(counted));
            let same = a.as_exact_i64() == b.as_exact_i64();
            assert!(same, "{command:?}: {reply:?} for {wanted:?}");
        }
        true
    }

    /// Runs a query on its documents and compares the answers. False if the connection is lost.
    pub(crate) fn query_one(&mut self, client: &mut Client) -> bool {
        let filter = self.filter();
        let command = match self.random.below(3) {
            0 => ("count", doc! {"query": filter}),
            1 => {
                let sum =
                    doc! {"_id": "$m.h", "n": doc! {"$sum": "$n"}, "last": doc! {"$max": "$t"}};
                let stages = array![
                    doc! {"$match": filter},
                    doc! {"$group": sum},
                    doc! {"$sort": doc! {"_id": 1}}
                ];
                ("aggregate", doc! {"pipeline": stages, "cursor": doc! {}})
            }
            _ => {
                let sort = doc! {"t": -1, "_id": 1};
                let shown = doc! {"t": 1, "n": 1};
                (
                    "find",
                    doc! {"filter": filter, "sort": sort, "projection": shown, "limit": 40, "singleBatch": true},
                )
            }
        };
        let message = op_msg(0, &[body(&addressed(&command, self.work.collection))]);
        let Some(reply) = client.ask_or_lose(&message) else {
            return false;
        };
        let answer = |reply: &Document| match reply.get("cursor").as_document() {
            Some(cursor) => by_name(cursor.get("firstBatch")),
            None => by_name(reply.get("n")),
        };
        let wanted = self.on_plain(&command);
        assert_eq!(answer(&reply), answer(&wanted), "{command:?}");
        self.answered += 1;
        true
    }

    /// Changes documents until the connection is lost.
    pub(crate) fn write(&mut self, port: u16) {
        let mut client = Client::connect(port);
        while self.write_one(&mut client) {}
    }

    /// Returns its expected documents by `_id`.
    fn known(&mut self) -> BTreeMap<String, String> {
        let find = doc! {"batchSize": self.work.documents_max * 2, "singleBatch": true};
        let reply = self.on_plain(&("find", find));
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let batch = cursor.get("firstBatch").as_array().expect("a batch");
        batch.iter().map(with_id).collect()
    }

    /// Checks that its documents are those after all answered commands, or after one more.
    pub(crate) fn check(&mut self, client: &mut Client) {
        let find = doc! {"find": self.work.collection, "filter": doc! {"m.c": self.number}};
        let documents = client.find_all("test", &find);
        let of = |d: &Document| with_id(ValueRef::Document(d.as_ref()));
        let found: BTreeMap<String, String> = documents.iter().map(of).collect();
        assert_eq!(found.len(), documents.len(), "an _id is there twice");
        let answered = self.known();
        let pending = self.pending.take();
        if found == answered {
            return;
        }
        if let Some(command) = &pending {
            self.on_plain(command);
        }
        let with_pending = self.known();
        if found == with_pending {
            return;
        }
        let differs = |id: &&String| {
            let now = found.get(*id);
            now != answered.get(*id) && now != with_pending.get(*id)
        };
        let all = || {
            found
                .keys()
                .chain(answered.keys())
                .chain(with_pending.keys())
        };
        let wrong: Vec<&String> = all().filter(differs).collect();
        let in_part = self.work.documents_max > WHOLE_MAX && pending.is_some();
        assert!(
            in_part && wrong.is_empty(),
            "{}, writer {}: neither what was answered nor one command more; before {pending:?}; wrong: {:?}",
            self.work.collection,
            self.number,
            wrong
                .iter()
                .take(5)
                .map(|id| (id, found.get(*id), answered.get(*id)))
                .collect::<Vec<_>>()
        );
        self.know(documents);
    }

    /// Replaces its expectations by the found documents.
    fn know(&mut self, documents: Vec<Document>) {
        let all = doc! {"q": doc! {}, "limit": 0};
        self.on_plain(&("delete", doc! {"deletes": array![all]}));
        if !documents.is_empty() {
            let documents: Array = documents.into_iter().map(Value::from).collect();
            self.on_plain(&("insert", doc! {"documents": Value::Array(documents)}));
        }
    }
}

fn with_id(value: ValueRef<'_>) -> (String, String) {
    let document = value.as_document().expect("a document");
    (by_name(document.get("_id")), by_name(value))
}

/// Formats a value as text, with fields of documents ordered by name.
fn by_name(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Document(document) => {
            let field =
                |e: nilometer_bson::Element<'_>| format!("{}: {}", e.name(), by_name(e.value()));
            let mut fields: Vec<String> = document.iter().map(field).collect();
            fields.sort();
            fields.join(", ")
        }
        ValueRef::Array(array) => {
            let values: Vec<String> = array.iter().map(by_name).collect();
            format!("[{}]", values.join("; "))
        }
        other => format!("{other:?}"),
    }
}
