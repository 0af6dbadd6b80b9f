//! A user, as `admin.system.users` shows it.

use nilometer_bson::{Binary, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::credentials::{Credentials, Mechanism};
use super::names::{RoleName, UserName};
use super::restriction::Restrictions;
use super::role::{damaged, role_names, stored_roles};
use crate::error::Result;

/// Binary subtype of a UUID.
const SUBTYPE_UUID: u8 = 4;

/// A user.
#[derive(Clone, Debug)]
pub struct User {
    /// The name.
    pub name: UserName,
    /// Distinguishes the user from an earlier one of the same name.
    pub id: [u8; 16],
    /// Credentials by mechanism. Empty for users of `$external`.
    pub credentials: Vec<(Mechanism, Credentials)>,
    /// The granted roles.
    pub roles: Vec<RoleName>,
    /// The document `customData` of the administrator.
    pub custom_data: Option<Document>,
    /// The addresses from which the user may log in.
    pub restrictions: Restrictions,
}

impl User {
    /// Returns the mechanisms the user can log in by.
    pub fn mechanisms(&self) -> Vec<&'static str> {
        if self.name.db == super::EXTERNAL {
            return vec!["external"];
        }
        self.credentials.iter().map(|(m, _)| m.name()).collect()
    }

    /// Returns the user's credentials of one mechanism.
    pub fn credentials_of(&self, mechanism: Mechanism) -> Option<&Credentials> {
        let mut all = self.credentials.iter();
        all.find(|(m, _)| *m == mechanism).map(|(_, found)| found)
    }

    /// Returns the field `userId`.
    pub fn user_id(&self) -> Value {
        Value::from(Binary {
            subtype: SUBTYPE_UUID,
            bytes: self.id.as_slice().into(),
        })
    }

    /// Returns the field `credentials`.
    pub fn credentials_value(&self) -> Value {
        let mut credentials = DocumentBuilder::new();
        if self.name.db == super::EXTERNAL {
            credentials.append("external", true);
        }
        for (mechanism, of_mechanism) in &self.credentials {
            credentials.append(mechanism.name(), of_mechanism.to_document());
        }
        credentials.finish().into()
    }

    /// Returns the field `roles`.
    pub fn roles_value(&self) -> Value {
        role_names(&self.roles)
    }

    /// Encodes the stored document.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("_id", self.name.id())
            .append("userId", self.user_id())
            .append("user", self.name.user.as_str())
            .append("db", self.name.db.as_str())
            .append("credentials", self.credentials_value())
            .append("customData", self.custom_data.clone())
            .append("roles", self.roles_value())
            .append("authenticationRestrictions", self.restrictions.to_value());
        out.finish()
    }

    /// Decodes the stored document.
    pub fn from_document(document: DocRef<'_>) -> Result<Self> {
        let text = |name: &str| document.get(name).as_str().ok_or_else(damaged);
        let name = UserName::new(text("user")?, text("db")?);
        let id = match document.get("userId") {
            ValueRef::Binary { bytes, .. } => bytes.try_into().map_err(|_| damaged())?,
            _ => return Err(damaged()),
        };
        let mut credentials = Vec::new();
        if let Some(given) = document.get("credentials").as_document() {
            for element in given {
                if let Some(mechanism) = Mechanism::from_name(element.name()) {
                    let of_mechanism = element.value().as_document().ok_or_else(damaged)?;
                    let read = Credentials::from_document(of_mechanism).ok_or_else(damaged)?;
                    credentials.push((mechanism, read));
                }
            }
        }
        let custom_data = document.get("customData").as_document();
        Ok(Self {
            id,
            credentials,
            roles: stored_roles(document, &name.db)?,
            custom_data: custom_data.map(DocRef::to_document),
            restrictions: Restrictions::parse(
                document.get("authenticationRestrictions"),
                "authenticationRestrictions",
            )?,
            name,
        })
    }
}
