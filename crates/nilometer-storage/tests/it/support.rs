//! Directories and engines for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_storage::engine::LONG_KEY_BYTES_MAX;
use nilometer_storage::testing::contract::Factory;
use nilometer_storage::{Engine, LongKeyEngine, LsmEngine, LsmOptions, MemoryEngine};

/// A directory that is removed when the value is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a new, empty directory.
    pub(crate) fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Creates a new, empty directory on the disk. Temporary files may be in memory, where a writer does not wait.
    pub(crate) fn on_disk(name: &str) -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    fn below(folder: &Path, name: &str) -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let unique = format!("nilometer-{}-{number}-{name}", std::process::id());
        let path = folder.join(unique);
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The size of a repeated test: `fast`, or `long` with NILOMETER_LONG (`cargo xtask histories`), or `soak` with
/// NILOMETER_SOAK.
pub(crate) fn effort(fast: u64, long: u64, soak: u64) -> u64 {
    if std::env::var_os("NILOMETER_SOAK").is_some() {
        soak
    } else if std::env::var_os("NILOMETER_LONG").is_some() {
        long
    } else {
        fast
    }
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

/// Makes engines with long keys over those of another factory.
pub(crate) struct LongKeys<F> {
    /// Makes the engines below.
    pub(crate) below: F,
    /// The longest key that is stored as it is, and the length of a piece.
    pub(crate) lengths: (usize, usize),
}

impl<F> LongKeys<F> {
    fn over(&self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let (plain_max, piece) = self.lengths;
        let engine = LongKeyEngine::with_lengths(engine, plain_max, piece);
        Arc::new(engine.expect("the companions are known"))
    }
}

impl<F: Factory> Factory for LongKeys<F> {
    fn create(&self, slot: &str) -> Arc<dyn Engine> {
        self.over(self.below.create(slot))
    }

    fn reopen(&self, slot: &str, engine: Arc<dyn Engine>) -> Option<Arc<dyn Engine>> {
        let reopened = self.below.reopen(slot, engine)?;
        Some(self.over(reopened))
    }

    fn key_bytes_max(&self) -> usize {
        LONG_KEY_BYTES_MAX
    }

    fn checkpoint(&self, engine: &dyn Engine, slot: &str) -> Option<Arc<dyn Engine>> {
        let copy = self.below.checkpoint(engine, slot)?;
        Some(self.over(copy))
    }
}
