//! Pipelines of stages from the golden scripts, changed, over a small time series and an ordinary collection.
//!
//! The documents are those that scripts insert. The rules for inputs are those of commands (`commands.rs`), which also
//! replays them.

use nilometer_bson::extjson::to_canonical;
use nilometer_bson::fuzz::Numbers;
use nilometer_bson::{Value, doc};

use crate::commands::{Fixture, documents, is_left_out, is_ok, without_waiting};
use crate::mutation::{mutate, pick};
use crate::runner::Runner;
use crate::scripts::Seeds;
use crate::tree::Node;

/// Pipelines of one seed.
const BATCH: u64 = 120;

/// Documents in each collection.
const DOCUMENTS: u64 = 40;

/// Maximum stages of a pipeline.
const STAGES_MAX: u64 = 4;

pub use crate::commands::replay;

/// Runs bytes as the stages of one pipeline.
pub fn one(bytes: &[u8]) -> bool {
    let stages = documents(bytes);
    if stages.is_empty() {
        return false;
    }
    let mut fixture = Fixture::new();
    for command in fill(&mut Numbers::new(1), seeds()) {
        fixture.run(&command.document());
    }
    let stages: Vec<Value> = stages.into_iter().map(Value::from).collect();
    let command = doc! {
        "aggregate": "ts", "pipeline": stages, "cursor": doc! {"batchSize": 30}, "$db": "test",
    };
    !is_left_out(&command) && is_ok(&fixture.run(&command))
}

/// The content of the scripts, read once.
fn seeds() -> &'static Seeds {
    static SEEDS: std::sync::OnceLock<Seeds> = std::sync::OnceLock::new();
    SEEDS.get_or_init(Seeds::read)
}

/// Fills two collections, then runs pipelines over them.
pub fn batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    let mut fixture = Fixture::new();
    for command in fill(numbers, seeds) {
        let command = command.document();
        runner.one(
            || to_canonical(command.as_ref()),
            || is_ok(&fixture.run(&command)),
        );
    }
    for _ in 0..BATCH {
        let mut command = pipeline(numbers, seeds);
        without_waiting(&mut command);
        let command = command.document();
        if is_left_out(&command) {
            continue;
        }
        let run = || {
            let reply = fixture.run(&command);
            let id = reply
                .get("cursor")
                .as_document()
                .and_then(|c| c.get("id").as_exact_i64());
            let Some(id @ 1..) = id else {
                return is_ok(&reply);
            };
            let more = doc! {"getMore": id, "collection": "ts", "$db": "test"};
            fixture.run(&more);
            let end = doc! {"killCursors": "ts", "cursors": vec![Value::Int64(id)], "$db": "test"};
            fixture.run(&end);
            true
        };
        runner.one(|| to_canonical(command.as_ref()), run);
    }
}

fn fields(fields: Vec<(&str, Node)>) -> Node {
    Node::Fields(
        fields
            .into_iter()
            .map(|(name, node)| (name.to_owned(), node))
            .collect(),
    )
}

fn leaf(value: impl Into<Value>) -> Node {
    Node::Leaf(value.into())
}

/// Creates "ts" and "plain" and inserts into both.
fn fill(numbers: &mut Numbers, seeds: &Seeds) -> Vec<Node> {
    let options = fields(vec![("timeField", leaf("t")), ("metaField", leaf("m"))]);
    let create = fields(vec![
        ("create", leaf("ts")),
        ("timeseries", options),
        ("$db", leaf("test")),
    ]);
    let (mut series, mut plain) = (Vec::new(), Vec::new());
    for at in 0..DOCUMENTS {
        let Node::Fields(mut of) = pick(numbers, &seeds.documents).clone() else {
            continue;
        };
        of.retain(|(name, _)| name != "_id");
        of.push(("_id".to_owned(), leaf(at as i32)));
        plain.push(Node::Fields(of.clone()));
        let is_time = |node: &Node| matches!(node, Node::Leaf(Value::DateTime(_)));
        of.retain(|(name, node)| name != "t" || is_time(node));
        if !of.iter().any(|(name, _)| name == "t") {
            let ms = 1_700_000_000_000 + numbers.below(100) as i64 * 60_000;
            of.push(("t".to_owned(), leaf(Value::DateTime(ms))));
        }
        series.push(Node::Fields(of));
    }
    let insert = |name: &str, documents| {
        let documents = ("documents", Node::Items(documents));
        fields(vec![
            ("insert", leaf(name)),
            documents,
            ("$db", leaf("test")),
        ])
    };
    vec![create, insert("ts", series), insert("plain", plain)]
}

/// Returns an aggregation of a few stages, most of them changed.
fn pipeline(numbers: &mut Numbers, seeds: &Seeds) -> Node {
    let stages = (0..=numbers.below(STAGES_MAX)).map(|_| {
        let mut stage = pick(numbers, &seeds.stages).clone();
        if numbers.below(3) == 0 {
            mutate(numbers, seeds, &mut stage);
        }
        stage
    });
    let stages = Node::Items(stages.collect());
    let cursor = fields(vec![("batchSize", leaf(numbers.below(30) as i32))]);
    let collection = *pick(
        numbers,
        &["ts", "ts", "plain", "plain", "system.buckets.ts", "none"],
    );
    let mut all = vec![
        ("aggregate", leaf(collection)),
        ("pipeline", stages),
        ("cursor", cursor),
    ];
    if numbers.below(12) == 0 {
        all.push(("explain", leaf(true)));
        all.retain(|(name, _)| *name != "cursor");
    }
    all.push(("$db", leaf("test")));
    fields(all)
}
