//! Retryable writes: what the last numbered command of each session did, so that a repetition is answered and not run.
//!
//! ```text
//! insert {lsid, txnNumber: 7} ─► begin ─► statement by statement: known? ─► its stored result
//!                                  │                               └─ no ─► runs; its engine batch has the result, too
//!                                  └─ one command of a session at a time
//! ```
//!
//! A result is stored in the same engine batch as the change, so both survive a crash or neither does. A statement that
//! changes nothing stores nothing: repeated, it runs again. A session has the results of its last number alone; lower
//! numbers are refused. Results expire with their session, [`TIMEOUT_MS`] after its last write.
//!
//! What was read of the stored results is kept in memory up to [`MEMORY_BYTES_MAX`]. The stored form is in [`stored`].
//!
//! Does not know commands: they say which statements they have, and form replies from results.

mod stored;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nilometer_bson::{Document, Value, doc};
use nilometer_storage::{Direction, Engine, KeyspaceId, KeyspaceOptions, WriteBatch};

use crate::catalog::RETRYABLE_WRITES_KEYSPACE;
use crate::change_entry::note_transaction;
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::BatchRecord;
use crate::operation::{OperationContext, RoutedRequest};
use crate::session::{SessionId, UserName};

/// Time after the last write of a session at which its results expire, in ms: that of sessions.
const TIMEOUT_MS: i64 = 30 * 60_000;

/// Interval between two searches for expired results, in ms.
const EXPIRY_INTERVAL_MS: i64 = 60_000;

/// Bytes of results in memory at which those of sessions without a command are forgotten. They are stored.
const MEMORY_BYTES_MAX: usize = 16 << 20;

/// Time between two checks for an interrupt, while another command of the session runs.
const WAIT_INTERVAL: Duration = Duration::from_millis(20);

/// What a statement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementKind {
    /// Inserted a document.
    Insert,
    /// Changed or upserted a document.
    Update,
    /// Removed a document.
    Delete,
    /// `findAndModify` with `remove`.
    FindAndRemove,
    /// `findAndModify` that returns the document before its change.
    FindAndUpdate,
    /// `findAndModify` that returns the document after its change.
    FindAndUpdateNew,
    /// Committed a transaction.
    Commit,
}

/// The result of a statement that changed a document.
#[derive(Clone, Debug)]
pub(crate) struct StatementResult {
    pub(crate) kind: StatementKind,
    /// The `_id` of the document that an upsert inserted.
    pub(crate) upserted: Option<Value>,
    /// The document that `findAndModify` returns.
    pub(crate) image: Option<Document>,
    /// The array element that its filter matched.
    pub(crate) position: Option<usize>,
}

impl StatementResult {
    fn bytes(&self) -> usize {
        /// Bytes of a result without its document, about.
        const RESULT_BYTES: usize = 128;
        RESULT_BYTES
            + self
                .image
                .as_ref()
                .map_or(0, |image| image.as_bytes().len())
    }
}

/// Positions in ranges, in order, without those that touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Positions(Vec<(u32, u32)>);

impl Positions {
    fn contains(&self, position: u32) -> bool {
        let at = self.0.partition_point(|(_, end)| *end <= position);
        self.0.get(at).is_some_and(|(start, _)| *start <= position)
    }

    fn insert(&mut self, position: u32) {
        let at = self.0.partition_point(|(_, end)| *end < position);
        match self.0.get_mut(at) {
            Some((_, end)) if *end == position => {
                *end += 1;
                self.join(at);
            }
            Some((start, _)) if *start <= position => {}
            Some((start, _)) if *start == position + 1 => *start = position,
            _ => self.0.insert(at, (position, position + 1)),
        }
    }

    /// Joins the range at `at` and the one after it, if they touch.
    fn join(&mut self, at: usize) {
        let (here, after) = (self.0.get(at).copied(), self.0.get(at + 1).copied());
        if let (Some((start, end)), Some((next, last))) = (here, after)
            && end == next
        {
            self.0.remove(at + 1);
            if let Some(joined) = self.0.get_mut(at) {
                *joined = (start, last);
            }
        }
    }
}

