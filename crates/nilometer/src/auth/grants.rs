//! The privileges of one user, computed once and cached by the connection.

use super::names::RoleName;
use super::privilege::Privileges;
use super::restriction::Restrictions;
use super::user::User;

/// A user with all inherited roles resolved.
#[derive(Clone, Debug)]
pub struct Grants {
    /// The generation of the authority at the time of computation.
    pub(super) generation: u64,
    /// The user at that time.
    pub user: User,
    /// Every role of the user, granted or inherited.
    pub resolved: ResolvedRoles,
}

impl Grants {
    /// Returns the privileges of the user.
    pub fn privileges(&self) -> &Privileges {
        &self.resolved.privileges
    }
}

/// The union of roles and all they inherit.
#[derive(Clone, Debug, Default)]
pub struct ResolvedRoles {
    /// The roles and all inherited ones.
    pub roles: Vec<RoleName>,
    /// The union of their privileges.
    pub privileges: Privileges,
    /// Restrictions on login addresses; all must be met.
    pub restrictions: Vec<Restrictions>,
}
