//! The keyspaces whose entries merges must keep; the entries of all others are removed.
//!
//! A keyspace is retained from before its record is written until its drop is durable and no snapshot or scan shows it.
//! Ids that are not yet in use are retained, too: a merge of a writer that was replaced meanwhile would otherwise take
//! the keyspaces of its successor for dropped ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use nilometer_storage::KeyspaceId;
use slatedb::{
    CompactionFilter, CompactionFilterDecision, CompactionFilterError, CompactionFilterSupplier,
    CompactionJobContext, RowEntry,
};

use crate::keyspaces::KnownKeyspace;
use crate::layout;
use crate::lock::lock;

/// The keyspaces that are retained.
#[derive(Default)]
pub(crate) struct Retained {
    ids: Mutex<BTreeMap<KeyspaceId, Retention>>,
    /// The lowest id that was never in use. 0 until the keyspaces are known: then everything is retained.
    next_id: AtomicU64,
}

enum Retention {
    Exists,
    /// Dropped, and shown by the snapshots and scans that hold it.
    Dropped(Weak<KnownKeyspace>),
}

impl Retained {
    /// Sets the keyspaces of a database that was opened.
    pub(crate) fn begin(&self, ids: impl Iterator<Item = KeyspaceId>, next_id: u64) {
        lock(&self.ids).extend(ids.map(|id| (id, Retention::Exists)));
        self.next_id.store(next_id, Ordering::Release);
    }

    /// Retains a keyspace. Called before its record is written.
    pub(crate) fn add(&self, id: KeyspaceId) {
        let mut ids = lock(&self.ids);
        ids.insert(id, Retention::Exists);
        self.next_id.fetch_max(id.0 + 1, Ordering::AcqRel);
    }

    /// Retains a dropped keyspace only as long as readers show it.
    pub(crate) fn drop_later(&self, id: KeyspaceId, readers: Weak<KnownKeyspace>) {
        lock(&self.ids).insert(id, Retention::Dropped(readers));
    }

    fn now(&self) -> RetainedNow {
        let mut ids = lock(&self.ids);
        ids.retain(|_, retention| match retention {
            Retention::Exists => true,
            Retention::Dropped(readers) => readers.strong_count() > 0,
        });
        RetainedNow {
            ids: ids.keys().copied().collect(),
            next_id: self.next_id.load(Ordering::Acquire),
        }
    }
}

/// What is retained at the start of a merge. A keyspace that is not retained then never is again.
pub(crate) struct RetainedNow {
    ids: BTreeSet<KeyspaceId>,
    next_id: u64,
}

impl RetainedNow {
    /// Retains these, and all ids from `next_id` on.
    pub(crate) fn new(ids: BTreeSet<KeyspaceId>, next_id: u64) -> Self {
        Self { ids, next_id }
    }

    fn keeps(&self, stored: &[u8]) -> bool {
        match layout::keyspace_of(stored) {
            Some(KeyspaceId(0)) | None => true,
            Some(id) => id.0 >= self.next_id || self.ids.contains(&id),
        }
    }
}

#[async_trait]
impl CompactionFilter for RetainedNow {
    async fn filter(
        &mut self,
        entry: &RowEntry,
    ) -> Result<CompactionFilterDecision, CompactionFilterError> {
        // An older version that reappears is not visible, either.
        Ok(match self.keeps(&entry.key) {
            true => CompactionFilterDecision::Keep,
            false => CompactionFilterDecision::Drop,
        })
    }

    async fn on_compaction_end(&mut self) -> Result<(), CompactionFilterError> {
        Ok(())
    }
}

/// Gives each merge its filter.
pub(crate) struct RetainedFilter(pub(crate) Arc<Retained>);

#[async_trait]
impl CompactionFilterSupplier for RetainedFilter {
    async fn create_compaction_filter(
        &self,
        _context: &CompactionJobContext,
    ) -> Result<Box<dyn CompactionFilter>, CompactionFilterError> {
        Ok(Box::new(self.0.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(retained: &Retained, id: u64) -> bool {
        let key = layout::entry_key(KeyspaceId(id), b"k");
        retained.now().keeps(&key)
    }

    #[test]
    fn only_keyspaces_that_were_dropped_are_not_retained() {
        let retained = Retained::default();
        assert!(keeps(&retained, 1), "nothing is known yet");
        retained.begin([KeyspaceId(2)].into_iter(), 5);
        assert!(!keeps(&retained, 1), "it was dropped before");
        assert!(keeps(&retained, 2) && keeps(&retained, 0));
        assert!(keeps(&retained, 5), "a later writer may have made it");
        retained.add(KeyspaceId(6));
        assert!(keeps(&retained, 6) && !keeps(&retained, 5) && keeps(&retained, 7));
        retained.drop_later(KeyspaceId(2), Weak::new());
        assert!(!keeps(&retained, 2), "no reader shows it");
    }
}
