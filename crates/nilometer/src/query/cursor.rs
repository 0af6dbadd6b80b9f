//! Cursors: queries that continue over several commands.
//!
//! ```text
//! find, aggregate ─► Cursor ─ fill ─► first batch ─┬─ exhausted: id 0, nothing is kept
//!                                                  └─ registry.register ─► id
//! getMore id ─► registry.check_out ─► PinnedCursor ─ fill ─► next batch ─┬─ keep: idle again
//!                                                                       └─ dropped: gone
//! ```
//!
//! A cursor owns its executor. Between commands the registry owns the cursor. While a command uses the cursor, the
//! registry keeps a busy slot, so that a second getMore is refused (`CursorInUse`) and a kill reaches the operation. A
//! getMore that ends without [`PinnedCursor::keep`] closes the cursor: after an error within a batch it could only
//! continue with documents missing.
//!
//! Ids are random numbers from the caller's source, so that a client cannot guess another client's id.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use crate::error::{Error, ErrorCode, Result, location};
use crate::operation::{KillSwitch, OperationContext};
use crate::query::batch::{Batch, Pending};
use crate::query::collector::BatchCollector;
use crate::query::exec::Executor;
use crate::query::exec::change_stream::StreamProgress;
use crate::session::{ApiParameters, SessionId, UserName};
use crate::write::Arrivals;

/// Documents in a first batch if the client specifies no number.
pub const FIRST_BATCH_DEFAULT: u64 = 101;

/// Greatest size in bytes of an array element besides its value: type, index in digits, terminating zero.
const ELEMENT_OVERHEAD_MAX: usize = 12;

/// The longest wait for documents between two checks for interrupts.
const AWAIT_SLICE: Duration = Duration::from_millis(50);

/// The same for change streams, of which many may wait.
const STREAM_SLICE: Duration = Duration::from_millis(250);

/// Greatest number of open cursors.
pub const CURSORS_OPEN_MAX: usize = 100_000;

/// Limits of all cursors of a database.
#[derive(Clone, Copy, Debug)]
pub struct CursorLimits {
    /// Greatest number of open cursors.
    pub open_max: usize,
}

impl Default for CursorLimits {
    fn default() -> Self {
        Self {
            open_max: CURSORS_OPEN_MAX,
        }
    }
}

/// A running query.
pub struct Cursor {
    /// `db.coll` as the client reads it; for a view, the view's name.
    pub namespace: String,
    /// The session that opened the cursor.
    pub lsid: Option<SessionId>,
    /// The user who opened the cursor.
    pub user: Option<UserName>,
    /// True if the idle timeout does not apply.
    pub no_timeout: bool,
    /// Remaining part of the time limit (`maxTimeMS`), for later batches.
    pub time_left: Option<Duration>,
    /// The command that opened the cursor, for `currentOp`.
    pub command: Document,
    /// The stable API of the command that opened the cursor: later batches must ask for the same.
    pub api: ApiParameters,
    /// Set if the cursor stays open at its end and continues when documents arrive.
    pub tail: Option<Tail>,
    /// The position after the last document, if the client asked for it.
    pub resume: Option<ResumePosition>,
    /// The place in the change log, if the cursor is a change stream.
    pub stream: Option<StreamPosition>,
    executor: Executor,
    pending: Pending,
    collector: Option<Arc<BatchCollector>>,
    returned: u64,
}

/// The name under which a scan adds the key of each record.
const RECORD_ID: &str = "$recordId";

/// The position of a scan in record order, by which a later query continues it.
#[derive(Clone, Debug)]
pub struct ResumePosition {
    /// The key of the last record; null before the first.
    pub record_id: Value,
    /// True if the documents show their keys.
    pub shows_record_id: bool,
}

impl ResumePosition {
    /// Records the key of `document`. Returns the document without it, unless documents show it.
    fn pass(&mut self, document: DocRef<'_>) -> Option<Document> {
        self.record_id = document.get(RECORD_ID).to_value();
        if self.shows_record_id {
            return None;
        }
        let mut out = DocumentBuilder::with_capacity(document.as_bytes().len());
        for element in document.iter().filter(|e| e.name() != RECORD_ID) {
            out.append_element(element);
        }
        Some(out.finish())
    }
}

/// The place of a change stream in the change log.
#[derive(Clone, Debug)]
pub struct StreamPosition {
    /// The token behind what was returned.
    token: Document,
    progress: Arc<StreamProgress>,
}

