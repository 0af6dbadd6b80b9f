//! All users and roles: in memory, mirrored in the catalog; a change is durable before it is visible.
//!
//! Every change increments the generation, by which connections detect that the cached grants of their user
//! may be out of date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{Binary, Document, Value, ValueRef, doc};

use super::builtin;
use super::credentials::{Credentials, Mechanism};
use super::grants::{Grants, ResolvedRoles};
use super::names::{RoleName, UserName};
use super::privilege::Privileges;
use super::role::{Role, damaged};
use super::throttle::Throttle;
use super::user::User;
use crate::catalog::{AuthDocumentKind, Catalog};
use crate::error::{Error, ErrorCode, Result, location};

/// The key of the secret in the catalog.
const SECRET_ID: &str = "nobody";

#[derive(Debug, Default)]
struct UsersAndRoles {
    users: BTreeMap<UserName, Arc<User>>,
    roles: BTreeMap<RoleName, Arc<Role>>,
}

/// The users and roles of a database server.
pub struct Authority {
    catalog: Arc<Catalog>,
    state: RwLock<UsersAndRoles>,
    /// Held while a change is checked, stored and made visible.
    changes: Mutex<()>,
    generation: AtomicU64,
    /// The key from which the credentials of non-existent users are derived.
    secret: Vec<u8>,
    /// Failed logins by address.
    pub throttle: Throttle,
}

impl Authority {
    /// Reads users and roles from the catalog.
    pub fn open(catalog: Arc<Catalog>) -> Result<Self> {
        let mut state = UsersAndRoles::default();
        for document in catalog.auth_documents(AuthDocumentKind::User)? {
            let user = User::from_document(document.as_ref())?;
            state.users.insert(user.name.clone(), Arc::new(user));
        }
        for document in catalog.auth_documents(AuthDocumentKind::Role)? {
            let role = Role::from_document(document.as_ref())?;
            state.roles.insert(role.name.clone(), Arc::new(role));
        }
        let secret = secret(&catalog)?;
        Ok(Self {
            catalog,
            state: RwLock::new(state),
            changes: Mutex::new(()),
            generation: AtomicU64::new(0),
            secret,
            throttle: Throttle::default(),
        })
    }

    /// Copies the readable users and roles of a damaged catalog. Returns the number of users and of roles,
    /// and the names of the lost ones.
    pub fn salvage(&self, damaged: &Catalog) -> Result<(u64, u64, Vec<String>)> {
        let _changing = self.lock_changes();
        let (mut changes, mut lost) = (Vec::new(), Vec::new());
        let mut read = |kind, what: &str, read: &dyn Fn(&Document) -> Result<AuthChange>| {
            let mut kept = 0;
            for (id, document) in damaged.auth_documents_unchecked(kind)? {
                match document.map(|document| read(&document)) {
                    Some(Ok(change)) => {
                        changes.push(change);
                        kept += 1;
                    }
                    _ => lost.push(format!("the {what} {id}")),
                }
            }
            Ok::<u64, Error>(kept)
        };
        let user = |d: &Document| User::from_document(d.as_ref()).map(AuthChange::PutUser);
        let role = |d: &Document| Role::from_document(d.as_ref()).map(AuthChange::PutRole);
        let users = read(AuthDocumentKind::User, "user", &user)?;
        let roles = read(AuthDocumentKind::Role, "role", &role)?;
        self.apply_changes(changes)?;
        Ok((users, roles, lost))
    }

    /// Returns the number of changes so far.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// True until the first user or role is created.
    pub fn is_empty(&self) -> bool {
        self.with_state(|state| state.users.is_empty() && state.roles.is_empty())
    }

    /// Returns the user of this name.
    pub fn user(&self, name: &UserName) -> Option<Arc<User>> {
        self.with_state(|state| state.users.get(name).cloned())
    }

    /// Returns all users, by name; with `db`, those of one database.
    pub fn users(&self, db: Option<&str>) -> Vec<Arc<User>> {
        self.with_state(|state| {
            let all = state.users.values();
            let wanted = all.filter(|user| db.is_none_or(|db| user.name.db == db));
            wanted.cloned().collect()
        })
    }

    /// Returns the user-defined role of this name.
    pub fn role(&self, name: &RoleName) -> Option<Arc<Role>> {
        self.with_state(|state| state.roles.get(name).cloned())
    }

