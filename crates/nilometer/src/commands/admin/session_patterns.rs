//! `killAllSessionsByPattern`: ends the sessions that match one of several patterns.

use nilometer_bson::{ArrayRef, DocRef, Document, ValueRef};

use super::sessions::SESSIONS_MAX;
use crate::args::Args;
use crate::auth::{Action, Authority, RoleName, Target};
use crate::commands::security::authorization::{may, not_authorized};
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::session::{SessionId, UserName};

const NAME: &str = "killAllSessionsByPattern";

pub(crate) const KILL_BY_PATTERN: CommandSpec = CommandSpec::new(
    NAME,
    "Ends the logical sessions that match patterns, and their operations.",
    Authorization::OnCluster(&[Action::KillAnySession]),
    OnRouter::Same,
    kill_by_pattern,
);

/// Selects sessions. A field that is absent selects all; of several users or roles one must be the session's.
struct Pattern<'a> {
    lsid: Option<SessionId>,
    /// The digest of the owner's name.
    uid: Option<&'a [u8]>,
    users: Option<Vec<UserName>>,
    roles: Option<Vec<RoleName>>,
}

impl<'a> Pattern<'a> {
    /// Parses `{lsid, uid, users, roles}`. `path` names the pattern in errors.
    fn parse(document: DocRef<'a>, path: &str, db: &str) -> Result<Self> {
        let args = Args::new(path.to_owned(), document);
        args.check_names(&["lsid", "roles", "uid", "users"])?;
        let lsid = args.document("lsid")?;
        let lsid = lsid
            .map(|lsid| SessionId::parse(ValueRef::Document(lsid), &format!("{path}.lsid")))
            .transpose()?;
        let uid = match args.value("uid") {
            ValueRef::Missing => None,
            ValueRef::Binary { bytes, .. } => Some(bytes),
            other => return Err(args.wrong_type("uid", other, "binData")),
        };
        let users = args.array("users")?;
        let roles = args.array("roles")?;
        let users = users.map(|users| all(users, |user| UserName::parse(user, db, path)));
        let roles = roles.map(|roles| all(roles, |role| RoleName::parse(role, db, path)));
        Ok(Self {
            lsid,
            uid,
            users: users.transpose()?,
            roles: roles.transpose()?,
        })
    }

    fn matches(&self, authority: &Authority, id: SessionId, user: Option<&UserName>) -> bool {
        let is_id = self.lsid.is_none_or(|lsid| lsid == id);
        let has_digest = |uid: &[u8]| match id.with_digest(user).get("uid") {
            ValueRef::Binary { bytes, .. } => bytes == uid,
            _ => false,
        };
        let is_named = |users: &Vec<UserName>| user.is_some_and(|user| users.contains(user));
        let has_role = |roles: &Vec<RoleName>| {
            let owner = user.and_then(|user| authority.user(user));
            owner.is_some_and(|owner| owner.roles.iter().any(|role| roles.contains(role)))
        };
        is_id
            && self.uid.is_none_or(has_digest)
            && self.users.as_ref().is_none_or(is_named)
            && self.roles.as_ref().is_none_or(has_role)
    }
}

fn all<T>(array: ArrayRef<'_>, parse: impl Fn(ValueRef<'_>) -> Result<T>) -> Result<Vec<T>> {
    array.iter().map(parse).collect()
}

fn kill_by_pattern(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new(NAME, request.body.as_ref());
    let mut patterns = Vec::new();
    for (at, value) in args.required_array(NAME)?.iter().enumerate() {
        if at == SESSIONS_MAX {
            return Err(Error::new(
                ErrorCode::InvalidLength,
                format!("{NAME} takes at most {SESSIONS_MAX} patterns"),
            ));
        }
        let path = format!("{NAME}.{NAME}.{at}");
        let Some(pattern) = value.as_document() else {
            return Err(Error::wrong_field_type(path, value, "object"));
        };
        patterns.push(Pattern::parse(pattern, &path, context.database_name())?);
    }
    let names_others = |pattern: &Pattern<'_>| pattern.users.is_some() || pattern.roles.is_some();
    if patterns.iter().any(names_others)
        && !may(
            database,
            context.session,
            &Target::Cluster,
            Action::Impersonate,
        )
    {
        let db = context.database_name();
        return Err(not_authorized(context.spec, db, &request.body));
    }
    let authority = database.authority();
    database.kill_sessions_where(Some(context.operation.id), |id, user| {
        let matches = |pattern: &Pattern<'_>| pattern.matches(authority, id, user);
        patterns.is_empty() || patterns.iter().any(matches)
    });
    Ok(Document::new())
}