impl StreamPosition {
    /// Returns the place where a stream begins.
    pub fn new(progress: Arc<StreamProgress>) -> Self {
        Self {
            token: progress.token(),
            progress,
        }
    }
}

/// How a cursor continues at the end of a capped collection.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Counts new documents.
    pub arrivals: Arc<Arrivals>,
    /// Whether an empty batch waits for documents.
    pub awaits: bool,
}

/// The limits of one batch for [`Cursor::fill`].
#[derive(Clone, Copy, Debug)]
pub struct BatchRequest {
    /// Greatest number of documents; `None` means limited only by bytes.
    pub documents: Option<u64>,
}

impl Cursor {
    /// Creates a cursor over the output of `executor`.
    pub fn new(namespace: String, executor: Executor, command: Document) -> Self {
        Self {
            namespace,
            lsid: None,
            user: None,
            no_timeout: false,
            time_left: None,
            command,
            api: ApiParameters::default(),
            tail: None,
            resume: None,
            stream: None,
            executor,
            pending: Pending::Nothing,
            collector: None,
            returned: 0,
        }
    }

    /// Appends documents to the array open in `out` until the batch is full or no document is left. Returns true if
    /// more may follow.
    ///
    /// A document that would exceed [`REPLY_BYTES_MAX`](crate::query::exec::REPLY_BYTES_MAX) or the memory limit
    /// ([`crate::query::exec::ExecLimits`]) is kept for the next batch, unless the batch is empty.
    pub fn fill(
        &mut self,
        operation: &OperationContext,
        request: BatchRequest,
        out: &mut DocumentBuilder,
    ) -> Result<bool> {
        if let Some(collector) = self.collector.clone() {
            return self.collect(operation, &collector);
        }
        let mut count = 0usize;
        let start = out.len();
        let bytes_max = self.executor.batch_bytes_max();
        let most = request
            .documents
            .map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        while count < most {
            let Some(document) = self.pending.front() else {
                self.pending = match self.executor.next(operation)? {
                    Some(batch) => Pending::of(batch)?,
                    None => {
                        if let Some(stream) = &mut self.stream {
                            stream.token = stream.progress.token();
                        }
                        return Ok(self.may_go_on());
                    }
                };
                continue;
            };
            let size = document.as_bytes().len() + ELEMENT_OVERHEAD_MAX;
            if count > 0 && out.len() - start + size > bytes_max {
                break;
            }
            let shown = self.resume.as_mut().and_then(|r| r.pass(document));
            let document = shown.as_ref().map_or(document, |shown| shown.as_ref());
            if let Some(stream) = &mut self.stream
                && let Some(token) = document.get("_id").as_document()
            {
                stream.token = token.to_document();
            }
            out.append_indexed(count, ValueRef::Document(document));
            self.pending.advance();
            count += 1;
            self.returned += 1;
            operation.usage().add_returned(1);
        }
        Ok(!(self.pending.is_empty() && self.executor.is_exhausted()))
    }

    /// Gives `collector` batches until it is full or none is left. Returns true if more may follow.
    fn collect(
        &mut self,
        operation: &OperationContext,
        collector: &BatchCollector,
    ) -> Result<bool> {
        let mut begun = Vec::new();
        while let Some(document) = self.pending.front() {
            begun.push(document.to_document());
            self.pending.advance();
        }
        let mut next = (!begun.is_empty()).then_some(Batch::Rows(begun));
        while !collector.is_full() {
            let batch = match next.take() {
                Some(batch) => Some(batch),
                None => self.executor.next(operation)?,
            };
            let Some(batch) = batch else {
                return Ok(self.may_go_on());
            };
            self.returned += batch.len() as u64;
            operation.usage().add_returned(batch.len() as u64);
            collector.push(batch);
        }
        Ok(!self.executor.is_exhausted())
    }

    /// Appends the token by which a later query continues after this batch, if the client asked for it.
    pub fn append_resume_token(&self, out: &mut DocumentBuilder) {
        if let Some(stream) = &self.stream {
            out.append("postBatchResumeToken", stream.token.clone());
        }
        if let Some(resume) = &self.resume {
            let token = doc! {"$recordId": resume.record_id.clone()};
            out.append("postBatchResumeToken", token);
        }
    }

    /// Makes the cursor wait for further documents at the end of a capped collection.
    pub fn follow(&mut self, tail: Tail) {
        self.executor.tail();
        self.tail = Some(tail);
    }

    /// True if documents may still arrive at the end of the collection.
    fn may_go_on(&self) -> bool {
        self.tail.is_some() && !self.executor.is_exhausted()
    }

