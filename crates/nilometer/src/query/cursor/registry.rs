//! The open cursors of a database.
//!
//! Between commands the registry owns a cursor. While a command uses it, its slot is busy:
//!
//! ```text
//! idle ─ check_out ─► busy ─┬─ keep ─► idle; gone, if a kill has met the busy slot meanwhile
//!                          └─ dropped ─► gone
//! ```
//!
//! A kill of a busy slot sets the switch of the operation. The operation may have passed its last check, so `keep` looks at
//! the switch again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Cursor;
use crate::error::{Error, ErrorCode, Result, location};
use crate::operation::{KillSwitch, OperationContext};
use crate::query::collector::BatchCollector;
use crate::session::{SessionId, UserName};

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
        /// What has become of its collection meanwhile.
        closing: Option<Closing>,
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

impl RegistryState {
    fn forget_oldest_dropped(&mut self) {
        let excess = self.dropped.len().saturating_sub(DROPPED_MAX);
        self.dropped.drain(..excess);
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
            closing: None,
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
                Slot::Busy { kill, closing, .. } => {
                    kill.kill(ErrorCode::QueryPlanKilled);
                    *closing = Some(why);
                    true
                }
            }
        });
        state.forget_oldest_dropped();
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

    /// Returns the cursor to the registry for the next command. One that was closed while this command ended is not kept.
    pub fn keep(mut self, now: Duration) {
        let Some(cursor) = self.cursor.take() else {
            return;
        };
        let mut state = self.registry.lock();
        match state.slots.remove(&self.id) {
            Some(Slot::Busy {
                namespace,
                closing: Some(why),
                ..
            }) => {
                state.dropped.push_back((self.id, namespace, why));
                state.forget_oldest_dropped();
            }
            Some(Slot::Busy { kill, .. }) if kill.reason().is_some() => {}
            _ => {
                let kept = Slot::Idle { cursor, since: now };
                state.slots.insert(self.id, kept);
            }
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

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value};

    use super::*;
    use crate::query::exec::testing;
    use crate::query::source::Resolved;

    const NAMESPACE: &str = "test.c";

    fn with_cursor() -> (Arc<CursorRegistry>, i64) {
        let registry = Arc::new(CursorRegistry::default());
        let none: Vec<Value> = Vec::new();
        let collections = testing::MemoryCollections::of(Resolved::Absent);
        let executor = testing::executor(&collections, &Value::from(none));
        let cursor = Cursor::new(NAMESPACE.to_owned(), executor, Document::new());
        let id = registry.register(cursor, Duration::ZERO, || 8).unwrap();
        (registry, id)
    }

    /// Returns the code of the `getMore` that follows one that did not notice `meanwhile`.
    fn after(meanwhile: impl FnOnce(&CursorRegistry, i64)) -> Option<ErrorCode> {
        let (registry, id) = with_cursor();
        let pinned = registry
            .check_out(id, NAMESPACE, &testing::operation())
            .unwrap();
        meanwhile(&registry, id);
        pinned.keep(Duration::ZERO);
        let next = registry.check_out(id, NAMESPACE, &testing::operation());
        next.err().map(|error| error.code)
    }

    #[test]
    fn a_cursor_that_is_killed_while_a_command_ends_is_not_kept() {
        assert_eq!(after(|_, _| {}), None);
        let gone = Some(ErrorCode::CursorNotFound);
        let killed = after(|registry, id| {
            registry.kill(id, None, |_| true);
        });
        assert_eq!(killed, gone);
        let dropped =
            after(|registry, _| registry.close_over(&[NAMESPACE.to_owned()], Closing::Dropped));
        assert_eq!(dropped, Some(ErrorCode::QueryPlanKilled));
    }
}
