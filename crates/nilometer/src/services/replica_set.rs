//! The replica set that clients see: its members, which of them writes, and which one this server is.
//!
//! The program that opens the database knows the members and updates the state; commands show it. Nothing is decided here.
//! Each change that clients watch for increases a counter, which `hello` sends as `topologyVersion`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::error::Result;

/// What a member does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberRole {
    /// Writes and reads.
    Primary,
    /// Reads, behind the primary.
    Secondary,
    /// Neither, because it is becoming one of the two.
    #[default]
    Recovering,
}

/// A member other than this server, as this server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherMember {
    /// Its address, as clients use it.
    pub host: String,
    /// What it does.
    pub role: MemberRole,
    /// True if it never writes.
    pub is_passive: bool,
    /// The last write it shows, in ms since 1970; 0 if unknown.
    pub last_write_ms: i64,
    /// When this server saw it last, in ms since 1970.
    pub seen_ms: i64,
}

/// The set as this server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaSetState {
    /// What this server does.
    pub role: MemberRole,
    /// True if this server never writes.
    pub is_passive: bool,
    /// The address of the member that writes, if one is known.
    pub primary: Option<String>,
    /// Increases with each primary.
    pub term: u64,
    /// When this server became primary, in ms since 1970.
    pub elected_ms: i64,
    /// The last write that this server shows, in ms since 1970; 0 if it knows none.
    pub last_write_ms: i64,
    /// The interval at which a secondary looks for newer writes, in ms.
    pub read_interval_ms: i64,
    /// The other members.
    pub others: Vec<OtherMember>,
    /// The addresses of all members that may write, in order.
    pub hosts: Vec<String>,
    /// The addresses of those that never write, in order.
    pub passives: Vec<String>,
}

impl ReplicaSetState {
    /// True if a client that watches the topology has to know of the change.
    fn differs_for_clients(&self, other: &Self) -> bool {
        (
            self.role,
            &self.primary,
            self.term,
            &self.hosts,
            &self.passives,
        ) != (
            other.role,
            &other.primary,
            other.term,
            &other.hosts,
            &other.passives,
        )
    }

    /// Puts the addresses of all members in order.
    fn list_hosts(&mut self, me: &str) {
        let own = std::iter::once((me, self.is_passive));
        let others = self.others.iter();
        let others = others.map(|other| (&*other.host, other.is_passive));
        let mut hosts = own.chain(others).collect::<Vec<_>>();
        hosts.sort_unstable();
        hosts.dedup_by_key(|(host, _)| *host);
        let with = |passive| {
            let these = hosts
                .iter()
                .filter(move |(_, is_passive)| *is_passive == passive);
            these.map(|(host, _)| (*host).to_owned()).collect()
        };
        let (active, passive) = (with(false), with(true));
        (self.hosts, self.passives) = (active, passive);
    }
}

/// How the primary steps down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDown {
    /// Time for which it does not become primary again.
    pub time: Duration,
    /// Step down even if no member can take over.
    pub force: bool,
}

/// Makes the primary step down; returns when it has. Fails at once, with [`crate::ErrorCode::ExceededTimeLimit`], if no member can
/// take over.
pub type StepDownRequest = Box<dyn Fn(StepDown) -> Result<()> + Send + Sync>;

/// The replica set.
pub struct ReplicaSet {
    name: String,
    me: String,
    state: Mutex<ReplicaSetState>,
    /// The changes that clients watch for.
    counter: AtomicI64,
    last_write_ms: AtomicI64,
    /// Called after a change that clients watch for.
    pub on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// How the command `replSetStepDown` makes this server step down, if it can.
    pub step_down: OnceLock<StepDownRequest>,
}

impl ReplicaSet {
    /// Returns the set `name`, with this server at the address `me`.
    pub fn new(name: &str, me: &str) -> Self {
        let mut state = ReplicaSetState::default();
        state.list_hosts(me);
        Self {
            name: name.to_owned(),
            me: me.to_owned(),
            state: Mutex::new(state),
            counter: AtomicI64::new(0),
            last_write_ms: AtomicI64::new(0),
            on_change: OnceLock::new(),
            step_down: OnceLock::new(),
        }
    }

    /// Returns the name of the set.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of this server, as clients use it.
    pub fn me(&self) -> &str {
        &self.me
    }

    fn lock(&self) -> MutexGuard<'_, ReplicaSetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current state.
    pub fn state(&self) -> ReplicaSetState {
        let mut state = self.lock().clone();
        let last_ms = self.last_write_ms.load(Ordering::Relaxed);
        state.last_write_ms = state.last_write_ms.max(last_ms);
        state
    }

    /// True if this server writes.
    pub fn is_primary(&self) -> bool {
        self.lock().role == MemberRole::Primary
    }

    /// Returns the number of changes that clients watch for.
    pub fn counter(&self) -> i64 {
        self.counter.load(Ordering::Acquire)
    }

    /// Changes the state. Clients that watch it are answered if they have to know.
    pub fn update(&self, change: impl FnOnce(&mut ReplicaSetState)) {
        let mut state = self.lock();
        let before = state.clone();
        change(&mut state);
        state.list_hosts(&self.me);
        let differs = state.differs_for_clients(&before);
        if differs {
            self.counter.fetch_add(1, Ordering::AcqRel);
        }
        drop(state);
        if differs && let Some(notify) = self.on_change.get() {
            notify();
        }
    }

    /// Notes a write of this server.
    pub fn note_write(&self, now_ms: i64) {
        self.last_write_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// Returns the last write that this server has acknowledged, in ms since 1970; 0 if none.
    pub fn last_write_ms(&self) -> i64 {
        self.last_write_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn clients_are_told_of_changes_that_they_watch_for() {
        let set = ReplicaSet::new("rs", "b:1");
        let told = Arc::new(AtomicI64::new(0));
        let count = Arc::clone(&told);
        let notify = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        assert!(set.on_change.set(Box::new(notify)).is_ok());
        set.update(|state| {
            state.role = MemberRole::Primary;
            state.primary = Some("b:1".to_owned());
        });
        assert_eq!((set.counter(), told.load(Ordering::Relaxed)), (1, 1));
        set.update(|state| state.last_write_ms = 5);
        assert_eq!(set.counter(), 1, "not the time of the last write");
        let other = |host: &str, is_passive| OtherMember {
            host: host.to_owned(),
            role: MemberRole::Secondary,
            is_passive,
            last_write_ms: 0,
            seen_ms: 0,
        };
        set.update(|state| state.others = vec![other("a:1", false), other("c:1", true)]);
        assert_eq!(set.counter(), 2);
        let state = set.state();
        assert_eq!(
            (state.hosts, state.passives),
            (
                vec!["a:1".to_owned(), "b:1".to_owned()],
                vec!["c:1".to_owned()],
            )
        );
        set.note_write(9);
        assert_eq!(set.state().last_write_ms, 9);
    }
}
