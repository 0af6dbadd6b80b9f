//! Maintenance: folds and seals buckets behind the inserts.
//!
//! ```text
//! insert ─► tasks ─► task queue ─► one thread ─┬─► fold
//!                       │ far too many         ├─► seal ─► summarize, when many are sealed or the queue is idle
//!                       ▼                      └─► idle: the engine compacts keyspaces that lost most of their entries
//!                  done by the insert
//! ```
//!
//! [`task_queue`](super::task_queue) bounds the queue: inserts wait for a part of what is too much, so that writers cannot outrun the folding.
//! Sealing an idle bucket is skipped then, as a million idle series would make it wait. A fold waits because a bucket that
//! fills within seconds is then written once, sealed, instead of twice. Several seals share a batch: a commit may wait for the sync of
//! an insert. Tasks lost in a crash are found again at start: every bucket with a tail is sealed then
//! ([`MaintenanceQueue::seal_unsealed`]).

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, WriteBatch};

use super::summarize::{SummarizeStep, Summarizer};
use super::task_queue::{NextStep, QueuedTask, TaskQueue};
use super::{BucketFolder, FoldResult, FoldTarget, registry};
use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};
use crate::timeseries::bucket_catalog::{BucketCatalog, MaintenanceTask, SeriesKey};
use crate::timeseries::cache::interner::Interner;
use crate::timeseries::cache::prefetch::PrefetchQueue;
use crate::timeseries::format::bucket_document::Layout;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::sealed::Dictionaries;
use crate::timeseries::format::tail;
use crate::timeseries::index::maintenance::IndexMaintainer;

/// Time without a task after which keyspaces are compacted.
const IDLE: Duration = Duration::from_secs(1);

/// Buckets sealed with one batch, at most.
const SEALED_TOGETHER_MAX: usize = 32;

/// Bytes of a batch after which the next bucket gets another.
const BATCH_BYTES: u64 = 1 << 20;

/// How long a dropped collection's dictionaries are kept for its readers, at least.
const DROPPED_KEPT_FOR: Duration = Duration::from_secs(30);

/// Sealed buckets after which their collection is summarized although the queue is busy.
const UNSUMMARIZED_MAX: usize = 1024;

/// Removed entries of a keyspace below which it is not compacted.
const COMPACTED_ENTRIES_MIN: usize = 1000;

type Registered = RwLock<HashMap<[u8; 16], Arc<Collection>>>;

/// The queue and its thread. Dropping it ends the thread; queued tasks are left for the next start.
pub(crate) struct MaintenanceQueue {
    worker: Arc<MaintenanceWorker>,
    /// Collections that were inserted into: tasks name them by UUID.
    collections: Arc<Registered>,
    /// The queue of a simulation, which has no thread.
    queued: Option<Mutex<Vec<QueuedTask>>>,
    /// `None` without a thread: each insert performs its own tasks.
    tasks: Option<Arc<TaskQueue>>,
    thread: Option<JoinHandle<()>>,
}

/// Closes a queue when its thread ends, whatever ends it.
struct ClosedAtEnd(Arc<TaskQueue>);

impl Drop for ClosedAtEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Entries that were removed from a keyspace since it was compacted.
#[derive(Default)]
struct RemovedEntries {
    /// Compacted with it.
    open: Option<KeyspaceId>,
    entries: usize,
}

/// Performs tasks: on the thread of the queue, or on the thread of an insert when the queue is full.
struct MaintenanceWorker {
    engine: Arc<dyn Engine>,
    bucket_catalog: Arc<BucketCatalog>,
    dictionaries: Arc<Dictionaries>,
    /// Locked while a bucket is rewritten or removed.
    rewriting: Mutex<()>,
    /// By the keyspace of the tails, or of the summaries.
    removed: Mutex<HashMap<KeyspaceId, RemovedEntries>>,
    /// Buckets whose summaries are out of date, by collection; about.
    unsummarized: Mutex<HashMap<[u8; 16], usize>>,
    /// The series indexes of the collections whose registry is complete, or cannot be completed.
    registries: Mutex<HashSet<KeyspaceId>>,
    /// See [`Summarizer`].
    next_numbers: Mutex<HashMap<KeyspaceId, u64>>,
    interner: Arc<Interner>,
    /// Buckets sealed lately, to be prefetched.
    prefetch: Arc<PrefetchQueue>,
    /// The last failure of a task; the data stays readable from the tail.
    failure: Mutex<Option<Error>>,
}

