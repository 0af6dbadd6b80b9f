//! `createUser` and its kind: users of the database the command is sent to.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::authorization::{Asked, Needed};
use super::roles::{LOCAL, add_missing, restrictions, role_names};
use crate::args::Args;
use crate::auth::{self, Action, Credentials, EXTERNAL, Mechanism, Target, User, UserName};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};
use crate::operation::Request;
use crate::parameters::Parameters;

/// An entry for a command that changes users or roles.
pub(crate) const fn changing(spec: CommandSpec, fields: &'static [&'static str]) -> CommandSpec {
    CommandSpec {
        access: Access::Write,
        write_concern: true,
        fields: Fields::Only(fields),
        ..spec
    }
}

const FIELDS: &[&str] = &[
    "pwd",
    "customData",
    "roles",
    "digestPassword",
    "mechanisms",
    "authenticationRestrictions",
];

pub(crate) const CREATE: CommandSpec = CommandSpec {
    secrets: &["pwd"],
    ..changing(
        CommandSpec::new(
            "createUser",
            "Creates a user.",
            Authorization::Asks(may_create),
            create,
        ),
        FIELDS,
    )
};

pub(crate) const UPDATE: CommandSpec = CommandSpec {
    secrets: &["pwd"],
    ..changing(
        CommandSpec::new(
            "updateUser",
            "Changes a user.",
            Authorization::Asks(may_update),
            update,
        ),
        FIELDS,
    )
};

pub(crate) const DROP: CommandSpec = changing(
    CommandSpec::new(
        "dropUser",
        "Removes a user.",
        Authorization::OnDatabase(&[Action::DropUser]),
        drop_one,
    ),
    &[],
);

pub(crate) const DROP_ALL: CommandSpec = changing(
    CommandSpec::new(
        "dropAllUsersFromDatabase",
        "Removes all users of a database.",
        Authorization::OnDatabase(&[Action::DropUser]),
        drop_all,
    ),
    &[],
);

pub(crate) const GRANT: CommandSpec = changing(
    CommandSpec::new(
        "grantRolesToUser",
        "Adds roles to a user.",
        Authorization::Asks(super::roles::may_grant),
        grant,
    ),
    &["roles"],
);

pub(crate) const REVOKE: CommandSpec = changing(
    CommandSpec::new(
        "revokeRolesFromUser",
        "Removes roles from a user.",
        Authorization::Asks(super::roles::may_revoke),
        revoke,
    ),
    &["roles"],
);

pub(crate) const INFO: CommandSpec = CommandSpec {
    access: Access::Read,
    fields: Fields::Only(&[
        "showAuthenticationRestrictions",
        "showCredentials",
        "showCustomData",
        "showPrivileges",
        "filter",
    ]),
    ..CommandSpec::new(
        "usersInfo",
        "Returns information about users.",
        Authorization::Asks(may_view),
        info,
    )
};

/// The user the first field names, of the command's database.
fn name(command: &str, db: &str, request: &Request) -> Result<UserName> {
    let args = Args::new(command, request.body.as_ref());
    args.command_target(command)?;
    let path = format!("{command}.{command}");
    UserName::parse(args.value(command), db, &path)
}

fn may_create(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    let db = Target::Database(asked.db.to_owned());
    needed.add(db.clone(), &[Action::CreateUser]);
    super::roles::may_grant(asked, needed)?;
    if asked.body().contains("authenticationRestrictions") {
        needed.add(db, &[Action::SetAuthenticationRestriction]);
    }
    Ok(())
}

fn may_update(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    let name = name("updateUser", asked.db, asked.request)?;
    let db = Target::Database(asked.db.to_owned());
    let is_own = asked.grants.user.name == name;
    let body = asked.body();
    for (field, own, others) in [
        ("pwd", Action::ChangeOwnPassword, Action::ChangePassword),
        (
            "customData",
            Action::ChangeOwnCustomData,
            Action::ChangeCustomData,
        ),
    ] {
        if body.contains(field) && !(is_own && asked.may(&db, own)) {
            needed.add(db.clone(), &[others]);
        }
    }
    if body.contains("mechanisms") {
        needed.add(db.clone(), &[Action::ChangePassword]);
    }
    if body.contains("roles") {
        super::roles::may_grant(asked, needed)?;
        // What the user has now is taken away.
        let held = asked.database.authority().user(&name);
        for role in held.iter().flat_map(|user| &user.roles) {
            let db = Target::Database(role.db.clone());
            needed.add(db, &[Action::RevokeRole]);
        }
    }
    if body.contains("authenticationRestrictions") {
        needed.add(db, &[Action::SetAuthenticationRestriction]);
    }
    Ok(())
}

