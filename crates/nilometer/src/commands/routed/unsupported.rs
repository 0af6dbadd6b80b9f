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

const NO_ZONES: &str = "there are no zones; moveRange gives a range of keys to a shard, and sh.disableBalancing keeps it there";
const NO_COPY: &str = "a collection that is not sharded stays in its partition: shard it, and moveRange moves its ranges";
const FIXED_PARTITIONS: &str = "the partitions of a cluster are fixed when it is created; \
    they move to a node that is started, and from one that is stopped";
const AT_ONCE: &str =
    "reshardCollection gives a time series another key at once: nothing runs that could be ended";
const NO_ORPHANS: &str = "a range moves with its documents in one step, so none are left behind";
const NO_SAMPLES: &str = "queries are not sampled: explain shows which partitions a query asks, and config.chunks what they have";
const NO_CONFIG_SHARD: &str = "the catalog is a partition of its own";

static REASONS: &[Reason] = &[
    ("abortMoveCollection", Named::Collection, NO_COPY),
    ("abortReshardCollection", Named::Collection, AT_ONCE),
    ("abortUnshardCollection", Named::Collection, NO_COPY),
    ("addShard", Named::Nothing, FIXED_PARTITIONS),
    ("addShardToZone", Named::Shard, NO_ZONES),
    ("analyzeShardKey", Named::Collection, NO_SAMPLES),
    (
        "checkMetadataConsistency",
        Named::Nothing,
        "validate checks a collection in each partition, and a change of the catalog that failed is completed by repeating it",
    ),
    ("cleanupOrphaned", Named::Collection, NO_ORPHANS),
    ("cleanupReshardCollection", Named::Collection, AT_ONCE),
    (
        "clearJumboFlag",
        Named::Collection,
        "no chunk is too large to be moved, so none is marked",
    ),
    ("commitReshardCollection", Named::Collection, AT_ONCE),
    (
        "configureCollectionBalancing",
        Named::Collection,
        "the size of chunks is that of config.settings, and sh.disableBalancing exempts a collection",
    ),
    ("configureQueryAnalyzer", Named::Collection, NO_SAMPLES),
    ("moveCollection", Named::Collection, NO_COPY),
    ("movePrimary", Named::Nothing, NO_COPY),
    ("removeShard", Named::Shard, FIXED_PARTITIONS),
    ("removeShardFromZone", Named::Shard, NO_ZONES),
    (
        "setAllowMigrations",
        Named::Collection,
        "ranges move when they are told to; sh.disableBalancing keeps the balancer from a collection",
    ),
    (
        "shardingState",
        Named::Nothing,
        "it describes a shard, and this is a router: see getShardMap",
    ),
    (
        "transitionFromDedicatedConfigServer",
        Named::Nothing,
        NO_CONFIG_SHARD,
    ),
    (
        "transitionToDedicatedConfigServer",
        Named::Nothing,
        NO_CONFIG_SHARD,
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

/// Refused commands: their constants, their names, and a sentence for lists of commands.
macro_rules! refused {
    ($($constant:ident = $name:literal, $help:literal;)*) => {
        $(pub(super) const $constant: CommandSpec = refused($name, $help);)*
    };
}

refused! {
    ABORT_MOVE_COLLECTION = "abortMoveCollection", "Refused: shard the collection.";
    ABORT_RESHARD = "abortReshardCollection", "Refused: nothing runs that could be ended.";
    ABORT_UNSHARD = "abortUnshardCollection", "Refused: shard the collection.";
    ADD_SHARD = "addShard", "Refused: partitions are fixed.";
    ADD_SHARD_TO_ZONE = "addShardToZone", "Refused: there are no zones.";
    ANALYZE_KEY = "analyzeShardKey", "Refused: queries are not sampled.";
    CLEANUP_ORPHANED = "cleanupOrphaned", "Refused: no document is left behind.";
    CLEANUP_RESHARD = "cleanupReshardCollection", "Refused: nothing runs that could be ended.";
    CLEAR_JUMBO = "clearJumboFlag", "Refused: no chunk is marked.";
    COMMIT_RESHARD = "commitReshardCollection", "Refused: nothing runs that could be ended.";
    CONFIGURE_BALANCING = "configureCollectionBalancing", "Refused: see config.settings.";
    CONFIGURE_ANALYZER = "configureQueryAnalyzer", "Refused: queries are not sampled.";
    MOVE_COLLECTION = "moveCollection", "Refused: shard the collection.";
    MOVE_PRIMARY = "movePrimary", "Refused: shard the collection.";
    REMOVE_SHARD = "removeShard", "Refused: partitions are fixed.";
    REMOVE_SHARD_FROM_ZONE = "removeShardFromZone", "Refused: there are no zones.";
    ALLOW_MIGRATIONS = "setAllowMigrations", "Refused: see config.collections.";
    SHARDING_STATE = "shardingState", "Refused: this is a router.";
    FROM_DEDICATED = "transitionFromDedicatedConfigServer", "Refused: the catalog is a partition of its own.";
    TO_DEDICATED = "transitionToDedicatedConfigServer", "Refused: the catalog is a partition of its own.";
    UNSHARD = "unshardCollection", "Refused: shard the collection.";
    UPDATE_ZONE = "updateZoneKeyRange", "Refused: there are no zones.";
}

pub(super) const CHECK_METADATA: CommandSpec = CommandSpec {
    admin_only: false,
    ..refused(
        "checkMetadataConsistency",
        "Refused: validate checks a collection in each partition.",
    )
};

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
