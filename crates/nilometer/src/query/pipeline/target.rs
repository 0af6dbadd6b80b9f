//! The collection that `$out` and `$merge` write.
//!
//! It is written `"coll"` or `{db: …, coll: …}`. This module does not check whether the collection exists or may be
//! written.

use std::sync::Arc;

use nilometer_bson::{DocRef, ValueRef};

use crate::catalog::Namespace;
use crate::error::{Error, Result};

/// The collection to write.
#[derive(Clone, Debug)]
pub struct OutputTarget {
    /// The database, if it differs from that of the command.
    database: Option<Arc<str>>,
    collection: Arc<str>,
}

impl OutputTarget {
    /// Returns the collection with this name in the command's database.
    pub(super) fn of_name(collection: &str) -> Self {
        Self {
            database: None,
            collection: collection.into(),
        }
    }

    /// Parses `{db, coll}`. `field` is the object's name in errors; `more` lists other allowed fields.
    pub(super) fn parse(field: &str, spec: DocRef<'_>, more: &[&str]) -> Result<Self> {
        let (mut database, mut collection) = (None, None);
        for element in spec {
            match (element.name(), element.value()) {
                ("db", ValueRef::String(given)) => database = Some(given),
                ("coll", ValueRef::String(given)) => collection = Some(given),
                (name @ ("db" | "coll"), other) => {
                    let path = format_args!("{field}.{name}");
                    return Err(Error::wrong_field_type(path, other, "string"));
                }
                (name, _) if more.contains(&name) => {}
                (name, _) => return Err(Error::unknown_field(format_args!("{field}.{name}"))),
            }
        }
        let Some(collection) = collection else {
            return Err(Error::missing_field(format_args!("{field}.coll")));
        };
        Ok(Self {
            database: database.map(Arc::from),
            ..Self::of_name(collection)
        })
    }

    /// True if the database is specified.
    pub(super) fn has_database(&self) -> bool {
        self.database.is_some()
    }

    /// Returns the collection's name.
    pub(super) fn collection(&self) -> &str {
        &self.collection
    }

    /// Returns the namespace that a command on `database` writes.
    pub fn namespace(&self, database: &str) -> Result<Namespace> {
        let database = self.database.as_deref().unwrap_or(database);
        Namespace::new(database, &self.collection)
    }
}
