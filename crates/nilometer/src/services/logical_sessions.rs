//! The sessions clients name with `lsid`.
//!
//! A session begins with the first command that names it and ends by `endSessions`, by
//! `killSessions`, or when it was idle for longer than clients are told
//! ([`TIMEOUT_MINUTES`]). Nothing but its last use is kept here; cursors know their session.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, ErrorCode, Result};
use crate::session::SessionId;

/// Minutes without use after which a session is over; `hello` says so.
pub const TIMEOUT_MINUTES: i32 = 30;

/// The same in milliseconds.
const TIMEOUT_MS: i64 = TIMEOUT_MINUTES as i64 * 60_000;

/// Time between two searches for sessions that are over.
const SWEEP_INTERVAL_MS: i64 = 60_000;

/// A session as `$listLocalSessions` shows it.
#[derive(Clone, Copy, Debug)]
pub struct SessionUse {
    /// Which session.
    pub id: SessionId,
    /// Milliseconds since 1970 of its last use.
    pub last_use_ms: i64,
}

#[derive(Debug, Default)]
struct Table {
    last_use: HashMap<SessionId, i64>,
    swept_ms: i64,
}

/// All sessions of a database.
#[derive(Debug, Default)]
pub struct LogicalSessions {
    table: Mutex<Table>,
}

impl LogicalSessions {
    /// Notes a use of `id`; begins the session if it is new. At most `max` may be open (code 261).
    pub fn touch(&self, id: SessionId, now_ms: i64, max: usize) -> Result<()> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = table.last_use.get_mut(&id) {
            *last = now_ms;
            return Ok(());
        }
        if table.last_use.len() >= max || now_ms - table.swept_ms > SWEEP_INTERVAL_MS {
            table.last_use.retain(|_, last| now_ms - *last < TIMEOUT_MS);
            table.swept_ms = now_ms;
        }
        if table.last_use.len() >= max {
            return Err(Error::new(
                ErrorCode::TooManyLogicalSessions,
                format!(
                    "Unable to add session into the cache because the number of active sessions is too high (the limit is {max})"
                ),
            ));
        }
        table.last_use.insert(id, now_ms);
        Ok(())
    }

    /// Forgets a session; false if it was not known.
    pub fn end(&self, id: SessionId) -> bool {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.last_use.remove(&id).is_some()
    }

    /// The sessions that are not over, in no order.
    pub fn list(&self, now_ms: i64) -> Vec<SessionUse> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let open = table.last_use.iter().map(|(id, last)| SessionUse {
            id: *id,
            last_use_ms: *last,
        });
        open.filter(|s| now_ms - s.last_use_ms < TIMEOUT_MS)
            .collect()
    }

    /// How many sessions are kept.
    pub fn len(&self) -> usize {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.last_use.len()
    }

    /// True when none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_when_told_and_when_idle() {
        let sessions = LogicalSessions::default();
        let (a, b, c) = (SessionId([1; 16]), SessionId([2; 16]), SessionId([3; 16]));
        sessions.touch(a, 0, 2).unwrap();
        sessions.touch(b, 1, 2).unwrap();
        let error = sessions.touch(c, 2, 2).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooManyLogicalSessions);
        assert!(sessions.end(b));
        assert!(!sessions.end(b));
        sessions.touch(c, TIMEOUT_MS - 1, 2).unwrap();
        assert_eq!(sessions.list(TIMEOUT_MS).len(), 1);
        sessions.touch(b, TIMEOUT_MS, 2).unwrap();
        assert_eq!(sessions.len(), 2);
    }
}
