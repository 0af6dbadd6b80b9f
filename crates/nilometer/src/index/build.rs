//! Building indexes from the existing documents of a collection, concurrently with readers and writers.
//!
//! ```text
//! Catalog::add_indexes        from here on every writer makes entries
//!   │  chunk ── lock ── documents ── keys ── entries + progress ── one batch ── unlock ─┐
//!   │    ▲                                                                               │
//!   │    └──────────── writers proceed for as long as the chunk took ◀───────────────────┘
//! Catalog::finish_index       queries may use it
//! ```
//!
//! All indexes of one command are built in one walk. Writing an entry that a writer has already made has no
//! effect. After a crash the walk resumes after the progress stored last. A build that fails removes its
//! indexes; a build interrupted by shutdown leaves them to the next start.
//!
//! The [`BuildSource`] provides the documents and locks writers out of a chunk: ordinary collections have
//! records, time-series collections buckets.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::Document;
use nilometer_storage::{Durability, Engine, Snapshot, WriteBatch};
use tracing::info;

use super::unique::{PendingKeys, duplicate_key};
use super::{DocumentKeys, Index, KEYS_BYTES_MAX, keys_too_long, put_entries};
use crate::catalog::{Catalog, Collection, StoredIndex};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::OperationContext;

/// Longest pause between two chunks.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Bytes of entries after which a chunk ends early.
const CHUNK_ENTRY_BYTES_MAX: u64 = 32 << 20;

/// Interval of progress messages in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(3);

/// Documents with their record keys, in key order.
pub type DocumentChunk = Vec<(Vec<u8>, Document)>;

/// The documents a build walks.
pub trait BuildSource {
    /// Runs `work` while no document of the collection changes.
    fn exclusively(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Returns the next documents after a record in the snapshot; empty at the end. Writers wait for a
    /// whole chunk, so it must be small.
    fn documents_after(
        &self,
        snapshot: &dyn Snapshot,
        after: Option<&[u8]>,
    ) -> Result<DocumentChunk>;

    /// Returns the number of documents, to report progress.
    fn document_count(&self) -> Result<u64>;

    /// True if writers wait for the build.
    fn has_waiting_writers(&self) -> bool;

    /// Fills the next chunk itself, for sources that know more of the keys than their documents say.
    /// Returns the number of documents and the last record; `None` leaves the chunk to the build.
    fn fill(
        &self,
        build: &IndexBuild<'_>,
        after: Option<&[u8]>,
    ) -> Option<Result<(u64, Option<Vec<u8>>)>> {
        let _ = (build, after);
        None
    }
}

/// The build of some indexes of one collection.
pub struct IndexBuild<'b> {
    /// The catalog that defines the indexes.
    pub catalog: &'b Catalog,
    /// The engine that stores the entries.
    pub engine: &'b dyn Engine,
    /// The collection of the indexes.
    pub collection: &'b Collection,
    /// The indexes to build: added, not finished.
    pub indexes: &'b [Arc<StoredIndex>],
    /// The documents.
    pub source: &'b dyn BuildSource,
    /// The operation that interrupts the build and shows its progress.
    pub operation: &'b OperationContext,
}

/// One index and its changes by the current chunk.
struct BuildingIndex {
    index: Arc<Index>,
    multikey: u32,
    pending: PendingKeys,
}

