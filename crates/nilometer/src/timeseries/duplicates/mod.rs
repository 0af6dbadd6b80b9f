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
//! - **In order costs little.** A measurement that is newer than all of its series needs no read.
//! - **Acknowledged means stored.** A measurement that was left out is acknowledged when the one that is
//!   there is as durable as was asked for.
//!
//! Only inserts look: an update may give a measurement the time of another, and raw writes of buckets are
//! not looked into. Who adds measurements that way has the marks of the series forgotten.

mod claims;
mod existing;
mod insert;

use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) use claims::{Claimed, Claims};

use super::Timeseries;
use super::meta::SeriesMeta;
use crate::catalog::Collection;
use crate::error::Result;

/// What is known of a measurement that may be a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twin {
    /// Nothing has its key.
    None,
    /// One before it in the same command has.
    Earlier,
    /// One that is stored has; `true` if one before it in the same command has too.
    Stored(bool),
}

/// What an insert found out about its measurements of one series.
#[derive(Debug)]
pub(super) struct Screened {
    /// In the order of the times that were asked about.
    pub(super) twins: Vec<Twin>,
    /// Where those that are stored are.
    pub(super) buckets: Vec<[u8; 12]>,
}

impl Timeseries {
    /// Looks for measurements of the same times, which ascend, in the series that is the `at`-th
    /// of those claimed, and moves its mark behind them. `None` if all are new.
    pub(super) fn screen(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        span_ms: i64,
        claimed: &mut Claimed,
        at: usize,
        (meta, times_ms): (&SeriesMeta, &[i64]),
    ) -> Result<Option<Screened>> {
        let (Some(options), Some(&last)) = (&collection.timeseries, times_ms.last()) else {
            return Ok(None);
        };
        let Some(mark_ms) = claimed.marks_ms.get_mut(at) else {
            return Ok(None);
        };
        let newest = match *mark_ms {
            Some(newest) => newest,
            None => self.newest_of(collection, options, span_ms, meta)?,
        };
        *mark_ms = Some(newest.max(last));
        let late = times_ms.partition_point(|time| *time <= newest);
        let repeats = times_ms.windows(2).any(|pair| pair.first() == pair.last());
        if late == 0 && !repeats {
            return Ok(None);
        }
        let wanted = times_ms.get(..late).unwrap_or_default();
        let wanted: Vec<i64> = BTreeSet::from_iter(wanted).into_iter().copied().collect();
        let existing = self.existing(collection, options, span_ms, meta, &wanted)?;
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
}
