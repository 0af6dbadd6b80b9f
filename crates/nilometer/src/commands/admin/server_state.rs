//! `connPoolStats`, `lockInfo` and `setFeatureCompatibilityVersion`: facts of a server without peers.

use nilometer_bson::{Array, Document, Value, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result, location};
use crate::operation::Request;
use crate::parameters::FEATURE_COMPATIBILITY_VERSION;

/// Versions that MongoDB 8.0 could be set to, besides its own.
const OTHER_VERSIONS: [&str; 2] = ["7.0", "7.3"];

pub(crate) const CONN_POOL_STATS: CommandSpec = CommandSpec::new(
    "connPoolStats",
    "Returns the connections to other servers: there are none.",
    Authorization::OnCluster(&[Action::ConnPoolStats]),
    OnRouter::Same,
    conn_pool_stats,
);

pub(crate) const LOCK_INFO: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "lockInfo",
        "Returns the locks that operations hold across their steps: there are none.",
        Authorization::OnCluster(&[Action::ServerStatus]),
        OnRouter::Same,
        lock_info,
    )
};

pub(crate) const SET_FEATURE_COMPATIBILITY_VERSION: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["confirm", "downgradeOnDiskChanges", "fromConfigServer"]),
    ..CommandSpec::new(
        "setFeatureCompatibilityVersion",
        "Accepts the current feature compatibility version.",
        Authorization::OnCluster(&[Action::SetFeatureCompatibilityVersion]),
        OnRouter::Refused,
        set_version,
    )
};

/// This server opens no connections to others, so every counter is zero.
fn conn_pool_stats(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(doc! {
        "numClientConnections": 0,
        "numAScopedConnections": 0,
        "totalInUse": 0,
        "totalAvailable": 0,
        "totalLeased": 0,
        "totalCreated": 0,
        "totalRefreshing": 0,
        "pools": doc! {},
        "hosts": doc! {},
    })
}

/// Operations hold latches within a step only, and none of MongoDB's lock hierarchy.
fn lock_info(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let none: Vec<Value> = Vec::new();
    Ok(doc! {"lockInfo": none.into_iter().collect::<Array>()})
}

fn set_version(_: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("setFeatureCompatibilityVersion", request.body.as_ref());
    let version = args.required_string("setFeatureCompatibilityVersion")?;
    let confirmed = args.boolean("confirm")?.unwrap_or(false);
    for name in ["downgradeOnDiskChanges", "fromConfigServer"] {
        args.boolean(name)?;
    }
    if version == FEATURE_COMPATIBILITY_VERSION && confirmed {
        return Ok(Document::new());
    }
    if version == FEATURE_COMPATIBILITY_VERSION {
        return Err(Error::location(
            location::VERSION_NOT_CONFIRMED,
            "Once you have upgraded to 8.0, you will not be able to downgrade FCV and binary version without support assistance. Please re-run this command with 'confirm: true' to acknowledge this and continue with the FCV upgrade.",
        ));
    }
    let reason = if OTHER_VERSIONS.contains(&version) {
        "the data of this server has one form"
    } else {
        "it is no version that MongoDB 8.0 knows"
    };
    Err(Error::location(
        location::VERSION_INVALID,
        format!(
            "Invalid feature compatibility version value '{version}'; expected '{FEATURE_COMPATIBILITY_VERSION}': {reason}"
        ),
    ))
}
