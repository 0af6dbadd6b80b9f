//! The commands that only a router has: which partitions there are, and what goes where.
//!
//! `moveRange` and `split` change where new buckets go: no bucket moves. Documents of ordinary collections move: what is
//! different for these is in [`ordinary`].

use std::sync::Arc;

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::{first_batch, not_sharded, ordinary, rollups, router_of};
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{CatalogEntry, Namespace, TimeseriesOptions};
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::{Database, create_anew};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};
use crate::router::{KeyBound, Placement, Router, ShardKey, Sharding};
use crate::write::CappedLimits;

pub(super) const ENABLE: CommandSpec = CommandSpec {
    admin_only: true,
    write_concern: true,
    fields: Fields::Only(&["primaryShard"]),
    ..CommandSpec::new(
        "enableSharding",
        "Allows collections of a database to be sharded.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Same,
        enable,
    )
};

pub(super) const IS_DB_GRID: CommandSpec = CommandSpec::new(
    "isdbgrid",
    "Tells a client that this is a router.",
    Authorization::Open,
    OnRouter::Same,
    is_db_grid,
);

pub(super) const SHARD_MAP: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "getShardMap",
        "Shows where each partition is.",
        Authorization::OnCluster(&[Action::GetShardMap]),
        OnRouter::Same,
        shard_map,
    )
};

pub(super) const LIST_SHARDS: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "listShards",
        "Lists the partitions.",
        Authorization::OnCluster(&[Action::ListShards]),
        OnRouter::Same,
        list_shards,
    )
};

pub(super) const MOVE_CHUNK: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["find", "bounds", "to"]),
    ..CommandSpec::new(
        "moveChunk",
        "Lets new buckets of a chunk go to another partition, and moves documents.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        move_chunk,
    )
};

pub(super) const MOVE_RANGE: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["min", "max", "toShard"]),
    ..CommandSpec::new(
        "moveRange",
        "Lets new buckets of a range go to another partition, and moves documents.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        move_range,
    )
};

pub(super) const SHARD_COLLECTION: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["key", "unique", "collation", "timeseries"]),
    ..CommandSpec::new(
        "shardCollection",
        "Divides a collection among the partitions.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        shard_collection,
    )
};

pub(super) const SPLIT: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    fields: Fields::Only(&["middle", "find", "bounds"]),
    ..CommandSpec::new(
        "split",
        "Divides a chunk in two.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        split,
    )
};

fn enable(_: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("enableSharding", request.body.as_ref());
    if args.string("primaryShard")?.is_some() {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "enableSharding with 'primaryShard' is not supported: each collection that is not sharded has a partition of its own",
        ));
    }
    // A database needs nothing for its collections to be sharded.
    Namespace::new(args.required_string("enableSharding")?, "any")?;
    Ok(Document::new())
}

fn is_db_grid(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let host = &database.services().host;
    Ok(doc! {"isdbgrid": 1, "hostname": host.hostname.as_str()})
}

fn list_shards(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let router = router_of(database);
    let shards = (0..router.count()).map(|shard| Value::from(router.shard(shard)));
    Ok(doc! {"shards": shards.collect::<Vec<_>>()})
}

fn shard_map(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let router = router_of(database);
    let (mut map, mut addresses) = (DocumentBuilder::new(), DocumentBuilder::new());
    for partition in 0..router.count() {
        let name = router.name(partition);
        let address = format!("{name}/{}", router.host(partition));
        map.append(name, address.as_str());
        addresses.append(&address, name);
    }
    Ok(doc! {"map": map.finish(), "connStrings": addresses.finish()})
}

/// Returns the collection of a command about ranges. A time series may be named as its buckets, as `config.collections` does.
pub(super) fn placed_name(args: &Args<'_>, command: &str) -> Result<Namespace> {
    let name = args.required_string(command)?;
    let named = name
        .split_once('.')
        .map(|(db, name)| Namespace::new(db, name));
    match named.transpose()?.and_then(|named| named.timeseries_view()) {
        Some(series) => super::writable(&series.database, &series.collection),
        None => whole_name(args, command),
    }
}

