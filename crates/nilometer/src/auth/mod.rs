//! Who may do what: users, roles, privileges, and how somebody proves to be a user.
//!
//! ```text
//! Authority ── users and roles, as the catalog keeps them; a number that grows with every change
//!    │
//!    ├─ Conversation   SCRAM, message by message, without a socket
//!    └─ Grants         what a user may do: roles followed to their end, kept by the connection
//!                      until the number has grown
//! ```
//!
//! Which command needs what is not said here but in the table of commands. The promises: a secret
//! is compared in constant time; somebody who does not exist is answered exactly as somebody whose
//! password is wrong; a change to a user holds for the next command of every open connection.

mod action;
mod authority;
mod builtin;
mod credentials;
mod grants;
mod login;
mod names;
mod privilege;
mod resource;
mod restriction;
mod role;
mod scram;
mod throttle;
mod user;

pub use action::{Action, ActionSet};
pub use authority::Authority;
pub use builtin::is_builtin;
pub use credentials::{Credentials, Mechanism};
pub use grants::Grants;
pub use login::Login;
pub use names::{EXTERNAL, RoleName, UserName};
pub use privilege::{Privilege, Privileges};
pub use resource::{Resource, Target};
pub use restriction::Restrictions;
pub use role::Role;
pub use scram::{ClientFirst, Conversation, Prover};
pub use throttle::Throttle;
pub use user::User;

use crate::error::{Error, ErrorCode};

/// The one answer to every failed login: it tells nothing about why.
pub fn failed() -> Error {
    Error::new(ErrorCode::AuthenticationFailed, "Authentication failed.")
}

/// Fills `bytes` with what nobody can guess.
pub fn unguessable<const N: usize>() -> crate::error::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::new(
            ErrorCode::InternalError,
            format!("the system gives no random bytes: {e}"),
        )
    })?;
    Ok(bytes)
}
