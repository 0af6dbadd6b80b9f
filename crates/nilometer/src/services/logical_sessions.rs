//! The logical sessions that clients name by `lsid`.
//!
//! A session begins with the first command that names it and ends by `endSessions`, by `killSessions`, or
//! after [`TIMEOUT_MINUTES`] without use. Only its last use is stored here; cursors store their session.
//! Clients generate the ids, so the ids of different users may be equal: a session is identified by id and
//! user.

use std::sync::{Mutex, PoisonError};

use hashbrown::{Equivalent, HashMap};

use crate::error::{Error, ErrorCode, Result};
use crate::session::{SessionId, UserName};

/// Minutes without use after which a session ends, as `hello` reports.
pub const TIMEOUT_MINUTES: i32 = 30;

/// The same in milliseconds.
const TIMEOUT_MS: i64 = TIMEOUT_MINUTES as i64 * 60_000;

/// Interval between two searches for ended sessions.
const SWEEP_INTERVAL_MS: i64 = 60_000;

/// A session as `$listLocalSessions` shows it.
#[derive(Clone, Debug)]
pub struct SessionUse {
    /// The id.
    pub id: SessionId,
    /// The user; `None` without a login.
    pub user: Option<UserName>,
    /// Time of the last use in ms since 1970.
    pub last_use_ms: i64,
}

/// The identity of a session.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SessionKey(SessionId, Option<UserName>);

/// The same, borrowed.
#[derive(Hash)]
struct SessionKeyRef<'a>(SessionId, Option<&'a UserName>);

impl Equivalent<SessionKey> for SessionKeyRef<'_> {
    fn equivalent(&self, key: &SessionKey) -> bool {
        self.0 == key.0 && self.1 == key.1.as_ref()
    }
}

#[derive(Debug, Default)]
struct SessionTable {
    last_use: HashMap<SessionKey, i64, foldhash::fast::RandomState>,
    swept_ms: i64,
}

/// All sessions of a database.
#[derive(Debug, Default)]
pub struct LogicalSessions {
    table: Mutex<SessionTable>,
}

impl LogicalSessions {
    /// Records a use of `id` by `user`; begins the session if it is new. At most `max` may be open (code
    /// 261).
    pub fn touch(
        &self,
        id: SessionId,
        user: Option<&UserName>,
        now_ms: i64,
        max: usize,
    ) -> Result<()> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = table.last_use.get_mut(&SessionKeyRef(id, user)) {
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
        table.last_use.insert(SessionKey(id, user.cloned()), now_ms);
        Ok(())
    }

    /// Removes a user's session; false if it does not exist.
    pub fn end(&self, id: SessionId, user: Option<&UserName>) -> bool {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.last_use.remove(&SessionKeyRef(id, user)).is_some()
    }

    /// Returns the open sessions, unordered.
    pub fn list(&self, now_ms: i64) -> Vec<SessionUse> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let open = table.last_use.iter().map(|(key, last)| SessionUse {
            id: key.0,
            user: key.1.clone(),
            last_use_ms: *last,
        });
        open.filter(|s| now_ms - s.last_use_ms < TIMEOUT_MS)
            .collect()
    }

    /// Returns the number of stored sessions.
    pub fn len(&self) -> usize {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.last_use.len()
    }

    /// True if none is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_by_command_and_when_idle() {
        let sessions = LogicalSessions::default();
        let (a, b, c) = (SessionId([1; 16]), SessionId([2; 16]), SessionId([3; 16]));
        sessions.touch(a, None, 0, 2).unwrap();
        sessions.touch(b, None, 1, 2).unwrap();
        let error = sessions.touch(c, None, 2, 2).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooManyLogicalSessions);
        assert!(sessions.end(b, None));
        assert!(!sessions.end(b, None));
        sessions.touch(c, None, TIMEOUT_MS - 1, 2).unwrap();
        assert_eq!(sessions.list(TIMEOUT_MS).len(), 1);
        sessions.touch(b, None, TIMEOUT_MS, 2).unwrap();
        assert_eq!(sessions.len(), 2);
    }

    #[test]
    fn one_id_of_two_users_is_two_sessions() {
        let sessions = LogicalSessions::default();
        let (id, ann, bob) = (
            SessionId([1; 16]),
            UserName::new("ann", "a"),
            UserName::new("bob", "a"),
        );
        sessions.touch(id, Some(&ann), 0, 3).unwrap();
        sessions.touch(id, Some(&bob), 5, 3).unwrap();
        sessions.touch(id, Some(&ann), 7, 3).unwrap();
        assert_eq!(sessions.len(), 2);
        assert!(!sessions.end(id, None));
        assert!(sessions.end(id, Some(&bob)));
        let left = sessions.list(8);
        assert_eq!((left.len(), left[0].last_use_ms), (1, 7));
        assert_eq!(left[0].user.as_ref(), Some(&ann));
    }
}