/// Returns the collection that a command names as `db.coll`.
pub(super) fn whole_name(args: &Args<'_>, command: &str) -> Result<Namespace> {
    let name = args.required_string(command)?;
    match name.split_once('.') {
        Some((database, collection)) => super::writable(database, collection),
        None => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{name}'"),
        )),
    }
}

fn shard_collection(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("shardCollection", request.body.as_ref());
    let namespace = whole_name(&args, "shardCollection")?;
    let key = args.required_document("key")?;
    let is_unique = args.boolean("unique")?.unwrap_or(false);
    let timeseries = args.document("timeseries")?;
    match database.catalog().get(&namespace) {
        None => create(database, &namespace, key, timeseries)?,
        Some(_) => check_timeseries(database, &namespace, timeseries)?,
    }
    let changes = router.lock_changes();
    let key = shard_key(database, &namespace, key, is_unique)?;
    check_collation(database, &namespace, &args)?;
    let placement = router
        .placement(&namespace)
        .ok_or_else(|| not_placed(&namespace))?;
    if let Some(sharding) = &placement.sharding {
        if sharding.key.written() == key.written() {
            return Ok(sharded(&namespace));
        }
        return Err(Error::new(
            ErrorCode::AlreadyInitialized,
            format!("the collection {namespace} is sharded with another key"),
        ));
    }
    spread_checked(database, context, &namespace, &placement, (&key, is_unique))?;
    let spread_state = state_of(database, &namespace)?;
    drop(changes);
    // No write is on its way by the old placement when its documents are looked for. Writes come before changes: a write may
    // change the placement.
    let _no_writes = router.stop_writes();
    let _changes = router.lock_changes();
    router.begin_change(&namespace, &context.operation)?;
    let is_same = router
        .placement(&namespace)
        .is_some_and(|now| now.uuid == placement.uuid && now.sharding.is_none());
    if !is_same {
        return Err(Error::new(
            ErrorCode::ConflictingOperationInProgress,
            format!("the collection {namespace} was changed meanwhile"),
        ));
    }
    if state_of(database, &namespace)? != spread_state {
        // The primary alone has what another command has changed since.
        spread_checked(database, context, &namespace, &placement, (&key, is_unique))?;
    }
    let operation = &context.operation;
    let is_empty = !ordinary::has_documents(
        (router, operation),
        &namespace,
        &[placement.primary],
        &Document::new(),
    )?;
    let all: Vec<usize> = (0..router.count()).collect();
    rollups::spread(database, operation, &namespace, &all)?;
    let spread_over = is_empty.then(|| router.count());
    let mut sharding = Sharding::new(key, placement.primary, spread_over, operation.now_ms);
    sharding.is_unique = is_unique;
    let divided = Placement {
        sharding: Some(Arc::new(sharding)),
        ..Placement::clone(&placement)
    };
    router.set_placement(&namespace, Some(divided))?;
    Ok(sharded(&namespace))
}

/// Creates the collection of `shardCollection`.
fn create(
    database: &Database,
    namespace: &Namespace,
    key: DocRef<'_>,
    timeseries: Option<DocRef<'_>>,
) -> Result<()> {
    let mut create = DocumentBuilder::new();
    create.append("create", namespace.collection.as_str());
    let options = timeseries.map(TimeseriesOptions::parse).transpose()?;
    // A wrong key leaves no collection.
    ShardKey::parse(key, options.as_ref())?;
    if let Some(timeseries) = timeseries {
        create.append("timeseries", timeseries.to_document());
    }
    database.call(&namespace.database, create.finish())?;
    Ok(())
}

