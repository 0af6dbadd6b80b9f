//! Locks on series, and the times known of each: what lets an insert find duplicates without a read.
//!
//! Unless duplicates are kept, only one insert at a time may write to a series, from the lookup to the commit. An insert
//! locks all its series at once or waits for none of them, so two inserts cannot wait for each other.
//!
//! Two things are known of a series ([`KnownTimes`]):
//!
//! - its *newest time*: a measurement later than that is new.
//! - its *window*, once a measurement came late: all its times from some moment on. A time in the window that is not among
//!   them is new, too.
//!
//! The holder of the lock sets both. A statement that adds or removes measurements in another way has them forgotten, before
//! and after its commit; the next insert then reads the newest time from storage, and starts another window.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Series of a collection to keep, about: some sixty bytes each.
const SERIES_MAX: usize = 1 << 20;

/// Times in a window.
const WINDOW_TIMES_MAX: usize = 128;

/// Windows of a collection: a kilobyte each.
const WINDOWS_MAX: usize = 1 << 16;

/// All times of a series from some moment on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TimeWindow {
    since_ms: i64,
    /// Ascending.
    times_ms: Vec<i64>,
}

impl TimeWindow {
    /// The window of a series without measurements at `since_ms` or later.
    pub(super) fn new(since_ms: i64) -> Box<Self> {
        Box::new(Self {
            since_ms,
            times_ms: Vec::new(),
        })
    }

    /// True if the series has a measurement of this time; `None` before the window.
    pub(super) fn contains(&self, at_ms: i64) -> Option<bool> {
        (at_ms >= self.since_ms).then(|| self.times_ms.binary_search(&at_ms).is_ok())
    }

    /// Adds a time. A full window drops its earlier half.
    pub(super) fn add(&mut self, at_ms: i64) {
        if at_ms < self.since_ms {
            return;
        }
        match self.times_ms.last() {
            Some(last) if *last >= at_ms => {
                if let Err(place) = self.times_ms.binary_search(&at_ms) {
                    self.times_ms.insert(place, at_ms);
                }
            }
            _ => self.times_ms.push(at_ms),
        }
        if self.times_ms.len() > WINDOW_TIMES_MAX {
            let dropped = self.times_ms.drain(..WINDOW_TIMES_MAX / 2).next_back();
            self.since_ms = dropped.map_or(i64::MAX, |last| last.saturating_add(1));
        }
    }
}

/// The times known of a series.
#[derive(Debug, Default)]
pub(super) struct KnownTimes {
    /// No measurement is later.
    pub(super) newest_ms: Option<i64>,
    pub(super) window: Option<Box<TimeWindow>>,
}

#[derive(Debug, Default)]
struct SeriesState {
    locked: bool,
    known: KnownTimes,
}

#[derive(Debug, Default)]
struct CollectionState {
    /// Calls of [`SeriesLocks::forget_series`].
    forgotten: u64,
    windows: usize,
    series: HashMap<u128, SeriesState, foldhash::fast::RandomState>,
}

/// The series of one collection.
#[derive(Debug, Default)]
struct CollectionSeries {
    state: Mutex<CollectionState>,
    /// Inserts that wait for a series.
    waiting: AtomicUsize,
    unlocked: Condvar,
}

impl CollectionSeries {
    fn state(&self) -> MutexGuard<'_, CollectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The series locks of all collections.
#[derive(Debug, Default)]
pub(crate) struct SeriesLocks {
    collections: Mutex<HashMap<[u8; 16], Arc<CollectionSeries>>>,
}

/// Series locked by one insert, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping this unlocks the series"]
pub(super) struct SeriesLockGuard {
    of: Arc<CollectionSeries>,
    series: Vec<u128>,
    /// One for each series, in their order.
    pub(super) known_times: Vec<KnownTimes>,
    /// The count when the series were locked.
    forgotten: u64,
    committed: bool,
}

impl SeriesLocks {
    fn collection_series(&self, collection: [u8; 16]) -> Option<Arc<CollectionSeries>> {
        let collections = self.collections.lock();
        let collections = collections.unwrap_or_else(PoisonError::into_inner);
        collections.get(&collection).cloned()
    }

