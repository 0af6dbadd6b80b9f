//! The stored bytes of a rollup, and what one snapshot shows of it.
//!
//! ```text
//! [0]                                            header: see the catalog
//! [0] [1]                                        version of the bins (8), random
//! [1] bin (8) generation (8) end (8) key         {k: key of the first bin, or null for every series}
//! [2] bin (8) key                                {k: key, s: [state, …]}
//! ```
//!
//! The record of a bin in an index is what follows the first byte of its key. Entries are in keyspaces of their own
//! ([`super::indexes`]).
//!
//! Bins and ends have their sign flipped, so that they order as instants. The end of the last bin is in the key of a mark: a
//! mark never takes the place of a longer one.
//!
//! Keys of groups are key strings, in which equal values of several types are equal, as they are for `$group`. States are
//! those of [`crate::eval::accumulator`], in the order of the fields.
//!
//! A bin shows the truth if it starts before `closed_ms` of the header, and no mark covers it. The marks are in the batch of
//! the write that made the bin dirty; a refresh removes them in the batch that stores the bin. So a bin is dirty, or stored as
//! the source has it, in every snapshot.

use nilometer_bson::key_string::{KeyBuilder, KeyOrder};
use nilometer_bson::{DocRef, Document, Value, ValueRef, doc};
use nilometer_storage::{Bytes, Direction, Engine, KeyspaceId, Snapshot, WriteBatch};

use crate::catalog::{BINS_VERSION_KEY, HEADER_KEY, RollupProgress, StoredRollup};
use crate::error::{Error, ErrorCode, Result};
use crate::index::Index;
use crate::index::entry::{self, StoredEntry};

const MARKS: u8 = 1;
const BINS: u8 = 2;

/// Field of the key in a stored bin, as in a group that `$group` writes to disk.
pub const KEY_FIELD: &str = "k";
/// Field of the states in a stored bin.
pub const STATES_FIELD: &str = "s";

/// A range of instants: the first, and the first after it.
pub type TimeSpan = (i64, i64);

/// The span of all bins.
pub const BIN_TIMES: TimeSpan = (i64::MIN, i64::MAX);

/// Bins of a series that may have changed since they were stored.
#[derive(Clone, Debug)]
pub struct DirtyMark {
    /// The key under which it is stored.
    pub stored_at: Vec<u8>,
    /// The start of the first bin, and the end of the last.
    pub span: TimeSpan,
    /// The generation in which it was written.
    pub generation: u64,
    /// The key of the first bin; `None` if all series may have changed.
    pub key: Option<Document>,
}

/// A stored bin: key and states.
#[derive(Clone, Debug)]
pub struct StoredBin(Bytes);

impl StoredBin {
    fn new(bytes: Bytes) -> Option<Self> {
        DocRef::new(&bytes)?;
        Some(Self(bytes))
    }

    /// Returns the document.
    pub fn as_doc(&self) -> DocRef<'_> {
        DocRef::new(&self.0).unwrap_or(DocRef::EMPTY)
    }
}

/// A rollup in one snapshot.
pub struct RollupView {
    snapshot: Box<dyn Snapshot>,
    keyspace: KeyspaceId,
    /// How far it is built.
    pub progress: RollupProgress,
}

impl RollupView {
    /// Takes a snapshot.
    pub fn open(engine: &dyn Engine, rollup: &StoredRollup) -> Result<Self> {
        let snapshot = engine.snapshot()?;
        Ok(Self {
            progress: RollupProgress::read(&*snapshot, rollup.keyspace)?,
            keyspace: rollup.keyspace,
            snapshot,
        })
    }

    /// Returns the version of the bins: another after each change of one. `None` if they were not changed since versions exist.
    pub fn version(&self) -> Result<Option<u64>> {
        let stored = self.snapshot.get(self.keyspace, BINS_VERSION_KEY)?;
        let Some(bytes) = stored else {
            return Ok(None);
        };
        let version = <[u8; 8]>::try_from(&*bytes).map_err(|_| damaged())?;
        Ok(Some(u64::from_be_bytes(version)))
    }