impl MaintenanceWorker {
    fn new(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
    ) -> Self {
        Self {
            engine,
            bucket_catalog,
            dictionaries,
            rewriting: Mutex::default(),
            removed: Mutex::default(),
            unsummarized: Mutex::default(),
            registries: Mutex::default(),
            next_numbers: Mutex::default(),
            interner: Arc::default(),
            prefetch: Arc::default(),
            failure: Mutex::default(),
        }
    }

    fn run(&self, tasks: &TaskQueue, collections: &Registered) {
        loop {
            match tasks.next(SEALED_TOGETHER_MAX, IDLE) {
                NextStep::Tasks(next) => {
                    self.perform(&next);
                    tasks.note_done(next.len());
                    self.summarize_noted(collections, UNSUMMARIZED_MAX);
                }
                NextStep::Barrier(done) => {
                    for fold in tasks.take_folds() {
                        self.perform(&[fold]);
                    }
                    // The waiting thread may be gone.
                    let _ = done.send(());
                }
                NextStep::Idle => {
                    self.summarize_noted(collections, 1);
                    if tasks.has_no_folds() {
                        self.compact_removed();
                    }
                }
                NextStep::End => return,
            }
        }
    }

    /// Compacts the keyspaces of tails and open buckets that lost most of their entries: readers pass over removed entries
    /// until they are merged away. After a failure the same number must be removed again for another try.
    fn compact_removed(&self) {
        let mut due = Vec::new();
        self.lock_removed().retain(|&tail, removed| {
            let Ok(left) = self.engine.keyspace_statistics(tail) else {
                return false;
            };
            let most = removed.entries as u64 >= left.keys_estimate / 2;
            if removed.entries < COMPACTED_ENTRIES_MIN || !most {
                return true;
            }
            due.push(tail);
            due.extend(removed.open);
            false
        });
        for keyspace in due {
            // A failure leaves the data as it is.
            let _ = self.engine.settle_keyspace(keyspace);
        }
    }

    fn lock_removed(&self) -> MutexGuard<'_, HashMap<KeyspaceId, RemovedEntries>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_rewriting(&self) -> MutexGuard<'_, ()> {
        self.rewriting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs tasks of one collection: a fold, or seals.
    fn perform(&self, tasks: &[QueuedTask]) {
        let Some((collection, first)) = tasks.first() else {
            return;
        };
        let performed = match first {
            MaintenanceTask::Fold(key, id) => self.fold(collection, key, *id),
            _ => {
                let buckets = tasks.iter().map(|(_, task)| task.bucket());
                self.seal(collection, &buckets.collect::<Vec<_>>())
            }
        };
        if let Err(error) = performed {
            self.note_failure(collection, first.bucket(), error);
        }
    }

    /// Keeps a failure for [`MaintenanceQueue::wait`], unless the collection was dropped.
    fn note_failure(&self, collection: &Collection, bucket: [u8; 12], error: Error) {
        if error.code == ErrorCode::DataCorruptionDetected {
            // Readers of the bucket get the error; writers use other buckets.
            self.bucket_catalog.freeze(collection.uuid, bucket);
            return;
        }
        let tail = BucketKeyspaces::of(collection).map(|keyspaces| keyspaces.tail);
        let dropped = tail.is_some_and(|tail| self.engine.keyspace_statistics(tail).is_err());
        if !dropped {
            *self.lock_failure() = Some(error);
        }
    }

    /// Calls `change` with a folder for buckets of a collection. Holds the lock for rewriting buckets until it returns. Does
    /// nothing for a collection that is no time series.
    fn with_folder(
        &self,
        collection: &Collection,
        change: impl FnOnce(&BucketFolder<'_>) -> Result<()>,
    ) -> Result<()> {
        let _rewriting = self.lock_rewriting();
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(());
        };
        let layout = &Layout::of(collection, options)?;
        let indexes = IndexMaintainer::lock(collection)?;
        change(&BucketFolder {
            engine: &*self.engine,
            bucket_catalog: &self.bucket_catalog,
            dictionaries: &self.dictionaries,
            collection: collection.uuid,
            keyspaces,
            indexes: &indexes,
            layout,
        })
    }

    fn fold(&self, collection: &Collection, key: &SeriesKey, id: [u8; 12]) -> Result<()> {
        self.with_folder(collection, |folder| {
            let Some(upto) = self.bucket_catalog.begin_fold(key, id) else {
                return Ok(());
            };
            let mut batch = WriteBatch::new();
            let snapshot = self.engine.snapshot()?;
            let of_bucket = (id, Some(upto));
            let folded = folder.fold(&*snapshot, &mut batch, of_bucket, FoldTarget::Open)?;
            drop(snapshot);
            if !batch.is_empty() {
                self.engine.commit(batch, Durability::Buffered)?;
            }
            if let Some((rows, bytes)) = folded.written {
                self.bucket_catalog.end_fold(key, id, rows, bytes);
            }
            self.note_removed(folder.keyspaces, folded.removed);
            Ok(())
        })
    }

    /// Seals different buckets of one collection. Each that fails is left as it is.
    fn seal(&self, collection: &Collection, buckets: &[[u8; 12]]) -> Result<()> {
        self.with_folder(collection, |folder| {
            let mut left = buckets.iter();
            while !left.as_slice().is_empty() {
                let mut batch = WriteBatch::new();
                let mut sealed = Vec::new();
                let snapshot = self.engine.snapshot()?;
                while batch.bytes() < BATCH_BYTES
                    && let Some(id) = left.next()
                {
                    match folder.fold(&*snapshot, &mut batch, (*id, None), FoldTarget::Sealed) {
                        Ok(folded) => sealed.push((*id, folded)),
                        Err(error) => self.note_failure(collection, *id, error),
                    }
                }
                drop(snapshot);
                if !batch.is_empty() {
                    self.engine.commit(batch, Durability::Buffered)?;
                }
                self.note_sealed(collection, folder.keyspaces, &sealed);
            }
            Ok(())
        })
    }

    fn note_sealed(
        &self,
        collection: &Collection,
        keyspaces: BucketKeyspaces,
        sealed: &[([u8; 12], FoldResult)],
    ) {
        let written = sealed.iter().filter(|(_, folded)| folded.written.is_some());
        let mut marks = 0;
        for (id, _) in written {
            self.prefetch.add(collection.uuid, *id);
            marks += 1;
        }
        if marks > 0 {
            self.note_marks(collection.uuid, marks);
        }
        let removed = sealed.iter().map(|(_, folded)| folded.removed).sum();
        self.note_removed(keyspaces, removed);
    }

    fn note_removed(&self, keyspaces: BucketKeyspaces, entries: usize) {
        let mut removed = self.lock_removed();
        let removed = removed.entry(keyspaces.tail).or_default();
        removed.open = Some(keyspaces.open);
        removed.entries += entries;
    }

    /// Notes that the summaries of buckets are out of date. Returns the number of such buckets.
    fn note_marks(&self, collection: [u8; 16], marks: usize) -> usize {
        let mut noted = self.lock_unsummarized();
        let noted = noted.entry(collection).or_default();
        *noted += marks;
        *noted
    }

    fn lock_unsummarized(&self) -> MutexGuard<'_, HashMap<[u8; 16], usize>> {
        let noted = self.unsummarized.lock();
        noted.unwrap_or_else(PoisonError::into_inner)
    }

