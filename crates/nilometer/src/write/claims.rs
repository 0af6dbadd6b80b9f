//! Conflicts of transactions that a statement finds, before the commit looks for them.
//!
//! ```text
//! statement ─► its batch ─► stored now as in the snapshot? ─► claimed by another transaction? ─► overlay
//!                               no: code 112                      yes: code 112
//! ```
//!
//! A transaction claims the records that it changes and the `_id`s that it takes, until it ends. Writes outside of transactions
//! have no claims and do not wait: the transaction fails later. The commit does not depend on claims.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_storage::{KeyspaceId, OverlayEngine, WriteBatch};

use super::records::{Records, keyspaces};
use crate::catalog::Collection;
use crate::error::{Error, Result};

/// A record by its key, or an `_id` by that of the index.
type ClaimedKey = (KeyspaceId, Vec<u8>);

/// What open transactions have changed, and the numbers of these transactions. Each claim is of a write that the transaction has
/// in memory, so the limit of its size holds for its claims, too.
#[derive(Default)]
pub(super) struct RecordClaims {
    held: Mutex<HashMap<ClaimedKey, u64, foldhash::fast::RandomState>>,
    last_number: AtomicU64,
}

impl RecordClaims {
    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimedKey, u64, foldhash::fast::RandomState>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the records of a transaction stand on.
pub(super) struct RecordsBelow {
    records: Arc<Records>,
    overlay: Arc<OverlayEngine>,
    /// The number of the transaction.
    number: u64,
    claimed: Mutex<Vec<ClaimedKey>>,
}

impl RecordsBelow {
    pub(super) fn new(records: Arc<Records>, overlay: Arc<OverlayEngine>) -> Self {
        let number = records.claims.last_number.fetch_add(1, Ordering::Relaxed);
        Self {
            records,
            overlay,
            number,
            claimed: Mutex::default(),
        }
    }

    /// Returns the records that all see.
    pub(super) fn records(&self) -> &Records {
        &self.records
    }

    /// Claims what `batch` changes. Code 112 if it was changed since the transaction began, or another transaction has it.
    fn claim(&self, collection: &Collection, batch: &WriteBatch) -> Result<()> {
        let (records, id_index) = keyspaces(collection)?;
        let (before, now) = (self.overlay.base(), self.records.engine.snapshot()?);
        for (keyspace, key) in batch.keys() {
            if keyspace != records && Some(keyspace) != id_index {
                continue;
            }
            let stored = before.get(keyspace, key)?;
            if stored != now.get(keyspace, key)? {
                return Err(Error::write_conflict());
            }
            // The id of a new record is reserved for this transaction.
            if stored.is_some() || keyspace != records || id_index.is_none() {
                self.claim_key((keyspace, key.to_vec()))?;
            }
        }
        Ok(())
    }

    fn claim_key(&self, key: ClaimedKey) -> Result<()> {
        match self.records.claims.lock().entry(key) {
            Entry::Occupied(held) if *held.get() == self.number => {}
            Entry::Occupied(_) => return Err(Error::write_conflict()),
            Entry::Vacant(free) => {
                let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
                claimed.push(free.key().clone());
                free.insert(self.number);
            }
        }
        Ok(())
    }
}

impl Drop for RecordsBelow {
    fn drop(&mut self) {
        let claimed = self
            .claimed
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if claimed.is_empty() {
            return;
        }
        let mut held = self.records.claims.lock();
        for key in claimed {
            held.remove(key);
        }
    }
}

impl Records {
    /// Claims what `batch`, of a statement, changes if it is one of a transaction.
    pub(super) fn claim(&self, collection: &Collection, batch: &WriteBatch) -> Result<()> {
        match &self.below {
            Some(below) => below.claim(collection, batch),
            None => Ok(()),
        }
    }
}
