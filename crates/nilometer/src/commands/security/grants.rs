//! The parts that the commands about users and about roles share: names, lists of roles, restrictions,
//! authorization, and the commands that are the same for both ([`grant`], [`revoke`], [`drop_one`],
//! [`drop_all`]).

use nilometer_bson::{Array, Document, Value, ValueRef, doc};

use super::authorization::{AccessRequest, RequiredPrivileges};
use crate::args::Args;
use crate::auth::{
    Action, Authority, Privileges, Resource, Restrictions, Role, RoleName, Target, User, UserName,
};
use crate::commands::{Access, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

/// The database of this server's own data: it has no users and no roles.
pub(super) const LOCAL: &str = "local";

/// The field of address restrictions.
const RESTRICTIONS: &str = "authenticationRestrictions";

/// Completes the entry of a command that changes users or roles.
pub(super) const fn changing(spec: CommandSpec, fields: &'static [&'static str]) -> CommandSpec {
    CommandSpec {
        access: Access::Write,
        write_concern: true,
        fields: Fields::Only(fields),
        ..spec
    }
}

/// A user or a role: something that has roles.
pub(super) trait Grantee {
    type Name;

    fn parse_name(value: ValueRef<'_>, db: &str, path: &str) -> Result<Self::Name>;

    /// Changes the roles it has.
    fn change_roles(
        authority: &Authority,
        name: &Self::Name,
        change: impl FnOnce(&mut Vec<RoleName>),
    ) -> Result<()>;

    fn drop_one(authority: &Authority, name: &Self::Name) -> Result<()>;

    /// Drops all of a database; returns their number.
    fn drop_all(authority: &Authority, db: &str) -> Result<usize>;
}

impl Grantee for User {
    type Name = UserName;

    fn parse_name(value: ValueRef<'_>, db: &str, path: &str) -> Result<UserName> {
        UserName::parse(value, db, path)
    }

    fn change_roles(
        authority: &Authority,
        name: &UserName,
        change: impl FnOnce(&mut Vec<RoleName>),
    ) -> Result<()> {
        authority.change_user(name, |user| {
            change(&mut user.roles);
            Ok(())
        })
    }

    fn drop_one(authority: &Authority, name: &UserName) -> Result<()> {
        authority.drop_user(name)
    }

    fn drop_all(authority: &Authority, db: &str) -> Result<usize> {
        authority.drop_users(db)
    }
}

impl Grantee for Role {
    type Name = RoleName;

    fn parse_name(value: ValueRef<'_>, db: &str, path: &str) -> Result<RoleName> {
        RoleName::parse(value, db, path)
    }

    fn change_roles(
        authority: &Authority,
        name: &RoleName,
        change: impl FnOnce(&mut Vec<RoleName>),
    ) -> Result<()> {
        authority.change_role(name, |role| {
            change(&mut role.roles);
            Ok(())
        })
    }

    fn drop_one(authority: &Authority, name: &RoleName) -> Result<()> {
        authority.drop_role(name)
    }