    /// Summarizes the collections with at least so many buckets out of date. A failure leaves the marks for the next time.
    fn summarize_noted(&self, collections: &Registered, at_least: usize) {
        let noted = self.lock_unsummarized();
        let due = noted.iter().filter(|(_, marks)| **marks >= at_least);
        let due: Vec<[u8; 16]> = due.map(|(uuid, _)| *uuid).collect();
        drop(noted);
        for uuid in due {
            let known = collections.read().unwrap_or_else(PoisonError::into_inner);
            let collection = known.get(&uuid).cloned();
            drop(known);
            match collection {
                Some(collection) => {
                    let _ = self.summarize(&collection);
                }
                // It was dropped.
                None => drop(self.lock_unsummarized().remove(&uuid)),
            }
        }
    }

    /// Registers the series of buckets that are older than the registry. Readers use an index until that is done.
    fn complete_registry(&self, keyspaces: BucketKeyspaces, time_field: &str) {
        let known = || {
            self.registries
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        // Not held while the buckets are read: other collections go on.
        if !known().insert(keyspaces.series) {
            return;
        }
        // With a damaged bucket every pass would end there.
        if let Err(error) = registry::complete(&*self.engine, keyspaces, time_field)
            && error.code != ErrorCode::DataCorruptionDetected
        {
            known().remove(&keyspaces.series);
        }
    }

    /// Brings the summaries of a collection up to date.
    fn summarize(&self, collection: &Collection) -> Result<()> {
        self.lock_unsummarized().remove(&collection.uuid);
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(());
        };
        self.complete_registry(keyspaces, &options.time_field);
        let Some(summaries) = keyspaces.summaries else {
            return Ok(());
        };
        let summarizer = Summarizer {
            engine: &*self.engine,
            keyspaces,
            summaries,
            time_field: &options.time_field,
            interner: &self.interner,
            next_numbers: &self.next_numbers,
        };
        let mut removed = 0;
        loop {
            // Others change buckets between the steps.
            let _rewriting = self.lock_rewriting();
            match summarizer.step()? {
                SummarizeStep::Marks(handled) => removed += handled,
                SummarizeStep::Done => break,
            }
        }
        let mut entries = self.lock_removed();
        entries.entry(summaries).or_default().entries += removed;
        Ok(())
    }
}

