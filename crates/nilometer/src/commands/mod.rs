//! The commands: one table, and one file per command or family of commands.
//!
//! ```text
//! request ─► dispatch ─► generic options ─► security::authorization ─► handler ─► reply
//!                │                                                       │
//!            COMMANDS                         crud · ddl · admin · security
//! ```
//!
//! | folder | commands |
//! |---|---|
//! | [`crud`] | read and change documents: `find`, `aggregate`, `insert`, `update`, `explain`, … |
//! | [`ddl`] | define collections, views and indexes, and list them |
//! | [`admin`] | the server: greetings, figures, parameters, sessions, maintenance, backup |
//! | `routed` | what differs on a router, and the commands that only a router has |
//! | [`security`] | logins, users, roles, authorization, the audit log |
//!
//! [`COMMANDS`] is the only list of commands. An entry holds the name, the other spellings clients
//! use, every option the command takes, its requirements, and what a router does. Dispatch, authorization
//! ([`security::authorization`]), the refusal of unknown options, `listCommands`, the statistics per
//! command and the check of COMPATIBILITY.md read it. To add a command, write its file with a `SPEC`
//! and name the `SPEC` here.
//!
//! [`dispatch`], [`generic`], [`members`], [`stable_api`] and [`target`] do once what is the same for all commands: the options every command
//! takes, time limits, sessions, the stable API, the shape of replies and errors. A handler sees its
//! own options only. It parses and checks them through [`crate::args`] and calls the modules below.
//! No module below names this one, except `database`, which dispatches.

mod admin;
mod crud;
mod cursor_reply;
mod ddl;
mod dispatch;
mod generic;
mod members;
mod routed;
mod security;
mod server_version;
mod snapshots;
mod stable_api;
mod target;
mod transactions;

pub use crate::operation::Access;
pub use admin::hello::{TopologyWait, topology_wait};
pub(crate) use dispatch::access_of;
pub use dispatch::{error_reply, run};
#[cfg(test)]
pub(crate) use routed::ROUTER_COMMANDS;
pub use security::authorization::Authorization;

use crate::database::Database;
use crate::error::Result;
use crate::operation::{OperationContext, Request};
use crate::services::{LatencyClass, TopKind};
use crate::session::ClientSession;
use nilometer_bson::Document;

/// The context of a handler, beside the database and the request.
pub struct CommandContext<'a> {
    /// Time, deadline, kill switch, write concern, database name.
    pub operation: OperationContext,
    /// The connection.
    pub session: &'a mut ClientSession,
    /// The table entry of the command.
    pub spec: &'static CommandSpec,
}

impl CommandContext<'_> {
    /// Returns the database named in `$db`.
    pub fn database_name(&self) -> &str {
        &self.operation.database
    }
}

/// The counter of `serverStatus.opcounters` that a command increments, and its class in `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationCounter {
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

impl OperationCounter {
    /// Returns the class in `top`.
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

/// The options of a command, besides those every command takes.
#[derive(Clone, Copy, Debug)]
pub enum Fields {
    /// Exactly these; another one is error 40415.
    Only(&'static [&'static str]),
    /// The handler checks field names itself (`getParameter`), or accepts all (`hello`).
    Any,
}

/// Runs a command. Dispatch adds `ok: 1` to the reply.
pub type Handler = fn(&Database, &mut CommandContext<'_>, &Request) -> Result<Document>;

/// What a router does for a command.
#[derive(Clone, Copy)]
pub enum OnRouter {
    /// What one server does: the command is about the process or about users, or it reads collections, which ask the
    /// partitions by themselves.
    Same,
    /// What its module `routed` has for the command.
    Own,
    /// It changes the catalog of the cluster, if it has it, and sends the command to the router that has it, if not. The module
    /// `routed` may have more than one server does.
    Catalog,
    /// It refuses the command with code 115.
    Refused,
}

/// An entry of the command table.
pub struct CommandSpec {
    /// The name as the manual spells it.
    pub name: &'static str,
    /// Accepted other spellings.
    pub aliases: &'static [&'static str],
    /// The privileges a client needs.
    pub authorization: Authorization,
    /// Fields hidden from other clients and from logs.
    pub secrets: &'static [&'static str],
    /// True if it must be sent to the database `admin`.
    pub admin_only: bool,
    /// Whether it reads or writes.
    pub access: Access,
    /// The options, besides those every command takes.
    pub fields: Fields,
    /// True if `readConcern` may have a level.
    pub read_concern: bool,
    /// True if `writeConcern` is accepted.
    pub write_concern: bool,
    /// True if it belongs to version 1 of the stable API.
    pub in_api_v1: bool,
    /// True if it is a retryable write when it has a number.
    pub retryable: bool,
    /// The counter to increment.
    pub counted: OperationCounter,
    /// The class in `latencyStats`.
    pub latency: LatencyClass,
    /// True if it may hold many documents: if memory is short, it is not started beside another such command.
    pub takes_memory: bool,
    /// One sentence for `listCommands`.
    pub help: &'static str,
    /// What a router does.
    pub on_router: OnRouter,
    /// The code.
    pub handler: Handler,
}

