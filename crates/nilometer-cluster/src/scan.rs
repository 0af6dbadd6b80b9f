//! Scans: a few entries at a time at first, then read ahead of the caller.
//!
//! ```text
//! first AHEAD_AFTER_BYTES     read when asked for, in chunks that double; small reads of the store
//! then                        a task reads chunks into a channel of AHEAD_CHUNKS; large reads, several at a time
//! ```
//!
//! Most scans end after a few entries, which reading ahead would make dear. The others are bound by the latency of the
//! store unless many of its requests are in flight.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Bound;
use std::sync::Arc;

use nilometer_storage::{Bytes, Direction, Error, Result};
use slatedb::config::ScanOptions;
use slatedb::{DbIterator, DbReader, DbSnapshot, IterationOrder, KeyValue};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::AbortHandle;

use crate::error::convert;
use crate::layout::PREFIX_BYTES;

/// Entries of the first chunk.
const FIRST_ENTRIES: usize = 8;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 128 * 1024;

/// Bytes after which a task reads ahead.
const AHEAD_AFTER_BYTES: usize = 256 * 1024;

/// Chunks that wait for the caller.
pub(crate) const AHEAD_CHUNKS: usize = 8;

/// Bytes of one read of the store, before and after a task reads ahead.
const READ_BYTES: [usize; 2] = [32 * 1024, 1024 * 1024];

/// Reads of the store in flight for one table, before and after a task reads ahead.
const READS: [usize; 2] = [1, 8];

pub(crate) type Range = (Bound<bytes::Bytes>, Bound<bytes::Bytes>);
pub(crate) type Chunk = VecDeque<(Bytes, Bytes)>;

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
    chunk: Chunk,
    source: Source,
    /// What is not yet in a chunk. Only while nothing reads ahead.
    rest: Range,
    direction: Direction,
    entries_next: usize,
    bytes_read: usize,
    scanned: S,
    /// The runtime of SlateDB, and the path of the database.
    place: (Handle, Arc<str>),
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
    /// Returns a scan of the stored keys in `range`. It reads nothing yet.
    pub(crate) fn new(
        scanned: S,
        place: (Handle, Arc<str>),
        range: Range,
        direction: Direction,
        open: H,
    ) -> Self {
        Self {
            chunk: Chunk::new(),
            source: Source::Unopened,
            rest: range,
            direction,
            entries_next: FIRST_ENTRIES,
            bytes_read: 0,
            scanned,
            place,
            _open: open,
        }
    }

    fn wait_for<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, slatedb::Error>>,
    ) -> Result<T> {
        let (handle, path) = &self.place;
        handle.block_on(call).map_err(|error| convert(path, &error))
    }

    /// Reads the next chunk, which is empty at the end.
    fn fill(&mut self) -> Result<()> {
        if self.bytes_read >= AHEAD_AFTER_BYTES && !matches!(self.source, Source::Ahead(_)) {
            self.source = Source::Ahead(self.read_ahead());
        }
        if matches!(self.source, Source::Unopened) {
            let options = scan_options(self.direction, 0);
            let iterator = self.wait_for(self.scanned.scan(self.rest.clone(), &options))?;
            self.source = Source::WhenAsked(Box::new(iterator));
        }
        let (handle, path) = &self.place;
        match &mut self.source {
            Source::WhenAsked(iterator) => {
                let read = handle.block_on(read_chunk(iterator, self.entries_next));
                let (chunk, bytes, last) = read.map_err(|error| convert(path, &error))?;
                self.chunk = chunk;
                self.bytes_read += bytes;
                self.entries_next = self.entries_next.saturating_mul(2);
                if let Some(last) = last {
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

    /// Starts a task that reads what is left.
    fn read_ahead(&self) -> Ahead {
        let (sender, chunks) = channel(AHEAD_CHUNKS);
        let scanned = self.scanned.clone();
        let (rest, options) = (self.rest.clone(), scan_options(self.direction, 1));
        let path = Arc::clone(&self.place.1);
        let task = self.place.0.spawn(async move {
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
                let ends = read.as_ref().map_or(true, |(chunk, _, _)| chunk.is_empty());
                let sent = sender.send(read.map(|(chunk, _, _)| chunk)).await;
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

/// Returns the options of a scan, before (0) and after (1) a task reads ahead.
pub(crate) fn scan_options(direction: Direction, stage: usize) -> ScanOptions {
    ScanOptions::default()
        .with_cache_blocks(true)
        .with_read_ahead_bytes(READ_BYTES[stage])
        .with_max_fetch_tasks(READS[stage])
        .with_order(match direction {
            Direction::Forward => IterationOrder::Ascending,
            Direction::Backward => IterationOrder::Descending,
        })
}

/// Reads up to a number of entries, and about `CHUNK_BYTES`. Returns them, their bytes, and the last stored key.
pub(crate) async fn read_chunk(
    iterator: &mut DbIterator,
    entries_max: usize,
) -> std::result::Result<(Chunk, usize, Option<bytes::Bytes>), slatedb::Error> {
    let (mut chunk, mut bytes, mut last) = (Chunk::new(), 0, None);
    while chunk.len() < entries_max && bytes < CHUNK_BYTES {
        let Some(KeyValue { key, value, .. }) = iterator.next().await? else {
            break;
        };
        bytes += key.len() + value.len();
        let own_key = key.get(PREFIX_BYTES..).unwrap_or_default();
        chunk.push_back((Bytes::copy_from(own_key), Bytes::copy_from(&value)));
        last = Some(key);
    }
    Ok((chunk, bytes, last))
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
        self.chunk.pop_front().map(Ok)
    }
}
