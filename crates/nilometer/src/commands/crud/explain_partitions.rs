//! `explain` of a query over partitions: the explanations of the partitions, in the form of a mongos.
//!
//! ```text
//! find, count, distinct   queryPlanner.winningPlan: {stage: SINGLE_SHARD | SHARD_MERGE | SHARD_MERGE_SORT, shards: […]}
//!                         executionStats.executionStages: the same stage, with the figures of each partition
//! aggregate               mergeType, splitPipeline: {shardsPart, mergerPart}, shards: {name: explanation}
//! ```
//!
//! As with a mongos, the partitions run their parts and the router runs nothing: the figures are theirs. A command whose part is
//! no `find` in the partitions, as on every time series, has the second form.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::explain::Verbosity;
use crate::error::Result;
use crate::operation::OperationContext;
use crate::query::explain::{shown_stages, stage_name};
use crate::query::planner::physical::{PartitionsInput, PhysicalPlan};

/// What a partition answered.
pub(crate) struct Explanation {
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) reply: Document,
}

impl Explanation {
    fn part(&self, name: &str) -> Option<DocRef<'_>> {
        self.reply.get(name).as_document()
    }

    /// Returns the plan, as an element of `winningPlan.shards`.
    pub(crate) fn plan(&self) -> Value {
        let mut out = DocumentBuilder::new();
        out.append("shardName", self.name.as_str());
        out.append("connectionString", self.host.as_str());
        out.append_ref("serverInfo", self.reply.get("serverInfo"));
        // What `aggregate` alone says is no part of the plan of a `find`.
        let planner = self.part("queryPlanner").into_iter().flatten();
        for element in planner.filter(|element| element.name() != "optimizedPipeline") {
            out.append_element(element);
        }
        out.finish().into()
    }

    /// Returns the figures, as an element of `executionStages.shards`.
    pub(crate) fn figures(&self) -> Value {
        let mut out = DocumentBuilder::new();
        out.append("shardName", self.name.as_str());
        let stats = self.part("executionStats").into_iter().flatten();
        for element in stats.filter(|element| element.name() != "allPlansExecution") {
            out.append_element(element);
        }
        out.finish().into()
    }
}

/// Explains a plan over partitions, without the fields of a server.
pub(super) fn explained(
    operation: &OperationContext,
    plan: &PhysicalPlan,
    input: &PartitionsInput,
    (verbosity, is_pipeline): (Verbosity, bool),
) -> Result<Document> {
    let replies = input
        .source
        .explain(&input.targets, &input.part, verbosity.name(), operation)?;
    let told = input.targets.iter().zip(replies);
    let told = told.map(|(target, reply)| Explanation {
        name: input.source.name(*target),
        host: input.source.host(*target),
        reply,
    });
    let told: Vec<Explanation> = told.collect();
    let is_find = |told: &Explanation| told.part("queryPlanner").is_some();
    Ok(match !is_pipeline && told.iter().all(is_find) {
        true => as_find(input, &told, verbosity),
        false => as_pipeline(plan, input, &told),
    })
}

fn as_pipeline(plan: &PhysicalPlan, input: &PartitionsInput, told: &[Explanation]) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("explainVersion", "1");
    let rest = shown_stages(plan);
    if rest.is_empty() && told.len() == 1 {
        out.append("splitPipeline", Value::Null);
    } else {
        let order = input.order.as_ref().map(|order| order.to_document());
        let merge = doc! {"$mergeCursors": doc! {"sort": order, "allowPartialResults": false}};
        let merger = std::iter::once(merge).chain(rest).map(Value::from);
        let shards = input.part.stages.iter().cloned().map(Value::from);
        let split = doc! {
            "shardsPart": shards.collect::<Vec<_>>(), "mergerPart": merger.collect::<Vec<_>>(),
        };
        out.append("mergeType", "mongos");
        out.append("splitPipeline", split);
    }
    out.begin_document("shards");
    for shard in told {
        out.begin_document(&shard.name);
        out.append("host", shard.host.as_str());
        let own = |name: &str| !matches!(name, "command" | "serverInfo" | "ok");
        for element in shard.reply.iter().filter(|element| own(element.name())) {
            out.append_element(element);
        }
        out.end();
    }
    out.end();
    out.finish()
}

fn as_find(input: &PartitionsInput, told: &[Explanation], verbosity: Verbosity) -> Document {
    let stage = stage_name(input);
    let shards = told.iter().map(Explanation::plan);
    let winning = doc! {"stage": stage, "shards": shards.collect::<Vec<_>>()};
    let mut out = DocumentBuilder::new();
    out.append("explainVersion", "1");
    let planner = doc! {
        "mongosPlannerVersion": 1, "winningPlan": winning, "rejectedPlans": array![],
    };
    out.append("queryPlanner", planner);
    if verbosity != Verbosity::QueryPlanner {
        out.append("executionStats", figures(stage, told, verbosity));
    }
    out.finish()
}

/// Returns the figures of the partitions, and their sums.
fn figures(stage: &str, told: &[Explanation], verbosity: Verbosity) -> Document {
    const SUMMED: [&str; 3] = ["nReturned", "totalKeysExamined", "totalDocsExamined"];
    let number = |shard: &Explanation, name: &str| {
        let stats = shard.part("executionStats");
        let number = stats.and_then(|stats| stats.get(name).as_exact_i64());
        number.unwrap_or(0)
    };
    let sum = |name: &str| told.iter().map(|shard| number(shard, name)).sum::<i64>();
    let millis = told
        .iter()
        .map(|shard| number(shard, "executionTimeMillis"));
    let slowest = millis.max().unwrap_or(0);
    let sums = |out: &mut DocumentBuilder| {
        out.append("nReturned", sum(SUMMED[0]));
        out.append("executionTimeMillis", slowest);
        out.append("totalKeysExamined", sum(SUMMED[1]));
        out.append("totalDocsExamined", sum(SUMMED[2]));
    };
    let shards = told.iter().map(Explanation::figures);
    let mut stages = DocumentBuilder::new();
    stages.append("stage", stage);
    sums(&mut stages);
    stages.append("totalChildMillis", sum("executionTimeMillis"));
    stages.append("shards", shards.collect::<Vec<_>>());
    let mut out = DocumentBuilder::new();
    sums(&mut out);
    out.append("executionStages", stages.finish());
    if verbosity == Verbosity::AllPlansExecution {
        let plans = told.iter().map(|shard| {
            let stats = shard.part("executionStats");
            let plans = stats.map_or(ValueRef::Missing, |stats| stats.get("allPlansExecution"));
            let plans = match plans {
                ValueRef::Missing => array![],
                plans => plans.to_value(),
            };
            Value::from(doc! {"shardName": shard.name.as_str(), "allPlans": plans})
        });
        out.append("allPlansExecution", plans.collect::<Vec<_>>());
    }
    out.finish()
}
