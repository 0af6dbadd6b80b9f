//! Sessions of the web page, identified by a token in a cookie.
//!
//! A token is 32 random bytes. Only its digest is kept, so neither memory nor lookup time reveals it. It is valid for
//! the address that logged in, for [`IDLE_MAX`] after the last request and [`AGE_MAX`] in total, and not beyond the
//! process.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nilometer::auth::{self, Mechanism};
use nilometer::{ClientSession, Result};

/// Maximum sessions. Beyond that the one idle for longest ends.
const SESSIONS_MAX: usize = 100;

/// Time after which an idle session ends. A visible page sends requests constantly, one in the background does not.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);

/// Maximum age of a session.
pub(super) const AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

struct WebSession {
    session: ClientSession,
    address: IpAddr,
    begun: Instant,
    used: Instant,
}

impl WebSession {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) >= IDLE_MAX
            || now.saturating_duration_since(self.begun) >= AGE_MAX
    }
}

/// All sessions, by the digests of their tokens.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Vec<u8>, WebSession>>);

fn digest(token: &str) -> Vec<u8> {
    Mechanism::Sha256.hash(token.as_bytes())
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, WebSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a logged-in session and returns its token.
    pub(super) fn begin(
        &self,
        session: ClientSession,
        address: IpAddr,
        now: Instant,
    ) -> Result<String> {
        let token: String = auth::random_bytes::<TOKEN_BYTES>()?
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut all = self.lock();
        all.retain(|_, entry| !entry.is_over(now));
        if all.len() >= SESSIONS_MAX {
            let idlest = all.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(idlest) = idlest.map(|(key, _)| key.clone()) {
                all.remove(&idlest);
            }
        }
        let entry = WebSession {
            session,
            address,
            begun: now,
            used: now,
        };
        all.insert(digest(&token), entry);
        Ok(token)
    }

    /// Returns a copy of the session of a token, as it was when it began.
    pub(super) fn find(&self, token: &str, address: IpAddr, now: Instant) -> Option<ClientSession> {
        let mut all = self.lock();
        let key = digest(token);
        let entry = all.get_mut(&key)?;
        if entry.is_over(now) {
            all.remove(&key);
            return None;
        }
        if entry.address != address {
            return None;
        }
        entry.used = now;
        Some(entry.session.clone())
    }

    /// Ends a session and returns it.
    pub(super) fn end(&self, token: &str) -> Option<ClientSession> {
        self.lock()
            .remove(&digest(token))
            .map(|entry| entry.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer::session::ClientMetadata;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn session() -> ClientSession {
        ClientSession::new(1, ClientMetadata::default())
    }

    #[test]
    fn a_token_is_good_for_a_while_and_from_one_address() {
        let sessions = Sessions::default();
        let begin = Instant::now();
        let token = sessions.begin(session(), HERE, begin).unwrap();
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        let elsewhere = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert!(sessions.find(&token, elsewhere, begin).is_none());
        assert!(sessions.find("", HERE, begin).is_none());
        let mut now = begin;
        while now < begin + AGE_MAX - IDLE_MAX {
            now += IDLE_MAX - Duration::from_secs(1);
            assert!(sessions.find(&token, HERE, now).is_some());
        }
        now += IDLE_MAX - Duration::from_secs(1);
        assert_eq!(
            sessions.find(&token, HERE, now).is_some(),
            now < begin + AGE_MAX
        );
        assert!(sessions.find(&token, HERE, begin + AGE_MAX).is_none());
        let idle = sessions.begin(session(), HERE, begin).unwrap();
        assert!(sessions.find(&idle, HERE, begin + IDLE_MAX).is_none());
        assert!(sessions.lock().is_empty());
    }

    #[test]
    fn the_session_idle_for_longest_is_evicted() {
        let sessions = Sessions::default();
        let begin = Instant::now();
        let at = |n: usize| begin + Duration::from_secs(u64::try_from(n).unwrap());
        let tokens: Vec<String> = (0..=SESSIONS_MAX)
            .map(|n| sessions.begin(session(), HERE, at(n)).unwrap())
            .collect();
        let now = at(SESSIONS_MAX);
        assert!(sessions.find(&tokens[0], HERE, now).is_none());
        assert!(sessions.find(&tokens[1], HERE, now).is_some());
        assert!(sessions.end(&tokens[1]).is_some());
        assert!(sessions.end(&tokens[1]).is_none());
    }
}
