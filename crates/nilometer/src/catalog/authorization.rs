//! Storage of users, roles and secrets: documents under prefixed keys in the catalog's keyspace, beside the
//! entries of collections. The module `auth` interprets them.

use nilometer_bson::Document;
use nilometer_storage::{Direction, Durability, KeyspaceId, WriteBatch};

use super::Catalog;
use crate::error::{Error, ErrorCode, Result};

/// Prefix of the keys of users, roles and secrets. No namespace starts with the byte FF.
pub(super) const AUTHORIZATION_PREFIX: &[u8] = b"\xFFauth\0";

/// The kinds of documents stored for authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthDocumentKind {
    /// A user.
    User,
    /// A role.
    Role,
    /// A secret of the server that no command shows.
    Secret,
}

impl AuthDocumentKind {
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
    /// Returns all documents of one kind in the order of their ids. Fails with `DataCorruptionDetected` if
    /// a value is not a document.
    pub fn auth_documents(&self, kind: AuthDocumentKind) -> Result<Vec<Document>> {
        let all = self.auth_documents_unchecked(kind)?.into_iter();
        all.map(|(_, document)| {
            document.ok_or_else(|| {
                Error::new(
                    ErrorCode::DataCorruptionDetected,
                    "the catalog holds a user or role that is not a document",
                )
            })
        })
        .collect()
    }

    /// Returns the values of one kind with their ids; `None` in place of a value that is not a document.
    pub fn auth_documents_unchecked(
        &self,
        kind: AuthDocumentKind,
    ) -> Result<Vec<(String, Option<Document>)>> {
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

    /// Returns the keyspace of the catalog.
    pub fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    /// Writes (`Some`) or removes (`None`) documents by kind and id in one atomic batch. Durable when it
    /// returns.
    pub fn write_auth_documents(
        &self,
        changes: &[(AuthDocumentKind, String, Option<Document>)],
    ) -> Result<()> {
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