    /// Returns the marks, in the order of their first bins.
    pub fn marks(&self) -> Result<impl Iterator<Item = Result<DirtyMark>>> {
        let scan = self.snapshot.scan(
            self.keyspace,
            &[MARKS],
            Some(&[MARKS + 1]),
            Direction::Forward,
        )?;
        Ok(scan.map(|item| {
            let (key, value) = item?;
            decode_mark(&key, &value).ok_or_else(damaged)
        }))
    }

    /// Returns the spans of dirty bins that `wanted` selects by a key, in order and not adjacent.
    pub fn dirty(&self, wanted: &dyn Fn(DocRef<'_>) -> Result<bool>) -> Result<Vec<TimeSpan>> {
        let mut spans: Vec<TimeSpan> = Vec::new();
        for mark in self.marks()? {
            let mark = mark?;
            if let Some(key) = &mark.key
                && !wanted(key.as_ref())?
            {
                continue;
            }
            match spans.last_mut() {
                Some(last) if mark.span.0 <= last.1 => last.1 = last.1.max(mark.span.1),
                _ => spans.push(mark.span),
            }
        }
        Ok(spans)
    }

    /// Returns the first spans, at most `limit`, of stored bins that are dirty for some series: in order and not adjacent.
    pub fn dirty_spans(&self, limit: usize) -> Result<Vec<TimeSpan>> {
        let (first, end) = (self.progress.changeable_from_ms(), self.progress.closed_ms);
        let mut spans: Vec<TimeSpan> = Vec::new();
        for mark in self.marks()? {
            let (from, to) = mark?.span;
            let (from, to) = (from.max(first), to.min(end));
            if from >= to {
                continue;
            }
            let known = spans.len();
            match spans.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ if known == limit => break,
                _ => spans.push((from, to)),
            }
        }
        Ok(spans)
    }

    /// Returns the stored bin with this key.
    pub fn bin(&self, start_ms: i64, key: DocRef<'_>) -> Result<Option<Document>> {
        let stored = self.snapshot.get(self.keyspace, &bin_key(start_ms, key))?;
        let Some(bytes) = stored else {
            return Ok(None);
        };
        let bin = DocRef::new(&bytes).map(DocRef::to_document);
        bin.map(Some).ok_or_else(damaged)
    }

    /// Returns the stored bin with this record.
    pub fn bin_of_record(&self, record: &[u8]) -> Result<Option<StoredBin>> {
        let stored = self
            .snapshot
            .get(self.keyspace, &[&[BINS], record].concat())?;
        let bin = stored.map(|bytes| StoredBin::new(bytes).ok_or_else(damaged));
        bin.transpose()
    }

    /// Returns the type bits of an entry of an index of the rollup; `None` if it is not there.
    pub fn entry(&self, index: &Index, entry: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.snapshot.get(index.stored.keyspace, entry)?)
    }

    /// Returns the entries of an index of the rollup whose bytes are at least `start` and less than `end`.
    pub fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<impl Iterator<Item = Result<StoredEntry>> + Send + use<>> {
        entry::scan(&*self.snapshot, index, start, end, direction)
    }

    /// Returns the stored bins that start within `span`, in order of time.
    pub fn bins(
        &self,
        span: TimeSpan,
    ) -> Result<Box<dyn Iterator<Item = Result<StoredBin>> + Send>> {
        let records = self.records(span, None)?;
        Ok(Box::new(records.map(|item| item.map(|(_, bin)| bin))))
    }

    /// Returns the stored bins that start within `span` and come after the record `after`, with their records, in order of time.
    pub fn records(
        &self,
        span: TimeSpan,
        after: Option<&[u8]>,
    ) -> Result<impl Iterator<Item = Result<(Vec<u8>, StoredBin)>> + Send + use<>> {
        let end = match span.1 {
            i64::MAX => vec![BINS + 1],
            end => prefix(BINS, end),
        };
        let start = match after {
            Some(after) => [&[BINS], after, &[0]].concat(),
            None => prefix(BINS, span.0),
        };
        let scan = self
            .snapshot
            .scan(self.keyspace, &start, Some(&end), Direction::Forward)?;
        Ok(scan.map(|item| {
            let (key, value) = item?;
            let bin = StoredBin::new(value).ok_or_else(damaged)?;
            Ok((key.get(1..).unwrap_or_default().to_vec(), bin))
        }))
    }
}

