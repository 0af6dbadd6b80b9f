//! Replacement documents: all fields but `_id` change.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use crate::error::{Error, ErrorCode, Result};

/// Checks a replacement: no top-level name starts with `$`.
pub(super) fn parse(document: DocRef<'_>) -> Result<Document> {
    let dollar = document.iter().find(|element| {
        let name = element.name();
        name.starts_with('$') && !matches!(name, "$ref" | "$id" | "$db")
    });
    match dollar {
        None => Ok(document.to_document()),
        Some(element) => Err(Error::new(
            ErrorCode::DollarPrefixedFieldName,
            format!(
                "The dollar ($) prefixed field '{0}' in '{0}' is not allowed in the context of an \
                 update's replacement document. Consider using an aggregation pipeline with \
                 $replaceWith.",
                element.name()
            ),
        )),
    }
}

/// Returns `new` with its own `_id` first, or that of `old` if it has none.
pub(super) fn with_id_of(new: DocRef<'_>, old: DocRef<'_>) -> Document {
    let id = match new.get("_id") {
        ValueRef::Missing => old.get("_id"),
        own => own,
    };
    let mut out = DocumentBuilder::with_capacity(new.as_bytes().len() + 32);
    out.append_ref("_id", id);
    for element in new.iter().filter(|element| element.name() != "_id") {
        out.append_element(element);
    }
    out.finish()
}
