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
    /// `None` for a collection made before there were summaries, until it is opened for writing.
    pub(crate) summaries: Option<KeyspaceId>,
    /// `None` for a collection made before there was a registry, until it is opened for writing.
    pub(crate) registry: Option<KeyspaceId>,
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
                summaries,
                registry,
            } => Some(Self {
                open,
                sealed,
                tail,
                series,
                summaries,
                registry,
            }),
            Storage::Records { .. } => None,
        }
    }
}
