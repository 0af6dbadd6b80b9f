//! What one user may do, worked out once and kept by the connection.

use super::names::RoleName;
use super::privilege::Privileges;
use super::restriction::Restrictions;
use super::user::User;

/// A user with all roles followed to their end.
#[derive(Clone, Debug)]
pub struct Grants {
    /// The state of the authority this was worked out from.
    pub(super) generation: u64,
    /// The user at that time.
    pub user: User,
    /// Every role the user has, given or inherited.
    pub inherited: Inherited,
}

impl Grants {
    /// What the user may do.
    pub fn privileges(&self) -> &Privileges {
        &self.inherited.privileges
    }
}

/// What roles come to with all they inherit.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    /// The roles themselves and all they stand on.
    pub roles: Vec<RoleName>,
    /// What all of them allow together.
    pub privileges: Privileges,
    /// From where their holders may log in; all must hold.
    pub restrictions: Vec<Restrictions>,
}
