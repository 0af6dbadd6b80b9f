//! Stored credentials: they verify a password but do not reveal it.
//!
//! Both mechanisms follow RFC 5802 (`SCRAM-SHA-1`) and RFC 7677 (`SCRAM-SHA-256`):
//!
//! ```text
//! SaltedPassword = PBKDF2(HMAC, password, salt, iterations)
//! StoredKey      = H(HMAC(SaltedPassword, "Client Key"))
//! ServerKey      = HMAC(SaltedPassword, "Server Key")
//! ```
//!
//! For SHA-1 the password is the hexadecimal MD5 of `user:mongo:password`, as in MongoDB's drivers; for
//! SHA-256 it is prepared by SASLprep (RFC 4013).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use md5::Md5;
use nilometer_bson::{DocRef, Document, ValueRef, doc};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// An authentication mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// `SCRAM-SHA-1`.
    Sha1,
    /// `SCRAM-SHA-256`.
    Sha256,
}

impl Mechanism {
    /// Both, in the order MongoDB lists them.
    pub const ALL: [Self; 2] = [Self::Sha1, Self::Sha256];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "SCRAM-SHA-1",
            Self::Sha256 => "SCRAM-SHA-256",
        }
    }

    /// Returns the mechanism of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }

    /// Returns the bytes of a salt, as in MongoDB: with them the first block of PBKDF2 is full.
    pub fn salt_bytes(self) -> usize {
        match self {
            Self::Sha1 => 16,
            Self::Sha256 => 28,
        }
    }

    /// Returns the bytes of a digest.
    pub fn digest_bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// H of the RFC.
    pub fn hash(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(data).to_vec(),
            Self::Sha256 => Sha256::digest(data).to_vec(),
        }
    }

    /// HMAC of the RFC.
    pub fn hmac(self, key: &[u8], data: &[u8]) -> Vec<u8> {
        // HMAC accepts keys of any length, so this never fails.
        match self {
            Self::Sha1 => Hmac::<Sha1>::new_from_slice(key)
                .map(|mac| mac.chain_update(data).finalize().into_bytes().to_vec()),
            Self::Sha256 => Hmac::<Sha256>::new_from_slice(key)
                .map(|mac| mac.chain_update(data).finalize().into_bytes().to_vec()),
        }
        .unwrap_or_default()
    }

    /// Hi of the RFC.
    pub fn salt_password(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut out = vec![0; self.digest_bytes()];
        match self {
            Self::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, &mut out),
            Self::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut out),
        }
        out
    }

    /// Returns the password in the form the mechanism hashes.
    pub fn prepare(self, user: &str, password: &str) -> Result<String> {
        match self {
            Self::Sha1 => Ok(digest_password(user, password)),
            Self::Sha256 => stringprep::saslprep(password)
                .map(std::borrow::Cow::into_owned)
                .map_err(|_| {
                    Error::bad_value("the password holds characters that SASLprep prohibits")
                }),
        }
    }
}

/// Returns the hexadecimal MD5 of `user:mongo:password`.
fn digest_password(user: &str, password: &str) -> String {
    let digest = Md5::digest(format!("{user}:mongo:{password}"));
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// The stored credentials of one mechanism.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Iterations of the password hash.
    pub iterations: u32,
    /// The salt of the password hash.
    pub salt: Vec<u8>,
    /// Verifies the client's proof.
    pub stored_key: Vec<u8>,
    /// Proves the server to the client.
    pub server_key: Vec<u8>,
}

/// Keys are never printed.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Derives the credentials of a prepared password.
    pub fn derive(mechanism: Mechanism, prepared: &str, salt: &[u8], iterations: u32) -> Self {
        let salted = mechanism.salt_password(prepared.as_bytes(), salt, iterations);
        let client_key = mechanism.hmac(&salted, b"Client Key");
        Self {
            iterations,
            salt: salt.to_vec(),
            stored_key: mechanism.hash(&client_key),
            server_key: mechanism.hmac(&salted, b"Server Key"),
        }
    }

    /// Returns the credentials of a non-existent user: the same for the same name, so that repeated
    /// requests reveal nothing. No password matches them.
    pub fn of_missing_user(
        mechanism: Mechanism,
        secret: &[u8],
        name: &str,
        iterations: u32,
    ) -> Self {
        let draw = |what: &str| {
            let seed = format!("{}\0{what}\0{name}", mechanism.name());
            Mechanism::Sha256.hmac(secret, seed.as_bytes())
        };
        let cut = |mut bytes: Vec<u8>, length: usize| {
            bytes.truncate(length);
            bytes
        };
        Self {
            iterations,
            salt: cut(draw("salt"), mechanism.salt_bytes()),
            stored_key: cut(draw("stored key"), mechanism.digest_bytes()),
            server_key: cut(draw("server key"), mechanism.digest_bytes()),
        }
    }

    /// True if salt and keys have the lengths of the mechanism, as in credentials that MongoDB writes.
    pub fn is_whole(&self, mechanism: Mechanism) -> bool {
        let is_digest = |key: &[u8]| key.len() == mechanism.digest_bytes();
        self.iterations > 0
            && !self.salt.is_empty()
            && is_digest(&self.stored_key)
            && is_digest(&self.server_key)
    }

    /// Encodes the stored document.
    pub fn to_document(&self) -> Document {
        doc! {
            "iterationCount": i32::try_from(self.iterations).unwrap_or(i32::MAX),
            "salt": BASE64.encode(&self.salt),
            "storedKey": BASE64.encode(&self.stored_key),
            "serverKey": BASE64.encode(&self.server_key),
        }
    }

    /// Decodes the stored document.
    pub fn from_document(document: DocRef<'_>) -> Option<Self> {
        let bytes = |name: &str| BASE64.decode(document.get(name).as_str()?).ok();
        let ValueRef::Int32(iterations) = document.get("iterationCount") else {
            return None;
        };
        Some(Self {
            iterations: u32::try_from(iterations).ok()?,
            salt: bytes("salt")?,
            stored_key: bytes("storedKey")?,
            server_key: bytes("serverKey")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_digest_is_that_of_the_drivers() {
        assert_eq!(
            digest_password("user", "pencil"),
            "1c33006ec1ffd90f9cadcbcc0e118200"
        );
    }

    #[test]
    fn saslprep_normalises_equivalent_characters() {
        let prepare = |p: &str| Mechanism::Sha256.prepare("u", p);
        assert_eq!(prepare("\u{2168}").unwrap(), "IX");
        assert_eq!(prepare("I\u{AD}X").unwrap(), "IX");
        assert!(prepare("\u{7}").is_err());
    }

    #[test]
    fn credentials_of_a_missing_user_are_deterministic() {
        let one = Credentials::of_missing_user(Mechanism::Sha1, b"secret", "a.b", 10_000);
        assert_eq!(
            one,
            Credentials::of_missing_user(Mechanism::Sha1, b"secret", "a.b", 10_000)
        );
        let other = Credentials::of_missing_user(Mechanism::Sha1, b"secret", "a.c", 10_000);
        assert_ne!(one.salt, other.salt);
        assert_eq!(one.salt.len(), 16);
        assert_eq!(one.stored_key.len(), 20);
        assert_ne!(one.stored_key, one.server_key);
    }

    #[test]
    fn documents_round_trip() {
        let kept = Credentials::derive(Mechanism::Sha256, "pencil", b"0123456789", 4096);
        let read = Credentials::from_document(kept.to_document().as_ref());
        assert_eq!(read.as_ref(), Some(&kept));
        assert!(!format!("{kept:?}").contains("key"));
    }
}
