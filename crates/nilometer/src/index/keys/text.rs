//! Keys of text indexes: one for each term of a document, with its score.
//!
//! ```text
//! {a: 1, t: "cats and dogs", z: 5}      {a: 1, t: "text", z: 1}
//! (1, "cat", 0.75, 5) (1, "dog", 0.75, 5)
//! ```
//!
//! The values before and behind the term are single values: an array there is error 16675. A document without terms has no
//! key.

use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::plain_value;
use nilometer_bson::{DocRef, ValueRef};

use super::{KeyCollector, or_null};
use crate::error::{Error, Result, location};
use crate::index::{Index, IndexPartKind};
use crate::text::{TextSpec, index_term};

/// Adds the keys of `document`, unsorted and possibly repeated.
pub(super) fn keys(
    index: &Index,
    spec: &TextSpec,
    document: DocRef<'_>,
    out: &mut KeyCollector,
) -> Result<()> {
    let parts = index.parts().iter();
    let at = parts
        .take_while(|part| part.kind != IndexPartKind::Text)
        .count();
    let plain = |path: &FieldPath| {
        plain_value(path, document).map(or_null).ok_or_else(|| {
            Error::location(
                location::TEXT_PREFIX_ARRAY,
                "cannot have a multi-key as a prefix to a text index",
            )
        })
    };
    let values: Vec<ValueRef<'_>> = index.paths().iter().map(plain).collect::<Result<_>>()?;
    let (before, behind) = values.split_at(at.min(values.len()));
    let terms = spec.term_scores(document)?;
    out.multikey |= u32::from(terms.len() > 1) << at;
    for (term, score) in terms {
        let term = index_term(&term);
        let own = [ValueRef::String(&term), ValueRef::Double(score)];
        let values = before.iter().chain(&own).chain(behind);
        out.add(index, index.encode(values.copied())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::key_string::decode;
    use nilometer_bson::{Document, Value, doc};

    use super::*;
    use crate::catalog::{IndexSpec, StoredIndex};

    fn index(key: Document) -> Arc<Index> {
        let spec = IndexSpec {
            key,
            others: doc! {
                "weights": doc! { "t": 1 }, "default_language": "english",
                "language_override": "language", "textIndexVersion": 3,
            },
            ..IndexSpec::default()
        };
        Index::of(&Arc::new(StoredIndex::detached(spec))).unwrap()
    }

    fn keys(index: &Index, document: &Document) -> Result<Vec<Vec<Value>>> {
        let found = index.keys(document.as_ref())?.keys;
        let decoded = found.iter().map(|key| {
            let read = decode(&key.key, index.order(), index.components(), &key.type_bits);
            read.unwrap().0
        });
        Ok(decoded.collect())
    }

    #[test]
    fn terms_have_keys_between_the_other_fields() {
        let index = index(doc! { "a": -1, "_fts": "text", "_ftsx": 1, "z.y": 1 });
        assert_eq!((index.parts().len(), index.components()), (3, 4));
        let document = doc! { "a": 7, "t": "cats and dogs", "z": doc! { "y": "x" } };
        let row =
            |term: &str| -> Vec<Value> { vec![7.into(), term.into(), 0.75.into(), "x".into()] };
        let found = keys(&index, &document).unwrap();
        assert_eq!(
            format!("{found:?}"),
            format!("{:?}", [row("cat"), row("dog")])
        );
        assert_eq!(index.keys(document.as_ref()).unwrap().multikey, 2);
        assert!(
            keys(&index, &doc! { "a": 1, "t": "the" })
                .unwrap()
                .is_empty()
        );
        let of = |document: Document| keys(&index, &document).unwrap_err().code.0;
        let array = Value::from(vec![Value::from(1)]);
        assert_eq!(of(doc! { "a": array.clone(), "t": "x" }), 16_675);
        assert_eq!(of(doc! { "z": doc! { "y": array }, "t": "x" }), 16_675);
    }

    #[test]
    fn a_text_index_needs_its_options() {
        let check = |key: Document| {
            let spec = IndexSpec {
                key,
                ..IndexSpec::default()
            };
            Index::check(&spec).unwrap_err().code.0
        };
        assert_eq!(check(doc! { "_fts": "text", "_ftsx": 1 }), 67);
        assert_eq!(check(doc! { "a": "text" }), 67);
    }
}
