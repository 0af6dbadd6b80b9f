//! `currentOp` and `killOp`: lists and interrupts operations.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use crate::args::{Args, truncated_i64};
use crate::auth::{Action, Target};
use crate::commands::generic;
use crate::commands::security::authorization::rules;
use crate::commands::security::authorization::{may, not_authorized};
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};
use crate::operation::Request;
use crate::services::describe::{self, OperationFilter};

pub(crate) const CURRENT_OP: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "currentOp",
        "Lists the running operations.",
        Authorization::ByRule(rules::current_op),
        OnRouter::Same,
        current_op,
    )
};

pub(crate) const KILL_OP: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["op"]),
    ..CommandSpec::new(
        "killOp",
        "Interrupts an operation.",
        Authorization::LoggedIn,
        OnRouter::Same,
        kill_op,
    )
};

/// The command's own options; every other field is a condition on the listed operations.
const OPTIONS: &[&str] = &["$all", "$ownOps", "$truncateOps"];

fn current_op(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("currentOp", request.body.as_ref());
    let all = args.lenient_boolean("$all")?.unwrap_or(false);
    let own_only = args.lenient_boolean("$ownOps")?.unwrap_or(false);
    let user = context.operation.user.clone();
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
        limits: Some(context.operation.evaluation_limits()),
        ..EvalContext::default()
    };
    let mut running: Vec<Value> = Vec::new();
    let shown = OperationFilter {
        idle_connections: all,
        truncate,
        of_user: user.as_ref().filter(|_| own_only),
    };
    let mut listed = describe::operations(database.services(), shown);
    listed.extend(
        database
            .transactions()
            .describe_idle(database.services(), shown),
    );
    for operation in listed {
        if filter.matches(operation.as_ref(), &evaluation)? {
            running.push(operation.into());
        }
    }
    Ok(doc! {"inprog": running})
}

fn kill_op(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
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
    // Users may interrupt their own operations.
    let running = database.services().operations.list();
    let owner = running.iter().find(|o| o.id == id).map(|o| &o.user);
    let is_own = context.operation.user.is_some() && owner == Some(&context.operation.user);
    if !is_own && !may(database, context.session, &Target::Cluster, Action::Killop) {
        return Err(not_authorized(context.spec, "admin", &request.body));
    }
    // The reply does not say whether it still runs: it may end at any moment.
    database.services().operations.kill(id);
    Ok(doc! {"info": "attempting to kill op"})
}