/// The results of one number of a session.
#[derive(Clone, Debug, Default)]
struct SessionWrites {
    /// The number; `None` if the session has written nothing.
    number: Option<i64>,
    /// The last write, in ms since 1970.
    last_ms: i64,
    inserted: Positions,
    results: BTreeMap<u32, StatementResult>,
}

impl SessionWrites {
    fn bytes(&self) -> usize {
        let results = self.results.values().map(StatementResult::bytes);
        self.inserted.0.len() * size_of::<(u32, u32)>() + results.sum::<usize>()
    }
}

/// A session in memory.
#[derive(Default)]
struct SessionEntry {
    /// True while a command runs.
    is_busy: bool,
    /// What is stored; `None` if it was not read.
    writes: Option<SessionWrites>,
    /// The last write, in ms since 1970.
    last_ms: i64,
}

#[derive(Default)]
struct SessionTable {
    keyspace: Option<KeyspaceId>,
    /// True if the stored sessions are in the table.
    is_loaded: bool,
    sessions: HashMap<Vec<u8>, SessionEntry, foldhash::fast::RandomState>,
    /// Bytes of the results in memory.
    bytes: usize,
    expired_ms: i64,
    retried_commands: u64,
    retried_statements: u64,
}

/// How often writes were repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetryCounts {
    /// Commands with a repeated statement.
    pub(crate) commands: u64,
    /// Repeated statements.
    pub(crate) statements: u64,
}

/// The results of retryable writes of a database.
pub(crate) struct RetryableWrites {
    engine: Arc<dyn Engine>,
    table: Mutex<SessionTable>,
    /// A command of a session has ended.
    ended: Condvar,
}

impl RetryableWrites {
    /// Returns the results that `engine` stores. Reads nothing yet.
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine,
            table: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how often writes were repeated.
    pub(crate) fn counts(&self) -> RetryCounts {
        let table = self.lock();
        RetryCounts {
            commands: table.retried_commands,
            statements: table.retried_statements,
        }
    }

