//! The scripts with their replies, played on a router over three partitions: its replies are those of one server.
//!
//! Each is played twice: with collections that are whole in one partition, and with all of them divided among the three. Then the
//! order of documents is not compared. Left out are what a router refuses by code 115, `explain`, what a router does not have or
//! shows otherwise ([`LEFT_OUT`]) and, for divided collections, definitions and what [`LEFT_OUT_IF_DIVIDED`] has.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nilometer::database::{HostedPartition, LocalPartition};
use nilometer::router::Partition;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::MemoryEngine;

use crate::golden::{Runner, environment, play, scripts, without_keyspace_numbers};

/// A script, the begin of some of its commands or nothing, and why these, or all of them, are left out.
type LeftOut = (&'static str, &'static str, &'static str);

const BUCKETS: &str = "it reads or writes buckets as documents";

/// What a router does not play.
const LEFT_OUT: &[LeftOut] = &[
    (
        "aggregate/server_stages",
        "",
        "stages that describe a server name its partitions",
    ),
    ("aggregate/unpack_bucket", "", BUCKETS),
    (
        "answers/text_search",
        r#"{"find": "p", "filter": {"a": 1, "$text""#,
        "partitions do not know apiStrict",
    ),
    (
        "ddl/capped",
        "",
        "collections are not converted into capped ones",
    ),
    ("ddl/coll_mod", "", BUCKETS),
    (
        "ddl/collection_uuid",
        "",
        "it has the identities of buckets",
    ),
    ("ddl/create_buckets", "", BUCKETS),
    (
        "ddl/create_indexes_refused",
        r#"{"createIndexes": "system.other""#,
        "the text names writes",
    ),
    ("ddl/create_over", "", BUCKETS),
    ("ddl/direct_buckets", "", BUCKETS),
    ("ddl/drop", "", BUCKETS),
    (
        "ddl/drop_indexes",
        r#"{"aggregate": "c", "pipeline": [{"$indexStats""#,
        "it names the partition",
    ),
    ("ddl/drop_table", "", BUCKETS),
    (
        "ddl/rename",
        "",
        "a time series is not moved to another database",
    ),
    ("ddl/timeseries_index_changes", "", BUCKETS),
    ("find/tailable", "", "a cursor of a router is not tailable"),
    (
        "write/counters",
        "",
        "it has the statistics of each partition",
    ),
    ("write/raw_buckets", "", BUCKETS),
];

/// What is not played with divided collections.
const LEFT_OUT_IF_DIVIDED: &[LeftOut] = &[
    (
        "aggregate/merge",
        r#"{"aggregate": "c", "pipeline": [{"$merge": {"into": "to", "whenMatched": "fail""#,
        "another document fails first",
    ),
    (
        "aggregate/merge",
        r#"{"aggregate": "c", "pipeline": [{"$set": {"_id": [1]"#,
        "a shard key has no arrays",
    ),
    ("aggregate/out", "", "the target of $out is not divided"),
    (
        "commands/collation",
        "",
        "another one of equal strings may represent them",
    ),
    (
        "commands/collation_views",
        "",
        "another one of equal strings may represent them",
    ),
    (
        "write/timeseries_outputs",
        "",
        "the target of $out is not divided",
    ),
    ("write/validators", "", "the target of $out is not divided"),
];

/// Commands of which the replies have more with divided collections: an index of the shard key, and several partitions.
const OF_DEFINITIONS: [&str; 5] = [
    "createIndexes",
    "drop",
    "dropIndexes",
    "listIndexes",
    "validate",
];

fn router() -> Database {
    let partition = |at: usize| {
        let database = Database::with_engine(Arc::new(MemoryEngine::new()), environment());
        let hosted = HostedPartition::new(Arc::new(database.expect("a database")));
        let hosted = Arc::new(hosted.expect("a partition"));
        Arc::new(LocalPartition::new(&format!("p{at:04}"), hosted)) as Arc<dyn Partition>
    };
    let partitions = (0..3).map(partition).collect();
    let engine = Arc::new(MemoryEngine::new());
    Database::router(engine, environment(), partitions).expect("a router")
}

fn run(database: &Database, command: Document) -> Document {
    database.run_command(&mut ClientSession::embedded(), &Request::new(command))
}

fn one(name: &str, value: Value) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, value);
    out.finish()
}

/// Divides the collections that are not yet, if they can be.
fn divide(database: &Database) {
    let listed = run(
        database,
        doc! {"listCollections": 1, "$db": "test", "cursor": doc! {"batchSize": 1000}},
    );
    let cursor = listed.get("cursor").as_document().expect("a cursor");
    let batch = cursor.get("firstBatch").as_array().expect("a batch");
    for collection in batch.iter().filter_map(ValueRef::as_document) {
        let name = collection.get("name").as_str().expect("a name");
        if name.starts_with("system.") {
            continue;
        }
        let options = collection.get("options").as_document().expect("options");
        let series = options.get("timeseries").as_document();
        let key = match series.map(|series| (series.get("metaField").as_str(), series)) {
            Some((Some(meta), _)) => one(meta, "hashed".into()),
            Some((None, series)) => {
                let time = series.get("timeField").as_str().expect("a time");
                one(time, 1.into())
            }
            None => doc! {"_id": "hashed"},
        };
        let shard = doc! {
            "shardCollection": format!("test.{name}"), "key": key, "collation": doc! {"locale": "simple"}, "$db": "admin",
        };
        // A view and a capped collection cannot be divided.
        run(database, shard);
    }
}

