//! `createRole` and its kind: roles of the database the command is sent to.

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, doc};

use super::authorization::{Asked, Needed};
use super::users::changing;
use crate::args::Args;
use crate::auth::{
    Action, Authority, EXTERNAL, Privilege, Privileges, Resource, Restrictions, Role, RoleName,
    Target, is_builtin,
};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

/// The database of what belongs to this server alone: nobody is known there.
pub(crate) const LOCAL: &str = "local";

const FIELDS: &[&str] = &["privileges", "roles", "authenticationRestrictions"];

pub(crate) const CREATE: CommandSpec = changing(
    CommandSpec::new(
        "createRole",
        "Creates a role.",
        Authorization::Asks(may_create),
        create,
    ),
    FIELDS,
);

pub(crate) const UPDATE: CommandSpec = changing(
    CommandSpec::new(
        "updateRole",
        "Changes a role.",
        Authorization::Asks(may_update),
        update,
    ),
    FIELDS,
);

pub(crate) const DROP: CommandSpec = changing(
    CommandSpec::new(
        "dropRole",
        "Removes a role, also from all users and roles that have it.",
        Authorization::OnDatabase(&[Action::DropRole]),
        drop_one,
    ),
    &[],
);

pub(crate) const DROP_ALL: CommandSpec = changing(
    CommandSpec::new(
        "dropAllRolesFromDatabase",
        "Removes all user-defined roles of a database.",
        Authorization::OnDatabase(&[Action::DropRole]),
        drop_all,
    ),
    &[],
);

pub(crate) const GRANT: CommandSpec = changing(
    CommandSpec::new(
        "grantRolesToRole",
        "Adds inherited roles to a role.",
        Authorization::Asks(may_grant),
        grant,
    ),
    &["roles"],
);

pub(crate) const REVOKE: CommandSpec = changing(
    CommandSpec::new(
        "revokeRolesFromRole",
        "Removes inherited roles from a role.",
        Authorization::Asks(may_revoke),
        revoke,
    ),
    &["roles"],
);

pub(crate) const GRANT_PRIVILEGES: CommandSpec = changing(
    CommandSpec::new(
        "grantPrivilegesToRole",
        "Adds privileges to a role.",
        Authorization::Asks(may_grant),
        grant_privileges,
    ),
    &["privileges"],
);

pub(crate) const REVOKE_PRIVILEGES: CommandSpec = changing(
    CommandSpec::new(
        "revokePrivilegesFromRole",
        "Removes privileges from a role.",
        Authorization::Asks(may_revoke),
        revoke_privileges,
    ),
    &["privileges"],
);

pub(crate) const INFO: CommandSpec = CommandSpec {
    access: Access::Read,
    fields: Fields::Only(&[
        "showAuthenticationRestrictions",
        "showBuiltinRoles",
        "showPrivileges",
    ]),
    ..CommandSpec::new(
        "rolesInfo",
        "Returns information about roles.",
        Authorization::Asks(may_view),
        info,
    )
};

/// The role the first field names, of the command's database.
fn name(command: &str, db: &str, request: &Request) -> Result<RoleName> {
    let args = Args::new(command, request.body.as_ref());
    args.command_target(command)?;
    let path = format!("{command}.{command}");
    RoleName::parse(args.value(command), db, &path)
}

