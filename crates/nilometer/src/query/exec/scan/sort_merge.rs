//! Merges several index scans that are each sorted: `SORT_MERGE`.
//!
//! Entries are compared by the bytes of the components in the order, inverted where a scan's index
//! has the opposite direction. Equal entries are returned in the order of the scans. A record is returned once.

use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::key_string;

use super::index_scan::{IndexScan, KeyStats, KeyStream, Next, ViewAt, unreadable};
use super::returned_records::ReturnedRecords;
use crate::error::Result;
use crate::query::planner::access::{IndexScanPlan, MergeOrder};
use crate::query::source::IndexEntry;

/// Merge key of an entry: one byte string for each part of the order, ascending.
type MergeKey = Vec<Vec<u8>>;

struct Arm {
    scan: IndexScan,
    plan: IndexScanPlan,
    components: Vec<usize>,
    /// The next entry; `None` before the first step and at the end.
    next: Option<(MergeKey, IndexEntry)>,
    done: bool,
}

/// Several sorted scans, merged.
pub(crate) struct SortMerge {
    arms: Vec<Arm>,
    descending: Vec<bool>,
    returned: ReturnedRecords,
    stats: Arc<KeyStats>,
}

impl SortMerge {
    pub(crate) fn new(
        scans: Vec<(IndexScanPlan, IndexScan)>,
        order: &MergeOrder,
        stats: Arc<KeyStats>,
    ) -> Self {
        let components = order.components.iter().cloned();
        let arms = scans.into_iter().zip(components);
        Self {
            arms: arms
                .map(|((plan, scan), components)| Arm {
                    scan,
                    plan,
                    components,
                    next: None,
                    done: false,
                })
                .collect(),
            descending: order.descending.clone(),
            returned: ReturnedRecords::new("SORT_MERGE"),
            stats,
        }
    }
}

impl Arm {
    /// Looks up the next entry; true once it is known, or known not to exist.
    fn fill(&mut self, at: ViewAt<'_>) -> Result<bool> {
        if self.next.is_some() || self.done {
            return Ok(true);
        }
        match self.scan.next(at)? {
            Next::Entry(entry, _) => {
                let key = self.merge_key(&entry.key)?;
                self.next = Some((key, entry));
                Ok(true)
            }
            Next::NotYet => Ok(false),
            Next::End => {
                self.done = true;
                Ok(true)
            }
        }
    }

    fn merge_key(&self, key: &[u8]) -> Result<MergeKey> {
        let order = self.plan.shape.order();
        let place = |component: usize| -> Result<usize> {
            let rest = key_string::skip(key, order, component).map_err(unreadable)?;
            Ok(key.len() - rest.len())
        };
        let mut out = Vec::with_capacity(self.components.len());
        for component in &self.components {
            let (start, end) = (place(*component)?, place(component + 1)?);
            let mut bytes = key.get(start..end).unwrap_or_default().to_vec();
            if order.is_descending(*component) {
                for byte in &mut bytes {
                    *byte = !*byte;
                }
            }
            out.push(bytes);
        }
        Ok(out)
    }
}

fn compare(a: &MergeKey, b: &MergeKey, descending: &[bool]) -> Ordering {
    for ((a, b), descending) in a.iter().zip(b).zip(descending) {
        let order = if *descending { b.cmp(a) } else { a.cmp(b) };
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

impl KeyStream for SortMerge {
    fn next(&mut self, at: ViewAt<'_>) -> Result<Next> {
        for arm in &mut self.arms {
            if !arm.fill(at)? {
                return Ok(Next::NotYet);
            }
        }
        let heads = self.arms.iter().enumerate();
        let heads = heads.filter_map(|(n, arm)| arm.next.as_ref().map(|(key, _)| (n, key)));
        let first = heads.min_by(|(_, a), (_, b)| compare(a, b, &self.descending));
        let Some(number) = first.map(|(number, _)| number) else {
            return Ok(Next::End);
        };
        let taken = self.arms.get_mut(number).and_then(|arm| arm.next.take());
        let Some((_, entry)) = taken else {
            return Ok(Next::End);
        };
        if self.returned.insert(&entry.record, at.memory)? {
            KeyStats::add(&self.stats.returned);
            return Ok(Next::Entry(entry, number));
        }
        KeyStats::add(&self.stats.repeated);
        Ok(Next::NotYet)
    }

    fn skip_equal(&mut self, _: usize) -> Result<()> {
        Ok(())
    }
}
