//! A slot for the compiled form of a definition, computed once and shared by all users of the definition.
//!
//! The compiled types belong to modules above the catalog, so the slot does not name them.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::error::Result;

/// Caches one compiled value.
#[derive(Default)]
pub(super) struct CompiledSlot(OnceLock<Arc<dyn Any + Send + Sync>>);

impl CompiledSlot {
    /// Returns the cached value; `compile` computes it the first time. All callers of one slot use the same
    /// type.
    pub(super) fn get_or_compile<T: Send + Sync + 'static>(
        &self,
        compile: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let cached = self.0.get().cloned().map(Arc::downcast::<T>);
        if let Some(Ok(compiled)) = cached {
            return Ok(compiled);
        }
        let compiled = Arc::new(compile()?);
        // Two threads may race here; both compute the same value.
        let _ = self.0.set(compiled.clone());
        Ok(compiled)
    }
}

impl std::fmt::Debug for CompiledSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CompiledSlot")
            .field(&self.0.get().is_some())
            .finish()
    }
}
