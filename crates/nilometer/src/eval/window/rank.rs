//! `$rank`, `$denseRank`, `$documentNumber`: places in the order of the partition. Equal sort keys
//! tie, so null and missing do.

use nilometer_bson::Value;

use super::Partition;
use crate::error::Result;
use crate::eval::accumulator::count_value;

/// Places with gaps behind ties: 1, 1, 3.
pub(super) fn rank(partition: &Partition<'_>) -> Result<Vec<Value>> {
    let mut rank = 0;
    let ties = ties(partition)?;
    let places = (1..).zip(ties).map(|(position, tied)| {
        if !tied {
            rank = position;
        }
        count_value(rank)
    });
    Ok(places.collect())
}

/// Places without gaps: 1, 1, 2.
pub(super) fn dense_rank(partition: &Partition<'_>) -> Result<Vec<Value>> {
    let mut rank = 0;
    let places = ties(partition)?.into_iter().map(|tied| {
        rank += u64::from(!tied);
        count_value(rank)
    });
    Ok(places.collect())
}

/// Positions: 1, 2, 3.
pub(super) fn document_number(count: usize) -> Vec<Value> {
    (1..=count as u64).map(count_value).collect()
}

/// For every document, whether its sort key equals that of the one before.
fn ties(partition: &Partition<'_>) -> Result<Vec<bool>> {
    let Some(sort) = partition.sort_by else {
        return Ok(vec![false; partition.docs.len()]);
    };
    let mut before = None;
    let mut ties = Vec::with_capacity(partition.docs.len());
    for doc in partition.docs {
        let key = sort.extract(doc.as_ref(), partition.ctx)?;
        ties.push(
            before
                .as_ref()
                .is_some_and(|before| sort.compare(before, &key).is_eq()),
        );
        before = Some(key);
    }
    Ok(ties)
}
