//! Scans: a few entries at a time at first, then read ahead of the caller.
//!
//! ```text
//! first WIDER_AFTER_BYTES     read when asked for, block by block, on the thread of the caller; the same after each seek
//! first AHEAD_AFTER_BYTES     several blocks at a time
//! once one asks the store     a task of the engine reads chunks into a channel of AHEAD_CHUNKS, several reads at a time
//! ```
//!
//! Most scans end after a few entries, which reading ahead would make dear. Of the others those of the store are bound by its
//! latency unless many requests are in flight; those of memory or a local disk would only wait for another thread.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Bound;
use std::sync::Arc;

use nilometer_storage::{Bytes, Direction, Error, KeyspaceId, Result, ScanEntries};
use slatedb::config::ScanOptions;
use slatedb::{DbIterator, DbReader, DbSnapshot, IterationOrder, KeyValue};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::AbortHandle;

use crate::caller_runtime::{CallerRuntime, CallerRuntimes};
use crate::error::convert;
use crate::layout::{PREFIX_BYTES, entry_key};

/// Entries of the first chunk. Many scans look for one entry.
const FIRST_ENTRIES: usize = 1;

/// Entries of the first chunk after a seek, at most: as many as were returned after the seek before.
const ENTRIES_AFTER_SEEK_MAX: usize = 16;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 128 * 1024;

/// Bytes without a seek after which several blocks are read at a time: a scan for a few entries would decode the others in vain.
const WIDER_AFTER_BYTES: usize = 4 * 1024;

/// Bytes after which a task reads ahead if the store is asked for the next.
const AHEAD_AFTER_BYTES: usize = 256 * 1024;

/// Chunks that wait for the caller.
pub(crate) const AHEAD_CHUNKS: usize = 8;

/// How much a scan reads of a table at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// A block.
    Block,
    /// Several blocks.
    Blocks,
    /// Parts, several at a time, by a task that reads ahead.
    Ahead,
}

impl Width {
    /// Bytes of one read, at least.
    fn bytes(self) -> usize {
        match self {
            Self::Block => 1,
            Self::Blocks => 32 * 1024,
            Self::Ahead => 1024 * 1024,
        }
    }

    /// Reads in flight for one table.
    fn reads(self) -> usize {
        match self {
            Self::Block | Self::Blocks => 1,
            Self::Ahead => 8,
        }
    }
}

pub(crate) type Range = (Bound<bytes::Bytes>, Bound<bytes::Bytes>);

/// Entries as SlateDB has them: parts of blocks.
pub(crate) type Chunk = VecDeque<KeyValue>;

/// Returns the key, without that of the keyspace, and the value. They are copied: a value that is kept would keep its block.
pub(crate) fn own_entry(KeyValue { key, value, .. }: KeyValue) -> (Bytes, Bytes) {
    let own_key = key.get(PREFIX_BYTES..).unwrap_or_default();
    (Bytes::copy_from(own_key), Bytes::copy_from(&value))
}

/// What is scanned: it does not change.
pub(crate) trait ScanSource: Clone + Send + Sync + 'static {
    /// Begins a scan of stored keys.
    fn scan(
        &self,
        range: Range,
        options: &ScanOptions,
    ) -> impl Future<Output = std::result::Result<DbIterator, slatedb::Error>> + Send;
}

impl ScanSource for Arc<DbSnapshot> {
    async fn scan(
        &self,
        range: Range,
        options: &ScanOptions,
    ) -> std::result::Result<DbIterator, slatedb::Error> {
        self.scan_with_options(range, options).await
    }
}

impl ScanSource for Arc<DbReader> {
    async fn scan(
        &self,
        range: Range,
        options: &ScanOptions,
    ) -> std::result::Result<DbIterator, slatedb::Error> {
        self.scan_with_options(range, options).await
    }
}