    /// Returns the user-defined roles of a database; of all databases if `db` is `None`.
    pub fn roles(&self, db: Option<&str>) -> Vec<Arc<Role>> {
        self.with_state(|state| {
            let all = state.roles.values();
            let wanted = all.filter(|role| db.is_none_or(|db| role.name.db == db));
            wanted.cloned().collect()
        })
    }

    /// Returns the names of the built-in roles of a database.
    pub fn builtin_roles(&self, db: &str) -> Vec<RoleName> {
        builtin::names_in(db)
    }

    /// Returns the privileges of the role, without inherited ones.
    pub fn own_privileges(&self, name: &RoleName) -> Option<Privileges> {
        match builtin::privileges(name) {
            Some(found) => Some(found),
            None => self.role(name).map(|role| role.privileges.clone()),
        }
    }

    /// Returns the credentials to check a login as `name` against, and true if the user exists. Both cases
    /// take the same steps.
    pub fn credentials(
        &self,
        name: &UserName,
        mechanism: Mechanism,
        iterations: u32,
    ) -> (Credentials, bool) {
        let missing = Credentials::of_missing_user(mechanism, &self.secret, &name.id(), iterations);
        let user = self.user(name);
        match user.as_ref().and_then(|u| u.credentials_of(mechanism)) {
            Some(found) => (found.clone(), true),
            None => (missing, false),
        }
    }

    /// Returns the mechanisms `name` can log in with. A missing user seems to have those of the existing ones, in
    /// the same proportions and each name always the same, so the answer does not reveal whether it exists.
    pub fn mechanisms(&self, name: &UserName) -> Vec<Mechanism> {
        let only = |user: &User| match user.credentials.as_slice() {
            [(mechanism, _)] => Some(*mechanism),
            _ => None,
        };
        let (mut users, mut only_sha1, mut only_sha256) = (0_u128, 0_u128, 0_u128);
        let known = self.with_state(|state| {
            let known = state.users.get(name).cloned();
            if known.is_none() {
                for user in state.users.values().filter(|u| !u.credentials.is_empty()) {
                    users += 1;
                    match only(user) {
                        Some(Mechanism::Sha1) => only_sha1 += 1,
                        Some(Mechanism::Sha256) => only_sha256 += 1,
                        None => {}
                    }
                }
            }
            known
        });
        if let Some(user) = known {
            return user.credentials.iter().map(|(m, _)| *m).collect();
        }
        let seed = format!("mechanisms\0{}", name.id());
        let drawn = Mechanism::Sha256.hmac(&self.secret, seed.as_bytes());
        let drawn = drawn.first_chunk::<8>().copied().unwrap_or_default();
        let drawn = u128::from(u64::from_le_bytes(drawn)) * users;
        if drawn < only_sha1 << u64::BITS {
            vec![Mechanism::Sha1]
        } else if drawn < (only_sha1 + only_sha256) << u64::BITS {
            vec![Mechanism::Sha256]
        } else {
            Mechanism::ALL.to_vec()
        }
    }

    /// Returns the UUID of a collection of `admin` that is generated from users and roles.
    pub fn collection_uuid(&self, collection: &str) -> [u8; 16] {
        let seed = format!("collection\0{collection}");
        let drawn = Mechanism::Sha256.hmac(&self.secret, seed.as_bytes());
        let mut uuid = drawn.first_chunk::<16>().copied().unwrap_or_default();
        // Version 4, variant 1 of RFC 9562.
        uuid[6] = uuid[6] & 0x0F | 0x40;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        uuid
    }

    /// Returns the grants of the user of this name.
    pub fn grants(&self, name: &UserName) -> Option<Grants> {
        // Read first: a change in between makes the grants out of date, and they are computed again.
        let generation = self.generation();
        let user = self.user(name)?;
        let resolved = self.resolve_roles(&user.roles);
        Some(Grants {
            generation,
            user: user.as_ref().clone(),
            resolved,
        })
    }