    /// Locks the series, given by their hashes. Waits until none of them is locked.
    pub(super) fn lock(&self, collection: [u8; 16], series: Vec<u128>) -> SeriesLockGuard {
        let of = {
            let collections = self.collections.lock();
            let mut collections = collections.unwrap_or_else(PoisonError::into_inner);
            collections.entry(collection).or_default().clone()
        };
        let mut state = of.state();
        let is_locked =
            |state: &CollectionState, one| state.series.get(one).is_some_and(|s| s.locked);
        while series.iter().any(|one| is_locked(&state, one)) {
            of.waiting.fetch_add(1, Ordering::Relaxed);
            let waited = of.unlocked.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            of.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        if state.series.len() > SERIES_MAX {
            state.series.retain(|_, series| series.locked);
            state.windows = 0;
        }
        let mut known_times = Vec::with_capacity(series.len());
        for one in &series {
            let series = state.series.entry(*one).or_default();
            series.locked = true;
            known_times.push(std::mem::take(&mut series.known));
        }
        let windows = known_times.iter().filter(|k| k.window.is_some()).count();
        state.windows = state.windows.saturating_sub(windows);
        let forgotten = state.forgotten;
        drop(state);
        SeriesLockGuard {
            of,
            series,
            known_times,
            forgotten,
            committed: false,
        }
    }

    /// Forgets the known times of series that another statement writes to.
    pub(crate) fn forget_series(&self, collection: [u8; 16], series: &[u128]) {
        let Some(of) = self.collection_series(collection) else {
            return;
        };
        let mut state = of.state();
        state.forgotten += 1;
        for one in series {
            let known = state.series.get_mut(one);
            let known = known.map(|series| std::mem::take(&mut series.known));
            if known.is_some_and(|known| known.window.is_some()) {
                state.windows = state.windows.saturating_sub(1);
            }
        }
    }

    /// Forgets a collection that was dropped, or whose policy changes.
    pub(crate) fn forget(&self, collection: [u8; 16]) {
        let collections = self.collections.lock();
        let mut collections = collections.unwrap_or_else(PoisonError::into_inner);
        collections.remove(&collection);
    }
}

impl SeriesLockGuard {
    /// True if another insert waits for a series of the collection.
    pub(super) fn has_waiters(&self) -> bool {
        self.of.waiting.load(Ordering::Relaxed) > 0
    }

    /// Unlocks the series, and keeps their known times: the measurements are stored.
    pub(super) fn commit(mut self) {
        self.committed = true;
    }
}

impl Drop for SeriesLockGuard {
    fn drop(&mut self) {
        let mut state = self.of.state();
        // After a failed commit it is unknown what is stored.
        let keep = self.committed && state.forgotten == self.forgotten;
        for (one, mut known) in self.series.iter().zip(self.known_times.drain(..)) {
            let windows = state.windows;
            let Some(series) = state.series.get_mut(one) else {
                continue;
            };
            series.locked = false;
            if keep {
                known.window.take_if(|_| windows >= WINDOWS_MAX);
                let has_window = known.window.is_some();
                series.known = known;
                state.windows += usize::from(has_window);
            }
        }
        drop(state);
        self.of.unlocked.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const C: [u8; 16] = [1; 16];

    fn newest_of(locks: &SeriesLocks, one: u128) -> Option<i64> {
        locks.lock(C, vec![one]).known_times[0].newest_ms
    }

    fn set(locks: &SeriesLocks, one: u128, newest_ms: i64) {
        let mut guard = locks.lock(C, vec![one]);
        guard.known_times[0].newest_ms = Some(newest_ms);
        guard.known_times[0].window = Some(TimeWindow::new(newest_ms));
        guard.commit();
    }

    #[test]
    fn known_times_outlive_a_commit_and_nothing_else() {
        let locks = SeriesLocks::default();
        set(&locks, 1, 5);
        let guard = locks.lock(C, vec![1, 2]);
        let newest: Vec<_> = guard.known_times.iter().map(|m| m.newest_ms).collect();
        assert_eq!(newest, [Some(5), None]);
        guard.commit();
        assert_eq!(newest_of(&locks, 1), Some(5));
        assert_eq!(newest_of(&locks, 1), None, "dropped without a commit");
        set(&locks, 1, 5);
        locks.forget_series(C, &[2]);
        let guard = locks.lock(C, vec![1]);
        assert_eq!(guard.known_times[0].newest_ms, Some(5));
        assert_eq!(guard.known_times[0].window, Some(TimeWindow::new(5)));
        // Something was forgotten meanwhile: what the insert knew may be wrong.
        locks.forget_series(C, &[3]);
        guard.commit();
        assert_eq!(newest_of(&locks, 1), None);
    }

    #[test]
    fn a_series_is_locked_by_one_at_a_time() {
        let locks = SeriesLocks::default();
        let held = locks.lock(C, vec![1, 2]);
        // Another collection, and other series, do not wait.
        drop(locks.lock([2; 16], vec![1]));
        drop(locks.lock(C, vec![3]));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(locks.lock(C, vec![3, 2])));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            // It holds nothing while it waits.
            drop(locks.lock(C, vec![3]));
            drop(held);
        });
    }

    #[test]
    fn a_window_knows_its_times_and_its_beginning() {
        let mut window = TimeWindow::new(100);
        assert_eq!(window.contains(99), None);
        assert_eq!(window.contains(100), Some(false));
        for at in [50, 105, 103, 103, 200] {
            window.add(at);
        }
        assert_eq!(window.times_ms, [103, 105, 200]);
        for at in 0..1000 {
            window.add(300 + at * 2);
        }
        assert!(window.times_ms.len() <= WINDOW_TIMES_MAX);
        assert_eq!(
            (window.contains(2298), window.contains(2297)),
            (Some(true), Some(false))
        );
        assert_eq!(window.contains(300), None);
        assert_eq!(window.contains(window.since_ms), Some(false));
        assert_eq!(window.contains(window.since_ms + 1), Some(true));
    }
}
