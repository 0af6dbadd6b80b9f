//! What runs, who is connected and which sessions are open, as documents: for the commands and
//! the aggregation stages that show them.

use nilometer_bson::civil_date::iso_with_offset;
use nilometer_bson::{Binary, Document, DocumentBuilder, Value, doc};
use sha2::{Digest, Sha256};

use super::{OperationEntry, Services};
use crate::session::{ClientMetadata, UserName};

/// Bytes of a command that are shown whole; more is cut.
pub(crate) const COMMAND_BYTES_MAX: usize = 1000;

/// Bytes of one value in a command that is cut.
const VALUE_BYTES_MAX: usize = 250;

/// Which of the operations are to be described.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown<'a> {
    /// Only this user's.
    pub(crate) of_user: Option<&'a UserName>,
    /// Connections that do nothing, too.
    pub(crate) idle_connections: bool,
    /// Long commands are cut.
    pub(crate) truncate: bool,
}

/// Describes the running operations.
pub(crate) fn operations(services: &Services, shown: Shown<'_>) -> Vec<Document> {
    let mut running = services.operations.list();
    if let Some(user) = shown.of_user {
        running.retain(|operation| operation.user.as_ref() == Some(user));
    }
    let mut described: Vec<Document> = running
        .iter()
        .map(|operation| describe(services, operation, shown.truncate))
        .collect();
    if shown.idle_connections {
        for (id, connected) in services.connections.list() {
            let is_shown = shown.of_user.is_none() || connected.user.as_ref() == shown.of_user;
            if is_shown && running.iter().all(|o| o.connection_id != id) {
                let (client, user) = (&connected.client, connected.user.as_ref());
                described.push(common(services, id, client, user, false).finish());
            }
        }
    }
    described
}

/// The fields a connection has whether it is busy or not.
fn common(
    services: &Services,
    id: i64,
    client: &ClientMetadata,
    user: Option<&UserName>,
    active: bool,
) -> DocumentBuilder {
    let host = &services.host;
    let mut out = DocumentBuilder::with_capacity(512);
    out.append("type", "op")
        .append("host", format!("{}:{}", host.hostname, host.port))
        .append("desc", format!("conn{id}"))
        .append("connectionId", id)
        .append(
            "client",
            (!client.remote.is_empty()).then_some(client.remote.as_str()),
        )
        .append("appName", client.application_name())
        .append("clientMetadata", client.document.clone())
        .append("active", active)
        .append("currentOpTime", iso_with_offset(services.clock.now_ms()));
    if let Some(user) = user {
        let user = doc! {"user": user.user.as_str(), "db": user.db.as_str()};
        out.append("effectiveUsers", vec![Value::from(user)]);
    }
    out
}

fn describe(services: &Services, operation: &OperationEntry, truncate: bool) -> Document {
    let elapsed = services.clock.monotonic().saturating_sub(operation.started);
    let micros = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
    let command = shown(&operation.command, truncate);
    let (id, user) = (operation.connection_id, operation.user.as_ref());
    let mut out = common(services, id, &operation.client, user, true);
    out.append("opid", operation.id)
        .append("lsid", operation.lsid.map(|id| id.to_document()))
        .append("secs_running", micros / 1_000_000)
        .append("microsecs_running", micros)
        .append("op", kind(operation.command_name))
        .append("ns", operation.namespace.as_str())
        .append("command", command)
        .append("planSummary", operation.usage.plan());
    if let Some((message, done, total)) = operation.progress.now() {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let percent = (100 * done).checked_div(total).unwrap_or(100).min(100);
        out.append("msg", format!("{message}: {done}/{total} {percent}%"));
        let progress = doc! { "done": count(done), "total": count(total) };
        out.append("progress", progress);
    }
    out.append("killPending", operation.kill.reason().map(|_| true));
    out.finish()
}

/// A command as a list of operations shows it.
pub(crate) fn shown(command: &Document, truncate: bool) -> Document {
    let bytes_max = if truncate {
        COMMAND_BYTES_MAX
    } else {
        usize::MAX
    };
    shown_command(command, bytes_max)
}

/// A command as it is shown: whole if it has no more bytes than these.
pub(crate) fn shown_command(command: &Document, bytes_max: usize) -> Document {
    match command.as_bytes().len() > bytes_max {
        true => cut(command),
        false => command.clone(),
    }
}

/// The kind of an operation as `op` shows it.
pub(crate) fn kind(command: &str) -> &str {
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
    for element in command.iter() {
        if short.len() > COMMAND_BYTES_MAX {
            break;
        }
        if element.value_bytes().len() <= VALUE_BYTES_MAX {
            short.append_element(element);
        } else {
            short.append(element.name(), "...");
        }
    }
    short.finish()
}

/// Describes the open logical sessions of those users whom `shows` picks, with their names if asked to.
pub(crate) fn sessions(
    services: &Services,
    names_users: bool,
    shows: impl Fn(Option<&UserName>) -> bool,
) -> Vec<Document> {
    let mut open = services.sessions.list(services.clock.now_ms());
    open.retain(|session| shows(session.user.as_ref()));
    let described = open.iter().map(|session| {
        let id = session.id.to_document();
        let name = session.user.as_ref().map(UserName::to_string);
        // Where nobody logs in, that of nothing.
        let digest = Sha256::digest(name.as_deref().unwrap_or_default());
        let digest = Value::from(Binary {
            subtype: 0,
            bytes: digest.as_slice().into(),
        });
        let mut told = DocumentBuilder::new();
        told.append("_id", doc! {"id": id.get("id"), "uid": digest})
            .append("lastUse", Value::DateTime(session.last_use_ms));
        if names_users && let Some(name) = name {
            told.append("user", name);
        }
        told.finish()
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_keeps_its_small_fields() {
        let long = doc! {"insert": "c", "documents": "x".repeat(10_000), "$db": "a"};
        let short = cut(&long);
        assert_eq!(short.get("insert").as_str(), Some("c"));
        assert_eq!(short.get("documents").as_str(), Some("..."));
        assert_eq!(short.get("$db").as_str(), Some("a"));
    }

    #[test]
    fn a_moment_is_shown_in_utc() {
        assert_eq!(
            iso_with_offset(1_700_000_000_123),
            "2023-11-14T22:13:20.123+00:00"
        );
        assert_eq!(iso_with_offset(-1), "1969-12-31T23:59:59.999+00:00");
    }
}
