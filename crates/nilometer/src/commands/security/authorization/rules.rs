//! Rules of commands whose needs depend on their fields.
//!
//! A rule does not refuse malformed commands, the handler does; it covers every meaning that the handler
//! could accept.

use nilometer_bson::{DocRef, ValueRef};

use super::pipeline;
use super::{AccessRequest, RequiredPrivileges};
use crate::auth::{Action, Target};
use crate::commands::COMMANDS;
use crate::commands::find_command;
use crate::error::Result;
use crate::operation::Request;

/// True if the field is present and not false.
fn is_set(document: DocRef<'_>, name: &str) -> bool {
    let mut given = document.iter().filter(|e| e.name() == name);
    given.any(|e| {
        let value = e.value();
        !matches!(value, ValueRef::Bool(false) | ValueRef::Null) && value.as_exact_i64() != Some(0)
    })
}

/// Bypassing the validator needs a privilege of its own.
fn add_bypass(asked: &AccessRequest<'_>, target: &Target, needed: &mut RequiredPrivileges) {
    if is_set(asked.body(), "bypassDocumentValidation") {
        needed.add(target.clone(), &[Action::BypassDocumentValidation]);
    }
}

pub(in crate::commands) fn insert(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let target = asked.first_target();
    needed.add(target.clone(), &[Action::Insert]);
    add_bypass(asked, &target, needed);
    Ok(())
}

pub(in crate::commands) fn update(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let target = asked.first_target();
    needed.add(target.clone(), &[Action::Update]);
    let statements = asked.request.documents("update", "updates")?;
    if statements.is_some_and(|mut all| all.any(|s| is_set(s, "upsert"))) {
        needed.add(target.clone(), &[Action::Insert]);
    }
    add_bypass(asked, &target, needed);
    Ok(())
}

pub(in crate::commands) fn find_and_modify(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let target = asked.first_target();
    let change = if is_set(asked.body(), "remove") {
        Action::Remove
    } else {
        Action::Update
    };
    needed.add(target.clone(), &[Action::Find, change]);
    if is_set(asked.body(), "upsert") {
        needed.add(target.clone(), &[Action::Insert]);
    }
    add_bypass(asked, &target, needed);
    Ok(())
}

pub(in crate::commands) fn bulk_write(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let mut targets = Vec::new();
    if let Some(namespaces) = asked.request.documents("bulkWrite", "nsInfo")? {
        for document in namespaces {
            targets.push(namespace(document.get("ns")));
        }
    }
    let Some(operations) = asked.request.documents("bulkWrite", "ops")? else {
        return Ok(());
    };
    let bypass = is_set(asked.body(), "bypassDocumentValidation");
    // The actions per collection, so that many operations need one check.
    let mut asks = vec![Vec::new(); targets.len()];
    for operation in operations {
        let Some(first) = operation.iter().next() else {
            continue;
        };
        let at = crate::args::truncated_i64(first.value());
        let Some(asks) = at
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| asks.get_mut(at))
        else {
            continue;
        };
        let mut ask = |action| {
            if !asks.contains(&action) {
                asks.push(action);
            }
        };
        match first.name() {
            "insert" => ask(Action::Insert),
            "update" => ask(Action::Update),
            _ => ask(Action::Remove),
        }
        if is_set(operation, "upsert") {
            ask(Action::Insert);
        }
        if bypass {
            ask(Action::BypassDocumentValidation);
        }
    }
    for (target, actions) in targets.into_iter().zip(asks) {
        needed.add(target, &actions);
    }
    Ok(())
}

/// `"db.collection"`.
fn namespace(value: ValueRef<'_>) -> Target {
    match value
        .as_str()
        .map(|text| text.split_once('.').unwrap_or((text, "")))
    {
        Some((db, collection)) => Target::collection(db, collection),
        None => Target::Everything,
    }
}

pub(in crate::commands) fn aggregate(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let body = asked.body();
    pipeline::command(asked.db, body, needed);
    Ok(())
}

/// Readers of a view see the collections it is on. A user who creates a view and may read it must be allowed
/// to read these collections.
fn view(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) {
    let body = asked.body();
    let target = asked.first_target();
    if !asked.may(&target, Action::Find) {
        return;
    }
    let views = body.iter().filter(|e| e.name() == "viewOn");
    for element in views {
        if let Some(on) = element.value().as_str() {
            needed.add(Target::collection(asked.db, on), &[Action::Find]);
        }
    }
    for element in body.iter().filter(|e| e.name() == "pipeline") {
        pipeline::stages(asked.db, None, element.value(), needed);
    }
}

