//! A database in memory and commands as documents.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nilometer::services::{Environment, MemberRole, ReplicaSet};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::{Engine, LongKeyEngine, MemoryEngine};

static DIRECTORIES: AtomicU32 = AtomicU32::new(0);

/// A new directory that is removed when dropped.
pub(crate) struct TemporaryDirectory(pub(crate) PathBuf);

impl TemporaryDirectory {
    pub(crate) fn new() -> Self {
        let n = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("nilometer-it-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a fresh directory");
        Self(path)
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Bytes after which tests cut keys, so that nearly all keys are stored as long ones.
const CUT_KEY_BYTES: usize = 8;

/// Returns the engine with keys that are cut after a few bytes.
pub(crate) fn with_cut_keys(engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
    let engine = LongKeyEngine::with_lengths(engine, CUT_KEY_BYTES, CUT_KEY_BYTES);
    Arc::new(engine.expect("companions that can be dropped"))
}

/// Returns the environment of the primary of a replica set of one.
pub(crate) fn primary_environment() -> Environment {
    let set = ReplicaSet::new("rs", "localhost:27017");
    set.update(|state| {
        state.role = MemberRole::Primary;
        state.primary = Some("localhost:27017".to_owned());
        state.term = 1;
    });
    Environment {
        replica_set: Some(Arc::new(set)),
        ..Environment::default()
    }
}

/// A database and one connection to it.
pub(crate) struct Fixture {
    pub(crate) database: Database,
    session: ClientSession,
}

impl Fixture {
    /// Opens a database in memory. Every second one of a thread has cut keys, so that tests of many cases meet both.
    pub(crate) fn new() -> Self {
        thread_local! {
            static CUTS_KEYS: Cell<bool> = const { Cell::new(true) };
        }
        let cuts_keys = !CUTS_KEYS.get();
        CUTS_KEYS.set(cuts_keys);
        match cuts_keys {
            true => Self::with_cut_keys(),
            false => Self::of(Database::in_memory().unwrap()),
        }
    }

    /// Opens a database in memory whose keys are cut.
    pub(crate) fn with_cut_keys() -> Self {
        let engine = with_cut_keys(Arc::new(MemoryEngine::new()));
        Self::of(Database::with_engine(engine, Environment::default()).unwrap())
    }

    /// Opens a database with a time series "ts" and an ordinary collection "plain", the oracle of its answers.
    pub(crate) fn with_oracle() -> Self {
        let mut fixture = Self::new();
        let options = doc! { "timeField": "t", "metaField": "m" };
        fixture.run(doc! { "create": "ts", "timeseries": options });
        fixture.run(doc! { "create": "plain" });
        fixture
    }

    /// Inserts documents into the time series and the oracle.
    pub(crate) fn insert_into_both(&mut self, documents: &[Value]) {
        for collection in ["ts", "plain"] {
            self.run(doc! { "insert": collection, "documents": documents.to_vec() });
        }
    }

    /// Opens a database in a directory.
    pub(crate) fn open(path: &Path) -> Self {
        Self::of(Database::open(path).unwrap())
    }

    pub(crate) fn of(database: Database) -> Self {
        Self {
            database,
            session: ClientSession::embedded(),
        }
    }

    /// Returns the reply to a command on the database "test".
    pub(crate) fn reply(&mut self, command: Document) -> Document {
        self.reply_on("test", command)
    }

    pub(crate) fn reply_on(&mut self, db: &str, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", db);
        let request = Request::new(body.finish());
        self.database.run_command(&mut self.session, &request)
    }

    /// Returns the reply to a command that must succeed.
    pub(crate) fn run(&mut self, command: Document) -> Document {
        let reply = self.reply(command);
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
        reply
    }

    /// Returns the error code of a command; 0 if it succeeds.
    pub(crate) fn code(&mut self, command: Document) -> i64 {
        let reply = self.reply(command);
        reply.get("code").as_exact_i64().unwrap_or(0)
    }

    /// Returns all documents of a cursor, batch by batch.
    pub(crate) fn all(&mut self, command: Document) -> Vec<Document> {
        let reply = self.run(command);
        self.rest(reply)
    }

    /// Returns the number of documents by both ways that read none.
    pub(crate) fn counted(&mut self, collection: &str) -> i64 {
        let counted = self.run(doc! {"count": collection}).get("n").as_exact_i64();
        let group = doc! {"_id": 1, "n": doc! {"$sum": 1}};
        let pipeline = array![doc! {"$match": doc! {}}, doc! {"$group": group}];
        let grouped =
            self.all(doc! {"aggregate": collection, "pipeline": pipeline, "cursor": doc! {}});
        let grouped = grouped.first().map(|group| group.get("n").as_exact_i64());
        assert_eq!(grouped.unwrap_or(Some(0)), counted, "{collection}");
        counted.expect("a number")
    }

    /// Returns the documents of the cursor that `reply` opened.
    pub(crate) fn rest(&mut self, reply: Document) -> Vec<Document> {
        let (mut id, ns, mut documents) = cursor(&reply, "firstBatch");
        let collection = ns.split_once('.').unwrap().1.to_owned();
        while id != 0 {
            let more = doc! {"getMore": id, "collection": collection.as_str(), "batchSize": 2};
            let reply = self.run(more);
            let (next, same, batch) = cursor(&reply, "nextBatch");
            assert_eq!(same, ns);
            id = next;
            documents.extend(batch);
        }
        documents
    }

    /// Makes a time-series collection "ts" and an ordinary one "plain" with the same measurements.
    pub(crate) fn with_measurements(count: i64) -> Self {
        let mut fixture = Self::new();
        let options = doc! {"timeField": "t", "metaField": "m"};
        fixture.run(doc! {"create": "ts", "timeseries": options});
        let of = |at: i64| -> Value {
            let time = Value::DateTime(1_700_000_000_000 + at * 10_000);
            let meta = doc! {"host": format!("h{}", at % 3)};
            doc! {"t": time, "m": meta, "_id": at, "v": at % 10, "s": "cpu"}.into()
        };
        let documents: Vec<Value> = (0..count).map(of).collect();
        for collection in ["ts", "plain"] {
            let insert = doc! {"insert": collection, "documents": documents.clone()};
            let reply = fixture.run(insert);
            assert_eq!(reply.get("n").as_exact_i64(), Some(count));
        }
        fixture
    }
}

/// Returns id, namespace and documents of a cursor in a reply.
pub(crate) fn cursor(reply: &Document, batch: &str) -> (i64, String, Vec<Document>) {
    let cursor = reply.get("cursor").as_document().unwrap();
    let ValueRef::Int64(id) = cursor.get("id") else {
        panic!("an id that is no long: {}", show(reply))
    };
    let documents = cursor.get(batch).as_array().unwrap();
    let documents = documents
        .iter()
        .map(|d| d.as_document().unwrap().to_document());
    let ns = cursor.get("ns").as_str().unwrap().to_owned();
    (id, ns, documents.collect())
}

/// Returns a document as text, for messages of failing tests.
pub(crate) fn show(document: &Document) -> String {
    text(ValueRef::Document(document.as_ref()))
}

fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Document(d) => {
            let fields = d
                .iter()
                .map(|e| format!("{}: {}", e.name(), text(e.value())));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        ValueRef::Array(a) => {
            format!("[{}]", a.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        other => format!("{other:?}"),
    }
}
