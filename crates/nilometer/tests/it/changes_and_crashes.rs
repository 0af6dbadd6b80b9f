//! Changes of measurements and crashes: after a crash at any moment, the collection equals ordinary
//! documents after a prefix of the statements.
//!
//! The engine records all its operations. A history of random commands is run once; after each command, or
//! each statement of one, the documents are recorded with the position in that list. Then databases are
//! opened over engines with a prefix of the operations, as after the loss of the rest. Folding, sealing and
//! expiry run meanwhile and must not be visible.
//!
//! A statement about many buckets is several batches; cut within it, each document is as before it or as
//! after it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use nilometer::Database;
use nilometer::services::Environment;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;
use nilometer_storage::{
    Durability, Engine, KeyspaceId, KeyspaceOptions, MemoryEngine, NewKeyspace, Result, WriteBatch,
    forward_engine,
};

use crate::measurement_changes::{command, contents, measurement, merged};
use crate::random::Random;
use crate::support::{Fixture, show, with_cut_keys};

/// Histories of a run, commands and crashes of each.
const HISTORIES: Effort = Effort {
    fast: 2,
    long: 12,
    soak: 300,
};
const COMMANDS: u64 = 25;
const CRASHES: u64 = 12;

/// Most buckets changed by one batch of a statement.
const BATCH_BUCKETS_MAX: i64 = 64;

#[derive(Clone)]
enum EngineOperation {
    Create(Vec<(String, KeyspaceOptions)>),
    Drop(KeyspaceId),
    Commit(WriteBatch),
}

/// The memory engine with a list of all its operations.
#[derive(Default)]
pub(crate) struct RecordingEngine {
    inner: MemoryEngine,
    operations: Mutex<Vec<EngineOperation>>,
}

impl RecordingEngine {
    pub(crate) fn position(&self) -> usize {
        self.operations.lock().unwrap().len()
    }

    /// Returns an engine with the first `count` operations, which records further ones.
    pub(crate) fn cut(&self, count: usize) -> Self {
        let engine = Self::default();
        for operation in self.operations.lock().unwrap().iter().take(count) {
            match operation.clone() {
                EngineOperation::Create(new) => {
                    let new = new.iter().map(|(name, options)| (name.as_str(), *options));
                    engine.create_keyspaces(&new.collect::<Vec<_>>()).unwrap();
                }
                EngineOperation::Drop(id) => engine.drop_keyspace(id).unwrap(),
                EngineOperation::Commit(batch) => {
                    engine.commit(batch, Durability::Sync).unwrap();
                }
            }
        }
        engine
    }
}

impl Engine for RecordingEngine {
    forward_engine!(inner: keyspaces, snapshot, sync, settle, checkpoint, verify,
        keyspace_statistics, statistics, close);

    fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        let mut operations = self.operations.lock().unwrap();
        let ids = self.inner.create_keyspaces(new)?;
        let new = new
            .iter()
            .map(|(name, options)| ((*name).to_owned(), *options));
        operations.push(EngineOperation::Create(new.collect()));
        Ok(ids)
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        let mut operations = self.operations.lock().unwrap();
        self.inner.drop_keyspace(id)?;
        operations.push(EngineOperation::Drop(id));
        Ok(())
    }

    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        let mut operations = self.operations.lock().unwrap();
        let position = self.inner.commit(batch.clone(), durability)?;
        operations.push(EngineOperation::Commit(batch));
        Ok(position)
    }
}

/// Returns the command as commands of one statement each.
fn statements(rest: &Document) -> Vec<Document> {
    let lists = ["updates", "deletes"];
    let list = lists.into_iter().find_map(|name| {
        let list = rest.get(name).as_array()?;
        Some((name, list.iter().map(|s| s.to_value()).collect::<Vec<_>>()))
    });
    let Some((name, list)) = list else {
        return vec![rest.clone()];
    };
    let one = |statement: Value| {
        let mut out = DocumentBuilder::new();
        out.append(name, array![statement]);
        out.finish()
    };
    list.into_iter().map(one).collect()
}

fn run(fixture: &mut Fixture, collection: &str, name: &str, rest: &Document) -> Document {
    let mut head = DocumentBuilder::new();
    head.append(name, collection);
    fixture.reply(merged(&[&head.finish(), rest]))
}

/// The documents after a statement.
struct RecordedState {
    /// The number of engine operations so far.
    position: usize,
    documents: Vec<String>,
    buckets: i64,
}

impl RecordedState {
    fn now(engine: &RecordingEngine, fixture: &mut Fixture, plain: &mut Fixture) -> Self {
        let position = engine.position();
        let counted = fixture.run(doc! {"count": "system.buckets.ts"});
        Self {
            position,
            documents: contents(plain, "plain"),
            buckets: counted.get("n").as_exact_i64().unwrap(),
        }
    }
}

