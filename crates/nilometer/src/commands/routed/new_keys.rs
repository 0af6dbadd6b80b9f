//! Other shard keys for sharded collections: `refineCollectionShardKey`, and `reshardCollection` of a time series.
//!
//! A refined key has the key before as its begin, so everything stays where it is. A time series with another key keeps its
//! buckets, too: those that were written before are looked for in all partitions that had any, and the new key says where new
//! ones go.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, doc};

use super::sharding::{change_sharding, index_name, make_indexes, shard_key, whole_name};
use super::{first_batch, is_true, not_sharded, ordinary, router_of};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::router::{ShardKey, Sharding};

pub(super) const REFINE: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["key"]),
    ..CommandSpec::new(
        "refineCollectionShardKey",
        "Adds parts to a shard key.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        refine,
    )
};

pub(super) const RESHARD: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["key", "unique", "collation", "forceRedistribution"]),
    ..CommandSpec::new(
        "reshardCollection",
        "Gives a time series another shard key.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        reshard,
    )
};

/// Returns how a sharded collection is divided, and its new key.
fn asked(
    database: &Database,
    namespace: &Namespace,
    args: &Args<'_>,
    is_unique: bool,
) -> Result<(Arc<Sharding>, ShardKey)> {
    let sharding = router_of(database).sharding(namespace);
    let sharding = sharding.ok_or_else(|| not_sharded(namespace))?;
    let key = shard_key(
        database,
        namespace,
        args.required_document("key")?,
        is_unique,
    )?;
    Ok((sharding, key))
}

/// Fails if the key of a collection is not `before` any more.
fn check_same(namespace: &Namespace, sharding: &Sharding, before: &ShardKey) -> Result<()> {
    match sharding.key.written() == before.written() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::ConflictingOperationInProgress,
            format!("the collection {namespace} was changed meanwhile"),
        )),
    }
}

fn refine(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("refineCollectionShardKey", request.body.as_ref());
    let namespace = whole_name(&args, "refineCollectionShardKey")?;
    let (sharding, key) = asked(database, &namespace, &args, false)?;
    let before = sharding.key.clone();
    let (old, new) = (before.written(), key.written());
    if old == new {
        return Ok(Document::new());
    }
    let parts = old.iter().count();
    let is_longer = parts < new.iter().count();
    let mut begin = DocumentBuilder::new();
    for part in new.iter().take(parts) {
        begin.append_element(part);
    }
    let is_begin = begin.finish() == old;
    if !is_longer || !is_begin {
        return Err(Error::invalid_options(
            "a refined shard key begins with the shard key before, and adds parts to it",
        ));
    }
    check_indexes(database, &namespace, &key, sharding.is_unique)?;
    let by = (router, &context.operation);
    let all: Vec<usize> = (0..router.count()).collect();
    if !key.is_timeseries()
        && ordinary::has_documents(by, &namespace, &all, &ordinary::arrays(&key))?
    {
        return Err(Error::invalid_options(
            "a document has an array in the refined shard key",
        ));
    }
    change_sharding(by, &namespace, |sharding| {
        check_same(&namespace, sharding, &before)?;
        sharding.refine(key.clone());
        Ok(())
    })?;
    Ok(Document::new())
}

/// Fails without an index that begins with a refined key, or with a unique one that does not.
fn check_indexes(
    database: &Database,
    namespace: &Namespace,
    key: &ShardKey,
    is_unique: bool,
) -> Result<()> {
    let list = doc! {"listIndexes": namespace.collection.as_str()};
    let indexes = first_batch(&database.call(&namespace.database, list)?);
    let key_of = |index: &Document| {
        let of = index.get("key").as_document();
        of.unwrap_or(DocRef::EMPTY).to_document()
    };
    let serves = |index: &Document| match key.is_timeseries() {
        true => key.is_prefix_of(key_of(index).as_ref()),
        false => key.is_served_by(index.as_ref(), is_unique),
    };
    if !indexes.iter().any(serves) {
        return Err(Error::invalid_options(
            "Please create an index that starts with the refined shard key before refining it",
        ));
    }
    let is_wrong = |index: &&Document| {
        is_true(index.get("unique")) && !key.allows_unique(key_of(index).as_ref())
    };
    match indexes.iter().find(is_wrong) {
        None => Ok(()),
        Some(index) => Err(Error::invalid_options(format!(
            "the unique index '{}' does not begin with the refined shard key",
            index.get("name").as_str().unwrap_or_default()
        ))),
    }
}

fn reshard(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("reshardCollection", request.body.as_ref());
    let namespace = whole_name(&args, "reshardCollection")?;
    let is_unique = args.boolean("unique")?.unwrap_or(false);
    let (sharding, key) = asked(database, &namespace, &args, is_unique)?;
    if !key.is_timeseries() {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "reshardCollection is not supported for ordinary collections: the shard key of their documents does not change; refineCollectionShardKey adds parts",
        ));
    }
    let is_forced = args.boolean("forceRedistribution")?.unwrap_or(false);
    let before = sharding.key.clone();
    if before.written() == key.written() && !is_forced {
        return Ok(Document::new());
    }
    make_index(database, context, &namespace, &key)?;
    let by = (router, &context.operation);
    let count = router.count();
    let now_ms = context.operation.now_ms;
    let placement = router.placement(&namespace);
    let primary = placement.map_or(0, |placement| placement.primary);
    change_sharding(by, &namespace, |sharding| {
        check_same(&namespace, sharding, &before)?;
        *sharding = sharding.resharded(key.clone(), (primary, count), now_ms);
        Ok(())
    })?;
    Ok(Document::new())
}

/// Makes the index of a shard key everywhere, if there is none.
fn make_index(
    database: &Database,
    context: &mut CommandContext<'_>,
    namespace: &Namespace,
    key: &ShardKey,
) -> Result<()> {
    let _changes = router_of(database).lock_changes();
    let list = doc! {"listIndexes": namespace.collection.as_str()};
    let indexes = first_batch(&database.call(&namespace.database, list)?);
    let is_it = |index: &Document| {
        let of = index.get("key").as_document();
        of.is_some_and(|of| of.to_document() == key.written())
    };
    if indexes.iter().any(is_it) {
        return Ok(());
    }
    let index = doc! {"key": key.written(), "name": index_name(&key.written())};
    make_indexes(database, context, namespace, vec![index.into()])
}
