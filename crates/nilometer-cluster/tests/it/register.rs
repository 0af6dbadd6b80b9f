//! Is a history of operations on one register linearizable? A search over the orders in which they may have taken effect.

use std::collections::HashSet;

/// What an operation did. Values are written once each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Returned this value; `None` if there was none.
    Read(Option<u64>),
    /// Set this value.
    Write(u64),
    /// Replaced the first value by the second.
    Swap(u64, u64),
}

/// An operation: when it was sent, and when it was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) sent: u128,
    /// `None` if it is unknown whether it took effect.
    pub(crate) answered: Option<u128>,
    pub(crate) effect: Effect,
}

impl Effect {
    fn seen(self) -> Option<u64> {
        match self {
            Self::Read(value) => value,
            Self::Swap(expected, _) => Some(expected),
            Self::Write(_) => None,
        }
    }

    fn written(self) -> Option<u64> {
        match self {
            Self::Write(value) | Self::Swap(_, value) => Some(value),
            Self::Read(_) => None,
        }
    }

    /// Returns the value after it, if it is possible at `value`.
    fn apply(self, value: Option<u64>) -> Option<Option<u64>> {
        match self {
            Self::Read(seen) => (seen == value).then_some(value),
            Self::Write(new) => Some(Some(new)),
            Self::Swap(expected, new) => (value == Some(expected)).then_some(Some(new)),
        }
    }
}

/// Operations that may be under way at once.
const WINDOW: usize = 64;

/// True if the operations can have taken effect one after the other, each between its request and its answer, on a register
/// without a value.
pub(crate) fn is_linearizable(history: &[Operation]) -> bool {
    let mut operations = decided(history);
    operations.sort_by_key(|operation| operation.0);
    let mut seen = HashSet::new();
    let mut stack = vec![(0usize, 0u64, None)];
    while let Some((base, done, value)) = stack.pop() {
        if base == operations.len() {
            return true;
        }
        if !seen.insert((base, done, value)) {
            continue;
        }
        let window = operations.iter().enumerate().skip(base).take(WINDOW);
        let open = window.filter(|(at, _)| done & (1 << (at - base)) == 0);
        let open = open.collect::<Vec<_>>();
        let first_answer = open.iter().map(|(_, operation)| operation.1).min();
        for (at, (sent, _, effect)) in open {
            if first_answer.is_some_and(|answer| *sent > answer) {
                break;
            }
            if let Some(value) = effect.apply(value) {
                let mut done = done | 1 << (at - base);
                let mut base = base;
                while done & 1 == 1 {
                    (base, done) = (base + 1, done >> 1);
                }
                stack.push((base, done, value));
            }
        }
    }
    false
}

/// Decides which operations without an answer took effect: those whose value somebody saw, at the latest when that answer
/// came. The others change nothing that anybody saw.
fn decided(history: &[Operation]) -> Vec<(u128, u128, Effect)> {
    // A value may be seen by an operation that is itself without an answer, so again until nothing changes.
    let mut answers = history.iter().map(|o| o.answered).collect::<Vec<_>>();
    loop {
        let mut has_changed = false;
        for (at, operation) in history.iter().enumerate() {
            let Some(value) = operation.effect.written().filter(|_| answers[at].is_none()) else {
                continue;
            };
            let others = history.iter().zip(&answers);
            let seen_by = others.filter(|(other, _)| other.effect.seen() == Some(value));
            let seen_at = seen_by.filter_map(|(_, answer)| *answer).min();
            if seen_at.is_some() {
                (answers[at], has_changed) = (seen_at, true);
            }
        }
        if !has_changed {
            break;
        }
    }
    let known = history.iter().zip(answers);
    known
        .filter_map(|(operation, answer)| Some((operation.sent, answer?, operation.effect)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(sent: u128, answered: u128, effect: Effect) -> Operation {
        Operation {
            sent,
            answered: (answered > 0).then_some(answered),
            effect,
        }
    }

    #[test]
    fn what_a_register_can_do() {
        use Effect::{Read, Swap, Write};
        let possible = [
            operation(1, 4, Write(1)),
            operation(2, 3, Read(None)),
            operation(5, 9, Write(2)),
            operation(6, 7, Read(Some(2))),
            operation(8, 12, Swap(2, 3)),
            operation(10, 11, Read(Some(3))),
            // Unknown, and seen.
            operation(13, 0, Write(4)),
            operation(14, 0, Write(5)),
            operation(20, 21, Read(Some(4))),
        ];
        assert!(is_linearizable(&possible));
    }

    #[test]
    fn what_a_register_cannot_do() {
        use Effect::{Read, Swap, Write};
        for impossible in [
            // A read of an old value after the answer to a newer write.
            vec![
                operation(1, 2, Write(1)),
                operation(3, 4, Write(2)),
                operation(5, 6, Read(Some(1))),
            ],
            // An acknowledged write that is lost.
            vec![operation(1, 2, Write(1)), operation(3, 4, Read(None))],
            // Two that replace the same value.
            vec![
                operation(1, 2, Write(1)),
                operation(3, 6, Swap(1, 2)),
                operation(4, 5, Swap(1, 3)),
            ],
            // A value that comes back.
            vec![
                operation(1, 0, Write(1)),
                operation(2, 3, Read(Some(1))),
                operation(4, 5, Write(2)),
                operation(6, 7, Read(Some(1))),
            ],
        ] {
            assert!(!is_linearizable(&impossible), "{impossible:?}");
        }
    }
}
