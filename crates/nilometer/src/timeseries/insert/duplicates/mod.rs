//! Measurements of the same series and time as one that is there: left out, refused, or put in its place,
//! where the collection asks for that (`timeseries.nilometer.duplicates`).
//!
//! ```text
//! insert ─► group by series ─► claim the series ─► behind the mark? ── yes ─► new
//!                                                       │ no
//!                                             a bucket has the time? ── no ─► new
//!                                                       │ yes
//!                                             ignore │ error │ replace
//! ```
//!
//! Promises:
//!
//! - **Nothing twice.** Of two inserts of the same key, one finds what the other has stored: a series
//!   belongs to one insert from the look to the commit ([`claims`]).
//! - **In order costs little.** A measurement that is newer than all of its series needs no read, nor
//!   does one that is a little late in a series that has late ones.
//! - **Acknowledged means stored.** A measurement that was left out is acknowledged when the one that is
//!   there is as durable as was asked for.
//!
//! Only inserts look: an update may give a measurement the time of another, and raw writes of buckets are
//! not looked into. Who writes measurements that way has what is remembered of the series forgotten.

mod claims;
mod existing;
mod insert;

use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) use claims::{Claimed, Claims};
use claims::{Memory, Window};
use existing::Existing;

use crate::catalog::{Collection, DuplicatePolicy, DuplicateRule};
use crate::error::Result;
use crate::timeseries::Timeseries;
use crate::timeseries::format::series_key::SeriesMeta;

/// What is known of a measurement that may be a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    /// Nothing has its key.
    None,
    /// One before it in the same command has.
    Earlier,
    /// One that is stored has; `true` if one before it in the same command has too.
    Stored(bool),
}

/// What an insert found out about its measurements of one series.
#[derive(Debug)]
pub(crate) struct Screened {
    /// In the order of the times that were asked about.
    pub(crate) twins: Vec<Twin>,
    /// Where those that are stored are.
    pub(crate) buckets: Vec<[u8; 12]>,
}

impl Timeseries {
    /// Looks for measurements of the same times, which ascend, in the series that is the `at`-th
    /// of those claimed, and moves its mark behind them. `None` if all are new.
    pub(crate) fn screen(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        rule: DuplicateRule,
        claimed: &mut Claimed,
        at: usize,
        (meta, times_ms): (&SeriesMeta, &[i64]),
    ) -> Result<Option<Screened>> {
        let (Some(options), Some(&last)) = (&collection.timeseries, times_ms.last()) else {
            return Ok(None);
        };
        let Some(memory) = claimed.memories.get_mut(at) else {
            return Ok(None);
        };
        let newest = match memory.mark_ms {
            Some(newest) => newest,
            None => self.newest_of(collection, options, rule.span_ms, meta)?,
        };
        memory.mark_ms = Some(newest.max(last));
        let late = times_ms.partition_point(|time| *time <= newest);
        let repeats = times_ms.windows(2).any(|pair| pair.first() == pair.last());
        if late == 0 && !repeats {
            return Ok(None);
        }
        let late = times_ms.get(..late).unwrap_or_default();
        let existing = self.existing_late(collection, rule, memory, meta, late, newest)?;
        if existing.times_ms.is_empty() && !repeats {
            return Ok(None);
        }
        let mut before = None;
        let twins = times_ms.iter().map(|time| {
            let repeated = before.replace(*time) == Some(*time);
            match (existing.times_ms.contains(time), repeated) {
                (true, repeated) => Twin::Stored(repeated),
                (false, true) => Twin::Earlier,
                (false, false) => Twin::None,
            }
        });
        Ok(Some(Screened {
            twins: twins.collect(),
            buckets: existing.buckets,
        }))
    }

    /// Which of the times, not later than the newest there is, are those of measurements. Asks the
    /// window first, and storage about what it does not know.
    fn existing_late(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        rule: DuplicateRule,
        memory: &mut Memory,
        meta: &SeriesMeta,
        late: &[i64],
        newest: i64,
    ) -> Result<Existing> {
        let mut existing = Existing::default();
        let mut unknown = BTreeSet::new();
        for time in late {
            let known = memory.window.as_ref().and_then(|window| window.has(*time));
            match known {
                // Where it is has to be found out if it is to be replaced.
                Some(true) if rule.policy != DuplicatePolicy::Replace => {
                    existing.times_ms.insert(*time);
                }
                Some(false) => {}
                _ => {
                    unknown.insert(*time);
                }
            }
        }
        if !late.is_empty() && memory.window.is_none() {
            memory.window = newest.checked_add(1).map(Window::new);
        }
        let (false, Some(options)) = (unknown.is_empty(), &collection.timeseries) else {
            return Ok(existing);
        };
        let unknown: Vec<i64> = unknown.into_iter().collect();
        let mut stored = self.existing(collection, options, rule.span_ms, meta, &unknown)?;
        stored.times_ms.append(&mut existing.times_ms);
        Ok(stored)
    }
}
