//! `killCursors`: closes cursors.

use nilometer_bson::{Document, Value, ValueRef, doc};

use super::query::namespace_of;
use crate::args::Args;
use crate::auth::{Action, Target};
use crate::commands::security::authorization::{may, not_authorized};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::operation::Request;
use crate::query::cursor::Killed;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    in_api_v1: true,
    fields: Fields::Only(&["cursors"]),
    ..CommandSpec::new(
        "killCursors",
        "Closes cursors.",
        Authorization::LoggedIn,
        OnRouter::Same,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("killCursors", request.body.as_ref());
    let namespace = namespace_of(&context.operation, args.required_string("killCursors")?);
    let mut ids = Vec::new();
    for (at, value) in args.required_array("cursors")?.iter().enumerate() {
        match value {
            ValueRef::Int64(id) => ids.push(id),
            other => {
                return Err(Error::wrong_field_type(
                    format_args!("killCursors.cursors.{at}"),
                    other,
                    "long",
                ));
            }
        }
    }
    if ids.is_empty() {
        return Err(Error::bad_value(
            "Must specify at least one cursor id in: killCursors",
        ));
    }
    let any = Action::KillAnyCursor;
    let all = may(database, context.session, &Target::Cluster, any);
    let own = context.operation.user.as_ref();
    let mut killed = Vec::new();
    let mut not_found = Vec::new();
    for id in ids {
        match database
            .queries()
            .cursors
            .kill(id, Some(&namespace), |by| all || by == own)
        {
            Killed::Yes => killed.push(Value::Int64(id)),
            Killed::NotFound => not_found.push(Value::Int64(id)),
            Killed::OfAnother => {
                return Err(not_authorized(
                    context.spec,
                    context.database_name(),
                    &request.body,
                ));
            }
        }
    }
    let none = Vec::<Value>::new;
    Ok(doc! {
        "cursorsKilled": killed,
        "cursorsNotFound": not_found,
        "cursorsAlive": none(),
        "cursorsUnknown": none(),
    })
}