pub(in crate::commands) fn create(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    needed.add(asked.first_target(), &[Action::CreateCollection]);
    view(asked, needed);
    // A rollup shows its source.
    let rollup = asked.body().get("rollup").as_document();
    if let Some(source) = rollup.and_then(|rollup| rollup.get("source").as_str()) {
        needed.add(Target::collection(asked.db, source), &[Action::Find]);
    }
    Ok(())
}

pub(in crate::commands) fn coll_mod(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    needed.add(asked.first_target(), &[Action::CollMod]);
    view(asked, needed);
    Ok(())
}

pub(in crate::commands) fn clone_as_capped(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    needed.add(asked.first_target(), &[Action::Find]);
    let to = match asked.body().get("toCollection").as_str() {
        Some(name) => Target::collection(asked.db, name),
        None => Target::Database(asked.db.to_owned()),
    };
    let make = [Action::ConvertToCapped, Action::CreateIndex, Action::Insert];
    needed.add(to, &make);
    Ok(())
}

/// What `enableSharding`, `shardCollection`, and commands about chunks need on the database or collection that they name.
pub(in crate::commands) fn sharding(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let action = match asked.request.command_name() {
        "moveChunk" | "moveRange" => Action::MoveChunk,
        "split" | "mergeChunks" | "mergeAllChunksOnShard" => Action::SplitChunk,
        "getShardVersion" => Action::GetShardVersion,
        "refineCollectionShardKey" => Action::RefineCollectionShardKey,
        "reshardCollection" => Action::ReshardCollection,
        _ => Action::EnableSharding,
    };
    let first = asked.body().iter().next();
    let first = first.map_or(ValueRef::Missing, |field| field.value());
    let target = match first.as_str() {
        Some(name) if !name.contains('.') => Target::Database(name.to_owned()),
        _ => namespace(first),
    };
    needed.add(target, &[action]);
    Ok(())
}

pub(in crate::commands) fn rename_collection(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let body = asked.body();
    let from = namespace(body.get("renameCollection"));
    let to = namespace(body.get("to"));
    let database = |target: &Target| match target {
        Target::Collection(db, _) => Some(db.clone()),
        _ => None,
    };
    match (database(&from), database(&to)) {
        (Some(a), Some(b)) if a == b => {
            needed.add(Target::Database(a), &[Action::RenameCollectionSameDB]);
            // System collections do not belong to the privileges on a whole database.
            for target in [&from, &to] {
                let system = matches!(target, Target::Collection(_, c) if c.starts_with("system."));
                if system {
                    needed.add(target.clone(), &[Action::RenameCollectionSameDB]);
                }
            }
            // A rename must not make unreadable data readable.
            if asked.may(&to, Action::Find) {
                needed.add(from, &[Action::Find]);
            }
        }
        _ => {
            needed.add(from, &[Action::Find, Action::DropCollection]);
            needed.add(to.clone(), &[Action::Insert, Action::CreateIndex]);
        }
    }
    if is_set(body, "dropTarget") {
        needed.add(to, &[Action::DropCollection]);
    }
    Ok(())
}

/// Either all collections, or the names of those on which the user has a privilege.
pub(in crate::commands) fn list_collections(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let body = asked.body();
    if !(is_set(body, "nameOnly") && is_set(body, "authorizedCollections")) {
        let database = Target::Database(asked.db.to_owned());
        needed.add(database, &[Action::ListCollections]);
    }
    Ok(())
}

/// Users may see their own operations.
pub(in crate::commands) fn current_op(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    if !is_set(asked.body(), "$ownOps") {
        needed.add(Target::Cluster, &[Action::Inprog]);
    }
    Ok(())
}

/// One collection, all of a database, or all.
pub(in crate::commands) fn validate_metadata(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let body = asked.body();
    let named = (body.get("db").as_str(), body.get("collection").as_str());
    let target = match named {
        (Some(db), Some(collection)) => Target::collection(db, collection),
        (Some(db), None) => Target::Database(db.to_owned()),
        (None, _) => Target::Databases,
    };
    needed.add(target, &[Action::Validate]);
    Ok(())
}

/// Explaining a command needs the privileges of the command.
pub(in crate::commands) fn explain(
    asked: &AccessRequest<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let Some(inner) = asked.body().get("explain").as_document() else {
        return Ok(());
    };
    let name = inner.iter().next().map_or("", |e| e.name());
    let Some(spec) = find_command(name).and_then(|at| COMMANDS.get(at)) else {
        return Ok(());
    };
    if spec.name == "explain" {
        return Ok(());
    }
    let request = Request::new(inner.to_document());
    let inner = AccessRequest {
        database: asked.database,
        db: asked.db,
        request: &request,
        grants: asked.grants,
    };
    needed
        .0
        .extend(super::needed(spec.authorization, &inner)?.0);
    Ok(())
}
