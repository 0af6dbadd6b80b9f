//! Commands about the server: greetings, figures, parameters, sessions, maintenance, backup.
//!
//! Most are short and independent of each other: they read or change a part of `services`, or call
//! one function of `database`. [`profile`] also records slow operations for the dispatcher.

pub(super) mod backup;
pub(super) mod build_info;
pub(super) mod cluster_parameter;
pub(super) mod connection_status;
pub(super) mod current_op;
pub(super) mod data_size;
pub(super) mod fail_point;
pub(super) mod fsync;
pub(super) mod get_cmd_line_opts;
pub(super) mod get_log;
pub(super) mod get_parameter;
pub(super) mod hello;
pub(super) mod host_info;
pub(super) mod list_commands;
pub(super) mod maintenance;
pub(super) mod ping;
pub(super) mod plan_cache;
pub(super) mod profile;
pub(super) mod replication;
pub(super) mod rotate_certificates;
pub(super) mod server_state;
pub(super) mod server_status;
pub(super) mod session_patterns;
pub(super) mod sessions;
pub(super) mod shutdown;
pub(super) mod stats;
pub(super) mod top;
pub(super) mod validate;
pub(super) mod validate_metadata;