/// Fails if the options that a command gives for a time series are not those of the collection that there is.
fn check_timeseries(
    database: &Database,
    namespace: &Namespace,
    given: Option<DocRef<'_>>,
) -> Result<()> {
    let Some(given) = given.map(TimeseriesOptions::parse).transpose()? else {
        return Ok(());
    };
    let known = database.catalog().timeseries(namespace);
    let known = known.and_then(|known| known.timeseries.clone());
    match known == Some(given) {
        true => Ok(()),
        false => Err(Error::invalid_options(format!(
            "the 'timeseries' options differ from those of the existing collection {namespace}"
        ))),
    }
}

fn sharded(namespace: &Namespace) -> Document {
    doc! {"collectionsharded": namespace.to_string()}
}

/// Returns the options and the indexes of a collection, by which another one of that name, or a change, is found.
fn state_of(database: &Database, namespace: &Namespace) -> Result<(Vec<u8>, Vec<u8>)> {
    let create = rollups::creation_of(database, namespace)?;
    let list = doc! {"listIndexes": namespace.collection.as_str()};
    let indexes = database.call(&namespace.database, list)?;
    Ok((create.as_bytes().to_vec(), indexes.as_bytes().to_vec()))
}

/// Makes the collection, its indexes and that of the shard key in every partition; fails if it cannot have that key.
fn spread_checked(
    database: &Database,
    context: &mut CommandContext<'_>,
    namespace: &Namespace,
    placement: &Placement,
    of: (&ShardKey, bool),
) -> Result<()> {
    if !of.0.is_timeseries() {
        let by = (router_of(database), &context.operation);
        ordinary::check(database, by, namespace, placement, of)?;
    }
    spread(database, context, namespace, placement, of)
}

/// Makes the collection, its indexes and that of the shard key in every partition.
fn spread(
    database: &Database,
    context: &mut CommandContext<'_>,
    namespace: &Namespace,
    placement: &Placement,
    (key, is_unique): (&ShardKey, bool),
) -> Result<()> {
    let router = router_of(database);
    let (db, name) = (&namespace.database, namespace.collection.as_str());
    let create = rollups::creation_of(database, namespace)?;
    let others: Vec<usize> = (0..router.count())
        .filter(|p| *p != placement.primary)
        .collect();
    let operation = &context.operation;
    create_anew((router, operation), namespace, &others, &create)?;
    let indexes = database.call(db, doc! {"listIndexes": name})?;
    let mut indexes: Vec<Value> = first_batch(&indexes).into_iter().map(Value::from).collect();
    let is_known = indexes
        .iter()
        .any(|index| match index.as_ref().as_document() {
            Some(index) if key.is_timeseries() => {
                let known = index.get("key").as_document();
                known.map(|key| key.to_document()) == Some(key.written())
            }
            Some(index) => key.is_served_by(index, is_unique),
            None => false,
        });
    if !is_known {
        let mut own = DocumentBuilder::new();
        own.append("key", key.written());
        own.append("name", index_name(&key.written()));
        if is_unique {
            own.append("unique", true);
        }
        if !key.is_timeseries() {
            // The order of keys is that of bytes.
            own.append("collation", doc! {"locale": "simple"});
        }
        indexes.push(own.finish().into());
    }
    make_indexes(database, context, namespace, indexes)
}

/// Makes indexes of a collection in all partitions and in the router's own catalog.
pub(super) fn make_indexes(
    database: &Database,
    context: &mut CommandContext<'_>,
    namespace: &Namespace,
    indexes: Vec<Value>,
) -> Result<()> {
    let router = router_of(database);
    let db = &namespace.database;
    let make = doc! {"createIndexes": namespace.collection.as_str(), "indexes": indexes};
    let all: Vec<usize> = (0..router.count()).collect();
    router.ask_all(&all, db, &make, &context.operation)?;
    in_own_catalog(database, context, db, make)
}