/// Returns the `_id` at the start of a document.
fn id_of(document: &str) -> &str {
    document.split(", ").next().unwrap_or(document)
}

/// True if every document is as in one of the two states.
fn is_between(found: &[String], before: &[String], after: &[String]) -> bool {
    let by_id = |documents: &[String]| -> BTreeMap<String, String> {
        let pairs = documents.iter().map(|d| (id_of(d).to_owned(), d.clone()));
        pairs.collect()
    };
    let (found, before, after) = (by_id(found), by_id(before), by_id(after));
    let ids = found.keys().chain(before.keys()).chain(after.keys());
    let mut ids: Vec<&String> = ids.collect();
    ids.dedup();
    ids.into_iter().all(|id| {
        let one = found.get(id);
        one == before.get(id) || one == after.get(id)
    })
}

/// Opens a database; for odd seeds with cut keys.
fn open(seed: u64, engine: Arc<dyn Engine>) -> Database {
    let engine = match seed % 2 {
        0 => engine,
        _ => with_cut_keys(engine),
    };
    Database::with_engine(engine, Environment::default()).unwrap()
}

fn check_history(seed: u64) {
    let mut random = Random::new(seed);
    let engine = Arc::new(RecordingEngine::default());
    let database = open(seed, engine.clone());
    let mut fixture = Fixture::of(database);
    let mut plain = Fixture::new();
    // Few buckets, so that every statement is one batch.
    let options = doc! {"timeField": "t", "metaField": "m", "granularity": "hours"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let index = doc! {"key": doc! {"m.x": 1, "k": 1}, "name": "xk"};
    fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
    let mut fresh = 0;
    let first: Vec<Value> = (0..random.below(120))
        .map(|_| {
            fresh += 1;
            measurement(&mut random, fresh).into()
        })
        .collect();
    // The documents by the number of engine operations.
    let mut history = vec![RecordedState::now(&engine, &mut fixture, &mut plain)];
    if !first.is_empty() {
        let insert = doc! {"documents": first};
        run(&mut fixture, "ts", "insert", &insert);
        run(&mut plain, "plain", "insert", &insert);
        history.push(RecordedState::now(&engine, &mut fixture, &mut plain));
    }
    for _ in 0..COMMANDS {
        if random.below(6) == 0 {
            fixture.database.settle().unwrap();
        }
        let (name, rest) = command(&mut random, fresh + 1, &mut fresh);
        for (at, one) in statements(&rest).into_iter().enumerate() {
            let wanted = run(&mut plain, "plain", name, &one);
            let found = run(&mut fixture, "ts", name, &one);
            let context = || format!("seed {seed}, statement {at} of {name} {}", show(&rest));
            for counted in ["n", "nModified"] {
                let (found, wanted) = (found.get(counted), wanted.get(counted));
                let same = found.as_exact_i64() == wanted.as_exact_i64();
                assert!(same, "{}: {found:?} for {wanted:?}", context());
            }
            history.push(RecordedState::now(&engine, &mut fixture, &mut plain));
        }
    }
    let first_cut = history[0].position as u64;
    let last_cut = engine.position() as u64;
    for crash in 0..CRASHES {
        let cut = match crash {
            0 => last_cut,
            _ => first_cut + random.below(last_cut - first_cut + 1),
        } as usize;
        check_cut(seed, &engine, cut, &history);
    }
}

/// The documents after the first `cut` operations are those before or after the statement in flight.
fn check_cut(seed: u64, engine: &RecordingEngine, cut: usize, history: &[RecordedState]) {
    let before = history.partition_point(|moment| moment.position <= cut) - 1;
    let database = open(seed, Arc::new(engine.cut(cut)));
    let mut fixture = Fixture::of(database);
    let found = contents(&mut fixture, "ts");
    let possible = history.iter().skip(before).take(2);
    let known = possible.map(|moment| &moment.documents);
    let is_long = history[before].buckets > BATCH_BUCKETS_MAX;
    let after = history.get(before + 1).filter(|_| is_long);
    let is_part =
        after.is_some_and(|after| is_between(&found, &history[before].documents, &after.documents));
    assert!(
        is_part || known.clone().any(|documents| *documents == found),
        "seed {seed}: cut at {cut} within statement {before}:\n{}\nis neither\n{}",
        found.join("\n"),
        known
            .map(|documents| documents.join("\n"))
            .collect::<Vec<_>>()
            .join("\nnor\n")
    );
    let valid = fixture.run(doc! {"validate": "ts", "full": true});
    let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
    assert!(is_valid, "seed {seed}: {}", show(&valid));
}

#[test]
fn a_crash_leaves_a_prefix_of_the_changes() {
    let histories = HISTORIES.requested();
    let first = std::env::var("NILOMETER_SEED").map_or(0, |text| text.parse().expect("a number"));
    for seed in first..first + histories {
        check_history(seed);
    }
}
