//! `startSession`, `endSessions`, `refreshSessions`, `killSessions`, `killAllSessions`.
//!
//! Drivers generate session ids themselves and rarely start one here. Ending a session removes it; killing
//! one also aborts its transaction and interrupts its operations.

use nilometer_bson::{Binary, Document, Value, doc};

use crate::args::Args;
use crate::auth::{Action, Target};
use crate::commands::security::authorization::may;
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::{Services, TIMEOUT_MINUTES};
use crate::session::{SessionId, UserName};

/// The largest number of sessions, or of patterns of sessions, in one command.
pub(super) const SESSIONS_MAX: usize = 10_000;

pub(crate) const START: CommandSpec = CommandSpec::new(
    "startSession",
    "Starts a logical session.",
    Authorization::LoggedIn,
    OnRouter::Same,
    start,
);

pub(crate) const END: CommandSpec = CommandSpec {
    in_api_v1: true,
    write_concern: true,
    ..CommandSpec::new(
        "endSessions",
        "Ends logical sessions.",
        Authorization::LoggedIn,
        OnRouter::Same,
        end,
    )
};

pub(crate) const REFRESH: CommandSpec = CommandSpec {
    in_api_v1: true,
    ..CommandSpec::new(
        "refreshSessions",
        "Keeps logical sessions from timing out.",
        Authorization::LoggedIn,
        OnRouter::Same,
        refresh,
    )
};

pub(crate) const KILL: CommandSpec = CommandSpec::new(
    "killSessions",
    "Ends logical sessions and their operations.",
    Authorization::LoggedIn,
    OnRouter::Same,
    kill,
);

pub(crate) const KILL_ALL: CommandSpec = CommandSpec::new(
    "killAllSessions",
    "Ends all logical sessions and their operations.",
    Authorization::OnCluster(&[Action::KillAnySession]),
    OnRouter::Same,
    kill_all,
);

/// Returns the sessions in the field `command`.
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
    let (user, now_ms) = (context.operation.user.as_ref(), context.operation.now_ms);
    services
        .sessions
        .touch(id, user, now_ms, max_sessions(services))?;
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
        let (user, now_ms) = (context.operation.user.as_ref(), context.operation.now_ms);
        services
            .sessions
            .touch(id, user, now_ms, max_sessions(services))?;
    }
    Ok(Document::new())
}

fn kill(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let ids = listed("killSessions", request)?;
    let any = Action::KillAnySession;
    let all = may(database, context.session, &Target::Cluster, any);
    let own = context.operation.user.clone();
    database.kill_sessions_where(Some(context.operation.id), |id, user| {
        // As in MongoDB, an empty list means all sessions of the user.
        match ids.is_empty() {
            true => user == own.as_ref(),
            false => ids.contains(&id) && (all || user == own.as_ref()),
        }
    });
    Ok(Document::new())
}

fn kill_all(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("killAllSessions", request.body.as_ref());
    let users = args.required_array("killAllSessions")?;
    let mut named = Vec::new();
    for value in users.iter() {
        let path = "killAllSessions.killAllSessions";
        named.push(UserName::parse(value, context.database_name(), path)?);
    }
    database.kill_sessions_where(Some(context.operation.id), |_, user| {
        named.is_empty() || user.is_some_and(|user| named.contains(user))
    });
    Ok(Document::new())
}
