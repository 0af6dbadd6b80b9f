//! Transactions: statements of a session that read one snapshot, and whose changes become visible together.
//!
//! ```text
//! startTransaction ─► snapshot ─► OverlayEngine ─► Database of the transaction ◄─ statements of the session
//!                                      │ writes                        │ runs them as any database does
//! commitTransaction ───────────────────┴─► commit: conflicts? ─► one engine batch
//! ```
//!
//! A transaction is a [`Database`] over an engine that has its writes in memory. So every read and write in it is the ordinary
//! code. What it wrote is compared with what is stored now when it commits: the first to commit wins, and the other fails with
//! code 112 and the label by which drivers run it again. A statement that changes a record which another write has changed since
//! the snapshot fails so at once. No statement waits for another transaction. A collection that it creates is in no catalog but
//! its own until it commits.
//!
//! A transaction is aborted by an error of one of its statements, by the end of its session, and after its lifetime.

mod commit;
mod idle;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nilometer_storage::{Engine, OverlayEngine};

use super::{Database, StoredCollections, bucket_limits};
use crate::background::Background;
use crate::catalog::Catalog;
use crate::error::{Error, ErrorCode, Result};
use crate::query::QueryServices;
use crate::query::cursor::{CursorLimits, CursorRegistry};
use crate::session::{SessionId, UserName};
use crate::write::Records;

use super::index_builds::ResumedBuilds;
pub(crate) use commit::CommitContext;
pub(crate) use idle::TransactionStart;
use idle::TransactionTimes;

/// Bytes that a transaction may write, and bytes of the entries of the change log about them.
const BYTES_MAX: u64 = 64 << 20;

/// Transactions that may be open: each has a snapshot.
const OPEN_MAX: usize = 1000;

/// Time after its last statement at which the end of a transaction is forgotten: that of sessions.
const REMEMBERED: Duration = Duration::from_secs(30 * 60);

/// A session, and the user who has it: ids of different users may be equal.
pub(crate) type SessionOwner = (SessionId, Option<UserName>);

/// An open transaction.
pub(crate) struct Transaction {
    overlay: Arc<OverlayEngine>,
    /// What its statements run on.
    pub(crate) database: Database,
    /// Who began it, and how.
    pub(crate) start: TransactionStart,
    times: TransactionTimes,
}

enum TransactionState {
    Open(Arc<Mutex<Option<Transaction>>>),
    Committed,
    Aborted,
}

struct TransactionEntry {
    number: i64,
    state: TransactionState,
    /// When the transaction began, by the monotonic clock.
    started: Duration,
}

impl TransactionEntry {
    fn is_open(&self) -> bool {
        matches!(self.state, TransactionState::Open(_))
    }
}

/// How transactions began and ended.
#[derive(Debug, Default)]
pub(crate) struct TransactionCounts {
    pub(crate) started: AtomicU64,
    pub(crate) committed: AtomicU64,
    pub(crate) aborted: AtomicU64,
}

/// The transactions of a database.
#[derive(Default)]
pub(crate) struct Transactions {
    table: Mutex<HashMap<SessionOwner, TransactionEntry, foldhash::fast::RandomState>>,
    pub(crate) counts: TransactionCounts,
}

fn aborted(number: i64) -> Error {
    Error::new(
        ErrorCode::NoSuchTransaction,
        format!("Transaction with {{ txnNumber: {number} }} has been aborted."),
    )
}

fn unmatched(number: i64) -> Error {
    Error::new(
        ErrorCode::NoSuchTransaction,
        format!(
            "Given transaction number {number} does not match any in-progress transactions. The active transaction number is -1"
        ),
    )
}

impl Transactions {
    fn lock(
        &self,
    ) -> MutexGuard<'_, HashMap<SessionOwner, TransactionEntry, foldhash::fast::RandomState>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many transactions are open.
    pub(crate) fn open(&self) -> usize {
        let table = self.lock();
        table.values().filter(|entry| entry.is_open()).count()
    }

