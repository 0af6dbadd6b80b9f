//! Names of databases and collections.

use std::fmt;

use crate::error::{Error, ErrorCode, Result};

/// Prefix of the name of a bucket collection; the name of the time-series collection follows.
pub const BUCKETS_PREFIX: &str = "system.buckets.";

/// The database in which servers store their own documents.
pub const CONFIG: &str = "config";

/// The database of the oplog.
pub const LOCAL: &str = "local";

/// The database of users and of commands to the whole server.
pub const ADMIN: &str = "admin";

/// The oplog.
pub const OPLOG: &str = "oplog.rs";

/// The collection that lists the views of a database.
pub const SYSTEM_VIEWS: &str = "system.views";

/// Longest database name, in bytes.
pub(super) const DATABASE_NAME_BYTES_MAX: usize = 63;

/// Longest namespace, in bytes.
pub(super) const NAMESPACE_BYTES_MAX: usize = 255;

/// True for the databases of the server itself.
pub fn is_internal_database(name: &str) -> bool {
    [ADMIN, CONFIG, LOCAL].contains(&name)
}

/// A database and a collection in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    /// The database.
    pub database: String,
    /// The collection.
    pub collection: String,
}

impl Namespace {
    /// Validates both names and joins them.
    pub fn new(database: &str, collection: &str) -> Result<Self> {
        check_database_name(database)?;
        let whole = Self {
            database: database.to_owned(),
            collection: collection.to_owned(),
        };
        let bad = if collection.is_empty() {
            Some("Collection names cannot be empty")
        } else if collection.contains('\0') {
            Some("Collection names cannot contain a NUL byte")
        } else if collection.starts_with('.') || collection.ends_with('.') {
            Some("Collection names cannot start or end with '.'")
        } else if collection.contains('$') {
            Some("Collection names cannot contain '$'")
        } else if database.len() + 1 + collection.len() > NAMESPACE_BYTES_MAX {
            Some("Fully qualified namespace is too long")
        } else {
            None
        };
        match bad {
            Some(reason) => Err(Error::new(
                ErrorCode::InvalidNamespace,
                format!("Invalid namespace specified '{whole}': {reason}"),
            )),
            None => Ok(whole),
        }
    }

    /// Returns the bucket collection of the time-series collection of this name.
    pub fn buckets(&self) -> Self {
        Self {
            database: self.database.clone(),
            collection: format!("{BUCKETS_PREFIX}{}", self.collection),
        }
    }

    /// Returns the time-series collection of this bucket collection.
    pub fn timeseries_view(&self) -> Option<Self> {
        let name = self.collection.strip_prefix(BUCKETS_PREFIX)?;
        Some(Self {
            database: self.database.clone(),
            collection: name.to_owned(),
        })
    }

    /// True for the databases that the server itself writes.
    pub fn is_in_internal_database(&self) -> bool {
        matches!(self.database.as_str(), "admin" | "config" | "local")
    }

    /// True for names that a client cannot create: those of the server, except `system.js`, which is data here.
    pub fn is_reserved(&self) -> bool {
        self.is_system() && self.collection != "system.js"
    }

    /// True for names of the server.
    pub fn is_system(&self) -> bool {
        self.collection.starts_with("system.")
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

/// Fails with code 73 unless `name` is a valid database name.
pub fn check_database_name(name: &str) -> Result<()> {
    let bad = name.is_empty()
        || name.len() > DATABASE_NAME_BYTES_MAX
        || name.chars().any(|c| "/\\. \"$*<>:|?\0".contains(c));
    if bad {
        return Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid database name: '{name}'"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(Namespace::new("db", "a.b").is_ok());
        for (database, collection) in [
            ("", "c"),
            ("a b", "c"),
            ("db", ""),
            ("db", ".c"),
            ("db", "a$b"),
            ("db", "a\0b"),
        ] {
            let error = Namespace::new(database, collection).unwrap_err();
            assert_eq!(
                error.code,
                ErrorCode::InvalidNamespace,
                "{database} {collection}"
            );
        }
        assert!(Namespace::new("db", &"c".repeat(300)).is_err());
        let buckets = Namespace::new("db", "ts").unwrap().buckets();
        assert_eq!(buckets.to_string(), "db.system.buckets.ts");
        assert_eq!(buckets.timeseries_view().unwrap().collection, "ts");
    }
}
