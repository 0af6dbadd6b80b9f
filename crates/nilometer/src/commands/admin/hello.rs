//! `hello` and the older `isMaster`: the handshake of a client.
//!
//! The reply describes a member of a replica set, if the server has the name of one, so drivers retry writes and look for
//! the primary. Else it describes a standalone server: no `setName` and no `msg`.
//!
//! `topologyVersion` identifies the process and has a counter of the changes of its description. A
//! request with the current version and `maxAwaitTimeMS` waits that long for a change. The wait belongs to the
//! transport, which has the connections ([`topology_wait`]); an embedding program is answered at once.
//!
//! Unknown fields are ignored, because the handshake must be understood across versions. The first message of
//! a login may be part of it (`speculativeAuthenticate`); the reply answers it, unless
//! `authentication::speculate` returns nothing.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::replication;
use crate::args::Args;
use crate::commands::generic::Numbers;
use crate::commands::security::authentication;
use crate::commands::{
    Authorization, COMMANDS, CommandContext, CommandSpec, Fields, OnRouter, find_command,
};
use crate::commands::{generic, members};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result, location};
use crate::limits;
use crate::operation::Request;
use crate::services::{MemberRole, TIMEOUT_MINUTES};
use crate::session::ClientMetadata;

/// The oldest and the newest wire version, those of MongoDB 8.0.
const WIRE_VERSION_MIN: i32 = 0;
const WIRE_VERSION_MAX: i32 = 25;

/// The largest `client` document, in bytes.
const CLIENT_METADATA_BYTES_MAX: usize = 512;

/// The longest application name, in bytes.
const APPLICATION_NAME_BYTES_MAX: usize = 128;

pub(crate) const HELLO: CommandSpec = CommandSpec {
    fields: Fields::Any,
    secrets: &["speculativeAuthenticate"],
    in_api_v1: true,
    ..CommandSpec::new(
        "hello",
        "Describes this server to a client.",
        Authorization::Open,
        OnRouter::Same,
        hello,
    )
};

pub(crate) const IS_MASTER: CommandSpec = CommandSpec {
    aliases: &["ismaster"],
    fields: Fields::Any,
    secrets: &["speculativeAuthenticate"],
    ..CommandSpec::new(
        "isMaster",
        "Describes this server to a client older than hello.",
        Authorization::Open,
        OnRouter::Same,
        is_master,
    )
};

fn hello(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    answer(database, context, request, "isWritablePrimary")
}

fn is_master(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    answer(database, context, request, "ismaster")
}

fn answer(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
    primary: &str,
) -> Result<Document> {
    let args = Args::new(context.spec.name, request.body.as_ref());
    awaited(database, &args)?;
    note_client(database, context, &args)?;
    let compression = common_compressors(context, &args)?;
    let int = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let mut reply = DocumentBuilder::with_capacity(320);
    if args.lenient_boolean("helloOk")? == Some(true) {
        reply.append("helloOk", true);
    }
    let set = database.services().replica_set.as_deref();
    let state = set.map(|set| (set, set.state()));
    if let Some((set, state)) = &state {
        replication::describe(&mut reply, set, state);
    }
    let is_primary = state
        .as_ref()
        .is_none_or(|(_, state)| state.role == MemberRole::Primary);
    reply
        .append(primary, is_primary)
        .append("msg", database.as_router().map(|_| "isdbgrid"))
        .append(
            "topologyVersion",
            members::topology_version(database.services()),
        )
        .append("maxBsonObjectSize", int(limits::DOCUMENT_BYTES_MAX))
        .append("maxMessageSizeBytes", int(limits::MESSAGE_BYTES_MAX))
        .append("maxWriteBatchSize", int(limits::WRITE_BATCH_MAX))
        .append(
            "localTime",
            Value::DateTime(database.services().clock.now_ms()),
        )
        .append("logicalSessionTimeoutMinutes", TIMEOUT_MINUTES)
        .append(
            "connectionId",
            connection_number(context.session.connection_id),
        )
        .append("minWireVersion", WIRE_VERSION_MIN)
        .append("maxWireVersion", WIRE_VERSION_MAX)
        .append("readOnly", false)
        .append("compression", compression);
    if let Some(user) = args.string("saslSupportedMechs")? {
        reply.append(
            "saslSupportedMechs",
            authentication::mechanisms(database, user),
        );
    }
    if let Some(given) = args.document("speculativeAuthenticate")? {
        let answer = authentication::speculate(database, context, given);
        reply.append("speculativeAuthenticate", answer);
    }
    Ok(reply.finish())
}

/// Returns the smaller type if the number fits, as MongoDB does.
pub(crate) fn connection_number(id: i64) -> Value {
    i32::try_from(id).map_or(Value::Int64(id), Value::Int32)
}

/// A wait for a change of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyWait {
    /// The longest wait.
    pub time: Duration,
    /// True if the client knows the current version; else it is answered at once.
    pub is_current: bool,
}

