//! Processes of a cluster take turns at many databases, of which each looks at all by one list.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nilometer_cluster::{Claim, ClaimBoard, ClaimIntervals, MemberReport, UnitLook};
use nilometer_storage::testing::random::Random;
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::faulty::{Faults, FaultyStore};

/// Far more than a heartbeat, so that a busy machine ends no claim.
const SILENCE: Duration = Duration::from_secs(2);

const UNITS: [&str; 3] = ["config", "p0001", "p0002"];

/// Longer than any test: who has a claim within that time was not let in by silence.
const LONG_SILENCE: Duration = Duration::from_secs(600);

fn board(store: &Arc<dyn ObjectStore>, me: &str) -> ClaimBoard {
    board_with(store, me, SILENCE)
}

fn board_with(store: &Arc<dyn ObjectStore>, me: &str, silence: Duration) -> ClaimBoard {
    let intervals = ClaimIntervals {
        heartbeat: Duration::from_millis(20),
        look: Duration::from_millis(5),
        silence,
        ..ClaimIntervals::default()
    };
    let units = UNITS.map(str::to_owned).to_vec();
    ClaimBoard::new(store.clone(), "garden", (units, me), intervals).expect("threads")
}

fn store() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

fn look_at(board: &mut ClaimBoard, unit: &str) -> Option<UnitLook> {
    let looked = board.look().ok()?;
    looked.units.into_iter().find(|look| look.unit == unit)
}

