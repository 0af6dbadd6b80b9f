//! Series that inserts are alone with, and how late the newest measurement of each is.
//!
//! Where measurements of the same series and time are not kept side by side, nobody else may insert into a
//! series between the look at what it has and the commit. An insert claims all its series at once or
//! none, so that two of them cannot wait for each other.
//!
//! With each series stands its *mark*: no measurement of it is later. A measurement behind the mark is the
//! only one of its time, and nothing need be read for it. A mark is never too early: it is set by the
//! insert that holds the claim, and whoever adds measurements otherwise has it forgotten, before and
//! after its commit. What was forgotten is read from storage. Marks that are too late cost time, no more.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Series of a collection that are remembered, about: some fifty bytes each.
const SERIES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    busy: bool,
    mark_ms: Option<i64>,
}

#[derive(Debug, Default)]
struct States {
    /// Times that marks were forgotten.
    forgotten: u64,
    series: HashMap<u128, State, foldhash::fast::RandomState>,
}

/// The series of one collection.
#[derive(Debug, Default)]
struct CollectionSeries {
    states: Mutex<States>,
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
    /// The mark of each, if it is known.
    pub(super) marks_ms: Vec<Option<i64>>,
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
            states = of
                .freed
                .wait(states)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if states.series.len() > SERIES_MAX {
            states.series.retain(|_, state| state.busy);
        }
        let mut marks_ms = Vec::with_capacity(series.len());
        for one in &series {
            let state = states.series.entry(*one).or_default();
            state.busy = true;
            marks_ms.push(state.mark_ms);
        }
        let forgotten = states.forgotten;
        drop(states);
        Claimed {
            of,
            series,
            marks_ms,
            forgotten,
            arrived: false,
        }
    }

    /// Forgets the marks of series that measurements are added to otherwise.
    pub(crate) fn forget_marks(&self, collection: [u8; 16], series: &[u128]) {
        let Some(of) = self.of(collection) else {
            return;
        };
        let mut states = of.lock();
        states.forgotten += 1;
        for one in series {
            if let Some(state) = states.series.get_mut(one) {
                state.mark_ms = None;
            }
        }
    }

    /// Forgets a collection: it was dropped, or keeps duplicates from now on.
    pub(crate) fn forget(&self, collection: [u8; 16]) {
        let collections = self.collections.lock();
        let mut collections = collections.unwrap_or_else(PoisonError::into_inner);
        collections.remove(&collection);
    }
}

impl Claimed {
    /// What was inserted is stored, and `marks_ms` are right.
    pub(crate) fn arrived(mut self) {
        self.arrived = true;
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut states = self.of.lock();
        // Where a commit failed it is not known what is stored.
        let known = self.arrived && states.forgotten == self.forgotten;
        for (one, mark_ms) in self.series.iter().zip(&self.marks_ms) {
            if let Some(state) = states.series.get_mut(one) {
                state.busy = false;
                state.mark_ms = mark_ms.filter(|_| known);
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
        claims.claim(C, vec![one]).marks_ms[0]
    }

    fn set(claims: &Claims, one: u128, mark_ms: i64) {
        let mut claimed = claims.claim(C, vec![one]);
        claimed.marks_ms[0] = Some(mark_ms);
        claimed.arrived();
    }

    #[test]
    fn marks_outlive_what_arrived_and_nothing_else() {
        let claims = Claims::default();
        set(&claims, 1, 5);
        let claimed = claims.claim(C, vec![1, 2]);
        assert_eq!(claimed.marks_ms, [Some(5), None]);
        claimed.arrived();
        assert_eq!(mark(&claims, 1), None, "dropped without having arrived");
        set(&claims, 1, 5);
        claims.forget_marks(C, &[2]);
        let claimed = claims.claim(C, vec![1]);
        assert_eq!(claimed.marks_ms, [Some(5)]);
        // Whatever was forgotten meanwhile, what the insert knew is not to be trusted.
        claims.forget_marks(C, &[3]);
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
}