/// Makes indexes in the router's own catalog.
fn in_own_catalog(
    database: &Database,
    context: &mut CommandContext<'_>,
    db: &str,
    command: Document,
) -> Result<()> {
    let mut operation = context.operation.clone();
    operation.database = db.to_owned();
    let spec = &crate::commands::ddl::create_indexes::SPEC;
    let mut own = CommandContext {
        operation,
        session: &mut *context.session,
        spec,
    };
    (spec.handler)(database, &mut own, &Request::new(command)).map(drop)
}

/// Returns the name of an index as drivers make it.
pub(super) fn index_name(key: &Document) -> String {
    let parts = key.iter().map(|part| match part.value() {
        ValueRef::String(kind) => format!("{}_{kind}", part.name()),
        _ => format!("{}_1", part.name()),
    });
    parts.collect::<Vec<_>>().join("_")
}

/// Parses the shard key of an existing collection.
pub(super) fn shard_key(
    database: &Database,
    namespace: &Namespace,
    key: DocRef<'_>,
    is_unique: bool,
) -> Result<ShardKey> {
    let catalog = database.catalog();
    if let Some(collection) = catalog.timeseries(namespace) {
        if is_unique {
            return Err(Error::invalid_options(
                "a time-series collection cannot have a unique shard key",
            ));
        }
        return ShardKey::parse(key, collection.timeseries.as_ref());
    }
    match catalog.get(namespace) {
        None => Err(not_placed(namespace)),
        Some(CatalogEntry::View(_)) => Err(Error::new(
            ErrorCode::CommandNotSupportedOnView,
            format!("Namespace {namespace} is a view, not a collection: it cannot be sharded"),
        )),
        Some(CatalogEntry::Collection(found)) if CappedLimits::of(&found).is_some() => Err(
            Error::invalid_options("a capped collection cannot be sharded"),
        ),
        Some(CatalogEntry::Collection(_)) => {
            let key = ShardKey::parse(key, None)?;
            match is_unique && key.parts().iter().any(|part| part.is_hashed) {
                true => Err(Error::invalid_options(
                    "hashed shard keys cannot be declared unique",
                )),
                false => Ok(key),
            }
        }
    }
}

fn not_placed(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::NamespaceNotFound,
        format!("the collection {namespace} does not exist"),
    )
}

/// Keys are compared by bytes, whatever the collation of the collection: the command must say so.
fn check_collation(database: &Database, namespace: &Namespace, args: &Args<'_>) -> Result<()> {
    use crate::commands::crud::query::{default_collation, given_collation};
    let own = default_collation(database, &namespace.database, &namespace.collection)?;
    let given = given_collation(args)?;
    if given.is_some_and(|given| !given.is_simple()) {
        return Err(Error::bad_value(
            "The collation for shardCollection must be {locale: 'simple'}",
        ));
    }
    if !own.is_simple() && args.value("collation").is_missing() {
        return Err(Error::bad_value(
            "The default collation of the collection is not simple: shardCollection needs the collation {locale: 'simple'}",
        ));
    }
    Ok(())
}

/// Lets a range go to another partition. `range_of` finds it in the chunks.
fn move_to(
    by: (&Router, &OperationContext),
    namespace: &Namespace,
    partition: usize,
    range_of: impl FnOnce(&Sharding) -> Result<(KeyBound, KeyBound)>,
) -> Result<Document> {
    let sharding = by.0.sharding(namespace);
    let sharding = sharding.ok_or_else(|| not_sharded(namespace))?;
    let (low, high) = range_of(&sharding)?;
    if low >= high {
        return Err(Error::bad_value("the range must not be empty"));
    }
    match sharding.key.is_timeseries() {
        true => {
            let now_ms = by.1.now_ms;
            change_sharding(by, namespace, |sharding| {
                sharding.assign((low, high), partition, now_ms)
            })?;
        }
        false => ordinary::move_range(by, namespace, (&low, &high), partition)?,
    }
    Ok(Document::new())
}

