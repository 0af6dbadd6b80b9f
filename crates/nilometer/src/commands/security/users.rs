//! Commands about users: `createUser`, `updateUser`, `usersInfo` and the others.
//!
//! A user belongs to a database. [`grants`] holds what these commands share with those about roles.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::authorization::{AccessRequest, RequiredPrivileges};
use super::grants::{self, LOCAL, changing, restrictions, role_names};
use crate::args::Args;
use crate::auth::{self, Action, Credentials, EXTERNAL, Mechanism, Target, User, UserName};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};
use crate::operation::Request;
use crate::parameters::Parameters;

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
            Authorization::ByRule(may_create),
            OnRouter::Catalog,
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
            Authorization::ByRule(may_update),
            OnRouter::Catalog,
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
        OnRouter::Catalog,
        grants::drop_one::<User>,
    ),
    &[],
);

pub(crate) const DROP_ALL: CommandSpec = changing(
    CommandSpec::new(
        "dropAllUsersFromDatabase",
        "Removes all users of a database.",
        Authorization::OnDatabase(&[Action::DropUser]),
        OnRouter::Catalog,
        grants::drop_all::<User>,
    ),
    &[],
);

pub(crate) const GRANT: CommandSpec = changing(
    CommandSpec::new(
        "grantRolesToUser",
        "Adds roles to a user.",
        Authorization::ByRule(grants::may_grant),
        OnRouter::Catalog,
        grants::grant::<User>,
    ),
    &["roles"],
);

pub(crate) const REVOKE: CommandSpec = changing(
    CommandSpec::new(
        "revokeRolesFromUser",
        "Removes roles from a user.",
        Authorization::ByRule(grants::may_revoke),
        OnRouter::Catalog,
        grants::revoke::<User>,
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
        Authorization::ByRule(may_view),
        OnRouter::Same,
        info,
    )
};

fn may_create(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let db = Target::Database(asked.db.to_owned());
    needed.add(db.clone(), &[Action::CreateUser]);
    grants::may_grant(asked, needed)?;
    grants::may_restrict(asked, needed);
    Ok(())
}

fn may_update(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let name = grants::name::<User>("updateUser", asked.db, asked.request)?;
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
        grants::may_grant(asked, needed)?;
        // The current roles are revoked.
        let current = asked.database.authority().user(&name);
        for role in current.iter().flat_map(|user| &user.roles) {
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
    let name = grants::name::<User>("createUser", db, request)?;
    let roles = role_names(&args, db)?;
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

/// Derives the stored credentials of a password for each requested mechanism.
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
    let mechanisms = match mechanisms(args)? {
        Some(requested) => requested,
        None if digests => Mechanism::ALL.to_vec(),
        None => vec![Mechanism::Sha1],
    };
    let mut all = Vec::new();
    for mechanism in mechanisms {
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

/// Returns the requested `mechanisms`.
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
    let name = grants::name::<User>("updateUser", db, request)?;
    let given = |field: &str| args.document_ref().contains(field);
    let changes = |field: &&str| *field != "digestPassword" && given(field);
    if !FIELDS.iter().any(changes) {
        return Err(Error::bad_value(
            "Must specify at least one field to update in updateUser",
        ));
    }
    let roles = match given("roles") {
        true => Some(role_names(&args, db)?),
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
            // New credentials cannot be derived without the password.
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

/// The users that `usersInfo` describes.
enum UserSet {
    /// All users of one database, or of all.
    All(Option<String>),
    /// The named users.
    Named(Vec<UserName>),
}

impl UserSet {
    fn parse(db: &str, body: nilometer_bson::DocRef<'_>) -> Result<Self> {
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
            _ if crate::args::truncated_i64(value) == Some(1) => Ok(Self::All(Some(db.to_owned()))),
            _ => match grants::listed_names::<User>("usersInfo", value, db)? {
                Some(names) => Ok(Self::Named(names)),
                None => Err(args.wrong_type("usersInfo", value, "object")),
            },
        }
    }
}

fn may_view(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let view = [Action::ViewUser];
    match UserSet::parse(asked.db, asked.body())? {
        UserSet::All(Some(db)) => needed.add(Target::Database(db), &view),
        UserSet::All(None) => {
            for user in asked.database.authority().users(None) {
                needed.add(Target::Database(user.name.db.clone()), &view);
            }
            needed.add(Target::Database("admin".to_owned()), &view);
        }
        UserSet::Named(names) => {
            // Users may view themselves.
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
    let details = UserDetails {
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
    let users = match UserSet::parse(db, request.body.as_ref())? {
        UserSet::All(db) if details.privileges => {
            return Err(Error::bad_value(format!(
                "Privilege or restriction details require exact-match usersInfo queries, not all users of {}",
                db.as_deref().unwrap_or("all databases")
            )));
        }
        UserSet::All(db) => authority.users(db.as_deref()),
        UserSet::Named(names) => names.iter().filter_map(|n| authority.user(n)).collect(),
    };
    let mut listed: Vec<Value> = Vec::new();
    for user in users {
        let described = describe(database, &user, details);
        let evaluation = EvalContext {
            now_ms: context.operation.now_ms,
            limits: Some(context.operation.evaluation_limits()),
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

/// The optional parts of a description.
#[derive(Clone, Copy)]
struct UserDetails {
    credentials: bool,
    custom_data: bool,
    privileges: bool,
    restrictions: bool,
}

fn describe(database: &Database, user: &User, details: UserDetails) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", user.name.id())
        .append("userId", user.user_id())
        .append("user", user.name.user.as_str())
        .append("db", user.name.db.as_str());
    if details.credentials {
        out.append("credentials", user.credentials_value());
    }
    if details.custom_data {
        out.append("customData", user.custom_data.clone());
    }
    out.append("roles", user.roles_value());
    if details.privileges {
        let inherited = database.authority().resolve_roles(&user.roles);
        out.append("inheritedRoles", grants::roles_value(&inherited.roles))
            .append("inheritedPrivileges", inherited.privileges.to_value());
    }
    if details.privileges || details.restrictions {
        let own = grants::restrictions_value(Some(&user.restrictions));
        out.append("authenticationRestrictions", own);
    }
    let mechanisms = user.mechanisms().into_iter().map(Value::from);
    out.append("mechanisms", mechanisms.collect::<Vec<_>>());
    out.finish()
}