impl IndexBuild<'_> {
    /// Builds the indexes and lets queries use them, or removes them. Returns the number of documents walked.
    pub fn run(&self) -> Result<u64> {
        let outcome = self.walk();
        let Err(error) = outcome else {
            return outcome;
        };
        if error.code == ErrorCode::InterruptedAtShutdown {
            return Err(error);
        }
        let mine = |keyspace| self.indexes.iter().any(|i| i.keyspace == keyspace);
        let dropped = self.catalog.drop_indexes(self.collection, |there| {
            let keyspaces = there.iter().map(|index| index.keyspace);
            Ok(keyspaces.filter(|keyspace| mine(*keyspace)).collect())
        });
        match dropped {
            // The collection may be dropped, and the indexes with it.
            Err(gone) if gone.code == ErrorCode::NamespaceNotFound => Err(self.aborted()),
            Err(worse) => Err(worse),
            Ok(()) => Err(error),
        }
    }

    fn walk(&self) -> Result<u64> {
        let mut building = Vec::new();
        // Indexes built together have the same progress.
        let mut after = self.indexes.iter().filter_map(|i| i.resume_after()).min();
        if self.indexes.iter().any(|i| i.resume_after().is_none()) {
            after = None;
        }
        let progress = self.operation.progress();
        progress.begin(
            "Index Build: scanning collection",
            self.source.document_count()?,
        );
        let clock = self.operation.clock();
        let mut logged = clock.monotonic();
        let mut walked = 0;
        let mut more = true;
        while more {
            self.operation.check_interrupt()?;
            let begun = clock.monotonic();
            let mut done = 0;
            self.source.exclusively(&mut || {
                (done, after) = self.fill_chunk(&mut building, after.take())?;
                if done == 0 {
                    self.finish()?;
                }
                Ok(())
            })?;
            more = done > 0;
            walked += done;
            progress.advance(done);
            if begun.saturating_sub(logged) >= LOG_INTERVAL {
                logged = begun;
                self.log_progress();
            }
            if more && self.source.has_waiting_writers() {
                let took = clock.monotonic().saturating_sub(begun);
                std::thread::sleep(took.min(PAUSE_MAX));
            }
        }
        Ok(walked)
    }

    fn log_progress(&self) {
        if let Some((_, done, total)) = self.operation.progress().now() {
            let namespace = self.collection.namespace.to_string();
            info!(
                c = "INDEX",
                id = 51_773,
                namespace,
                done,
                total,
                "Index build: progress"
            );
        }
    }

    /// Writes the entries of one chunk. Returns the number of documents and the last record.
    fn fill_chunk(
        &self,
        building: &mut Vec<BuildingIndex>,
        after: Option<Vec<u8>>,
    ) -> Result<(u64, Option<Vec<u8>>)> {
        self.check_not_aborted()?;
        if let Some(filled) = self.source.fill(self, after.as_deref()) {
            return filled;
        }
        if building.is_empty() {
            for stored in self.indexes {
                building.push(BuildingIndex {
                    index: Index::of(stored)?,
                    multikey: 0,
                    pending: PendingKeys::default(),
                });
            }
        }
        let snapshot = self.engine.snapshot()?;
        let chunk = self.source.documents_after(&*snapshot, after.as_deref())?;
        let mut batch = WriteBatch::new();
        let (mut done, mut last) = (0, after);
        for (record, document) in chunk {
            for one in building.iter_mut() {
                let limits = Some(self.operation.evaluation_limits());
                let keys = one.index.keys_within(document.as_ref(), limits)?;
                one.add(
                    self.collection,
                    &*snapshot,
                    &mut batch,
                    (&record, &document),
                    keys,
                )?;
            }
            done += 1;
            last = Some(record);
            if batch.bytes() > CHUNK_ENTRY_BYTES_MAX {
                break;
            }
        }
        let Some(last) = last.filter(|_| done > 0) else {
            return Ok((0, None));
        };
        for one in building.iter_mut() {
            let stored = &one.index.stored;
            self.catalog
                .mark_multikey(self.collection, stored, one.multikey)?;
            self.catalog.put_build_progress(&mut batch, stored, &last);
            one.pending.clear();
        }
        // A crash loses entries and progress together, so the chunk is repeated.
        let committed = self.engine.commit(batch, Durability::Buffered);
        if let Err(error) = committed {
            self.check_not_aborted()?;
            return Err(error.into());
        }
        Ok((done, Some(last)))
    }

    /// Finishes the indexes. Must be called while no document changes.
    fn finish(&self) -> Result<()> {
        self.check_not_aborted()?;
        for stored in self.indexes {
            self.catalog.finish_index(self.collection, stored)?;
        }
        Ok(())
    }

    /// Fails if a writer has made the build impossible, or if an index or the collection was dropped.
    fn check_not_aborted(&self) -> Result<()> {
        let there = self.collection.indexes.all();
        for stored in self.indexes {
            if let Some(failure) = stored.build_failure() {
                return Err(failure);
            }
            if !there.iter().any(|i| i.keyspace == stored.keyspace) {
                return Err(self.aborted());
            }
        }
        Ok(())
    }

    fn aborted(&self) -> Error {
        Error::new(
            ErrorCode::IndexBuildAborted,
            format!(
                "the index build on {} was aborted: an index or the collection was dropped",
                self.collection.namespace
            ),
        )
    }
}

impl BuildingIndex {
    fn add(
        &mut self,
        collection: &Collection,
        snapshot: &dyn Snapshot,
        batch: &mut WriteBatch,
        (record, document): (&[u8], &Document),
        keys: DocumentKeys,
    ) -> Result<()> {
        if self.index.stored.spec.unique {
            let pending = &self.pending;
            if let Some(key) = pending.find_duplicate(
                &self.index,
                snapshot,
                record,
                (&DocumentKeys::default(), &keys),
            )? {
                let namespace = &collection.namespace;
                let document = Some(document.as_ref());
                return Err(duplicate_key(namespace, &self.index, key, document));
            }
            self.pending.change(record, &DocumentKeys::default(), &keys);
        }
        if keys.entry_bytes(record) > KEYS_BYTES_MAX {
            return Err(keys_too_long("an index"));
        }
        self.multikey |= keys.multikey;
        put_entries(batch, &self.index, &keys, record);
        Ok(())
    }
}
