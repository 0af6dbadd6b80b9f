//! Index scans: `IXSCAN`, and with a seek past each value `DISTINCT_SCAN`.
//!
//! A scan keeps its position as the bytes of the last entry, so it continues in any
//! view: within one view through an open iterator, in the next by a seek. A key
//! outside the bounds determines the next possible key inside, and the scan seeks to it.
//!
//! A multikey index returns a record once, with the first of its keys inside the bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::key_string;

use super::returned_records::ReturnedRecords;
use crate::error::{Error, ErrorCode, Result};
use crate::query::exec::memory::MemoryPool;
use crate::query::planner::access::{ID_INDEX, IndexScanPlan};
use crate::query::planner::bounds::{KeyBounds, Position};
use crate::query::source::{Direction, EntryIter, IndexEntry, RecordView};

/// Counters of one step of reading by index, for explain.
#[derive(Debug, Default)]
pub struct KeyStats {
    /// Entries examined.
    pub keys: AtomicU64,
    /// Number of seeks.
    pub seeks: AtomicU64,
    /// Entries returned.
    pub returned: AtomicU64,
    /// Entries of records already returned.
    pub repeated: AtomicU64,
}

impl KeyStats {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A view and its number: scans keep an iterator as long as the number stays the same.
#[derive(Clone, Copy)]
pub(crate) struct ViewAt<'a> {
    pub(crate) view: &'a dyn RecordView,
    pub(crate) number: u64,
    /// The memory of queries.
    pub(crate) memory: &'a Arc<MemoryPool>,
}

/// Skipped keys (outside the bounds, or repeated) after which a scan returns [`Next::NotYet`], so that the caller can check for
/// interrupts.
const FRUITLESS_MAX: usize = 64;

/// The stage whose memory the returned records are.
const STAGE: &str = "IXSCAN";

/// Result of a step to the next entry.
pub(crate) enum Next {
    /// An entry, and the index of the scan it comes from.
    Entry(IndexEntry, usize),
    /// No entry yet.
    NotYet,
    /// The end.
    End,
}

/// Iterator over index entries.
pub(crate) trait KeyStream: Send {
    /// Returns the next entry.
    fn next(&mut self, at: ViewAt<'_>) -> Result<Next>;

    /// Skips all entries that agree with the last one in the first `parts` components.
    fn skip_equal(&mut self, parts: usize) -> Result<()>;
}

/// Scan of one index.
pub(crate) struct IndexScan {
    plan: IndexScanPlan,
    bounds: KeyBounds,
    /// Forward: start of the rest, inclusive. Backward: its end, exclusive; `None` for all.
    place: Option<Vec<u8>>,
    /// The bound at the other end.
    end: Option<Vec<u8>>,
    open: Option<(u64, EntryIter)>,
    last_key: Vec<u8>,
    returned: Option<ReturnedRecords>,
    stats: Arc<KeyStats>,
    done: bool,
}

impl IndexScan {
    pub(crate) fn new(plan: IndexScanPlan, stats: Arc<KeyStats>) -> Self {
        let bounds = KeyBounds::new(&plan.bounds, &plan.shape);
        let done = bounds.is_empty();
        let start = match &plan.limits.min {
            Some(min) => min.clone().max(bounds.start()),
            None => bounds.start(),
        };
        let end = match (&plan.limits.max, bounds.end()) {
            (Some(max), Some(end)) => Some(max.clone().min(end)),
            (max, end) => max.clone().or(end),
        };
        let (place, end) = if plan.backward {
            (end, Some(start))
        } else {
            (Some(start), end)
        };
        let multikey = plan.shape.parts.iter().any(|part| part.multikey);
        Self {
            bounds,
            place,
            end,
            open: None,
            last_key: Vec::new(),
            returned: multikey.then(|| ReturnedRecords::new(STAGE)),
            stats,
            done,
            plan,
        }
    }

    fn iterator(&mut self, at: ViewAt<'_>) -> Result<&mut EntryIter> {
        let is_open = matches!(&self.open, Some((number, _)) if *number == at.number);
        if !is_open {
            let place = self.place.as_deref();
            let other = self.end.as_deref();
            let index = &self.plan.index;
            let iter = if self.plan.backward {
                let start = other.unwrap_or_default();
                at.view.entries(index, start, place, Direction::Backward)?
            } else {
                let start = place.unwrap_or_default();
                at.view.entries(index, start, other, Direction::Forward)?
            };
            self.open = Some((at.number, iter));
        }
        match &mut self.open {
            Some((_, iter)) => Ok(iter),
            None => Err(Error::new(ErrorCode::InternalError, "an open walk is gone")),
        }
    }

    fn go_to(&mut self, place: Vec<u8>) {
        self.place = Some(place);
        self.open = None;
        KeyStats::add(&self.stats.seeks);
    }

    fn pass(&mut self, entry: &IndexEntry) {
        // In the `_id` index the values contain the record key.
        let mut place = if self.plan.index.stored.spec.name == ID_INDEX {
            entry.key.clone()
        } else {
            entry.position()
        };
        if !self.plan.backward {
            place.push(0);
        }
        self.place = Some(place);
    }
}

impl KeyStream for IndexScan {
    fn next(&mut self, at: ViewAt<'_>) -> Result<Next> {
        for _ in 0..FRUITLESS_MAX {
            if self.done {
                return Ok(Next::End);
            }
            let Some(entry) = self.iterator(at)?.next() else {
                self.done = true;
                return Ok(Next::End);
            };
            let entry = entry?;
            KeyStats::add(&self.stats.keys);
            let position = if self.plan.backward {
                self.bounds.check_backward(&entry.key)
            } else {
                self.bounds.check_forward(&entry.key)
            };
            match position.map_err(unreadable)? {
                Position::Inside => {
                    self.pass(&entry);
                    if self.returned.is_none() && self.plan.has_new_arrays() {
                        self.returned = Some(ReturnedRecords::new(STAGE));
                    }
                    if let Some(returned) = &mut self.returned
                        && !returned.insert(&entry.record, at.memory)?
                    {
                        KeyStats::add(&self.stats.repeated);
                        continue;
                    }
                    KeyStats::add(&self.stats.returned);
                    self.last_key.clone_from(&entry.key);
                    return Ok(Next::Entry(entry, 0));
                }
                Position::Seek(place) => self.go_to(place),
                Position::Past => self.done = true,
            }
        }
        Ok(Next::NotYet)
    }

    fn skip_equal(&mut self, parts: usize) -> Result<()> {
        let order = self.plan.shape.order();
        let rest = key_string::skip(&self.last_key, order, parts).map_err(unreadable)?;
        let length = self.last_key.len() - rest.len();
        let prefix = self.last_key.get(..length).unwrap_or_default().to_vec();
        if self.plan.backward {
            self.go_to(prefix);
        } else {
            match key_string::prefix_end(prefix) {
                Some(behind) => self.go_to(behind),
                None => self.done = true,
            }
        }
        Ok(())
    }
}

pub(crate) fn unreadable(error: key_string::KeyStringError) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("an index entry cannot be read: {error}"),
    )
}