    fn drop_all(authority: &Authority, db: &str) -> Result<usize> {
        authority.drop_roles(db)
    }
}

/// Returns the user or role that the first field of `command` names, in the command's database by default.
pub(super) fn name<G: Grantee>(command: &str, db: &str, request: &Request) -> Result<G::Name> {
    let args = Args::new(command, request.body.as_ref());
    args.command_target(command)?;
    let path = format!("{command}.{command}");
    G::parse_name(args.value(command), db, &path)
}

/// Returns the names in the first field of an info command: one or an array; `None` for another value.
pub(super) fn listed_names<G: Grantee>(
    command: &str,
    value: ValueRef<'_>,
    db: &str,
) -> Result<Option<Vec<G::Name>>> {
    let path = format!("{command}.{command}");
    let parse = |value| G::parse_name(value, db, &path);
    match value {
        ValueRef::Array(array) => array.iter().map(parse).collect::<Result<_>>().map(Some),
        ValueRef::String(_) | ValueRef::Document(_) => Ok(Some(vec![parse(value)?])),
        _ => Ok(None),
    }
}

/// Returns the roles in the required field `roles`, each once.
pub(super) fn role_names(args: &Args<'_>, db: &str) -> Result<Vec<RoleName>> {
    let path = format!("{}.roles", args.path());
    let mut names = Vec::new();
    for value in args.required_array("roles")?.iter() {
        add_missing(&mut names, [RoleName::parse(value, db, &path)?]);
    }
    Ok(names)
}

/// Adds the roles that are not in the list yet.
fn add_missing(roles: &mut Vec<RoleName>, new: impl IntoIterator<Item = RoleName>) {
    for role in new {
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
}

/// Returns the privileges in the required field `privileges`.
pub(super) fn privileges(args: &Args<'_>) -> Result<Privileges> {
    let array = args.required_array("privileges")?;
    let array = Array::from_document(array.as_document().to_document());
    Privileges::parse(&array, &format!("{}.privileges", args.path()))
}

/// Returns the addresses that logins are restricted to.
pub(super) fn restrictions(args: &Args<'_>) -> Result<Restrictions> {
    Restrictions::parse(
        args.value(RESTRICTIONS),
        &format!("{}.{RESTRICTIONS}", args.path()),
    )
}

/// Restrictions as info commands show them; an empty array without any.
pub(super) fn restrictions_value(restrictions: Option<&Restrictions>) -> Value {
    let own = restrictions.map(Restrictions::to_value);
    let own = own.filter(|value| !value.is_missing());
    own.unwrap_or_else(|| Value::from(Vec::<Value>::new()))
}

/// Roles as info commands show them.
pub(super) fn roles_value(names: &[RoleName]) -> Vec<Value> {
    names
        .iter()
        .map(|name| Value::from(name.to_document()))
        .collect()
}

/// Requires `grantRole` on the database of each role and privilege that the command names.
pub(super) fn may_grant(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    require(asked, Action::GrantRole, needed)?;
    require_any(asked, Action::GrantRole, needed);
    Ok(())
}

/// Requires `revokeRole` on the database of each role and privilege that the command names.
pub(super) fn may_revoke(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    require(asked, Action::RevokeRole, needed)?;
    require_any(asked, Action::RevokeRole, needed);
    Ok(())
}

/// Requires the right to set address restrictions, if the command sets any.
pub(super) fn may_restrict(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) {
    if asked.body().contains(RESTRICTIONS) {
        let db = Target::Database(asked.db.to_owned());
        needed.add(db, &[Action::SetAuthenticationRestriction]);
    }
}

/// Requires `action` on the database of each role and privilege that the command names.
pub(super) fn require(
    asked: &AccessRequest<'_>,
    action: Action,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let args = Args::new("roles", asked.body());
    let mut databases: Vec<String> = Vec::new();
    if args.document_ref().contains("roles") {
        let names = role_names(&args, asked.db)?;
        databases.extend(names.into_iter().map(|name| name.db));
    }
    if args.document_ref().contains("privileges") {
        let privileges = privileges(&args)?;
        let all = privileges.iter();
        databases.extend(all.map(|p| database_of(&p.resource).to_owned()));
    }
    databases.sort();
    databases.dedup();
    for db in databases {
        needed.add(Target::Database(db), &[action]);
    }
    Ok(())
}

/// Requires `action` on the command's database if nothing else is required: an empty list is refused to
/// users who could not grant.
fn require_any(asked: &AccessRequest<'_>, action: Action, needed: &mut RequiredPrivileges) {
    if needed.is_empty() {
        needed.add(Target::Database(asked.db.to_owned()), &[action]);
    }
}

/// Returns the database whose administrator decides on a privilege on `resource`.
fn database_of(resource: &Resource) -> &str {
    match resource {
        Resource::Named { db, .. } | Resource::Buckets { db, .. } if !db.is_empty() => db,
        _ => "admin",
    }
}

/// `grantRolesToUser` and `grantRolesToRole`.
pub(super) fn grant<G: Grantee>(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    change_roles::<G>(database, context, request, |roles, granted| {
        add_missing(roles, granted);
    })
}

/// `revokeRolesFromUser` and `revokeRolesFromRole`.
pub(super) fn revoke<G: Grantee>(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    change_roles::<G>(database, context, request, |roles, revoked| {
        roles.retain(|role| !revoked.contains(role));
    })
}

fn change_roles<G: Grantee>(
    database: &Database,
    context: &CommandContext<'_>,
    request: &Request,
    change: impl FnOnce(&mut Vec<RoleName>, Vec<RoleName>),
) -> Result<Document> {
    let command = context.spec.name;
    let db = context.database_name();
    let args = Args::new(command, request.body.as_ref());
    let name = name::<G>(command, db, request)?;
    let listed = role_names(&args, db)?;
    G::change_roles(database.authority(), &name, |roles| change(roles, listed))?;
    Ok(Document::new())
}

/// `dropUser` and `dropRole`.
pub(super) fn drop_one<G: Grantee>(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let name = name::<G>(context.spec.name, context.database_name(), request)?;
    G::drop_one(database.authority(), &name)?;
    Ok(Document::new())
}

/// `dropAllUsersFromDatabase` and `dropAllRolesFromDatabase`.
pub(super) fn drop_all<G: Grantee>(
    database: &Database,
    context: &mut CommandContext<'_>,
    _: &Request,
) -> Result<Document> {
    let dropped = G::drop_all(database.authority(), context.database_name())?;
    Ok(doc! {"n": i32::try_from(dropped).unwrap_or(i32::MAX)})
}
