//! Where users and roles are kept: documents under names of their own, beside those of
//! collections. What they mean is the affair of the room `auth`.

use nilometer_bson::Document;
use nilometer_storage::{Direction, Durability, KeyspaceId, WriteBatch};

use super::Catalog;
use crate::error::{Error, ErrorCode, Result};

/// In front of the keys of users and roles. No name starts with FF.
pub(super) const AUTHORIZATION_PREFIX: &[u8] = b"\xFFauth\0";

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorized {
    /// A user.
    User,
    /// A role.
    Role,
    /// What the server keeps to itself.
    Secret,
}

impl Authorized {
    fn prefix(self) -> Vec<u8> {
        let kind: &[u8] = match self {
            Self::User => b"user\0",
            Self::Role => b"role\0",
            Self::Secret => b"secret\0",
        };
        [AUTHORIZATION_PREFIX, kind].concat()
    }
}

impl Catalog {
    /// Everything of one kind, by id.
    pub fn authorized(&self, kind: Authorized) -> Result<Vec<Document>> {
        let all = self.authorized_as_found(kind)?.into_iter();
        all.map(|(_, document)| {
            document.ok_or_else(|| {
                Error::new(
                    ErrorCode::DataCorruptionDetected,
                    "the catalog holds a user or role that is no document",
                )
            })
        })
        .collect()
    }

    /// Everything of one kind with its id; no document where there are bytes that are none.
    pub fn authorized_as_found(&self, kind: Authorized) -> Result<Vec<(String, Option<Document>)>> {
        let prefix = kind.prefix();
        let snapshot = self.engine.snapshot()?;
        let mut found = Vec::new();
        for item in snapshot.scan(self.keyspace, &prefix, None, Direction::Forward)? {
            let (key, value) = item?;
            if !key.starts_with(&prefix) {
                break;
            }
            let id = key.get(prefix.len()..).unwrap_or_default();
            let id = String::from_utf8_lossy(id).into_owned();
            found.push((id, Document::from_bytes(value.to_vec())));
        }
        Ok(found)
    }

    /// Where all this is stored, and the collections, too.
    pub fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    /// Puts or removes documents by kind and id, all or none. Durable when it returns.
    pub fn set_authorized(&self, changes: &[(Authorized, String, Option<Document>)]) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (kind, id, document) in changes {
            let mut key = kind.prefix();
            key.extend_from_slice(id.as_bytes());
            match document {
                Some(document) => batch.put(self.keyspace, key, document.as_bytes().to_vec()),
                None => batch.delete(self.keyspace, key),
            }
        }
        self.engine.commit(batch, Durability::Sync)?;
        Ok(())
    }
}
