//! What an index is, as it is stored and listed.
//!
//! ```text
//! { v: 2, key, name, unique?, sparse?, hidden?, prepareUnique?, partialFilterExpression?, collation?,
//!   expireAfterSeconds?, originalSpec?, … }
//! ```
//!
//! The index of a bucket collection is kept in bucket form (`control.min.x`, `meta.a`); what a user
//! of the time-series collection sees is made from it. Options that only certain kinds of index have
//! (`bits`, `wildcardProjection`, …) are kept as they were given.
//!
//! This checks nothing a user could get wrong: commands do, before they store.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

/// The version of all indexes.
const INDEX_VERSION: i32 = 2;

/// The definition of an index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexSpec {
    /// Which fields, and what is kept of each.
    pub key: Document,
    /// Its name, one of a kind within the collection.
    pub name: String,
    /// No two documents may have a key in common.
    pub unique: bool,
    /// No document may come that has a key of another, though there may be such already.
    pub prepare_unique: bool,
    /// Documents that have none of the fields are left out.
    pub sparse: bool,
    /// Kept up to date, but not used by queries.
    pub hidden: bool,
    /// Documents that do not match are left out.
    pub partial_filter: Option<Document>,
    /// How strings compare: the whole normalised document; `None` for the order of their bytes.
    pub collation: Option<Document>,
    /// Documents are removed when the date they are indexed under is this old.
    pub expire_after_seconds: Option<i64>,
    /// For bucket indexes: what the user asked for.
    pub original_spec: Option<Document>,
    /// Further options, as given.
    pub others: Document,
}

impl IndexSpec {
    /// True if a document is refused that would get a key another document has.
    pub fn refuses_duplicates(&self) -> bool {
        self.unique || self.prepare_unique
    }

    /// The definition as `listIndexes` shows it.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("v", INDEX_VERSION);
        out.append("key", self.key.clone());
        out.append("name", self.name.as_str());
        for (name, flag) in [
            ("unique", self.unique),
            ("sparse", self.sparse),
            ("hidden", self.hidden),
            ("prepareUnique", self.prepare_unique),
        ] {
            if flag {
                out.append(name, true);
            }
        }
        if let Some(filter) = &self.partial_filter {
            out.append("partialFilterExpression", filter.clone());
        }
        if let Some(seconds) = self.expire_after_seconds {
            match i32::try_from(seconds) {
                Ok(short) => out.append("expireAfterSeconds", short),
                Err(_) => out.append("expireAfterSeconds", seconds),
            };
        }
        if let Some(collation) = &self.collation {
            out.append("collation", collation.clone());
        }
        for element in self.others.iter() {
            out.append_element(element);
        }
        if let Some(original) = &self.original_spec {
            out.append("originalSpec", original.clone());
        }
        out.finish()
    }

    /// Reads what [`IndexSpec::to_document`] wrote; `None` if that cannot be.
    pub(super) fn from_document(stored: DocRef<'_>) -> Option<Self> {
        let mut spec = Self::default();
        let mut others = DocumentBuilder::new();
        let document = |value: ValueRef<'_>| value.as_document().map(DocRef::to_document);
        for element in stored {
            let value = element.value();
            let flag = matches!(value, ValueRef::Bool(true));
            match element.name() {
                "v" => {}
                "key" => spec.key = document(value)?,
                "name" => spec.name = value.as_str()?.to_owned(),
                "unique" => spec.unique = flag,
                "prepareUnique" => spec.prepare_unique = flag,
                "sparse" => spec.sparse = flag,
                "hidden" => spec.hidden = flag,
                "partialFilterExpression" => spec.partial_filter = Some(document(value)?),
                "expireAfterSeconds" => spec.expire_after_seconds = Some(value.as_exact_i64()?),
                "collation" => spec.collation = Some(document(value)?),
                "originalSpec" => spec.original_spec = Some(document(value)?),
                _ => {
                    others.append_element(element);
                }
            }
        }
        spec.others = others.finish();
        (!spec.name.is_empty()).then_some(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    #[test]
    fn a_definition_is_read_as_it_was_written() {
        let spec = IndexSpec {
            key: doc! { "a": 1, "b": "2d" },
            name: "a_1_b_2d".into(),
            unique: true,
            prepare_unique: true,
            sparse: true,
            hidden: true,
            partial_filter: Some(doc! { "a": doc! { "$gt": 1 } }),
            collation: Some(doc! { "locale": "en" }),
            expire_after_seconds: Some(1 << 40),
            original_spec: Some(doc! { "key": doc! { "x": 1 } }),
            others: doc! { "bits": 20 },
        };
        let stored = spec.to_document();
        assert_eq!(IndexSpec::from_document(stored.as_ref()), Some(spec));
        assert_eq!(IndexSpec::from_document(doc! {}.as_ref()), None);
    }
}
