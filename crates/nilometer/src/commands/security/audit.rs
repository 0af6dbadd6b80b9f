//! The audit log: logins, refusals, and changes to names, users and roles.
//!
//! Events have the form of MongoDB's audit log: `atype, ts, local, remote, users, roles, param, result`;
//! `result` is 0 or an error code. They go to the sink that the program has opened the database with; without
//! a sink nothing is done. Events hold no secrets: commands pass through [`shown`]. Of a write only the
//! collection it creates is recorded.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::authorization::shown;
use crate::auth::UserName;
use crate::commands::{CommandContext, CommandSpec, generic};
use crate::error::Error;
use crate::operation::Request;
use crate::services::Services;
use crate::session::ClientSession;

/// The parameters of an event.
#[derive(Clone, Copy)]
enum EventParameters {
    /// The collection or database: `ns`.
    Namespace,
    /// Each index of the field `indexes`.
    Indexes,
    /// The index or indexes the field `index` names.
    DroppedIndexes,
    /// `old` and `new`.
    Renamed,
    /// The first field by this name, the database, and the other fields.
    Subject(&'static str),
    /// The database and the other fields.
    Fields,
}

/// The recorded commands: name, event, parameters.
const RECORDED: &[(&str, &str, EventParameters)] = &[
    (
        "_mergeAuthzCollections",
        "directAuthMutation",
        EventParameters::Fields,
    ),
    ("create", "createCollection", EventParameters::Namespace),
    ("createIndexes", "createIndex", EventParameters::Indexes),
    ("createRole", "createRole", EventParameters::Subject("role")),
    ("createUser", "createUser", EventParameters::Subject("user")),
    (
        "dropAllRolesFromDatabase",
        "dropAllRolesFromDatabase",
        EventParameters::Fields,
    ),
    (
        "dropAllUsersFromDatabase",
        "dropAllUsersFromDatabase",
        EventParameters::Fields,
    ),
    ("drop", "dropCollection", EventParameters::Namespace),
    ("dropDatabase", "dropDatabase", EventParameters::Namespace),
    ("dropIndexes", "dropIndex", EventParameters::DroppedIndexes),
    ("dropRole", "dropRole", EventParameters::Subject("role")),
    ("dropUser", "dropUser", EventParameters::Subject("user")),
    (
        "grantPrivilegesToRole",
        "grantPrivilegesToRole",
        EventParameters::Subject("role"),
    ),
    (
        "grantRolesToRole",
        "grantRolesToRole",
        EventParameters::Subject("role"),
    ),
    (
        "grantRolesToUser",
        "grantRolesToUser",
        EventParameters::Subject("user"),
    ),
    (
        "renameCollection",
        "renameCollection",
        EventParameters::Renamed,
    ),
    (
        "revokePrivilegesFromRole",
        "revokePrivilegesFromRole",
        EventParameters::Subject("role"),
    ),
    (
        "revokeRolesFromRole",
        "revokeRolesFromRole",
        EventParameters::Subject("role"),
    ),
    (
        "revokeRolesFromUser",
        "revokeRolesFromUser",
        EventParameters::Subject("user"),
    ),
    (
        "rotateCertificates",
        "rotateCertificates",
        EventParameters::Fields,
    ),
    ("shutdown", "shutdown", EventParameters::Fields),
    ("updateRole", "updateRole", EventParameters::Subject("role")),
    ("updateUser", "updateUser", EventParameters::Subject("user")),
];

/// The user of a command, recorded before its run: a command may drop its own user.
pub(crate) struct Actor(Vec<Value>, Vec<Value>);

/// Returns the user of a command that will be recorded.
pub(crate) fn actor(
    services: &Services,
    session: &ClientSession,
    spec: &CommandSpec,
) -> Option<Actor> {
    services.audit.get()?;
    RECORDED
        .iter()
        .any(|(command, ..)| *command == spec.name)
        .then(|| Actor::of(session))
}

impl Actor {
    fn of(session: &ClientSession) -> Self {
        let grants = session.login.cached_grants();
        let users = grants.map(|g| Value::from(g.user.name.to_document()));
        let roles = grants
            .into_iter()
            .flat_map(|g| &g.user.roles)
            .map(|role| Value::from(role.to_document()));
        Self(users.into_iter().collect(), roles.collect())
    }
}

/// Records collections that a write or an index build created implicitly.
pub(crate) fn made(services: &Services, context: &CommandContext<'_>) {
    if services.audit.get().is_none() {
        return;
    }
    for namespace in context.operation.usage.created_collections() {
        let actor = Actor::of(context.session);
        let param = doc! {"ns": namespace};
        let session = &*context.session;
        emit(services, session, &actor, "createCollection", param, None);
    }
}

/// Records a finished command.
pub(crate) fn ran(
    services: &Services,
    actor: &Actor,
    context: &CommandContext<'_>,
    request: &Request,
    error: Option<&Error>,
) {
    let Some((_, event, told)) = RECORDED.iter().find(|(c, ..)| *c == context.spec.name) else {
        return;
    };
    let command = shown(context.spec, &request.body);
    let db = context.database_name();
    for param in params(*told, db, command.as_ref()) {
        emit(services, context.session, actor, event, param, error);
    }
}

fn params(told: EventParameters, db: &str, command: DocRef<'_>) -> Vec<Document> {
    let first = command.iter().next();
    let named = first.map(|e| e.value()).unwrap_or_default();
    let ns = match named {
        ValueRef::String(collection) => format!("{db}.{collection}"),
        _ => db.to_owned(),
    };
    match told {
        EventParameters::Namespace => vec![doc! {"ns": ns}],
        EventParameters::Indexes => {
            let indexes = command.get("indexes").as_array();
            let specs = indexes.into_iter().flat_map(|all| all.iter());
            let told = specs.map(|index| {
                let name = index.as_document().map(|d| d.get("name").to_value());
                doc! {"ns": ns.as_str(), "indexName": name, "indexSpec": index.to_value()}
            });
            told.collect()
        }
        EventParameters::DroppedIndexes => {
            let index = command.get("index").to_value();
            vec![doc! {"ns": ns, "indexName": index}]
        }
        EventParameters::Renamed => {
            vec![doc! {"old": named.to_value(), "new": command.get("to").to_value()}]
        }
        EventParameters::Subject(_) | EventParameters::Fields => {
            let mut out = DocumentBuilder::new();
            if let EventParameters::Subject(subject) = told {
                out.append(subject, named.to_value());
            }
            out.append("db", db);
            let others = command.iter().skip(1);
            for element in others.filter(|e| !generic::is_generic(e.name())) {
                out.append_element(element);
            }
            vec![out.finish()]
        }
    }
}

/// Records a login attempt.
pub(crate) fn authenticated(
    services: &Services,
    session: &ClientSession,
    user: &UserName,
    mechanism: &str,
    error: Option<&Error>,
) {
    let param = doc! {
        "user": user.user.as_str(),
        "db": user.db.as_str(),
        "mechanism": mechanism,
    };
    let actor = Actor::of(session);
    emit(services, session, &actor, "authenticate", param, error);
}

/// Records a logout.
pub(crate) fn logged_out(services: &Services, session: &ClientSession) {
    if session.login.user().is_some() {
        let actor = Actor::of(session);
        emit(services, session, &actor, "logout", Document::new(), None);
    }
}

/// Records an authorization failure.
pub(crate) fn refused(
    services: &Services,
    session: &ClientSession,
    spec: &CommandSpec,
    db: &str,
    request: &Request,
    error: &Error,
) {
    if services.audit.get().is_none() {
        return;
    }
    let first = request.body.iter().next();
    let ns = match first.and_then(|e| e.value().as_str()) {
        Some(collection) => format!("{db}.{collection}"),
        None => db.to_owned(),
    };
    let param = doc! {
        "command": spec.name,
        "ns": ns,
        "args": shown(spec, &request.body),
    };
    let actor = Actor::of(session);
    emit(services, session, &actor, "authCheck", param, Some(error));
}

fn emit(
    services: &Services,
    session: &ClientSession,
    actor: &Actor,
    event: &str,
    param: Document,
    error: Option<&Error>,
) {
    let Some(sink) = services.audit.get() else {
        return;
    };
    let event = doc! {
        "atype": event,
        "ts": Value::DateTime(services.clock.now_ms()),
        "local": address(&session.client.local),
        "remote": address(&session.client.remote),
        "users": actor.0.clone(),
        "roles": actor.1.clone(),
        "param": param,
        "result": error.map_or(0, |e| e.code.0),
    };
    sink(&event);
}

fn address(text: &str) -> Document {
    match text.parse::<std::net::SocketAddr>() {
        Ok(address) => doc! {
            "ip": address.ip().to_string(),
            "port": i32::from(address.port()),
        },
        Err(_) => doc! {"isSystemUser": true},
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::COMMANDS;
    use crate::commands::find_command;

    #[test]
    fn what_is_told_of_is_a_command() {
        for (command, ..) in RECORDED {
            let spec = find_command(command).and_then(|at| COMMANDS.get(at));
            assert_eq!(spec.map(|c| c.name), Some(*command));
        }
    }

    #[test]
    fn no_command_takes_a_password_openly() {
        for command in COMMANDS {
            if let crate::commands::Fields::Only(fields) = command.fields {
                for secret in ["pwd", "payload", "key"] {
                    let takes = fields.contains(&secret) && command.name != "distinct";
                    assert!(
                        !takes || command.secrets.contains(&secret),
                        "{}",
                        command.name
                    );
                }
            }
        }
    }
}
