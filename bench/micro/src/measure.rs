//! Timing: the best of many short rounds, because disturbances only make a round slower, and a short round may escape
//! them on a busy machine.

use std::time::{Duration, Instant};

const ROUNDS: usize = 150;
const ROUND: Duration = Duration::from_millis(3);

/// Returns the seconds of one call of `work`.
pub(crate) fn seconds(mut work: impl FnMut()) -> f64 {
    let mut calls = 1_u32;
    let mut best = f64::INFINITY;
    let mut round = 0;
    while round < ROUNDS {
        let start = Instant::now();
        for _ in 0..calls {
            work();
        }
        let took = start.elapsed();
        if took * 2 < ROUND {
            calls *= 2;
            continue;
        }
        best = best.min(took.as_secs_f64() / f64::from(calls));
        round += 1;
    }
    best
}
