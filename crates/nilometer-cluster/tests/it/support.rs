//! Stores and engines for tests.

use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use nilometer_storage::testing::effort;
pub(crate) use nilometer_storage::testing::support::{LongKeys, Scratch, SetAtDrop};

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::Factory;
use nilometer_storage::{Engine, LsmEngine, LsmOptions};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;

/// Makes engines over one store, each slot at a path of its own.
pub(crate) struct Slate {
    store: Arc<dyn ObjectStore>,
    options: SlateOptions,
    directory: Scratch,
}

impl Slate {
    /// Returns a factory of engines in memory.
    pub(crate) fn in_memory(options: SlateOptions) -> Self {
        Self {
            store: Arc::new(InMemory::new()),
            options,
            directory: Scratch::new("slate-memory"),
        }
    }

    /// Returns a factory of engines over `store`.
    pub(crate) fn over(store: Arc<dyn ObjectStore>, options: SlateOptions) -> Self {
        Self {
            store,
            options,
            directory: Scratch::new("slate-store"),
        }
    }

    /// Returns a factory of engines in synced files.
    pub(crate) fn in_files(name: &str, options: SlateOptions) -> Self {
        let directory = Scratch::new(name);
        Self {
            store: files(directory.path().to_path_buf()),
            options: in_files(options),
            directory,
        }
    }
}

/// Returns the store of the synced files below `directory`.
pub(crate) fn files(directory: PathBuf) -> Arc<dyn ObjectStore> {
    let store = LocalFileSystem::new_with_prefix(directory).expect("a directory");
    Arc::new(store.with_fsync(true))
}

/// Returns options for files, which cannot be replaced conditionally.
pub(crate) fn in_files(options: SlateOptions) -> SlateOptions {
    SlateOptions {
        has_conditional_overwrites: false,
        ..options
    }
}

impl Factory for Slate {
    fn create(&self, slot: &str) -> Arc<dyn Engine> {
        let engine = SlateEngine::open(self.store.clone(), slot, &self.options);
        Arc::new(engine.expect("an engine opens"))
    }

    fn reopen(&self, slot: &str, engine: Arc<dyn Engine>) -> Option<Arc<dyn Engine>> {
        engine.close().expect("an engine closes");
        drop(engine);
        Some(self.create(slot))
    }

    fn checkpoint(&self, engine: &dyn Engine, slot: &str) -> Option<Arc<dyn Engine>> {
        let path = self.directory.path().join(slot);
        engine.checkpoint(&path).expect("a checkpoint is taken");
        let copy = LsmEngine::open(&path, LsmOptions::tiny()).expect("the copy opens");
        Some(Arc::new(copy))
    }
}
