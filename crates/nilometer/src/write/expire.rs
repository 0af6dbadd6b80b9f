//! Removing expired records through the index on their date.
//!
//! The dates up to the limit are one range of the index, which holds nothing else. A record with several
//! dates, in an array, expires with the earliest. Other writers proceed between batches.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::key_string::{KeyBuilder, prefix_end};
use nilometer_bson::{Document, ValueRef};

use super::change::{RecordChange, Selection};
use super::records::{CollectionState, KeyBounds, Records, id_key};
use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, EvaluationCounters, EvaluationLimits, InterruptCheck};
use crate::index::{Index, KeyRange};
use crate::operation::Bypass;

/// Records removed per engine batch.
const BATCH_RECORDS_MAX: usize = 1000;

/// Bytes of documents after which a batch ends early.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Records to remove: keys and documents.
type Batch = Vec<(Vec<u8>, Document)>;

impl Records {
    /// Removes the records whose earliest date in `index`, which has one part, is not after `limit_ms`.
    /// Returns their number.
    pub fn expire(
        &self,
        collection: &Collection,
        index: &Arc<Index>,
        limit_ms: i64,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<u64> {
        let (earliest, limit) = dates_up_to(index, limit_ms);
        self.remove_batches(collection, check_interrupt, &mut |_| {
            let view = self.snapshot(collection)?;
            let entries = view.entries(index, &earliest, Some(&limit), false)?;
            let mut known = BTreeSet::new();
            let (mut batch, mut bytes) = (Vec::new(), 0);
            for entry in entries.take(BATCH_RECORDS_MAX) {
                let (_, _, record) = entry?;
                if !known.insert(record.clone()) {
                    continue;
                }
                let Some(document) = view.record(&record)? else {
                    let name = &index.stored.spec.name;
                    return Err(Error::new(
                        ErrorCode::DataCorruptionDetected,
                        format!("the index {name} refers to a missing record"),
                    ));
                };
                bytes += document.as_bytes().len();
                batch.push((record, document));
                if bytes > BATCH_BYTES_MAX {
                    break;
                }
            }
            Ok(batch)
        })
    }

    /// Removes the records of a clustered collection whose `_id` is a date not after `limit_ms`.
    pub fn expire_clustered(
        &self,
        collection: &Collection,
        limit_ms: i64,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<u64> {
        self.remove_batches(collection, check_interrupt, &mut |state| {
            let key = |ms: i64| id_key(ValueRef::DateTime(ms), &state.collation);
            let bounds = KeyBounds {
                min: Some(key(i64::MIN)),
                max: Some(key(limit_ms)),
            };
            self.scan_within(collection, false, None, bounds)?
                .in_large_chunks()
                .next_chunk()
        })
    }

    /// Removes the batches that `next` returns, until one is empty. Other writers proceed in between.
    /// Returns the number of records removed.
    fn remove_batches(
        &self,
        collection: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
        next: &mut dyn FnMut(&CollectionState) -> Result<Batch>,
    ) -> Result<u64> {
        let filter = MatchExpression::AlwaysTrue;
        let interrupt = InterruptCheck(check_interrupt);
        let counters = EvaluationCounters::default();
        let selection = everything(&filter, counters.limits(&interrupt), check_interrupt);
        let state = self.state(collection)?;
        let mut removed = 0;
        loop {
            check_interrupt()?;
            let _writing = state.lock();
            let batch = next(&state)?;
            if batch.is_empty() {
                return Ok(removed);
            }
            removed += batch.len() as u64;
            self.change_chunk(&state, collection, selection, batch, &mut |_, _| {
                Ok(RecordChange::Remove)
            })?;
        }
    }
}

/// Selects all given records, without waiting for the disk.
fn everything<'a>(
    filter: &'a MatchExpression,
    limits: EvaluationLimits<'a>,
    check_interrupt: &'a dyn Fn() -> Result<()>,
) -> Selection<'a> {
    let context = EvalContext {
        limits: Some(limits),
        ..EvalContext::default()
    };
    Selection {
        multi: true,
        bypass: Bypass::ALL,
        ..Selection::first(filter, context, check_interrupt)
    }
}

/// Returns the key strings of the dates up to a limit.
fn dates_up_to(index: &Index, limit_ms: i64) -> KeyRange {
    let key = |ms: i64| {
        let mut builder = KeyBuilder::new(index.order());
        builder.push(ValueRef::DateTime(ms));
        builder.finish().0
    };
    let (earliest, limit) = (key(i64::MIN), key(limit_ms));
    let (low, high) = match index.order().is_descending(0) {
        false => (earliest, limit),
        true => (limit, earliest),
    };
    (low, prefix_end(high).unwrap_or_default())
}