/// Returns the steps of a played script, each with its command and its reply.
fn steps(played: &str) -> Vec<(String, String)> {
    let steps = played.trim_end().split("\n\n");
    let parts = steps.filter_map(|step| step.split_once("\n---\n"));
    parts
        .map(|(command, reply)| (command.to_owned(), reply.to_owned()))
        .collect()
}

/// Returns the parts of a reply, sorted: so documents in another order are the same.
fn in_any_order(reply: &str) -> Vec<&str> {
    let is_bracket = |c: char| "[]{} ".contains(c);
    let parts = reply.split([',', '\n']);
    let mut parts: Vec<&str> = parts.map(|part| part.trim_matches(is_bracket)).collect();
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable();
    parts
}

fn is_refused(reply: &str) -> bool {
    reply.contains("\"code\": 115")
}

fn name_of(path: &Path) -> String {
    let parts: Vec<_> = path.iter().rev().take(2).collect();
    let parts = parts.iter().rev().map(|part| part.to_string_lossy());
    parts.collect::<Vec<_>>().join("/").replace(".script", "")
}

/// Returns the name of a step's command, and the step without its comments.
fn command_of(step: &str) -> (String, String) {
    let lines = step.lines().filter(|line| !line.starts_with('#'));
    let command = lines.collect::<Vec<_>>().join(" ");
    let name = command.split('"').nth(1).unwrap_or_default().to_owned();
    (name, command)
}

/// Returns a reply without identities, which are others where several databases make them, and with the code that `$merge` has
/// through a router if there is no unique index.
fn comparable(reply: &str) -> String {
    let mut lines = Vec::new();
    for line in reply.lines() {
        lines.push(match line.split_once("\"uuid\": ") {
            Some((before, _)) => format!("{before}uuid"),
            None => line.replace("51183", "51190"),
        });
    }
    lines.join("\n")
}

/// Plays a script; returns the steps with other replies.
fn differences(path: &Path, is_divided: bool, left_out: &[&[LeftOut]]) -> Vec<String> {
    let script = fs::read_to_string(path).expect("a script");
    let name = name_of(path);
    let after = if is_divided {
        divide
    } else {
        |_: &Database| ()
    };
    let played = play(&script, Runner::with(router(), after));
    let [expected, found] = [script, played]
        .map(without_keyspace_numbers)
        .map(|text| steps(&text));
    let mut out = Vec::new();
    for ((step, expected), (_, found)) in expected.iter().zip(&found) {
        let (kind, command) = command_of(step);
        let is_of_definitions = is_divided && OF_DEFINITIONS.contains(&kind.as_str());
        let mut left_out = left_out.iter().flat_map(|list| list.iter());
        let is_left_out = left_out.any(|(of, begin, _)| *of == name && command.starts_with(begin));
        // A router explains what its partitions do.
        if kind == "explain" || is_of_definitions || is_left_out || is_refused(found) {
            continue;
        }
        let (expected, found) = (comparable(expected), comparable(found));
        let is_same = match is_divided {
            true => in_any_order(&expected) == in_any_order(&found),
            false => expected == found,
        };
        if !is_same {
            out.push(format!(
                "{name}: {step}\nexpected\n{expected}\ngot\n{found}\n"
            ));
        }
    }
    out
}

fn check(is_divided: bool, left_out: &[&[LeftOut]]) {
    let is_played = |path: &PathBuf| {
        let name = name_of(path);
        let is_of_definitions = name.starts_with("ddl/") || name.starts_with("index/");
        let mut whole = left_out.iter().flat_map(|list| list.iter());
        let is_left_out = whole.any(|(known, begin, _)| *known == name && begin.is_empty());
        !(is_left_out || is_divided && is_of_definitions)
    };
    let scripts: Vec<PathBuf> = scripts().into_iter().filter(is_played).collect();
    assert!(!scripts.is_empty());
    let found: Vec<String> = scripts
        .iter()
        .flat_map(|path| differences(path, is_divided, left_out))
        .collect();
    assert!(
        found.is_empty(),
        "{} differ\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn a_router_gives_the_replies_of_the_scripts() {
    check(false, &[LEFT_OUT]);
}

#[test]
fn a_router_gives_them_with_divided_collections() {
    check(true, &[LEFT_OUT, LEFT_OUT_IF_DIVIDED]);
}