/// Changes how a collection is divided.
pub(super) fn change_sharding(
    (router, operation): (&Router, &OperationContext),
    namespace: &Namespace,
    change: impl FnOnce(&mut Sharding) -> Result<()>,
) -> Result<()> {
    let _changes = router.lock_changes();
    router.begin_change(namespace, operation)?;
    let placement = router.placement(namespace);
    let mut placement = placement.map(|p| Placement::clone(&p));
    match placement
        .as_mut()
        .and_then(|placement| placement.sharding.as_mut())
    {
        Some(sharding) => change(Arc::make_mut(sharding))?,
        None => return Err(not_sharded(namespace)),
    }
    router.set_placement(namespace, placement)
}

fn move_range(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("moveRange", request.body.as_ref());
    let namespace = placed_name(&args, "moveRange")?;
    let partition = router.number_of(args.required_string("toShard")?)?;
    let (min, max) = (args.document("min")?, args.document("max")?);
    let by = (router, &context.operation);
    move_to(by, &namespace, partition, |sharding| {
        let bound = |given: DocRef<'_>| sharding.key.bound(given);
        match (min.map(bound).transpose()?, max.map(bound).transpose()?) {
            (Some(low), Some(high)) => Ok((low, high)),
            (Some(low), None) => {
                let high = sharding.chunk_around(&low).1;
                Ok((low, high))
            }
            (None, Some(high)) => Ok((sharding.chunk_below(&high), high)),
            (None, None) => Err(Error::bad_value(
                "moveRange needs at least one of 'min' and 'max'",
            )),
        }
    })
}

/// `moveChunk`: the chunk that has a key, or that lies between two bounds.
fn move_chunk(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("moveChunk", request.body.as_ref());
    let namespace = placed_name(&args, "moveChunk")?;
    let partition = router.number_of(args.required_string("to")?)?;
    let named = (args.document("find")?, args.array("bounds")?);
    let by = (router, &context.operation);
    move_to(by, &namespace, partition, |sharding| {
        named_chunk(sharding, named, "moveChunk")
    })
}

/// Returns the chunk that a command names by a key or by its bounds.
fn named_chunk(
    sharding: &Sharding,
    named: (Option<DocRef<'_>>, Option<ArrayRef<'_>>),
    command: &str,
) -> Result<(KeyBound, KeyBound)> {
    match named {
        (Some(key), None) => Ok(sharding.chunk_around(&sharding.key.place_of(key)?)),
        (None, Some(bounds)) => {
            let bound = |at: usize| match bounds.get(at).as_document() {
                Some(bound) => sharding.key.bound(bound),
                None => Err(Error::bad_value("'bounds' has two documents: [min, max]")),
            };
            let range = (bound(0)?, bound(1)?);
            match sharding.chunk_around(&range.0) == range {
                true => Ok(range),
                false => Err(Error::bad_value("no chunk has these bounds: see moveRange")),
            }
        }
        _ => Err(Error::bad_value(format!(
            "{command} names a chunk by either 'find' or 'bounds'"
        ))),
    }
}

fn split(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("split", request.body.as_ref());
    let namespace = placed_name(&args, "split")?;
    let named = (args.document("find")?, args.array("bounds")?);
    let by = (router, &context.operation);
    let sharding = router.sharding(&namespace);
    let sharding = sharding.ok_or_else(|| not_sharded(&namespace))?;
    let at = match (args.document("middle")?, named) {
        (Some(middle), (None, None)) => sharding.key.bound(middle)?,
        (Some(_), _) => {
            return Err(Error::bad_value(
                "split has one of 'middle', 'find' and 'bounds'",
            ));
        }
        (None, _) if sharding.key.is_timeseries() => {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                "split of a time series at its median is not supported: name the key by 'middle'",
            ));
        }
        (None, named) => {
            let chunk = named_chunk(&sharding, named, "split")?;
            ordinary::median(by, &namespace, &sharding, chunk)?
        }
    };
    change_sharding(by, &namespace, |sharding| sharding.split(at))?;
    Ok(Document::new())
}
