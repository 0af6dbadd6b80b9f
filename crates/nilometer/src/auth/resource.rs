//! The resource of a privilege, and the target of a command.
//!
//! | resource document | covers |
//! |---|---|
//! | `{cluster: true}` | the server as a whole |
//! | `{db: "d", collection: "c"}` | one collection |
//! | `{db: "d", collection: ""}` | the database, and its collections except system ones |
//! | `{db: "", collection: "c"}` | collections of that name in every database |
//! | `{db: "", collection: ""}` | every database but `local` and `config`, and their collections except system ones |
//! | `{db: "d", system_buckets: "c"}` | the buckets of a time-series collection, called by their own name |
//! | `{anyResource: true}` | everything |
//!
//! Empty names in the form with `system_buckets` mean any, and `db` may be omitted. A privilege to read a
//! time-series collection does not include its bucket collection.

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};

use crate::catalog::BUCKETS_PREFIX;
use crate::error::{Error, Result};

/// The resource of a privilege.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// The server.
    Cluster,
    /// Everything.
    Any,
    /// Databases and collections; an empty name is any.
    Named {
        /// The database.
        db: String,
        /// The collection.
        collection: String,
    },
    /// Bucket collections by their own names; an empty name is any.
    Buckets {
        /// The database.
        db: String,
        /// The time-series collection.
        collection: String,
    },
}

/// The target of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The server.
    Cluster,
    /// A database as a whole.
    Database(String),
    /// Every database but `local` and `config`.
    Databases,
    /// A collection or view.
    Collection(String, String),
    /// Every resource.
    Everything,
}

impl Target {
    /// Returns the target collection `collection` of `db`.
    pub fn collection(db: &str, collection: &str) -> Self {
        Self::Collection(db.to_owned(), collection.to_owned())
    }
}

impl Resource {
    /// Returns the database `db` and its ordinary collections.
    pub fn database(db: &str) -> Self {
        Self::named(db, "")
    }

    /// Returns the collection `collection` of `db`; empty names are any.
    pub fn named(db: &str, collection: &str) -> Self {
        Self::Named {
            db: db.to_owned(),
            collection: collection.to_owned(),
        }
    }

    /// Returns the bucket collections of `db`; of all databases if it is empty.
    pub fn buckets(db: &str) -> Self {
        Self::Buckets {
            db: db.to_owned(),
            collection: String::new(),
        }
    }

    /// True if a privilege on this resource covers `target`.
    pub fn includes(&self, target: &Target) -> bool {
        match (self, target) {
            (Self::Any, _) | (Self::Cluster, Target::Cluster) => true,
            (Self::Named { db, collection }, Target::Database(target)) => {
                collection.is_empty() && includes_database(db, target)
            }
            (Self::Named { db, collection }, Target::Databases) => {
                db.is_empty() && collection.is_empty()
            }
            (Self::Named { db, collection }, Target::Collection(of, name)) => {
                if collection.is_empty() {
                    includes_database(db, of) && !name.starts_with("system.")
                } else {
                    collection == name && (db.is_empty() || db == of)
                }
            }
            (Self::Buckets { db, collection }, Target::Collection(of, name)) => {
                (db.is_empty() || db == of)
                    && name
                        .strip_prefix(BUCKETS_PREFIX)
                        .is_some_and(|view| collection.is_empty() || collection == view)
            }
            _ => false,
        }
    }

    /// True if the resource lies within the database `within`.
    pub fn is_within(&self, within: &str) -> bool {
        match self {
            Self::Named { db, .. } | Self::Buckets { db, .. } => db == within,
            Self::Cluster | Self::Any => false,
        }
    }

