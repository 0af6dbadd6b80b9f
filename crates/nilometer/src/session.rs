//! The state of one connection, and the ids of sessions that span connections.
//!
//! A [`ClientSession`] lives as long as a connection (or as an embedding program keeps it) and is passed to
//! every command. A *logical* session, named by an `lsid`, may use many connections;
//! `services::LogicalSessions` stores them for the whole database.
//!
//! Does not know sockets: the transport passes addresses as text.

use std::sync::Arc;

use nilometer_bson::{Document, Value, ValueRef};
use sha2::{Digest, Sha256};

use crate::auth::Login;
pub use crate::auth::UserName;
use crate::error::{Error, Result, location};

/// The metadata a client sent in its first `hello`, and its addresses.
#[derive(Clone, Debug, Default)]
pub struct ClientMetadata {
    /// The `client` document of the handshake.
    pub document: Option<Document>,
    /// Address of the peer as `host:port`; empty for an embedded caller.
    pub remote: String,
    /// The address the peer connected to; empty for an embedded caller.
    pub local: String,
    /// True if the peer is on the same machine.
    pub same_machine: bool,
}

impl ClientMetadata {
    /// Returns the application name, if the client sent one.
    pub fn application_name(&self) -> Option<&str> {
        let application = self.document.as_ref()?.get("application").as_document()?;
        application.get("name").as_str()
    }
}

/// The options of the stable API in a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiParameters {
    /// True with `apiVersion`: there is one version.
    pub is_versioned: bool,
    /// `apiStrict`.
    pub strict: bool,
    /// `apiDeprecationErrors`.
    pub deprecation_errors: bool,
}

/// The state of one connection.
#[derive(Clone, Debug)]
pub struct ClientSession {
    /// The connection number, unique while the database is open.
    pub connection_id: i64,
    /// The metadata of the client.
    pub client: Arc<ClientMetadata>,
    /// Names of the compressors the transport supports, best first. The core compresses nothing; `hello`
    /// returns those the client supports too.
    pub compressors: Vec<&'static str>,
    /// The subject of the client's certificate, as in RFC 2253, if the transport has verified one.
    pub certificate_subject: Option<String>,
    /// The login of the client.
    pub login: Login,
    /// True if the transport closes the connection and sends no answer: a fail point says so.
    pub closes_connection: bool,
}

impl ClientSession {
    /// Makes a session of connection number `connection_id`.
    pub fn new(connection_id: i64, client: ClientMetadata) -> Self {
        Self {
            connection_id,
            client: Arc::new(client),
            compressors: Vec::new(),
            certificate_subject: None,
            login: Login::default(),
            closes_connection: false,
        }
    }

    /// Makes a session for an embedded caller.
    pub fn embedded() -> Self {
        let client = ClientMetadata {
            same_machine: true,
            ..ClientMetadata::default()
        };
        Self {
            login: Login::trusted(),
            ..Self::new(0, client)
        }
    }
}

/// The id of a logical session: the UUID of an `lsid`. MongoDB's `uid` beside it is the digest of the
/// user's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

/// Binary subtype of a UUID.
const SUBTYPE_UUID: u8 = 4;

impl SessionId {
    /// Parses `{id: UUID}`. `path` names the field in errors, as in `find.lsid`.
    pub fn parse(value: ValueRef<'_>, path: &str) -> Result<Self> {
        let Some(document) = value.as_document() else {
            return Err(Error::wrong_field_type(path, value, "object"));
        };
        let mut found = None;
        for element in document {
            match (element.name(), element.value()) {
                ("id", ValueRef::Binary { subtype, bytes }) if subtype == SUBTYPE_UUID => {
                    found = Some(bytes.try_into().map(Self).map_err(|_| {
                        Error::location(
                            location::UUID_NOT_16_BYTES,
                            "uuid must be a 16-byte binary field",
                        )
                    })?);
                }
                ("id", ValueRef::Binary { subtype, .. }) => {
                    return Err(Error::type_mismatch(format!(
                        "BSON field '{path}.id' is the wrong binData type '{}', expected type 'UUID'",
                        binary_subtype_name(subtype)
                    )));
                }
                ("id", other) => {
                    return Err(Error::wrong_field_type(
                        format_args!("{path}.id"),
                        other,
                        "binData",
                    ));
                }
                (name, _) => {
                    return Err(Error::unknown_field(format_args!("{path}.{name}")));
                }
            }
        }
        found.ok_or_else(|| Error::missing_field(format_args!("{path}.id")))
    }

    /// Returns the id under which a router's partitions know this session of a user: sessions of two users are never one.
    pub(crate) fn of_user(self, user: Option<&UserName>) -> Self {
        let Some(user) = user else {
            return self;
        };
        let digest = Sha256::new().chain_update(self.0);
        let digest = digest.chain_update(user.to_string()).finalize();
        let mut id = [0; 16];
        id.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        Self(id)
    }

    /// Returns `{id: UUID}`, as a client sends it.
    pub fn to_document(self) -> Document {
        let id = ValueRef::Binary {
            subtype: SUBTYPE_UUID,
            bytes: &self.0,
        };
        nilometer_bson::doc! {"id": Value::from(id)}
    }

    /// Returns `{id: UUID, uid: digest}`, as the server shows it. Without a user, the digest is that of the empty name.
    pub(crate) fn with_digest(self, user: Option<&UserName>) -> Document {
        let name = user.map(UserName::to_string);
        let digest = Sha256::digest(name.unwrap_or_default());
        let digest = ValueRef::Binary {
            subtype: 0,
            bytes: &digest,
        };
        let id = self.to_document();
        nilometer_bson::doc! {"id": id.get("id"), "uid": Value::from(digest)}
    }
}

fn binary_subtype_name(subtype: u8) -> &'static str {
    match subtype {
        0 => "general",
        1 => "function",
        2 => "byte-array",
        3 => "UUID_OLD",
        4 => "UUID",
        5 => "MD5",
        6 => "encrypt",
        7 => "column",
        8 => "sensitive",
        _ => "Custom",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    #[test]
    fn a_session_id_round_trips() {
        let id = SessionId([7; 16]);
        let document = doc! {"lsid": id.to_document()};
        assert_eq!(
            SessionId::parse(document.get("lsid"), "x.lsid").unwrap(),
            id
        );
    }

    #[test]
    fn a_bad_session_id_is_refused() {
        for (document, code) in [
            (doc! {"lsid": 1}, 14),
            (doc! {"lsid": doc! {"id": 1}}, 14),
            (doc! {"lsid": doc! {}}, 40_414),
            (doc! {"lsid": doc! {"what": 1}}, 40_415),
        ] {
            let error = SessionId::parse(document.get("lsid"), "x.lsid").unwrap_err();
            assert_eq!(error.code.0, code, "{}", error.message);
        }
    }
}
