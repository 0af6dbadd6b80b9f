//! The commands: one table, one file per command or family.
//!
//! [`COMMANDS`] is the only list of what this database answers. An entry tells the name, the other
//! spellings clients use, every option the command takes, and what it needs; from it come
//! dispatch, what a user must be allowed ([`authorization`]), the refusal of unknown options, `listCommands`, the statistics per command and the
//! check of COMPATIBILITY.md. To add a command: write its file with a `SPEC` and name that here.
//!
//! What is the same for all commands (options every command takes, time limits, sessions, the
//! stable API, the shape of replies and errors) is done once, in [`dispatch`] and [`generic`];
//! a handler sees only its own options.
//!
//! Handlers parse and check their options through [`args`] and call the rooms below. No room
//! below knows this one.

mod aggregate;
pub mod args;
mod audit;
mod authentication;
mod authorization;
mod backup;
mod bucket_targets;
mod build_info;
mod bulk_write;
mod capped;
mod change;
mod coll_mod;
mod collection_uuid;
mod connection_status;
mod count;
mod create;
mod create_indexes;
mod current_op;
mod delete;
mod dispatch;
mod distinct;
mod drop;
mod drop_indexes;
mod explain;
mod explain_change;
mod explain_write;
mod find;
mod find_and_modify;
mod fsync;
mod generic;
mod get_cmd_line_opts;
mod get_log;
mod get_more;
mod get_parameter;
mod hello;
mod host_info;
mod indexes;
mod insert;
mod kill_cursors;
mod list_collections;
mod list_commands;
mod list_indexes;
mod maintenance;
mod map_reduce;
mod ping;
mod plan_cache;
mod profile;
mod query;
mod raw_change;
mod rename_collection;
mod replication;
mod roles;
mod rotate_certificates;
mod server_status;
mod sessions;
mod shutdown;
mod stats;
mod targets;
mod top;
mod update;
mod users;
mod validate;
mod validation;
pub(crate) mod view_change;

pub use crate::operation::Access;
pub use authorization::Authorization;
pub use dispatch::{error_reply, run};

use crate::database::Database;
use crate::error::Result;
use crate::operation::{OperationContext, Request};
use crate::services::{LatencyClass, TopKind};
use crate::session::ClientSession;
use nilometer_bson::Document;

/// What a handler is given beside the database and the request.
pub struct CommandContext<'a> {
    /// Time, deadline, kill switch, write concern, database name.
    pub operation: OperationContext,
    /// The connection.
    pub session: &'a mut ClientSession,
    /// The table entry of the command.
    pub spec: &'static CommandSpec,
}

impl CommandContext<'_> {
    /// The database named in `$db`.
    pub fn database_name(&self) -> &str {
        &self.operation.database
    }
}

/// Which counter of `serverStatus.opcounters` a command moves, and where `top` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// `command`.
    Command,
    /// `query`.
    Query,
    /// `getmore`.
    GetMore,
    /// `insert`; the handler counts the documents.
    Insert,
    /// `update`; the handler counts the statements.
    Update,
    /// `delete`; the handler counts the statements.
    Delete,
}

impl Counted {
    /// Where `top` shows it.
    fn top_kind(self) -> TopKind {
        match self {
            Self::Command => TopKind::Commands,
            Self::Query => TopKind::Queries,
            Self::GetMore => TopKind::GetMore,
            Self::Insert => TopKind::Insert,
            Self::Update => TopKind::Update,
            Self::Delete => TopKind::Remove,
        }
    }
}

/// Which options of its own a command takes.
#[derive(Clone, Copy, Debug)]
pub enum Fields {
    /// Exactly these; any other is error 40415.
    Only(&'static [&'static str]),
    /// The command looks at field names itself (`getParameter`), or takes what comes (`hello`).
    Any,
}

/// Runs a command. The reply goes out with `ok: 1` added.
pub type Handler = fn(&Database, &mut CommandContext<'_>, &Request) -> Result<Document>;

/// An entry of the command table.
pub struct CommandSpec {
    /// The name as the manual spells it.
    pub name: &'static str,
    /// Other spellings that are accepted.
    pub aliases: &'static [&'static str],
    /// What a client must be allowed to run it.
    pub authorization: Authorization,
    /// Fields that are shown nowhere: not to other clients, not in logs.
    pub secrets: &'static [&'static str],
    /// True if it must be sent to the database `admin`.
    pub admin_only: bool,
    /// Whether it reads or writes.
    pub access: Access,
    /// Which options it takes, besides those every command takes.
    pub fields: Fields,
    /// True if `readConcern` may be given with a level.
    pub read_concern: bool,
    /// True if `writeConcern` may be given.
    pub write_concern: bool,
    /// True if it belongs to version 1 of the stable API.
    pub in_api_v1: bool,
    /// Which counter it moves.
    pub counted: Counted,
    /// What it counts as in `latencyStats`.
    pub latency: LatencyClass,
    /// True if it holds documents, of which there may be many: where memory is short it is begun only alone.
    pub takes_memory: bool,
    /// One sentence, as `listCommands` shows it.
    pub help: &'static str,
    /// The code.
    pub handler: Handler,
}

