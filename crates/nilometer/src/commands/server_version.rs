//! What the server says of its version: clients choose features by it.

pub(crate) use crate::parameters::MONGODB_VERSION;

/// The same as numbers; the last is 0 for a release.
pub(crate) const MONGODB_VERSION_ARRAY: [i32; 4] = [8, 0, 12, 0];

/// The name of the storage engine.
pub(crate) const STORAGE_ENGINE: &str = "nilometer";
