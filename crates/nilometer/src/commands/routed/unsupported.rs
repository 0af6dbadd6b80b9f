//! Commands of a mongos that a router refuses with a reason, because tools and people send them.
//!
//! A bucket never moves and a partition is never divided.

use nilometer_bson::Document;

use super::router_of;
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

/// What the command names in its first field.
#[derive(Clone, Copy)]
enum Named {
    Shard,
    Collection,
    Nothing,
}

/// A refused command: what it names, and why it is refused.
type Reason = (&'static str, Named, &'static str);

const NO_ZONES: &str =
    "zones are not supported: time-series collections have none in MongoDB either";
const NO_COPY: &str = "a collection that is not sharded stays in its partition: shard it, and moveRange moves its ranges";
const FIXED_PARTITIONS: &str = "the partitions of a cluster are fixed when it is created";

static REASONS: &[Reason] = &[
    ("addShard", Named::Nothing, FIXED_PARTITIONS),
    ("addShardToZone", Named::Shard, NO_ZONES),
    ("moveCollection", Named::Collection, NO_COPY),
    ("movePrimary", Named::Nothing, NO_COPY),
    (
        "refineCollectionShardKey",
        Named::Collection,
        "a shard key does not change",
    ),
    ("removeShard", Named::Shard, FIXED_PARTITIONS),
    ("removeShardFromZone", Named::Shard, NO_ZONES),
    (
        "reshardCollection",
        Named::Collection,
        "a shard key does not change",
    ),
    ("unshardCollection", Named::Collection, NO_COPY),
    ("updateZoneKeyRange", Named::Collection, NO_ZONES),
];

const fn refused(name: &'static str, help: &'static str) -> CommandSpec {
    CommandSpec {
        admin_only: true,
        write_concern: true,
        fields: Fields::Any,
        ..CommandSpec::new(name, help, Authorization::LoggedIn, OnRouter::Same, run)
    }
}

pub(super) const ADD_SHARD: CommandSpec = refused("addShard", "Refused: partitions are fixed.");
pub(super) const ADD_SHARD_TO_ZONE: CommandSpec =
    refused("addShardToZone", "Refused: there are no zones.");
pub(super) const MOVE_COLLECTION: CommandSpec =
    refused("moveCollection", "Refused: shard the collection.");
pub(super) const MOVE_PRIMARY: CommandSpec =
    refused("movePrimary", "Refused: shard the collection.");
pub(super) const REFINE_KEY: CommandSpec = refused(
    "refineCollectionShardKey",
    "Refused: a shard key does not change.",
);
pub(super) const REMOVE_SHARD: CommandSpec =
    refused("removeShard", "Refused: partitions are fixed.");
pub(super) const REMOVE_SHARD_FROM_ZONE: CommandSpec =
    refused("removeShardFromZone", "Refused: there are no zones.");
pub(super) const RESHARD: CommandSpec =
    refused("reshardCollection", "Refused: a shard key does not change.");
pub(super) const UNSHARD: CommandSpec =
    refused("unshardCollection", "Refused: shard the collection.");
pub(super) const UPDATE_ZONE: CommandSpec =
    refused("updateZoneKeyRange", "Refused: there are no zones.");

/// Says why; that a shard or a collection is unknown comes first.
fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let name = context.spec.name;
    let args = Args::new(name, request.body.as_ref());
    let known = REASONS.iter().find(|(known, ..)| *known == name);
    let (named, reason) =
        known.map_or((Named::Nothing, ""), |(_, named, reason)| (*named, *reason));
    match named {
        Named::Nothing => {}
        Named::Shard => {
            router_of(database).number_of(args.required_string(name)?)?;
        }
        Named::Collection => {
            let whole = args.required_string(name)?;
            let (db, collection) = whole.split_once('.').unwrap_or((whole, ""));
            Namespace::new(db, collection)?;
        }
    }
    Err(Error::new(
        ErrorCode::CommandNotSupported,
        format!("{name} is not supported: {reason}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ROUTER_COMMANDS;

    #[test]
    fn every_refused_command_has_a_reason() {
        let refused = ROUTER_COMMANDS
            .iter()
            .filter(|spec| spec.help.starts_with("Refused"));
        let names: Vec<_> = refused.map(|spec| spec.name).collect();
        let reasons: Vec<_> = REASONS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, reasons);
    }
}
