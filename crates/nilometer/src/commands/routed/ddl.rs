//! The catalog of a cluster: the router's own changes, and that of each partition with the collection.
//!
//! ```text
//! create     the router's catalog, which checks the options ─► the partition ─► the placement
//! an index   the partitions, which know the documents ─► the router's catalog
//! drop       the partitions ─► the placement ─► the router's catalog
//! ```
//!
//! So a collection that has a placement is in its partitions: a write never finds none there, which it would take for one
//! without options. One in the catalog without a placement is about to be created or dropped, and has no documents. A command
//! that failed half-way is repeated.

use std::sync::Arc;

use nilometer_bson::order::compare;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::insert::placed;
use super::{first_batch, forwarded, is_true, number, read, rollups, router_of, writable};
use crate::args::Args;
use crate::catalog::{CatalogEntry, Namespace, is_internal_database};
use crate::commands::CommandContext;
use crate::commands::ddl::collection_uuid;
use crate::commands::ddl::create_indexes as definitions;
use crate::commands::ddl::rename_collection::whole_name;
use crate::database::{Database, clear, place};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::router::{Placement, Sharding};

/// `create`: a view is in the router's catalog alone.
pub(super) fn create(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let namespace = named(context, request)?;
    let _changes = router.lock_changes();
    let was_known = database.catalog().get(&namespace).is_some();
    let reply = (context.spec.handler)(database, context, request)?;
    let entry = database.catalog().get(&namespace);
    if entry.as_ref().is_some_and(is_plain_view) || router.placement(&namespace).is_some() {
        // What is a rollup is in the partitions of its series, too.
        in_partitions(database, context, request, &namespace)?;
    } else {
        let operation = &context.operation;
        if was_known {
            clear((router, operation), &namespace, |_| true)?;
        }
        let create = forwarded(request.body.as_ref(), &["collectionUUID"], operation);
        place((router, operation), &namespace, &create)?;
    }
    if let Some(placement) = router.placement(&namespace) {
        // Rollups may have waited for it.
        let partitions = placement.partitions(router.count());
        rollups::spread(database, &context.operation, &namespace, &partitions)?;
    }
    Ok(reply)
}

/// True for a view that is none of a time series.
fn is_plain_view(entry: &CatalogEntry) -> bool {
    matches!(entry, CatalogEntry::View(view) if !view.is_timeseries())
}

/// Changes of an existing collection, which its partitions make, too.
pub(super) fn change(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let namespace = named(context, request)?;
    let _changes = router_of(database).lock_changes();
    let reply = (context.spec.handler)(database, context, request)?;
    in_partitions(database, context, request, &namespace)?;
    Ok(reply)
}

pub(super) fn create_indexes(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let namespace = named(context, request)?;
    // A definition that is refused creates no collection.
    definitions::check(database, context, request)?;
    let sharding = router.sharding(&namespace);
    let indexes = request.body.get("indexes").as_array();
    for index in indexes.iter().flat_map(|indexes| indexes.iter()) {
        let Some((index, sharding)) = index.as_document().zip(sharding.as_ref()) else {
            continue;
        };
        let key = index.get("key").as_document();
        let fits = key.is_some_and(|key| sharding.key.allows_unique(key));
        if is_true(index.get("unique")) && !fits {
            return Err(Error::new(
                ErrorCode::CannotCreateIndex,
                "cannot create a unique index whose key does not begin with the shard key",
            ));
        }
    }
    let is_new = database.catalog().get(&namespace).is_none();
    if database.catalog().rollup(&namespace).is_none() {
        placed(database, &context.operation, router, &namespace)?;
    }
    let _changes = router.lock_changes();
    if let Err(error) = in_partitions(database, context, request, &namespace) {
        drop_new_indexes(database, context, request, &namespace);
        return Err(error);
    }
    let reply = (context.spec.handler)(database, context, request)?;
    match is_new {
        true => Ok(as_created(&reply)),
        false => Ok(reply),
    }
}

