//! Checks of a document before it is stored, after every update.

use nilometer_bson::validate::{SIZE_MAX, STORED_DEPTH_MAX};
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, order};

use super::Update;
use crate::error::{Error, ErrorCode, Result, location};

/// Checks the size, the depth and the type of `_id`.
pub fn storable(document: &Document) -> Result<()> {
    let size = document.as_bytes().len();
    if size > SIZE_MAX {
        return Err(Error::location(
            location::UPDATED_DOCUMENT_TOO_LARGE,
            format!("Resulting document after update is larger than {SIZE_MAX}"),
        ));
    }
    if !depth_is_within(document.as_ref(), STORED_DEPTH_MAX) {
        return Err(Error::new(
            ErrorCode::Overflow,
            format!("Document exceeds maximum nesting depth of {STORED_DEPTH_MAX}"),
        ));
    }
    id(document.get("_id"))
}

/// Checks the name of a field that an update writes at the top of an existing document. An upsert may insert any
/// name.
pub fn top_level_name(name: &str) -> Result<()> {
    if !name.starts_with('$') {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::DollarPrefixedFieldName,
        format!(
            "The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an update's \
             replacement document. Consider using an aggregation pipeline with $replaceWith."
        ),
    ))
}

/// Checks a value for `_id`.
pub fn id(id: ValueRef<'_>) -> Result<()> {
    match id {
        ValueRef::Array(_) | ValueRef::Regex { .. } | ValueRef::Undefined => Err(Error::new(
            ErrorCode::InvalidIdField,
            format!("The '_id' value cannot be of type {}", id.type_name()),
        )),
        ValueRef::Document(document) => match document.iter().find(|e| e.name().starts_with('$')) {
            Some(element) => Err(Error::new(
                ErrorCode::DollarPrefixedFieldName,
                format!(
                    "_id fields may not contain '$'-prefixed fields: {} is not valid for storage.",
                    element.name()
                ),
            )),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Fails if an update changed `_id`, which is immutable in an ordinary collection.
pub fn id_unchanged(update: &Update, before: DocRef<'_>, after: &Document) -> Result<()> {
    let (old, new) = (before.get("_id"), after.get("_id"));
    if old.is_missing() || (!new.is_missing() && order::equal(old, new)) {
        return Ok(());
    }
    let text = if update.is_replacement() || update.is_pipeline() {
        format!(
            "After applying the update, the (immutable) field '_id' was found to have been altered to \
             _id: {}",
            nilometer_bson::extjson::value_to_relaxed(new)
        )
    } else {
        "Performing an update on the path '_id' would modify the immutable field '_id'".to_owned()
    };
    Err(Error::new(ErrorCode::ImmutableField, text))
}

/// Returns the document with its `_id`, if any, first.
pub fn with_id_first(document: Document) -> Document {
    let first_is_id = document.iter().next().is_none_or(|e| e.name() == "_id");
    if first_is_id || document.get("_id").is_missing() {
        return document;
    }
    let mut out = DocumentBuilder::with_capacity(document.as_bytes().len());
    out.append_ref("_id", document.get("_id"));
    for element in document.iter().filter(|e| e.name() != "_id") {
        out.append_element(element);
    }
    out.finish()
}

/// True if objects and arrays are nested at most `left` deep, including the document itself.
fn depth_is_within(document: DocRef<'_>, left: usize) -> bool {
    left > 0
        && document.iter().all(|element| match element.value() {
            ValueRef::Document(inner) => depth_is_within(inner, left - 1),
            ValueRef::Array(inner) => depth_is_within(inner.as_document(), left - 1),
            _ => true,
        })
}
