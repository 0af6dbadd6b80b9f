//! The keyspaces that hold the buckets of a collection.

use nilometer_storage::KeyspaceId;

use crate::catalog::{Collection, Storage};

/// The keyspaces of a bucket collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketKeyspaces {
    pub(crate) open: KeyspaceId,
    pub(crate) sealed: KeyspaceId,
    pub(crate) tail: KeyspaceId,
    pub(crate) series: KeyspaceId,
}

impl BucketKeyspaces {
    /// The keyspaces of a bucket collection; `None` for an ordinary one.
    pub(crate) fn of(collection: &Collection) -> Option<Self> {
        match collection.storage {
            Storage::Buckets {
                open,
                sealed,
                tail,
                series,
            } => Some(Self {
                open,
                sealed,
                tail,
                series,
            }),
            Storage::Records { .. } => None,
        }
    }
}