    /// Begins a transaction over what `database` shows now. An older one of the session is aborted.
    pub(crate) fn begin(
        &self,
        database: &Database,
        owner: SessionOwner,
        start: TransactionStart,
    ) -> Result<()> {
        let number = start.number;
        {
            let table = self.lock();
            if let Some(known) = table.get(&owner) {
                check_new(known, number)?;
            }
            if table.values().filter(|entry| entry.is_open()).count() >= OPEN_MAX {
                return Err(Error::new(
                    ErrorCode::TooManyLogicalSessions,
                    format!("at most {OPEN_MAX} transactions may be open"),
                ));
            }
        }
        let transaction = Transaction::begin(database, start)?;
        let started = transaction.times.began;
        let entry = TransactionEntry {
            number,
            state: TransactionState::Open(Arc::new(Mutex::new(Some(transaction)))),
            started,
        };
        self.counts.started.fetch_add(1, Ordering::Relaxed);
        if let Some(before) = self.lock().insert(owner, entry)
            && before.is_open()
        {
            self.counts.aborted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the open transaction of a session with this number.
    pub(crate) fn find(
        &self,
        owner: &SessionOwner,
        number: i64,
    ) -> Result<Arc<Mutex<Option<Transaction>>>> {
        let table = self.lock();
        let Some(known) = table.get(owner) else {
            return Err(unmatched(number));
        };
        if known.number > number {
            return Err(too_old(number, known.number));
        }
        if known.number < number {
            return Err(unmatched(number));
        }
        match &known.state {
            TransactionState::Open(transaction) => Ok(transaction.clone()),
            TransactionState::Aborted => Err(aborted(number)),
            TransactionState::Committed => Err(Error::new(
                ErrorCode::TransactionCommitted,
                format!("Transaction with {{ txnNumber: {number} }} has been committed."),
            )),
        }
    }

    /// Returns why a transaction that was found has ended since.
    pub(crate) fn why_ended(&self, owner: &SessionOwner, number: i64) -> Error {
        // While another command ends it, it is still listed.
        self.find(owner, number)
            .err()
            .unwrap_or_else(|| aborted(number))
    }

    /// True if the transaction of a session with this number was committed.
    pub(crate) fn is_committed(&self, owner: &SessionOwner, number: i64) -> bool {
        let table = self.lock();
        table.get(owner).is_some_and(|known| {
            known.number == number && matches!(known.state, TransactionState::Committed)
        })
    }

    /// Notes the end of a transaction.
    pub(crate) fn end(&self, owner: &SessionOwner, number: i64, is_committed: bool) {
        let mut table = self.lock();
        let known = table.get_mut(owner).filter(|known| known.number == number);
        let Some(known) = known.filter(|known| known.is_open()) else {
            return;
        };
        let (state, count) = match is_committed {
            true => (TransactionState::Committed, &self.counts.committed),
            false => (TransactionState::Aborted, &self.counts.aborted),
        };
        known.state = state;
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Aborts the transaction of a session that ends.
    pub(crate) fn forget(&self, owner: &SessionOwner) {
        if let Some(known) = self.lock().remove(owner)
            && known.is_open()
        {
            self.counts.aborted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Aborts the open transactions of sessions that are killed.
    pub(crate) fn abort_where(&self, concerns: impl Fn(&SessionOwner) -> bool) {
        for (owner, entry) in self.lock().iter_mut() {
            if entry.is_open() && concerns(owner) {
                entry.state = TransactionState::Aborted;
                self.counts.aborted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Aborts transactions that began longer than `lifetime` ago, and forgets the ends of old ones. One that runs a statement is
    /// aborted when that ends. To be called at intervals.
    pub(crate) fn expire(&self, now: Duration, lifetime: Duration) {
        self.lock().retain(|_, entry| {
            let age = now.saturating_sub(entry.started);
            if entry.is_open() && age >= lifetime {
                entry.state = TransactionState::Aborted;
                self.counts.aborted.fetch_add(1, Ordering::Relaxed);
            }
            entry.is_open() || age < REMEMBERED
        });
    }
}

/// Fails if a transaction of this number cannot begin after the last one of its session.
fn check_new(last: &TransactionEntry, number: i64) -> Result<()> {
    if last.number > number {
        return Err(too_old(number, last.number));
    }
    if last.number == number {
        return Err(Error::new(
            ErrorCode::ConflictingOperationInProgress,
            format!(
                "Only servers in a sharded cluster can start a new transaction at the active transaction number {number}"
            ),
        ));
    }
    Ok(())
}

fn too_old(number: i64, last: i64) -> Error {
    Error::new(
        ErrorCode::TransactionTooOld,
        format!(
            "Cannot start transaction {number} because a newer transaction {last} has already started"
        ),
    )
}

impl Transaction {
    fn begin(database: &Database, start: TransactionStart) -> Result<Self> {
        let clock = &database.services.clock;
        let times = TransactionTimes {
            began_ms: clock.now_ms(),
            began: clock.monotonic(),
            read: database.cluster_time().unwrap_or_default(),
            active: Duration::ZERO,
        };
        let removals = database.catalog.removals();
        let overlay = Arc::new(OverlayEngine::over(database.engine.clone(), BYTES_MAX)?);
        Ok(Self {
            database: database.over((overlay.clone(), removals), None),
            overlay,
            start,
            times,
        })
    }

    /// Notes that a statement took `time`.
    pub(crate) fn add_active(&mut self, time: Duration) {
        self.times.active += time;
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Database {
            catalog, records, ..
        } = &self.database;
        for created in catalog.created() {
            records.forget_below(created.uuid);
        }
        catalog.discard_created();
    }
}

impl Database {
    /// Returns a database that shows what `overlay` does, with the services and the catalog of this one. It has no threads. Its
    /// cursors are in `shared_cursors`, or its own. `removals` are those of the catalog before the snapshot of `overlay`.
    pub(super) fn over(
        &self,
        (overlay, removals): (Arc<OverlayEngine>, u64),
        shared_cursors: Option<Arc<CursorRegistry>>,
    ) -> Self {
        let keeps_cursors = shared_cursors.is_some();
        let cursors = shared_cursors
            .unwrap_or_else(|| Arc::new(CursorRegistry::new(CursorLimits::default())));
        let engine: Arc<dyn Engine> = overlay.clone();
        let services = self.services.clone();
        let catalog = Catalog::of_transaction(engine.clone(), &self.catalog, removals);
        let catalog = Arc::new(catalog);
        let (limits, seed) = (bucket_limits(&services), services.ids.random());
        let timeseries = self.timeseries.of_transaction(engine.clone(), limits, seed);
        let timeseries = Arc::new(timeseries);
        let records = Arc::new(Records::of_transaction(
            overlay,
            catalog.clone(),
            &self.records,
        ));
        let collections = Arc::new(StoredCollections {
            engine: engine.clone(),
            catalog: catalog.clone(),
            timeseries: timeseries.clone(),
            records: records.clone(),
            cursors: cursors.clone(),
            transactions: Weak::new(),
            ..StoredCollections::clone(&self.collections)
        });
        let query = QueryServices {
            collections: collections.clone(),
            cursors,
            ..self.query.clone()
        };
        Self {
            services,
            engine,
            catalog,
            timeseries,
            records,
            collections,
            authority: self.authority.clone(),
            retryable_writes: self.retryable_writes.clone(),
            change_log: self.change_log.clone(),
            view_time: self.view_time,
            transactions: Arc::default(),
            snapshots: Arc::default(),
            query,
            router: None,
            rollups: self.rollups.clone(),
            disk: self.disk.clone(),
            has_successor: keeps_cursors.into(),
            newest: Arc::default(),
            _background: Background::none(),
            _resumed_builds: ResumedBuilds::none(),
        }
    }
}