    /// Begins a command with the session and number of `operation`; `None` if it has no number. Waits while another command
    /// of the session runs. At most `sessions_max` sessions may have results (code 261).
    pub(crate) fn begin<'w>(
        &'w self,
        operation: &OperationContext,
        sessions_max: usize,
    ) -> Result<Option<RetryableCommand<'w>>> {
        let (Some(id), Some(number)) = (operation.lsid, operation.txn_number) else {
            return Ok(None);
        };
        let session = session_key(id, operation.user.as_ref());
        let (keyspace, known) = self.check_out(&session, operation, sessions_max)?;
        let mut command = RetryableCommand {
            writes: self,
            id,
            user: operation.user.clone(),
            session,
            keyspace,
            number,
            now_ms: operation.now_ms,
            routed: operation.routed.clone(),
            state: RefCell::default(),
            is_known: Cell::new(false),
            repeated: Cell::new(0),
        };
        let stored = match known {
            Some(known) => known,
            None => stored::read(&*self.engine, keyspace, &command.session)?,
        };
        command.is_known.set(true);
        let before = stored.number;
        command.state = match before {
            Some(last) if last == number => stored.into(),
            Some(last) if last > number => {
                command.state = stored.into();
                return Err(too_old(id, number, last));
            }
            _ => SessionWrites {
                number: Some(number),
                last_ms: stored.last_ms,
                ..SessionWrites::default()
            }
            .into(),
        };
        Ok(Some(command))
    }

    /// Makes the session busy. Returns what is known of it; `None` if it must be read.
    fn check_out(
        &self,
        session: &[u8],
        operation: &OperationContext,
        sessions_max: usize,
    ) -> Result<(KeyspaceId, Option<SessionWrites>)> {
        let mut table = self.lock();
        let keyspace = self.load(&mut table)?;
        while table
            .sessions
            .get(session)
            .is_some_and(|known| known.is_busy)
        {
            operation.check_interrupt()?;
            let waited = self.ended.wait_timeout(table, WAIT_INTERVAL);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(known) = table.sessions.get_mut(session) {
            known.is_busy = true;
            let writes = known.writes.take();
            let bytes = writes.as_ref().map_or(0, SessionWrites::bytes);
            table.bytes = table.bytes.saturating_sub(bytes);
            return Ok((keyspace, writes));
        }
        if table.sessions.len() >= sessions_max {
            return Err(Error::new(
                ErrorCode::TooManyLogicalSessions,
                format!("at most {sessions_max} sessions may have retryable writes"),
            ));
        }
        let entry = SessionEntry {
            is_busy: true,
            last_ms: operation.now_ms,
            ..SessionEntry::default()
        };
        table.sessions.insert(session.to_vec(), entry);
        Ok((keyspace, Some(SessionWrites::default())))
    }

    /// Finds the stored sessions, once. Returns the keyspace.
    fn load(&self, table: &mut SessionTable) -> Result<KeyspaceId> {
        if let (Some(keyspace), true) = (table.keyspace, table.is_loaded) {
            return Ok(keyspace);
        }
        let all = self.engine.keyspaces();
        let keyspace = match all
            .iter()
            .find(|known| known.name == RETRYABLE_WRITES_KEYSPACE)
        {
            Some(known) => known.id,
            None => self
                .engine
                .create_keyspace(RETRYABLE_WRITES_KEYSPACE, KeyspaceOptions::default())?,
        };
        table.keyspace = Some(keyspace);
        let snapshot = self.engine.snapshot()?;
        for entry in snapshot.scan(keyspace, &[], None, Direction::Forward)? {
            let (key, value) = entry?;
            let (session, last_ms) = stored::session_and_time(&key, &value)?;
            let known = table.sessions.entry(session.to_vec()).or_default();
            known.last_ms = known.last_ms.max(last_ms);
        }
        table.is_loaded = true;
        Ok(keyspace)
    }

    /// Ends the command of a session. `writes` is `None` if it is unknown what is stored.
    fn check_in(&self, session: &[u8], writes: Option<SessionWrites>, repeated: u64) {
        let mut table = self.lock();
        table.retried_commands += u64::from(repeated > 0);
        table.retried_statements += repeated;
        let bytes = writes.as_ref().map_or(0, SessionWrites::bytes);
        if table.bytes + bytes > MEMORY_BYTES_MAX {
            let idle = |entry: &&mut SessionEntry| !entry.is_busy;
            for other in table.sessions.values_mut().filter(idle) {
                other.writes = None;
            }
            table.bytes = 0;
        }
        let writes = writes.filter(|_| bytes <= MEMORY_BYTES_MAX);
        if let Some(entry) = table.sessions.get_mut(session) {
            entry.is_busy = false;
            if let Some(writes) = &writes {
                entry.last_ms = entry.last_ms.max(writes.last_ms);
                table.bytes += bytes;
            }
        }
        if let Some(entry) = table.sessions.get_mut(session) {
            entry.writes = writes;
        }
        drop(table);
        self.ended.notify_all();
    }

    /// Removes the results of sessions whose last write is long ago. To be called at intervals.
    pub(crate) fn expire(&self, now_ms: i64) -> Result<()> {
        let mut expired = Vec::new();
        let mut table = self.lock();
        let Some(keyspace) = table.keyspace else {
            return Ok(());
        };
        if now_ms.saturating_sub(table.expired_ms) < EXPIRY_INTERVAL_MS {
            return Ok(());
        }
        table.expired_ms = now_ms;
        for (session, entry) in &mut table.sessions {
            if !entry.is_busy && now_ms.saturating_sub(entry.last_ms) >= TIMEOUT_MS {
                entry.is_busy = true;
                expired.push(session.clone());
            }
        }
        drop(table);
        let removed = expired
            .iter()
            .try_for_each(|session| stored::remove(&*self.engine, keyspace, session));
        let mut table = self.lock();
        for session in expired {
            // One that could not be removed is tried again at its next expiry, after it was read.
            match &removed {
                Ok(()) => drop(table.sessions.remove(&session)),
                Err(_) => {
                    if let Some(entry) = table.sessions.get_mut(&session) {
                        entry.is_busy = false;
                        entry.writes = None;
                    }
                }
            }
        }
        drop(table);
        self.ended.notify_all();
        removed
    }
}

