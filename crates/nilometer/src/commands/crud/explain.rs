//! `explain`: the plan of a query or write, and the figures of its run.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::explain_write;
use super::explain_write::PlannedWrite;
use super::query::PlannedQuery;
use super::{aggregate, count, distinct, explain_change, explain_partitions, find};
use crate::args::Args;
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result, location};
use crate::operation::{OperationContext, Request};
use crate::query::exec::Executor;
use crate::query::explain::{Execution, Top, explain};
use crate::query::planner::physical::{Input, PhysicalStage};

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    takes_memory: true,
    read_concern: true,
    in_api_v1: true,
    fields: Fields::Only(&["verbosity"]),
    ..CommandSpec::new(
        "explain",
        "Returns the plan of a query.",
        Authorization::ByRule(rules::explain),
        OnRouter::Own,
        run,
    )
};

/// Generic command options that a command inside `explain` may have.
pub(crate) const GENERIC_FIELDS: &[&str] = &[
    "$db",
    "lsid",
    "comment",
    "maxTimeMS",
    "readConcern",
    "$readPreference",
    "$clusterTime",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
];

/// The verbosity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// The plan only.
    QueryPlanner,
    /// The plan is run, and its figures are shown.
    ExecutionStats,
    /// The figures of rejected candidates are shown, too.
    AllPlansExecution,
}

impl Verbosity {
    /// Reads the option of `explain`.
    pub(crate) fn of(args: &Args<'_>) -> Result<Self> {
        Ok(match args.string("verbosity")? {
            None | Some("allPlansExecution") => Self::AllPlansExecution,
            Some("executionStats") => Self::ExecutionStats,
            Some("queryPlanner") => Self::QueryPlanner,
            Some(other) => {
                return Err(Error::bad_value(format!(
                    "Enumeration value '{other}' for field 'explain.verbosity' is not a valid value."
                )));
            }
        })
    }

    /// Returns the option.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::QueryPlanner => "queryPlanner",
            Self::ExecutionStats => "executionStats",
            Self::AllPlansExecution => "allPlansExecution",
        }
    }
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("explain", request.body.as_ref());
    let verbosity = Verbosity::of(&args)?;
    let command = args.required_document("explain")?;
    context.operation.is_explain = true;
    let operation = &context.operation;
    let name = command.iter().next().map_or("", |element| element.name());
    let inner = |fields: &'static [&'static str], name: &'static str| -> Result<Args<'_>> {
        let args = Args::new(name, command);
        args.check_names_with(|field| {
            field == name || fields.contains(&field) || GENERIC_FIELDS.contains(&field)
        })?;
        Ok(args)
    };
    check_database(operation, command)?;
    let planned = match name {
        "find" => find::plan(database, operation, &inner(find::FIELDS, "find")?)?,
        "aggregate" => {
            aggregate::plan(database, operation, &inner(aggregate::FIELDS, "aggregate")?)?
        }
        "count" => count::plan(database, operation, &inner(count::FIELDS, "count")?)?,
        "distinct" => distinct::plan(database, operation, &inner(distinct::FIELDS, "distinct")?)?,
        "update" | "delete" | "findAndModify" | "findandmodify" => {
            // A change of measurements has a single plan.
            let told = match verbosity {
                Verbosity::AllPlansExecution => Verbosity::ExecutionStats,
                other => other,
            };
            if let Some(explanation) =
                explain_change::explained(database, operation, name, command, told)?
            {
                return Ok(explanation);
            }
            let write = explain_write::plan(database, operation, name, command)?;
            return explained_write(database, operation, &write, verbosity, command);
        }
        other => {
            return Err(Error::new(
                ErrorCode::CommandNotFound,
                format!("Explain failed due to unknown command: {other}"),
            ));
        }
    };
    let top = (name == "count").then_some(Top {
        name: "COUNT",
        figures: None,
    });
    explained_with(
        database,
        operation,
        planned,
        verbosity,
        &command.to_document(),
        top,
    )
}

/// Fails if the command inside names another database.
pub(crate) fn check_database(operation: &OperationContext, command: DocRef<'_>) -> Result<()> {
    match command.get("$db") {
        ValueRef::String(name) if name != operation.database => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!(
                "Mismatched $db in explain command. Expected {} but got {name}",
                operation.database
            ),
        )),
        _ => Ok(()),
    }
}

/// Explains a planned `aggregate`.
pub(crate) fn explained(
    database: &Database,
    operation: &OperationContext,
    planned: PlannedQuery,
    verbosity: Verbosity,
    command: &Document,
) -> Result<Document> {
    explained_with(database, operation, planned, verbosity, command, None)
}

