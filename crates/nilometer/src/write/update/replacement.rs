//! Replacement documents: all fields but `_id` change.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::check;
use crate::error::Result;

/// Checks the replacement of an existing document: no top-level name starts with `$`.
pub(super) fn check_names(document: DocRef<'_>) -> Result<()> {
    let mut names = document.iter();
    names.try_for_each(|element| check::top_level_name(element.name()))
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