fn create(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("createUser", request.body.as_ref());
    let db = context.database_name();
    if db == LOCAL {
        return Err(Error::bad_value(
            "Cannot create users in the local database",
        ));
    }
    let name = name("createUser", db, request)?;
    let roles = role_names(&args, "roles", db)?;
    let password = args.string("pwd")?;
    let credentials = match (password, db == EXTERNAL) {
        (Some(password), false) => {
            credentials(&args, &name, password, &database.services().parameters)?
        }
        (None, true) => {
            for field in ["mechanisms", "digestPassword"] {
                if args.document_ref().contains(field) {
                    return Err(Error::bad_value(format!(
                        "'{field}' is for users with a password, which those of $external have not"
                    )));
                }
            }
            Vec::new()
        }
        (None, false) => {
            return Err(Error::bad_value(
                "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db",
            ));
        }
        (Some(_), true) => {
            return Err(Error::bad_value(
                "Cannot set the password for users defined on the '$external' database",
            ));
        }
    };
    database.authority().create_user(User {
        name,
        id: database.services().ids.uuid(),
        credentials,
        roles,
        custom_data: args.document("customData")?.map(|d| d.to_document()),
        restrictions: restrictions(&args)?,
    })?;
    Ok(Document::new())
}

/// What is kept of a password, for each mechanism asked for.
fn credentials(
    args: &Args<'_>,
    name: &UserName,
    password: &str,
    parameters: &Parameters,
) -> Result<Vec<(Mechanism, Credentials)>> {
    if password.is_empty() {
        return Err(Error::bad_value("Password cannot be empty"));
    }
    let digests = args.boolean("digestPassword")?.unwrap_or(true);
    let wanted = match mechanisms(args)? {
        Some(wanted) => wanted,
        None if digests => Mechanism::ALL.to_vec(),
        None => vec![Mechanism::Sha1],
    };
    let mut all = Vec::new();
    for mechanism in wanted {
        let (prepared, iterations) = match mechanism {
            Mechanism::Sha1 if !digests => {
                (password.to_owned(), parameters.scram_iteration_count())
            }
            Mechanism::Sha256 if !digests => {
                return Err(Error::bad_value(
                    "Use of SCRAM-SHA-256 requires undigested passwords",
                ));
            }
            Mechanism::Sha1 => (
                mechanism.prepare(&name.user, password)?,
                parameters.scram_iteration_count(),
            ),
            Mechanism::Sha256 => (
                mechanism.prepare(&name.user, password)?,
                parameters.scram_sha256_iteration_count(),
            ),
        };
        let random = auth::random_bytes::<32>()?;
        let salt = random.get(..mechanism.salt_bytes()).unwrap_or(&random);
        let iterations = u32::try_from(iterations).unwrap_or(u32::MAX);
        let derived = Credentials::derive(mechanism, &prepared, salt, iterations);
        all.push((mechanism, derived));
    }
    Ok(all)
}

/// The `mechanisms` asked for.
fn mechanisms(args: &Args<'_>) -> Result<Option<Vec<Mechanism>>> {
    let Some(array) = args.array("mechanisms")? else {
        return Ok(None);
    };
    let mut all = Vec::new();
    for value in array.iter() {
        let mechanism = value.as_str().and_then(Mechanism::from_name);
        let Some(mechanism) = mechanism else {
            return Err(Error::bad_value(format!(
                "'mechanisms' can hold SCRAM-SHA-1 and SCRAM-SHA-256, not {}",
                nilometer_bson::extjson::value_to_relaxed(value)
            )));
        };
        if !all.contains(&mechanism) {
            all.push(mechanism);
        }
    }
    if all.is_empty() {
        return Err(Error::bad_value("mechanisms field must not be empty"));
    }
    Ok(Some(all))
}

