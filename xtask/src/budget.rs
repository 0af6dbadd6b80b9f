//! Time budgets: what building and testing may cost, measured by `cargo xtask budgets`.
//!
//! A budget is in seconds on two cores without other load. Two figures are compared with it. Processor time of all
//! processes that the step started, divided by two, changes little when the machine is busy; it may exceed the budget by
//! [`PROCESSOR_MARGIN`]. Time by the clock also shows sleeping and waiting, and other load; it may take
//! [`CLOCK_MARGIN`] times the budget. Where the system does not report processor time, the clock alone counts.

use std::time::{Duration, Instant};

use crate::process::Outcome;

/// Cores that the budgets are written for.
const CORES: u32 = 2;
/// Processor time may be this many times the budget: slower processors, load that spoils caches.
const PROCESSOR_MARGIN: f64 = 2.5;
/// Time by the clock may be this many times the budget: other load on the machine.
const CLOCK_MARGIN: f64 = 5.0;
/// Ticks a second in `/proc`, on every Linux.
const TICKS: u32 = 100;

/// One budget.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) name: &'static str,
    pub(crate) limit: Duration,
}

/// What a step took.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    clock: Duration,
    processor: Option<Duration>,
}

/// Measures a step that runs other programs to their end.
pub(crate) fn measure(action: impl FnOnce() -> Outcome) -> Outcome<Cost> {
    let before = processor_of_children();
    let start = Instant::now();
    action()?;
    let clock = start.elapsed();
    let processor = processor_of_children().zip(before);
    Ok(Cost {
        clock,
        processor: processor.map(|(after, before)| after.saturating_sub(before)),
    })
}

/// Prints the cost of each budget; an error names those exceeded.
pub(crate) fn report(costs: &[(Budget, Cost)]) -> Outcome {
    println!("\nbudget (seconds on {CORES} cores without other load)");
    let mut over = Vec::new();
    for (budget, cost) in costs {
        let is_over = cost.exceeds(budget.limit);
        let processor = cost.per_core().map_or("-".to_string(), seconds);
        println!(
            "{:<24}{:>4} s   processor / {CORES}: {processor:>8}   clock: {:>8}{}",
            budget.name,
            budget.limit.as_secs(),
            seconds(cost.clock),
            if is_over { "   OVER" } else { "" }
        );
        if is_over {
            over.push(budget.name);
        }
    }
    if over.is_empty() {
        Ok(())
    } else {
        Err(format!("over budget: {}", over.join(", ")))
    }
}

impl Cost {
    fn per_core(self) -> Option<Duration> {
        self.processor.map(|time| time / CORES)
    }

    fn exceeds(self, limit: Duration) -> bool {
        let too_much_work = self
            .per_core()
            .is_some_and(|time| time > limit.mul_f64(PROCESSOR_MARGIN));
        too_much_work || self.clock > limit.mul_f64(CLOCK_MARGIN)
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// User and system time of all children waited for so far, and theirs.
fn processor_of_children() -> Option<Duration> {
    parse_stat(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// `cutime` + `cstime` of a line of `/proc/PID/stat`: the 16th and 17th field.
fn parse_stat(line: &str) -> Option<Duration> {
    // The second field is a name in parentheses, which may hold anything; the third field follows the last `)`.
    let rest = line.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace().skip(13);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(Duration::from_secs(1) * (user + system) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_children_are_read_behind_any_name() {
        let line = "17 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 250 50 20 0";
        assert_eq!(parse_stat(line), Some(Duration::from_secs(3)));
        assert_eq!(parse_stat("17 (x"), None);
    }

    #[test]
    fn work_and_waiting_have_margins() {
        let limit = Duration::from_secs(10);
        let cost = |clock, processor: Option<u64>| Cost {
            clock: Duration::from_secs(clock),
            processor: processor.map(Duration::from_secs),
        };
        assert!(!cost(49, Some(49)).exceeds(limit));
        assert!(cost(26, Some(52)).exceeds(limit), "work");
        assert!(cost(51, Some(4)).exceeds(limit), "waiting");
        assert!(!cost(49, None).exceeds(limit));
    }
}
