//! Entries of an oplog that stand for commands: on collections, indexes and databases.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::{COMMAND_COLLECTION, OplogEntry, with_database};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::ddl::{
    capped, coll_mod, create, create_indexes, drop, drop_indexes, rename_collection,
};
use crate::commands::generic::Numbers;
use crate::commands::security::authorization::{self, AccessRequest, RequiredPrivileges};
use crate::commands::{CommandContext, CommandSpec, generic};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

/// The command that an entry stands for.
struct Translation {
    spec: &'static CommandSpec,
    body: Document,
    /// An error that says that there is nothing left to change.
    ignored: &'static [ErrorCode],
}

/// The entries of index builds that are not complete, which change nothing.
const BUILDS: [&str; 2] = ["startIndexBuild", "abortIndexBuild"];

const MISSING: &[ErrorCode] = &[ErrorCode::NamespaceNotFound, ErrorCode::IndexNotFound];

/// Returns the command of an entry; `None` if it changes nothing.
fn translate(db: &str, o: DocRef<'_>) -> Result<Option<Translation>> {
    let first = o.iter().next();
    let (name, target) = first.map_or(("", ValueRef::Missing), |e| (e.name(), e.value()));
    let mut body = DocumentBuilder::with_capacity(o.as_bytes().len() + 64);
    let (spec, ignored): (_, &[ErrorCode]) = match name {
        _ if BUILDS.contains(&name) => return Ok(None),
        "create" => {
            body.append_all(o);
            (&create::SPEC, &[])
        }
        "createIndexes" | "commitIndexBuild" => {
            body.append_ref("createIndexes", target);
            body.append("indexes", indexes_of(o));
            (&create_indexes::SPEC, &[])
        }
        "drop" => {
            body.append_ref("drop", target);
            (&drop::DROP, &[])
        }
        "dropIndexes" | "dropIndex" | "deleteIndexes" | "deleteIndex" => {
            body.append_ref("dropIndexes", target);
            body.append_ref("index", o.get("index"));
            (&drop_indexes::SPEC, MISSING)
        }
        "collMod" => {
            body.append_all(o);
            (&coll_mod::SPEC, MISSING)
        }
        "convertToCapped" => {
            body.append_all(o);
            (&capped::CONVERT, &[])
        }
        "renameCollection" => {
            for field in ["renameCollection", "to", "stayTemp"] {
                body.append_ref(field, o.get(field));
            }
            // A collection of the new name that the entry does not drop was there before it, or comes from later.
            body.append("dropTarget", true);
            (&rename_collection::SPEC, &[])
        }
        "dropDatabase" => {
            body.append("dropDatabase", 1);
            (&drop::DROP_DATABASE, &[])
        }
        other => {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                format!("applyOps does not know the command '{other}'"),
            ));
        }
    };
    body.append("$db", db);
    Ok(Some(Translation {
        spec,
        body: body.finish(),
        ignored,
    }))
}

/// Returns the indexes of an entry: those of a build, or the one that the entry itself describes.
fn indexes_of(o: DocRef<'_>) -> Value {
    if let indexes @ ValueRef::Array(_) = o.get("indexes") {
        return indexes.to_value();
    }
    let mut index = DocumentBuilder::new();
    for element in o.iter().skip(1) {
        index.append_element(element);
    }
    vec![Value::from(index.finish())].into()
}

/// Adds the privileges of the command that an entry stands for.
pub(super) fn privileges(
    asked: &AccessRequest<'_>,
    ns: &str,
    o: DocRef<'_>,
    needed: &mut RequiredPrivileges,
) -> Result<()> {
    let db = ns.strip_suffix(COMMAND_COLLECTION).unwrap_or(ns);
    let Ok(translation) = translate(db, o) else {
        // It will be refused.
        needed.add_everything();
        return Ok(());
    };
    if let Some(translation) = translation {
        let request = Request::new(translation.body);
        let inner = AccessRequest {
            database: asked.database,
            db,
            request: &request,
            grants: asked.grants,
        };
        let own = authorization::needed(translation.spec.authorization, &inner)?;
        needed.add_all(own);
    }
    Ok(())
}

/// Applies an entry.
pub(super) fn apply(
    database: &Database,
    context: &mut CommandContext<'_>,
    entry: &OplogEntry<'_>,
) -> Result<()> {
    let db = entry.command_database()?;
    let Some(translation) = translate(db, entry.o)? else {
        return Ok(());
    };
    let Translation {
        spec,
        body,
        ignored,
    } = translation;
    generic::parse(spec, body.as_ref(), None, Numbers::None)?;
    if was_renamed(database, &body)? {
        return Ok(());
    }
    let outcome = match spec.name {
        "create" => create_collection(database, context, (db, entry.uuid), &body),
        _ => with_database(context, db, |context| {
            let request = Request::new(body);
            (spec.handler)(database, context, &request).map(drop_reply)
        }),
    };
    match outcome {
        Err(error) if ignored.contains(&error.code) => Ok(()),
        outcome => outcome,
    }
}

fn drop_reply(_: Document) {}

/// True if the command renames a collection, and the contents are those after it.
fn was_renamed(database: &Database, body: &Document) -> Result<bool> {
    let exists = |field: &str| -> Result<Option<bool>> {
        let Some(name) = body.get(field).as_str() else {
            return Ok(None);
        };
        let (db, collection) = name.split_once('.').unwrap_or((name, ""));
        let namespace = Namespace::new(db, collection)?;
        Ok(Some(database.catalog().get(&namespace).is_some()))
    };
    match exists("renameCollection")? {
        Some(false) => Ok(exists("to")? == Some(true)),
        _ => Ok(false),
    }
}

/// Creates a collection. It is no error if there is one: the contents may be newer than the entry, and its options may have
/// changed since; but it must have the UUID, if one is given.
fn create_collection(
    database: &Database,
    context: &CommandContext<'_>,
    (db, uuid): (&str, Option<[u8; 16]>),
    body: &Document,
) -> Result<()> {
    let args = Args::new("create", body.as_ref());
    let namespace = Namespace::new(db, args.required_string("create")?)?;
    // Time series are listed without UUIDs: their buckets get another one.
    let is_series = args.document("timeseries")?.is_some();
    let uuid = uuid.filter(|_| !is_series || namespace.timeseries_view().is_some());
    let known = database.catalog().collection(&namespace);
    match create::create(database, db, &args, uuid) {
        Err(error)
            if error.code == ErrorCode::NamespaceExists
                && known.is_some_and(|known| uuid.is_none_or(|uuid| known.shown_uuid == uuid)) =>
        {
            Ok(())
        }
        Err(error)
            if error.code == ErrorCode::NamespaceExists
                && is_series
                && database.catalog().timeseries(&namespace).is_some() =>
        {
            Ok(())
        }
        Ok(()) => {
            let usage = &context.operation.usage;
            usage.record_created(namespace.to_string());
            Ok(())
        }
        Err(error) => Err(error),
    }
}
