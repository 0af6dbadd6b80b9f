//! Documents without the fields that no later stage reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder};

/// Returns a document with these fields of `document`, in its order.
pub(super) fn narrowed(document: DocRef<'_>, fields: &BTreeSet<Arc<str>>) -> Document {
    let mut out = DocumentBuilder::new();
    if !fields.is_empty() {
        for element in document {
            if fields.contains(element.name()) {
                out.append_element(element);
            }
        }
    }
    out.finish()
}
