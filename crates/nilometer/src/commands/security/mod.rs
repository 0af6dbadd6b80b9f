//! Logins, users, roles, authorization of commands, and the audit log.
//!
//! [`authorization`] decides for each request whether its user may run it; [`audit`] records logins,
//! refusals and changes of names, users and roles; [`grants`] holds what the commands about users and
//! roles share; the others are commands. Credentials, roles and
//! privileges themselves are kept and evaluated by `auth`.

pub(super) mod audit;
pub(super) mod authentication;
pub(super) mod authorization;
mod grants;
pub(super) mod merge;
pub(super) mod roles;
pub(super) mod users;