    /// Returns the union of these roles and all they inherit. Dropped roles are ignored.
    pub fn resolve_roles(&self, roles: &[RoleName]) -> ResolvedRoles {
        let mut found = ResolvedRoles::default();
        let mut seen = BTreeSet::new();
        let mut open: Vec<RoleName> = roles.iter().rev().cloned().collect();
        while let Some(name) = open.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            if let Some(privileges) = builtin::privileges(&name) {
                found.privileges.extend(&privileges);
            } else if let Some(role) = self.role(&name) {
                found.privileges.extend(&role.privileges);
                found.restrictions.push(role.restrictions.clone());
                open.extend(role.roles.iter().rev().cloned());
            } else {
                continue;
            }
            found.roles.push(name);
        }
        found
    }

    /// Fails unless all these roles exist and may be granted.
    pub fn check_roles(&self, roles: &[RoleName]) -> Result<()> {
        refuse_reserved(roles)?;
        for name in roles {
            if !builtin::is_builtin(name) && self.role(name).is_none() {
                return Err(no_such_role(name));
            }
        }
        Ok(())
    }

    /// Adds a user; the name must be free and the roles must exist.
    pub fn create_user(&self, user: User) -> Result<()> {
        let _changing = self.lock_changes();
        if self.user(&user.name).is_some() {
            return Err(Error::location(
                location::USER_EXISTS,
                format!("User \"{}\" already exists", user.name),
            ));
        }
        self.check_roles(&user.roles)?;
        self.apply_changes(vec![AuthChange::PutUser(user)])
    }

    /// Changes the user called `name`.
    pub fn change_user(
        &self,
        name: &UserName,
        change: impl FnOnce(&mut User) -> Result<()>,
    ) -> Result<()> {
        let _changing = self.lock_changes();
        let mut user = self.user(name).ok_or_else(|| no_such_user(name))?;
        let changed = Arc::make_mut(&mut user);
        change(changed)?;
        self.check_roles(&changed.roles)?;
        self.apply_changes(vec![AuthChange::PutUser(changed.clone())])
    }

    /// Removes a user.
    pub fn drop_user(&self, name: &UserName) -> Result<()> {
        let _changing = self.lock_changes();
        if self.user(name).is_none() {
            return Err(no_such_user(name));
        }
        self.apply_changes(vec![AuthChange::RemoveUser(name.clone())])
    }

    /// Removes all users of a database; returns their number.
    pub fn drop_users(&self, db: &str) -> Result<usize> {
        let _changing = self.lock_changes();
        let doomed = self.users(Some(db));
        let changes = doomed
            .iter()
            .map(|u| AuthChange::RemoveUser(u.name.clone()));
        self.apply_changes(changes.collect())?;
        Ok(doomed.len())
    }

    /// Adds a role; the name must be free.
    pub fn create_role(&self, role: Role) -> Result<()> {
        let _changing = self.lock_changes();
        if builtin::is_builtin(&role.name) || self.role(&role.name).is_some() {
            return Err(Error::location(
                location::ROLE_EXISTS,
                format!("Role \"{}\" already exists", role.name),
            ));
        }
        self.check_role(&role)?;
        self.apply_changes(vec![AuthChange::PutRole(role)])
    }

    /// Changes the role called `name`.
    pub fn change_role(
        &self,
        name: &RoleName,
        change: impl FnOnce(&mut Role) -> Result<()>,
    ) -> Result<()> {
        let _changing = self.lock_changes();
        let mut role = self.user_defined_role(name)?;
        let changed = Arc::make_mut(&mut role);
        change(changed)?;
        self.check_role(changed)?;
        self.apply_changes(vec![AuthChange::PutRole(changed.clone())])
    }

    /// Removes roles, and revokes them from all users and roles.
    fn drop_role_names(&self, doomed: &[RoleName]) -> Result<()> {
        let mut changes: Vec<AuthChange> =
            doomed.iter().cloned().map(AuthChange::RemoveRole).collect();
        for user in self.users(None) {
            if user.roles.iter().any(|role| doomed.contains(role)) {
                let mut left = user.as_ref().clone();
                left.roles.retain(|role| !doomed.contains(role));
                changes.push(AuthChange::PutUser(left));
            }
        }
        for role in self.roles(None) {
            let has = role.roles.iter().any(|role| doomed.contains(role));
            if has && !doomed.contains(&role.name) {
                let mut left = role.as_ref().clone();
                left.roles.retain(|role| !doomed.contains(role));
                changes.push(AuthChange::PutRole(left));
            }
        }
        self.apply_changes(changes)
    }

    /// Removes a role, and revokes it from all users and roles.
    pub fn drop_role(&self, name: &RoleName) -> Result<()> {
        let _changing = self.lock_changes();
        self.user_defined_role(name)?;
        self.drop_role_names(std::slice::from_ref(name))
    }

    /// Removes all user-defined roles of a database; returns their number.
    pub fn drop_roles(&self, db: &str) -> Result<usize> {
        let _changing = self.lock_changes();
        let doomed: Vec<_> = self
            .roles(Some(db))
            .iter()
            .map(|r| r.name.clone())
            .collect();
        self.drop_role_names(&doomed)?;
        Ok(doomed.len())
    }

    /// Adds the users and roles of a dump in one atomic change. Existing ones are kept, or, if `replace` is true,
    /// replaced, and those of the same databases that the dump lacks are removed.
    pub fn merge(&self, users: Option<Merge<User>>, roles: Option<Merge<Role>>) -> Result<()> {
        let _changing = self.lock_changes();
        let mut changes = Vec::new();
        if let Some(Merge { db, replace, new }) = users {
            let mut old: BTreeSet<UserName> = BTreeSet::new();
            if replace {
                let known = self.users(db.as_deref());
                old.extend(known.iter().map(|user| user.name.clone()));
            }
            for user in new {
                refuse_reserved(&user.roles)?;
                old.remove(&user.name);
                if replace || self.user(&user.name).is_none() {
                    changes.push(AuthChange::PutUser(user));
                }
            }
            changes.extend(old.into_iter().map(AuthChange::RemoveUser));
        }
        if let Some(Merge { db, replace, new }) = roles {
            let mut old: BTreeSet<RoleName> = BTreeSet::new();
            if replace {
                let known = self.roles(db.as_deref());
                old.extend(known.iter().map(|role| role.name.clone()));
            }
            for role in new {
                refuse_reserved(&role.roles)?;
                if builtin::is_builtin(&role.name) {
                    return Err(Error::new(
                        ErrorCode::InvalidRoleModification,
                        format!("{} is a built-in role and cannot be modified", role.name),
                    ));
                }
                old.remove(&role.name);
                if replace || self.role(&role.name).is_none() {
                    changes.push(AuthChange::PutRole(role));
                }
            }
            changes.extend(old.into_iter().map(AuthChange::RemoveRole));
        }
        self.apply_changes(changes)
    }

    /// Returns a role that can be changed: it exists and is not built in.
    fn user_defined_role(&self, name: &RoleName) -> Result<Arc<Role>> {
        if builtin::is_builtin(name) {
            return Err(Error::new(
                ErrorCode::InvalidRoleModification,
                format!("{name} is a built-in role and cannot be modified"),
            ));
        }
        self.role(name).ok_or_else(|| no_such_role(name))
    }

    /// Fails unless the inherited roles exist, do not include the role itself, and, outside `admin`, the
    /// role is limited to its own database.
    fn check_role(&self, role: &Role) -> Result<()> {
        let refused = |text: String| Err(Error::new(ErrorCode::InvalidRoleModification, text));
        let db = role.name.db.as_str();
        self.check_roles(&role.roles)?;
        if db != "admin" {
            if let Some(other) = role.roles.iter().find(|r| r.db != db) {
                return refused(format!(
                    "Roles on the '{db}' database cannot be granted roles from other databases, as {other}"
                ));
            }
            let mut privileges = role.privileges.iter();
            if let Some(other) = privileges.find(|p| !p.resource.is_within(db)) {
                let resource = other.resource.to_document();
                return refused(format!(
                    "Roles on the '{db}' database cannot be granted privileges that target other databases or the cluster, as {}",
                    value_to_relaxed(ValueRef::Document(resource.as_ref()))
                ));
            }
        }
        if self.resolve_roles(&role.roles).roles.contains(&role.name) {
            return refused(format!("the role {} would inherit itself", role.name));
        }
        Ok(())
    }

    fn lock_changes(&self) -> std::sync::MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes changes durable, then visible, then increments the generation.
    fn apply_changes(&self, changes: Vec<AuthChange>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let stored: Vec<_> = changes.iter().map(AuthChange::stored).collect();
        self.catalog.write_auth_documents(&stored)?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            match change {
                AuthChange::PutUser(user) => {
                    state.users.insert(user.name.clone(), Arc::new(user));
                }
                AuthChange::RemoveUser(name) => {
                    state.users.remove(&name);
                }
                AuthChange::PutRole(role) => {
                    state.roles.insert(role.name.clone(), Arc::new(role));
                }
                AuthChange::RemoveRole(name) => {
                    state.roles.remove(&name);
                }
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn with_state<T>(&self, look: impl FnOnce(&UsersAndRoles) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Users or roles of a dump.
pub struct Merge<T> {
    /// The only database to change; all if it is `None`.
    pub db: Option<String>,
    /// True if the dump takes the place of what is there.
    pub replace: bool,
    /// The users or roles.
    pub new: Vec<T>,
}

/// Fails if one of these roles belongs to the server itself.
fn refuse_reserved(roles: &[RoleName]) -> Result<()> {
    match roles.iter().find(|name| builtin::is_reserved(name)) {
        Some(name) => Err(Error::bad_value(format!(
            "the role {name} is reserved for the server and cannot be granted"
        ))),
        None => Ok(()),
    }
}

enum AuthChange {
    PutUser(User),
    RemoveUser(UserName),
    PutRole(Role),
    RemoveRole(RoleName),
}

impl AuthChange {
    fn stored(&self) -> (AuthDocumentKind, String, Option<Document>) {
        match self {
            Self::PutUser(user) => (
                AuthDocumentKind::User,
                user.name.id(),
                Some(user.to_document()),
            ),
            Self::RemoveUser(name) => (AuthDocumentKind::User, name.id(), None),
            Self::PutRole(role) => (
                AuthDocumentKind::Role,
                role.name.id(),
                Some(role.to_document()),
            ),
            Self::RemoveRole(name) => (AuthDocumentKind::Role, name.id(), None),
        }
    }
}

/// Returns the secret stored in the catalog; creates it at the first opening.
fn secret(catalog: &Catalog) -> Result<Vec<u8>> {
    if let Some(kept) = catalog.auth_documents(AuthDocumentKind::Secret)?.first() {
        return match kept.get("secret") {
            ValueRef::Binary { bytes, .. } => Ok(bytes.to_vec()),
            _ => Err(damaged()),
        };
    }
    let secret = super::random_bytes::<32>()?;
    let kept = doc! {"secret": Value::from(Binary {
        subtype: 0,
        bytes: secret.as_slice().into(),
    })};
    catalog.write_auth_documents(&[(
        AuthDocumentKind::Secret,
        SECRET_ID.to_owned(),
        Some(kept),
    )])?;
    Ok(secret.to_vec())
}

/// Returns the error for a missing user.
pub(super) fn no_such_user(name: &UserName) -> Error {
    Error::new(ErrorCode::UserNotFound, format!("User '{name}' not found"))
}

/// Returns the error for a missing role.
pub(super) fn no_such_role(name: &RoleName) -> Error {
    Error::new(
        ErrorCode::RoleNotFound,
        format!("Could not find role: {name}"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::action::{Action, ActionSet};
    use super::super::login::Login;
    use super::super::resource::{Resource, Target};
    use super::super::restriction::Restrictions;
    use super::*;
    use nilometer_storage::{Engine, MemoryEngine};

    fn open(engine: &Arc<dyn Engine>) -> Authority {
        Authority::open(Arc::new(Catalog::open(engine.clone()).unwrap())).unwrap()
    }

    fn user(name: &str, roles: &[(&str, &str)]) -> User {
        User {
            name: UserName::new(name, "db"),
            id: [u8::try_from(name.len()).unwrap(); 16],
            credentials: vec![(
                Mechanism::Sha256,
                Credentials::derive(Mechanism::Sha256, "x", b"salt", 1),
            )],
            roles: roles.iter().map(|(r, d)| RoleName::new(r, d)).collect(),
            custom_data: Some(doc! {"a": 1}),
            restrictions: Restrictions::default(),
        }
    }

    fn role(name: &str, db: &str, roles: &[(&str, &str)]) -> Role {
        let mut privileges = Privileges::default();
        let find = ActionSet::of(&[Action::Find]);
        privileges.allow(&Resource::named(db, name), find);
        Role {
            name: RoleName::new(name, db),
            privileges,
            roles: roles.iter().map(|(r, d)| RoleName::new(r, d)).collect(),
            restrictions: Restrictions::default(),
        }
    }

    #[test]
    fn users_and_roles_survive_reopening() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let authority = open(&engine);
        assert!(authority.is_empty());
        authority
            .create_role(role("r", "db", &[("read", "db")]))
            .unwrap();
        authority.create_user(user("u", &[("r", "db")])).unwrap();
        let missing = authority.credentials(&UserName::new("n", "db"), Mechanism::Sha1, 10_000);
        let again = open(&engine);
        let there = again.user(&UserName::new("u", "db")).expect("the user");
        assert_eq!(
            there.to_document().as_bytes(),
            user("u", &[("r", "db")]).to_document().as_bytes()
        );
        assert_eq!(again.roles(None), authority.roles(None));
        let name = UserName::new("n", "db");
        assert_eq!(again.credentials(&name, Mechanism::Sha1, 10_000), missing);
        assert!(!missing.1);
        again.drop_user(&UserName::new("u", "db")).unwrap();
        assert!(open(&engine).users(None).is_empty());
    }

    #[test]
    fn salvage_copies_readable_users_and_roles() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let from = open(&engine);
        from.create_role(role("r", "a", &[])).unwrap();
        from.create_user(user("u", &[("r", "a")])).unwrap();
        from.create_user(user("v", &[("read", "a")])).unwrap();
        let broken = |id: &str, document| (AuthDocumentKind::User, id.to_owned(), Some(document));
        let missing = [broken("a.broken", doc! {"user": 1})];
        from.catalog.write_auth_documents(&missing).unwrap();
        let to: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let saved = open(&to).salvage(&from.catalog).unwrap();
        assert_eq!(saved, (2, 1, vec!["the user a.broken".to_owned()]));
        let reopened = open(&to);
        for (before, after) in from.users(None).iter().zip(reopened.users(None)) {
            assert_eq!(before.to_document(), after.to_document());
        }
        assert_eq!(reopened.users(None).len(), 2);
        assert_eq!(reopened.roles(None).len(), 1);
    }

    #[test]
    fn names_are_unique_and_roles_must_exist() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let authority = open(&engine);
        authority.create_user(user("u", &[])).unwrap();
        let code = |r: Result<()>| r.unwrap_err().code.0;
        assert_eq!(code(authority.create_user(user("u", &[]))), 51_003);
        assert_eq!(code(authority.create_user(user("v", &[("x", "db")]))), 31);
        let system = user("v", &[("__system", "admin")]);
        assert_eq!(code(authority.create_user(system)), 2);
        authority.create_role(role("r", "db", &[])).unwrap();
        assert_eq!(code(authority.create_role(role("r", "db", &[]))), 51_002);
        assert_eq!(code(authority.create_role(role("read", "db", &[]))), 51_002);
        assert_eq!(code(authority.drop_user(&UserName::new("x", "db"))), 11);
        assert_eq!(code(authority.drop_role(&RoleName::new("x", "db"))), 31);
        assert_eq!(code(authority.drop_role(&RoleName::new("read", "db"))), 49);
    }

    #[test]
    fn roles_inherit_without_cycles_and_within_their_database() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let authority = open(&engine);
        let code = |r: Result<()>| r.unwrap_err().code.0;
        authority.create_role(role("a", "db", &[])).unwrap();
        authority
            .create_role(role("b", "db", &[("a", "db")]))
            .unwrap();
        let to_b = |role: &mut Role| {
            role.roles.push(RoleName::new("b", "db"));
            Ok(())
        };
        assert_eq!(
            code(authority.change_role(&RoleName::new("a", "db"), to_b)),
            49
        );
        assert_eq!(
            code(authority.create_role(role("c", "e", &[("a", "db")]))),
            49
        );
        let mut far = role("c", "e", &[]);
        far.privileges.allow(&Resource::Cluster, ActionSet::ALL);
        assert_eq!(code(authority.create_role(far)), 49);
        authority
            .create_role(role("c", "admin", &[("b", "db")]))
            .unwrap();
        let all = authority.resolve_roles(&[RoleName::new("c", "admin")]);
        assert_eq!(all.roles.len(), 3);
        let find = ActionSet::of(&[Action::Find]);
        assert!(all.privileges.allows(&Target::collection("db", "a"), find));
        authority.drop_role(&RoleName::new("b", "db")).unwrap();
        let all = authority.resolve_roles(&[RoleName::new("c", "admin")]);
        assert_eq!(all.roles.len(), 1);
    }

    #[test]
    fn a_connection_notices_changes_at_once() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let authority = open(&engine);
        authority.create_user(user("u", &[("read", "db")])).unwrap();
        let name = UserName::new("u", "db");
        let mut login = Login::default();
        login.succeed(Arc::new(authority.grants(&name).unwrap()));
        let insert = ActionSet::of(&[Action::Insert]);
        let target = Target::collection("db", "c");
        let mut may = |authority: &Authority| {
            let grants = login.grants(authority);
            grants.map(|g| g.privileges().allows(&target, insert))
        };
        assert_eq!(may(&authority), Some(false));
        let write = |user: &mut User| {
            user.roles = vec![RoleName::new("readWrite", "db")];
            Ok(())
        };
        authority.change_user(&name, write).unwrap();
        assert_eq!(may(&authority), Some(true));
        authority.drop_user(&name).unwrap();
        let mut other = user("u", &[("readWrite", "db")]);
        other.id = [9; 16];
        authority.create_user(other).unwrap();
        assert_eq!(may(&authority), None, "another of the same name");
    }
}
