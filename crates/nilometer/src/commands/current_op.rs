//! `currentOp` and `killOp`: what runs, and ending it.
//!
//! [`documents`] gives the same descriptions to the `$currentOp` stage.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::args::{Args, truncated_i64};
use super::generic;
use super::{CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::date::civil::date_of_days;
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};
use crate::operation::Request;
use crate::services::{OperationEntry, Services};

/// Bytes of a command that are shown whole; more is cut.
const COMMAND_BYTES_MAX: usize = 1000;

pub(super) const CURRENT_OP: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "currentOp",
        "Lists the operations that are running.",
        current_op,
    )
};

pub(super) const KILL_OP: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["op"]),
    ..CommandSpec::new("killOp", "Interrupts an operation.", kill_op)
};

/// Names of the command's own options; every other field is a condition on what is listed.
const OPTIONS: &[&str] = &["$all", "$ownOps", "$truncateOps"];

fn current_op(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("currentOp", request.body.as_ref());
    let all = args.lenient_boolean("$all")?.unwrap_or(false);
    args.lenient_boolean("$ownOps")?;
    let truncate = args.lenient_boolean("$truncateOps")?.unwrap_or(true);
    let mut conditions = DocumentBuilder::new();
    if !all {
        let own = |name: &str| OPTIONS.contains(&name) || generic::is_generic(name);
        for element in request.body.iter().skip(1).filter(|e| !own(e.name())) {
            conditions.append_element(element);
        }
    }
    let conditions = conditions.finish();
    let filter = MatchExpression::parse(conditions.as_ref(), &ParseContext::default())?;
    let evaluation = EvalContext {
        now_ms: context.operation.now_ms,
        ..EvalContext::default()
    };
    let mut running: Vec<Value> = Vec::new();
    for operation in documents(database.services(), truncate) {
        if filter.matches(operation.as_ref(), &evaluation)? {
            running.push(operation.into());
        }
    }
    Ok(doc! {"inprog": running})
}

/// Describes all running operations. Long commands are cut if `truncate` says so.
pub(crate) fn documents(services: &Services, truncate: bool) -> Vec<Document> {
    let operations = services.operations.list();
    let shown = operations.iter().map(|o| describe(services, o, truncate));
    shown.collect()
}

fn describe(services: &Services, operation: &OperationEntry, truncate: bool) -> Document {
    let elapsed = services.clock.monotonic().saturating_sub(operation.started);
    let micros = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
    let client = &operation.client;
    let command = if truncate && operation.command.as_bytes().len() > COMMAND_BYTES_MAX {
        cut(&operation.command)
    } else {
        operation.command.clone()
    };
    let host = &services.host;
    doc! {
        "type": "op",
        "host": format!("{}:{}", host.hostname, host.port),
        "desc": format!("conn{}", operation.connection_id),
        "connectionId": operation.connection_id,
        "client": (!client.remote.is_empty()).then(|| client.remote.as_str()),
        "appName": client.application_name(),
        "clientMetadata": client.document.clone(),
        "active": true,
        "currentOpTime": iso_time(services.clock.now_ms()),
        "opid": operation.id,
        "lsid": operation.lsid.map(|id| id.to_document()),
        "secs_running": micros / 1_000_000,
        "microsecs_running": micros,
        "op": kind(operation.command_name),
        "ns": operation.namespace.as_str(),
        "command": command,
        "killPending": operation.kill.reason().map(|_| true),
    }
}

/// `2026-01-02T03:04:05.678+00:00`.
fn iso_time(ms: i64) -> String {
    let (days, of_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let (year, month, day) = date_of_days(days);
    let (hours, minutes) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (seconds, millis) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}+00:00")
}

/// The kind of an operation as `op` shows it.
fn kind(command: &str) -> &str {
    match command {
        "find" => "query",
        "getMore" => "getmore",
        "insert" | "update" => command,
        "delete" => "remove",
        _ => "command",
    }
}

/// What the command is and where, without its bulk.
fn cut(command: &Document) -> Document {
    let mut short = DocumentBuilder::new();
    let mut first = true;
    for element in command.iter() {
        let small = element.value_bytes().len() <= COMMAND_BYTES_MAX / 4;
        if small && (first || short.len() < COMMAND_BYTES_MAX) {
            short.append_element(element);
        } else {
            short.append(element.name(), "...");
        }
        first = false;
        if short.len() > 2 * COMMAND_BYTES_MAX {
            break;
        }
    }
    short.finish()
}

fn kill_op(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let number = match request.body.get("op") {
        ValueRef::Missing => {
            return Err(Error::new(
                ErrorCode::NoSuchKey,
                "Missing expected field \"op\"",
            ));
        }
        value => truncated_i64(value).ok_or_else(|| {
            Error::type_mismatch(format!(
                "Expected field \"op\" to have numeric type, but found {}",
                value.type_name()
            ))
        })?,
    };
    let id = i32::try_from(number).map_err(|_| {
        Error::bad_value(format!(
            "invalid op : {number}. Op ID cannot be represented with 32 bits"
        ))
    })?;
    // Whether it still runs is not told: it may end at any moment anyway.
    database.services().operations.kill(id);
    Ok(doc! {"info": "attempting to kill op"})
}
