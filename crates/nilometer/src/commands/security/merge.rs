//! `_mergeAuthzCollections`: the last step of a restore of users and roles.
//!
//! A tool writes the users and roles of a dump into ordinary collections of `admin` and asks for their merge.
//! All of them change at once: a document that is not a user or role fails the command, and nothing changes.

use nilometer_bson::{Binary, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::authorization::{AccessRequest, RequiredPrivileges};
use super::grants::changing;
use crate::args::Args;
use crate::auth::{Action, EXTERNAL, Merge, Role, Target, User};
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::query::source::{Collections, RecordScanOptions, Resolved};

const NAME: &str = "_mergeAuthzCollections";
const USERS: &str = "tempUsersCollection";
const ROLES: &str = "tempRolesCollection";

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    ..changing(
        CommandSpec::new(
            NAME,
            "Merges the users and roles of a dump into those of the server.",
            Authorization::ByRule(may_merge),
            OnRouter::Refused,
            merge,
        ),
        &[USERS, ROLES, "db", "drop"],
    )
};

fn may_merge(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let body = asked.body();
    let target = match body.get("db").as_str() {
        Some(db) if !db.is_empty() => Target::Database(db.to_owned()),
        _ => Target::Databases,
    };
    let users = [Action::CreateUser, Action::DropUser];
    let roles = [Action::CreateRole, Action::DropRole];
    for (field, actions) in [(USERS, users), (ROLES, roles)] {
        if let Some(name) = body.get(field).as_str().filter(|name| !name.is_empty()) {
            let (db, collection) = name.split_once('.').unwrap_or((name, ""));
            needed.add(Target::collection(db, collection), &[Action::Find]);
            needed.add(target.clone(), &actions);
            let granting = [Action::GrantRole, Action::RevokeRole];
            needed.add(target.clone(), &granting);
        }
    }
    Ok(())
}

fn merge(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new(NAME, request.body.as_ref());
    let db = args.string("db")?.filter(|db| !db.is_empty());
    let replace = args.lenient_boolean("drop")?.unwrap_or(false);
    let check = || context.operation.check_interrupt();
    let users = read(database, &args, USERS, db, &check, &|document| {
        let id = database.services().ids.uuid();
        user(document, id)
    })?;
    let roles = read(database, &args, ROLES, db, &check, &|document| {
        Role::from_document(document)
    })?;
    if users.is_none() && roles.is_none() {
        return Err(Error::bad_value(
            "Must provide at least one of \"tempUsersCollection\" and \"tempRolescollection\"",
        ));
    }
    let only = db.map(str::to_owned);
    let merge = |new| Merge {
        db: only.clone(),
        replace,
        new,
    };
    let users = users.map(merge);
    let roles = roles.map(|new| Merge {
        db: only.clone(),
        replace,
        new,
    });
    database.authority().merge(users, roles)?;
    Ok(Document::new())
}

/// Reads the documents of the collection that `field` names, those of `db` if it is given.
fn read<T>(
    database: &Database,
    args: &Args<'_>,
    field: &str,
    db: Option<&str>,
    check_interrupt: &dyn Fn() -> Result<()>,
    parse: &dyn Fn(DocRef<'_>) -> Result<T>,
) -> Result<Option<Vec<T>>> {
    let Some(name) = args.string(field)?.filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let Some((of, collection)) = name.split_once('.') else {
        return Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("'{field}' must name a database and a collection, not '{name}'"),
        ));
    };
    let source = match database.collections().resolve(of, collection)? {
        Resolved::Ordinary(source) => source,
        Resolved::Absent => return Ok(Some(Vec::new())),
        Resolved::TimeSeries(_)
        | Resolved::View(_)
        | Resolved::Partitioned(_)
        | Resolved::PartitionedRollup(..)
        | Resolved::Rollup(_) => {
            return Err(Error::bad_value(format!(
                "'{field}' must name an ordinary collection, not {name}"
            )));
        }
    };
    let mut parsed = Vec::new();
    for record in source.scan(&RecordScanOptions::default())? {
        check_interrupt()?;
        let (_, document) = record?;
        let document = document.as_ref();
        if db.is_none_or(|db| document.get("db").as_str() == Some(db)) {
            parsed.push(parse(document).map_err(|error| not_of_a_dump(name, document, &error))?);
        }
    }
    Ok(Some(parsed))
}

/// Parses a user of a dump. One without `userId`, of a MongoDB before 4.0, gets `id`.
fn user(document: DocRef<'_>, id: [u8; 16]) -> Result<User> {
    let user = if document.contains("userId") {
        User::from_document(document)?
    } else {
        let mut out = DocumentBuilder::new();
        for element in document {
            out.append_element(element);
        }
        out.append(
            "userId",
            Value::from(Binary {
                subtype: 4,
                bytes: id.as_slice().into(),
            }),
        );
        User::from_document(out.finish().as_ref())?
    };
    let can_log_in = user.name.db == EXTERNAL || !user.credentials.is_empty();
    let whole = user.credentials.iter().all(|(m, c)| c.is_whole(*m));
    if user.name.user.is_empty() || user.name.db.is_empty() || !can_log_in || !whole {
        return Err(Error::bad_value(
            "it needs a name, a database and SCRAM credentials",
        ));
    }
    Ok(user)
}

fn not_of_a_dump(collection: &str, document: DocRef<'_>, error: &Error) -> Error {
    let id = match document.get("_id") {
        ValueRef::String(id) => id,
        _ => "",
    };
    Error::bad_value(format!(
        "the document '{id}' of {collection} is no user or role: {}",
        error.message
    ))
}
