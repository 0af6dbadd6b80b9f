//! Ordinary collections.

use nilometer_bson::{DocRef, Document, ValueRef};

use super::Creation;
use crate::catalog::CatalogEntry;
use crate::error::{Error, ErrorCode, Result};

/// Options that ordinary collections do not take.
const UNSUPPORTED: &[&str] = &["encryptedFields", "flags", "temp"];

impl Creation<'_> {
    /// Creates an ordinary collection.
    pub(super) fn create_ordinary(&self) -> Result<()> {
        let is_clustered = !self.args.value("clusteredIndex").is_missing();
        if let Some(expire) = self.args.integer("expireAfterSeconds")?
            && !is_clustered
        {
            return Err(Error::invalid_options(format!(
                "'expireAfterSeconds' ({expire}) is only for time-series and clustered collections"
            )));
        }
        if let Some(option) = self.given(UNSUPPORTED) {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                format!("the option 'create.{option}' is not supported yet"),
            ));
        }
        if self.args.boolean("autoIndexId")? == Some(false) {
            return Err(Error::invalid_options(
                "every collection has an index on '_id': 'autoIndexId' cannot be false",
            ));
        }
        let options = self.ordinary_options()?;
        if let Some(index) = self.args.document("idIndex")? {
            check_id_index(index, &options)?;
        }
        let catalog = self.database.catalog();
        match catalog.get(&self.namespace) {
            None => self.store(options, None),
            Some(CatalogEntry::Collection(known))
                if known.options == options && self.has_uuid(&known) =>
            {
                Ok(())
            }
            Some(_) => Err(self.exists()),
        }
    }
}

/// Checks that `idIndex` describes the index on `_id` as it is.
fn check_id_index(index: DocRef<'_>, options: &Document) -> Result<()> {
    let is_id = |key: DocRef<'_>| {
        let mut parts = key.iter();
        let first = parts.next();
        first.is_some_and(|p| p.name() == "_id" && p.value().as_exact_i64() == Some(1))
            && parts.next().is_none()
    };
    for element in index {
        let fits = match (element.name(), element.value()) {
            ("key", ValueRef::Document(key)) => is_id(key),
            ("name", ValueRef::String(_)) => true,
            ("ns", ValueRef::String(_)) => true,
            ("v", version) => version.as_exact_i64() == Some(2),
            ("collation", ValueRef::Document(given)) => {
                let own = options.get("collation");
                let own = own.as_document();
                match given.get("locale").as_str() {
                    Some("simple") => own.is_none(),
                    locale => own.is_some_and(|own| own.get("locale").as_str() == locale),
                }
            }
            _ => {
                return Err(Error::new(
                    ErrorCode::InvalidIndexSpecificationOption,
                    format!(
                        "The field '{}' is not valid for an _id index specification",
                        element.name()
                    ),
                ));
            }
        };
        if !fits {
            return Err(Error::bad_value(format!(
                "The field '{}' for an _id index must be that of the index every collection has",
                element.name()
            )));
        }
    }
    if index.contains("key") {
        Ok(())
    } else {
        Err(Error::failed_to_parse(
            "The 'key' field is a required property of an index specification",
        ))
    }
}
