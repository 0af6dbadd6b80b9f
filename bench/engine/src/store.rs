//! A small trait for both engines.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use nilometer_storage::{
    Durability, Engine, KeyspaceId, KeyspaceOptions, LsmEngine, LsmOptions, WriteBatch,
};

/// Ordinary keyspaces of a store.
pub(crate) const KEYSPACES: usize = 4;

/// A put: keyspace ([`KEYSPACES`] is the index of the one with separated values), key, value.
pub(crate) type Put = (usize, Vec<u8>, Vec<u8>);

/// An engine under test.
pub(crate) trait Store: Sync {
    /// Commits a batch durably.
    fn commit(&self, puts: Vec<Put>);
    /// Flushes and merges everything.
    fn settle(&self);
}

/// The engine of Nilometer.
pub(crate) struct NilometerStore {
    engine: LsmEngine,
    ids: Vec<KeyspaceId>,
}

impl NilometerStore {
    pub(crate) fn open(directory: &Path) -> Self {
        Self::with(directory, LsmOptions::default())
    }

    pub(crate) fn with(directory: &Path, options: LsmOptions) -> Self {
        let engine = LsmEngine::open(directory, options).expect("open");
        let ids = (0..=KEYSPACES).map(|number| {
            let options = KeyspaceOptions {
                separate_values: number == KEYSPACES,
                ..KeyspaceOptions::default()
            };
            let name = format!("k{number}");
            engine.create_keyspace(&name, options).expect("create")
        });
        let ids = ids.collect();
        Self { engine, ids }
    }

    pub(crate) fn engine(&self) -> &LsmEngine {
        &self.engine
    }
}

impl Store for NilometerStore {
    fn commit(&self, puts: Vec<Put>) {
        let mut batch = WriteBatch::new();
        for (keyspace, key, value) in puts {
            batch.put(self.ids[keyspace], key, value);
        }
        self.engine.commit(batch, Durability::Sync).expect("commit");
    }

    fn settle(&self) {
        self.engine.settle().expect("settle");
    }
}

/// The engine it is compared with.
pub(crate) struct FjallStore {
    database: Database,
    keyspaces: Vec<Keyspace>,
}

impl FjallStore {
    pub(crate) fn open(directory: &Path) -> Self {
        let database = Database::builder(directory)
            .cache_size(256 << 20)
            .max_journaling_size(512 << 20)
            .worker_threads(2)
            .open()
            .expect("open");
        let keyspaces = (0..=KEYSPACES).map(|number| {
            let separation = (number == KEYSPACES)
                .then(|| KvSeparationOptions::default().compression(fjall::CompressionType::None));
            let options = || KeyspaceCreateOptions::default().with_kv_separation(separation);
            database
                .keyspace(&format!("k{number}"), options)
                .expect("create")
        });
        let keyspaces = keyspaces.collect();
        Self {
            database,
            keyspaces,
        }
    }
}

impl Store for FjallStore {
    fn commit(&self, puts: Vec<Put>) {
        let mut batch = self.database.batch();
        batch = batch.durability(Some(PersistMode::SyncData));
        for (keyspace, key, value) in puts {
            batch.insert(&self.keyspaces[keyspace], key, value);
        }
        batch.commit().expect("commit");
    }

    fn settle(&self) {
        for keyspace in &self.keyspaces {
            keyspace.rotate_memtable_and_wait().expect("rotate");
            keyspace.major_compact().expect("merge");
        }
    }
}