/// Drops the indexes of a `createIndexes` that has failed in a partition, unless the collection had them before. An index that is
/// left in some partitions is not in the catalog of the router, and refuses documents there. A partition that does not answer keeps
/// the index until the command is repeated.
fn drop_new_indexes(
    database: &Database,
    context: &CommandContext<'_>,
    request: &Request,
    namespace: &Namespace,
) {
    let router = router_of(database);
    let list = doc! {"listIndexes": namespace.collection.as_str()};
    let listed = database.call(&namespace.database, list);
    let known = listed.map(|reply| first_batch(&reply)).unwrap_or_default();
    let is_known = |name: &str| {
        let mut known = known.iter();
        known.any(|index| index.get("name").as_str() == Some(name))
    };
    let Some(placement) = rollups::place_of(database, namespace) else {
        return;
    };
    let partitions = placement.partitions(router.count());
    let given = request.body.get("indexes").as_array();
    for index in given.iter().flat_map(|given| given.iter()) {
        let index = index.as_document();
        let name = index.and_then(|index| index.get("name").as_str());
        let Some(name) = name.filter(|name| !is_known(name)) else {
            continue;
        };
        let drop_it = doc! {"dropIndexes": namespace.collection.as_str(), "index": name};
        // Most partitions may not have it.
        let _ = router.ask_all(
            &partitions,
            &namespace.database,
            &drop_it,
            &context.operation,
        );
    }
}

/// Returns the reply of `createIndexes` for a collection that it has created.
fn as_created(reply: &Document) -> Document {
    const CREATED: &str = "createdCollectionAutomatically";
    let mut out = DocumentBuilder::new();
    for field in reply
        .iter()
        .filter(|field| ![CREATED, "note"].contains(&field.name()))
    {
        out.append_element(field);
    }
    out.append(CREATED, true);
    out.finish()
}

/// `dropIndexes`: of those that serve a ranged shard key, one stays. That of a hashed key may be dropped, as in MongoDB.
pub(super) fn drop_indexes(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let namespace = named(context, request)?;
    let Some(sharding) = ranged(database, &namespace) else {
        return drop_named_indexes(database, context, request);
    };
    let list = doc! {"listIndexes": namespace.collection.as_str()};
    let indexes = first_batch(&database.call(&namespace.database, list)?);
    let serving = |index: &&Document| serves(&sharding, index);
    let which = request.body.get("index");
    if which.as_str() != Some("*") {
        let is_doomed = |index: &Document| match which {
            ValueRef::Array(names) => names.iter().any(|name| is_named(index, name)),
            which => is_named(index, which),
        };
        if are_all(&sharding, &indexes, is_doomed) {
            return Err(Error::new(
                ErrorCode::IllegalOperation,
                format!("{namespace}: the only index that serves the shard key cannot be dropped"),
            ));
        }
        return drop_named_indexes(database, context, request);
    }
    let fields = |index: &&Document| index.get("key").as_document().map(|key| key.iter().count());
    let kept = indexes.iter().filter(serving).min_by_key(fields);
    let kept = kept.map_or(ValueRef::Missing, |kept| kept.get("name"));
    let names = indexes.iter().map(|index| index.get("name"));
    let names = names.filter(|name| ![Some("_id_"), kept.as_str()].contains(&name.as_str()));
    let names: Vec<Value> = names.map(|name| name.to_value()).collect();
    let mut body = DocumentBuilder::new();
    for field in request.body.iter() {
        match field.name() {
            "index" => body.append("index", names.clone()),
            _ => body.append_element(field),
        };
    }
    let reply = drop_named_indexes(database, context, &Request::new(body.finish()))?;
    let mut shown = DocumentBuilder::extending(reply);
    shown.append(
        "msg",
        "non-_id indexes but that of the shard key dropped for collection",
    );
    Ok(shown.finish())
}

