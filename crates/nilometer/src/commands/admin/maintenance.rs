//! `compact` and `reIndex`; and `splitVector`, which is refused.

use nilometer_bson::{Array, Document, Value, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::catalog::Namespace;
use crate::commands::ddl::indexes;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::database::indexes::{IndexForm, id_index, listed_indexes};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const COMPACT: CommandSpec = CommandSpec {
    access: Access::Write,
    fields: Fields::Only(&["force", "freeSpaceTargetMB", "dryRun"]),
    ..CommandSpec::new(
        "compact",
        "Merges the stored tables, so that the files shrink.",
        Authorization::OnCollection(&[Action::Compact]),
        OnRouter::Refused,
        compact,
    )
};

pub(crate) const RE_INDEX: CommandSpec = CommandSpec {
    access: Access::Write,
    ..CommandSpec::new(
        "reIndex",
        "Repairs the indexes of a collection.",
        Authorization::OnCollection(&[Action::ReIndex]),
        OnRouter::Refused,
        re_index,
    )
};

pub(crate) const SPLIT_VECTOR: CommandSpec = CommandSpec {
    access: Access::Read,
    fields: Fields::Only(&[
        "keyPattern",
        "min",
        "max",
        "maxChunkSize",
        "maxChunkSizeBytes",
        "maxSplitPoints",
        "maxChunkObjects",
        "force",
    ]),
    ..CommandSpec::new(
        "splitVector",
        "Refused: nothing is sharded.",
        Authorization::OnCollection(&[Action::SplitVector]),
        OnRouter::Refused,
        split_vector,
    )
};

/// Merges the collection's keyspaces. The engine merges all keyspaces together, so other collections shrink
/// too; the reply reports this one.
fn compact(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("compact", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.required_string("compact")?)?;
    args.lenient_boolean("force")?;
    args.integer_at_least("freeSpaceTargetMB", 1)?;
    let dry_run = args.lenient_boolean("dryRun")?.unwrap_or(false);
    let collection = match database.catalog().timeseries(&namespace) {
        Some(buckets) => buckets,
        None => database.catalog().collection_not_view(&namespace)?,
    };
    if dry_run {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "compact cannot estimate what it would free: 'dryRun' is not supported",
        ));
    }
    let bytes = || -> Result<u64> {
        let mut bytes = 0;
        for keyspace in collection.keyspaces() {
            bytes += database.engine().keyspace_statistics(keyspace)?.disk_bytes;
        }
        Ok(bytes)
    };
    let before = bytes()?;
    database.engine().settle()?;
    let freed = before.saturating_sub(bytes()?);
    Ok(doc! { "bytesFreed": i64::try_from(freed).unwrap_or(i64::MAX) })
}

fn re_index(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("reIndex", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.required_string("reIndex")?)?;
    let collection = database.catalog().collection_not_view(&namespace)?;
    if collection.timeseries.is_some() {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "reIndex is not supported on the buckets of time-series collections",
        ));
    }
    let interrupt = || context.operation.check_interrupt();
    database
        .records()
        .rebuild_indexes(&collection, &interrupt)?;
    let count = indexes::count(&collection);
    let own = id_index(&collection).into_iter();
    let others = listed_indexes(&collection, IndexForm::Stored);
    let others = others.iter().map(|index| index.spec.to_document());
    let listed: Array = own.chain(others).map(Value::Document).collect();
    Ok(doc! { "nIndexesWas": count, "nIndexes": count, "indexes": listed })
}

fn split_vector(
    database: &Database,
    _: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("splitVector", request.body.as_ref());
    // Unlike other commands it takes the whole namespace.
    let name = args.required_string("splitVector")?;
    let (db, collection) = name.split_once('.').unwrap_or((name, ""));
    database
        .catalog()
        .collection_not_view(&Namespace::new(db, collection)?)?;
    Err(Error::new(
        ErrorCode::CommandNotSupported,
        "splitVector is not supported: nothing is sharded",
    ))
}