/// Adds the roles that are not there yet.
pub(crate) fn add_missing(roles: &mut Vec<RoleName>, given: Vec<RoleName>) {
    for role in given {
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
}

/// The roles the field `field` lists; it must be there.
pub(crate) fn role_names(args: &Args<'_>, field: &str, db: &str) -> Result<Vec<RoleName>> {
    let path = format!("{}.{field}", args.path());
    let mut names = Vec::new();
    for value in args.required_array(field)?.iter() {
        let name = RoleName::parse(value, db, &path)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// From where somebody may log in, if the command says so.
pub(crate) fn restrictions(args: &Args<'_>) -> Result<Restrictions> {
    const FIELD: &str = "authenticationRestrictions";
    Restrictions::parse(args.value(FIELD), &format!("{}.{FIELD}", args.path()))
}

/// The privileges the field `privileges` lists; it must be there.
fn privileges(args: &Args<'_>) -> Result<Privileges> {
    let array = args.required_array("privileges")?;
    let array = Array::from_document(array.as_document().to_document());
    Privileges::parse(&array, &format!("{}.privileges", args.path()))
}

/// The database whose administrator decides about a privilege on `resource`.
fn database_of(resource: &Resource) -> &str {
    match resource {
        Resource::Named { db, .. } | Resource::Buckets { db, .. } if !db.is_empty() => db,
        _ => "admin",
    }
}

/// Asks for `action` on the database of each role and privilege the command names.
fn ask_for(asked: &Asked<'_>, action: Action, needed: &mut Needed) -> Result<()> {
    let args = Args::new("roles", asked.body());
    let mut databases: Vec<String> = Vec::new();
    if args.document_ref().contains("roles") {
        let names = role_names(&args, "roles", asked.db)?;
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

/// To give a role takes leave of the database it belongs to.
pub(crate) fn may_grant(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    ask_for(asked, Action::GrantRole, needed)?;
    ask_at_least(asked, Action::GrantRole, needed);
    Ok(())
}

/// To take a role does, too.
pub(crate) fn may_revoke(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    ask_for(asked, Action::RevokeRole, needed)?;
    ask_at_least(asked, Action::RevokeRole, needed);
    Ok(())
}

/// An empty list asks for nothing; whoever sends one must still be somebody who could.
fn ask_at_least(asked: &Asked<'_>, action: Action, needed: &mut Needed) {
    if needed.is_empty() {
        needed.add(Target::Database(asked.db.to_owned()), &[action]);
    }
}

fn may_create(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    let db = Target::Database(asked.db.to_owned());
    needed.add(db.clone(), &[Action::CreateRole]);
    ask_for(asked, Action::GrantRole, needed)?;
    if asked.body().contains("authenticationRestrictions") {
        needed.add(db, &[Action::SetAuthenticationRestriction]);
    }
    Ok(())
}

/// What the role had is taken away, and what it gets is given.
fn may_update(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    let db = Target::Database(asked.db.to_owned());
    needed.add(db.clone(), &[Action::RevokeRole]);
    ask_for(asked, Action::GrantRole, needed)?;
    if asked.body().contains("authenticationRestrictions") {
        needed.add(db, &[Action::SetAuthenticationRestriction]);
    }
    Ok(())
}

fn create(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("createRole", request.body.as_ref());
    let db = context.database_name();
    if db == EXTERNAL || db == LOCAL {
        let text = format!("Cannot create roles in the {db} database");
        return Err(Error::bad_value(text));
    }
    database.authority().create_role(Role {
        name: name("createRole", db, request)?,
        privileges: privileges(&args)?,
        roles: role_names(&args, "roles", db)?,
        restrictions: restrictions(&args)?,
    })?;
    Ok(Document::new())
}

fn update(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("updateRole", request.body.as_ref());
    let db = context.database_name();
    let given = |field: &str| args.document_ref().contains(field);
    if !FIELDS.iter().any(|field| given(field)) {
        return Err(Error::bad_value(
            "updateRole must specify at least one of privileges, roles and authenticationRestrictions",
        ));
    }
    let fresh = given("privileges").then(|| privileges(&args)).transpose()?;
    let roles = given("roles")
        .then(|| role_names(&args, "roles", db))
        .transpose()?;
    let restrictions = restrictions(&args)?;
    let name = name("updateRole", db, request)?;
    database.authority().change_role(&name, |role| {
        if let Some(fresh) = fresh {
            role.privileges = fresh;
        }
        if let Some(roles) = roles {
            role.roles = roles;
        }
        if given("authenticationRestrictions") {
            role.restrictions = restrictions;
        }
        Ok(())
    })?;
    Ok(Document::new())
}

fn drop_one(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let name = name("dropRole", context.database_name(), request)?;
    database.authority().drop_role(&name)?;
    Ok(Document::new())
}

fn drop_all(
    database: &Database,
    context: &mut CommandContext<'_>,
    _: &Request,
) -> Result<Document> {
    let dropped = database.authority().drop_roles(context.database_name())?;
    Ok(doc! {"n": i32::try_from(dropped).unwrap_or(i32::MAX)})
}

fn grant(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("grantRolesToRole", request.body.as_ref());
    let db = context.database_name();
    let given = role_names(&args, "roles", db)?;
    let name = name("grantRolesToRole", db, request)?;
    database.authority().change_role(&name, |role| {
        add_missing(&mut role.roles, given);
        Ok(())
    })?;
    Ok(Document::new())
}

fn revoke(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("revokeRolesFromRole", request.body.as_ref());
    let db = context.database_name();
    let taken = role_names(&args, "roles", db)?;
    let name = name("revokeRolesFromRole", db, request)?;
    database.authority().change_role(&name, |role| {
        role.roles.retain(|other| !taken.contains(other));
        Ok(())
    })?;
    Ok(Document::new())
}

fn grant_privileges(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("grantPrivilegesToRole", request.body.as_ref());
    let given = privileges(&args)?;
    let name = name("grantPrivilegesToRole", context.database_name(), request)?;
    database.authority().change_role(&name, |role| {
        role.privileges.extend(&given);
        Ok(())
    })?;
    Ok(Document::new())
}

fn revoke_privileges(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("revokePrivilegesFromRole", request.body.as_ref());
    let taken = privileges(&args)?;
    let name = name("revokePrivilegesFromRole", context.database_name(), request)?;
    database.authority().change_role(&name, |role| {
        for Privilege { resource, actions } in taken.iter() {
            if !role.privileges.revoke(resource, *actions) {
                return Err(Error::new(
                    ErrorCode::PrivilegeNotFound,
                    format!(
                        "Role: {name} does not contain any privileges on {}",
                        nilometer_bson::extjson::value_to_relaxed(ValueRef::Document(
                            resource.to_document().as_ref()
                        ))
                    ),
                ));
            }
        }
        Ok(())
    })?;
    Ok(Document::new())
}

/// Which roles a `rolesInfo` is about; `None` is all of the database.
fn wanted(db: &str, body: nilometer_bson::DocRef<'_>) -> Result<Option<Vec<RoleName>>> {
    const PATH: &str = "rolesInfo.rolesInfo";
    let args = Args::new("rolesInfo", body);
    let value = args.value("rolesInfo");
    match value {
        ValueRef::Array(array) => {
            let names = array.iter().map(|v| RoleName::parse(v, db, PATH));
            names.collect::<Result<_>>().map(Some)
        }
        ValueRef::String(_) | ValueRef::Document(_) => {
            Ok(Some(vec![RoleName::parse(value, db, PATH)?]))
        }
        _ if crate::args::truncated_i64(value) == Some(1) => Ok(None),
        other => Err(args.wrong_type("rolesInfo", other, "object")),
    }
}

fn may_view(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    let view = [Action::ViewRole];
    match wanted(asked.db, asked.body())? {
        None => needed.add(Target::Database(asked.db.to_owned()), &view),
        Some(names) => {
            // Everybody may look at what they have.
            let held = &asked.grants.resolved.roles;
            for name in names.iter().filter(|name| !held.contains(name)) {
                needed.add(Target::Database(name.db.clone()), &view);
            }
        }
    }
    Ok(())
}

fn info(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("rolesInfo", request.body.as_ref());
    let db = context.database_name();
    let authority = database.authority();
    let (privileges, as_fragment) = match args.value("showPrivileges") {
        ValueRef::String("asUserFragment") => (true, true),
        _ => (args.boolean("showPrivileges")?.unwrap_or(false), false),
    };
    let restrictions = args.boolean("showAuthenticationRestrictions")?;
    let show = Shown {
        privileges,
        restrictions: restrictions.unwrap_or(false),
    };
    let builtin = args.boolean("showBuiltinRoles")?.unwrap_or(false);
    let names = match wanted(db, request.body.as_ref())? {
        Some(names) => names,
        None => {
            let mut names: Vec<_> = authority
                .roles(Some(db))
                .iter()
                .map(|r| r.name.clone())
                .collect();
            if builtin {
                names.extend(authority.builtin_roles(db));
            }
            names
        }
    };
    if as_fragment {
        let inherited = authority.resolve_roles(&names);
        let list = |names: &[RoleName]| {
            let documents = names.iter().map(|n| Value::from(n.to_document()));
            documents.collect::<Vec<_>>()
        };
        return Ok(doc! {"userFragment": doc! {
            "roles": list(&names),
            "inheritedRoles": list(&inherited.roles),
            "inheritedPrivileges": inherited.privileges.to_value(),
        }});
    }
    let described = names
        .iter()
        .filter_map(|name| describe(authority, name, show));
    let roles: Vec<Value> = described.map(Value::from).collect();
    Ok(doc! {"roles": roles})
}

/// What is told of a role.
#[derive(Clone, Copy)]
struct Shown {
    privileges: bool,
    restrictions: bool,
}

/// `None` if there is no such role.
fn describe(authority: &Authority, name: &RoleName, shown: Shown) -> Option<Document> {
    let own = authority.own_privileges(name)?;
    let role = authority.role(name);
    let roles = role.as_ref().map(|r| r.roles.clone()).unwrap_or_default();
    let inherited = authority.resolve_roles(&roles);
    let list = |names: &[RoleName]| {
        let documents = names.iter().map(|n| Value::from(n.to_document()));
        documents.collect::<Vec<_>>()
    };
    let mut out = DocumentBuilder::new();
    out.append("_id", name.id())
        .append("role", name.role.as_str())
        .append("db", name.db.as_str())
        .append("isBuiltin", is_builtin(name))
        .append("roles", list(&roles))
        .append("inheritedRoles", list(&inherited.roles));
    if shown.privileges {
        let mut all = own.clone();
        all.extend(&inherited.privileges);
        out.append("privileges", own.to_value())
            .append("inheritedPrivileges", all.to_value());
    }
    if shown.restrictions {
        let own = role.as_ref().map(|r| r.restrictions.to_value());
        let none = || Value::from(Vec::<Value>::new());
        let own = own.filter(|v| !v.is_missing()).unwrap_or_else(none);
        out.append("authenticationRestrictions", own);
    }
    Some(out.finish())
}
