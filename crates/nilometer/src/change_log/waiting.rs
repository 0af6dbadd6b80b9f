//! Streams that wait for changes: each is woken by those of its scope.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::recent::{ChangedNames, StreamScope};
use crate::write::Arrivals;

/// What wakes the streams of each scope: `db.coll`, `db`, or nothing for all.
#[derive(Default)]
pub(super) struct WaitingStreams(Mutex<WaitingScopes>);

#[derive(Default)]
struct WaitingScopes {
    scopes: HashMap<String, Weak<Arrivals>>,
    /// The number of scopes at which those without streams are removed.
    tidy_at: usize,
}

/// The least number of scopes at which those without streams are removed.
const TIDY_AT_MIN: usize = 64;

impl WaitingStreams {
    fn lock(&self) -> MutexGuard<'_, WaitingScopes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what wakes streams of a scope.
    pub(super) fn of(&self, scope: &StreamScope) -> Arc<Arrivals> {
        let key = match scope {
            StreamScope::Cluster => "",
            StreamScope::Database(name) | StreamScope::Collection(name) => name,
        };
        let mut waiting = self.lock();
        if let Some(known) = waiting.scopes.get(key).and_then(Weak::upgrade) {
            return known;
        }
        if waiting.scopes.len() >= waiting.tidy_at {
            waiting.scopes.retain(|_, known| known.strong_count() > 0);
            waiting.tidy_at = TIDY_AT_MIN.max(2 * waiting.scopes.len());
        }
        let arrivals = Arc::default();
        let weak = Arc::downgrade(&arrivals);
        waiting.scopes.insert(key.to_owned(), weak);
        arrivals
    }

    /// Wakes the streams that changes of these collections concern.
    pub(super) fn wake(&self, changed: &[ChangedNames]) {
        let waiting = self.lock();
        if waiting.scopes.is_empty() {
            return;
        }
        let mut woken: Vec<Arc<Arrivals>> = Vec::new();
        for name in changed.iter().flat_map(|names| names.iter()) {
            let database = name.split('.').next().unwrap_or_default();
            for key in [name, database, ""] {
                let Some(arrivals) = waiting.scopes.get(key).and_then(Weak::upgrade) else {
                    continue;
                };
                if !woken.iter().any(|known| Arc::ptr_eq(known, &arrivals)) {
                    woken.push(arrivals);
                }
            }
        }
        drop(waiting);
        for arrivals in woken {
            arrivals.notify();
        }
    }
}