impl CommandSpec {
    /// Returns an entry with the common settings, to be completed by struct update: any database, no options,
    /// no read or write concern, outside the stable API.
    pub const fn new(
        name: &'static str,
        help: &'static str,
        authorization: Authorization,
        on_router: OnRouter,
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
            retryable: false,
            counted: OperationCounter::Command,
            latency: LatencyClass::Command,
            takes_memory: false,
            help,
            on_router,
            handler,
        }
    }
}

/// All commands, sorted by name (capitals before small letters; a test checks it).
pub static COMMANDS: &[CommandSpec] = &[
    security::merge::SPEC,
    crud::end_transaction::ABORT,
    crud::aggregate::SPEC,
    crud::apply_ops::SPEC,
    security::authentication::AUTHENTICATE,
    admin::build_info::SPEC,
    crud::bulk_write::SPEC,
    ddl::capped::CLONE,
    ddl::coll_mod::SPEC,
    admin::stats::COLL_STATS,
    crud::end_transaction::COMMIT,
    admin::maintenance::COMPACT,
    admin::fail_point::SPEC,
    admin::server_state::CONN_POOL_STATS,
    admin::connection_status::STATUS,
    ddl::capped::CONVERT,
    crud::count::SPEC,
    ddl::create::SPEC,
    ddl::create_indexes::SPEC,
    security::roles::CREATE,
    security::users::CREATE,
    admin::current_op::CURRENT_OP,
    admin::data_size::DATA_SIZE,
    admin::data_size::DB_HASH,
    admin::stats::DB_STATS,
    crud::delete::SPEC,
    crud::distinct::SPEC,
    ddl::drop::DROP,
    security::roles::DROP_ALL,
    security::users::DROP_ALL,
    ddl::drop::DROP_DATABASE,
    ddl::drop_indexes::SPEC,
    security::roles::DROP,
    security::users::DROP,
    admin::sessions::END,
    crud::explain::SPEC,
    admin::data_size::FILE_MD5,
    crud::find::SPEC,
    crud::find_and_modify::SPEC,
    admin::fsync::FSYNC,
    admin::fsync::UNLOCK,
    admin::cluster_parameter::GET,
    admin::get_cmd_line_opts::SPEC,
    admin::server_status::DIAGNOSTIC_DATA,
    admin::get_log::SPEC,
    crud::get_more::SPEC,
    admin::get_parameter::GET,
    security::roles::GRANT_PRIVILEGES,
    security::roles::GRANT,
    security::users::GRANT,
    admin::hello::HELLO,
    admin::host_info::SPEC,
    crud::insert::SPEC,
    admin::hello::IS_MASTER,
    admin::sessions::KILL_ALL,
    admin::session_patterns::KILL_BY_PATTERN,
    crud::kill_cursors::SPEC,
    admin::current_op::KILL_OP,
    admin::sessions::KILL,
    ddl::list_collections::COLLECTIONS,
    admin::list_commands::SPEC,
    ddl::list_collections::DATABASES,
    ddl::list_indexes::SPEC,
    admin::server_state::LOCK_INFO,
    security::authentication::LOGOUT,
    crud::map_reduce::SPEC,
    admin::backup::SPEC,
    admin::ping::SPEC,
    admin::plan_cache::CLEAR,
    admin::plan_cache::CLEAR_FILTERS,
    admin::plan_cache::LIST_FILTERS,
    admin::plan_cache::SET_FILTER,
    admin::profile::SPEC,
    admin::maintenance::RE_INDEX,
    ddl::refresh_rollup::SPEC,
    admin::sessions::REFRESH,
    ddl::rename_collection::SPEC,
    admin::replication::CONFIG,
    admin::replication::STATUS,
    admin::replication::INITIATE,
    admin::replication::STEP_DOWN,
    security::roles::REVOKE_PRIVILEGES,
    security::roles::REVOKE,
    security::users::REVOKE,
    security::roles::INFO,
    ddl::rollup_status::SPEC,
    admin::rotate_certificates::SPEC,
    security::authentication::SASL_CONTINUE,
    security::authentication::SASL_START,
    admin::server_status::SPEC,
    admin::cluster_parameter::SET,
    admin::server_state::SET_FEATURE_COMPATIBILITY_VERSION,
    admin::get_parameter::SET,
    admin::shutdown::SPEC,
    admin::maintenance::SPLIT_VECTOR,
    admin::sessions::START,
    admin::top::SPEC,
    crud::update::SPEC,
    security::roles::UPDATE,
    security::users::UPDATE,
    security::users::INFO,
    admin::validate::SPEC,
    admin::validate_metadata::SPEC,
    admin::connection_status::WHATS_MY_URI,
];

/// Returns the position in [`COMMANDS`] of the command `name`, given by its name or an alias.
pub fn find_command(name: &str) -> Option<usize> {
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
                let found = find_command(name).and_then(|at| COMMANDS.get(at));
                assert_eq!(found.map(|c| c.name), Some(command.name), "{name}");
            }
            assert!(command.help.ends_with('.'), "{}", command.name);
        }
        assert_eq!(find_command("Ping"), None);
    }
}