    /// Like [`Cursor::fill`]. If there is no document and the cursor awaits documents, waits for them up to `wait`.
    pub fn fill_or_wait(
        &mut self,
        operation: &OperationContext,
        request: BatchRequest,
        wait: Duration,
        out: &mut DocumentBuilder,
    ) -> Result<bool> {
        let until = Instant::now() + wait;
        let before = self.returned;
        loop {
            let tail = self.tail.clone().filter(|tail| tail.awaits);
            let known = tail.as_ref().map_or(0, |tail| tail.arrivals.count());
            let more = self.fill(operation, request, out)?;
            let left = until.saturating_duration_since(Instant::now());
            let Some(tail) = tail.filter(|_| more && self.returned == before) else {
                return Ok(more);
            };
            if left.is_zero() {
                return Ok(more);
            }
            operation.check_interrupt()?;
            operation.turn.pause();
            let slice = match self.stream {
                Some(_) => STREAM_SLICE,
                None => AWAIT_SLICE,
            };
            tail.arrivals.wait(known, left.min(slice));
        }
    }

    /// Returns the plan summary, such as `COLLSCAN`.
    pub fn plan_summary(&self) -> Option<&str> {
        self.executor.plan_summary()
    }

    /// Returns the number of documents returned so far.
    pub fn returned(&self) -> u64 {
        self.returned
    }
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor")
            .field("namespace", &self.namespace)
            .field("returned", &self.returned)
            .finish_non_exhaustive()
    }
}

enum Slot {
    Idle {
        cursor: Box<Cursor>,
        since: Duration,
    },
    Busy {
        namespace: String,
        user: Option<UserName>,
        kill: KillSwitch,
        is_stream: bool,
    },
}

impl Slot {
    /// Returns the user who opened the cursor.
    fn user(&self) -> Option<&UserName> {
        match self {
            Self::Idle { cursor, .. } => cursor.user.as_ref(),
            Self::Busy { user, .. } => user.as_ref(),
        }
    }

    /// True for a change stream, which outlives its collection.
    fn is_stream(&self) -> bool {
        match self {
            Self::Idle { cursor, .. } => cursor.stream.is_some(),
            Self::Busy { is_stream, .. } => *is_stream,
        }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Idle { cursor, .. } => &cursor.namespace,
            Self::Busy { namespace, .. } => namespace,
        }
    }
}

#[derive(Default)]
struct RegistryState {
    slots: HashMap<i64, Slot>,
    counts: CursorCounts,
    /// The ids and namespaces of cursors closed because of what became of their collection, oldest first.
    dropped: VecDeque<(i64, String, Closing)>,
}

/// Why cursors over a collection are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It was dropped or renamed.
    Dropped,
    /// Its documents go to another partition.
    Moved,
}

/// Most closed cursors of dropped collections that the registry remembers, to tell their clients why.
const DROPPED_MAX: usize = 10_000;

/// Statistics for `serverStatus`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CursorCounts {
    /// Cursors closed by the idle timeout.
    pub timed_out: u64,
    /// Cursors registered for getMore since the start.
    pub total_opened: u64,
    /// Cursors open now, pinned ones included.
    pub open: u64,
    /// Cursors in use by a command now.
    pub pinned: u64,
    /// Cursors open now that are exempt from the timeout.
    pub no_timeout: u64,
}

/// The outcome of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// The cursor is closed, or will stop at its next batch.
    Yes,
    /// The cursor does not exist.
    NotFound,
    /// The cursor belongs to another user.
    OfAnother,
}

/// All open cursors of a database.
#[derive(Default)]
pub struct CursorRegistry {
    limits: CursorLimits,
    state: Mutex<RegistryState>,
}