/// Returns the wait that a valid `hello` or `isMaster` asks for. `None` for other requests, and for those that
/// are refused.
pub fn topology_wait(database: &Database, request: &Request) -> Option<TopologyWait> {
    if !matches!(request.command_name(), "hello" | "isMaster" | "ismaster") {
        return None;
    }
    let spec = COMMANDS.get(find_command(request.command_name())?)?;
    let body = request.body.as_ref();
    generic::parse(
        spec,
        body,
        database.services().replica_set.as_deref(),
        Numbers::None,
    )
    .ok()?;
    awaited(database, &Args::new(spec.name, body)).ok()?
}

/// Reads `topologyVersion` and `maxAwaitTimeMS`: a client that waits must send the version it knows.
fn awaited(database: &Database, args: &Args<'_>) -> Result<Option<TopologyWait>> {
    let known = args.nested("topologyVersion", &["processId", "counter"])?;
    let (known, time) = match (known, args.integer("maxAwaitTimeMS")?) {
        (None, None) => return Ok(None),
        (Some(_), None) => {
            return Err(Error::location(
                location::AWAIT_WITHOUT_TOPOLOGY_VERSION,
                "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'",
            ));
        }
        (None, Some(_)) => {
            return Err(Error::location(
                location::AWAIT_WITHOUT_TOPOLOGY_VERSION,
                "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'",
            ));
        }
        (Some(known), Some(time)) => (known, time),
    };
    let Ok(time) = u64::try_from(time) else {
        return Err(Error::location(
            location::AWAIT_TIME_NEGATIVE,
            "maxAwaitTimeMS must be a non-negative integer",
        ));
    };
    let process = match known.value("processId") {
        ValueRef::ObjectId(process) => process,
        ValueRef::Missing => return Err(known.missing("processId")),
        other => return Err(known.wrong_type("processId", other, "objectId")),
    };
    let Some(counter) = known.integer("counter")? else {
        return Err(known.missing("counter"));
    };
    if counter < 0 {
        return Err(Error::location(
            location::TOPOLOGY_COUNTER_NEGATIVE,
            "topologyVersion must have a non-negative counter",
        ));
    }
    let is_this_process = process == database.services().process_id;
    let own_counter = members::topology_counter(database.services());
    if is_this_process && counter > own_counter {
        return Err(Error::location(
            location::TOPOLOGY_COUNTER_AHEAD,
            format!(
                "Received a topology version with counter: {counter} which is greater than the server topology version counter: {own_counter}"
            ),
        ));
    }
    Ok(Some(TopologyWait {
        time: Duration::from_millis(time),
        is_current: is_this_process && counter == own_counter,
    }))
}

/// Stores the client's metadata, which it may send once.
fn note_client(
    database: &Database,
    context: &mut CommandContext<'_>,
    args: &Args<'_>,
) -> Result<()> {
    let Some(client) = args.document("client")? else {
        return Ok(());
    };
    if context.session.client.document.is_some() {
        return Err(Error::new(
            ErrorCode::ClientMetadataCannotBeMutated,
            "The client metadata document may only be sent in the first hello",
        ));
    }
    let size = client.as_bytes().len();
    if size > CLIENT_METADATA_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::ClientMetadataDocumentTooLarge,
            format!(
                "The client metadata document must be less then or equal to {CLIENT_METADATA_BYTES_MAX} bytes, it has {size}"
            ),
        ));
    }
    let name = client
        .get("application")
        .as_document()
        .map(|a| a.get("name"));
    if let Some(ValueRef::String(name)) = name
        && name.len() > APPLICATION_NAME_BYTES_MAX
    {
        return Err(Error::new(
            ErrorCode::ClientMetadataAppNameTooLarge,
            format!(
                "The 'client.application.name' field must be less then or equal to {APPLICATION_NAME_BYTES_MAX} bytes in the client metadata document"
            ),
        ));
    }
    let client = ClientMetadata {
        document: Some(client.to_document()),
        ..context.session.client.as_ref().clone()
    };
    let session = &mut *context.session;
    session.client = Arc::new(client);
    let connections = &database.services().connections;
    connections.update(session.connection_id, &session.client);
    Ok(())
}

/// Returns the compressors both sides support, in the server's order; missing if the client sends none.
fn common_compressors(context: &CommandContext<'_>, args: &Args<'_>) -> Result<Value> {
    let Some(known) = args.array("compression")? else {
        return Ok(Value::Missing);
    };
    let known: Vec<&str> = known.iter().filter_map(ValueRef::as_str).collect();
    let common: Vec<Value> = context
        .session
        .compressors
        .iter()
        .filter(|name| known.contains(name))
        .map(|name| Value::from(*name))
        .collect();
    Ok(if common.is_empty() {
        Value::Missing
    } else {
        Value::from(common)
    })
}