impl std::fmt::Debug for RollupView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RollupView")
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

/// Adds a mark to a batch. `key` is that of the first bin; `None` stands for all series.
pub fn put_mark(
    batch: &mut WriteBatch,
    rollup: &StoredRollup,
    generation: u64,
    span: TimeSpan,
    key: Option<&Document>,
) {
    let mut stored_at = prefix(MARKS, span.0);
    stored_at.extend_from_slice(&generation.to_be_bytes());
    stored_at.extend_from_slice(&flipped(span.1));
    let mut value = doc! {"k": Value::Null};
    if let Some(key) = key {
        stored_at.extend_from_slice(&key_string(key.as_ref()));
        value = doc! {"k": key.clone()};
    }
    batch.put(rollup.keyspace, stored_at, value.into_bytes());
}

/// Adds a bin to a batch.
pub fn put_bin(batch: &mut WriteBatch, rollup: &StoredRollup, start_ms: i64, bin: Document) {
    let key = bin_key(
        start_ms,
        bin.get(KEY_FIELD).as_document().unwrap_or(DocRef::EMPTY),
    );
    batch.put(rollup.keyspace, key, bin.into_bytes());
}

/// Removes the bin with this record.
pub fn delete_record(batch: &mut WriteBatch, rollup: &StoredRollup, record: &[u8]) {
    batch.delete(rollup.keyspace, [&[BINS], record].concat());
}

/// Returns the record of the bin with this key.
pub fn bin_record(start_ms: i64, key: DocRef<'_>) -> Vec<u8> {
    let mut record = bin_key(start_ms, key);
    record.remove(0);
    record
}

/// Returns the start of the bin with this record; `None` if the record is damaged.
pub fn record_time(record: &[u8]) -> Option<i64> {
    let start = record.first_chunk::<8>()?;
    Some(i64::from_be_bytes(*start) ^ i64::MIN)
}

/// Removes the bin with this key.
pub fn delete_bin(batch: &mut WriteBatch, rollup: &StoredRollup, start_ms: i64, key: DocRef<'_>) {
    batch.delete(rollup.keyspace, bin_key(start_ms, key));
}

/// Stores the version of the bins, in the batch that changes them.
pub fn put_version(batch: &mut WriteBatch, rollup: &StoredRollup, version: u64) {
    let version = version.to_be_bytes().to_vec();
    batch.put(rollup.keyspace, BINS_VERSION_KEY.to_vec(), version);
}

/// Stores the header.
pub fn put_header(batch: &mut WriteBatch, rollup: &StoredRollup, progress: &RollupProgress) {
    let header = progress.encode().into_bytes();
    batch.put(rollup.keyspace, HEADER_KEY.to_vec(), header);
}

/// Returns bytes that are equal for keys that are one group.
pub fn key_string(key: DocRef<'_>) -> Vec<u8> {
    let mut builder = KeyBuilder::new(KeyOrder::new([false]));
    builder.push(ValueRef::Document(key));
    builder.finish().0
}

fn bin_key(start_ms: i64, key: DocRef<'_>) -> Vec<u8> {
    let mut out = prefix(BINS, start_ms);
    out.extend_from_slice(&key_string(key));
    out
}

/// Returns the start of the keys of a bin: instants order as their bytes do.
fn prefix(kind: u8, start_ms: i64) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&flipped(start_ms));
    out
}

/// Returns an instant as bytes that order as instants do.
fn flipped(ms: i64) -> [u8; 8] {
    (ms ^ i64::MIN).to_be_bytes()
}

