//! Logging in and asking about users, on a server that has no users.
//!
//! Every attempt to log in fails, so that no client believes itself protected; questions about
//! users and roles are answered truthfully: there are none.

use nilometer_bson::{Document, array, doc};

use super::{CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(super) const SASL_START: CommandSpec = CommandSpec {
    needs_auth: false,
    in_api_v1: true,
    fields: Fields::Only(&["mechanism", "payload", "autoAuthorize", "options", "db"]),
    ..CommandSpec::new("saslStart", "Begins to log in.", sasl_start)
};

pub(super) const SASL_CONTINUE: CommandSpec = CommandSpec {
    needs_auth: false,
    in_api_v1: true,
    fields: Fields::Only(&["conversationId", "payload"]),
    ..CommandSpec::new("saslContinue", "Goes on to log in.", sasl_continue)
};

pub(super) const LOGOUT: CommandSpec = CommandSpec {
    needs_auth: false,
    ..CommandSpec::new("logout", "Logs out.", logout)
};

pub(super) const USERS_INFO: CommandSpec = CommandSpec {
    fields: Fields::Only(&[
        "showAuthenticationRestrictions",
        "showCredentials",
        "showCustomData",
        "showPrivileges",
        "filter",
    ]),
    ..CommandSpec::new("usersInfo", "Tells about users.", users_info)
};

pub(super) const ROLES_INFO: CommandSpec = CommandSpec {
    fields: Fields::Only(&[
        "showAuthenticationRestrictions",
        "showBuiltinRoles",
        "showPrivileges",
    ]),
    ..CommandSpec::new("rolesInfo", "Tells about roles.", roles_info)
};

fn sasl_start(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Err(Error::new(
        ErrorCode::AuthenticationFailed,
        "Authentication failed: this server has no users and no access control; connect without credentials",
    ))
}

fn sasl_continue(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Err(Error::new(
        ErrorCode::ProtocolError,
        "No SASL session state found",
    ))
}

/// Nobody is logged in, and that stays so.
fn logout(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(Document::new())
}

fn users_info(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(doc! {"users": array![]})
}

fn roles_info(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(doc! {"roles": array![]})
}