    /// Parses a resource document. `path` names the field in errors.
    pub fn parse(document: DocRef<'_>, path: &str) -> Result<Self> {
        let text = |name: &str| match document.get(name) {
            ValueRef::Missing => Ok(None),
            ValueRef::String(text) => Ok(Some(text.to_owned())),
            other => Err(Error::wrong_field_type(
                format_args!("{path}.{name}"),
                other,
                "string",
            )),
        };
        let flag = |name: &str| match document.get(name) {
            ValueRef::Missing => Ok(false),
            ValueRef::Bool(true) => Ok(true),
            ValueRef::Bool(false) => Err(Error::bad_value(format!(
                "'{path}.{name}' can only be true"
            ))),
            other => Err(Error::wrong_field_type(
                format_args!("{path}.{name}"),
                other,
                "bool",
            )),
        };
        let known = [
            "anyResource",
            "cluster",
            "db",
            "collection",
            "system_buckets",
        ];
        if let Some(other) = document.iter().find(|e| !known.contains(&e.name())) {
            return Err(Error::unknown_field(format_args!(
                "{path}.{}",
                other.name()
            )));
        }
        let (db, collection) = (text("db")?, text("collection")?);
        let buckets = text("system_buckets")?;
        let (any, cluster) = (flag("anyResource")?, flag("cluster")?);
        match (any, cluster, db, collection, buckets) {
            (true, false, None, None, None) => Ok(Self::Any),
            (false, true, None, None, None) => Ok(Self::Cluster),
            (false, false, Some(db), Some(collection), None) => Ok(Self::Named { db, collection }),
            (false, false, db, None, Some(collection)) => Ok(Self::Buckets {
                db: db.unwrap_or_default(),
                collection,
            }),
            _ => Err(Error::bad_value(format!(
                "'{path}' must be one of {{db, collection}}, {{db, system_buckets}}, {{cluster: true}} and {{anyResource: true}}, not {}",
                value_to_relaxed(ValueRef::Document(document))
            ))),
        }
    }

    /// Returns the resource document.
    pub fn to_document(&self) -> Document {
        match self {
            Self::Cluster => doc! {"cluster": true},
            Self::Any => doc! {"anyResource": true},
            Self::Named { db, collection } => {
                doc! {"db": db.as_str(), "collection": collection.as_str()}
            }
            Self::Buckets { db, collection } => {
                let mut out = DocumentBuilder::new();
                if !db.is_empty() {
                    out.append("db", db.as_str());
                }
                out.append("system_buckets", collection.as_str());
                out.finish()
            }
        }
    }
}

/// True if the name `db` in a privilege, empty for any, covers `target`.
fn includes_database(db: &str, target: &str) -> bool {
    if db.is_empty() {
        !matches!(target, "local" | "config")
    } else {
        db == target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_cover_their_targets() {
        let collection = Target::collection("d", "c");
        let system = Target::collection("d", "system.views");
        let buckets = Target::collection("d", "system.buckets.c");
        let database = Target::Database("d".into());
        let all = [
            Target::Cluster,
            database.clone(),
            collection.clone(),
            system.clone(),
            buckets.clone(),
            Target::Databases,
            Target::Everything,
        ];
        let cases: [(Resource, Vec<&Target>); 10] = [
            (Resource::Any, all.iter().collect()),
            (Resource::Cluster, vec![&Target::Cluster]),
            (Resource::database("d"), vec![&database, &collection]),
            (
                Resource::database(""),
                vec![&database, &collection, &Target::Databases],
            ),
            (Resource::database("e"), vec![]),
            (Resource::named("d", "c"), vec![&collection]),
            (Resource::named("", "c"), vec![&collection]),
            (Resource::named("d", "system.views"), vec![&system]),
            (Resource::buckets("d"), vec![&buckets]),
            (Resource::buckets("e"), vec![]),
        ];
        for (resource, expected) in cases {
            let found: Vec<_> = all.iter().filter(|t| resource.includes(t)).collect();
            assert_eq!(found, expected, "{resource:?}");
        }
        let any = Resource::database("");
        assert!(!any.includes(&Target::Database("config".into())));
        assert!(!any.includes(&Target::collection("local", "c")));
    }

    #[test]
    fn documents_round_trip() {
        for resource in [
            Resource::Any,
            Resource::Cluster,
            Resource::named("d", "c"),
            Resource::database(""),
            Resource::buckets(""),
            Resource::buckets("d"),
        ] {
            let document = resource.to_document();
            assert_eq!(Resource::parse(document.as_ref(), "r").unwrap(), resource);
        }
        for bad in [
            doc! {},
            doc! {"db": "d"},
            doc! {"cluster": false},
            doc! {"cluster": true, "db": "d", "collection": "c"},
            doc! {"db": 1, "collection": "c"},
            doc! {"what": 1},
        ] {
            assert!(Resource::parse(bad.as_ref(), "r").is_err(), "{bad:?}");
        }
    }
}
