//! Keys whose documents a statement for many has not changed yet: partitions have refused its placement, and others have answered.
//!
//! ```text
//! placement before   p0 ─ answered   p1 ─ refused: its ranges are open
//! placement now      p0 ─ is asked for what it has of them now   p1 ─ is asked for what it still has of them
//! ```
//!
//! So a document that has moved meanwhile is neither passed over nor changed twice.

use nilometer_bson::{Document, Value, doc};

use super::placement::{Placement, Sharding};
use super::shard_key::{KeyBound, ShardKey};

/// Keys from a bound to another one, which is only part of it if it is the end of all keys.
type Span = (KeyBound, KeyBound);

/// The open keys of a collection, in order.
pub(crate) struct OpenRanges {
    /// Identifies the collection.
    uuid: [u8; 16],
    spans: Vec<Span>,
}

/// What is open in a partition.
#[derive(Debug, PartialEq)]
pub(crate) enum OpenPart {
    Nothing,
    All,
    /// The documents that pass this filter.
    Some(Document),
}

impl OpenRanges {
    /// Returns what is open when partitions have refused a statement, of which `before` was open; all keys if that is `None`.
    pub(crate) fn of(
        placement: &Placement,
        sharding: &Sharding,
        refused: &[usize],
        before: Option<&Self>,
    ) -> Self {
        let chunks = (0..sharding.chunks.len()).map(|at| {
            let chunk = &sharding.chunks[at];
            (chunk.partition, (chunk.min.clone(), sharding.max_of(at)))
        });
        let refused = chunks.filter(|(partition, _)| refused.contains(partition));
        let spans: Vec<Span> = refused.map(|(_, span)| span).collect();
        Self {
            uuid: placement.uuid,
            spans: before.map_or_else(|| spans.clone(), |before| shared(&before.spans, &spans)),
        }
    }

    /// True if the keys are those of the collection that has this placement.
    pub(crate) fn is_of(&self, placement: &Placement) -> bool {
        self.uuid == placement.uuid
    }

    /// Returns what of it a partition has.
    pub(crate) fn part(&self, sharding: &Sharding, partition: usize) -> OpenPart {
        let all =
            (0..sharding.chunks.len()).filter(|at| sharding.chunks[*at].partition == partition);
        let all = all.map(|at| (sharding.chunks[at].min.clone(), sharding.max_of(at)));
        let all: Vec<Span> = all.collect();
        let open = shared(&self.spans, &all);
        if open.is_empty() {
            return OpenPart::Nothing;
        }
        let closed = without(&all, &open);
        let filters = |spans: &[Span]| -> Vec<Value> { filters_of(&sharding.key, spans) };
        if closed.is_empty() {
            OpenPart::All
        } else if closed.len() < open.len() {
            OpenPart::Some(doc! {"$nor": filters(&closed)})
        } else {
            OpenPart::Some(doc! {"$or": filters(&open)})
        }
    }
}

fn filters_of(key: &ShardKey, spans: &[Span]) -> Vec<Value> {
    let filters = spans.iter().map(|(low, high)| key.between(low, high));
    filters.map(Value::from).collect()
}

/// Returns the keys that are in both of two lists of spans in order.
fn shared(one: &[Span], other: &[Span]) -> Vec<Span> {
    let mut out = Vec::new();
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(first), Some(second)) = (one.peek(), other.peek()) {
        let low = (&first.0).max(&second.0);
        let high = (&first.1).min(&second.1);
        if low < high {
            out.push((low.clone(), high.clone()));
        }
        match first.1 < second.1 {
            true => one.next(),
            false => other.next(),
        };
    }
    out
}

/// Returns the keys of a list of spans in order that are in none of another one, which is part of it.
fn without(all: &[Span], part: &[Span]) -> Vec<Span> {
    let mut out = Vec::new();
    let mut part = part.iter().peekable();
    for (low, high) in all {
        let mut from = low.clone();
        while let Some(next) = part.next_if(|next| next.0 < *high) {
            if from < next.0 {
                out.push((from, next.0.clone()));
            }
            from = next.1.clone();
        }
        if from < *high {
            out.push((from, high.clone()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(list: &[(i32, i32)]) -> Vec<Span> {
        let bound = |value: i32| KeyBound(vec![Value::Int32(value)]);
        let spans = list.iter().map(|(low, high)| (bound(*low), bound(*high)));
        spans.collect()
    }

    fn numbers(spans: &[Span]) -> Vec<(i64, i64)> {
        let number = |bound: &KeyBound| bound.0[0].as_ref().as_exact_i64().unwrap();
        let spans = spans.iter();
        spans
            .map(|(low, high)| (number(low), number(high)))
            .collect()
    }

    #[test]
    fn spans_are_shared_and_taken_away() {
        let all = spans(&[(0, 10), (10, 20), (30, 40)]);
        let found = shared(
            &all,
            &spans(&[(-5, 3), (5, 12), (19, 31), (33, 34), (40, 50)]),
        );
        assert_eq!(
            numbers(&found),
            [(0, 3), (5, 10), (10, 12), (19, 20), (30, 31), (33, 34)]
        );
        let rest = without(&all, &found);
        assert_eq!(numbers(&rest), [(3, 5), (12, 19), (31, 33), (34, 40)]);
        assert!(without(&all, &all).is_empty() && shared(&all, &rest).len() == 4);
        assert_eq!(numbers(&without(&all, &[])), numbers(&all));
    }
}
