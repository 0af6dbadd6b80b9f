//! A user-defined role, as `admin.system.roles` shows it.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::names::RoleName;
use super::privilege::Privileges;
use super::restriction::Restrictions;
use crate::error::{Error, ErrorCode, Result};

/// A role.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// The name.
    pub name: RoleName,
    /// Its own privileges.
    pub privileges: Privileges,
    /// The roles it inherits.
    pub roles: Vec<RoleName>,
    /// The addresses from which its holders may log in.
    pub restrictions: Restrictions,
}

impl Role {
    /// Encodes the stored document.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("_id", self.name.id())
            .append("role", self.name.role.as_str())
            .append("db", self.name.db.as_str())
            .append("privileges", self.privileges.to_value())
            .append("roles", role_names(&self.roles))
            .append("authenticationRestrictions", self.restrictions.to_value());
        out.finish()
    }

    /// Decodes the stored document.
    pub fn from_document(document: DocRef<'_>) -> Result<Self> {
        let text = |name: &str| document.get(name).as_str().ok_or_else(damaged);
        let name = RoleName::new(text("role")?, text("db")?);
        let roles = stored_roles(document, &name.db)?;
        Ok(Self {
            privileges: Privileges::parse(&array(document, "privileges"), "privileges")?,
            roles,
            restrictions: Restrictions::parse(
                document.get("authenticationRestrictions"),
                "authenticationRestrictions",
            )?,
            name,
        })
    }
}

/// Returns role names as an array of `{role, db}`.
pub(super) fn role_names(roles: &[RoleName]) -> Value {
    let documents = roles.iter().map(|role| Value::from(role.to_document()));
    Value::from(documents.collect::<Vec<_>>())
}

/// Parses the field `roles` of a stored document.
pub(super) fn stored_roles(document: DocRef<'_>, db: &str) -> Result<Vec<RoleName>> {
    let roles = array(document, "roles");
    let names = roles.as_ref().iter();
    names.map(|v| RoleName::parse(v, db, "roles")).collect()
}

/// Returns an array of a stored document; empty if it is missing.
fn array(document: DocRef<'_>, name: &str) -> Array {
    match document.get(name) {
        ValueRef::Array(array) => Array::from_document(array.as_document().to_document()),
        _ => Array::from_document(Document::new()),
    }
}

/// Returns the error for a stored user or role that cannot be decoded.
pub(super) fn damaged() -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        "the catalog holds a user or role that cannot be read",
    )
}
