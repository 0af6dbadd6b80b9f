//! The key by which the processes of a cluster prove to each other that they belong to it.
//!
//! A process logs in with SCRAM-SHA-256 as the user `__system` of the database `local`, as the members of a MongoDB cluster do.
//! The password is the key, which is random; so few iterations suffice.

use super::credentials::{Credentials, Mechanism};
use super::{UserName, random_bytes};
use crate::error::Result;

/// The user of processes.
pub const MEMBER_USER: &str = "__system";

/// Its database.
pub const MEMBER_DATABASE: &str = "local";

/// Iterations of the hash of the key: the least that RFC 7677 allows.
const ITERATIONS: u32 = 4096;

/// Bytes of the salt.
const SALT_BYTES: usize = 28;

/// Verifies the key of other processes.
#[derive(Debug)]
pub struct MemberKey(Credentials);

impl MemberKey {
    /// Makes the verifier of a key.
    pub fn new(key: &str) -> Result<Self> {
        let prepared = Mechanism::Sha256.prepare(MEMBER_USER, key)?;
        let salt = random_bytes::<SALT_BYTES>()?;
        let credentials = Credentials::derive(Mechanism::Sha256, &prepared, &salt, ITERATIONS);
        Ok(Self(credentials))
    }

    /// Returns the credentials if the user is that of processes.
    pub(crate) fn of(&self, user: &UserName, mechanism: Mechanism) -> Option<Credentials> {
        let is_member = is_member(user) && mechanism == Mechanism::Sha256;
        is_member.then(|| self.0.clone())
    }
}

/// True for the user of processes.
pub(crate) fn is_member(user: &UserName) -> bool {
    user.user == MEMBER_USER && user.db == MEMBER_DATABASE
}
