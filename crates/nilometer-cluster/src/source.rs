//! A database that is only read: as the source of a copy.
//!
//! Reading takes nothing from a writer that is at work: the reader fences no writer. It writes a checkpoint into the
//! manifest, so that garbage collection keeps what it reads, and removes it when it is closed. It shows one moment: what
//! was durable when it was opened.

use std::sync::Arc;
use std::time::Duration;

use nilometer_storage::{
    Bytes, Direction, Error, Keyspace, KeyspaceId, Result, Scan, ScanEntries, Snapshot,
};
use object_store::ObjectStore;
use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};

use crate::engine::{is_empty, runtime};
use crate::error::convert;
use crate::keyspaces;
use crate::layout;
use crate::scan::{AHEAD_CHUNKS, Chunk, Width, own_entry, read_chunk, scan_options};
use crate::still_clock::StillClock;

/// Time for which the checkpoint of a reader is kept, so that of one that was killed, too. A copy takes less.
const CHECKPOINT_LIFETIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Threads that read.
const THREADS: usize = 2;

/// A view of the database at a path.
pub struct SlateSource {
    reader: Arc<OpenReader>,
    keyspaces: Vec<Keyspace>,
}

/// An open reader, which is closed with the last scan.
struct OpenReader {
    db: DbReader,
    runtime: Arc<Runtime>,
    path: String,
}

impl SlateSource {
    /// Opens the database at `path` in `store`. Fails if there is none.
    pub fn open(store: Arc<dyn ObjectStore>, path: &str) -> Result<Self> {
        let runtime = Arc::new(runtime(path, THREADS)?);
        runtime.block_on(Self::open_on(&runtime, store, path))
    }

    /// Opens a database that is read on a runtime which others use, too.
    pub(crate) async fn open_on(
        runtime: &Arc<Runtime>,
        store: Arc<dyn ObjectStore>,
        path: &str,
    ) -> Result<Self> {
        if is_empty(&store, path).await? {
            return Err(Error::Store {
                reason: format!("there is no database at {path}"),
            });
        }
        let options = DbReaderOptions {
            checkpoint_lifetime: CHECKPOINT_LIFETIME,
            ..DbReaderOptions::default()
        };
        let built = DbReader::builder(path.to_owned(), store)
            .with_reader_mode(DbReaderMode::ManagedCheckpoint)
            .with_options(options)
            .with_system_clock(Arc::new(StillClock::default()))
            .with_db_cache_disabled()
            .build();
        let db = built.await.map_err(|error| convert(path, &error))?;
        let keyspaces = match keyspaces::read_keyspaces(&db, path).await {
            Ok(keyspaces) => keyspaces,
            Err(error) => {
                // What remains of a failed close is a checkpoint that expires.
                let _ = db.close().await;
                return Err(error);
            }
        };
        let reader = OpenReader {
            db,
            runtime: Arc::clone(runtime),
            path: path.to_owned(),
        };
        Ok(Self {
            reader: Arc::new(reader),
            keyspaces,
        })
    }

    /// Returns the number of the last batch that it shows.
    pub(crate) fn sequence(&self) -> u64 {
        self.reader.db.status().durable_seq
    }

    fn check_exists(&self, id: KeyspaceId) -> Result<()> {
        match self.keyspaces.iter().any(|known| known.id == id) {
            true => Ok(()),
            false => Err(Error::UnknownKeyspace { id: id.0 }),
        }
    }
}

impl Drop for OpenReader {
    fn drop(&mut self) {
        // What remains of a failed close is a checkpoint that expires.
        let _ = self.runtime.block_on(self.db.close());
    }
}

impl Snapshot for SlateSource {
    fn keyspaces(&self) -> Vec<Keyspace> {
        self.keyspaces.clone()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        self.check_exists(keyspace)?;
        let Some(stored) = layout::possible_key(keyspace, key) else {
            return Ok(None);
        };
        let OpenReader { db, runtime, path } = &*self.reader;
        let value = runtime.block_on(db.get(stored));
        let value = value.map_err(|error| convert(path, &error))?;
        Ok(value.map(|value| Bytes::copy_from(&value)))
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        self.check_exists(keyspace)?;
        let Some(range) = layout::range(keyspace, start, end) else {
            return Ok(Box::new(std::iter::empty()));
        };
        let (sender, chunks) = channel(AHEAD_CHUNKS);
        let reader = Arc::downgrade(&self.reader);
        let options = scan_options(direction, Width::Ahead);
        let scan = self.reader.db.scan_with_options(range, &options);
        let iterator = self.reader.runtime.block_on(scan);
        let path = self.reader.path.clone();
        let mut iterator = iterator.map_err(|error| convert(&path, &error))?;
        self.reader.runtime.spawn(async move {
            // The scan keeps the reader open, so it ends before the reader does.
            while reader.strong_count() > 0 {
                let read = read_chunk(&mut iterator, usize::MAX).await;
                let read = read.map_err(|error| convert(&path, &error));
                let ends = read.as_ref().map_or(true, |(chunk, _)| chunk.is_empty());
                let sent = sender.send(read.map(|(chunk, _)| chunk)).await;
                if ends || sent.is_err() {
                    return;
                }
            }
        });
        Ok(Box::new(SourceScan {
            chunk: Chunk::new(),
            chunks,
            has_ended: false,
            _reader: Arc::clone(&self.reader),
        }))
    }
}

/// A scan whose entries a task reads ahead.
struct SourceScan {
    chunk: Chunk,
    chunks: Receiver<Result<Chunk>>,
    has_ended: bool,
    _reader: Arc<OpenReader>,
}

impl ScanEntries for SourceScan {}

impl Iterator for SourceScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() && !self.has_ended {
            match self.chunks.blocking_recv() {
                Some(Ok(chunk)) => {
                    self.has_ended = chunk.is_empty();
                    self.chunk = chunk;
                }
                Some(Err(error)) => {
                    self.has_ended = true;
                    return Some(Err(error));
                }
                // The task panicked.
                None => {
                    self.has_ended = true;
                    return Some(Err(Error::Closed));
                }
            }
        }
        self.chunk.pop_front().map(own_entry).map(Ok)
    }
}