/// Drops indexes in the partitions, then in the router's catalog: a repetition finds them there, and passes over the partitions that have
/// dropped them.
fn drop_named_indexes(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let namespace = named(context, request)?;
    let _changes = router_of(database).lock_changes();
    let args = Args::new(request.command_name(), request.body.as_ref());
    collection_uuid::check(database, &args, &namespace)?;
    let list = doc! {"listIndexes": namespace.collection.as_str()};
    let listed = database.call(&namespace.database, list);
    let indexes = listed.map(|reply| first_batch(&reply)).unwrap_or_default();
    let is_known = |which: ValueRef<'_>| indexes.iter().any(|index| is_named(index, which));
    let given = request.body.get("index");
    let are_known = match given {
        ValueRef::Array(names) => names.iter().all(is_known),
        ValueRef::String("*") => true,
        which => is_known(which),
    };
    // The handler of one server says what is wrong.
    if are_known && !drop_in_partitions(database, context, request, given)? {
        // A partition drops all that a command names, or none.
        let each = given.as_array();
        for which in each.iter().flat_map(|names| names.iter()) {
            drop_in_partitions(database, context, request, which)?;
        }
    }
    (context.spec.handler)(database, context, request)
}

/// Drops indexes in the partitions of a collection. False if one of these lacks an index, and has dropped nothing.
fn drop_in_partitions(
    database: &Database,
    context: &CommandContext<'_>,
    request: &Request,
    which: ValueRef<'_>,
) -> Result<bool> {
    let router = router_of(database);
    let namespace = named(context, request)?;
    let Some(placement) = rollups::place_of(database, &namespace) else {
        return Ok(true);
    };
    let (partitions, operation) = (placement.partitions(router.count()), &context.operation);
    let without = ["collectionUUID", "index"];
    let body = forwarded(request.body.as_ref(), &without, operation);
    let mut body = DocumentBuilder::extending(body);
    body.append_ref("index", which);
    let replies = router.ask_each(&partitions, &namespace.database, &body.finish(), operation);
    let mut lack = false;
    for reply in replies {
        match reply {
            Err(error) if error.code == ErrorCode::IndexNotFound => lack = true,
            reply => drop(reply?),
        }
    }
    Ok(!lack)
}

/// `collMod`: of the indexes that serve a ranged shard key, one is not hidden.
pub(super) fn coll_mod(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let namespace = named(context, request)?;
    let change_of_index = request.body.get("index").as_document();
    let hides = change_of_index.filter(|index| is_true(index.get("hidden")));
    if let Some((index, sharding)) = hides.zip(ranged(database, &namespace)) {
        let list = doc! {"listIndexes": namespace.collection.as_str()};
        let indexes = first_batch(&database.call(&namespace.database, list)?);
        let (name, key) = (index.get("name"), index.get("keyPattern"));
        let is_hidden = |index: &Document| is_named(index, name) || is_named(index, key);
        if are_all(&sharding, &indexes, is_hidden) {
            return Err(Error::invalid_options(format!(
                "{namespace}: the only index that serves the shard key cannot be hidden"
            )));
        }
    }
    if change_of_index.is_some_and(|index| is_true(index.get("unique"))) {
        // The router has no documents to check: what a partition refuses must not be in its catalog.
        let mut trial = DocumentBuilder::extending(read(request.body.as_ref(), &["dryRun"]));
        trial.append("dryRun", true);
        let trial = Request::new(trial.finish());
        in_partitions(database, context, &trial, &namespace)?;
    }
    change(database, context, request)
}

/// Returns how an ordinary or time-series collection is divided by a shard key that is not hashed.
fn ranged(database: &Database, namespace: &Namespace) -> Option<Arc<Sharding>> {
    let sharding = router_of(database).sharding(namespace);
    sharding.filter(|sharding| !sharding.key.is_hashed())
}

