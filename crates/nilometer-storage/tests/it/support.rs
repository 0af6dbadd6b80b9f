//! Engines for tests.

use std::path::Path;
use std::sync::Arc;

pub(crate) use nilometer_storage::testing::effort;
pub(crate) use nilometer_storage::testing::support::{LongKeys, Scratch, SetAtDrop};

use nilometer_storage::testing::contract::Factory;
use nilometer_storage::{Engine, LsmEngine, LsmOptions, MemoryEngine};

/// Creates a new, empty directory on the disk. Temporary files may be in memory, where a writer does not wait.
pub(crate) fn scratch_on_disk(name: &str) -> Scratch {
    Scratch::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
}

/// Makes memory engines.
pub(crate) struct Memory;

impl Factory for Memory {
    fn create(&self, _slot: &str) -> Arc<dyn Engine> {
        Arc::new(MemoryEngine::new())
    }

    fn reopen(&self, _slot: &str, _engine: Arc<dyn Engine>) -> Option<Arc<dyn Engine>> {
        None
    }

    fn checkpoint(&self, _engine: &dyn Engine, _slot: &str) -> Option<Arc<dyn Engine>> {
        None
    }
}

/// Makes embedded engines in a scratch directory.
pub(crate) struct Lsm {
    directory: Scratch,
    options: LsmOptions,
}

impl Lsm {
    /// Returns a factory of engines with these options.
    pub(crate) fn new(name: &str, options: LsmOptions) -> Self {
        Self {
            directory: Scratch::new(name),
            options,
        }
    }
}

impl Factory for Lsm {
    fn create(&self, slot: &str) -> Arc<dyn Engine> {
        let path = self.directory.path().join(slot);
        Arc::new(LsmEngine::open(path, self.options.clone()).expect("an engine opens"))
    }

    fn reopen(&self, slot: &str, engine: Arc<dyn Engine>) -> Option<Arc<dyn Engine>> {
        engine.close().expect("an engine closes");
        drop(engine);
        Some(self.create(slot))
    }

    fn checkpoint(&self, engine: &dyn Engine, slot: &str) -> Option<Arc<dyn Engine>> {
        let path = self.directory.path().join(slot);
        engine.checkpoint(&path).expect("a checkpoint is taken");
        Some(self.create(slot))
    }
}
