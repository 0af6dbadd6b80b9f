//! `$rank`, `$denseRank`, `$documentNumber`: ranks in the order of the partition. Equal sort keys
//! tie, including null with missing. `ties` records for every document whether it ties with the
//! previous one.

use nilometer_bson::Value;

use crate::eval::accumulator::count_value;

/// Returns ranks with gaps after ties: 1, 1, 3.
pub(super) fn rank(ties: &[bool]) -> Vec<Value> {
    let mut rank = 0;
    let places = (1..).zip(ties).map(|(position, tied)| {
        if !*tied {
            rank = position;
        }
        count_value(rank)
    });
    places.collect()
}

/// Returns ranks without gaps: 1, 1, 2.
pub(super) fn dense_rank(ties: &[bool]) -> Vec<Value> {
    let mut rank = 0;
    let places = ties.iter().map(|tied| {
        rank += u64::from(!*tied);
        count_value(rank)
    });
    places.collect()
}

/// Returns positions: 1, 2, 3.
pub(super) fn document_number(count: usize) -> Vec<Value> {
    (1..=count as u64).map(count_value).collect()
}
