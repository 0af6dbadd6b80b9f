//! `local.oplog.rs`: the change log as a capped collection in MongoDB's form, which queries read.
//!
//! ```text
//! find, aggregate ─► OplogSource ─ a page of batches ─► ChangeLog
//!                        └─ EntryReader ─► entries {op, ns, ui, o, o2, ts, t, v, wall}
//! ```
//!
//! Nothing is stored for it. The key of an entry is its `ts`, so a filter on `ts` bounds the scan. Before the entries there is one
//! that changes nothing, so that the collection is never empty.
//!
//! A scan begins when all batches that have their times are visible: a tool that copies collections and then asks for the last
//! entry gets one behind everything it has copied.

mod delta;
mod entries;

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_bson::{Document, Value, ValueRef, doc};

use self::entries::{EntryReader, first_entry};
use super::collections::StoredCollections;
use crate::catalog::{OPLOG, uuid_value};
use crate::change_log::{ChangeLog, LoggedBatch, StreamScope};
use crate::error::{Error, ErrorCode, Result};
use crate::query::source::{
    Direction, RecordIter, RecordKey, RecordScanOptions, RecordSource, Resolved,
};
use crate::write::Arrivals;

/// The number of batches that a backward scan reads first; then it reads more at once.
const FIRST_BATCHES: usize = 2;

impl StoredCollections {
    /// Returns the oplog.
    pub(super) fn oplog(&self) -> Resolved {
        match &self.change_log {
            Some(log) => Resolved::Ordinary(Arc::new(OplogSource {
                log: Arc::clone(log),
                term: self.term(),
            })),
            None => Resolved::Absent,
        }
    }

    fn term(&self) -> i64 {
        let set = self.services.replica_set.as_ref();
        let term = set.map_or(0, |set| set.state().term);
        i64::try_from(term).unwrap_or(i64::MAX)
    }

    /// Returns the entry of `listCollections` of the oplog.
    pub(super) fn describe_oplog(&self) -> Document {
        let (_, bytes_max) = self.oplog_sizes();
        let options = doc! {"capped": true, "size": bytes_max, "autoIndexId": false};
        let uuid = self.authority.collection_uuid(OPLOG);
        doc! {
            "name": OPLOG,
            "type": "collection",
            "options": options,
            "info": doc! { "readOnly": false, "uuid": uuid_value(uuid) },
        }
    }

    /// Returns the `storageStats` of the oplog; sizes divided by `scale`.
    pub(super) fn oplog_stats(&self, scale: i64) -> Result<Document> {
        let (bytes, bytes_max) = self.oplog_sizes();
        let count = match self.oplog() {
            Resolved::Ordinary(source) => source.count_estimate()?,
            _ => 0,
        };
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        Ok(doc! {
            "size": bytes / scale,
            "count": count,
            "avgObjSize": bytes.checked_div(count).unwrap_or(0),
            "numOrphanDocs": 0_i64,
            "storageSize": bytes / scale,
            "totalIndexSize": 0_i64,
            "totalSize": bytes / scale,
            "indexSizes": doc! {},
            "freeStorageSize": 0_i64,
            "nindexes": 0_i64,
            "capped": true,
            "max": 0_i64,
            "maxSize": bytes_max / scale,
            "scaleFactor": scale,
        })
    }

    /// Returns the bytes of the oplog, about, and its size.
    pub(crate) fn oplog_sizes(&self) -> (i64, i64) {
        let sizes = self.change_log.as_ref().map(|log| log.sizes());
        let (bytes, bytes_max) = sizes.unwrap_or_default();
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        (signed(bytes), signed(bytes_max))
    }
}

/// The oplog.
struct OplogSource {
    log: Arc<ChangeLog>,
    term: i64,
}

fn key(time: u64) -> RecordKey {
    time.to_be_bytes().to_vec()
}

fn time_of(key: &RecordKey) -> Option<u64> {
    let key = <[u8; 8]>::try_from(&key[..]).ok()?;
    Some(u64::from_be_bytes(key))
}

/// The error of a scan whose entries are removed before it has read them.
fn with_position_lost(error: Error) -> Error {
    match error.code {
        ErrorCode::ChangeStreamHistoryLost => Error::new(
            ErrorCode::CappedPositionLost,
            "CollectionScan died due to position in capped collection being deleted",
        ),
        _ => error,
    }
}

impl RecordSource for OplogSource {
    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter> {
        if scan.start_after.is_none() {
            self.log.wait_until_visible();
        }
        let bound = |key: &Option<RecordKey>| key.as_ref().and_then(time_of);
        let after = bound(&scan.start_after);
        let (mut min, mut max) = (bound(&scan.min).unwrap_or(0), self.log.visible());
        max = max.min(bound(&scan.max).unwrap_or(u64::MAX));
        let oldest = self.log.before_oldest();
        let mut entries = OplogScan {
            log: Arc::clone(&self.log),
            term: self.term,
            min: 0,
            max: 0,
            ready: VecDeque::new(),
            read: VecDeque::new(),
            to: None,
            batches: FIRST_BATCHES,
            first: None,
            is_done: false,
        };
        match (scan.direction, after) {
            (Direction::Forward, Some(after)) => min = min.max(after.saturating_add(1)),
            (Direction::Backward, Some(after)) => max = max.min(after.saturating_sub(1)),
            (_, None) => {}
        }
        if min <= oldest && oldest <= max {
            let first = first_entry(oldest, self.log.is_whole(), self.term);
            entries.first = Some((key(oldest), first));
        }
        (entries.min, entries.max) = (min.max(oldest.saturating_add(1)), max);
        match scan.direction {
            Direction::Forward => {
                entries.ready.extend(entries.first.take());
                Ok(Box::new(Forward(entries)))
            }
            Direction::Backward => Ok(Box::new(Backward(entries))),
        }
    }