/// Looks until the unit is free, and claims it.
fn claim(board: &mut ClaimBoard, unit: &str) -> Claim {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < end, "{unit} is not free");
        let free = look_at(board, unit).and_then(|look| look.free);
        if let Some(Ok(Some(claim))) = free.map(nilometer_cluster::FreeUnit::claim) {
            return claim;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Looks until the unit has a writer at that address.
fn until_written(board: &mut ClaimBoard, unit: &str, host: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let look = look_at(board, unit);
        let writer = look.as_ref().and_then(|look| look.writer.as_ref());
        if writer.is_some_and(|writer| writer.host == host) {
            assert!(look.is_some_and(|look| look.free.is_none()));
            return;
        }
        assert!(Instant::now() < end, "{writer:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn everybody_sees_who_writes_what() {
    let store = store();
    let (mut first, mut second) = (board(&store, "[::1]:1"), board(&store, "b:2"));
    let config = claim(&mut first, "config");
    let other = claim(&mut second, "p0002");
    assert_eq!((config.term(), other.term()), (1, 1));
    for board in [&mut first, &mut second] {
        until_written(board, "config", "[::1]:1");
        until_written(board, "p0002", "b:2");
        let free = look_at(board, "p0001").expect("the store works");
        assert!(free.writer.is_none() && free.free.is_some());
    }
    // Longer than the silence: heartbeats come.
    std::thread::sleep(SILENCE * 2);
    until_written(&mut second, "config", "[::1]:1");
    assert!(config.is_held() && !config.is_lost());
}

#[test]
fn a_process_that_has_closed_a_database_hands_over_at_once() {
    let store = store();
    let mut first = board_with(&store, "a:1", LONG_SILENCE);
    let mut second = board_with(&store, "b:2", LONG_SILENCE);
    let config = claim(&mut first, "config");
    until_written(&mut second, "config", "a:1");
    config.release().expect("the store works");
    let next = claim(&mut second, "config");
    assert_eq!(next.term(), 2);
    until_written(&mut first, "config", "b:2");
}

#[test]
fn a_process_that_falls_silent_is_replaced() {
    let store = store();
    let (mut first, mut second) = (board(&store, "a:1"), board(&store, "b:2"));
    let claimed = claim(&mut first, "p0001");
    until_written(&mut second, "p0001", "a:1");
    let began = Instant::now();
    drop(claimed);
    let next = claim(&mut second, "p0001");
    assert_eq!(next.term(), 2);
    assert!(began.elapsed() >= SILENCE / 2);
}

/// A process that ends between its claim and its first heartbeat.
#[test]
fn a_claim_without_a_heartbeat_is_replaced() {
    let (shared, unit) = (store(), "p0001");
    let (faulty, plan) = FaultyStore::over(shared.clone(), 1, Faults::default());
    let mut first = board(&faulty, "a:1");
    let free = look_at(&mut first, unit).and_then(|look| look.free);
    let claimed = free.expect("no process has it").claim();
    plan.set(Faults {
        permits_nothing: true,
        ..Faults::default()
    });
    drop(
        claimed
            .expect("the store works")
            .expect("no other process tries"),
    );
    let mut second = board(&shared, "b:2");
    assert_eq!(claim(&mut second, unit).term(), 2);
}

/// A process whose heartbeats did not arrive for so long that another may be about to claim claims again itself.
#[test]
fn a_process_whose_heartbeats_were_late_claims_a_further_term() {
    let shared = store();
    let (faulty, plan) = FaultyStore::over(shared.clone(), 1, Faults::default());
    let (mut first, mut second) = (board(&faulty, "a:1"), board(&shared, "b:2"));
    let claimed = claim(&mut first, "config");
    plan.set(Faults {
        permits_nothing: true,
        ..Faults::default()
    });
    // The lease must pass.
    std::thread::sleep(SILENCE);
    plan.set(Faults::default());
    let end = Instant::now() + Duration::from_secs(60);
    while claimed.term() == 1 {
        assert!(Instant::now() < end, "it does not claim again");
        std::thread::sleep(Duration::from_millis(5));
    }
    until_written(&mut second, "config", "a:1");
    claimed.release().expect("the store works");
    assert_eq!(claim(&mut second, "config").term(), 3);
}

#[test]
fn members_see_each_other_until_they_end() {
    let store = store();
    let report = |host: &str, since_ms: i64| MemberReport {
        host: host.to_owned(),
        is_passive: host.starts_with('p'),
        last_write_ms: 0,
        since_ms,
    };
    let mut first = board(&store, "a:1");
    let until = Instant::now() + Duration::from_secs(20);
    let mut wait = |expected: &[&MemberReport]| {
        loop {
            let members = first.look().expect("the store works").members;
            let found: Vec<_> = members.iter().map(|seen| &seen.report).collect();
            if found == expected {
                return;
            }
            assert!(Instant::now() < until, "{found:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (pot, three, again) = (
        report("pot:2", 5),
        report("[::1]:3", 7),
        report("[::1]:3", 9),
    );
    let mut second = board(&store, "pot:2");
    second.announce(&pot);
    wait(&[&pot]);
    let mut third = board(&store, "[::1]:3");
    third.announce(&three);
    wait(&[&three, &pot]);
    second.leave();
    wait(&[&three]);
    // Killed, and started again before it is gone.
    drop(third);
    let mut third = board(&store, "[::1]:3");
    third.announce(&again);
    wait(&[&again]);
    drop(third);
    wait(&[]);
}

/// One at a time, with a store that fails, delays, and loses answers.
#[test]
fn of_many_processes_one_at_a_time_has_a_claim() {
    let shared = store();
    let faults = Faults {
        errors: 20,
        lost_replies: 20,
        latency_us: 2000,
        ..Faults::default()
    };
    let turns = AtomicUsize::new(0);
    let writing = UNITS.map(|_| AtomicBool::new(false));
    std::thread::scope(|scope| {
        for process in 0..6_u64 {
            let (store, _) = FaultyStore::over(shared.clone(), process, faults);
            let (turns, writing) = (&turns, &writing);
            scope.spawn(move || {
                let mut random = Random::new(process);
                let mut board = board(&store, &format!("node:{process}"));
                for _ in 0..4 {
                    let at = usize::try_from(random.below(UNITS.len() as u64)).expect("a number");
                    let claim = claim(&mut board, UNITS[at]);
                    assert!(!writing[at].swap(true, Ordering::SeqCst), "two at once");
                    std::thread::sleep(Duration::from_millis(3));
                    writing[at].store(false, Ordering::SeqCst);
                    turns.fetch_add(1, Ordering::SeqCst);
                    // If it fails, others wait for the silence.
                    drop(claim.release());
                }
            });
        }
    });
    assert_eq!(turns.into_inner(), 24);
}
