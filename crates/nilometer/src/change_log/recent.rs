//! The newest batches in memory, with the collections that they change. Streams that follow closely read them here: without
//! storage, and without the batches that do not concern them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::read::LoggedBatch;

/// Bytes of batches kept.
const BYTES_MAX: usize = 8 << 20;

/// Most batches kept.
const BATCHES_MAX: usize = 10_000;

/// The collections, and databases, that a batch changes.
pub(super) type ChangedNames = Arc<[Box<str>]>;

/// The changes that a stream shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamScope {
    /// Those of all databases, except the server's own.
    Cluster,
    /// Those of a database.
    Database(String),
    /// Those of the collection `db.coll`.
    Collection(String),
}

impl StreamScope {
    /// True if the stream shows changes of the collection `db.coll`.
    pub(crate) fn shows(&self, name: &str) -> bool {
        let (database, collection) = name.split_once('.').unwrap_or((name, ""));
        match self {
            Self::Collection(watched) => watched == name,
            Self::Database(watched) => watched == database && !collection.starts_with("system."),
            Self::Cluster => {
                !matches!(database, "admin" | "config" | "local")
                    && !collection.starts_with("system.")
            }
        }
    }

    /// True if a change of this collection or database may have events in the stream.
    pub(crate) fn is_concerned(&self, name: &str) -> bool {
        match self {
            Self::Cluster => true,
            Self::Collection(watched) => watched == name,
            Self::Database(watched) => {
                let rest = name.strip_prefix(watched.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }
        }
    }
}

struct RecentBatch {
    batch: LoggedBatch,
    names: ChangedNames,
}

/// The newest batches, in the order of their times. Those that are not visible yet are among them.
pub(super) struct RecentBatches {
    batches: VecDeque<RecentBatch>,
    bytes: usize,
    /// All batches from this time on are here.
    from: u64,
}

impl RecentBatches {
    /// Keeps the batches from the time `from` on.
    pub(super) fn starting(from: u64) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            from,
        }
    }

    /// Adds a batch, which is later than all others.
    pub(super) fn push(&mut self, batch: LoggedBatch, names: ChangedNames) {
        self.bytes += batch.bytes();
        self.batches.push_back(RecentBatch { batch, names });
        while self.bytes > BYTES_MAX || self.batches.len() > BATCHES_MAX {
            let Some(oldest) = self.batches.pop_front() else {
                return;
            };
            self.bytes -= oldest.batch.bytes();
            self.from = oldest.batch.time + 1;
        }
    }

    /// Removes a batch that the engine has refused.
    pub(super) fn remove(&mut self, time: u64) {
        let found = self
            .batches
            .binary_search_by_key(&time, |one| one.batch.time);
        if let Some(removed) = found.ok().and_then(|at| self.batches.remove(at)) {
            self.bytes -= removed.batch.bytes();
        }
    }

    /// Returns the batches of `scope` from `first` to `last`; `None` if some of them are not here.
    pub(super) fn of(
        &self,
        scope: &StreamScope,
        first: u64,
        last: u64,
    ) -> Option<impl Iterator<Item = &LoggedBatch>> {
        if first < self.from {
            return None;
        }
        let start = self.batches.partition_point(|one| one.batch.time < first);
        let these = self.batches.range(start..);
        let these = these.take_while(move |one| one.batch.time <= last);
        let these = these.filter(|one| one.names.iter().any(|name| scope.is_concerned(name)));
        Some(these.map(|one| &one.batch))
    }
}
