//! What a command may only do with leave: a column of the table of commands.
//!
//! Every entry of [`COMMANDS`](crate::commands::COMMANDS) says in [`Authorization`] what it takes; there is no
//! default. The check stands in front of the handler, in [`check`], and costs a comparison of a few
//! names for a logged-in user. Without access control, and inside a process, nothing is asked.
//!
//! ```text
//! nobody logged in ─► open commands; the first user, from this machine, while there is none
//! logged in ─► what is asked, by the command's own rule ─► the user's privileges, as of now
//! ```
//!
//! What a pipeline touches is worked out from its text ([`pipeline`]), before it is parsed: a field
//! given twice counts twice.

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

/// Bytes of a command an error shows.
const SHOWN_BYTES_MAX: usize = 1000;

/// What stands for a value that is not shown.
const SECRET: &str = "xxx";

/// What somebody must be allowed to run a command.
#[derive(Clone, Copy)]
pub enum Authorization {
    /// Nothing: it answers before a login.
    Open,
    /// To be logged in. What is another user's, the handler refuses.
    LoggedIn,
    /// These actions on the server.
    OnCluster(&'static [Action]),
    /// These actions on the database the command is sent to.
    OnDatabase(&'static [Action]),
    /// These actions on the collection the first field names.
    OnCollection(&'static [Action]),
    /// What this rule adds up to.
    Asks(Rule),
}

impl Authorization {
    /// False for what answers before a login.
    pub fn needs_login(self) -> bool {
        !matches!(self, Self::Open)
    }
}

/// Adds up what a command asks for.
pub(crate) type Rule = fn(&Asked<'_>, &mut Needed) -> Result<()>;

/// A command and who sent it.
pub struct Asked<'a> {
    /// The database with its catalog.
    pub(crate) database: &'a Database,
    /// The database the command is sent to.
    pub(crate) db: &'a str,
    /// The command.
    pub(crate) request: &'a Request,
    /// Who asks.
    pub(crate) grants: &'a Grants,
}

impl<'a> Asked<'a> {
    /// The command itself.
    pub(crate) fn body(&self) -> DocRef<'a> {
        self.request.body.as_ref()
    }

    /// What the first field names; the database as a whole if it names no collection.
    pub(crate) fn first_target(&self) -> Target {
        let first = self.body().iter().next();
        match first.and_then(|field| field.value().as_str()) {
            Some(collection) => Target::collection(self.db, collection),
            None => Target::Database(self.db.to_owned()),
        }
    }

    /// True if the user may do this.
    pub(crate) fn may(&self, target: &Target, action: Action) -> bool {
        let actions = ActionSet::of(&[action]);
        self.grants.privileges().allows(target, actions)
    }
}

/// What a command asks for.
#[derive(Debug, Default)]
pub struct Needed(Vec<(Target, ActionSet)>);

impl Needed {
    /// These actions on `target`.
    pub(crate) fn add(&mut self, target: Target, actions: &[Action]) {
        self.0.push((target, ActionSet::of(actions)));
    }

    /// True if nothing is asked yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What nobody has but the server itself.
    pub(crate) fn add_everything(&mut self) {
        self.0.push((Target::Everything, ActionSet::ALL));
    }
}

/// Fails unless the connection may run this command. The database's name is known to be one.
pub(crate) fn check(
    database: &Database,
    session: &mut ClientSession,
    spec: &CommandSpec,
    db: &str,
    request: &Request,
) -> Result<()> {
    let services = database.services();
    if !services.access_control || session.login.is_trusted() || !spec.authorization.needs_login() {
        return Ok(());
    }
    let outcome = allowed(database, session, spec, db, request);
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
    let asked = Asked {
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
        Err(not_authorized(spec, db, &request.body))
    }
}

/// What a command asks for.
fn needed(authorization: Authorization, asked: &Asked<'_>) -> Result<Needed> {
    let mut needed = Needed::default();
    match authorization {
        Authorization::Open | Authorization::LoggedIn => {}
        Authorization::OnCluster(actions) => needed.add(Target::Cluster, actions),
        Authorization::OnDatabase(actions) => {
            needed.add(Target::Database(asked.db.to_owned()), actions);
        }
        Authorization::OnCollection(actions) => needed.add(asked.first_target(), actions),
        Authorization::Asks(rule) => rule(asked, &mut needed)?,
    }
    Ok(needed)
}

/// True if the connection may do this, of itself or because nothing is asked.
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

/// The localhost exception: as long as there is neither user nor role, whoever sits at this
/// machine may create the first in `admin`.
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

/// The user may not do this.
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

/// The command as it may be shown to others and written to logs: without its secrets.
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