/// A scan of one keyspace. `H` keeps open what is scanned.
pub(crate) struct SlateScan<S, H> {
    keyspace: KeyspaceId,
    chunk: Chunk,
    source: Source,
    /// What is not yet in a chunk. Only while nothing reads ahead.
    rest: Range,
    direction: Direction,
    entries_next: usize,
    bytes_read: usize,
    /// The same since the last seek.
    bytes_in_row: usize,
    /// Entries returned since the last seek.
    entries_in_row: usize,
    /// That of the iterator.
    width: Width,
    /// True if the last chunk needed a request to the store.
    has_asked_store: bool,
    scanned: S,
    /// After the iterator, whose tasks run there.
    runtime: CallerRuntime,
    /// Last, so that SlateDB is closed after its snapshots.
    _open: H,
}

enum Source {
    Unopened,
    WhenAsked(Box<DbIterator>),
    Ahead(Ahead),
    Ended,
}

/// A task that reads ahead. It ends with this value.
struct Ahead {
    chunks: Receiver<Result<Chunk>>,
    task: AbortHandle,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<S: ScanSource, H> SlateScan<S, H> {
    /// Returns a scan of the stored keys in a range of a keyspace. It reads nothing yet.
    pub(crate) fn new(
        scanned: S,
        runtimes: &CallerRuntimes,
        (keyspace, range): (KeyspaceId, Range),
        direction: Direction,
        open: H,
    ) -> Self {
        Self {
            keyspace,
            chunk: Chunk::new(),
            source: Source::Unopened,
            rest: range,
            direction,
            entries_next: FIRST_ENTRIES,
            bytes_read: 0,
            bytes_in_row: 0,
            entries_in_row: 0,
            width: Width::Block,
            has_asked_store: false,
            scanned,
            runtime: runtimes.take(),
            _open: open,
        }
    }

    /// Reads the next chunk, which is empty at the end.
    fn fill(&mut self) -> Result<()> {
        if matches!(self.source, Source::WhenAsked(_)) {
            self.widen();
        }
        if matches!(self.source, Source::Unopened) {
            let options = scan_options(self.direction, self.width);
            let scan = self.scanned.scan(self.rest.clone(), &options);
            let iterator = self.runtime.wait_for(scan)?;
            self.source = Source::WhenAsked(Box::new(iterator));
        }
        match &mut self.source {
            Source::WhenAsked(iterator) => {
                let asked = self.runtime.store_reads();
                let read = read_chunk(iterator, self.entries_next);
                let (chunk, bytes) = self.runtime.wait_for(read)?;
                self.has_asked_store = asked.is_none() || self.runtime.store_reads() != asked;
                self.chunk = chunk;
                self.bytes_read += bytes;
                self.bytes_in_row += bytes;
                self.entries_next = self.entries_next.saturating_mul(2);
                if let Some(last) = self.chunk.back().map(|entry| entry.key.clone()) {
                    match self.direction {
                        Direction::Forward => self.rest.0 = Bound::Excluded(last),
                        Direction::Backward => self.rest.1 = Bound::Excluded(last),
                    }
                }
            }
            Source::Ahead(ahead) => {
                self.chunk = match ahead.chunks.blocking_recv() {
                    Some(chunk) => chunk?,
                    // The task ended without an empty chunk: it panicked, or the runtime ends.
                    None => return Err(Error::Closed),
                };
            }
            Source::Unopened | Source::Ended => {}
        }
        Ok(())
    }

    /// Replaces the iterator by a wider one if much was read.
    fn widen(&mut self) {
        let width = match self.width {
            _ if self.bytes_read >= AHEAD_AFTER_BYTES && self.has_asked_store => Width::Ahead,
            Width::Block if self.bytes_in_row >= WIDER_AFTER_BYTES => Width::Blocks,
            _ => return,
        };
        self.width = width;
        self.source = match width {
            // SlateDB refuses an empty range.
            _ if is_empty(&self.rest) => Source::Ended,
            Width::Ahead => Source::Ahead(self.read_ahead()),
            Width::Block | Width::Blocks => Source::Unopened,
        };
    }

    /// Starts a task that reads what is left.
    fn read_ahead(&self) -> Ahead {
        let (sender, chunks) = channel(AHEAD_CHUNKS);
        let scanned = self.scanned.clone();
        let (rest, options) = (
            self.rest.clone(),
            scan_options(self.direction, Width::Ahead),
        );
        let runtimes = self.runtime.all();
        let path = Arc::clone(runtimes.path());
        let task = runtimes.engine().spawn(async move {
            let mut iterator = match scanned.scan(rest, &options).await {
                Ok(iterator) => iterator,
                Err(error) => {
                    let _ = sender.send(Err(convert(&path, &error))).await;
                    return;
                }
            };
            loop {
                let read = read_chunk(&mut iterator, usize::MAX).await;
                let read = read.map_err(|error| convert(&path, &error));
                let ends = read.as_ref().map_or(true, |(chunk, _)| chunk.is_empty());
                let sent = sender.send(read.map(|(chunk, _)| chunk)).await;
                if ends || sent.is_err() {
                    return;
                }
            }
        });
        Ahead {
            chunks,
            task: task.abort_handle(),
        }
    }
}

/// True if no key is in a range: one that was read backward down to its start.
fn is_empty((start, end): &Range) -> bool {
    match (start, end) {
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end)) => start >= end,
        (Bound::Excluded(start), Bound::Included(end)) => start >= end,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

/// Returns the options of a scan.
pub(crate) fn scan_options(direction: Direction, width: Width) -> ScanOptions {
    ScanOptions::default()
        .with_cache_blocks(true)
        .with_read_ahead_bytes(width.bytes())
        .with_max_fetch_tasks(width.reads())
        .with_order(match direction {
            Direction::Forward => IterationOrder::Ascending,
            Direction::Backward => IterationOrder::Descending,
        })
}

/// Reads up to a number of entries, and about `CHUNK_BYTES`. Returns them, and their bytes.
pub(crate) async fn read_chunk(
    iterator: &mut DbIterator,
    entries_max: usize,
) -> std::result::Result<(Chunk, usize), slatedb::Error> {
    let (mut chunk, mut bytes) = (Chunk::new(), 0);
    while chunk.len() < entries_max && bytes < CHUNK_BYTES {
        let Some(entry) = iterator.next().await? else {
            break;
        };
        bytes += entry.key.len() + entry.value.len();
        chunk.push_back(entry);
    }
    Ok((chunk, bytes))
}

impl<S: ScanSource, H: Send> ScanEntries for SlateScan<S, H> {
    /// Moves the iterators over the tables, which costs a search in each; a new scan opens them again.
    fn seek_forward(&mut self, key: &[u8]) -> Result<bool> {
        if self.direction == Direction::Backward {
            return Ok(false);
        }
        let key = entry_key(self.keyspace, key);
        while self.chunk.pop_front_if(|entry| entry.key < key).is_some() {}
        if !self.chunk.is_empty() {
            return Ok(true);
        }
        if matches!(&self.rest.1, Bound::Excluded(end) if *end <= key) {
            self.source = Source::Ended;
        }
        match &mut self.source {
            Source::Ended => return Ok(true),
            // What was read ahead would be thrown away.
            Source::Ahead(_) => return Ok(false),
            Source::Unopened => {}
            Source::WhenAsked(iterator) => self.runtime.wait_for(iterator.seek(&key))?,
        }
        self.rest.0 = Bound::Included(key);
        self.entries_next = self
            .entries_in_row
            .clamp(FIRST_ENTRIES, ENTRIES_AFTER_SEEK_MAX);
        self.entries_in_row = 0;
        self.bytes_in_row = 0;
        Ok(true)
    }
}

impl<S: ScanSource, H> Iterator for SlateScan<S, H> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() && !matches!(self.source, Source::Ended) {
            let filled = self.fill();
            if filled.is_err() || self.chunk.is_empty() {
                self.source = Source::Ended;
            }
            if let Err(error) = filled {
                return Some(Err(error));
            }
        }
        self.entries_in_row += 1;
        self.chunk.pop_front().map(own_entry).map(Ok)
    }
}