impl CommandSpec {
    /// An entry with the common settings, to be completed by struct update: runs on any database, takes no option, no read or write concern, outside the stable API.
    pub const fn new(
        name: &'static str,
        help: &'static str,
        authorization: Authorization,
        handler: Handler,
    ) -> Self {
        Self {
            name,
            aliases: &[],
            authorization,
            secrets: &[],
            admin_only: false,
            access: Access::None,
            fields: Fields::Only(&[]),
            read_concern: false,
            write_concern: false,
            in_api_v1: false,
            counted: Counted::Command,
            latency: LatencyClass::Command,
            takes_memory: false,
            help,
            handler,
        }
    }
}

/// All commands, in the order of their names (capitals before small letters), which a test checks.
pub static COMMANDS: &[CommandSpec] = &[
    aggregate::SPEC,
    authentication::AUTHENTICATE,
    build_info::SPEC,
    bulk_write::SPEC,
    capped::CLONE,
    coll_mod::SPEC,
    stats::COLL_STATS,
    maintenance::COMPACT,
    connection_status::STATUS,
    capped::CONVERT,
    count::SPEC,
    create::SPEC,
    create_indexes::SPEC,
    roles::CREATE,
    users::CREATE,
    current_op::CURRENT_OP,
    stats::DB_STATS,
    delete::SPEC,
    distinct::SPEC,
    drop::DROP,
    roles::DROP_ALL,
    users::DROP_ALL,
    drop::DROP_DATABASE,
    drop_indexes::SPEC,
    roles::DROP,
    users::DROP,
    sessions::END,
    explain::SPEC,
    find::SPEC,
    find_and_modify::SPEC,
    fsync::FSYNC,
    fsync::UNLOCK,
    get_cmd_line_opts::SPEC,
    server_status::DIAGNOSTIC_DATA,
    get_log::SPEC,
    get_more::SPEC,
    get_parameter::GET,
    roles::GRANT_PRIVILEGES,
    roles::GRANT,
    users::GRANT,
    hello::HELLO,
    host_info::SPEC,
    insert::SPEC,
    hello::IS_MASTER,
    sessions::KILL_ALL,
    kill_cursors::SPEC,
    current_op::KILL_OP,
    sessions::KILL,
    list_collections::COLLECTIONS,
    list_commands::SPEC,
    list_collections::DATABASES,
    list_indexes::SPEC,
    authentication::LOGOUT,
    map_reduce::SPEC,
    backup::SPEC,
    ping::SPEC,
    plan_cache::CLEAR,
    profile::SPEC,
    maintenance::RE_INDEX,
    sessions::REFRESH,
    rename_collection::SPEC,
    replication::CONFIG,
    replication::STATUS,
    roles::REVOKE_PRIVILEGES,
    roles::REVOKE,
    users::REVOKE,
    roles::INFO,
    rotate_certificates::SPEC,
    authentication::SASL_CONTINUE,
    authentication::SASL_START,
    server_status::SPEC,
    get_parameter::SET,
    shutdown::SPEC,
    maintenance::SPLIT_VECTOR,
    sessions::START,
    top::SPEC,
    update::SPEC,
    roles::UPDATE,
    users::UPDATE,
    users::INFO,
    validate::SPEC,
    connection_status::WHATS_MY_URI,
];

/// The position in [`COMMANDS`] of the command called `name`, by its name or an alias.
pub fn find(name: &str) -> Option<usize> {
    COMMANDS
        .binary_search_by(|c| c.name.cmp(name))
        .ok()
        .or_else(|| COMMANDS.iter().position(|c| c.aliases.contains(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_names_are_unique() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for command in COMMANDS {
            for name in std::iter::once(&command.name).chain(command.aliases) {
                let found = find(name).and_then(|at| COMMANDS.get(at));
                assert_eq!(found.map(|c| c.name), Some(command.name), "{name}");
            }
            assert!(command.help.ends_with('.'), "{}", command.name);
        }
        assert_eq!(find("Ping"), None);
    }
}