fn update(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("updateUser", request.body.as_ref());
    let db = context.database_name();
    let name = name("updateUser", db, request)?;
    let given = |field: &str| args.document_ref().contains(field);
    let changes = |field: &&str| *field != "digestPassword" && given(field);
    if !FIELDS.iter().any(changes) {
        return Err(Error::bad_value(
            "Must specify at least one field to update in updateUser",
        ));
    }
    let roles = match given("roles") {
        true => Some(role_names(&args, "roles", db)?),
        false => None,
    };
    let password = args.string("pwd")?;
    if password.is_some() && db == EXTERNAL {
        return Err(Error::bad_value(
            "Cannot set the password for users defined on the '$external' database",
        ));
    }
    let fresh = match password {
        Some(password) => Some(credentials(
            &args,
            &name,
            password,
            &database.services().parameters,
        )?),
        None => None,
    };
    let kept = mechanisms(&args)?.filter(|_| fresh.is_none());
    let custom_data = args.document("customData")?.map(|d| d.to_document());
    let restrictions = restrictions(&args)?;
    database.authority().change_user(&name, |user| {
        if let Some(fresh) = fresh {
            user.credentials = fresh;
        }
        if let Some(kept) = kept {
            // Without the password nothing new can be made.
            let has = |m: &Mechanism| user.credentials.iter().any(|(had, _)| had == m);
            if !kept.iter().all(has) {
                return Err(Error::bad_value(
                    "mechanisms field must be a subset of previously set mechanisms",
                ));
            }
            user.credentials.retain(|(had, _)| kept.contains(had));
        }
        if let Some(roles) = roles {
            user.roles = roles;
        }
        if let Some(custom_data) = custom_data {
            user.custom_data = Some(custom_data);
        }
        if given("authenticationRestrictions") {
            user.restrictions = restrictions;
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
    let name = name("dropUser", context.database_name(), request)?;
    database.authority().drop_user(&name)?;
    Ok(Document::new())
}

fn drop_all(
    database: &Database,
    context: &mut CommandContext<'_>,
    _: &Request,
) -> Result<Document> {
    let dropped = database.authority().drop_users(context.database_name())?;
    Ok(doc! {"n": i32::try_from(dropped).unwrap_or(i32::MAX)})
}

fn grant(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("grantRolesToUser", request.body.as_ref());
    let db = context.database_name();
    let name = name("grantRolesToUser", db, request)?;
    let roles = role_names(&args, "roles", db)?;
    database.authority().change_user(&name, |user| {
        add_missing(&mut user.roles, roles);
        Ok(())
    })?;
    Ok(Document::new())
}

fn revoke(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("revokeRolesFromUser", request.body.as_ref());
    let db = context.database_name();
    let name = name("revokeRolesFromUser", db, request)?;
    let roles = role_names(&args, "roles", db)?;
    database.authority().change_user(&name, |user| {
        user.roles.retain(|role| !roles.contains(role));
        Ok(())
    })?;
    Ok(Document::new())
}

/// Which users a `usersInfo` is about.
enum Wanted {
    /// All of one database, or of all.
    All(Option<String>),
    /// These.
    Named(Vec<UserName>),
}

impl Wanted {
    fn parse(db: &str, body: nilometer_bson::DocRef<'_>) -> Result<Self> {
        const PATH: &str = "usersInfo.usersInfo";
        let args = Args::new("usersInfo", body);
        let value = args.value("usersInfo");
        match value {
            ValueRef::Document(d) if d.contains("forAllDBs") => {
                let nested = args.nested("usersInfo", &["forAllDBs"])?;
                match nested.map(|n| n.boolean("forAllDBs")).transpose()? {
                    Some(Some(true)) => Ok(Self::All(None)),
                    _ => Err(Error::bad_value(
                        "'usersInfo.usersInfo.forAllDBs' can only be true",
                    )),
                }
            }
            ValueRef::Array(array) => {
                let names = array.iter().map(|v| UserName::parse(v, db, PATH));
                Ok(Self::Named(names.collect::<Result<_>>()?))
            }
            ValueRef::String(_) | ValueRef::Document(_) => {
                Ok(Self::Named(vec![UserName::parse(value, db, PATH)?]))
            }
            _ if crate::args::truncated_i64(value) == Some(1) => Ok(Self::All(Some(db.to_owned()))),
            other => Err(args.wrong_type("usersInfo", other, "object")),
        }
    }
}

fn may_view(asked: &Asked<'_>, needed: &mut Needed) -> Result<()> {
    let view = [Action::ViewUser];
    match Wanted::parse(asked.db, asked.body())? {
        Wanted::All(Some(db)) => needed.add(Target::Database(db), &view),
        Wanted::All(None) => {
            for user in asked.database.authority().users(None) {
                needed.add(Target::Database(user.name.db.clone()), &view);
            }
            needed.add(Target::Database("admin".to_owned()), &view);
        }
        Wanted::Named(names) => {
            // Everybody may look at themselves.
            for name in names.iter().filter(|n| **n != asked.grants.user.name) {
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
    let args = Args::new("usersInfo", request.body.as_ref());
    let db = context.database_name();
    let flag = |name: &str, default: bool| args.boolean(name).map(|given| given.unwrap_or(default));
    let shown = Shown {
        credentials: flag("showCredentials", false)?,
        custom_data: flag("showCustomData", true)?,
        privileges: flag("showPrivileges", false)?,
        restrictions: flag("showAuthenticationRestrictions", false)?,
    };
    let filter = match args.document("filter")? {
        Some(filter) => Some(MatchExpression::parse(filter, &ParseContext::default())?),
        None => None,
    };
    let authority = database.authority();
    let users = match Wanted::parse(db, request.body.as_ref())? {
        Wanted::All(db) if shown.privileges => {
            return Err(Error::bad_value(format!(
                "Privilege or restriction details require exact-match usersInfo queries, not all users of {}",
                db.as_deref().unwrap_or("all databases")
            )));
        }
        Wanted::All(db) => authority.users(db.as_deref()),
        Wanted::Named(names) => names.iter().filter_map(|n| authority.user(n)).collect(),
    };
    let mut listed: Vec<Value> = Vec::new();
    for user in users {
        let described = describe(database, &user, shown);
        let evaluation = EvalContext {
            now_ms: context.operation.now_ms,
            ..EvalContext::default()
        };
        let passes = match &filter {
            Some(filter) => filter.matches(described.as_ref(), &evaluation)?,
            None => true,
        };
        if passes {
            listed.push(described.into());
        }
    }
    Ok(doc! {"users": listed})
}

/// What is told of a user.
#[derive(Clone, Copy)]
struct Shown {
    credentials: bool,
    custom_data: bool,
    privileges: bool,
    restrictions: bool,
}

fn describe(database: &Database, user: &User, shown: Shown) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", user.name.id())
        .append("userId", user.user_id())
        .append("user", user.name.user.as_str())
        .append("db", user.name.db.as_str());
    if shown.credentials {
        out.append("credentials", user.credentials_value());
    }
    if shown.custom_data {
        out.append("customData", user.custom_data.clone());
    }
    out.append("roles", user.roles_value());
    if shown.privileges {
        let inherited = database.authority().resolve_roles(&user.roles);
        let roles = inherited.roles.iter().map(|r| Value::from(r.to_document()));
        out.append("inheritedRoles", roles.collect::<Vec<_>>())
            .append("inheritedPrivileges", inherited.privileges.to_value());
    }
    if shown.privileges || shown.restrictions {
        let own = user.restrictions.to_value();
        let none = || Value::from(Vec::<Value>::new());
        let own = if own.is_missing() { none() } else { own };
        out.append("authenticationRestrictions", own);
    }
    let mechanisms = user.mechanisms().into_iter().map(Value::from);
    out.append("mechanisms", mechanisms.collect::<Vec<_>>());
    out.finish()
}
