//! Versions of the catalog, by which a reader knows that what it has found is still so.

use std::sync::atomic::{AtomicU64, Ordering};

/// The state of a catalog. No two states of any catalogs of the process have the same version: another catalog may take the place of the one
/// that a reader has read ([`crate::Database::successor`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogVersion(u64);

/// The next version.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The version of a catalog now.
#[derive(Debug)]
pub(super) struct VersionCell(AtomicU64);

impl Default for VersionCell {
    fn default() -> Self {
        Self(AtomicU64::new(next()))
    }
}

impl VersionCell {
    pub(super) fn get(&self) -> CatalogVersion {
        CatalogVersion(self.0.load(Ordering::Acquire))
    }

    /// To be called after a change, before its lock is released.
    pub(super) fn renew(&self) {
        self.0.store(next(), Ordering::Release);
    }
}
