//! `connectionStatus` and `whatsmyuri`: the user and address of the connection.

use nilometer_bson::{Document, Value, array, doc};

use crate::args::Args;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

pub(crate) const STATUS: CommandSpec = CommandSpec {
    fields: Fields::Only(&["showPrivileges"]),
    in_api_v1: true,
    ..CommandSpec::new(
        "connectionStatus",
        "Returns the user logged in on this connection.",
        Authorization::Open,
        OnRouter::Same,
        status,
    )
};

pub(crate) const WHATS_MY_URI: CommandSpec = CommandSpec {
    ..CommandSpec::new(
        "whatsmyuri",
        "Returns the client's address.",
        Authorization::Open,
        OnRouter::Same,
        whats_my_uri,
    )
};

fn status(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("connectionStatus", request.body.as_ref());
    let privileges = args.lenient_boolean("showPrivileges")?.unwrap_or(false);
    let grants = context.session.login.grants(database.authority());
    let mut users: Vec<Value> = Vec::new();
    let mut roles: Vec<Value> = Vec::new();
    let mut allowed = array![];
    if let Some(grants) = grants {
        users.push(grants.user.name.to_document().into());
        let all = grants.resolved.roles.iter();
        roles.extend(all.map(|role| Value::from(role.to_document())));
        allowed = grants.privileges().to_value();
    }
    Ok(doc! {"authInfo": doc! {
        "authenticatedUsers": users,
        "authenticatedUserRoles": roles,
        "authenticatedUserPrivileges": privileges.then_some(allowed),
    }})
}

fn whats_my_uri(_: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(doc! {"you": Value::from(&context.session.client.remote)})
}
