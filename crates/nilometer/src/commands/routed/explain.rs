//! `explain` of writes on a router: the explanations of the partitions that may have the documents.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, doc};

use super::change::targets_of;
use super::{compares_by_bytes, read, router_of, writable};
use crate::args::Args;
use crate::commands::CommandContext;
use crate::commands::crud::explain::{self, Verbosity, with_server};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

/// Explains a read as one server does, whose plan reads partitions, and a write by asking them.
pub(super) fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("explain", request.body.as_ref());
    let command = args.required_document("explain")?;
    let name = command.iter().next().map_or("", |element| element.name());
    match name {
        "update" | "delete" | "findAndModify" | "findandmodify" => {
            write(database, context, &args, command)
        }
        _ => (context.spec.handler)(database, context, request),
    }
}

fn write(
    database: &Database,
    context: &mut CommandContext<'_>,
    args: &Args<'_>,
    command: DocRef<'_>,
) -> Result<Document> {
    let verbosity = Verbosity::of(args)?;
    explain::check_database(&context.operation, command)?;
    let (router, operation) = (router_of(database), &context.operation);
    let collection = command
        .iter()
        .next()
        .and_then(|first| first.value().as_str());
    let collection = collection.unwrap_or_default();
    let namespace = writable(context.database_name(), collection)?;
    let by_bytes = compares_by_bytes(context, database, collection);
    let Some(placement) = router.placement(&namespace) else {
        // Nothing is there: the explanation is that of one server.
        return Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("{namespace} does not exist"),
        ));
    };
    let targets = targets_of(&placement, command, by_bytes);
    let asked = doc! {"explain": read(command, &[]), "verbosity": verbosity.name()};
    let replies = router.ask_all(&targets, &operation.database, &asked, operation)?;
    let shards = |part: &str, own: fn(&str) -> bool| -> Vec<Value> {
        let told = targets.iter().zip(&replies).map(|(target, reply)| {
            let mut out = DocumentBuilder::new();
            out.append("shardName", router.name(*target));
            if part == "queryPlanner" {
                out.append("connectionString", router.host(*target));
                out.append_ref("serverInfo", reply.get("serverInfo"));
            }
            let part = reply.get(part).as_document().into_iter().flatten();
            for element in part.filter(|element| own(element.name())) {
                out.append_element(element);
            }
            Value::from(out.finish())
        });
        told.collect()
    };
    let all = |_: &str| true;
    let winning = doc! {"stage": "SHARD_WRITE", "shards": shards("queryPlanner", all)};
    let mut out = DocumentBuilder::new();
    out.append("explainVersion", "1");
    out.append(
        "queryPlanner",
        doc! {"mongosPlannerVersion": 1, "winningPlan": winning},
    );
    if verbosity != Verbosity::QueryPlanner {
        let shown = shards("executionStats", |name| name != "allPlansExecution");
        let stages = doc! {"stage": "SHARD_WRITE", "shards": shown};
        out.append("executionStats", doc! {"executionStages": stages});
    }
    Ok(with_server(database, &out.finish(), command))
}