fn decode_mark(key: &[u8], value: &[u8]) -> Option<DirtyMark> {
    let instant = |at: std::ops::Range<usize>| -> Option<i64> {
        Some(i64::from_be_bytes(key.get(at)?.try_into().ok()?) ^ i64::MIN)
    };
    let generation = u64::from_be_bytes(key.get(9..17)?.try_into().ok()?);
    let mark = DocRef::new(value)?;
    Some(DirtyMark {
        stored_at: key.to_vec(),
        span: (instant(1..9)?, instant(17..25)?),
        generation,
        key: mark.get(KEY_FIELD).as_document().map(DocRef::to_document),
    })
}

fn damaged() -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        "a stored bin of a rollup cannot be read",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_storage::{Durability, KeyspaceOptions, MemoryEngine};

    use super::*;
    use crate::catalog::RollupOptions;

    #[test]
    fn marks_and_bins_are_read_as_written() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let keyspace = engine
            .create_keyspace("rollup/1", KeyspaceOptions::default())
            .unwrap();
        let options = RollupOptions {
            lateness_ms: 0,
            refresh_ms: 0,
            expire_after_seconds: None,
        };
        let rollup = StoredRollup::new([1; 16], keyspace, ("ts".into(), vec![]), options);
        let key = |bed: i32, at: i64| doc! {"bed": bed, "t": Value::DateTime(at)};
        let mut batch = WriteBatch::new();
        put_mark(&mut batch, &rollup, 1, (-20, -10), Some(&key(1, -20)));
        put_mark(&mut batch, &rollup, 2, (-10, 10), Some(&key(2, -10)));
        put_mark(&mut batch, &rollup, 2, (30, 40), None);
        put_mark(&mut batch, &rollup, 2, (50, 60), Some(&key(2, 50)));
        for at in [-10, 0, 10] {
            let states = Value::from(vec![Value::Int32(1)]);
            put_bin(&mut batch, &rollup, at, doc! {"k": key(1, at), "s": states});
        }
        let progress = RollupProgress {
            closed_ms: 20,
            ..RollupProgress::default()
        };
        put_header(&mut batch, &rollup, &progress);
        engine.commit(batch, Durability::Buffered).unwrap();
        let view = RollupView::open(&*engine, &rollup).unwrap();
        assert_eq!(view.progress, progress);
        let all = view.dirty(&|_| Ok(true)).unwrap();
        assert_eq!(all, [(-20, 10), (30, 40), (50, 60)]);
        let first = view.dirty(&|key| Ok(key.get("bed").as_exact_i64() == Some(1)));
        assert_eq!(first.unwrap(), [(-20, -10), (30, 40)]);
        let bins = |span| -> Vec<i64> {
            let bins = view.bins(span).unwrap();
            let times = bins.map(|bin| {
                match bin
                    .unwrap()
                    .as_doc()
                    .get("k")
                    .as_document()
                    .unwrap()
                    .get("t")
                {
                    ValueRef::DateTime(at) => at,
                    other => panic!("{other:?}"),
                }
            });
            times.collect()
        };
        assert_eq!(bins((i64::MIN, i64::MAX)), [-10, 0, 10]);
        assert_eq!(bins((-5, 10)), [0]);
        let mut batch = WriteBatch::new();
        delete_bin(
            &mut batch,
            &rollup,
            0,
            doc! {"bed": 1.0, "t": Value::DateTime(0)}.as_ref(),
        );
        engine.commit(batch, Durability::Buffered).unwrap();
        let view = RollupView::open(&*engine, &rollup).unwrap();
        assert_eq!(view.bins((i64::MIN, i64::MAX)).unwrap().count(), 2);
        let records = |after: Option<&[u8]>| -> Vec<Vec<u8>> {
            let found = view.records((-10, i64::MAX), after).unwrap();
            found.map(|item| item.unwrap().0).collect()
        };
        let all = records(None);
        assert_eq!(all.len(), 2);
        assert_eq!(records(Some(&all[0])), all[1..]);
        assert_eq!(record_time(&all[0]), Some(-10));
        let bin = view.bin_of_record(&all[1]).unwrap().unwrap();
        let bin_key = bin.as_doc().get("k").as_document().unwrap();
        assert_eq!(bin_record(10, bin_key), all[1]);
    }
}
