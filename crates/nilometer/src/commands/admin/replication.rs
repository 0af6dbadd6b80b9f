//! Commands about replica sets: a standalone refuses them by name, so that tools recognize it.

use nilometer_bson::Document;

use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const STATUS: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "replSetGetStatus",
        "Refused: this is not a replica set.",
        Authorization::OnCluster(&[Action::ReplSetGetStatus]),
        refuse,
    )
};

pub(crate) const CONFIG: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "replSetGetConfig",
        "Refused: this is not a replica set.",
        Authorization::OnCluster(&[Action::ReplSetGetConfig]),
        refuse,
    )
};

pub(crate) const INITIATE: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "replSetInitiate",
        "Refused: this server cannot be a member of a replica set.",
        Authorization::OnCluster(&[Action::ReplSetConfigure]),
        refuse_to_initiate,
    )
};

fn refuse_to_initiate(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Err(Error::new(
        ErrorCode::NoReplicationEnabled,
        "This node was not started with replication enabled.",
    ))
}

fn refuse(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Err(Error::new(
        ErrorCode::NoReplicationEnabled,
        "not running with --replSet",
    ))
}
