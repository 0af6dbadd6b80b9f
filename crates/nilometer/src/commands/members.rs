//! What a command may do on a member of a replica set, and what its errors tell clients that watch the set.
//!
//! | command | primary | secondary | neither |
//! |---|---|---|---|
//! | writes | yes | 10107, with the primary's address | 10107 |
//! | reads | yes | with a read preference that permits it, else 13435 | 13436 |
//! | cursors that are open, plan cache, everything about the server | yes | yes | yes |
//!
//! Errors by which drivers look for another primary have `topologyVersion`, so that a driver which knows a newer state ignores
//! them. Errors after which a write may be repeated have a label, if the write has a number.

use nilometer_bson::{Binary, Document, DocumentBuilder, Timestamp, Value, ValueRef, doc};

use super::generic::GenericArgs;
use super::{Access, CommandSpec, transactions};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::{MemberRole, ReplicaSet, Services};

/// Commands about documents that every member runs.
const ON_EVERY_MEMBER: [&str; 6] = [
    "getMore",
    "killCursors",
    "planCacheClear",
    "planCacheClearFilters",
    "planCacheListFilters",
    "planCacheSetFilter",
];

/// Those of a server that ends. They change nothing that clients watch, so they have no `topologyVersion`: a driver would ignore
/// them as older than what it knows.
const OF_SHUTDOWN: [ErrorCode; 2] = [
    ErrorCode::InterruptedAtShutdown,
    ErrorCode::ShutdownInProgress,
];

/// The label of errors after which a driver repeats a write.
pub(super) const RETRYABLE: &str = "RetryableWriteError";

/// Refuses a command that this member does not run. `is_view` is true if the database is what a secondary shows: the member
/// may have become primary since the command was received.
pub(super) fn check(
    set: Option<&ReplicaSet>,
    is_view: bool,
    spec: &CommandSpec,
    generic: &GenericArgs,
) -> Result<()> {
    let Some(set) = set.filter(|set| is_view || !set.is_primary()) else {
        return Ok(());
    };
    if spec.access == Access::None || ON_EVERY_MEMBER.contains(&spec.name) {
        return Ok(());
    }
    if spec.access == Access::Write {
        return Err(not_primary(set));
    }
    match set.state().role {
        MemberRole::Primary | MemberRole::Secondary if generic.secondary_ok => Ok(()),
        MemberRole::Primary | MemberRole::Secondary => Err(Error::new(
            ErrorCode::NotPrimaryNoSecondaryOk,
            "not primary and secondaryOk=false",
        )),
        MemberRole::Recovering => Err(Error::new(
            ErrorCode::NotPrimaryOrSecondary,
            "node is not in primary or recovering state",
        )),
    }
}

fn not_primary(set: &ReplicaSet) -> Error {
    let primary = match set.state().primary {
        Some(primary) => format!("; the primary is {primary}"),
        None => String::new(),
    };
    Error::new(
        ErrorCode::NotWritablePrimary,
        format!("not primary{primary}"),
    )
}

/// Adds what clients that watch the set need to an error.
pub(super) fn with_topology(services: &Services, request: &Request, mut error: Error) -> Error {
    if services.replica_set.is_none() {
        return error;
    }
    if error.code.is_of_state_change() {
        if !OF_SHUTDOWN.contains(&error.code) {
            error = error.with_detail("topologyVersion", topology_version(services));
        }
        if transactions::is_statement(request) {
            error = transactions::transient(error);
        } else if request.body.as_ref().contains("txnNumber") {
            error.labels.push(RETRYABLE);
        }
    }
    error
}

/// Errors of a partition that does not answer, or has another process by now, and of a router that ends.
const OF_LOST_PARTITIONS: [ErrorCode; 5] = [
    ErrorCode::HostUnreachable,
    ErrorCode::InterruptedAtShutdown,
    ErrorCode::NetworkTimeout,
    ErrorCode::NotWritablePrimary,
    ErrorCode::ShutdownInProgress,
];

/// Tells the client of a router that it may repeat a numbered write whose partition was lost.
pub(super) fn of_lost_partition(database: &Database, request: &Request, mut error: Error) -> Error {
    let is_numbered = request.body.as_ref().contains("txnNumber");
    if database.as_router().is_some() && is_numbered && OF_LOST_PARTITIONS.contains(&error.code) {
        error.labels.push(RETRYABLE);
    }
    error
}

/// True if a driver repeats a write, or a commit, whose concern was not met with this code.
pub(super) fn is_retryable(request: &Request, code: ValueRef<'_>) -> bool {
    let body = request.body.as_ref();
    let is_repeatable = body.contains("txnNumber") && !transactions::is_statement(request);
    let code = code
        .as_exact_i64()
        .and_then(|code| i32::try_from(code).ok());
    is_repeatable && code.is_some_and(|code| ErrorCode(code).is_of_state_change())
}

/// Returns the version of this server's description.
pub(super) fn topology_version(services: &Services) -> Document {
    doc! {
        "processId": services.process_id,
        "counter": topology_counter(services),
    }
}

/// Returns the number of changes of this server's description since the process began.
pub(super) fn topology_counter(services: &Services) -> i64 {
    let set = services.replica_set.as_ref();
    set.map_or(0, |set| set.counter())
}

/// Bytes of the signature of a cluster time, which is zero: nothing is signed.
const SIGNATURE_BYTES: usize = 20;

/// Appends the cluster time to a reply, if the server has one.
pub(super) fn with_times(database: &Database, reply: Document) -> Document {
    let Some(time) = database.cluster_time() else {
        return reply;
    };
    let time = Value::Timestamp(Timestamp::from_u64(time));
    let signature = doc! {
        "hash": Value::Binary(Binary { subtype: 0, bytes: vec![0; SIGNATURE_BYTES].into() }),
        "keyId": 0_i64,
    };
    let mut out = DocumentBuilder::extending(reply);
    out.append("operationTime", time.clone());
    out.append(
        "$clusterTime",
        doc! {"clusterTime": time, "signature": signature},
    );
    out.finish()
}
