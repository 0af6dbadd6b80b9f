//! What commands do on a router, where that is not what they do on one server.
//!
//! ```text
//! catalog      the router's own, then the partitions of the collection; at the router that has the catalog
//! reads        the handler of one server: the router's collections are in partitions
//! writes       to the partition of each document, or to those that may have the documents
//! process      the handler of one server
//! any other    refused
//! ```
//!
//! Which of these a command is says the column [`OnRouter`] of the table of commands. [`ROUTER_COMMANDS`] are the commands that
//! only a router has.

mod balancer;
mod buffered;
mod bulk;
mod change;
mod chunks;
mod config_updates;
mod ddl;
mod elsewhere;
mod explain;
mod find_and_modify;
mod insert;
mod key_updates;
mod many;
mod narrowed;
mod new_keys;
mod ordinary;
mod rollups;
mod sharding;
mod stats;
mod unsupported;
mod validate;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};

use super::generic::is_generic;
use super::{CommandSpec, Handler, OnRouter};
use crate::catalog::{Namespace, is_internal_database};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::OperationContext;
use crate::router::Router;

/// The commands that only a router has, sorted by name.
pub(crate) static ROUTER_COMMANDS: &[CommandSpec] = &[
    unsupported::ABORT_MOVE_COLLECTION,
    unsupported::ABORT_RESHARD,
    unsupported::ABORT_UNSHARD,
    unsupported::ADD_SHARD,
    unsupported::ADD_SHARD_TO_ZONE,
    unsupported::ANALYZE_KEY,
    balancer::COLLECTION_STATUS,
    balancer::START,
    balancer::STATUS,
    balancer::STOP,
    unsupported::CHECK_METADATA,
    unsupported::CLEANUP_ORPHANED,
    unsupported::CLEANUP_RESHARD,
    unsupported::CLEAR_JUMBO,
    unsupported::COMMIT_RESHARD,
    unsupported::CONFIGURE_BALANCING,
    unsupported::CONFIGURE_ANALYZER,
    sharding::ENABLE,
    chunks::FLUSH,
    sharding::SHARD_MAP,
    chunks::SHARD_VERSION,
    sharding::IS_DB_GRID,
    sharding::LIST_SHARDS,
    chunks::MERGE_ALL,
    chunks::MERGE,
    sharding::MOVE_CHUNK,
    unsupported::MOVE_COLLECTION,
    unsupported::MOVE_PRIMARY,
    sharding::MOVE_RANGE,
    new_keys::REFINE,
    unsupported::REMOVE_SHARD,
    unsupported::REMOVE_SHARD_FROM_ZONE,
    new_keys::RESHARD,
    unsupported::ALLOW_MIGRATIONS,
    sharding::SHARD_COLLECTION,
    unsupported::SHARDING_STATE,
    sharding::SPLIT,
    unsupported::FROM_DEDICATED,
    unsupported::TO_DEDICATED,
    unsupported::UNSHARD,
    unsupported::UPDATE_ZONE,
];

/// How often a write begins again because its placement has changed.
const PLACEMENT_CHANGES_MAX: usize = 100;

/// Returns the number of the statement at a position of a command, which has at most 100,000.
fn statement_number(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Returns the command `name` that only a router has.
pub(super) fn find(name: &str) -> Option<&'static CommandSpec> {
    ROUTER_COMMANDS.iter().find(|command| command.name == name)
}

/// Returns what runs a command on a router. `is_view` is true if another router has the catalog.
pub(super) fn handler_of(spec: &'static CommandSpec, is_view: bool) -> Result<Handler> {
    let own = own_handler_of(spec.name);
    match spec.on_router {
        OnRouter::Same => Ok(spec.handler),
        OnRouter::Catalog if is_view => Ok(elsewhere::run),
        OnRouter::Own | OnRouter::Catalog => Ok(own.unwrap_or(spec.handler)),
        OnRouter::Refused => Err(Error::new(
            ErrorCode::CommandNotSupported,
            format!("{} is not supported on a router", spec.name),
        )),
    }
}