fn too_old(id: SessionId, number: i64, last: i64) -> Error {
    let session = nilometer_bson::extjson::to_relaxed(id.to_document().as_ref());
    Error::new(
        ErrorCode::TransactionTooOld,
        format!(
            "Retryable write with txnNumber {number} is prohibited on session {session} because a newer retryable write with txnNumber {last} has already started on this session."
        ),
    )
}

/// Returns the key of a session: clients choose ids, so those of different users may be equal.
fn session_key(id: SessionId, user: Option<&UserName>) -> Vec<u8> {
    let user = user.map_or_else(String::new, |user| format!("{}.{}", user.db, user.user));
    let length = u32::try_from(user.len()).unwrap_or(u32::MAX);
    [&id.0[..], &length.to_be_bytes(), user.as_bytes()].concat()
}

/// A command whose statements may be repetitions. Other commands of its session wait until it is dropped.
pub(crate) struct RetryableCommand<'w> {
    writes: &'w RetryableWrites,
    id: SessionId,
    user: Option<UserName>,
    /// The key of both.
    session: Vec<u8>,
    keyspace: KeyspaceId,
    number: i64,
    now_ms: i64,
    /// What a router asks beside the command.
    routed: Option<Arc<RoutedRequest>>,
    /// What is stored, and what is in the batches of this command.
    state: RefCell<SessionWrites>,
    /// True if `state` is what is stored.
    is_known: Cell<bool>,
    repeated: Cell<u64>,
}

impl Drop for RetryableCommand<'_> {
    fn drop(&mut self) {
        let state = self.is_known.get().then(|| self.state.take());
        let repeated = self.repeated.get();
        self.writes.check_in(&self.session, state, repeated);
    }
}

impl RetryableCommand<'_> {
    /// Returns `{lsid, txnNumber}`, by which the change log shows a transaction.
    fn as_transaction(&self) -> Document {
        let lsid = self.id.with_digest(self.user.as_ref());
        doc! {"lsid": lsid, "txnNumber": self.number}
    }

    /// Returns the number of the statement at a position of the command.
    fn statement_number(&self, position: usize) -> u32 {
        let routed = self.routed.as_ref();
        let given = routed.and_then(|routed| routed.statements.get(position));
        given.copied().unwrap_or_else(|| statement_number(position))
    }

    /// True if statements that did not run before do nothing.
    pub(crate) fn repeats_only(&self) -> bool {
        self.routed
            .as_ref()
            .is_some_and(|routed| routed.repeats_only)
    }

    /// True if the document at `position` of an insert was inserted before.
    pub(crate) fn was_inserted(&self, position: usize) -> Result<bool> {
        let statement = self.statement_number(position);
        if self.state.borrow().results.contains_key(&statement) {
            return Err(different(statement));
        }
        let was_inserted = self.state.borrow().inserted.contains(statement);
        self.repeated
            .set(self.repeated.get() + u64::from(was_inserted));
        Ok(was_inserted)
    }

    /// Returns the result of a statement that ran before. Fails if it was another one.
    pub(crate) fn result(
        &self,
        position: usize,
        kind: StatementKind,
    ) -> Result<Option<StatementResult>> {
        let statement = self.statement_number(position);
        let state = self.state.borrow();
        if state.inserted.contains(statement) {
            return Err(different(statement));
        }
        match state.results.get(&statement) {
            None => Ok(None),
            Some(result) if result.kind == kind => {
                self.repeated.set(self.repeated.get() + 1);
                Ok(Some(result.clone()))
            }
            Some(_) => Err(different(statement)),
        }
    }

    /// Returns the record of inserts: of the documents that the insert counts from 0, `positions` has the statements.
    pub(crate) fn inserts<'c>(&'c self, positions: &'c [usize]) -> InsertRecord<'c> {
        InsertRecord {
            command: self,
            positions,
        }
    }

    /// Returns the record of a statement.
    pub(crate) fn statement(&self, position: usize, kind: StatementKind) -> StatementRecord<'_> {
        StatementRecord {
            command: self,
            statement: self.statement_number(position),
            kind,
        }
    }

    /// To be called when a write has failed: whether its batch is stored is unknown.
    pub(crate) fn forget(&self) {
        self.is_known.set(false);
        // The following statements of the command add to what is stored.
        if let Ok(stored) = stored::read(&*self.writes.engine, self.keyspace, &self.session)
            && stored.number == Some(self.number)
        {
            *self.state.borrow_mut() = stored;
        } else {
            *self.state.borrow_mut() = SessionWrites {
                number: Some(self.number),
                ..SessionWrites::default()
            };
        }
    }
}

