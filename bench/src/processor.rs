//! Processor time, which other work on the machine disturbs less than wall time.

/// Ticks per second of processor time on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the processor time of this process in seconds, all threads together; 0 if it is unknown.
pub(crate) fn time() -> f64 {
    time_of("self")
}

/// Returns that of the process with this number, or of `self`.
pub(crate) fn time_of(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may hold anything: state is field 3, user and system time are 14 and 15.
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let fields: Vec<f64> = fields.split(' ').filter_map(|f| f.parse().ok()).collect();
    let ticks: f64 = fields.iter().skip(10).take(2).sum();
    ticks / TICKS_PER_SECOND
}
