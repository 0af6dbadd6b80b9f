//! The running operations: shown by `currentOp`, ended by `killOp`.
//!
//! An entry exists from [`Operations::begin`] until its guard is dropped, also if the handler fails.
//! Numbers are sequential and wrap around; two thousand million operations lie between equal numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nilometer_bson::Document;

use crate::error::ErrorCode;
use crate::operation::{Access, KillSwitch, OperationContext, OperationUsage, Progress};
use crate::session::{ClientMetadata, SessionId, UserName};

/// The table is sharded so that commands on many connections do not contend for one lock.
const SHARDS: usize = 16;

/// A running operation.
#[derive(Clone)]
pub struct OperationEntry {
    /// The operation number.
    pub id: i32,
    /// The connection number.
    pub connection_id: i64,
    /// The client.
    pub client: Arc<ClientMetadata>,
    /// The logged-in user.
    pub user: Option<UserName>,
    /// The name of the command.
    pub command_name: &'static str,
    /// The command, without its secrets.
    pub command: Document,
    /// Whether it reads or writes.
    pub access: Access,
    /// True if it may hold many documents.
    pub takes_memory: bool,
    /// Database, or database and collection.
    pub namespace: String,
    /// The logical session.
    pub lsid: Option<SessionId>,
    /// The number of the transaction of which it is a statement.
    pub transaction: Option<i64>,
    /// Its start, in ms since 1970.
    pub started_ms: i64,
    /// Its start, by the monotonic clock.
    pub started: Duration,
    /// The switch that ends it.
    pub kill: KillSwitch,
    /// Its progress.
    pub progress: Progress,
    /// The keys and documents it examined.
    pub usage: OperationUsage,
}

impl OperationEntry {
    /// Makes the entry of internal work that starts now.
    pub fn of(operation: &OperationContext, namespace: String) -> Self {
        Self {
            user: operation.user.clone(),
            id: operation.id,
            connection_id: 0,
            client: operation.client.clone(),
            command_name: "",
            command: Document::new(),
            access: Access::None,
            takes_memory: false,
            namespace,
            lsid: operation.lsid,
            transaction: None,
            started_ms: operation.now_ms,
            started: operation.clock().monotonic(),
            kill: operation.kill.clone(),
            progress: operation.progress.clone(),
            usage: operation.usage.clone(),
        }
    }
}

type Shard = Mutex<HashMap<i32, Arc<OperationEntry>>>;

/// All running operations of a database.
#[derive(Default)]
pub struct Operations {
    last_id: AtomicI32,
    shards: [Shard; SHARDS],
}

impl Operations {
    /// Returns the next operation number.
    pub fn next_id(&self) -> i32 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        (id & i32::MAX).wrapping_add(1) & i32::MAX
    }

    /// Adds an operation until the guard is dropped.
    pub fn begin(&self, entry: OperationEntry) -> OperationGuard<'_> {
        let id = entry.id;
        self.shard(id).insert(id, Arc::new(entry));
        OperationGuard {
            operations: self,
            id,
        }
    }

    /// Returns the running operations by number.
    pub fn list(&self) -> Vec<Arc<OperationEntry>> {
        let mut all: Vec<_> = self
            .shards
            .iter()
            .flat_map(|shard| lock(shard).values().cloned().collect::<Vec<_>>())
            .collect();
        all.sort_by_key(|entry| entry.id);
        all
    }

    /// Ends the operation `id`; false if it is not running.
    pub fn kill(&self, id: i32) -> bool {
        let found = self.shard(id).get(&id).cloned();
        match found {
            Some(entry) => {
                entry.kill.kill(ErrorCode::Interrupted);
                true
            }
            None => false,
        }
    }

    /// Ends all operations that `which` selects, with `reason`.
    pub fn kill_where(&self, reason: ErrorCode, which: impl Fn(&OperationEntry) -> bool) {
        for entry in self.list() {
            if which(&entry) {
                entry.kill.kill(reason);
            }
        }
    }

    fn shard(&self, id: i32) -> MutexGuard<'_, HashMap<i32, Arc<OperationEntry>>> {
        let at = usize::try_from(id).unwrap_or(0) % SHARDS;
        lock(&self.shards[at])
    }
}

fn lock(shard: &Shard) -> MutexGuard<'_, HashMap<i32, Arc<OperationEntry>>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an operation in the table.
pub struct OperationGuard<'a> {
    operations: &'a Operations,
    id: i32,
}

impl Drop for OperationGuard<'_> {
    fn drop(&mut self) {
        self.operations.shard(self.id).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_listed_until_its_guard_is_dropped() {
        let operations = Operations::default();
        let id = operations.next_id();
        let kill = KillSwitch::new();
        let guard = operations.begin(OperationEntry {
            id,
            connection_id: 1,
            client: Arc::default(),
            user: None,
            command_name: "find",
            command: Document::new(),
            access: Access::Read,
            takes_memory: true,
            namespace: "a.b".into(),
            lsid: None,
            transaction: None,
            started_ms: 0,
            started: Duration::ZERO,
            kill: kill.clone(),
            progress: Progress::default(),
            usage: OperationUsage::default(),
        });
        assert_eq!(operations.list().len(), 1);
        assert!(operations.kill(id));
        assert_eq!(kill.reason(), Some(ErrorCode::Interrupted));
        drop(guard);
        assert!(operations.list().is_empty());
        assert!(!operations.kill(id));
        assert!(!operations.kill(-1));
    }
}