impl CursorRegistry {
    /// Creates an empty registry.
    pub fn new(limits: CursorLimits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        // The state is consistent between statements, so it is valid even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a cursor for later commands and returns its id. Calls `random` until it returns an unused id.
    pub fn register(
        &self,
        cursor: Cursor,
        now: Duration,
        mut random: impl FnMut() -> u64,
    ) -> Result<i64> {
        let mut state = self.lock();
        if state.slots.len() >= self.limits.open_max {
            return Err(Error::new(
                ErrorCode::ExceededMemoryLimit,
                format!("too many open cursors: {}", self.limits.open_max),
            ));
        }
        let id = loop {
            // Ids are positive, as some clients print them unsigned. 0 means "exhausted".
            let id = i64::try_from(random() >> 1).unwrap_or(0);
            if id != 0 && !state.slots.contains_key(&id) {
                break id;
            }
        };
        state.counts.total_opened += 1;
        let cursor = Box::new(cursor);
        state.slots.insert(id, Slot::Idle { cursor, since: now });
        Ok(id)
    }

    /// Makes the later batches of an idle cursor go to `collector`, not into replies. False if there is no such cursor, or it
    /// is one whose documents the cursor itself looks at: a change stream, or a scan that may be resumed.
    pub fn collect_into(&self, id: i64, collector: Arc<BatchCollector>) -> bool {
        match self.lock().slots.get_mut(&id) {
            Some(Slot::Idle { cursor, .. })
                if cursor.stream.is_none() && cursor.resume.is_none() =>
            {
                cursor.collector = Some(collector);
                true
            }
            _ => false,
        }
    }

    /// Takes a cursor out of the registry for one command.
    pub fn check_out(
        self: &Arc<Self>,
        id: i64,
        namespace: &str,
        operation: &OperationContext,
    ) -> Result<PinnedCursor> {
        let mut state = self.lock();
        let closed = state
            .dropped
            .iter()
            .position(|(closed, of, _)| *closed == id && of == namespace);
        if let Some((.., why)) = closed.and_then(|at| state.dropped.remove(at)) {
            let why = match why {
                Closing::Dropped => "collection dropped or renamed",
                Closing::Moved => "documents have moved to another partition",
            };
            return Err(Error::new(
                ErrorCode::QueryPlanKilled,
                format!("{why}: {namespace}"),
            ));
        }
        let Some(slot) = state.slots.get_mut(&id) else {
            return Err(not_found(id));
        };
        if slot.namespace() != namespace {
            return Err(Error::new(
                ErrorCode::Unauthorized,
                format!(
                    "Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace {}",
                    slot.namespace()
                ),
            ));
        }
        if let Slot::Idle { cursor, .. } = slot {
            check_session(id, cursor.lsid, operation.lsid)?;
            check_user(id, cursor.user.as_ref(), operation.user.as_ref())?;
        }
        let busy = Slot::Busy {
            namespace: namespace.to_owned(),
            user: slot.user().cloned(),
            kill: operation.kill_switch().clone(),
            is_stream: slot.is_stream(),
        };
        match std::mem::replace(slot, busy) {
            Slot::Idle { cursor, .. } => Ok(PinnedCursor {
                id,
                cursor: Some(cursor),
                registry: Arc::clone(self),
            }),
            in_use => {
                *slot = in_use;
                Err(Error::new(
                    ErrorCode::CursorInUse,
                    format!("cursor id {id} is already in use"),
                ))
            }
        }
    }

    /// Closes a cursor, or stops the operation that uses it. If a namespace is given, the cursor must belong to it.
    /// `may` returns whether the caller may close a cursor of this user.
    pub fn kill(
        &self,
        id: i64,
        namespace: Option<&str>,
        may: impl FnOnce(Option<&UserName>) -> bool,
    ) -> Killed {
        let mut state = self.lock();
        match state.slots.get(&id) {
            None => Killed::NotFound,
            Some(slot) if namespace.is_some_and(|n| n != slot.namespace()) => Killed::NotFound,
            Some(slot) if !may(slot.user()) => Killed::OfAnother,
            Some(Slot::Busy { kill, .. }) => {
                kill.kill(ErrorCode::CursorKilled);
                Killed::Yes
            }
            Some(Slot::Idle { .. }) => {
                state.slots.remove(&id);
                Killed::Yes
            }
        }
    }

    /// Closes all cursors for which `condemned` returns true, given namespace, session and user: after a collection is
    /// dropped or a session ends. Returns their number.
    pub fn kill_where(
        &self,
        mut condemned: impl FnMut(&str, Option<SessionId>, Option<&UserName>) -> bool,
    ) -> usize {
        let mut state = self.lock();
        let before = state.slots.len();
        let mut stopped = 0;
        state.slots.retain(|_, slot| match slot {
            Slot::Idle { cursor, .. } => {
                !condemned(&cursor.namespace, cursor.lsid, cursor.user.as_ref())
            }
            Slot::Busy {
                namespace,
                user,
                kill,
                ..
            } => {
                if condemned(namespace, None, user.as_ref()) {
                    kill.kill(ErrorCode::CursorKilled);
                    stopped += 1;
                }
                true
            }
        });
        before - state.slots.len() + stopped
    }

    /// Closes all cursors over these namespaces. Their next `getMore` says why.
    pub fn close_over(&self, namespaces: &[String], why: Closing) {
        let mut state = self.lock();
        let RegistryState { slots, dropped, .. } = &mut *state;
        slots.retain(|id, slot| {
            let is_over = |name: &String| name == slot.namespace();
            if slot.is_stream() || !namespaces.iter().any(is_over) {
                return true;
            }
            match slot {
                Slot::Idle { cursor, .. } => {
                    dropped.push_back((*id, cursor.namespace.clone(), why));
                    false
                }
                Slot::Busy { kill, .. } => {
                    kill.kill(ErrorCode::QueryPlanKilled);
                    true
                }
            }
        });
        let excess = dropped.len().saturating_sub(DROPPED_MAX);
        dropped.drain(..excess);
    }

    /// Closes cursors that were idle for `timeout` and returns their number. Cheap enough to call once a second.
    pub fn expire(&self, now: Duration, timeout: Duration) -> usize {
        let mut state = self.lock();
        let before = state.slots.len();
        state.slots.retain(|_, slot| match slot {
            Slot::Idle { cursor, since } => {
                cursor.no_timeout || now.saturating_sub(*since) < timeout
            }
            Slot::Busy { .. } => true,
        });
        let expired = before - state.slots.len();
        state.counts.timed_out += expired as u64;
        expired
    }

    /// Calls `each` for every idle cursor with its id, the cursor and the time of its last use; returns the results.
    pub fn idle<T>(&self, mut each: impl FnMut(i64, &Cursor, Duration) -> T) -> Vec<T> {
        let state = self.lock();
        let mut idle = Vec::new();
        for (id, slot) in &state.slots {
            if let Slot::Idle { cursor, since } = slot {
                idle.push(each(*id, cursor, *since));
            }
        }
        idle
    }

    /// Returns the statistics for `serverStatus`.
    pub fn counts(&self) -> CursorCounts {
        let state = self.lock();
        let mut counts = state.counts;
        for slot in state.slots.values() {
            counts.open += 1;
            match slot {
                Slot::Busy { .. } => counts.pinned += 1,
                Slot::Idle { cursor, .. } if cursor.no_timeout => counts.no_timeout += 1,
                Slot::Idle { .. } => {}
            }
        }
        counts
    }
}

impl std::fmt::Debug for CursorRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CursorRegistry")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

fn not_found(id: i64) -> Error {
    Error::new(
        ErrorCode::CursorNotFound,
        format!("cursor id {id} not found"),
    )
}

/// Checks that the user is the one who opened the cursor.
fn check_user(id: i64, opened: Option<&UserName>, asking: Option<&UserName>) -> Result<()> {
    if opened.is_none() || opened == asking {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::Unauthorized,
        format!("cursor id {id} was not created by the authenticated user"),
    ))
}

