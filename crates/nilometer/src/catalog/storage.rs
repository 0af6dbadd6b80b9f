//! Creating the keyspaces of collections.
//!
//! Those of one collection, its first indexes included, are created together: the engine waits for the disk once. Until an
//! entry of the catalog names them, a crash leaves keyspaces that the next opening drops.

use nilometer_bson::Document;
use nilometer_storage::{KeyspaceId, KeyspaceOptions};

use super::{Catalog, Storage, TimeseriesOptions};
use crate::error::Result;

/// The storage layout of a new collection.
#[derive(Clone, Copy)]
pub(super) enum StorageKind {
    Buckets,
    Records,
    Clustered,
}

const PLAIN: KeyspaceOptions = KeyspaceOptions {
    separate_values: false,
    short_lived: false,
    large_blocks: false,
    long_keys_of: None,
};

const LARGE_BLOCKS: KeyspaceOptions = KeyspaceOptions {
    large_blocks: true,
    ..PLAIN
};

const SEPARATED: KeyspaceOptions = KeyspaceOptions {
    separate_values: true,
    ..PLAIN
};

const SHORT_LIVED: KeyspaceOptions = KeyspaceOptions {
    short_lived: true,
    ..PLAIN
};

impl StorageKind {
    /// Returns the layout `create` chooses for these options.
    pub(super) fn of(timeseries: Option<&TimeseriesOptions>, options: &Document) -> Self {
        match timeseries {
            Some(_) => Self::Buckets,
            None if options.as_ref().contains("clusteredIndex") => Self::Clustered,
            None => Self::Records,
        }
    }

    /// Returns the kinds and options of the keyspaces.
    fn keyspaces(self) -> &'static [(&'static str, KeyspaceOptions)] {
        match self {
            Self::Buckets => &[
                ("open", PLAIN),
                ("sealed", SEPARATED),
                ("tail", SHORT_LIVED),
                ("series", PLAIN),
                ("summaries", PLAIN),
                ("registry", PLAIN),
            ],
            Self::Records => &[("records", LARGE_BLOCKS), ("idIndex", PLAIN)],
            Self::Clustered => &[("records", LARGE_BLOCKS)],
        }
    }

    /// Returns the storage in keyspaces of these kinds, and the others.
    fn storage(self, ids: Vec<KeyspaceId>) -> (Storage, Vec<KeyspaceId>) {
        let mut ids = ids.into_iter();
        let mut next = || ids.next().expect("an id for each keyspace");
        let storage = match self {
            Self::Buckets => Storage::Buckets {
                open: next(),
                sealed: next(),
                tail: next(),
                series: next(),
                summaries: Some(next()),
                registry: Some(next()),
            },
            Self::Records => Storage::Records {
                records: next(),
                id_index: Some(next()),
            },
            Self::Clustered => Storage::Records {
                records: next(),
                id_index: None,
            },
        };
        (storage, ids.collect())
    }
}

impl Catalog {
    /// Creates the keyspaces of a collection, and of `indexes` of its indexes.
    pub(super) fn create_storage(
        &self,
        uuid: [u8; 16],
        kind: StorageKind,
        indexes: usize,
    ) -> Result<(Storage, Vec<KeyspaceId>)> {
        if matches!(kind, StorageKind::Buckets) {
            self.begin_measurement_count(uuid)?;
        }
        let uuid = text(uuid);
        let named = kind.keyspaces().iter();
        let mut new: Vec<_> = named
            .map(|(kind, options)| (format!("{kind}/{uuid}"), *options))
            .collect();
        new.extend(self.index_keyspaces(&uuid, indexes));
        Ok(kind.storage(self.create_keyspaces(&new)?))
    }

    /// Creates the keyspaces of further indexes of the collection or rollup with this UUID.
    pub(super) fn create_index_keyspaces(
        &self,
        uuid: [u8; 16],
        count: usize,
    ) -> Result<Vec<KeyspaceId>> {
        self.create_keyspaces(&self.index_keyspaces(&text(uuid), count))
    }

    /// Returns free names for keyspaces of indexes.
    fn index_keyspaces(&self, uuid: &str, count: usize) -> Vec<(String, KeyspaceOptions)> {
        if count == 0 {
            return Vec::new();
        }
        let prefix = format!("index/{uuid}/");
        let mut taken = self.keyspace_engine().keyspaces();
        taken.retain(|keyspace| keyspace.name.starts_with(&prefix));
        let names = (0u64..).map(|number| format!("{prefix}{number}"));
        let free = names.filter(|name| !taken.iter().any(|keyspace| keyspace.name == *name));
        free.take(count).map(|name| (name, PLAIN)).collect()
    }

    fn create_keyspaces(&self, new: &[(String, KeyspaceOptions)]) -> Result<Vec<KeyspaceId>> {
        let new: Vec<_> = new
            .iter()
            .map(|(name, options)| (name.as_str(), *options))
            .collect();
        Ok(self.keyspace_engine().create_keyspaces(&new)?)
    }
}

fn text(uuid: [u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
