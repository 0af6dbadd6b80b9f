//! `getLog`: the last lines of the log.

use nilometer_bson::{Document, Value, ValueRef, doc};

use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::LogRing;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "getLog",
        "Returns the last lines of the log, or the names of its parts.",
        Authorization::OnCluster(&[Action::GetLog]),
        OnRouter::Same,
        run,
    )
};

fn run(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let name = match request.body.get("getLog") {
        ValueRef::String(name) => name,
        other => {
            return Err(Error::type_mismatch(format!(
                "Argument to getLog must be of type String; found type {}",
                other.type_name()
            )));
        }
    };
    if name == "*" {
        let names: Vec<Value> = LogRing::NAMES.iter().map(|n| Value::from(*n)).collect();
        return Ok(doc! {"names": names});
    }
    let Some(found) = database.services().log.lines(name) else {
        return Err(Error::new(
            ErrorCode::OperationFailed,
            format!("No log named '{name}'"),
        ));
    };
    let lines: Vec<Value> = found.lines.iter().map(Value::from).collect();
    let total = i64::try_from(found.total).unwrap_or(i64::MAX);
    Ok(doc! {
        "totalLinesWritten": i32::try_from(total).map_or(Value::Int64(total), Value::Int32),
        "log": lines,
    })
}
