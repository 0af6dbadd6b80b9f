//! `explain` of writes on a router: the explanations of the partitions that may have the documents.

use nilometer_bson::{Document, DocumentBuilder, doc};

use super::change::targets_of;
use super::{compares_by_bytes, read, router_of, writable};
use crate::args::Args;
use crate::commands::CommandContext;
use crate::commands::crud::explain::{self, Verbosity, with_server};
use crate::commands::crud::explain_partitions::Explanation;
use crate::database::Database;
use crate::error::Result;
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
            write(database, context, request, &args)
        }
        _ => (context.spec.handler)(database, context, request),
    }
}

fn write(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
    args: &Args<'_>,
) -> Result<Document> {
    let verbosity = Verbosity::of(args)?;
    let command = args.required_document("explain")?;
    explain::check_database(&context.operation, command)?;
    let (router, operation) = (router_of(database), &context.operation);
    let collection = command
        .iter()
        .next()
        .and_then(|first| first.value().as_str());
    let collection = collection.unwrap_or_default();
    let namespace = writable(context.database_name(), collection)?;
    let by_bytes = compares_by_bytes(database, &namespace);
    let Some(placement) = router.placement(&namespace) else {
        // The handler of one server finds nothing in the router's own catalog.
        return (context.spec.handler)(database, context, request);
    };
    let targets = targets_of(&placement, command, by_bytes);
    let asked = doc! {"explain": read(command, &[]), "verbosity": verbosity.name()};
    let replies = router.ask_all(&targets, &operation.database, &asked, operation)?;
    let told = targets
        .iter()
        .zip(replies)
        .map(|(target, reply)| Explanation {
            name: router.name(*target).to_owned(),
            host: router.host(*target),
            reply,
        });
    let told: Vec<Explanation> = told.collect();
    let plans = told.iter().map(Explanation::plan).collect::<Vec<_>>();
    let winning = doc! {"stage": "SHARD_WRITE", "shards": plans};
    let mut out = DocumentBuilder::new();
    out.append("explainVersion", "1");
    out.append(
        "queryPlanner",
        doc! {"mongosPlannerVersion": 1, "winningPlan": winning},
    );
    if verbosity != Verbosity::QueryPlanner {
        let figures = told.iter().map(Explanation::figures).collect::<Vec<_>>();
        let stages = doc! {"stage": "SHARD_WRITE", "shards": figures};
        out.append("executionStats", doc! {"executionStages": stages});
    }
    Ok(with_server(database, &out.finish(), command))
}