    /// Counts the entries: nothing keeps their number.
    fn count_estimate(&self) -> Result<u64> {
        self.log.wait_until_visible();
        let (mut next, last) = (self.log.before_oldest() + 1, self.log.visible());
        let reader = EntryReader {
            log: &self.log,
            term: self.term,
        };
        let mut count = 1;
        while next <= last {
            let page = self.log.read(next, &StreamScope::Cluster);
            let page = page.map_err(with_position_lost)?;
            for batch in page.batches.iter().filter(|batch| batch.time <= last) {
                count += reader.count(batch)?;
            }
            next = page.up_to + 1;
        }
        Ok(count)
    }

    fn arrivals(&self) -> Result<Option<Arc<Arrivals>>> {
        Ok(Some(self.log.arrivals(&StreamScope::Cluster)))
    }

    fn clustered_key(&self, time: ValueRef<'_>) -> Option<RecordKey> {
        match time {
            ValueRef::Timestamp(time) => Some(key(time.to_u64())),
            _ => None,
        }
    }

    fn is_clustered(&self) -> bool {
        true
    }

    fn cluster_field(&self) -> &str {
        "ts"
    }

    fn end_position(&self) -> Option<RecordKey> {
        Some(key(self.log.visible()))
    }

    fn is_position_kept(&self, position: &RecordKey) -> Result<bool> {
        let oldest = self.log.before_oldest();
        Ok(time_of(position).is_some_and(|time| time >= oldest))
    }

    fn knows_index(&self, _: ValueRef<'_>) -> bool {
        false
    }

    fn record_id(&self, position: &[u8]) -> Value {
        let time = time_of(&position.to_vec()).unwrap_or(0);
        Value::Int64(time.cast_signed())
    }
}

/// Entries of the log between two times, both inclusive.
struct OplogScan {
    log: Arc<ChangeLog>,
    term: i64,
    min: u64,
    max: u64,
    ready: VecDeque<(RecordKey, Document)>,
    /// Batches that were read, in the order of the scan. Their entries are made one batch at a time.
    read: VecDeque<LoggedBatch>,
    /// The time up to which batches were read, or up to which a backward scan reads next.
    to: Option<u64>,
    /// The number of batches that it reads then.
    batches: usize,
    /// The entry before all others, for the end of a backward scan.
    first: Option<(RecordKey, Document)>,
    is_done: bool,
}

impl OplogScan {
    /// Returns the entries of a batch that are in the range.
    fn entries(&self, batch: &LoggedBatch) -> Result<Vec<(RecordKey, Document)>> {
        let reader = EntryReader {
            log: &self.log,
            term: self.term,
        };
        let entries = reader.entries(batch)?.into_iter();
        let within = entries.filter(|(time, _)| (self.min..=self.max).contains(time));
        Ok(within.map(|(time, entry)| (key(time), entry)).collect())
    }

    /// Reads the next page upwards, or makes the entries of the next batch.
    fn read_forward(&mut self) -> Result<()> {
        if let Some(batch) = self.read.pop_front() {
            let entries = self.entries(&batch)?;
            self.ready.extend(entries);
            return Ok(());
        }
        let from = self.to.map_or(self.min, |to| to.saturating_add(1));
        if from > self.max {
            self.is_done = true;
            return Ok(());
        }
        let page = self.log.read(from, &StreamScope::Cluster)?;
        self.to = Some(page.up_to.max(from));
        self.read = page.batches.into();
        Ok(())
    }

    /// Returns the time of the batch that `max` belongs to: its last one may be later.
    fn last_batch(&self) -> Result<u64> {
        if self.max >= self.log.visible() {
            return Ok(self.max);
        }
        let page = self.log.read(self.max, &StreamScope::Cluster)?;
        let first = page.batches.first();
        Ok(first.map_or(self.max, |first| first.time))
    }

    /// Reads the next page downwards, or makes the entries of the next batch.
    fn read_backward(&mut self) -> Result<()> {
        if let Some(batch) = self.read.pop_front() {
            let entries = self.entries(&batch)?;
            self.ready.extend(entries.into_iter().rev());
            return Ok(());
        }
        if self.min <= self.max {
            let to = match self.to {
                Some(to) => to,
                None => self.last_batch()?,
            };
            if self.min <= to {
                self.read = self.log.read_back(to, self.batches)?.into();
                self.batches = self.batches.saturating_mul(self.batches);
            }
        }
        match self.read.back() {
            Some(last) => self.to = Some(last.time - 1),
            None => {
                self.is_done = true;
                self.ready.extend(self.first.take());
            }
        }
        Ok(())
    }

    fn next_entry(
        &mut self,
        read: fn(&mut Self) -> Result<()>,
    ) -> Option<Result<(RecordKey, Document)>> {
        while self.ready.is_empty() && !self.is_done {
            if let Err(error) = read(self) {
                self.is_done = true;
                return Some(Err(with_position_lost(error)));
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

/// From the oldest entry to the newest.
struct Forward(OplogScan);

impl Iterator for Forward {
    type Item = Result<(RecordKey, Document)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_entry(OplogScan::read_forward)
    }
}

/// From the newest entry to the oldest.
struct Backward(OplogScan);

impl Iterator for Backward {
    type Item = Result<(RecordKey, Document)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_entry(OplogScan::read_backward)
    }
}