/// Checks that the session is the one that opened the cursor.
fn check_session(id: i64, opened: Option<SessionId>, asking: Option<SessionId>) -> Result<()> {
    match (opened, asking) {
        (None, Some(_)) => Err(Error::location(
            location::CURSOR_WITHOUT_SESSION,
            format!(
                "Cannot run getMore on cursor {id}, which was not created in a session, in a session"
            ),
        )),
        (Some(_), None) => Err(Error::location(
            location::CURSOR_NEEDS_SESSION,
            format!(
                "Cannot run getMore on cursor {id}, which was created in a session, without an lsid"
            ),
        )),
        (Some(a), Some(b)) if a != b => Err(Error::location(
            location::CURSOR_OF_OTHER_SESSION,
            format!("Cannot run getMore on cursor {id}, which was created in another session"),
        )),
        _ => Ok(()),
    }
}

/// A cursor taken out of the registry. Dropping it closes it.
#[derive(Debug)]
pub struct PinnedCursor {
    id: i64,
    cursor: Option<Box<Cursor>>,
    registry: Arc<CursorRegistry>,
}

impl PinnedCursor {
    /// Returns the cursor.
    pub fn cursor_mut(&mut self) -> Result<&mut Cursor> {
        self.cursor.as_deref_mut().ok_or_else(|| not_found(self.id))
    }

    /// Returns the cursor to the registry for the next command.
    pub fn keep(mut self, now: Duration) {
        if let Some(cursor) = self.cursor.take() {
            let mut state = self.registry.lock();
            state
                .slots
                .insert(self.id, Slot::Idle { cursor, since: now });
        }
    }
}

impl Drop for PinnedCursor {
    fn drop(&mut self) {
        if self.cursor.is_some() {
            self.registry.lock().slots.remove(&self.id);
        }
    }
}