/// True if an index serves the shard key, and queries may use it.
fn serves(sharding: &Sharding, index: &Document) -> bool {
    !is_true(index.get("hidden")) && sharding.key.is_served_by(index.as_ref(), false)
}

/// True if there are indexes that serve the shard key, and `is_chosen` is true of all of them.
fn are_all(
    sharding: &Sharding,
    indexes: &[Document],
    is_chosen: impl FnMut(&Document) -> bool,
) -> bool {
    let serving = indexes.iter().filter(|index| serves(sharding, index));
    let mut serving = serving.peekable();
    serving.peek().is_some() && serving.all(is_chosen)
}

/// True if a value names an index as it is listed, or is its key.
fn is_named(index: &Document, by: ValueRef<'_>) -> bool {
    match by {
        ValueRef::Document(_) => compare(index.get("key"), by).is_eq(),
        name => name.as_str().is_some() && name.as_str() == index.get("name").as_str(),
    }
}

pub(super) fn drop_collection(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let namespace = named(context, request)?;
    let _changes = router.lock_changes();
    // What the partitions do not check.
    let args = Args::new("drop", request.body.as_ref());
    collection_uuid::check(database, &args, &namespace)?;
    database
        .catalog()
        .check_has_no_rollups(&namespace, "drop")?;
    // A rollup follows the placement of its series, which gets a new version: a router that knows another rollup of the name
    // reads the catalog again.
    let series = rollups::series_of(database, &namespace);
    let placed = series.as_ref().unwrap_or(&namespace);
    router.begin_change(placed, &context.operation)?;
    in_partitions(database, context, request, &namespace)?;
    let placement = router.placement(placed);
    if series.is_none() {
        match (&placement, database.catalog().get(&namespace)) {
            (Some(_), _) => router.set_placement(placed, None)?,
            (None, Some(entry)) if !is_plain_view(&entry) => {
                clear((router, &context.operation), &namespace, |_| true)?;
            }
            (None, _) => {}
        }
    }
    let reply = (context.spec.handler)(database, context, request)?;
    if let Some(kept) = placement.filter(|_| series.is_some()) {
        router.set_placement(placed, Some(Placement::clone(&kept)))?;
    }
    Ok(reply)
}

pub(super) fn drop_database(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let name = context.database_name().to_owned();
    if is_internal_database(&name) {
        return Err(Error::new(
            ErrorCode::IllegalOperation,
            format!("cannot drop '{name}' on a router"),
        ));
    }
    let _changes = router.lock_changes();
    let placements = router.placements();
    let of_database = || placements.keys().filter(|n| n.database == name);
    for namespace in of_database() {
        router.begin_change(namespace, &context.operation)?;
    }
    let all: Vec<usize> = (0..router.count()).collect();
    let body = forwarded(request.body.as_ref(), &[], &context.operation);
    router.ask_all(&all, &name, &body, &context.operation)?;
    for namespace in of_database() {
        router.set_placement(namespace, None)?;
    }
    (context.spec.handler)(database, context, request)
}

