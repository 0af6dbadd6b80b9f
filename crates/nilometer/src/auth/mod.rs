//! Authentication and authorization: users, roles, privileges, logins.
//!
//! ```text
//! Authority ── users and roles, as stored by the catalog; a generation that grows with every change
//!    │
//!    ├─ Conversation   SCRAM, message by message, without a socket
//!    └─ Grants         the privileges of a user: all roles resolved, cached by the connection
//!                      until the generation changes
//! ```
//!
//! The table of commands, not this module, says which privileges a command needs. The promises: a secret is
//! compared in constant time; a login as a missing user is answered exactly like one with a wrong password;
//! a change of a user takes effect with the next command of every open connection.

mod action;
mod authority;
mod builtin;
mod credentials;
mod grants;
mod login;
mod member_key;
mod names;
mod privilege;
mod resource;
mod restriction;
mod role;
mod scram;
mod throttle;
mod user;

pub use action::{Action, ActionSet};
pub use authority::{Authority, Merge};
pub use builtin::is_builtin;
pub use credentials::{Credentials, Mechanism};
pub use grants::Grants;
pub use login::Login;
pub(crate) use member_key::is_member;
pub use member_key::{MEMBER_DATABASE, MEMBER_USER, MemberKey};
pub use names::{EXTERNAL, RoleName, UserName};
pub use privilege::{Privilege, Privileges};
pub use resource::{Resource, Target};
pub use restriction::Restrictions;
pub use role::Role;
pub use scram::{ClientFirst, Conversation, ScramClient};
pub use throttle::Throttle;
pub use user::User;

use crate::error::{Error, ErrorCode};

/// Returns the error of every failed login: it does not reveal the reason.
pub fn failed() -> Error {
    Error::new(ErrorCode::AuthenticationFailed, "Authentication failed.")
}

/// Returns cryptographically random bytes.
pub fn random_bytes<const N: usize>() -> crate::error::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::new(
            ErrorCode::InternalError,
            format!("cannot read random bytes from the system: {e}"),
        )
    })?;
    Ok(bytes)
}
