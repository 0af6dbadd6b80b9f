//! Running operations, connections and sessions as documents, for the commands and aggregation stages that
//! list them.

use nilometer_bson::civil_date::iso_with_offset;
use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::{OpenConnection, OperationEntry, Services};
use crate::session::UserName;

/// Longest command shown in full, in bytes; longer ones are truncated.
pub(crate) const COMMAND_BYTES_MAX: usize = 1000;

/// Longest value kept in a truncated command, in bytes.
const VALUE_BYTES_MAX: usize = 250;

/// Selects the operations to describe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OperationFilter<'a> {
    /// Only operations of this user.
    pub(crate) of_user: Option<&'a UserName>,
    /// True to include idle connections.
    pub(crate) idle_connections: bool,
    /// True to truncate long commands.
    pub(crate) truncate: bool,
}

/// Describes the running operations.
pub(crate) fn operations(services: &Services, shown: OperationFilter<'_>) -> Vec<Document> {
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
                described.push(common(services, of_connection(id), id, &connected, false).finish());
            }
        }
    }
    described
}

/// Returns `type` and `desc` of an operation of a connection.
fn of_connection(id: i64) -> (&'static str, String) {
    ("op", format!("conn{id}"))
}

/// Builds the fields that operations, idle connections and idle sessions share.
pub(crate) fn common(
    services: &Services,
    (kind, description): (&str, String),
    id: i64,
    connection: &OpenConnection,
    active: bool,
) -> DocumentBuilder {
    let (host, client) = (&services.host, &connection.client);
    let mut out = DocumentBuilder::with_capacity(512);
    out.append("type", kind)
        .append("host", format!("{}:{}", host.hostname, host.port))
        .append("desc", description)
        .append("connectionId", id)
        .append(
            "client",
            (!client.remote.is_empty()).then_some(client.remote.as_str()),
        )
        .append("appName", client.application_name())
        .append("clientMetadata", client.document.clone())
        .append("active", active)
        .append("currentOpTime", iso_with_offset(services.clock.now_ms()));
    if let Some(user) = &connection.user {
        let user = doc! {"user": user.user.as_str(), "db": user.db.as_str()};
        out.append("effectiveUsers", vec![Value::from(user)]);
    }
    out
}

fn describe(services: &Services, operation: &OperationEntry, truncate: bool) -> Document {
    let elapsed = services.clock.monotonic().saturating_sub(operation.started);
    let micros = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
    let command = shown(&operation.command, truncate);
    let connection = OpenConnection {
        client: operation.client.clone(),
        user: operation.user.clone(),
    };
    let id = operation.connection_id;
    let mut out = common(services, of_connection(id), id, &connection, true);
    out.append("opid", operation.id)
        .append("lsid", operation.lsid.map(|id| id.to_document()))
        .append("secs_running", micros / 1_000_000)
        .append("microsecs_running", micros)
        .append("op", kind(operation.command_name))
        .append("ns", operation.namespace.as_str())
        .append("command", command)
        .append("transaction", operation.transaction.map(of_transaction))
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

/// Returns `transaction` of a statement.
fn of_transaction(number: i64) -> Document {
    doc! {"parameters": doc! {"txnNumber": number, "autocommit": false}}
}

/// Returns a command for a list of operations.
pub(crate) fn shown(command: &Document, truncate: bool) -> Document {
    let bytes_max = if truncate {
        COMMAND_BYTES_MAX
    } else {
        usize::MAX
    };
    shown_command(command, bytes_max)
}

/// Returns a command, truncated if it is longer than `bytes_max`.
pub(crate) fn shown_command(command: &Document, bytes_max: usize) -> Document {
    match command.as_bytes().len() > bytes_max {
        true => cut(command),
        false => command.clone(),
    }
}

/// Returns the type of an operation as `op` shows it.
pub(crate) fn kind(command: &str) -> &str {
    match command {
        "find" => "query",
        "getMore" => "getmore",
        "insert" | "update" => command,
        "delete" => "remove",
        _ => "command",
    }
}

/// Truncates a command: large values are replaced.
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

/// Describes the open logical sessions of the users that `shows` selects, with user names if `names_users`.
pub(crate) fn sessions(
    services: &Services,
    names_users: bool,
    shows: impl Fn(Option<&UserName>) -> bool,
) -> Vec<Document> {
    let mut open = services.sessions.list(services.clock.now_ms());
    open.retain(|session| shows(session.user.as_ref()));
    let described = open.iter().map(|session| {
        let name = session.user.as_ref().map(UserName::to_string);
        let mut out = DocumentBuilder::new();
        out.append("_id", session.id.with_digest(session.user.as_ref()))
            .append("lastUse", Value::DateTime(session.last_use_ms));
        if names_users && let Some(name) = name {
            out.append("user", name);
        }
        out.finish()
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
    fn times_are_shown_in_utc() {
        assert_eq!(
            iso_with_offset(1_700_000_000_123),
            "2023-11-14T22:13:20.123+00:00"
        );
        assert_eq!(iso_with_offset(-1), "1969-12-31T23:59:59.999+00:00");
    }
}
