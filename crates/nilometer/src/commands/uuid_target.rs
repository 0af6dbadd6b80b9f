//! A collection named by its UUID: `{find: UUID("…")}` becomes `{find: "name"}` before anything else reads it.

use std::borrow::Cow;

use nilometer_bson::{DocumentBuilder, ValueRef};

use super::CommandSpec;
use super::security::authorization;
use crate::auth::{Action, Target};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::session::ClientSession;

/// The commands that take a UUID in place of a name.
const COMMANDS: [&str; 3] = ["count", "find", "listIndexes"];

/// Returns the request with the current name of the collection whose UUID it gives. A client needs the action `useUUID`:
/// without it, a client cannot find out which UUIDs exist.
pub(super) fn resolve<'r>(
    database: &Database,
    session: &mut ClientSession,
    spec: &CommandSpec,
    db: &str,
    request: &'r Request,
) -> Result<Cow<'r, Request>> {
    let first = request.body.iter().next();
    let Some(ValueRef::Binary { subtype: 4, bytes }) = first.map(|first| first.value()) else {
        return Ok(Cow::Borrowed(request));
    };
    if !COMMANDS.contains(&spec.name) {
        return Ok(Cow::Borrowed(request));
    }
    if !authorization::may(database, session, &Target::Cluster, Action::UseUUID) {
        return Err(authorization::not_authorized(spec, db, &request.body));
    }
    let uuid = bytes.try_into().map_err(|_| {
        Error::new(
            ErrorCode::InvalidUUID,
            "the UUID of a collection has 16 bytes",
        )
    })?;
    let named = database.catalog().by_shown_uuid(uuid);
    let Some(named) = named.filter(|found| found.namespace.database == db) else {
        return Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!(
                "the database {db} has no collection with the UUID that {} names",
                spec.name
            ),
        ));
    };
    let mut body = DocumentBuilder::with_capacity(request.body.as_bytes().len() + 64);
    for (at, element) in request.body.iter().enumerate() {
        match at {
            0 => {
                body.append(element.name(), named.namespace.collection.as_str());
            }
            _ => {
                body.append_element(element);
            }
        }
    }
    Ok(Cow::Owned(Request {
        body: body.finish(),
        sequences: request.sequences.clone(),
    }))
}
