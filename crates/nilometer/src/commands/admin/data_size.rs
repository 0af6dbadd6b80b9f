//! `dataSize`, `dbHash` and `filemd5`: commands that read whole collections and return a number or a digest.
//!
//! Their reads are `find`s, so that ranges, orders and time limits are those of queries. A time-series
//! collection is read as its buckets.

use md5::{Digest, Md5};
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};

use crate::args::Args;
use crate::auth::{Action, Target};
use crate::catalog::{CatalogEntry, Namespace};
use crate::commands::crud::find;
use crate::commands::security::authorization::{AccessRequest, RequiredPrivileges};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result, location};
use crate::operation::{OperationContext, Request};
use crate::query::batch::Pending;

pub(crate) const DATA_SIZE: CommandSpec = CommandSpec {
    aliases: &["datasize"],
    access: Access::Read,
    takes_memory: true,
    fields: Fields::Only(&[
        "keyPattern",
        "min",
        "max",
        "maxSize",
        "maxObjects",
        "estimate",
    ]),
    ..CommandSpec::new(
        "dataSize",
        "Returns the size of a collection's documents, or of those in a range of an index.",
        Authorization::ByRule(may_size),
        OnRouter::Refused,
        data_size,
    )
};

pub(crate) const DB_HASH: CommandSpec = CommandSpec {
    aliases: &["dbhash"],
    access: Access::Read,
    takes_memory: true,
    fields: Fields::Only(&["collections"]),
    ..CommandSpec::new(
        "dbHash",
        "Returns the MD5 of a database's collections.",
        Authorization::OnDatabase(&[Action::DbHash]),
        OnRouter::Refused,
        db_hash,
    )
};

pub(crate) const FILE_MD5: CommandSpec = CommandSpec {
    access: Access::Read,
    takes_memory: true,
    fields: Fields::Only(&["root"]),
    ..CommandSpec::new(
        "filemd5",
        "Returns the MD5 of a GridFS file.",
        Authorization::ByRule(may_read_chunks),
        OnRouter::Refused,
        file_md5,
    )
};

/// Returns the stored collection of a name: of a time-series collection its buckets.
fn stored_name(database: &Database, namespace: &Namespace) -> Result<Namespace> {
    let catalog = database.catalog();
    if catalog.timeseries(namespace).is_some() {
        return Ok(namespace.buckets());
    }
    match catalog.get(namespace) {
        Some(CatalogEntry::View(_)) => Err(Error::new(
            ErrorCode::CommandNotSupportedOnView,
            format!("Namespace {namespace} is a view, not a collection"),
        )),
        _ => Ok(namespace.clone()),
    }
}

/// Runs a `find` and passes each of its documents to `visit`, until it returns false.
fn read(
    database: &Database,
    operation: &OperationContext,
    find: &Document,
    visit: &mut dyn FnMut(DocRef<'_>) -> Result<bool>,
) -> Result<()> {
    let args = Args::new("find", find.as_ref());
    let mut executor = find::plan(database, operation, &args)?.executor()?;
    while let Some(batch) = executor.next(operation)? {
        let mut batch = Pending::of(batch)?;
        while let Some(document) = batch.front() {
            if !visit(document)? {
                return Ok(());
            }
            batch.advance();
        }
    }
    Ok(())
}

/// Returns an operation like `operation` on another database.
fn on_database(operation: &OperationContext, name: &str) -> OperationContext {
    OperationContext {
        database: name.to_owned(),
        ..operation.clone()
    }
}

fn may_size(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let name = asked.body().get("dataSize").as_str();
    let name = name.or_else(|| asked.body().get("datasize").as_str());
    let target = match name.and_then(|name| name.split_once('.')) {
        Some((db, collection)) => Target::collection(db, collection),
        None => Target::Everything,
    };
    needed.add(target, &[Action::Find]);
    Ok(())
}

fn data_size(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let started = context.operation.clock().monotonic();
    let args = Args::new("dataSize", request.body.as_ref());
    let name = match request.body.iter().next().map(|e| e.value()) {
        Some(ValueRef::String(name)) => name,
        other => return Err(args.wrong_type("dataSize", other.unwrap_or_default(), "string")),
    };
    let Some((db, collection)) = name.split_once('.') else {
        return Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{name}'"),
        ));
    };
    let namespace = stored_name(database, &Namespace::new(db, collection)?)?;
    let estimate = args.lenient_boolean("estimate")?.unwrap_or(false);
    let most = |name: &str| {
        args.integer_at_least(name, 0)
            .map(|n| n.unwrap_or(i64::MAX))
    };
    let (size_max, objects_max) = (most("maxSize")?, most("maxObjects")?);
    let find = range(&args, &namespace)?;
    let operation = on_database(&context.operation, &namespace.database);
    let (mut size, mut objects, mut reached) = (0_i64, 0_i64, false);
    read(database, &operation, &find, &mut |document| {
        size += i64::try_from(document.as_bytes().len()).unwrap_or(i64::MAX);
        objects += 1;
        reached = size > size_max || objects > objects_max;
        Ok(!reached)
    })?;
    let took = context
        .operation
        .clock()
        .monotonic()
        .saturating_sub(started);
    let mut out = DocumentBuilder::new();
    out.append("estimate", estimate)
        .append("size", size)
        .append("numObjects", objects);
    if reached {
        out.append("maxReached", true);
    }
    out.append(
        "millis",
        i32::try_from(took.as_millis()).unwrap_or(i32::MAX),
    );
    Ok(out.finish())
}

