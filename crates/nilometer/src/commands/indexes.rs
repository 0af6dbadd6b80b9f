//! What the commands about indexes have in common: how an index is shown, counted and found.

use nilometer_bson::{Document, doc};

use crate::catalog::{Collection, Storage};

/// The index on `_id` every ordinary collection has, with the collection's collation.
pub(super) fn id_index(collection: &Collection) -> Document {
    doc! {
        "v": 2,
        "key": doc! { "_id": 1 },
        "name": "_id_",
        "collation": collection.options.get("collation").to_value(),
    }
}

/// How many indexes a collection has. Buckets are clustered by `_id`, which is no index of its own.
pub(super) fn count(collection: &Collection) -> i32 {
    i32::from(matches!(collection.storage, Storage::Records { .. }))
}
