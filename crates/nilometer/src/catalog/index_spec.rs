//! The definition of an index, as it is stored and listed.
//!
//! ```text
//! { v: 2, key, name, unique?, sparse?, hidden?, prepareUnique?, partialFilterExpression?, collation?,
//!   expireAfterSeconds?, originalSpec?, … }
//! ```
//!
//! The index of a bucket collection is stored in bucket form (`control.min.x`, `meta.a`); the definition
//! that users of the time-series collection see is derived from it. Options of particular index types
//! (`bits`, `wildcardProjection`, …) are stored as the user wrote them.
//!
//! Nothing is validated here: commands validate before they store.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

/// The version of all indexes.
const INDEX_VERSION: i32 = 2;

/// The definition of an index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexSpec {
    /// The key pattern: fields and how each is indexed.
    pub key: Document,
    /// The name, unique within the collection.
    pub name: String,
    /// True if no two documents may share a key.
    pub unique: bool,
    /// True if an insert or update that shares a key with another document is refused; existing duplicates
    /// stay.
    pub prepare_unique: bool,
    /// True if documents with none of the fields are left out.
    pub sparse: bool,
    /// True if queries do not use the index. It is still maintained.
    pub hidden: bool,
    /// Documents that do not match are left out.
    pub partial_filter: Option<Document>,
    /// The complete normalised collation; `None` compares strings by their bytes.
    pub collation: Option<Document>,
    /// Documents expire when the indexed date is this old.
    pub expire_after_seconds: Option<i64>,
    /// For bucket indexes: the definition the user wrote.
    pub original_spec: Option<Document>,
    /// Further options, as the user wrote them.
    pub others: Document,
}

impl IndexSpec {
    /// True if a document that shares a key with another is refused.
    pub fn refuses_duplicates(&self) -> bool {
        self.unique || self.prepare_unique
    }

    /// Returns the definition as `listIndexes` shows it.
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

    /// Reads the result of [`IndexSpec::to_document`]; `None` if it is damaged.
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
    fn a_definition_round_trips() {
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
