//! Names of users and roles: each belongs to a database.

use std::fmt;

use nilometer_bson::{Document, ValueRef, doc};

use crate::error::{Error, Result};

/// The database of users authenticated by a certificate.
pub const EXTERNAL: &str = "$external";

/// A user and its database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName {
    /// The user.
    pub user: String,
    /// The database.
    pub db: String,
}

impl UserName {
    /// Returns the name of the user `user` of the database `db`.
    pub fn new(user: &str, db: &str) -> Self {
        Self {
            user: user.to_owned(),
            db: db.to_owned(),
        }
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.db)
    }
}

/// A role and its database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleName {
    /// The role.
    pub role: String,
    /// The database.
    pub db: String,
}

impl RoleName {
    /// Returns the name of the role `role` of the database `db`.
    pub fn new(role: &str, db: &str) -> Self {
        Self {
            role: role.to_owned(),
            db: db.to_owned(),
        }
    }

    /// Parses `"role"` (of the database `db`) or `{role, db}`. `path` names the field in errors.
    pub fn parse(value: ValueRef<'_>, db: &str, path: &str) -> Result<Self> {
        match value {
            ValueRef::String(role) => check(role, path).map(|()| Self::new(role, db)),
            ValueRef::Document(document) => {
                let (role, db) = pair(document, "role", path)?;
                check(role, path)?;
                Ok(Self::new(role, db))
            }
            other => Err(Error::wrong_field_types(path, other, "string, object")),
        }
    }

    /// Returns `{role, db}`.
    pub fn to_document(&self) -> Document {
        doc! {"role": self.role.as_str(), "db": self.db.as_str()}
    }

    /// Returns `db.role`, the `_id` of its document.
    pub fn id(&self) -> String {
        format!("{}.{}", self.db, self.role)
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.role, self.db)
    }
}

impl UserName {
    /// Parses `"user"` (of the database `db`) or `{user, db}`. `path` names the field in errors.
    pub fn parse(value: ValueRef<'_>, db: &str, path: &str) -> Result<Self> {
        match value {
            ValueRef::String(user) => check(user, path).map(|()| Self::new(user, db)),
            ValueRef::Document(document) => {
                let (user, db) = pair(document, "user", path)?;
                check(user, path)?;
                Ok(Self::new(user, db))
            }
            other => Err(Error::wrong_field_types(path, other, "string, object")),
        }
    }

    /// Returns `{user, db}`.
    pub fn to_document(&self) -> Document {
        doc! {"user": self.user.as_str(), "db": self.db.as_str()}
    }

    /// Returns `db.user`, the `_id` of its document.
    pub fn id(&self) -> String {
        format!("{}.{}", self.db, self.user)
    }
}

/// Fails if a name is empty or holds a NUL: names are parts of keys.
fn check(name: &str, path: &str) -> Result<()> {
    if name.is_empty() || name.contains('\0') {
        return Err(Error::bad_value(format!(
            "'{path}' must be a name that is not empty and holds no NUL byte"
        )));
    }
    Ok(())
}

/// Parses `{<kind>: "…", db: "…"}`.
fn pair<'a>(
    document: nilometer_bson::DocRef<'a>,
    kind: &str,
    path: &str,
) -> Result<(&'a str, &'a str)> {
    let (mut name, mut db) = (None, None);
    for element in document {
        let slot = match element.name() {
            given if given == kind => &mut name,
            "db" => &mut db,
            other => return Err(Error::unknown_field(format_args!("{path}.{other}"))),
        };
        let field = element.name();
        match element.value() {
            ValueRef::String(text) => *slot = Some(text),
            other => {
                let path = format_args!("{path}.{field}");
                return Err(Error::wrong_field_type(path, other, "string"));
            }
        }
    }
    let missing = |field: &str| Error::missing_field(format_args!("{path}.{field}"));
    let db = db.ok_or_else(|| missing("db"))?;
    if db != EXTERNAL {
        crate::catalog::check_database_name(db)?;
    }
    Ok((name.ok_or_else(|| missing(kind))?, db))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_in_both_forms() {
        let short = doc! {"r": "read"};
        let long = doc! {"r": doc! {"role": "read", "db": "a"}};
        let read = |d: &Document| RoleName::parse(d.get("r"), "b", "roles");
        assert_eq!(read(&short).unwrap(), RoleName::new("read", "b"));
        assert_eq!(read(&long).unwrap(), RoleName::new("read", "a"));
        for (bad, code) in [
            (doc! {"r": 1}, 14),
            (doc! {"r": ""}, 2),
            (doc! {"r": doc! {"role": "read"}}, 40_414),
            (doc! {"r": doc! {"db": "read"}}, 40_414),
            (doc! {"r": doc! {"role": "x", "db": "a", "z": 1}}, 40_415),
            (doc! {"r": doc! {"role": 1, "db": "a"}}, 14),
            (doc! {"r": doc! {"role": "x", "db": "a.b"}}, 73),
        ] {
            assert_eq!(read(&bad).unwrap_err().code.0, code, "{bad:?}");
        }
    }
}
