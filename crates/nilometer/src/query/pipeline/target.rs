//! The collection that `$out` and `$merge` write into, as it is named in a pipeline.
//!
//! `"coll"`, or `{db: …, coll: …}`. Whether such a collection is there, and may be written into, is not
//! known here.

use std::sync::Arc;

use nilometer_bson::{DocRef, ValueRef};

use crate::catalog::Namespace;
use crate::error::{Error, Result};

/// A collection that is written into.
#[derive(Clone, Debug)]
pub struct OutputTarget {
    /// The database, if it is not that of the command.
    database: Option<Arc<str>>,
    collection: Arc<str>,
}

impl OutputTarget {
    /// The collection of that name in the command's database.
    pub(super) fn of_name(collection: &str) -> Self {
        Self {
            database: None,
            collection: collection.into(),
        }
    }

    /// Reads `{db, coll}`; `field` names the object in errors, and `more` is what else it may have.
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

    /// True if the database was said.
    pub(super) fn has_database(&self) -> bool {
        self.database.is_some()
    }

    /// The collection's name.
    pub(super) fn collection(&self) -> &str {
        &self.collection
    }

    /// The collection that a command on `database` writes into.
    pub fn namespace(&self, database: &str) -> Result<Namespace> {
        let database = self.database.as_deref().unwrap_or(database);
        Namespace::new(database, &self.collection)
    }
}
