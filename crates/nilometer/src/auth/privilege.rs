//! Privileges: actions allowed on resources.

use nilometer_bson::{Array, DocRef, Document, Value, ValueRef, doc};

use super::action::{Action, ActionSet};
use super::resource::{Resource, Target};
use crate::error::{Error, Result};

/// The actions allowed on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privilege {
    /// The resource.
    pub resource: Resource,
    /// The actions.
    pub actions: ActionSet,
}

impl Privilege {
    /// Parses `{resource, actions}`. `path` names the field in errors.
    pub fn parse(document: DocRef<'_>, path: &str) -> Result<Self> {
        let (mut resource, mut actions) = (None, None);
        for element in document {
            match (element.name(), element.value()) {
                ("resource", ValueRef::Document(given)) => {
                    resource = Some(Resource::parse(given, &format!("{path}.resource"))?);
                }
                ("resource", other) => {
                    let path = format_args!("{path}.resource");
                    return Err(Error::wrong_field_type(path, other, "object"));
                }
                ("actions", ValueRef::Array(given)) => {
                    let mut names = Vec::new();
                    for value in given.iter() {
                        names.push(value.as_str().ok_or_else(|| {
                            let path = format_args!("{path}.actions");
                            Error::wrong_field_type(path, value, "string")
                        })?);
                    }
                    actions = Some(ActionSet::parse(names)?);
                }
                ("actions", other) => {
                    let path = format_args!("{path}.actions");
                    return Err(Error::wrong_field_type(path, other, "array"));
                }
                (other, _) => return Err(Error::unknown_field(format_args!("{path}.{other}"))),
            }
        }
        let missing = |field: &str| Error::missing_field(format_args!("{path}.{field}"));
        Ok(Self {
            resource: resource.ok_or_else(|| missing("resource"))?,
            actions: actions.ok_or_else(|| missing("actions"))?,
        })
    }

    /// Returns `{resource, actions}`.
    pub fn to_document(&self) -> Document {
        let names = self.actions.names().into_iter();
        let actions: Vec<Value> = names.map(Value::from).collect();
        doc! {"resource": self.resource.to_document(), "actions": actions}
    }
}

/// Privileges, at most one per resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Privileges(Vec<Privilege>);

impl Privileges {
    /// Adds `privilege`.
    pub fn add(&mut self, privilege: &Privilege) {
        self.allow(&privilege.resource, privilege.actions);
    }

    /// Allows `actions` on `resource`.
    pub fn allow(&mut self, resource: &Resource, actions: ActionSet) {
        if actions.is_empty() {
            return;
        }
        match self.0.iter_mut().find(|p| p.resource == *resource) {
            Some(known) => known.actions = known.actions.union(actions),
            None => self.0.push(Privilege {
                resource: resource.clone(),
                actions,
            }),
        }
    }

    /// Revokes `actions` on `resource`. Returns false if there was no privilege on it.
    pub fn revoke(&mut self, resource: &Resource, actions: ActionSet) -> bool {
        let Some(known) = self.0.iter_mut().find(|p| p.resource == *resource) else {
            return false;
        };
        known.actions = known.actions.without(actions);
        self.0.retain(|p| !p.actions.is_empty());
        true
    }

    /// Adds all of `others`.
    pub fn extend(&mut self, others: &Self) {
        for privilege in &others.0 {
            self.add(privilege);
        }
    }

    /// True if all of `actions` are allowed on `target`.
    pub fn allows(&self, target: &Target, actions: ActionSet) -> bool {
        let mut allowed = ActionSet::NONE;
        for privilege in &self.0 {
            if privilege.resource.includes(target) {
                allowed = allowed.union(privilege.actions);
                if allowed.covers(actions) {
                    return true;
                }
            }
        }
        false
    }

    /// True if some collection of the database `db` may be read.
    pub fn can_read_in(&self, db: &str) -> bool {
        let find = ActionSet::of(&[Action::Find]);
        let mut may_find = self.0.iter().filter(|p| p.actions.covers(find));
        may_find.any(|p| match &p.resource {
            Resource::Any => true,
            Resource::Cluster => false,
            Resource::Named { collection, .. } if collection.is_empty() => {
                p.resource.includes(&Target::Database(db.to_owned()))
            }
            Resource::Named { db: of, .. } | Resource::Buckets { db: of, .. } => {
                of.is_empty() || of == db
            }
        })
    }

    /// Returns an iterator over the privileges.
    pub fn iter(&self) -> impl Iterator<Item = &Privilege> {
        self.0.iter()
    }

    /// True if nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an array of `{resource, actions}`.
    pub fn to_value(&self) -> Value {
        let documents = self.0.iter().map(|p| Value::from(p.to_document()));
        Value::from(documents.collect::<Vec<_>>())
    }

    /// Parses an array of `{resource, actions}`. `path` names the field in errors.
    pub fn parse(array: &Array, path: &str) -> Result<Self> {
        let mut all = Self::default();
        for value in array.as_ref().iter() {
            let ValueRef::Document(document) = value else {
                return Err(Error::wrong_field_type(path, value, "object"));
            };
            all.add(&Privilege::parse(document, path)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_privileges_together_allow_an_action_set() {
        let mut all = Privileges::default();
        all.allow(&Resource::database("d"), ActionSet::of(&[Action::Find]));
        all.allow(&Resource::named("d", "c"), ActionSet::of(&[Action::Insert]));
        let both = ActionSet::of(&[Action::Find, Action::Insert]);
        assert!(all.allows(&Target::collection("d", "c"), both));
        assert!(!all.allows(&Target::collection("d", "e"), both));
        assert!(all.can_read_in("d"));
        assert!(!all.can_read_in("e"));
        assert!(all.revoke(&Resource::named("d", "c"), both));
        assert!(!all.allows(&Target::collection("d", "c"), both));
        assert_eq!(all.iter().count(), 1);
        assert!(!all.revoke(&Resource::Cluster, both));
    }

    #[test]
    fn documents_round_trip() {
        let given = doc! {"p": nilometer_bson::array![
            doc! {"resource": doc! {"cluster": true}, "actions": nilometer_bson::array!["top"]},
        ]};
        let ValueRef::Array(array) = given.get("p") else {
            panic!("an array")
        };
        let array = Array::from_document(array.as_document().to_document());
        let read = Privileges::parse(&array, "p").unwrap();
        assert_eq!(doc! {"p": read.to_value()}.as_bytes(), given.as_bytes());
    }
}