/// `renameCollection`: the partitions of both names first. A repetition passes over those that were done.
pub(super) fn rename_collection(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("renameCollection", request.body.as_ref());
    let name = |field: &str| {
        let found = whole_name(args.required_string(field)?)?;
        writable(&found.database, &found.collection)
    };
    let (from, to) = (name("renameCollection")?, name("to")?);
    let drops_target = match args.value("dropTarget") {
        ValueRef::Binary { .. } => {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                "dropTarget with a UUID is not supported on a router",
            ));
        }
        _ => args.lenient_boolean("dropTarget")?.unwrap_or(false),
    };
    collection_uuid::check(database, &args, &from)?;
    let _changes = router.lock_changes();
    for name in [&from, &to] {
        database.catalog().check_has_no_rollups(name, "rename")?;
    }
    let is_free = match database.catalog().get(&to) {
        None => true,
        Some(CatalogEntry::View(view)) => view.is_timeseries() && drops_target,
        Some(CatalogEntry::Collection(_)) => drops_target,
    };
    let Some(placement) = router.placement(&from).filter(|_| is_free && from != to) else {
        // The handler of one server says what is wrong.
        return (context.spec.handler)(database, context, request);
    };
    // What the partitions would not find wrong.
    database.catalog().check_database_case(&to.database)?;
    let operation = &context.operation;
    router.begin_change(&from, operation)?;
    router.begin_change(&to, operation)?;
    let partitions = placement.partitions(router.count());
    if let Some(replaced) = router.placement(&to) {
        // Those that have the collection replace the target with the renaming: a repetition must not drop what was renamed there.
        let others = replaced.partitions(router.count()).into_iter();
        let others: Vec<usize> = others.filter(|p| !partitions.contains(p)).collect();
        let drop = doc! {"drop": to.collection.as_str()};
        router.ask_all(&others, &to.database, &drop, operation)?;
    }
    let body = forwarded(request.body.as_ref(), &["collectionUUID"], operation);
    for partition in partitions {
        match router.ask_all(&[partition], "admin", &body, operation) {
            Err(error) if error.code != ErrorCode::NamespaceNotFound => return Err(error),
            _ => {}
        }
    }
    router.set_placement(&to, Some(Placement::clone(&placement)))?;
    router.set_placement(&from, None)?;
    (context.spec.handler)(database, context, request)
}

/// `listDatabases`: the sizes are those of all partitions.
pub(super) fn list_databases(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let own = (context.spec.handler)(database, context, request)?;
    if own.get("totalSize").is_missing() {
        return Ok(own);
    }
    let all: Vec<usize> = (0..router.count()).collect();
    let body = doc! {"listDatabases": 1};
    let replies = router.ask_all(&all, "admin", &body, &context.operation)?;
    let mut total = 0;
    let mut shown = Vec::new();
    let databases = own.get("databases").as_array();
    for entry in databases
        .iter()
        .flat_map(|list| list.iter())
        .filter_map(ValueRef::as_document)
    {
        let name = entry.get("name");
        let mut size = number(entry.get("sizeOnDisk"));
        let mut is_empty = is_true(entry.get("empty"));
        for reply in &replies {
            let list = reply.get("databases").as_array();
            let list = list.iter().flat_map(|list| list.iter());
            let same = list
                .filter_map(ValueRef::as_document)
                .find(|e| e.get("name").as_str() == name.as_str());
            if let Some(same) = same {
                size += number(same.get("sizeOnDisk"));
                is_empty &= is_true(same.get("empty"));
            }
        }
        total += size;
        shown.push(Value::from(doc! {
            "name": name.to_value(), "sizeOnDisk": size, "empty": is_empty,
        }));
    }
    let mut out = DocumentBuilder::new();
    out.append("databases", shown);
    out.append("totalSize", total);
    out.append("totalSizeMb", total / (1 << 20));
    Ok(out.finish())
}

/// Returns the collection of a command, if clients may change it.
fn named(context: &CommandContext<'_>, request: &Request) -> Result<Namespace> {
    // The command may have another spelling of its name.
    let name = request.command_name();
    let args = Args::new(name, request.body.as_ref());
    writable(context.database_name(), args.required_string(name)?)
}

/// Runs a command in the partitions that have the collection; nowhere if none has.
fn in_partitions(
    database: &Database,
    context: &CommandContext<'_>,
    request: &Request,
    namespace: &Namespace,
) -> Result<Vec<Document>> {
    let router = router_of(database);
    let Some(placement) = rollups::place_of(database, namespace) else {
        return Ok(Vec::new());
    };
    let partitions = placement.partitions(router.count());
    let operation = &context.operation;
    let body = forwarded(request.body.as_ref(), &["collectionUUID"], operation);
    router.ask_all(&partitions, &namespace.database, &body, operation)
}
