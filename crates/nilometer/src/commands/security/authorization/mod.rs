//! Authorization of commands: the needs of a command are a column of the table of commands.
//!
//! Every entry of [`COMMANDS`](crate::commands::COMMANDS) has an [`Authorization`]; there is no default.
//! [`check`] runs before the handler and costs a comparison of a few names for a logged-in user. Without
//! access control, and for embedded sessions, nothing is checked.
//!
//! ```text
//! not logged in ─► open commands; the first user, from this machine, while there is none
//! logged in ─► the needs, by the command's own rule ─► the user's current privileges
//! ```
//!
//! The needs of a pipeline come from its text ([`pipeline`]), before it is parsed: a repeated field counts
//! twice.

mod pipeline;
pub(crate) mod rules;
#[cfg(test)]
mod tests;

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{DocRef, Document, DocumentBuilder};

use super::audit;
use crate::auth::{Action, ActionSet, Grants, Target};
use crate::commands::CommandSpec;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::session::ClientSession;

/// The longest excerpt of a command in an error, in bytes.
const SHOWN_BYTES_MAX: usize = 1000;

/// Stands for a hidden value.
const SECRET: &str = "xxx";

/// The requirements of a command.
#[derive(Clone, Copy)]
pub enum Authorization {
    /// None: it is answered before a login.
    Open,
    /// A login. The handler refuses access to other users' data.
    LoggedIn,
    /// These actions on the server.
    OnCluster(&'static [Action]),
    /// These actions on the command's database.
    OnDatabase(&'static [Action]),
    /// These actions on the collection in the first field.
    OnCollection(&'static [Action]),
    /// The result of this rule.
    ByRule(Rule),
}

impl Authorization {
    /// False for commands that are answered before a login.
    pub fn needs_login(self) -> bool {
        !matches!(self, Self::Open)
    }
}

/// Computes the needs of a command.
pub(crate) type Rule = fn(&AccessRequest<'_>, &mut RequiredPrivileges) -> Result<()>;

/// A command and its user.
pub struct AccessRequest<'a> {
    /// The database, with its catalog.
    pub(crate) database: &'a Database,
    /// The name of the command's database.
    pub(crate) db: &'a str,
    /// The command.
    pub(crate) request: &'a Request,
    /// The grants of the user.
    pub(crate) grants: &'a Grants,
}

impl<'a> AccessRequest<'a> {
    /// Returns the command document.
    pub(crate) fn body(&self) -> DocRef<'a> {
        self.request.body.as_ref()
    }

    /// Returns the target of the first field: a collection, or the database if it names none.
    pub(crate) fn first_target(&self) -> Target {
        let first = self.body().iter().next();
        match first.and_then(|field| field.value().as_str()) {
            Some(collection) => Target::collection(self.db, collection),
            None => Target::Database(self.db.to_owned()),
        }
    }

    /// True if the user may perform `action` on `target`.
    pub(crate) fn may(&self, target: &Target, action: Action) -> bool {
        let actions = ActionSet::of(&[action]);
        self.grants.privileges().allows(target, actions)
    }
}

/// The needs of a command.
#[derive(Debug, Default)]
pub struct RequiredPrivileges(Vec<(Target, ActionSet)>);

impl RequiredPrivileges {
    /// Adds these actions on `target`.
    pub(crate) fn add(&mut self, target: Target, actions: &[Action]) {
        self.0.push((target, ActionSet::of(actions)));
    }

    /// Adds all of `others`.
    pub(crate) fn add_all(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// True if nothing is needed yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a need that no user satisfies.
    pub(crate) fn add_everything(&mut self) {
        self.0.push((Target::Everything, ActionSet::ALL));
    }
}

/// Fails unless the connection may run this command. The database name is valid. The error shows the command as it was
/// `sent`: the collection that a command means is no news for a client that may not run it.
pub(crate) fn check(
    database: &Database,
    session: &mut ClientSession,
    spec: &CommandSpec,
    db: &str,
    request: &Request,
    sent: &Document,
) -> Result<()> {
    let services = database.services();
    if !services.access_control || session.login.is_trusted() || !spec.authorization.needs_login() {
        return Ok(());
    }
    let outcome = allowed(database, session, spec, db, request, sent);
    if let Err(error) = &outcome {
        audit::refused(services, session, spec, db, request, error);
    }
    outcome
}

fn allowed(
    database: &Database,
    session: &mut ClientSession,
    spec: &CommandSpec,
    db: &str,
    request: &Request,
    sent: &Document,
) -> Result<()> {
    let authority = database.authority();
    let Some(grants) = session.login.grants(authority) else {
        return if is_first_user(database, session, spec, db) {
            Ok(())
        } else {
            Err(Error::new(
                ErrorCode::Unauthorized,
                format!("Command {} requires authentication", spec.name),
            ))
        };
    };
    let asked = AccessRequest {
        database,
        db,
        request,
        grants,
    };
    let needed = needed(spec.authorization, &asked)?;
    let privileges = grants.privileges();
    if needed.0.iter().all(|(t, a)| privileges.allows(t, *a)) {
        Ok(())
    } else {
        Err(not_authorized(spec, db, sent))
    }
}

/// Returns the needs of a command.
pub(crate) fn needed(
    authorization: Authorization,
    asked: &AccessRequest<'_>,
) -> Result<RequiredPrivileges> {
    let mut needed = RequiredPrivileges::default();
    match authorization {
        Authorization::Open | Authorization::LoggedIn => {}
        Authorization::OnCluster(actions) => needed.add(Target::Cluster, actions),
        Authorization::OnDatabase(actions) => {
            needed.add(Target::Database(asked.db.to_owned()), actions);
        }
        Authorization::OnCollection(actions) => needed.add(asked.first_target(), actions),
        Authorization::ByRule(rule) => rule(asked, &mut needed)?,
    }
    Ok(needed)
}

/// True if the connection has the privilege, or nothing is checked.
pub(crate) fn may(
    database: &Database,
    session: &mut ClientSession,
    target: &Target,
    action: Action,
) -> bool {
    if !database.services().access_control || session.login.is_trusted() {
        return true;
    }
    let grants = session.login.grants(database.authority());
    grants.is_some_and(|g| g.privileges().allows(target, ActionSet::of(&[action])))
}

/// The localhost exception: while there is neither a user nor a role, clients on this machine may create the
/// first user in `admin`.
fn is_first_user(
    database: &Database,
    session: &ClientSession,
    spec: &CommandSpec,
    db: &str,
) -> bool {
    session.client.same_machine
        && db == "admin"
        && matches!(spec.name, "createUser" | "createRole")
        && database
            .services()
            .parameters
            .enable_localhost_auth_bypass()
            != 0
        && database.authority().is_empty()
}

/// Returns the error of a missing privilege.
pub(crate) fn not_authorized(spec: &CommandSpec, db: &str, command: &Document) -> Error {
    let mut fields = Vec::new();
    let mut bytes = 0;
    for element in shown(spec, command).iter() {
        let field = format!("{}: {}", element.name(), value_to_relaxed(element.value()));
        bytes += field.len();
        if bytes > SHOWN_BYTES_MAX {
            fields.push("...".to_owned());
            break;
        }
        fields.push(field);
    }
    Error::new(
        ErrorCode::Unauthorized,
        format!(
            "not authorized on {db} to execute command {{ {} }}",
            fields.join(", ")
        ),
    )
}

/// Returns the command without its secrets, for logs and other clients.
pub(crate) fn shown(spec: &CommandSpec, command: &Document) -> Document {
    let is_secret = |name: &str| spec.secrets.contains(&name);
    if spec.secrets.is_empty() || !command.iter().any(|e| is_secret(e.name())) {
        return command.clone();
    }
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        if is_secret(element.name()) {
            out.append(element.name(), SECRET);
        } else {
            out.append_element(element);
        }
    }
    out.finish()
}