impl MaintenanceQueue {
    pub(crate) fn start(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
    ) -> Self {
        let worker = Arc::new(MaintenanceWorker::new(engine, bucket_catalog, dictionaries));
        let tasks = Arc::<TaskQueue>::default();
        let collections = Arc::<Registered>::default();
        let thread = std::thread::Builder::new()
            .name("bucket-upkeep".into())
            .spawn({
                let (worker, collections) = (worker.clone(), collections.clone());
                let tasks = ClosedAtEnd(tasks.clone());
                move || worker.run(&tasks.0, &collections)
            });
        let (tasks, thread) = match thread {
            Ok(thread) => (Some(tasks), Some(thread)),
            Err(_) => (None, None),
        };
        Self {
            worker,
            collections,
            queued: None,
            tasks,
            thread,
        }
    }

    /// A queue without a thread: each insert performs its own tasks.
    pub(crate) fn of_transaction(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
    ) -> Self {
        Self {
            worker: Arc::new(MaintenanceWorker::new(engine, bucket_catalog, dictionaries)),
            collections: Arc::default(),
            queued: None,
            tasks: None,
            thread: None,
        }
    }

    /// A queue without a thread, whose tasks wait for [`MaintenanceQueue::perform_queued`].
    #[cfg(test)]
    pub(crate) fn without_thread(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
    ) -> Self {
        Self {
            worker: Arc::new(MaintenanceWorker::new(engine, bucket_catalog, dictionaries)),
            collections: Arc::default(),
            queued: Some(Mutex::default()),
            tasks: None,
            thread: None,
        }
    }

    /// Performs one of the queued tasks, which `choose` picks given their number.
    #[cfg(test)]
    pub(crate) fn perform_queued(&self, choose: impl FnOnce(usize) -> usize) {
        let queued = self.queued.as_ref().expect("a queue without a thread");
        let mut queued = queued.lock().unwrap_or_else(PoisonError::into_inner);
        if queued.is_empty() {
            return;
        }
        let at = choose(queued.len());
        let task = queued.remove(at);
        drop(queued);
        self.worker.perform(&[task]);
    }

    /// Makes a collection known, so that tasks can name it.
    pub(crate) fn register(&self, collection: &Arc<Collection>) {
        let known = self.collections.read();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        if known.contains_key(&collection.uuid) {
            return;
        }
        drop(known);
        let known = self.collections.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.insert(collection.uuid, collection.clone());
        drop(known);
        if let Some(keyspaces) = BucketKeyspaces::of(collection) {
            // A failure leaves it to the next pass over the summaries.
            let _ = registry::complete_if_empty(&*self.worker.engine, keyspaces);
        }
    }

    /// Returns a registered collection; `None` once it was dropped.
    pub(crate) fn collection(&self, uuid: [u8; 16]) -> Option<Arc<Collection>> {
        let known = self.collections.read();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.get(&uuid).cloned()
    }

    /// Forgets a dropped collection; its queued tasks do nothing.
    pub(crate) fn unregister(&self, uuid: [u8; 16]) {
        let known = self.collections.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.remove(&uuid);
    }

    /// Queues the tasks that an insert of this many measurements leaves. Waits if the queue is long: the caller holds no lock.
    pub(crate) fn add_all(&self, tasks: Vec<MaintenanceTask>, measurements: usize) {
        // A dropped collection needs no maintenance.
        let tasks = tasks
            .into_iter()
            .filter_map(|task| Some((self.collection(task.collection())?, task)));
        self.add(tasks.collect(), measurements);
    }

    fn add(&self, tasks: Vec<QueuedTask>, measurements: usize) {
        if let Some(queued) = &self.queued {
            let mut queued = queued.lock().unwrap_or_else(PoisonError::into_inner);
            return queued.extend(tasks);
        }
        let left = match &self.tasks {
            Some(queue) => queue.add_all(tasks, measurements),
            None => tasks,
        };
        for task in left {
            self.worker.perform(&[task]);
        }
    }

    /// The buckets sealed lately, shared with the prefetcher.
    pub(crate) fn prefetch_queue(&self) -> Arc<PrefetchQueue> {
        Arc::clone(&self.worker.prefetch)
    }

