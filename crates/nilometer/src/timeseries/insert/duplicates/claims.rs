//! Series that inserts are alone with, and what is remembered of each to answer without a read.
//!
//! Where measurements of the same series and time are not kept side by side, nobody else may insert into a
//! series between the look at what it has and the commit. An insert claims all its series at once or
//! none, so that two of them cannot wait for each other.
//!
//! Of each series two things are remembered:
//!
//! - its *mark*: no measurement of it is later. Whoever is behind the mark is new.
//! - its *window*, if measurements come late: all times there are from some moment on. Whoever is in the
//!   window and not among them is new, too.
//!
//! Both are set by the insert that holds the claim. Whoever adds or removes measurements otherwise has them
//! forgotten, before and after its commit; what was forgotten is read from storage, or begins anew.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Series of a collection that are remembered, about: some sixty bytes each.
const SERIES_MAX: usize = 1 << 20;

/// Times in a window.
const WINDOW_TIMES_MAX: usize = 128;

/// Windows of a collection: a kilobyte each.
const WINDOWS_MAX: usize = 1 << 16;

/// All times of a series from some moment on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Window {
    since_ms: i64,
    /// Ascending.
    times_ms: Vec<i64>,
}

impl Window {
    /// Of a series that has nothing at `since_ms` or later.
    pub(super) fn new(since_ms: i64) -> Box<Self> {
        Box::new(Self {
            since_ms,
            times_ms: Vec::new(),
        })
    }

    /// Whether the series has the time; `None` if that is not known here.
    pub(super) fn has(&self, at_ms: i64) -> Option<bool> {
        (at_ms >= self.since_ms).then(|| self.times_ms.binary_search(&at_ms).is_ok())
    }

    /// Remembers a time that the series has now.
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
            let gone = self.times_ms.drain(..WINDOW_TIMES_MAX / 2).next_back();
            self.since_ms = gone.map_or(i64::MAX, |last| last.saturating_add(1));
        }
    }
}

/// What is remembered of a series.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) mark_ms: Option<i64>,
    pub(super) window: Option<Box<Window>>,
}

#[derive(Debug, Default)]
struct State {
    busy: bool,
    memory: Memory,
}

#[derive(Debug, Default)]
struct States {
    /// Times that something was forgotten.
    forgotten: u64,
    windows: usize,
    series: HashMap<u128, State, foldhash::fast::RandomState>,
}

/// The series of one collection.
#[derive(Debug, Default)]
struct CollectionSeries {
    states: Mutex<States>,
    /// Inserts that wait for a series.
    waiting: AtomicUsize,
    freed: Condvar,
}

impl CollectionSeries {
    fn lock(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The series of all collections that look for duplicates.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    collections: Mutex<HashMap<[u8; 16], Arc<CollectionSeries>>>,
}

/// Series that belong to one insert until it is dropped.
#[derive(Debug)]
#[must_use = "the series are free again when this is dropped"]
pub(crate) struct Claimed {
    of: Arc<CollectionSeries>,
    series: Vec<u128>,
    /// What is remembered of each.
    pub(super) memories: Vec<Memory>,
    forgotten: u64,
    arrived: bool,
}

impl Claims {
    fn of(&self, collection: [u8; 16]) -> Option<Arc<CollectionSeries>> {
        let collections = self.collections.lock();
        let collections = collections.unwrap_or_else(PoisonError::into_inner);
        collections.get(&collection).cloned()
    }

    /// Waits until nobody is alone with one of the series.
    pub(crate) fn claim(&self, collection: [u8; 16], series: Vec<u128>) -> Claimed {
        let of = {
            let collections = self.collections.lock();
            let mut collections = collections.unwrap_or_else(PoisonError::into_inner);
            collections.entry(collection).or_default().clone()
        };
        let mut states = of.lock();
        let is_busy = |states: &States, one| states.series.get(one).is_some_and(|s| s.busy);
        while series.iter().any(|one| is_busy(&states, one)) {
            of.waiting.fetch_add(1, Ordering::Relaxed);
            let waited = of.freed.wait(states);
            states = waited.unwrap_or_else(PoisonError::into_inner);
            of.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        if states.series.len() > SERIES_MAX {
            states.series.retain(|_, state| state.busy);
            states.windows = 0;
        }
        let mut memories = Vec::with_capacity(series.len());
        for one in &series {
            let state = states.series.entry(*one).or_default();
            state.busy = true;
            memories.push(std::mem::take(&mut state.memory));
        }
        let windows = memories.iter().filter(|m| m.window.is_some()).count();
        states.windows = states.windows.saturating_sub(windows);
        let forgotten = states.forgotten;
        drop(states);
        Claimed {
            of,
            series,
            memories,
            forgotten,
            arrived: false,
        }
    }

    /// Forgets what was remembered of series that are written to otherwise.
    pub(crate) fn forget_series(&self, collection: [u8; 16], series: &[u128]) {
        let Some(of) = self.of(collection) else {
            return;
        };
        let mut states = of.lock();
        states.forgotten += 1;
        for one in series {
            let state = states.series.get_mut(one);
            let memory = state.map(|state| std::mem::take(&mut state.memory));
            if memory.is_some_and(|memory| memory.window.is_some()) {
                states.windows = states.windows.saturating_sub(1);
            }
        }
    }

    /// Forgets a collection: it was dropped, or its rule is another from now on.
    pub(crate) fn forget(&self, collection: [u8; 16]) {
        let collections = self.collections.lock();
        let mut collections = collections.unwrap_or_else(PoisonError::into_inner);
        collections.remove(&collection);
    }
}

impl Claimed {
    /// True if somebody waits for a series of the collection.
    pub(super) fn is_awaited(&self) -> bool {
        self.of.waiting.load(Ordering::Relaxed) > 0
    }

