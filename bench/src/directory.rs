//! Temporary directories of benchmarks.

use std::path::{Path, PathBuf};

/// A directory in that of temporary files, which is removed at the end. A field of it comes behind that of the database in it: the
/// threads of a database write until it is dropped.
pub struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    /// Chooses a directory whose name has `what` and the number of the process. The database that is opened there creates it.
    pub fn new(what: &str) -> Self {
        let folder = format!("nilometer-{what}-{}", std::process::id());
        Self(std::env::temp_dir().join(folder))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
