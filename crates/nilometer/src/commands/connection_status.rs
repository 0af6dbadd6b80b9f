//! `connectionStatus` and `whatsmyuri`: who am I to the server?

use nilometer_bson::{Document, Value, array, doc};

use super::args::Args;
use super::{CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

pub(super) const STATUS: CommandSpec = CommandSpec {
    needs_auth: false,
    fields: Fields::Only(&["showPrivileges"]),
    in_api_v1: true,
    ..CommandSpec::new(
        "connectionStatus",
        "Tells who is logged in on this connection.",
        status,
    )
};

pub(super) const WHATS_MY_URI: CommandSpec = CommandSpec {
    needs_auth: false,
    ..CommandSpec::new(
        "whatsmyuri",
        "Tells the address the client comes from.",
        whats_my_uri,
    )
};

/// Nobody logs in, so the lists are empty.
fn status(_: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("connectionStatus", request.body.as_ref());
    let privileges = args.lenient_boolean("showPrivileges")?.unwrap_or(false);
    Ok(doc! {"authInfo": doc! {
        "authenticatedUsers": array![],
        "authenticatedUserRoles": array![],
        "authenticatedUserPrivileges": privileges.then(|| array![]),
    }})
}

fn whats_my_uri(_: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(doc! {"you": Value::from(&context.session.client.remote)})
}
