//! Commands about chunks and versions: `mergeChunks`, `mergeAllChunksOnShard`, `getShardVersion` and `flushRouterConfig`.
//!
//! Chunks are merged by forgetting a bound between two of one partition: nothing moves, and what each partition had is kept.

use nilometer_bson::{Document, DocumentBuilder, ObjectId, Value, doc};

use super::sharding::{change_sharding, placed_name};
use super::{not_sharded, router_of};
use crate::args::Args;
use crate::auth::Action;
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::operation::Request;
use crate::router::version_of;

pub(super) const FLUSH: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "flushRouterConfig",
        "Reads the placements again.",
        Authorization::OnCluster(&[Action::FlushRouterConfig]),
        OnRouter::Same,
        flush,
    )
};

pub(super) const SHARD_VERSION: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "getShardVersion",
        "Returns the version of the placement of a sharded collection.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Same,
        shard_version,
    )
};

pub(super) const MERGE: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["bounds"]),
    ..CommandSpec::new(
        "mergeChunks",
        "Makes one chunk of neighbouring ones of a partition.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        merge,
    )
};

pub(super) const MERGE_ALL: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["shard", "maxNumberOfChunksToMerge"]),
    ..CommandSpec::new(
        "mergeAllChunksOnShard",
        "Makes one chunk of each run of neighbouring ones of a partition.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        merge_all,
    )
};

fn flush(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    if let Some(coordinator) = router_of(database).elsewhere() {
        coordinator.catch_up()?;
    }
    Ok(doc! {"flushed": true})
}

fn shard_version(
    database: &Database,
    _: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("getShardVersion", request.body.as_ref());
    let namespace = placed_name(&args, "getShardVersion")?;
    let placement = router_of(database).placement(&namespace);
    let sharded = placement.as_ref().and_then(|placement| {
        let sharding = placement.sharding.as_ref()?;
        Some((placement, sharding))
    });
    let (placement, sharding) = sharded.ok_or_else(|| not_sharded(&namespace))?;
    let mut epoch = [0; 12];
    epoch.copy_from_slice(&placement.uuid[..12]);
    let mut out = DocumentBuilder::new();
    out.append("version", version_of(sharding));
    out.append("versionEpoch", Value::ObjectId(ObjectId(epoch)));
    out.append("versionTimestamp", version_of(sharding));
    Ok(out.finish())
}

fn merge(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("mergeChunks", request.body.as_ref());
    let namespace = placed_name(&args, "mergeChunks")?;
    let bounds = args.required_array("bounds")?;
    let by = (router_of(database), &context.operation);
    change_sharding(by, &namespace, |sharding| {
        let bound = |at: usize| match bounds.get(at).as_document() {
            Some(bound) => sharding.key.bound(bound),
            None => Err(Error::bad_value("'bounds' has two documents: [min, max]")),
        };
        let (low, high) = (bound(0)?, bound(1)?);
        sharding.merge(&low, &high)
    })?;
    Ok(Document::new())
}

fn merge_all(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("mergeAllChunksOnShard", request.body.as_ref());
    let namespace = placed_name(&args, "mergeAllChunksOnShard")?;
    let partition = router.number_of(args.required_string("shard")?)?;
    let most = args.integer_at_least("maxNumberOfChunksToMerge", 2)?;
    let most = most.and_then(|most| usize::try_from(most).ok());
    change_sharding((router, &context.operation), &namespace, |sharding| {
        sharding.merge_all(partition, most.unwrap_or(usize::MAX));
        Ok(())
    })?;
    Ok(Document::new())
}