/// The statements of a command are at most 100,000.
fn statement_number(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn different(statement: u32) -> Error {
    Error::new(
        ErrorCode::ConflictingOperationInProgress,
        format!(
            "statement {statement} of this retryable write is another one than that which ran with its txnNumber"
        ),
    )
}

/// Stores which documents of a command were inserted.
pub(crate) struct InsertRecord<'c> {
    command: &'c RetryableCommand<'c>,
    positions: &'c [usize],
}

impl BatchRecord for InsertRecord<'_> {
    fn inserted(&self, index: usize) {
        if let Some(position) = self.positions.get(index) {
            let mut state = self.command.state.borrow_mut();
            let statement = self.command.statement_number(*position);
            state.inserted.insert(statement);
        }
    }

    fn add_to(&self, batch: &mut WriteBatch) {
        let mut state = self.command.state.borrow_mut();
        state.last_ms = self.command.now_ms;
        stored::put_inserted(batch, self.command.keyspace, &self.command.session, &state);
    }
}

/// Stores what a statement did.
pub(crate) struct StatementRecord<'c> {
    command: &'c RetryableCommand<'c>,
    statement: u32,
    kind: StatementKind,
}

impl BatchRecord for StatementRecord<'_> {
    fn changed(
        &self,
        before: Option<&Document>,
        after: Option<&Document>,
        position: Option<usize>,
    ) {
        let image = match self.kind {
            StatementKind::FindAndRemove | StatementKind::FindAndUpdate => before.cloned(),
            StatementKind::FindAndUpdateNew => after.cloned(),
            StatementKind::Insert
            | StatementKind::Update
            | StatementKind::Delete
            | StatementKind::Commit => None,
        };
        let upserted = match before {
            Some(_) => None,
            None => after.map(|document| document.get("_id").to_value()),
        };
        let result = StatementResult {
            kind: self.kind,
            upserted,
            image,
            position,
        };
        let mut state = self.command.state.borrow_mut();
        state.results.insert(self.statement, result);
    }

    fn add_to(&self, batch: &mut WriteBatch) {
        let mut state = self.command.state.borrow_mut();
        state.last_ms = self.command.now_ms;
        let RetryableCommand {
            keyspace, session, ..
        } = self.command;
        if self.kind == StatementKind::Commit {
            note_transaction(batch, self.command.as_transaction().as_ref());
        }
        stored::put_result(batch, *keyspace, session, &state, self.statement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_ranges() {
        let mut random = 7_u64;
        let mut positions = Positions::default();
        let mut known = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let position = u32::try_from(random >> 33).unwrap_or(0) % 300;
            positions.insert(position);
            known.insert(position);
            let gaps = known.iter().zip(known.iter().skip(1));
            let ranges = 1 + gaps
                .filter(|(before, after)| **after > **before + 1)
                .count();
            assert_eq!(positions.0.len(), ranges, "{:?}", positions.0);
        }
        for position in 0..310 {
            assert_eq!(positions.contains(position), known.contains(&position));
        }
    }
}