/// Returns the `find` of the documents to measure: all, or those between `min` and `max` of an index.
fn range(args: &Args<'_>, namespace: &Namespace) -> Result<Document> {
    let (min, max) = (args.document("min")?, args.document("max")?);
    let pattern = args.document("keyPattern")?;
    let (min, max) = match (min, max) {
        (None, None) => return Ok(doc! {"find": namespace.collection.as_str()}),
        (Some(min), Some(max)) => (min, max),
        _ => return Err(Error::bad_value("only one of min or max specified")),
    };
    let pattern = match pattern {
        Some(pattern) => pattern.to_document(),
        // The index of the fields of `min`, ascending.
        None => {
            let mut pattern = DocumentBuilder::new();
            for element in min {
                pattern.append(element.name(), 1);
            }
            pattern.finish()
        }
    };
    Ok(doc! {
        "find": namespace.collection.as_str(),
        "hint": pattern,
        "min": min.to_document(),
        "max": max.to_document(),
    })
}

fn db_hash(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let started = context.operation.clock().monotonic();
    let args = Args::new("dbHash", request.body.as_ref());
    let mut only = None;
    if let Some(names) = args.array("collections")? {
        let mut listed = Vec::new();
        for name in names.iter() {
            match name {
                ValueRef::String(name) => listed.push(name),
                other => return Err(args.wrong_type("collections", other, "string")),
            }
        }
        only = Some(listed).filter(|listed| !listed.is_empty());
    }
    let db = context.database_name().to_owned();
    let mut hashes = DocumentBuilder::new();
    let mut uuids = DocumentBuilder::new();
    let mut capped = Vec::new();
    let mut whole = Md5::new();
    for (namespace, entry) in database.catalog().list(&db) {
        let CatalogEntry::Collection(collection) = entry else {
            continue;
        };
        let name = namespace.collection.as_str();
        if name == "system.profile" || only.as_ref().is_some_and(|only| !only.contains(&name)) {
            continue;
        }
        let is_capped = matches!(collection.options.get("capped"), ValueRef::Bool(true));
        // Buckets and clustered collections are stored by `_id`; the order of a capped one is part of it.
        let find = if is_capped || collection.timeseries.is_some() || collection.is_clustered() {
            doc! {"find": name, "hint": doc! {"$natural": 1}}
        } else {
            doc! {"find": name, "sort": doc! {"_id": 1}, "hint": "_id_"}
        };
        let mut digest = Md5::new();
        read(database, &context.operation, &find, &mut |document| {
            digest.update(document.as_bytes());
            Ok(true)
        })?;
        let digest = hexadecimal(&digest.finalize());
        whole.update(digest.as_bytes());
        hashes.append(name, digest);
        uuids.append(name, collection.uuid_value());
        if is_capped {
            capped.push(name.into());
        }
    }
    let took = context
        .operation
        .clock()
        .monotonic()
        .saturating_sub(started);
    let host = &database.services().host;
    Ok(doc! {
        "host": format!("{}:{}", host.hostname, host.port),
        "collections": hashes.finish(),
        "capped": capped,
        "uuids": uuids.finish(),
        "md5": hexadecimal(&whole.finalize()),
        "timeMillis": i64::try_from(took.as_millis()).unwrap_or(i64::MAX),
    })
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the collection of the chunks of GridFS files.
fn chunks(root: &str) -> String {
    format!("{root}.chunks")
}

fn may_read_chunks(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    let root = asked.body().get("root").as_str().unwrap_or("fs");
    needed.add(Target::collection(asked.db, &chunks(root)), &[Action::Find]);
    Ok(())
}

fn file_md5(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("filemd5", request.body.as_ref());
    let id = args.value("filemd5");
    let root = args.string("root")?.unwrap_or("fs");
    let find = doc! {
        "find": chunks(root),
        "filter": doc! {"files_id": doc! {"$eq": id.to_value()}},
        "sort": doc! {"files_id": 1, "n": 1},
    };
    let (mut digest, mut count) = (Md5::new(), 0_i64);
    read(database, &context.operation, &find, &mut |chunk| {
        let number = chunk.get("n").as_exact_i64();
        if number != Some(count) {
            return Err(Error::location(
                location::CHUNKS_OUT_OF_ORDER,
                format!(
                    "chunks out of order: expected {count}, found {}",
                    number.map_or("none".to_owned(), |n| n.to_string())
                ),
            ));
        }
        let ValueRef::Binary { bytes, .. } = chunk.get("data") else {
            return Err(Error::type_mismatch("the data of a chunk must be binary"));
        };
        digest.update(bytes);
        count += 1;
        Ok(true)
    })?;
    Ok(doc! {
        "numChunks": i32::try_from(count).unwrap_or(i32::MAX),
        "md5": hexadecimal(&digest.finalize()),
    })
}
