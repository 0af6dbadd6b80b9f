//! Directories, and engines with long keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::contract::Factory;
use crate::engine::{Engine, LONG_KEY_BYTES_MAX};
use crate::long_keys::LongKeyEngine;

/// A directory that is removed when the value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a new, empty directory.
    pub fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Creates a new, empty directory below `folder`.
    pub fn below(folder: &Path, name: &str) -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let unique = format!("nilometer-{}-{number}-{name}", std::process::id());
        let path = folder.join(unique);
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sets a flag when it is dropped, by a panic too.
///
/// A scope of threads waits for all of them. If some run until a flag is set, a panic before that would never be reported.
pub struct SetAtDrop<'f>(pub &'f AtomicBool);

impl Drop for SetAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Makes engines with long keys over those of another factory.
pub struct LongKeys<F> {
    /// Makes the engines below.
    pub below: F,
    /// The longest key that is stored as it is, and the length of a piece.
    pub lengths: (usize, usize),
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
