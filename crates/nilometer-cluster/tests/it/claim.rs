//! Processes take turns: one at a time has a claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use nilometer_cluster::{Claim, ClaimIntervals, Claimant};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::faulty::{Faults, FaultyStore};

/// Far more than a heartbeat, so that a busy machine ends no claim.
const SILENCE: Duration = Duration::from_secs(2);

/// Longer than any test: who has a claim within that time was not let in by silence.
const LONG_SILENCE: Duration = Duration::from_secs(600);

const OPENING: Duration = Duration::from_millis(300);

fn intervals() -> ClaimIntervals {
    ClaimIntervals {
        heartbeat: Duration::from_millis(20),
        look: Duration::from_millis(5),
        silence: SILENCE,
        ..ClaimIntervals::default()
    }
}

fn claimant(store: &Arc<dyn ObjectStore>) -> Claimant {
    Claimant::new(store.clone(), "garden", intervals()).expect("threads")
}

fn claim(store: &Arc<dyn ObjectStore>) -> Claim {
    let claim = claimant(store).wait(|| false).expect("a claim");
    claim.note_open();
    claim
}

fn store() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

#[test]
fn the_first_process_need_not_wait_and_the_second_does() {
    let store = store();
    let first = claim(&store);
    assert_eq!(first.term(), 1);
    let looks = AtomicUsize::new(0);
    let second = claimant(&store).wait(|| looks.fetch_add(1, Ordering::Relaxed) == 50);
    assert!(second.is_none());
}

#[test]
fn a_process_that_has_closed_the_database_hands_over_at_once() {
    let store = store();
    let claim = |store: &Arc<dyn ObjectStore>| {
        let intervals = ClaimIntervals {
            silence: LONG_SILENCE,
            ..intervals()
        };
        let claimant = Claimant::new(store.clone(), "garden", intervals).expect("threads");
        let began = Instant::now();
        let claim = claimant.wait(|| began.elapsed() >= LONG_SILENCE / 2);
        claim.expect("a claim")
    };
    let first = claim(&store);
    first.note_open();
    let waiting = std::thread::spawn({
        let store = store.clone();
        move || claim(&store).term()
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    first.release().expect("the store works");
    assert_eq!(waiting.join().expect("a claim"), 2);
}

#[test]
fn a_process_that_falls_silent_is_replaced() {
    let store = store();
    let first = claim(&store);
    drop(first);
    let began = Instant::now();
    assert_eq!(claim(&store).term(), 2);
    assert!(began.elapsed() >= SILENCE);
}

#[test]
fn a_process_that_does_not_open_the_database_falls_silent() {
    let store = store();
    let intervals = ClaimIntervals {
        opening: OPENING,
        ..intervals()
    };
    let first = Claimant::new(store.clone(), "garden", intervals).expect("threads");
    let first = first.wait(|| false).expect("a claim");
    let began = Instant::now();
    assert_eq!(claim(&store).term(), 2);
    assert!(began.elapsed() >= OPENING.max(SILENCE));
    assert!(first.is_lost() && !first.is_held());
}

#[test]
fn a_process_that_closes_the_database_for_long_is_replaced() {
    let store = store();
    let first = claim(&store);
    first.fall_silent();
    assert_eq!(claim(&store).term(), 2);
    // It says nothing to those that follow the one after it.
    first.release().expect("the store works");
    let looks = AtomicUsize::new(0);
    let third = claimant(&store).wait(|| looks.fetch_add(1, Ordering::Relaxed) == 50);
    assert!(third.is_none());
}

/// A process whose heartbeats did not arrive for so long that another may be about to claim claims again itself.
#[test]
fn a_process_whose_heartbeats_were_late_claims_a_further_term() {
    let (faulty, plan) = FaultyStore::over(store(), 1, Faults::default());
    let first = claim(&faulty);
    assert_eq!(first.term(), 1);
    plan.set(Faults {
        permits_nothing: true,
        ..Faults::default()
    });
    // The lease must pass.
    std::thread::sleep(SILENCE);
    assert_eq!(first.term(), 1);
    plan.set(Faults::default());
    let end = Instant::now() + Duration::from_secs(60);
    while first.term() == 1 {
        assert!(Instant::now() < end, "it does not claim again");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(first.term(), 2);
    first.release().expect("the store works");
    assert_eq!(claim(&faulty).term(), 3);
}

/// The claim that would be next was others', and is deleted again.
#[test]
fn a_process_that_was_away_for_many_turns_claims_none_of_them() {
    let shared = store();
    let (faulty, plan) = FaultyStore::over(shared.clone(), 1, Faults::default());
    let first = claim(&faulty);
    plan.set(Faults {
        permits_nothing: true,
        ..Faults::default()
    });
    for term in 2..12 {
        let next = claim(&shared);
        assert_eq!(next.term(), term);
        next.release().expect("the store works");
    }
    assert!(!first.is_held());
    plan.set(Faults::default());
    let end = Instant::now() + Duration::from_secs(60);
    while !first.is_lost() {
        assert!(Instant::now() < end && !first.is_held());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(first.term(), 1);
    assert_eq!(claim(&shared).term(), 12);
}

#[test]
fn of_many_processes_one_at_a_time_has_a_claim() {
    let store = store();
    let (writing, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let claim = claim(&store);
                    assert!(!writing.swap(true, Ordering::SeqCst), "two at once");
                    std::thread::sleep(Duration::from_millis(3));
                    writing.store(false, Ordering::SeqCst);
                    turns.fetch_add(1, Ordering::SeqCst);
                    claim.release().expect("the store works");
                }
            });
        }
    });
    assert_eq!(turns.into_inner(), 24);
    let last = claim(&store);
    assert_eq!(last.term(), 25);
    // Old claims are deleted.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let kept = || runtime.block_on(store.list(None).count());
    let end = Instant::now() + Duration::from_secs(60);
    while kept() > 8 {
        assert!(Instant::now() < end, "{} objects", kept());
        std::thread::sleep(Duration::from_millis(5));
    }
}
