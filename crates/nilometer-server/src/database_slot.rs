//! The database that a server serves, which another may replace: a secondary reads newer contents, and becomes primary.

use std::sync::{Arc, PoisonError, RwLock};

use nilometer::Database;
use nilometer::services::Services;

/// The place of the database. Clones share it.
#[derive(Clone)]
pub struct DatabaseSlot {
    current: Arc<RwLock<Arc<Database>>>,
    /// Those of all databases that are ever in the place.
    services: Arc<Services>,
}

impl From<Arc<Database>> for DatabaseSlot {
    fn from(database: Arc<Database>) -> Self {
        Self {
            services: Arc::clone(database.services()),
            current: Arc::new(RwLock::new(database)),
        }
    }
}

impl DatabaseSlot {
    /// Returns the database. A command runs to its end on the one with which it began.
    pub fn current(&self) -> Arc<Database> {
        let current = self.current.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the services.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Replaces the database by a successor of it.
    pub fn replace(&self, successor: Arc<Database>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, successor);
        drop(current);
        // Its end takes a moment, which no command waits for.
        drop(before);
    }
}
