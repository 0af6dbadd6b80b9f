//! `startSession`, `endSessions`, `refreshSessions`, `killSessions`, `killAllSessions`.
//!
//! A driver makes up session ids itself and rarely starts one here. Ending a session forgets it;
//! killing one also interrupts what runs under it.

use nilometer_bson::{Binary, Document, Value, doc};

use super::args::Args;
use super::authorization::may;
use super::{Authorization, CommandContext, CommandSpec};
use crate::auth::{Action, Target};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::{OperationEntry, Services, TIMEOUT_MINUTES};
use crate::session::{SessionId, UserName};

/// Sessions in one command.
const SESSIONS_MAX: usize = 10_000;

pub(super) const START: CommandSpec = CommandSpec::new(
    "startSession",
    "Starts a logical session.",
    Authorization::LoggedIn,
    start,
);

pub(super) const END: CommandSpec = CommandSpec {
    in_api_v1: true,
    write_concern: true,
    ..CommandSpec::new(
        "endSessions",
        "Ends logical sessions.",
        Authorization::LoggedIn,
        end,
    )
};

pub(super) const REFRESH: CommandSpec = CommandSpec {
    in_api_v1: true,
    ..CommandSpec::new(
        "refreshSessions",
        "Keeps logical sessions from timing out.",
        Authorization::LoggedIn,
        refresh,
    )
};

pub(super) const KILL: CommandSpec = CommandSpec::new(
    "killSessions",
    "Ends logical sessions and what runs under them.",
    Authorization::LoggedIn,
    kill,
);

pub(super) const KILL_ALL: CommandSpec = CommandSpec::new(
    "killAllSessions",
    "Ends all logical sessions and what runs under them.",
    Authorization::OnCluster(&[Action::KillAnySession]),
    kill_all,
);

/// The sessions the field called `command` lists.
fn listed(command: &str, request: &Request) -> Result<Vec<SessionId>> {
    let args = Args::new(command, request.body.as_ref());
    let array = args.required_array(command)?;
    let mut ids = Vec::new();
    for (at, value) in array.iter().enumerate() {
        if at == SESSIONS_MAX {
            return Err(Error::new(
                ErrorCode::InvalidLength,
                format!("{command} takes at most {SESSIONS_MAX} sessions"),
            ));
        }
        ids.push(SessionId::parse(
            value,
            &format!("{command}.{command}.{at}"),
        )?);
    }
    Ok(ids)
}

fn max_sessions(services: &Services) -> usize {
    usize::try_from(services.parameters.max_sessions()).unwrap_or(usize::MAX)
}

fn start(database: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let services = database.services();
    let id = SessionId(services.ids.uuid());
    services
        .sessions
        .touch(id, context.operation.now_ms, max_sessions(services))?;
    let uuid = Binary {
        subtype: 4,
        bytes: id.0.as_slice().into(),
    };
    Ok(doc! {
        "id": doc! {"id": Value::from(uuid)},
        "timeoutMinutes": TIMEOUT_MINUTES,
    })
}

fn end(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    for id in listed("endSessions", request)? {
        database.end_session(id, context.operation.user.as_ref());
    }
    Ok(Document::new())
}

fn refresh(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let services = database.services();
    for id in listed("refreshSessions", request)? {
        let max = max_sessions(services);
        services.sessions.touch(id, context.operation.now_ms, max)?;
    }
    Ok(Document::new())
}

fn kill(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let mut ids = listed("killSessions", request)?;
    if ids.is_empty() {
        // As in MongoDB, an empty list means all sessions of the user.
        ids = open_sessions(database);
    }
    let any = Action::KillAnySession;
    let all = may(database, context.session, &Target::Cluster, any);
    let user = context.operation.user.clone().filter(|_| !all);
    kill_sessions(database, context, &ids, user.as_ref());
    Ok(Document::new())
}

fn kill_all(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("killAllSessions", request.body.as_ref());
    let users = args.required_array("killAllSessions")?;
    let ids = open_sessions(database);
    if users.is_empty() {
        kill_sessions(database, context, &ids, None);
    }
    for value in users.iter() {
        let path = "killAllSessions.killAllSessions";
        let user = UserName::parse(value, context.database_name(), path)?;
        kill_sessions(database, context, &ids, Some(&user));
    }
    Ok(Document::new())
}

fn open_sessions(database: &Database) -> Vec<SessionId> {
    let services = database.services();
    let open = services.sessions.list(services.clock.now_ms());
    open.iter().map(|session| session.id).collect()
}

/// Ends what runs in these sessions, by `user` if one is given.
fn kill_sessions(
    database: &Database,
    context: &CommandContext<'_>,
    ids: &[SessionId],
    user: Option<&UserName>,
) {
    let own = context.operation.id;
    let concerned = |operation: &OperationEntry| {
        let of_user = user.is_none() || operation.user.as_ref() == user;
        operation.id != own && of_user && operation.lsid.is_some_and(|id| ids.contains(&id))
    };
    let operations = &database.services().operations;
    operations.kill_where(ErrorCode::Interrupted, concerned);
    for id in ids {
        database.end_session(*id, user);
    }
}