pub(crate) fn explained_with(
    database: &Database,
    operation: &OperationContext,
    planned: PlannedQuery,
    verbosity: Verbosity,
    command: &Document,
    top: Option<Top<'_>>,
) -> Result<Document> {
    let PlannedQuery {
        namespace,
        builder,
        plan,
    } = planned;
    if verbosity != Verbosity::QueryPlanner && plan.stages.iter().any(PhysicalStage::writes) {
        return Err(Error::location(
            location::EXPLAIN_WRITES,
            "explain of an aggregate with $out or $merge only tells the plan: use the verbosity 'queryPlanner'",
        ));
    }
    if let Input::Partitions(input) = &plan.input {
        let form = (verbosity, is_aggregate(command));
        let told = explain_partitions::explained(operation, &plan, input, form)?;
        return Ok(with_server(database, &told, command.as_ref()));
    }
    let explanation = match verbosity {
        Verbosity::QueryPlanner => explain(&plan, &namespace, top, None),
        Verbosity::ExecutionStats | Verbosity::AllPlansExecution => {
            let clock = operation.clock();
            let from = clock.monotonic();
            let (root, trace) = builder.build_traced(plan.clone())?;
            let mut executor = Executor::new(root, Arc::clone(&builder.settings));
            let mut returned = 0u64;
            let mut failed = None;
            loop {
                match executor.next(operation) {
                    Ok(Some(batch)) => returned += batch.len() as u64,
                    Ok(None) => break,
                    Err(error) => {
                        operation.check_interrupt()?;
                        failed = Some(error);
                        break;
                    }
                }
            }
            let spent = clock.monotonic().saturating_sub(from);
            let execution = Execution {
                trace: &trace,
                returned,
                millis: i64::try_from(spent.as_millis()).unwrap_or(i64::MAX),
                all_plans: verbosity == Verbosity::AllPlansExecution,
                failed: failed.as_ref(),
            };
            let explanation = explain(&plan, &namespace, top, Some(execution));
            // An error is part of the figures of a `find`; a pipeline fails with it, as in MongoDB.
            match failed {
                Some(error) if explanation.get("executionStats").is_missing() => return Err(error),
                _ => explanation,
            }
        }
    };
    let explanation = with_outputs(explanation, &operation.database);
    let explanation = match explanation.get("queryPlanner") {
        ValueRef::Document(planner) if is_aggregate(command) => {
            with_optimized(&explanation, planner)
        }
        _ => explanation,
    };
    Ok(with_server(database, &explanation, command.as_ref()))
}

fn is_aggregate(command: &Document) -> bool {
    let first = command.iter().next();
    first.is_some_and(|element| element.name() == "aggregate")
}

/// Writes an `$out` given by name as the object it stands for.
fn with_outputs(explanation: Document, database: &str) -> Document {
    let ValueRef::Array(stages) = explanation.get("stages") else {
        return explanation;
    };
    let shown = |stage: ValueRef<'_>| {
        let name = stage
            .as_document()
            .and_then(|stage| stage.get("$out").as_str());
        match name {
            Some(name) => Value::from(doc! {"$out": doc! {"coll": name, "db": database}}),
            None => stage.to_value(),
        }
    };
    let stages: Vec<Value> = stages.iter().map(shown).collect();
    let mut out = DocumentBuilder::new();
    for element in explanation.iter() {
        if element.name() == "stages" {
            out.append("stages", stages.clone());
        } else {
            out.append_element(element);
        }
    }
    out.finish()
}

/// Says that the whole pipeline of an `aggregate` runs as a `find`.
fn with_optimized(explanation: &Document, planner: DocRef<'_>) -> Document {
    let mut out = DocumentBuilder::new();
    for element in explanation.iter() {
        if element.name() != "queryPlanner" {
            out.append_element(element);
            continue;
        }
        out.begin_document("queryPlanner");
        for element in planner {
            if element.name() == "maxIndexedOrSolutionsReached" {
                out.append("optimizedPipeline", true);
            }
            out.append_element(element);
        }
        out.end();
    }
    out.finish()
}

/// Explains a write: the query for its documents, with the write as the top stage.
fn explained_write(
    database: &Database,
    operation: &OperationContext,
    write: &PlannedWrite,
    verbosity: Verbosity,
    command: DocRef<'_>,
) -> Result<Document> {
    let namespace = write.namespace.to_string();
    let step = write.step();
    let top = |figures| {
        Some(Top {
            name: step.name,
            figures,
        })
    };
    let explanation = if verbosity == Verbosity::QueryPlanner {
        explain(&write.plan, &namespace, top(None), None)
    } else {
        let clock = operation.clock();
        let from = clock.monotonic();
        let (root, trace) = write.builder.build_traced(write.plan.clone())?;
        let mut executor = Executor::new(root, Arc::clone(&write.builder.settings));
        let (done, _) = write.run(database, operation, &mut executor)?;
        let spent = clock.monotonic().saturating_sub(from);
        let execution = Execution {
            trace: &trace,
            // The statement returns no documents.
            returned: 0,
            millis: i64::try_from(spent.as_millis()).unwrap_or(i64::MAX),
            all_plans: verbosity == Verbosity::AllPlansExecution,
            failed: None,
        };
        explain(
            &write.plan,
            &namespace,
            top(Some(&done.figures)),
            Some(execution),
        )
    };
    Ok(with_server(database, &explanation, command))
}

/// Adds `serverInfo`, `command` and the other fields of a server to an explanation.
pub(crate) fn with_server(
    database: &Database,
    explanation: &Document,
    command: DocRef<'_>,
) -> Document {
    let host = &database.services().host;
    let mut out = DocumentBuilder::new();
    for element in explanation.iter() {
        out.append_element(element);
    }
    out.append("command", without_session(command));
    out.append(
        "serverInfo",
        doc! {
            "host": host.hostname.as_str(),
            "port": i32::from(host.port),
            "version": crate::commands::server_version::MONGODB_VERSION,
            "gitVersion": "",
        },
    );
    out.finish()
}

/// Returns the command without the fields that belong to the connection.
fn without_session(command: DocRef<'_>) -> Document {
    let mut out = DocumentBuilder::new();
    for element in command {
        if !matches!(element.name(), "lsid" | "$clusterTime" | "$readPreference") {
            out.append_element(element);
        }
    }
    out.finish()
}
