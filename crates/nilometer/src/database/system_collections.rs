//! The collections of `admin` that are generated when they are read: users, roles and versions. Of `local` there is the oplog ([`super::oplog`]).
//!
//! They exist so that tools that copy a server's users (`mongodump`) find them where MongoDB stores them.
//! Commands about users and roles change them; they cannot be written.

use nilometer_bson::{Document, doc};

use super::collections::StoredCollections;
use crate::catalog::{LOCAL, Namespace, OPLOG};
use crate::parameters::{AUTH_SCHEMA_VERSION, FEATURE_COMPATIBILITY_VERSION};

/// The database of these collections.
pub(crate) use crate::catalog::ADMIN;

/// Their names, sorted.
const NAMES: [&str; 3] = ["system.roles", "system.users", "system.version"];

impl StoredCollections {
    /// Returns the names of the generated collections that a database has.
    pub(crate) fn generated_names(&self, db: &str) -> Vec<&'static str> {
        if db == LOCAL && self.change_log.is_some() {
            return vec![OPLOG];
        }
        let exists = |name: &&str| self.generated_documents(db, name).is_some();
        NAMES.into_iter().filter(exists).collect()
    }

    /// Returns the documents of a generated collection; `None` for another name, and if there are none.
    pub(crate) fn generated_documents(&self, db: &str, collection: &str) -> Option<Vec<Document>> {
        if db != ADMIN {
            return None;
        }
        let documents: Vec<Document> = match collection {
            "system.users" => {
                let users = self.authority.users(None);
                users.iter().map(|user| user.to_document()).collect()
            }
            "system.roles" => {
                let roles = self.authority.roles(None);
                roles.iter().map(|role| role.to_document()).collect()
            }
            "system.version" => self.versions(),
            _ => return None,
        };
        (!documents.is_empty()).then_some(documents)
    }

    fn versions(&self) -> Vec<Document> {
        let mut versions = vec![doc! {
            "_id": "featureCompatibilityVersion",
            "version": FEATURE_COMPATIBILITY_VERSION,
        }];
        if !self.authority.is_empty() {
            let schema = doc! {"_id": "authSchema", "currentVersion": AUTH_SCHEMA_VERSION};
            versions.push(schema);
        }
        versions
    }

    /// Returns the indexes of a generated collection; `None` for another one.
    pub(crate) fn generated_indexes(&self, namespace: &Namespace) -> Option<Vec<Document>> {
        if self.catalog.is_oplog(namespace) {
            return Some(Vec::new());
        }
        self.generated_documents(&namespace.database, &namespace.collection)?;
        Some(vec![id_index()])
    }

    /// Returns the entry of `listCollections` of a generated collection.
    pub(crate) fn describe_generated(&self, collection: &str, name_only: bool) -> Document {
        if name_only {
            return doc! { "name": collection, "type": "collection" };
        }
        if collection == OPLOG {
            return self.describe_oplog();
        }
        let uuid = self.authority.collection_uuid(collection);
        doc! {
            "name": collection,
            "type": "collection",
            "options": doc! {},
            "info": doc! { "readOnly": false, "uuid": crate::catalog::uuid_value(uuid) },
            "idIndex": id_index(),
        }
    }
}

fn id_index() -> Document {
    doc! { "v": 2, "key": doc! { "_id": 1 }, "name": "_id_" }
}