    /// Locks all buckets against being rewritten.
    pub(crate) fn lock_rewriting(&self) -> MutexGuard<'_, ()> {
        self.worker.lock_rewriting()
    }

    /// Queues the sealing of every bucket that has a tail: at start, when no bucket is open yet. Returns their number.
    pub(crate) fn seal_unsealed(&self, collection: &Arc<Collection>) -> Result<usize> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(0);
        };
        let snapshot = self.worker.engine.snapshot()?;
        let scan = snapshot.scan(keyspaces.tail, &[], None, Direction::Forward)?;
        let mut last = None;
        let mut found = 0;
        for item in scan {
            let (id, _) = tail::split_key(&item?.0)?;
            if last != Some(id) {
                last = Some(id);
                found += 1;
                self.add_seal(collection, id);
            }
        }
        // A crash may have left marks.
        self.register(collection);
        self.note_marks(collection.uuid, 1);
        Ok(found)
    }

    fn add_seal(&self, collection: &Arc<Collection>, id: [u8; 12]) {
        let task = MaintenanceTask::Seal(collection.uuid, id);
        self.add(vec![(collection.clone(), task)], 0);
    }

    /// Closes every open bucket of a collection, seals it, and waits for that.
    pub(crate) fn seal_all(&self, collection: &Arc<Collection>) -> Result<()> {
        self.worker.bucket_catalog.clear(collection.uuid);
        self.wait()?;
        self.seal_unsealed(collection)?;
        if let Some(keyspaces) = BucketKeyspaces::of(collection) {
            let snapshot = self.worker.engine.snapshot()?;
            let scan = snapshot.scan(keyspaces.open, &[], None, Direction::Forward)?;
            for item in scan {
                if let Ok(id) = <[u8; 12]>::try_from(&item?.0[..]) {
                    self.add_seal(collection, id);
                }
            }
        }
        self.wait()?;
        self.worker.summarize(collection)
    }

    /// Brings the summaries of a collection up to date.
    #[cfg(test)]
    pub(crate) fn summarize(&self, collection: &Collection) -> Result<()> {
        self.worker.summarize(collection)
    }

    /// Notes that the summaries of buckets are out of date.
    pub(crate) fn note_marks(&self, collection: [u8; 16], marks: usize) {
        self.worker.note_marks(collection, marks);
    }

    /// Waits until everything queued so far is done; fails with the last failure of a task.
    pub(crate) fn wait(&self) -> Result<()> {
        if let Some(queue) = &self.tasks {
            let (done, waiting) = sync_channel(1);
            queue.add_barrier(done);
            // An error means that the thread ended and nothing is left to wait for.
            let _ = waiting.recv();
        }
        self.worker.lock_failure().take().map_or(Ok(()), Err)
    }

    /// Removes the dictionaries of dropped collections that no reader can need any more: a reader sees one snapshot.
    pub(crate) fn release_dropped(&self) {
        let dictionaries = &self.worker.dictionaries;
        let waited = dictionaries.dropped_for();
        if waited.is_none_or(|waited| waited < DROPPED_KEPT_FOR) {
            return;
        }
        let oldest = self.worker.engine.statistics().oldest_snapshot_ms;
        let oldest = Duration::from_millis(oldest);
        // A failure leaves them in the catalog until the next start.
        let _ = dictionaries.release_dropped(DROPPED_KEPT_FOR.max(oldest));
    }
}

impl Drop for MaintenanceQueue {
    fn drop(&mut self) {
        if let Some(queue) = &self.tasks {
            queue.close();
        }
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nilometer_bson::{Value, doc};

    use super::*;
    use crate::timeseries::BucketLimits;
    use crate::timeseries::tests::{Fixture, on_disk};

    #[test]
    fn keyspaces_of_folded_entries_are_compacted_when_idle() {
        on_disk("settling", |engine| {
            let options = doc! { "timeField": "t", "metaField": "m" };
            let f = Fixture::over(engine, BucketLimits::default(), options);
            for minute in 0..20 {
                let measurement = |m| doc! { "t": Value::DateTime(minute * 60_000), "m": m };
                let batch: Vec<_> = (0..100).map(measurement).collect();
                assert!(f.insert(&batch, true).errors.is_empty());
            }
            let tail = BucketKeyspaces::of(&f.collection).unwrap().tail;
            let entries = || f.engine.keyspace_statistics(tail).unwrap().keys_estimate;
            assert!(entries() >= 2000);
            f.timeseries.seal_all(&f.collection).unwrap();
            let start = Instant::now();
            while entries() > 0 && start.elapsed() < 30 * IDLE {
                std::thread::sleep(IDLE / 10);
            }
            assert_eq!(entries(), 0);
            assert_eq!(f.buckets(false).len(), 100);
        });
    }
}
