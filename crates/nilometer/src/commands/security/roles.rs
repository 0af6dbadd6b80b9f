//! Commands about roles: `createRole`, `updateRole`, `rolesInfo` and the others.
//!
//! A role belongs to a database. [`grants`] holds what these commands share with those about users.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::authorization::{AccessRequest, RequiredPrivileges};
use super::grants::{
    self, LOCAL, changing, may_grant, may_revoke, privileges, restrictions, role_names,
};
use crate::args::Args;
use crate::auth::{Action, Authority, EXTERNAL, Privilege, Role, RoleName, Target, is_builtin};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

const FIELDS: &[&str] = &["privileges", "roles", "authenticationRestrictions"];

pub(crate) const CREATE: CommandSpec = changing(
    CommandSpec::new(
        "createRole",
        "Creates a role.",
        Authorization::ByRule(may_create),
        OnRouter::Catalog,
        create,
    ),
    FIELDS,
);

pub(crate) const UPDATE: CommandSpec = changing(
    CommandSpec::new(
        "updateRole",
        "Changes a role.",
        Authorization::ByRule(may_update),
        OnRouter::Catalog,
        update,
    ),
    FIELDS,
);

pub(crate) const DROP: CommandSpec = changing(
    CommandSpec::new(
        "dropRole",
        "Removes a role, also from all users and roles that have it.",
        Authorization::OnDatabase(&[Action::DropRole]),
        OnRouter::Catalog,
        grants::drop_one::<Role>,
    ),
    &[],
);

pub(crate) const DROP_ALL: CommandSpec = changing(
    CommandSpec::new(
        "dropAllRolesFromDatabase",
        "Removes all user-defined roles of a database.",
        Authorization::OnDatabase(&[Action::DropRole]),
        OnRouter::Catalog,
        grants::drop_all::<Role>,
    ),
    &[],
);

pub(crate) const GRANT: CommandSpec = changing(
    CommandSpec::new(
        "grantRolesToRole",
        "Adds inherited roles to a role.",
        Authorization::ByRule(may_grant),
        OnRouter::Catalog,
        grants::grant::<Role>,
    ),
    &["roles"],
);

pub(crate) const REVOKE: CommandSpec = changing(
    CommandSpec::new(
        "revokeRolesFromRole",
        "Removes inherited roles from a role.",
        Authorization::ByRule(may_revoke),
        OnRouter::Catalog,
        grants::revoke::<Role>,
    ),
    &["roles"],
);

pub(crate) const GRANT_PRIVILEGES: CommandSpec = changing(
    CommandSpec::new(
        "grantPrivilegesToRole",
        "Adds privileges to a role.",
        Authorization::ByRule(may_grant),
        OnRouter::Catalog,
        grant_privileges,
    ),
    &["privileges"],
);

pub(crate) const REVOKE_PRIVILEGES: CommandSpec = changing(
    CommandSpec::new(
        "revokePrivilegesFromRole",
        "Removes privileges from a role.",
        Authorization::ByRule(may_revoke),
        OnRouter::Catalog,
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
        Authorization::ByRule(may_view),
        OnRouter::Same,
        info,
    )
};

fn may_create(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let db = Target::Database(asked.db.to_owned());
    needed.add(db.clone(), &[Action::CreateRole]);
    grants::require(asked, Action::GrantRole, needed)?;
    grants::may_restrict(asked, needed);
    Ok(())
}

/// The current privileges are revoked and the new ones granted.
fn may_update(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let db = Target::Database(asked.db.to_owned());
    needed.add(db.clone(), &[Action::RevokeRole]);
    grants::require(asked, Action::GrantRole, needed)?;
    grants::may_restrict(asked, needed);
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
        name: grants::name::<Role>("createRole", db, request)?,
        privileges: privileges(&args)?,
        roles: role_names(&args, db)?,
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
    let roles = given("roles").then(|| role_names(&args, db)).transpose()?;
    let restrictions = restrictions(&args)?;
    let name = grants::name::<Role>("updateRole", db, request)?;
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

fn grant_privileges(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("grantPrivilegesToRole", request.body.as_ref());
    let given = privileges(&args)?;
    let name = grants::name::<Role>("grantPrivilegesToRole", context.database_name(), request)?;
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
    let name = grants::name::<Role>("revokePrivilegesFromRole", context.database_name(), request)?;
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

/// Returns the roles that `rolesInfo` describes; `None` for all of the database.
fn requested_roles(db: &str, body: nilometer_bson::DocRef<'_>) -> Result<Option<Vec<RoleName>>> {
    let args = Args::new("rolesInfo", body);
    let value = args.value("rolesInfo");
    match value {
        _ if crate::args::truncated_i64(value) == Some(1) => Ok(None),
        _ => match grants::listed_names::<Role>("rolesInfo", value, db)? {
            Some(names) => Ok(Some(names)),
            None => Err(args.wrong_type("rolesInfo", value, "object")),
        },
    }
}

fn may_view(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let view = [Action::ViewRole];
    match requested_roles(asked.db, asked.body())? {
        None => needed.add(Target::Database(asked.db.to_owned()), &view),
        Some(names) => {
            // Users may view their own roles.
            let own = &asked.grants.resolved.roles;
            for name in names.iter().filter(|name| !own.contains(name)) {
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
    let show = RoleDetails {
        privileges,
        restrictions: restrictions.unwrap_or(false),
    };
    let builtin = args.boolean("showBuiltinRoles")?.unwrap_or(false);
    let names = match requested_roles(db, request.body.as_ref())? {
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
        return Ok(doc! {"userFragment": doc! {
            "roles": grants::roles_value(&names),
            "inheritedRoles": grants::roles_value(&inherited.roles),
            "inheritedPrivileges": inherited.privileges.to_value(),
        }});
    }
    let described = names
        .iter()
        .filter_map(|name| describe(authority, name, show));
    let roles: Vec<Value> = described.map(Value::from).collect();
    Ok(doc! {"roles": roles})
}

/// The optional parts of a description.
#[derive(Clone, Copy)]
struct RoleDetails {
    privileges: bool,
    restrictions: bool,
}

/// Describes a role; `None` if it does not exist.
fn describe(authority: &Authority, name: &RoleName, details: RoleDetails) -> Option<Document> {
    let own = authority.own_privileges(name)?;
    let role = authority.role(name);
    let roles = role.as_ref().map(|r| r.roles.clone()).unwrap_or_default();
    let inherited = authority.resolve_roles(&roles);
    let mut out = DocumentBuilder::new();
    out.append("_id", name.id())
        .append("role", name.role.as_str())
        .append("db", name.db.as_str())
        .append("isBuiltin", is_builtin(name))
        .append("roles", grants::roles_value(&roles))
        .append("inheritedRoles", grants::roles_value(&inherited.roles));
    if details.privileges {
        let mut all = own.clone();
        all.extend(&inherited.privileges);
        out.append("privileges", own.to_value())
            .append("inheritedPrivileges", all.to_value());
    }
    if details.restrictions {
        let own = role.as_ref().map(|role| &role.restrictions);
        out.append(
            "authenticationRestrictions",
            grants::restrictions_value(own),
        );
    }
    Some(out.finish())
}