/// Returns what only a router does for a command; `None` if it does what one server does.
fn own_handler_of(name: &str) -> Option<Handler> {
    Some(match name {
        "bulkWrite" => bulk::run,
        "collMod" => ddl::coll_mod,
        "collStats" => stats::collection,
        "create" => ddl::create,
        "createIndexes" => ddl::create_indexes,
        "dbStats" => stats::database,
        "delete" => change::delete,
        "drop" => ddl::drop_collection,
        "dropDatabase" => ddl::drop_database,
        "dropIndexes" => ddl::drop_indexes,
        "explain" => explain::run,
        "findAndModify" => find_and_modify::run,
        "insert" => insert::run,
        "listDatabases" => ddl::list_databases,
        "refreshRollup" => rollups::refresh,
        "renameCollection" => ddl::rename_collection,
        "rollupStatus" => rollups::status,
        "update" => change::update,
        "validate" => validate::run,
        _ => return None,
    })
}

/// Returns the router of a database that is one.
fn router_of(database: &Database) -> &Router {
    let router = database.as_router();
    router.expect("a handler of routers runs on routers")
}

/// Returns the error of a command for sharded collections about another one.
fn not_sharded(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::NamespaceNotSharded,
        format!("Collection {namespace} is not sharded"),
    )
}

/// Returns the name of a collection that clients may write.
fn writable(database: &str, collection: &str) -> Result<Namespace> {
    let namespace = Namespace::new(database, collection)?;
    let reason = match namespace.timeseries_view() {
        Some(series) => format!("buckets are those of the time series {series}: name that"),
        None if is_internal_database(database) => {
            "admin, config and local have only collections of the cluster itself".to_owned()
        }
        None => return Ok(namespace),
    };
    Err(Error::new(
        ErrorCode::CommandNotSupported,
        format!("{namespace} is not written on a router: {reason}"),
    ))
}

/// Returns a command for partitions: without the options of every command, which the request to a partition has by itself,
/// and without the fields in `without`.
fn forwarded(body: DocRef<'_>, without: &[&str], operation: &OperationContext) -> Document {
    let mut out = DocumentBuilder::extending(read(body, without));
    out.append("writeConcern", write_concern(operation));
    out.finish()
}

/// Returns the same for a command that writes nothing, and so has no write concern.
fn read(body: DocRef<'_>, without: &[&str]) -> Document {
    let mut out = DocumentBuilder::with_capacity(body.as_bytes().len() + 48);
    for element in body {
        let name = element.name();
        if !is_generic(name) && !without.contains(&name) {
            out.append_element(element);
        }
    }
    out.finish()
}

/// Returns the write concern of a command, as a partition reads it. A router waits for the answers in any case.
fn write_concern(operation: &OperationContext) -> Document {
    doc! {"w": 1, "j": operation.write_concern.journaled}
}

/// Adds the numbers of a field of several replies.
fn sum(replies: &[Document], field: &str) -> i64 {
    let numbers = replies.iter().map(|reply| number(reply.get(field)));
    numbers.sum()
}

/// Returns the documents of a reply with a cursor that has no more.
fn first_batch(reply: &Document) -> Vec<Document> {
    let cursor = reply.get("cursor").as_document();
    let batch = cursor.and_then(|cursor| cursor.get("firstBatch").as_array());
    let documents = batch.iter().flat_map(|batch| batch.iter());
    let documents = documents.filter_map(ValueRef::as_document);
    documents.map(|document| document.to_document()).collect()
}

fn is_true(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Bool(true))
}

fn number(value: ValueRef<'_>) -> i64 {
    value.as_exact_i64().unwrap_or(0)
}

/// Returns the collation of the command's documents: false if strings are compared by bytes.
fn compares_by_bytes(database: &Database, namespace: &Namespace) -> bool {
    let newest = database.newest_router();
    let database = newest.as_deref().unwrap_or(database);
    let (db, name) = (&namespace.database, &namespace.collection);
    let collation = super::crud::query::default_collation(database, db, name);
    collation.is_ok_and(|collation| collation.is_simple())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::COMMANDS;

    #[test]
    fn the_column_says_which_commands_are_a_routers_own() {
        for spec in COMMANDS {
            let has_own = own_handler_of(spec.name).is_some();
            let fits = match spec.on_router {
                OnRouter::Own => has_own,
                OnRouter::Catalog => true,
                OnRouter::Same | OnRouter::Refused => !has_own,
            };
            assert!(fits, "{}", spec.name);
        }
    }
}
