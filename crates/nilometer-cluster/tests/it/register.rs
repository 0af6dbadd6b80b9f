//! Is a history of operations on one register linearizable? A search over the orders in which they may have taken effect.

use std::collections::{BTreeSet, HashSet};

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

/// Operations in the order in which they were sent, and what has taken effect of them.
#[derive(Clone, Hash, PartialEq, Eq)]
struct Prefix {
    /// All before this one have.
    base: usize,
    /// Those behind it that have. They are many while one operation takes long.
    done: BTreeSet<usize>,
    value: Option<u64>,
}

impl Prefix {
    /// Returns the operations that may take effect next: those sent before the first answer that is due.
    fn next(&self, operations: &[(u128, u128, Effect)]) -> Vec<usize> {
        let (mut next, mut first_answer) = (Vec::new(), u128::MAX);
        for (at, (sent, answered, _)) in operations.iter().enumerate().skip(self.base) {
            if *sent > first_answer {
                break;
            }
            if !self.done.contains(&at) {
                first_answer = first_answer.min(*answered);
                next.push(at);
            }
        }
        next
    }

    fn add(&mut self, at: usize, value: Option<u64>) {
        self.value = value;
        self.done.insert(at);
        while self.done.remove(&self.base) {
            self.base += 1;
        }
    }
}

/// True if the operations can have taken effect one after the other, each between its request and its answer, on a register
/// without a value.
pub(crate) fn is_linearizable(history: &[Operation]) -> bool {
    let mut operations = decided(history);
    operations.sort_by_key(|operation| operation.0);
    let mut seen = HashSet::new();
    let mut stack = vec![Prefix {
        base: 0,
        done: BTreeSet::new(),
        value: None,
    }];
    while let Some(mut prefix) = stack.pop() {
        let mut next = prefix.next(&operations);
        // A read changes nothing, so one that fits may be first.
        let fits = |at: &&usize, value| operations[**at].2 == Effect::Read(value);
        while let Some(at) = next.iter().find(|at| fits(at, prefix.value)).copied() {
            prefix.add(at, prefix.value);
            next = prefix.next(&operations);
        }
        if prefix.base == operations.len() {
            return true;
        }
        if !seen.insert(prefix.clone()) {
            continue;
        }
        for at in next {
            if let Some(value) = operations[at].2.apply(prefix.value) {
                let mut after = prefix.clone();
                after.add(at, value);
                stack.push(after);
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

    /// As while the store is away: one write waits for it, and the others read from memory.
    #[test]
    fn many_operations_during_a_long_one() {
        use Effect::{Read, Write};
        let mut history = vec![operation(1, 2, Write(1)), operation(3, 0, Write(2))];
        for at in 0..300 {
            history.push(operation(10 + 2 * at, 11 + 2 * at, Read(Some(1))));
        }
        history.push(operation(1000, 1001, Read(Some(2))));
        assert!(is_linearizable(&history));
        history.push(operation(1002, 1003, Read(Some(1))));
        assert!(!is_linearizable(&history));
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
