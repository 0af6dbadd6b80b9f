//! The last lines of the log, for `getLog`.
//!
//! The log writer pushes its lines here as well. The oldest lines are removed; the total count remains.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::LogLevels;

/// Lines stored per ring.
const LINES_MAX: usize = 1024;

/// Longest stored line, in bytes.
const LINE_BYTES_MAX: usize = 10 * 1024;

/// The last lines and the total count.
#[derive(Clone, Debug, Default)]
pub struct LogLines {
    /// Lines written since the start.
    pub total: u64,
    /// The last of them, oldest first.
    pub lines: VecDeque<String>,
}

impl LogLines {
    fn push(&mut self, line: &str) {
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(cut(line).to_owned());
        self.total += 1;
    }
}

/// Returns the first `LINE_BYTES_MAX` bytes of a line, cut at a character boundary.
fn cut(line: &str) -> &str {
    let mut end = line.len().min(LINE_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.get(..end).unwrap_or("")
}

/// The rings of `getLog`, and what reaches the log.
#[derive(Debug, Default)]
pub struct LogRing {
    /// The verbosity of each component.
    pub levels: LogLevels,
    global: Mutex<LogLines>,
    startup_warnings: Mutex<LogLines>,
}

impl LogRing {
    /// The names of the rings, as `getLog: "*"` lists them.
    pub const NAMES: &'static [&'static str] = &["global", "startupWarnings"];

    /// Adds a line of the log.
    pub fn push(&self, line: &str) {
        lock(&self.global).push(line);
    }

    /// Adds a startup warning, which clients show on connecting.
    pub fn push_startup_warning(&self, line: &str) {
        lock(&self.startup_warnings).push(line);
    }

    /// Returns the lines of the ring called `name`.
    pub fn lines(&self, name: &str) -> Option<LogLines> {
        match name {
            "global" => Some(lock(&self.global).clone()),
            "startupWarnings" => Some(lock(&self.startup_warnings).clone()),
            _ => None,
        }
    }

    /// Empties the ring called `name`; false if there is none.
    pub fn clear(&self, name: &str) -> bool {
        match name {
            "global" => lock(&self.global).lines.clear(),
            "startupWarnings" => lock(&self.startup_warnings).lines.clear(),
            _ => return false,
        }
        true
    }
}

fn lock(lines: &Mutex<LogLines>) -> MutexGuard<'_, LogLines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_lines_are_removed_but_counted() {
        let ring = LogRing::default();
        for at in 0..LINES_MAX + 10 {
            ring.push(&at.to_string());
        }
        let found = ring.lines("global").unwrap();
        assert_eq!(found.lines.len(), LINES_MAX);
        assert_eq!(found.lines.front().map(String::as_str), Some("10"));
        assert_eq!(found.total, 1034);
        assert!(ring.lines("rs").is_none());
    }

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        let ring = LogRing::default();
        ring.push(&"ä".repeat(LINE_BYTES_MAX));
        let found = ring.lines("global").unwrap();
        assert_eq!(found.lines.front().map(String::len), Some(LINE_BYTES_MAX));
    }
}
