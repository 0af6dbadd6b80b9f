//! What the commands about indexes have in common: how an index is shown, counted and found.

use nilometer_bson::{Document, doc};

use crate::catalog::{Collection, Storage};

/// The index every ordinary collection has.
pub(super) fn id_index() -> Document {
    doc! { "v": 2, "key": doc! { "_id": 1 }, "name": "_id_" }
}

/// How many indexes a collection has. Buckets are clustered by `_id`, which is no index of its own.
pub(super) fn count(collection: &Collection) -> i32 {
    i32::from(matches!(collection.storage, Storage::Records { .. }))
}