    /// What was inserted is stored, and what is remembered is right.
    pub(crate) fn arrived(mut self) {
        self.arrived = true;
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut states = self.of.lock();
        // Where a commit failed it is not known what is stored.
        let known = self.arrived && states.forgotten == self.forgotten;
        for (one, mut memory) in self.series.iter().zip(self.memories.drain(..)) {
            let windows = states.windows;
            let Some(state) = states.series.get_mut(one) else {
                continue;
            };
            state.busy = false;
            if known {
                memory.window.take_if(|_| windows >= WINDOWS_MAX);
                let has_window = memory.window.is_some();
                state.memory = memory;
                states.windows += usize::from(has_window);
            }
        }
        drop(states);
        self.of.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const C: [u8; 16] = [1; 16];

    fn mark(claims: &Claims, one: u128) -> Option<i64> {
        claims.claim(C, vec![one]).memories[0].mark_ms
    }

    fn set(claims: &Claims, one: u128, mark_ms: i64) {
        let mut claimed = claims.claim(C, vec![one]);
        claimed.memories[0].mark_ms = Some(mark_ms);
        claimed.memories[0].window = Some(Window::new(mark_ms));
        claimed.arrived();
    }

    #[test]
    fn memories_outlive_what_arrived_and_nothing_else() {
        let claims = Claims::default();
        set(&claims, 1, 5);
        let claimed = claims.claim(C, vec![1, 2]);
        let marks: Vec<_> = claimed.memories.iter().map(|m| m.mark_ms).collect();
        assert_eq!(marks, [Some(5), None]);
        claimed.arrived();
        assert_eq!(mark(&claims, 1), Some(5));
        assert_eq!(mark(&claims, 1), None, "dropped without having arrived");
        set(&claims, 1, 5);
        claims.forget_series(C, &[2]);
        let claimed = claims.claim(C, vec![1]);
        assert_eq!(claimed.memories[0].mark_ms, Some(5));
        assert_eq!(claimed.memories[0].window, Some(Window::new(5)));
        // Whatever was forgotten meanwhile, what the insert knew is not to be trusted.
        claims.forget_series(C, &[3]);
        claimed.arrived();
        assert_eq!(mark(&claims, 1), None);
    }

    #[test]
    fn a_series_is_claimed_by_one_at_a_time() {
        let claims = Claims::default();
        let held = claims.claim(C, vec![1, 2]);
        // Another collection, and other series, do not wait.
        drop(claims.claim([2; 16], vec![1]));
        drop(claims.claim(C, vec![3]));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(claims.claim(C, vec![3, 2])));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            // It holds nothing while it waits.
            drop(claims.claim(C, vec![3]));
            drop(held);
        });
    }

    #[test]
    fn a_window_knows_its_times_and_its_beginning() {
        let mut window = Window::new(100);
        assert_eq!(window.has(99), None);
        assert_eq!(window.has(100), Some(false));
        for at in [50, 105, 103, 103, 200] {
            window.add(at);
        }
        assert_eq!(window.times_ms, [103, 105, 200]);
        for at in 0..1000 {
            window.add(300 + at * 2);
        }
        assert!(window.times_ms.len() <= WINDOW_TIMES_MAX);
        assert_eq!(
            (window.has(2298), window.has(2297)),
            (Some(true), Some(false))
        );
        assert_eq!(window.has(300), None);
        assert_eq!(window.has(window.since_ms), Some(false));
        assert_eq!(window.has(window.since_ms + 1), Some(true));
    }
}
